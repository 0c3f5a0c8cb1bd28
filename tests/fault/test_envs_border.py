"""At the border of the certified environments, what is wrong is named, and what is refused has changed nothing."""

import math

import gymnasium as gym
import numpy as np
import pytest

from rl_oodkit import cli
from rl_oodkit.core.errors import EmptySplitError, NonFiniteError, ParameterError, RlOodkitError, ShapeError, StoreError
from rl_oodkit.core.files import read_verified
from rl_oodkit.envs.checks import memory_growth
from rl_oodkit.envs.core import NotResetError
from rl_oodkit.envs.registration import CERTIFIED
from rl_oodkit.envs.regret import VectorWithRegret, WithRegret
from rl_oodkit.envs.sb3 import CertifiedVecEnv, Float32View
from rl_oodkit.envs.single import CertifiedEnv
from rl_oodkit.envs.vector import CertifiedVectorEnv
from rl_oodkit.oracles.baselines import ZeroPolicy, oracle_policy
from rl_oodkit.oracles.certificate import certify
from rl_oodkit.oracles.critics import audit_critic
from rl_oodkit.oracles.fixture import of
from rl_oodkit.oracles.intervals import describe_seeds
from rl_oodkit.oracles.problem import NormalStart, QuadraticProblem, UniformStart
from rl_oodkit.oracles.quadratic import Converse
from rl_oodkit.oracles.regret import evaluate, policy_error
from rl_oodkit.oracles.riccati import discounted_dare
from rl_oodkit.oracles.rollouts import visited_states
from rl_oodkit.oracles.scores import normalised_score
from rl_oodkit.oracles.terms import Entry, Givens, Term
from rl_oodkit.oracles.toys import small_fixture
from rl_oodkit.reproduce import inputs

FIXTURE, ONE = small_fixture(horizon=10), np.eye(2)
GOOD = {"P": 2 * ONE, "Q": ONE, "R": ONE, "gain": ONE, "discount": 0.9}
START = UniformStart((-1.0, -1.0), (1.0, 1.0))


class Answer:
    """Act as a function says."""

    name = "answer"

    def __init__(self, answer):
        self.answer = answer

    def act(self, s):
        """Return what the function returns."""
        return self.answer(s)


@pytest.mark.parametrize("part", [inputs._parts, inputs._oracles, inputs._marks, inputs._environments])
def test_every_wrong_argument_of_the_table_is_named(part):
    """Nothing is taken silently, and no other library complains."""
    cases = list(part())
    trials = [(c, p, w) for c in cases for p, kind in c.kinds.items() for w in inputs.WRONG[kind]]
    assert [text for text in (inputs._attempt(*trial) for trial in trials) if text] == []
    assert len(trials) > 200


def test_the_table_knows_its_kinds_and_its_good_calls_are_good():
    """A kind that does not exist would skip its trials; a bad call would pass every one of them."""
    for part in (inputs._parts, inputs._oracles, inputs._marks, inputs._environments):
        for case in part():
            case.call(**case.good)
    for part in (inputs._statistics, inputs._benchmark, inputs._sizes, inputs._names):
        assert {kind for case in part() for kind in case.kinds.values()} <= set(inputs.WRONG)


MATRICES = {
    "P": [
        np.diag([1, -1.0]),
        np.diag([1, 0.0]),
        np.array([[1, 2], [0, 1.0]]),
        np.zeros((0, 0)),
        np.eye(3),
        1e-320 * ONE,
    ],
    "Q": [2 * ONE, 3 * ONE, -ONE, np.array([[0.5, 1], [0, 0.5]])],
    "R": [-ONE, 0 * ONE, np.array([[1, 1.0], [0, 1]]), 1e-320 * ONE],
    "gain": [0 * ONE, np.zeros((2, 3)), 1e300 * ONE, (Entry(0, 0, 0.0),), (Entry(5, 0, 1.0),), ()],
    "swirl": [2 * ONE, 0 * ONE, (1, 2), (Givens(0, 1, (Term(1, "sin", "x", 7),)),), len, lambda s, x: x[:1]],
    "covariance": [-ONE, np.diag([1, -1.0]), np.array([[1, 2], [0, 1.0]]), np.eye(3), np.array([[0, 1.0], [1, 0]])],
    "discount": [0, 1, 1.1, -0.5, math.nan, 1e-320],
    "p": [0, 1.1, math.nan],
    "dtype": [None, "float32", np.float16, int, complex],
    "exact": [1, "no", None],
}


@pytest.mark.parametrize(("name", "x"), [(name, x) for name, row in MATRICES.items() for x in row])
def test_no_optimum_follows_from_a_wrong_ingredient(name, x):
    """Indefinite, asymmetric, of another size, or out of all proportion: there is no model."""
    Converse(**GOOD)
    with pytest.raises((ParameterError, ShapeError, NonFiniteError)):
        Converse(**GOOD | {name: x})


@pytest.mark.parametrize(
    "start", [lambda r, w: np.full((2, w), np.nan), lambda r, w: np.zeros((w, 2)), lambda r, w: None]
)
def test_starts_are_tried_when_the_problem_is_made(start):
    """A start that is not finite, or has its axes swapped, is refused at once, in any number of dimensions."""
    with pytest.raises((ShapeError, NonFiniteError)):
        QuadraticProblem(Converse(**GOOD), 5, 1.0, {"train": start, "test": START})
    for make in (lambda: UniformStart((0.0,), (1.0, 1.0)), lambda: NormalStart((0.0,), (-1.0,))):
        with pytest.raises((ShapeError, ParameterError)):
            make()


@pytest.mark.parametrize(
    "given", [{"Q": -ONE}, {"R": 0 * ONE}, {"Q": np.array([[1, 1], [0, 1.0]])}, {"p": 2.0}, {"p": "1"}]
)
def test_the_textbook_solver_wants_a_textbook_problem(given):
    """Weights must be symmetric and definite."""
    with pytest.raises(ParameterError):
        discounted_dare(**{"A": ONE, "B": ONE, "Q": ONE, "R": ONE, "discount": 0.9} | given)


ABSURD = [
    10**400,
    10**30,
    1e300,
    1e-300,
    math.nan,
    -math.inf,
    np.array(0.5),
    np.array([0.5]),
    "0.5",
    {},
    [[1.0], [1.0, 2.0]],
]


@pytest.mark.parametrize("env_id", CERTIFIED)
def test_no_parameter_takes_an_absurd_value(env_id):
    """The message is one short line whatever the value."""
    names = set(vars(of(env_id).spec))
    for name in names:
        for x in ABSURD:
            with pytest.raises(RlOodkitError) as error:
                CertifiedEnv(env_id, **{name: x})
            assert len(str(error.value)) < 250 and "\n" not in str(error.value)


def shells():
    """Return environments of every shell, all of them running, with the shape of their actions."""
    made = {"fixture": FIXTURE}
    single = [CertifiedEnv(**made), CertifiedEnv(**made, compiled=False), Float32View(CertifiedEnv(**made))]
    several = [CertifiedVectorEnv(**made, num_envs=3), CertifiedVecEnv(**made, num_envs=3, first_seed=0)]
    single.append(WithRegret(CertifiedEnv(**made), FIXTURE))
    several.append(WithRegret(CertifiedVectorEnv(**made, num_envs=3), FIXTURE))
    return [(env, (1,)) for env in single] + [(env, (3, 1)) for env in several]


@pytest.mark.parametrize("k", range(7))
def test_a_refused_action_moves_nothing(k):
    """States, clocks and noise stay where they are, and the next good step is the one that was due."""
    (env, shape), (twin, _) = shells()[k], shells()[k]
    for one in (env, twin):
        one.reset(**({} if isinstance(one, CertifiedVecEnv) else {"seed": 3}))
    wrong = [None, "a", 0.0, [], [[1.0], [1.0, 2.0]], np.full(shape, np.nan), np.full(shape, np.inf), np.zeros(9)]
    wrong += [np.zeros(shape, complex), np.zeros(shape, object), np.ma.masked_array(np.zeros(shape), np.ones(shape))]
    for action in wrong:
        with pytest.raises((ShapeError, NonFiniteError)):
            env.step(action)
    np.testing.assert_array_equal(env.step(np.ones(shape))[0], twin.step(np.ones(shape))[0])


def test_shells_refuse_what_is_not_theirs():
    """Each message names the shell to use instead."""
    single, several = CertifiedEnv(fixture=FIXTURE), CertifiedVectorEnv(fixture=FIXTURE, num_envs=2)
    learner = CertifiedVecEnv(fixture=FIXTURE, first_seed=0)
    wrong = [
        lambda: VectorWithRegret(single, FIXTURE),
        lambda: VectorWithRegret(3),
        lambda: WithRegret(learner, FIXTURE),
    ]
    wrong += [lambda: Float32View(several), lambda: Float32View(gym.make("CartPole-v1")), lambda: Float32View(None)]
    wrong += [lambda: WithRegret(single, "a"), lambda: WithRegret(single, small_fixture()), lambda: WithRegret(single)]
    wrong += [lambda x=x: CertifiedEnv(fixture=x) for x in ("a", 3, object(), [], FIXTURE.problem)]
    wrong += [lambda x=x: CertifiedVectorEnv(fixture=FIXTURE, num_envs=x) for x in (0, -1, 2.5, True, 10**9, 10**400)]
    wrong += [lambda x=x: single.reset(seed=1, options=x) for x in (5, "", [], True, object(), {"a": 1})]
    wrong += [lambda x=x: single.reset(seed=x) for x in (-1, 1.5, "a", True, [1])]
    for call in wrong:
        with pytest.raises(ParameterError):
            call()
    with pytest.raises(NotResetError):
        single.step(np.zeros(1))


def test_an_action_is_used_once():
    """A learner that waits twice is told so."""
    env = CertifiedVecEnv(fixture=FIXTURE, first_seed=0)
    env.reset()
    env.step(np.zeros((1, 1)))
    with pytest.raises(NotResetError, match="step_async"):
        env.step_wait()


ANSWERS = [
    lambda s: 0.0,
    lambda s: None,
    lambda s: "a",
    lambda s: np.zeros(s.shape[1]),
    lambda s: np.zeros((2, s.shape[1])),
]
ANSWERS += [
    lambda s: np.zeros((1, 1)),
    lambda s: np.zeros((s.shape[1], 1)),
    lambda s: np.zeros((1, s.shape[1]), complex),
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_policy_answers_one_action_a_world(answer):
    """What NumPy would stretch to fit is refused."""
    policy, idle = Answer(answer), ZeroPolicy(1)
    for call in (
        lambda: evaluate(FIXTURE, policy, [0, 1]),
        lambda: policy_error(FIXTURE, policy, [0, 1], idle),
        lambda: policy_error(FIXTURE, idle, [0, 1], policy),
        lambda: visited_states(FIXTURE.problem, policy, [0, 1]),
        lambda: audit_critic(FIXTURE, policy, np.ones((2, 3)), value=FIXTURE.oracle.value),
    ):
        with pytest.raises(ShapeError):
            call()


def test_a_policy_cannot_move_the_worlds():
    """It is shown a copy of the states, so that writing into them gains nothing."""

    def cheat(s):
        """Put all worlds to rest."""
        s[:] = 0
        return np.zeros((1, s.shape[1]))

    honest, cheated = (evaluate(FIXTURE, p, [0, 1]) for p in (ZeroPolicy(1), Answer(cheat)))
    np.testing.assert_array_equal(honest.cost, cheated.cost)


@pytest.mark.parametrize("x", [np.nan, np.inf])
def test_a_policy_that_is_not_finite_loses_its_worlds_and_keeps_their_starts(x):
    """An infinite action is no clipped one, and a world that fails at once is still matched with others."""
    found = evaluate(FIXTURE, Answer(lambda s: np.full((1, s.shape[1]), x)), [0, 1])
    idle = evaluate(FIXTURE, ZeroPolicy(1), [0, 1])
    np.testing.assert_array_equal(found.start_value, idle.start_value)
    assert found.diverged == 2 and normalised_score(found, idle) == -math.inf


SEEDS = [[1.5], [True], ["0"], "12", b"0", {1, 2}, None, 5, [-1], np.array([1.0]), np.array([[1, 2]]), range(10**9)]


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda x: repr(x)[:12])
def test_seeds_are_integers(seeds):
    """They are not rounded, and no text is read as a row of digits."""
    with pytest.raises(ParameterError):
        evaluate(FIXTURE, ZeroPolicy(1), seeds)
    with pytest.raises(EmptySplitError):
        evaluate(FIXTURE, ZeroPolicy(1), [])


def test_what_does_not_fit_into_memory_is_refused_before_it_is_tried():
    """A thousand million steps are a mistake."""
    idle, long = ZeroPolicy(1), small_fixture(horizon=10**9)
    for call in (
        lambda: evaluate(FIXTURE, idle, range(9), horizon=10**9),
        lambda: visited_states(FIXTURE.problem, idle, [0], horizon=10**10),
        lambda: certify(long),
        lambda: certify(FIXTURE, worlds=10**9),
        lambda: describe_seeds(np.ones((5, 2)), resamples=10**9),
    ):
        with pytest.raises(ParameterError):
            call()


def test_an_oracle_is_asked_about_fixtures_only():
    """An id is no fixture, a class is no policy."""
    for call in (
        lambda: evaluate("rl_oodkit/Arm-v1", ZeroPolicy(1), [0]),
        lambda: evaluate(FIXTURE, "ppo", [0]),
        lambda: evaluate(FIXTURE, ZeroPolicy, [0]),
        lambda: certify(None),
        lambda: normalised_score(1.0, 2.0),
        lambda: audit_critic(FIXTURE, oracle_policy(FIXTURE.oracle), np.ones((2, 3)), value=3),
    ):
        with pytest.raises(ParameterError):
            call()


def test_small_things_are_named(tmp_path):
    """A path with a null character, a path that is none, and a measurement of no steps."""
    with pytest.raises(StoreError):
        read_verified("\0")
    with pytest.raises(ParameterError):
        read_verified(3)
    with pytest.raises(ParameterError):
        memory_growth(fixture=FIXTURE, steps=0)
    assert abs(memory_growth(fixture=FIXTURE, steps=1, worlds=4)) < 2**24


LINES = [
    ("certify", "rl_oodkit/Arm-v1", "--set", "links=0"),
    ("certify", "rl_oodkit/LQR-v1", "--set", "noise_std=1e300"),
    ("certify", "rl_oodkit/LQR-v1", "--set", "horizon=1000000000"),
    ("certify", "rl_oodkit/LQR-v1", "--worlds", "1000000000"),
    ("certify", "rl_oodkit/LQR-v1", "--draws", "-1"),
]


@pytest.mark.parametrize("words", LINES, ids=lambda words: words[-1])
def test_the_command_line_complains_in_one_line(capsys, monkeypatch, words):
    """No message says that something should have been caught earlier."""
    monkeypatch.delenv("RL_OODKIT_DEBUG", raising=False)
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    told = capsys.readouterr().err
    assert end.value.code in (1, 2) and "caught earlier" not in told and "Traceback" not in told


def test_a_training_refuses_what_it_cannot_use_before_it_begins(tmp_path):
    """Nothing is left behind by a call that could not have ended well."""
    from rl_oodkit.core.errors import StoreError
    from rl_oodkit.training.continuous import train
    from rl_oodkit.training.recipes import A2CRecipe

    (tmp_path / "file").write_text("x")
    fixture = small_fixture()
    for error, recipe, folder, episodes in (
        (ParameterError, "ppo", tmp_path / "new", 4),
        (ParameterError, A2CRecipe(worlds=4), tmp_path / "new", 0),
        (StoreError, A2CRecipe(worlds=4), tmp_path / "file", 4),
    ):
        with pytest.raises(error):
            train(recipe, fixture=fixture, steps=64, folder=folder, episodes=episodes, progress=False)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "change", [{"fixture_digest": None}, {"name": 3}, {"clip": "abc"}, {"clip": None}, {"output": 1}]
)
def test_a_card_that_identifies_nothing_is_refused(tmp_path, change):
    """A policy of an unknown fixture is not a policy of every fixture."""
    from rl_oodkit.core.errors import CheckpointError
    from rl_oodkit.core.store import load_json, save_json
    from rl_oodkit.training.actor import Actor, Frame, load_actor, save_actor, trained_policy

    fixture = small_fixture()
    frame = Frame(np.zeros(2), np.ones(2), 10.0, -np.ones(1), np.ones(1))
    idle = Actor({"w0": np.zeros((2, 1), np.float32), "b0": np.zeros(1, np.float32)}, frame)
    path = save_actor(tmp_path, trained_policy(idle, fixture, "idle"), {})
    card = next(tmp_path.glob("*.json"))
    save_json(card, load_json(card) | change)
    with pytest.raises(CheckpointError):
        load_actor(path, fixture)
