"""Trainings as units of work: done once, taken over from published tables, and shown with the intervals they have."""

import numpy as np
import pandas as pd
import pytest

from rl_oodkit.core.executors import SerialExecutor
from rl_oodkit.core.runs import RunStore, run_units
from rl_oodkit.core.store import save_frame
from rl_oodkit.reproduce import learners
from rl_oodkit.reproduce.comparison import comparison
from rl_oodkit.training.recipes import A2CRecipe

pytest.importorskip("stable_baselines3")

PLANT = "rl_oodkit/Arm-v1 links=1"
RECIPE = A2CRecipe(worlds=4, n_steps=8, hidden=(8,), total_steps=128, evaluate_every=64, curve_episodes=2)


def units(seeds, episodes=6):
    """Return trainings of one learner."""
    return [learners.learner_unit(PLANT, RECIPE, seed, episodes) for seed in range(seeds)]


def row_of(unit, gaps):
    """Return the table of an invented training."""
    figures = dict.fromkeys(("opt_gap", "controllable", "error", "error_there"), 0.1)
    head = {"plant": PLANT, "algorithm": "a2c", "seed": unit.seed, "point": "test", "step": 1, "seconds": 1.0}
    return pd.DataFrame([head | figures | {"gap": gaps.mean()}])


def test_a_training_is_done_once_and_taken_over(tmp_path, monkeypatch):
    """A second store begins with the published tables and trains nothing; another recipe has another name."""
    mine = units(2)
    store = RunStore(tmp_path / "first")
    frame = run_units(learners.learner_groups(mine, store), store, SerialExecutor(), "trainings")
    rows, worlds = learners.rows_and_worlds(mine, store)
    save_frame(tmp_path / "published" / "trainings.parquet", rows)
    save_frame(tmp_path / "published" / "worlds.parquet", worlds)
    other = RunStore(tmp_path / "second")
    assert learners.adopt(mine, other, tmp_path / "published") == 2
    monkeypatch.setattr(learners, "train", lambda *_, **__: pytest.fail("trained again"))
    again = run_units(learners.learner_groups(mine, other), other, SerialExecutor(), "trainings")
    pd.testing.assert_frame_equal(again, frame)
    np.testing.assert_array_equal(other.load_arrays(mine[1])["gap"], store.load_arrays(mine[1])["gap"])
    assert learners.adopt(units(3)[2:], other, tmp_path / "published") == 0
    assert {u.key for u in units(2, episodes=7)}.isdisjoint(u.key for u in mine)


def test_the_table_has_its_reference_rows(tmp_path):
    """The optimum loses exactly nothing and has score 100, doing nothing has score 0 where it is the reference."""
    table = comparison(PLANT, [], RunStore(tmp_path), 16).set_index("policy")
    assert table.loc["oracle", "score"] == 100 and table.loc["oracle", "OptGap"] == 0
    assert table.loc["zero", "score"] == 0 and table.attrs["reference"] == "zero"
    assert table.loc["random", "score"] < 0 < table.loc["half gain", "score"] < 100


@pytest.mark.parametrize(("seeds", "interval"), [(2, False), (4, False), (5, True)])
def test_an_interval_over_seeds_needs_five(tmp_path, seeds, interval):
    """With fewer, the seeds are printed one by one."""
    store, rng = RunStore(tmp_path), np.random.default_rng(0)
    for unit in units(seeds):
        gaps = rng.uniform(1, 2, 6)
        store.save(unit, row_of(unit, gaps), {"gap": gaps, "start_value": gaps, "error": gaps})
    shown = comparison(PLANT, units(seeds), store, 6).set_index("policy").loc["a2c", "seeds"]
    assert shown.startswith("[") == interval and shown.count(",") == (1 if interval else seeds - 1)


def test_divergence_is_reported_not_clipped(tmp_path):
    """A world that was lost makes the mean infinite and the score minus infinity."""
    store, unit = RunStore(tmp_path), units(1)[0]
    gaps = np.array([1.0, np.inf, 1.0, 1.0, 1.0, 1.0])
    store.save(unit, row_of(unit, gaps), {"gap": gaps, "start_value": gaps, "error": gaps})
    row = comparison(PLANT, [unit], store, 6).set_index("policy").loc["a2c"]
    assert row["loss [95 %, worlds]"] == "inf" and row["score"] == -np.inf
