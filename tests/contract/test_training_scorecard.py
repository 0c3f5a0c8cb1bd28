"""The shipped agent keeps what its card says, and cards say what they should."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from rl_oodkit.core.errors import CheckpointError, ParameterError
from rl_oodkit.core.registry import entry, make
from rl_oodkit.core.spec import content_hash, from_dict
from rl_oodkit.ood.labels import SPLITS, seed_range
from rl_oodkit.training import sb3
from rl_oodkit.training.checkpoint import load_card, load_policy, save_checkpoint
from rl_oodkit.training.policy import QPolicy
from rl_oodkit.training.scorecard import SEED_RANGES, evaluate, figures, mean_interval, policy_seeds, selection_score


def test_all_ranges_of_seeds_are_disjoint():
    """Training, selection, card and every split of the benchmark share no seed."""
    taken = [(r.start, r.stop) for r in SEED_RANGES.values()]
    low = min(min(seed_range(split, 100)) for split in SPLITS)
    assert low >= 1_000_000 > max(stop for _, stop in taken)
    taken.sort()
    assert all(a[1] <= b[0] for a, b in zip(taken, taken[1:], strict=False))


def test_interval_agrees_with_scipy():
    """Student's interval, against the library's own."""
    x = np.random.default_rng(0).gamma(2.0, 30.0, 80)
    expected = stats.t.interval(0.9, len(x) - 1, x.mean(), stats.sem(x))
    np.testing.assert_allclose(mean_interval(x, 0.9), expected, rtol=1e-12)
    for bad in ([1.0], [1.0, np.nan], [[1.0, 2.0]], []):
        with pytest.raises(ValueError):
            mean_interval(bad)


def frame(returns, truncated=()):
    """Return an evaluation with the given returns, of which the first few are truncated."""
    n = len(returns)
    cut = np.arange(n) < len(truncated)
    return pd.DataFrame({"seed": range(n), "return": returns, "length": 100, "terminated": ~cut, "truncated": cut})


def test_an_admissible_checkpoint_lands_and_ends():
    """It has solved the task and hardly hovers; it beats any that does not, and the mean decides among equals."""
    cases = {"hovers": (300, 2), "lands": (210, 1), "lands better": (250, 0), "crashes": (190, 0)}
    scores = {name: selection_score(frame([r] * 50, range(k)), 0.02) for name, (r, k) in cases.items()}
    assert sorted(scores, key=scores.__getitem__) == ["crashes", "hovers", "lands", "lands better"]
    assert scores["lands better"] == (True, 250.0) and scores["hovers"] == (False, 300.0)


def test_figures_of_a_card():
    """Known numbers."""
    card = figures(frame([100.0, 200.0, 300.0, 400.0], [0]))
    assert card["returns"]["mean"] == 250 and card["returns"]["fraction_solved"] == 0.75 and card["returns"]["n"] == 4
    assert card["truncation"]["rate"] == 0.25 and card["truncation"]["low"] < 0.25 < card["truncation"]["high"]


def test_the_recipe_is_registered():
    """The registry makes the recipe by its id, with changes, and says who trains it."""
    assert make("policy", "dqn-lunarlander") == sb3.DQNRecipe()
    assert make("policy", "dqn-lunarlander", total_steps=20_000).total_steps == 20_000
    assert entry("policy", "dqn-lunarlander").tags["trainer"] == "rl_oodkit.training.sb3:train_dqn"
    with pytest.raises(ParameterError):
        make("policy", "dqn-lunarlander", steps=3)


def test_the_shipped_card_tells_the_recipe_in_force():
    """The shipped policy was made by the recipe of this version, digest and all."""
    card = load_card()
    assert from_dict(sb3.DQNRecipe, card["recipe"]) == sb3.DQNRecipe()
    assert card["recipe_sha256"] == content_hash(sb3.DQNRecipe())
    assert card["policy_sha256"] == load_policy().sha256
    assert card["seeds"]["card"]["first"] == policy_seeds("card", 1)[0]


def test_the_shipped_agent_lands():
    """At least 200 points with the whole interval, on 200 fresh episodes; it comes to an end in all but 3 %."""
    card = load_card()
    assert card["returns"]["n"] >= 200 and card["returns"]["low"] >= 200
    assert card["truncation"]["rate"] < 0.03 and card["selected"]["admissible"]


def test_three_training_seeds_succeed_and_selection_chose_the_shipped_one():
    """The recipe is not one lucky seed, and the choice did not look at the fresh episodes."""
    card = load_card()
    siblings = card["siblings"]
    assert len({s["training_seed"] for s in siblings}) >= 3
    assert all(s["returns"]["low"] >= 200 and s["returns"]["n"] >= 200 for s in siblings)
    best = max(siblings, key=lambda s: (s["selected"]["admissible"], s["selected"]["mean"]))
    assert best["training_seed"] == card["training_seed"]


def test_the_shipped_agent_rescores_as_its_card_says():
    """Eighty of the card's episodes, flown again: the two intervals overlap, and hardly any is truncated."""
    card = load_card()
    again = figures(evaluate(load_policy(), policy_seeds("card", 80)))
    assert again["returns"]["low"] <= card["returns"]["high"] and again["returns"]["high"] >= card["returns"]["low"]
    assert again["truncation"]["low"] <= card["truncation"]["high"]


@pytest.mark.parametrize(("purpose", "n"), [("test", 3), ("card", 0), ("card", 10**9), ("card", 1.5), (None, 3)])
def test_seeds_that_are_not_set_aside(purpose, n):
    """Unknown purposes and impossible counts are refused."""
    with pytest.raises(ParameterError):
        policy_seeds(purpose, n)


def finished(folder, seed, mean, admissible=True, recipe="a"):
    """Write what a finished training leaves behind."""
    policy = QPolicy({"w0": np.full((2, 2), seed, np.float32), "b0": np.zeros(2, np.float32)})
    chosen = {"admissible": admissible, "mean": mean}
    card = {
        "recipe_sha256": recipe,
        "training_seed": seed,
        "selected": chosen,
        "returns": {"mean": 1e6 - mean},
        "truncation": {},
    }
    save_checkpoint(folder / str(seed), "toy", policy, card)
    (folder / str(seed) / "state-000000001.safetensors").write_bytes(b"of a training under way")
    return folder / str(seed)


def test_shipping_chooses_by_selection(tmp_path):
    """Not by the fresh figures, which here run the other way, and not against the truncation rule."""
    folders = [finished(tmp_path, s, m, ok) for s, m, ok in ((1, 240, True), (2, 260, True), (3, 280, False))]
    card = sb3.ship_best(folders, tmp_path / "out")
    assert card["training_seed"] == 2 and [s["training_seed"] for s in card["siblings"]] == [1, 2, 3]
    assert load_policy(tmp_path / "out" / "toy.json").weights["w0"][0, 0] == 2


def test_shipping_refuses_what_does_not_belong_together(tmp_path):
    """Unfinished trainings, trainings of two recipes, and none at all."""
    a, b = finished(tmp_path, 1, 240), finished(tmp_path, 2, 250, recipe="b")
    for folders in ([a, b], [a, tmp_path / "none"], []):
        with pytest.raises(CheckpointError):
            sb3.ship_best(folders, tmp_path / "out")
