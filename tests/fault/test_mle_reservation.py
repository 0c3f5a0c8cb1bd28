"""User numbers of sandboxes: neighbours never share one, the dead keep none, and the search for one has an end."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mle_sandbox_world import JAILED, World, alive, until, users

from rl_oodkit.core.errors import ParameterError, SandboxUnavailableError
from rl_oodkit.mle.jail import JailConfig
from rl_oodkit.mle.levels import unavailable
from rl_oodkit.mle.reservation import REACH, claim, first_numbers, open_register, reserve
from rl_oodkit.mle.warm import Slot, WarmForkServer

UID = 910_001
jailed = pytest.mark.skipif(not JAILED, reason=f"no isolation here: {unavailable(2)}")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return tasks and a bystander."""
    here = World(tmp_path_factory.mktemp("world"))
    yield here
    here.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder for a register that nobody else uses."""
    return str(tmp_path_factory.mktemp("register"))


SPANS = st.tuples(st.integers(0, 20), st.integers(1, 6))


@given(st.lists(SPANS, max_size=8))
def test_a_claim_succeeds_exactly_where_nobody_is(spans):
    """Compared with a list of ranges; a refused claim holds nothing."""
    registers, held = [open_register((REGISTER[0],)) for _ in spans], []
    for register, (first, count) in zip(registers, spans):
        asked = set(range(5000 + first, 5000 + first + count))
        free = not any(asked & other for other in held)
        assert claim(register, 5000 + first, count) == free
        held += [asked] if free else []
    for register in registers:
        register.close()


REGISTER: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def shared(place):
    """Let property tests reach the folder, which outlives single examples."""
    REGISTER.append(place)
    yield
    REGISTER.clear()


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.randoms())
def test_reservations_are_disjoint_and_packed(slots, random):
    """Any number of neighbours, in any order of leaving: disjoint ranges, and all numbers free again afterwards."""
    held = [reserve(UID, count, places=(REGISTER[0],)) for count in slots]
    numbers = [uid for reservation in held for uid in reservation.uids]
    assert numbers == list(range(UID, UID + sum(slots)))
    random.shuffle(held)
    for reservation in held:
        reservation.release()
    with reserve(UID, sum(slots), places=(REGISTER[0],)) as again:
        assert again.uids[0] == UID


def test_whoever_comes_at_the_same_moment_gets_another_range(place):
    """Sixteen threads, one barrier, one range each."""
    gate, held = threading.Barrier(16), []

    def ask() -> None:
        """Reserve two numbers together with everybody else."""
        gate.wait()
        held.append(reserve(UID, 2, places=(place,)))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    _ = [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert len({uid for reservation in held for uid in reservation.uids}) == 32
    for reservation in held:
        reservation.release()


@pytest.mark.parametrize(("first", "count"), [(999, 1), (2**31 - 1, 1), (64001, 0), (64001, 1025), (1.5, 1)])
def test_numbers_that_no_machine_has_are_named(first, count, place):
    """Before any file is opened."""
    with pytest.raises(ParameterError, match="first_uid|slots"):
        reserve(first, count, places=(place + "/absent",))


@given(st.integers(1000, 2**31 - 1026), st.integers(1, 1024))
def test_no_range_leaves_the_numbers_that_exist(first, count):
    """The last candidate ends below 2**31, and the search is bounded."""
    starts = first_numbers(first, count)
    assert 1 <= len(starts) <= REACH and starts[-1] + count <= 2**31 - 1 + 1


def test_a_strangers_file_is_not_a_register(tmp_path, monkeypatch):
    """Links, folders and files of other users are passed over, and the last one is named."""
    target = tmp_path / "rl-oodkit-users"
    target.symlink_to("/etc/passwd")
    with pytest.raises(SandboxUnavailableError, match="symbolic links"):
        open_register((str(tmp_path),))
    target.unlink()
    target.mkdir()
    with pytest.raises(SandboxUnavailableError, match="directory"):
        open_register((str(tmp_path),))
    target.rmdir()
    target.touch()
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(SandboxUnavailableError, match="no file of ours"):
        open_register((str(tmp_path),))


def test_a_forked_copy_keeps_the_numbers_for_its_life(place):
    """The lock belongs to the opening of the file, and ends with its last holder."""
    held, (head, tail) = reserve(UID, 2, places=(place,)), os.pipe()
    if (pid := os.fork()) == 0:
        os.close(tail)
        os.read(head, 1)
        os._exit(0)
    held.release()
    with reserve(UID, 1, places=(place,)) as other:
        assert other.uids[0] == UID + 2
    os.close(tail), os.close(head)
    os.waitpid(pid, 0)
    with reserve(UID, 1, places=(place,)) as other:
        assert other.uids[0] == UID


HOLD = """
import sys
from rl_oodkit.mle.reservation import reserve
with reserve(int(sys.argv[1]), 1, places=(sys.argv[2],)) as held:
    print(held.uids[0], flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not JAILED, reason="needs a network namespace of its own")
def test_other_network_and_process_namespaces_see_it(place):
    """Where an abstract socket would be invisible."""
    apart = ["unshare", "-n", "-p", "-f", "--kill-child=KILL", sys.executable, "-c", HOLD, str(UID), place]
    with subprocess.Popen(apart, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as neighbour:
        assert int(neighbour.stdout.readline()) == UID
        with reserve(UID, 1, places=(place,)) as ours:
            assert ours.uids[0] == UID + 1
        neighbour.stdin.close()


BATTERY = """
import json, os, sys
from mle_sandbox_world import users
from rl_oodkit.mle.attempts import WHOLE_STEPS, escapes, probe_program
from rl_oodkit.mle.probes import EXHAUSTION, PROCESSES, RIGHTS
from rl_oodkit.mle.warm import WarmForkServer

tasks, first, crowd, parameters = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
with WarmForkServer(tasks, first_uid=first) as jail:
    uid, server = jail.slots[0].config.uid, jail.slots[0].process.pid
    print(uid, flush=True)
    sys.stdin.readline()
    wrong = []
    for turn in range(3):
        table = (PROCESSES, EXHAUSTION, RIGHTS)[turn]
        said = jail.run(probe_program(table, parameters | {"server": server, "grader": os.getpid()}), "t1")
        wrong += [f"{name}: {what}" for name, what in escapes(table, said.stdout).items()]
        threads = jail.run(crowd, "t1").stdout.strip()
        wrong += [f"{threads} threads"] if threads != "32" else []
        wrong += [f"left behind by {uid}"] if users(uid) else []
    for step in WHOLE_STEPS[::3]:
        got = jail.run(step.source, "t1", keep=False, time_limit_s=0.4 if step.status == "timeout" else 10.0)
        wrong += [f"{step.name}: {got.status} {got.reason}"] if got.status != step.status else []
        wrong += [f"left behind by {uid} after {step.name}"] if users(uid) else []
    print(json.dumps([jail.slots[0].restarts, wrong]))
"""
CROWD = """
import threading, time
gate, started = threading.Event(), 1
try:
    while True:
        threading.Thread(target=gate.wait, daemon=True).start()
        started += 1
except RuntimeError:
    time.sleep(1.0)
    print(started)
"""


@jailed
def test_neighbours_do_not_disturb_each_other(world):
    """Two processes, one first number: both run escapes, floods and crowds of threads at once, and nothing fails."""
    arguments = [str(world.tasks), str(UID + 100), CROWD, json.dumps(world.parameters(0, "/data"))]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    options["env"] = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    pair = [subprocess.Popen([sys.executable, "-c", BATTERY, *arguments], **options) for _ in range(2)]
    try:
        assert {int(process.stdout.readline()) for process in pair} == {UID + 100, UID + 101}
        for process in pair:
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [json.loads(process.communicate(timeout=300)[0]) for process in pair] == [[0, []]] * 2
    finally:
        for process in pair:
            process.kill()
            process.wait()
            process.stdin.close(), process.stdout.close()


BUSY = """
import threading, time
[threading.Thread(target=time.sleep, args=(99,), daemon=True).start() for _ in range(20)]
time.sleep(99)
"""


@jailed
def test_with_one_number_they_would(world):
    """The control: two servers made by hand with one user number share its thirty-two threads, and see each other."""
    with reserve(UID + 200, 1) as held:
        uid = held.uids[0]
        pair = [Slot(JailConfig(str(world.tasks), uid), sys.executable) for _ in range(2)]
        options = {"fresh": True, "seed": 0, "time_limit_s": 8.0}
        try:
            _ = [slot.start() for slot in pair]
            busy = threading.Thread(target=pair[0].step, args=(BUSY, "t1", "e"), kwargs=options)
            busy.start()
            assert until(lambda: sum(len(os.listdir(f"/proc/{pid}/task")) for pid in users(uid)) == 21)
            assert pair[1].step(CROWD, "t1", "e", **options).stdout == "11\n"
            busy.join()
        finally:
            _ = [slot.close() for slot in pair]


GRADER = """
import sys
from rl_oodkit.mle.warm import WarmForkServer
jail = WarmForkServer(sys.argv[1], first_uid=int(sys.argv[2]))
print(jail.slots[0].process.pid, jail.slots[0].config.uid, flush=True)
jail.run("import time; time.sleep(99)", "t1", time_limit_s=99.0)
"""


@jailed
def test_a_killed_graders_numbers_are_free_when_its_server_is_gone(world):
    """Not earlier, while the server may still run a step; and without anybody to clean up."""
    command = [sys.executable, "-c", GRADER, str(world.tasks), str(UID + 300)]
    grader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    server, uid = map(int, grader.stdout.readline().split())
    assert uid == UID + 300 and until(lambda: users(uid), 30)
    os.kill(server, signal.SIGSTOP)
    grader.kill()
    grader.wait(30)
    grader.stdout.close()
    with reserve(uid, 1) as other:
        assert other.uids[0] == uid + 1, "the stopped server has not noticed yet"
    os.kill(server, signal.SIGCONT)
    assert until(lambda: not alive(server), 30) and not users(uid)
    with WarmForkServer(world.tasks, first_uid=uid) as executor:
        assert executor.slots[0].config.uid == uid


@jailed
def test_closing_frees_the_numbers(world):
    """In the same process; a server that did not start holds none either."""
    with WarmForkServer(world.tasks, first_uid=UID + 400) as executor:
        assert executor.reservation.uids == range(UID + 400, UID + 401)
    with pytest.raises(SandboxUnavailableError, match="did not start"):
        WarmForkServer(world.tasks, first_uid=UID + 400, python="/bin/false")
    with reserve(UID + 400, 1) as held:
        assert held.uids[0] == UID + 400


@jailed
def test_an_exhausted_range_is_an_error_that_says_what_to_do(world):
    """Nothing is started."""
    with open_register() as greedy:
        assert claim(greedy, UID + 10_000, 2 * REACH)
        with pytest.raises(SandboxUnavailableError, match="no 2 free user numbers between .* first_uid"):
            WarmForkServer(world.tasks, slots=2, first_uid=UID + 10_000)
