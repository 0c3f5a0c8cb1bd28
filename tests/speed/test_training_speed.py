"""The rollout's own work is small beside the simulator's."""

import time

import gymnasium
import numpy as np

from rl_oodkit.training.checkpoint import load_policy
from rl_oodkit.training.rollout import rollout


def lander():
    """Return a LunarLander without the checking wrapper."""
    return gymnasium.make("LunarLander-v3", disable_env_checker=True)


def simulator_alone(trajs) -> float:
    """Replay the recorded actions in one bare environment, check the rewards, return the processor time in seconds."""
    env, rewards, start = lander(), [], time.process_time()
    for i in range(trajs.n_episodes):
        episode = trajs.episode(i)
        env.reset(seed=episode.env_seed)
        rewards += [env.step(action)[1] for action in episode.actions.tolist()]
    spent = time.process_time() - start
    np.testing.assert_array_equal(np.array(rewards, np.float32), trajs.rewards)
    return spent


def test_policy_and_recording_cost_less_than_the_simulator():
    """Same episodes, same process, paired: at most 1.7 times the time of the bare simulator."""
    policy, ratios = load_policy(), []
    for repeat in range(3):
        seeds = range(500_000 + 30 * repeat, 500_030 + 30 * repeat)
        start = time.process_time()
        trajs = rollout(lander, policy, seeds, batch=64)
        ratios.append((time.process_time() - start) / simulator_alone(trajs))
    assert min(ratios) < 1.7, ratios
