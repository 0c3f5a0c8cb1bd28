"""Stable-Baselines3 learns on the native worlds, and regret is told to evaluators alone."""

import copy

import gymnasium as gym
import numpy as np
import pytest
from envs_toy import ID

from rl_oodkit.core.errors import ParameterError
from rl_oodkit.envs.core import core_of
from rl_oodkit.envs.regret import VectorWithRegret, WithRegret
from rl_oodkit.envs.sb3 import CertifiedVecEnv
from rl_oodkit.envs.single import CertifiedEnv
from rl_oodkit.envs.vector import CertifiedVectorEnv
from rl_oodkit.oracles.fixture import of
from rl_oodkit.oracles.toys import small_fixture


def test_sb3_shell_is_a_vecenv():
    """The library recognises it, wraps it and asks it for attributes."""
    from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize

    env = CertifiedVecEnv(ID, 4, first_seed=0, horizon=6)
    assert isinstance(env, VecEnv) and isinstance(env, CertifiedVecEnv)
    assert env.observation_space.dtype == env.action_space.dtype == np.float32
    wrapped = VecNormalize(VecMonitor(env))
    wrapped.seed(3)
    wrapped.reset()
    assert core_of(wrapped).episodes == [(3 + i, 0) for i in range(4)]
    for _ in range(6):
        *_, dones, infos = wrapped.step(np.zeros((4, 1), np.float32))
    assert dones.all() and all(info["TimeLimit.truncated"] and info["episode"]["l"] == 6 for info in infos)
    assert all(info["terminal_observation"].dtype == np.float32 for info in infos)
    assert core_of(wrapped).episodes == [(3 + i, 1) for i in range(4)]
    assert env.get_attr("render_mode") == [None] * 4 and env.env_is_wrapped(gym.Wrapper, [0, 2]) == [False, False]
    with pytest.raises(ParameterError, match="single worlds"):
        env.env_method("reset")
    with pytest.raises(ParameterError, match="some worlds"):
        env.set_attr("label", 1, indices=[0])


def test_ppo_runs_on_it():
    """A few hundred steps; two runs with one seed are equal."""
    from stable_baselines3 import PPO

    def weights() -> np.ndarray:
        model = PPO("MlpPolicy", CertifiedVecEnv(ID, 8), n_steps=16, batch_size=64, n_epochs=1, seed=0, device="cpu")
        model.learn(256)
        return model.policy.action_net.weight.detach().numpy().copy()

    assert np.array_equal(weights(), weights())


def test_regret_needs_no_fixture_for_a_registered_id():
    """It fetches the oracle by the plant's name and parameters."""
    env = WithRegret(gym.make(ID, horizon=20))
    env.reset(seed=0)
    state, action = env.unwrapped.state, np.array([0.7])
    info = env.step(action)[4]
    oracle = of(ID, horizon=20).oracle
    assert info["regret"] == oracle.advantage(state[:, None], action[:, None])[0] > 0
    assert info["value"] == oracle.value(state[:, None])[0]
    assert np.array_equal(info["optimal_action"], oracle.action(state[:, None])[:, 0])


def test_regret_is_of_the_action_that_the_plant_received():
    """A wrapper below may change the action, and the box clips it."""
    env = WithRegret(gym.wrappers.RescaleAction(CertifiedEnv(ID), np.float64(-1), np.float64(1)))
    env.reset(seed=0)
    state = env.unwrapped.state[:, None]
    info = env.step(np.array([0.25]))[4]
    assert info["regret"] == of(ID).oracle.advantage(state, np.array([[1.0]]))[0]
    env = WithRegret(CertifiedEnv(ID))
    env.reset(seed=0)
    far = env.step(np.array([1e6]))[4]["regret"]
    env.reset(seed=0)
    assert far == env.step(np.array([4.0]))[4]["regret"]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_vector_regret_equals_single_regret(mode):
    """Over several episodes; NaN and a false mask where the call was a reset."""
    plain = CertifiedVectorEnv(ID, 3, mode, horizon=4)
    envs, singles = WithRegret(plain), [WithRegret(CertifiedEnv(ID, horizon=4, compiled=False)) for _ in range(3)]
    assert isinstance(envs, VectorWithRegret)
    envs.reset(seed=5)
    for i, env in enumerate(singles):
        env.reset(seed=5 + i)
    rng, over = np.random.default_rng(0), False
    for _ in range(14):
        actions = rng.normal(size=(3, 1))
        infos = envs.step(actions)[4]
        if over and mode == "NextStep":
            [env.reset() for env in singles]
            assert np.isnan(infos["regret"]).all() and not infos["_regret"].any()
            over = False
            continue
        told = [env.step(a) for env, a in zip(singles, actions, strict=True)]
        for name in ("regret", "value", "optimal_action"):
            assert np.array_equal(infos[name], [info[name] for *_, info in told]) and infos[f"_{name}"].all()
        over = told[0][3]
        if over and mode == "SameStep":
            [env.reset() for env in singles]


def test_regret_refuses_what_it_cannot_know():
    """Other environments, unregistered fixtures, and other parameters."""
    with pytest.raises(ParameterError, match="not a certified environment"):
        WithRegret(gym.make("CartPole-v1"))
    with pytest.raises(ParameterError, match="Evaluate in a CertifiedVectorEnv"):
        WithRegret(CertifiedVecEnv(ID, 2))
    with pytest.raises(ParameterError, match="made by hand"):
        WithRegret(CertifiedEnv(fixture=small_fixture()))
    with pytest.raises(ParameterError, match="another plant"):
        WithRegret(CertifiedEnv(ID, horizon=9), of(ID, horizon=8))


def test_wrappers_can_be_copied():
    """A deep copy goes on as the original does."""
    env = WithRegret(CertifiedEnv(ID))
    env.reset(seed=0)
    twin = copy.deepcopy(env)
    left, right = (e.step(np.ones(1)) for e in (env, twin))
    assert np.array_equal(left[0], right[0]) and left[4]["regret"] == right[4]["regret"]
