"""Kills, failing disks, damaged and hostile files, in their short forms."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from rl_oodkit.core import folders, formats, locks
from rl_oodkit.core.errors import DamagedFileError, ForeignFileError, RlOodkitError, StoreError, UnitFailedError
from rl_oodkit.core.executors import ProcessExecutor, SerialExecutor
from rl_oodkit.core.files import write_verified
from rl_oodkit.core.runs import Group, RunSpec, RunStore, run_units
from rl_oodkit.reproduce import faults, hostile, kills
from rl_oodkit.reproduce.readers import readers


def holds(report: dict, at_least: int) -> None:
    """Demand that enough was run and nothing failed."""
    assert report["failed"] == 0, report["detail"]
    assert report["ran"] >= at_least, report


def test_killed_runs_lose_nothing():
    """No finished unit is lost or torn, and the resumed table has the same bytes."""
    holds(faults.kill_runs(50), 50)


def test_failing_system_calls_leave_the_old_file():
    """A clear error, the old file intact, nothing left behind."""
    holds(faults.io_faults(100), 100)


def test_damage_is_always_noticed():
    """No flipped bit and no missing end yields a value."""
    holds(faults.damage_files(300), 300)


def test_hostile_files_run_nothing():
    """Refused or inert, within a second, by every loader."""
    holds(faults.hostile_files(), 2000)


def test_the_hostile_collection_is_as_large_as_promised(tmp_path):
    """At least sixty files without the doors, no two alike, at least fifteen of records that have the right form."""
    collection = hostile.artefacts(tmp_path / "canary")
    assert len(collection) >= 75 and len({artefact.data for artefact in collection.values()}) == len(collection)
    assert len(hostile._records(tmp_path) | hostile._answers(tmp_path) | hostile._boards() | hostile._learned()) >= 20


def test_readers_refuse_for_the_file_that_was_exchanged(tmp_path):
    """Each reads its honest stage, and refuses when one byte of its own file is changed under a fitting seal."""
    doors, stage = readers(tmp_path), tmp_path
    (archive,) = (stage / "suite" / "private").glob("*.npz")
    (facts,) = (stage / "suite" / "tasks").glob("*/task.json")
    own = {"suite": stage / "suite" / "manifest.json", "private": archive, "task": facts}
    own |= {"release": stage / "release" / "release.json", "boards": stage / "release" / "boards.parquet"}
    own |= {"card": stage / "p" / "policy.json", "policy": stage / "p" / "policy.safetensors"}
    for kind, path in own.items():
        doors[kind](path)
        sealed = tmp_path / f"{kind}.changed"
        write_verified(sealed, path.read_bytes()[:-9])
        with pytest.raises(RlOodkitError):
            doors[kind](sealed)


def test_a_task_whose_tables_have_other_numbers_of_rows_is_refused(tmp_path):
    """The facts say how many rows there are, and are held to it."""
    doors = readers(tmp_path)
    (facts,) = (tmp_path / "suite" / "tasks").glob("*/task.json")
    for name in ("n_train", "n_test"):
        said = json.loads(facts.read_text())
        (tmp_path / "lie").write_text(json.dumps(said | {name: said[name] + 1}))
        with pytest.raises(ForeignFileError, match="rows"):
            doors["task"](tmp_path / "lie")


def test_the_harness_sees_an_execution(tmp_path):
    """A loader that unpickles is found out."""
    import numpy as np

    canary = tmp_path / "canary"
    path = tmp_path / "x.npz"
    path.write_bytes(hostile.artefacts(canary)["npz of objects"].data)

    def careless(p: Path) -> object:
        """Load as NumPy did before 2019."""
        try:
            return np.load(p, allow_pickle=True)["x"]
        except ValueError:
            return None

    assert faults._attempt(careless, path, False, canary) == "it was run"


def test_the_harness_sees_a_torn_unit(tmp_path):
    """A folder that is there and incomplete is called torn."""
    root = tmp_path / "root"
    reference = kills._run(root, tmp_path / "log")
    victim = RunStore(root).folder(kills._units()[3])
    (victim / "result.parquet").write_bytes(b"")
    assert kills._autopsy(root, tmp_path / "log", reference).startswith("torn")


def test_the_harness_sees_a_lost_unit(tmp_path):
    """A unit that was acknowledged and has to be computed again is called lost."""
    root = tmp_path / "root"
    reference = kills._run(root, tmp_path / "log")
    victim = RunStore(root).folder(kills._units()[3])
    for path in victim.iterdir():
        path.unlink()
    victim.rmdir()
    assert kills._autopsy(root, tmp_path / "log", reference) == "lost: [3]"


def test_the_harness_sees_a_save_that_is_not_atomic(tmp_path):
    """Writing in place fails the examination."""

    def save(path: Path, value: int) -> None:
        """Write in place, as most programs do."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(handle, json.dumps(value).encode())
        os.close(handle)

    target = faults._Target("in place", save, lambda p: json.loads(p.read_bytes() or b"null"))
    save(tmp_path / "x", 0)
    with faults._failing_at(2, 28):
        error = pytest.raises(OSError, save, tmp_path / "x", 1).value
    wrapped = StoreError(f"x cannot be written: {error}")
    assert faults._examine(target, tmp_path / "x", wrapped) == "value None instead of 0"


def start(root: Path, log: Path, executor: str) -> subprocess.Popen:
    """Start forty slow units as a program of their own."""
    program = (
        "from rl_oodkit.reproduce import kills; from pathlib import Path;"
        f"kills._run(Path({str(root)!r}), Path({str(log)!r}), {executor!r})"
    )
    slow = "import time, os; real = os.fsync; os.fsync = lambda f: (time.sleep(0.003), real(f))[1];"
    return subprocess.Popen(
        [sys.executable, "-c", slow + program], stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.parametrize("executor", ["serial", "local"])
def test_ctrl_c_says_what_is_finished_and_how_to_go_on(tmp_path, executor):
    """The message counts, the workers end, and the same command finishes the work."""
    root, log = tmp_path / "root", tmp_path / "log"
    running = start(root, log, executor)
    while len(kills._acknowledged(log)) < 5:
        time.sleep(0.005)
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGINT)
    message = running.communicate(timeout=60)[1].strip().splitlines()[-1]
    assert "RunInterrupted: victim was interrupted with" in message
    assert "of 40 units finished" in message and "Give the same command again" in message
    deadline = time.monotonic() + 20
    while kills._session_lives(running.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not kills._session_lives(running.pid)
    finished = int(message.split("with ")[1].split()[0])
    assert 5 <= finished < 40
    again = tmp_path / "again"
    whole = kills._run(root, again)
    assert len(kills._acknowledged(again)) == 40 - finished
    assert whole == kills._run(tmp_path / "other", tmp_path / "other.log")


def failing(payload, units, save):
    """Save one unit and fail at the next."""
    save(units[0], pd.DataFrame({"x": [1]}))
    if payload.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    raise ZeroDivisionError("in the second unit")


GROUPS = [Group(f"{__name__}:failing", {"name": "the failing group"}, tuple(RunSpec("f", {"i": i}) for i in range(3)))]


@pytest.mark.parametrize("executor", [SerialExecutor(), ProcessExecutor(1)], ids=["serial", "local"])
def test_a_failing_group_is_named_and_its_finished_units_are_kept(tmp_path, monkeypatch, executor):
    """The error names the group and the cause; the first unit stays."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    groups = [Group("test_core_faults:failing", GROUPS[0].payload, GROUPS[0].units)]
    store = RunStore(tmp_path)
    with pytest.raises(
        UnitFailedError, match="the failing group failed: ZeroDivisionError: in the second unit"
    ) as error:
        run_units(groups, store, executor, "failing")
    assert "in failing" in "".join(error.value.__notes__)
    assert [store.is_done(u) for u in GROUPS[0].units] == [True, False, False]
    assert list((tmp_path / ".locks").iterdir()) == []


def test_a_worker_that_dies_is_reported_and_its_finished_units_are_kept(tmp_path, monkeypatch):
    """As when the machine is out of memory."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    groups = [Group("test_core_faults:failing", {"name": "the dying group", "die": True}, GROUPS[0].units)]
    store = RunStore(tmp_path)
    with pytest.raises(UnitFailedError, match="the dying group failed: a worker process died"):
        run_units(groups, store, ProcessExecutor(1), "dying")
    assert [store.is_done(u) for u in GROUPS[0].units] == [True, False, False]


def test_two_runs_at_once_share_the_work(tmp_path):
    """Each unit is computed once, both programs end well, and both see everything."""
    root, log = tmp_path / "root", tmp_path / "log"
    both = [start(root, log, "serial") for _ in range(2)]
    assert [p.wait(timeout=120) for p in both] == [0, 0], [p.stderr.read() for p in both]
    assert sorted(kills._acknowledged(log)) == list(range(40))


def test_a_damaged_unit_is_made_again_and_a_foreign_root_is_not_touched(tmp_path):
    """Resume repairs; an explicit load reports; a fallback is read only."""
    root, log = tmp_path / "root", tmp_path / "log"
    whole = kills._run(root, log)
    store, units = RunStore(root), kills._units()
    damaged = store.folder(units[7]) / "result.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(DamagedFileError):
        store.load(units[7])
    before = {p: p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
    log.unlink()
    borrowed = RunStore(tmp_path / "new", fallbacks=(root,))
    groups = [Group("rl_oodkit.reproduce.kills:_tiny", {"log": str(log)}, tuple(units))]
    assert formats.frame_to_bytes(run_units(groups, borrowed, SerialExecutor(), "borrowed")) == whole
    assert kills._acknowledged(log) == [7]
    assert {p: p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()} == before
    assert kills._run(root, log) == whole and store.is_done(units[7])


def test_a_forced_run_computes_everything_again(tmp_path):
    """And leaves the same bytes in every file but the manifest."""
    root, log = tmp_path / "root", tmp_path / "log"
    kills._run(root, log)
    store, units = RunStore(root), kills._units()
    names = ("spec.json", "result.parquet")
    before = [(store.folder(u) / n).read_bytes() for u in units for n in names]
    kills._run(root, log, force=True)
    assert [(store.folder(u) / n).read_bytes() for u in units for n in names] == before
    assert sorted(kills._acknowledged(log)) == sorted([*range(40), *range(40)])


def test_the_locks_of_the_dead_are_taken_over(tmp_path):
    """A stale lock delays nobody, one of the living is respected."""
    root, log = tmp_path / "root", tmp_path / "log"
    (root / ".locks").mkdir(parents=True)
    unit = kills._units()[0]
    for token in ("999999999_x_1", "1_000000000000_1", "garbage", "-1_x_1", ""):
        if token:
            os.symlink(token, root / ".locks" / unit.key)
        else:
            (root / ".locks" / unit.key).write_text("a file in the place of a lock")
        assert locks.acquire(root / ".locks" / unit.key)
        assert not locks.acquire(root / ".locks" / unit.key)
        locks.release(root / ".locks" / unit.key)
    kills._run(root, log)
    assert list((root / ".locks").iterdir()) == [] and list((root / ".tmp").iterdir()) == []


def test_the_scratch_space_of_the_living_is_spared(tmp_path):
    """Sweeping removes what belongs to ended processes alone."""
    mine, dead = (tmp_path / ".tmp" / f"{t}.0" for t in (locks.owner_token(), "999999999_x_1"))
    for folder in (mine, dead):
        (folder / "new").mkdir(parents=True)
    folders.sweep(tmp_path)
    assert mine.exists() and not dead.exists()


def test_a_group_that_forgets_a_unit_is_found_out(tmp_path, monkeypatch):
    """Silence is not success."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    group = Group("test_core_faults:forgetting", {}, GROUPS[0].units)
    with pytest.raises(UnitFailedError, match="was not saved"):
        run_units([group], RunStore(tmp_path), SerialExecutor(), "forgetting")


def forgetting(payload, units, save):
    """Save the first unit alone."""
    save(units[0], pd.DataFrame({"x": [1]}))
