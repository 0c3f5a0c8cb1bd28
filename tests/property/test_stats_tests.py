"""Adjusted p-values, exact intervals, and the law of a calibrated alarm rate."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from rl_oodkit.stats.tests import (
    beta_binomial_interval,
    beta_binomial_pvalue,
    clopper_pearson,
    conformal_rank,
    coverage,
    holm,
)

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=6).map(np.array)


@given(P_VALUES)
def test_holm_is_the_closed_test_of_bonferroni(p):
    """An adjusted p-value is the largest Bonferroni p-value over all families that hold the hypothesis."""
    subsets = [s for k in range(1, len(p) + 1) for s in combinations(range(len(p)), k)]
    closed = [max(min(len(s) * p[list(s)].min(), 1) for s in subsets if i in s) for i in range(len(p))]
    assert_allclose(holm(p), closed, rtol=1e-12)


@given(P_VALUES, st.randoms(use_true_random=False))
def test_holm_ignores_order_and_missing_tests(p, shuffle):
    """Another order is the same answer in another order; NaN neither counts nor changes."""
    order = list(range(len(p)))
    shuffle.shuffle(order)
    assert_array_equal(holm(p[order]), holm(p)[order])
    assert_array_equal(holm(np.append(p, np.nan)), np.append(holm(p), np.nan))


def test_holm_bounds_any_false_rejection():
    """Dependent tests, some hypotheses false: a true one is rejected in at most 5 % of families."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(4000, 1))
    z = np.sqrt(0.5) * shared + np.sqrt(0.5) * rng.normal(size=(4000, 10)) + np.r_[np.zeros(6), np.full(4, 3.0)]
    adjusted = np.array([holm(row) for row in stats.norm.sf(z)])
    assert np.mean(adjusted[:, :6].min(axis=1) < 0.05) <= 0.06


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_clopper_pearson_is_scipys(trial, level):
    """The exact interval."""
    exact = stats.binomtest(*trial).proportion_ci(level, method="exact")
    assert_allclose(clopper_pearson(*trial, level), [exact.low, exact.high], rtol=1e-6, atol=1e-12)


def test_without_trials_nothing_is_known():
    """No trial, any rate."""
    assert clopper_pearson(0, 0) == (0.0, 1.0)


@given(st.integers(1, 2000), st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.5]))
def test_the_rank_is_the_smallest_that_keeps_the_promise(n, alpha):
    """k / (n + 1) >= 1 - alpha, and k - 1 would not do."""
    k = conformal_rank(alpha, n)
    assert k / (n + 1) >= 1 - alpha - 1e-12 and (k - 1) / (n + 1) < 1 - alpha
    assert 1 <= k <= n + 1


@pytest.mark.parametrize(("alpha", "n_cal", "n_test"), [(0.05, 400, 400), (0.1, 99, 50), (0.05, 19, 200)])
def test_calibrated_alarms_follow_the_beta_binomial(alpha, n_cal, n_test):
    """Simulated false alarms have the mean and the spread of the law, and its interval holds at least 95 %."""
    rng = np.random.default_rng(0)
    k = conformal_rank(alpha, n_cal)
    tail = 1 - np.sort(rng.random((20_000, n_cal)), axis=1)[:, k - 1]
    count = rng.binomial(n_test, tail)
    law = stats.betabinom(n_test, n_cal + 1 - k, k)
    assert_allclose(count.mean(), law.mean(), rtol=0.03)
    assert_allclose(count.std(), law.std(), rtol=0.03)
    assert count.mean() / n_test <= alpha * 1.03
    low, high = beta_binomial_interval(alpha, n_cal, n_test)
    assert np.mean((low <= count / n_test) & (count / n_test <= high)) >= 0.945


def test_an_infinite_threshold_never_alarms():
    """Ten episodes cannot promise 5 %."""
    assert beta_binomial_interval(0.05, 10, 100) == (0.0, 0.0)
    assert beta_binomial_pvalue(0, 0.05, 10, 100) == 1 and beta_binomial_pvalue(1, 0.05, 10, 100) == 0


@settings(max_examples=25)
@given(st.integers(1, 200), st.integers(1, 40), st.sampled_from([0.05, 0.2]), st.floats(0.001, 0.5))
def test_pvalues_are_valid(n_cal, n_test, alpha, size):
    """Under the law, p <= a has probability at most a, summed exactly."""
    k = conformal_rank(alpha, n_cal)
    if k <= n_cal:
        counts = np.arange(n_test + 1)
        p = np.array([beta_binomial_pvalue(int(c), alpha, n_cal, n_test) for c in counts])
        assert stats.betabinom(n_test, n_cal + 1 - k, k).pmf(counts)[p <= size].sum() <= size + 1e-9


def test_interval_and_pvalue_tell_one_story():
    """Rates outside the 95 % interval are those with p below 5 %."""
    low, high = beta_binomial_interval(0.05, 400, 400)
    for count in range(60):
        outside = not low <= count / 400 <= high
        assert outside == (beta_binomial_pvalue(count, 0.05, 400, 400) < 0.05)


def test_coverage_counts_and_a_missing_interval_is_a_miss():
    """Ends belong to the interval; NaN holds nothing."""
    low, high = np.array([0.0, 0.5, np.nan, 0.0]), np.array([0.5, 1.0, 1.0, 0.4])
    rate, lower, upper = coverage(low, high, 0.5)
    assert rate == 0.5 and (lower, upper) == clopper_pearson(2, 4)
    assert coverage(low, high, np.array([0.6, 0.6, 0.6, 0.3]))[0] == 0.5
