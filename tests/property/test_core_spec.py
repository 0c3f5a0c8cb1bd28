"""Descriptions survive every written form, mistakes are named, and digests depend on content alone."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_oodkit.core.errors import ParameterError
from rl_oodkit.core.spec import content_hash, from_dict, from_json, from_toml, short, to_dict, to_json, to_toml

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@dataclass(frozen=True)
class Inner:
    """A nested description."""

    kind: Literal["step", "ramp"] = "step"
    onset: int | None = None
    scale: Optional[float] = None  # noqa: UP045


@dataclass(frozen=True)
class Outer:
    """A description with every kind of field."""

    name: str
    count: int = 1
    rate: float = 0.5
    flag: bool = False
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (1, "a")
    words: list[str] = field(default_factory=list)
    levels: dict[str, float] = field(default_factory=dict)
    inner: Inner = Inner()
    inners: tuple[Inner, ...] = ()
    place: Path = Path("here")
    free: Any = None


INNERS = st.builds(
    Inner,
    st.sampled_from(["step", "ramp"]),
    st.none() | st.integers(-(2**60), 2**60),
    st.none() | FINITE,
)
OUTERS = st.builds(
    Outer,
    name=TEXT,
    count=st.integers(-(2**60), 2**60),
    rate=FINITE,
    flag=st.booleans(),
    sizes=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    pair=st.tuples(st.integers(0, 9), TEXT),
    words=st.lists(TEXT, max_size=3),
    levels=st.dictionaries(TEXT, FINITE, max_size=3),
    inner=INNERS,
    inners=st.lists(INNERS, max_size=2).map(tuple),
    place=st.just(Path("a/b")),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(OUTERS)
def test_every_written_form_reads_back_equal(spec):
    """Dictionary, JSON and TOML are faithful, and all of them keep the digest."""
    for again in (from_dict(Outer, to_dict(spec)), from_json(Outer, to_json(spec)), from_toml(Outer, to_toml(spec))):
        assert again == spec
        assert content_hash(again) == content_hash(spec)


@given(PLAIN)
def test_plain_data_are_a_fixed_point_of_json(x):
    """What JSON can say, it says, and the digest agrees."""
    assert json.loads(to_json(x)) == x
    assert content_hash(json.loads(to_json(x))) == content_hash(x)


@given(st.dictionaries(TEXT, PLAIN, max_size=5), st.randoms())
def test_the_order_of_a_dictionary_does_not_matter(d, rng):
    """Two dictionaries that are equal have one digest."""
    items = list(d.items())
    rng.shuffle(items)
    assert content_hash(dict(items)) == content_hash(d)


@given(PLAIN, PLAIN)
def test_different_texts_have_different_digests(a, b):
    """The digest is that of the canonical text: equal exactly when the texts are."""
    assert (content_hash(a) == content_hash(b)) == (to_json(a) == to_json(b))


@given(st.integers(1, 4), st.integers(1, 4), st.sampled_from(["<f4", "<f8", "<i4", "<i8", "|u1", "|b1"]))
def test_array_digests_see_content_and_not_memory(n, m, dtype):
    """Layout and byte order are accidents; dtype, shape and values are content."""
    x = np.arange(n * m).reshape(n, m).astype(dtype)
    big = x.astype(x.dtype.newbyteorder(">"))
    assert content_hash(x) == content_hash(np.asfortranarray(x)) == content_hash(big) == content_hash(x[:, :].copy())
    changed = x.copy()
    changed.flat[0] = not changed.flat[0]
    others = [changed, x.reshape(-1), x[None], x.tolist()]
    assert content_hash(x) not in {content_hash(o) for o in others}


def test_the_digest_is_the_same_in_every_process():
    """Hash randomisation, which changes from process to process, has no part in it."""
    program = (
        "from rl_oodkit.core.spec import content_hash; import numpy as np;"
        "print(content_hash({'b': [1, 2.5, None], 'a': {'y': (True, 'é')}, 'x': np.arange(3.), 's': float('nan')}))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": str(s)}
        ).stdout
        for s in (0, 1, 2)
    ]
    value = {"b": [1, 2.5, None], "a": {"y": (True, "é")}, "x": np.arange(3.0), "s": float("nan")}
    assert set(runs) == {content_hash(value) + "\n"}


def test_the_digest_is_plain_sha256_of_canonical_json():
    """Anyone can compute it without this package."""
    text = '{"a":[1,2.5,null,true],"b":"\\u00e9"}'
    assert content_hash({"b": "é", "a": [1, 2.5, None, True]}) == hashlib.sha256(text.encode()).hexdigest()
    assert short(content_hash({})) == hashlib.sha256(b"{}").hexdigest()[:12]


MISTAKES = {
    "unknown alfa": {"name": "a", "alfa": 1},
    "missing name": {},
    "name is 3": {"name": 3},
    "count is '1'": {"name": "a", "count": "1"},
    "count is True": {"name": "a", "count": True},
    "count is 1.0": {"name": "a", "count": 1.0},
    "rate is '0.5'": {"name": "a", "rate": "0.5"},
    "rate is True": {"name": "a", "rate": True},
    "flag is 1": {"name": "a", "flag": 1},
    "sizes is 'ab'": {"name": "a", "sizes": "ab"},
    r"sizes\[1\] is '2'": {"name": "a", "sizes": [1, "2"]},
    "pair has 3 items": {"name": "a", "pair": [1, "a", 2]},
    r"words\[0\] is None": {"name": "a", "words": [None]},
    r"levels.x is 'high'": {"name": "a", "levels": {"x": "high"}},
    "levels is": {"name": "a", "levels": [1]},
    "inner.kind is 'jump'": {"name": "a", "inner": {"kind": "jump"}},
    "inner.onset is '4'": {"name": "a", "inner": {"onset": "4"}},
    r"inners\[1\]": {"name": "a", "inners": [{}, {"knd": 1}]},
    "inner is 5": {"name": "a", "inner": 5},
    "place is 7": {"name": "a", "place": 7},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named_by_their_path(message):
    """A misspelt or mistyped field is reported where it is."""
    with pytest.raises(ParameterError, match=message):
        from_dict(Outer, MISTAKES[message])


@pytest.mark.parametrize("value", [object(), lambda: 0, {1: 2}, {1, 2}, 1j, np.array([object()]), open])
def test_what_has_no_written_form_is_refused(value):
    """Nothing is written by its `repr`."""
    for write in (content_hash, to_json, lambda v: to_dict(Outer("a", free=v))):
        with pytest.raises(ParameterError):
            write(value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "nul", '{"name": 3}', "[" * 10**5, '{"name": "a"} x'])
def test_bad_json_is_a_parameter_error(text):
    """Whether it is not JSON or not the right JSON."""
    with pytest.raises(ParameterError):
        from_json(Outer, text)


@pytest.mark.parametrize("text", ["name", "name = 3", "name = 'a'\nname = 'b'", "x = " + "[" * 10**4])
def test_bad_toml_is_a_parameter_error(text):
    """Whether it is not TOML or not the right TOML."""
    with pytest.raises(ParameterError):
        from_toml(Outer, text)


def test_non_finite_numbers_have_a_digest_and_no_json():
    """A file that other tools cannot read is not written."""
    for value in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(ParameterError):
            to_json({"x": value})
    assert len({content_hash(float(v)) for v in ("nan", "inf", "-inf")}) == 3


def test_a_dataclass_that_checks_itself_keeps_its_own_words():
    """Errors raised in `__post_init__` pass through."""

    @dataclass(frozen=True)
    class Checked:
        """A number that must be positive."""

        x: int

        def __post_init__(self) -> None:
            if self.x < 1:
                raise ParameterError("x must be positive")

    with pytest.raises(ParameterError, match="x must be positive"):
        from_dict(Checked, {"x": 0})
    assert dataclasses.asdict(from_dict(Checked, {"x": 1})) == {"x": 1}
