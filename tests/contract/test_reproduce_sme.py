"""Studies in synthetic worlds: units are named by all that matters, tables refuse what is missing, rules judge so."""

import numpy as np
import pandas as pd
import pytest

from rl_oodkit.core.errors import EmptySplitError, ParameterError
from rl_oodkit.core.runs import RunStore
from rl_oodkit.reproduce.sme_claims import verdict_extreme, verdict_probed, verdict_respond
from rl_oodkit.reproduce.sme_runs import adopt_rows, sme_rows, sme_unit
from rl_oodkit.reproduce.sme_tables import baseline_scores, drops, final_frame, over_seeds, relative_score
from rl_oodkit.training.settings import preset

KNOBS = {"states": 2, "actions": 1}


def test_a_unit_is_named_by_everything_that_decides_its_result():
    """Knobs, recipe, seed and sizes; the order of knobs is no part of it."""
    ppo, td3 = preset("ppo", "sme"), preset("td3", "sme")
    same = sme_unit(dict(reversed(KNOBS.items())), ppo, 0)
    others = [
        sme_unit(KNOBS | {"complexity": 2}, ppo, 0),
        sme_unit(KNOBS, td3, 0),
        sme_unit(KNOBS, ppo, 1),
        sme_unit(KNOBS, ppo, 0, episodes=3),
        sme_unit(KNOBS, ppo, 0, count=3),
        sme_unit(KNOBS | {"instance_seed": 7}, ppo, 0),
    ]
    assert same.key == sme_unit(KNOBS, ppo, 0).key
    assert len({same.key, *(unit.key for unit in others)}) == 7
    with pytest.raises(ParameterError, match="reward_min"):
        sme_unit(KNOBS | {"reward_min": 1.0}, ppo, 0)


def test_adopting_takes_over_units_that_are_the_very_same_and_no_others(tmp_path):
    """Rows survive the way through a published file."""
    from rl_oodkit.core.store import save_frame

    units = [sme_unit(KNOBS, preset("ppo", "sme"), seed) for seed in range(3)]
    store, other = RunStore(tmp_path / "a"), RunStore(tmp_path / "b")
    for unit in units[:2]:
        store.save(unit, pd.DataFrame({"kind": ["curve", "test"], "score": [0.5, np.nan], "algorithm": "ppo"}))
    save_frame(tmp_path / "rows.parquet", sme_rows(units[:2], store))
    assert adopt_rows(units, other, tmp_path / "rows.parquet") == 2
    assert [other.is_done(unit) for unit in units] == [True, True, False]
    pd.testing.assert_frame_equal(other.load(units[0]), store.load(units[0]))
    assert adopt_rows(units, other, tmp_path / "rows.parquet") == 0
    assert adopt_rows(units, other, tmp_path / "absent.parquet") == 0


def test_a_training_without_rows_is_named():
    """A table over units that were never trained is refused."""
    unit = sme_unit(KNOBS, preset("ppo", "sme"), 0)
    with pytest.raises(EmptySplitError, match=unit.key[:12]):
        final_frame([unit], pd.DataFrame({"key": ["other"]}))


def test_baselines_bracket_every_score():
    """The oracle earns everything, and random is the zero of the relative scale."""
    found = baseline_scores({"states": 4, "actions": 2}, 16)
    assert found["oracle"] == 1 and 0 < found["random"] < 0.4
    assert relative_score(1.0, found["random"]) == 1 and relative_score(found["random"], found["random"]) == 0


def test_intervals_need_three_seeds():
    """Below, the table shows the least and the most."""
    frame = pd.DataFrame({"a": ["x"] * 2 + ["y"] * 3, "relative": [0.1, 0.3, 0.1, 0.2, 0.3], "seconds": 1.0})
    two, three = over_seeds(frame, ["a"]).itertuples()
    assert (two.low, two.high, two.seeds) == (0.1, 0.3, 2)
    assert three.low < 0.0 < 0.4 < three.high


def test_drops_are_paired_by_seed_and_adjusted_together():
    """A seed without the hard level is left out; equal learners are not told apart."""
    rng, rows = np.random.default_rng(0), []
    for name, loss in (("ppo", 0.1), ("sac", 0.1), ("td3", 0.5)):
        for seed in range(4):
            rows += [(name, seed, 1.0, 0.9 + 0.02 * rng.normal()), (name, seed, 9.0, 0.9 - loss + 0.02 * rng.normal())]
    frame = pd.DataFrame(rows[:-1], columns=["algorithm", "seed", "level", "relative"])
    found = drops(frame, 1.0, 9.0).set_index("algorithm")
    assert found.seeds.to_dict() == {"ppo": 4, "sac": 4, "td3": 3}
    assert found.loc["ppo", "p_td3"] < 0.01 < found.loc["ppo", "p_sac"]
    assert verdict_extreme(found.reset_index().assign(knob="states 1 to 9"), ["states"], "td3", least=False) == "holds"


def test_rules_do_not_decide_on_too_few_seeds():
    """Nor without results."""
    table = pd.DataFrame({"knob": "states 1 to 9", "algorithm": ["ppo"], "seeds": [2], "drop": [0.1]})
    assert verdict_respond(table) == "undecided: 2 seeds of 3"
    assert verdict_respond(None) == verdict_probed(None) == verdict_extreme(None, ["states"], "ppo") == "not run"
