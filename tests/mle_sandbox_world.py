"""A small world around a sandbox: tasks, answers, a bystander, sockets, and what must be unchanged afterwards."""

import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy

from rl_oodkit.mle.levels import unavailable
from rl_oodkit.mle.warm import WarmForkServer

MARKER = "the-answer-is-1a2b3c4d"
SECRET = "a-secret-of-the-grader-5e6f"
JAILED = not unavailable(2)


class World:
    """Hold the places and processes that probes ask about."""

    def __init__(self, root: Path) -> None:
        """Make tasks, answers that everybody may read, a bystander and two listening sockets."""
        os.chmod(root, 0o755)
        self.root, self.tasks, self.answers = root, root / "tasks", root / "private" / "answers"
        for task in ("t1", "t2", "t3/public"):
            (self.tasks / task).mkdir(parents=True)
            for name in ("train.csv", "test.csv", "sample.csv"):
                (self.tasks / task / name).write_text(f"id,target\n1,{task[:2]}\n")
        self.answers.parent.mkdir()
        self.answers.write_text(MARKER)
        self.victim = subprocess.Popen(["sleep", "1000"])
        self.tcp, self.abstract = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
        self.abstract.bind(f"\0rl-oodkit-{os.getpid()}")
        self.abstract.listen()

    def parameters(self, server: int, data: str) -> dict:
        """Return what probes see as `P`."""
        places = {"answers": str(self.answers), "folder": str(self.answers.parent), "data": data}
        # without a jail, scratch and tasks of others are the folders around this one
        others = {"tasks": "/srv/public", "boxes": "/srv/box"} if data == "/data" else {}
        others = others or {"tasks": str(self.tasks), "boxes": str(self.root)}
        processes = {"grader": os.getpid(), "server": server, "victim": self.victim.pid}
        network = {"port": self.tcp.getsockname()[1], "abstract": f"rl-oodkit-{os.getpid()}"}
        module = str(Path(numpy.__file__).resolve())
        packages = {"module": module, "packages": str(Path(module).parents[1])}
        return places | others | processes | network | packages | {"secret": SECRET}

    def copy(self) -> Path:
        """Return a scratch folder with a copy of a task's data, for controls."""
        box = Path(tempfile.mkdtemp(dir=self.root))
        shutil.copytree(self.tasks / "t1", box / "data")
        return box

    def digest(self) -> str:
        """Return a hash of every file of the tasks and the answers, modes included."""
        paths = sorted(p for p in self.root.rglob("*") if p.is_file() and p.is_relative_to(self.tasks))
        texts = [f"{p}{p.stat().st_mode}{p.stat().st_mtime_ns}{p.read_text()}" for p in [*paths, self.answers]]
        return hashlib.sha256("".join(texts).encode()).hexdigest()

    def close(self) -> None:
        """End the bystander and close the sockets."""
        self.victim.kill()
        self.victim.wait()
        self.tcp.close()
        self.abstract.close()


def mounts() -> list[str]:
    """Return the mount table of this process."""
    return Path("/proc/self/mounts").read_text().splitlines()


def descriptors(pid: int | str = "self") -> int:
    """Count the open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def descendants(pid: int) -> list[int]:
    """Return all living processes below a process, by number."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def users(uid: int) -> list[int]:
    """Return the living processes of a user, by number."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{entry}").st_uid == uid:
                found.append(int(entry))
    return found


def alive(pid: int) -> bool:
    """Tell whether a process exists and is not waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(condition, seconds: float = 10.0) -> bool:
    """Wait until a condition holds, and return whether it does."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


def children_of(executor: WarmForkServer) -> list[int]:
    """Return the running steps of an executor's servers."""
    return [pid for slot in executor.slots if slot.process for pid in descendants(slot.process.pid)]


def python(program: str, *, cwd: Path | None = None, extra: dict[str, str] | None = None, timeout: float = 60) -> str:
    """Run a program in a throw-away process that nothing protects, and return what it prints."""
    environment = {**os.environ, **(extra or {})}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout).stdout
