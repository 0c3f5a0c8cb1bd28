"""Laws of matched-time metrics, their intervals and their views."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from rl_oodkit.core import registry
from rl_oodkit.core.errors import NonFiniteError, ParameterError, ShapeError
from rl_oodkit.core.seeds import stream
from rl_oodkit.ood.intervals import area_interval, bootstrap_replicates, cell_weights
from rl_oodkit.ood.matched import (
    board_metrics,
    landmark_horizon,
    matched_auprc,
    matched_auroc,
    matched_fpr95,
    matched_metric,
    pad_active,
    pad_after_onset,
    same_horizon,
)
from rl_oodkit.ood.views import lag_view, matched_table, risk_set, time_comparison
from rl_oodkit.stats.ranking import auroc_by_step
from rl_oodkit.training.trajectories import from_numpy

seeds = st.integers(0, 2**32 - 1)


def ragged(rng, episodes, low, high, decimals=None):
    """Draw scores of episodes with random lengths, on a grid of ties if decimals are given."""
    lengths = rng.integers(low, high, episodes)
    scores = rng.normal(size=(episodes, high))
    scores = scores if decimals is None else np.round(scores, decimals)
    return np.where(np.arange(high) < lengths[:, None], scores, np.nan)


@settings(max_examples=40, deadline=None)
@given(seeds, st.sampled_from([None, 1, 0]))
def test_average_equals_the_plain_double_loop(seed, decimals):
    rng = np.random.default_rng(seed)
    x, y = ragged(rng, 30, 5, 25, decimals), ragged(rng, 20, 5, 30, decimals)
    top = total = top_early = total_early = dropped = 0.0
    result = matched_auroc(x, y, n_min=5)
    for t in range(30):
        a = x[:, t][np.isfinite(x[:, t])] if t < x.shape[1] else np.empty(0)
        b = y[:, t][np.isfinite(y[:, t])]
        if min(len(a), len(b)) < 5:
            dropped += len(b) > 0
            continue
        area = roc_auc_score(np.r_[np.zeros(len(a)), np.ones(len(b))], np.r_[a, b])
        w = len(a) * len(b) / (len(a) + len(b))
        top, total = top + w * area, total + w
        if t <= result.landmark:
            top_early, total_early = top_early + w * area, total_early + w
    assert result.dropped == dropped
    assert result.value_full == pytest.approx(top / total, abs=1e-12)
    if total_early:
        assert result.value_landmark == pytest.approx(top_early / total_early, abs=1e-12)
    else:
        assert np.isnan(result.value_landmark)


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_clock_is_worth_exactly_nothing_and_negation_sums_to_one(seed):
    rng = np.random.default_rng(seed)
    x, y = ragged(rng, 40, 20, 60), ragged(rng, 30, 20, 120)
    clock = np.arange(120.0)
    tick = lambda a: np.where(np.isfinite(a), clock[: a.shape[1]], np.nan)  # noqa: E731
    result = matched_auroc(tick(x), tick(y))
    assert result.value_landmark == 0.5 and result.value_full == 0.5
    assert matched_auroc(x, y).value_full + matched_auroc(-x, -y).value_full == pytest.approx(1.0, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_a_monotone_change_of_scale_changes_nothing(seed):
    rng = np.random.default_rng(seed)
    x, y = ragged(rng, 30, 20, 40), ragged(rng, 25, 20, 40)
    for metric in (matched_auroc, matched_auprc, matched_fpr95):
        assert metric(x, y).value_full == pytest.approx(metric(np.exp(x), np.exp(y)).value_full, abs=1e-12)


def test_auprc_at_equal_groups_is_sklearns():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 1)), rng.normal(1, 1, size=(30, 1))
    ours = matched_auprc(x, y).value_full
    assert ours == pytest.approx(average_precision_score(np.repeat([0, 1], 30), np.r_[x[:, 0], y[:, 0]]), abs=1e-12)


def test_fpr95_is_absent_below_twenty_positives():
    x = np.zeros((50, 3))
    assert np.isnan(matched_fpr95(x, np.ones((19, 3))).value_full)
    assert matched_fpr95(x, np.ones((20, 3))).value_full == 0.0
    assert matched_fpr95(x, np.zeros((20, 3))).value_full == 1.0


def test_nan_is_absent_and_never_low():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 5)), rng.normal(size=(20, 5))
    y_late = y.copy()
    y_late[:, 0] = np.nan
    assert matched_auroc(x, y_late).value_full == pytest.approx(matched_auroc(x[:, 1:], y[:, 1:]).value_full)
    assert matched_auroc(x, y_late).dropped == 0


def test_landmark_cuts_the_falling_side_only():
    n = np.array([100] * 50 + [70] * 50)
    p = np.concatenate([np.zeros(10), np.arange(1, 41), np.full(10, 40), np.full(40, 20)]).astype(int)
    assert landmark_horizon(n, p) == 49
    assert landmark_horizon(np.full(100, 100), p) == 59
    assert landmark_horizon(n, np.zeros(100, int)) == -1
    assert landmark_horizon(np.empty(0, int), np.empty(0, int)) == -1


def test_no_bin_gives_nan_and_not_a_number():
    result = matched_auroc(np.zeros((3, 4)), np.zeros((3, 4)))
    assert np.isnan(result.value_landmark) and np.isnan(result.value_full) and result.dropped == 4


@pytest.mark.parametrize(
    ("x", "y", "error"),
    [
        (np.zeros(3), np.zeros((3, 3)), ShapeError),
        (np.zeros((3, 3)), np.full((3, 3), np.inf), NonFiniteError),
        (np.array([["a"]]), np.zeros((1, 1)), ShapeError),
        (None, np.zeros((1, 1)), ShapeError),
    ],
)
def test_bad_scores_are_named(x, y, error):
    with pytest.raises(error, match="x|y"):
        matched_auroc(x, y)


def test_bad_counts_and_wrong_curves_are_named():
    with pytest.raises(ParameterError, match="n_min"):
        matched_auroc(np.zeros((3, 3)), np.zeros((3, 3)), n_min=0)
    with pytest.raises(ShapeError, match="curve"):
        matched_metric(lambda x, y: np.zeros(2), np.zeros((10, 3)), np.zeros((10, 3)))


def two_episodes(active):
    """Build two episodes of three steps, with the given labels in both."""
    step = {"observations": np.zeros((4, 1)), "actions": [0, 0, 0], "rewards": [0, 0, 0]}
    labels = {"active": active, "onset": int(np.argmax(active)) if any(active) else -1}
    return from_numpy([step | labels, step | labels])


def test_pad_active_and_pad_after_onset_agree_on_lasting_disturbances():
    trajs, scores = two_episodes([False, True, True]), np.arange(6.0).reshape(2, 3)
    expected = [[np.nan, 1, 2], [np.nan, 4, 5]]
    np.testing.assert_array_equal(pad_active(scores, trajs), expected)
    np.testing.assert_array_equal(pad_after_onset(scores, trajs.onset, trajs.offset_step), expected)
    with pytest.raises(ShapeError, match="scores"):
        pad_active(scores[:, :2], trajs)
    with pytest.raises(ShapeError, match="onsets"):
        pad_after_onset(scores, np.array([1]))


def test_pad_after_onset_stops_at_the_switch_back_and_drops_episodes_without_onset():
    scores = np.ones((3, 4))
    kept = np.isfinite(pad_after_onset(scores, np.array([1, -1, 2]), np.array([3, -1, -1])))
    assert kept.tolist() == [[False, True, True, False], [False] * 4, [False, False, True, True]]


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from([None, 1]))
def test_unit_weights_reproduce_every_registered_metric(seed, decimals):
    rng = np.random.default_rng(seed)
    x, y = ragged(rng, 40, 10, 20, decimals), ragged(rng, 30, 10, 20, decimals)
    ones = np.ones((2, 40)), np.ones((2, 30))
    for metric in board_metrics():
        result = matched_metric(metric.obj, x, y, p_min=metric.tags.get("p_min"))
        again = bootstrap_replicates(metric, x, y, result.landmark_weights, *ones)
        np.testing.assert_allclose(again, result.value_landmark, atol=2e-6)
        drawn = bootstrap_replicates(metric, x, y, result.weights, *ones, landmark=True)
        np.testing.assert_allclose(drawn, result.value_landmark, atol=2e-6)


def test_every_resample_has_its_own_landmark():
    rng = np.random.default_rng(5)
    x, y = ragged(rng, 30, 12, 20, None), ragged(rng, 25, 12, 20, None)
    wx, wy = cell_weights(0, "c", 30, 25, 12)
    whole = matched_auroc(x, y, 1)
    drawn = bootstrap_replicates(registry.entry("metric", "auroc"), x, y, whole.weights, wx, wy, landmark=True)
    for b, value in enumerate(drawn):
        again = matched_auroc(np.repeat(x, wx[b], axis=0), np.repeat(y, wy[b], axis=0), 1)
        assert value == pytest.approx(again.value_landmark, abs=2e-6)


def test_a_weight_of_two_is_an_episode_that_occurs_twice():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(30, 8)), rng.normal(0.5, 1, size=(25, 8))
    wx, wy = rng.integers(0, 4, (1, 30)), rng.integers(0, 4, (1, 25))
    twice = np.repeat(x, wx[0], axis=0), np.repeat(y, wy[0], axis=0)
    for metric in board_metrics():
        plain = metric.obj(*twice).mean()
        ours = bootstrap_replicates(metric, x, y, np.ones(8), wx, wy)[0]
        assert ours == pytest.approx(plain, abs=2e-6), metric.id


def test_metric_without_resampled_form_has_no_replicates():
    metric = registry.Entry("metric", "plain", auroc_by_step, "", "auroc_by_step", "here", {})
    x, draws = np.zeros((9, 2)), cell_weights(0, "c", 9, 9, 4)
    assert bootstrap_replicates(metric, x, x, np.ones(2), *draws).size == 0


def test_cells_share_clean_weights_and_differ_in_disturbed_ones():
    a, b = cell_weights(0, "one", 20, 10, 50), cell_weights(0, "two", 20, 10, 50)
    np.testing.assert_array_equal(a[0], b[0])
    assert (a[1] != b[1]).any()
    assert (a[0].sum(axis=1) == 20).all() and (a[1].sum(axis=1) == 10).all()


def test_delong_interval_shrinks_with_episodes_and_not_with_steps():
    rng = np.random.default_rng(5)
    width = lambda x, y: np.diff(area_interval(x, y, np.ones(x.shape[1])))[0]  # noqa: E731
    x, y = rng.normal(size=(40, 1)), rng.normal(size=(40, 1))
    copied = width(np.tile(x, 50), np.tile(y, 50))
    assert copied == pytest.approx(width(x, y), rel=1e-9)
    assert width(rng.normal(size=(1000, 1)), rng.normal(size=(1000, 1))) < copied / 3
    assert np.isnan(area_interval(x, y, np.zeros(1))).all()


def test_lag_view_is_blind_to_the_clock_and_finds_the_late_signal():
    rng = stream(0, "test", "lag")
    t, tau = np.arange(150), rng.integers(30, 91, 60)
    x, y = rng.normal(size=(150, 150)), rng.normal(size=(60, 150))
    late = y + 3.0 * (t - tau[:, None] >= 20)
    areas = lag_view(x, late, tau)["auroc"].to_numpy()
    assert abs(areas[0] - 0.5) < 0.1 and abs(areas[1] - 0.5) < 0.1 and (areas[2:] > 0.95).all()
    drift = 0.1 * t
    np.testing.assert_allclose(lag_view(x + drift, y + drift, tau)["auroc"], lag_view(x, y, tau)["auroc"], atol=1e-9)


def test_lag_view_counts_the_onset_as_lag_one():
    x, y = np.zeros((10, 6)), np.zeros((1, 6))
    y[0, 3] = 1.0
    table = lag_view(x, y, np.array([3]), lags=((1, 1), (2, 3)))
    assert table["auroc"].tolist() == [1.0, 0.5] and table["scores"].tolist() == [1, 2]
    with pytest.raises(ParameterError, match="lag"):
        lag_view(x, y, np.array([3]), lags=((0, 2),))
    with pytest.raises(ShapeError, match="onsets"):
        lag_view(x, y, np.array([3, 3]))


def test_tables_carry_their_counts():
    rng = np.random.default_rng(0)
    x, y = ragged(rng, 40, 30, 60), pad_after_onset(ragged(rng, 30, 30, 90), np.full(30, 10))
    table = matched_table(x, y)
    result = matched_auroc(x, y)
    assert table["t"].min() == 10 and (table["p"] > 0).all()
    used = table.dropna(subset="auroc")
    assert np.average(used["auroc"], weights=used["n"] * used["p"] / (used["n"] + used["p"])) == pytest.approx(
        result.value_full
    )
    assert table.loc[table["landmark"], "t"].max() == result.landmark
    counts = risk_set(x, y, steps=(20, 1000))
    assert counts["n"].tolist() == [40, 0]
    assert time_comparison(x, y)["landmark"] == result.value_landmark


def test_same_horizon_pads_the_shorter_with_absence():
    a, b = same_horizon(np.zeros((2, 3)), np.ones((1, 5)))
    assert a.shape == (2, 5) and np.isnan(a[:, 3:]).all() and (b == 1).all()
