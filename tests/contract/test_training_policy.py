"""The frozen policy: the learner's twin, the same answer in any company, and light to load."""

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from rl_oodkit.core.errors import CheckpointError, NonFiniteError, ParameterError, RlOodkitError, ShapeError
from rl_oodkit.training.checkpoint import load_card, load_policy
from rl_oodkit.training.policy import Policy, QPolicy, RandomPolicy


def random_policy(widths, seed=0) -> QPolicy:
    """Return a network with random weights."""
    rng = np.random.default_rng(seed)
    weights = {}
    for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False)):
        weights[f"w{i}"] = (rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32)
        weights[f"b{i}"] = rng.standard_normal(b).astype(np.float32)
    return QPolicy(weights)


@pytest.mark.parametrize("widths", [(8, 256, 256, 4), (8, 128, 128, 4), (3, 5, 2), (1, 1), (40, 7, 300, 9)])
def test_an_answer_does_not_know_its_company(widths):
    """For every batch size and every place in the batch, a row gets the same bits."""
    policy = random_policy(widths)
    rows = np.random.default_rng(1).standard_normal((131, widths[0])).astype(np.float32)
    q, h = policy.q_values(rows), policy.features(rows)
    for size in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 64, 100):
        for start in (0, 1, 3, 17):
            part = policy.internals(rows[start : start + size])
            assert_array_equal(part["q"], q[start : start + size])
            assert_array_equal(part["features"], h[start : start + size])


@pytest.mark.parametrize("widths", [(8, 128, 128, 4), (3, 6, 2), (8, 256, 256, 4)])
def test_agreement_with_torch(widths):
    """The same network in torch: values within 1e-5, the same actions."""
    torch = pytest.importorskip("torch")
    policy = random_policy(widths, seed=3)
    layers = []
    for i in range(len(widths) - 1):
        linear = torch.nn.Linear(widths[i], widths[i + 1])
        linear.weight.data = torch.from_numpy(policy.weights[f"w{i}"].T.copy())
        linear.bias.data = torch.from_numpy(policy.weights[f"b{i}"].copy())
        layers += [linear, torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers[:-1])
    rows = np.random.default_rng(2).standard_normal((2_000, widths[0])).astype(np.float32)
    with torch.no_grad():
        theirs, hidden = network(torch.from_numpy(rows)).numpy(), network[:-1](torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(policy.q_values(rows), theirs, atol=1e-5)
    np.testing.assert_allclose(policy.features(rows), hidden, atol=1e-5)
    assert_array_equal(policy.act(rows), theirs.argmax(1))


def test_q_is_linear_in_the_features():
    """Penultimate features are what the last layer sees."""
    policy = random_policy((4, 9, 3))
    rows = np.random.default_rng(0).standard_normal((20, 4))
    out = policy.internals(rows)
    np.testing.assert_allclose(out["features"] @ policy.weights["w1"] + policy.weights["b1"], out["q"], atol=1e-6)
    assert (out["features"] >= 0).all()


def test_no_rows_no_answers():
    """An empty batch is answered by empty arrays of the right width."""
    policy = random_policy((4, 9, 3))
    assert policy.act(np.zeros((0, 4))).shape == (0,) and policy.q_values(np.zeros((0, 4))).shape == (0, 3)


def test_the_digest_is_of_the_weights():
    """Equal weights, equal digest; one changed bit, another one; stable between processes."""
    policy = random_policy((4, 9, 3))
    assert QPolicy(policy.weights).sha256 == policy.sha256
    changed = {k: v.copy() for k, v in policy.weights.items()}
    changed["b0"][0] = np.nextafter(changed["b0"][0], np.float32(9))
    assert QPolicy(changed).sha256 != policy.sha256


BAD_WEIGHTS = {
    "none": {},
    "no bias": {"b0": None},
    "strange name": {"b0": None, "x": np.zeros(3, np.float32)},
    "double precision": {"w0": np.zeros((4, 3))},
    "transposed": {"w0": np.zeros((3, 4), np.float32)},
    "nan": {"b0": np.full(3, np.nan, np.float32)},
    "objects": {"b0": np.array([None] * 3)},
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_weights_that_form_no_policy(name):
    """Each is a CheckpointError, before anything is multiplied."""
    good = {"w0": np.zeros((4, 3), np.float32), "b0": np.zeros(3, np.float32)}
    weights = {k: v for k, v in (good | BAD_WEIGHTS[name]).items() if v is not None} if name != "none" else {}
    with pytest.raises(CheckpointError):
        QPolicy(weights)


@pytest.mark.parametrize("method", ["act", "q_values", "features", "internals"])
def test_observations_that_are_none(method):
    """Wrong widths, single rows, NaN, infinity, text and objects are refused by name."""
    answer = getattr(random_policy((4, 9, 3)), method)
    for bad in (np.zeros(4), np.zeros((2, 5)), np.zeros((2, 2, 4)), [["a"] * 4], [[None] * 4], [[1, 2, 3], [1]]):
        with pytest.raises(ShapeError):
            answer(bad)
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(NonFiniteError, match="observations"):
            answer([[0, 0, 0, value]])


def test_random_policy_is_a_fixed_function():
    """The same in any batch, another with another seed, and blind to nothing: every column matters."""
    rows = np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32)
    policy = RandomPolicy(4, seed=2)
    assert_array_equal(policy.act(rows)[::-1], policy.act(rows[::-1]))
    assert (policy.act(rows) != RandomPolicy(4, seed=3).act(rows)).mean() > 0.5
    for column in range(8):
        moved = rows.copy()
        moved[:, column] = np.nextafter(moved[:, column], np.float32(9))
        assert (policy.act(moved) != policy.act(rows)).mean() > 0.5
    assert isinstance(policy, Policy) and isinstance(random_policy((2, 2)), Policy)


@pytest.mark.parametrize(("n", "seed"), [(0, 0), (-1, 0), (2.0, 0), (4, -1), (4, "x"), (True, 0)])
def test_random_policy_refuses(n, seed):
    """Counts and seeds are integers in range."""
    with pytest.raises(ParameterError):
        RandomPolicy(n, seed)


def test_a_huge_seed_is_a_seed():
    """Seeds of any size work."""
    assert RandomPolicy(4, 2**70).act(np.ones((1, 2))).shape == (1,)


LIGHT = """
import sys
from rl_oodkit.training.checkpoint import load_policy
policy = load_policy("dqn-lunarlander")
assert policy.act([[0.0] * 8]).shape == (1,)
heavy = {"torch", "stable_baselines3", "sklearn", "matplotlib", "gymnasium", "pandas", "papermill"} & set(sys.modules)
print(sorted(heavy))
"""


def test_the_shipped_policy_loads_without_a_learning_framework():
    """A fresh process that loads and asks the policy has imported none of the heavy libraries."""
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, env=os.environ, check=True)
    assert done.stdout.strip() == "[]"


def test_the_shipped_policy_acts_as_its_probe_says():
    """On the observations stored with it, the actions are those of the day it was written."""
    card = load_card()
    rows = np.array(card["probe"]["observations"], np.float32)
    assert load_policy().act(rows).tolist() == card["probe"]["actions"]
    assert len(set(card["probe"]["actions"])) > 1


def test_unknown_names_name_the_known_ones():
    """A misspelt checkpoint is answered with the shipped ones."""
    with pytest.raises(RlOodkitError, match="dqn-lunarlander"):
        load_policy("dqn-lunarlandr")
