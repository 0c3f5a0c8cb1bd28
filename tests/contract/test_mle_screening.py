"""Cheap questions come first, twins and failures are no entries, and the first edition still makes the first suite."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rl_oodkit.core.errors import ParameterError
from rl_oodkit.mle.build import ladder_of, measured
from rl_oodkit.mle.dna import TaskDNA
from rl_oodkit.mle.medals import entries, positions
from rl_oodkit.mle.messages import RoleMessage
from rl_oodkit.mle.orchestrator import make_task
from rl_oodkit.mle.practitioner import population
from rl_oodkit.mle.records import row_of
from rl_oodkit.mle.release import ROOTS, Release
from rl_oodkit.mle.roles import Evaluator, Strategist, repaired_dna
from rl_oodkit.mle.screening import (
    GenerationContext,
    alone_of,
    doubts,
    extended,
    foreseen,
    screened,
    shortcut_of,
    with_ceiling,
)
from rl_oodkit.mle.tables import tables


@pytest.fixture(scope="module")
def built():
    """The default task: no cell is empty, so that many sentences are twins."""
    return tables(TaskDNA())


@pytest.fixture(scope="module")
def board(built):
    """Sixteen entries, and what was met on the way to them."""
    kept = {}
    return extended(built, None, 16, distinct=True, kept=kept), kept


def test_entries_have_scores_that_nobody_had_before():
    """Copies, copies but for the last bits, and failures are left out; order is kept."""
    private = [0.7, 0.7, 0.7 + 1e-12, np.nan, 0.6, 0.7, np.inf]
    found = entries(pd.DataFrame({"public": [0.5, 0.5, 0.5, np.nan, 0.5, 0.4, 0.3], "private": private}))
    assert found.index.tolist() == [0, 4, 5]


def test_a_board_is_the_head_of_the_population_and_has_as_many_entries_as_asked_for(built, board):
    """Nothing is fitted twice, and a board that is long enough stays as it is."""
    found, kept = board
    assert found["pipeline"].tolist() == [str(p) for p in population(built.meta, len(found))]
    assert len(entries(found)) == 16 < len(found) and set(kept) == set(found.loc[found["private"].notna(), "pipeline"])
    assert extended(built, found, 16, distinct=True) is found


def test_the_ladder_of_entries_stands_at_the_published_positions(built, board):
    """Whoever drops twins and failures from the stored board finds the same medals."""
    steps = ladder_of(built, board[0], preset="mlebench", distinct=True)
    ordered = np.sort(entries(board[0])["private"].round(5))[::-1]
    assert [steps.gold, steps.silver, steps.bronze] == [ordered[p - 1] for p in positions(16)]
    assert steps.median == pytest.approx(np.median(ordered), abs=1e-5)


def test_one_failure_no_longer_makes_silver_gold(built, board):
    """Of 39 scores the best twentieth is one reference; of 40 entries two."""
    scores = np.linspace(0.5, 0.9, 40)
    full = pd.DataFrame({"pipeline": "x", "public": scores, "private": scores})
    failed = pd.concat([full.iloc[:39], full.iloc[39:].assign(private=np.nan)])
    assert [ladder_of(built, b).gold > ladder_of(built, b).silver for b in (full, failed)] == [True, False]


def test_what_tables_tell_costs_no_fit(monkeypatch):
    """A class of two rows, and a record that is known, are refused before any reference."""
    monkeypatch.setattr("rl_oodkit.mle.screening.board_of", None)
    drawn = (tables(TaskDNA(prior=(0.9, 0.1), n_train=60, seed=seed)) for seed in range(200))
    rare = next(x for x in drawn if not foreseen(x, GenerationContext())[0].passed)
    assert "gate 8" in screened(rare, GenerationContext()).doubts[0]
    known = GenerationContext(accepted=[TaskDNA()])
    assert "gate 12" in screened(tables(TaskDNA()), known).doubts[0]


def test_each_doubt_has_its_words(built, board):
    """Bronze at the sample submission, medals within noise, and a source that is enough."""
    context, alone = GenerationContext(preset="mlebench"), alone_of(built, GenerationContext())
    found, kept = board
    assert doubts(built, found, context, alone, kept) == []
    flat = found.assign(private=0.5, public=np.arange(len(found)))
    assert "gate 4" in doubts(built, flat, context, alone, kept)[0]
    near = found.assign(private=found["private"].round(1) / 1e4 + 0.9, public=np.arange(len(found)))
    assert "gate 6" in doubts(built, near, context, alone, kept)[0]
    answers = built.answers["target"].to_numpy(np.float64)
    assert "gate 9" in doubts(built, found, context, {"told": answers}, kept)[0]


def test_a_ladder_without_its_optimum_still_refuses_a_shortcut(built, board):
    """No score of the oracle is needed to tell a tier."""
    steps = ladder_of(built, board[0], distinct=True)
    assert np.isnan(steps.oracle) and shortcut_of(built, steps, alone_of(built, GenerationContext())).passed
    assert not shortcut_of(built, steps, {"told": built.answers["target"].to_numpy(np.float64)}).passed


def test_the_ceiling_may_come_late(built, board):
    """The same draft, whenever it was measured."""
    late = with_ceiling(measured(built, board[0], top=np.nan, distinct=True), 2000)
    assert late.thresholds == measured(built, board[0], rows=2000, distinct=True).thresholds
    assert late.oracle.ceiling == late.thresholds.ceiling


def test_a_refused_ladder_never_sees_the_ceiling(built, board, monkeypatch):
    """Since edition 2; by the rules of edition 1 everything is measured first."""
    asked = []
    monkeypatch.setattr("rl_oodkit.mle.roles.with_ceiling", lambda draft, *_: asked.append(1) or draft)
    monkeypatch.setattr("rl_oodkit.mle.roles.file_gates", lambda draft: [])
    found, kept = board
    flat = found.assign(private=np.where(found.index < 1, 0.9, 0.8), public=np.arange(len(found)))
    message = RoleMessage("developer", artefacts={"tables": built, "board": flat, "predictions": kept})
    for edition, times in ((2, 0), (1, 1)):
        said = Evaluator().act(message, GenerationContext(edition=edition, preset="mlebench"))
        assert said.verdict == "repair" and len(asked) == times


def test_a_repair_is_not_repaired_again():
    """The third proposal is a sibling since edition 2; before, it was the second one repaired."""
    refused = RoleMessage("evaluator", {"seed_name": "wine", "index": 3}, {"dna": TaskDNA(snr=2.0)})
    refused = replace(refused, diagnostics=("gate 7 spread: x",))
    snr = {}
    for attempt in (2, 3):
        for edition in (1, 2):
            dna = Strategist().act(replace(refused, attempt=attempt), GenerationContext(edition=edition))
            snr[attempt, edition] = dna.artefacts["dna"] == TaskDNA(snr=4.0)
    assert snr == {(2, 1): True, (2, 2): True, (3, 1): True, (3, 2): False}


def test_repairs_by_edition():
    """An id that wins asks for a clearer signal, two steps that meet for another draw of the same task."""
    told = "gate 9 shortcut: :id: alone earns a medal (5 against 2)"
    assert repaired_dna(TaskDNA(), [told]).snr == 2 * TaskDNA().snr
    assert repaired_dna(TaskDNA(), [told], 1).snr == TaskDNA().snr
    tied = "gate 4 order: gold is not better than silver (0 against 0)"
    again = repaired_dna(TaskDNA(), [tied])
    assert again.seed != TaskDNA().seed and replace(again, seed=TaskDNA().seed) == TaskDNA()
    weak = "gate 4 order: bronze is not better than sample (0 against 0)"
    assert (
        repaired_dna(TaskDNA(), [weak], 2) == repaired_dna(TaskDNA(), [weak], 1) == repaired_dna(TaskDNA(), [tied], 1)
    )


@pytest.mark.parametrize("edition", [0, 3, -1, "2", None, 1.5])
def test_editions_that_do_not_exist(edition):
    """Are refused by name."""
    with pytest.raises(ParameterError, match="edition"):
        GenerationContext(edition=edition)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"references": "40"}, {"references": 12.5}, {"preset": "foo"}])
def test_wrong_fields_of_a_run(wrong):
    """Are refused by name, before anything is made."""
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        GenerationContext(**wrong)


def test_a_meta_with_lists_has_a_population_too(built):
    """As somebody might read one from a file."""
    meta = replace(built.meta)
    object.__setattr__(meta, "classes", list(built.meta.classes))
    assert population(meta, 5) == population(built.meta, 5)


@pytest.mark.parametrize("modality", ["series", "tabular"])
def test_the_first_edition_makes_the_released_task_again(modality):
    """From its seed data set and number to the same files, and to the same numbers within 1e-9 on any machine."""
    suite = Release("micro-1")
    chosen = suite.candidates[suite.candidates["chosen"] & (suite.candidates["split"] == "train")]
    row = next(r for r in chosen.to_dict("records") if r["cell"].startswith(modality) and r["attempts"] == 2)
    context = GenerationContext(ROOTS["train"], references=suite.spec.references["train"], edition=1)
    done = make_task(row["seed_name"], row["index"], context)
    made, stored = row_of(done.task), suite.record(row["task"]).board
    assert done.attempts == 2 and all(made[key] == row[key] for key in ("task", "dna", "digest"))
    for part in ("public", "private"):
        np.testing.assert_allclose(done.task.board[part], stored[part], rtol=0, atol=1e-9)
    for key in ("thresholds", "oracle"):
        ours, theirs = json.loads(made[key]), json.loads(row[key])
        assert set(ours) == set(theirs)
        for name, value in theirs.items():
            assert ours[name] == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), name
    numbers = [[g["number"] for g in json.loads(x["gates"])] for x in (made, row)]
    assert numbers[0] == numbers[1] and all(g["passed"] for g in json.loads(made["gates"]) if g["name"] != "cost")


def test_a_population_is_one_sequence(built):
    """Remembered or drawn, a shorter one is the beginning of a longer one."""
    before = population(built.meta, 30)
    assert population(built.meta, 30) == before and population(built.meta, 70)[:30] == before
