"""Bootstraps against a loop over the library, and the price of one grading."""

import time

import numpy as np
import pytest
from sklearn import metrics as sk

from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.metrics import bootstrap
from rl_oodkit.mle.victim import victim_task
from rl_oodkit.stats.bootstrap import episode_weights

N, RESAMPLES, SHARE = 500, 1000, 50
RNG = stream(0, "speed")
Y, P = RNG.integers(0, 2, N), RNG.random(N)
CASES = {
    "accuracy": (sk.accuracy_score, (P > 0.5).astype(int)),
    "auc": (sk.roc_auc_score, np.round(P, 2)),
    "macro_f1": (lambda y, p: sk.f1_score(y, p, average="macro"), (P > 0.5).astype(int)),
    "brier": (sk.brier_score_loss, P),
    "rmse": (sk.root_mean_squared_error, P),
}


def spent(function) -> tuple[float, object]:
    """Return processor seconds and the result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def library(metric, prediction, counts):
    """Score the tables that resamples stand for, one by one."""
    function = CASES[metric][0]
    return [function(np.repeat(Y, c), np.repeat(prediction, c)) for c in counts]


@pytest.mark.parametrize("metric", CASES)
def test_a_bootstrap_is_twenty_times_faster_than_a_loop_and_equal(metric):
    """A thousand resamples of 500 rows, counts drawn beforehand for both; the loop is timed on 50 of them."""
    prediction, ratios = CASES[metric][1], []
    counts = episode_weights(stream(0, "bootstrap"), N, RESAMPLES)[:SHARE]
    bootstrap(metric, Y, prediction, resamples=RESAMPLES)
    for _ in range(3):
        ours, fast = spent(lambda: bootstrap(metric, Y, prediction, resamples=RESAMPLES))
        theirs, slow = spent(lambda: library(metric, prediction, counts))
        assert np.abs(fast[:SHARE] - slow).max() < 1e-12
        ratios.append(theirs * RESAMPLES / SHARE / ours)
    assert max(ratios) >= 20, ratios


@pytest.mark.parametrize("kind", ["probability", "probabilities", "value"])
def test_grading_an_array_takes_less_than_a_millisecond(kind):
    """Public and private part of 600 rows, checks included."""
    task = victim_task(kind)
    judge = task.judge()
    prediction = judge.read(task.tables.sample_submission)
    judge.grade_predictions(prediction)
    times = [spent(lambda: [judge.grade_predictions(prediction) for _ in range(50)])[0] / 50 for _ in range(3)]
    assert min(times) < 1e-3, times
