"""Executors of agents' code: results, limits, deaths, leaks, and the machines on which they refuse."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mle_sandbox_world import JAILED, World, alive, descendants, descriptors, mounts, until, users

from rl_oodkit.core.errors import ParameterError, SandboxUnavailableError
from rl_oodkit.mle import jail as jail_chapter
from rl_oodkit.mle import levels, warm
from rl_oodkit.mle.cold import ColdSubprocess
from rl_oodkit.mle.execution import STATUSES, Limits, StepResult, outcome
from rl_oodkit.mle.levels import detect_level, make_code_executor, unavailable
from rl_oodkit.mle.seccomp import ALLOW, DENIED, NUMBERS, decide, instructions
from rl_oodkit.mle.step_costs import FOREST, InProcess, make_step_task
from rl_oodkit.mle.warm import WarmForkServer

UID = 64201
jailed = pytest.mark.skipif(not JAILED, reason=f"no isolation here: {unavailable(2)}")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Return tasks and answers, unchanged afterwards, with no mount and no process left behind."""
    here = World(tmp_path_factory.mktemp("world"))
    before = here.digest(), mounts()
    yield here
    assert (here.digest(), mounts()) == before
    here.close()


@pytest.fixture(scope="module")
def executor(world):
    """Return the best executor of this machine, by permission."""
    jail = {"first_uid": UID} if JAILED else {}
    with make_code_executor("warm", world.tasks, allow_unsafe=True, **jail) as executor:
        yield executor
        assert not JAILED or not users(uid_of(executor))


def uid_of(executor: WarmForkServer) -> int:
    """Return the user number of an executor's first slot; another test may have the one that was asked for."""
    return executor.slots[0].config.uid


@pytest.fixture(scope="module")
def server(executor):
    """Return the same, for tests that are left out where it is no jail."""
    return executor


def test_a_step_returns_what_it_printed_and_wrote(executor):
    """Both streams, the file, the exit code and the times."""
    program = (
        "import sys; print('out'); print('err', file=sys.stderr); open('submission.csv', 'wb').write(b'id\\n\\xff')"
    )
    result = executor.run(program, "t1")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == ("ok", 0, "out\n", "err\n")
    assert result.submission == b"id\n\xff" and result.reason == "" and result.ok
    assert 0 < result.cpu_seconds < 10 and 0 < result.wall_seconds < 60


def test_data_is_where_programs_expect_it(executor):
    """The same relative path at every level, whether the task has a public folder or is one."""
    for task in ("t1", "t3"):
        assert task in executor.run("print(open('data/train.csv').read())", task).stdout


def test_an_error_shows_the_programs_own_lines(executor):
    """A traceback starts in the program and quotes it."""
    result = executor.run("def f():\n    raise KeyError('mine')\nf()", "t1")
    assert result.status == "error" and result.exit_code == 1 and result.submission is None
    lines = result.stderr.splitlines()
    assert lines[0].startswith("Traceback") and 'File "solution.py", line 3' in lines[1]
    assert "raise KeyError('mine')" in result.stderr and lines[-1] == "KeyError: 'mine'"


@pytest.mark.parametrize(
    ("code", "expected"), [("0", 0), ("3", 3), ("'text'", 1), ("None", 0), ("True", 1), ("256", 0)]
)
def test_exit_codes_mean_what_they_mean_to_the_interpreter(code, expected, executor):
    """As `python -c` would answer."""
    assert executor.run(f"import sys; sys.exit({code})", "t1").exit_code == expected


def test_episodes_keep_their_files_and_only_theirs(executor):
    """Kept within an episode, gone in the next, gone on request."""
    look = "import os; print(os.path.exists('note'))"
    executor.run("open('note', 'w').write('x')", "t1", episode="one")
    assert executor.run(look, "t1", episode="one").stdout == "True\n"
    assert executor.run(look, "t2", episode="one").stdout == "False\n"
    executor.run("open('note', 'w').write('x')", "t1", episode="one")
    assert executor.run(look, "t1", episode="one", keep=False).stdout == "False\n"


def test_a_stale_submission_is_the_episodes_own(executor):
    """A later step of the episode may leave the file as it is; a new episode starts without one."""
    executor.run("open('submission.csv', 'w').write('1')", "t1", episode="s", keep=False)
    assert executor.run("pass", "t1", episode="s").submission == b"1"
    assert executor.run("pass", "t1", episode="other").submission is None


def test_seeds_make_steps_reproducible(executor):
    """Both global generators, and no stream shared by all steps."""
    program = "import random, numpy as np; print(random.random(), np.random.random(), hash('x') != 0)"
    first, again, other = (executor.run(program, "t1", seed=seed).stdout for seed in (1, 1, 2))
    assert first == again != other


def test_levels_write_the_same_file(executor, world, tmp_path):
    """A forest, in the jail, in a new interpreter, and in process."""
    make_step_task(world.tasks, "t5")
    with ColdSubprocess(world.tasks) as cold:
        results = [e.run(FOREST, "t5", seed=5, time_limit_s=60.0) for e in (cold, executor)]
    here = InProcess(world.tasks, tmp_path)
    assert here.run(FOREST, "t5", seed=4).submission != results[0].submission
    results.append(here.run(FOREST, "t5", seed=5))
    shutil.rmtree(world.tasks / "t5")
    assert results[0].submission and len({result.submission for result in results}) == 1


@settings(max_examples=25)
@given(st.text(max_size=60) | st.text(st.characters(categories=["Cs", "Cc", "Lu"]), max_size=20))
def test_any_text_is_a_program_with_an_outcome(text):
    """Broken encodings, control characters and nonsense are the agent's errors."""
    result = SHARED[0].run(text, "t1", time_limit_s=5.0)
    assert result.status in STATUSES and result.status != "jail-failed"


SHARED: list = []


@pytest.fixture(scope="module", autouse=True)
def shared(executor):
    """Let property tests reach the executor, which outlives single examples."""
    SHARED.append(executor)
    yield
    SHARED.clear()


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), "1"])
def test_time_limits_are_numbers(bad, executor):
    """Named at the border."""
    with pytest.raises(ParameterError, match="time_limit_s"):
        executor.run("pass", "t1", time_limit_s=bad)


def test_limits_are_validated():
    """No limit of zero, and no limit that is not a number."""
    for bad in (0, -1, 1.5):
        with pytest.raises(ParameterError, match="scratch_bytes"):
            Limits(scratch_bytes=bad)


@given(st.sampled_from(["done", "timeout", "flood"]), st.integers(-31, 255), st.floats(0, 100), st.floats(0.1, 50))
def test_every_end_has_one_name(why, code, cpu, limit):
    """A flood stays a flood, a time-out a time-out; `ok` means code 0 and no reason."""
    status, reason = outcome(why, code, cpu, limit)
    assert status in STATUSES and (status == "ok") == (reason == "") and (status == why or why == "done")
    assert (status == "ok") == (why == "done" and code == 0)


@given(st.sets(st.sampled_from(DENIED)), st.integers(0, 450))
def test_the_filter_refuses_its_list_and_nothing_else(denied, number):
    """Whatever the list; processes and the call that hides its flags are refused always."""
    allowed = decide(instructions(tuple(sorted(denied))), number) == ALLOW
    assert allowed == (number not in {NUMBERS[name] for name in denied} | {56, 435})


@pytest.mark.skipif(not Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").exists(), reason="no kernel headers")
def test_numbers_are_those_of_the_kernel():
    """Compared with the headers of this machine."""
    lines = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h").read_text().split("\n")
    table = dict(line.split()[1:3] for line in lines if line.startswith("#define __NR_"))
    assert {name: int(table[f"__NR_{name}"]) for name in NUMBERS} == NUMBERS


@jailed
def test_libraries_work_in_the_jail(server):
    """What agents use: jobs in threads, asyncio, temporary files, joblib, matrix routines that look at /proc."""
    program = """
        import asyncio, joblib, tempfile, threading, zoneinfo
        import numpy as np, pandas as pd
        from sklearn.cluster import KMeans
        from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
        from sklearn.manifold import TSNE
        from sklearn.model_selection import GridSearchCV, cross_val_score
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(60, 4)), np.arange(60) % 2
        for jobs in (-1, 2):
            RandomForestClassifier(5, n_jobs=jobs).fit(x, y)
            GridSearchCV(RandomForestClassifier(5), {"max_depth": [1, 2]}, n_jobs=jobs, cv=2).fit(x, y)
            cross_val_score(RandomForestClassifier(5), x, y, n_jobs=jobs, cv=2)
        HistGradientBoostingClassifier(max_iter=3).fit(x, y), KMeans(2).fit(x)
        TSNE(2, perplexity=5, max_iter=250).fit(x)
        with tempfile.TemporaryDirectory() as folder:
            joblib.dump(x, folder + "/x"), joblib.load(folder + "/x")
        asyncio.run(asyncio.sleep(0)), zoneinfo.ZoneInfo("Europe/Berlin")
        thread = threading.Thread(target=print, args=("thread",))
        thread.start(), thread.join()
        pd.Series(["a", "b"]).str.upper().to_frame().to_csv("x.csv"), pd.read_csv("x.csv")
        print("done")
    """
    result = server.run(textwrap.dedent(program), "t1", time_limit_s=60.0)
    assert result.stdout == "thread\ndone\n", result.stderr[-600:]


@jailed
def test_fifty_steps_leave_nothing_behind(server):
    """Descriptors of both sides, mounts of the server, processes, memory of the server within a megabyte."""
    pid = server.slots[0].process.pid

    def state() -> tuple:
        """Return what must not grow."""
        table = Path(f"/proc/{pid}/mounts").read_text()
        return descriptors(), descriptors(pid), len(table.splitlines()), descendants(pid), len(mounts())

    def resident() -> int:
        """Return the server's resident memory in kilobytes."""
        return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])

    programs = [
        "print('x')",
        "1 / 0",
        "open('submission.csv', 'w').write('1')",
        "import os; os._exit(1)",
        "print('x' * (1 << 21))",
    ]
    for program in programs:
        server.run(program, "t1", episode="first", keep=False)
    before, memory = state(), resident()
    for step in range(50):
        server.run(programs[step % 5], ("t1", "t2")[step % 2], episode=str(step // 5), keep=step % 3 > 0)
    assert state() == before and resident() - memory < 1024


@jailed
def test_the_death_of_a_server_costs_one_repetition(world):
    """Killed in the middle of a step: its processes are gone, a new server repeats the step."""
    with WarmForkServer(world.tasks, first_uid=UID + 1) as executor:
        first, seen, uid = executor.slots[0].process.pid, [], uid_of(executor)

        def kill() -> None:
            """Kill the server once its step runs."""
            until(lambda: users(uid), 30)
            seen.extend(users(uid))
            os.kill(first, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        result = executor.run("import time; time.sleep(1); print('survived')", "t1")
        killer.join()
        assert result.stdout == "survived\n" and executor.slots[0].restarts == 1
        assert seen and until(lambda: not any(map(alive, [first, *seen])))
        assert executor.run("print(1)", "t1").ok


@jailed
def test_a_server_that_dies_twice_is_not_the_agents_fault(world, monkeypatch):
    """The step is reported as not started, and the next one works."""
    with WarmForkServer(world.tasks, first_uid=UID + 2) as executor:
        drain = warm.drain

        def deadly(*arguments: object) -> str:
            """Kill every server that is given a step of the test."""
            if threading.current_thread() is threading.main_thread() and executor.slots[0].episode is not STARTING:
                executor.slots[0].process.kill()
            return drain(*arguments)

        STARTING = object()
        start = warm.Slot.start

        def spared(slot: warm.Slot) -> None:
            """Let the self-test of a new server pass."""
            slot.episode = STARTING
            start(slot)

        monkeypatch.setattr(warm.Slot, "start", spared)
        monkeypatch.setattr(warm, "drain", deadly)
        result = executor.run("print(1)", "t1", episode="e")
        assert result.status == "jail-failed" and "died twice" in result.reason
        monkeypatch.undo()
        assert executor.run("print(1)", "t1").ok


@jailed
def test_an_interrupt_leaves_no_late_reply(world, monkeypatch):
    """Ctrl-C in the middle of a step ends its server; the next step gets its own result."""
    with WarmForkServer(world.tasks, first_uid=UID + 3) as executor:

        def interrupt(*_: object) -> str:
            """Be the user's Ctrl-C."""
            raise KeyboardInterrupt

        monkeypatch.setattr(warm, "drain", interrupt)
        with pytest.raises(KeyboardInterrupt):
            executor.run("print('late')", "t1")
        monkeypatch.undo()
        assert not users(uid_of(executor))
        assert executor.run("print('mine')", "t1").stdout == "mine\n"


GRADER = """
import sys
from rl_oodkit.mle.warm import WarmForkServer
executor = WarmForkServer(sys.argv[1], first_uid=int(sys.argv[2]))
print(executor.slots[0].process.pid, executor.slots[0].config.uid, flush=True)
program = "import time, threading\\nthreading.Thread(target=time.sleep, args=(99,)).start()\\ntime.sleep(99)"
executor.run(program, "t1", time_limit_s=99.0)
"""


@jailed
def test_the_death_of_the_grader_ends_everything(world):
    """Server and step are gone, without anybody to tell them."""
    command = [sys.executable, "-c", GRADER, str(world.tasks), str(UID + 4)]
    grader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    pid, uid = map(int, grader.stdout.readline().split())
    assert until(lambda: users(uid), 30)
    everything = [pid, *descendants(pid)]
    grader.kill()
    grader.wait(30)
    grader.stdout.close()
    assert len(everything) >= 2 and until(lambda: not any(map(alive, everything)))
    assert not users(uid)


@jailed
def test_slots_work_at_the_same_time(world):
    """Two sleeping steps take as long as one; an episode finds its files whatever slot is free."""
    with WarmForkServer(world.tasks, slots=2, first_uid=UID + 5) as executor:
        results: dict[str, StepResult] = {}

        def run(name: str, program: str) -> None:
            """Run a step in a thread."""
            results[name] = executor.run(program, "t1", episode=name)

        def together(program: str) -> float:
            """Run one step of each episode at once, and return the time."""
            start = time.monotonic()
            threads = [threading.Thread(target=run, args=(name, program.format(name))) for name in "ab"]
            _ = [thread.start() for thread in threads], [thread.join() for thread in threads]
            return time.monotonic() - start

        took = together("import time; open('note', 'w').write('{}'); time.sleep(3)")
        assert all(result.ok for result in results.values()) and took < 5.5
        together("print(open('note').read())")
        assert {name: result.stdout for name, result in results.items()} == {"a": "a\n", "b": "b\n"}
        users_seen = {executor.run("import os; print(os.getuid())", "t1", episode=name).stdout for name in "ab"}
        assert users_seen == {f"{uid_of(executor)}\n", f"{uid_of(executor) + 1}\n"}


@jailed
def test_a_missing_part_of_the_filter_is_noticed(world):
    """The self-test finds the open door, and the server is closed."""
    with pytest.raises(SandboxUnavailableError, match="a step reached a socket"):
        WarmForkServer(world.tasks, first_uid=UID + 7, denied=tuple(name for name in DENIED if name != "socket"))


@jailed
def test_a_module_that_steps_could_not_read_is_noticed(world, tmp_path):
    """A strict file in a shown folder is named before the first step."""
    os.chmod(tmp_path, 0o755)
    (tmp_path / "module.py").touch(0o600)
    with pytest.raises(SandboxUnavailableError, match="module.py"):
        WarmForkServer(world.tasks, first_uid=UID + 7, folders=(str(tmp_path),))


@jailed
def test_data_that_steps_could_not_read_is_noticed(server, world):
    """A strict file in a task's folder is an error of whoever made the task."""
    (world.tasks / "t4").mkdir()
    (world.tasks / "t4" / "train.csv").touch(0o600)
    with pytest.raises(ParameterError, match="others cannot read"):
        server.run("pass", "t4")
    (world.tasks / "t4" / "train.csv").unlink()
    (world.tasks / "t4").rmdir()


@jailed
def test_without_the_right_to_mount_it_is_refused(world):
    """A root whose capability to administrate was taken away."""
    program = f"""
        import sys
        from rl_oodkit.core.errors import SandboxUnavailableError
        from rl_oodkit.mle.syscalls import CAPBSET_DROP, prctl
        from rl_oodkit.mle.warm import WarmForkServer
        prctl(CAPBSET_DROP, 21)
        try:
            WarmForkServer({str(world.tasks)!r}, first_uid={UID + 8})
        except SandboxUnavailableError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert "PermissionError" in done.stdout and "unshare" in done.stdout, done


def test_a_missing_folder_is_refused(tmp_path):
    """On every machine, with a reason."""
    with pytest.raises(SandboxUnavailableError):
        WarmForkServer(tmp_path / "absent")


@pytest.mark.parametrize(
    ("where", "name", "value", "reason"),
    [
        (os, "geteuid", lambda: 1000, "needs root"),
        (jail_chapter.platform, "machine", lambda: "aarch64", "x86-64 only"),
        (sys, "platform", "darwin", "needs Linux"),
    ],
)
def test_foreign_machines_and_users_are_refused(where, name, value, reason, monkeypatch, world):
    """Never a weaker jail; and the only way around is to say so."""
    monkeypatch.setattr(where, name, value)
    with pytest.raises(SandboxUnavailableError, match=reason):
        make_code_executor("warm", world.tasks)


def test_less_than_level_two_has_to_be_asked_for(world, monkeypatch):
    """Cold executors need the two words, and a machine without isolation falls back only with them."""
    for options in ({}, {"required_level": 0}, {"required_level": 1}):
        with pytest.raises(SandboxUnavailableError, match="do not isolate"):
            make_code_executor("cold", world.tasks, **options)
    monkeypatch.setattr(levels, "unavailable", lambda level: "no" if level else "")
    assert detect_level() == 0
    with make_code_executor("warm", world.tasks, allow_unsafe=True, slots=3) as executor:
        assert executor.level == 0 and executor.run("print(1)", "t1").stdout == "1\n"
    with pytest.raises(ParameterError):
        make_code_executor("lukewarm", world.tasks)


@pytest.mark.skipif(bool(unavailable(1)), reason="no namespaces here")
def test_level_one_limits_and_cleans_up_and_does_not_hide(world):
    """Memory, file size, time and network are limited, nothing is left running, and the answers are readable."""
    with ColdSubprocess(world.tasks, level=1) as cold:
        assert "MemoryError" in cold.run("x = bytearray(8 << 30)", "t1").stderr
        assert "File too large" in cold.run("open('x', 'wb').truncate(40 << 20)", "t1").stderr
        assert (
            "unreachable" in cold.run("import socket; socket.create_connection(('127.0.0.1', 1))", "t1").stderr.lower()
        )
        assert cold.run("while True: pass", "t1", time_limit_s=1.0).status == "timeout"
        leave = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(987.5)"
        assert cold.run(leave, "t1").ok
        everybody = [Path(f"/proc/{p}/cmdline") for p in os.listdir("/proc") if p.isdigit()]
        assert not [p for p in everybody if p.exists() and b"987.5" in p.read_bytes()]
        assert "the-answer" in cold.run(f"print(open({str(world.answers)!r}).read())", "t1").stdout


def test_cold_steps_end_in_time_and_within_their_output(world):
    """Level 0 keeps what needs no rights: time, output, an empty environment."""
    os.environ["RL_OODKIT_CANARY"] = "secret"
    with ColdSubprocess(world.tasks) as cold:
        result = cold.run("while True: print('x' * 999)", "t1")
        assert result.status == "flood" and len(result.stdout) == Limits().output_kept
        assert cold.run("import time; time.sleep(99)", "t1", time_limit_s=0.5).status == "timeout"
        assert cold.run("import os; os.kill(os.getpid(), 11)", "t1").status == "killed"
        assert "secret" not in cold.run("import os; print(os.environ)", "t1").stdout
        root = cold.root
    assert not root.exists()
    del os.environ["RL_OODKIT_CANARY"]


def test_only_levels_that_exist():
    """Named at the border."""
    for bad in (2, -1):
        with pytest.raises(ParameterError):
            ColdSubprocess(".", level=bad)
    with pytest.raises(ParameterError):
        unavailable(3)


@pytest.mark.parametrize(
    "code",
    [
        "import os, shutil; shutil.rmtree(os.getcwd())",
        "import os, shutil; d = os.getcwd(); shutil.rmtree(d); os.symlink('/tmp', d)",
        "import os, shutil; shutil.rmtree(os.path.dirname(os.getcwd()))",
    ],
)
def test_a_step_cannot_break_the_cold_executor(code, tmp_path):
    """It may remove its own folder, or put a link in its place; the next step has a new one."""
    (tmp_path / "t1").mkdir()
    with ColdSubprocess(tmp_path) as executor:
        first = executor.run(code, "t1", episode="a")
        assert first.submission is None and "gone" in first.reason
        second = executor.run("open('submission.csv', 'w').write('id'); print(1)", "t1", episode="a")
        assert second.stdout == "1\n" and second.submission == b"id"


def test_a_closed_executor_says_so(tmp_path):
    """And starts nothing; a program that is no text is refused in words as well."""
    (tmp_path / "t1").mkdir()
    executor = ColdSubprocess(tmp_path)
    with pytest.raises(ParameterError, match="NoneType"):
        executor.run(None, "t1")
    executor.close()
    with pytest.raises(ParameterError, match="closed"):
        executor.run("print(1)", "t1")
