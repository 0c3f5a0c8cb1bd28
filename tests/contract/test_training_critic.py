"""Critics of learners: the library's own numbers, in units of the plant's cost, for the plant of the training only."""

import numpy as np
import pytest

from rl_oodkit.core.errors import (
    CheckpointError,
    DamagedFileError,
    ForeignFileError,
    ParameterError,
    ShapeError,
    StoreError,
)
from rl_oodkit.core.spec import from_dict, to_dict
from rl_oodkit.core.store import load_json, save_json, save_tensors
from rl_oodkit.oracles.critics import audit_critic
from rl_oodkit.oracles.rollouts import ForeignFixtureError
from rl_oodkit.oracles.toys import small_fixture
from rl_oodkit.training.actor import Frame, actor_of, save_actor, trained_policy
from rl_oodkit.training.critic import (
    Critic,
    TrainedCritic,
    audit,
    critic_of,
    trained_critic,
)
from rl_oodkit.training.critic_files import load_critic, load_critic_card, save_critic
from rl_oodkit.training.learner import make_learner, task_of
from rl_oodkit.training.recipes import A2CRecipe, DDPGRecipe, PPORecipe, SACRecipe, TD3Recipe
from rl_oodkit.training.settings import ALGORITHMS

torch = pytest.importorskip("torch")
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
ALL = {"unit_actions": True, "normalise_observations": True, "normalise_rewards": True}
NONE = dict.fromkeys(ALL, False)
FIXTURE = small_fixture()
RNG = np.random.default_rng(0)
STATES, ACTIONS = 2 * RNG.normal(size=(2, 40)), RNG.uniform(-4, 4, size=(1, 40))
FRAME = Frame(np.zeros(2), np.ones(2), 10.0, -np.ones(1), np.ones(1))


def learned(algorithm, **changes):
    """Return a learner after a few dozen steps."""
    recipe = from_dict(type(TINY[algorithm]), to_dict(TINY[algorithm]) | changes)
    return make_learner(recipe, task_of(fixture=FIXTURE), 0).learn(96)


def constant(level, inputs=2, kind="value", **units):
    """Return a critic whose learner expects one return everywhere."""
    layer = (np.zeros((inputs, 1), np.float32), np.full(1, level, np.float32))
    return Critic(kind, ((layer,),), FRAME, **{"scale": 2.0, "discount": 0.95} | units)


def bound(algorithm, **changes):
    """Return the trained critic of a learner after a few dozen steps."""
    return trained_critic(critic_of(learned(algorithm, **changes)), FIXTURE, algorithm)


def estimates(critic):
    """Return what a trained critic says of states, and of actions if it judges them."""
    return critic.value(STATES) if critic.critic.kind == "value" else critic.q_value(STATES, ACTIONS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("settings", [ALL, NONE], ids=["unit box, normalised", "raw, as is"])
def test_the_critic_is_the_learners_own(algorithm, settings):
    """Costs are minus the library's returns times its scale of rewards, for actions in units of the plant."""
    model = learned(algorithm, **settings)
    normal, policy = model.get_vec_normalize_env(), model.policy
    rows = STATES.T.astype(np.float32)
    seen = torch.as_tensor(normal.normalize_obs(rows) if normal else rows)
    half = torch.as_tensor((ACTIONS / FIXTURE.problem.action_high[:, None]).T.astype(np.float32))
    with torch.no_grad():
        if algorithm in ("ppo", "a2c"):
            returns = policy.predict_values(seen)[:, 0].numpy()
        else:
            returns = torch.cat(policy.critic(seen, half), dim=1).numpy().min(axis=1)
    theirs = -(normal.unnormalize_reward(returns) if normal else returns)
    ours = estimates(trained_critic(critic_of(model), FIXTURE, algorithm))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    assert ours.dtype == np.float64 and np.ptp(ours) > 0


def test_networks_and_units_of_each_learner():
    """One network or two, the learner's discount, the bound of rewards in units of cost, the entropy for SAC alone."""
    found = {name: critic_of(learned(name, **ALL)) for name in ALGORITHMS}
    assert {k: len(c.layers) for k, c in found.items()} == {"ppo": 1, "a2c": 1, "sac": 2, "td3": 2, "ddpg": 1}
    assert all(c.discount == FIXTURE.problem.discount for c in found.values())
    assert all(c.ceiling == pytest.approx(10 * c.scale) for c in found.values())
    assert [k for k, c in found.items() if c.entropy_weight > 0] == ["sac"]


def test_extraction_is_a_snapshot():
    """A learner that learns on, and moves its scale, does not change a critic that was taken out before."""
    model = learned("td3")
    critic = trained_critic(critic_of(model), FIXTURE, "td3")
    before = estimates(critic)
    model.learn(64, reset_num_timesteps=False)
    np.testing.assert_array_equal(estimates(critic), before)
    assert critic_of(model).scale != critic.critic.scale


@pytest.mark.parametrize("algorithm", ["a2c", "sac"])
def test_an_estimate_does_not_know_its_company(algorithm):
    """The same bits for one state and for forty."""
    critic = bound(algorithm)
    if algorithm == "a2c":
        alone = [critic.value(STATES[:, i : i + 1]) for i in range(40)]
    else:
        alone = [critic.q_value(STATES[:, i : i + 1], ACTIONS[:, i : i + 1]) for i in range(40)]
    np.testing.assert_array_equal(np.concatenate(alone), estimates(critic))


def test_an_action_beyond_the_edge_is_the_action_at_the_edge():
    """The plant executes the clipped action, and the critic is asked about it."""
    critic, edge = bound("ddpg"), np.full((1, 40), FIXTURE.problem.action_high[0])
    np.testing.assert_array_equal(critic.q_value(STATES, 7 * edge), critic.q_value(STATES, edge))


def test_sign_scale_and_pessimism():
    """A return of -3 at a scale of 2 is a cost of 6; of two networks the one that expects less return decides."""
    assert constant(-3.0).value(STATES).tolist() == [6.0] * 40
    pair = constant(-1.0, 3, "action-value").layers + constant(-3.0, 3, "action-value").layers
    assert Critic("action-value", pair, FRAME, 2.0, 0.95).q(STATES, ACTIONS).tolist() == [6.0] * 40


def test_the_audit_gives_the_right_argument():
    """The marks of `audit_critic`, for a value and for an action-value, and none for another fixture's policy."""
    model = learned("td3")
    critic, policy = trained_critic(critic_of(model), FIXTURE, "td3"), trained_policy(actor_of(model), FIXTURE, "td3")
    assert audit(critic, policy, STATES) == audit_critic(FIXTURE, policy, STATES, q_value=critic.q_value)
    flat = trained_critic(constant(-1.0), FIXTURE, "flat")
    found = audit(flat, policy, STATES)
    assert found == audit_critic(FIXTURE, policy, STATES, value=flat.value)
    assert found.value.bias == pytest.approx(2 - FIXTURE.oracle.value(STATES).mean())
    other = small_fixture(authority=0.5)
    with pytest.raises(ForeignFixtureError):
        audit(trained_critic(constant(-1.0), other, "flat"), policy, STATES)
    with pytest.raises(ForeignFixtureError):
        audit(TrainedCritic(constant(-1.0), other, "flat", FIXTURE.digest), policy, STATES)


def test_remarks_tell_what_the_marks_contain():
    """Another discount, the entropy and the bound of rewards are told; a plain critic has nothing to tell."""
    assert trained_critic(constant(-1.0), FIXTURE, "plain").remarks == ()
    loaded = constant(-1.0, discount=0.9, ceiling=5.0, entropy_weight=0.25)
    told = " ".join(trained_critic(loaded, FIXTURE, "loaded").remarks)
    assert all(text in told for text in ("0.9", "0.95", "-0.25", "5"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("settings", [ALL, NONE], ids=["normalised", "as is"])
def test_the_trip_to_the_disk_changes_no_bit(tmp_path, algorithm, settings):
    """Estimates, units and digest come back from either file of the pair, infinite bounds included."""
    critic = bound(algorithm, **settings)
    path = save_critic(tmp_path / "deep", critic, {"steps": 96})
    assert path.name == f"{algorithm}-critic.safetensors"
    for file in (path, path.with_suffix(".json")):
        again = load_critic(file, FIXTURE)
        np.testing.assert_array_equal(estimates(again), estimates(critic))
        assert (again.name, again.critic.sha256) == (algorithm, critic.critic.sha256)
        assert (again.critic.ceiling, again.critic.discount) == (critic.critic.ceiling, critic.critic.discount)
    assert load_critic_card(path)["steps"] == 96


def test_another_plant_and_damaged_or_foreign_files(tmp_path):
    """The named errors of the actor, each for its own reason."""
    critic = bound("sac")
    path = save_critic(tmp_path, critic, {})
    with pytest.raises(ForeignFixtureError):
        load_critic(path, small_fixture(noise_std=0.051))
    with pytest.raises(StoreError):
        load_critic(tmp_path / "absent", FIXTURE)
    card = load_json(path.with_suffix(".json"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedFileError):
        load_critic(path, FIXTURE)
    save_tensors(path, critic.critic.tensors, {"format": "something else"})
    with pytest.raises(ForeignFileError):
        load_critic(path, FIXTURE)
    save_tensors(path, {"0.w0": np.ones((3, 1), np.float32)}, {"format": card["format"]})
    with pytest.raises(CheckpointError):
        load_critic(path, FIXTURE)
    actor = save_actor(tmp_path, trained_policy(actor_of(learned("a2c")), FIXTURE, "a2c"), {})
    with pytest.raises(ForeignFileError):
        load_critic(actor, FIXTURE)
    for name in ("a/b", "..", ""):
        with pytest.raises(ParameterError):
            save_critic(tmp_path, trained_critic(critic.critic, FIXTURE, name), {})


@pytest.mark.parametrize(
    "change",
    [{"scale": 3.0}, {"discount": 0.5}, {"ceiling": "none"}, {"entropy_weight": 1.0}, {"scale": "2"}, {"clip": True}]
    + [{"kind": None}, {"critic_sha256": "0"}, {"scale": -1.0}, {"kind": "action-value"}, {"hidden_function": "sine"}],
    ids=str,
)
def test_a_card_that_was_improved_by_hand(tmp_path, change):
    """Units are part of the digest, and entries of a wrong kind are refused before they are used."""
    path = save_critic(tmp_path, trained_critic(constant(-1.0, ceiling=20.0), FIXTURE, "flat"), {})
    save_json(path.with_suffix(".json"), load_json(path.with_suffix(".json")) | change)
    with pytest.raises(CheckpointError):
        load_critic(path, FIXTURE)


@pytest.mark.parametrize(
    "units",
    [{"scale": 0.0}, {"scale": -1.0}, {"scale": np.nan}, {"scale": np.inf}, {"discount": 1.1}, {"discount": np.nan}]
    + [{"ceiling": 0.0}, {"entropy_weight": -1.0}, {"kind": "advantage"}, {"inputs": 3}, {"kind": "action-value"}],
    ids=str,
)
def test_critics_that_make_no_sense(units):
    """Each is refused when it is made."""
    with pytest.raises(CheckpointError):
        constant(-1.0, **units)


def test_networks_that_fit_nothing():
    """None at all, two for a value, two outputs, NaN weights, another plant's widths."""
    layer = constant(-1.0).layers[0]
    wide = ((np.zeros((2, 2), np.float32), np.zeros(2, np.float32)),)
    bad = ((np.full((2, 1), np.nan, np.float32), np.zeros(1, np.float32)),)
    for layers in ((), (layer, layer), (wide,), (bad,)):
        with pytest.raises(CheckpointError):
            Critic("value", layers, FRAME, 1.0, 0.9)
    narrow = Frame(np.zeros(3), np.ones(3), 10.0, -np.ones(1), np.ones(1))
    three = Critic("value", (((np.zeros((3, 1), np.float32), np.zeros(1, np.float32)),),), narrow, 1.0, 0.9)
    with pytest.raises(CheckpointError, match="other widths"):
        trained_critic(three, FIXTURE, "three")


def test_questions_of_a_wrong_shape():
    """Transposed states, too few actions, and the question of the other kind of critic."""
    value = trained_critic(constant(-1.0), FIXTURE, "value")
    q = trained_critic(constant(-1.0, 3, "action-value"), FIXTURE, "q")
    for states in (STATES.T, STATES[0], np.zeros((3, 4))):
        with pytest.raises(ShapeError):
            value.value(states)
    for actions in (ACTIONS[:, :5], ACTIONS.T, ACTIONS[0]):
        with pytest.raises(ShapeError):
            q.q_value(STATES, actions)
    for ask in (lambda: q.value(STATES), lambda: value.q_value(STATES, ACTIONS)):
        with pytest.raises(ParameterError):
            ask()


def test_learners_without_such_a_critic():
    """Discrete actions, and hidden units that are no tanh or rectifier."""
    from stable_baselines3 import DQN, PPO

    for model in (DQN("MlpPolicy", "CartPole-v1", buffer_size=100), PPO("MlpPolicy", "CartPole-v1")):
        with pytest.raises(ParameterError, match="no critic is known"):
            critic_of(model)
    odd = PPO("MlpPolicy", "Pendulum-v1", policy_kwargs={"activation_fn": torch.nn.ELU})
    with pytest.raises(ParameterError, match="ELU"):
        critic_of(odd)
