"""Every experiment is a papermill notebook with declared parameters, and all of them run in the smoke profile."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
from house import NBS, ROOT, read_notebook

EXPERIMENTS = sorted((NBS / "experiments").glob("*.ipynb"))
PARAMETER = re.compile(r"^(\w+): \S.* = .+#\s\S")
MAIN = "import sys; from rl_oodkit.cli import main; main(sys.argv[1:])"


def profiles() -> dict:
    """Return the profile file."""
    return tomllib.loads((NBS / "experiments" / "profiles.toml").read_text(encoding="utf-8"))


def parameters(path) -> str:
    """Return the text of the cell tagged `parameters`."""
    tagged = [c for c in read_notebook(path)["cells"] if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1, "one cell is tagged `parameters`"
    return tagged[0]["source"]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_an_experiment_declares_its_parameters(path):
    """Front matter keeps it out of the chapters; every parameter has a type, a default and a comment."""
    cells = read_notebook(path)["cells"]
    assert cells[0]["cell_type"] == "raw" and "skip_exec: true" in cells[0]["source"]
    opening = next(c["source"] for c in cells if c["cell_type"] == "markdown")
    assert re.match(r"# \S.*\n+> \S", opening)
    lines = [line for line in parameters(path).splitlines() if line.strip() and not line.startswith("#")]
    assert lines and not [line for line in lines if not PARAMETER.match(line)]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_an_experiment_has_all_three_sizes(path):
    """Each profile names each experiment, and only parameters that the notebook declares."""
    declared = {PARAMETER.match(line)[1] for line in parameters(path).splitlines() if PARAMETER.match(line)}
    for profile in ("smoke", "quick", "full"):
        assert path.stem in profiles()[profile]
        assert set(profiles()[profile][path.stem]) <= declared


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Run all experiments in the smoke profile, in a folder of their own."""
    out = tmp_path_factory.mktemp("smoke")
    command = [sys.executable, "-c", MAIN, "reproduce", *(p.stem for p in EXPERIMENTS), "--profile", "smoke"]
    env = os.environ | {"RL_OODKIT_RUNS": str(out / "runs"), "RL_OODKIT_PROGRESS": "0"}
    done = subprocess.run(
        [*command, "--out", str(out / "results")],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out / "results", done.stdout


@pytest.mark.slow
def test_every_experiment_runs_in_the_smoke_profile(smoke):
    """Each leaves a manifest, and at least one table in both forms or one figure."""
    results, said = smoke
    for path in EXPERIMENTS:
        folders = [p.parent for p in results.rglob("manifest.json") if p.parent.name == path.stem]
        assert len(folders) == 1, path.stem
        names = {p.suffix for p in folders[0].rglob("*")}
        assert {".csv", ".tex"} <= names or names & {".png", ".svg"}, path.stem
        assert path.stem in said


@pytest.mark.slow
def test_the_report_stands_alone(smoke):
    """One HTML file, named at the end of the run, that loads nothing from elsewhere and shows every experiment."""
    results, said = smoke
    (report,) = results.rglob("*.html")
    html = report.read_text(encoding="utf-8")
    assert report.name in said
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)[^"']+""", re.sub(r"<a [^>]*>", "", html))
    for path in EXPERIMENTS:
        title = re.search(
            r"# (.+)", next(c for c in read_notebook(path)["cells"] if c["cell_type"] == "markdown")["source"]
        )
        assert title[1].strip() in html, path.stem
