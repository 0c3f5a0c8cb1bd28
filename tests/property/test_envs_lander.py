"""The faster LunarLander step computes the bits of Gymnasium's, whatever disturbs it."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import InvalidAction, ResetNeeded

from rl_oodkit.core.registry import entries
from rl_oodkit.core.seeds import stream
from rl_oodkit.envs.lander import SwiftLander, swift_lander
from rl_oodkit.ood.injectors import InjectorWrapper, make_injector
from rl_oodkit.ood.schedules import Schedule


def flown(env, seed, steps=90):
    """Fly with random actions; return observations and rewards."""
    rng, seen = stream(seed, "actions"), [env.reset(seed=seed)[0]]
    rewards = []
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(int(rng.integers(4)))
        seen.append(observation)
        rewards.append(reward)
        if terminated or truncated:
            break
    return np.array(seen), np.array(rewards)


@pytest.mark.parametrize("law", [e.id for e in entries("injector")])
def test_every_disturbance_meets_the_same_physics(law):
    """A law acts on the faster step as on the plain one, bit for bit."""
    for seed in (3, 4):
        plain = gym.make("LunarLander-v3", disable_env_checker=True)
        pair = [InjectorWrapper(e, make_injector(law), Schedule(onset=20), seed=1) for e in (plain, swift_lander())]
        theirs, ours = (flown(env, seed) for env in pair)
        for a, b in zip(theirs, ours, strict=True):
            np.testing.assert_array_equal(a, b)


def test_flights_end_alike_and_continue_their_stream():
    """Whole flights, one after the other without a new seed, have equal rewards and ends."""
    envs = gym.make("LunarLander-v3", disable_env_checker=True), swift_lander()
    for env in envs:
        env.reset(seed=5)
    for _ in range(4):
        starts = [env.reset()[0] for env in envs]
        np.testing.assert_array_equal(*starts)
        ended = False
        while not ended:
            results = [env.step(2)[:4] for env in envs]
            np.testing.assert_array_equal(results[0][0], results[1][0])
            assert results[0][1:] == results[1][1:]
            ended = results[0][2] or results[0][3]


def test_other_worlds_use_the_inherited_step():
    """Wind, continuous actions and pictures are Gymnasium's own business."""
    for changes in ({"enable_wind": True}, {"continuous": True}, {"render_mode": "rgb_array"}):
        plain = gym.make("LunarLander-v3", disable_env_checker=True, **changes).unwrapped
        ours = SwiftLander(**changes)
        for env in (plain, ours):
            env.reset(seed=1)
        action = np.array([0.5, -0.7], np.float32) if "continuous" in changes else 2
        for _ in range(10):
            np.testing.assert_array_equal(plain.step(action)[0], ours.step(action)[0])


@pytest.mark.parametrize("action", [4, -1, 2.0, None, "2", np.float32(1)])
def test_there_are_four_actions(action):
    """Anything else is refused, and the flight goes on."""
    env = swift_lander()
    env.reset(seed=0)
    with pytest.raises(InvalidAction):
        env.step(action)
    env.step(np.int64(3))


def test_a_step_needs_a_reset():
    """As Gymnasium says."""
    with pytest.raises(ResetNeeded):
        SwiftLander().step(0)


def test_the_registry_is_left_alone():
    """Who makes a LunarLander gets Gymnasium's."""
    swift_lander()
    assert type(gym.make("LunarLander-v3").unwrapped).__name__ == "LunarLander"
