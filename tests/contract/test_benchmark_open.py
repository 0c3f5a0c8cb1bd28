"""The benchmark loop is open, names what is wrong, and changes nothing that it should not."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rl_oodkit
from rl_oodkit.core import registry
from rl_oodkit.core.errors import ParameterError, StrengthError, UnknownIdError
from rl_oodkit.core.spec import content_hash, from_json, to_json
from rl_oodkit.ood.benchmark import board_detectors, board_unit
from rl_oodkit.ood.cells import BoardSpec, Cell, board_cells, board_env, parse_cell
from rl_oodkit.ood.schedules import Schedule

TOYS = Path(__file__).parent.parent / "fault"
LOOP = ("cells", "batches", "rows", "panel", "benchmark", "board_tables", "null")
SPEC = BoardSpec("dqn-lunarlander", env="lunarlander")


def run(script: str, *arguments: str) -> dict:
    """Run a script in a fresh process in which the toy modules can be imported, and return its JSON."""
    env = os.environ | {"OMP_NUM_THREADS": "1", "RL_OODKIT_PROGRESS": "0", "PYTHONPATH": str(TOYS)}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", LOOP)
def test_the_loop_knows_no_name(module):
    """No string of the loop's code, docstrings aside, is the id of anything that a board runs."""
    tree = ast.parse((Path(rl_oodkit.__file__).parent / "ood" / f"{module}.py").read_text(encoding="utf-8"))
    kinds = ("env", "injector", "features", "scorer", "accumulator", "detector", "policy")
    ids = {i for kind in kinds for i in registry.names(kind)} - {"none"}
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    found = [n.value for n in texts if id(n) not in docs and (set(n.value.replace("+", "/").split("/")) & ids)]
    assert not found


EXTENSION = """
import json, sys
from pathlib import Path
import toy_board
from rl_oodkit.core.runs import RunStore
from rl_oodkit.ood.benchmark import run_board
from rl_oodkit.ood.cells import BoardSpec

folder = Path(sys.argv[1])
sizes = {"fit": 6, "cal": 20, "test": 15, "ood": 12, "resamples": 10}
spec = BoardSpec(toy_board.policy_file(folder), families=("toy",), levels=("wild",),
                 schedule=toy_board.early_onset(), **sizes)
store = RunStore(folder / "runs")
before = run_board(spec, store)
stamps = {p: p.stat().st_mtime_ns for p in (folder / "runs").glob("*/*/manifest.json")}
import toy_extension
after = run_board(spec, store)
old = after["detector"].isin(before["detector"]) & after["cell"].isin(before["cell"])
mine = after[(after["detector"] == "my-range/obs") & (after["metric"] == "auroc_landmark")]
print(json.dumps({
    "detectors": sorted(set(after["detector"]) - set(before["detector"])),
    "cells": sorted(set(after["cell"]) - set(before["cell"])),
    "same": after[old].reset_index(drop=True).to_json() == before.to_json(),
    "kept": all(p.stat().st_mtime_ns == t for p, t in stamps.items()),
    "square": len(after.drop_duplicates(["detector", "cell"])) == after["detector"].nunique() * after["cell"].nunique(),
    "values": dict(zip(mine["cell"], mine["value"])),
}))
"""


def test_a_new_score_and_a_new_disturbance_appear_with_no_other_change(tmp_path):
    """Twenty lines each in a module of their own, imported, and both are on the default board."""
    source = (TOYS / "toy_extension.py").read_text(encoding="utf-8")
    bodies = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)]
    assert all(n.end_lineno - n.decorator_list[0].lineno + 1 <= 20 for n in bodies)
    found = run(EXTENSION, str(tmp_path))
    assert found["detectors"] == ["my-range/obs"] and found["cells"] == ["my-mirror:wild"]
    assert found["same"] and found["kept"] and found["square"]
    assert found["values"]["toy-shift:wild"] > 0.9 > found["values"]["null"]


FAULTS = """
import json, sys
from pathlib import Path
import numpy as np
import toy_board
from rl_oodkit.core.errors import RlOodkitError
from rl_oodkit.core.registry import register
from rl_oodkit.core.runs import RunStore
from rl_oodkit.ood.benchmark import run_board
from rl_oodkit.ood.cells import BoardSpec
from rl_oodkit.ood.schedules import Schedule

class Bad:
    reads = frozenset({"observations"})
    def __init__(self): self.id = self.name
    def fit(self, trajs): return self
    def calibrate(self, trajs): return self

@register("detector", "bad-length", board=False)
class Short(Bad):
    name = "bad-length"
    def score_samples(self, episode): return np.zeros(episode.length - 1)

@register("detector", "bad-infinite", board=False)
class Infinite(Bad):
    name = "bad-infinite"
    def score_batch(self, view): return view.padded(np.where(view.terminal, np.nan, np.inf))

@register("detector", "bad-peek", board=False)
class Peek(Bad):
    name = "bad-peek"
    def score_batch(self, view): return view.padded(view.rewards)

folder = Path(sys.argv[1])
policy = toy_board.policy_file(folder)
sizes = {"fit": 4, "cal": 20, "test": 12, "ood": 12, "resamples": 10}
base = {"families": ("toy",), "levels": ("wild",), "schedule": toy_board.early_onset(), **sizes}

def message(**changes):
    try:
        run_board(BoardSpec(policy, **(base | changes)), RunStore(folder / "runs"))
    except Exception as error:
        return [type(error).__name__, isinstance(error, RlOodkitError), str(error)]
    return ["nothing", False, ""]

print(json.dumps({
    "length": message(detectors=("bad-length",)),
    "infinite": message(detectors=("bad-infinite",)),
    "peek": message(detectors=("bad-peek",)),
    "one": message(detectors=("toy-square/obs",), fit=1),
    "late": message(detectors=("clock",), schedule=Schedule(onset=5000)),
}))
"""


def test_faults_of_detectors_and_splits_are_named(tmp_path):
    """Whoever is at fault is in the message, and the episode too where one is."""
    found = run(FAULTS, str(tmp_path))
    for case, words in {
        "length": ("DetectorOutputError", "'bad-length'", "episode 0"),
        "infinite": ("DetectorOutputError", "'bad-infinite'", "infinite", "episode 0"),
        "peek": ("UndeclaredFieldError", "'rewards'"),
    }.items():
        kind, ours, text = found[case]
        assert kind == "UnitFailedError" and ours and all(w in text for w in words), (case, text)
    assert found["one"][:2] == ["ParameterError", True] and "fit is 1" in found["one"][2]
    assert found["late"][0] == "nothing"  # an environment without a time limit may reach any onset


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"detectors": ("knnn/transition",)}, UnknownIdError, ("knnn", "knn")),
        ({"detectors": ("knn",)}, UnknownIdError, ("knn",)),
        ({"detectors": ("knn/transitions",)}, UnknownIdError, ("transition",)),
        ({"detectors": ("knn/transition+cusums",)}, UnknownIdError, ("cusum",)),
        ({"cells": ("gians:strong",)}, UnknownIdError, ("gians", "gain")),
        ({"cells": ("gain:enormous",)}, StrengthError, ("enormous", "Levels")),
        ({"cells": ("delay=-3",)}, StrengthError, ("-3",)),
        ({"cells": ("delay",)}, ParameterError, ("delay", "names no cell")),
        ({"cells": ("delay=many",)}, ParameterError, ("names no cell",)),
        ({"families": ("observations",)}, UnknownIdError, ("observations", "observation")),
        ({"env": "lunarlanding"}, UnknownIdError, ("lunarlander",)),
    ],
)
def test_unknown_names_are_refused_before_anything_runs(changes, error, words):
    """Configuration mistakes surface at once, with the nearest right name."""
    spec = BoardSpec(**(vars(SPEC) | changes))
    with pytest.raises(error) as caught:
        board_detectors(spec), board_cells(spec)
    assert all(w in str(caught.value) for w in words), str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"fit": 0}, {"ood": -1}, {"test": 2.5}, {"alpha": 0.0}, {"alpha": 1.0}, {"alpha": 2.0}, {"seed": -1}]
    + [{"resamples": 0}, {"horizon": 0}, {"n_min": 0}, {"levels": ()}, {"result_version": 0}],
)
def test_numbers_out_of_range_are_refused(changes):
    """A board that cannot be run cannot be described."""
    with pytest.raises(ParameterError):
        BoardSpec("some-policy", **changes)


def test_a_board_goes_through_a_file_and_its_keys_change_only_with_what_matters():
    """Detectors and cells do not enter the keys of other units; the schedule and the floor enter all."""
    assert from_json(BoardSpec, to_json(SPEC)) == SPEC
    key = lambda **changes: board_unit(BoardSpec(**(vars(SPEC) | changes)), "clock", Cell("null"), "0" * 64).key  # noqa: E731
    assert key() == key(detectors=("clock",)) == key(cells=("null",)) == key(levels=("strong",))
    for change in ({"floor": 0.005}, {"schedule": Schedule(onset=50)}, {"seed": 1}, {"fit": 100}, {"alpha": 0.1}):
        assert key(**change) != key(), change
    assert content_hash(SPEC) != content_hash(BoardSpec(**(vars(SPEC) | {"ood": 40})))


def test_cells_say_where_they_come_from():
    """Facts of a cell are those of the registered law."""
    for cell in board_cells(SPEC):
        facts = cell.facts()
        if cell.injector is None:
            assert cell.name == "null" and facts["family"] == "null"
        else:
            tags = registry.entry("injector", cell.injector).tags
            assert facts["family"] == tags["family"] and facts["strength"] == tags["levels"][cell.level]
            assert parse_cell(cell.name) == cell
    assert parse_cell("gain=-0.3").strength == -0.3


def test_the_environment_is_the_one_on_the_card():
    """A board names its environment only if it wants another than the policy's own."""
    assert board_env(BoardSpec("dqn-lunarlander")) == board_env(SPEC)
