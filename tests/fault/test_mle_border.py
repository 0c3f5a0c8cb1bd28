"""Careless arguments of what is new at the border: real rows, reservations, servers, text environments, exports."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from rl_oodkit.cli import app
from rl_oodkit.core.errors import ParameterError, RlOodkitError, SandboxUnavailableError, ShapeError, UnknownIdError
from rl_oodkit.mle.code_env import CodeEnv
from rl_oodkit.mle.compatibility import check_dna, repaired
from rl_oodkit.mle.dialogues import Dialogue, append_dialogue, load_dialogues
from rl_oodkit.mle.dna import TaskDNA
from rl_oodkit.mle.execution import Executor, StepResult
from rl_oodkit.mle.files import write_task
from rl_oodkit.mle.real_rows import law_draws, load_table, real_rows, real_table, smoothed_rows, source_rows
from rl_oodkit.mle.reservation import claim, open_register, reserve
from rl_oodkit.mle.seeds import extract
from rl_oodkit.mle.victim import victim_task
from rl_oodkit.mle.warm import Slot, WarmForkServer
from rl_oodkit.reproduce.mle_tables import price_table

WINE = TaskDNA(seed_name="real-wine")
TASK = SimpleNamespace(public=SimpleNamespace(name="t1"), judge=None)
RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda: real_rows(WINE, 5, "test"), ParameterError, "no part 'test'"),
        (lambda: source_rows(WINE, None), ParameterError, "Parts are train"),
        (lambda: real_rows(WINE, -1, "train"), ParameterError, "n is -1"),
        (lambda: real_rows(WINE, 10**12, "train"), ParameterError, "at most 10000000"),
        (lambda: real_rows(WINE, 5, "train", "first"), ParameterError, "index is 'first'"),
        (lambda: real_rows("real-wine", 5, "train"), ParameterError, "str is not a TaskDNA"),
        (lambda: real_rows(TaskDNA(), 5, "train"), UnknownIdError, "no table"),
        (lambda: real_table(None), ParameterError, "not a TaskDNA"),
        (lambda: law_draws("iris", -1, 5, RNG), ParameterError, "k is -1"),
        (lambda: law_draws("iris", 1, -5, RNG), ParameterError, "n is -5"),
        (lambda: smoothed_rows(np.zeros((3, 0)), RNG, RNG, 5), ShapeError, "no rows"),
        (lambda: smoothed_rows(np.zeros(3), RNG, RNG, 5), ShapeError, "rows"),
        (lambda: load_table("iris").columns([1, 2]), ShapeError, "shape"),
    ],
)
def test_real_rows_are_asked_for_in_words_that_exist(ask, error, said):
    """No part is taken for another, and no number for none."""
    with pytest.raises(error, match=said):
        ask()


def test_a_readers_own_data_never_become_bundled_rows():
    """A name in the reserved beginning is refused, and the bare beginning is a contradiction."""
    X = RNG.standard_normal((80, 3))
    for name in ("real-wine", "real-estate"):
        with pytest.raises(ParameterError, match="bundled rows"):
            extract(X, X[:, 0], name=name)
    with pytest.raises(ParameterError, match="only bundled tables"):
        check_dna(TaskDNA(seed_name="real-"))
    assert repaired(TaskDNA(seed_name="real-")).seed_name == ""


def test_a_register_is_locked_where_it_was_asked(tmp_path):
    """A length of 0 would lock all numbers; one text for places would be read letter by letter."""
    with open_register((str(tmp_path),)) as register:
        for first, count in ((-5, 1), (5, 0), ("5", 1), (2**70, 1)):
            with pytest.raises(ParameterError, match="first|count"):
                claim(register, first, count)
    with pytest.raises(ParameterError, match="tuple of folders"):
        reserve(64001, 1, places=str(tmp_path))
    assert not Path("/rl-oodkit-users").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"denied": 5}, "denied is 5"),
        ({"denied": "socket"}, "tuple of texts"),
        ({"denied": ("no_such_call",)}, "unknown calls"),
        ({"folders": "/etc"}, "tuple of texts"),
        ({"folders": ("/no/such",)}, "no folder '/no/such'"),
        ({"folders": ("usr",)}, "absolute"),
        ({"limits": {"processes": 3}}, "Limits"),
    ],
)
def test_a_server_is_not_started_on_a_mistake(options, said, tmp_path):
    """And holds no user number."""
    with pytest.raises(ParameterError, match=said):
        WarmForkServer(tmp_path, first_uid=955_001, **options)
    with reserve(955_001, 1, places=("/run", "/tmp", str(tmp_path))) as free:
        assert free.uids[0] == 955_001


@pytest.mark.parametrize("folder", [None, 3, "a\0b"])
def test_no_path_is_no_folder_of_tasks(folder):
    """Whatever the level."""
    with pytest.raises(ParameterError, match="public_root"):
        Executor(folder)


def test_an_interpreter_that_is_none_is_named():
    """As a server that did not start."""
    from rl_oodkit.mle.jail import JailConfig

    with pytest.raises(SandboxUnavailableError, match="did not start: No such file or directory: /no/python"):
        Slot(JailConfig("/suite/tasks"), "/no/python").start()


class Quiet(Executor):
    """Run nothing, at level 2."""

    level = 2

    def run(self, code, task, **_):
        """Say that all is well."""
        return StepResult("ok", 0, "", "")


@pytest.fixture
def quiet(monkeypatch):
    """Let environments make executors that run nothing."""
    monkeypatch.setattr("rl_oodkit.mle.levels.make_code_executor", lambda kind, root, **_: Quiet(root))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"suite": 3}, "the suite is 3"),
        ({"suite": ["toy"]}, "a name or a folder"),
        ({"tasks": 3}, "the tasks are 3"),
        ({"tasks": "toy"}, "passed as suite"),
        ({"tasks": [TASK, 3]}, "the tasks are"),
        ({"tasks": [TASK], "executor": "warm"}, "the executor is 'warm'"),
        ({"tasks": [TASK], "executor": lambda: None}, "the executor is None"),
        ({"suite": "toy", "reward": 3}, "no reward '3'"),
    ],
)
def test_an_environment_names_what_it_cannot_use(options, said, quiet):
    """In an error of this package, not in Python's words."""
    with pytest.raises(RlOodkitError, match=said):
        CodeEnv(**options)


def test_a_closed_environment_makes_no_folder_again(quiet):
    """Its folder stays away, whatever is asked of it afterwards."""
    env = CodeEnv(suite="toy")
    root = env.tasks.root
    env.reset(seed=0)
    for action in (None, 3, b"score"):
        with pytest.raises(ParameterError, match="Give a text"):
            env.step(action)
    for options in ("task", {"tsk": "t1"}):
        with pytest.raises(ParameterError, match="Options are: task"):
            env.reset(options=options)
    env.close(), env.close()
    asked = (env.reset, lambda: env.step("submit"), lambda: [env.tasks[name] for name in env.tasks])
    for ask in asked:
        with pytest.raises(RlOodkitError, match="closed|over"):
            ask()
    assert not root.parent.exists()


def test_a_dialogue_is_not_lost_to_a_missing_folder(tmp_path):
    """The folder is made."""
    append_dialogue(tmp_path / "new" / "deep" / "d.jsonl", Dialogue("t1", ()))
    assert len(load_dialogues(tmp_path / "new" / "deep" / "d.jsonl")) == 1


def test_an_export_is_whole_or_absent(tmp_path):
    """An empty split, a file in the way, another suite and a lost answer leave nothing behind."""
    tasks = [victim_task("probability", seed, 80) for seed in (0, 1)]
    for root in (tmp_path / "suite", tmp_path / "other"):
        for task in tasks:
            write_task(root, task, split="test")
    (tmp_path / "file").write_text("mine")

    def said(out: Path, *options: str) -> str:
        """Export, and return the one line of the refusal."""
        words = ["mle", "export", "mlebench", str(tmp_path / "suite"), "--out", str(out), "--force", *options]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 1
        return result.output

    assert "split val has no task" in said(tmp_path / "out", "--split", "val")
    assert "a file is in the place" in said(tmp_path / "file") and (tmp_path / "file").read_text() == "mine"
    assert "or into another one" in said(tmp_path / "other" / "tasks")
    os.remove(tmp_path / "suite" / "private" / f"{max(task.name for task in tasks)}.npz")
    assert "is missing" in said(tmp_path / "out") and not (tmp_path / "out").exists()


def test_no_trainings_have_no_prices():
    """An experiment without trainings of other settings has an empty table, with its columns."""
    columns = ["kind", "row", "key", "seed", "resumed", "executions", "execution_seconds", "learning_seconds"]
    assert price_table(pd.DataFrame(columns=columns)).set_index("kind")[["executions", "minutes"]].empty
