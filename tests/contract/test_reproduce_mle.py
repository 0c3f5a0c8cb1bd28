"""Studies of learners on tasks: units are named by all that matters, costs are fair, rules decide on enough alone."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rl_oodkit.core.errors import EmptySplitError, ParameterError, UnknownIdError
from rl_oodkit.core.executors import SerialExecutor
from rl_oodkit.core.runs import RunStore, run_units
from rl_oodkit.core.store import save_frame
from rl_oodkit.mle.pipeline import Pipeline
from rl_oodkit.reproduce.mle_banks import Bank, bank_of, in_family, open_workshop
from rl_oodkit.reproduce.mle_claims import SEEDS, TASKS, standing_of, verdict_beats, verdict_dense, verdict_generalises
from rl_oodkit.reproduce.mle_policies import adopt_trainings, policy_of_unit, publish_trainings
from rl_oodkit.reproduce.mle_runs import KINDS, Sizes, mle_groups, mle_unit
from rl_oodkit.reproduce.mle_scale import agreement_of, agreement_table
from rl_oodkit.reproduce.mle_tables import family_table, pair_table, price_table, ratio_of, seed_table
from rl_oodkit.reproduce.mle_trials import control_trials, label_of, trial_groups, trial_rows, trial_unit

TINY = Sizes(1, 1, 2, 1, 3, validate_every=1, rollouts=1, tries=(3,), top=(1,), epochs=(3,), rounds=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train one policy on one toy task, and keep the store."""
    store = RunStore(tmp_path_factory.mktemp("runs"))
    unit = mle_unit("toy", "bc-grpo", 0, TINY)
    return store, unit, run_units(mle_groups([unit], store, "toy"), store, SerialExecutor(), "one")


def test_a_training_is_named_by_everything_that_decides_its_result():
    """Kind, sizes, seed and held-out family; lists and tuples are one."""
    same = mle_unit("toy", "grpo", 0, Sizes(tries=[16, 48]))
    others = [
        *(mle_unit("toy", kind, 0) for kind in KINDS if kind != "grpo"),
        mle_unit("toy", "grpo", 1),
        mle_unit("toy", "grpo", 0, Sizes(iterations=3)),
        mle_unit("toy", "grpo", 0, without="rule=tree"),
    ]
    assert same.key == mle_unit("toy", "grpo", 0).key
    assert len({same.key, *(unit.key for unit in others)}) == len(others) + 1
    with pytest.raises(UnknownIdError, match="grpo-sparse"):
        mle_unit("toy", "sparse", 0)
    with pytest.raises(ParameterError, match="iterations"):
        Sizes(iterations=0)
    with pytest.raises(ParameterError, match="tries"):
        Sizes(tries=())


def test_a_trial_belongs_to_its_training():
    """Two trainings are two trials; a control's seed is its own; unknown words are refused."""
    trials = [trial_unit("toy", mle_unit("toy", "grpo", s)) for s in (0, 1)] + [trial_unit("toy", "uniform", seed=1)]
    assert len({trial.key for trial in trials}) == 3 and [trial.seed for trial in trials] == [0, 1, 1]
    assert label_of(trial_unit("toy", mle_unit("toy", "bc", 0, without="rule=tree"))) == "bc without rule=tree"
    with pytest.raises(UnknownIdError, match="practitioner"):
        trial_unit("toy", "nobody")
    with pytest.raises(UnknownIdError):
        trial_unit("toy", "uniform", "no-scaffold")
    assert sum(trial.params["agent"] == "portfolio" for trial in control_trials("toy", ["seq2", "aide"], 5)) == 2


def test_families_split_a_bank_in_two_and_nothing_is_held_out_by_mistake():
    """Inside and outside make the whole; an unknown column or an empty family is an error."""
    facts = pd.DataFrame({"task": list("abcd"), "rule": ["tree", "tree", "linear", "parity"]})
    bank = Bank((1, 2, 3, 4), facts)
    inside, outside = bank.where("rule=tree"), bank.where("rule=tree", inside=False)
    assert inside.arenas == (1, 2) and outside.facts.task.tolist() == ["c", "d"]
    with pytest.raises(ParameterError, match="ruel"):
        in_family(facts, "ruel=tree")
    with pytest.raises(EmptySplitError, match="radial"):
        bank.where("rule=radial")


def test_a_charge_does_not_depend_on_who_came_first(tmp_path):
    """A remembered execution costs the second unit what it cost the first; a damaged shard is run again."""
    arena = bank_of("toy", "train", 1).arenas[0]
    asked = [(arena, Pipeline(impute="median", model=model)) for model in ("tree", "nb", "tree")]

    def visit(name):
        """Ask for the same pipelines in a workshop of its own."""
        with open_workshop(tmp_path, "toy", name) as shop:
            marks = shop.marks(asked)
        return shop, [mark.report for mark in marks]

    (first, told), (second, again) = visit("first"), visit("second")
    assert (first.executed, second.executed, second.distinct) == (2, 0, 2)
    assert first.charge == second.charge > 0 and told == again
    (shard,) = Path(tmp_path).rglob("*.parquet")
    shard.write_bytes(b"nothing")
    assert visit("third")[0].executed == 2


def test_a_training_leaves_curve_price_and_policy(trained, tmp_path):
    """The rows say what it cost; policy and rows survive publication; a trial finds the policy."""
    store, unit, rows = trained
    assert rows.groupby("row").size().to_dict() == {"curve": 2, "grid": 1, "price": 1}
    assert price_table(rows.assign(key=unit.key)).priced.tolist() == [1]
    save_frame(tmp_path / "trainings.parquet", publish_trainings([unit], store, tmp_path))
    other = RunStore(tmp_path / "runs")
    assert adopt_trainings([unit], other, tmp_path) == 1 and adopt_trainings([unit], other, tmp_path) == 0
    one, two = (policy_of_unit(unit, s).weights() for s in (store, other))
    assert all(np.array_equal(one[name], two[name]) for name in one)
    trial = trial_unit("toy", unit, "one-shot", rollouts=1, most=1)
    run_units(trial_groups([trial], other, "toy"), other, SerialExecutor(), "trial")
    assert trial_rows([trial], other).agent.tolist() == ["bc-grpo"]


def test_a_policy_without_its_file_is_not_taken_over(trained, tmp_path):
    """Rows alone are not a training."""
    store, unit, _ = trained
    frame = publish_trainings([unit], store, tmp_path / "elsewhere")
    save_frame(tmp_path / "trainings.parquet", frame)
    assert adopt_trainings([unit], RunStore(tmp_path / "runs"), tmp_path) == 0


def _episodes(agent, medals, seeds=(0,)):
    """Make up one episode a task and seed."""
    rows = [{"task": f"t{k}", "training_seed": s, "any_medal": bool(m)} for k, m in enumerate(medals) for s in seeds]
    return pd.DataFrame(rows).assign(agent=agent, scaffold="seq2")


def test_pairs_are_one_family_of_tests():
    """Differences are exact, adjusted p-values are not below the others, and ratios follow the means."""
    rng = np.random.default_rng(0)
    a, b, c = (_episodes(name, rng.random(60) < share, (0, 1)) for name, share in (("a", 0.8), ("b", 0.2), ("c", 0.2)))
    table = pair_table(pd.concat([a, b, c]), [(("a", "seq2"), (x, "seq2")) for x in "bc"], ["any_medal"])
    assert np.allclose(table.difference, table.left_mean - table.right_mean)
    assert (table.p_holm >= table.p).all() and (table.low > 0).all() and (table.seeds == 2).all()
    ratio, low, high = ratio_of(a, b, "any_medal")
    assert low <= ratio <= high and np.isclose(ratio, a.any_medal.mean() / b.any_medal.mean())
    assert ratio_of(a, b.assign(any_medal=False), "any_medal")[0] == np.inf
    assert seed_table(a).sd[0] == 0
    with pytest.raises(EmptySplitError, match="nobody"):
        pair_table(a, [(("nobody", "seq2"), ("a", "seq2"))], ["any_medal"])


def test_families_are_compared_on_their_own_tasks_and_seeds():
    """The agent with the family in its training is cut to the family's tasks and the other's seeds."""
    whole = _episodes("grpo", [1, 0, 1, 0], (0, 1, 2))
    held = _episodes("grpo without rule=tree", [0, 0, 0, 0], (0, 1)).assign(inside="rule=tree")
    facts = pd.DataFrame({"task": [f"t{k}" for k in range(4)], "rule": ["tree", "tree", "linear", "linear"]})
    table = family_table(held[held.task.isin(["t0", "t1"])], whole, facts, ["grpo"])
    assert (table.tasks[0], table.seeds[0], table.difference[0]) == (2, 2, -0.5)


def test_orders_agree_with_themselves_and_disagree_with_their_reverse():
    """Spearman's coefficient is 1 and -1; failed executions are left out and counted."""
    u = np.array([0.1, 0.5, 0.2, 0.9, np.nan])
    frame = pd.concat(
        [
            pd.DataFrame({"task": t, "micro": 100, "n": n, "pipeline": list("abcde"), "utility": w, "source": "crowd"})
            for t, sign in (("same", 1), ("reverse", -1))
            for n, w in ((100, u), (2000, sign * u))
        ]
    )
    assert agreement_of(frame).rho.tolist() == [1.0, -1.0]
    assert agreement_table(frame)[["tasks", "rho", "winner_kept", "failed"]].iloc[0].tolist() == [2, 0, 1, 2]
    from scipy.stats import spearmanr

    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 4, (2, 12)).astype(float)
    one = pd.DataFrame({"task": "t", "micro": 1, "n": np.repeat([1, 2], 12), "pipeline": list(range(12)) * 2})
    assert np.isclose(agreement_of(one.assign(utility=np.r_[x, y])).rho[0], spearmanr(x, y).statistic)


def test_rules_decide_on_enough_tasks_and_seeds_alone():
    """One task or seed fewer, and nothing is decided; an interval that holds zero is no victory."""
    row = {"left": "grpo", "right": "bc", "scaffold": "seq2", "value": "any_medal", "difference": 0.2, "low": 0.1}
    row |= {"high": 0.3, "p_holm": 0.01, "tasks": TASKS, "seeds": SEEDS}

    def standing(**changes):
        """Return the standing of an altered row."""
        return standing_of(pd.DataFrame([row | changes]), "grpo", "bc", "any_medal")

    assert standing() == "better" and standing(difference=-0.2, low=-0.3, high=-0.1) == "worse"
    assert standing(tasks=TASKS - 1) == standing(seeds=SEEDS - 1) == "too few"
    assert standing(low=-0.01) == standing(p_holm=0.06) == "not told apart"
    assert verdict_beats(pd.DataFrame([row]), "grpo", ["bc"]) == "holds"
    assert verdict_dense(None) == verdict_generalises(None, "a", "b", ["aide"]) == "not run"
