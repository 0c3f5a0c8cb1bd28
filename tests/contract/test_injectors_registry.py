"""Every registered injector declares what it is, and obeys every law; a law that is broken is noticed."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from rl_oodkit.core.errors import InjectorLawError, StrengthError
from rl_oodkit.core.registry import entries, entry, names
from rl_oodkit.ood.contract import Injector
from rl_oodkit.ood.injectors import check_injector, injector_id, injector_levels, make_injector
from rl_oodkit.ood.lander import lunar_lander
from rl_oodkit.ood.laws import LAWS, check_laws, check_relations

INJECTORS = names("injector")
FAMILIES = {"observation", "delay", "regime", "action-conditioned", "reward"}


def test_the_families_are_well_filled():
    """At least three laws in each family, and the declared families only."""
    found = [e.tags["family"] for e in entries("injector")]
    assert set(found) == FAMILIES and len(found) >= 37
    assert all(found.count(family) >= 3 for family in FAMILIES)


@pytest.mark.parametrize("name", INJECTORS)
def test_declarations_agree(name):
    """Tags and class say the same, and every level is a strength that differs from the identity."""
    e = entry("injector", name)
    assert e.tags["family"] == e.obj.family and e.summary.endswith(".")
    assert e.obj.layer in {"observation", "action", "physics", "reward"}
    assert e.obj.strength_kind in {"real", "integer", "code"}
    assert not (e.obj.strength_kind == "code" and e.obj.rampable)
    levels = injector_levels(name)
    assert levels and set(levels) <= {"light", "medium", "strong", "extreme", "harmless"}
    for level, k in levels.items():
        law = make_injector(name, level)
        assert law.strength == k and law.at(1.0) != law.identity and injector_id(law) == name
        assert law.strength_kind == "real" or law.at(1.0) == k


@pytest.mark.parametrize("name", [n for n in INJECTORS if len(injector_levels(n)) > 1])
def test_levels_are_ordered(name):
    """From light to extreme the strength grows, apart from the hand-picked signs of the reward's scale."""
    law, levels = make_injector(name), injector_levels(name)
    sizes = [abs(levels[x] - law.identity) for x in ("light", "medium", "strong", "extreme") if x in levels]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("name", INJECTORS)
def test_strengths_outside_the_range_are_refused(name):
    """The message names the range, and what does nothing."""
    law = make_injector(name)
    for k in (law.low - 1, law.high + 1, float("nan"), float("inf"), True, "0.1", None):
        if isinstance(k, float) and law.low <= k <= law.high:
            continue
        with pytest.raises(StrengthError, match=r"in \[.*\]"):
            replace(law, strength=k)


@pytest.mark.parametrize("name", INJECTORS)
def test_every_law_holds(name):
    """The public check, on one episode per law; another episode than the chapter's."""
    assert set(check_injector(name, seeds=(1_000_003,))) == set(LAWS)


def test_relations_hold():
    """Delay and action delay are one disturbance; two crossed wires are straight; identities are identities."""
    assert all(count == 1 for count in check_relations(seeds=(1_000_005,)).values())


class Sensor(Injector):
    """A law that is on and does nothing."""

    high = 2.0


class OutOfRange(Sensor):
    identity = 5.0


class WrongIdentity(Sensor):
    def observe(self, state, observation, c):
        return observation + np.float32(1e-6) * (1 + self.at(c))


class SpoilsTheLine(Sensor):
    def see(self, state, observation):
        super().see(state, observation)
        observation[0] += np.float32(1e-6) * (self.strength > 0)


class Remembers(Sensor):
    seen: list = []

    def observe(self, state, observation, c):
        self.seen.append(observation)
        return self.seen[-40:][0] if c else observation


class TurnsKnob(Sensor):
    layer = "physics"

    @contextmanager
    def physics(self, state, env, action, c):
        if c:
            env.world.gravity = (0.0, -12.0)
        yield


class LeavesWind(Sensor):
    layer = "physics"

    @contextmanager
    def physics(self, state, env, action, c):
        env.enable_wind, old = bool(c), env.enable_wind
        env.wind_idx, env.torque_idx = 0, 0
        yield
        env.enable_wind = old or bool(c and state.seen > 11)


class ChangesEverything(Sensor):
    layer = "physics"

    @contextmanager
    def physics(self, state, env, action, c):
        import gymnasium.envs.box2d.lunar_lander as module

        if c:
            module.MAIN_ENGINE_POWER = 14.0
        yield


class ActsBelow(Sensor):
    def physics(self, state, env, action, c):
        if c:
            env.np_random.random()
        return super().physics(state, env, action, c)


class ActionThatLooks(Sensor):
    layer = "action"

    def observe(self, state, observation, c):
        return observation + np.float32(0.1 * c)


class RewardThatLooks(Sensor):
    layer = "reward"

    def observe(self, state, observation, c):
        return observation + np.float32(0.1 * c)


class PhysicsThatLooks(Sensor):
    layer = "physics"

    def observe(self, state, observation, c):
        return observation + np.float32(0.1 * c)


class ReturnsNan(Sensor):
    def observe(self, state, observation, c):
        return observation * (np.nan if c else 1.0)


class RewardsNan(Sensor):
    layer = "reward"

    def reward(self, state, reward, c):
        return reward * (np.inf if c else 1.0)


BROKEN = {
    OutOfRange: "strength",
    WrongIdentity: "identity",
    SpoilsTheLine: "prefix",
    Remembers: "repeatable",
    TurnsKnob: "switch-back",
    LeavesWind: "repeatable",
    ActsBelow: "layer",
    ActionThatLooks: "layer",
    RewardThatLooks: "layer",
    PhysicsThatLooks: "layer",
    ReturnsNan: "space",
    RewardsNan: "space",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda x: x.__name__)
def test_a_broken_law_is_noticed(broken):
    """Each of these mistakes is found, and named with the injector and the step."""
    law = object.__new__(broken) if broken is OutOfRange else None
    if law is not None:
        object.__setattr__(law, "strength", 1.0)
    with pytest.raises(InjectorLawError) as caught:
        check_laws(law or broken(1.0), seeds=(1_000_001,))
    assert f"law '{BROKEN[broken]}' is broken" in str(caught.value)
    assert broken.__name__ in str(caught.value) and "step" in str(caught.value)


def test_a_law_for_the_whole_process_is_noticed():
    """A module constant that is left changed reaches environments that were never injected."""
    import gymnasium.envs.box2d.lunar_lander as module

    try:
        with pytest.raises(InjectorLawError):
            check_laws(ChangesEverything(1.0), seeds=(1_000_001,))
    finally:
        module.MAIN_ENGINE_POWER = 13.0


@pytest.mark.parametrize("law", ["labels", "inactive", "reset", "isolation"])
def test_laws_that_the_wrapper_keeps(law, monkeypatch):
    """Where no injector can break a law, a broken wrapper is noticed."""
    from rl_oodkit.ood import case as module

    class Mislabels(module.InjectorWrapper):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            note = info["injection"]
            if law == "labels":
                note["active"] = not note["active"]
            if law == "inactive" and not note["active"]:
                note["executed_action"] = 1 - action if action < 2 else 0
            return observation, reward, terminated, truncated, info

    monkeypatch.setattr(module, "InjectorWrapper", Mislabels)
    broken = {"reset": LeavesWind(1.0), "isolation": ChangesEverything(1.0)}.get(law, Sensor(1.0))
    case = module.Case(broken, seeds=(1_000_001, 1_000_002))
    for seed in case.seeds:
        case.clean(seed)
    import gymnasium.envs.box2d.lunar_lander as lander

    try:
        with pytest.raises(InjectorLawError, match=f"law '{law}' is broken"):
            LAWS[law](case)
    finally:
        lander.MAIN_ENGINE_POWER = 13.0


def test_the_check_works_in_another_environment():
    """Nothing in the laws is LunarLander's own, if a scale is given."""
    import gymnasium as gym

    from rl_oodkit.ood.contract import SensorScale

    scale = SensorScale((0, 1, 2, 3), (0.5, 0.5, 0.05, 0.5))
    counts = check_injector("noise", lambda: gym.make("CartPole-v1"), scale=scale, seeds=(1, 2))
    assert counts["repeatable"] == 4
    assert lunar_lander().spec.id == "LunarLander-v3"
