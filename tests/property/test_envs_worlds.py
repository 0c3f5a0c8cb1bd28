"""A vector is a stack of single worlds, whatever is done to it, and a seed is all that an episode depends on."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from rl_oodkit.envs.core import EpisodeCore, NoiseTape
from rl_oodkit.envs.single import CertifiedEnv
from rl_oodkit.envs.vector import CertifiedVectorEnv
from rl_oodkit.oracles.noise import episode_stream
from rl_oodkit.oracles.toys import small_fixture

FIXTURE = small_fixture(horizon=4)


class Worlds(RuleBasedStateMachine):
    """Do anything to a vector and the same to single worlds."""

    @initialize(worlds=st.integers(1, 4), seed=st.integers(0, 2**40), same=st.booleans())
    def make(self, worlds, seed, same):
        """Make both, with one seed."""
        self.same, self.B = same, worlds
        mode = AutoresetMode.SAME_STEP if same else AutoresetMode.NEXT_STEP
        self.vector = CertifiedVectorEnv(fixture=FIXTURE, num_envs=worlds, autoreset_mode=mode)
        self.singles = [CertifiedEnv(fixture=FIXTURE, compiled=False) for _ in range(worlds)]
        self.over = np.zeros(worlds, bool)
        self.seeded(seed)

    def compare(self, seen, rows):
        """Compare observations bit for bit."""
        assert np.array_equal(seen, np.array(rows))
        self.rows = list(rows)

    @rule(seed=st.integers(0, 2**40))
    def seeded(self, seed):
        """Reset all with a seed."""
        self.over[:] = False
        rows = [env.reset(seed=seed + i)[0] for i, env in enumerate(self.singles)]
        self.compare(self.vector.reset(seed=seed)[0], rows)

    @rule()
    def unseeded(self):
        """Reset all, going on to the next episode."""
        self.over[:] = False
        self.compare(self.vector.reset()[0], [env.reset()[0] for env in self.singles])

    @rule(data=st.data())
    def masked(self, data):
        """Reset some, with and without seeds of their own."""
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=self.B, max_size=self.B)))
        if not mask.any():
            return
        seeds = data.draw(st.lists(st.none() | st.integers(0, 99), min_size=self.B, max_size=self.B))
        self.over &= ~mask
        rows = [e.reset(seed=s)[0] if m else r for e, s, m, r in zip(self.singles, seeds, mask, self.rows, strict=True)]
        self.compare(self.vector.reset(seed=seeds, options={"reset_mask": mask})[0], rows)

    @precondition(lambda self: hasattr(self, "rows"))
    @rule(scale=st.sampled_from([0.0, 0.1, 1.0, 20.0]), salt=st.integers(0, 99))
    def step(self, scale, salt):
        """Take a step, resets by the vector's custom included."""
        actions = scale * np.random.default_rng(salt).normal(size=(self.B, 1))
        rows, rewards, ends = [], [], []
        finals = {}
        for i, (env, action) in enumerate(zip(self.singles, actions, strict=True)):
            if self.over[i]:
                row, reward, end = env.reset()[0], 0.0, False
            else:
                row, reward, _, end, _ = env.step(action)
            if end and self.same:
                finals[i], row = row, env.reset()[0]
            rows.append(row), rewards.append(reward), ends.append(end)
        seen, reward, terminated, truncated, infos = self.vector.step(actions)
        self.compare(seen, rows)
        assert np.array_equal(reward, rewards) and np.array_equal(truncated, ends) and not terminated.any()
        self.over = np.array(ends) & (not self.same)
        told = {i: x for i, x in enumerate(infos.get("final_obs", ())) if x is not None}
        assert told.keys() == finals.keys() and all(np.array_equal(told[i], finals[i]) for i in told)


def test_a_vector_is_a_stack_whatever_is_done_to_it():
    """Random sequences of seeded, unseeded and partial resets and steps."""
    run_state_machine_as_test(Worlds, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))


@pytest.mark.parametrize("worlds", [1, 2, 3, 7, 64, 4096])
@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_bits_do_not_depend_on_the_number_of_worlds(worlds, mode):
    """Every world of a vector equals the single environment, over three episodes."""
    fixture = small_fixture(horizon=2)
    envs = CertifiedVectorEnv(fixture=fixture, num_envs=worlds, autoreset_mode=mode)
    actions = np.random.default_rng(1).normal(size=(7, worlds, 1))
    seen = [envs.reset(seed=11)[0]]
    rewards = []
    for action in actions:
        observations, reward, *_ = envs.step(action)
        seen.append(observations), rewards.append(reward)
    chosen = range(worlds) if worlds <= 64 else range(0, worlds, 13)
    for i in chosen:
        env = CertifiedEnv(fixture=fixture, compiled=False)
        assert np.array_equal(env.reset(seed=11 + i)[0], seen[0][i])
        over = False
        for t in range(7):
            if over:
                row, reward, over = env.reset()[0], 0.0, False
            else:
                row, reward, _, over, _ = env.step(actions[t, i])
                if over and mode is AutoresetMode.SAME_STEP:
                    row, over = env.reset()[0], False
            assert np.array_equal(row, seen[t + 1][i]) and reward == rewards[t][i]


@given(st.integers(0, 2**70), st.lists(st.tuples(st.none() | st.integers(0, 5), st.integers(0, 4)), max_size=4))
def test_a_seed_fixes_the_episode_after_any_history(seed, history):
    """Including seeds longer than 64 bits, and episodes that were left half-way."""
    used, fresh = CertifiedEnv(fixture=FIXTURE), CertifiedEnv(fixture=FIXTURE)
    for past, steps in history:
        used.reset(seed=past)
        for _ in range(steps):
            used.step(np.ones(1))
    for reset in ({"seed": seed}, {}, {}):
        assert np.array_equal(used.reset(**reset)[0], fresh.reset(**reset)[0])
        for _ in range(3):
            assert np.array_equal(used.step(np.ones(1))[0], fresh.step(np.ones(1))[0])


@given(st.integers(0, 2**32), st.integers(0, 2**32))
def test_different_seeds_differ(left, right):
    """In the start state already."""
    env = CertifiedEnv(fixture=FIXTURE)
    assert np.array_equal(env.reset(seed=left)[0], env.reset(seed=right)[0]) == (left == right)


def test_unseeded_environments_differ_and_can_be_repeated():
    """The root comes from the system, and is told."""
    env, other = (CertifiedEnv(fixture=FIXTURE) for _ in range(2))
    first = env.reset()[0]
    assert not np.array_equal(first, other.reset()[0])
    assert np.array_equal(first, CertifiedEnv(fixture=FIXTURE).reset(seed=env.np_random_seed)[0])
    envs = CertifiedVectorEnv(fixture=FIXTURE, num_envs=2)
    first = envs.reset()[0]
    assert np.array_equal(first, CertifiedVectorEnv(fixture=FIXTURE, num_envs=2).reset(seed=envs.np_random_seed)[0])


@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 12))
def test_the_tape_plays_each_stream_in_order(length, late, later):
    """Whatever its length, and wherever a world starts on it."""

    def white(rng, steps):
        return rng.standard_normal((steps, 2)).T

    tape = NoiseTape(white, 2, 2, length)
    tape.load(0, episode_stream(1, 0)), tape.load(1, episode_stream(2, 0))
    starts, heard = {0: 0, late: 1, late + later: 2}, []
    for t in range(30):
        if t in starts and t:
            tape.load(1, episode_stream(2, starts[t]))
        heard.append(tape.read())
        assert np.array_equal(tape.read(), heard[-1])
        tape.advance()
    heard = np.array(heard)
    assert np.array_equal(heard[:, :, 0].T, white(episode_stream(1, 0), 30))
    last = max(starts)
    assert np.array_equal(heard[last:, :, 1].T, white(episode_stream(2, starts[last]), 30 - last))


def test_long_episodes_of_many_worlds_need_several_stretches(monkeypatch):
    """A tape shorter than the episode gives the same numbers."""
    problem, short = small_fixture(horizon=90).problem, []
    for numbers in (2**22, 1):
        monkeypatch.setattr("rl_oodkit.envs.core._NUMBERS", numbers)
        core = EpisodeCore(problem, 3)
        core.reset([0, 1, 2])
        short.append(np.array([core.step(np.zeros((1, 3)))[0] for _ in range(90)]))
    assert np.array_equal(*short)


def test_observations_are_the_callers_own():
    """Writing into what was handed out changes nothing."""
    env, twin = (CertifiedEnv(fixture=FIXTURE) for _ in range(2))
    envs, twins = (CertifiedVectorEnv(fixture=FIXTURE, num_envs=2) for _ in range(2))
    for one in (env, twin, envs, twins):
        seen = one.reset(seed=0)[0]
        seen[...] = 7.0 if one in (env, envs) else seen
    for action in (np.ones(1), -np.ones(1)):
        left, right = env.step(action)[0], twin.step(action)[0]
        assert np.array_equal(left, right)
        left[:] = np.nan
        left, right = envs.step(np.tile(action, (2, 1)))[0], twins.step(np.tile(action, (2, 1)))[0]
        assert np.array_equal(left, right)
        left[:] = np.nan
