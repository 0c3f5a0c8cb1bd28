"""Laws of the ragged record: round trips, selection, padding, joining, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from rl_oodkit.core.errors import (
    DamagedFileError,
    EmptySplitError,
    ForeignFileError,
    NonFiniteError,
    ParameterError,
    RlOodkitError,
    ShapeError,
)
from rl_oodkit.core.store import save_arrays
from rl_oodkit.training import trajectories as tr
from rl_oodkit.training.ragged import EPISODE_FIELDS, ROW_FIELDS, STEP_FIELDS, padded, ranges

QUICK = settings(max_examples=40, deadline=None)


def random_batch(lengths, seed=0, width=3, continuous=False) -> tr.Trajectories:
    """Return episodes of the given lengths with random content; every second one is disturbed."""
    rng = np.random.default_rng(seed)
    episodes = []
    for i, n in enumerate(lengths):
        onset = int(rng.integers(0, n)) if i % 2 else -1
        active = (np.arange(n) >= onset) & (onset >= 0)
        actions = rng.standard_normal((n, 2)) if continuous else rng.integers(0, 4, n)
        episodes.append(
            {
                "observations": rng.standard_normal((n + 1, width)),
                "true_observations": rng.standard_normal((n + 1, width)),
                "actions": actions,
                "executed_actions": actions[::-1].copy(),
                "rewards": rng.standard_normal(n),
                "active": active,
                "onset": onset,
                "terminated": bool(rng.integers(2)),
                "env_seed": i,
                "internals": {"q": rng.standard_normal((n + 1, 4))},
            }
        )
    return tr.from_numpy(episodes, meta={"env_id": "Toy-v0", "nested": {"a": [1, 2.5]}})


def assert_same(a: tr.Trajectories, b: tr.Trajectories) -> None:
    """Assert that two batches are equal to the bit."""
    for name in (*STEP_FIELDS, *ROW_FIELDS, *EPISODE_FIELDS):
        assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
        assert getattr(a, name).dtype == getattr(b, name).dtype
    assert a.internals.keys() == b.internals.keys()
    for name in a.internals:
        assert_array_equal(a.internals[name], b.internals[name])


batches = st.builds(
    random_batch,
    st.lists(st.integers(1, 9), min_size=1, max_size=7),
    st.integers(0, 2**31),
    st.integers(1, 5),
    st.booleans(),
)


@QUICK
@given(batches)
def test_numpy_round_trip(batch):
    """Leaving for plain dictionaries and coming back changes nothing."""
    assert_same(tr.from_numpy(tr.to_numpy(batch)), batch)


@settings(max_examples=10, deadline=None)
@given(batches)
def test_file_round_trip(tmp_path_factory, batch):
    """A file gives back the same bits and the same provenance."""
    path = tmp_path_factory.mktemp("trajectories") / "batch.npz"
    tr.save(path, batch)
    back = tr.load(path)
    assert_same(back, batch)
    assert back.meta == batch.meta


@QUICK
@given(batches, st.data())
def test_selection_takes_whole_episodes(batch, data):
    """An episode is the same wherever it stands; selections compose like permutations."""
    idx = data.draw(st.lists(st.integers(0, batch.n_episodes - 1), min_size=1, max_size=9))
    chosen = batch.select(idx)
    for new, old in enumerate(idx):
        a, b = chosen.episode(new), batch.episode(old)
        assert_array_equal(a.observations, b.observations)
        assert_array_equal(a.internals["q"], b.internals["q"])
        assert (a.onset, a.terminated, a.truncated, a.env_seed) == (b.onset, b.terminated, b.truncated, b.env_seed)
    order = np.array(data.draw(st.permutations(range(batch.n_episodes))))
    assert_same(batch.select(order).select(np.argsort(order)), batch)


@QUICK
@given(batches)
def test_a_mask_selects_like_its_indices(batch):
    """Boolean selection keeps order."""
    mask = batch.lengths >= np.median(batch.lengths)
    assert_same(batch.select(mask), batch.select(np.flatnonzero(mask)))


@QUICK
@given(batches)
def test_joining_undoes_taking_apart(batch):
    """One by one and back again is the identity; joining is associative."""
    parts = [batch.select([i]) for i in range(batch.n_episodes)]
    assert_same(tr.concatenate(parts), batch)
    assert_same(tr.concatenate([tr.concatenate(parts[:1] * 2), batch]), tr.concatenate([*parts[:1] * 2, batch]))


@QUICK
@given(batches)
def test_padding_and_flattening_are_inverse(batch):
    """Every step lands in its own cell, and all other cells are filled."""
    table = batch.padded(batch.rewards)
    assert table.shape == (batch.n_episodes, batch.lengths.max())
    assert_array_equal(batch.flattened(table), batch.rewards)
    assert_array_equal(np.isnan(table), ~batch.alive)
    rows = np.repeat(np.arange(batch.n_episodes), batch.lengths)
    assert_array_equal(table[rows, batch.times], batch.rewards)
    wide = batch.padded(np.column_stack([batch.rewards, batch.active]))
    assert_array_equal(wide[..., 0], table)


@QUICK
@given(batches)
def test_episodes_tile_the_arrays(batch):
    """Episode views cover rows and steps without gap or overlap, and copy nothing."""
    views = [batch.episode(i) for i in range(batch.n_episodes)]
    assert_array_equal(np.concatenate([v.rewards for v in views]), batch.rewards)
    assert_array_equal(np.concatenate([v.observations for v in views]), batch.observations)
    assert all(np.shares_memory(v.observations, batch.observations) for v in views)
    assert_array_equal([v.rewards.astype(float).sum() for v in views], batch.returns)


@QUICK
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6)), max_size=8))
def test_ranges_equal_the_loop(pairs):
    """The two lines of index arithmetic equal the loop they replace."""
    expected = [i for start, n in pairs for i in range(start, start + n)]
    starts, lengths = (list(x) for x in zip(*pairs, strict=True)) if pairs else ([], [])
    assert ranges(starts, lengths).tolist() == expected


def test_padding_keeps_what_the_dtype_can_hold():
    """Integers become floats only where NaN must be held."""
    assert padded([1, 2, 3], [2, 1], fill=-1).dtype == np.int64
    assert padded([True, False, True], [2, 1], fill=False).dtype == np.bool_
    assert padded([1, 2, 3], [2, 1]).dtype == np.float64


def test_sham_onsets_follow_the_law_and_label_nothing():
    """Onsets cover the whole range, differ by seed, and leave the labels off."""
    clean = random_batch([5] * 1).select([0] * 500)
    sham = clean.with_sham_onset(1, low=2, high=4)
    assert set(sham.onset) == {2, 3, 4} and not sham.active.any() and (sham.offset_step == -1).all()
    assert_array_equal(sham.onset, clean.with_sham_onset(1, low=2, high=4).onset)
    assert (sham.onset != clean.with_sham_onset(2, low=2, high=4).onset).any()
    with pytest.raises(ParameterError, match="disturbed"):
        random_batch([5, 5]).with_sham_onset(0)
    with pytest.raises(ParameterError, match="low <= high"):
        clean.with_sham_onset(0, low=9, high=3)


def test_arrays_of_a_batch_cannot_be_changed_in_place():
    """A detector that centres its input in place is stopped at once; the caller's own array stays its own."""
    mine = np.zeros(2, np.float32)
    batch = tr.from_numpy([{"observations": np.zeros((3, 1)), "actions": [0, 1], "rewards": mine}])
    with pytest.raises(ValueError, match="read-only"):
        batch.episode(0).rewards[0] = 1.0
    mine[0] = 1.0


GOOD = {"observations": np.zeros((3, 2)), "actions": [0, 1], "rewards": [0.0, 1.0]}
BAD = {
    "nan observation": (NonFiniteError, {"observations": [[0, 0], [np.nan, 0], [0, 0]]}),
    "infinite reward": (NonFiniteError, {"rewards": [np.inf, 0.0]}),
    "one row short": (ShapeError, {"observations": np.zeros((2, 2))}),
    "one action short": (ShapeError, {"actions": [0]}),
    "observations in one dimension": (ShapeError, {"observations": np.zeros(3)}),
    "object array": (ShapeError, {"rewards": np.array([None, 1], object)}),
    "text": (ShapeError, {"rewards": ["a", "b"]}),
    "complex": (ShapeError, {"rewards": [1j, 0]}),
    "other space": (ShapeError, {"true_observations": np.zeros((3, 1))}),
    "active before onset": (ParameterError, {"active": [True, True], "onset": 1}),
    "active without onset": (ParameterError, {"active": [False, True]}),
    "fractional label": (ShapeError, {"active": [0.5, 1.0], "onset": 0}),
    "two ends": (ParameterError, {"terminated": True, "truncated": True}),
    "unknown field": (ParameterError, {"reward": [0.0, 0.0]}),
    "short internals": (ShapeError, {"internals": {"q": np.zeros((2, 4))}}),
    "no transition": (ShapeError, {"observations": np.zeros((1, 2)), "actions": [], "rewards": []}),
    "fractional onset": (ShapeError, {"onset": 0.5}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_episodes_are_refused_by_name(name):
    """Each mistake is an error of this package, whether it stands in the first or in a later episode."""
    kind, change = BAD[name]
    with pytest.raises(kind):
        tr.from_numpy([GOOD | change])
    with pytest.raises(RlOodkitError):
        tr.from_numpy([GOOD, GOOD | change])


def test_missing_and_empty():
    """Nothing at all is an empty split, and a missing field is named."""
    with pytest.raises(EmptySplitError):
        tr.from_numpy([])
    with pytest.raises(EmptySplitError):
        tr.concatenate([])
    with pytest.raises(EmptySplitError):
        tr.from_numpy([GOOD]).select([])
    with pytest.raises(EmptySplitError):
        tr.from_numpy([GOOD]).select(np.array([False]))
    with pytest.raises(ParameterError, match="rewards"):
        tr.from_numpy([{k: v for k, v in GOOD.items() if k != "rewards"}])
    with pytest.raises(ParameterError, match="JSON"):
        tr.from_numpy([GOOD], meta={"x": np.zeros(2)})


@pytest.mark.parametrize("indices", [[1], [-1], [0.5], ["a"], [[0]], [True, False]])
def test_selection_outside_the_batch(indices):
    """Negative and fractional indices, text and masks of a wrong length are refused."""
    with pytest.raises(RlOodkitError):
        tr.from_numpy([GOOD]).select(indices)


@pytest.mark.parametrize("index", [1, -1, 0.0, "a", None])
def test_an_episode_outside_the_batch(index):
    """The same for a single episode."""
    with pytest.raises(ParameterError):
        tr.from_numpy([GOOD]).episode(index)


def test_joining_needs_one_space():
    """Batches of different widths or internals do not join; what differs in the provenance is dropped."""
    other = tr.from_numpy([GOOD | {"observations": np.zeros((3, 5))}])
    with pytest.raises(ShapeError):
        tr.concatenate([tr.from_numpy([GOOD]), other])
    with pytest.raises(ShapeError):
        tr.concatenate([tr.from_numpy([GOOD]), tr.from_numpy([GOOD | {"internals": {"q": np.zeros((3, 4))}}])])
    a, b = (tr.from_numpy([GOOD], meta={"env_id": "x", "split": s}) for s in ("fit", "cal"))
    assert tr.concatenate([a, b]).meta == {"env_id": "x"}


def test_damaged_and_foreign_files(tmp_path):
    """A flipped bit, a cut file, another archive and a file without a digest are told apart."""
    path = tmp_path / "batch.npz"
    tr.save(path, random_batch([4, 2]))
    whole = path.read_bytes()
    for data in (whole[:-7], whole[:100] + bytes([whole[100] ^ 4]) + whole[101:]):
        path.write_bytes(data)
        with pytest.raises(DamagedFileError):
            tr.load(path)
    save_arrays(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ForeignFileError):
        tr.load(tmp_path / "other.npz")
    np.savez(tmp_path / "plain.npz", x=np.zeros(3))
    with pytest.raises(ForeignFileError):
        tr.load(tmp_path / "plain.npz")
