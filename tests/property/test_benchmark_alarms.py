"""Laws of thresholds, alarm times, delays and segments."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_oodkit.core.errors import EmptySplitError, NonFiniteError, ParameterError, ShapeError
from rl_oodkit.ood.alarms import (
    alarm_times,
    arl_threshold,
    average_run_length,
    episode_maxima,
    false_alarm_rate,
    per_episode_threshold,
    per_step_threshold,
)
from rl_oodkit.ood.delays import (
    ABSENT,
    CENSORED,
    DETECTED,
    ENDED,
    FALSE,
    Delays,
    cumulative_incidence,
    delays,
    detection_at_exposure,
    median_delay,
    rmst,
)
from rl_oodkit.ood.labels import SEGMENTS
from rl_oodkit.ood.segments import recovery_times, segment_masks, segment_table, time_zscore

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 200), st.sampled_from([0.01, 0.05, 0.1, 0.3, 0.5]))
def test_threshold_is_the_conformal_order_statistic(seed, n, alpha):
    scores = np.random.default_rng(seed).normal(size=(n, 7))
    k = math.ceil((1 - alpha) * (n + 1) - 1e-9)
    if k > n:
        with pytest.warns(RuntimeWarning, match=f"{n} calibration episodes"):
            assert per_episode_threshold(scores, alpha) == math.inf
    else:
        h = per_episode_threshold(scores, alpha)
        assert (episode_maxima(scores) > h).sum() == n - k
        assert (n - k) / n <= alpha


def test_alarms_are_strict_so_that_a_constant_never_fires():
    constant = np.full((40, 9), 3.0)
    assert (alarm_times(constant, per_episode_threshold(constant, 0.1)) == -1).all()
    assert (alarm_times(constant, per_step_threshold(constant, 0.1)) == -1).all()


def test_absent_scores_neither_fire_nor_count():
    scores = np.array([[np.nan, np.nan], [np.nan, 1.0]])
    assert alarm_times(scores, -math.inf).tolist() == [-1, 1]
    assert episode_maxima(scores).tolist() == [-math.inf, 1.0]
    assert alarm_times(np.empty((2, 0)), 0.0).tolist() == [-1, -1]


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(0, 8))
def test_step_threshold_is_the_order_statistic_of_its_window(seed, reach):
    scores = np.random.default_rng(seed).normal(size=(39, 30))
    scores[5:9, 20:] = np.nan
    h = per_step_threshold(scores, 0.1, reach)
    for t in (0, 3, 15, 29):
        window = scores[:, max(0, t - reach) : t + reach + 1]
        assert h[t] == per_episode_threshold(window[np.isfinite(window)][:, None], 0.1)


def test_step_threshold_keeps_its_rate_per_step():
    rng = np.random.default_rng(4)
    h = per_step_threshold(rng.normal(size=(400, 200)), 0.05)
    assert (rng.normal(size=(2000, 200)) > h).mean() == pytest.approx(0.05, abs=0.003)


def test_step_threshold_is_infinite_where_few_are_left():
    scores = np.random.default_rng(0).normal(size=(40, 20))
    scores[15:, 10:] = np.nan
    h = per_step_threshold(scores, 0.05, half_width=0)
    assert np.isfinite(h[:10]).all() and np.isinf(h[10:]).all()
    assert (alarm_times(np.full((1, 40), 1e9), np.full(20, np.inf)) == -1).all()


@settings(max_examples=30, deadline=None)
@given(seeds, st.floats(1, 400))
def test_arl_threshold_is_the_smallest_that_suffices(seed, gamma):
    scores = np.round(np.random.default_rng(seed).normal(size=(20, 15)), 1)
    h, levels = arl_threshold(scores, gamma), np.unique(scores)
    lengths = [average_run_length(scores, level) for level in levels]
    assert np.all(np.diff(lengths) >= 0)
    assert h == levels[np.argmax(np.array(lengths) >= gamma)]


def test_average_run_length_counts_watched_steps_a_false_alarm():
    scores = np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, np.nan, np.nan], [1.0, 0.0, 0.0, 0.0]])
    assert average_run_length(scores, 0.5) == (2 + 2 + 1) / 2
    assert average_run_length(scores, 1.0) == math.inf


def test_false_alarm_rate_is_inside_its_range_as_often_as_promised():
    rng, inside, nominal = np.random.default_rng(0), [], 0.05
    for _ in range(600):
        cal, test = rng.normal(size=(99, 3)), rng.normal(size=(100, 3))
        found = false_alarm_rate(test, per_episode_threshold(cal, nominal), nominal, 99)
        inside.append(found["low"] <= found["rate"] <= found["high"])
    assert np.mean(inside) > 0.93


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, math.nan, "a"])
def test_bad_alpha_is_named(alpha):
    with pytest.raises(ParameterError, match="alpha"):
        per_episode_threshold(np.zeros((40, 2)), alpha)


def test_bad_input_is_named():
    with pytest.raises(EmptySplitError, match="calibration"):
        per_episode_threshold(np.empty((0, 3)), 0.05)
    with pytest.raises(NonFiniteError):
        per_episode_threshold(np.full((40, 2), np.inf), 0.05)
    with pytest.raises(ParameterError, match="gamma"):
        arl_threshold(np.zeros((3, 3)), 0.5)
    with pytest.raises(ShapeError, match="threshold"):
        alarm_times(np.zeros((2, 2)), np.array([np.nan, 1.0]))
    with pytest.raises(ShapeError, match="differ in length"):
        delays(np.array([1]), np.array([1, 2]), np.array([3, 3]))


@settings(max_examples=50, deadline=None)
@given(seeds)
def test_delays_follow_their_definition_episode_by_episode(seed):
    rng = np.random.default_rng(seed)
    lengths, onset = rng.integers(5, 60, 40), rng.integers(-1, 50, 40)
    alarm = np.where(rng.random(40) < 0.3, -1, rng.integers(0, 60, 40))
    alarm = np.where(alarm < lengths, alarm, -1)
    offset = np.where(rng.random(40) < 0.5, -1, onset + rng.integers(1, 30, 40))
    result = delays(alarm, onset, lengths, offset)
    for a, tau, end, off, time, event in zip(alarm, onset, lengths, offset, result.time, result.event, strict=True):
        stop = off if 0 <= off < end else end
        if tau < 0 or tau >= end:
            assert (time, event) == (0, ABSENT)
        elif 0 <= a < tau:
            assert (time, event) == (0, FALSE)
        elif tau <= a < stop:
            assert (time, event) == (a - tau + 1, DETECTED)
        else:
            assert (time, event) == (stop - tau, CENSORED if stop < end else ENDED)


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_without_censoring_incidence_is_a_share_and_rmst_a_mean(seed):
    rng = np.random.default_rng(seed)
    time, event = rng.integers(1, 150, 30), rng.choice([ENDED, DETECTED, FALSE], 30)
    event[0] = ENDED
    result = Delays(np.where(event == FALSE, 0, time), event)
    kept, found = event != FALSE, event == DETECTED
    curve = cumulative_incidence(result, 100)
    assert curve[0] == 0 and (np.diff(curve) >= -1e-12).all() and curve[-1] <= 1 + 1e-12
    for k in (1, 10, 100):
        assert curve[k] == pytest.approx((found & (time <= k)).sum() / kept.sum())
    waits = np.where(found, np.minimum(time, 100), 100)[kept]
    assert rmst(result) == pytest.approx(waits.mean())
    assert detection_at_exposure(result) == ((found & (time <= 100)).sum(), kept.sum())


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_weights_of_resamples_are_repeated_episodes(seed):
    rng = np.random.default_rng(seed)
    result = Delays(rng.integers(1, 60, 25), rng.choice([CENSORED, ENDED, DETECTED], 25))
    w = rng.integers(0, 3, (4, 25))
    w[:, 0] = 1
    repeated = [rmst(Delays(np.repeat(result.time, row), np.repeat(result.event, row)), 50) for row in w]
    np.testing.assert_allclose(rmst(result, 50, w), repeated, atol=1e-9)


def test_incidence_with_switch_backs_is_that_of_product_limit():
    result = Delays(np.array([1, 2, 2, 3, 4]), np.array([DETECTED, CENSORED, ENDED, DETECTED, CENSORED]))
    # by hand: F(1) = 1/5; after it S = 4/5; at 2 one of four ends, S = 3/5; at 3 one of two is found, F = 1/5 + 3/10
    np.testing.assert_allclose(cumulative_incidence(result, 4), [0, 0.2, 0.2, 0.5, 0.5])


def test_nobody_eligible_gives_nan():
    nobody = Delays(np.zeros(2, int), np.array([FALSE, ABSENT]))
    assert math.isnan(rmst(nobody)) and math.isnan(median_delay(nobody)) and nobody.false_rate == 1.0
    assert detection_at_exposure(nobody) == (0, 0)


def test_exposure_makes_noise_equal_on_long_and_short_episodes():
    rng = np.random.default_rng(0)
    h = per_episode_threshold(rng.normal(size=(400, 250)), 0.2)
    rates = []
    for steps in (250, 900):
        noise = rng.normal(size=(1500, steps))
        found, eligible = detection_at_exposure(delays(alarm_times(noise, h), np.full(1500, 60), np.full(1500, steps)))
        rates.append(found / eligible)
    assert abs(rates[0] - rates[1]) < 0.03


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(0, 30))
def test_segments_partition_the_steps(seed, transient):
    rng = np.random.default_rng(seed)
    onset = rng.integers(-1, 40, 15)
    offset = np.where((onset >= 0) & (rng.random(15) < 0.5), onset + rng.integers(0, 30, 15), -1)
    masks = segment_masks(onset, offset, 50, transient)
    assert list(masks) == list(SEGMENTS)
    assert (sum(m.astype(int) for m in masks.values()) == 1).all()


def test_zscore_of_clean_scores_is_standard():
    x = np.random.default_rng(0).normal(3, 2, size=(200, 5)) * np.arange(1, 6)
    z = time_zscore(x, x)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(z.std(axis=0), 1, atol=1e-12)
    clock = np.tile(np.arange(5.0), (20, 1))
    assert (time_zscore(clock, clock[:3]) == 0).all()
    assert np.isnan(time_zscore(clock, clock[:3] + 1)).all()
    assert np.isnan(time_zscore(x[:5], x)).all()


def test_pre_segment_is_chance_and_steady_is_not():
    rng, t = np.random.default_rng(2), np.arange(150)
    tau = rng.integers(30, 91, 50)
    lift = 2.0 * (t >= tau[:, None])
    table = segment_table(rng.normal(size=(150, 150)), rng.normal(size=(50, 150)) + lift, tau, np.full(50, -1))
    table = table.set_index("segment")
    assert table.loc["pre", "auroc_low"] < 0.5 < table.loc["pre", "auroc_high"]
    assert table.loc["steady", "auroc_low"] > 0.8 and abs(table.loc["steady", "z"] - 2) < 0.2
    assert "post" not in table.index and list(table.index) == ["pre", "transient", "steady"]


def test_segment_table_is_reproducible_and_checks_onsets():
    x = np.random.default_rng(0).normal(size=(20, 30))
    first, second = (segment_table(x, x, np.full(20, 9), np.full(20, -1), resamples=50) for _ in range(2))
    assert first.equals(second)
    with pytest.raises(ShapeError, match="onsets"):
        segment_table(x, x, np.array([1]), np.array([-1]))


def test_recovery_needs_calm_steps_in_a_row():
    scores = np.array([[9, 9, 0, 0, 9, 0, 0, 0.0], [9, 9, 0, 0, np.nan, 0, 0, 9], [0] * 8])
    assert recovery_times(scores, 1.0, np.array([2, 2, -1]), calm=3).tolist() == [3, -1, -1]
    assert recovery_times(scores, 1.0, np.array([2, 2, 0]), calm=2).tolist() == [0, 0, 0]
    assert recovery_times(scores[:, :2], 1.0, np.array([0, 0, 0]), calm=3).tolist() == [-1, -1, -1]
