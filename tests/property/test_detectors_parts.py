"""Theorems about windows, features, scorers and accumulators, each against an independent computation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import mahalanobis
from scipy.stats import kstest
from sklearn.covariance import LedoitWolf
from sklearn.mixture import GaussianMixture

from rl_oodkit.core.registry import entries, make
from rl_oodkit.ood.conformal import Martingale, conformal_p, reference_windows
from rl_oodkit.ood.controls import uniform_hash
from rl_oodkit.ood.detector_checks import planted, scrambled, synthetic_trajectories
from rl_oodkit.ood.dynamics import EnsembleDistance, EnsembleLikelihood, RidgeDynamics, monomials, split_columns
from rl_oodkit.ood.features import TransitionFeatures, WindowFeatures, next_rows
from rl_oodkit.ood.policy_scores import Energy, Entropy, MaximalProbability, NegativeMargin
from rl_oodkit.ood.scorers import Mahalanobis, Mixture, NearestNeighbour, Subspace
from rl_oodkit.ood.windows import window_statistics

SEEDS = st.integers(0, 2**32 - 1)
ACCUMULATORS = [e.id for e in entries("accumulator") if e.module.startswith("rl_oodkit.")]


def describe(x):
    """Describe one window of one channel by the definitions."""
    t = np.arange(len(x)) - (len(x) - 1) / 2
    return [x.mean(), x.std(), x.min(), x.max(), t @ x / (t @ t), np.abs(np.diff(x)).mean()]


@given(SEEDS, st.integers(2, 40), st.integers(0, 60), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
@settings(max_examples=60, deadline=None)
def test_windows_equal_their_definition(seed, width, extra, scale, offset):
    """For every width, power of two or not, and far from the origin."""
    x = offset + scale * np.random.default_rng(seed).normal(size=(width + extra, 2))
    fast = window_statistics(x, width)
    assert fast.shape == (extra + 1, 6, 2)
    for i in {0, extra // 2, extra}:
        slow = np.array([describe(x[i : i + width, k]) for k in range(2)]).T
        np.testing.assert_allclose(fast[i], slow, rtol=1e-9, atol=1e-11 * (scale + abs(offset)))


@given(SEEDS, st.integers(2, 25))
@settings(max_examples=30, deadline=None)
def test_windows_see_nothing_outside_themselves(seed, width):
    """Whatever surrounds a window, its statistics keep every bit, also across the blocks of the computation."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, 2500, 1))
    start = int(rng.integers(2000, 2100))
    y[start : start + width] = x[start : start + width]
    np.testing.assert_array_equal(window_statistics(x, width)[start], window_statistics(y, width)[start])
    np.testing.assert_array_equal(
        window_statistics(x[start : start + width], width)[0], window_statistics(x, width)[start]
    )


def test_window_features_are_defined_from_the_first_full_window():
    """The first w - 2 rows of each episode are NaN, and no window spans two episodes."""
    batch = synthetic_trajectories(6)
    part = WindowFeatures(width=15).fit(batch)
    rows = part.rows(batch)
    defined = np.isfinite(rows).all(axis=1)
    np.testing.assert_array_equal(defined, batch.times >= 13)
    alone = [part.rows(batch.select([i])) for i in range(6)]
    np.testing.assert_array_equal(rows, np.concatenate(alone))
    assert part.widths == {"window": 24}, "four continuous channels, the contact bit is left out"


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_transition_rows_can_be_undone(seed):
    """Observation, action and next observation come back from the row."""
    batch = synthetic_trajectories(3, seed=seed % 1000)
    part = TransitionFeatures().fit(batch)
    rows, after = part.rows(batch), next_rows(batch)
    o = rows[:, :5] * part.sd_ + part.mean_
    np.testing.assert_allclose(o, batch.observations[after - 1], atol=1e-5)
    np.testing.assert_array_equal(rows[:, 5:8].argmax(axis=1), batch.actions)
    np.testing.assert_allclose(o + rows[:, 8:] * part.change_sd_, batch.observations[after], atol=1e-5)


def test_unknown_actions_get_an_empty_block():
    """An action that no clean episode holds shares its block with none of the known ones."""
    batch = synthetic_trajectories(4)
    part = TransitionFeatures().fit(batch)
    from dataclasses import replace

    other = part.rows(replace(batch, actions=np.full(batch.n_steps, 7)))
    assert not other[:, 5:8].any()


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_mahalanobis_agrees_with_scipy(seed):
    """Squared, under the same shrunk covariance."""
    rows = np.random.default_rng(seed).normal(size=(60, 4)) @ np.random.default_rng(seed + 1).normal(size=(4, 4))
    reference = LedoitWolf().fit(rows)
    wanted = [mahalanobis(x, reference.location_, reference.precision_) ** 2 for x in rows[:10]]
    np.testing.assert_allclose(Mahalanobis().fit(rows).score_samples(rows[:10]), wanted, rtol=1e-5)


@given(SEEDS, st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_rigid_motions_move_no_distance(seed, scale):
    """Rotation, shift and change of unit leave the ranking by neighbour, ellipse and subspace alone."""
    rng = np.random.default_rng(seed)
    rows, fresh = rng.normal(size=(2, 80, 3)) * [3.0, 1.0, 0.3]
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0] * scale
    for family, power in ((NearestNeighbour, 1), (Mahalanobis, 0), (Subspace, 2)):
        before = family().fit(rows).score_samples(fresh)
        after = family().fit(rows @ turn + 5.0).score_samples(fresh @ turn + 5.0)
        np.testing.assert_allclose(after, before * scale**power, rtol=1e-5, atol=1e-8 * scale**power)


def test_mixture_is_scikit_learns_with_the_sign_turned():
    """Same parameters, same rows, opposite sign."""
    rows = np.random.default_rng(0).normal(size=(300, 3))
    ours = Mixture(n_components=3, random_state=7).fit(rows)
    theirs = GaussianMixture(3, reg_covar=1e-3, random_state=np.random.RandomState(7)).fit(rows)
    np.testing.assert_array_equal(ours.score_samples(rows), -theirs.score_samples(rows))


def test_ridge_recovers_a_quadratic_law_for_each_action():
    """With little noise and little penalty the coefficients are those of the law."""
    rng = np.random.default_rng(0)
    o, code = rng.normal(size=(3000, 2)), rng.integers(0, 3, 3000)
    laws = rng.normal(size=(3, 6, 2))
    y = np.einsum("nk,nkq->nq", monomials(o), laws[code]) + 1e-3 * rng.normal(size=(3000, 2))
    ridge = RidgeDynamics(ridge=1e-6, n_targets=2, n_actions=3).fit(np.hstack([o, np.eye(3)[code], y]))
    for a in range(3):
        np.testing.assert_allclose(ridge.laws_[a + 1][0], laws[a], atol=1e-3)


def test_a_rare_action_is_judged_by_the_law_of_all():
    """Three rows are no ground for a law of their own, and an unknown action has none either."""
    rng = np.random.default_rng(0)
    code = np.r_[np.zeros(300, int), [1, 1, 1]]
    rows = np.hstack([rng.normal(size=(303, 2)), np.eye(2)[code], rng.normal(size=(303, 1))])
    ridge = RidgeDynamics(n_targets=1, n_actions=2).fit(rows)
    assert set(ridge.laws_) == {0, 1}
    rows[:, 2:4] = 0
    assert np.isfinite(ridge.score_samples(rows)).all()


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_ensemble_scores_are_their_formulas(seed):
    """Likelihood and distance, written with loops."""
    rng = np.random.default_rng(seed)
    mean, log_variance, y = rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 2, 4)), rng.normal(size=(2, 4))
    nll, mse = EnsembleLikelihood()._combine(mean, log_variance, y), EnsembleDistance()._combine(mean, log_variance, y)
    for i in range(2):
        var = np.exp(log_variance[:, i])
        terms = [
            sum((y[i, j] - mean[b, i, j]) ** 2 / var[b, j] + np.log(var[b, j]) for j in range(4)) for b in range(3)
        ]
        assert nll[i] == pytest.approx(np.mean(terms))
        nearest = [np.mean((y[i] - mean[b, i]) ** 2 + var[b]) for b in range(3)]
        assert mse[i] == pytest.approx(min(nearest))


@given(st.integers(1, 30), st.integers(0, 10))
@settings(max_examples=30, deadline=None)
def test_columns_are_split_without_loss(k, a):
    """The three blocks side by side are the rows again."""
    if (k + 1) // 2 + a <= k:
        rows = np.arange(2.0 * k).reshape(2, k)
        np.testing.assert_array_equal(np.hstack(split_columns(rows, None, a)), rows)


@given(SEEDS, st.floats(0.01, 1000))
@settings(max_examples=30, deadline=None)
def test_policy_scores_do_not_depend_on_the_unit_of_reward(seed, unit):
    """Entropy and probability are equal, energy and margin scale."""
    q = np.random.default_rng(seed).normal(size=(50, 4))
    for family, power in ((Entropy, 0), (MaximalProbability, 0), (Energy, 1), (NegativeMargin, 1)):
        plain, scaled = (family().fit(x).score_samples(x) for x in (q, unit * q))
        np.testing.assert_allclose(scaled, plain * unit**power, rtol=1e-7, atol=1e-9 * unit**power)


def scores_with_gaps(seed, episodes=12, steps=60):
    """Return random scores with warm-up, ends and a terminal gap."""
    rng = np.random.default_rng(seed)
    scores = rng.gumbel(size=(episodes, steps)) * rng.uniform(0.1, 10) + rng.normal()
    time = np.arange(steps)
    scores[(time < rng.integers(0, 9)) | (time >= rng.integers(20, steps + 1, episodes)[:, None])] = np.nan
    return scores


@given(SEEDS, st.sampled_from(ACCUMULATORS))
@settings(max_examples=60, deadline=None)
def test_accumulators_are_causal_recursions(seed, name):
    """Batch, one episode, one step at a time, and a prefix all agree bit for bit; NaN stays where it was."""
    clean, scores = scores_with_gaps(seed), scores_with_gaps(seed + 1)
    part = make("accumulator", name).calibrate(clean)
    values = part.run(scores)
    np.testing.assert_array_equal(np.isnan(values), np.isnan(scores))
    np.testing.assert_array_equal(part.run(scores[3:4]), values[3:4])
    np.testing.assert_array_equal(part.run(scores[:, :17]), values[:, :17])
    state, online = part.start(), []
    for t, s in enumerate(scores[5]):
        state, value = part.update(state, s, t)
        online.append(value[0])
    np.testing.assert_array_equal(online, values[5])


@given(SEEDS, st.sampled_from(ACCUMULATORS))
@settings(max_examples=40, deadline=None)
def test_steps_without_a_score_are_skipped(seed, name):
    """A gap holds the memory: what follows is what would have followed without the gap, at the same matched time."""
    rng = np.random.default_rng(seed)
    clean, scores = rng.normal(size=(20, 40)), rng.normal(size=(2, 3))
    part = make("accumulator", name).calibrate(clean)
    gap = np.insert(scores, 1, np.nan, axis=1)
    np.testing.assert_array_equal(part.run(gap)[:, [0, 2, 3]], part.run(scores))


@given(SEEDS, st.sampled_from(ACCUMULATORS), st.floats(0.1, 10))
@settings(max_examples=40, deadline=None)
def test_more_strangeness_never_lowers_the_value(seed, name, rise):
    """Raise the last score, and the last value does not fall."""
    rng = np.random.default_rng(seed)
    clean, scores = rng.normal(size=(20, 40)), rng.normal(size=(3, 30))
    part = make("accumulator", name).calibrate(clean)
    stranger = scores.copy()
    stranger[:, -1] += rise
    assert np.all(part.run(stranger)[:, -1] >= part.run(scores)[:, -1] - 1e-12)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_cusum_is_the_largest_sum_that_ends_now(seed):
    """Page's recursion against its definition."""
    rng = np.random.default_rng(seed)
    clean, scores = rng.normal(size=(20, 40)), rng.normal(0.5, 1, size=(1, 40))
    part = make("accumulator", "cusum").calibrate(clean)
    g = part.standardise(scores[0]) - part.mean_ - part.allowance
    wanted = [max(0.0, max(g[j : t + 1].sum() for j in range(t + 1))) for t in range(40)]
    np.testing.assert_allclose(part.run(scores)[0], wanted, atol=1e-9)


@given(SEEDS)
@settings(max_examples=25, deadline=None)
def test_shiryaev_roberts_is_a_sum_over_times_of_change(seed):
    """The recursion against R_t = sum_j exp(g_j + ... + g_t)."""
    rng = np.random.default_rng(seed)
    clean, scores = rng.normal(size=(20, 40)), rng.normal(size=(1, 25))
    part = make("accumulator", "shiryaev-roberts").calibrate(clean)
    g = part.standardise(scores[0]) - part.mean_ - part.allowance
    wanted = [np.log(sum(np.exp(g[j : t + 1].sum()) for j in range(t + 1))) for t in range(25)]
    np.testing.assert_allclose(part.run(scores)[0], wanted, atol=1e-9)


def test_conformal_p_values_are_uniform():
    """Against matched clean scores, p-values of new clean scores pass a Kolmogorov-Smirnov test over many draws."""
    rng = np.random.default_rng(0)
    p = [conformal_p(np.sort(rng.gumbel(size=500)), rng.gumbel(size=1))[0] for _ in range(2000)]
    assert kstest(p, "uniform").pvalue > 0.01


@given(st.integers(1, 300), st.floats(0.05, 0.95), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_no_bet_gains_on_exchangeable_scores(n, power, levels):
    """The mean over all ranks of eps p^(eps - 1) is at most one, with and without ties."""
    values = np.arange(n + 1) // levels
    p = np.array([conformal_p(np.delete(values, i), values[[i]])[0] for i in range(n + 1)])
    assert np.mean(power * p ** (power - 1)) <= 1 + 1e-9


def test_independent_scores_obey_ville():
    """With a large reference the capital reaches twenty in at most one of twenty episodes."""
    rng = np.random.default_rng(1)
    chart = Martingale().calibrate(rng.normal(size=(1000, 50)))
    assert np.mean(chart.run(rng.normal(size=(1000, 50))).max(axis=1) > np.log(20)) <= 0.05


def test_references_are_of_matched_time():
    """A score that only follows the clock has p-values near one half, early and late."""
    clean = np.arange(100.0) + np.random.default_rng(0).normal(0, 20, size=(400, 100))
    windows = reference_windows(clean)
    p = [conformal_p(windows[t // 5], np.array([float(t)]))[0] for t in range(100)]
    assert np.all(np.abs(np.array(p)[10:90] - 0.5) < 0.1)


@given(SEEDS, st.integers(2, 40))
@settings(max_examples=30, deadline=None)
def test_thin_windows_borrow_from_rich_ones(seed, episodes):
    """Every block of time has a reference, as rich as is asked or as any is."""
    scores = scores_with_gaps(seed, episodes)
    windows = reference_windows(scores)
    assert len(windows) == 12 and all(np.all(np.diff(w) >= 0) for w in windows)
    assert min(map(len, windows)) >= min(100, max(map(len, windows)))


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_hashed_numbers_are_a_function_of_key_and_counter(seed):
    """In [0, 1), whatever order or company they are computed in."""
    rng = np.random.default_rng(seed)
    keys, counters = rng.integers(0, 2**64, 50, dtype=np.uint64), rng.integers(0, 1000, 50)
    u = uniform_hash(keys, counters)
    order = rng.permutation(50)
    assert np.all((u >= 0) & (u < 1))
    np.testing.assert_array_equal(uniform_hash(keys[order], counters[order]), u[order])


@given(st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_what_is_planted_begins_after_the_onset(seed):
    """Observations up to the onset are bit-equal, the first one after it is far away."""
    clean = synthetic_trajectories(3, seed=seed)
    disturbed = planted(clean, onset=20)
    e, f = clean.episode(1), disturbed.episode(1)
    np.testing.assert_array_equal(e.observations[:21], f.observations[:21])
    assert np.all(np.abs(f.observations[21] - e.observations[21]) > 5 * clean.observations.std(axis=0))
    assert disturbed.onset.tolist() == [20] * 3 and f.active[20] and not f.active[19]


def test_scrambling_keeps_what_is_read():
    """Declared fields keep their bits, the others do not."""
    clean = synthetic_trajectories(4)
    other = scrambled(clean, frozenset({"observations", "q"}))
    assert np.array_equal(other.observations, clean.observations)
    assert np.array_equal(other.internals["q"], clean.internals["q"])
    assert not np.array_equal(other.internals["features"], clean.internals["features"])
    assert not np.array_equal(other.rewards, clean.rewards) and other.active.all()
