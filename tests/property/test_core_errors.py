"""Errors carry their parts everywhere, and the border checks let through exactly what they say."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rl_oodkit.core import errors
from rl_oodkit.core.errors import (
    NonFiniteError,
    ParameterError,
    RlOodkitError,
    ShapeError,
    check_array,
    check_fraction,
    check_integer,
)
from rl_oodkit.core.executors import ProcessExecutor

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, RlOodkitError)]
BUILTIN = {
    "UnknownIdError": LookupError,
    "RegistrationError": ValueError,
    "ParameterError": ValueError,
    "StrengthError": errors.ParameterError,
    "OnsetError": errors.ParameterError,
    "ShapeError": ValueError,
    "NonFiniteError": ValueError,
    "EmptySplitError": ValueError,
    "LabelLeakError": ValueError,
    "UndeclaredFieldError": KeyError,
    "DetectorOutputError": ValueError,
    "InjectorLawError": ValueError,
    "CheckpointError": ValueError,
    "StoreError": OSError,
    "DamagedFileError": errors.StoreError,
    "ForeignFileError": errors.StoreError,
    "UnitFailedError": RuntimeError,
    "NotebookError": RuntimeError,
    "RunInterrupted": KeyboardInterrupt,
    "CloneNeededError": RuntimeError,
    "SubmissionError": ValueError,
    "SandboxUnavailableError": RuntimeError,
    "ServiceError": OSError,
}


@pytest.mark.parametrize("name", BUILTIN)
def test_each_error_is_also_what_others_expect(name):
    """Code that knows only the builtins catches the right ones."""
    assert issubclass(getattr(errors, name), (RlOodkitError, BUILTIN[name]))
    assert issubclass(getattr(errors, name), BUILTIN[name])


def test_no_error_class_is_left_out():
    """The table above is complete."""
    assert {c.__name__ for c in CLASSES} == {*BUILTIN, "RlOodkitError"}


def test_errors_return_whole_from_another_process():
    """What a worker returns says the same here."""
    sent = [cls("broken", where="here", instead="Repair it.") for cls in CLASSES]
    made = dict(ProcessExecutor(1).map(copy_of, sent))
    for index, cls in enumerate(CLASSES):
        error = made[index]
        assert type(error) is cls
        assert (error.what, error.where, error.instead) == ("broken", "here", "Repair it.")
        assert str(error) == "broken (here). Repair it."


def copy_of(x):
    """Return what came."""
    return x


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_the_message_holds_all_parts(what, where, instead):
    """Nothing that was said is lost, whatever the characters."""
    message = str(RlOodkitError(what, where=where, instead=instead))
    assert what in message and where in message and instead in message


@given(
    hnp.arrays(st.sampled_from([np.float64, np.float32, np.int64, np.bool_]), hnp.array_shapes(min_dims=0, max_dims=3))
)
def test_a_good_array_passes_unchanged_and_uncopied(x):
    """The check is a border, not a conversion."""
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        with pytest.raises(NonFiniteError):
            check_array(x, "x")
        assert check_array(x, "x", finite=False) is x
    else:
        assert check_array(x, "x") is x
        assert check_array(x, "x", ndim=x.ndim) is x
        with pytest.raises(ShapeError):
            check_array(x, "x", ndim=x.ndim + 1)


@given(hnp.arrays(np.float64, (3, 4)), st.sampled_from([np.float32, np.int32, np.int64, np.uint8]))
def test_a_cast_never_changes_the_meaning(x, dtype):
    """What comes back is the number that went in, to the precision of the target; otherwise there is an error."""
    try:
        out = check_array(x, "x", dtype=dtype, finite=False)
    except ShapeError:
        return
    assert out.dtype == dtype
    same = np.allclose(out.astype(float), x, rtol=2e-7, atol=1e-44, equal_nan=True)
    assert same and (dtype == np.float32 or np.array_equal(out.astype(float), x))


BAD_ARRAYS = {
    "ragged": [[1], [1, 2]],
    "object": np.array([None, 1], dtype=object),
    "text": ["a"],
    "complex": [1j],
    "dates": np.array(["2026-01-01"], dtype="datetime64[D]"),
    "set": {1, 2},
    "dict": {"a": 1},
    "None": None,
    "lambda": abs,
    "bytes": b"abc",
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_what_is_no_array_is_refused_by_name(name):
    """The message begins with the caller's name for it."""
    with pytest.raises(ShapeError, match=r"^observations "):
        check_array(BAD_ARRAYS[name], "observations")


def test_the_first_bad_index_is_named():
    """A reader can find the value."""
    x = np.zeros((4, 5))
    x[2, 3] = math.inf
    with pytest.raises(NonFiniteError, match=r"scores is inf at index \(2, 3\) \(1 of 20 values\)"):
        check_array(x, "scores", allow_nan=True)
    x[2, 3] = math.nan
    assert check_array(x, "scores", allow_nan=True) is x


@pytest.mark.parametrize(
    "options",
    [{"width": 3}, {"min_rows": 5}, {"ndim": 1}, {"dtype": np.int64}],
)
def test_each_requirement_is_asked(options):
    """One array that fails each of them."""
    with pytest.raises(ShapeError):
        check_array(np.full((4, 2), 0.5), "x", **options)


def test_scalars_have_no_width_and_no_rows():
    """Zero dimensions are not an index error."""
    for options in ({"width": 1}, {"min_rows": 1}):
        with pytest.raises(ShapeError):
            check_array(1.0, "x", **options)


@given(st.one_of(st.integers(), st.floats(), st.text(), st.none(), st.booleans()))
def test_check_integer_accepts_integers_alone(x):
    """Booleans and whole floats are no counts."""
    if isinstance(x, int) and not isinstance(x, bool):
        assert check_integer(x, "n") == x
    else:
        with pytest.raises(ParameterError, match="^n is"):
            check_integer(x, "n")


@given(st.one_of(st.floats(), st.integers(), st.text(), st.none()))
def test_check_fraction_accepts_the_open_interval_alone(x):
    """Neither end, neither NaN, nor text."""
    inside = isinstance(x, (int, float)) and math.isfinite(x) and 0 < x < 1
    if inside:
        assert check_fraction(x, "alpha") == x
    else:
        with pytest.raises(ParameterError, match="^alpha is"):
            check_fraction(x, "alpha")


def test_an_uncaught_error_prints_all_its_parts():
    """What a user sees at the end of a traceback."""
    program = "from rl_oodkit.core.errors import StoreError; raise StoreError('a', where='b', instead='c')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip().endswith("rl_oodkit.core.errors.StoreError: a (b). c")
