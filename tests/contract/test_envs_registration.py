"""Ids are known to Gymnasium at the price of a dictionary entry, and the shells are what their interfaces ask for."""

import dataclasses
import json
import subprocess
import sys
from importlib.metadata import entry_points

import gymnasium as gym
import numpy as np
import pytest
from envs_toy import ID
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_oodkit.core import registry
from rl_oodkit.core.errors import NonFiniteError, ParameterError, RegistrationError, ShapeError, UnknownIdError
from rl_oodkit.envs.registration import CERTIFIED, ELSEWHERE, certified_env, register_all
from rl_oodkit.envs.sb3 import CertifiedVecEnv
from rl_oodkit.envs.single import CertifiedEnv
from rl_oodkit.envs.vector import CertifiedVectorEnv
from rl_oodkit.oracles.fixture import of
from rl_oodkit.oracles.toys import ToySpec, small_fixture

PROBE = """
import json, sys
import gymnasium
before = set(sys.modules)
from rl_oodkit.envs.registration import register_all
register_all()
print(json.dumps([[i for i in gymnasium.registry if i.startswith("rl_oodkit/")], sorted(set(sys.modules) - before)]))
"""


def test_table_and_registry_agree():
    """The table that is announced names the families that exist, no more and no less."""
    ours = [e.id for e in registry.entries("env") if "fixture" in e.tags and e.id.startswith("rl_oodkit/")]
    assert sorted(CERTIFIED) == ours


def test_announcing_imports_nothing_heavy():
    """A fresh interpreter learns the ids without families, shells, SciPy, pandas, torch or a drawing library."""
    out = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    ids, loaded = json.loads(out.stdout)
    assert sorted(ids) == sorted((*CERTIFIED, *ELSEWHERE))
    heavy = {"torch", "scipy", "pandas", "matplotlib", "sklearn", "stable_baselines3", "rl_oodkit.oracles"}
    assert not heavy & set(loaded)
    inside = {name for name in loaded if name.startswith("rl_oodkit.envs.")}
    assert inside == {"rl_oodkit.envs.registration"}


def test_the_package_names_the_entry_point():
    """For versions of Gymnasium that load plugins."""
    points = {p.name: p.value for p in entry_points(group="gymnasium.envs")}
    assert points.get("rl_oodkit") == "rl_oodkit.envs.registration:register_all"


def test_the_module_may_stand_before_the_id():
    """Gymnasium imports it first, so that nobody has to import this package."""
    code = "gymnasium.make('rl_oodkit.envs:rl_oodkit/MLECode-v0', tasks=[], executor=int)"
    program = f"""
import gymnasium
for name in ({CERTIFIED[0]!r}, "rl_oodkit/MLEPipeline-v0"):
    print(gymnasium.make(f"rl_oodkit.envs:{{name}}").spec.id)
try:
    {code}
except Exception as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    said = out.stdout.splitlines()
    assert said[:2] == [CERTIFIED[0], "rl_oodkit/MLEPipeline-v0"], out.stderr
    assert said[2].startswith("there are no tasks"), said  # it was found, and refused the empty list


def test_gymnasium_makes_both_shells():
    """By id, with the family's parameters, without a wrapper on top; the specification makes it again."""
    register_all()
    env = gym.make(ID, horizon=30, start="test")
    assert type(env) is CertifiedEnv and env.plant.problem.horizon == 30 and env.plant.start == "test"
    again = env.spec.make()
    assert again.plant.digest == env.plant.digest and again.plant.start == "test"
    envs = gym.make_vec(ID, num_envs=5, vectorization_mode="vector_entry_point", horizon=30)
    assert isinstance(envs, VectorEnv) and envs.num_envs == 5
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert CertifiedEnv(ID, horizon=30).spec.kwargs["horizon"] == 30


def test_the_registry_shows_parameters_and_makes():
    """The maker's signature is the family's parameter set."""
    assert registry.parameters("env", ID) == [(f.name, f.default) for f in dataclasses.fields(ToySpec)]
    assert registry.make("env", ID, horizon=12).plant.digest == of(ID, horizon=12).digest
    with pytest.raises(ParameterError, match="Parameters are: nonlinear"):
        registry.make("env", ID, horizont=12)


def test_bad_families_are_refused():
    """Not frozen, no default, a reserved name; nothing is registered then."""
    loose = dataclasses.make_dataclass("Loose", [("x", float, 1.0)])
    bare = dataclasses.make_dataclass("Bare", [("x", float)], frozen=True)
    taken = dataclasses.make_dataclass("Taken", [("start", str, "a")], frozen=True)
    for spec, says in ((loose, "no frozen dataclass"), (bare, "no default"), (taken, "keyword"), (int, "no frozen")):
        with pytest.raises(RegistrationError, match=says):
            certified_env("tests/Bad-v1", spec)(small_fixture)
    assert "tests/Bad-v1" not in gym.registry and "tests/Bad-v1" not in registry.names("env")


@pytest.mark.parametrize("shell", [CertifiedEnv, CertifiedVectorEnv, CertifiedVecEnv])
def test_mistakes_at_construction_have_names(shell):
    """The same in all three shells."""
    with pytest.raises(UnknownIdError, match="Nearest"):
        shell("rl_oodkit/Arn-v1")
    with pytest.raises(UnknownIdError, match="not certified"):
        shell("lunarlander")
    with pytest.raises(ParameterError, match="Known: nonlinear"):
        shell(ID, links=3)
    with pytest.raises(ParameterError, match="horizon is -3"):
        shell(ID, horizon=-3)
    with pytest.raises(UnknownIdError, match="start 'moon'"):
        shell(ID, start="moon")
    with pytest.raises(ParameterError, match="id or a fixture"):
        shell()
    with pytest.raises(ParameterError, match="both"):
        shell(ID, fixture=small_fixture())
    with pytest.raises(ParameterError, match="render_mode 'human'"):
        shell(ID, render_mode="human")


@pytest.mark.parametrize("worlds", [0, -1, 2.5, True, "3"])
def test_the_number_of_worlds_is_checked(worlds):
    """One or more, and an integer."""
    for shell in (CertifiedVectorEnv, CertifiedVecEnv):
        with pytest.raises(ParameterError, match="number of worlds"):
            shell(fixture=small_fixture(), num_envs=worlds)


def test_autoreset_modes():
    """Gymnasium's names are understood, disabled and unknown ones are refused."""
    assert CertifiedVectorEnv(ID, autoreset_mode="SameStep").metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    for mode in ("never", AutoresetMode.DISABLED, None):
        with pytest.raises(ParameterError, match="autoreset_mode"):
            CertifiedVectorEnv(ID, autoreset_mode=mode)


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True, np.float64(3)])
def test_bad_seeds(seed):
    """Refused before the world is touched."""
    env, envs = CertifiedEnv(ID), CertifiedVectorEnv(ID, 2)
    env.reset(seed=1), envs.reset(seed=1)
    before = env.state, envs.states
    for bad in (lambda: env.reset(seed=seed), lambda: envs.reset(seed=seed), lambda: envs.reset(seed=[0, seed])):
        with pytest.raises(ParameterError, match="seed"):
            bad()
    assert np.array_equal(env.state, before[0]) and np.array_equal(envs.states, before[1])


def test_steps_need_an_episode():
    """Before the first reset and after the end; Gymnasium's own exception catches ours."""
    env, envs = CertifiedEnv(ID, horizon=1), CertifiedVectorEnv(ID, 2)
    for call in (lambda: env.step(np.zeros(1)), lambda: envs.step(np.zeros((2, 1)))):
        with pytest.raises(ResetNeeded, match="Call reset first"):
            call()
    envs.reset(seed=0, options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded):
        envs.step(np.zeros((2, 1)))
    env.reset(seed=0)
    assert env.step(np.zeros(1))[3]
    with pytest.raises(ResetNeeded, match="again after an episode"):
        env.step(np.zeros(1))


def test_bad_resets():
    """Options, masks and lists of seeds."""
    envs = CertifiedVectorEnv(ID, 3)
    with pytest.raises(ParameterError, match="unknown option 'mask'"):
        envs.reset(options={"mask": np.ones(3, bool)})
    with pytest.raises(ParameterError, match="unknown option"):
        CertifiedEnv(ID).reset(options={"state": 0})
    refused = (np.ones(2, bool), ShapeError), (np.zeros(3, bool), ParameterError), (np.ones(3), ParameterError)
    for mask, error in refused:
        with pytest.raises(error, match="mask"):
            envs.reset(seed=0, options={"reset_mask": mask})
    with pytest.raises(ShapeError, match="2 seeds for 3 worlds"):
        envs.reset(seed=[1, 2])


def test_divergence_is_an_error_and_not_a_number():
    """A state that leaves the floating-point range stops the world by name; a reset frees it."""
    envs = CertifiedVectorEnv(ID, 3)
    envs.reset(seed=0)
    envs._core.states[:, 1] = 1e200
    before = envs.states
    with np.errstate(over="ignore"), pytest.raises(NonFiniteError, match="cost of world 1 is inf at step 0"):
        envs.step(np.zeros((3, 1)))
    assert np.array_equal(envs.states, before)
    envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert np.isfinite(envs.step(np.zeros((3, 1)))[1]).all()


def test_frames():
    """The family's drawing function is called with parameters and state; without one there is no mode."""
    env = gym.make(ID, render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert frame.shape == (8, 8, 3) and frame[0, 0, 0] == int(abs(env.state[0]) * 10) % 256
    envs = CertifiedVectorEnv(ID, 3, render_mode="rgb_array")
    envs.reset(seed=0)
    assert len(envs.render()) == 3 and np.array_equal(envs.render()[0], frame)
    assert CertifiedEnv(ID).render() is None
    assert CertifiedEnv(fixture=small_fixture()).metadata["render_modes"] == []
