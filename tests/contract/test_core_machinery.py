"""Light imports, quiet progress, executors that agree, results that keep their names."""

import io
import json
import os
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from rl_oodkit.core.errors import ParameterError, RunInterrupted, StoreError, UnitFailedError
from rl_oodkit.core.executors import Executor, ProcessExecutor, SerialExecutor, make_executor
from rl_oodkit.core.progress import Bar, track
from rl_oodkit.core.runs import Group, RunSpec, RunStore, default_root, run_units

HEAVY = {"pandas", "pyarrow", "scipy", "sklearn", "torch", "matplotlib", "tqdm", "safetensors", "tomli_w"}


def test_the_core_is_light():
    """All of it together loads NumPy and the standard library."""
    program = (
        "import sys, pkgutil, importlib, rl_oodkit.core as core\n"
        "for m in pkgutil.iter_modules(core.__path__): importlib.import_module('rl_oodkit.core.' + m.name)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


class Terminal(io.StringIO):
    """Stand for a terminal."""

    def isatty(self) -> bool:
        """Claim to be one."""
        return True


@pytest.fixture
def loud(monkeypatch):
    """Let progress speak, as it does outside the tests."""
    monkeypatch.delenv("RL_OODKIT_PROGRESS", raising=False)


def ticking(step: float):
    """Make a clock that moves at every look."""
    now = [0.0]

    def clock() -> float:
        """Move and tell."""
        now[0] += step
        return now[0]

    return clock


def test_a_log_gets_few_lines_and_the_end(loud):
    """At most one line in five seconds; the last one says that all is done."""
    stream = io.StringIO()
    with Bar(100, "units", stream=stream, clock=ticking(0.4)) as bar:
        for _ in range(100):
            bar.advance()
    lines = stream.getvalue().splitlines()
    times = [float(line.split(", ")[1].split()[0]) for line in lines]
    assert lines[-1].startswith("units: 100/100") and len(lines) > 3
    assert all(b - a >= 4 for a, b in zip(times[:-2], times[1:-1], strict=True))


def test_short_work_prints_nothing(loud, capsys):
    """Nothing in a log, nothing in a chapter."""
    assert list(track(range(3), "short")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar_and_the_variable_silences_it(loud, monkeypatch):
    """Whoever watches decides."""
    shown = Terminal()
    with Bar(2, "units", stream=shown) as bar:
        bar.advance(2, "done")
    assert "units" in shown.getvalue() and "2/2" in shown.getvalue()
    monkeypatch.setenv("RL_OODKIT_PROGRESS", "0")
    silent = Terminal()
    with Bar(2, "units", stream=silent) as bar:
        bar.advance(2)
    assert silent.getvalue() == ""


def test_a_bar_is_closed_by_an_error(loud):
    """The terminal's next line is free again."""
    shown = Terminal()
    with pytest.raises(ZeroDivisionError), Bar(2, "units", stream=shown):
        1 / 0  # noqa: B018
    assert shown.getvalue().endswith("\n")


def test_executors_agree_and_name_failures():
    """The same pairs, and the same words for the same failure."""
    both = [SerialExecutor(), ProcessExecutor(2)]
    items = list(range(20))
    assert [sorted(e.map(abs, items)) for e in both] == [[(i, i) for i in items]] * 2
    assert all(isinstance(e, Executor) and list(e.map(abs, [])) == [] for e in both)
    words = []
    for e in both:
        with pytest.raises(UnitFailedError) as error:
            list(e.map(int, ["1", "x"]))
        words.append(str(error.value))
        assert "ValueError" in "".join(error.value.__notes__)
    assert words[0] == words[1] and words[0].startswith("'x' failed: ValueError: invalid literal")


def test_what_cannot_travel_is_an_error_and_not_a_hang():
    """A lambda has no name that a worker could import."""
    with pytest.raises(UnitFailedError, match="failed"):
        list(ProcessExecutor(1).map(lambda x: x, [1]))


def test_leaving_the_results_early_ends_the_workers():
    """Nobody waits for calls whose results are not wanted."""
    start = time.monotonic()
    results = ProcessExecutor(2).map(time.sleep, [0.0, 30.0])
    assert next(results)[0] == 0
    results.close()
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("bad", [{"name": "dask"}, {"name": "local", "workers": 0}, {"name": "local", "workers": 1.5}])
def test_bad_executors_are_refused(bad):
    """By name and by number."""
    with pytest.raises(ParameterError):
        make_executor(**bad)


def test_the_key_of_a_unit_is_fixed_for_ever():
    """Results on disk are found by it, so it may not change with the code."""
    unit = RunSpec("board", {"detector": "gmm/transition", "n": 3, "x": 0.5}, 7, 2, {"policy": "ab"})
    text = (
        '{"inputs":{"policy":"ab"},"params":{"detector":"gmm/transition","n":3,"x":0.5},'
        '"result_version":2,"seed":7,"task":"board"}'
    )
    import hashlib

    assert unit.key == hashlib.sha256(text.encode()).hexdigest()
    assert unit.name == f"board {unit.key[:12]}"


def test_a_unit_cannot_be_changed_from_outside():
    """Its parameters are a copy in written form."""
    params = {"x": [1, 2], "y": np.float64(0.5), "z": (1,), "a": np.arange(2)}
    unit = RunSpec("t", params)
    key = unit.key
    params["x"].append(3)
    assert unit.key == key and unit.params == {"x": [1, 2], "y": 0.5, "z": [1], "a": [0, 1]}
    assert len({unit, RunSpec("t", unit.params)}) == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"task": ""},
        {"task": 3},
        {"seed": -1},
        {"seed": 0.5},
        {"result_version": 0},
        {"params": {"x": object()}},
        {"params": {"x": float("nan")}},
        {"params": {1: 2}},
        {"inputs": {"x": open}},
    ],
)
def test_bad_units_are_refused_at_once(bad):
    """Where the caller's line is still on the traceback."""
    with pytest.raises(ParameterError):
        RunSpec(**({"task": "t", "params": {}} | bad))


def test_a_unit_is_saved_and_loaded_with_arrays(tmp_path):
    """Table, arrays and the facts in the manifest."""
    store, unit = RunStore(tmp_path), RunSpec("t", {"x": 1})
    assert not store.is_done(unit)
    with pytest.raises(StoreError, match="is not finished"):
        store.load(unit)
    frame, arrays = pd.DataFrame({"x": [1.0, np.nan]}), {"a": np.eye(2)}
    store.save(unit, frame, arrays, {"wall_seconds": 0.25})
    pd.testing.assert_frame_equal(store.load(unit), frame)
    assert store.load_arrays(unit)["a"].tolist() == np.eye(2).tolist()
    body = json.loads((store.folder(unit) / "manifest.json").read_text())
    assert body["info"] == {"wall_seconds": 0.25} and body["peak_rss_bytes"] > 1e6
    assert set(body["files"]) == {"spec.json", "result.parquet", "arrays.npz"}
    assert len(body["source_sha256"]) == 64 and body["package_version"]
    store.save(unit, frame)
    assert store.load_arrays(unit) == {}


def test_a_folder_under_another_name_is_not_believed(tmp_path):
    """The description inside must be the one that was asked for."""
    store, a, b = RunStore(tmp_path), RunSpec("t", {"x": 1}), RunSpec("t", {"x": 2})
    store.save(a, pd.DataFrame({"x": [1]}))
    store.folder(b).parent.mkdir(exist_ok=True)
    os.rename(store.folder(a), store.folder(b))
    assert not store.is_done(b)
    with pytest.raises(StoreError, match="another unit"):
        store.load(b)


def test_the_root_can_be_chosen(monkeypatch, tmp_path):
    """By the variable; by the clone otherwise."""
    monkeypatch.setenv("RL_OODKIT_RUNS", str(tmp_path))
    assert default_root() == tmp_path == RunStore().root
    monkeypatch.delenv("RL_OODKIT_RUNS")
    assert default_root().parts[-2:] == ("data", "runs")


class Interrupting:
    """Stand for somebody who presses Ctrl-C between two results."""

    def __init__(self) -> None:
        self.closed = False

    def map(self, fn, items):
        """Yield one result, and note when nobody wants more."""
        try:
            fn(items[0])
            yield 0, None
            raise KeyboardInterrupt
        finally:
            self.closed = True


def test_an_interrupt_between_results_closes_the_executor(tmp_path):
    """And says what is finished."""
    executor = Interrupting()
    groups = [
        Group("rl_oodkit.reproduce.kills:_tiny", {"log": str(tmp_path / "log")}, (RunSpec("tiny", {"unit": i}),))
        for i in range(3)
    ]
    with pytest.raises(RunInterrupted, match="some work was interrupted with 1 of 3 units finished"):
        run_units(groups, RunStore(tmp_path / "runs"), executor, "some work")
    assert executor.closed


@pytest.mark.parametrize("fn", ["nowhere:f", "os:nothing", "os", "", ":f"])
def test_a_function_that_cannot_be_found_is_named(tmp_path, fn):
    """Before anything is computed."""
    group = Group(fn, {}, (RunSpec("t", {}),))
    with pytest.raises((ParameterError, UnitFailedError), match="cannot be found"):
        run_units([group], RunStore(tmp_path), SerialExecutor(), "lost")
