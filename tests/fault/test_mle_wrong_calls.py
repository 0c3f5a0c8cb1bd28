"""Careless arguments of environments, genes, seeds, learners and commands: named, and before any work."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rl_oodkit.cli import app
from rl_oodkit.cli_tasks import _identity
from rl_oodkit.core.errors import ParameterError, RlOodkitError, ShapeError, UnknownIdError
from rl_oodkit.mle.arenas import toy_arenas
from rl_oodkit.mle.code_env import CodeEnv
from rl_oodkit.mle.dna import TaskDNA
from rl_oodkit.mle.execution import Executor, StepResult
from rl_oodkit.mle.models import Need, hgb, knn, linear, nb, rf, svm, tree
from rl_oodkit.mle.mutations import breed, distance, mutate, offspring
from rl_oodkit.mle.pipeline_env import PipelineEnv, PipelineVectorEnv
from rl_oodkit.mle.practitioner import cell_of, population, practitioner
from rl_oodkit.mle.real_rows import REAL_SEEDS, real_table
from rl_oodkit.mle.screening import GenerationContext
from rl_oodkit.mle.seeds import SEEDS, extract, profile_of, seed_dna, snr_of_score
from rl_oodkit.reproduce.mle_runs import Sizes, kind_of, mle_unit

RNG = np.random.default_rng(0)
NONSENSE = (None, 3, -1, "x", "", [1], {}, float("nan"), object(), b"a", np.zeros(3))
TASK, X = TaskDNA(), np.random.default_rng(1).standard_normal((40, 3))
ARENAS = toy_arenas(1)
META = ARENAS[0].meta


def call(*words):
    """Run a command about tasks in this process."""
    return CliRunner().invoke(app, ["mle", *map(str, words)])


class Quiet(Executor):
    """Run nothing, at level 2."""

    level = 2

    def run(self, code, task, **_):
        """Say that all is well."""
        return StepResult("ok", 0, "", "")


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda: PipelineEnv(tasks=3), ParameterError, r"the tasks are 3 .* toy_arenas\(3\)"),
        (lambda: PipelineEnv("toy"), ParameterError, "Pass a list of Arena"),
        (lambda: PipelineEnv(ARENAS, level=np.zeros(3)), ParameterError, "the level is"),
        (lambda: PipelineVectorEnv(tasks=2.5), ParameterError, "the tasks are 2.5"),
        (lambda: PipelineVectorEnv(ARENAS).reset(seed="x"), ParameterError, "the seed is 'x'"),
        (lambda: PipelineVectorEnv(ARENAS, 2).reset(seed=[1]), ShapeError, "1 seeds for 2 worlds"),
        (lambda: PipelineVectorEnv(ARENAS).reset(options=3), ParameterError, "the options are 3"),
        (lambda: PipelineEnv(ARENAS).reset(options="toy"), ParameterError, "the options are 'toy'"),
        (lambda: PipelineEnv(ARENAS).reset(options=np.zeros(2)), ParameterError, "the options are"),
        (lambda: CodeEnv(ARENAS, Quiet("."), split="exam"), RlOodkitError, "no split 'exam'"),
        (lambda: CodeEnv(ARENAS, Quiet("."), allow_unsafe="no"), ParameterError, "allow_unsafe is 'no'"),
        (lambda: CodeEnv(ARENAS, Quiet("."), render_mode="human"), ParameterError, "render_mode is 'human'"),
        (lambda: CodeEnv(ARENAS, Quiet("."), render_mode=["ansi"]), ParameterError, "render_mode is"),
        (lambda: seed_dna(["iris"]), UnknownIdError, "no seed .*iris"),
        (lambda: seed_dna(None), UnknownIdError, "no seed None"),
        (lambda: Sizes(tries=0), ParameterError, r"tries is 0 .* tries=\(16,\)"),
        (lambda: Sizes(top=None), ParameterError, "top is None"),
        (lambda: Sizes(epochs=()), ParameterError, "nothing to choose epochs from"),
        (lambda: Sizes(groups="four"), ParameterError, "groups is 'four'"),
        (lambda: Sizes(size=1), ParameterError, "size is 1"),
        (lambda: mle_unit(None, "bc", 0), ParameterError, "the suite is None"),
        (lambda: mle_unit("toy", ["bc"], 0), UnknownIdError, "no kind of learner"),
        (lambda: mle_unit("toy", "bc", 0, {"tries": (5,)}), ParameterError, "the sizes are"),
        (lambda: mle_unit("toy", "bc", 0, without=None), ParameterError, "without is None"),
        (lambda: kind_of({}), UnknownIdError, "no kind of learner"),
        (lambda: TaskDNA.from_json({"snr": 4.0}), ParameterError, "read from text"),
        (lambda: mutate(TASK, ["missing"], RNG), UnknownIdError, "no operator"),
        (lambda: mutate(TASK, "missing", 0), ParameterError, "0 is no Generator"),
        (lambda: mutate(TASK.name, "missing", RNG), ParameterError, "is no TaskDNA"),
        (lambda: snr_of_score(float("nan")), ParameterError, "score"),
        (lambda: snr_of_score(0.9, "half"), ParameterError, "chance"),
        (lambda: profile_of("table", X[:, 0], classes=False), ShapeError, "X is .table."),
        (lambda: profile_of(X, X[:, 0], classes=True), ParameterError, "40 classes, the rarest of 1"),
        (lambda: profile_of(X, np.where(X[:, 0] > 0, np.nan, 1), classes=False), RlOodkitError, "y is nan"),
        (lambda: profile_of(X * np.inf, X[:, 0], classes=False), RlOodkitError, "X is -?inf"),
        (lambda: profile_of(X * 0, X[:, 0], classes=False), ParameterError, "none varies"),
        (lambda: profile_of(X[:, :0], X[:, 0], classes=False), ParameterError, "none varies"),
        (lambda: extract(X, X[:, 0], target=["binary"]), ParameterError, "no target"),
        (lambda: extract(X, ["a", None] * 20), ShapeError, "classes of one kind"),
        (lambda: Need(True, "strong"), ParameterError, "strength is 'strong'"),
    ],
)
def test_a_wrong_argument_is_named_with_what_to_do(ask, error, said):
    """In an error of this package and not in Python's words."""
    with pytest.raises(error, match=said):
        ask()


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda x: type(x).__name__)
def test_what_is_no_task_is_refused_everywhere(nonsense):
    """Whatever takes a task, its facts, or a wish for an estimator."""
    takes = (lambda x: distance(x, TASK), lambda x: distance(TASK, x), lambda x: breed(x, 0), lambda x: offspring(x, 0))
    takes += (cell_of, lambda x: population(x, 3), lambda x: practitioner(x, RNG), lambda x: mutate(x, "size", RNG))
    for take in takes + (linear, knn, tree, rf, hgb, svm, nb):
        with pytest.raises(ParameterError, match="is no (TaskDNA|TaskMeta|Need)"):
            take(nonsense)


@given(
    st.integers(0, 300),
    st.integers(0, 300),
    st.integers(0, 300),
    st.lists(st.sampled_from(REAL_SEEDS + ("", "wine")), min_size=3, max_size=3),
)
def test_the_origin_of_rows_counts_where_it_differs(i, j, k, names):
    """A synthetic pair keeps its distance; another origin adds its share; and the triangle inequality holds."""
    plain = [offspring(TASK, seed) for seed in (i, j, k)]
    a, b, c = (replace(dna, seed_name=name) for dna, name in zip(plain, names, strict=True))
    share = 4 / (38 + 4)  # the weight of a heavy field in all
    for x, y, u, v in ((a, b, *plain[:2]), (b, c, *plain[1:])):
        apart = share * (real_table(x) != real_table(y))
        assert distance(x, y) == pytest.approx(distance(u, v) + apart * (1 - distance(u, v)), abs=1e-12)
    assert distance(a, c) <= distance(a, b) + distance(b, c) + 1e-12
    assert distance(plain[0], plain[1]) == distance(replace(plain[0], seed_name="wine"), plain[1])


def test_real_rows_are_no_twins_of_synthetic_ones():
    """A parent of real rows is apart from its namesake; a child over the same rows is measured as before."""
    wine, rows = seed_dna("wine"), seed_dna("real-wine")
    assert 0.09 < distance(wine, rows) <= 1 and distance(rows, replace(rows, seed=5)) == 0
    assert distance(seed_dna("real-iris"), rows) > distance(seed_dna("iris"), wine)


def test_the_help_names_the_seeds_and_what_trainings_are():
    """Every name that gen takes, and which learner of the study a training is."""
    said = " ".join(call("gen", "--help").output.split())
    assert all(name in said for name in SEEDS) and "real-NAME" in said
    said = " ".join(call("train", "--help").output.split())
    assert "rft on all of them" in said and "calls bc-all" in said and "each cell" in said


def test_fewer_tasks_than_asked_for_are_said(monkeypatch):
    """On the error stream, of a chat and of a run; and nothing is said where there are enough."""
    env = SimpleNamespace(tasks=dict.fromkeys("abcd"), close=lambda: None)
    monkeypatch.setattr("rl_oodkit.mle.code_env.CodeEnv", lambda **_: env)
    monkeypatch.setattr("rl_oodkit.cli_agents._dialogues", lambda *_: [])
    words = ("chat", "--base-url", "http://127.0.0.1:9", "--suite", "toy", "--out", "never.jsonl", "--n")
    assert "4 of the 99 tasks that were asked for: toy has no more in test" in call(*words, 99).stderr
    assert call(*words, 4).stderr == ""
    monkeypatch.setattr("rl_oodkit.cli_agents._arenas", lambda *_: ARENAS)
    assert "1 of the 7 tasks" in call("run", "--policy", "uniform", "--suite", "toy", "--n", 7).stderr


def test_a_file_in_the_place_of_a_folder_is_found_first(tmp_path, monkeypatch):
    """By gen in both ways, by a training and by an export, at the place or above it, and it is left alone."""
    monkeypatch.setattr("rl_oodkit.mle.orchestrator.make_task", lambda *_, **__: pytest.fail("work was done"))
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "deep"):
        for words in (("gen",), ("gen", "--suite", "micro-1"), ("train", "bc", "--suite", "toy")):
            result = call(*words, "--out", out)
            assert result.exit_code == 1 and "a file is in the place of a folder" in result.output
            assert "Give another folder to --out" in result.output
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_path_is_a_wrong_call(tmp_path, monkeypatch):
    """An unset variable of the shell does not fill the current folder."""
    monkeypatch.chdir(tmp_path)
    for words in (("gen",), ("gen", "--suite", "micro-1"), ("train", "bc"), ("export", "mlebench", "suite")):
        result = call(*words, "--out", "")
        assert result.exit_code == 2 and "the path is empty" in result.output
    assert not list(tmp_path.iterdir())


def test_sizes_of_a_measurement_are_looked_at_first():
    """No table is drawn of no rows, and no executor guessed."""
    for words in (("--micro", -5), ("--micro", 0), ("--full", "many"), ("--full", "20,0"), ("--pairs", 0)):
        result = call("bench-speed", *words)
        assert result.exit_code == 1 and "caught earlier" not in result.output
    assert "Use cold, warm" in call("bench-speed", "--executor", "tepid").output


def test_another_rule_of_admission_is_another_run():
    """A run goes on only under the rules it was begun with; what it has accepted meanwhile does not matter."""
    asked = (["iris", "wine"], "train")
    mine = _identity(*asked, GenerationContext(), "", "")
    assert mine == _identity(*asked, GenerationContext(accepted=[TASK]), "", "")
    others = [GenerationContext(edition=1), GenerationContext(seed=1), GenerationContext(attempts=4)]
    others += [
        GenerationContext(ceiling_rows=500),
        GenerationContext(references=20),
        GenerationContext(preset="ladder"),
    ]
    digests = [repr(_identity(*asked, context, "", "")) for context in others]
    digests += [
        repr(_identity(["iris"], "train", GenerationContext(), *service)) for service in (("", ""), ("http", ""))
    ]
    assert len({repr(mine), *digests}) == len(digests) + 1
