"""The bootstrap by weights is the bootstrap by repetition, and its intervals cover."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from rl_oodkit.reproduce.metric_checks import null_coverage
from rl_oodkit.stats.bootstrap import (
    _exact_type,
    auroc_bootstrap,
    episode_weights,
    mean_auroc_bootstrap,
    percentile_interval,
    resampled_counts,
    weighted_mean_by_step,
)
from rl_oodkit.stats.ranking import auprc_by_step, auroc_by_step, counts_by_step, fpr_at_tpr_by_step, time_weights
from rl_oodkit.stats.rate_bootstrap import auprc_bootstrap, fpr_at_tpr_bootstrap

SCORES = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_infinity=False), st.just(np.nan))


@st.composite
def samples(draw):
    """Draw two groups of scores and weights for a few resamples."""
    steps, resamples = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    sizes = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    scores = [draw(arrays(float, (k, steps), elements=SCORES)) for k in sizes]
    weights = [draw(arrays(np.int64, (resamples, k), elements=st.integers(0, 4))) for k in sizes]
    return *scores, *weights


def repeated(sample):
    """Yield the groups of each resample, every episode as often as it was drawn."""
    x, y, wx, wy = sample
    return ((np.repeat(x, w, axis=0), np.repeat(y, v, axis=0)) for w, v in zip(wx, wy, strict=True))


@given(samples())
def test_areas_are_those_of_the_repeated_episodes(sample):
    """Weights of the pairs, or the pairs themselves: the same area, at every step."""
    assert_allclose(auroc_bootstrap(*sample), [auroc_by_step(*g) for g in repeated(sample)], atol=1e-12)


@given(samples(), st.sampled_from([0.2, 0.5]))
def test_precision_is_that_of_the_repeated_episodes(sample, pi):
    """Average precision likewise."""
    assert_allclose(auprc_bootstrap(*sample, pi), [auprc_by_step(*g, pi) for g in repeated(sample)], atol=1e-12)


@given(samples())
def test_false_alarms_are_those_of_the_repeated_episodes(sample):
    """The rate at a true-positive rate likewise, wherever both rules on group sizes let it be named."""
    ours = fpr_at_tpr_bootstrap(*sample, 0.5)
    plain = np.array([fpr_at_tpr_by_step(*g, 0.5) for g in repeated(sample)])
    both = ~np.isnan(ours + plain)
    assert_allclose(ours[both], plain[both], atol=1e-12)
    small = counts_by_step(sample[0], sample[1])[1] < 2
    assert np.isnan(ours[:, small]).all()
    named = (resampled_counts(sample[0], sample[2]) > 0) & (resampled_counts(sample[1], sample[3]) > 0) & ~small
    assert_array_equal(np.isnan(ours), ~named)


@given(samples(), st.integers(2, 9))
def test_weights_matter_up_to_a_factor(sample, factor):
    """An area is a ratio, of degree zero in the weights of each group."""
    x, y, wx, wy = sample
    assert_allclose(auroc_bootstrap(x, y, factor * wx, wy), auroc_bootstrap(*sample), atol=1e-12)


@given(samples())
def test_swapping_the_groups_turns_the_areas_around(sample):
    """Which group becomes the staircase does not show."""
    x, y, wx, wy = sample
    assert_allclose(auroc_bootstrap(y, x, wy, wx), 1 - auroc_bootstrap(*sample), atol=1e-12)


def test_single_precision_is_exact_where_it_is_used():
    """Just below and far above the bound the areas are those of double precision, to the last bit."""
    assert _exact_type(2**23 - 1) is np.float32 and _exact_type(2**23) is np.float64
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 40, (200, 3)).astype(float), rng.integers(0, 40, (100, 3)).astype(float)
    wx, wy = rng.integers(0, 28, (5, 200)), rng.integers(0, 28, (5, 100))
    assert _exact_type(wx.sum(1).max() * wy.sum(1).max()) is np.float32
    single, double = auroc_bootstrap(x, y, wx, wy), auroc_bootstrap(x, y, 100 * wx, wy)
    assert_array_equal(single * wx.sum(1)[:, None], double * wx.sum(1)[:, None])


def test_many_resamples_and_steps_join_without_a_seam():
    """Blocks of resamples and of steps give what each gives by itself."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 70)), rng.normal(size=(20, 70))
    wx, wy = episode_weights(rng, 30, 300), episode_weights(rng, 20, 300)
    whole = auroc_bootstrap(x, y, wx, wy)
    assert_array_equal(whole[127:130, 30:35], auroc_bootstrap(x[:, 30:35], y[:, 30:35], wx[127:130], wy[127:130]))


def test_memory_does_not_grow_with_the_steps():
    """Beside the result itself, scratch space is bounded."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(80, 1500)), rng.normal(size=(40, 1500))
    wx, wy = episode_weights(rng, 80, 300), episode_weights(rng, 40, 300)
    tracemalloc.start()
    out = auroc_bootstrap(x, y, wx, wy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * out.nbytes + 16 * 2**20


@given(st.integers(1, 40), st.integers(1, 30), st.integers(0, 2**32))
def test_weights_are_draws_with_replacement(n, resamples, seed):
    """As many draws as episodes, and the same generator gives the same draws."""
    weights = episode_weights(np.random.default_rng(seed), n, resamples)
    assert weights.shape == (resamples, n) and np.all(weights >= 0)
    assert_array_equal(weights.sum(axis=1), n)
    assert_array_equal(weights, episode_weights(np.random.default_rng(seed), n, resamples))


def test_weights_have_the_moments_of_a_multinomial():
    """Mean 1, variance 1 - 1/n, covariance -1/n."""
    weights = episode_weights(np.random.default_rng(3), 5, 40_000)
    assert_allclose(np.cov(weights, rowvar=False), np.eye(5) - 0.2, atol=0.03)
    assert_allclose(weights.mean(axis=0), 1, atol=0.03)


@given(samples())
def test_the_mean_uses_the_weights_of_the_resample(sample):
    """Each resample is averaged exactly as a sample of its own would be."""
    expected = [weighted_mean_by_step(auroc_by_step(*g), time_weights(*counts_by_step(*g))) for g in repeated(sample)]
    assert_allclose(mean_auroc_bootstrap(*sample), expected, atol=1e-12)


@given(arrays(float, (4, 3), elements=st.one_of(st.floats(-1e6, 1e6), st.just(np.nan))))
def test_a_missing_step_gives_its_weight_away(values):
    """The weighted mean is NumPy's over the steps that are there."""
    weights = np.array([1.0, 2.0, 0.5])
    for row, mean in zip(values, weighted_mean_by_step(values, weights), strict=True):
        there = ~np.isnan(row)
        assert_allclose(mean, np.average(row[there], weights=weights[there]) if there.any() else np.nan, rtol=1e-9)


@given(arrays(float, (9, 4), elements=st.one_of(st.floats(-1e6, 1e6), st.just(np.nan))), st.floats(0.05, 0.99))
def test_percentiles_are_numpys(samples, level):
    """Linear interpolation, missing samples left out, NaN where none is left."""
    low, high = percentile_interval(samples, level)
    for t, column in enumerate(samples.T):
        there = column[~np.isnan(column)]
        expected = np.quantile(there, [(1 - level) / 2, (1 + level) / 2]) if len(there) else [np.nan, np.nan]
        assert_allclose([low[t], high[t]], expected, rtol=1e-9, atol=1e-9)


def test_expanded_tails_repair_the_width_of_a_small_sample():
    """On exact normal quantiles of spread sqrt((n-1)/n), the interval is Student's with n - 1 degrees of freedom."""
    quantiles = norm.ppf((np.arange(200_000) + 0.5) / 200_000) * np.sqrt(9 / 10)
    assert_allclose(percentile_interval(quantiles, 0.95, clusters=10)[1], 2.2622, atol=2e-3)
    plain, wide = percentile_interval(quantiles, 0.95), percentile_interval(quantiles, 0.95, clusters=10**6)
    assert_allclose(wide, plain, atol=1e-3)


@settings(max_examples=20)
@given(st.integers(2, 30))
def test_more_clusters_make_a_shorter_interval(clusters):
    """The widening fades with the number of episodes."""
    spread = np.linspace(0, 1, 1001)
    few, more = percentile_interval(spread, clusters=clusters), percentile_interval(spread, clusters=clusters + 1)
    assert few[0] < more[0] and few[1] > more[1]


@pytest.mark.parametrize("seed", [0])
def test_intervals_cover_when_nothing_is_disturbed(seed):
    """Correlated steps, unequal lengths, informative ends: 95 % intervals hold the truth in 90 to 99 % of 200."""
    check = null_coverage(200, seed, resamples=300)
    assert check["ran"] == 200 and check["failed"] == 0, check["detail"]
