"""Streams are addressed, repeatable, and independent of who else draws."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from rl_oodkit.core.errors import ParameterError
from rl_oodkit.core.seeds import integer, sequence, stream

LABELS = st.text(max_size=8) | st.integers(0, 2**64 - 1)
PATHS = st.lists(LABELS, max_size=4).map(tuple)


def first(root, path) -> tuple[int, ...]:
    """Return the first words of a stream."""
    return tuple(stream(root, *path).integers(2**63, size=3).tolist())


@given(st.integers(0, 2**128), PATHS)
def test_an_address_has_one_stream(root, path):
    """Asked twice, with other draws in between."""
    before = first(root, path)
    stream(root, "somebody", "else").normal(size=5)
    assert first(root, path) == before
    assert 0 <= integer(root, *path) < 2**31


@given(st.integers(0, 99), PATHS, st.integers(0, 99), PATHS)
def test_different_addresses_have_different_streams(a, p, b, q):
    """Text is not a number, and paths are not their concatenation."""
    same = a == b and [(type(x), x) for x in p] == [(type(x), x) for x in q]
    assert (first(a, p) == first(b, q)) == same


@pytest.mark.parametrize(
    ("p", "q"),
    [(("3",), (3,)), (("ab", "c"), ("a", "bc")), ((1, 2), (1 << 32 | 2,)), ((), (0,)), ((0,), (0, 0)), (("",), ())],
)
def test_addresses_that_look_alike(p, q):
    """The classical confusions."""
    assert first(0, p) != first(0, q)


@pytest.mark.parametrize("root", [-1, 1.0, "0", None, True, float("nan")])
def test_a_bad_root_is_refused(root):
    """A seed is an integer, 0 or larger."""
    for make in (sequence, stream, integer):
        with pytest.raises(ParameterError):
            make(root, "x")


@pytest.mark.parametrize("label", [-1, 2**64, 1.5, None, b"x", ("a",)])
def test_a_bad_label_is_refused(label):
    """A label is text or an index."""
    with pytest.raises(ParameterError):
        stream(0, "x", label)


def test_streams_are_uniform_and_uncorrelated_across_addresses():
    """First numbers of 4,000 neighbouring streams are themselves a uniform sample."""
    firsts = np.array([stream(7, "episode", i, "noise").random() for i in range(4000)])
    assert kstest(firsts, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(firsts[:-1], firsts[1:])[0, 1]) < 4 / np.sqrt(4000)


def test_the_same_stream_in_every_process():
    """Python's own hash, which is salted, has no part in it."""
    program = "from rl_oodkit.core.seeds import integer; print(integer(5, 'env', 3, 'noise'))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": str(s)}
        ).stdout
        for s in (0, 1)
    }
    assert answers == {f"{integer(5, 'env', 3, 'noise')}\n"}


def test_a_child_can_be_spawned_further():
    """The sequence is an ordinary one of NumPy's."""
    a, b = sequence(0, "x").spawn(2)
    assert a.generate_state(2).tolist() != b.generate_state(2).tolist() != sequence(0, "x").generate_state(2).tolist()
