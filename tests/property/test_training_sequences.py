"""A policy over lists: masks, causality, sampling by the stated probabilities, and groups that keep their order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_oodkit.core.errors import (
    CheckpointError,
    DamagedFileError,
    EmptySplitError,
    NonFiniteError,
    ParameterError,
    ShapeError,
    StoreError,
)
from rl_oodkit.core.seeds import stream
from rl_oodkit.training.groups import CombinationLock, TokenTrajectories, best_of_groups, join_groups, play_turns
from rl_oodkit.training.objective import group_advantages
from rl_oodkit.training.sequences import GrammarPolicy, SequenceSpec, load_grammar, save_grammar

SPEC = SequenceSpec(sizes=(3, 5, 1, 2), context=4, feedback=2)


def scrambled(spec=SPEC, seed=0):
    """Return a policy whose head is not zero."""
    import torch

    policy, rng = GrammarPolicy(spec, seed), stream(seed, "scrambled")
    with torch.no_grad():
        for weight in policy.net["head"].parameters():
            weight.copy_(torch.from_numpy(rng.normal(0, 0.7, tuple(weight.shape))))
    return policy


def inputs(rows, turns, seed=0, spec=SPEC):
    """Return contexts, tokens and feedback."""
    rng = stream(seed, "inputs")
    tokens = np.stack([rng.integers(0, n, (rows, turns)) for n in spec.sizes], axis=-1)
    return rng.normal(size=(rows, spec.context)), tokens, rng.normal(size=(rows, turns, spec.feedback))


def probabilities(policy, *args):
    """Return the probabilities of all options as an array."""
    import torch

    with torch.no_grad():
        return policy.log_probabilities(*args).exp().numpy()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_a_fresh_policy_is_uniform_over_what_exists(sizes, turns, seed):
    """The zero head makes every option of a slot equally likely, whatever the context."""
    spec = SequenceSpec(tuple(sizes), context=3, feedback=2)
    p = probabilities(GrammarPolicy(spec, seed), *inputs(4, turns, seed, spec))
    expected = spec.mask / np.array(sizes)[:, None]
    np.testing.assert_allclose(p, np.broadcast_to(expected, p.shape), atol=1e-6)


@pytest.mark.parametrize("turns", [1, 2, 4])
def test_probabilities_sum_to_one_and_respect_masks(turns):
    """Every step is a distribution over the allowed options alone."""
    contexts, tokens, feedback = inputs(6, turns)
    allowed = stream(1, "allowed").random((6, turns, SPEC.slots, SPEC.width)) < 0.5
    allowed[..., 0] = True
    p = probabilities(scrambled(), contexts, tokens, feedback, allowed)
    np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-5)
    assert (p[~(allowed & SPEC.mask)] == 0).all()


@given(st.integers(0, 3), st.integers(0, 1), st.integers(0, 9))
@settings(max_examples=12, deadline=None)
def test_nothing_depends_on_its_own_future(slot, turn, seed):
    """Changing one token changes probabilities after it only."""
    policy = scrambled()
    contexts, tokens, feedback = inputs(3, 2, seed)
    other = tokens.copy()
    other[:, turn, slot] = (other[:, turn, slot] + 1) % SPEC.sizes[slot]
    first, second = (probabilities(policy, contexts, t, feedback).reshape(3, -1, SPEC.width) for t in (tokens, other))
    step = turn * SPEC.slots + slot
    np.testing.assert_allclose(first[:, : step + 1], second[:, : step + 1], atol=1e-6)


def test_lists_are_drawn_with_the_probabilities_that_are_read():
    """Frequencies of 20,000 second turns lie within five standard errors of the chain rule."""
    policy, n = scrambled(SequenceSpec((2, 3), context=4, feedback=2)), 20_000
    contexts, tokens, feedback = inputs(1, 1, spec=policy.spec)
    many = [np.repeat(x, n, axis=0) for x in (contexts, tokens, feedback)]
    written = policy.sample(many[0], stream(3, "draws"), *many[1:])
    for a in range(2):
        for b in range(3):
            both = np.concatenate([tokens, [[[a, b]]]], axis=1)
            p = probabilities(policy, contexts, both, np.zeros((1, 2, 2)) + [[feedback[0, 0], [0, 0]]])[0, 1]
            expected = p[0, a] * p[1, b]
            seen = (written == [a, b]).all(axis=1).mean()
            assert abs(seen - expected) < 5 * np.sqrt(expected * (1 - expected) / n)


def test_forced_slots_stay_as_they_are():
    """A mask with one option a slot is a command."""
    contexts, tokens, feedback = inputs(50, 1)
    allowed = np.zeros((50, SPEC.slots, SPEC.width), bool)
    np.put_along_axis(allowed, tokens[:, 0, :, None], True, axis=-1)
    allowed[:, 1] = True
    written = scrambled().sample(contexts, stream(0, "forced"), allowed=allowed)
    assert (written[:, [0, 2, 3]] == tokens[:, 0][:, [0, 2, 3]]).all() and len(np.unique(written[:, 1])) > 1


def test_the_same_stream_writes_the_same_lists():
    """All randomness comes in from outside, and torch's own generator is not touched."""
    import torch

    contexts, tokens, feedback = inputs(9, 2)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, two = (scrambled().sample(contexts, stream(7, "same"), tokens, feedback) for _ in range(2))
    assert (one == two).all() and torch.equal(before, torch.random.get_rng_state())


def test_contexts_are_measured_and_clipped():
    """The units are those of the training tasks."""
    contexts = stream(0, "units").normal(50, 7, (200, 4))
    policy = GrammarPolicy(SPEC, contexts=contexts)
    measured = policy.measured(contexts)
    np.testing.assert_allclose(measured.mean(axis=0), 0, atol=0.05)
    assert policy.measured(np.full((1, 4), 1e9)).max() == 5


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"contexts": np.zeros((2, 3))}, ShapeError),
        ({"contexts": np.full((2, 4), np.nan)}, NonFiniteError),
        ({"tokens": np.full((2, 1, 4), 2)}, ParameterError),
        ({"tokens": np.full((2, 1, 4), -1)}, ParameterError),
        ({"tokens": np.zeros((3, 1, 4), int)}, ShapeError),
        ({"feedback": np.zeros((2, 2, 2))}, ShapeError),
        ({"allowed": np.zeros((2, 1, 4, 5), bool)}, ParameterError),
        ({"allowed": np.ones((2, 4, 5), bool)}, ShapeError),
    ],
)
def test_what_does_not_fit_is_refused(change, error):
    """Each argument is checked at the border."""
    good = {"contexts": np.zeros((2, 4)), "tokens": np.zeros((2, 1, 4), int), "feedback": np.zeros((2, 1, 2))}
    with pytest.raises(error):
        GrammarPolicy(SPEC).log_probabilities(**{**good, **change})


@pytest.mark.parametrize("bad", [{"sizes": ()}, {"sizes": (2, 0)}, {"sizes": 3}, {"context": 0}, {"turns": 1.5}])
def test_malformed_lists_are_refused(bad):
    """A record that describes nothing is not made."""
    with pytest.raises(ParameterError):
        SequenceSpec(**{"sizes": (2,), "context": 1, **bad})


def test_files_keep_every_bit_and_damage_is_found(tmp_path):
    """The pair of files is the policy, and a flipped bit is no policy."""
    policy = scrambled()
    path = save_grammar(tmp_path, "p", policy, {"note": 1})
    again = load_grammar(path)
    assert {k: v.tobytes() for k, v in again.weights().items()} == {k: v.tobytes() for k, v in policy.weights().items()}
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DamagedFileError):
        load_grammar(path)
    with pytest.raises(StoreError):
        load_grammar(tmp_path / "absent")
    with pytest.raises(ParameterError):
        save_grammar(tmp_path, "a/b", policy)
    with pytest.raises(CheckpointError):
        GrammarPolicy(SequenceSpec((3, 5, 2, 2), 4, 2)).restore(policy.weights())


@given(st.integers(1, 6), st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_advantages_compare_within_groups(groups, size, seed):
    """They sum to zero, keep the order of rewards, and forget scale and offset when nothing is added to the spread."""
    rng = stream(seed, "advantages")
    rewards, group = rng.normal(size=groups * size), np.repeat(np.arange(groups), size)
    keep = rng.random(len(group)) < 0.8
    a, useful = group_advantages(rewards, group, keep, 1e-12)
    np.testing.assert_allclose(np.bincount(group, a), 0, atol=1e-8)
    np.testing.assert_allclose(group_advantages(5 * rewards + 2, group, keep, 1e-12)[0], a, atol=1e-6)
    assert (a[~keep] == 0).all() and not useful[~keep].any()
    for g in range(groups):
        rows = np.flatnonzero((group == g) & useful)
        assert (np.argsort(rewards[rows], kind="stable") == np.argsort(a[rows], kind="stable")).all()


def test_a_shuffled_batch_has_shuffled_advantages():
    """Groups are known by their numbers, not by their places."""
    rng = stream(0, "shuffle")
    rewards, group, keep = rng.normal(size=40), rng.integers(0, 5, 40), np.ones(40, bool)
    order = rng.permutation(40)
    a, _ = group_advantages(rewards, group, keep)
    np.testing.assert_allclose(group_advantages(rewards[order], group[order], keep)[0], a[order], atol=1e-12)


def test_turns_reach_the_world_and_the_policy_in_order():
    """The second turn sees the first answer, and the record holds both."""
    policy, seen = GrammarPolicy(SPEC), []

    def respond(turn, tokens):
        seen.append((turn, tokens))
        return np.full((5, 2), turn + 1.0), tokens[:, 0] + 10.0 * turn

    tokens, feedback, rewards = play_turns(policy, np.zeros((5, 4)), respond, 3, stream(0, "turns"))
    assert [turn for turn, _ in seen] == [0, 1, 2]
    assert (tokens == np.stack([t for _, t in seen], axis=1)).all()
    assert feedback[0, :, 0].tolist() == [1, 2, 3] and (rewards == tokens[:, :, 0] + [0, 10, 20]).all()


def test_joined_groups_stay_apart_and_the_best_are_kept():
    """Numbers of groups are shifted; the filter never keeps what ended by a time limit."""
    lock = CombinationLock(tasks=4, stuck=0.5)
    one = lock.sample(GrammarPolicy(lock.spec), 4, 8, stream(0, "join"))
    both = join_groups([one, one])
    assert np.unique(both.group).tolist() == list(range(8)) and len(both) == 64
    best = best_of_groups(both)
    assert best.keep.all()
    for g in np.unique(best.group):
        rows = (both.group == g) & both.keep
        assert best.rewards[best.group == g] == both.rewards[rows].max()


def test_trajectories_that_do_not_belong_together_are_refused():
    """Lengths, turns and finite rewards."""
    good = {"contexts": np.zeros((2, 1)), "tokens": np.zeros((2, 1, 3)), "feedback": np.zeros((2, 1, 6))}
    good |= {"rewards": np.zeros(2), "turn_rewards": np.zeros((2, 1))}
    TokenTrajectories(**good)
    for name, bad, error in (
        ("rewards", np.zeros(3), ShapeError),
        ("rewards", np.array([0, np.nan]), NonFiniteError),
        ("turn_rewards", np.zeros((2, 2)), ShapeError),
        ("keep", np.ones((2, 1)), ShapeError),
    ):
        with pytest.raises(error):
            TokenTrajectories(**{**good, name: bad})
    with pytest.raises(EmptySplitError):
        join_groups([])
