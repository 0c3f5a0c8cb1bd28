"""Services that fail and lie, and damaged files: a named error each time, in bounded time, and no secret shown."""

import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mle_text_toy import LOOK, ToyExecutor, fenced, toy_task

from rl_oodkit.core.errors import DamagedFileError, ForeignFileError, ParameterError, ServiceError
from rl_oodkit.mle import transport
from rl_oodkit.mle.chat_client import ChatClient, _bare, _read_reply, schema_error
from rl_oodkit.mle.code_env import CodeEnv
from rl_oodkit.mle.dialogues import Dialogue, Message, load_dialogues, save_dialogues
from rl_oodkit.mle.react import ChatPolicy, ReActRunner, run_group
from rl_oodkit.mle.stub_server import LIES, Reply, StubServer
from rl_oodkit.mle.transport import CallLimits, check_url, parse_json, post_json

ASK = [{"role": "user", "content": "two and two?"}]
QUICK = CallLimits(timeout_s=0.6, retries=2, backoff_s=0.0, max_bytes=200_000)
KEY = "sk-secret-1234"
SCHEMA = {"type": "object", "required": ["rate"], "properties": {"rate": {"type": "number", "maximum": 1}}}


def client(server, **options):
    """Return a client with short limits."""
    return ChatClient(server.base_url, "stub", **{"limits": QUICK, **options})


FATAL = {
    "bad-json": "not JSON",
    "wrong-schema": "no choices",
    "empty-choices": "choices are",
    "html": "text/html",
    "wrong-type": "octet-stream",
    "slow": "no answer within 0.6 s",
    "endless": "exceeds 200000 bytes",
    "redirect": "status 307",
}
PASSING = {"error-500": "status 500", "rate-limit": "status 429", "disconnect": "connection failed"}


def test_every_lie_has_a_test():
    """The two tables below cover the stub's list."""
    assert set(LIES) == set(FATAL) | set(PASSING)


@pytest.mark.parametrize("lie", FATAL)
def test_lies_that_end_a_call(lie):
    """One request, one named error, soon."""
    with StubServer([Reply("http://192.0.2.1/x", lie, delay_s=3.0 * (lie == "slow")), "four"]) as server:
        start = time.monotonic()
        with pytest.raises(ServiceError, match=FATAL[lie]) as caught:
            client(server).complete(ASK)
        assert time.monotonic() - start < 2.5 and len(server.requests) == 1
        assert caught.value.where and caught.value.instead


@pytest.mark.parametrize("lie", PASSING)
def test_lies_that_may_pass(lie):
    """Repeated until the truth comes, and not for ever."""
    with StubServer([Reply(manner=lie), Reply(manner=lie), "four"]) as server:
        reply = client(server).complete(ASK)
        assert (reply.content, reply.attempts, len(server.requests)) == ("four", 3, 3)
    with StubServer([Reply(manner=lie)] * 9) as server:
        with pytest.raises(ServiceError, match=PASSING[lie]):
            client(server).complete(ASK)
        assert len(server.requests) == QUICK.retries + 1


def test_waiting_doubles_and_obeys_the_service(monkeypatch):
    """Attempt k waits b 2^k; a service that names a time gets it, up to half a minute."""
    waits = []
    monkeypatch.setattr(transport.time, "sleep", waits.append)
    limits = CallLimits(timeout_s=5.0, retries=4, backoff_s=8.0)
    with StubServer([Reply(manner="error-500")] * 4 + ["four"]) as server:
        client(server, limits=limits).complete(ASK)
    assert waits == [8.0, 16.0, 30.0, 30.0]
    waits.clear()
    with StubServer([Reply(manner="rate-limit"), "four"]) as server:
        client(server, limits=limits).complete(ASK)
    assert waits == [0.0]


@contextmanager
def raw_server(talk):
    """Listen on the loopback address, and let a function talk to one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def serve():
            connection, _ = listener.accept()
            with connection:
                talk(connection, stop)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        stop.set()
        thread.join(5)


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"])
def test_a_service_that_dribbles_is_cut_off(first):
    """A byte now and then, in the headers or in the body, resets no clock."""

    def talk(connection, stop):
        try:
            connection.sendall(first or b"HTTP/1.1 200 OK\r\nX: ")
            while not stop.wait(0.05):
                connection.sendall(b" ")
        except OSError:
            pass

    with raw_server(talk) as url:
        start = time.monotonic()
        with pytest.raises(ServiceError, match="no answer within"):
            post_json(url, {}, limits=QUICK)
        assert time.monotonic() - start < 2.5


@pytest.mark.parametrize(
    "data", [b"", b"\x00\xff" * 99, b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a" * 70000]
)
def test_noise_instead_of_http(data):
    """Whatever comes back is an error of ours."""

    def talk(connection, stop):
        connection.sendall(data)

    with raw_server(talk) as url, pytest.raises(ServiceError):
        post_json(url, {}, limits=CallLimits(timeout_s=1.0, retries=0))


def test_nobody_listens():
    """A closed port, with and without a proxy in the environment that nobody serves either."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ServiceError, match="connection failed.*3 times"):
        ChatClient(f"http://127.0.0.1:{port}", "stub", limits=QUICK).complete(ASK)


def test_the_loopback_address_needs_no_proxy(monkeypatch):
    """A proxy of the environment is not asked for a service on this machine."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with StubServer(["four"]) as server:
        assert client(server).complete(ASK).content == "four"


def test_the_key_is_sent_and_never_shown(monkeypatch, capfd):
    """In no setting, no recorded request, no error, no output."""
    monkeypatch.setenv("STUB_KEY", KEY)
    with StubServer(["four"], key=KEY) as server:
        ours = client(server, api_key_env="STUB_KEY")
        assert ours.complete(ASK).content == "four"
        assert server.requests[0].authorised and KEY not in repr((ours, server.requests, vars(ours)))
    with StubServer(["four"], key="another") as server, pytest.raises(ServiceError, match="401") as caught:
        client(server, api_key_env="STUB_KEY").complete(ASK)
    echo = Reply(f"bad key {KEY}", "error-500")
    with StubServer([echo] * 3) as server, pytest.raises(ServiceError, match="500") as again:
        client(server, api_key_env="STUB_KEY").complete(ASK)
    assert KEY not in str(caught.value) + str(again.value) + "".join(capfd.readouterr())


def test_a_key_that_is_missing_or_unfit(monkeypatch):
    """Named by its variable, not by its value."""
    monkeypatch.delenv("STUB_KEY", raising=False)
    with StubServer(["four"]) as server:
        with pytest.raises(ParameterError, match="STUB_KEY"):
            client(server, api_key_env="STUB_KEY").complete(ASK)
        monkeypatch.setenv("STUB_KEY", "se\ncret")
        with pytest.raises(ParameterError) as caught:
            client(server, api_key_env="STUB_KEY").complete(ASK)
        assert "cret" not in str(caught.value).replace("secret", "") and not server.requests


def test_a_redirect_takes_the_key_nowhere(monkeypatch):
    """The other address is never asked, on whatever host it is."""
    monkeypatch.setenv("STUB_KEY", KEY)
    with StubServer(["four"]) as other, StubServer([Reply(f"{other.base_url}/v1/x", "redirect")]) as server:
        with pytest.raises(ServiceError, match="sends us to"):
            client(server, api_key_env="STUB_KEY").complete(ASK)
        assert not other.requests


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "file:///etc/passwd", "http://", "http://a:b@c", "http://a b", "http://a/?k=1", None]
)
def test_addresses_that_are_none(url):
    """Refused before anything is sent."""
    with pytest.raises(ParameterError):
        check_url(url)


@pytest.mark.parametrize("setting", [{"temperature": -1}, {"max_tokens": 0}, {"model": ""}, {"temperature": "warm"}])
def test_settings_out_of_range(setting):
    """Refused when the client is made."""
    with pytest.raises(ParameterError):
        ChatClient(**{"base_url": "http://127.0.0.1:1", "model": "stub", **setting})


WORDS = ["choices", "message", "content", "usage", "logprobs", "token", "logprob", "finish_reason"]
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_any_json_is_a_reply_or_a_service_error(value):
    """The protocol's check leaves no third way."""
    try:
        reply = _read_reply(value, "a service")
    except ServiceError:
        return
    assert isinstance(reply.content, str)


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet='{}[]",:ab1 \n`<>/think', max_size=40))
def test_any_text_is_json_or_a_service_error(text):
    """Braces in any order never raise anything else."""
    try:
        parse_json(_bare(text))
    except ServiceError as error:
        assert error.what


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=8), max_size=4))
def test_json_is_found_in_prose(value):
    """Fenced, introduced, or after a thought."""
    text = json.dumps(value)
    for wrapped in (text, f"Sure:\n```json\n{text}\n```", f"<think>{{a}}</think>{text}"):
        assert parse_json(_bare(wrapped)) == value


def test_repairs_quote_the_fault_and_end():
    """The reason goes back to the model; the fourth bad answer is the last."""
    with StubServer(["nothing", '{"rate": 3}', '{"rate": 0.5}']) as server:
        answer = client(server).complete_json(ASK, SCHEMA)
        assert (answer.value, answer.repairs) == ({"rate": 0.5}, 2)
        sent = server.requests[2].body["messages"]
        assert [m["role"] for m in sent] == ["user", "assistant", "user", "assistant", "user"]
        assert "maximum of 1" in sent[-1]["content"]
    with StubServer(["nothing"] * 9) as server:
        with pytest.raises(ServiceError, match="4 answers"):
            client(server).complete_json(ASK, SCHEMA)
        assert len(server.requests) == 4


def test_schemas_that_are_none_send_nothing():
    """A bad schema is the caller's fault; one on another machine is not fetched."""
    with StubServer(["{}"]) as server:
        for schema in ({"type": "wrong"}, {"$ref": "https://192.0.2.1/s.json"}):
            with pytest.raises(ParameterError, match="schema"):
                client(server).complete_json(ASK, schema)
        assert not server.requests
    assert "maximum" in schema_error({"rate": 2}, SCHEMA)


@pytest.mark.parametrize("messages", [[], [{"role": "tool", "content": "x"}], [{"role": "user"}], ["hello"]])
def test_dialogues_that_are_none(messages):
    """Refused before anything is sent."""
    with StubServer(["four"]) as server:
        with pytest.raises(ParameterError):
            client(server).complete(messages)
        assert not server.requests


def test_a_script_that_fails_is_an_internal_error():
    """A function behind the stub that raises is status 500, with its reason."""
    with StubServer(lambda body: body["absent"]) as server, pytest.raises(ServiceError, match="KeyError"):
        client(server, limits=CallLimits(retries=0)).complete(ASK)
    with pytest.raises(ParameterError, match="not running"):
        _ = server.base_url


@pytest.mark.parametrize("lie", [*FATAL, *PASSING])
def test_a_run_survives_its_service(lie, tmp_path):
    """What was said before the failure is kept and masked, and the group goes on."""
    limits = CallLimits(timeout_s=0.5, retries=0, max_bytes=100_000)
    bad = Reply("http://192.0.2.1", lie, delay_s=1.0 * (lie == "slow"))
    with StubServer([fenced("gold"), bad, fenced("gold"), "submit"]) as server:
        runner = ReActRunner(CodeEnv([toy_task()], ToyExecutor()), ChatPolicy(server.base_url, "stub", limits=limits))
        broken, whole = run_group(runner, "t1", 2, path=tmp_path / "a.jsonl")
    assert (broken.status, broken.masked, sum(broken.loss_mask)) == ("service-error", True, 0)
    assert len(broken.messages) == 4 and broken.info["reason"]
    assert (whole.status, whole.reward, whole.masked) == ("submitted", 1.0, False)
    assert load_dialogues(tmp_path / "a.jsonl") == [broken, whole]


def record():
    """Return a short trajectory."""
    said = (Message("system", "s"), Message("user", "ü"), Message("assistant", LOOK, (("a", -0.5),), (0, 1)))
    return Dialogue("t1", said, 0.5, {"valid": 0.5}, group="g", status="submitted", model="m", info={"calls": 1})


@settings(max_examples=80, deadline=None)
@given(position=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_files_are_named_or_harmless(tmp_path_factory, position, byte, cut):
    """Any changed or cut byte gives one of two errors, or a trajectory that keeps all rules."""
    path = tmp_path_factory.mktemp("d") / "a.jsonl"
    save_dialogues(path, [record()])
    data = bytearray(path.read_bytes())
    position %= len(data)
    data[position] = byte
    path.write_bytes(data[:position] if cut else data)
    try:
        loaded = load_dialogues(path)
    except (DamagedFileError, ForeignFileError) as error:
        assert str(path) in str(error)
        return
    assert all(isinstance(d, Dialogue) and len(d.loss_mask) == len(d.messages) for d in loaded)
