"""The wrapper costs little beside LunarLander's own step."""

import time

import numpy as np

from rl_oodkit.ood.collect import make_lander
from rl_oodkit.ood.lander import lunar_lander
from rl_oodkit.ood.schedules import Schedule


def spent(env, seed):
    """Return CPU seconds of 40 steps without thrust, reset left out."""
    env.reset(seed=seed)
    start = time.process_time()
    for _ in range(40):
        env.step(0)
    return time.process_time() - start


def test_a_wrapped_step_costs_little_more():
    """Median of 61 interleaved ratios at most 1.9 on the cheapest step there is, with floor and law always on."""
    bare, wrapped = lunar_lander(), make_lander("gain", Schedule(onset=0), floor=0.005)
    ratios = [spent(wrapped, seed) / spent(bare, seed) for seed in range(61)]
    assert np.median(ratios) <= 1.9, np.median(ratios)


def test_the_wrapped_steps_are_the_same():
    """Beside the speed, equality: without thrust neither floor nor gain reaches the plant."""
    bare, wrapped = lunar_lander(), make_lander("gain", Schedule(onset=0), floor=0.005)
    first = [bare.reset(seed=3)[0]] + [bare.step(0)[0] for _ in range(50)]
    notes = [wrapped.reset(seed=3)[1]] + [wrapped.step(0)[4] for _ in range(50)]
    assert np.array_equal(first, [note["injection"]["true_observation"] for note in notes])
