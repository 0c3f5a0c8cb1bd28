"""The registry: lazy, complete, open to plugins, closed to confusion."""

import importlib
import json
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

from rl_oodkit.core import registry
from rl_oodkit.core.errors import ParameterError, RegistrationError, UnknownIdError

MEMBERS = sorted({m for modules in registry.MODULES.values() for m in modules})


@pytest.fixture(autouse=True)
def own_state(monkeypatch):
    """Let each test register as it likes."""
    state = registry._State()
    state.entries, state.loaded = dict(registry._STATE.entries), set(registry.MODULES)
    state.plugins_loaded = True
    monkeypatch.setattr(registry, "_STATE", state)


def run(program: str, path=None) -> str:
    """Run a program in a fresh interpreter; return what it prints."""
    lines = f"import sys; sys.path.insert(0, {str(path)!r})\n" if path else ""
    done = subprocess.run([sys.executable, "-c", lines + textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", MEMBERS)
def test_every_listed_module_exists(name):
    """A module that the table names and the disk lacks is a packaging fault."""
    assert find_spec(name) is not None


def test_a_missing_module_is_an_error_that_names_it(monkeypatch):
    """It never looks like a shorter list, and the second look-up says it again."""
    monkeypatch.setattr(registry, "MODULES", {"metric": ("rl_oodkit.nowhere",)})
    registry._STATE.loaded.clear()
    for _ in range(2):
        with pytest.raises(ImportError, match=r"rl_oodkit\.nowhere.*metric"):
            registry.names("metric")


def test_a_module_that_fails_to_import_is_not_hidden(monkeypatch, tmp_path):
    """Its own error is what the user sees."""
    (tmp_path / "broken_members.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "MODULES", {"metric": ("broken_members",)})
    registry._STATE.loaded.clear()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            registry.names("metric")


def test_importing_the_registry_loads_no_member():
    """Only a look-up does, and only the modules of its kind."""
    out = run(
        """
        import json, sys
        from rl_oodkit.core import registry
        members = {m for ms in registry.MODULES.values() for m in ms}
        before = sorted(members & set(sys.modules))
        registry.names("accumulator")
        print(json.dumps([before, sorted(members & set(sys.modules)), "torch" in sys.modules]))
        """
    )
    before, after, torch = json.loads(out)
    assert before == [] and set(registry.MODULES["accumulator"]) <= set(after) and not torch


def test_unknown_ids_and_kinds_name_the_nearest():
    """The right spelling is in the message."""
    for id in ("gain", "gaim-x", "bias"):
        registry.register("metric", id)(lambda: 0)
    with pytest.raises(UnknownIdError, match="Nearest: gain"):
        registry.get("metric", "gian")
    with pytest.raises(UnknownIdError, match="Nearest: metric"):
        registry.names("metrics")
    with pytest.raises(UnknownIdError) as error:
        registry.get("metric", "zzz")
    assert len(str(error.value).split("Nearest: ")[1].split(", ")) == 3


@pytest.mark.parametrize("id", ["", "Gain", "gain_x", "gain--x", "-gain", "gain ", "gäin", "a/b", 3, None, "gain\n"])
def test_ids_have_one_form(id):
    """Kebab-case, and nothing that a table or a shell would choke on."""
    with pytest.raises(RegistrationError):
        registry.register("metric", id)


@pytest.mark.parametrize("id", ["gain", "gain-2", "10-metric-oracle", "q", "rl_oodkit/Lander-v1"])
def test_good_ids(id):
    """The forms that are used."""
    registry.register("metric", id)(test_good_ids)
    assert id in registry.names("metric")


def test_an_unknown_kind_is_an_error_at_the_definition():
    """Not an empty list at the look-up."""
    with pytest.raises(RegistrationError, match="there is no kind 'metrics'"):
        registry.register("metrics", "x")


def thing(x: int, y: float = 2.0, **rest: object) -> tuple:
    """Return what came."""
    return x, y, rest


def strict(x: int, kind: str = "a") -> tuple:
    """Return what came; one parameter is called like one of `make`."""
    return x, kind


def test_make_passes_parameters_and_names_the_wrong_ones():
    """Checked before the call; a TypeError from inside is not mistaken for one."""
    registry.register("metric", "thing")(thing)
    registry.register("metric", "strict", summary="Other words.", unit="s")(strict)
    assert registry.make("metric", "thing", x=1, z=3) == (1, 2.0, {"z": 3})
    assert registry.make("metric", "strict", x=1, kind="b") == (1, "b")
    assert registry.parameters("metric", "thing") == [("x", registry.REQUIRED), ("y", 2.0)]
    for params in ({}, {"x": 1, "w": 2}):
        with pytest.raises(ParameterError, match="Parameters are: x, kind"):
            registry.make("metric", "strict", **params)
    found = registry.entry("metric", "strict")
    assert (found.summary, found.tags, found.qualname, found.module) == (
        "Other words.",
        {"unit": "s"},
        "strict",
        __name__,
    )
    assert registry.entry("metric", "thing").summary == "Return what came."

    def inside(x: int) -> int:
        """Fail inside."""
        raise TypeError("inside")

    registry.register("metric", "inside")(inside)
    with pytest.raises(TypeError, match="^inside$"):
        registry.make("metric", "inside", x=1)


def test_registration_returns_the_thing_itself():
    """Neither wrapped nor changed."""
    assert registry.register("metric", "thing")(thing) is thing
    assert registry.get("metric", "thing") is thing


def copy_of(module: str, qualname: str = "thing"):
    """Make another function of a given origin."""

    def other() -> None:
        """Do nothing."""

    other.__module__, other.__qualname__ = module, qualname
    return other


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        (("a", "f"), ("a", "f"), 1),
        (("a", "f"), ("__main__", "f"), 1),
        (("__main__", "f"), ("a", "f"), 0),
        (("__main__", "f"), ("__main__", "f"), 1),
        (("a", "f"), ("b", "f"), None),
        (("a", "f"), ("a", "g"), None),
        (("a", "f"), ("__main__", "g"), None),
    ],
)
def test_who_keeps_a_name(first, second, winner):
    """A reload and a notebook's copy pass, anything else is a confusion."""
    things = [copy_of(*first), copy_of(*second)]
    registry.register("metric", "name")(things[0])
    if winner is None:
        with pytest.raises(RegistrationError, match="claimed twice"):
            registry.register("metric", "name")(things[1])
        assert registry.get("metric", "name") is things[0]
    else:
        registry.register("metric", "name")(things[1])
        assert registry.get("metric", "name") is things[winner]


def test_a_module_can_be_reloaded(tmp_path, monkeypatch):
    """The new definition replaces the old one."""
    source = "from rl_oodkit.core.registry import register\n@register('metric', 'r')\ndef f(): 'One.'\n"
    (tmp_path / "reloaded_members.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("reloaded_members")
    old = registry.get("metric", "r")
    importlib.reload(module)
    assert registry.get("metric", "r") is module.f is not old


def plugin(folder, name: str, body: str) -> None:
    """Install a package with an entry point, as pip would leave it."""
    (folder / f"{name}.py").write_text(textwrap.dedent(body))
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rl_oodkit.plugins]\n{name.replace('_', '-')} = {name}\n")


def test_plugins_join_and_a_failing_one_is_named(tmp_path):
    """One good, one broken; the package and the good one work, the broken one is a warning."""
    good = """
        from rl_oodkit.core.registry import register
        @register("accumulator", "from-a-plugin")
        class Mine:
            "A plugin's own."
    """
    plugin(tmp_path, "good_plugin", good)
    plugin(tmp_path, "bad_plugin", "import something_that_does_not_exist\n")
    out = run(
        """
        import warnings
        from rl_oodkit.core import registry
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            names = registry.names("accumulator")
        print("from-a-plugin" in names, len(names) > 1)
        print([str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)])
        """,
        tmp_path,
    )
    first, second = out.strip().splitlines()
    assert first == "True True"
    assert "plugin 'bad-plugin' (bad_plugin) was skipped: ModuleNotFoundError" in second
