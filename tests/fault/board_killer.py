"""Kill a small board at random moments, again and again, and look at what is left.

    python board_killer.py FOLDER KILLS SEED

Children are forked after everything is imported, so that a kill falls into the work and not into the imports.
Prints one JSON line with what was counted.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import toy_board  # noqa: E402, registers the parts

from rl_oodkit.core.formats import frame_to_bytes  # noqa: E402
from rl_oodkit.core.runs import RunStore  # noqa: E402
from rl_oodkit.ood.batches import batch_spec, cell_batch, clean_batch  # noqa: E402
from rl_oodkit.ood.benchmark import board_groups, run_board  # noqa: E402
from rl_oodkit.ood.cells import BoardSpec, board_cells  # noqa: E402
from rl_oodkit.training.checkpoint import load_policy  # noqa: E402


def the_board(policy: str) -> BoardSpec:
    """Describe the board that is killed."""
    detectors = ("toy-square/obs", "toy-square/obs+cusum", "toy-absolute/obs")
    onset = toy_board.early_onset()
    sizes = {"fit": 4, "cal": 20, "test": 15, "ood": 12, "resamples": 20}
    return BoardSpec(policy, detectors=detectors, families=("toy",), levels=("wild",), schedule=onset, **sizes)


def units_of(spec: BoardSpec, store: RunStore) -> list:
    """List every unit of the board: batches and cells."""
    sha, cells = load_policy(spec.policy).sha256, board_cells(spec)
    batches = [clean_batch(spec, s) for s in ("fit", "cal", "test")] + [cell_batch(spec, c) for c in cells]
    found = [batch_spec(spec, b, sha) for b in batches]
    return found + [u for g in board_groups(spec, cells, store, sha) for u in g.units]


def attempt(spec: BoardSpec, root: Path, kill_after: float | None) -> bool:
    """Run the board in a child, kill it after a time, and say whether it finished."""
    child = os.fork()
    if child == 0:
        try:
            os.environ["RL_OODKIT_PROGRESS"] = "0"
            (root.parent / "table.parquet").write_bytes(frame_to_bytes(run_board(spec, RunStore(root))))
        except BaseException as reason:
            print(f"{type(reason).__name__}: {reason}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the board failed"
    return not os.WIFSIGNALED(status)


def main(folder: Path, kills: int, seed: int) -> dict[str, int]:
    """Kill the board `kills` times and return what was counted."""
    spec, rng = the_board(toy_board.policy_file(folder / "policy")), random.Random(seed)
    started = time.perf_counter()
    assert attempt(spec, folder / "reference" / "runs", None)
    duration = time.perf_counter() - started
    reference = (folder / "reference" / "table.parquet").read_bytes()
    root, count = folder / "killed" / "runs", {"kills": 0, "boards": 0, "torn": 0, "lost": 0, "different": 0}
    done: set[str] = set()
    while count["kills"] < kills:
        (folder / "killed").mkdir(exist_ok=True)
        finished = attempt(spec, root, rng.uniform(0, 0.5 * duration))
        count["kills"] += not finished
        store = RunStore(root)
        units = units_of(spec, store)
        now = {u.key for u in units if store.is_done(u)}
        count["torn"] += sum(store.folder(u).exists() and u.key not in now for u in units)
        count["lost"] += len(done - now)
        done = now
        if finished or len(now) == len(units):
            assert attempt(spec, root, None)
            count["different"] += (folder / "killed" / "table.parquet").read_bytes() != reference
            count["boards"] += 1
            done = set()
            shutil.rmtree(folder / "killed")
    if done:
        assert attempt(spec, root, None)
        count["different"] += (folder / "killed" / "table.parquet").read_bytes() != reference
        count["boards"] += 1
    return count


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
