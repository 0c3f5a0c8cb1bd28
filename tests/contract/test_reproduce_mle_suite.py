"""What a suite is said to hold: exact where theory knows the number, and named where something is missing."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import comb

from rl_oodkit.core.errors import EmptySplitError, ParameterError
from rl_oodkit.core.executors import make_executor
from rl_oodkit.core.runs import RunStore, run_units
from rl_oodkit.mle.arenas import make_arena
from rl_oodkit.mle.build import board_of, measured
from rl_oodkit.mle.comparison import adaptation_gap
from rl_oodkit.mle.controls import board_table
from rl_oodkit.mle.dna import Outliers, RuleDNA, TaskDNA
from rl_oodkit.mle.files import answers_of
from rl_oodkit.mle.gates import gate_frame
from rl_oodkit.mle.grade import Judge
from rl_oodkit.mle.medals import Thresholds
from rl_oodkit.mle.practitioner import population
from rl_oodkit.mle.release import Record
from rl_oodkit.mle.roles import ladder_gates
from rl_oodkit.mle.tables import meta_of, tables
from rl_oodkit.reproduce.mle_diagnosis import (
    REMEDIES,
    adaptation_interval,
    boards_frame,
    crowding,
    mean_interval,
    option_lift,
    remedy_table,
)
from rl_oodkit.reproduce.mle_hacking import best_of_k, best_weights, climb, climbs, nudged
from rl_oodkit.reproduce.mle_optimum import excess, ladder_shares, oracle_row
from rl_oodkit.reproduce.mle_suite import (
    coverage,
    entropy,
    funnel,
    gate_table,
    gate_values,
    nearest,
    refusals,
    shares,
    task_frame,
    verdict_structure,
)
from rl_oodkit.reproduce.mle_transfer import board_at, transfer_groups, transfer_means, transfer_row, transfer_rows


def made(dna, split="test"):
    """Return the record of a task with ten references."""
    built = tables(dna)
    draft = measured(built, board_of(built, 10), preset="mlebench", top=0.9)
    return Record(split, dna, draft.thresholds, draft.oracle, gate_frame(ladder_gates(draft)), draft.board, "")


@pytest.fixture(scope="module")
def records():
    """Return a task of each direction, and one to train on."""
    rough = TaskDNA(target="regression", metric="rmse", rule=RuleDNA("tree"), seed=2)
    return [made(TaskDNA(seed=1)), made(rough), made(TaskDNA(seed=3), "train")]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_entropy_lies_between_its_bounds(values):
    """Zero for one value, the logarithm of their number for equally frequent ones."""
    assert -1e-12 <= entropy(values) <= np.log2(len(set(values))) + 1e-9
    assert entropy(values * 3) == pytest.approx(entropy(values), abs=1e-9)


def test_coverage_counts_the_joint_trait_too():
    """All combinations once: full marks; one of them: none."""
    pairs = pd.DataFrame([(a, b) for a in "xy" for b in "uvw"], columns=["a", "b"])
    found = coverage(pairs, ["a", "b"], known={"a": "xy", "b": "uvw"})
    assert found.trait.tolist() == ["a", "b", "a x b"] and np.allclose(found.share, 1)
    assert found.effective.round(9).tolist() == [2, 3, 6]
    assert coverage(pairs[:1], ["a", "b"]).entropy.tolist() == [0, 0, 0]
    with pytest.raises(ParameterError, match="colour"):
        coverage(pairs, ["colour"])


def test_the_funnel_loses_nobody():
    """Every candidate ends in exactly one place."""
    rng, rows = np.random.default_rng(0), []
    for i in range(200):
        good = rng.random() < 0.7
        chosen = bool(good and rng.random() < 0.6)
        why = '["an accepted task is alike"]' if good and not chosen and rng.random() < 0.3 else "[]"
        why = why if good else '["gate 7 spread: crowded (0 against 1)", "the data cannot be made: no"]'
        split = ("train", "test")[i % 2]
        rows.append((split, good, int(rng.integers(1, 4)), chosen, why, "c" if rng.random() < 0.8 else f"d{i}"))
    frame = pd.DataFrame(rows, columns=["split", "accepted", "attempts", "chosen", "reasons", "cell"])
    found = funnel(frame)
    ends = found[["refused", "alike", "foreign", "spare", "chosen"]].sum(axis=1)
    assert (ends == found.candidates).all() and found.candidates.sum() == 200
    assert found.set_index("split").foreign.train == 0 < found.set_index("split").foreign.test
    assert (funnel(frame.drop(columns="cell")).foreign == 0).all()
    told = refusals(frame).set_index("reason")
    assert told.loc["gate 7 spread"].sum() == told.loc["the data cannot be made"].sum() == found.refused.sum()
    assert told.index[0] == "gate 7 spread"


def test_shares_put_sample_and_optimum_at_the_ends(records):
    """In either direction of the metric, and the board keeps its order."""
    for record in records:
        ladder, t = ladder_shares(record), record.thresholds
        assert (ladder["sample"], ladder["oracle"]) == (0, 1) and ladder["median"] <= ladder["bronze"] <= ladder["gold"]
        sign = -1 if t.lower_is_better else 1
        found = shares(record)
        assert (found.share.rank() == (sign * record.board.private).rank()).all()
        assert found.share.max() < 1
    with pytest.raises(EmptySplitError):
        task_frame([])
    with pytest.raises(EmptySplitError):
        boards_frame([])


def test_gate_margins_agree_with_verdicts(records):
    """A margin is negative exactly where a gate was not passed, but for the strict first step of a ladder."""
    values = gate_values(records)
    strict = values.number == 4
    assert (values.passed == np.where(strict, values.margin > 0, values.margin >= 0)).all()
    assert gate_table(values).tasks.eq(3).all()
    assert nearest(records).set_index("split").own["train"].size == 1 and np.isnan(nearest(records).own[2])


def test_a_reference_that_beats_the_optimum_is_found(records):
    """An optimum that is lowered to the middle of the board is beaten, by many standard errors."""
    record = records[0]
    assert oracle_row(record)["holds"] and oracle_row(record)["above"] == 0
    low = replace(record.thresholds, oracle=float(record.board.private.median()))
    fake = replace(record, thresholds=low)
    found = oracle_row(fake)
    assert found["above"] == (record.board.private > low.oracle).sum() > 0 and found["best"] > 1 and found["z"] > 0
    assert excess(record, found["worst"]) < 0 < excess(fake, found["worst"])


def test_boards_agree_with_the_table_of_the_controls(records):
    """Same cells, same normalised scores, same public order."""
    record = records[1]
    task = record.task()
    known = board_table([make_arena(task.public(), task.judge(), record.board)])
    found = boards_frame([record])
    assert found.cell.equals(known.cell) and np.allclose(found.normalised, known.normalised)
    assert np.allclose(found.public, known.public)
    crowd = crowding(found).iloc[0]
    assert crowd.winner == found.pipeline[found.share.idxmax()] and 1 <= crowd.equal <= crowd.near


def invented_board(seed, tasks=6, pipelines=8):
    """Return a board of invented tasks in two cells, some references failing."""
    rng, rows = np.random.default_rng(seed), []
    for t in range(tasks):
        for p in range(pipelines):
            value = np.nan if rng.random() < 0.1 else round(float(rng.uniform(-0.5, 1)), 2)
            rows.append((f"t{seed}-{t}", "ab"[t % 2], f"p{p}", value + rng.normal() * 0.1, value))
    return pd.DataFrame(rows, columns=["task", "cell", "pipeline", "public", "normalised"])


@pytest.mark.parametrize("seed", range(5))
def test_the_adaptation_interval_is_around_the_adaptation_gap(seed):
    """Equal to the established numbers, ties and failures included."""
    test, train = invented_board(seed), invented_board(seed + 100)
    found, known = adaptation_interval(test, train, 50), adaptation_gap(test, train)
    assert np.allclose(found["mean"], [known.gap, known.optimistic, known.static])
    assert (found.low <= found.high).all() and found.tasks.eq(known.tasks).all()
    with pytest.raises(EmptySplitError):
        adaptation_interval(test.assign(cell="z"), train)
    holes = test.sample(frac=0.8, random_state=seed)  # boards of another population
    holes.loc[holes["task"] == holes["task"].iloc[0], "public"] = np.nan
    found, known = adaptation_interval(holes, train, 50), adaptation_gap(holes, train)
    assert np.allclose(found["mean"], [known.gap, known.optimistic, known.static]) and known.dropped > 0
    for name in ("tasks", "unseen", "dropped"):
        assert found[name].eq(getattr(known, name)).all()
    shipped = adaptation_interval(pd.concat([test, test.assign(cell="z", task="z")]), train, 50)
    assert shipped["unseen"].eq(1).all() and shipped["dropped"].eq(0).all()


def test_lifts_of_a_slot_cancel_and_remedies_are_found():
    """Weighted by their crowds, lifts sum to zero; a decreed remedy pays where its fault is."""
    found = []
    for i in range(10):
        dna = TaskDNA(outliers=Outliers(0.1 * (i % 2)), seed=i)
        crowd, rng = population(meta_of(dna), 60), np.random.default_rng(i)
        private = 0.6 + 0.2 * np.array([(i % 2) * (p.clean == "winsor") for p in crowd]) + 0.02 * rng.normal(size=60)
        board = pd.DataFrame({"pipeline": [str(p) for p in crowd], "public": private, "private": private})
        ladder = Thresholds(0.5, 0.6, 0.7, 0.75, 0.8, 1.0, 0.9, False)
        found.append(SimpleNamespace(dna=dna, split="test", thresholds=ladder, board=board))
    boards = boards_frame(found)
    lifts = option_lift(
        boards[boards.task == found[0].dna.name], "clean", pd.Series({r.dna.name: "all" for r in found}), 1
    )
    assert abs((lifts.lift * lifts.crowd).sum()) < 1e-12 and lifts.crowd.sum() == pytest.approx(1)
    table = remedy_table(boards, {r.dna.name: r.dna for r in found}).set_index("fault")
    assert table.low["outliers"] > 0.3 and len(table) == len(REMEDIES)
    assert table["with"]["trap"] == 0 and np.isnan(table.pays["trap"])
    with pytest.raises(ParameterError, match="engine"):
        option_lift(boards, "engine", pd.Series(dtype=str))
    assert np.isnan(mean_interval(np.array([]))[0]) and np.isnan(mean_interval(np.array([1.0]))[1])


@given(st.integers(1, 60), st.data())
@settings(max_examples=60, deadline=None)
def test_best_of_k_has_the_weights_of_the_formula(n, data):
    """Ratios of binomials, for every k."""
    k = data.draw(st.integers(1, n))
    expected = [comb(n - 1 - j, k - 1) / comb(n, k) for j in range(n)]
    assert np.allclose(best_weights(n, [k])[0], expected, atol=1e-12)


def test_best_of_k_at_its_ends():
    """One is the mean, all are the best; more tries never lower the public score or the hindsight."""
    rng = np.random.default_rng(1)
    board = pd.DataFrame({"public": rng.normal(size=30).clip(-0.4), "share": rng.normal(size=30).clip(-0.4)})
    found = best_of_k(board, range(1, 31))
    assert found.public[0] == pytest.approx(board.public.mean())
    assert found.private.iloc[-1] == board.share[board.public.idxmax()]
    assert (np.diff(found.public) >= -1e-12).all() and (np.diff(found.hindsight) >= -1e-12).all()
    assert (found.hindsight >= found.private - 1e-12).all() and (found.flattery[0], found.gain[0]) == (0, 0)
    assert best_of_k(board.assign(share=np.nan, public=np.nan).combine_first(board[:3]), [99]).k.tolist() == [99]
    with pytest.raises(EmptySplitError):
        best_of_k(board.assign(share=np.nan), [1])
    with pytest.raises(ParameterError):
        best_weights(3, [4])


@pytest.mark.parametrize(
    "dna",
    [
        TaskDNA(metric="accuracy"),
        TaskDNA(target="multiclass", metric="log_loss", n_classes=3),
        TaskDNA(target="count", metric="rmsle"),
        TaskDNA(target="ranking", metric="ndcg"),
    ],
    ids=lambda dna: dna.metric,
)
def test_a_climber_stays_legal_and_within_its_budget(dna):
    """Predictions of every kind stay predictions; the held public score never falls."""
    built = tables(dna)
    lower = built.meta.lower_is_better
    judge = Judge(built.meta, answers_of(built), Thresholds(0, 0, 0, 0, 0, 1, 1, lower), np.zeros(1))
    start = judge.read(built.sample_submission)
    assert judge.read(nudged(start, judge, np.random.default_rng(0))).shape == start.shape
    trail, sign = climb(judge, start, 12), -1 if lower else 1
    assert len(trail) == 12 and (np.diff(sign * trail.public) >= 0).all()
    assert trail.equals(climb(judge, start, 12))
    with pytest.raises(ParameterError):
        nudged(start, judge, np.random.default_rng(0), 0.0)


def test_climbs_start_at_nothing(records):
    """One call is the start; an unknown start is named."""
    found = climbs(records[0], [1, 8], seeds=1)
    assert (found[found.calls == 1][["public", "private", "flattery"]] == 0).all(axis=None)
    with pytest.raises(ParameterError, match="gold"):
        climbs(records[0], [1], starts=("gold",))


def test_sizes_are_units_and_equal_boards_correlate_fully(tmp_path):
    """A study of sizes is kept, and a board compared with itself has nothing to pay."""
    dna, store = TaskDNA(n_train=60, seed=5), RunStore(tmp_path)
    groups = transfer_groups([dna], [60, 200], 6)
    boards = run_units(groups, store, make_executor("serial", 1), "boards")
    assert all(store.is_done(unit) for unit in groups[0].units) and len(boards) == 12
    assert boards[:6].drop(columns="seconds").equals(board_at(dna, 60, 6).drop(columns="seconds"))
    same = transfer_row(boards[:6], boards[:6])
    assert (same["correlation"], same["price"], same["gain"]) == (pytest.approx(1), 0, 0)
    means = transfer_means(transfer_rows(boards, 60))
    assert means.rows.tolist() == [200] and verdict_structure(means).startswith("undecided")
    with pytest.raises(ParameterError, match="one size"):
        transfer_groups([dna], [60, 60], 6)
    with pytest.raises(ParameterError, match="above 200"):
        transfer_rows(boards, 200)
    with pytest.raises(ParameterError, match="3 references"):
        transfer_row(boards[:3], boards[:3])


def test_the_verdict_reads_the_largest_size():
    """Holds, in part, does not hold, and not decided on too few tasks."""
    row = {"rows": 2000, "tasks": 8, "correlation": 0.8, "low": 0.6, "high": 0.9}
    assert verdict_structure(pd.DataFrame([row])) == "holds"
    far = row | {"rows": 20000, "correlation": 0.4, "low": 0.1}
    assert verdict_structure(pd.DataFrame([row, far])).startswith("holds in part: at 20,000 rows")
    assert verdict_structure(pd.DataFrame([row, far | {"low": -0.1}])).startswith("does not hold")
    assert verdict_structure(None) == verdict_structure(pd.DataFrame()) == "not run"
