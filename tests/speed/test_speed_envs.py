"""Steps of certified environments keep their floors at every size, and never pay for it with another result."""

import threading

import numpy as np
import pytest

from rl_oodkit.oracles.fixture import of
from rl_oodkit.reproduce.speed_envs import ArmStep, ExactArmStep, SingleArmStep, SingleEnvStep, VehicleStep
from rl_oodkit.reproduce.timing import time_pair


@pytest.mark.parametrize(("worlds", "floor"), [(64, 30), (256, 80)])
def test_batches_of_a_learner_are_fast_too(worlds, floor):
    """The arm in double precision, at the sizes that training uses."""
    timing = time_pair(ArmStep(), worlds, repeats=5)
    assert np.median(timing.ratios) >= floor, timing


def test_one_world_without_the_compiler_is_not_slower_than_the_formula():
    """The environment replays the recorded program on one column."""
    pair = SingleEnvStep()
    pair.env = type(pair.env)("rl_oodkit/Arm-v1", compiled=False)
    timing = time_pair(pair, 256, repeats=5)
    assert timing.equal and np.median(timing.ratios) >= 1, timing


def test_sixteen_times_the_worlds_cost_at_most_twentyfold():
    """From 256 to 4096 worlds."""
    small, large = (time_pair(ArmStep(), worlds, repeats=3) for worlds in (256, 4096))
    assert np.median(small.ours) / np.median(large.ours) < 20 / 16


@pytest.mark.parametrize(
    "pair", [ArmStep(), SingleArmStep(), ExactArmStep(), VehicleStep()], ids=lambda p: type(p).__name__
)
def test_no_world_depends_on_its_company(pair):
    """Batches of 1, 2, 3, 7, 64 and 4096 worlds, and one that is cut into pieces: the same bits."""
    whole = pair.setup(4096 + 500 if pair.dtype == np.float64 else 4096)
    if isinstance(pair, ExactArmStep):
        whole = type(whole)(*(x[:, :500] for x in whole))
    states, costs = pair.ours(whole)
    action = pair.problem.model.action(whole.states)
    for worlds in (1, 2, 3, 7, 64, 4096):
        part = type(whole)(*(np.ascontiguousarray(x[:, :worlds]) for x in whole))
        ours = pair.ours(part)
        assert np.array_equal(ours[0], states[:, :worlds]) and np.array_equal(ours[1], costs[:worlds])
        assert np.array_equal(pair.problem.model.action(part.states), action[:, :worlds])


def test_threads_do_not_meet_in_one_memory():
    """Four threads step the same problem at the same batch size, each with its own states."""
    pair = ArmStep()
    inputs = [type(pair.setup(1))(*(np.roll(x, k, axis=1) for x in pair.setup(64))) for k in range(4)]
    wanted, wrong = [pair.ours(x) for x in inputs], []

    def work(x, answer):
        for _ in range(100):
            states, costs = pair.ours(x)
            if not (np.array_equal(states, answer[0]) and np.array_equal(costs, answer[1])):
                wrong.append(1)

    threads = [threading.Thread(target=work, args=pair_) for pair_ in zip(inputs, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_results_are_not_the_memory_of_the_program():
    """A next state that a caller keeps, or writes into, is untouched by the next step, and the reverse."""
    pair = VehicleStep()
    one, two = pair.setup(8), type(pair.setup(1))(*(2 * x for x in pair.setup(8)))
    first = pair.ours(one)
    kept = [x.copy() for x in first]
    pair.ours(two)
    assert all(np.array_equal(x, y) for x, y in zip(first, kept, strict=True))
    first[0][:] = np.nan
    assert np.array_equal(pair.ours(one)[0], kept[0])


@pytest.mark.parametrize(
    ("env_id", "params"),
    [
        ("rl_oodkit/Arm-v1", {"links": 1}),
        ("rl_oodkit/Arm-v1", {"links": 9, "parameters": "published", "exact": False}),
        ("rl_oodkit/Vehicle-v1", {"vehicles": 2, "level": "insane"}),
        ("rl_oodkit/Vehicle-v1", {"speed_chain": 2, "turn_chain": 3}),
        ("rl_oodkit/Quadrotor-v1", {}),
        ("rl_oodkit/PlanarQuadrotor-v1", {}),
        ("rl_oodkit/Unicycle-v1", {}),
        ("rl_oodkit/TwoLinkArm-v1", {}),
        ("rl_oodkit/PointMass-v1", {}),
        ("rl_oodkit/ThreeLinkArm-v1", {}),
        ("rl_oodkit/LQR-v1", {}),
    ],
)
def test_the_compiled_step_agrees_with_the_program(env_id, params):
    """Every family: states and costs to 1e-12 a step along 50 steps, from starts of both distributions."""
    pytest.importorskip("numba", reason="the compiled step needs the extra `fast`")
    problem, rng = of(env_id, **params).problem, np.random.Generator(np.random.SFC64(3))
    assert problem.scalar_step is not None
    for start in ("train", "test"):
        s = problem.with_start(start).initial(rng, 1)
        for _ in range(50):
            a = problem.action_high[:, None] * rng.normal(size=(problem.m, 1))
            w = problem.noise(rng, 1)
            state, cost = problem.scalar_step(s[:, 0], a[:, 0], w[:, 0])
            charged, s = problem.cost(s, a)[0], problem.step(s, a, w)
            assert np.abs(state - s[:, 0]).max() <= 1e-12 * max(1, np.abs(s).max())
            assert abs(cost - charged) <= 1e-12 * max(1, charged)


def test_unusual_arrays_are_copied_and_not_compiled_for():
    """Strided, read-only and integer arguments give the numbers of usual ones."""
    pytest.importorskip("numba", reason="the compiled step needs the extra `fast`")
    problem = of("rl_oodkit/Arm-v1").problem
    s, a, w = np.linspace(-1, 1, 12), np.zeros(6), np.zeros(6)
    usual = problem.scalar_step(s, a, w)
    wide, fixed = np.repeat(s, 2), s.copy()
    fixed.flags.writeable = False
    for other in ((wide[::2], a, w), (fixed, a, w), (s, np.zeros(6, int), w)):
        state, cost = problem.scalar_step(*other)
        assert np.array_equal(state, usual[0]) and cost == usual[1]
