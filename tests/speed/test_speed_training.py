"""The native worlds pay for themselves: PPO's steps at the same number of passes, and on the same plant."""

import numpy as np
import pytest

from rl_oodkit.core.registry import entry, make
from rl_oodkit.reproduce.timing import time_pair

pytest.importorskip("stable_baselines3")


@pytest.mark.parametrize("env_id", ["rl_oodkit/Vehicle-v1", "rl_oodkit/Arm-v1", "rl_oodkit/SME-v1"])
def test_both_sides_train_on_the_same_plant(env_id):
    """The same rewards to the same actions from the same seed, and the same number of passes."""
    pair = make("speed", "ppo", env_id=env_id)
    inputs = pair.setup(2048)
    assert pair.equal(pair.ours(inputs), pair.reference(inputs))


@pytest.mark.parametrize("name", ["ppo", "ppo-sme"])
def test_ppo_keeps_its_floor(name):
    """Median of three interleaved ratios of CPU time."""
    pair, tags = make("speed", name), entry("speed", name).tags
    timing = time_pair(pair, tags["size"], repeats=3)
    assert timing.equal and np.median(timing.ratios) >= tags["floor"] == 10, timing
