"""Learners over groups: they find a known optimum, repeat themselves bit for bit, and refuse a stranger's folder."""

import numpy as np
import pytest

from rl_oodkit.core.errors import (
    CheckpointError,
    DamagedFileError,
    EmptySplitError,
    ParameterError,
    RunInterrupted,
    UnknownIdError,
)
from rl_oodkit.core.seeds import stream
from rl_oodkit.core.spec import content_hash
from rl_oodkit.training.clone import CloneRecipe, bc, rft, surprise
from rl_oodkit.training.groups import CombinationLock, TokenTrajectories, fresh_reward
from rl_oodkit.training.grpo import GRPORecipe, grpo, grpo_preset
from rl_oodkit.training.sequences import GrammarPolicy, SequenceSpec

LOCK = CombinationLock(tasks=64)
SHORT = GRPORecipe(iterations=6, save_every=2, validate_every=2)


def fresh(lock=LOCK, seed=0):
    """Return an untrained policy."""
    return GrammarPolicy(lock.spec, seed, lock.contexts)


def answers(lock, contexts):
    """Return right lists as demonstrations."""
    ones = np.ones(len(contexts))
    lists = lock.solve(contexts)[:, None]
    return TokenTrajectories(contexts, lists, np.ones((len(contexts), 1, 1)), ones, ones[:, None])


def same(a, b):
    """Tell whether two trainings have the same weights and the same curve."""
    curves = [x.curve.drop(columns="seconds") for x in (a, b)]
    return content_hash(a.policy.weights()) == content_hash(b.policy.weights()) and curves[0].equals(curves[1])


@pytest.mark.parametrize("credit", ["trajectory", "step"])
def test_grpo_reaches_nine_tenths_of_the_optimum(tmp_path, credit):
    """On trained locks; two turns, so that credit matters."""
    lock = CombinationLock(tasks=16, turns=2)
    recipe = GRPORecipe(iterations=90, learning_rate=1e-2, entropy=0.003, credit=credit)
    found = grpo(fresh(lock), lock, recipe, tmp_path, progress=False)
    reward = lock.sample(found.policy, 16, 8, stream(1, "known")).rewards.mean()
    assert reward > 0.9 and found.curve["reward"].iloc[0] < 0.65


def test_the_best_examination_is_the_result(tmp_path):
    """Validation decides, and its policy is the one handed back."""
    values = iter([0.1, 0.9, 0.3])
    found = grpo(fresh(), LOCK, SHORT, tmp_path, validate=lambda p: next(values), progress=False)
    assert found.card["iteration"] == 4 and found.card["validation"] == 0.9
    assert found.curve["validation"].dropna().tolist() == [0.1, 0.9, 0.3]


def test_patience_ends_a_training(tmp_path):
    """Two examinations without progress, and it is over."""
    recipe = GRPORecipe(iterations=50, validate_every=2, patience=2)
    values = iter([0.5, 0.4, 0.3])
    found = grpo(fresh(), LOCK, recipe, tmp_path, validate=lambda p: next(values), progress=False)
    assert len(found.curve) == 6 and found.card["finished"]


@pytest.mark.parametrize("until", [1, 2, 5])
def test_k_and_the_rest_is_n(tmp_path, until):
    """Bit by bit, whether or not the cut falls on a saved state."""
    validate = lambda p: fresh_reward(LOCK, p, 32)  # noqa: E731
    said = {"seed": 3, "validate": validate, "progress": False}
    once = grpo(fresh(), LOCK, SHORT, tmp_path / "whole", **said)
    grpo(fresh(), LOCK, SHORT, tmp_path / "parts", until=until, **said)
    assert same(grpo(fresh(), LOCK, SHORT, tmp_path / "parts", **said), once)
    assert same(grpo(fresh(), LOCK, SHORT, tmp_path / "parts", **said), once)  # from the disk


class Hit(CombinationLock):
    """A world in which Ctrl-C is pressed."""

    def sample(self, policy, groups, size, rng):
        if (self.__dict__.setdefault("left", [4])[0]) == 0:
            raise KeyboardInterrupt
        self.__dict__["left"][0] -= 1
        return super().sample(policy, groups, size, rng)


def test_an_interrupt_says_what_is_saved_and_loses_nothing(tmp_path):
    """The state of iteration 4 is read again, and the end is that of an undisturbed training."""
    hit = Hit(tasks=64)
    with pytest.raises(RunInterrupted, match="4 of 6 iterations are saved"):
        grpo(fresh(), hit, SHORT, tmp_path / "hit", progress=False)
    once = grpo(fresh(), LOCK, SHORT, tmp_path / "whole", progress=False)
    hit.left[0] = 99
    assert same(grpo(fresh(), hit, SHORT, tmp_path / "hit", progress=False), once)


def test_a_folder_belongs_to_one_training(tmp_path):
    """Seed, recipe, world and start are compared, finished or not."""
    grpo(fresh(), LOCK, SHORT, tmp_path, until=2, progress=False)
    others = [
        (fresh(), LOCK, SHORT, 1),
        (fresh(), LOCK, GRPORecipe(iterations=7), 0),
        (fresh(), CombinationLock(tasks=63), SHORT, 0),
        (fresh(seed=4), LOCK, SHORT, 0),
    ]
    for policy, lock, recipe, seed in others:
        with pytest.raises(CheckpointError, match="another training"):
            grpo(policy, lock, recipe, tmp_path, seed=seed, progress=False)
    again = grpo(fresh(), LOCK, SHORT, tmp_path, seed=1, resume=False, progress=False)
    assert again.card["seed"] == 1


def test_a_damaged_state_is_refused(tmp_path):
    """Going on from a flipped bit would end in a plausible and wrong policy."""
    grpo(fresh(), LOCK, SHORT, tmp_path, until=2, progress=False)
    (path,) = tmp_path.glob("bundle-*.npz")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DamagedFileError):
        grpo(fresh(), LOCK, SHORT, tmp_path, progress=False)


def test_the_caller_keeps_its_policy(tmp_path):
    """Neither learner changes what it was given."""
    policy = fresh()
    before = content_hash(policy.weights())
    grpo(policy, LOCK, SHORT, tmp_path, progress=False)
    bc(policy, answers(LOCK, LOCK.contexts), CloneRecipe(epochs=3))
    assert content_hash(policy.weights()) == before


def test_unanimous_groups_move_nothing(tmp_path):
    """A world of one list teaches nothing, is drawn twice, and leaves the weights alone."""
    lock = CombinationLock(sizes=(1, 1))
    found = grpo(fresh(lock), lock, SHORT, tmp_path, progress=False)
    assert (found.curve["silent"] == 1).all() and (found.curve["resampled"] == 1).all()
    assert content_hash(found.policy.weights()) == content_hash(fresh(lock).weights())


def test_attempts_that_timed_out_teach_nothing(tmp_path):
    """When all of them do, nothing moves; when some do, the others suffice."""
    stuck = CombinationLock(tasks=8, stuck=1.0)
    found = grpo(fresh(stuck), stuck, SHORT, tmp_path, progress=False)
    assert (found.curve["masked"] == 1).all()
    assert content_hash(found.policy.weights()) == content_hash(fresh(stuck).weights())


def test_bc_reproduces_demonstrations_and_stops_in_time():
    """All shown lists come back; with few of them, the watched set stops the training early."""
    shown = answers(LOCK, LOCK.contexts)
    found = bc(fresh(), shown, CloneRecipe(epochs=100, learning_rate=1e-2))
    assert (found.policy.sample(LOCK.contexts, stream(0, "bc")) == LOCK.answers).mean() > 0.99
    watched = answers(LOCK, stream(9, "new").normal(size=(64, 4)))
    few = bc(fresh(), answers(LOCK, LOCK.contexts[:6]), CloneRecipe(learning_rate=1e-2), watched)
    assert 0 < few.epoch < len(few.curve) - 1 < 60
    assert surprise(few.policy, watched) == few.curve["watched"].min()


def test_rft_climbs_without_demonstrations():
    """Its own best attempts are demonstrations enough."""
    found = rft(fresh(), LOCK, CloneRecipe(epochs=20, learning_rate=1e-2), groups=64, rounds=3)
    assert fresh_reward(LOCK, found.policy) > fresh_reward(LOCK, fresh()) + 0.2


def test_bad_input_is_refused(tmp_path):
    """Each with the class that says what is wrong."""
    with pytest.raises(CheckpointError, match="the world reads"):
        grpo(GrammarPolicy(SequenceSpec((2,), 4, 1)), LOCK, SHORT, tmp_path)
    with pytest.raises(ParameterError, match="examination"):
        grpo(fresh(), LOCK, SHORT, tmp_path / "nan", validate=lambda p: float("nan"), progress=False)
    with pytest.raises(ParameterError):
        grpo(fresh(), LOCK, SHORT, tmp_path, seed=-1)
    with pytest.raises(UnknownIdError):
        grpo_preset("ppo")
    for bad in ({"size": 1}, {"learning_rate": 0.0}, {"credit": "token"}, {"clip_low": -0.1}, {"iterations": 0}):
        with pytest.raises(ParameterError):
            GRPORecipe(**bad)
    with pytest.raises(EmptySplitError):
        bc(fresh(), answers(LOCK, LOCK.contexts[:0]))
    with pytest.raises(ParameterError):
        CloneRecipe(patience=0)
