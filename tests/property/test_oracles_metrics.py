"""Laws of the measures: what the optimum scores, what no policy can score, and what may not change a number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rl_oodkit.core.errors import EmptySplitError, NonFiniteError, ParameterError, ShapeError
from rl_oodkit.core.seeds import stream
from rl_oodkit.oracles.baselines import (
    DeadZoneOracle,
    RotatedOracle,
    ScaledOracle,
    UniformPolicy,
    ZeroPolicy,
    oracle_policy,
)
from rl_oodkit.oracles.critics import audit_critic, expected_residual, summarise_error
from rl_oodkit.oracles.estimators import episodes_needed, estimates, estimator_table, separation_table
from rl_oodkit.oracles.gates import check_perturbations, perturbation_table
from rl_oodkit.oracles.intervals import (
    TooFewSeedsError,
    brown_forsythe,
    compare_learners,
    describe_seeds,
    two_level_bootstrap,
)
from rl_oodkit.oracles.regret import evaluate, policy_error, regret_curve, remainder_bound
from rl_oodkit.oracles.rollouts import (
    ForeignFixtureError,
    discounted_costs,
    draw_worlds,
    rollout_states,
    visited_states,
)
from rl_oodkit.oracles.scores import check_matched, normalised_score, reference, settling
from rl_oodkit.oracles.toys import small_fixture

WORLDS = range(40)
FAST = settings(max_examples=15, deadline=None)


@pytest.fixture(scope="module")
def toy():
    """The nonlinear toy."""
    return small_fixture(horizon=60)


@pytest.fixture(scope="module")
def best(toy):
    """The evaluation of its oracle."""
    return evaluate(toy, oracle_policy(toy.oracle), WORLDS)


class Learned:
    """A policy that remembers its plant."""

    name = "learned"

    def __init__(self, fixture):
        self.fixture_digest, self.m = fixture.digest, fixture.problem.m

    def act(self, s):
        """Do nothing."""
        return np.zeros((self.m, s.shape[1]))


class Runaway:
    """Push outwards, ever harder."""

    name = "runaway"

    def act(self, s):
        """Return a push that grows with the cube of the position."""
        return 1e60 * s[:1] ** 3


# -- rollouts -------------------------------------------------------------------------------------------------------


def test_worlds_are_matched(toy):
    """Starts and noise depend on the seed alone: not on the other worlds, the order, or the horizon."""
    s, w = draw_worlds(toy.problem, [4, 9, 2], 30)
    one, two = draw_worlds(toy.problem, [9], 12)
    assert (s[:, 1:2] == one).all() and (w[:12, :, 1:2] == two).all()


def test_a_world_is_the_first_episode_of_the_environment(toy):
    """The rollout of seed 7 is what an environment shows after `reset(seed=7)`, bit for bit."""
    single = pytest.importorskip("rl_oodkit.envs.single")
    env = single.CertifiedEnv(fixture=toy, compiled=False)
    obs, _ = env.reset(seed=7)
    for moment in rollout_states(toy.problem, ScaledOracle(toy.oracle, 0.7), [7], 20):
        assert np.array_equal(obs, moment.states[:, 0])
        obs, reward, terminated, _, _ = env.step(moment.actions[:, 0])
        assert reward == -moment.costs[0] and not terminated


@given(batch=st.integers(1, 50))
@FAST
def test_the_batch_changes_no_number(toy, batch):
    """Worlds that walk together do not feel each other."""
    policy = ScaledOracle(toy.oracle, 0.8)
    whole, parts = (
        evaluate(toy, policy, range(12), horizon=10),
        evaluate(toy, policy, range(12), horizon=10, batch=batch),
    )
    for name in ("gap", "gap_half", "cost", "tail", "start_value", "error", "error_m", "clipped", "failed"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name)), name


def test_a_world_that_leaves_the_finite_numbers_is_censored_and_alone():
    """It gets its step and an infinite cost; a healthy world beside it keeps its numbers."""
    toy = small_fixture(horizon=30, action_bound=1e300)

    class Selective(Runaway):
        """Run away on the right half only."""

        def act(self, s):
            """Push where the position is above 1."""
            return np.where(s[:1] > 1, super().act(s), 0.0)

    found = evaluate(toy, Selective(), WORLDS)
    idle = evaluate(toy, ZeroPolicy(1), WORLDS)
    bad = found.failed >= 0
    assert 0 < bad.sum() == found.diverged < len(bad)
    assert np.isinf(found.gap[bad]).all() and np.isinf(found.cost[bad]).all() and np.isinf(found.error_m[bad]).all()
    assert np.isfinite(found.gap[~bad]).all()
    calm = ~bad & np.isin(found.gap, idle.gap)
    assert calm.any()
    assert found.gap_mean == np.inf == remainder_bound(found) and np.isinf(regret_curve(found)[-1])


def test_a_policy_that_raises_on_nan_is_not_handed_any():
    """Failed worlds are parked at the origin."""
    toy = small_fixture(horizon=20, action_bound=1e300)

    class Careful(Runaway):
        """Refuse NaN, as networks of some libraries do."""

        def act(self, s):
            """Check, and push."""
            assert np.isfinite(s).all()
            return super().act(s)

    assert evaluate(toy, Careful(), range(5)).diverged == 5


def test_empty_and_short_are_named_errors(toy):
    """No seeds, no steps."""
    with pytest.raises(EmptySplitError):
        evaluate(toy, ZeroPolicy(1), [])
    for horizon in (0, 1, -3):
        with pytest.raises(ParameterError):
            evaluate(toy, ZeroPolicy(1), [0], horizon=horizon)
    with pytest.raises(ParameterError):
        list(rollout_states(toy.problem, ZeroPolicy(1), [0], 2.5))


def test_a_policy_of_another_fixture_is_refused(toy):
    """By digest, in every function that takes a policy."""
    other, states = Learned(small_fixture(noise_std=0.06)), np.ones((2, 4))
    assert evaluate(toy, Learned(toy), [0], horizon=5).gap_mean > 0
    calls = [
        lambda: evaluate(toy, other, [0]),
        lambda: policy_error(toy, other, [0], ZeroPolicy(1)),
        lambda: policy_error(toy, ZeroPolicy(1), [0], other),
        lambda: expected_residual(toy, toy.oracle.value, other, states),
        lambda: audit_critic(toy, other, states, value=toy.oracle.value),
        lambda: estimator_table(toy, [other], [0, 1]),
    ]
    for call in calls:
        with pytest.raises(ForeignFixtureError, match="made for the fixture"):
            call()


# -- regret ---------------------------------------------------------------------------------------------------------


def test_the_oracle_loses_exactly_nothing(best):
    """By every measure that is exact."""
    assert (best.gap == 0).all() and (best.error == 0).all() and (best.error_m == 0).all()
    assert best.opt_gap == best.controllable_opt_gap == 0 == remainder_bound(best)


def test_the_oracle_s_loss_by_costs_is_a_martingale(toy):
    """Its mean is zero within three standard errors over two thousand worlds."""
    x = evaluate(toy, oracle_policy(toy.oracle), range(2000)).return_gap
    assert abs(x.mean()) < 3 * x.std(ddof=1) / 2000**0.5


@given(gain=st.floats(-1.0, 2.0), angle=st.floats(-1.0, 1.0), width=st.floats(0.0, 0.5))
@FAST
def test_no_policy_beats_the_optimum(toy, gain, angle, width):
    """Losses by advantages are non-negative in every world; regret curves rise."""
    for policy in (ScaledOracle(toy.oracle, gain), RotatedOracle(toy.oracle, angle), DeadZoneOracle(toy.oracle, width)):
        found = evaluate(toy, policy, range(6), horizon=20)
        assert (found.gap >= 0).all() and (found.gap >= found.gap_half).all()
        assert (np.diff(regret_curve(found)) >= 0).all()


@pytest.mark.parametrize("gain", [1.1, 0.9, 0.5, 0.0])
def test_both_estimates_of_a_loss_agree(toy, gain):
    """Sum of advantages and costs with the optimal tail have one expectation."""
    found = evaluate(toy, ScaledOracle(toy.oracle, gain), range(400))
    martingale = found.return_gap - found.gap
    assert abs(martingale.mean()) < 4 * martingale.std(ddof=1) / 400**0.5


def test_the_gap_is_the_sum_of_the_curve_and_the_square_of_the_error(toy):
    """Three ways to add the same numbers."""
    found = evaluate(toy, ScaledOracle(toy.oracle, 0.6), WORLDS)
    assert np.isclose(found.regret.sum(), found.gap_mean, rtol=1e-12)
    total = 0.0
    for moment in rollout_states(toy.problem, ScaledOracle(toy.oracle, 0.6), WORLDS):
        missed = moment.actions - toy.oracle.action(moment.states)
        total += toy.problem.discount**moment.t * toy.oracle.curvature(moment.states, missed).mean()
    assert np.isclose(total, found.gap_mean, rtol=1e-12)


def test_losses_add_up_to_costs(toy, best):
    """The discounted costs of an evaluation are those of the plain sum."""
    costs, _, failed = discounted_costs(toy.problem, oracle_policy(toy.oracle), WORLDS)
    assert np.allclose(costs, best.cost, rtol=1e-13) and (failed == -1).all()


def test_the_difference_of_stage_costs_is_no_regret(toy):
    """For doing nothing it is negative, while the loss is positive."""
    wrong = 0.0
    for moment in rollout_states(toy.problem, ZeroPolicy(1), WORLDS):
        instead = toy.problem.cost(moment.states, toy.oracle.action(moment.states))
        wrong += toy.problem.discount**moment.t * (moment.costs - instead).mean()
    assert wrong < 0 < evaluate(toy, ZeroPolicy(1), WORLDS).gap_mean


@pytest.mark.parametrize("gain", [0.7, 0.4, 0.0, 1.6])
def test_the_remainder_is_bounded(toy, gain):
    """Ten times the horizon adds no more than was promised."""
    policy = ScaledOracle(toy.oracle, gain)
    short, long = (evaluate(toy, policy, range(60), horizon=t) for t in (60, 600))
    assert short.gap_mean <= long.gap_mean <= short.gap_mean + remainder_bound(short) * 1.05


def test_errors_on_own_and_on_optimal_states(toy):
    """Walking the policy itself reproduces its evaluation; walking the oracle is another number."""
    policy = ScaledOracle(toy.oracle, 0.5)
    own, theirs = (policy_error(toy, policy, WORLDS, walker) for walker in (policy, oracle_policy(toy.oracle)))
    found = evaluate(toy, policy, WORLDS)
    assert np.isclose(own.euclid, found.error.mean()) and np.isclose(own.weighted, found.error_m.mean())
    assert own.law == "gain 0.5" and theirs.law == "oracle" and own.euclid > theirs.euclid > 0


def test_a_tenth_of_gain_error_is_a_tenth_of_the_action(toy):
    """On the oracle's own states the error of a scaled oracle scales."""
    one, two = (policy_error(toy, ScaledOracle(toy.oracle, g), WORLDS, oracle_policy(toy.oracle)) for g in (1.1, 1.2))
    assert np.isclose(two.euclid, 2 * one.euclid) and np.isclose(two.weighted, 2 * one.weighted)


def test_the_discounted_law_of_states(toy):
    """A plain mean over the discounted sample estimates the discounted mean."""
    policy, seeds = ZeroPolicy(1), range(300)
    sample = visited_states(toy.problem, policy, seeds, discounted=True, per_world=4)
    sums = np.zeros(2)
    for moment in rollout_states(toy.problem, policy, seeds):
        sums += toy.problem.discount**moment.t * np.array([(moment.states**2).sum(0).mean(), 1.0])
    assert abs((sample**2).sum(0).mean() / (sums[0] / sums[1]) - 1) < 0.1


# -- scores ---------------------------------------------------------------------------------------------------------


def test_the_scale_has_two_fixed_points(toy, best):
    """The optimum is 100, the reference 0, and the scale is linear in the loss."""
    yardstick = reference(toy, WORLDS).evaluation
    half = evaluate(toy, ScaledOracle(toy.oracle, 0.5), WORLDS)
    assert normalised_score(best, yardstick) == 100 and normalised_score(yardstick, yardstick) == 0
    assert np.isclose(normalised_score(half, yardstick), 100 * (1 - half.gap_mean / yardstick.gap_mean))


def test_the_reference_is_stable():
    """Doing nothing where it settles, half the gain where it does not; and the name is told."""
    tame, wild = small_fixture(), small_fixture(action_cost=0.15, action_bound=8.0)
    assert reference(tame, range(20)).name == "zero" and reference(wild, range(20)).name == "half-gain"
    found = settling(wild, ZeroPolicy(1), range(20))
    assert not found.settled and "diverges" in str(found) and found.cost_double > found.cost
    assert settling(wild, oracle_policy(wild.oracle), range(20)).settled


def test_scores_compare_what_is_comparable(toy, best):
    """Other fixtures, worlds, horizons and starts are refused; so is a reference without a loss."""
    elsewhere = small_fixture(horizon=60, noise_std=0.06)
    with pytest.raises(ForeignFixtureError):
        check_matched(best, evaluate(elsewhere, ZeroPolicy(1), WORLDS))
    others = [
        evaluate(toy, ZeroPolicy(1), range(39)),
        evaluate(toy, ZeroPolicy(1), WORLDS, horizon=50),
        evaluate(toy, ZeroPolicy(1), WORLDS, start="test"),
    ]
    for other in others:
        with pytest.raises(ParameterError):
            check_matched(best, other)
    with pytest.raises(ParameterError):
        normalised_score(best, best)


def test_a_diverged_policy_scores_minus_infinity():
    """Not some large negative number that depends on where it was cut."""
    toy = small_fixture(horizon=30, action_bound=1e300)
    assert normalised_score(evaluate(toy, Runaway(), range(5)), evaluate(toy, ZeroPolicy(1), range(5))) == -np.inf


# -- intervals ------------------------------------------------------------------------------------------------------


@given(shift=st.floats(-5, 5), scale=st.floats(0.1, 5))
@FAST
def test_the_bootstrap_is_equivariant(shift, scale):
    """Units do not matter."""
    x = stream(0, "table").normal(size=(6, 4))
    one, two = (two_level_bootstrap(y, stream(1, "b"), resamples=50) for y in (x, shift + scale * x))
    assert np.allclose(two, shift + scale * one)


def test_seeds_are_the_units():
    """Copying every start a hundred times changes nothing of substance; copying seeds is what one must not do."""
    x = stream(0, "seeds").normal(size=(8, 1)) + 0.01 * stream(0, "starts").normal(size=(8, 5))
    few, many = (two_level_bootstrap(y, stream(1, "b")).std() for y in (x, np.tile(x, 100)))
    assert abs(few / many - 1) < 0.1
    assert two_level_bootstrap(np.tile(x, (25, 1)), stream(1, "b")).std() < 0.4 * few


def test_the_interval_covers():
    """Over many repetitions with six seeds, the stated 95 per cent holds within sampling error."""
    rng, hits = stream(0, "coverage"), 0
    for _ in range(200):
        x = rng.normal(size=(6, 1)) + 0.3 * rng.normal(size=(6, 8))
        found = describe_seeds(x, resamples=400)
        hits += found.low <= 0 <= found.high
    assert 0.88 < hits / 200 <= 1


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_there_is_no_interval_with_fewer_than_five_seeds(seeds):
    """The bootstrap raises; the description has no bounds and a reason."""
    x = np.ones((seeds, 3))
    with pytest.raises(TooFewSeedsError):
        two_level_bootstrap(x, stream(0, "b"))
    with pytest.raises(TooFewSeedsError):
        compare_learners({"a": x, "b": x})
    found = describe_seeds(x)
    assert found.low is None is found.high and "training seed" in found.reason and "[" not in str(found)
    assert describe_seeds(np.ones((5, 3))).low == 1


@pytest.mark.parametrize("statistic", ["mean", "iqm", "median"])
def test_a_diverged_seed_is_counted_and_never_clipped(statistic):
    """The mean is infinite, the median takes the seed as worst, and no interval is printed."""
    x = np.arange(24.0).reshape(6, 4)
    x[1, 2] = np.inf
    with pytest.raises(NonFiniteError, match="1 of 6 seeds"):
        two_level_bootstrap(x, stream(0, "b"), statistic=statistic)
    found = describe_seeds(x, statistic=statistic)
    assert found.diverged == 1 and found.low is None and "1 of 6 diverged" in str(found)
    assert np.isfinite(found.median) and (found.estimate == np.inf or statistic == "median")


def test_wrong_tables_are_named_errors():
    """Shapes, statistics, NaN dimensions."""
    for wrong in (np.ones(5), np.ones((5, 0)), np.ones((0, 5))):
        with pytest.raises(ShapeError):
            describe_seeds(wrong)
    with pytest.raises(ParameterError):
        two_level_bootstrap(np.ones((5, 2)), stream(0, "b"), statistic="mode")
    with pytest.raises(ShapeError):
        compare_learners({"a": np.ones((5, 2)), "b": np.ones((5, 3))})


def test_pairs_are_compared_over_seeds_and_starts():
    """A clear difference is found, equal learners are not told apart, signs follow the order, p is adjusted."""
    rng = stream(0, "pairs")
    losses = {name: rng.normal(shift, 1, size=(7, 5)) for name, shift in (("a", 0), ("b", 0), ("c", 4))}
    table = compare_learners(losses).set_index(["first", "second"])
    row = table.loc["a", "c"]
    assert row.p < 1e-3 and row.difference < 0 and row.high < 0 and (table.p_holm >= table.p).all()
    assert table.loc["a", "b"].low < 0 < table.loc["a", "b"].high and table.loc["a", "b"].p > 0.05


def test_a_difference_of_starts_is_not_one_of_learners():
    """With nearly equal seeds and learners that like other starts, few of many null comparisons are significant."""
    found = 0
    for k in range(60):
        rng = stream(k, "interaction")
        losses = {n: 1 + 0.02 * rng.normal(size=(10, 1)) + 0.3 * rng.normal(size=(1, 32)) for n in "ab"}
        row = compare_learners(losses, resamples=400).iloc[0]
        found += row.p < 0.05
        assert (row.low > 0 or row.high < 0) == (row.p < 0.05) or 0.01 < row.p < 0.15
    assert found <= 8  # binomial(60, .05) exceeds this in one case of 1000


def test_constant_tables_are_told_apart_exactly():
    """Without any spread, equal is equal and different is different."""
    same = compare_learners({"a": np.ones((5, 3)), "b": np.ones((5, 3))}).iloc[0]
    other = compare_learners({"a": np.ones((5, 3)), "b": np.zeros((5, 3))}).iloc[0]
    assert (same.p, other.p) == (1.0, 0.0)


def test_spread_is_scipy_s():
    """Brown and Forsythe is Levene's test around medians."""
    x, y = stream(0, "spread").normal(size=(2, 30))
    assert np.allclose(brown_forsythe(x, 3 * y), stats.levene(x, 3 * y, center="median"))
    with pytest.raises(ShapeError):
        brown_forsythe(x)


# -- estimators -----------------------------------------------------------------------------------------------------


def test_the_three_estimators_agree_and_differ_in_spread(toy):
    """Near the optimum the sum of advantages has at most a twentieth of the plain spread."""
    table = estimator_table(toy, [ScaledOracle(toy.oracle, 1.05)], range(300)).set_index("estimator")
    assert (
        table.sd["advantage"] < table.sd["plain"] / 20 and table.sd["advantage"] < table.sd["crn"] < table.sd["plain"]
    )
    apart = table["mean"] - table["mean"]["advantage"]
    assert (apart.abs() <= 4 * table.se).all()


def test_the_oracle_s_matched_difference_is_zero(best):
    """A policy against itself in the same worlds."""
    assert not estimates(best, best)["crn"].any()


@given(sd=st.floats(0.1, 10), difference=st.floats(0.01, 10))
@FAST
def test_the_count_of_episodes_scales(sd, difference):
    """Half the difference needs four times the episodes; the sign does not matter."""
    one, two = episodes_needed(difference, sd), episodes_needed(difference / 2, sd)
    assert 4 * (one - 1) <= two <= 4 * one or one == 2
    assert episodes_needed(-difference, sd) == one <= episodes_needed(difference, sd, power=0.95)


@pytest.mark.parametrize("wrong", [(0.0, 1.0), (np.nan, 1.0), (1.0, np.inf), (1.0, -1.0)])
def test_impossible_counts_are_named_errors(wrong):
    """No difference, no count."""
    with pytest.raises(ParameterError):
        episodes_needed(*wrong)


def test_separating_five_per_cent(toy):
    """Plain returns need far more episodes than exact advantages."""
    pair = [ScaledOracle(toy.oracle, 1 + 0.1 * x) for x in (1, 1.05**0.5)]
    found = separation_table(toy, *pair, range(200)).set_index("estimator")
    assert abs(found.relative["plain"] - 0.05) < 0.01
    assert found.episodes["plain"] > 10_000 * found.episodes["advantage"] and found.episodes["crn"] < 100


def test_spoilt_policies_never_win(toy):
    """In matched worlds, by exact losses and by costs."""
    table = perturbation_table(toy, range(100))
    assert (table.gap.iloc[1:] > 0).all() and check_perturbations(table).verdict == "passed"
    better = table.assign(extra=-table.extra.abs(), extra_se=1e-6)
    assert check_perturbations(better).verdict == "failed"


# -- critics --------------------------------------------------------------------------------------------------------


def test_the_exact_critic_passes_its_exam(toy):
    """No error of value or action value, and a residual that is zero on average and in square."""
    best = oracle_policy(toy.oracle)
    states = visited_states(toy.problem, best, range(200))
    found = audit_critic(toy, best, states, value=toy.oracle.value, q_value=toy.oracle.q_value)
    assert found.value.rms == found.q_policy.rms == found.q_optimal.rms == 0
    assert abs(found.residual_bias) < 5e-3 and abs(found.residual_square) < 1e-3


@given(bias=st.floats(-3, 3))
@FAST
def test_a_constant_error_is_found_exactly(toy, bias):
    """It is the bias, the root mean square, and (1 - discount) of it is the residual."""
    best, states = oracle_policy(toy.oracle), np.ones((2, 20))
    exact = audit_critic(toy, best, states, value=toy.oracle.value)
    found = audit_critic(toy, best, states, value=lambda s: toy.oracle.value(s) + bias)
    assert np.isclose(found.value.bias, bias) and np.isclose(found.value.rms, abs(bias))
    assert np.isclose(found.residual_bias - exact.residual_bias, (toy.problem.discount - 1) * bias, atol=1e-9)


def test_the_residual_does_not_grow_with_the_noise():
    """The square of single samples does; the product of two halves does not."""
    squares = []
    for std in (0.01, 0.3):
        toy = small_fixture(noise_std=std)
        squares.append(expected_residual(toy, toy.oracle.value, oracle_policy(toy.oracle), np.ones((2, 400)))[1])
    assert max(map(abs, squares)) < 5e-3


def test_wrong_critics_are_named_errors(toy):
    """None, wrong shapes, NaN."""
    states = np.ones((2, 3))
    with pytest.raises(ParameterError):
        audit_critic(toy, ZeroPolicy(1), states)
    with pytest.raises(ShapeError):
        audit_critic(toy, ZeroPolicy(1), states, value=lambda s: s)
    with pytest.raises(NonFiniteError):
        summarise_error(np.array([np.nan]), np.array([1.0]))


def test_random_actions_are_measured_too(toy):
    """The row that every table has."""
    policy = UniformPolicy(toy.problem.action_low, toy.problem.action_high, seed=0)
    assert evaluate(toy, policy, range(5)).gap_mean > evaluate(toy, ZeroPolicy(1), range(5)).gap_mean
