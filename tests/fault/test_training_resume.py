"""A training can be killed anywhere: it goes on from its last state, and never from another training's."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rl_oodkit.core.errors import CheckpointError, DamagedFileError, ForeignFileError, ParameterError, RunInterrupted
from rl_oodkit.core.store import load_frame, load_json, save_json
from rl_oodkit.training import sb3, state
from rl_oodkit.training.checkpoint import load_card, load_policy

pytest.importorskip("stable_baselines3")

TINY = sb3.DQNRecipe(
    name="tiny",
    env_id="CartPole-v1",
    total_steps=240,
    firing_cost=0.0,
    hidden=(8,),
    batch_size=16,
    buffer_size=200,
    evaluate_every=40,
    select_after=80,
    selection_episodes=2,
    card_episodes=2,
)
LANDER = {
    "total_steps": 2_000,
    "hidden": [16],
    "evaluate_every": 200,
    "select_after": 400,
    "selection_episodes": 2,
    "card_episodes": 3,
}
SCRIPT = """
import json, sys
from rl_oodkit.core.spec import from_dict, to_dict
from rl_oodkit.training.sb3 import DQNRecipe, train_dqn
recipe = from_dict(DQNRecipe, to_dict(DQNRecipe()) | json.loads(sys.argv[2]))
train_dqn(recipe, 5, sys.argv[1], progress=False)
"""


def lander_recipe():
    """Return the recipe that the subprocess trains."""
    return sb3.DQNRecipe(**LANDER | {"hidden": (16,)})


def kill_at(folder, step: int) -> int:
    """Train in another process, SIGKILL it when a state of at least `step` is saved, and return that state's step."""
    import json

    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), json.dumps(LANDER)], env=os.environ)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
        saved = state.load_state(folder) if (folder / "state.json.sha256").exists() else None
        if saved is not None and saved[1]["num_timesteps"] >= step:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    return state.load_state(folder)[1]["num_timesteps"]


def test_sigkill_loses_at_most_one_interval(tmp_path, monkeypatch):
    """LunarLander, killed from outside: the state is complete, and the rest is trained once, no more and no less."""
    saved = kill_at(tmp_path, 800)
    assert 800 <= saved < 2_000 and not (tmp_path / "dqn-lunarlander.json").exists()
    began, learn = [], sb3._learn

    def noted(run, progress):
        """Note where the training begins."""
        began.append(run.model.num_timesteps)
        learn(run, progress)

    monkeypatch.setattr(sb3, "_learn", noted)
    card = sb3.train_dqn(lander_recipe(), 5, tmp_path, progress=False)
    assert began == [saved]
    assert card["evaluations"]["step"] == list(range(400, 2_001, 200))
    assert load_frame(tmp_path / "evaluations.parquet")["step"].tolist() == card["evaluations"]["step"]
    assert load_policy(tmp_path / "dqn-lunarlander.json").sha256 == card["policy_sha256"]
    assert card["returns"]["n"] == 3 and card["training_seed"] == 5


def stop_at(monkeypatch, step, error):
    """Let the callback raise after the given step has been dealt with."""
    original = sb3._on_step

    def on_step(run, bar):
        """Do what is due, then stop."""
        original(run, bar)
        if run.model.num_timesteps == step:
            raise error
        return True

    monkeypatch.setattr(sb3, "_on_step", on_step)


class Stop(Exception):
    """Stand for any failure."""


def interrupted(tmp_path, monkeypatch, step=140, error=Stop):
    """Leave a half-finished tiny training in a folder."""
    with monkeypatch.context() as patch, pytest.raises(Exception):  # noqa: B017
        stop_at(patch, step, error)
        sb3.train_dqn(TINY, 1, tmp_path, progress=False)


def test_stopping_at_any_step_gives_one_complete_log(tmp_path, monkeypatch):
    """Whatever the step, before the first state, at a state, or between two: the log is the same list of steps."""
    for step in (1, 39, 40, 41, 140, 240):
        folder = tmp_path / str(step)
        interrupted(folder, monkeypatch, step)
        card = sb3.train_dqn(TINY, 1, folder, progress=False)
        assert card["evaluations"]["step"] == [80, 120, 160, 200, 240], step


def test_an_uninterrupted_training_is_reproducible(tmp_path):
    """Same recipe, same seed, one thread: the same weights; another seed: others."""
    a, b, c = (sb3.train_dqn(TINY, s, tmp_path / n, progress=False) for s, n in ((1, "a"), (1, "b"), (2, "c")))
    assert a["policy_sha256"] == b["policy_sha256"] != c["policy_sha256"]
    assert a["evaluations"] == b["evaluations"]


def test_ctrl_c_says_how_to_go_on(tmp_path, monkeypatch):
    """The error names the saved steps, and the next call finishes the training."""
    with monkeypatch.context() as patch, pytest.raises(RunInterrupted, match="120 of 240 steps are saved"):
        stop_at(patch, 140, KeyboardInterrupt)
        sb3.train_dqn(TINY, 1, tmp_path, progress=False)
    assert sb3.train_dqn(TINY, 1, tmp_path, progress=False)["evaluations"]["step"][-1] == 240


def test_a_kill_during_a_save_leaves_the_state_before(tmp_path, monkeypatch):
    """Between any two files of a save the index still points at a complete older set."""
    for victim in ("save_tensors", "save_arrays", "save_json"):
        folder = tmp_path / victim
        original, calls = getattr(state, victim), []

        def fail_at_third(*args, original=original, calls=calls, **kwargs):
            """Fail at the third save, after writing what comes before this file."""
            calls.append(1)
            if len(calls) == 3:
                raise Stop
            return original(*args, **kwargs)

        with monkeypatch.context() as patch, pytest.raises(Stop):
            patch.setattr(state, victim, fail_at_third)
            sb3.train_dqn(TINY, 1, folder, progress=False)
        assert state.load_state(folder)[1]["num_timesteps"] == 80
        assert sb3.train_dqn(TINY, 1, folder, progress=False)["evaluations"]["step"][0] == 80


def test_another_training_in_the_folder_is_refused(tmp_path, monkeypatch):
    """Another seed or recipe is an error that names the difference, before and after the training is finished."""
    interrupted(tmp_path, monkeypatch)
    other = sb3.DQNRecipe(**{**TINY.__dict__, "discount": 0.9})
    for finished in (False, True):
        with pytest.raises(CheckpointError, match="differs in seed"):
            sb3.train_dqn(TINY, 2, tmp_path, progress=False)
        with pytest.raises(CheckpointError, match="differs in discount"):
            sb3.train_dqn(other, 1, tmp_path, progress=False)
        if not finished:
            sb3.train_dqn(TINY, 1, tmp_path, progress=False)
    assert sb3.train_dqn(TINY, 2, tmp_path, resume=False, progress=False)["training_seed"] == 2


def test_a_finished_training_is_not_repeated(tmp_path, monkeypatch):
    """The second call answers from the card; a damaged checkpoint is an error, not an answer."""
    card = sb3.train_dqn(TINY, 1, tmp_path, progress=False)
    monkeypatch.setattr(sb3, "_learn", lambda *_: pytest.fail("trained again"))
    assert sb3.train_dqn(TINY, 1, tmp_path, progress=False) == card == load_card(tmp_path / "tiny.json")
    weights = tmp_path / "tiny.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(DamagedFileError):
        sb3.train_dqn(TINY, 1, tmp_path, progress=False)


def test_damaged_and_foreign_states_are_refused(tmp_path, monkeypatch):
    """A flipped bit in any file of the state, and an index that is not ours, stop the training with a name."""
    interrupted(tmp_path, monkeypatch)
    for path in sorted(tmp_path.glob("state*")):
        if path.suffix == ".sha256":
            continue
        whole = path.read_bytes()
        path.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])
        with pytest.raises(DamagedFileError):
            sb3.train_dqn(TINY, 1, tmp_path, progress=False)
        path.write_bytes(whole)
    index = load_json(tmp_path / "state.json")
    save_json(tmp_path / "state.json", {"format": "something else"})
    with pytest.raises(ForeignFileError):
        sb3.train_dqn(TINY, 1, tmp_path, progress=False)
    save_json(tmp_path / "state.json", index)
    sb3.train_dqn(TINY, 1, tmp_path, progress=False)


def test_a_restored_learner_is_the_saved_one(tmp_path, monkeypatch):
    """Networks, moments, memory and counters, to the bit; the interruption is marked in the memory."""
    interrupted(tmp_path, monkeypatch)
    facts, counters, tensors, replay = state.load_state(tmp_path)
    run = sb3._begin(TINY, 1, tmp_path, resume=True)
    for name, value in state.model_tensors(run.model).items():
        np.testing.assert_array_equal(value, tensors[name], err_msg=name)
    back = state.replay_arrays(run.model)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "position"):
        np.testing.assert_array_equal(back[name], replay[name], err_msg=name)
    last = replay["position"][0] - 1
    assert back["timeouts"][last, 0] == 1 - back["dones"][last, 0]
    assert run.model.num_timesteps == counters["num_timesteps"] == 120
    assert any(k.startswith("adam.") for k in tensors) and facts["log"][-1]["step"] == 120
    buffer = run.model.replay_buffer.__class__
    assert buffer.__name__ == "NStepReplayBuffer"


@pytest.mark.parametrize("seed", [-1, 100_000, 1.5, "1", None, True])
def test_seeds_outside_the_training_range(tmp_path, seed):
    """A training seed is an integer of the range set aside for training."""
    with pytest.raises(ParameterError):
        sb3.train_dqn(TINY, seed, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"total_steps": 0},
        {"batch_size": -1},
        {"discount": 1.0},
        {"discount": float("nan")},
        {"n_steps": 0},
        {"exploration_final": 2.0},
        {"evaluate_every": 20_000},
        {"select_after": 10**9},
        {"buffer_size": 1.5},
        {"selection_episodes": 1},
        {"card_episodes": 1},
        {"hidden": ()},
        {"hidden": (0,)},
        {"learning_rate": -1.0},
        {"firing_cost": float("inf")},
        {"max_truncation": 1.5},
        {"final_rate": float("nan")},
    ],
)
def test_recipes_that_cannot_be_followed(change):
    """Each impossible number is refused when the recipe is written down."""
    with pytest.raises(ParameterError):
        sb3.DQNRecipe(**change)
