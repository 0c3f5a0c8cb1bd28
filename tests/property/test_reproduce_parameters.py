"""A notebook is told only what it declares."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_oodkit.core.errors import ParameterError
from rl_oodkit.reproduce.parameters import check_parameters, notebook_parameters

LITERALS = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(), st.text(max_size=20),
    st.lists(st.integers(), max_size=4), st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)  # fmt: skip
NAMES = st.from_regex(r"[a-z][a-z_]{0,12}", fullmatch=True).filter(lambda n: n not in ("if", "is", "in", "or", "as"))


def notebook(folder, source):
    """Write a notebook that holds only a parameters cell."""
    path = folder / "trial.ipynb"
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": source}
    path.write_text(json.dumps({"cells": [cell]}))
    return path


@given(NAMES, LITERALS)
def test_every_literal_comes_back_with_its_type(tmp_path_factory, name, value):
    """What the cell assigns is what is read, texts with hashes and quotes included."""
    import keyword

    if keyword.iskeyword(name):
        return
    path = notebook(tmp_path_factory.mktemp("nb"), f"{name}: {type(value).__name__} = {value!r}  # what it is = for")
    found = notebook_parameters(path)[name]
    assert found.default == value and type(found.default) is type(value) and found.help == "what it is = for"
    if value is not None:
        assert check_parameters(path, {name: value})[name] == value


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int", [3], [3.0, "3", True, None]),
        ("float", [3, 3.5], ["3", True]),
        ("bool", [True], [1, "yes"]),
        ("str", ["a"], [1, ["a"]]),
        ("list[str] | None", [["a"], None], ["a", 3]),
        ("dict", [{"a": 1}], [[("a", 1)]]),
    ],
)
def test_values_are_held_to_the_annotation(tmp_path, kind, good, bad):
    """Only values of the declared type pass; a boolean is no number."""
    default = {"int": "0", "float": "0.0", "bool": "False", "str": "''", "dict": "{}"}.get(kind, "None")
    path = notebook(tmp_path, f"value: {kind} = {default}")
    for value in good:
        assert check_parameters(path, {"value": value}) == {"value": value}
    for value in bad:
        with pytest.raises(ParameterError):
            check_parameters(path, {"value": value})


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    """A misspelt parameter is an error that names the right one."""
    with pytest.raises(ParameterError, match="Did you mean 'n_seeds'"):
        check_parameters(notebook(tmp_path, "n_seeds: int = 3"), {"n_seed": 4})


@pytest.mark.parametrize("line", ["import os", "n = len([1])", "a, b = 1, 2", "n: int", "x.y = 3", "def f(): pass"])
def test_only_literals_are_parameters(tmp_path, line):
    """A parameters cell that computes anything is refused."""
    with pytest.raises(ParameterError, match="parameters cell"):
        notebook_parameters(notebook(tmp_path, line))


def test_every_experiment_declares_its_parameters():
    """The experiments' own cells parse, are commented, typed, and say where results go."""
    from rl_oodkit.core.store import clone_root

    paths = sorted((clone_root() / "nbs" / "experiments").glob("*.ipynb"))
    assert paths
    for path in paths:
        parameters = notebook_parameters(path)
        assert parameters["out"].kind == "str", path.name
        assert all(p.help for p in parameters.values()), path.name
