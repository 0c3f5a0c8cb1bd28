"""What the tests of the house share: where things are, and an AST view of the package's functions."""

import ast
import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "rl_oodkit"
NBS = ROOT / "nbs"
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> list[Path]:
    """Return the exported modules, the index that nbdev writes left out."""
    return sorted(p for p in PACKAGE.rglob("*.py") if p.name != "_modidx.py" and p.stat().st_size)


def module_name(path: Path) -> str:
    """Return a module's dotted name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def notebooks() -> list[Path]:
    """Return all notebooks of the book, experiments included."""
    paths = sorted(NBS.rglob("*.ipynb"))
    return [p for p in paths if not any(part.startswith((".", "_")) for part in p.relative_to(NBS).parts)]


@cache
def read_notebook(path: Path) -> dict[str, Any]:
    """Return a notebook as JSON, each cell's source joined to one text."""
    nb = json.loads(path.read_text(encoding="utf-8"))
    for cell in nb["cells"]:
        cell["source"] = "".join(cell["source"])
    return nb


def chapters() -> list[Path]:
    """Return the notebooks that export a module."""
    return [p for p in notebooks() if default_exp(p)]


def default_exp(path: Path) -> str | None:
    """Return the module a notebook exports to, without the package's name."""
    for cell in read_notebook(path)["cells"]:
        for line in cell["source"].splitlines() if cell["cell_type"] == "code" else []:
            if line.replace(" ", "").startswith("#|default_exp"):
                return line.split("default_exp")[1].strip()
    return None


def load_script(path: Path, name: str) -> ModuleType:
    """Import a script of the repository that is not part of the package."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Function:
    """One function or method of the package."""

    path: Path
    node: FunctionNode
    owner: ast.ClassDef | None
    nested: bool = False

    @property
    def where(self) -> str:
        """Return file, line and name, for messages."""
        name = f"{self.owner.name}.{self.node.name}" if self.owner else self.node.name
        return f"{self.path.relative_to(ROOT)}:{self.node.lineno} {name}"

    @property
    def public(self) -> bool:
        """Tell whether users may call it."""
        names = [self.node.name] + ([self.owner.name] if self.owner else [])
        return not self.nested and not any(n.startswith("_") for n in names)

    @property
    def is_method(self) -> bool:
        """Tell whether the first parameter is the object or the class."""
        return self.owner is not None and "staticmethod" not in self.decorators

    @property
    def decorators(self) -> set[str]:
        """Return the names of the decorators."""
        return {ast.unparse(d).split("(")[0].split(".")[-1] for d in self.node.decorator_list}

    @property
    def arguments(self) -> list[ast.arg]:
        """Return all parameters but self and cls."""
        a = self.node.args
        found = [*a.posonlyargs, *a.args, *filter(None, [a.vararg]), *a.kwonlyargs, *filter(None, [a.kwarg])]
        return found[1:] if self.is_method and (a.posonlyargs or a.args) else found

    @property
    def doc(self) -> str:
        """Return the docstring, or an empty text."""
        return ast.get_docstring(self.node) or ""

    @property
    def lines(self) -> int:
        """Count the lines from def to the end, without decorators and docstring."""
        first = self.node.body[0]
        has_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and bool(self.doc)
        doc_lines = first.end_lineno - first.lineno + 1 if has_doc else 0
        return self.node.end_lineno - self.node.lineno + 1 - doc_lines

    @property
    def complexity(self) -> int:
        """Return McCabe's number: one more than the decisions, nested functions not included."""
        return 1 + sum(map(decisions, own_nodes(self.node)))


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a function's body without the functions and classes defined in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (*FunctionNode.__args__, ast.ClassDef)):
            yield child
            yield from own_nodes(child)


def decisions(node: ast.AST) -> int:
    """Count the branches that one node adds."""
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return len(node.ifs)
    branching = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case)
    return int(isinstance(node, branching))


@cache
def functions() -> tuple[Function, ...]:
    """Return every function and method of the package."""
    return tuple(f for path in modules() for f in _functions_in(path, tree(path), None, False))


@cache
def tree(path: Path) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def _functions_in(path: Path, node: ast.AST, owner: ast.ClassDef | None, nested: bool) -> Iterator[Function]:
    """Walk a tree, keeping track of the class and of nesting."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode):
            yield Function(path, child, owner, nested)
            yield from _functions_in(path, child, None, True)
        elif isinstance(child, ast.ClassDef):
            yield from _functions_in(path, child, child, nested)
        else:
            yield from _functions_in(path, child, owner, nested)


def classes() -> list[tuple[Path, ast.ClassDef]]:
    """Return every public class at the top of a module."""
    return [
        (path, node)
        for path in modules()
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
