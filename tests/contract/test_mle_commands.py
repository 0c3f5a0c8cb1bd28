"""`rl-oodkit mle`: what the commands print, what they leave, and how they refuse."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from rl_oodkit.cli import app
from rl_oodkit.cli_agents import AGENT_COMMANDS
from rl_oodkit.cli_tasks import TASK_COMMANDS
from rl_oodkit.mle.suite import Suite

RUNNER = CliRunner()


def call(*words):
    """Run the command line in this process."""
    return RUNNER.invoke(app, ["mle", *map(str, words)])


def refused(result, *said):
    """Assert one line, exit code 1, and no traceback."""
    assert result.exit_code == 1, result.output
    assert result.output.strip().splitlines()[-1].startswith("error: ") and "Traceback" not in result.output
    assert all(word in result.output for word in said), result.output


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """A folder with one generated task."""
    folder = tmp_path_factory.mktemp("mle") / "suite"
    result = call(
        "gen", "--seeds", "linnerud", "--n", 2, "--references", 20, "--preset", "mlebench", "--seed", 3, "--out", folder
    )
    assert result.exit_code == 0, result.output
    return folder


def task_of(suite):
    """Return the folder of the first task."""
    return sorted((suite / "tasks").iterdir())[0]


@pytest.mark.parametrize("name", [name for name, *_ in (*TASK_COMMANDS, *AGENT_COMMANDS)])
def test_every_command_has_help_with_an_example(name):
    """And loads nothing heavy for it."""
    result = call(name, "--help")
    assert result.exit_code == 0 and f"rl-oodkit mle {name}" in result.output


def test_a_generated_suite_is_in_order(suite):
    """Public files readable, private ones not; logs beside them; gates passed."""
    task = task_of(suite)
    assert {"train.csv", "test.csv", "sample_submission.csv", "description.md"} <= {
        p.name for p in (task / "public").iterdir()
    }
    private = [p for p in (suite / "private").rglob("*") if p.is_file()]
    assert private and all(p.stat().st_mode & 0o077 == 0 for p in private)
    assert all(json.loads(line)["role"] for line in (suite / "logs" / "roles.jsonl").read_text().splitlines())
    result = call("gates", suite)
    assert result.exit_code == 0 and "passed" in result.output


def test_a_submission_is_graded_with_interval_and_regret(suite):
    """In words and as JSON; the optimum is known."""
    task = task_of(suite)
    sample = task / "public" / "sample_submission.csv"
    result = call("grade", task, sample)
    assert result.exit_code == 0 and all(
        w in result.output for w in ("score", "medal", "interval", "regret", "normalised")
    )
    report = json.loads(call("grade", task / "public", sample, "--json").output)
    assert report["status"] == "valid" and report["normalised"] == 0 and len(report["tier_probabilities"]) == 6


def test_bad_submissions_are_refused_with_the_reason(suite, tmp_path):
    """Exit code 1 and a line."""
    task = task_of(suite)
    sample = pd.read_csv(task / "public" / "sample_submission.csv")
    cases = {
        "short": sample.iloc[1:],
        "twice": pd.concat([sample, sample.head(1)]),
        "extra": sample.assign(more=1),
        "nan": sample.assign(**{sample.columns[1]: np.nan}),
    }
    for name, frame in cases.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        refused(call("grade", task, tmp_path / f"{name}.csv"))
    (tmp_path / "bytes.csv").write_bytes(b"\x80\x04\x95")
    refused(call("grade", task, tmp_path / "bytes.csv"))
    refused(call("grade", task, tmp_path / "absent.csv"))
    refused(call("grade", tmp_path, tmp_path / "short.csv"), "SUITE/tasks/NAME")


def test_a_tampered_task_is_named(suite, tmp_path):
    """A changed public file, by its name."""
    import shutil

    copy = tmp_path / "suite"
    shutil.copytree(suite, copy)
    target = task_of(copy) / "public" / "train.csv"
    target.chmod(0o644)
    target.write_text(target.read_text().replace("1", "2", 1))
    refused(call("gates", copy), "train.csv")
    refused(call("grade", task_of(copy), task_of(copy) / "public" / "sample_submission.csv"))


@pytest.mark.parametrize("layout", ["mlebench", "mledojo"])
def test_suites_are_exported(suite, tmp_path, layout):
    """Every task, in the layout that was asked for."""
    result = call("export", layout, suite, "--out", tmp_path / layout)
    assert result.exit_code == 0 and any((tmp_path / layout).rglob("*.csv"))
    assert f"{len(Suite(suite).ids())} tasks" in result.output


@pytest.mark.parametrize("layout", ["mlebench", "mledojo"])
def test_an_export_replaces_nothing_unless_it_is_told_to(suite, tmp_path, layout):
    """A folder with content is refused and left as it was; with --force, what is not of the export stays."""
    out = tmp_path / "out"
    out.mkdir()
    assert call("export", layout, suite, "--out", out).exit_code == 0
    grader = next(path for path in out.rglob("*.py") if path.name in ("grade.py", "metric.py"))
    written = grader.read_bytes()
    grader.write_text("edited")
    (out / "notes.txt").write_text("mine")
    refused(call("export", layout, suite, "--out", out), "has content", "--force")
    assert grader.read_text() == "edited"
    assert call("export", layout, suite, "--out", out, "--force").exit_code == 0
    assert grader.read_bytes() == written and (out / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gen", "--seeds", "whine", "--out", "x"), "whine"),
        (("gen", "--suite", "none-such", "--out", "x"), "none-such"),
        (("gates", "no-such-folder"), "no-such-folder"),
        (("export", "kaggle", "x", "--out", "y"), "mlebench"),
        (("run", "--suite", "toy", "--policy", "nobody", "--n", "1"), "nobody"),
        (("run", "--suite", "toy", "--scaffold", "ladder", "--n", "1"), "ladder"),
        (("run", "--suite", "none-such", "--n", "1"), "none-such"),
        (("train", "sarsa", "--suite", "toy", "--out", "x"), "sarsa"),
        (("bench-speed", "--executor", "tepid", "--full", "200"), "tepid"),
    ],
)
def test_wrong_words_are_refused(words, said, tmp_path, monkeypatch):
    """With what was wrong in the line."""
    monkeypatch.chdir(tmp_path)
    refused(call(*words), said)


def test_agents_run_and_are_compared(tmp_path):
    """On the toys, with a file of episodes and a paired difference."""
    out = tmp_path / "episodes.parquet"
    result = call("run", "--suite", "toy", "--n", 1, "--policy", "practitioner", "--out", out)
    assert result.exit_code == 0 and out.exists() and "1 episodes" in result.output
    result = call("eval", "--suite", "toy", "--n", 2, "--rollouts", 1, "--policies", "practitioner,uniform")
    assert result.exit_code == 0 and "uniform minus practitioner" in result.output and "lost" in result.output


def test_nothing_that_is_there_is_overwritten(suite, tmp_path):
    """Neither a manifest by episodes, nor a suite by its export, nor a training by another."""
    manifest = (suite / "manifest.json").read_bytes()
    refused(call("run", "--suite", "toy", "--n", 1, "--out", suite / "manifest.json"), "manifest.json")
    refused(call("export", "mledojo", suite, "--out", suite / "tasks"), "into itself")
    assert (suite / "manifest.json").read_bytes() == manifest and call("gates", suite).exit_code == 0
    (tmp_path / "policy.json").write_text("{}")
    refused(call("train", "bc", "--suite", "toy", "--tries", 2, "--out", tmp_path), "holds a policy")


def test_verdicts_that_are_gone_are_missed(suite, tmp_path):
    """A suite without its log has not passed."""
    import shutil

    copy = tmp_path / "suite"
    shutil.copytree(suite, copy)
    (copy / "logs" / "gates.jsonl").unlink()
    refused(call("gates", copy), "verdicts are missing")


@pytest.mark.parametrize(
    "words",
    [
        ("gen", "--out", "x", "--n", "0"),
        ("gen", "--out", "x", "--preset", "zz"),
        ("gen", "--out", "x", "--split", "zz"),
        ("gen", "--out", "x", "--references", "0"),
        ("gen", "--out", "x", "--seed", "-1"),
        ("eval", "--suite", "toy", "--policies", ","),
        ("run", "--suite", "toy", "--split", "zz"),
        ("run", "--split", "tset"),
        ("run", "--suite", "toy", "--rollouts", "0"),
        ("run", "--suite", "toy", "--n", "-1"),
        ("run", "--suite", "toy", "--seed", "-1"),
        ("run", "--suite", "toy", "--workers", "-1"),
        ("eval", "--suite", "toy", "--policies", "uniform,nobody"),
        ("eval", "--suite", "toy", "--policies", "uniform", "--split", "zz"),
        ("eval", "--suite", "toy", "--policies", "uniform", "--scaffold", "seq2,ladder"),
        ("train", "grpo", "--out", "x", "--reward", "zz"),
        ("train", "bc", "--out", "x", "--reward", "zz"),
        ("train", "grpo", "--out", "x", "--credit", "zz"),
        ("train", "bc", "--out", "x", "--credit", "zz"),
        ("train", "grpo", "--out", "x", "--start", "nowhere"),
        ("train", "grpo", "--out", "x", "--iterations", "0"),
        ("train", "bc", "--out", "x", "--tries", "0"),
        ("eval", "--suite", "toy", "--policies", "uniform,uniform"),
        ("bench-speed", "--full", "abc"),
        ("bench-speed", "--executor", ""),
    ],
)
def test_numbers_and_lists_are_checked_before_any_work(words, tmp_path, monkeypatch):
    """And nothing is written, and no task is made or read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rl_oodkit.cli_agents._arenas", lambda *_: pytest.fail("work was done"))
    result = call(*words)
    refused(result)
    assert "caught earlier" not in result.output and not list(tmp_path.iterdir())


def test_splits_are_listed_and_files_in_the_way_are_named(tmp_path, monkeypatch):
    """Before any work."""
    monkeypatch.setattr("rl_oodkit.cli_agents._arenas", lambda *_: pytest.fail("work was done"))
    refused(call("run", "--suite", "toy", "--split", "zz"), "train, val, test")
    (tmp_path / "taken").write_text("mine")
    for method in ("bc", "rft", "grpo"):
        refused(call("train", method, "--suite", "toy", "--out", tmp_path / "taken"), "taken")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("resamples", ["-1", "20001", "100000000000"])
def test_resamples_are_limited(suite, resamples):
    """By name, not as the fault of the submission."""
    task = task_of(suite)
    sample = task / "public" / "sample_submission.csv"
    refused(call("grade", task, sample, "--resamples", resamples), "resamples is")


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "5", "{}", '{"task": "t1"}', '{"task": "t1", "number": "x", "name": "a", "passed": 1}', "\x00\xff"],
)
def test_a_log_of_verdicts_of_another_form_is_named(suite, tmp_path, line):
    """With the number of its line."""
    import shutil

    copy = tmp_path / "suite"
    shutil.copytree(suite, copy)
    with open(copy / "logs" / "gates.jsonl", "ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    result = call("gates", copy)
    refused(result, "gates.jsonl:")
    assert "caught earlier" not in result.output


def test_a_policy_of_another_grammar_says_so(tmp_path):
    """What it writes, and what pipelines are."""
    from rl_oodkit.training.sequences import GrammarPolicy, SequenceSpec, save_grammar

    save_grammar(tmp_path / "odd", "policy", GrammarPolicy(SequenceSpec((3, 2), context=4)))
    refused(call("run", "--suite", "toy", "--n", 1, "--policy", tmp_path / "odd"), "Pipelines are lists of")


def test_an_empty_split_says_where_the_tasks_are(suite, tmp_path):
    """For agents and for services alike; the generated suite has training tasks only."""
    refused(call("run", "--suite", suite, "--n", 1), "split test has no task", "train (2)")
    words = ("--base-url", "http://127.0.0.1:9", "--suite", suite, "--out", tmp_path / "d.jsonl")
    refused(call("chat", *words), "split test has no task", "train (2)")


def test_a_service_that_never_answers_fails_the_command(suite, tmp_path):
    """With the reason on the screen; the episode is in the file all the same."""
    path = tmp_path / "dialogues.jsonl"
    words = ("--base-url", "http://127.0.0.1:9", "--suite", suite, "--split", "train", "--out", path, "--allow-unsafe")
    result = call("chat", *words)
    refused(result, "service-error", "127.0.0.1:9")
    assert len(path.read_text().splitlines()) == 1


def test_dialogues_that_are_there_are_kept(suite, tmp_path):
    """The same command adds what is missing and says what it kept; force replaces; another model is refused."""
    from rl_oodkit.mle.dialogues import load_dialogues
    from rl_oodkit.mle.stub_server import StubServer

    path = tmp_path / "dialogues.jsonl"
    with StubServer(lambda body: "submit") as server:
        words = ("--base-url", server.base_url, "--suite", suite, "--split", "train", "--out", path, "--allow-unsafe")
        first = call("chat", *words)
        again = call("chat", *words, "--rollouts", 2)
        assert first.exit_code == again.exit_code == 0, again.output
        assert [line.count("kept: it is in dialogues.jsonl") for line in again.output.splitlines()] == [1, 0]
        assert [d.rollout for d in load_dialogues(path)] == [0, 1] and len(server.requests) == 2
        forced = call("chat", *words, "--rollouts", 2, "--force")
        assert forced.exit_code == 0 and "kept" not in forced.output and len(server.requests) == 4
        assert [d.rollout for d in load_dialogues(path)] == [0, 1]
        refused(call("chat", *words, "--model", "other"), "was played by 'default', not by 'other'", "force")
    assert load_dialogues(path)[0].info["grade"] == "missing"


def test_dialogues_without_a_service_are_played_again(tmp_path):
    """What ended because the service failed is replaced, not kept."""
    from mle_text_toy import ToyExecutor, toy_task

    from rl_oodkit.mle.code_env import CodeEnv
    from rl_oodkit.mle.dialogues import load_dialogues
    from rl_oodkit.mle.react import ChatPolicy, ReActRunner, run_group
    from rl_oodkit.mle.stub_server import Reply, StubServer
    from rl_oodkit.mle.transport import CallLimits

    env, path = CodeEnv([toy_task()], ToyExecutor()), tmp_path / "a.jsonl"
    quick = CallLimits(timeout_s=5.0, retries=0, backoff_s=0.0)
    with StubServer(["submit", Reply(manner="html")]) as server:
        run_group(ReActRunner(env, ChatPolicy(server.base_url, "m", limits=quick)), "t1", 2, path=path)
    assert [d.status for d in load_dialogues(path)] == ["submitted", "service-error"]
    with StubServer(["submit"]) as server:
        run_group(ReActRunner(env, ChatPolicy(server.base_url, "m", limits=quick)), "t1", 2, path=path)
        assert len(server.requests) == 1
    assert [(d.rollout, d.status) for d in load_dialogues(path)] == [(0, "submitted"), (1, "submitted")]
