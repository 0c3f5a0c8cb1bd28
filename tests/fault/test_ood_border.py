"""At the border of the benchmark, what is nearly right is refused, and what is out of date is not reused."""

import importlib
import math
import os
import sys

import numpy as np
import pytest

from rl_oodkit import cli
from rl_oodkit.core import registry
from rl_oodkit.core.errors import DetectorOutputError, OnsetError, ParameterError, StrengthError, UnknownIdError
from rl_oodkit.core.runs import RunStore
from rl_oodkit.ood import benchmark
from rl_oodkit.ood.actions import ActionDrop, ActionSwap
from rl_oodkit.ood.batches import batch_spec, cell_batch, clean_batch
from rl_oodkit.ood.benchmark import board_episodes, board_unit, run_board
from rl_oodkit.ood.cells import BoardSpec, Cell, board_cells, part_sources
from rl_oodkit.ood.detector import build_detector, default_board
from rl_oodkit.ood.injectors import injector_levels, make_injector
from rl_oodkit.ood.null import false_alarm_table, null_coverage_board
from rl_oodkit.ood.schedules import Schedule, make_schedule
from rl_oodkit.ood.sensors import Ar1, Drift, Spike

SPEC = BoardSpec("dqn-lunarlander", env="lunarlander", detectors=("clock",), fit=2, cal=2, test=2, ood=2)
INTEGER = ["delay", "adelay", "hold", "jitter", "stuck", "rdelay"]


@pytest.fixture
def forget():
    """Take out of the registry what a test has put in."""
    before = dict(registry._STATE.entries)
    yield
    registry._STATE.entries.clear()
    registry._STATE.entries.update(before)


def command(capsys, *words):
    """Run the command line; return exit code, output and errors."""
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    os.environ.pop("RL_OODKIT_DEBUG", None)
    return end.value.code, *capsys.readouterr()


@pytest.mark.parametrize("name", INTEGER)
def test_a_count_is_a_whole_number(name):
    """2.5 steps are refused, 2 and 2.0 are not."""
    with pytest.raises(StrengthError, match="Use a whole number"):
        make_injector(name, 2.5)
    assert make_injector(name, 2).at(1.0) == make_injector(name, 2.0).at(1.0) == 2


def test_declared_levels_and_ramps_of_counts_are_rounded(forget):
    """A declared 2.5 becomes 3, and half of a delay of 3 is 2."""
    registry.register("injector", "border-delay", levels={"odd": 2.5, "even": 2})(type("Late", (_delay(),), {}))
    assert injector_levels("border-delay") == {"odd": 3, "even": 2}
    assert make_injector("border-delay", "odd").at(0.5) == 2


def _delay():
    """Return the class of the delay."""
    return registry.get("injector", "delay")


LAWS = {
    "noop": lambda: ActionDrop(0.1, noop=1.5),
    "negative noop": lambda: ActionDrop(0.1, noop=-1),
    "phi": lambda: Ar1(0.1, phi=1.0),
    "phi of nan": lambda: Ar1(0.1, phi=math.nan),
    "pair": lambda: ActionSwap(0.1, pair=(1, 1)),
    "pair of three": lambda: ActionSwap(0.1, pair=(1, 2, 3)),
    "pair of text": lambda: ActionSwap(0.1, pair="13"),
    "span": lambda: Drift(0.1, span=0),
    "size": lambda: Spike(0.1, size=math.inf),
}


@pytest.mark.parametrize("make", LAWS.values(), ids=LAWS)
def test_parameters_of_laws_are_checked_when_made(make):
    """No episode is needed to find out."""
    with pytest.raises(ParameterError):
        make()


BOARDS = [{"detectors": ()}, {"floor": math.nan}, {"floor": -1.0}, {"floor": math.inf}, {"floor": "0"}]
BOARDS += [{name: "gain"} for name in ("levels", "families", "cells", "detectors")]
BOARDS += [{name: 1} for name in ("fit", "cal", "test", "ood")]
BOARDS += [{name: 10_001} for name in ("fit", "cal", "test", "ood")]
BOARDS += [{"seed": 10_000}, {"resamples": 10**9}, {"schedule": "ramp"}, {"schedule": None}]


@pytest.mark.parametrize("fields", BOARDS, ids=str)
def test_a_board_is_checked_when_made(fields):
    """Text is no list, nothing is no detector, and one episode is no sample."""
    with pytest.raises(ParameterError):
        BoardSpec("some-policy", **fields)


SCHEDULES = [
    ({"schedule": Schedule(onset=1000)}, OnsetError, "1000"),
    ({"schedule": Schedule(onset_low=1000, onset_high=1200), "cells": ("null",)}, OnsetError, "1000"),
    ({"schedule": make_schedule("ramp"), "cells": ("gain:light", "stuck:extreme")}, ParameterError, "Stuck .*ramped"),
    ({"schedule": make_schedule("ramp")}, ParameterError, "ramped"),
]


@pytest.mark.parametrize(("fields", "error", "says"), SCHEDULES, ids=range(len(SCHEDULES)))
def test_a_schedule_that_cannot_be_kept_stops_the_board_at_once(tmp_path, fields, error, says):
    """No unit is begun, so no folder is made; the null experiments refuse the same onsets."""
    spec, store = BoardSpec(**(vars(SPEC) | fields)), RunStore(tmp_path / "runs")
    for run in (run_board, board_episodes):
        with pytest.raises(error, match=says):
            run(spec, store)
    if error is OnsetError:
        for run in (null_coverage_board, false_alarm_table):
            with pytest.raises(error, match=says):
                run(spec, store)
    assert not (tmp_path / "runs").exists()


def test_a_ramp_is_kept_by_the_laws_that_may_be_ramped():
    """And an onset at the last step is reached."""
    for when in (make_schedule("ramp"), Schedule(onset=999)):
        spec = BoardSpec(**(vars(SPEC) | {"schedule": when, "cells": ("gain:light", "delay:light")}))
        assert [cell.name for cell in board_cells(spec)] == ["null", "gain:light", "delay:light"]


def test_a_level_that_no_law_declares_is_unknown(capsys):
    """A typing error does not fall back to another strength."""
    with pytest.raises(UnknownIdError, match="light"):
        board_cells(BoardSpec("dqn-lunarlander", levels=("lihgt",)))
    code, _, err = command(capsys, "bench", "ood", "--levels", "lihgt", "--list-cells")
    assert code == 1 and "light" in err
    stuck = [c.level for c in board_cells(BoardSpec("dqn-lunarlander", levels=("light",))) if c.injector == "stuck"]
    assert stuck == ["extreme"]


@pytest.mark.parametrize("option", [("--cells", ",,,"), ("--detectors", ","), ("--levels", ""), ("--families", " ")])
def test_a_given_but_empty_list_is_refused(capsys, option):
    """It does not mean all."""
    code, _, err = command(capsys, "bench", "ood", *option, "--list-cells")
    assert code == 1 and err.startswith(f"error: {option[0]}") and len(err.splitlines()) == 1


OUTPUTS = {
    "scalar": lambda n: 1.0,
    "one": lambda n: np.ones(1),
    "text": lambda n: np.array(["1"] * n),
    "complex": lambda n: np.ones(n, dtype=complex),
    "column": lambda n: np.ones((n, 1)),
}


@pytest.mark.parametrize("output", OUTPUTS.values(), ids=OUTPUTS)
def test_scores_have_one_shape_and_are_real(output):
    """What NumPy would broadcast or convert is refused by the detector's name."""
    detector = build_detector("knn/obs")
    detector.scorer.score_samples = lambda rows: output(len(rows))
    with pytest.raises(DetectorOutputError, match="knn/obs"):
        detector._scored(np.zeros((3, 2)))


def test_a_proposal_may_be_one_name(forget):
    """A text in `board` is one detector, not one for each letter."""
    registry.register("scorer", "border-one", board="border-one/obs")(type("One", (), {"__doc__": "One."}))
    assert [name for name in default_board() if "border" in name] == ["border-one/obs"]
    assert not [name for name in default_board() if len(name) == 1]


def test_a_duty_of_one_is_always_on():
    """The whole period is a fraction of it, in (0, 1]."""
    assert Schedule("recurring", period=4, duty=1.0).mask(6, 1).tolist() == [False] + [True] * 5
    for duty in (0.0, 1.1, True, math.nan):
        with pytest.raises(ParameterError):
            Schedule("recurring", period=4, duty=duty)


PART = """
from rl_oodkit.core.registry import register
from rl_oodkit.ood.contract import Injector

@register("injector", "border-shift", family="border", levels={{"medium": 0.5}})
class Shift(Injector):
    "Shift."
    def observe(self, state, observation, c): return observation + {by}

@register("scorer", "border-zero")
class Zero:
    "Zero."
"""


def test_edited_parts_have_new_keys(tmp_path, monkeypatch, forget):
    """A unit's key follows the source of the law and the scorer, and of nothing that the package brings."""
    monkeypatch.syspath_prepend(str(tmp_path))
    cell, keys = Cell("border-shift:medium", "border-shift", "medium", 0.5), []
    for by in ("0.5", "0.25  # less"):
        (tmp_path / "border_part.py").write_text(PART.format(by=by))
        sys.modules.pop("border_part", None)
        importlib.invalidate_caches()
        importlib.import_module("border_part")
        units = [batch_spec(SPEC, cell_batch(SPEC, cell), "0" * 64)]
        units += [
            board_unit(SPEC, "border-zero/obs", Cell("null"), "0" * 64),
            board_unit(SPEC, "clock", cell, "0" * 64),
        ]
        keys.append([u.key for u in units])
    assert all(old != new for old, new in zip(*keys, strict=True))
    assert batch_spec(SPEC, clean_batch(SPEC, "fit"), "0" * 64).inputs == {"policy": "0" * 64}
    assert sorted(board_unit(SPEC, "clock", Cell("null"), "0" * 64).inputs) == ["cal", "cell", "fit", "test"]
    sys.modules.pop("border_part")


def test_a_part_without_source_is_never_found_again():
    """The digest is drawn at random, with a warning, once for each definition."""
    made = [type("Lost", (), {"__module__": "nowhere"}) for _ in range(2)]
    with pytest.warns(UserWarning, match="cannot be read"):
        first, second = (part_sources({"scorer": part})["scorer source"] for part in made)
    assert first != second and part_sources({"scorer": made[0]})["scorer source"] == first


def test_force_reaches_the_episodes(tmp_path, monkeypatch):
    """`force` computes episodes again, not only scores, and the command line hands it on."""
    forced = []
    monkeypatch.setattr(benchmark, "run_units", lambda g, s, e, label, force=False: forced.append((label, force)))
    monkeypatch.setattr(cli, "_run_board", lambda *told: forced.append(told[-1]))
    run_board(BoardSpec(**{**vars(SPEC), "cells": ("null",)}), RunStore(tmp_path), force=True)
    with pytest.raises(SystemExit):
        cli.main(["bench", "ood", "--cells", "null", "--force"])
    assert forced == [("episodes", True), ("board", True), True]


def test_any_failure_is_one_line(capsys, monkeypatch):
    """Also one that nobody has thought of."""

    def fail(kind):
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(registry, "entries", fail)
    code, _, err = command(capsys, "list", "scorer")
    assert (
        code == 1
        and err == "error: ZeroDivisionError: a b. This should have been caught earlier; --debug shows the traceback.\n"
    )


def test_lists_tell_what_is_needed(capsys):
    """A required parameter is its name; injectors have family and levels, composed detectors a line."""
    _, out, _ = command(capsys, "list", "injector")
    assert "inspect" not in out and "[delay: light 2, medium 3" in out and "(strength" in out
    _, out, _ = command(capsys, "list", "detector")
    assert "inspect" not in out and any(s.startswith("gmm/transition+cusum ") and "(" in s for s in out.splitlines())
