"""The contract of certified environments holds for every id, and its checks notice plants that break it."""

import copy
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from envs_toy import ID

from rl_oodkit.core.errors import ParameterError, UnknownIdError
from rl_oodkit.core.registry import entries
from rl_oodkit.envs.checks import check_env, check_fixture
from rl_oodkit.envs.clauses import CLAUSES, EnvCheckError, leaks_of
from rl_oodkit.envs.core import core_of
from rl_oodkit.envs.single import CertifiedEnv
from rl_oodkit.envs.vector import CertifiedVectorEnv
from rl_oodkit.oracles.toys import small_fixture

IDS = [e.id for e in entries("env") if "fixture" in e.tags]


@pytest.mark.parametrize("env_id", IDS)
def test_every_certified_environment_keeps_the_contract(env_id):
    """With the defaults of its family."""
    assert list(check_env(env_id)["clause"]) == [clause.__name__.strip("_") for clause in CLAUSES]


def test_parameters_reach_the_check():
    """The plant with other parameters is the one that is examined."""
    assert len(check_env(ID, horizon=15, nonlinear=False)) == len(CLAUSES)
    with pytest.raises(ParameterError, match="horizn.*Known: nonlinear"):
        check_env(ID, horizn=15)
    with pytest.raises(UnknownIdError, match="Nearest: .*tests/Plant-v1"):
        check_env("tests/Plan-v1")


SOUND = small_fixture().problem


def _nan_late(self, s, a, w):
    """Step soundly until a coordinate is large, then lose it."""
    after = SOUND.step(s, a, w)
    return np.where(np.abs(after) > 1.5, np.nan, after)


def _silent(self, rng, steps):
    """Make no noise."""
    return np.zeros((2, steps))


FAULTS = {
    "equals_a_stack": {"step": lambda self, s, a, w: SOUND.step(s, a, w) + 1e-9 * s.mean()},
    "noise_continues": {"noise": lambda self, rng, steps: rng.standard_normal((2, steps))},
    "forgets_history": {"initial": lambda self, rng, worlds: np.ones((2, worlds)), "noise": _silent},
    "stays_in_space": {"step": _nan_late},
    "compiled_step_agrees": {"scalar_step": property(lambda self: lambda s, a, w: (s + 1e-6, 1.0))},
}  # fmt: skip


@pytest.mark.parametrize("clause", FAULTS)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_broken_plant_is_found_by_the_right_clause(clause):
    """One fault each; the clauses that are not about it pass."""
    fixture = small_fixture(horizon=20)
    problem = copy.copy(fixture.problem)
    problem.__class__ = type("Broken", (type(problem),), FAULTS[clause])
    with pytest.raises(EnvCheckError, match=rf"breaks the promise.*\({clause}\)"):
        checks = [c for c in CLAUSES if c.__name__.strip("_") in (clause, "refuses_bad_actions", "hides_the_oracle")]
        _check_only(dataclasses.replace(fixture, problem=problem), checks)


def _check_only(fixture, clauses):
    """Run some clauses as `check_env` runs all."""
    from rl_oodkit.envs.checks import _run
    from rl_oodkit.envs.clauses import Subject

    for clause in clauses:
        _run(clause, Subject(fixture))


def test_environments_hold_no_oracle():
    """Neither under a public name, nor among the attributes of environment, plant and core."""
    fixture = small_fixture()
    for env in (CertifiedEnv(fixture=fixture), CertifiedVectorEnv(fixture=fixture, num_envs=2)):
        assert leaks_of(env, "env") == []
        held = [*vars(env).values(), *vars(env.plant).values(), *vars(core_of(env)).values()]
        assert not any(x is fixture or x is fixture.oracle for x in held)
    env.secret = {"deep": [fixture.oracle]}
    assert leaks_of(env, "env") == ["env.secret.deep.0"]


def test_a_fixture_is_certified_by_its_certificate():
    """The certificate of the oracles, under one more name."""
    pytest.importorskip("rl_oodkit.oracles.certificate")
    assert len(check_fixture(fixture=small_fixture())) >= 9


SOAK = """
from rl_oodkit.envs.checks import memory_growth
from rl_oodkit.oracles.toys import small_fixture
print(memory_growth(fixture=small_fixture(horizon=100), steps=10**6))
"""


def test_memory_does_not_grow():
    """A million steps through many episodes, in a process of their own; ten million take longer and show the same."""
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", SOAK], capture_output=True, text=True, check=True)
    assert int(out.stdout) <= 2**20
