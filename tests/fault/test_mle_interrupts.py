"""Ctrl-C ends what it should, keeps what is finished, and what it says about that is true."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rl_oodkit.cli import app
from rl_oodkit.cli_agents import _arenas
from rl_oodkit.cli_tasks import _logged
from rl_oodkit.core.errors import ForeignFileError, RunInterrupted, UnitFailedError
from rl_oodkit.core.executors import SerialExecutor
from rl_oodkit.core.interrupts import insistent, interrupted
from rl_oodkit.core.store import load_frame
from rl_oodkit.mle import orchestrator, pipeline
from rl_oodkit.mle.executor import PipelineExecutor
from rl_oodkit.mle.ledger import Ledger
from rl_oodkit.mle.memo import Memo
from rl_oodkit.mle.messages import RoleLog, RoleMessage
from rl_oodkit.mle.orchestrator import walk
from rl_oodkit.mle.pipeline import Pipeline
from rl_oodkit.mle.screening import GenerationContext
from rl_oodkit.mle.suite import Suite
from rl_oodkit.mle.toys import toy_task

RUNNER = CliRunner()


def call(*words):
    """Run the command line in this process."""
    return RUNNER.invoke(app, ["mle", *map(str, words)])


def press():
    """Press Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


def deaf(seconds=20.0):
    """Swallow one interrupt, and go on."""
    try:
        press()
    except KeyboardInterrupt:
        pass
    time.sleep(seconds)


def confused():
    """Turn an interrupt into an error, as a buffer conversion in C does."""
    try:
        press()
    except KeyboardInterrupt:
        raise ValueError("'T{d:val:q:i1:}' is not a valid PEP 3118 buffer format string") from None


@pytest.mark.parametrize("step", [press, deaf, confused, lambda: deaf(0.0)])
def test_an_interrupt_comes_through(step):
    """Raised, swallowed, turned into an error, or swallowed in the last moment; and then all is as before."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), insistent(every=0.05):
        step()
    assert time.monotonic() - start < 10 and not interrupted()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_clean_up_is_not_disturbed():
    """Not in `finally`, not in `except`, not where the interrupt has become an error that says what is kept."""
    done = []
    with pytest.raises(RunInterrupted, match="kept"), insistent(every=0.02):
        try:
            try:
                press()
            finally:
                time.sleep(0.2)
                done.append("finally")
        except KeyboardInterrupt:
            time.sleep(0.2)
            done.append("except")
            try:
                raise RunInterrupted("all is kept") from None
            finally:
                time.sleep(0.2)
                done.append("afterwards")
    assert done == ["finally", "except", "afterwards"]


def test_a_second_press_ends_the_clean_up():
    """The person may not want to wait."""
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt), insistent(every=0.05):
        try:
            press()
        finally:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            time.sleep(20)
    assert time.monotonic() - start < 10


def test_other_handlers_and_threads_are_left_alone():
    """The block then means nothing."""
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with insistent():
            press()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [1]
    thread = threading.Thread(target=lambda: [seen.append(2) for _ in [0] if not insistent().__enter__()])
    thread.start()
    thread.join()
    assert seen == [1, 2] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(ZeroDivisionError), insistent(), insistent():
        1 / 0  # noqa: B018


@pytest.mark.parametrize("loss", [confused, lambda: deaf(0.0)])
def test_an_interrupted_pipeline_is_not_a_failed_one(tmp_path, monkeypatch, loss):
    """Neither its error nor its result is remembered, and what was finished before is."""
    task, real = toy_task(), pipeline._predicted

    def lossy(chosen, blocks, seed):
        """Lose Ctrl-C in the second pipeline."""
        if chosen.model != "nb":
            loss()
        return real(chosen, blocks, seed)

    monkeypatch.setattr(pipeline, "_predicted", lossy)
    executor = PipelineExecutor(memo=tmp_path / "memo.npz")
    with pytest.raises(RunInterrupted, match="1 of 2"):
        executor.run([(task, Pipeline(model="nb")), (task, Pipeline(model="tree"))])
    assert len(Memo(tmp_path / "memo.npz")) == 1
    monkeypatch.undo()
    assert [o.status for o in executor.run([(task, Pipeline(model=m)) for m in ("nb", "tree")])] == ["ok", "ok"]


def stop(*_):
    """Say how much is finished."""
    raise RunInterrupted("3 of 9 are finished")


def test_nobody_takes_an_interrupt_for_a_failure():
    """Neither an executor of units, nor the chain of roles, although the message is one of our errors."""
    with pytest.raises(RunInterrupted, match="3 of 9"):
        list(SerialExecutor().map(stop, [0]))
    with pytest.raises(UnitFailedError):
        list(SerialExecutor().map(int, ["x"]))
    role, log = type("Role", (), {"name": "developer", "act": stop})(), RoleLog(None)
    with pytest.raises(RunInterrupted):
        walk(RoleMessage("developer"), [role], GenerationContext(), log)
    assert not log.lines


RUN = ("run", "--suite", "toy", "--n", 2, "--scaffold", "bon-8", "--policy", "uniform")


def counted(monkeypatch, stop_at=None):
    """Count executions, and press Ctrl-C in one of them."""
    calls, real = [], pipeline._predicted

    def predicted(*args):
        """Count, and run."""
        calls.append(1)
        if len(calls) == stop_at:
            confused()
        return real(*args)

    monkeypatch.setattr(pipeline, "_predicted", predicted)
    return calls


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """With a file, finished pipelines are kept and not run again; the table is that of an undisturbed run."""
    assert call(*RUN, "--out", tmp_path / "whole.parquet").exit_code == 0  # the tasks are known from now on
    with monkeypatch.context() as patch:
        calls = counted(patch)
        assert call(*RUN, "--out", tmp_path / "again.parquet").exit_code == 0
        every = len(calls)
    out = tmp_path / "stopped.parquet"
    with monkeypatch.context() as patch:
        counted(patch, stop_at=6)
        result = call(*RUN, "--out", out)
    assert result.exit_code == 130 and "pipelines are kept" in result.output, result.output
    assert "Give the same command again" in result.output and not out.exists()
    with monkeypatch.context() as patch:
        calls = counted(patch)
        assert call(*RUN, "--out", out).exit_code == 0
    assert len(calls) == every - 5
    frames = [load_frame(tmp_path / f"{name}.parquet").drop(columns="cpu_seconds") for name in ("whole", "stopped")]
    assert frames[0].equals(frames[1])
    assert not list(tmp_path.glob("*.outcomes.*"))


def test_where_nothing_is_kept_nothing_is_promised(monkeypatch):
    """A run without a file, and a comparison."""
    for words in (RUN, ("eval", "--suite", "toy", "--n", 2, "--policies", "uniform,practitioner")):
        with monkeypatch.context() as patch:
            counted(patch, stop_at=2)
            result = call(*words)
        assert result.exit_code == 130 and "nothing is kept" in result.output, result.output


def test_a_cloning_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """Outcomes lie beside the policy until there is one."""
    words = ("train", "bc", "--suite", "toy", "--tries", 3, "--out", tmp_path / "bc")
    assert _arenas("toy", "train") and _arenas("toy", "val")  # known from now on
    with monkeypatch.context() as patch:
        counted(patch, stop_at=5)
        result = call(*words)
    assert result.exit_code == 130 and "pipelines are kept" in result.output
    kept = len(Memo(tmp_path / "bc" / "policy.outcomes.npz"))
    assert kept >= 1 and call(*words).exit_code == 0
    assert sorted(p.name for p in (tmp_path / "bc").glob("policy*")) == [
        f"policy.{end}" for end in ("json", "json.sha256", "safetensors", "safetensors.sha256")
    ]


def test_a_training_says_what_it_has_saved(tmp_path, monkeypatch):
    """Its states are its own, and the same command finds them."""
    words = ("train", "grpo", "--suite", "toy", "--iterations", 2, "--out", tmp_path / "grpo")
    assert _arenas("toy", "train") and _arenas("toy", "val")
    with monkeypatch.context() as patch:
        counted(patch, stop_at=5)
        result = call(*words)
    assert result.exit_code == 130 and "of 2 iterations are saved" in result.output, result.output
    assert str(tmp_path / "grpo") in result.output


GEN = ("gen", "--seeds", "linnerud", "--n", 3, "--references", 20, "--preset", "mlebench", "--seed", 3)


def contents(root: Path) -> dict[str, bytes]:
    """Return what a suite holds, without its logs."""
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and "logs" not in p.parts]
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in files}


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """Return the folder of an undisturbed generation, and what was made by number."""
    out, found, real = tmp_path_factory.mktemp("gen") / "whole", {}, orchestrator.make_task
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orchestrator, "make_task", lambda n, i, *a, **k: found.setdefault(i, real(n, i, *a, **k)))
        assert call(*GEN, "--out", out).exit_code == 0
    return out, found


@pytest.mark.parametrize("place", ["between", "files", "verdicts", "ledger"])
def test_a_generation_goes_on_where_it_stopped(generated, tmp_path, monkeypatch, place):
    """Wherever Ctrl-C came; what is settled is not made again, and the suite is that of an undisturbed run."""
    (whole, found), out, made, real = generated, tmp_path / "suite", [], orchestrator.make_task
    late = {"files": "files.save_json", "verdicts": "ledger.append_lines", "ledger": "ledger.Ledger.add"}

    def making(name, index, *args, **kwargs):
        """Count; the first case makes tasks anew, the others take those that were made before."""
        made.append(index)
        return real(name, index, *args, **kwargs) if place == "between" else found[index]

    def stopping(name, index, *args, **kwargs):
        """Press in the second candidate, or let one of its last steps press."""
        if index == 1 and place == "between":
            press()
        if index == 1:
            patch.setattr(f"rl_oodkit.mle.{late[place]}", lambda *a, **k: press())
        return making(name, index, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(orchestrator, "make_task", stopping)
        result = call(*GEN, "--out", out)
    assert result.exit_code == 130 and "1 of 3 candidates are settled" in result.output, result.output
    settled = ledger_of(out)[0].task
    before = {p: p.stat().st_mtime_ns for p in (out / "tasks" / settled).rglob("*.csv")} if settled else {}
    made.clear()
    monkeypatch.setattr(orchestrator, "make_task", making)
    for times in (1, 3):
        result = call(*GEN, "--out", out)
        assert result.exit_code == 0 and made == [1, 2] and result.output.count(", kept") == times, result.output
    assert contents(out) == contents(whole) and all(p.stat().st_mtime_ns == t for p, t in before.items())
    assert verdicts_of(out) == verdicts_of(whole)


def verdicts_of(out):
    """Return the verdicts of a suite as its check reads them."""
    return {task: [gate["number"] for gate in gates] for task, gates in _logged(out).items()}


def ledger_of(out):
    """Return the lines of a suite's ledger by index."""
    from rl_oodkit.mle.ledger import _lines

    return {line.index: line for line in _lines(out / "logs" / "tried.jsonl")}


def test_a_kept_task_that_is_damaged_is_made_again(generated, tmp_path, monkeypatch):
    """The ledger is not believed where the disk says otherwise; other settings are other candidates."""
    (whole, found), out = generated, tmp_path / "suite"
    monkeypatch.setattr(orchestrator, "make_task", lambda name, index, *args, **kwargs: found[index])
    shutil.copytree(whole, out)
    name = Suite(out).ids()[0]
    (out / "tasks" / name / "public" / "test.csv").write_text("id\n")
    result = call(*GEN, "--out", out)
    assert result.exit_code == 0 and result.output.count(", kept") == 2
    assert contents(out) == contents(whole) and Suite(out).check()
    with pytest.raises(ForeignFileError, match=r"tried\.jsonl:1"):
        (out / "logs" / "tried.jsonl").write_text('{"run": 5}\n')
        Ledger(out / "logs" / "tried.jsonl", "run")


def test_a_rebuilt_release_goes_on_where_it_stopped(tmp_path, monkeypatch):
    """Tasks that are whole are passed over."""
    from rl_oodkit.mle import release

    real, made = release.Release.records, []
    monkeypatch.setattr(release.Release, "records", lambda self: iter(list(real(self, "val", 3))))
    task = release.Record.task

    def counting(self):
        """Count, and press at the third."""
        made.append(self.dna.name)
        if len(made) == 3:
            press()
        return task(self)

    monkeypatch.setattr(release.Record, "task", counting)
    words = ("gen", "--suite", "micro-1", "--out", tmp_path / "micro")
    result = call(*words)
    assert result.exit_code == 130 and "2 of 3 tasks are written" in result.output, result.output
    result = call(*words)
    assert result.exit_code == 0 and "3 equal the release" in result.output and len(made) == 4
    assert Suite(tmp_path / "micro").check() and np.unique(made).size == 3


@pytest.mark.parametrize("after", [2.0, 4.0, 6.0, 7.0])
def test_a_real_process_stops_soon(after):
    """With the code of an interrupt, whatever it was doing."""
    words = [sys.executable, "-c", "from rl_oodkit.cli import main; main()", "mle", "run", "--suite", "toy"]
    words += ["--scaffold", "bon-16", "--policy", "uniform", "--n", "8", "--rollouts", "400"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(words, text=True, start_new_session=True, **pipes) as process:
        time.sleep(after)
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, err
    assert "Traceback" not in err and len(err.strip().splitlines()) <= 1
