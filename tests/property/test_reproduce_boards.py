"""Averages over a family keep what its cells share, and verdicts follow the numbers and nothing else."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_oodkit.core.errors import ParameterError
from rl_oodkit.core.seeds import stream
from rl_oodkit.ood.null import coverage_rows, null_intervals
from rl_oodkit.reproduce.boards import (
    accumulation_gain,
    best_of_family,
    family_means,
    family_spread,
    memory,
    metric_rows,
    verdict_accurate,
    verdict_differ,
    verdict_difficult,
)
from rl_oodkit.reproduce.nulls import steps_interval, steps_study


def board(values, replicates=None):
    """Make a board from {(detector, family): areas of its cells}."""
    rows = []
    for (detector, family), areas in values.items():
        for c, area in enumerate(areas):
            kept = replicates[(detector, family)][c] if replicates else [area, area]
            base = {"detector": detector, "family": family, "cell": f"{family}-{c}", "metric": "auroc_landmark"}
            rows.append({**base, "value": area, "replicates": kept})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("detector", "kind"),
    [
        ("gmm/transition", "per step"),
        ("gmm/transition+none", "per step"),
        ("gmm/transition+cusum", "accumulated"),
        ("iforest/window", "accumulated"),
        ("clock", "control"),
    ],
)
def test_what_a_detector_looks_back_on(detector, kind):
    """Accumulators and windows look back, single transitions do not, controls are controls."""
    assert memory(detector) == kind


def test_a_mean_over_cells_is_the_mean_and_keeps_shared_luck():
    """With the same luck in all cells a mean is as wide as a cell; with independent luck it is narrower."""
    luck = stream(0, "test").standard_normal((2, 4000)) * 0.05
    key = ("a/obs", "delay")
    shared = family_means(board({key: [0.6, 0.7]}, {key: [0.6 + luck[0], 0.7 + luck[0]]}))
    own = family_means(board({key: [0.6, 0.7]}, {key: [0.6 + luck[0], 0.7 + luck[1]]}))
    widths = [float((t["high"] - t["low"]).iloc[0]) for t in (shared, own)]
    assert shared["value"].iloc[0] == pytest.approx(0.65) and widths[0] / widths[1] == pytest.approx(2**0.5, rel=0.05)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(0, 4))
def test_cells_without_a_value_do_not_enter(areas, missing):
    """A mean over a family is over the cells that have a value, and its interval holds it."""
    key = ("a/obs", "delay")
    rows = board({key: [*areas, *[np.nan] * missing]})
    rows["replicates"] = [None if np.isnan(v) else [v, v] for v in rows["value"]]
    row = family_means(rows).iloc[0]
    assert row["cells"] == len(areas) and row["value"] == pytest.approx(np.mean(areas))
    assert row["low"] - 1e-9 <= row["value"] <= row["high"] + 1e-9


def test_the_gain_is_paired():
    """Luck that both detectors share cancels in the difference."""
    luck = stream(1, "test").standard_normal(500) * 0.1
    base, after = ("a/obs", "delay"), ("a/obs+cusum", "delay")
    table = accumulation_gain(board({base: [0.6], after: [0.8]}, {base: [0.6 + luck], after: [0.8 + luck]}))
    assert table[["value", "low", "high"]].to_numpy() == pytest.approx(0.2)
    assert table["base"].tolist() == ["a/obs"] and table["accumulator"].tolist() == ["cusum"]


def test_a_metric_that_is_not_there_is_named():
    """Asking for another metric names those of the board."""
    with pytest.raises(ParameterError, match="auroc_landmark"):
        metric_rows(board({("a/obs", "delay"): [0.5]}), "auroc")


def means(**areas):
    """Make family means of per-step and accumulated detectors."""
    values = {
        (f"{kind}{i}/obs{'+cusum' if kind == 'acc' else ''}", "delay"): [v]
        for kind in areas
        for i, v in enumerate(areas[kind])
    }
    return family_means(board(values))


@pytest.mark.parametrize(
    ("areas", "accurate", "difficult"),
    [
        ({"step": [0.6, 0.7]}, "does not hold", "holds"),
        ({"step": [0.6], "acc": [0.95, 0.96, 0.97]}, "accumulated, not per step", "per step, not accumulated"),
        ({"step": [0.91, 0.92, 0.93], "acc": [0.5]}, "holds", "does not hold"),
        ({"step": [0.95, 0.6], "acc": [0.95]}, "does not hold", "does not hold"),
        ({"step": [0.3, 0.1]}, "does not hold", "holds"),
    ],
)
def test_verdicts(areas, accurate, difficult):
    """The three words follow from the borders; an area far below one half is not accuracy."""
    table = means(**areas)
    assert verdict_accurate(table, "delay").endswith(accurate) and verdict_difficult(table, "delay").endswith(difficult)


def test_an_absent_family_is_no_success():
    """A family without detectors is neither accurate nor hard by accident of comparison with NaN."""
    assert np.isnan(best_of_family(means(step=[0.6]), "regime", "per step")["value"])
    assert verdict_accurate(means(step=[0.6]), "regime") == "does not hold"


def test_controls_do_not_enter_the_spread():
    """The spread is over real detectors; equal families have none."""
    values = {("a/obs", "x"): [0.5], ("a/obs", "y"): [0.9], ("clock", "x"): [0.5], ("clock", "y"): [0.5]}
    assert family_spread(family_means(board(values)))["value"] == pytest.approx(0.4)
    assert verdict_differ({"low": 0.2, "high": 0.4}) == "holds"
    assert verdict_differ({"low": 0.0, "high": 0.05}) == "does not hold"
    assert verdict_differ({"low": 0.05, "high": 0.4}).startswith("undecided")


def test_counting_steps_is_wrong_only_for_correlated_steps():
    """The negative control undercovers when episodes have levels of their own, and covers without."""
    rng, onset = stream(2, "test"), np.zeros(160, int)
    noise = rng.standard_normal((160, 30))
    cover = lambda scores: coverage_rows(steps_study(scores, onset, 60, 100, 0))["coverage"].iloc[0]
    assert cover(noise) >= 0.88 and cover(noise + rng.standard_normal((160, 1))) <= 0.6


def test_counting_steps_uses_the_same_divisions():
    """The three kinds of interval answer for the same areas."""
    scores, onset = stream(3, "test").standard_normal((60, 9)), np.zeros(60, int)
    both = null_intervals(scores, onset, 25, 5, 20, 4), steps_study(scores, onset, 25, 5, 4)
    assert np.allclose(both[0]["auroc"].to_numpy()[::2], both[1]["auroc"])


def test_at_one_step_counting_steps_is_delong():
    """With one score an episode there is nothing to count wrongly."""
    from rl_oodkit.stats.delong import cluster_delong

    rng = stream(4, "test")
    x, y = rng.standard_normal((40, 1)), rng.standard_normal((30, 1)) + 0.3
    low, high = steps_interval(x, y, np.ones(1))
    auc, variance, _, _ = cluster_delong(x, y, np.ones(1))
    assert (low + high) / 2 == pytest.approx(auc) and (high - low) / 2 == pytest.approx(
        1.959964 * variance**0.5, rel=1e-4
    )
