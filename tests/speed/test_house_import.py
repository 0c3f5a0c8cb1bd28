"""Importing the package is cheap, and listing is quick."""

import json
import os
import subprocess
import sys

from house import ROOT

HEAVY = ("torch", "stable_baselines3", "sklearn", "matplotlib", "papermill", "scipy.stats", "seaborn", "gymnasium")
PROBE = """
import json, sys, time
start = time.process_time()
import rl_oodkit
cost = time.process_time() - start
print(json.dumps({"cost": cost, "modules": sorted(sys.modules)}))
"""


def probe() -> dict:
    """Import the package in a fresh interpreter; return its processor seconds and what was loaded."""
    out = subprocess.run([sys.executable, "-c", PROBE], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def test_import_is_light():
    """Best of three: at most 0.7 s of processor time, and none of the heavy libraries."""
    runs = [probe() for _ in range(3)]
    loaded = set(runs[0]["modules"])
    assert not [name for name in HEAVY if name in loaded]
    assert min(r["cost"] for r in runs) <= 0.7


def test_listing_detectors_is_quick():
    """The first command a user types takes at most three seconds of processor time, best of two."""
    command = [sys.executable, "-c", "from rl_oodkit.cli import main; main()", "list", "detector"]
    costs = []
    for _ in range(2):
        before = os.times()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        after = os.times()
        costs.append(after.children_user + after.children_system - before.children_user - before.children_system)
        assert done.returncode == 0, done.stderr
    assert "clock" in done.stdout
    assert min(costs) <= 3
