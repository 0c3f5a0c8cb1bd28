"""A training on a certified plant that is stopped and called again is, bit for bit, the one that was not stopped."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rl_oodkit.core.errors import CheckpointError, DamagedFileError, RunInterrupted
from rl_oodkit.core.store import load_json
from rl_oodkit.envs.sme import sme
from rl_oodkit.envs.sme_knobs import SMESpec
from rl_oodkit.oracles.toys import small_fixture
from rl_oodkit.training import continuous
from rl_oodkit.training.actor import load_actor
from rl_oodkit.training.bundle import load_bundle
from rl_oodkit.training.recipes import A2CRecipe, DDPGRecipe, PPORecipe, SACRecipe, TD3Recipe

pytest.importorskip("stable_baselines3")

SMALL = {"worlds": 4, "hidden": (8,), "total_steps": 320, "evaluate_every": 96, "curve_episodes": 2}
ON = SMALL | {"n_steps": 8}
OFF = SMALL | {"warmup": 120, "batch_size": 16, "buffer_size": 200, "updates": 1}
RECIPES = [
    PPORecipe(batch_size=16, epochs=2, **ON),
    A2CRecipe(**ON),
    SACRecipe(**OFF),
    TD3Recipe(**OFF),
    DDPGRecipe(**OFF),
]
FIXTURE = small_fixture()
SAID = {"seed": 3, "fixture": FIXTURE, "episodes": 4, "progress": False}


def stopped(recipe, folder, monkeypatch, at=2, said=SAID):
    """Train until the measurement number `at`, and be hit there."""
    true, calls = continuous.judge, []

    def judge(*args):
        calls.append(args)
        if len(calls) > at:
            raise KeyboardInterrupt
        return true(*args)

    with monkeypatch.context() as patch:
        patch.setattr(continuous, "judge", judge)
        with pytest.raises(RunInterrupted, match="are saved"):
            continuous.train(recipe, folder=folder, **said)


@pytest.mark.parametrize("recipe", [RECIPES[0], RECIPES[3]], ids=lambda r: r.algorithm)
def test_two_parts_equal_the_whole_where_episodes_end_early(recipe, tmp_path, monkeypatch):
    """In a synthetic world with noise, delayed payment and kills; the critic and all kept points are equal too."""
    knobs = {"states": 2, "actions": 2, "reward_every": 5, "kill_threshold": 0.2, "phase_noise": 0.3, "horizon": 20}
    said = SAID | {"fixture": sme(SMESpec(**knobs)), "keep_points": True}
    whole = continuous.train(recipe, folder=tmp_path / "whole", **said)
    stopped(recipe, tmp_path / "parts", monkeypatch, said=said)
    parts = continuous.train(recipe, folder=tmp_path / "parts", **said)
    assert parts["policy_sha256"] == whole["policy_sha256"]
    names = [
        sorted(p.name for p in (tmp_path / x / continuous.POINTS).glob("*.safetensors")) for x in ("whole", "parts")
    ]
    assert names[0] == names[1] and len(names[0]) == 5
    for name in [f"{continuous.POINTS}/{n}" for n in names[0]] + [f"{recipe.algorithm}-critic.safetensors"]:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: r.algorithm)
def test_two_parts_equal_the_whole(recipe, tmp_path, monkeypatch):
    """All five learners: weights, statistics and curve of k + (n - k) steps are those of n, to the bit."""
    whole = continuous.train(recipe, folder=tmp_path / "whole", **SAID)
    stopped(recipe, tmp_path / "parts", monkeypatch)
    step = load_json(tmp_path / "parts" / "bundle.json")["step"]
    assert 0 < step < 320
    np.random.rand(7)  # noqa: NPY002 - the generator that the library uses is somewhere else by then
    parts = continuous.train(recipe, folder=tmp_path / "parts", **SAID)
    assert parts["policy_sha256"] == whole["policy_sha256"]
    a, b = (continuous.load_curve(tmp_path / name).drop(columns="seconds") for name in ("whole", "parts"))
    assert a.equals(b) and not list((tmp_path / "parts").glob("bundle*"))


def test_another_training_is_refused(tmp_path, monkeypatch):
    """Seed, recipe and plant are compared before anything is restored; resume=False begins anew."""
    recipe = RECIPES[1]
    stopped(recipe, tmp_path, monkeypatch)
    for change in ({"seed": 4}, {"fixture": small_fixture(tau=0.2)}):
        with pytest.raises(CheckpointError, match="differs in"):
            continuous.train(recipe, folder=tmp_path, **SAID | change)
    with pytest.raises(CheckpointError, match="recipe.learning_rate"):
        continuous.train(A2CRecipe(learning_rate=2e-3, **ON), folder=tmp_path, **SAID)
    assert continuous.train(recipe, folder=tmp_path, resume=False, **SAID | {"seed": 4})["seed"] == 4


def test_damaged_bundles_are_refused(tmp_path, monkeypatch):
    """A flipped bit in either file of the bundle stops the training with a name."""
    stopped(RECIPES[1], tmp_path, monkeypatch)
    for path in sorted(tmp_path.glob("bundle*")):
        if path.suffix != ".sha256":
            whole = path.read_bytes()
            path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
            with pytest.raises(DamagedFileError):
                continuous.train(RECIPES[1], folder=tmp_path, **SAID)
            path.write_bytes(whole)
    continuous.train(RECIPES[1], folder=tmp_path, **SAID)


def test_a_finished_training_is_not_repeated(tmp_path, monkeypatch):
    """The second call answers from the card; a damaged policy is an error, not an answer."""
    card = continuous.train(RECIPES[1], folder=tmp_path, **SAID)
    monkeypatch.setattr(continuous, "_learn", lambda *_: pytest.fail("trained again"))
    assert continuous.train(RECIPES[1], folder=tmp_path, **SAID) == card
    weights = tmp_path / "a2c.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(DamagedFileError):
        continuous.train(RECIPES[1], folder=tmp_path, **SAID)


SCRIPT = """
import sys
from rl_oodkit.training.continuous import train
from rl_oodkit.training.recipes import A2CRecipe
recipe = A2CRecipe(worlds=8, n_steps=8, hidden=(8,), total_steps=6400, evaluate_every=640, curve_episodes=8)
train(recipe, "rl_oodkit/Arm-v1", {"links": 1}, 2, folder=sys.argv[1], episodes=4, progress=False)
"""


def test_sigkill(tmp_path):
    """Killed from outside in the middle and called again, on a registered plant: the same policy."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(killed)], env=os.environ)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
        bundle = load_bundle(killed) if (killed / "bundle.json.sha256").exists() else None
        if bundle is not None and bundle[1]["counters:num_timesteps"] >= 1280:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "a2c.json").exists()
    for folder in (killed, whole):
        subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], env=os.environ, check=True)
    from rl_oodkit.oracles.fixture import of

    fixture = of("rl_oodkit/Arm-v1", links=1)
    assert len({load_actor(folder / "a2c.json", fixture).actor.sha256 for folder in (killed, whole)}) == 1
