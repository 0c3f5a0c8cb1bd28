"""A board survives being killed, interrupted and resumed, by other processes and in other pieces."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
QUIET = os.environ | {"OMP_NUM_THREADS": "1", "RL_OODKIT_PROGRESS": "0", "PYTHONPATH": str(HERE)}

RUN = """
import sys
from pathlib import Path
import board_killer, toy_board
from rl_oodkit.core.executors import make_executor
from rl_oodkit.core.formats import frame_to_bytes
from rl_oodkit.core.runs import RunStore
from rl_oodkit.ood.benchmark import run_board

if __name__ == "__main__":
    folder, executor, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    spec = board_killer.the_board(toy_board.policy_file(folder / "policy"))
    table = run_board(spec, RunStore(folder / "runs"), make_executor(executor, 2))
    out.write_bytes(frame_to_bytes(table))
"""


def start(script: Path, folder: Path, executor: str, out: Path) -> subprocess.Popen:
    """Start a board in a session of its own."""
    command = [sys.executable, str(script), str(folder), executor, str(out)]
    return subprocess.Popen(command, env=QUIET, start_new_session=True, stderr=subprocess.PIPE, text=True)


def finished_units(folder: Path) -> int:
    """Count the committed units of a store."""
    return len(list((folder / "runs").glob("*/*/manifest.json")))


def test_sigkill_at_fifty_random_points_loses_and_tears_nothing(tmp_path):
    command = [sys.executable, str(HERE / "board_killer.py"), str(tmp_path), "50", "1"]
    done = subprocess.run(command, env=QUIET, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-2000:]
    count = json.loads(done.stdout.splitlines()[-1])
    assert count["kills"] >= 50 and count["boards"] >= 3
    assert (count["torn"], count["lost"], count["different"]) == (0, 0, 0)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_two_workers_stopped_and_resumed_give_the_bytes_of_one_process(tmp_path, how):
    script = tmp_path / "run.py"
    script.write_text(RUN)
    stopped = start(script, tmp_path / "two", "local", tmp_path / "two.parquet")
    deadline = time.monotonic() + 300
    while finished_units(tmp_path / "two") < 6 and stopped.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    if how == signal.SIGKILL:
        os.killpg(stopped.pid, how)
    else:
        os.kill(stopped.pid, how)
    message = stopped.communicate(timeout=300)[1]
    kept = finished_units(tmp_path / "two")
    if stopped.returncode != 0 and how == signal.SIGINT:
        assert "units finished" in message and "Give the same command again" in message
    assert kept >= 6
    for folder, executor in (("two", "serial"), ("one", "serial")):
        again = start(script, tmp_path / folder, executor, tmp_path / f"{folder}.parquet")
        assert again.wait(timeout=300) == 0, again.communicate()[1][-2000:]
    assert (tmp_path / "two.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()
