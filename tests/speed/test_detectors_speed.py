"""The two hot paths of detectors keep their floors, and cost grows in proportion to the rows."""

import time

import numpy as np
import pytest

from rl_oodkit.ood.detector import build_detector
from rl_oodkit.ood.detector_checks import synthetic_trajectories
from rl_oodkit.reproduce.speed_detectors import EnsemblePair, WindowPair
from rl_oodkit.reproduce.timing import time_pair


@pytest.mark.parametrize(("pair", "size", "floor"), [(WindowPair(), 20_000, 1000), (EnsemblePair(), 4000, 100)])
def test_floors(pair, size, floor):
    """Median of five interleaved ratios, both sides giving the same numbers."""
    timing = time_pair(pair, size, repeats=5)
    assert timing.equal
    assert np.median(timing.ratios) >= floor, timing


def seconds(detector, batch):
    """Return CPU seconds of the faster of two passes."""
    spent = []
    for _ in range(2):
        start = time.process_time()
        detector.score_batch(batch)
        spent.append(time.process_time() - start)
    return min(spent)


def test_a_batch_costs_less_than_its_episodes():
    """All rows in one call: at least twenty times faster than a forest asked for each row."""
    batch = synthetic_trajectories(20)
    detector = build_detector("iforest/obs").fit(batch)
    start = time.process_time()
    for row in detector.features.rows(batch)[:20]:
        detector.scorer.score_samples(row[None])
    one_by_one = (time.process_time() - start) / 20
    assert seconds(detector, batch) / batch.n_steps * 20 < one_by_one


def test_cost_grows_in_proportion():
    """Eight times the episodes cost at most sixteen times as much, accumulation included."""
    small, large = synthetic_trajectories(50), synthetic_trajectories(400)
    detector = build_detector("gmm/transition+martingale").fit(small).calibrate(small)
    assert seconds(detector, large) < 16 * max(seconds(detector, small), 2e-3)
