"""Tasks on disk: bit-identical rebuilds, closed private files, tampering that is named, exports that grade alike."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from rl_oodkit.core.errors import (
    DamagedFileError,
    ForeignFileError,
    ParameterError,
    RlOodkitError,
    StoreError,
    UnknownIdError,
)
from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.dna import TaskDNA
from rl_oodkit.mle.export import export_mlebench, export_mledojo
from rl_oodkit.mle.files import SyntheticTask, load_private, private_arrays, read_manifest, task_files, write_task
from rl_oodkit.mle.medals import Thresholds, positions, thresholds
from rl_oodkit.mle.meta import load_public
from rl_oodkit.mle.metrics import task_metric
from rl_oodkit.mle.suite import Suite
from rl_oodkit.mle.tables import public_files, tables
from rl_oodkit.mle.victim import victim_task

KINDS = ("probability", "probabilities", "value")


@pytest.fixture
def suite(tmp_path):
    """Return a suite of three tasks, one per split."""
    for seed, split in enumerate(("train", "val", "test")):
        write_task(tmp_path / "suite", victim_task("probability", seed, 80), split=split)
    return Suite(tmp_path / "suite")


def contents(root: Path) -> dict[str, bytes]:
    """Return every file below a folder."""
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_rebuild_is_bit_identical(kind, tmp_path):
    """Wall times differ, and no hashed file does."""
    task = victim_task(kind)
    slower = SyntheticTask(
        task.dna, task.tables, task.description, task.oracle, task.thresholds, task.board.assign(seconds=9.9)
    )
    for folder, built in (("a", task), ("b", slower)):
        write_task(tmp_path / folder, built)
    a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
    assert {n for n in a if a[n] != b[n]} <= {n for n in a if "/logs/" in n} and a.keys() == b.keys()


def test_other_processes_write_the_same_bytes(tmp_path):
    """Whatever their hash seed."""
    code = "import sys; from rl_oodkit.mle.files import write_task; from rl_oodkit.mle.victim import victim_task; "
    code += "write_task(sys.argv[1], victim_task('value', 3, 60))"
    digests = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed)], check=True, env=env)
        digests.add(hashlib.sha256(repr(contents(tmp_path / seed)).encode()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_back_is_what_was_written(kind, tmp_path):
    """Facts, tables, judge, DNA, oracle, board."""
    task = victim_task(kind)
    home = write_task(tmp_path, task)
    public, private = load_public(home), load_private(tmp_path, task.name)
    assert public.meta == task.meta and public.description == task.description
    for name in ("train", "test", "sample_submission"):
        pd.testing.assert_frame_equal(getattr(public, name), getattr(task.public(), name), check_dtype=False)
    assert private.dna == task.dna and private.oracle == task.oracle
    assert private.judge.thresholds == task.thresholds
    assert np.array_equal(private.board["private"], task.board["private"])
    report = private.judge.grade(public.sample_submission)
    assert report == task.judge().grade(task.tables.sample_submission) and report.tier == 1


def test_private_files_are_closed(suite):
    """Files 0600, folders 0700, sidecars and logs included."""
    root = suite.root / "private"
    for path in [root, *root.rglob("*")]:
        assert stat.S_IMODE(os.stat(path).st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_private_file_that_others_may_read_is_refused(suite):
    """Whoever could read it may have."""
    name = suite.ids()[0]
    (suite.root / "private" / f"{name}.npz").chmod(0o644)
    with pytest.raises(StoreError, match="read by others"):
        suite.judge(name)


def test_the_private_root_may_lie_elsewhere(tmp_path):
    """And then nothing private is in the suite's folder."""
    task, vault = victim_task("value", 0, 60), tmp_path / "vault"
    write_task(tmp_path / "suite", task, private=vault)
    assert not (tmp_path / "suite" / "private").exists()
    assert Suite(tmp_path / "suite", private=vault).judge(task.name).meta == task.meta
    with pytest.raises(DamagedFileError, match="missing"):
        Suite(tmp_path / "suite").judge(task.name)


def test_no_public_file_holds_answers_or_the_canary(suite):
    """Neither as text nor as a column in any order of rows."""
    for name in suite.ids():
        private = suite.load(name)
        for path in (suite.root / "tasks" / name).rglob("*"):
            data = path.read_bytes() if path.is_file() else b""
            assert not private.leaks(data.decode())
        test = suite.public(name).test
        y = private.judge.answers.y
        assert not any(np.array_equal(np.sort(test[c]), np.sort(y)) for c in test)
    assert private.leaks("before " + private.canary + " after")


def test_splits_and_ids(suite):
    """Recorded when written; unknown ones are refused."""
    assert len(suite) == 3 and [len(suite.ids(s)) for s in ("train", "val", "test", None)] == [1, 1, 1, 3]
    assert suite.check() == 3 * 6
    with pytest.raises(ParameterError):
        suite.ids("all")
    for id in ("t000000000000", "../private", "", None):
        for use in (suite.public, suite.judge, suite.check, suite.folder):
            if not (use == suite.check and id is None):
                with pytest.raises(UnknownIdError):
                    use(id)


def test_every_single_byte_counts(suite):
    """In 150 random places of all hashed files: a flip is detected, and the file is named."""
    rng, name = stream(0, "flips"), suite.ids("test")[0]
    files = [*sorted((suite.root / "tasks" / name).rglob("*.*")), suite.root / "private" / f"{name}.npz"]
    files = [p for p in files if p.is_file()]
    for _ in range(150):
        path = files[rng.integers(len(files))]
        data = bytearray(path.read_bytes())
        place = int(rng.integers(len(data)))
        data[place] ^= 1 << int(rng.integers(8))
        good = path.read_bytes()
        path.write_bytes(data)
        with pytest.raises(DamagedFileError) as caught:
            suite.judge(name)
        assert str(path) in str(caught.value)
        path.write_bytes(good)
    assert suite.judge(name)


def tamper(home: Path, what: str) -> Path:
    """Change one thing about a task's public folder, and return what should be named."""
    path = home / "public" / "test.csv"
    if what == "cut":
        os.truncate(path, 30)
    elif what == "removed":
        path.unlink()
    elif what == "link":
        shutil.copy(path, home.parent / "copy.csv")
        path.unlink()
        path.symlink_to(home.parent / "copy.csv")
    elif what == "folder":
        path.unlink()
        path.mkdir()
    elif what == "added":
        path = home / "public" / "answers.csv"
        path.write_text("id\n")
    elif what == "hidden":
        path = home / ".answers"
        path.write_text("id\n")
    elif what == "linked folder":
        shutil.move(home / "public", home.parent.parent / "moved")
        path = home / "public"
        path.symlink_to(home.parent.parent / "moved")
    elif what == "linked task":
        shutil.move(home, home.parent.parent / "moved")
        home.symlink_to(home.parent.parent / "moved")
        path = home
    return path


CHANGES = ["cut", "removed", "link", "folder", "added", "hidden", "linked folder", "linked task"]


@pytest.mark.parametrize("what", CHANGES)
def test_a_tampered_folder_is_refused_and_the_file_named(suite, what):
    """By the public and by the private loader; other tasks are unharmed."""
    name, other = suite.ids("test")[0], suite.ids("train")[0]
    path = tamper(suite.folder(name), what)
    for use in (suite.public, suite.judge, suite.check):
        with pytest.raises(DamagedFileError) as caught:
            use(name)
        assert str(path) in str(caught.value)
    assert suite.judge(other) and suite.public(other)
    with pytest.raises(DamagedFileError):
        suite.check()


@pytest.mark.parametrize(
    "change", [lambda b: b[:-2], lambda b: b.replace(b"test", b"tost"), lambda b: b"", lambda b: b"{}"]
)
def test_a_damaged_manifest_is_refused(suite, change):
    """Before anything else is believed."""
    path = suite.root / "manifest.json"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DamagedFileError, match="manifest"):
        Suite(suite.root)


def test_a_foreign_manifest_is_refused(tmp_path):
    """Another format, another form of entry, a name that leaves the folder."""
    from rl_oodkit.core.store import save_json

    entry = {"split": "test", "files": {}, "private": ""}
    forms = [[], {"format": "other"}, {"format": "rl-oodkit-suite-1", "tasks": {"t1": {}}}]
    forms += [{"format": "rl-oodkit-suite-1", "tasks": {"../t1": entry}}]
    for form in forms:
        save_json(tmp_path / "manifest.json", form)
        with pytest.raises((ForeignFileError, ParameterError)):
            Suite(tmp_path)
    with pytest.raises(StoreError):
        Suite(tmp_path / "absent")


def test_archives_of_two_tasks_cannot_be_exchanged(suite):
    """Not even together with their digests."""
    a, b = suite.ids()[:2]
    vault = suite.root / "private"
    for end in (".npz", ".npz.sha256"):
        first, second = (vault / f"{n}{end}" for n in (a, b))
        kept = first.read_bytes()
        first.write_bytes(second.read_bytes().replace(b.encode(), a.encode()) if "sha" in end else second.read_bytes())
        second.write_bytes(kept.replace(a.encode(), b.encode()) if "sha" in end else kept)
    for name in (a, b):
        with pytest.raises(DamagedFileError):
            suite.judge(name)


def test_a_task_that_is_not_in_the_manifest_does_not_exist(suite):
    """As after an interruption before the last step."""
    name = suite.ids()[0]
    shutil.copytree(suite.root / "tasks" / name, suite.root / "tasks" / "t999")
    assert "t999" not in Suite(suite.root).ids()


def test_writing_again_changes_nothing(suite):
    """Idempotent, and the split may be corrected."""
    before = contents(suite.root)
    write_task(suite.root, victim_task("probability", 0, 80), split="train")
    assert contents(suite.root) == before
    write_task(suite.root, victim_task("probability", 0, 80), split="val")
    assert len(Suite(suite.root).ids("val")) == 2


def test_bad_tasks_are_refused_before_anything_is_written(tmp_path):
    """A wrong split, tables of another DNA, tables that were not announced."""
    task = victim_task("value", 0, 60)
    with pytest.raises(ParameterError):
        write_task(tmp_path / "s", task, split="holdout")
    with pytest.raises(ParameterError):
        SyntheticTask(TaskDNA(seed=99), task.tables, "", {}, task.thresholds, task.board)
    extra = types.SimpleNamespace(**{**vars(task.tables), "sides": {"answers": task.tables.answers}})
    with pytest.raises(ParameterError):
        write_task(tmp_path / "s", SyntheticTask(task.dna, extra, "", {}, task.thresholds, task.board))
    assert not (tmp_path / "s").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not stop root")
def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    """With an error of this package."""
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError):
        write_task(tmp_path / "suite", victim_task("value", 0, 60))


def test_a_file_in_the_way_is_named(tmp_path):
    """A file where a folder should be."""
    (tmp_path / "suite").write_text("")
    with pytest.raises(StoreError):
        write_task(tmp_path / "suite", victim_task("value", 0, 60))


def rendered(modality, target="regression", metric="rmse", **more) -> SyntheticTask:
    """Return a generated task with a stand-in for its leaderboard."""
    dna = TaskDNA(modality, target, metric, n_train=60, n_public=40, n_private=60, **more)
    board = pd.DataFrame({"pipeline": ["a"], "public": [0.5], "private": [0.5], "seconds": [0.1]})
    marks = thresholds(board["private"], 0.0, 1.0, 1.0, "mlebench", task_metric(metric).lower_is_better)
    return SyntheticTask(dna, tables(dna), "# Task\n", {}, marks, board)


GENERATED = [
    ("tabular", "multiclass", "log_loss", {"n_classes": 3}), ("tabular", "ordinal", "qwk", {"n_classes": 4}),
    ("tabular", "ranking", "ndcg", {}), ("tabular", "count", "rmsle", {}), ("multitable", "binary", "auc", {}),
    ("text", "binary", "accuracy", {}), ("signal", "regression", "mae", {}),
    ("image", "multiclass", "macro_f1", {"n_classes": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("modality", "target", "metric", "more"), GENERATED)
def test_generated_tasks_survive_the_disk(modality, target, metric, more, tmp_path):
    """Every modality: files equal the renderer's, ids survive, perfect and sample submissions are valid."""
    task = rendered(modality, target, metric, **more)
    files = task_files(task)
    assert {f"public/{n}": b for n, b in public_files(task.tables).items()} == {
        n: b for n, b in files.items() if n.endswith(".csv")
    }
    write_task(tmp_path, task)
    suite = Suite(tmp_path)
    public, judge = suite.public(task.name), suite.judge(task.name)
    assert public.test["id"].astype(str).tolist() == judge.answers.ids.astype(str).tolist()
    assert judge.grade(public.sample_submission).status == "valid"
    y = judge.answers.y
    perfect = (
        np.eye(max(2, len(public.meta.classes)))[y.astype(int)] if public.meta.prediction == "probabilities" else y
    )
    report = judge.grade_predictions(perfect)
    assert report.status == "valid" and report.score == pytest.approx(task_metric(metric).best, abs=1e-9)


class InvalidSubmissionError(Exception):
    """Stand-in for the harness's own."""


class CompetitionMetrics:
    """Stand-in for the harness's base class."""

    def __init__(self, higher_is_better):
        self.higher_is_better = higher_is_better


def execute(path: Path, module: str, monkeypatch) -> dict:
    """Run an exported file as its harness would, with stand-ins for what it imports from there."""
    stand_in = types.ModuleType(module)
    stand_in.InvalidSubmissionError, stand_in.CompetitionMetrics = InvalidSubmissionError, CompetitionMetrics
    monkeypatch.setitem(sys.modules, module, stand_in)
    space: dict = {}
    exec(compile(path.read_text(), path.name, "exec"), space)
    return space


@pytest.mark.parametrize("kind", KINDS)
def test_mlebench_export(kind, tmp_path, monkeypatch):
    """Layout, YAML, checksums, leaderboard and grader."""
    task = victim_task(kind)
    home = export_mlebench(task.public(), task.judge(), tmp_path)
    config = yaml.safe_load((home / "config.yaml").read_text())
    assert (
        config["id"] == task.name and config["grader"]["grade_fn"] == f"mlebench.competitions.{task.name}.grade:grade"
    )
    for key in ("answers", "sample_submission"):
        assert (tmp_path / config["dataset"][key]).is_file()
    for part, digests in yaml.safe_load((home / "checksums.yaml").read_text()).items():
        assert {p.name for p in (home / "prepared" / part).iterdir()} == set(digests)
        for name, digest in digests.items():
            assert hashlib.md5((home / "prepared" / part / name).read_bytes()).hexdigest() == digest
    board = pd.read_csv(home / "leaderboard.csv")["score"]
    assert bool(board.iloc[0] < board.iloc[-1]) == task.meta.lower_is_better and len(board) == 40
    gold, silver, bronze = positions(40)
    marks = thresholds(task.board["private"], 0, 1, 1, "mlebench", task.meta.lower_is_better)
    assert (board[gold - 1], board[silver - 1], board[bronze - 1]) == (marks.gold, marks.silver, marks.bronze)
    grade = execute(home / "grade.py", "mlebench.grade_helpers", monkeypatch)["grade"]
    answers = pd.read_csv(home / "prepared/private/test.csv")
    sample = pd.read_csv(home / "prepared/public/sample_submission.csv")
    assert grade(sample, answers) == pytest.approx(task.thresholds.sample, abs=1e-5)
    for bad in (sample[:-1], sample.assign(extra=1), sample.replace({sample.columns[1]: sample.iloc[0, 1]}, np.nan)):
        with pytest.raises(InvalidSubmissionError):
            grade(bad, answers)
    assert stat.S_IMODE(os.stat(home / "prepared/private/test.csv").st_mode) == 0o600


@pytest.mark.parametrize("kind", KINDS)
def test_mledojo_export(kind, tmp_path, monkeypatch):
    """Layout, both leaderboards, metric class."""
    task = victim_task(kind)
    home = export_mledojo(task.public(), task.judge(), tmp_path)
    names = {p.relative_to(home).as_posix() for p in home.rglob("*") if p.is_file()}
    assert {"info/description.txt", "utils/metric.py", "utils/prepare.py", "data/private/test_answer.csv"} <= names
    for part in ("public", "private"):
        board = pd.read_csv(home / f"info/{part}_leaderboard.csv")
        assert list(board) == ["rank", "score"] and board["rank"].tolist() == list(range(1, 41))
        assert board["score"].is_monotonic_increasing == task.meta.lower_is_better
    space = execute(home / "utils/metric.py", "mledojo.metrics.base", monkeypatch)
    metric = next(v for n, v in space.items() if n.endswith("Metrics") and n != "CompetitionMetrics")()
    assert metric.higher_is_better != task.meta.lower_is_better
    answers, sample = pd.read_csv(home / "data/private/test_answer.csv"), task.tables.sample_submission
    assert metric.evaluate(answers, sample) == pytest.approx(task.thresholds.sample, abs=1e-5)
    assert metric.validate_submission(sample, answers) == "Submission is valid."
    with pytest.raises(InvalidSubmissionError):
        metric.validate_submission(sample[:-1], answers)


def test_a_ranking_keeps_its_queries_abroad(tmp_path, monkeypatch):
    """The exported grader scores a ranking as the judge does."""
    task = rendered("tabular", "ranking", "ndcg")
    home = export_mlebench(task.public(), task.judge(), tmp_path)
    grade = execute(home / "grade.py", "mlebench.grade_helpers", monkeypatch)["grade"]
    guess = task.tables.sample_submission.assign(score=stream(0, "guess").random(len(task.tables.test)))
    expected = round(task.judge().grade(guess).score, 5)
    assert grade(guess, pd.read_csv(home / "prepared/private/test.csv")) == expected


def test_exported_preparation_copies(tmp_path):
    """What is there, to where it is wanted."""
    task = victim_task("value")
    home = export_mlebench(task.public(), task.judge(), tmp_path)
    space: dict = {}
    exec(compile((home / "prepare.py").read_text(), "prepare.py", "exec"), space)
    space["prepare"](home / "prepared", tmp_path / "pub", tmp_path / "priv")
    assert contents(tmp_path / "pub") == contents(home / "prepared/public")
    assert contents(tmp_path / "priv") == contents(home / "prepared/private")


def test_private_arrays_are_plain():
    """No object could hide in the archive, and numbers that are not finite are null in its facts."""
    task = victim_task("value", 0, 60)
    odd = SyntheticTask(task.dna, task.tables, "", {"x": np.nan, "y": [np.float64(1.5)]}, task.thresholds, task.board)
    arrays = private_arrays(odd)
    assert not any(a.dtype.hasobject for a in arrays.values())
    assert json.loads(str(arrays["facts"]))["oracle"] == {"x": None, "y": [1.5]}


def test_manifest_lists_every_public_file(suite):
    """By path, with its SHA-256."""
    for name, entry in read_manifest(suite.root)["tasks"].items():
        for file, digest in entry["files"].items():
            assert hashlib.sha256((suite.root / "tasks" / name / file).read_bytes()).hexdigest() == digest
    assert isinstance(suite.load(name).judge.thresholds, Thresholds)
    assert issubclass(DamagedFileError, RlOodkitError)
