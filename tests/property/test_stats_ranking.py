"""Areas, precision and false-alarm rates against their definitions, pair by pair and threshold by threshold."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import rankdata

from rl_oodkit.reproduce.metric_checks import auroc_oracle
from rl_oodkit.stats.ranking import (
    auprc_by_step,
    auroc_by_step,
    counts_by_step,
    fpr_at_tpr_by_step,
    midranks_by_step,
    pooled,
    pooled_auroc,
    time_weights,
)

SCORES = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(allow_nan=True, allow_infinity=False),
    st.sampled_from([0.0, -0.0, np.nan, 5e-324, 1.0, 1.0 + 2**-52, 1e308]),
)


@st.composite
def groups(draw, least=0, most=7, values=SCORES):
    """Draw two groups of scores over the same steps."""
    steps = draw(st.integers(1, 3))
    return tuple(draw(arrays(float, (draw(st.integers(least, most)), steps), elements=values)) for _ in "xy")


def columns(x, y):
    """Yield the present scores of both groups at each step."""
    for t in range(x.shape[1]):
        yield x[~np.isnan(x[:, t]), t], y[~np.isnan(y[:, t]), t]


@given(groups())
def test_the_area_is_the_mean_over_pairs(pair):
    """Every clean score against every disturbed one, ties half."""
    for (a, b), area in zip(columns(*pair), auroc_by_step(*pair), strict=True):
        wins = [(v > u) + 0.5 * (v == u) for u in a for v in b]
        assert_allclose(area, np.mean(wins) if wins else np.nan, atol=1e-12)


@given(groups())
def test_swapping_the_groups_turns_the_area_around(pair):
    """A(x, y) + A(y, x) = 1, so no direction is favoured."""
    x, y = pair
    total = auroc_by_step(x, y) + auroc_by_step(y, x)
    assert_allclose(total[~np.isnan(total)], 1, atol=1e-12)


@given(groups(values=st.one_of(st.integers(-9, 9).map(float), st.just(np.nan))), st.integers(0, 2**32))
def test_only_the_order_matters(pair, seed):
    """An increasing map of the scores, another order of the episodes, or all of them twice change nothing."""
    x, y = pair
    rng = np.random.default_rng(seed)
    for metric in (auroc_by_step, auprc_by_step, lambda a, b: fpr_at_tpr_by_step(a, b, 0.5)):
        value = metric(x, y)
        assert_allclose(metric(x**3 + 7, y**3 + 7), value, atol=1e-12)
        assert_allclose(metric(rng.permutation(x), rng.permutation(y)), value, atol=1e-12)
    assert_allclose(auroc_by_step(np.tile(x, (2, 1)), np.tile(y, (3, 1))), auroc_by_step(x, y), atol=1e-12)
    assert_allclose(auprc_by_step(np.tile(x, (2, 1)), np.tile(y, (3, 1))), auprc_by_step(x, y), atol=1e-12)


@given(groups())
def test_absent_episodes_and_other_steps_do_not_matter(pair):
    """A row of NaN is nobody, and a step's number does not depend on which other steps are asked for."""
    x, y = pair
    nobody = np.full((2, x.shape[1]), np.nan)
    for metric in (auroc_by_step, auprc_by_step, lambda a, b: fpr_at_tpr_by_step(a, b, 0.5)):
        value = metric(x, y)
        assert_allclose(metric(np.vstack([nobody, x]), np.vstack([y, nobody])), value, atol=1e-12)
        assert_array_equal(metric(x[:, -1:], y[:, -1:]), value[-1:])


def test_blocks_of_steps_join_without_a_seam():
    """Many steps, so many that they are handled in blocks, equal each step by itself."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 50, (60, 900)).astype(float), rng.normal(25, 9, (40, 900))
    x[rng.random(x.shape) < 0.1] = np.nan
    for metric in (auroc_by_step, auprc_by_step):
        alone = [metric(x[:, [t]], y[:, [t]])[0] for t in range(0, 900, 13)]
        assert_array_equal(metric(x, y)[::13], alone)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=12), st.lists(st.integers(1, 12), min_size=2, max_size=8))
def test_a_clock_is_worth_one_half(times, lengths):
    """A score that knows only the time ties every comparison, whatever the lengths."""
    time = np.array(times)
    clean, disturbed = (
        np.where(np.arange(len(time)) < np.array(lengths[k::2] or [1])[:, None], time, np.nan) for k in (0, 1)
    )
    area = auroc_by_step(clean, disturbed)
    assert_array_equal(area[~np.isnan(area)], 0.5)


def test_the_pooled_clock_is_fooled():
    """Longer disturbed episodes alone make a clock look like a detector."""
    time = np.arange(20.0)
    clean, disturbed = np.tile(time[:10], (5, 1)), np.tile(time, (5, 1))
    assert pooled_auroc(clean, disturbed) == 0.75
    assert pooled(auroc_by_step, disturbed, clean) == 0.25


@given(groups(), st.floats(0.01, 0.99))
def test_precision_is_the_mean_over_thresholds(pair, pi):
    """For each disturbed score as threshold, the share of right alarms at the stated prevalence."""
    for (a, b), value in zip(columns(*pair), auprc_by_step(*pair, prevalence=pi), strict=True):
        rates = [(np.mean(b >= c), np.mean(a >= c) if len(a) else np.nan) for c in b]
        precision = [pi * tpr / (pi * tpr + (1 - pi) * fpr) for tpr, fpr in rates]
        assert_allclose(value, np.mean(precision) if len(a) and len(b) else np.nan, atol=1e-12)


@given(st.floats(0.01, 0.99), st.integers(1, 9), st.integers(1, 9))
def test_precision_of_nothing_and_of_everything(pi, n, p):
    """A constant score has the prevalence, a perfect one has 1."""
    assert_allclose(auprc_by_step(np.zeros((n, 1)), np.zeros((p, 1)), pi), pi, rtol=1e-12)
    assert_allclose(auprc_by_step(np.zeros((n, 1)), np.ones((p, 1)), pi), 1, rtol=1e-12)


@given(groups(), st.sampled_from([0.5, 0.75, 0.8, 0.9]))
def test_the_threshold_is_the_highest_that_catches_enough(pair, tpr):
    """The least false-positive rate over all thresholds that keep the true-positive rate."""
    for (a, b), value in zip(columns(*pair), fpr_at_tpr_by_step(*pair, tpr=tpr), strict=True):
        rates = [np.mean(a >= c) for c in b if np.mean(b >= c) >= tpr] if len(a) else []
        enough = len(b) >= round(1 / (1 - tpr))
        assert_allclose(value, min(rates) if rates and enough else np.nan, atol=1e-12)


@pytest.mark.parametrize("p", [20, 40, 60, 100, 400])
def test_ninety_five_percent_is_counted_exactly(p):
    """With p disturbed scores 0 .. p-1 the threshold is p/20, so p - p/20 of them alarm and no more."""
    y = np.arange(float(p))[:, None]
    assert fpr_at_tpr_by_step(y, y)[0] == 0.95
    assert fpr_at_tpr_by_step(np.array([[p / 20], [p / 20 - 1]]), y)[0] == 0.5


def test_a_constant_score_alarms_always_and_a_small_group_says_nothing():
    """Ties count against the detector; nineteen episodes cannot tell 95 % from all."""
    assert_array_equal(fpr_at_tpr_by_step(np.zeros((5, 1)), np.zeros((20, 1))), [1.0])
    assert np.isnan(fpr_at_tpr_by_step(np.zeros((5, 1)), np.zeros((19, 1)))).all()


@given(groups())
def test_ranks_are_scipys(pair):
    """Equal scores share their mean rank."""
    z = np.concatenate(pair)
    assert_array_equal(midranks_by_step(z), rankdata(z, axis=0, nan_policy="omit") if len(z) else z)


@given(groups())
def test_counts(pair):
    """What is not NaN is there."""
    for k, counts in enumerate(counts_by_step(*pair)):
        assert_array_equal(counts, [len(c[k]) for c in columns(*pair)])


@pytest.mark.parametrize(("n", "p"), [(2, 3), (4, 3), (5, 2)])
def test_weights_are_inverse_to_the_variance(n, p):
    """Over all orders of n + p different scores, the area varies by (1/n + 1/p) / 12 up to a factor 1 + 1/(n+p)."""
    everyone = range(n + p)
    areas = []
    for chosen in combinations(everyone, p):
        x = np.array([v for v in everyone if v not in chosen], float)[:, None]
        areas.append(auroc_by_step(x, np.array(chosen, float)[:, None])[0])
    expected = 1 / (12 * time_weights(np.array([n]), np.array([p]))[0]) * (1 + 1 / (n + p))
    assert_allclose(np.var(areas), expected, rtol=1e-12)


def test_random_cells_equal_scikit_learn():
    """Ties, constants, huge scores, neighbouring floats, missing scores: largest difference 1e-12."""
    check = auroc_oracle(350, seed=0)
    assert check["ran"] == 350 and check["failed"] == 0, check["detail"]
