"""Rollouts: one episode a seed, whatever the batch, the neighbours and the history of the environment."""

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from rl_oodkit.core.errors import EmptySplitError, NonFiniteError, ParameterError
from rl_oodkit.training.checkpoint import load_policy
from rl_oodkit.training.policy import RandomPolicy
from rl_oodkit.training.rollout import rollout

FIELDS = ("observations", "actions", "rewards", "lengths", "terminated", "truncated", "env_seeds")


def lander():
    """Return a LunarLander with its limit of 1000 steps and without the checking wrapper."""
    return gymnasium.make("LunarLander-v3", disable_env_checker=True)


@pytest.fixture(scope="module")
def policy():
    """Return the shipped policy."""
    return load_policy()


def assert_same(a, b):
    """Assert that two batches of trajectories are equal to the bit."""
    for name in FIELDS:
        assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in a.internals:
        assert_array_equal(a.internals[name], b.internals[name])


def test_the_batch_changes_nothing(policy):
    """Batches of 1, 3, 8 and more slots than seeds; the internals too are equal to the bit."""
    seeds = [500_000 + i for i in range(12)]
    reference = rollout(lander, policy, seeds, batch=1, record=("q", "features"))
    for batch in (3, 8, 100):
        assert_same(rollout(lander, policy, seeds, batch=batch, record=("q", "features")), reference)
    order = [5, 0, 11, 3]
    assert_same(rollout(lander, policy, [seeds[i] for i in order], record=("q", "features")), reference.select(order))


def test_a_used_environment_equals_a_new_one(policy):
    """`reset(seed)` after any history gives the bytes of a fresh environment (Gymnasium issue 728)."""
    used = lander()
    rollout(lambda: used, RandomPolicy(4, 1), range(7), batch=1)
    for seed in (500_000, 500_001):
        a = rollout(lambda: used, policy, [seed], batch=1)
        assert_same(a, rollout(lander, policy, [seed]))
        used.reset(seed=3)
        used.step(2)


def test_internals_belong_to_their_observation(policy):
    """Actions are greedy in the recorded action values, row by row, and the last row has values as well."""
    trajs = rollout(lander, policy, [500_002, 500_003], record=("q", "features"))
    for i in range(2):
        episode = trajs.episode(i)
        assert_array_equal(episode.internals["q"][:-1].argmax(1), episode.actions)
        assert_array_equal(policy.features(episode.observations), episode.internals["features"])
    assert trajs.meta["policy_sha256"] == policy.sha256 and trajs.meta["env_id"] == "LunarLander-v3"


def test_each_seed_runs_once_and_to_its_end(policy):
    """Long episodes are not skipped in favour of short ones: the sample is the list of seeds (SB3 issue 402)."""
    seeds = list(range(500_010, 500_030))
    trajs = rollout(lander, policy, seeds, batch=4, record=())
    assert trajs.env_seeds.tolist() == seeds
    assert (trajs.terminated ^ trajs.truncated).all()
    alone = [int(rollout(lander, policy, [s], record=()).lengths[0]) for s in seeds[:4]]
    assert trajs.lengths[:4].tolist() == alone


def test_the_time_limit_is_a_truncation():
    """CartPole held up by a good controller is cut at 500; a lower limit of the caller's cuts earlier."""

    class Balance:
        """Push towards the side to which the pole falls."""

        def act(self, observations):
            return (observations @ [0.05, 0.3, 1.0, 0.6] > 0).astype(np.int64)

        def internals(self, observations):
            return {}

    long = rollout(lambda: gymnasium.make("CartPole-v1"), Balance(), [0, 1], record=())
    assert long.lengths.tolist() == [500, 500] and long.truncated.all() and not long.terminated.any()
    cut = rollout(lambda: gymnasium.make("CartPole-v1"), Balance(), [0, 1], record=(), max_steps=7)
    assert cut.lengths.tolist() == [7, 7] and cut.truncated.all()
    assert_array_equal(cut.episode(0).observations, long.episode(0).observations[:8])


class Tilted(gymnasium.Wrapper):
    """Report a disturbance from step 3 to step 6 in the way of the injectors, and nothing else."""

    def __init__(self, env, announce):
        super().__init__(env)
        self.announce = announce

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        self.t, marks = 0, {"onset": 3, "offset": 6} if self.announce else {}
        return observation + 1, info | {"injection": {"active": False, "true_observation": observation} | marks}

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(0)
        told = {"active": 3 <= self.t < 6, "executed_action": 0, "true_observation": observation}
        self.t += 1
        return observation + 1, reward, terminated, truncated, info | {"injection": told}


@pytest.mark.parametrize("announce", [True, False])
def test_what_the_injector_reports_is_recorded(announce):
    """Label, executed action, true observation, onset and offset arrive in their fields."""

    class Right:
        """Always push to the right."""

        def act(self, observations):
            return np.ones(len(observations), np.int64)

        def internals(self, observations):
            return {}

    trajs = rollout(lambda: Tilted(gymnasium.make("CartPole-v1"), announce), Right(), [0, 1], record=())
    for i in range(2):
        e = trajs.episode(i)
        assert_array_equal(e.active, (np.arange(e.length) >= 3) & (np.arange(e.length) < 6))
        assert (e.onset, e.offset_step) == (3, 6)
        assert (e.actions == 1).all() and (e.executed_actions == 0).all()
        np.testing.assert_allclose(e.observations, e.true_observations + 1, rtol=1e-6)


def test_continuous_actions():
    """A row of a continuous action reaches the environment as an array and is recorded as float32."""

    class Swing:
        """Torque against the angular velocity."""

        def act(self, observations):
            return -observations[:, 2:3]

        def internals(self, observations):
            return {}

    make = lambda: gymnasium.make("Pendulum-v1")  # noqa: E731
    a, b = (rollout(make, Swing(), [1, 2, 3], batch=n, record=(), max_steps=20) for n in (1, 3))
    assert a.actions.shape == (60, 1) and a.actions.dtype == np.float32
    assert_same(a, b)


def test_environments_are_closed_even_after_a_failure():
    """Neither a finished nor a failed rollout leaves environments open."""
    open_envs = []

    class Counted(gymnasium.Wrapper):
        """Count what is open."""

        def __init__(self, env):
            super().__init__(env)
            open_envs.append(self)

        def close(self):
            open_envs.remove(self)
            super().close()

    class Broken:
        """Fail at the first question."""

        def act(self, observations):
            raise ZeroDivisionError

    make = lambda: Counted(gymnasium.make("CartPole-v1"))  # noqa: E731
    rollout(make, RandomPolicy(2, 0), range(5), batch=2)
    with pytest.raises(ZeroDivisionError):
        rollout(make, Broken(), range(5), batch=2)
    assert not open_envs


def test_a_simulator_that_breaks_is_noticed():
    """An observation that is NaN stops the rollout instead of steering the policy."""

    class Breaks(gymnasium.ObservationWrapper):
        """Answer NaN."""

        def observation(self, observation):
            return observation * np.nan

    with pytest.raises(NonFiniteError):
        rollout(lambda: Breaks(gymnasium.make("CartPole-v1")), RandomPolicy(2, 0), [1])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"seeds": []}, EmptySplitError),
        ({"seeds": [-1]}, ParameterError),
        ({"seeds": [0.5]}, ParameterError),
        ({"seeds": ["a"]}, ParameterError),
        ({"batch": 0}, ParameterError),
        ({"max_steps": 0}, ParameterError),
        ({"record": ("values",)}, ParameterError),
    ],
)
def test_bad_arguments(change, error):
    """Each is named before or instead of a result."""
    arguments = {"seeds": [1], "max_steps": 3} | change
    with pytest.raises(error):
        rollout(lambda: gymnasium.make("CartPole-v1"), RandomPolicy(2, 0), **arguments)
