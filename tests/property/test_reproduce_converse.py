"""Published numbers are judged by their digits, plants are measured once, and claims follow rules fixed beforehand."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_oodkit.core.errors import ParameterError, UnknownIdError
from rl_oodkit.core.executors import SerialExecutor
from rl_oodkit.core.runs import RunStore, run_units
from rl_oodkit.envs.clauses import leaks_of
from rl_oodkit.envs.regret import WithRegret
from rl_oodkit.envs.single import CertifiedEnv
from rl_oodkit.oracles.certificate import Certificate
from rl_oodkit.oracles.checks import Row
from rl_oodkit.oracles.fixture import of
from rl_oodkit.oracles.linearisation import open_loop_growth
from rl_oodkit.report.magnitudes import magnitudes, on_axis
from rl_oodkit.reproduce import measurements
from rl_oodkit.reproduce.certificates import check_table, plant_lines, standing
from rl_oodkit.reproduce.measurements import loss_groups, plant_of_line, plant_unit, with_starts, worse_gain
from rl_oodkit.reproduce.profiles import Profiles, load_profiles, make_jobs, select
from rl_oodkit.reproduce.published import (
    agreement,
    half_unit,
    plant_constants,
    quadrotor_learners,
    quadrotor_starts,
    stated_losses,
    vehicle_learners,
)
from rl_oodkit.reproduce.rankings import (
    environment_leaks,
    rankings,
    separated_pairs,
    verdict_certified,
    verdict_ranking,
    verdict_withheld,
)

SMALL = "rl_oodkit/Arm-v1 links=1"


# ---------------------------------------------------------------- published numbers


@given(st.floats(1e-6, 1e6), st.integers(0, 5))
def test_a_number_agrees_with_its_own_print(x, digits):
    """Rounding to the printed digits is agreement, and a whole unit more is not."""
    printed = f"{x:.{digits}f}"
    assert agreement(x, printed) == "same digits"
    if float(printed):
        assert agreement(float(printed) + 2.2 * half_unit(printed), printed, aim=0.0) == "differs"


def test_the_grades_of_agreement():
    """Inputs that were printed leave room, per cent come after digits, and nothing is made up for what is missing."""
    assert agreement(12.593267, "12.59326") == "within 5 %"
    assert agreement(12.593267, "12.59326", slack=1e-5) == "same to rounding of inputs"
    assert agreement(1.06, "1.00") == "differs" and agreement(float("nan"), "1.0") == "not recomputable"


def test_published_constants_are_recomputed():
    """Optimal cost of seed 20011, values at the quadrotor's starts, noise floors, growth: all to the printed digits."""
    easy = of("rl_oodkit/Vehicle-v1", level="easy", parameters="published")
    rng = np.random.default_rng(20011)
    assert (
        agreement(float(easy.oracle.value(easy.problem.starts["published"](rng, 1))[0]), "0.0280396") == "same digits"
    )
    quadrotor = of("rl_oodkit/Quadrotor-v1", parameters="published")
    values = quadrotor.oracle.value(quadrotor_starts())
    for value, printed in zip(values, ("8.72988", "19.13915", "12.59326"), strict=False):
        assert agreement(float(value), printed, slack=2e-5).startswith("same")
    table = plant_constants().set_index(["plant", "what"])["printed"]
    for level in ("easy", "medium", "hard", "insane"):
        fixture = of("rl_oodkit/Vehicle-v1", level=level, parameters="published")
        for what, value in (
            ("noise floor b", fixture.oracle.offset),
            ("coercivity tau", fixture.oracle.model.tau),
            ("open-loop growth rho", float(open_loop_growth(fixture.problem)[0])),
        ):
            assert agreement(value, table[f"vehicle {level}", what]) == "same digits", (level, what)


def test_published_rows_are_consistent():
    """Regret over gap lies between the smallest and the largest optimal cost, and doing nothing beats every learner."""
    rows = quadrotor_learners().astype({"gap": float, "regret": float})
    values = of("rl_oodkit/Quadrotor-v1", parameters="published").oracle.value(quadrotor_starts())
    assert (rows["regret"] / rows["gap"]).between(values.min(), values.max()).all()
    wide = rows.pivot(index="authority", columns="policy", values="gap")
    assert (wide.drop(columns=["oracle", "zero"]).min(axis=1) > wide["zero"]).all()
    assert len(vehicle_learners()) == 50 and (vehicle_learners()["printed"].astype(float) > 0).all()


def test_stated_losses_of_the_vehicle_are_reproduced(tmp_path):
    """Within five per cent and twice the standard error, from starts close to the origin."""
    stated = stated_losses()
    stated = stated[stated["plant"] == "vehicle"].set_index("gain")["printed"].astype(float)
    line = "rl_oodkit/Vehicle-v1 level=insane parameters=published"
    groups = loss_groups(line, [1.1, 0.7], worlds=300, start="cube 0.05", horizon=512)
    for row in run_units(groups, RunStore(tmp_path), SerialExecutor(), "losses").itertuples():
        assert abs(row.gap / stated[f"{row.gain:g}"] - 1) < 0.05 + 2 * row.se / row.gap


# ---------------------------------------------------------------- measurements


def test_starts_change_and_the_optimum_does_not():
    """A cube holds the starts; digest, dynamics and value stay; the plant handed in is left alone."""
    plain = plant_of_line(SMALL)
    cube = with_starts(plain, "cube 0.25", horizon=7)
    drawn = cube.problem.initial(np.random.Generator(np.random.SFC64(0)), 50)
    assert np.abs(drawn).max() <= 0.25 and cube.digest == plain.digest and plain.problem.horizon != 7
    assert np.array_equal(cube.oracle.value(drawn), plain.oracle.value(drawn)) and cube.oracle.problem is cube.problem


@pytest.mark.parametrize("start", ["cube -1", "cube x", "cube nan", "cube inf"])
def test_a_cube_needs_a_width(start):
    """A width that is none is named."""
    with pytest.raises(ParameterError, match="no cube"):
        with_starts(plant_of_line(SMALL), start)


def test_unknown_plants_and_starts_are_named():
    """Ids, parameters and starts."""
    for line, error in (("rl_oodkit/Arn-v1", UnknownIdError), (f"{SMALL} lins=2", ParameterError)):
        with pytest.raises(error):
            plant_of_line(line)
    with pytest.raises(UnknownIdError, match="nowhere"):
        with_starts(plant_of_line(SMALL), "nowhere")


def test_losses_are_quadratic_and_zero_at_the_optimum(tmp_path):
    """Gain 1 loses exactly nothing, gain 1.1 and 0.9 nearly the same, and a second call computes nothing."""
    groups = loss_groups(SMALL, [1.0, 1.1, worse_gain(1.1), 0.0], worlds=12, horizon=40)
    store = RunStore(tmp_path)
    first = run_units(groups, store, SerialExecutor(), "losses")
    gaps = first.set_index("gain")["gap"]
    assert gaps[1.0] == 0.0 and (gaps.drop(1.0) > 0).all()
    assert gaps[worse_gain(1.1)] / gaps[1.1] == pytest.approx(1.05, abs=0.01)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.parquet")}
    pd.testing.assert_frame_equal(run_units(groups, store, SerialExecutor(), "losses"), first)
    assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("result.parquet")} and len(before) == 4


def test_a_unit_depends_on_plant_sizes_and_source(monkeypatch):
    """Each of them changes the key."""
    keys = {plant_unit("loss", SMALL, gain=1.1).key, plant_unit("loss", SMALL, gain=1.2).key}
    keys.add(plant_unit("loss", f"{SMALL} tau=0.04", gain=1.1).key)
    monkeypatch.setattr(measurements, "code_digest", lambda fixture: "other source")
    keys.add(plant_unit("loss", SMALL, gain=1.1).key)
    assert len(keys) == 4


# ---------------------------------------------------------------- certificates


def record(**verdicts):
    """Return a certificate with given verdicts."""
    rows = tuple(Row(name, name, 1.0, 2.0, verdict) for name, verdict in verdicts.items())
    return Certificate("a", "b", {}, "c", {}, 0, 16, 400, 2, rows, ())


def test_standing_tells_gates_from_equations():
    """A gate costs the rank of a task, an equation the optimum."""
    assert standing(record(C1="passed", G1="passed", G2="noted")) == "certified"
    assert standing(record(C1="passed", G1="failed")) == "optimum only"
    assert standing(record(C9="failed", G1="failed")) == "rejected"


def test_a_failed_bound_has_a_star():
    """The table marks it, and shows a dash for what was not asked."""
    table = check_table({SMALL: record(C1="failed", C2="passed")}, ["C1", "C2", "C3"])
    assert table.loc[0, ["C1", "C2", "C3", "standing"]].tolist() == ["1*", "1", "–", "rejected"]


def test_every_plant_of_the_table_can_be_built():
    """All ids and variants, each once."""
    lines = plant_lines()
    assert len(lines) == len(set(lines)) and {line.split()[0] for line in lines} >= {"rl_oodkit/Arm-v1"}
    assert all(plant_of_line(line).problem.n > 0 for line in lines)


# ---------------------------------------------------------------- claims


def runs(gaps, tasks=("arm",), seeds=6):
    """Return runs whose algorithms have given losses, up to twenty per cent."""
    rng = np.random.Generator(np.random.PCG64(1))
    rows = [(t, a, k, g * np.exp(0.2 * rng.normal())) for t in tasks for a, g in gaps.items() for k in range(seeds)]
    return pd.DataFrame(rows, columns=["task", "algorithm", "seed", "gap"])


def test_a_claim_without_results_has_no_verdict():
    """Absence is not failure."""
    assert verdict_ranking(None) == verdict_ranking(runs({})) == "not run"
    assert verdict_certified(None) == verdict_certified({}) == verdict_withheld({}) == "not run"


def test_the_ranking_verdict_follows_the_rule():
    """Clear differences hold, none do not, some hold in part; too few seeds decide nothing; row order is irrelevant."""
    clear, blurred = runs({"A": 1, "B": 5, "C": 25}), runs({"A": 1, "B": 1, "C": 1}, tasks=("vehicle",))
    assert verdict_ranking(clear) == "holds" and verdict_ranking(blurred) == "does not hold"
    mixed = pd.concat([clear, blurred])
    assert (
        verdict_ranking(mixed)
        == verdict_ranking(mixed.sample(frac=1, random_state=0))
        == "holds in part: on 1 of 2 tasks"
    )
    assert verdict_ranking(runs({"A": 1, "B": 9}, seeds=4)).startswith("undecided")
    assert rankings(clear) == {"arm": "A < B < C"}


def test_diverged_policies_stay_infinite():
    """All against none is a difference, some against none is not, and all against all is not."""
    inf = float("inf")
    for lost, separated in ((6, True), (3, False)):
        table = runs({"A": 1, "B": 1})
        table.loc[table.index[table["algorithm"] == "B"][:lost], "gap"] = inf
        assert separated_pairs(table)["separated"].tolist() == [separated]
    assert not separated_pairs(runs({"A": inf, "B": inf}))["separated"].any()
    with pytest.raises(ParameterError, match="negative"):
        separated_pairs(runs({"A": -1.0}))


def test_leaks_are_found_where_there_are_some():
    """The evaluation wrapper shows the answer on purpose; the environment alone shows no number of it."""
    env = WithRegret(CertifiedEnv("rl_oodkit/Arm-v1", links=1))
    env.reset(seed=0)
    assert leaks_of(env.step(np.zeros(1))[-1], "info")
    answers = ("value", "action", "optimal_action", "regret", "advantage", "q_value")
    assert not [p for p in environment_leaks("rl_oodkit/Arm-v1", links=1) if p.split(".")[-1] in answers]
    assert verdict_withheld({"a": ["info.value"], "b": []}) == "does not hold: a shows info.value"


# ---------------------------------------------------------------- profiles and figures


def test_soft_predecessors_are_ordered_and_not_chosen(tmp_path):
    """What an experiment may read runs earlier if it is chosen, and is not drawn in."""
    profiles = load_profiles()
    sets = {"smoke": {name: profiles.sets["smoke"][name] for name in ("published", "estimators")}}
    soft = Profiles(profiles.folder, {}, {}, sets, {"estimators": ("published",)})
    assert select(soft, "smoke", ["estimators"]) == ["estimators"]
    assert make_jobs(soft, "smoke", ["estimators"])[0].after == ("published",)


def test_values_without_a_logarithm_are_drawn_at_the_edge():
    """Zero and infinity are drawn, and marked; negative numbers are refused."""
    placed, exact = on_axis(np.array([0.0, 1e-12, np.inf]))
    assert placed.tolist() == pytest.approx([1e-13, 1e-12, 1e-11]) and exact.tolist() == [False, True, False]
    frame = pd.DataFrame({"plant": ["a"], "check": ["C1"], "value": [-1.0]})
    for bad in (frame, frame.iloc[:0]):
        with pytest.raises(ParameterError):
            magnitudes(bad, "plant", label="x", group="check")
