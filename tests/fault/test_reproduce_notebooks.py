"""A notebook's results appear whole or not at all, and a failure leads to the cell."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from rl_oodkit.core.errors import NotebookError, ParameterError
from rl_oodkit.core.executors import ProcessExecutor
from rl_oodkit.core.store import load_json
from rl_oodkit.reproduce.notebooks import Job, read_manifest, run_notebook, run_notebooks

SUMMARY = "from rl_oodkit.core.store import save_json\nsave_json(f'{out}/summary.json', {'answer': scale})"
DEATHS = {
    "raise": ("1 / 0", "ZeroDivisionError"),
    "kill": ("import os\nos.kill(os.getpid(), 9)", "killed"),
    "leave": ("import os\nos._exit(0)", "killed"),
    "exit": ("import sys\nsys.exit(0)", "incomplete"),
    "endless": ("while True: pass", "did not finish within 1 s"),
    "missing": ("import a_package_that_is_not_there", "ModuleNotFoundError"),
    "disk": ("with open('/dev/full', 'w') as f: f.write('x' * 9999)", "No space left"),
    "no-result": ("import pathlib\npathlib.Path(f'{out}/summary.json').unlink()", "no sound summary.json"),
}


def notebook(folder: Path, *cells: str, name: str = "trial", first: str = 'out: str = "."\nscale: float = 1.0') -> Path:
    """Write a notebook with parameters and these cells."""
    head = nbformat.v4.new_code_cell(first, id="parameters", metadata={"tags": ["parameters"]})
    body = [nbformat.v4.new_code_cell(text, id=f"step-{i}") for i, text in enumerate(cells)]
    spec = {"name": "python3", "language": "python", "display_name": "python3"}
    path = folder / f"{name}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[head, *body], metadata={"kernelspec": spec}), path)
    return path


@pytest.mark.parametrize("death", DEATHS)
def test_a_failing_notebook_leaves_no_result_and_names_the_cell(tmp_path, death):
    """However a notebook dies, there is no result folder, no working folder, and a message that leads there."""
    cell, expected = DEATHS[death]
    job = Job("trial", notebook(tmp_path, SUMMARY, cell, "after = 1"))
    with pytest.raises(NotebookError) as caught:
        run_notebook(job, tmp_path / "out", timeout=1 if death == "endless" else None)
    assert expected in str(caught.value)
    assert "trial.ipynb" in str(caught.value)
    assert death == "no-result" or "cell step-1 (number 3)" in str(caught.value)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["trial.failed.ipynb"]


def test_parameters_arrive_and_results_are_complete(tmp_path):
    """The value given is the value used, and the manifest describes every file."""
    outcome = run_notebook(Job("trial", notebook(tmp_path, SUMMARY), {"scale": 3}), tmp_path / "out")
    manifest = read_manifest(outcome.folder)
    assert load_json(outcome.folder / "summary.json") == {"answer": 3}
    on_disk = {p.name for p in outcome.folder.iterdir()} - {"manifest.json", "manifest.json.sha256"}
    assert set(manifest["files"]) == on_disk
    assert manifest["parameters"] == {"scale": 3} and len(manifest["inputs"]["notebook"]) == 64


def test_a_run_is_skipped_exactly_when_nothing_changed(tmp_path):
    """Same parameters and source: skipped. Another parameter, another source, damage, or force: run."""
    path, out = notebook(tmp_path, SUMMARY), tmp_path / "out"
    status = lambda parameters, **options: run_notebook(Job("trial", path, parameters), out, **options).status
    assert [status({}), status({}), status({"scale": 2.0})] == ["done", "skipped", "done"]
    (out / "trial" / "trial.ipynb").write_text("{}")
    assert [status({"scale": 2.0}), status({"scale": 2.0}, force=True)] == ["done", "done"]
    notebook(tmp_path, SUMMARY, "more = 1")
    assert status({"scale": 2.0}) == "done"


def test_a_failure_keeps_the_older_result(tmp_path):
    """A run that fails does not take away what an earlier run has made."""
    out = tmp_path / "out"
    run_notebook(Job("trial", notebook(tmp_path, SUMMARY)), out)
    with pytest.raises(NotebookError):
        run_notebook(Job("trial", notebook(tmp_path, SUMMARY, "1 / 0")), out)
    assert read_manifest(out / "trial") is not None and (out / "trial.failed.ipynb").exists()


def test_kernels_side_by_side_do_not_hear_each_other(tmp_path):
    """Six notebooks in three processes each get their own parameter back."""
    path = notebook(tmp_path, "import time\ntime.sleep(0.2)", SUMMARY)
    jobs = [Job(f"trial-{i}", path, {"scale": float(i)}) for i in range(6)]
    outcomes = run_notebooks(jobs, tmp_path / "out", executor=ProcessExecutor(3))
    assert [o.status for o in outcomes] == ["done"] * 6
    assert [load_json(o.folder / "summary.json")["answer"] for o in outcomes] == list(range(6))


def test_dependants_wait_and_do_not_run_after_a_failure(tmp_path):
    """A job runs after those it reads; when one of them fails it is not run, and others are."""
    good, bad = notebook(tmp_path, SUMMARY, name="good"), notebook(tmp_path, "1 / 0", name="bad")
    jobs = [Job("c", good, {}, ("a",)), Job("d", good, {}, ("b",)), Job("a", good), Job("b", bad)]
    told = []
    outcomes = run_notebooks(jobs, tmp_path, tell=lambda outcome: told.append(outcome.name))
    assert [o.status for o in outcomes] == ["done", "failed", "done", "failed"]
    assert "not run: b failed" in outcomes[1].error and told.index("a") < told.index("c")


def test_a_reader_runs_again_when_what_it_reads_was_made_anew(tmp_path):
    """The manifest of a predecessor is part of the reader's key."""
    path = notebook(tmp_path, SUMMARY)
    jobs = [Job("a", path), Job("b", path, {}, ("a",))]
    run_notebooks(jobs, tmp_path)
    assert [o.status for o in run_notebooks(jobs, tmp_path)] == ["skipped", "skipped"]
    run_notebook(jobs[0], tmp_path, force=True)
    assert [o.status for o in run_notebooks(jobs, tmp_path)] == ["skipped", "done"]


def test_circles_are_refused(tmp_path):
    """Jobs that wait for each other are an error before anything runs."""
    path = notebook(tmp_path, SUMMARY)
    with pytest.raises(ParameterError, match="wait for each other"):
        run_notebooks([Job("a", path, {}, ("b",)), Job("b", path, {}, ("a",))], tmp_path)


def test_a_notebook_must_say_where_it_writes(tmp_path):
    """Without the parameter `out` a notebook cannot be run here."""
    with pytest.raises(ParameterError, match="out"):
        run_notebook(Job("trial", notebook(tmp_path, "a = 1", first="scale: float = 1.0")), tmp_path)


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_resumes(tmp_path, name):
    """Ctrl-C ends with 130 and no failure file; after SIGKILL too, the same call makes the result."""
    path = notebook(tmp_path, "import time, os\ntime.sleep(float(os.environ.get('NAP', 0)))", SUMMARY)
    code = (
        "import sys\nfrom pathlib import Path\nfrom rl_oodkit.core.errors import RunInterrupted\n"
        "from rl_oodkit.reproduce.notebooks import Job, run_notebook\n"
        f"try:\n    run_notebook(Job('trial', Path({str(path)!r})), {str(tmp_path / 'out')!r})\n"
        "except RunInterrupted as stop:\n    print(stop)\n    sys.exit(130)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "NAP": "60"}, start_new_session=True)
    part = lambda: list((tmp_path / "out").glob(".trial.*.part/trial.ipynb"))
    deadline = time.time() + 60
    while not (part() and '"running"' in part()[0].read_text()) and time.time() < deadline:
        time.sleep(0.1)
    os.kill(process.pid, name)
    assert process.wait(20) == (130 if name == signal.SIGINT else -9)
    assert not (tmp_path / "out" / "trial").exists() and not (tmp_path / "out" / "trial.failed.ipynb").exists()
    (outcome,) = run_notebooks([Job("trial", path)], tmp_path / "out")
    assert outcome.status == "done" and not part()


def test_the_executed_notebook_is_kept_with_the_injected_parameters(tmp_path):
    """What was run can be read afterwards, with the values it was run with."""
    outcome = run_notebook(Job("trial", notebook(tmp_path, SUMMARY), {"scale": 7.5}), tmp_path / "out")
    cells = json.loads((outcome.folder / "trial.ipynb").read_text())["cells"]
    injected = [c for c in cells if "injected-parameters" in c["metadata"].get("tags", [])]
    assert len(injected) == 1 and "scale = 7.5" in "".join(injected[0]["source"])


def test_a_kernel_that_cannot_start_is_quoted(tmp_path, monkeypatch):
    """Without a working kernel package the message holds what the kernel's process said."""
    (tmp_path / "ipykernel_launcher.py").write_text("raise ImportError('no kernel package here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NotebookError, match="no kernel package here"):
        run_notebook(Job("trial", notebook(tmp_path, SUMMARY)), tmp_path / "out")


def test_a_worker_that_dies_fails_its_notebook_and_the_run_goes_on(tmp_path):
    """When the process that watches a kernel is killed, the outcome says so, and later notebooks still run."""
    watcher = "import os\nos.kill(os.getppid(), 9)"
    jobs = [Job("bad", notebook(tmp_path, watcher, name="bad"))]
    (outcome,) = run_notebooks(jobs, tmp_path / "out", executor=ProcessExecutor(1))
    assert (
        outcome.status == "failed" and "worker process died" in outcome.error and outcome.error.startswith("bad failed")
    )
    assert not (tmp_path / "out" / "bad").exists()
