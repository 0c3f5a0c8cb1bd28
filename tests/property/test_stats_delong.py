"""The closed form equals the method it generalises, and its components are what they are said to be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from rl_oodkit.stats.bootstrap import auroc_bootstrap, episode_weights, weighted_mean_by_step
from rl_oodkit.stats.delong import ClusterDeLong, cluster_delong, delong_interval, paired_difference, placements
from rl_oodkit.stats.ranking import auroc_by_step

SCORES = st.one_of(st.integers(-3, 3).map(float), st.floats(allow_infinity=False), st.just(np.nan))


@st.composite
def groups(draw, least=2, values=SCORES):
    """Draw two groups of scores over the same steps."""
    steps = draw(st.integers(1, 4))
    return tuple(draw(arrays(float, (draw(st.integers(least, 7)), steps), elements=values)) for _ in "xy")


def wins(x, y):
    """Return the comparison matrix of one step."""
    return (y > x[:, None]) + 0.5 * (y == x[:, None])


def episodes(seed, n=40, p=30, steps=12):
    """Return two groups of episodes with levels of their own and unequal lengths."""
    rng = np.random.default_rng(seed)
    out = []
    for count, shift in ((n, 0.0), (p, 0.6)):
        scores = shift + rng.normal(size=(count, 1)) + 0.5 * rng.normal(size=(count, steps))
        ends = rng.integers(steps // 2, steps + 1, count)
        out.append(np.where(np.arange(steps) < ends[:, None], scores, np.nan))
    return out


@given(groups())
def test_placements_are_shares_of_the_other_group(pair):
    """Row and column means of the comparison matrix."""
    x, y = pair
    above, below = placements(x, y)
    for t in range(x.shape[1]):
        i, j = ~np.isnan(x[:, t]), ~np.isnan(y[:, t])
        c = wins(x[i, t], y[j, t])
        assert_allclose(above[i, t], c.mean(axis=1) if j.any() else np.nan, atol=1e-12)
        assert_allclose(below[j, t], c.mean(axis=0) if i.any() else np.nan, atol=1e-12)
        assert np.isnan(above[~i, t]).all() and np.isnan(below[~j, t]).all()


@pytest.mark.parametrize("seed", range(5))
def test_one_step_is_delong_1988(seed):
    """Sample variances of the placements over the group sizes, and their covariance between two scores."""
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 9, (2, 25)).astype(float), rng.integers(2, 12, (2, 18)).astype(float)
    results = [cluster_delong(a[:, None], b[:, None], np.ones(1)) for a, b in zip(x, y, strict=True)]
    c = [wins(a, b) for a, b in zip(x, y, strict=True)]
    s10, s01 = np.cov([m.mean(axis=1) for m in c]), np.cov([m.mean(axis=0) for m in c])
    covariance = s10 / 25 + s01 / 18
    assert_allclose([r.variance for r in results], np.diag(covariance), rtol=1e-12)
    contrast = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    assert_allclose(paired_difference(*results).variance, contrast, rtol=1e-10)


@given(groups(), st.floats(0.1, 10))
def test_the_number_is_the_weighted_mean_area(pair, factor):
    """With weights up to a factor, and steps without an area left out; components sum to zero in each group."""
    weights = np.arange(1.0, pair[0].shape[1] + 1)
    result, scaled = cluster_delong(*pair, weights), cluster_delong(*pair, factor * weights)
    assert_allclose(result.auc, weighted_mean_by_step(auroc_by_step(*pair), weights), atol=1e-12)
    assert_allclose([scaled.auc, scaled.variance], [result.auc, result.variance], atol=1e-9)
    assert_allclose([result.comp_x.sum(), result.comp_y.sum()], 0, atol=1e-12)


def test_copies_of_a_step_are_no_new_information():
    """Repeating all steps leaves the variance where it was, and so does their order."""
    x, y = episodes(0)
    once = cluster_delong(x, y, np.ones(12))
    twice = cluster_delong(np.tile(x, 2), np.tile(y, 2), np.ones(24))
    backwards = cluster_delong(x[:, ::-1], y[:, ::-1], np.ones(12))
    assert_allclose([twice.variance, backwards.variance], once.variance, rtol=1e-10)


def test_components_are_derivatives():
    """Counting one episode a little more moves the number by its component."""
    x, y = episodes(1)
    weights = np.linspace(1, 2, 12)
    result = cluster_delong(x, y, weights)
    for size, component, other in ((40, result.comp_x, "y"), (30, result.comp_y, "x")):
        nudged = 2000 + np.eye(size, dtype=int)
        ones = np.ones((size, 30 if other == "y" else 40), int)
        wx, wy = (nudged, ones) if other == "y" else (ones, nudged)
        moved = weighted_mean_by_step(auroc_bootstrap(x, y, wx, wy), weights) - result.auc
        assert_allclose(2000 * moved, component, atol=1e-4)


def test_formula_and_bootstrap_agree_on_the_spread():
    """With fixed weights the two standard errors differ by a few percent."""
    x, y = episodes(2, 80, 60)
    rng = np.random.default_rng(0)
    wx, wy = episode_weights(rng, 80, 4000), episode_weights(rng, 60, 4000)
    spread = weighted_mean_by_step(auroc_bootstrap(x, y, wx, wy), np.ones(12)).std(ddof=1)
    assert_allclose(np.sqrt(cluster_delong(x, y, np.ones(12)).variance), spread, rtol=0.05)


@given(groups())
def test_a_detector_does_not_differ_from_itself(pair):
    """Difference 0, variance 0, p-value 1, also against an increasing map of its scores."""
    result = cluster_delong(*pair, np.ones(pair[0].shape[1]))
    if not np.isnan(result.auc):
        assert_array_equal(paired_difference(result, result), [0, 0, 1])


def test_pairs_are_antisymmetric_and_sharper_than_two_intervals():
    """Swapping the detectors changes the sign alone; shared episodes make the difference well known."""
    x, y = episodes(3)
    rng = np.random.default_rng(1)
    a = cluster_delong(x, y, np.ones(12))
    b = cluster_delong(x + 0.3 * rng.normal(size=x.shape), y + 0.3 * rng.normal(size=y.shape), np.ones(12))
    forth, back = paired_difference(a, b), paired_difference(b, a)
    assert forth.difference == -back.difference and forth[1:] == back[1:]
    assert forth.variance < 0.2 * (a.variance + b.variance)


def test_edges():
    """No overlap is a point, one episode has no variance, no usable step is NaN."""
    far = cluster_delong(np.zeros((5, 1)), np.ones((4, 1)), np.ones(1))
    assert far.auc == 1 and delong_interval(far) == (1.0, 1.0)
    alone = cluster_delong(np.zeros((1, 1)), np.array([[0.0], [1.0]]), np.ones(1))
    assert alone.auc == 0.75 and np.isnan(alone.variance) and np.isnan(delong_interval(alone)).all()
    nothing = cluster_delong(np.full((3, 2), np.nan), np.zeros((2, 2)), np.ones(2))
    assert np.isnan(nothing.auc) and np.isnan(delong_interval(nothing)).all()
    assert paired_difference(far, far).p == 1
    near = ClusterDeLong(0.5, 0.0, far.comp_x, far.comp_y)
    assert paired_difference(far, near) == (0.5, 0.0, 0.0)


def test_a_higher_level_is_a_wider_interval_within_bounds():
    """Nested, symmetric before the cut, and inside [0, 1]."""
    result = cluster_delong(*episodes(4, 8, 6), np.ones(12))
    ends = np.array([delong_interval(result, level) for level in (0.5, 0.9, 0.999999)])
    assert np.all(np.diff(ends[:, 0]) <= 0) and np.all(np.diff(ends[:, 1]) >= 0)
    assert ends.min() >= 0 and ends.max() <= 1
    assert_allclose(ends[0].mean(), result.auc, rtol=1e-12)
