"""Imports only go down the ladder: relative, absolute, inside functions, and by importlib."""

import ast
from pathlib import Path

import pytest
from house import PACKAGE, ROOT, module_name, modules, tree

LADDER = (
    "core",
    "stats",
    "oracles",
    "envs",
    "training",
    "ood",
    "report",
    "reproduce",
    "cli_shell",
    "cli_tasks",
    "cli_agents",
    "cli",
)
RANK = {name: i for i, name in enumerate(LADDER)} | {"mle": LADDER.index("ood")}
LAZY = {"torch", "stable_baselines3", "papermill", "distributed", "matplotlib", "seaborn", "nbformat", "typer"}
ALLOWED_TOP = dict.fromkeys(
    ("cli", "cli_shell", "cli_tasks", "cli_agents"), {"typer"}
)  # the command line is typer's; nothing imports cli


def rung(dotted: str) -> str | None:
    """Return the rung of a dotted module name, or None outside the package and at its root."""
    parts = dotted.split(".")
    return parts[1] if parts[0] == "rl_oodkit" and len(parts) > 1 else None


def absolute(module: str, node: ast.ImportFrom, is_package: bool) -> list[str]:
    """Resolve `from ... import ...` to absolute names, the imported names included."""
    base = module.split(".") if is_package else module.split(".")[:-1]
    base = base[: len(base) - node.level + 1] if node.level else []
    stem = ".".join([*base, *([node.module] if node.module else [])])
    return [stem, *(f"{stem}.{a.name}" for a in node.names)]


def targets(module: str, node: ast.AST, is_package: bool = False) -> list[str]:
    """Return the modules one statement or expression asks for."""
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    if isinstance(node, ast.ImportFrom):
        return absolute(module, node, is_package)
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = ast.unparse(node.func)
        if name.endswith("import_module") or name == "__import__":
            return [str(node.args[0].value)]
    return []


def climbs(here: str, target: str) -> bool:
    """Tell whether a rung may not import another."""
    if here not in RANK or target not in RANK or here == target:
        return False
    return RANK[target] >= RANK[here]


def violations(path: Path) -> list[str]:
    """List a module's imports that go up."""
    name = module_name(path)
    here = rung(name)
    found = []
    for node in ast.walk(tree(path)):
        for target in targets(name, node, path.name == "__init__.py"):
            other = rung(target)
            if here and other and climbs(here, other):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {here} imports {target}")
    return found


def test_imports_only_go_down():
    """The whole package, every form of import."""
    found = [v for path in modules() for v in violations(path)]
    assert not found, "\n".join(found)


def test_every_folder_is_on_the_ladder():
    """A new folder needs a place before it can be imported from anywhere."""
    unknown = [p.relative_to(ROOT) for p in modules() if p.name != "__init__.py" and rung(module_name(p)) not in RANK]
    assert not unknown


@pytest.mark.parametrize(
    ("line", "climbing"),
    [
        ("from ..ood.detector import Detector", True),
        ("from rl_oodkit.ood import detector", True),
        ("import rl_oodkit.report.figures as f", True),
        ("import importlib\nimportlib.import_module('rl_oodkit.cli')", True),
        ("def f():\n    from rl_oodkit.training.policy import QPolicy", True),
        ("from ..core.errors import ShapeError", False),
        ("from .bootstrap import episode_weights", False),
        ("import numpy as np", False),
    ],
)
def test_the_ladder_test_sees_every_form(line, climbing):
    """The check itself: each form of import, seen from a module of stats."""
    nodes = list(ast.walk(ast.parse(line)))
    found = [t for n in nodes for t in targets("rl_oodkit.stats.ranking", n) if climbs("stats", rung(t) or "")]
    assert bool(found) == climbing


def test_ood_and_mle_do_not_see_each_other():
    """They share a rung and nothing else."""
    assert climbs("ood", "mle") and climbs("mle", "ood")


def test_heavy_libraries_are_imported_where_they_are_used():
    """Nothing that costs a second is imported at the top of a module."""
    found = []
    for path in modules():
        name = module_name(path)
        allowed = ALLOWED_TOP.get(rung(name) or "", set())
        for node in top_level(tree(path).body):
            heads = {t.split(".")[0] for t in targets(name, node)}
            found += [f"{path.relative_to(ROOT)}:{node.lineno} {h}" for h in heads & LAZY - allowed]
    assert not found, "\n".join(found)


def top_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements that run at import, blocks such as `if` and `try` included, TYPE_CHECKING excluded."""
    found = []
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        found.append(node)
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                found += top_level(getattr(node, name, []))
    return found


def test_the_package_is_typed():
    """Type checkers may rely on the annotations."""
    assert (PACKAGE / "py.typed").exists()
