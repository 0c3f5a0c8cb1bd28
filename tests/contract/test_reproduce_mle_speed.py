"""The comparison of few rows with many: fair tasks, parts that add up, ratios by hand, a verdict by rule, trials."""

import os

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from rl_oodkit.core.errors import ParameterError, UnknownIdError
from rl_oodkit.core.runs import RunStore
from rl_oodkit.core.store import save_frame
from rl_oodkit.mle.cold import ColdSubprocess
from rl_oodkit.mle.dna import TaskDNA
from rl_oodkit.mle.levels import unavailable
from rl_oodkit.reproduce import sandbox_trials
from rl_oodkit.reproduce.doctor import examine
from rl_oodkit.reproduce.fingerprints import fingerprint
from rl_oodkit.reproduce.mle_generation import generation_costs, generation_table
from rl_oodkit.reproduce.mle_speed import (
    kept,
    paired,
    pipeline_cases,
    pipeline_costs,
    published_ratios,
    ratio_table,
    verdict_micro,
)
from rl_oodkit.reproduce.mle_steps import PARTS, PROGRAMS, open_executors, step_costs, step_program, write_sizes


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Return a small table of steps with every executor of this machine."""
    root = tmp_path_factory.mktemp("steps")
    os.chmod(root, 0o755)
    return step_costs("linear", [1000], micro=60, rounds=1, root=root)


def test_sixteen_cases_of_six_modalities():
    """By name, each once; a choice that leaves none is refused."""
    names = [case.name for case in pipeline_cases()]
    assert len(set(names)) == 16 and len({name.split()[0] for name in names}) == 6
    with pytest.raises(ParameterError, match="no case"):
        pipeline_cases(["text"], ["rf"])


def test_every_case_and_every_program_runs():
    """At micro size."""
    for case in pipeline_cases():
        assert len(pipeline_costs(case, [], micro=60, rounds=1)) == 0
    for name in PROGRAMS:
        compile(step_program(name)[1], name, "exec")
    with pytest.raises(ParameterError, match="no program"):
        step_program("magic")


def test_patience_leaves_out_what_takes_too_long():
    """A size that the size before shows to be too long is missing, not invented."""
    case = pipeline_cases(["tabular"], ["rf"])[0]
    found = pipeline_costs(case, [500, 400_000], micro=60, rounds=2, patience=5.0)
    assert found["rows"].tolist() == [500, 500] and (found["micro"] > 0).all()


def test_sizes_share_their_test_rows(tmp_path):
    """Only the training table differs, and it may be read by everybody."""
    write_sizes(tmp_path, TaskDNA(), [60, 200])
    for name in ("test.csv", "sample_submission.csv"):
        small, large = ((tmp_path / f / name) for f in ("n60", "n200"))
        assert small.read_bytes() == large.read_bytes() or name == "sample_submission.csv"
    counts = [len((tmp_path / f / "train.csv").read_text().splitlines()) for f in ("n60", "n200")]
    assert counts == [61, 201] and oct((tmp_path / "n60" / "train.csv").stat().st_mode)[-3:] == "644"


def test_parts_of_a_step_add_up(steps):
    """To the processor time of all processes; a cold step imports and a warm one does not."""
    assert np.allclose(steps[list(PARTS)].sum(axis=1), steps["cpu"], atol=0.01)
    assert (steps["score"] > 0.6).all()
    cold = steps[steps.executor == "cold"]
    assert (cold["start"] + cold["imports"] > 0.3).all() and len(cold) == 2
    if not unavailable(2):
        warm = steps[steps.executor == "warm"]
        assert (warm["imports"] < 0.1).all()
        assert warm["score"].tolist() == pytest.approx(cold["score"].tolist(), abs=1e-9), "the same program and data"


def test_a_failing_program_is_named(tmp_path):
    """With what it said."""
    from rl_oodkit.reproduce.mle_steps import timed_step

    built = write_sizes(tmp_path, TaskDNA(), [60])
    with ColdSubprocess(tmp_path) as cold, pytest.raises(ParameterError, match="ZeroDivisionError"):
        timed_step(cold, "1 / 0", "n60", built)


def test_no_warm_rows_below_level_2(monkeypatch, tmp_path):
    """Nothing is run warm without a jail; other names are refused."""
    from contextlib import ExitStack

    monkeypatch.setattr("rl_oodkit.reproduce.mle_steps.unavailable", lambda level: "no namespaces")
    with ExitStack() as stack:
        assert list(open_executors(tmp_path, ["cold", "warm"], stack)) == ["cold"]
        with pytest.raises(ParameterError, match="lukewarm"):
            open_executors(tmp_path, ["lukewarm"], stack)


def test_ratios_are_those_of_sums_within_a_round():
    """By hand, with Student's interval of logarithms."""
    steps = pd.DataFrame(
        [(p, "warm", n, r, c) for p, n, r, c in (
            ("a", 9, 0, 1.0), ("a", 90, 0, 10.0), ("a", 9, 1, 1.0), ("a", 90, 1, 12.0),
            ("b", 9, 0, 1.0), ("b", 90, 0, 30.0), ("b", 9, 1, 3.0), ("b", 90, 1, 36.0),
        )],
        columns=["program", "executor", "rows", "round", "cpu"],
    )  # fmt: skip
    row = ratio_table(paired(steps, 9), ["executor", "rows"]).iloc[0]
    logs = np.log([40 / 2, 48 / 4])
    half = student.ppf(0.975, 1) * logs.std(ddof=1) / np.sqrt(2)
    assert np.allclose([row.ratio, row.low, row.high], np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]))
    assert (row.cases, row.rounds, row.full) == (2, 2, 22.0)
    one = ratio_table(paired(steps[steps["round"] == 0], 9), ["rows"]).iloc[0]
    assert one.ratio == pytest.approx(20) and np.isnan(one.low)


def test_the_verdict_follows_its_rule(tmp_path):
    """Whole intervals, from a size on, for each executor."""

    def judged(**lows):
        """Judge tables with lower ends at three sizes."""
        rows = [(k, n, x, x + 2) for k, xs in lows.items() for n, x in zip((20, 50, 200), xs)]
        return verdict_micro(pd.DataFrame(rows, columns=["executor", "rows", "low", "high"]))

    assert judged(cold=(1, 2, 4), warm=(9, 14, 30)) == (
        "holds in part: cold at no size up to 200 rows; warm from 50 rows on"
    )
    assert judged(cold=(14, 15, 16), warm=(14, 20, 30)).startswith("holds: ")
    assert judged(warm=(14, 12.5, 30), cold=(1, 2, 4)).endswith("warm from 200 rows on")
    assert judged(cold=(1, 2, 4), warm=(5, 6, 7)).startswith("does not hold")
    assert judged(cold=(1, 2, 4), warm=(5, 6, 12)).startswith("undecided")
    assert judged(cold=(1, 2, 4)).endswith("no warm server on this machine")
    assert verdict_micro(published_ratios(tmp_path)) == "not run"
    table = pd.DataFrame({"executor": ["warm"], "rows": [20], "low": [np.nan], "high": [np.nan]})
    (tmp_path / "mle_speed").mkdir()
    save_frame(tmp_path / "mle_speed" / "ratios.parquet", table)
    assert verdict_micro(published_ratios(tmp_path)).startswith("undecided")


def test_measured_tables_are_kept(tmp_path):
    """The second call does not measure; another parameter does."""
    calls = []

    def measure():
        """Count."""
        calls.append(1)
        return pd.DataFrame({"x": [1.5]})

    for rounds in (1, 1, 2):
        assert kept(RunStore(tmp_path), "toy", {"rounds": rounds}, measure)["x"].tolist() == [1.5]
    assert len(calls) == 2


def test_the_sandbox_is_refused_where_it_cannot_be(monkeypatch):
    """Without level 2 nothing is run, and every request must raise."""

    def refuse(*args, **options):
        """Refuse as a machine without namespaces does."""
        raise sandbox_trials.SandboxUnavailableError("no namespaces", where="isolation level 2")

    monkeypatch.setattr(sandbox_trials, "unavailable", lambda level: "no namespaces")
    monkeypatch.setattr(sandbox_trials, "make_code_executor", refuse)
    monkeypatch.setattr(sandbox_trials, "WarmForkServer", refuse)
    found = sandbox_trials.escape_trials()
    assert (found["ran"], found["failed"]) == (3, 0) and "no namespaces" in found["detail"]
    monkeypatch.setattr(sandbox_trials, "make_code_executor", lambda *a: ColdSubprocess("/tmp"))
    assert sandbox_trials.escape_trials()["failed"] == 2, "an executor that is not refused is noticed"


def test_the_doctor_names_the_isolation():
    """The level, and the reason where it is not the highest."""
    (check,) = [check for check in examine() if check.name == "isolation"]
    assert check.good and check.detail.startswith("level ")
    assert ("level 2" in check.detail) == (not unavailable(2))


def test_a_generated_task_is_part_of_the_fingerprint():
    """Files, answers and predictions, each with a digest of its own."""
    found = fingerprint(2, [], [], ["text"])
    assert {"task text train.csv", "task text answers target", "task text solved 2"} <= set(found)
    assert found != fingerprint(2, [], [], ["text"], seed=1)


@given(
    st.lists(st.tuples(st.sampled_from(["text", "image"]), st.booleans(), st.integers(1, 3)), min_size=1, max_size=12)
)
@settings(max_examples=40, deadline=None)
def test_the_price_of_a_task_carries_what_was_refused(children):
    """Attempts add up to the whole; a task costs as many attempts as were made for it."""
    costs = pd.DataFrame(children, columns=["modality", "made", "attempts"]).assign(cpu=lambda d: 2.0 * d.attempts)
    table = generation_table(costs)
    parts, whole = table.iloc[:-1], table.iloc[-1]
    assert whole.modality == "all" and parts[["asked", "made", "attempts"]].sum().tolist() == [
        whole.asked,
        whole.made,
        whole.attempts,
    ]
    assert np.allclose(table.attempt, 2.0) and np.allclose(table.dearest, 2.0)
    made = table[table.made > 0]
    assert np.allclose(made.task * made.made, 2.0 * made.attempts) and table[table.made == 0].task.isna().all()


def test_tasks_are_made_and_their_price_is_told():
    """The same tasks in two runs; an unknown seed data set is named."""
    first, again = (generation_costs("breast_cancer", 2, references=8) for _ in range(2))
    plain = ["seed_name", "index", "modality", "made", "attempts"]
    assert first[plain].equals(again[plain]) and (first.cpu > 0).all()
    with pytest.raises(UnknownIdError, match="tea leaves"):
        generation_costs("tea leaves")
