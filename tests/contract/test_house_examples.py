"""Every example of the manual runs."""

import subprocess
import sys

from house import ROOT


def test_every_example_of_every_docstring_runs(tmp_path):
    """The doctests of all modules, in a process of their own, since some register things."""
    command = [sys.executable, "-m", "pytest", "--doctest-modules", "--pyargs", "rl_oodkit", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
