"""Workers that hang, die or are interrupted, and files of memory that are damaged or foreign."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import numpy as np
import pytest

from rl_oodkit.core.errors import ForeignFileError, ParameterError
from rl_oodkit.mle.executor import PipelineExecutor
from rl_oodkit.mle.memo import Memo, memo_key
from rl_oodkit.mle.pipeline import Pipeline, run_pipeline, same_outcome
from rl_oodkit.mle.practitioner import population
from rl_oodkit.mle.toys import toy_task
from rl_oodkit.mle.workers import Pool

TASK = toy_task(missing=0.1)
SLOW = toy_task("tabular", "regression", rows=40_000)  # support vectors take minutes on it
HANG = Pipeline(model="svm", regularisation="low")


def test_a_pool_survives_a_hanging_and_a_dying_worker(monkeypatch):
    """The hung one is killed at its limit, the killed one's run is repeated, and all outcomes are right."""
    crowd = population(TASK.meta, 4)
    with PipelineExecutor(workers=1, time_limit_s=3.0) as executor:
        first = executor.run([(TASK, crowd[0])])
        before = executor._pool.workers[0].process
        os.kill(before.pid, signal.SIGKILL)
        outcomes = executor.run([(TASK, crowd[1]), (SLOW, HANG), (TASK, crowd[2])])
        processes = [w.process for w in executor._pool.workers]
        assert executor._pool.died == 1 and executor._pool.killed == 1 and executor.counts.timeouts == 1
    assert [o.status for o in outcomes] == ["ok", "timeout", "ok"] and "longer than 3 s" in outcomes[1].reason
    for pipeline, o in zip(crowd, (*first, outcomes[0], outcomes[2]), strict=False):
        assert same_outcome(o, run_pipeline(pipeline, TASK))
    assert not before.is_alive() and not any(p.is_alive() for p in processes)


class Fake:
    """Stand for a worker whose pipe always breaks."""

    def __init__(self) -> None:
        self.job, self.ready, self.deadline, self.known = None, True, time.monotonic() + 100, set()
        self.pipe, theirs = os.pipe()
        os.close(theirs)

    def give(self, job, limit, seed) -> None:
        """Take the job and be dead."""
        self.job = job

    def end(self, kindly=False) -> None:
        """Close the pipe."""
        os.close(self.pipe)


def test_a_pipeline_that_kills_two_workers_is_given_up(monkeypatch):
    """One death may be an accident; after the second the run is an error and the batch goes on."""
    from rl_oodkit.mle import workers

    class Broken:
        """Refuse to be read."""

        def __init__(self, number: int) -> None:
            self.number = number

        def fileno(self) -> int:
            """Return what can be waited for."""
            return self.number

        def recv(self):
            """Report the end."""
            raise EOFError

    def fake() -> Fake:
        """Make a worker that dies of everything."""
        worker = Fake()
        number = worker.pipe
        worker.pipe, worker.end = Broken(number), lambda kindly=False: os.close(number)
        return worker

    monkeypatch.setattr(workers, "_Worker", fake)
    pool = Pool(1, 5.0, 0)
    job = workers.Job("key", TASK, Pipeline())
    (found,) = pool.run([job])
    assert found[0] is job and found[1].status == "error" and "WorkerDied" in found[1].reason and pool.died == 2
    pool.close()


def test_in_one_process_an_alarm_ends_a_run_between_two_steps():
    """And a run that took too long is late in any case."""
    with PipelineExecutor(time_limit_s=0.002) as executor:
        o = executor(TASK, Pipeline(model="rf", calibration="isotonic", impute="knn"))
    assert o.status == "timeout" and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_equal_canonical_forms_run_once_and_names_alone_are_not_trusted(tmp_path):
    """The memory tells two tasks of one name apart by their rows."""
    image = toy_task("image", "ordinal")
    other = replace(image, train=image.train.assign(p000=0))
    with PipelineExecutor(memo=tmp_path / "memo.npz") as executor:
        a, b, c = executor.run([(image, Pipeline()), (image, Pipeline(impute="knn")), (other, Pipeline())])
        assert a is b and a is not c and executor.counts.executed == 2 and executor.counts.asked == 3
    with PipelineExecutor(memo=tmp_path / "memo.npz") as executor:
        again = executor(image, Pipeline(encode="one-hot"))
        assert executor.counts.executed == 0 and same_outcome(a, again)


def test_timeouts_are_not_written(tmp_path):
    """They depend on how busy the machine was."""
    with PipelineExecutor(time_limit_s=0.001, memo=tmp_path / "memo.npz") as executor:
        assert executor(TASK, Pipeline(model="rf")).status == executor(TASK, Pipeline(model="rf")).status == "timeout"
        assert executor.counts.executed == 1
    assert not (tmp_path / "memo.npz").exists()


@pytest.mark.parametrize("cut", [0, 1, 50])
def test_a_damaged_memory_starts_anew_with_a_warning(tmp_path, cut):
    """Nothing wrong is read, and the next save makes the file good again."""
    path = tmp_path / "memo.npz"
    memo = Memo(path)
    memo.put(memo_key(TASK, Pipeline()), run_pipeline(Pipeline(model="nb"), TASK))
    memo.save()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data[: len(data) - cut]))
    with pytest.warns(RuntimeWarning, match="starts anew"):
        memo = Memo(path)
    assert len(memo) == 0
    memo.put(memo_key(TASK, Pipeline()), run_pipeline(Pipeline(model="nb"), TASK))
    memo.save()
    assert len(Memo(path)) == 1


def test_a_foreign_file_is_not_overwritten(tmp_path):
    """A user's own file of that name stops the work; so do arrays that are something else."""
    from rl_oodkit.core.store import save_arrays

    mine = tmp_path / "mine.npz"
    mine.write_bytes(b"my thesis")
    with pytest.raises(ForeignFileError):
        PipelineExecutor(memo=mine)
    assert mine.read_bytes() == b"my thesis"
    save_arrays(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(ForeignFileError):
        PipelineExecutor(memo=tmp_path / "other.npz")


@pytest.mark.parametrize(
    "bad", [{"workers": -1}, {"workers": 1.5}, {"time_limit_s": 0}, {"time_limit_s": float("nan")}]
)
def test_bad_numbers_are_refused(bad):
    """At the door."""
    with pytest.raises(ParameterError):
        PipelineExecutor(**bad)


def test_a_damaged_task_is_raised_before_anything_runs():
    """It is no pipeline's fault."""
    with PipelineExecutor() as executor, pytest.raises(ParameterError, match="damaged"):
        executor.run([(TASK, Pipeline()), (replace(TASK, train=TASK.train.drop(columns="target")), Pipeline())])


INTERRUPTED = """
import os, signal, sys, threading
from rl_oodkit.core.errors import RunInterrupted
from rl_oodkit.mle.executor import PipelineExecutor
from rl_oodkit.mle.pipeline import Pipeline
from rl_oodkit.mle.toys import toy_task

if __name__ == "__main__":
    task, slow = toy_task(), toy_task("tabular", "regression", rows=40_000)
    executor = PipelineExecutor(workers=1, time_limit_s=300.0, memo=sys.argv[1])
    executor(task, Pipeline(model="nb"))
    worker = executor._pool.workers[0].process
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        executor.run([(task, Pipeline(model="tree")), (slow, Pipeline(model="svm", regularisation="low"))])
    except RunInterrupted as error:
        print(error, "| worker alive:", worker.is_alive())
"""


def test_ctrl_c_keeps_what_is_finished_and_leaves_no_process(tmp_path):
    """In a process of its own; the memory then holds both finished runs."""
    script = tmp_path / "interrupted.py"
    script.write_text(textwrap.dedent(INTERRUPTED))
    command = [sys.executable, str(script), str(tmp_path / "memo.npz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL)
    assert "1 of 2 pipelines are finished" in done.stdout and "worker alive: False" in done.stdout, done.stderr
    assert len(Memo(tmp_path / "memo.npz")) == 2
