"""Marks inside and outside the cube: who is marked where, against whom, and in which order worlds are hard."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from rl_oodkit.core.errors import ParameterError
from rl_oodkit.core.executors import SerialExecutor
from rl_oodkit.core.runs import RunStore, run_units
from rl_oodkit.core.store import save_frame
from rl_oodkit.envs.sme import sme
from rl_oodkit.envs.sme_knobs import SMESpec
from rl_oodkit.envs.sme_probe import DISTANCES, cube_states, probe, shell_states, sme_baselines
from rl_oodkit.reproduce.sme_distance import against, last_marks, level_pairs, mixed_marks, place_marks, told_order
from rl_oodkit.reproduce.sme_runs import adopt_rows, sme_groups, sme_rows, sme_unit
from rl_oodkit.training.settings import preset

TINY = preset("ppo", worlds=8, n_steps=8, batch_size=64, total_steps=128, evaluate_every=64, curve_episodes=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return two short trainings of different instances, with their store and rows."""
    store = RunStore(tmp_path_factory.mktemp("trained"))
    units = [sme_unit({"states": 2, "actions": 1}, TINY, seed, 2, 60) for seed in (0, 1)]
    run_units(sme_groups(units, store), store, SerialExecutor(), "tiny")
    return units, store, sme_rows(units, store)


@pytest.mark.parametrize("policy", ["calibrated", "wheel"])
@pytest.mark.parametrize(("n", "m", "seed"), [(8, 4, 0), (2, 2, 1), (3, 1, 2)])
def test_outward_the_saturated_rule_gets_better_and_one_half_worse(policy, n, m, seed):
    """On every ray of a target of one layer; the two errors add up to one half everywhere, whatever the layers."""
    for layers in (1, 3):
        fixture = sme(SMESpec(states=n, actions=m, policy=policy, complexity=layers, instance_seed=seed))
        idle = {who.name: who for who in sme_baselines(fixture)}
        places = [cube_states(fixture, 500), *(shell_states(fixture, d, 500) for d in DISTANCES)]
        sides, half = (
            np.array([probe(fixture, idle[k], s)["error"] for s in places]) for k in ("saturated", "one half")
        )
        np.testing.assert_allclose(sides + half, 0.5, atol=1e-14)
        if layers == 1:
            assert (np.diff(sides[1:], axis=0) <= 1e-12).all() and (np.diff(half[1:], axis=0) >= -1e-12).all()


def test_those_who_do_not_learn_are_marked_once_an_instance(trained):
    """A second learner in the same instance adds its own rows only, and a diverged training none."""
    units, _, rows = trained
    twin = sme_unit({"states": 2, "actions": 1}, preset("ppo", total_steps=999), 0, 2, 60)
    marks = place_marks([*units, twin], rows)
    assert (marks.groupby(["policy", "seed"]).size().drop("ppo") == 7).all() and marks.points.min() > 0
    assert marks[marks.policy == "ppo"].groupby("seed").step.nunique().gt(1).all()
    assert len(last_marks(marks)) == 2 * 5 * 7
    assert np.allclose(marks.regret, 1 - marks.score) and (marks[marks.policy == "oracle"].error == 0).all()


def test_a_comparison_needs_one_rival(trained):
    """A whole learning curve is no rival, nor is one who is absent; a policy differs from its equal by nothing."""
    units, _, rows = trained
    marks = place_marks(units, rows)
    for rival, said in (("ppo", "several rows"), ("nobody", "no rows")):
        with pytest.raises(ParameterError, match=said):
            against(marks, rival)
    last = last_marks(marks)
    both = pd.concat([last, last[last.policy == "saturated"].assign(policy="twin")])
    assert (against(both, "saturated").query("policy == 'twin'").difference == 0).all()


def test_the_mixture_asks_the_policy_or_an_earlier_table(trained, tmp_path):
    """A training that was taken over has the number of the run that had its policy, and none without that table."""
    units, store, rows = trained
    here = mixed_marks(units, store)
    assert (here[here.policy == "ppo"].groupby("key").size() == 3).all()
    save_frame(tmp_path / "trainings.parquet", rows)
    save_frame(tmp_path / "mixed.parquet", here)
    elsewhere = RunStore(tmp_path / "elsewhere")
    assert adopt_rows(units, elsewhere, tmp_path / "trainings.parquet") == 2
    there = mixed_marks(units, elsewhere, tmp_path / "mixed.parquet")
    order = ["key", "policy", "part"]
    pd.testing.assert_frame_equal(
        there.sort_values(order, ignore_index=True)[here.columns], here.sort_values(order, ignore_index=True)
    )
    assert "ppo" not in set(mixed_marks(units, elsewhere).policy)


def test_pairs_are_welchs_and_holms():
    """Three pairs: the values are scipy's, times the number of hypotheses that are left."""
    rng = np.random.default_rng(0)
    x = {"a": rng.normal(0.8, 0.05, 5), "b": rng.normal(0.6, 0.1, 4), "c": rng.normal(0.3, 0.02, 5)}
    frame = pd.DataFrame([(k, v) for k, values in x.items() for v in values], columns=["level", "score"])
    table = level_pairs(frame, "level", "score")
    plain = [
        stats.ttest_ind(x[a], x[b], equal_var=False).pvalue for a, b in zip(table.higher, table.lower, strict=True)
    ]
    assert table.p.min() == pytest.approx(3 * min(plain)) and (table.difference > 0).all()
    assert (table.p >= np.array(plain)).all() and told_order(table) == "a > b > c"


def test_one_seed_tells_no_order():
    """Without a spread there is no test, so nothing is separated; one level is no order."""
    table = level_pairs(pd.DataFrame({"level": [1, 2, 4], "score": [0.1, 0.3, 0.2]}), "level", "score")
    assert table.p.isna().all() and told_order(table) == "2 ~ 4 ~ 1"
    assert told_order(level_pairs(pd.DataFrame({"level": [1], "score": [0.1]}), "level", "score")) == ""
