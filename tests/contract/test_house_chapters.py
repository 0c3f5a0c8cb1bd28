"""Chapters read as chapters, and the comparison that holds their outputs would notice a lie."""

import ast
import copy
import json
import re

import pytest
from house import NBS, ROOT, chapters, load_script, notebooks, read_notebook

runner = load_script(ROOT / ".ci" / "chapters.py", "ci_chapters")
EXPORT = re.compile(r"^#\s*\|\s*exports?\b", re.M)
IMPORTS = ast.Import | ast.ImportFrom


def relative(path) -> str:
    """Return a notebook's path below nbs/, for test ids."""
    return path.relative_to(NBS).as_posix()


def code_lines(cells) -> int:
    """Count the lines of code that are neither blank nor docstring."""
    source = "\n".join(c["source"] for c in cells)
    return len([line for line in re.sub(r'"""(.|\n)*?"""', "", source).splitlines() if line.strip()])


@pytest.mark.parametrize("path", [p for p in chapters() if not p.name.endswith("_api.ipynb")], ids=relative)
def test_a_chapter_reads_as_a_chapter(path):
    """Title and one sentence first, more prose than code, small cells, at most sixty of them and one figure."""
    cells = read_notebook(path)["cells"]
    prose = [c for c in cells if c["cell_type"] == "markdown"]
    code = [c for c in cells if c["cell_type"] == "code"]
    exported = [c for c in code if EXPORT.search(c["source"]) and not only_imports(c)]
    assert re.match(r"# \S.*\n+> \S", prose[0]["source"]) and cells[0] is prose[0]
    assert not [c["id"] for c in prose[1:] if re.search(r"^# ", c["source"], re.M)], "one title"
    assert len(cells) <= 60
    assert sum(len(c["source"].split()) for c in prose) >= code_lines(code)
    assert not [c["id"] for c in exported if code_lines([c]) > 80]
    assert len(prose) * 2 >= len(exported)
    assert sum("image/" in str(o.get("data", {}).keys()) for c in code for o in c["outputs"]) <= 1


def only_imports(cell) -> bool:
    """Tell whether a cell holds imports alone."""
    return all(isinstance(n, IMPORTS) for n in ast.parse(cell["source"]).body)


def is_for_type_checkers(node) -> bool:
    """Tell whether a statement is an `if TYPE_CHECKING:` block, which never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


@pytest.mark.parametrize("path", notebooks(), ids=relative)
def test_imports_have_cells_of_their_own(path):
    """Readers find the imports at once, and tools that run import cells run nothing else."""
    for cell in read_notebook(path)["cells"]:
        if cell["cell_type"] == "code":
            nodes = [n for n in ast.parse(cell["source"]).body if not is_for_type_checkers(n)]
            kinds = {isinstance(n, IMPORTS) for n in nodes}
            assert kinds != {True, False}, cell["id"]


@pytest.mark.parametrize("path", notebooks(), ids=relative)
def test_cell_ids_are_unique(path):
    """The exported modules name cells by their ids."""
    ids = [c["id"] for c in read_notebook(path)["cells"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("path", runner.chapters(), ids=relative)
def test_every_shown_cell_shows_something(path):
    """No committed output holds an error, an address, a path of this machine, or a warning."""
    for cell in filter(runner.runs, json.loads(path.read_text(encoding="utf-8"))["cells"]):
        assert not runner.forbidden(cell), cell["id"]
        assert "error" not in {o["output_type"] for o in cell["outputs"]}, cell["id"]


def cell(text: str, tags=(), kind="text/plain") -> dict:
    """Return a code cell that showed one text."""
    output = {"output_type": "execute_result", "data": {kind: [text]}, "metadata": {}, "execution_count": None}
    return {"cell_type": "code", "id": "c", "metadata": {"tags": list(tags)}, "source": ["x"], "outputs": [output]}


@pytest.mark.parametrize(
    ("committed", "now", "same"),
    [
        ("array([1. , 0.5])", "array([1.  , 0.50])", True),
        ("0.70000", "0.70069", True),
        ("0.70000", "0.7008", False),
        ("0.7", "0.8", False),
        ("2.2e-16", "1.1e-16", True),
        ("1.0e-6", "1.1e-6", False),
        ("-0.5", "0.5", False),
        ("nan", "0.5", False),
        ("auroc 0.9", "auprc 0.9", False),
        ("True", "False", False),
        ("[1, 2]", "[1, 2, 3]", False),
        ("1 2", "12", False),
        ("gmm/transition 3", "gmm/transition 3", True),
        ("", "something", False),
    ],
)
def test_the_comparison_notices_a_changed_number(committed, now, same):
    """Words exactly, numbers within 1e-3, spaces as one."""
    old, new = {"cells": [cell(committed)]}, {"cells": [cell(now)]}
    assert (runner.differences(old, new) == []) == same


def test_the_comparison_notices_missing_outputs_and_figures():
    """An output that is gone, and a figure that is gone, are differences; another figure is not."""
    old = {"cells": [cell("PHN2Zz4=", kind="image/svg+xml")]}
    other = {"cells": [cell("AAAA", kind="image/svg+xml")]}
    gone = copy.deepcopy(old)
    gone["cells"][0]["outputs"] = []
    assert runner.differences(old, other) == []
    assert runner.differences(old, gone) and runner.differences(gone, old)


def test_volatile_cells_are_not_compared():
    """Timings may change, and only where the cell says so."""
    old, new = ({"cells": [cell(t, tags=["volatile"])]} for t in ("1.0 s", "2.0 s"))
    assert runner.differences(old, new) == []


def test_a_changed_number_in_a_real_chapter_is_found(tmp_path):
    """One digit of one committed output is changed, the chapter runs again, and the change is reported."""
    paths = [p for p in runner.chapters() if p.parent.name == "core"] or runner.chapters()
    path = paths[0]
    nb = json.loads(path.read_text(encoding="utf-8"))
    shown = [o for c in nb["cells"] if runner.runs(c) and not runner.volatile(c) for o in c["outputs"]]
    output = next(o for o in shown if re.search(r"\d", runner.text(o.get("text") or o["data"].get("text/plain", ""))))
    place, key = (output, "text") if "text" in output else (output["data"], "text/plain")
    place[key] = re.sub(r"\d+", lambda m: str(2 * int(m[0]) + 1), runner.text(place[key]), count=1)
    changed = tmp_path / path.name
    changed.write_text(json.dumps(nb), encoding="utf-8")
    assert any(runner.text(place[key]).strip() in d for d in runner.run_one(changed, save=False)[2].split("\n--- "))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("1 + 1", True),
        ("#| eval: false\n1 + 1", False),
        ("#|eval:false\n1 + 1", False),
        ("#| slow\n1 + 1", False),
        ("#| exports\ndef f(): ...", True),
        ("x = '#| eval: false'", True),
    ],
)
def test_directives_decide_what_runs(source, expected):
    """The notebook directives mean here what they mean to nbdev."""
    assert runner.runs({"cell_type": "code", "source": source}) == expected


def test_a_failing_chapter_names_cell_and_error(tmp_path):
    """The report of a broken chapter says where to look."""
    broken = {"cell_type": "code", "id": "the-broken-one", "metadata": {}, "source": ["1 / 0"], "outputs": []}
    kernel = {"kernelspec": {"name": "python3", "display_name": "python3", "language": "python"}}
    path = tmp_path / "00_broken.ipynb"
    path.write_text(json.dumps({"cells": [broken], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
    _, good, message, _, _ = runner.run_one(path, save=False)
    assert not good and "the-broken-one" in message and "ZeroDivisionError" in message
