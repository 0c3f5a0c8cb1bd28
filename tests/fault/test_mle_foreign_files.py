"""Files of another form with a valid checksum: named with the field, never a KeyError, never believed."""

import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest

from rl_oodkit.core.errors import (
    CheckpointError,
    ForeignFileError,
    ParameterError,
    RlOodkitError,
    StoreError,
    UnknownIdError,
)
from rl_oodkit.core.spec import to_dict
from rl_oodkit.core.store import load_arrays, load_json, load_tensors, save_arrays, save_frame, save_json, save_tensors
from rl_oodkit.mle.agents import PolicyAgent, Question
from rl_oodkit.mle.arenas import toy_arenas
from rl_oodkit.mle.files import load_private, write_task
from rl_oodkit.mle.meta import TaskMeta, read_meta
from rl_oodkit.mle.release import Release
from rl_oodkit.mle.sampler import spec_of
from rl_oodkit.mle.suite import Suite
from rl_oodkit.mle.victim import victim_task
from rl_oodkit.mle.warm import WarmForkServer
from rl_oodkit.training.sequences import GrammarPolicy, SequenceSpec, load_grammar, save_grammar

DIGEST = 64 * "0"
GOOD = {"split": "test", "files": {"task.json": DIGEST}, "private": DIGEST}


@pytest.fixture
def home(tmp_path):
    """Return the root of a suite with one task, and the task's name."""
    task = victim_task("probability", 0, 80)
    write_task(tmp_path / "suite", task, split="test")
    return tmp_path / "suite", task.name


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (None, "lacks|missing tasks"),
        ([], "tasks"),
        ({"t1": []}, "tasks.t1"),
        ({"t1": None}, "tasks.t1"),
        ({"t1": GOOD | {"files": []}}, "tasks.t1.files"),
        ({"t1": GOOD | {"files": {"task.json": 5}}}, "tasks.t1.files.task.json"),
        ({"t1": GOOD | {"files": {"task.json": "abc"}}}, "digest of task.json"),
        ({"t1": GOOD | {"files": {"../../passwd": DIGEST}}}, "passwd"),
        ({"t1": GOOD | {"private": None}}, "tasks.t1.private"),
        ({"t1": GOOD | {"split": "zz"}}, "'train', 'val', 'test'"),
        ({"t1": GOOD | {"split": 3}}, "tasks.t1.split"),
        ({"t1": GOOD | {"more": 1}}, "unknown more"),
        ({"T 1": GOOD}, "name"),
    ],
)
def test_a_manifest_of_another_form(tmp_path, tasks, said):
    """Each is refused with the field, although its checksum is right."""
    save_json(tmp_path / "manifest.json", {"format": "rl-oodkit-suite-1"} | ({} if tasks is None else {"tasks": tasks}))
    with pytest.raises(ForeignFileError, match=said) as caught:
        Suite(tmp_path)
    assert "manifest.json" in str(caught.value)


def facts_without(field):
    """Return a change of the facts that leaves a field out."""
    return lambda facts: {k: v for k, v in facts.items() if k != field}


ARRAYS = {
    "ids": [np.zeros(3), np.zeros((3, 2), int), np.array(["a", "a"])],
    "y": [np.array(["a"]), np.full(80, np.nan), np.full(80, 7), np.zeros(3), np.array(1.0)],
    "part": [np.zeros(80), np.full(80, 3), np.array(["0"])],
    "board_pipeline": [np.zeros(3)],
    "board_public": [np.array(["x"]), np.zeros((2, 2)), np.zeros(1)],
    "board_private": [np.zeros(2, int)],
    "facts": [np.zeros(3), np.array("{"), np.array("[]"), np.array("null"), np.array(["{}"])],
}


@pytest.mark.parametrize(("name", "number"), [(n, i) for n, forms in ARRAYS.items() for i in range(-1, len(forms))])
def test_an_archive_of_another_form(home, name, number):
    """An array that is missing, of another kind, another shape, or with impossible values."""
    root, task = home
    path = root / "private" / f"{task}.npz"
    arrays = load_arrays(path)
    (arrays.pop(name), None) if number < 0 else arrays.update({name: ARRAYS[name][number]})
    save_arrays(path, **arrays)
    path.chmod(0o600)
    with pytest.raises(ForeignFileError) as caught:
        load_private(root, task)
    assert path.name in str(caught.value)
    assert number >= 0 or name in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (facts_without("dna"), "dna"),
        (facts_without("oracle"), "oracle"),
        (facts_without("thresholds"), "thresholds"),
        (facts_without("canary"), "canary"),
        (lambda f: f | {"thresholds": f["thresholds"] | {"gold": "x"}}, "thresholds.gold"),
        (lambda f: f | {"dna": f["dna"] | {"n_train": -5}}, "n_train"),
        (lambda f: f | {"dna": None}, "dna"),
        (lambda f: f | {"oracle": 5}, "oracle"),
        (lambda f: f | {"canary": 5}, "canary"),
        (lambda f: [f], "Facts"),
    ],
)
def test_facts_of_another_form(home, change, said):
    """The field is named."""
    root, task = home
    path = root / "private" / f"{task}.npz"
    arrays = load_arrays(path)
    arrays["facts"] = np.array(json.dumps(change(json.loads(str(arrays["facts"])))))
    save_arrays(path, **arrays)
    path.chmod(0o600)
    with pytest.raises(ForeignFileError, match=said):
        load_private(root, task)


@pytest.mark.parametrize("how", ["open", "group", "link", "file"])
def test_a_private_root_that_others_can_enter(home, tmp_path, how):
    """Is refused when it is read, and when a task is written into it; nothing is repaired silently."""
    root, task = home
    vault = root / "private"
    if how in ("open", "group"):
        vault.chmod(0o777 if how == "open" else 0o750)
    else:
        vault.rename(tmp_path / "elsewhere")
        vault.symlink_to(tmp_path / "elsewhere") if how == "link" else vault.write_text("")
    suite = Suite(root)
    for use in (suite.judge, suite.check, lambda n: load_private(root, n)):
        with pytest.raises(StoreError, match="private root"):
            use(task)
    with pytest.raises(StoreError, match="private root"):
        write_task(root, victim_task("value", 1, 80))
    assert how != "open" or os.stat(vault).st_mode & 0o777 == 0o777


def test_a_private_root_that_is_new_or_empty_is_closed(tmp_path):
    """Whatever mode the empty folder had."""
    vault = tmp_path / "vault"
    vault.mkdir()
    vault.chmod(0o777)
    task = victim_task("value", 1, 80)
    write_task(tmp_path / "suite", task, private=vault)
    assert os.stat(vault).st_mode & 0o777 == 0o700
    assert Suite(tmp_path / "suite", private=vault).judge(task.name)


def test_an_archive_behind_a_link(home, tmp_path):
    """Is refused, though what it leads to is private."""
    root, task = home
    path = root / "private" / f"{task}.npz"
    path.rename(tmp_path / "kept.npz")
    path.symlink_to(tmp_path / "kept.npz")
    with pytest.raises(StoreError, match="regular"):
        load_private(root, task)


META = ("t1", "tabular", "binary", "auc", False, "probability", ("no", "yes"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_test": -1},
        {"n_train": -3},
        {"n_train": 2.5},
        {"n_test": "many"},
        {"time_limit_s": -1.0},
        {"time_limit_s": 0.0},
        {"time_limit_s": float("nan")},
        {"time_limit_s": 1e9},
        {"id_column": ""},
        {"label_column": ""},
        {"label_column": "id"},
        {"query_column": "id"},
    ],
)
def test_impossible_facts_of_a_task(tmp_path, wrong):
    """Neither a record nor a file holds them."""
    with pytest.raises(ParameterError):
        TaskMeta(*META, **wrong)
    path = tmp_path / "task.json"
    path.write_text(json.dumps(to_dict(TaskMeta(*META)) | wrong))
    with pytest.raises(ForeignFileError, match=r"task\.json"):
        read_meta(path)


@pytest.mark.parametrize("place", [1, 2])
def test_words_that_are_no_modality_and_no_target(place):
    """And the words that are."""
    with pytest.raises(ParameterError, match="Use tabular|Use binary"):
        TaskMeta(*(("video" if i == place else x) for i, x in enumerate(META)))


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Return the tables of a small part of the shipped suite."""
    shipped = Release("micro-1")
    candidates = shipped.candidates[shipped.candidates["chosen"]].head(2).reset_index(drop=True)
    boards = pd.concat([shipped._boards[t].assign(task=t) for t in candidates["task"]], ignore_index=True)
    return to_dict(shipped.spec), candidates, boards


def saved(folder, spec, candidates, boards):
    """Write a release, with valid checksums."""
    save_json(folder / "release.json", spec)
    save_frame(folder / "candidates.parquet", candidates)
    save_frame(folder / "boards.parquet", boards)
    return folder


COLUMNS = ("chosen", "split", "task", "dna", "thresholds", "oracle", "gates", "digest", "cell")


@pytest.mark.parametrize("column", COLUMNS)
def test_a_release_without_a_column(release, tmp_path, column):
    """The column and the file are named."""
    spec, candidates, boards = release
    saved(tmp_path, spec, candidates.drop(columns=column), boards)
    with pytest.raises(ForeignFileError, match=f"candidates.parquet lacks the field {column}"):
        Release(tmp_path)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("split", "zz", "Splits are train, val, test"),
        ("dna", "{}", "dna|digest|task"),
        ("dna", "[", "dna"),
        ("dna", "null", "dna"),
        ("thresholds", "{}", "thresholds"),
        ("thresholds", "5", "thresholds"),
        ("oracle", "[]", "oracle"),
        ("gates", "5", "gates"),
        ("gates", '[{"number": 1}]', "gates"),
        ("gates", "[[1]]", "gates"),
    ],
)
def test_a_release_with_a_row_of_another_form(release, tmp_path, column, value, said):
    """Task or field are named, and the file."""
    spec, candidates, boards = release
    saved(tmp_path, spec, candidates.assign(**{column: value}), boards)
    with pytest.raises(ForeignFileError, match=said) as caught:
        list(Release(tmp_path).records())
    assert "candidates.parquet" in str(caught.value)


def test_a_release_with_other_tables(release, tmp_path):
    """No boards of a task, no scores in them, tasks twice, a specification of another form."""
    spec, candidates, boards = release
    first = candidates["task"][0]
    cases = [
        (spec, candidates, boards[boards["task"] != first], "boards.parquet .*no board"),
        (spec, candidates, boards.drop(columns="private"), "boards.parquet lacks the field private"),
        (spec, candidates, boards.drop(columns="task"), "boards.parquet lacks the field task"),
        (spec, candidates, boards.assign(public="x"), "boards.parquet .*public"),
        (spec, candidates.assign(task=first), boards, "candidates.parquet .*twice"),
        (spec, candidates.assign(chosen=1), boards, "candidates.parquet .*chosen"),
        (spec | {"sizes": 5}, candidates, boards, "release.json .*sizes"),
        ([], candidates, boards, "release.json"),
    ]
    for number, (*tables, said) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        saved(folder, *tables)
        with pytest.raises(ForeignFileError, match=said):
            Release(folder)
    whole = Release(saved(tmp_path, spec, candidates, boards))
    with pytest.raises(ParameterError, match="train, val, test"):
        list(whole.records("zz"))
    with pytest.raises(UnknownIdError):
        whole.record("t0")


SPEC = SequenceSpec((3, 2), context=4)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        {},
        {"sizes": [3, 2]},
        {"sizes": 5, "context": 4},
        {"sizes": ["a"], "context": 4},
        {"sizes": [3, 2], "context": 4, "more": 1},
        {"sizes": [0], "context": 4},
        {"sizes": [3, 2], "context": "4"},
    ],
)
def test_a_card_of_another_form(tmp_path, spec):
    """Is foreign, and named."""
    path = save_grammar(tmp_path, "p", GrammarPolicy(SPEC))
    card = path.with_suffix(".json")
    save_json(
        card, {k: v for k, v in load_json(card).items() if k != "spec"} | ({} if spec is None else {"spec": spec})
    )
    with pytest.raises(ForeignFileError, match=r"p\.json"):
        load_grammar(path)


@pytest.mark.parametrize("spec", [{"sizes": [3, 3]}, {"context": 5}, {"feedback": 7}, {"sizes": [10**9, 2]}])
def test_a_card_of_other_lists(tmp_path, spec):
    """Is found out before a network of its extents is made."""
    path = save_grammar(tmp_path, "p", GrammarPolicy(SPEC))
    card = load_json(path.with_suffix(".json"))
    save_json(path.with_suffix(".json"), card | {"spec": card["spec"] | spec})
    with pytest.raises(CheckpointError, match="shape|sizes"):
        load_grammar(path)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("head.bias", lambda w: np.full_like(w, np.nan)),
        ("shift", lambda w: w + np.inf),
        ("scale", lambda w: -w),
        ("scale", np.zeros_like),
        ("head.weight", lambda w: w.astype(np.int8)),
        ("head.weight", lambda w: w.astype(np.float64)),
        ("head.weight", lambda w: w[:1]),
        ("head.bias", None),
        ("slot.weight", None),
        ("sizes", lambda w: w[::-1].copy()),
        ("sizes", lambda w: w.astype(np.float64)),
    ],
)
def test_weights_of_another_kind(tmp_path, name, change):
    """NaN, other numbers, other shapes, none: named, and never loaded."""
    path = save_grammar(tmp_path, "p", GrammarPolicy(SPEC))
    tensors, about = load_tensors(path)
    weights = {k: v for k, v in tensors.items() if k != name} | (
        {} if change is None else {name: change(tensors[name])}
    )
    save_tensors(path, weights, about)
    with pytest.raises(CheckpointError, match=name):
        load_grammar(path)


def test_a_policy_of_other_lists_or_other_tasks():
    """Says what it writes and what pipelines are; what it reads and what a task has."""
    with pytest.raises(ParameterError, match="Pipelines are lists of"):
        PolicyAgent(GrammarPolicy(SPEC), "mine")
    arenas = toy_arenas(1)
    right = spec_of(arenas)
    agent = PolicyAgent(GrammarPolicy(SequenceSpec(right.sizes, right.context + 1, right.feedback)), "mine")
    with pytest.raises(ParameterError, match="mine reads .* landmarks"):
        agent.propose([Question(arenas[0])], np.random.default_rng(0))


@pytest.mark.parametrize("wrong", [{"first_uid": 2**40}, {"first_uid": 2**31}, {"first_uid": 0}, {"slots": 10**6}])
def test_a_user_that_no_machine_has(tmp_path, wrong):
    """The argument is at fault, not the machine."""
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        WarmForkServer(tmp_path, **wrong)


@pytest.mark.parametrize("wrong", [-1, 10**9, 2.5, "many"])
def test_resamples_that_no_machine_can_hold(wrong):
    """Refused by name; the submission is not at fault."""
    task = victim_task("value", 0, 80)
    with pytest.raises(ParameterError, match="resamples"):
        task.judge().grade(task.tables.sample_submission, resamples=wrong)


def test_good_files_are_still_believed(home, tmp_path):
    """A copy of the suite, and a policy that is written and read."""
    root, task = home
    shutil.copytree(root, tmp_path / "copy")
    assert Suite(tmp_path / "copy").judge(task).meta.name == task and issubclass(ForeignFileError, RlOodkitError)
    policy = GrammarPolicy(SPEC, seed=3)
    back = load_grammar(save_grammar(tmp_path, "p", policy))
    assert all(np.array_equal(a, back.weights()[k]) for k, a in policy.weights().items())
