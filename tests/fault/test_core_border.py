"""What must be refused at the border: each mistake by name, and before anything is written."""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rl_oodkit.core import locks
from rl_oodkit.core.errors import (
    CheckpointError,
    ForeignFileError,
    NonFiniteError,
    ParameterError,
    ShapeError,
    StoreError,
    UnitFailedError,
    check_array,
    check_fraction,
    check_integer,
)
from rl_oodkit.core.executors import ProcessExecutor, SerialExecutor
from rl_oodkit.core.files import check_target, write_verified
from rl_oodkit.core.results import RunSpec, RunStore
from rl_oodkit.core.seeds import integer
from rl_oodkit.core.store import load_arrays, save_arrays
from rl_oodkit.stats.bootstrap import episode_weights
from rl_oodkit.stats.ranking import time_weights
from rl_oodkit.training.checkpoint import load_card, load_policy, save_checkpoint
from rl_oodkit.training.policy import QPolicy, RandomPolicy
from rl_oodkit.training.rollout import rollout
from rl_oodkit.training.trajectories import from_numpy, load, save


def policy(scale: float = 1.0) -> QPolicy:
    """Return a policy of one layer."""
    return QPolicy({"w0": scale * np.eye(2, dtype=np.float32), "b0": np.zeros(2, np.float32)})


def episode(steps: int = 4, active: tuple[int, ...] = (), **marks: int) -> dict:
    """Return one episode whose labels are as given."""
    labels = np.isin(np.arange(steps), active)
    return {"observations": np.zeros((steps + 1, 1)), "actions": [0] * steps, "rewards": [0.0] * steps} | {
        "active": labels,
        **marks,
    }


def test_a_card_without_written_form_leaves_the_older_pair(tmp_path):
    """The weights are not replaced before the card is known to be writable."""
    path = save_checkpoint(tmp_path, "a", policy(), {})
    with pytest.raises(ParameterError):
        save_checkpoint(tmp_path, "a", policy(2.0), {"mean": float("nan")})
    assert load_policy(path).sha256 == policy().sha256


def test_a_card_cannot_deny_its_weights(tmp_path):
    """The caller's keys do not override what the file itself says."""
    path = save_checkpoint(tmp_path, "a", policy(), {"format": "x", "policy_sha256": "0", "name": "b", "seed": 3})
    card = load_card(path)
    assert load_policy(path).sha256 == card["policy_sha256"] and (card["name"], card["seed"]) == ("a", 3)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\0b", None])
def test_a_name_is_no_path(tmp_path, name):
    """Nothing is written outside the folder."""
    with pytest.raises(ParameterError):
        save_checkpoint(tmp_path, name, policy(), {})
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError):
        save_checkpoint(tmp_path / "file" / "sub", "a", policy(), {})
    with pytest.raises(StoreError):
        save_checkpoint(tmp_path / "file", "a", policy(), {})


def test_a_folder_and_a_name_with_dots_are_found(tmp_path, monkeypatch):
    """One pair in a folder is that folder's checkpoint; two are a question."""
    path = save_checkpoint(tmp_path / "one", "v1.2", policy(), {})
    monkeypatch.chdir(tmp_path)
    for given in (path, path.with_suffix(".json"), tmp_path / "one" / "v1.2", tmp_path / "one", "one"):
        assert load_policy(given).sha256 == policy().sha256
    save_checkpoint(tmp_path / "one", "v1.3", policy(), {})
    for given in (tmp_path / "one", "", " "):
        with pytest.raises(CheckpointError):
            load_policy(given)


@pytest.mark.parametrize("executor", [SerialExecutor(), ProcessExecutor(1)])
def test_an_exit_in_a_unit_is_a_failure(executor):
    """sys.exit() in a unit does not end the caller, and not with success."""
    with pytest.raises(UnitFailedError, match="SystemExit"):
        list(executor.map(sys.exit, [0]))


def test_masks_and_wrapped_integers_are_refused():
    """Neither a mask nor a sign is lost without a word."""
    with pytest.raises(ShapeError, match="filled"):
        check_array(np.ma.masked_array([1.0, 2.0], [False, True]), "x")
    for value, dtype in ((np.uint64(2**63), np.int64), (np.int64(-1), np.uint64)):
        with pytest.raises(ShapeError, match="without loss"):
            check_array([value], "x", dtype=dtype)
    assert check_array(np.array([2**63 - 1], np.uint64), "x", dtype=np.int64)[0] == 2**63 - 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"onset": -2},
        {"offset_step": -2},
        {"onset": 2, "offset_step": 2},
        {"onset": 3, "offset_step": 1},
        {"onset": 1, "offset_step": 2, "active": (1, 2)},
    ],
)
def test_marks_that_contradict_each_other_are_refused(wrong):
    """Onset, offset and labels tell one story."""
    with pytest.raises(ParameterError, match="onset|active"):
        from_numpy([episode(**wrong)])


def test_an_onset_after_the_end_is_allowed():
    """A sham or announced onset may lie where the episode never came."""
    assert from_numpy([episode(onset=9, offset_step=12)]).onset[0] == 9
    assert from_numpy([episode(onset=1, offset_step=3, active=(1, 2))]).active.sum() == 2


@pytest.mark.parametrize("meta", ["{", "3", "nonsense"])
def test_a_meta_that_is_no_json_names_the_file(tmp_path, meta):
    """A batch whose provenance cannot be read is foreign."""
    save(tmp_path / "a.npz", from_numpy([episode()]))
    save_arrays(tmp_path / "a.npz", **load_arrays(tmp_path / "a.npz") | {"meta": np.array(meta)})
    with pytest.raises(ForeignFileError, match=r"a\.npz"):
        load(tmp_path / "a.npz")


@pytest.mark.parametrize("root", ["a\0b", "x" * 300, "/".join(["y" * 200] * 25)])
def test_a_root_that_no_file_system_can_name_is_refused(tmp_path, root):
    """The store says so at once, as root and as fallback."""
    with pytest.raises(StoreError):
        RunStore(f"{tmp_path}/{root}")
    with pytest.raises(StoreError):
        RunStore(tmp_path, fallbacks=[root])
    assert not RunStore(tmp_path).is_done(RunSpec("demo", {}))


def test_a_folder_in_place_of_a_lock(tmp_path):
    """An empty one is cleared away; one that holds something is named and kept."""
    lock = tmp_path / "unit"
    lock.mkdir()
    assert locks.acquire(lock) and locks.is_held(lock)
    full = tmp_path / "full"
    full.mkdir()
    (full / "x").write_text("kept")
    for act in (lambda: locks.acquire(full), lambda: locks.clear(tmp_path)):
        with pytest.raises(StoreError, match="stale"):
            act()
    assert (full / "x").read_text() == "kept"


def test_a_folder_is_no_target(tmp_path):
    """No sidecar is left beside a folder."""
    (tmp_path / "a").mkdir()
    with pytest.raises(StoreError, match="folder"):
        write_verified(tmp_path / "a", b"x")
    assert [p.name for p in Path(tmp_path).iterdir()] == ["a"]


class Fixed(RandomPolicy):
    """Answer with the same actions whatever is seen."""

    def __init__(self, answer: object) -> None:
        super().__init__(2, 0)
        self.answer = answer

    def act(self, observations: object) -> np.ndarray:
        """Return the fixed answer."""
        return np.asarray(self.answer)


@pytest.mark.parametrize(
    ("env", "answer", "error"),
    [
        ("CartPole-v1", [0, 1], ShapeError),
        ("CartPole-v1", [], ShapeError),
        ("CartPole-v1", 0, ShapeError),
        ("CartPole-v1", [[0]], ShapeError),
        ("CartPole-v1", [2], ParameterError),
        ("CartPole-v1", [-1], ParameterError),
        ("Pendulum-v1", [[np.nan]], NonFiniteError),
        ("Pendulum-v1", [[0.0, 0.0]], ShapeError),
    ],
)
def test_impossible_actions_are_named(env, answer, error):
    """A policy's mistake is not left to the physics."""
    with pytest.raises(error, match="actions"):
        rollout(lambda: gymnasium.make(env), Fixed(answer), [1], record=())


def test_continuous_actions_are_left_to_the_environment_to_clip():
    """A finite action beyond the bounds of a box is no mistake."""
    assert rollout(lambda: gymnasium.make("Pendulum-v1"), Fixed([[3.0]]), [1], record=(), max_steps=3).n_steps == 3


def test_no_environment_is_named():
    """A make_env that forgot to return."""
    with pytest.raises(ParameterError, match="make_env"):
        rollout(lambda: None, RandomPolicy(2, 0), [1])


def test_negative_counts_are_refused():
    """A group cannot have fewer than no episodes."""
    for n, p in (([-1], [2]), ([2], [-1])):
        with pytest.raises(ParameterError):
            time_weights(n, p)


@pytest.mark.parametrize("exponent", [63, 128, 20_000])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_without_end_is_refused_and_told_in_one_line(exponent, sign):
    """Also one that Python refuses to print."""
    value = sign * 2**exponent
    for check in (check_integer, check_fraction):
        with pytest.raises(ParameterError) as caught:
            check(value, "n", *([0] if check is check_integer else []))
        assert str(caught.value).startswith("n is ") and len(str(caught.value)) < 200


def test_a_bound_is_inclusive_and_a_seed_has_none():
    """The largest 64-bit integer is a count, and every larger one is still a seed."""
    assert check_integer(2**63 - 1, "n") == 2**63 - 1 and check_integer(7, "n", maximum=7) == 7
    with pytest.raises(ParameterError, match="at most 7"):
        check_integer(8, "n", maximum=7)
    seed = 10**39
    assert RunSpec("demo", {}, seed).seed == RandomPolicy(2, seed).seed == seed
    assert integer(seed, 2**64 - 1) != integer(seed, 2**64 - 2)


@pytest.mark.parametrize(("n", "resamples"), [(1, 2**62), (2**62, 1), (2**20, 2**20)])
def test_more_weights_than_memory_are_refused(n, resamples):
    """Before anything of that size is asked of the machine."""
    with pytest.raises(ParameterError, match="at most|At most"):
        episode_weights(np.random.default_rng(0), n, resamples)


@pytest.mark.parametrize("wrong", [None, 3, "dqn-lunarlander", [], RandomPolicy])
def test_what_cannot_act_is_no_policy(wrong):
    """A class is not its instance, and a name is not loaded here."""
    with pytest.raises(ParameterError, match="cannot act"):
        rollout(lambda: gymnasium.make("CartPole-v1"), wrong, [1])


def test_a_target_is_tried_before_the_work(tmp_path):
    """A folder, a name that is too long, a file in place of a folder, a file that is there; nothing is made."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("kept")
    for wrong in ("folder", "x" * 250, "file/x", "file/y/x", "y" * 300 + "/x"):
        with pytest.raises(StoreError):
            check_target(tmp_path / wrong)
    with pytest.raises(StoreError, match="exists already"):
        check_target(tmp_path / "file", replace=False)
    for right in ("file", "new", "a/b/c"):
        check_target(tmp_path / right)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"] and not list(
        (tmp_path / "folder").iterdir()
    )
