"""A model plays over HTTP, its window holds, and what it said comes back from the file as it was."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mle_text_toy import FIT, LOOK, WRONG, ToyExecutor, fenced, small_task, toy_task

from rl_oodkit.core.errors import CheckpointError, ParameterError
from rl_oodkit.mle.code_env import CodeEnv
from rl_oodkit.mle.cold import ColdSubprocess
from rl_oodkit.mle.dialogues import Dialogue, Message, append_dialogue, from_record, load_dialogues, to_record
from rl_oodkit.mle.react import ChatPolicy, ReActRunner, TokenMeter, run_group, system_prompt, trim
from rl_oodkit.mle.stub_server import Reply, StubServer
from rl_oodkit.mle.tokeniser import Tokeniser, byte_tokens


def played(script, *, turns=15, budget=32_768, reply=2048, **options):
    """Play one episode on the toy; return the trajectory and what the service was asked."""
    with StubServer(script) as server:
        policy = ChatPolicy(server.base_url, "stub", **options)
        runner = ReActRunner(CodeEnv([toy_task()], ToyExecutor(), turns=turns), policy, budget, reply)
        return runner.run(seed=3), server.requests


def test_the_whole_path_ends_with_a_medal(tmp_path):
    """A script over HTTP writes a scikit-learn program, scores, submits; the file gives the trajectory back."""
    task = small_task(tmp_path)
    script = [LOOK, WRONG, FIT, Reply("score", logprobs=(("score", -0.25),), usage=(900, 1)), "submit"]
    with ColdSubprocess(tmp_path) as executor, StubServer(script) as server:
        env = CodeEnv([task], executor, allow_unsafe=True, time_limit_s=60.0)  # no clock on a busy machine
        (dialogue,) = run_group(
            ReActRunner(env, ChatPolicy(server.base_url, "stub")), "t-small", 1, path=tmp_path / "a"
        )
    assert (dialogue.status, dialogue.masked, dialogue.group) == ("submitted", False, "t-small/0")
    assert dialogue.info["medal"] in ("bronze", "silver", "gold") and 0.7 <= dialogue.reward <= 1.0
    assert dialogue.reward == pytest.approx(sum(dialogue.parts.values()))
    assert [m.role for m in dialogue.messages] == ["system", "user"] + ["assistant", "user"] * 5
    assert "(120, 7)" in dialogue.messages[3].content and "FileNotFoundError" in dialogue.messages[5].content
    assert "Public auc" in dialogue.messages[9].content and dialogue.messages[8].logprobs == (("score", -0.25),)
    assert load_dialogues(tmp_path / "a") == [dialogue]


def test_contexts_tell_what_the_model_saw():
    """For every call, the recorded indices give exactly the messages that were sent."""
    script = [fenced(f"fail{i:03d} " + "x" * 300) for i in range(12)] + [fenced("gold"), "submit"]
    dialogue, requests = played(script, budget=1400, reply=400)
    said = [m for m in dialogue.messages if m.role == "assistant"]
    assert len(said) == len(requests) == 14 and any(len(m.context) < i * 2 + 2 for i, m in enumerate(said))
    for message, request in zip(said, requests, strict=True):
        shown = [dialogue.messages[i] for i in message.context]
        assert request.body["messages"] == [{"role": m.role, "content": m.content} for m in shown]
        roles = [m.role for m in shown]
        assert roles == ["system", "user"] + ["assistant", "user"] * (len(roles) // 2 - 1)
    assert dialogue.status == "submitted" and dialogue.info["medal"] == "gold"


def test_a_window_that_is_too_small_ends_the_dialogue():
    """Without room for prompt and task nothing is sent, and nothing is masked."""
    dialogue, requests = played(["submit"], budget=200, reply=100)
    assert (dialogue.status, dialogue.masked, dialogue.reward, requests) == ("window-full", False, 0.0, [])
    with pytest.raises(ParameterError):
        ReActRunner(None, None, 100, 100)


def test_time_outs_mask_the_trajectory():
    """More than a fifth of programs lost to the clock: no message is learnt from."""
    dialogue, _ = played([fenced("sleep"), fenced("gold"), "submit"])
    assert (dialogue.status, dialogue.masked, dialogue.reward) == ("timeout", True, 0.0)
    assert sum(dialogue.loss_mask) == 0 and len(dialogue.messages) == 8
    fine, _ = played([fenced("sleep")] + [fenced("gold")] * 5 + ["submit"])
    assert (fine.masked, sum(fine.loss_mask)) == (False, 7)


def test_seeds_reach_the_service_and_differ():
    """Each turn of each rollout samples with a seed of its own, and the same call repeats them."""

    def seeds():
        with StubServer(lambda body: "submit" if len(body["messages"]) > 4 else "well") as server:
            run_group(
                ReActRunner(CodeEnv([toy_task()], ToyExecutor()), ChatPolicy(server.base_url, "m")), "t1", 3, seed=5
            )
            return [r.body["seed"] for r in server.requests]

    first = seeds()
    assert len(set(first)) == len(first) == 9 and first == seeds()


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    failed=st.sets(st.integers(0, 7)),
    budget=st.integers(10, 400),
)
def test_trimming_keeps_its_promises(sizes, failed, budget):
    """What is shown fits, keeps head and tail, drops failures first, and loses nothing without need."""
    texts = ["system", "task"] + [c for n in sizes for c in ("a" * n, "u" * n)]
    wrong = {2 + 2 * i for i in failed if i < len(sizes)}
    meter, everything = TokenMeter(), list(range(len(texts)))
    kept = trim(texts, everything, wrong, budget, meter)
    size = lambda indices: meter.count([texts[i] for i in indices])  # noqa: E731
    least = [0, 1, *everything[2:][-2:]]
    if kept is None:
        assert size(least) > budget
        return
    assert size(kept) <= budget and kept == sorted(kept) and set(least) <= set(kept)
    if size(everything) <= budget:
        assert kept == everything
    gone = {i for i in everything if i not in kept and texts[i].startswith("a") or i not in kept and i % 2 == 0}
    if not gone <= wrong:
        assert kept == least


@given(st.text(max_size=200), st.integers(1, 400))
def test_the_meter_learns_what_the_service_counts(text, tokens):
    """After learning, the same messages are estimated at what was counted, within a token a message."""
    meter = TokenMeter()
    meter.learn([text], tokens)
    size = len(text.encode())
    if size and 0.15 * size <= tokens - 4 <= size:
        assert meter.count([text]) in (tokens, tokens + 1)
    assert meter.count([text]) <= 5 + size


TOKENS = st.tuples(st.text(max_size=4), st.floats(-1e6, 0.0))
MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["system", "user"]), st.text(max_size=20))
    | st.builds(Message, st.just("assistant"), st.text(max_size=20), st.lists(TOKENS, max_size=3).map(tuple)),
    max_size=6,
).map(tuple)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.builds(
            Dialogue,
            task=st.text(max_size=8),
            messages=MESSAGES,
            reward=NUMBER,
            parts=st.dictionaries(st.text(max_size=5), NUMBER, max_size=3),
            group=st.text(max_size=5),
            rollout=st.integers(0, 99),
            masked=st.booleans(),
        ),
        max_size=3,
    )
)
def test_files_give_back_what_was_written(tmp_path_factory, dialogues):
    """Any text, any finite number, any mask."""
    path = tmp_path_factory.mktemp("d") / "a.jsonl"
    path.touch()
    for dialogue in dialogues:
        append_dialogue(path, dialogue)
    assert load_dialogues(path) == dialogues


def test_lone_surrogates_survive_the_file(tmp_path):
    """A model's half character is no reason to lose a trajectory."""
    dialogue = Dialogue("t1", (Message("assistant", "half \ud83d"),))
    append_dialogue(tmp_path / "a", dialogue)
    assert load_dialogues(tmp_path / "a") == [dialogue]


@pytest.mark.parametrize(
    "field", ["task", "messages", "loss_mask", "reward", "reward_parts", "group", "masked", "info"]
)
def test_missing_fields_are_named(field):
    """Each of a record's fields is needed."""
    record = to_record(Dialogue("t1", (Message("user", "hello"),)))
    del record[field]
    with pytest.raises(ParameterError, match=field):
        from_record(record)


def test_the_prompt_names_every_form():
    """What the referee recognises is what the model is told."""
    assert all(word in system_prompt() for word in ("```python", "score", "submit", "submission.csv", "data/"))


def test_text_agents_do_not_load_torch():
    """Client, environment, runner and even the tiny model's module import without it."""
    names = ("chat_client", "code_env", "react", "dialogues", "tinylm", "constrained")
    code = "import sys, " + ", ".join(f"rl_oodkit.mle.{n}" for n in names) + "; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_decoding_inverts_encoding(text):
    """With a token for each byte and with merges, and no text makes a mark."""
    marked = Tokeniser([*byte_tokens(), "es", "Ġt", "<|im_end|>"], ["e s", "Ġ t"], specials=[258])
    numbers = marked.encode(text + "<|im_end|>")
    assert marked.decode(numbers) == text + "<|im_end|>" and 258 not in numbers


def test_a_model_in_this_process_plays_over_http():
    """Random weights behind the stub: true tokens and log-probabilities arrive in the trajectory."""
    from rl_oodkit.mle.constrained import tiny_service
    from rl_oodkit.mle.tinylm import random_model

    model = random_model()
    with StubServer(tiny_service(model, max_tokens=4)) as server:
        env = CodeEnv([toy_task()], ToyExecutor(), turns=2)
        dialogue = ReActRunner(env, ChatPolicy(server.base_url, "random")).run()
    said = [m for m in dialogue.messages if m.role == "assistant"]
    assert dialogue.status == "service-error" or len(said) == 2
    for message in said:
        assert all(p <= 0 for _, p in message.logprobs) and len(message.logprobs) <= 4


def test_without_the_extra_the_error_says_what_to_type(monkeypatch):
    """No file, no import error: a sentence."""
    from rl_oodkit.mle import tinylm

    monkeypatch.setattr(tinylm, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install"):
        tinylm.load_tinylm()


@pytest.mark.slow
def test_the_real_small_model(tmp_path_factory):
    """It knows a capital, its choices are legal and repeat, and it answers over HTTP with log-probabilities."""
    from rl_oodkit.mle.constrained import choose, generate, tiny_service
    from rl_oodkit.mle.tinylm import find_gguf, load_tinylm

    try:
        find_gguf()
    except CheckpointError as error:
        pytest.skip(str(error))
    model = load_tinylm(os.environ.get("RL_OODKIT_TINYLM_CACHE") or tmp_path_factory.mktemp("tinylm"))
    ask = [{"role": "user", "content": "What is the capital of France?"}]
    assert "Paris" in generate(model, ask, max_tokens=12, temperature=0).content
    assert model.tokeniser.decode(model.tokeniser.encode("x = [1, 2]\n")) == "x = [1, 2]\n"
    slots = [("model", ("linear", "tree")), ("scale", ("none", "standard"))]
    picked = [choose(model, ask, slots, seed=4) for _ in range(2)]
    assert picked[0].words == picked[1].words and np.all(np.array(picked[0].logprobs) <= 0)
    with StubServer(tiny_service(model, max_tokens=3)) as server:
        reply = ChatPolicy(server.base_url, "smollm2", temperature=0.0).speak(ask, seed=0)
    assert len(reply.logprobs) == reply.completion_tokens == 3
