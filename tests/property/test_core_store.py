"""What is loaded is what was saved, for every format; the same content has the same bytes."""

import io
import os
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load as load_safetensors

from rl_oodkit.core import store
from rl_oodkit.core.errors import DamagedFileError, ForeignFileError, ParameterError, StoreError
from rl_oodkit.core.files import read_verified, write_verified
from rl_oodkit.core.formats import (
    arrays_from_bytes,
    arrays_to_bytes,
    frame_from_bytes,
    frame_to_bytes,
    tensors_from_bytes,
    tensors_to_bytes,
)

DTYPES = ["<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1"]
ARRAYS = st.sampled_from(DTYPES).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)))
NAMES = st.text("abcxyz_.0", min_size=1, max_size=6)


def same(a, b) -> bool:
    """Compare dtype, shape and bits."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(st.dictionaries(NAMES, ARRAYS, max_size=4))
def test_arrays_come_back_bit_for_bit(arrays):
    """Whatever the shape, NaN payloads included."""
    data = arrays_to_bytes(arrays)
    back = arrays_from_bytes(data)
    assert list(back) == list(arrays) and all(same(back[k], v) for k, v in arrays.items())
    assert arrays_to_bytes(back) == data
    with np.load(io.BytesIO(data)) as theirs:
        assert all(same(theirs[k], v) for k, v in arrays.items())


@given(st.dictionaries(NAMES, ARRAYS, max_size=4), st.dictionaries(NAMES, st.text(max_size=5), max_size=4))
def test_tensors_come_back_bit_for_bit(tensors, metadata):
    """In any memory layout, and the library reads the same."""
    data = tensors_to_bytes({k: v.T for k, v in tensors.items()}, metadata)
    back, told = tensors_from_bytes(data)
    assert told == metadata and all(same(back[k], v.T) for k, v in tensors.items())
    theirs = load_safetensors(data)
    assert set(theirs) == set(tensors) and all(same(theirs[k], v.T) for k, v in tensors.items())
    assert tensors_to_bytes(dict(reversed(back.items())), dict(reversed(told.items()))) == data


@settings(max_examples=30)
@given(
    st.lists(st.floats(allow_nan=True), min_size=0, max_size=5),
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=5, max_size=5),
)
def test_tables_come_back_equal_and_with_the_same_bytes(numbers, words):
    """Columns keep their types; a second passage changes nothing."""
    n = len(numbers)
    frame = pd.DataFrame(
        {"x": np.array(numbers, float), "n": np.arange(n, dtype="i4"), "w": pd.array(words[:n], dtype="str")}
    )
    data = frame_to_bytes(frame)
    pd.testing.assert_frame_equal(frame_from_bytes(data), frame)
    assert frame_to_bytes(frame_from_bytes(data)) == data


def test_bytes_do_not_depend_on_the_process():
    """Hash randomisation, which orders sets and some libraries' maps, leaves no trace."""
    program = (
        "import numpy as np, pandas as pd, hashlib; from rl_oodkit.core.formats import *;"
        "a = {'w': np.arange(6.).reshape(2, 3), 'b': np.ones(3)};"
        "f = pd.DataFrame({'x': [1., float('nan')], 'w': ['a', 'b']});"
        "d = arrays_to_bytes(a) + tensors_to_bytes(a, {k: k for k in 'abcdefgh'}) + frame_to_bytes(f);"
        "print(hashlib.sha256(d).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": str(s)}
        ).stdout
        for s in (0, 1)
    }
    assert len(digests) == 1 and len(digests.pop()) == 65


@pytest.mark.parametrize("bad", [np.array([None]), np.array([(1, None)], dtype=[("a", "i4"), ("b", "O")])])
def test_objects_are_never_written(bad, tmp_path):
    """An object array would be a pickle."""
    with pytest.raises(ParameterError):
        store.save_arrays(tmp_path / "x.npz", x=bad)
    with pytest.raises(ParameterError):
        store.save_tensors(tmp_path / "x", {"x": bad}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_table_with_mixed_columns_is_refused(tmp_path):
    """At the border, and nothing is written."""
    with pytest.raises(ParameterError):
        store.save_frame(tmp_path / "x.parquet", pd.DataFrame({"x": [1, "a", None, {}]}))
    assert list(tmp_path.iterdir()) == []


def test_the_sidecar_is_what_sha256sum_reads(tmp_path):
    """The folder can be checked without this package."""
    store.save_json(tmp_path / "a.json", {"x": 1})
    store.save_frame(tmp_path / "b.parquet", pd.DataFrame({"x": [1]}))
    for name in ("a.json", "b.parquet"):
        done = subprocess.run(["sha256sum", "-c", f"{name}.sha256"], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == f"{name}: OK\n"


def test_absent_foreign_and_damaged_are_told_apart(tmp_path):
    """Three errors for three causes."""
    path = tmp_path / "a.json"
    with pytest.raises(StoreError) as absent:
        store.load_json(path)
    assert type(absent.value) is StoreError and absent.value.errno == 2
    path.write_text("{}")
    with pytest.raises(ForeignFileError):
        store.load_json(path)
    assert store.load_json(path, verify=False) == {}
    store.save_json(path, {"x": 1})
    path.write_text("{}")
    with pytest.raises(DamagedFileError):
        store.load_json(path)
    store.save_json(path, {"x": 2})
    assert store.load_json(path) == {"x": 2}


def test_an_older_version_is_not_accepted_after_the_swap(tmp_path):
    """The sidecar lists the old digest during the swap only."""
    path = tmp_path / "a"
    write_verified(path, b"old")
    write_verified(path, b"new")
    path.write_bytes(b"old")
    with pytest.raises(DamagedFileError):
        read_verified(path)


def test_a_damaged_version_is_not_legitimised_by_the_next_save(tmp_path, monkeypatch):
    """If the save dies between sidecar and payload, the damaged content is still called damaged."""
    path = tmp_path / "a"
    write_verified(path, b"old")
    path.write_bytes(b"damaged")
    real = os.replace

    def die(src, dst):
        """Die at the payload's rename."""
        if str(dst) == str(path):
            raise KeyboardInterrupt
        real(src, dst)

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        write_verified(path, b"new")
    with pytest.raises(DamagedFileError):
        read_verified(path)


@pytest.mark.parametrize(
    "line", ["", "abc", "0" * 64 + "  b\n", "0" * 64 + " a\n", "0" * 64 + "  a", "0" * 64 + "  a\nx\n"]
)
def test_a_sidecar_that_is_not_exact_is_damage(tmp_path, line):
    """Every byte of a sidecar counts."""
    write_verified(tmp_path / "a", b"x")
    (tmp_path / "a.sha256").write_text(line)
    with pytest.raises(DamagedFileError):
        read_verified(tmp_path / "a")


def test_writers_of_one_file_do_not_mix(tmp_path):
    """Many threads save whole versions; what is there at the end is one of them."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.write_atomic(tmp_path / "a", bytes([i]) * 10_000), range(40)))
    content = (tmp_path / "a").read_bytes()
    assert len(set(content)) == 1 and len(content) == 10_000
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../settings.ini", "checkpoints/../../settings.ini", "nothing"])
def test_resources_stay_inside(name):
    """No name leads out of what is shipped."""
    with pytest.raises(StoreError):
        store.resource(name)


def test_the_clone_is_found():
    """The tests themselves run from it."""
    assert (store.clone_root() / "settings.ini").is_file()


def test_an_archive_of_somebody_else_with_plain_arrays_is_read(tmp_path):
    """`numpy.savez` writes what we read; its compressed form is refused."""
    plain, packed = io.BytesIO(), io.BytesIO()
    np.savez(plain, x=np.ones(3))
    np.savez_compressed(packed, x=np.ones(3))
    assert arrays_from_bytes(plain.getvalue())["x"].tolist() == [1, 1, 1]
    with pytest.raises(ForeignFileError):
        arrays_from_bytes(packed.getvalue())
    assert zipfile.ZipFile(plain).namelist() == ["x.npy"]
