"""The recipes of README.md and CONTRIBUTING.md run as they are printed."""

import os
import re
import subprocess
import sys

from house import ROOT

CHECKS = """
import rl_oodkit
from sklearn.utils.estimator_checks import check_estimator

check_estimator(Spread())
rl_oodkit.check_detector("spread/transition")
rl_oodkit.check_injector("fade")
rl_oodkit.check_injector("noise", cartpole)
"""


def recipes(name: str) -> list[str]:
    """Return the Python blocks of a document."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(encoding="utf-8"), re.M | re.S)


SMALL = 'cells=("noise:strong",), fit=10, cal=20, test=20, ood=10, resamples=100'
SHOWN = """
clock = board[(board.detector == "clock") & (board.metric == "auroc_full")]
assert (clock.value == 0.5).all() and len(clock)
ours = board[(board.detector == "spread/transition") & (board.cell == "noise:strong")]
assert ours.set_index("metric").value["auroc_full"] > 0.6
"""


def run(code: str, folder) -> None:
    """Run a script in a fresh process outside the clone."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    env = os.environ | {"RL_OODKIT_RUNS": str(folder / "runs")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-4000:]


def test_example_of_the_readme(tmp_path):
    """The ten lines give a board, here of one disturbance and few episodes, on which the clock has one half."""
    (code,) = [block for block in recipes("README.md") if "run_board" in block]
    small = code.replace('"clock"))', f'"clock"), {SMALL})')
    assert small != code
    run(small + SHOWN, tmp_path)


def test_certified_example_of_the_readme(tmp_path):
    """The ten lines train a learner, here for a moment, and measure it against the optimum."""
    (code,) = [block for block in recipes("README.md") if "train(preset" in block]
    small = code.replace("steps=200_000", "steps=4096").replace("seeds=range(200)", "seeds=range(8)")
    assert small.count("range(8)") == 2
    run(small + "\nassert learned.gap_mean > 0 and nothing.gap_mean > 0\n", tmp_path)


def test_synthetic_example_of_the_readme(tmp_path):
    """The lines mark four policies at seven places, the oracle without an error."""
    (code,) = [block for block in recipes("README.md") if "probe_table" in block]
    run(code + "\nassert errors.shape[0] == 28 and (errors[errors.policy == 'oracle'].error == 0).all()\n", tmp_path)


def test_recipes_of_contributing(tmp_path):
    """The scorer, the injector and the environment exist after their recipes, and pass the public checks."""
    blocks = [block for block in recipes("CONTRIBUTING.md") if "certified_env" not in block]
    assert len(blocks) == 3 and all(len(b.strip().splitlines()) <= 22 for b in blocks)
    run("\n".join(blocks) + CHECKS, tmp_path)


def test_a_certified_family_of_contributing(tmp_path):
    """The family passes its certificate and every clause of the environment's check."""
    (code,) = [block for block in recipes("CONTRIBUTING.md") if "certified_env" in block]
    run(code + "\nfrom rl_oodkit import check_env\ncheck_env('mine/Swing-v0')\n", tmp_path)


def test_every_name_of_the_front_door_opens():
    """Each lazy name of the package resolves, and unknown names fail as in any module."""
    import rl_oodkit

    for name in rl_oodkit._HOME:
        assert getattr(rl_oodkit, name).__name__ == name
        assert name in dir(rl_oodkit)
    assert not hasattr(rl_oodkit, "no_such_name")


def test_the_task_of_the_readme(tmp_path):
    """It is accepted, and its submission has a score, an interval and a regret to the optimum."""
    (code,) = [block for block in recipes("README.md") if "make_task" in block]
    run(code + "\nassert report.interval[0] < report.score < report.interval[1] and report.regret > 0\n", tmp_path)
