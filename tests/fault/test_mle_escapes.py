"""Ways out of the jail: each is blocked for the right reason, and each works where nothing protects."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from mle_sandbox_world import JAILED, MARKER, SECRET, World, children_of, mounts, python, users

from rl_oodkit.core.errors import ParameterError, SandboxUnavailableError
from rl_oodkit.mle.attempts import HELPERS, WHOLE_STEPS, control_program, escapes, probe_program
from rl_oodkit.mle.execution import Limits
from rl_oodkit.mle.levels import detect_level, make_code_executor
from rl_oodkit.mle.probes import ANSWERS, EXHAUSTION, FILES, MACHINE, NETWORK, PROBES, PROCESSES, RIGHTS
from rl_oodkit.mle.warm import WarmForkServer

UID = 64101
TABLES = (ANSWERS, PROCESSES, NETWORK, MACHINE, RIGHTS, FILES, EXHAUSTION)
# a kernel may be built without these, or a container may hide them; the filter is tested for them all the same
MAY_BE_ABSENT = {"kernel-cryptography", "hypervisor", "load-a-kernel", "load-a-module", "ports", "kernel-trigger"}
MAY_BE_ABSENT |= {"answers-by-first-root", "secret-memory", "user-faults", "watch-files", "kernel-messages", "homes"}
MAY_BE_ABSENT |= {"logs", "terminals", "run-the-interpreter", "key-for-later", "uncapped-scratch", "user-namespace"}
MAY_BE_ABSENT |= {"performance-counters", "kernel-programs", "rings", "open-by-handle", "kernel-log"}


@pytest.fixture(scope="module")
def world():
    """Return a world, in a folder open to everybody, that is the same after the tests as before."""
    os.environ["RL_OODKIT_CANARY"] = SECRET
    with tempfile.TemporaryDirectory() as root:
        here = World(Path(root))
        before = here.digest(), mounts(), sorted(os.listdir("/dev/shm"))
        yield here
        assert (here.digest(), mounts(), sorted(os.listdir("/dev/shm"))) == before
        here.close()
    del os.environ["RL_OODKIT_CANARY"]


@pytest.fixture(scope="module")
def jail(world):
    """Return a server, or nothing where this machine refuses; in that case it must refuse, and nothing else is run."""
    if not JAILED:
        with pytest.raises(SandboxUnavailableError):
            make_code_executor("warm", world.tasks)
        yield None
        return
    with WarmForkServer(world.tasks, first_uid=UID) as executor:
        yield executor
        assert not users(uid_of(executor))


def uid_of(jail: WarmForkServer) -> int:
    """Return the user number of its steps; another test may have the one that was asked for."""
    return jail.slots[0].config.uid


@pytest.fixture(scope="module")
def parameters(world, jail):
    """Return what probes see as `P` in the jail."""
    return world.parameters(jail.slots[0].process.pid if jail else os.getpid(), "/data")


@pytest.fixture(scope="module")
def verdicts(jail, parameters):
    """Return what each batch of probes printed in the jail; a table is one step."""
    if jail is None:
        return {}
    said = [jail.run(probe_program(table, parameters), "t1", time_limit_s=30.0) for table in TABLES]
    assert [result.status for result in said] == ["ok"] * len(TABLES), [result.stderr[-300:] for result in said]
    return {probe.name: (probe, result.stdout) for table, result in zip(TABLES, said) for probe in table}


@pytest.fixture(scope="module")
def controls(world, jail):
    """Return the verdicts of a throw-away process that nothing protects."""
    box = world.copy()
    server = jail.slots[0].process.pid if jail else os.getpid()
    program = control_program(PROBES, world.parameters(server, str(box / "data")), str(world.answers))
    return json.loads(python(program, cwd=box))


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_way_is_shut(probe, verdicts, jail):
    """Blocked, and by what the table says; where there is no jail, the refusal was asserted and nothing ran."""
    if jail is None:
        assert detect_level() < 2
        return
    assert not escapes((probe,), verdicts[probe.name][1])


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_same_way_is_open_where_nothing_protects(probe, controls, jail):
    """The positive control of each line."""
    if jail is None:
        return  # an ordinary user is protected from much of this; the next test counts what is left
    if controls[probe.name][0] != "open" and probe.name in MAY_BE_ABSENT:
        pytest.skip(f"not on this machine: {controls[probe.name][1]}")
    assert controls[probe.name][0] == "open", controls[probe.name]


def test_enough_controls_work(controls, jail):
    """At least sixty escapes are known to work elsewhere."""
    working = [name for name, (state, _) in controls.items() if state == "open"]
    assert len(working) >= (110 if jail else 20), working


@pytest.mark.parametrize("step", WHOLE_STEPS, ids=lambda step: step.name)
def test_whole_steps_end_with_a_clear_status(step, jail):
    """Endless, flooding, crashing and lying programs; nothing is left running and no submission is accepted."""
    if jail is None:
        return
    limit = 0.4 if step.status == "timeout" else 10.0
    result = jail.run(step.source, "t1", keep=False, time_limit_s=limit)
    assert result.status == step.status and step.reason in result.reason, result
    assert result.submission is None and len(result.stdout) <= Limits().output_kept
    assert not children_of(jail) and not users(uid_of(jail))


def test_the_server_still_serves_after_all_of_this(jail):
    """The same server, never restarted."""
    if jail is None:
        return
    assert jail.run("print(1)", "t1").stdout == "1\n" and jail.slots[0].restarts == 0


SCAN = """
def scan(word):
    fd, text, found, size = os.open("/proc/self/maps", os.O_RDONLY), b"", 0, 0
    while piece := os.read(fd, 4096):
        text += piece
    for line in text.decode().splitlines():
        span, mode, *_ = line.split()
        start, end = (int(x, 16) for x in span.split("-"))
        if mode[0] == "r" and "[v" not in line:
            size += end - start
            found += sum(ctypes.string_at(at, min(1 << 16, end - at)).count(word) for at in range(start, end, 1 << 16))
    return found, size
"""


def copies(jail, word: str, before: str = "") -> int:
    """Count a word in the memory of a step that knows it only in hexadecimal."""
    program = f"{HELPERS}{SCAN}{before}\nprint(*scan(bytes.fromhex('{word.encode().hex()}')))"
    result = jail.run(program, "t1", keep=False, time_limit_s=60.0)
    assert result.ok, result
    found, size = map(int, result.stdout.split())
    assert size > 50 << 20  # the libraries alone are larger
    return found


def test_the_memory_of_the_server_holds_nothing_of_earlier_steps(jail):
    """Program, output and submission of one step are not in the memory that the next one inherits."""
    if jail is None:
        return
    known, never = "marker-7f3e9c55aa", "marker-8e4d1b66cc"
    for _ in range(3):
        assert jail.run(f"open('submission.csv', 'w').write({known!r}); print({known!r})", "t1").stdout
    planted = f"\nkept = [bytes.fromhex('{known.encode().hex()}') + b'!' for _ in range(50)]"
    assert copies(jail, known, planted) >= 50, "the search finds what is there"
    assert copies(jail, known) <= copies(jail, never), "and nothing more than of a word that no step has used"


def test_answers_never_appear(jail, parameters, verdicts):
    """Whatever probes printed, the answers are not in it."""
    assert not any(MARKER in said or SECRET in said.replace(repr(SECRET), "") for _, said in verdicts.values())


@pytest.mark.parametrize("name", ["../t1", "/etc", "t1/../t2", "T1", "t1\x00", "", ".", "-x", "a" * 65, "link", 7])
def test_names_of_tasks_are_no_paths(name, jail, world):
    """Tricks with names never reach a mount."""
    if not (world.tasks / "link").is_symlink():
        (world.tasks / "link").symlink_to(world.answers.parent)
    executor = jail or make_code_executor("cold", world.tasks, allow_unsafe=True, required_level=0)
    with pytest.raises(ParameterError):
        executor.run("print(1)", name)


def test_patches_die_with_their_step(jail):
    """A step that replaces functions of shared libraries replaces them for itself."""
    if jail is None:
        return
    jail.run("import numpy, json, builtins, sklearn.metrics as m\nnumpy.mean = json.dumps = m.accuracy_score = 0", "t1")
    jail.run("import builtins; builtins.open = builtins.len = None", "t1")
    program = "import numpy, sklearn.metrics as m; print(numpy.mean([2, 4]), m.accuracy_score([1], [1]), len('abc'))"
    assert jail.run(program, "t1").stdout.split() == ["3.0", "1.0", "3"]


def test_planted_modules_are_not_imported(jail):
    """The working folder is no source of modules."""
    if jail is None:
        return
    plant = "for n in ('colorsys', 'this', 'sitecustomize'): open(n + '.py', 'w').write('print(123)')"
    jail.run(plant, "t1", episode="plant")
    look = "import colorsys, os, sys; print(os.path.exists('colorsys.py'), os.getcwd() in sys.path)"
    result = jail.run(look, "t1", episode="plant")
    assert result.stdout == "True False\n"


def test_nothing_passes_from_episode_to_episode(jail):
    """Working folder, temporary files and shared memory are new; the next task sees its own data only."""
    if jail is None:
        return
    leave = "for place in ('.', '/box/tmp', '/dev/shm'): open(place + '/left', 'w').write('x')"
    assert jail.run(leave, "t1", episode="a").ok
    look = "import os; print(sorted(os.listdir('.')), *(os.listdir(p) for p in ('/box/tmp', '/dev/shm')))"
    assert "left" in jail.run(look, "t1", episode="a").stdout
    assert jail.run(look, "t1", episode="b").stdout.split() == ["['data']", "[]", "[]"]
    other = jail.run("print(open('data/train.csv').read())", "t3", episode="b").stdout
    assert "t3" in other and "t1" not in other


def test_threads_end_with_their_step(jail):
    """A thread that never ends does not outlive the program."""
    if jail is None:
        return
    result = jail.run("import threading, time\nthreading.Thread(target=time.sleep, args=(999,)).start()", "t1")
    assert result.ok and result.wall_seconds < 5 and not users(uid_of(jail))
