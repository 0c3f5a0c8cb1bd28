"""Learners of continuous actions: the actor is the learner's own policy, statistics included, on its own plant only."""

import numpy as np
import pytest

from rl_oodkit.core.errors import CheckpointError, DamagedFileError, ForeignFileError, ParameterError, UnknownIdError
from rl_oodkit.core.registry import entry, make
from rl_oodkit.core.spec import content_hash, from_dict, to_dict
from rl_oodkit.core.store import save_json
from rl_oodkit.oracles.baselines import ZeroPolicy
from rl_oodkit.oracles.rollouts import ForeignFixtureError
from rl_oodkit.oracles.toys import small_fixture
from rl_oodkit.training.actor import Actor, Frame, actor_of, load_actor, load_actor_card, save_actor, trained_policy
from rl_oodkit.training.continuous import load_curve, train
from rl_oodkit.training.judging import judge
from rl_oodkit.training.learner import Task, evaluation_seeds, head_starts, make_learner, task_of, training_seed
from rl_oodkit.training.recipes import A2CRecipe, DDPGRecipe, PPORecipe, SACRecipe, TD3Recipe
from rl_oodkit.training.settings import ALGORITHMS, preset

pytest.importorskip("stable_baselines3")

ON = {"worlds": 4, "hidden": (8,), "n_steps": 8}
OFF = {"worlds": 4, "hidden": (8,), "warmup": 16, "batch_size": 16, "buffer_size": 400, "updates": 1}
TINY = {
    "ppo": PPORecipe(batch_size=32, epochs=2, **ON),
    "a2c": A2CRecipe(**ON),
    "sac": SACRecipe(**OFF),
    "td3": TD3Recipe(**OFF),
    "ddpg": DDPGRecipe(**OFF),
}
FIXTURE = small_fixture()
STATES = np.random.default_rng(0).normal(size=(2, 40))


def learned(algorithm, **changes):
    """Return a learner after a few dozen steps."""
    recipe = from_dict(type(TINY[algorithm]), to_dict(TINY[algorithm]) | changes)
    model = make_learner(recipe, task_of(fixture=FIXTURE), 0)
    model.learn(96)
    return model


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("plain", [False, True], ids=["unit box, normalised", "raw, as is"])
def test_the_actor_is_the_learners_policy(algorithm, plain):
    """The same actions as the library's own prediction, in units of the plant, to single precision."""
    model = learned(algorithm, unit_actions=not plain, normalise_observations=not plain)
    normal = model.get_vec_normalize_env()
    seen = normal.normalize_obs(STATES.T.astype(np.float32))
    theirs = model.predict(seen, deterministic=True)[0].T * (1 if plain else FIXTURE.problem.action_high[:, None])
    np.testing.assert_allclose(actor_of(model).act(STATES), theirs, atol=2e-5)


@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_an_action_does_not_know_its_company(algorithm):
    """The same bits for one state and for forty."""
    actor = actor_of(learned(algorithm))
    alone = np.hstack([actor.act(STATES[:, i : i + 1]) for i in range(40)])
    np.testing.assert_array_equal(alone, actor.act(STATES))


def test_the_saved_statistics_are_used_at_evaluation(tmp_path):
    """The policy on disk acts by the statistics of its training; without them it acts, and loses, otherwise."""
    model = learned("ppo")
    normal = model.get_vec_normalize_env()
    policy = trained_policy(actor_of(model), FIXTURE, "ppo")
    again = load_actor(save_actor(tmp_path, policy, {}), FIXTURE)
    np.testing.assert_array_equal(again.actor.frame.mean, normal.obs_rms.mean)
    np.testing.assert_array_equal(again.actor.frame.scale, np.sqrt(normal.obs_rms.var + normal.epsilon))
    np.testing.assert_array_equal(again.act(STATES), policy.act(STATES))
    frame = policy.actor.frame
    bare = Frame(np.zeros(2), np.ones(2), frame.clip, frame.low, frame.high, frame.output, frame.hidden)
    weights = {k: v for k, v in policy.actor.tensors.items() if k[0] in "wb"}
    fresh = trained_policy(Actor(weights, bare), FIXTURE, "fresh statistics")
    assert judge(FIXTURE, fresh, "curve", 8).gap_mean != judge(FIXTURE, again, "curve", 8).gap_mean


def test_a_policy_knows_its_plant(tmp_path):
    """Loading for, or judging on, another fixture is a named error; so are damaged and foreign files."""
    policy = trained_policy(actor_of(learned("td3")), FIXTURE, "td3")
    path, other = save_actor(tmp_path, policy, {}), small_fixture(noise_std=0.051)
    with pytest.raises(ForeignFixtureError):
        load_actor(path, other)
    with pytest.raises(ForeignFixtureError):
        judge(other, policy, "curve", 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedFileError):
        load_actor(path, FIXTURE)
    save_json(path.with_suffix(".json"), {"format": "something else"})
    with pytest.raises(ForeignFileError):
        load_actor_card(path)
    with pytest.raises(ParameterError):
        save_actor(tmp_path, trained_policy(policy.actor, FIXTURE, "a/b"), {})


@pytest.mark.parametrize(
    "change",
    [
        {"scale": np.zeros(2)},
        {"mean": np.zeros(3)},
        {"mean": np.array([0.0, np.nan])},
        {"low": np.ones(1)},
        {"output": "wide"},
        {"hidden": "sine"},
        {"clip": 0.0},
    ],
)
def test_frames_that_make_no_sense(change):
    """Each is refused when it is made."""
    good = {"mean": np.zeros(2), "scale": np.ones(2), "clip": 10.0, "low": -np.ones(1), "high": np.ones(1)}
    with pytest.raises(CheckpointError):
        Frame(**good | change)


def test_training_and_judging_must_share_the_plant():
    """Worlds of another digest are refused before a step is made."""
    other = Task("rl_oodkit/Arm-v1", {"links": 2}, task_of("rl_oodkit/Arm-v1", {"links": 1}).fixture)
    with pytest.raises(ForeignFixtureError, match="training would run on"):
        make_learner(TINY["ppo"], other, 0)


def test_seeds_of_training_and_judging_cannot_meet():
    """Worlds of any training lie below all worlds of evaluations; curve and table share none."""
    assert max(training_seed(s) for s in range(5000)) + 4096 < evaluation_seeds("curve", 1)[0]
    assert not set(evaluation_seeds("curve", 10**6)) & set(evaluation_seeds("test", 100))
    model = make_learner(TINY["a2c"], task_of(fixture=FIXTURE), 3)
    model.env.reset()
    from rl_oodkit.envs.core import core_of

    assert core_of(model.env.unwrapped).episodes == [(training_seed(3) + i, 0) for i in range(4)]


def test_recipes_are_registered_and_describe_themselves():
    """By id with parameters, with the trainer named, and through plain data to an equal recipe."""
    for name in ALGORITHMS:
        recipe = make("policy", name, total_steps=12_345)
        assert recipe.total_steps == 12_345 and entry("policy", name).tags["continuous"]
        assert entry("policy", name).tags["trainer"] == "rl_oodkit.training.continuous:train"
        assert content_hash(from_dict(type(recipe), to_dict(recipe))) == content_hash(recipe)


@pytest.mark.parametrize("name", ["native", "default", "arm", "vehicle", "quadrotor"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_named_settings_are_accepted_by_the_library(algorithm, name):
    """Each makes a learner on the small plant, with the discount of the plant."""
    small = {} if algorithm in ("ppo", "a2c") else {"buffer_size": 1000}
    model = make_learner(preset(algorithm, name, **small), task_of(fixture=FIXTURE), 0)
    assert model.gamma == FIXTURE.problem.discount
    assert (model.get_vec_normalize_env() is None) == (name in ("default", "arm", "quadrotor"))


@pytest.mark.parametrize(
    ("algorithm", "change"),
    [
        ("ppo", {"batch_size": 1000}),
        ("ppo", {"epochs": 0}),
        ("ppo", {"clip_range": -0.1}),
        ("ppo", {"discount": 1.0}),
        ("ppo", {"exploration_std": 0.0}),
        ("a2c", {"hidden": ()}),
        ("a2c", {"hidden": (0,)}),
        ("a2c", {"activation": "sine"}),
        ("sac", {"learning_rate": float("nan")}),
        ("sac", {"warmup": -1}),
        ("td3", {"smoothing": 2.0}),
        ("td3", {"return_steps": 0}),
        ("ddpg", {"worlds": 1.5}),
        ("ddpg", {"total_steps": 0}),
    ],
)
def test_recipes_that_cannot_be_followed(algorithm, change):
    """Each impossible number is refused when the recipe is written down."""
    with pytest.raises(ParameterError):
        preset(algorithm, **change)


def test_settings_that_do_not_exist():
    """Misspelt names are answered with the known ones."""
    with pytest.raises(UnknownIdError, match="a2c"):
        preset("acc")
    with pytest.raises(UnknownIdError, match="native"):
        preset("a2c", "throughput")
    with pytest.raises(ParameterError, match="n_epochs"):
        preset("ppo", n_epochs=3)


def test_clocks_are_spread_and_episodes_shortened():
    """First episodes end one after another, later ones after the effective horizon; undone, nothing is touched."""
    heads = head_starts(A2CRecipe(worlds=10), FIXTURE.problem)
    assert (FIXTURE.problem.horizon - heads[1] == 20).all() and len(set(heads[0])) == 10
    assert not head_starts(A2CRecipe(worlds=3, restart=False, stagger=False), FIXTURE.problem).any()


def test_a_learner_learns(tmp_path):
    """A few seconds of PPO leave a tenth of what doing nothing loses; the curve begins before the first step."""
    card = train(PPORecipe(total_steps=60_000), seed=1, folder=tmp_path, fixture=FIXTURE, episodes=64, progress=False)
    idle = judge(FIXTURE, ZeroPolicy(1), "test", 64)
    curve = load_curve(tmp_path)
    assert card["loss"]["gap"] < 0.1 * idle.gap_mean and card["fixture_digest"] == FIXTURE.digest
    assert curve["step"].iloc[0] == 0 and curve["gap"].iloc[-1] < curve["gap"].iloc[0]
    assert curve["step"].is_monotonic_increasing and curve["seconds"].is_monotonic_increasing


def test_the_command_line_trains_on_a_plant(tmp_path):
    """One line with the exact loss; a learner without a plant, and a plant for a learner with its own, are refused."""
    from typer.testing import CliRunner

    from rl_oodkit.cli import app

    words = ["train", "a2c", "--env", "rl_oodkit/Arm-v1", "--param", "links=1", "--steps", "4096"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert done.exit_code == 0 and "exact loss" in done.stdout and "doing nothing loses" in done.stdout
    assert CliRunner().invoke(app, ["train", "a2c"]).exit_code == 1
    assert CliRunner().invoke(app, ["train", "dqn-lunarlander", "--env", "rl_oodkit/Arm-v1"]).exit_code == 1


def test_tensorboard_shows_the_exact_losses(tmp_path):
    """Every figure of the curve, at every point."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from rl_oodkit.training.settings import preset

    tiny = preset(
        "ppo", "sme", worlds=8, n_steps=8, batch_size=64, total_steps=128, evaluate_every=64, curve_episodes=2
    )
    knobs = {"states": 2, "actions": 1}
    folder = tmp_path / "board"
    train(tiny, "rl_oodkit/SME-v1", knobs, folder=tmp_path, episodes=2, progress=False, tensorboard=folder)
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    assert {"exact/gap", "exact/instantaneous_regret", "exact/action_error"} <= set(found.Tags()["scalars"])
    points = load_curve(tmp_path).set_index("step").instantaneous_regret
    for event in found.Scalars("exact/instantaneous_regret"):
        assert abs(event.value - points.iloc[:-1].to_numpy()).min() < 1e-6 or abs(event.value - points.iloc[-1]) < 1e-6
