"""The published law of the synthetic worlds, held to numbers printed by the package that was released with it.

All expected values were obtained by running sme-rl 0.1.0 (Pleiss, Schmidt and Schiffer, arXiv:2603.06252; MIT licence)
with seed 0, two states, one action and one layer, in single precision; hence the tolerance of 2e-6.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_oodkit.core.seeds import stream
from rl_oodkit.envs.single import CertifiedEnv
from rl_oodkit.envs.sme import sme
from rl_oodkit.envs.sme_knobs import SMESpec
from rl_oodkit.envs.sme_world import Instance
from rl_oodkit.envs.vector import CertifiedVectorEnv
from rl_oodkit.oracles.targets import WheelTarget, calibrated_target, wheel_target

START, DRIFT = np.array([0.4962566, 0.7682218]), np.array([0.3074228, 0.6340787])
PULL, LAYER, BIAS = np.array([[0.4012438, 0.5987562]]), np.array([[3.0434213, -1.6545644]]), -0.6944284
EXACTLY = {"rtol": 0, "atol": 2e-6}
LEGACY = {"policy": "wheel", "legacy_payout": True}


def published(**knobs):
    """Return the published instance under some knobs."""
    instance = Instance(PULL, DRIFT, WheelTarget((LAYER / math.sqrt(12),)), START)
    return sme(SMESpec(states=2, actions=1, **(LEGACY | knobs)), instance)


def played(fixture, steps):
    """Return payments (steps,), observations (steps, 4) and ends (steps, 2) under best actions, fixed start."""
    env = CertifiedEnv(fixture=fixture, start="fixed")
    env.reset(seed=0)
    rows = [env.step(fixture.oracle.action(env.state[:, None])[:, 0]) for _ in range(steps)]
    return np.array([r[1] for r in rows]), np.array([r[0] for r in rows]), np.array([r[2:4] for r in rows])


def test_given_arrays_have_the_properties_of_the_law():
    """Rows of W sum to one, the layer is orthogonal, and its bias centres it."""
    assert np.allclose(PULL.sum(axis=1), 1, **EXACTLY)
    assert np.allclose(np.linalg.norm(LAYER) / math.sqrt(12), 1, **EXACTLY)
    assert np.allclose(-LAYER.sum() / 2, BIAS, **EXACTLY)


def test_best_action():
    """It is what the published network answers."""
    fixture = published()
    best = fixture.oracle.action(fixture.problem.placed(np.array([[0.25], [0.75]])))
    assert np.allclose(best, 0.1200981, **EXACTLY)


def test_one_step():
    """An action of .3 from the published start leads where it led, and earns what it earned."""
    env = CertifiedEnv(fixture=published(), start="fixed")
    first, _ = env.reset(seed=7)
    observation, reward, terminated, truncated, _ = env.step(np.array([0.3]))
    assert np.allclose(first[:2], START, **EXACTLY) and not (terminated or truncated)
    assert np.allclose(observation[:2], [0.1518949, 0.8361452], **EXACTLY)
    assert np.allclose(reward, 0.9020448, **EXACTLY)


def test_payments_and_what_is_seen_of_them():
    """Paid every third of seven steps; pending earnings are seen a step late, the clock is not."""
    paid, seen, ends = played(published(reward_every=3, horizon=7), 7)
    assert paid.tolist() == [0, 0, 3, 0, 0, 3, 1]
    assert np.allclose(seen[:, -1], [0, 1 / 3, 2 / 3, 0, 1 / 3, 2 / 3, 0], **EXACTLY)
    assert np.allclose(seen[:, -2], np.arange(1, 8) / 7, **EXACTLY)
    assert not ends[:, 0].any() and ends[:, 1].tolist() == [False] * 6 + [True]


def test_our_rule_differs_in_what_is_seen_alone():
    """Without the legacy rule the same payments are seen at once."""
    paid, seen, _ = played(published(reward_every=3, horizon=7, legacy_payout=False), 7)
    assert paid.tolist() == [0, 0, 3, 0, 0, 3, 1]
    assert np.allclose(seen[:, -1], [1 / 3, 2 / 3, 0, 1 / 3, 2 / 3, 0, 0], **EXACTLY)


@pytest.mark.parametrize("legacy", [True, False])
def test_a_kill_loses_what_is_pending_under_the_published_rule(legacy):
    """Five perfect steps, then a bad one: nothing is paid as published, five by ours."""
    fixture = published(reward_every=10, kill_threshold=0.25, legacy_payout=legacy)
    env = CertifiedEnv(fixture=fixture, start="fixed")
    env.reset(seed=0)
    total = 0.0
    for t in range(6):
        best = fixture.oracle.action(env.state[:, None])[:, 0]
        _, reward, terminated, _, _ = env.step(best if t < 5 else np.where(best > 0.5, 0.0, 1.0))
        assert terminated == (t == 5)
        total += reward
    assert total == (0 if legacy else 5)


@pytest.mark.parametrize("k", [1, 3, 10, 50, 100])
@pytest.mark.parametrize("D", [0.0, 0.25, 1.0])
def test_return_of_the_best_policy_is_the_number_of_steps(k, D):
    """Exactly, for every payment interval and every threshold, in the published instance and in drawn ones."""
    for fixture in (
        published(reward_every=k, kill_threshold=D),
        sme(SMESpec(reward_every=k, kill_threshold=D, **LEGACY)),
    ):
        envs = CertifiedVectorEnv(fixture=fixture, num_envs=8)
        envs.reset(seed=0)
        total = np.zeros(8)
        for _ in range(100):
            total += envs.step(fixture.oracle.action(envs.states.T).T)[1]
        assert (total == 100).all()


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 3), st.integers(0, 99))
def test_target_is_odd_about_the_centre(n, m, C, seed):
    """The identity of the published law, in both laws."""
    x = stream(seed, "golden").random((n, 50))
    for make in (wheel_target, calibrated_target):
        target = make(n, m, C, seed)
        assert np.allclose(target(x) + target(1 - x), 1, rtol=0, atol=1e-6)
        assert np.allclose(target(np.full((n, 1), 0.5)), 0.5, rtol=0, atol=1e-6)


def test_given_arrays_are_those_that_the_generator_draws():
    """Start, W, b and layer come from one stream of the generator, in this order."""
    torch = pytest.importorskip("torch")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        start, pull, drift = torch.rand(1, 2), torch.rand(1, 2), torch.rand(2)
        layer = torch.nn.init.orthogonal_(torch.empty(1, 2))
    assert np.allclose(start.numpy()[0], START, **EXACTLY)
    assert np.allclose((pull / pull.sum(dim=1, keepdim=True)).numpy(), PULL, **EXACTLY)
    assert np.allclose(drift.numpy(), DRIFT, **EXACTLY)
    assert np.allclose(math.sqrt(12) * layer.numpy(), LAYER, **EXACTLY)
