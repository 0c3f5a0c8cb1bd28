"""Synthetic monitoring environments keep the contract with every preset; their optimum is one whatever the knobs."""

import dataclasses
import hashlib
import re
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from rl_oodkit.core.errors import CheckpointError, NonFiniteError, ParameterError, ShapeError
from rl_oodkit.envs.checks import check_env
from rl_oodkit.envs.regret import WithRegret
from rl_oodkit.envs.single import CertifiedEnv
from rl_oodkit.envs.sme import sme
from rl_oodkit.envs.sme_knobs import PRESETS, SharedTargetsWarning, SMESpec
from rl_oodkit.envs.sme_probe import (
    DISTANCES,
    cube_states,
    mixed_states,
    own_states,
    probe,
    probe_table,
    shell_states,
    sme_baselines,
)
from rl_oodkit.envs.sme_regret import regret_frame
from rl_oodkit.envs.sme_world import Instance, SMEProblem, draw_instance
from rl_oodkit.envs.vector import CertifiedVectorEnv
from rl_oodkit.oracles.baselines import oracle_policy
from rl_oodkit.oracles.certificate import certify
from rl_oodkit.oracles.critics import audit_critic
from rl_oodkit.oracles.folding import chebyshev_distance
from rl_oodkit.oracles.payments import killing_pays, payment_table
from rl_oodkit.oracles.regret import evaluate
from rl_oodkit.oracles.rollouts import ForeignFixtureError
from rl_oodkit.oracles.targets import calibrated_target

ID = "rl_oodkit/SME-v1"


def knobs(**extra):
    """Draw a valid set of knobs, small enough to be run."""
    return st.fixed_dictionaries(
        {
            "states": st.integers(1, 9),
            "actions": st.integers(1, 5),
            "complexity": st.integers(1, 3),
            "reward_every": st.integers(1, 9),
            "reward_min": st.sampled_from([0.0, 0.1, 0.6]),
            "kill_threshold": st.sampled_from([0.0, 0.3, 1.0]),
            "horizon": st.integers(1, 12),
            "phase_noise": st.sampled_from([0.0, 0.3, 1.0]),
            "observation_noise_std": st.sampled_from([0.0, 0.1]),
            "policy": st.sampled_from(["calibrated", "wheel"]),
            "legacy_payout": st.booleans(),
            "discount": st.sampled_from([0.9, 0.99]),
            "instance_seed": st.integers(0, 5),
        }
        | extra
    )


def made(chosen):
    """Build the fixture, or skip a set in which it would pay to be killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SharedTargetsWarning)
        try:
            return sme(SMESpec(**chosen))
        except ParameterError as refusal:
            assert "gains by being killed" in str(refusal)
            return None


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_keeps_the_contract(preset):
    """Gymnasium's checker, the library's, and ours."""
    assert len(check_env(ID, preset=preset)) == 10


@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in ("large", "complex")])
def test_every_preset_is_certified(preset):
    """With the reasons why some checks do not apply."""
    found = certify(sme(SMESpec(preset=preset)), states=64, draws=2000, worlds=16)
    assert found.passed, str(found)
    rows = {row.name: row for row in found.rows}
    assert rows["C1"].value <= 1e-12 and rows["C9"].value == 0 and rows["C3"].verdict == "passed"


@given(knobs())
@settings(max_examples=60, deadline=None)
def test_the_optimum_returns_the_number_of_steps_and_nothing_is_cheaper(chosen):
    """Exactly, by advantages, by costs, and by one-step backups; at every step of an episode."""
    fixture = made(chosen)
    if fixture is None:
        return
    problem, oracle, rng = fixture.problem, fixture.oracle, np.random.default_rng(0)
    s, returned = problem.initial(rng, 16), np.zeros(16)
    for _ in range(problem.horizon):
        a, tried, w = oracle.action(s), rng.random((problem.m, 16)), problem.noise(rng, 16)
        value = oracle.value(s)
        assert (oracle.advantage(s, a) == 0).all() and (oracle.advantage(s, tried) >= 0).all()
        assert np.allclose(oracle.q_value(s, a), value, rtol=0, atol=1e-12)
        assert np.allclose(oracle.q_value(s, tried) - value, oracle.advantage(s, tried), rtol=0, atol=1e-11)
        near = np.clip(a + 1e-3 * rng.standard_normal(a.shape), 0, 1)
        assert (oracle.q_value(s, near) >= value - 1e-12).all()
        s, cost = problem.advance(s, a, w)
        returned -= cost
    assert (returned == problem.horizon).all() and (oracle.value(s) == 0).all()


@given(knobs(), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_losses_by_advantages_and_by_costs_agree(chosen, seed):
    """For a policy that errs and is killed now and then: the telescoping of advantages is exact."""
    fixture = made(chosen | {"horizon": max(2, chosen["horizon"])})
    if fixture is None:
        return
    for policy in sme_baselines(fixture, seed):
        found = evaluate(fixture, policy, range(8))
        assert np.allclose(found.gap, found.return_gap, rtol=0, atol=1e-9)
        lost = regret_frame(found)
        assert ((lost.instantaneous >= 0) & (lost.instantaneous <= 1)).all()
        assert np.isclose(lost.cumulative.iloc[-1], lost.instantaneous.sum())


@given(knobs(), st.sampled_from([AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]))
@settings(max_examples=25, deadline=None)
def test_a_vector_equals_single_worlds(chosen, mode):
    """Bit for bit, kills and resets included."""
    fixture = made(chosen)
    if fixture is None:
        return
    from gymnasium.vector import SyncVectorEnv

    single = lambda: CertifiedEnv(fixture=fixture)  # noqa: E731 - a maker
    ours, loop = CertifiedVectorEnv(fixture=fixture, num_envs=3, autoreset_mode=mode), SyncVectorEnv(
        [single] * 3, autoreset_mode=mode
    )  # fmt: skip
    rng = np.random.default_rng(1)
    assert np.array_equal(ours.reset(seed=4)[0], loop.reset(seed=4)[0])
    for _ in range(2 * fixture.problem.horizon + 3):
        a = rng.random((3, fixture.problem.m))
        for x, y in zip(ours.step(a)[:4], loop.step(a)[:4], strict=True):
            assert np.array_equal(x, y)


def test_a_kill_terminates_and_the_horizon_truncates():
    """The two ends are told apart, and the last one pays what is pending."""
    env = gym.make(ID, kill_threshold=0.5, reward_every=10, horizon=6)
    oracle = oracle_policy(sme(SMESpec(kill_threshold=0.5, reward_every=10, horizon=6)).oracle)
    env.reset(seed=0)
    paid = []
    for _ in range(5):
        paid.append(env.step(oracle.act(env.unwrapped.state[:, None])[:, 0])[1:4])
    assert paid == [(0.0, False, False)] * 5
    wrong = 1.0 - np.round(oracle.act(env.unwrapped.state[:, None])[:, 0])
    _, reward, terminated, truncated, info = env.step(wrong)
    assert (terminated, truncated, info) == (True, True, {}) and 5 <= reward < 5.5
    env.reset(seed=0)
    _, reward, terminated, truncated, _ = env.step(1.0 - np.round(oracle.act(env.unwrapped.state[:, None])[:, 0]))
    assert terminated and not truncated and reward < 0.5
    with pytest.raises(gym.error.ResetNeeded):
        env.unwrapped.step(wrong)


def test_the_wrapper_tells_regret_and_the_info_nothing():
    """Instantaneous regret and action error come with the evaluation wrapper alone."""
    env = WithRegret(gym.make(ID))
    env.reset(seed=3)
    told = env.step(np.full(4, 0.5))[4]
    assert set(told) == {"regret", "value", "optimal_action", "clipped", "instantaneous_regret", "action_error"}
    assert told["clipped"] == 0 and env.step(np.full(4, 1.5))[4]["clipped"] == 1
    assert np.isclose(told["action_error"], np.abs(0.5 - told["optimal_action"]).mean())
    assert told["instantaneous_regret"] == 1 - max(0, 1 - 4 * told["action_error"])
    vector = WithRegret(gym.make_vec(ID, num_envs=2))
    vector.reset(seed=3)
    batch = vector.step(np.full((2, 4), 0.5))[4]
    assert batch["instantaneous_regret"][0] == told["instantaneous_regret"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"reward_min": 1.0}, "nothing is ever earned"),
        ({"reward_min": 1.5}, "reward_min"),
        ({"kill_threshold": -0.1}, "kill_threshold"),
        ({"kill_threshold": 1.1}, "kill_threshold"),
        ({"states": 0}, "states"),
        ({"actions": 0}, "actions"),
        ({"complexity": 0}, "complexity"),
        ({"horizon": 0}, "horizon"),
        ({"reward_every": 0}, "reward_every"),
        ({"reward_every": 2.5}, "reward_every"),
        ({"phase_noise": np.nan}, "phase_noise"),
        ({"observation_noise_std": -1}, "observation_noise_std"),
        ({"policy": "whel"}, "policy"),
        ({"preset": "sprase"}, "preset"),
        ({"discount": 1.0}, "discount"),
        ({"discount": 0.0}, "discount"),
        ({"legacy_payout": 1}, "legacy_payout"),
        ({"instance_seed": -1}, "instance_seed"),
        ({"instance_seed": 0.5}, "instance_seed"),
        ({"kill_threshold": 0.3, "reward_every": 100, "discount": 0.9}, "gains by being killed"),
    ],
)
def test_wrong_knobs_are_refused_by_name(wrong, said):
    """At construction, whichever way the environment is made."""
    for make in (lambda: SMESpec(**wrong), lambda: gym.make(ID, **wrong)):
        with pytest.raises(ParameterError, match=said):
            make()


@pytest.mark.parametrize("policy", ["wheel", "calibrated"])
def test_more_actions_than_states_warn(policy):
    """And say why: the targets repeat each other."""
    with pytest.warns(SharedTargetsWarning, match="6 actions of 2 states"):
        spec = SMESpec(states=2, actions=6, policy=policy)
    a = sme(spec).problem.instance.target(np.random.default_rng(0).random((2, 2000)))
    assert np.linalg.matrix_rank(np.corrcoef(np.arctanh(1.998 * a - 0.999))) >= 2
    assert np.abs(np.corrcoef(a) - np.eye(6)).max() > 0.9


def test_bad_actions_are_refused_and_large_ones_are_clipped():
    """NaN, infinity and wrong shapes by name; the world stays where it was. A component of 50 counts as 1."""
    env, twin = gym.make(ID).unwrapped, gym.make(ID).unwrapped
    env.reset(seed=0), twin.reset(seed=0)
    for wrong, error in ((np.full(4, np.nan), NonFiniteError), (np.full(4, np.inf), NonFiniteError),
                         (np.zeros(3), ShapeError), (np.zeros((4, 1)), ShapeError)):  # fmt: skip
        with pytest.raises(error):
            env.step(wrong)
    assert np.array_equal(env.step(np.full(4, 50.0))[0], twin.step(np.ones(4))[0])


def test_an_explicit_instance_is_another_fixture():
    """Its arrays belong to the digest, so that nothing trained elsewhere is taken for its own."""
    spec = SMESpec(states=3, actions=2)
    drawn, given = sme(spec), sme(spec, draw_instance(spec))
    assert drawn.digest != given.digest == sme(spec, draw_instance(spec)).digest
    world = draw_instance(spec)
    moved = Instance(world.pull, world.drift + 0.1, world.target, world.start)
    assert sme(spec, moved).digest != given.digest
    with pytest.raises(ShapeError, match="target"):
        SMEProblem(SMESpec(states=4, actions=2), world)
    with pytest.raises(ShapeError, match="drift"):
        Instance(world.pull, world.drift[:2], world.target, world.start)


def test_a_checkpoint_of_another_instance_is_refused(tmp_path):
    """Same knobs, other instance seed."""
    from rl_oodkit.training.actor import load_actor
    from rl_oodkit.training.continuous import train
    from rl_oodkit.training.critic_files import load_critic
    from rl_oodkit.training.settings import preset

    tiny = preset(
        "ppo", "sme", worlds=8, n_steps=8, batch_size=64, total_steps=128, evaluate_every=128, curve_episodes=2
    )
    small = {"states": 2, "actions": 1}
    card = train(tiny, ID, small, folder=tmp_path, episodes=4, progress=False)
    assert {"instantaneous_regret", "action_error"} <= set(card["loss"])
    other = sme(SMESpec(**small, instance_seed=1))
    for load, name in ((load_actor, "ppo"), (load_critic, "ppo-critic")):
        with pytest.raises(ForeignFixtureError):
            load(tmp_path / f"{name}.json", other)
    with pytest.raises(CheckpointError, match="params"):
        train(tiny, ID, small | {"instance_seed": 1}, folder=tmp_path, episodes=4, progress=False)


def test_calibrated_marginals_are_uniform_on_the_grid():
    """Kolmogorov-Smirnov distance at most .02 for every output, dimension and complexity, three seeds."""
    rng, worst = np.random.default_rng(0), 0.0
    for n in (2, 8, 32):
        x = rng.random((n, 20_000))
        for m in sorted({m for m in (1, 4, 16, n) if m <= n}):
            for C in (1, 2, 4):
                for seed in range(3):
                    a = calibrated_target(n, m, C, seed)(x)
                    worst = max(worst, *(kstest(row, "uniform").statistic for row in a))
    assert worst <= 0.02


def test_killing_pays_is_what_a_table_of_all_actions_says():
    """Dynamic programming over the clock and pending earnings, with earnings on a grid."""
    for T, k, gamma, D in ((6, 3, 0.9, 0.3), (6, 6, 0.5, 0.3), (8, 4, 0.7, 1.0), (5, 1, 0.3, 1.0), (6, 6, 0.95, 0.5)):
        base, slope = payment_table(T, k, gamma)
        value = {(T, c): 0.0 for c in range(T + 1)}
        better = False
        for t in range(T - 1, -1, -1):
            for c in range(t % k + 1):
                due = (t + 1) % k == 0 or t + 1 == T
                alive = c + 1 + gamma * value[t + 1, 0] if due else gamma * value[t + 1, c + 1]
                killed = c + D - 1e-9
                better |= killed > alive + 1e-8
                value[t, c] = base[t] + slope[t] * c
                assert np.isclose(value[t, c], alive)
        assert killing_pays(T, k, gamma, D) == better


def test_probes_lie_where_they_say():
    """Shells at their distance, the cube inside, the published mixture at clock zero, own states reachable."""
    fixture = sme(SMESpec(reward_every=7))
    assert (chebyshev_distance(cube_states(fixture, 500)[:8]) == 0).all()
    for distance in DISTANCES:
        s = shell_states(fixture, distance, 500)
        assert np.allclose(chebyshev_distance(s[:8]), distance)
        assert (s[9] <= s[8] % 7).all() and (s[8] < 100).all()
    mixed = mixed_states(fixture, 400, inside=0.25)
    assert (chebyshev_distance(mixed[:8]) > 0).sum() == 300 and (mixed[8:] == 0).all()
    own = own_states(fixture, oracle_policy(fixture.oracle), 200)
    assert own.shape == (12, 200) and np.allclose(own[9], own[8] % 7)
    with pytest.raises(ParameterError, match="distance"):
        shell_states(fixture, -0.1)
    with pytest.raises(ParameterError, match="share inside"):
        mixed_states(fixture, inside=1.5)
    with pytest.raises(ShapeError):
        probe(fixture, oracle_policy(fixture.oracle), np.zeros(3))


def test_the_probe_table_marks_the_oracle_perfect_everywhere():
    """And nobody else; the same states for everyone."""
    fixture = sme(SMESpec())
    table = probe_table(fixture, sme_baselines(fixture), count=300).set_index("policy")
    assert (table.loc["oracle", ["error", "regret"]] == 0).all().all() and (table.loc["oracle", "score"] == 1).all()
    assert (table.drop("oracle")["error"] > 0.05).all() and len(table) == 4 * 7


def test_exact_critics_are_marked_perfect():
    """V* and Q* of the oracle, on states of the cube and far outside."""
    fixture = sme(SMESpec(reward_every=10))
    best = oracle_policy(fixture.oracle)
    for states in (cube_states(fixture, 200), shell_states(fixture, 1.0, 200)):
        found = audit_critic(fixture, best, states, value=fixture.oracle.value, q_value=fixture.oracle.q_value)
        assert found.value.rms == found.q_policy.rms == found.q_optimal.rms == 0
        assert abs(found.residual_bias) < 1e-12 and abs(found.residual_square) < 1e-12


PROGRAM = """
import hashlib, numpy as np, gymnasium as gym, rl_oodkit.envs
env = gym.make_vec("rl_oodkit/SME-v1", num_envs=5, preset="noisy", kill_threshold=0.0)
seen = [env.reset(seed=11)[0]]
rng = np.random.default_rng(0)
for _ in range(150):
    seen += list(env.step(rng.random((5, 4)))[:2])
print(hashlib.sha256(b"".join(x.tobytes() for x in seen)).hexdigest())
"""


def test_the_same_seed_gives_the_same_bytes_in_three_processes():
    """World, target, starts, noise and steps."""
    runs = [
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    assert len({run.stdout for run in runs}) == 1 and len(runs[0].stdout.strip()) == 64
    assert hashlib.sha256(b"").hexdigest() != runs[0].stdout.strip()


def test_building_an_environment_does_not_touch_another_or_the_global_generators():
    """Nor does a reset."""
    first, alone = gym.make(ID), gym.make(ID)
    first.reset(seed=1), alone.reset(seed=1)
    before = np.random.get_state()[1].copy()  # noqa: NPY002 - the generator that must stay untouched
    other = gym.make(ID, instance_seed=9)
    other.reset(seed=1)
    a = np.full(4, 0.25)
    assert np.array_equal(first.step(a)[0], alone.step(a)[0])
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_a_fixture_keeps_its_digest_whatever_is_done_with_it():
    """What is computed from an instance on the way is no part of it, and whole numbers are as good as floats."""
    spec = SMESpec(states=3, actions=2)
    world = draw_instance(spec)
    before = sme(spec, world).digest
    world.target(np.full((3, 1), 0.3))
    assert sme(spec, world).digest == before
    assert sme(SMESpec(reward_min=0, kill_threshold=0, phase_noise=1)).digest == sme(SMESpec(phase_noise=1.0)).digest


def test_an_instance_is_a_copy_that_nobody_changes():
    """Arrays of the caller stay the caller's."""
    spec = SMESpec(states=3, actions=2)
    world, drift = draw_instance(spec), np.array([0.1, 0.2, 0.3])
    mine = Instance(world.pull, drift, world.target, world.start)
    drift[:] = 9
    assert mine.drift.tolist() == [0.1, 0.2, 0.3]
    for array in (mine.drift, mine.pull, mine.start, mine.target.weights[0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize(
    "change",
    [
        {"target": None},
        {"target": lambda x: x},
        {"pull": np.full((2, 3), np.nan)},
        {"pull": np.full((2, 3), 1e300)},
        {"drift": np.zeros(2)},
        {"start": np.full(3, 5.0)},
    ],
    ids=["no target", "a function", "nan", "huge", "short drift", "start outside"],
)
def test_instances_that_would_falsify_the_optimum_are_refused(change):
    """By name, before a world is made of them."""
    world = draw_instance(SMESpec(states=3, actions=2))
    with pytest.raises((ParameterError, ShapeError, NonFiniteError)):
        dataclasses.replace(world, **change)
    target = world.target
    for wrong in ({"heights": 3 * target.heights}, {"density": np.nan * target.density}, {"weights": 3}):
        with pytest.raises((ParameterError, ShapeError, NonFiniteError)):
            dataclasses.replace(target, **wrong)
    for call in (lambda: sme("spec"), lambda: sme(SMESpec(states=3, actions=2), "world"), lambda: draw_instance(None)):
        with pytest.raises(ParameterError):
            call()


def test_one_state_has_few_layers():
    """Deeper ones are calibrated rounding errors; with two states sixty-four layers are sound."""
    with pytest.raises(ParameterError, match="5 layers of one state"):
        SMESpec(states=1, actions=1, complexity=5)
    with pytest.raises(ParameterError, match="rounding errors"):
        calibrated_target(1, 1, 5)
    x = np.random.default_rng(0).integers(0, 2**40, (2, 500)) / 2**40
    for n, C in ((1, 4), (2, 64)):
        target = calibrated_target(n, 1, C)
        assert np.abs(target(x[:n]) + target(1 - x[:n]) - 1).max() < 1e-10


@given(st.integers(2, 400), st.integers(2, 400), st.sampled_from([0.2, 0.5, 1.0]))
@settings(max_examples=60, deadline=None)
def test_the_discount_that_a_refusal_names_is_accepted(T, k, D):
    """Rounded up, not down."""
    knobs = {"states": 2, "actions": 1, "horizon": T, "reward_every": k, "kill_threshold": D}
    try:
        SMESpec(**knobs, discount=0.01)
    except ParameterError as refusal:
        said = float(re.search(r"discount of ([\d.]+) or more", str(refusal))[1])
        SMESpec(**knobs, discount=said)


def test_the_first_observation_is_as_noisy_as_the_others():
    """And so are the states of probes."""
    fixture = sme(SMESpec(observation_noise_std=0.07))
    envs = CertifiedVectorEnv(fixture=fixture, num_envs=3000)
    seen, _ = envs.reset(seed=0)
    for s, o in ((envs.states, seen), (cube_states(fixture, 3000).T, None), (shell_states(fixture, 0.5, 3000).T, None)):
        noise = s[:, 12:] if o is None else o[:, :8] - s[:, :8]
        assert abs(noise.std() - 0.07) < 0.002 and abs(noise.mean()) < 0.002


def test_probed_books_are_books_of_living_episodes():
    """Nobody alive has earned less than the threshold a step; the published display lags."""
    s = cube_states(sme(SMESpec(reward_every=4, kill_threshold=0.3)), 4000)
    assert (s[9] >= 0.3 * (s[8] % 4) - 1e-12).all() and (s[9] <= s[8] % 4).all() and (s[9] == s[10]).all()
    s = cube_states(sme(SMESpec(reward_every=4, legacy_payout=True)), 4000)
    assert (s[9, s[8] % 4 == 0] == 0).all() and (s[10, (s[8] % 4 == 0) & (s[8] > 0)] > 0).mean() > 0.99
    assert (s[9:11, s[8] == 0] == 0).all() and (s[10] <= (s[8] - 1) % 4).all()


def test_own_states_are_of_living_episodes():
    """More worlds are walked where episodes end early; a named error where none is alive."""
    from rl_oodkit.core.errors import EmptySplitError
    from rl_oodkit.oracles.baselines import ConstantPolicy

    fixture = sme(SMESpec(states=3, actions=2, kill_threshold=0.25))
    s = own_states(fixture, ConstantPolicy(2), 200)
    assert s.shape[0] == 7 and 20 < s.shape[1] <= 200 and not fixture.problem.terminal(s).any()
    hopeless = sme(SMESpec(states=3, actions=2, kill_threshold=1.0, horizon=5000))
    with pytest.raises(EmptySplitError, match="end at once"):
        own_states(hopeless, ConstantPolicy(2), 10)
