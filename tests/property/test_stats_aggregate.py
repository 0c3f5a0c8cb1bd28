"""Interquartile means and profiles against SciPy and plain loops."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import trim_mean

from rl_oodkit.stats.aggregate import (
    iqm,
    iqm_bootstrap,
    iqm_interval,
    performance_profile,
    performance_profile_interval,
)

RUNS = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(
    lambda shape: arrays(float, shape, elements=st.floats(-1e3, 1e3).map(lambda v: round(v, 3)))
)


@given(RUNS)
def test_the_mean_is_scipys_trimmed_mean(scores):
    """A quarter is cut on either side of the pooled runs."""
    assert_allclose(iqm(scores), trim_mean(scores, 0.25, axis=None), rtol=1e-9, atol=1e-9)


@given(RUNS, st.floats(0.1, 5), st.floats(-5, 5))
def test_the_mean_follows_its_units(scores, scale, shift):
    """Linear maps pass through, and the number lies within the middle half."""
    assert_allclose(iqm(shift + scale * scores), shift + scale * iqm(scores), rtol=1e-9, atol=1e-9)
    assert scores.min() - 1e-9 <= iqm(scores) <= scores.max() + 1e-9


@settings(max_examples=30)
@given(RUNS, st.integers(0, 2**32), st.integers(1, 20))
def test_resamples_are_those_of_the_plain_loop(scores, seed, resamples):
    """The same generator, run by run within tasks, gives the same interquartile means."""
    runs, tasks = scores.shape
    rng = np.random.default_rng(seed)
    drawn = [scores[rng.integers(runs, size=(runs, tasks)), np.arange(tasks)] for _ in range(resamples)]
    ours = iqm_bootstrap(scores, np.random.default_rng(seed), resamples)
    assert_allclose(ours, [trim_mean(z, 0.25, axis=None) for z in drawn], rtol=1e-9, atol=1e-9)


def test_portions_join_without_a_seam():
    """More resamples than fit into one portion continue the same stream."""
    scores = np.random.default_rng(0).normal(size=(40, 60))
    many = iqm_bootstrap(scores, np.random.default_rng(1), 900)
    rng = np.random.default_rng(1)
    assert_array_equal(many, np.concatenate([iqm_bootstrap(scores, rng, k) for k in (437, 463)]))


def test_runs_stay_within_their_task():
    """Tasks without spread leave no spread, whatever lies between them."""
    scores = np.tile(np.array([0.0, 3.0, 50.0]), (5, 1))
    assert np.ptp(iqm_bootstrap(scores, np.random.default_rng(0), 50)) == 0
    estimate, low, high = iqm_interval(scores, np.random.default_rng(0), 50)
    assert estimate == low == high


def test_the_interval_covers():
    """The interquartile mean of the law is held in about 95 % of repetitions."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        _, low, high = iqm_interval(rng.normal(size=(20, 5)), rng, 300)
        held += low <= 0 <= high
    assert 0.90 <= held / 200 <= 0.99


@given(RUNS, arrays(float, 5, elements=st.floats(-1e3, 1e3).map(lambda v: round(v, 3))))
def test_the_profile_is_a_share_of_runs(scores, thresholds):
    """Counted one threshold at a time; falling from 1 to 0."""
    profile = performance_profile(scores, thresholds)
    assert_allclose(profile, [np.mean(scores > tau) for tau in thresholds], atol=1e-12)
    assert np.all(np.diff(profile[np.argsort(thresholds, kind="stable")]) <= 0)
    assert_array_equal(performance_profile(scores, np.array([-1e4, 1e4])), [1, 0])


def test_the_band_holds_the_profile_and_shrinks_with_runs():
    """Pointwise bands around the estimate, about half as wide with four times the runs."""
    rng = np.random.default_rng(0)
    levels, widths = np.array([-0.5, 0.0, 0.5]), []
    for runs in (20, 80):
        scores = rng.normal(size=(runs, 10))
        low, high = performance_profile_interval(scores, levels, rng, 1000)
        profile = performance_profile(scores, levels)
        assert np.all((low <= profile) & (profile <= high))
        widths.append(np.mean(high - low))
    assert 0.4 < widths[1] / widths[0] < 0.6
