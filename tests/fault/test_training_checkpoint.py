"""Damaged, foreign and hostile checkpoints: nothing is executed, nothing wrong is returned."""

import io
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rl_oodkit.core.errors import CheckpointError, DamagedFileError, ForeignFileError, StoreError
from rl_oodkit.core.store import save_json, save_tensors, sha256_file
from rl_oodkit.training.checkpoint import load_card, load_policy, save_checkpoint
from rl_oodkit.training.policy import QPolicy


@pytest.fixture
def pair(tmp_path):
    """Return the weights' file of a small checkpoint."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (3, 4), "b0": (4,), "w1": (4, 2), "b1": (2,)}
    policy = QPolicy({k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()})
    return save_checkpoint(tmp_path, "small", policy, {"env_id": "Toy-v0"})


def sign(path: Path) -> None:
    """Write a sidecar for whatever a file holds, as an attacker or a careless script could."""
    path.with_name(path.name + ".sha256").write_text(f"{sha256_file(path)}  {path.name}\n")


@pytest.mark.parametrize("extension", [".safetensors", ".json"])
def test_every_flipped_bit_is_noticed(pair, extension):
    """200 single bit flips and 50 truncations of either file: never a policy, always a named error."""
    path = pair.with_suffix(extension)
    whole, rng = path.read_bytes(), np.random.default_rng(1)
    for bit in rng.choice(len(whole) * 8, 200, replace=False):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(data)
        with pytest.raises(DamagedFileError):
            load_policy(pair)
    for cut in rng.choice(len(whole), 50, replace=False):
        path.write_bytes(whole[:cut])
        with pytest.raises(DamagedFileError):
            load_policy(pair)
    path.write_bytes(whole)
    load_policy(pair)


def test_a_card_of_other_weights(pair):
    """New weights with a valid digest beside an old card are refused: the figures would be wrong."""
    other = {k: v * 2 for k, v in load_policy(pair).weights.items()}
    save_tensors(pair, other, {"format": "rl_oodkit/checkpoint/1", "name": "small"})
    with pytest.raises(CheckpointError, match="other weights"):
        load_policy(pair)


def test_missing_halves(pair):
    """One file of the two is not a checkpoint."""
    card = pair.with_suffix(".json")
    kept = card.read_bytes()
    card.unlink()
    with pytest.raises(StoreError):
        load_policy(pair)
    card.write_bytes(kept)
    pair.unlink()
    with pytest.raises(StoreError):
        load_policy(pair)
    assert load_card(card)["env_id"] == "Toy-v0"


def test_files_of_another_format(pair):
    """Readable tensors and readable JSON that are not a checkpoint are foreign."""
    save_json(pair.with_suffix(".json"), {"format": "something else"})
    with pytest.raises(ForeignFileError):
        load_policy(pair)
    save_json(pair.with_suffix(".json"), ["a list"])
    with pytest.raises(ForeignFileError):
        load_card(pair)


class Trap:
    """Leave a mark when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("form", ["pickle", "zip of pickle", "npz of objects"])
def test_hostile_files_execute_nothing(pair, tmp_path, form):
    """A pickle under the checkpoint's name, with a valid digest, is foreign and stays unread."""
    mark, buffer = tmp_path / "mark", io.BytesIO()
    payload = pickle.dumps(Trap(mark))
    if form == "zip of pickle":
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("data.pkl", payload)
    elif form == "npz of objects":
        np.savez(buffer, w0=np.array([Trap(mark)], object))
    pair.write_bytes(buffer.getvalue() or payload)
    sign(pair)
    with pytest.raises(ForeignFileError):
        load_policy(pair)
    assert not mark.exists()


def test_a_moved_pair_still_loads(pair, tmp_path):
    """A checkpoint is its files, wherever they lie; both names and both kinds of path work."""
    target = tmp_path / "elsewhere"
    target.mkdir()
    for path in pair.parent.glob("small.*"):
        shutil.copy(path, target)
    digest = load_policy(pair).sha256
    assert load_policy(target / "small.json").sha256 == digest
    assert load_policy(str(target / "small.safetensors")).sha256 == digest
