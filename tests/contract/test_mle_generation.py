"""The chain of roles: bounded, logged, deterministic; a model may fill in fields, and lies cost nothing."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rl_oodkit.core.errors import ParameterError, StoreError, UnknownIdError
from rl_oodkit.core.executors import SerialExecutor
from rl_oodkit.core.results import RunStore
from rl_oodkit.core.spec import to_json
from rl_oodkit.mle.build import board_of, measured, predicted_at
from rl_oodkit.mle.chat_client import ChatClient
from rl_oodkit.mle.dna import DOMAINS, Clock, Missing, RuleDNA, TaskDNA
from rl_oodkit.mle.llm_roles import FormRole, forms, llm_roles
from rl_oodkit.mle.medals import Thresholds
from rl_oodkit.mle.messages import RoleLog, RoleMessage, log_line, refuse
from rl_oodkit.mle.orchestrator import default_roles, generate, make_task, walk
from rl_oodkit.mle.release import Release, ReleaseSpec, assembled, digest_of, groups_of, make_release, make_units
from rl_oodkit.mle.roles import Strategist, repaired_dna
from rl_oodkit.mle.screening import GenerationContext
from rl_oodkit.mle.stub_server import LIES, Reply, StubServer
from rl_oodkit.mle.tables import tables

QUICK = {"references": 12, "preset": "mlebench", "ceiling_rows": 1000}
ASKED = RoleMessage("strategist", {"seed_name": "diabetes", "index": 1})
GENES = {"domain": "energy", "rule": "tree", "trap": "none", "n_train": 90, "mechanism": "MCAR"}
GENES |= {"missing_rate": 0.0, "outlier_rate": 0.0}


class Says:
    """A role of one verdict."""

    def __init__(self, name, verdict="ok", error=None):
        self.name, self.verdict, self.error, self.seen = name, verdict, error, []

    def act(self, message, context):
        self.seen.append(message)
        if self.error:
            raise self.error
        return RoleMessage(
            self.name, message.payload, attempt=message.attempt, verdict=self.verdict, diagnostics=("why",)
        )


@pytest.fixture(scope="module")
def made():
    """One accepted task, with the log of its making."""
    log = RoleLog(None)
    for index in range(6):
        done = make_task("linnerud", index, GenerationContext(seed=1, **QUICK), log=log)
        if done.task is not None:
            return done, log
    raise AssertionError("no task was accepted")


def test_an_accepted_task_has_twelve_verdicts_and_a_judge(made):
    """All gates were asked and passed, and the sample submission is valid."""
    task = made[0].task
    assert sorted(g.number for g in task.gates) == list(range(1, 13)) and all(g.passed for g in task.gates)
    report = task.judge().grade(task.public().sample_submission)
    assert report.valid and report.normalised == 0 and task.public().description


def test_every_message_is_logged_as_json(made):
    """One line each, in order, without artefacts."""
    said = [json.loads(line) for line in made[1].lines]
    assert [row["role"] for row in said[-5:]] == ["strategist", "developer", "evaluator", "critic", "writer"]
    assert all(set(row) >= {"role", "attempt", "verdict", "diagnostics", "payload", "artefacts"} for row in said)
    assert "board" in said[-1]["artefacts"] and "board" not in said[-1]["payload"]


def test_the_same_task_is_made_twice(made):
    """Whoever asks for a number gets the same task."""
    task = made[0].task
    index = next(json.loads(line)["payload"]["index"] for line in made[1].lines[-1:])
    again = make_task("linnerud", index, GenerationContext(seed=1, **QUICK)).task
    assert again.name == task.name and digest_of(again.tables) == digest_of(task.tables)
    pd.testing.assert_series_equal(again.board["private"], task.board["private"], rtol=1e-9)


@pytest.mark.parametrize("modality", ["tabular", "series", "signal", "image", "text", "multitable"])
def test_three_processes_write_the_same_bytes(modality):
    """Whatever the hash seed."""
    target, metric = ("forecast", "rmse") if modality == "series" else ("binary", "auc")
    dna = TaskDNA(modality, target, metric, n_train=60, seed=5, time=Clock(ordered=modality == "series"))
    code = "import sys; from rl_oodkit.mle.dna import TaskDNA; from rl_oodkit.mle.release import digest_of; "
    code += "from rl_oodkit.mle.tables import tables; print(digest_of(tables(TaskDNA.from_json(sys.argv[1]))))"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, dna.to_json()],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONHASHSEED": str(i), "OMP_NUM_THREADS": str(i)},
        )
        for i in (1, 2)
    ]
    digests = {p.communicate(timeout=120)[0].decode().strip() for p in processes} | {digest_of(tables(dna))}
    assert len(digests) == 1


def test_three_processes_make_the_same_answers_boards_and_ladders():
    """Of the hidden part as well as of the files; hash seed and threads varied."""
    from rl_oodkit.reproduce.fingerprints import SURROUNDINGS, fingerprint_elsewhere

    first, second, third = (fingerprint_elsewhere([2, [], [], ["tabular"]], s) for s in SURROUNDINGS)
    assert first == second == third
    for part in ("train.csv", "answers target", "answers part", "board", "ladder", "solved 0"):
        assert f"task tabular {part}" in first


@pytest.mark.parametrize("name", ["tff4da120e4f2", "t94fed6b0254a"])
def test_a_released_task_is_made_again(name):
    """From its seed alone, by the rules of its suite: the same record, files, scores and ladder."""
    suite = Release("micro-1")
    row = next(r for r in suite.candidates.to_dict("records") if r["task"] == name and r["chosen"])
    unit = next(
        u for g in groups_of(suite.spec) for u in g.units if all(u.params[k] == row[k] for k in ("split", "index"))
    )
    saved = {}
    make_units({}, [unit], lambda spec, frame, arrays: saved.update(row=frame.iloc[0], board=arrays))
    assert all(saved["row"][k] == row[k] for k in ("task", "dna", "digest", "cell", "attempts"))
    board = suite.record(name).board
    for part in ("public", "private"):
        np.testing.assert_allclose(saved["board"][part], board[part], rtol=1e-9)
    for fields in ("thresholds", "oracle"):
        made, kept = json.loads(saved["row"][fields]), json.loads(row[fields])
        numbers = [name for name, value in kept.items() if isinstance(value, float)]
        np.testing.assert_allclose([made[n] for n in numbers], [kept[n] for n in numbers], rtol=1e-9)
        assert made.keys() == kept.keys() and len(numbers) >= 5


def test_the_oldest_suite_keeps_its_rules():
    """Its units are those it was made from; every later suite asks the side tables."""
    assert all("edition" not in u.params for g in groups_of(ReleaseSpec()) for u in g.units)
    assert all(u.params["edition"] == 2 for g in groups_of(ReleaseSpec("later", sizes={"train": 2})) for u in g.units)


def test_kept_predictions_are_those_of_a_second_run():
    """So the gates ask the same with and without them."""
    built, kept = tables(TaskDNA("text", n_train=60)), {}
    draft = measured(built, board_of(built, 12, kept=kept), preset="mlebench", top=0.9, predictions=kept)
    for level in (draft.thresholds.gold, draft.thresholds.median):
        again = predicted_at(replace(draft, predictions={}), level)
        assert predicted_at(draft, level).tobytes() == again.tobytes() and len(kept) == 12


def test_the_chain_is_bounded():
    """A role that always refuses is asked as often as the context says, and sees why."""
    first, critic = Says("strategist"), Says("critic", "repair")
    done = make_task("iris", 0, GenerationContext(attempts=4), roles=[first, critic])
    assert done.task is None and done.attempts == 4 and [m.attempt for m in first.seen] == [1, 2, 3, 4]
    assert first.seen[1].diagnostics == ("why",) and done.reasons == ("why",)


def test_a_rejection_ends_at_once():
    """`reject` is not a request for repair."""
    assert make_task("iris", 0, GenerationContext(), roles=[Says("strategist", "reject")]).attempts == 1


def test_our_errors_refuse_and_others_pass_through():
    """A defect must not look like a refused task."""
    log = RoleLog(None)
    answer = walk(ASKED, [Says("strategist", error=ParameterError("no such thing"))], None, log)
    assert answer.verdict == "repair" and "no such thing" in answer.diagnostics[0] and len(log.lines) == 1
    with pytest.raises(ZeroDivisionError):
        walk(ASKED, [Says("strategist", error=ZeroDivisionError())], None, log)


def test_messages_refuse_unknown_words(tmp_path):
    """Roles and verdicts are closed lists, payloads are JSON, a log needs a place."""
    for bad in ({"role": "boss"}, {"role": "critic", "verdict": "OK"}):
        with pytest.raises(ParameterError):
            RoleMessage(**bad)
    with pytest.raises(ParameterError):
        log_line(RoleMessage("critic", {"x": float("nan")}))
    with pytest.raises(ParameterError):
        log_line(RoleMessage("critic", {"x": object()}))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        RoleLog(tmp_path / "file" / "log.jsonl")
    assert refuse(RoleMessage("critic"), ["x"], final=True).verdict == "reject"


def test_an_unknown_seed_is_an_error():
    """Before anything is made."""
    done = make_task("whine", 0, GenerationContext(attempts=1))
    assert done.task is None and "whine" in done.reasons[0]
    with pytest.raises(ParameterError):
        generate(["iris"], 0)


def test_repairs_answer_the_gate():
    """A trap that pays goes, a rare class gets rows, and what has no repair says so."""
    dna = TaskDNA(trap="id_order_leak")
    assert repaired_dna(dna, ["gate 9 shortcut: x"]).trap == "none"
    assert repaired_dna(TaskDNA(), ["gate 9 shortcut: x"]).rule != TaskDNA().rule
    assert repaired_dna(TaskDNA(n_train=80), ["gate 8 support: x", "gate 7 spread: x"]).n_train == 200
    assert (
        repaired_dna(TaskDNA(), ["gate 12 novelty: x"]) is None is repaired_dna(TaskDNA(), ["the data cannot be made"])
    )


def strategist(server):
    """A strategist with a scripted model behind it."""
    return FormRole(Strategist(), ChatClient(server.base_url, "stub"), forms()["strategist"])


def test_a_model_fills_in_fields():
    """And nothing but the fields changes."""
    with StubServer([json.dumps(GENES)]) as server:
        said = strategist(server).act(ASKED, GenerationContext())
    plain = Strategist().act(ASKED, GenerationContext()).artefacts["dna"]
    dna = said.artefacts["dna"]
    assert (dna.domain, dna.rule.family, dna.n_train, dna.seed) == ("energy", "tree", 90, plain.seed)
    assert said.payload["model"] == {"fallback": False, "repairs": 0} and said.payload["task"] == dna.name


@pytest.mark.parametrize(
    "wrong",
    ["no json at all", "[]", "{}", json.dumps(GENES | {"code": "print()"}), json.dumps(GENES | {"n_train": 9e9})],
)
def test_a_wrong_answer_is_sent_back(wrong):
    """Once, with the reason, and the next one counts."""
    with StubServer([wrong, json.dumps(GENES)]) as server:
        said = strategist(server).act(ASKED, GenerationContext())
        assert len(server.requests) == 2
    assert said.payload["model"] == {"fallback": False, "repairs": 1}


def test_three_repairs_then_the_procedural_role():
    """Four answers in all, and the task is the one that would have been made without a model."""
    with StubServer(["nonsense"] * 9) as server:
        said = strategist(server).act(ASKED, GenerationContext())
        assert len(server.requests) == 4
    assert said.payload["model"]["fallback"] and said.verdict == "ok"
    assert said.artefacts["dna"] == Strategist().act(ASKED, GenerationContext()).artefacts["dna"]


def test_genes_that_contradict_each_other_are_refused():
    """The schema cannot know that an image has no missing cells; the laws do."""
    bad = json.dumps(GENES | {"missing_rate": 0.2, "trap": "time_leak"})
    text = RoleMessage("strategist", {"seed_name": "gen_text", "index": 3})
    with StubServer([bad] * 9) as server:
        said = strategist(server).act(text, GenerationContext())
    dna = said.artefacts["dna"]
    assert said.payload["model"]["fallback"] or dna.missing != Missing(0.2)


@pytest.mark.parametrize("lie", [name for name in sorted(LIES) if name not in ("slow", "endless")])
def test_a_lying_service_costs_nothing(lie):
    """Each manner of lying ends in the procedural answer or in a repaired one, never in an error."""
    limits = ChatClient("http://127.0.0.1:1", "stub").limits
    quick = replace(limits, **{k: 0.01 for k in ("backoff_s",) if hasattr(limits, k)})
    with StubServer([Reply(manner=lie)] * 20) as server:
        client = replace(ChatClient(server.base_url, "stub"), limits=quick)
        said = FormRole(Strategist(), client, forms()["strategist"]).act(ASKED, GenerationContext())
    assert said.verdict == "ok" and "model" in said.payload


def test_all_five_roles_have_a_form():
    """With a closed schema each."""
    roles = llm_roles(ChatClient("http://127.0.0.1:1", "stub"))
    assert [r.name for r in roles] == [r.name for r in default_roles()]
    assert all(form.schema["additionalProperties"] is False for form in forms().values())
    assert forms()["strategist"].fields["domain"]["enum"] == list(DOMAINS)


def test_assembly_drops_twins_and_unknown_kinds():
    """In the order of the candidates, whoever made them."""
    dnas = [TaskDNA(seed=i, rule=RuleDNA(family)) for i, family in enumerate(("linear", "tree", "radial", "sparse"))]
    steps = Thresholds(0.5, 0.6, 0.66, 0.7, 0.74, 0.9, 0.8, False)
    common = {"accepted": True, "reasons": "[]", "cell": "c", "thresholds": to_json(steps)}
    rows = [common | {"task": d.name, "dna": d.to_json()} for d in dnas]
    rows[2]["cell"] = "other"
    rng = np.random.default_rng(0)
    boards = {d.name: rng.random(30) for d in dnas}
    boards[dnas[1].name] = boards[dnas[0].name]
    chosen = assembled(pd.DataFrame(rows), boards, 9, {"c"})
    assert chosen["chosen"].tolist() == [True, False, False, True]
    assert assembled(pd.DataFrame(rows), boards, 1)["chosen"].tolist() == [True, False, False, False]
    assert not assembled(pd.DataFrame(rows), boards, 9, earlier=dnas)["chosen"].any()
    rows[0]["thresholds"] = to_json(replace(steps, oracle=0.72))
    beyond = assembled(pd.DataFrame(rows), boards, 9)
    assert not beyond["chosen"][0] and "beyond the optimum" in beyond["reasons"][0]


def test_a_release_is_read_back_and_rebuilt(tmp_path):
    """Records, arenas and digests; a second making is read from the store."""
    spec = ReleaseSpec("demo", ("linnerud", "make_regression"), {"train": 2}, {"train": 12}, 1.5, "mlebench", 1000)
    store, folder = RunStore(tmp_path / "runs"), tmp_path / "demo"
    first = make_release(spec, store, SerialExecutor(), folder)
    second = make_release(spec, store, SerialExecutor(), folder)
    pd.testing.assert_frame_equal(first, second)
    release = Release(folder)
    assert release.spec == spec
    for record in release.records("train"):
        assert record.rebuilds() and record.arena().judge.thresholds == record.thresholds
        assert release.record(record.dna.name).digest == record.digest
    with pytest.raises(UnknownIdError):
        release.record("t0")
    with pytest.raises(UnknownIdError):
        Release("no-such-suite")
    with pytest.raises(ParameterError):
        spec.candidates("final")
