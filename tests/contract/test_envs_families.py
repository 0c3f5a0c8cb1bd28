"""Every family of certified environments keeps its promises: parameters, starts, box, gates, pictures."""

import subprocess
import sys

import numpy as np
import pytest

from rl_oodkit.core.errors import ParameterError
from rl_oodkit.core.spec import from_dict, to_dict
from rl_oodkit.envs.arm import ArmSpec
from rl_oodkit.envs.lqr import LQRSpec
from rl_oodkit.envs.planar import PlanarQuadrotorSpec
from rl_oodkit.envs.quadrotor import QuadrotorSpec
from rl_oodkit.envs.single import CertifiedEnv
from rl_oodkit.envs.systems import PointMassSpec, ThreeLinkArmSpec, TwoLinkArmSpec, UnicycleSpec
from rl_oodkit.envs.vehicle import VehicleSpec
from rl_oodkit.oracles.calibration import measure_difficulty
from rl_oodkit.oracles.fixture import of, spec_of

IDS = [
    f"rl_oodkit/{name}-v1"
    for name in ("Arm Vehicle Quadrotor PlanarQuadrotor Unicycle TwoLinkArm PointMass ThreeLinkArm LQR".split())
]
SETS = [
    ("rl_oodkit/Arm-v1", {"links": 2, "parameters": "published"}),
    ("rl_oodkit/Arm-v1", {"links": 1, "parameters": "library"}),
    *(("rl_oodkit/Vehicle-v1", {"level": x, "parameters": "published"}) for x in ("easy", "medium", "insane")),
    *(("rl_oodkit/Quadrotor-v1", {"parameters": x}) for x in ("published", "earlier")),
    ("rl_oodkit/PlanarQuadrotor-v1", {"parameters": "plain"}),
    *(("rl_oodkit/Unicycle-v1", {"parameters": x}) for x in ("published", "paper")),
    *(("rl_oodkit/TwoLinkArm-v1", {"parameters": x}) for x in ("published", "paper")),
    *(("rl_oodkit/PointMass-v1", {"parameters": x}) for x in ("published", "paper")),
    ("rl_oodkit/ThreeLinkArm-v1", {"parameters": "published"}),
    ("rl_oodkit/LQR-v1", {"parameters": "published"}),
]
BAD = [
    (ArmSpec, {"links": 0}),
    (ArmSpec, {"links": 21}),
    (ArmSpec, {"links": 2.0}),
    (ArmSpec, {"parameters": "printed"}),
    (ArmSpec, {"discount": 1.0}),
    (ArmSpec, {"discount": 0.0}),
    (ArmSpec, {"horizon": -5}),
    (ArmSpec, {"horizon": 10.5}),
    (ArmSpec, {"tau": 1.0}),
    (ArmSpec, {"tau": 0.0}),
    (ArmSpec, {"authority": 1.5}),
    (ArmSpec, {"authority": 0.0}),
    (ArmSpec, {"action_cost": -1.0}),
    (ArmSpec, {"action_bound": 0.0}),
    (ArmSpec, {"rate_noise_std": -0.1}),
    (ArmSpec, {"gravity": float("nan")}),
    (ArmSpec, {"swirl": float("inf")}),
    (ArmSpec, {"plant_seed": -1}),
    (ArmSpec, {"exact": 1}),
    (VehicleSpec, {"vehicles": 0}),
    (VehicleSpec, {"vehicles": 4}),
    (VehicleSpec, {"level": "Easy"}),
    (VehicleSpec, {"level": "impossible"}),
    (VehicleSpec, {"speed_chain": 0}),
    (VehicleSpec, {"turn_chain": 4}),
    (VehicleSpec, {"growth": 0.0}),
    (VehicleSpec, {"pose_variance": -1e-9}),
    (VehicleSpec, {"discount": 1.2}),
    (VehicleSpec, {"horizon": 0}),
    (VehicleSpec, {"dt": -0.1}),
    (VehicleSpec, {"action_cost": 0.0}),
    (QuadrotorSpec, {"thrust": "sideways"}),
    (QuadrotorSpec, {"parameters": "final"}),
    (QuadrotorSpec, {"inertia": (0.03, 0.03)}),
    (QuadrotorSpec, {"inertia": (0.03, 0.03, 0.0)}),
    (QuadrotorSpec, {"mass": 0.0}),
    (QuadrotorSpec, {"noise_variance": -1.0}),
    (QuadrotorSpec, {"leverage": -1.0}),
    (QuadrotorSpec, {"growth": 9.0}),
    (QuadrotorSpec, {"action_bound": 1.0}),
    (PlanarQuadrotorSpec, {"inertia": 0.0}),
    (PlanarQuadrotorSpec, {"weights": (1.0,) * 5}),
    (PlanarQuadrotorSpec, {"horizon": True}),
    (UnicycleSpec, {"parameters": "script"}),
    (UnicycleSpec, {"noise_variance": (1e-4,) * 4}),
    (UnicycleSpec, {"tau": 1.5}),
    (UnicycleSpec, {"weight": 0.0}),
    (TwoLinkArmSpec, {"dt": 0.0}),
    (PointMassSpec, {"discount": -0.1}),
    (ThreeLinkArmSpec, {"parameters": "paper"}),
    (LQRSpec, {"persistence": 0.0}),
    (LQRSpec, {"noise_std": -0.05}),
    (LQRSpec, {"state_cost": (5.0,)}),
    (LQRSpec, {"state_cost": (5.0, 0.0)}),
]


@pytest.mark.parametrize(("spec", "wrong"), BAD, ids=lambda x: getattr(x, "__name__", str(x)))
def test_wrong_parameters_are_named(spec, wrong):
    """Each is refused at construction, by a message that names the field or the word."""
    with pytest.raises(ParameterError) as caught:
        spec(**wrong)
    (name, value), text = next(iter(wrong.items())), str(caught.value)
    words = {"parameters": "parameter set", "thrust": "thrust column", "growth": "growth"}
    assert words.get(name, name) in text or str(value) in text


@pytest.mark.parametrize("env_id", IDS)
def test_unknown_fields_are_refused(env_id):
    """A typing error does not pass silently as a default."""
    with pytest.raises(ParameterError, match="gravitation"):
        of(env_id, gravitation=1.0)


@pytest.mark.parametrize(("env_id", "params"), [(i, {}) for i in IDS] + SETS, ids=str)
def test_a_description_is_complete(env_id, params):
    """What is written down and read back is the same plant, and so is the same plant typed by hand."""
    spec = spec_of(env_id, **params)
    plain = to_dict(spec)
    assert from_dict(type(spec), plain) == spec
    assert of(env_id, **vars(spec)).digest == of(env_id, **params).digest


@pytest.mark.parametrize("env_id", IDS)
def test_defaults_are_fair_tasks(env_id):
    """All gates are open."""
    found = measure_difficulty(of(env_id), range(12))
    assert found.failures == (), found


@pytest.mark.parametrize(("env_id", "params"), SETS, ids=str)
def test_printed_sets_say_which_gates_are_shut(env_id, params):
    """The note of a set is what is measured; the return gap of a clipped or exploding plant may go either way."""
    fixture = of(env_id, **params)
    assert set(measure_difficulty(fixture, range(12)).failures) - {"honest"} == set(fixture.facts["fails"]) - {"honest"}


@pytest.mark.parametrize("env_id", IDS)
def test_starts_are_two_and_excite_everything(env_id):
    """Train and test starts differ, every coordinate varies, and no start asks for an action outside the box."""
    fixture = of(env_id)
    drawn = {}
    for name in fixture.problem.starts:
        drawn[name] = fixture.problem.with_start(name).initial(np.random.default_rng(0), 4000)
        assert (drawn[name].std(axis=1) > 0.05).all()
        assert (np.abs(fixture.oracle.action(drawn[name])) < 0.95 * fixture.problem.action_high[:, None]).all()
    assert sorted(drawn) == ["test", "train"]
    assert not np.allclose(drawn["train"].std(axis=1), drawn["test"].std(axis=1), rtol=0.01)


@pytest.mark.parametrize("env_id", IDS)
def test_names_carry_units(env_id):
    """One name each, no name twice, a unit for every state."""
    problem = of(env_id).problem
    assert len(set(problem.state_names)) == problem.n and len(set(problem.action_names)) == problem.m
    assert all(name.endswith("]") and "[" in name for name in problem.state_names)


@pytest.mark.parametrize("env_id", IDS)
def test_seeds_of_episodes_do_not_change_the_plant(env_id):
    """The same state and action lead to the same place, whatever the environment was seeded with."""
    rows = []
    for seed in (0, 12345):
        env = CertifiedEnv(env_id)
        env.reset(seed=seed)
        problem = env.plant.problem
        s, a = np.full((problem.n, 1), 0.3), np.full((problem.m, 1), 0.1)
        rows.append(problem.step(s, a, np.zeros((problem.q, 1))))
    assert (rows[0] == rows[1]).all()


@pytest.mark.parametrize("env_id", IDS)
def test_pictures(env_id):
    """A frame has the stated form, shows something, and changes with the state."""
    env = CertifiedEnv(env_id, render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    env.reset(seed=1)
    assert first.shape == (240, 320, 3) and first.dtype == np.uint8 and first.std() > 3
    assert (first != env.render()).any()


def test_pictures_cost_nothing_until_they_are_drawn():
    """Importing the families imports no drawing library."""
    code = "import sys, rl_oodkit.envs.render, rl_oodkit.envs.arm; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
