"""Execute the chapters, and hold their committed outputs to the re-execution.

    python .ci/chapters.py --check [NOTEBOOK...]   run, compare with the committed outputs, touch nothing
    python .ci/chapters.py --write [NOTEBOOK...]   run, and save the outputs of chapters that changed

Every chapter runs once, in a fresh process, in its own folder, and its temporary files go with it. Text must
agree exactly and numbers within 1e-3 relative, since processors round differently; of figures only the presence
is compared. Cells tagged `volatile` (timings) are run and not compared. A cell marked `#| eval: false`, or by
one of the test flags of settings.ini, is not run; a notebook that opens with a raw `skip_exec: true` cell is left out.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NBS = ROOT / "nbs"
RELATIVE, ABSOLUTE = 1e-3, 1e-9
CPU_SECONDS = 20.0
SLOW_MACHINE = 2.0  # only a chapter that is over twice the budget fails, since processors differ
TIMEOUT = 600
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:_\d{3})*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")

Cell = dict[str, Any]


def chapters(names: list[str] | None = None) -> list[Path]:
    """Return the notebooks that are executed, sorted; all of nbs/ when no names are given."""
    found = [Path(n).resolve() for n in names] if names else sorted(NBS.rglob("*.ipynb"))
    found = [p for p in found if not any(part.startswith((".", "_")) for part in Path(short(p)).parts)]
    return [p for p in found if not skipped(json.loads(p.read_text(encoding="utf-8")))]


def short(path: Path) -> str:
    """Return a notebook's path below nbs/, or the whole path of one that lies elsewhere."""
    return str(path.relative_to(NBS)) if path.is_relative_to(NBS) else str(path)


def skipped(nb: dict[str, Any]) -> bool:
    """Tell whether a raw first cell asks for `skip_exec: true`."""
    first = nb["cells"][0] if nb["cells"] else {"cell_type": "none", "source": ""}
    return first["cell_type"] == "raw" and re.search(r"^skip_exec:\s*true", source(first), re.M) is not None


def source(cell: Cell) -> str:
    """Return a cell's text, whether it is stored as one string or as lines."""
    return text(cell["source"])


def text(value: str | list[str]) -> str:
    """Join the lines of a notebook's multi-line string."""
    return value if isinstance(value, str) else "".join(value)


def test_flags() -> set[str]:
    """Return the cell directives of settings.ini that mark cells to leave out."""
    parser = ConfigParser(delimiters=["="])
    parser.read(ROOT / "settings.ini", encoding="utf-8")
    return set(parser["DEFAULT"]["tst_flags"].split())


def runs(cell: Cell) -> bool:
    """Tell whether a cell is executed."""
    if cell["cell_type"] != "code":
        return False
    directives = dict(re.findall(r"^#\s*\|\s*([\w-]+)\s*:?[ \t]*(.*)$", source(cell), re.M))
    return directives.get("eval", "").strip() != "false" and not test_flags() & directives.keys()


def volatile(cell: Cell) -> bool:
    """Tell whether a cell's output may differ from run to run."""
    return "volatile" in cell.get("metadata", {}).get("tags", [])


def calm_environment() -> None:
    """Set what makes outputs equal from run to run: one thread, no progress bars, undated figures."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ |= {"RL_OODKIT_PROGRESS": "0", "SOURCE_DATE_EPOCH": "0", "PYTHONWARNINGS": "default"}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def shell() -> Any:
    """Return a notebook shell whose figures are SVG with stable ids."""
    from execnb.shell import CaptureShell

    sh = CaptureShell(mpl_format="svg")
    sh.run_cell("import matplotlib; matplotlib.rcParams['svg.hashsalt'] = 'rl_oodkit'; del matplotlib")
    return sh


def execute(path: Path) -> dict[str, Any]:
    """Return the notebook with fresh outputs, or leave with the failing cell's id and traceback."""
    from execnb.nbio import read_nb

    calm_environment()
    sys.path.insert(0, str(ROOT))
    nb, sh = read_nb(path), shell()
    os.chdir(path.parent)
    try:
        for cell in filter(runs, nb.cells):
            cell["outputs"] = []
            cell["outputs"] = sh.run(cell.source)
            if sh.exc is not None:
                fail(path, cell["id"], sh.exc)
    finally:
        os.chdir(ROOT)
    return nb


def fail(path: Path, cell_id: str, exc: BaseException) -> None:
    """Print where and why a chapter failed, without the shell's own frames, and exit with code 1."""
    lines = traceback.format_exception(type(exc), exc, exc.__traceback__)
    lines = [line for line in lines if "/IPython/" not in line and "/execnb/" not in line]
    raise SystemExit(f"{short(path)}: cell {cell_id} failed\n{''.join(lines)}")


def clean(nb: dict[str, Any]) -> dict[str, Any]:
    """Bring a notebook to the form that nbdev_clean leaves, so that the two never disagree."""
    from nbdev.clean import _nbdev_clean

    _nbdev_clean(nb)
    return nb


def write(path: Path) -> None:
    """Execute one notebook in this process and save its outputs in place."""
    from execnb.nbio import write_nb

    path = Path(path).resolve()
    start, cpu = time.perf_counter(), cpu_seconds()
    nb = clean(execute(path))
    problems = [f"{path.name}: cell {c['id']} {p}" for c in filter(runs, nb["cells"]) for p in forbidden(c)]
    if problems:
        raise SystemExit("\n".join(problems))
    write_nb(nb, path)
    print(f"{path.name} ran in {time.perf_counter() - start:.1f} s ({cpu_seconds() - cpu:.1f} s CPU)")


def cpu_seconds() -> float:
    """Return the processor time of this process and its finished children."""
    t = os.times()
    return t.user + t.system + t.children_user + t.children_system


def forbidden(cell: Cell) -> list[str]:
    """Name what a committed output must not contain."""
    words = "\n".join(value for value in shown(cell).values() if value is not None)
    problems = ["prints a memory address"] if ADDRESS.search(words) else []
    problems += ["prints an absolute path of this clone"] if str(ROOT) in words else []
    if not volatile(cell):
        errors = "".join(text(o["text"]) for o in cell["outputs"] if o.get("name") == "stderr")
        problems += [f"writes to stderr:\n{errors}"] if errors.strip() else []
    images = [text(d) for o in cell["outputs"] for k, d in o.get("data", {}).items() if k.startswith("image/")]
    return problems + (["shows the same figure twice"] if len(set(images)) < len(images) else [])


def shown(cell: Cell) -> dict[str, str | None]:
    """Map the place of each output of a cell to its text, or to None for an image or other data."""
    parts: dict[str, str | None] = {}
    for i, out in enumerate(o for o in cell.get("outputs", []) if o.get("name") != "stderr"):
        if out["output_type"] == "stream":
            parts[f"{i} stdout"] = text(out["text"])
        for kind, value in out.get("data", {}).items():
            is_text = kind.startswith("text/")
            parts[f"{i} {kind}"] = text(value) if is_text else None
    return parts


def same_text(old: str, new: str) -> bool:
    """Compare two texts: words exactly, spaces as one, numbers within 1e-3 relative."""
    words_old, words_new = (" ".join(NUMBER.sub(" # ", t).split()) for t in (old, new))
    if words_old != words_new:
        return False
    pairs = zip(NUMBER.findall(old), NUMBER.findall(new), strict=True)
    return all(same_number(float(a), float(b)) for a, b in pairs)


def same_number(a: float, b: float) -> bool:
    """Compare two numbers with the tolerances of the house."""
    return abs(a - b) <= RELATIVE * max(abs(a), abs(b)) + ABSOLUTE


def difference(old: Cell, new: Cell) -> str | None:
    """Say how a cell's outputs differ, or return None."""
    a, b = shown(old), shown(new)
    if a.keys() != b.keys():
        return f"committed outputs {sorted(a)}, now {sorted(b)}"
    for key, value in a.items():
        if value is not None and not same_text(value, b[key] or ""):
            return f"{key}\n--- committed\n{value.rstrip()}\n--- now\n{(b[key] or '').rstrip()}"
    return None


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """List the cells of two executions of one notebook that differ, volatile cells left out."""
    pairs = [(a, b) for a, b in zip(old["cells"], new["cells"], strict=True) if runs(a) and not volatile(a)]
    return [f"cell {a['id']}: {d}" for a, b in pairs if (d := difference(a, b)) is not None]


def same_images(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Tell whether two executions drew the same figures, byte for byte, volatile cells left out."""
    return images_of(old) == images_of(new)


def images_of(nb: dict[str, Any]) -> list[str]:
    """Return the images of the cells that are compared."""
    cells = [c for c in nb["cells"] if runs(c) and not volatile(c)]
    data = [o.get("data", {}) for c in cells for o in c.get("outputs", [])]
    return [text(v).strip() for d in data for k, v in sorted(d.items()) if k.startswith("image/")]


def one(path: Path, save: bool) -> list[str]:
    """Run one chapter in this process; return what is wrong with it."""
    from execnb.nbio import nb2str, write_nb

    old = json.loads(path.read_text(encoding="utf-8"))
    nb = clean(execute(path))
    new = json.loads(nb2str(nb))
    problems = [f"cell {c['id']} {p}" for c in filter(runs, old["cells"]) for p in forbidden(c)]
    found = differences(old, new)
    if save:
        if found or problems or not same_images(old, new):
            write_nb(nb, path)
        return [f"cell {c['id']} {p}" for c in filter(runs, new["cells"]) for p in forbidden(c)]
    return problems + found


def run_one(path: Path, save: bool) -> tuple[Path, bool, str, float, float]:
    """Run one chapter in a fresh process; return the path, success, its message, wall and CPU seconds."""
    start = time.perf_counter()
    command = [sys.executable, __file__, "--one", str(path)] + (["--write"] if save else [])
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    with tempfile.TemporaryDirectory(prefix="chapter-", ignore_cleanup_errors=True) as box:
        os.chmod(box, 0o1777)  # sandboxed steps have users of their own
        try:
            done = subprocess.run(command, cwd=ROOT, timeout=TIMEOUT, env=os.environ | {"TMPDIR": box}, **pipes)
        except subprocess.TimeoutExpired:
            return path, False, f"no end after {TIMEOUT} s", TIMEOUT, TIMEOUT
    cpu = re.search(r"^cpu ([\d.]+)$", done.stdout, re.M)
    message = f"{done.stdout}{done.stderr}".strip() or "it said nothing"
    message = f"exit code {done.returncode}: {message}" if done.returncode else ""
    return path, done.returncode == 0, message, time.perf_counter() - start, float(cpu[1]) if cpu else 0.0


def run_all(paths: list[Path], save: bool, workers: int) -> int:
    """Run all chapters on a few processes at once, print a line each, and return the exit code."""
    bad = 0
    with ThreadPoolExecutor(workers) as pool:
        for path, good, message, wall, cpu in pool.map(lambda p: run_one(p, save), paths):
            slow = cpu > CPU_SECONDS * SLOW_MACHINE
            note = "TOO SLOW" if slow else "slow" if cpu > CPU_SECONDS else ""
            state = "ok" if good and not slow else "FAILED"
            print(f"{state:6} {short(path):42} {wall:6.1f} s wall {cpu:6.1f} s CPU  {note}", flush=True)
            bad += not good or slow
            if message:
                print("    " + message.replace("\n", "\n    "), flush=True)
    what = "written" if save else "ran and agree with their committed outputs"
    print(f"{len(paths) - bad} of {len(paths)} chapters {what}")
    return int(bad > 0)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", help="notebooks to run; default: all chapters")
    parser.add_argument("--check", action="store_true", help="compare only (the default)")
    parser.add_argument("--write", action="store_true", help="save the outputs of chapters that changed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
    if not args.one:
        return run_all(chapters(args.notebooks), args.write, args.workers)
    problems = one(Path(args.notebooks[0]).resolve(), args.write)
    print("\n".join(problems))
    print(f"cpu {cpu_seconds():.2f}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
