"""Tasks of real rows: an unshared split, latents that are in the columns, and an optimum that stays known."""

from dataclasses import replace

import numpy as np
import pytest

from rl_oodkit.core.errors import ParameterError, ShapeError, UnknownIdError
from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.build import board_of, measured, optimum
from rl_oodkit.mle.compatibility import conflicts, repaired
from rl_oodkit.mle.dna import Categories, Clock, Grouping, Missing, Outliers, RuleDNA, Shift, TaskDNA
from rl_oodkit.mle.metrics import score
from rl_oodkit.mle.mutations import breed
from rl_oodkit.mle.oracle import best_prediction, oracle_report
from rl_oodkit.mle.real_rows import (
    PERTURBATION,
    REAL_SEEDS,
    REAL_TABLES,
    law_draws,
    load_table,
    real_rows,
    real_table,
    smoothed_rows,
    source_rows,
)
from rl_oodkit.mle.rules import HiddenRule, calibration_latents, rule_of
from rl_oodkit.mle.seeds import SEEDS, seed_dna
from rl_oodkit.mle.tables import public_files, tables
from rl_oodkit.mle.worlds import World, join

PARTS = ("train", "public", "private", "fresh")


def real_dna(name, **genes):
    """Return a task of real rows, of four latents."""
    return TaskDNA(seed_name=f"real-{name}", k_latent=4, **genes)


@pytest.mark.parametrize("name", REAL_TABLES)
def test_components_are_white_and_lead_back_to_the_columns(name):
    """Mean zero, covariance the identity, and a rotation that can be undone; signs do not depend on a library."""
    table = load_table(name)
    p, n = table.u.shape
    assert p == REAL_TABLES[name] and len(np.unique(table.u.T, axis=0)) == n
    assert np.allclose(table.u.mean(axis=1), 0, atol=1e-10) and np.allclose(
        table.u @ table.u.T / n, np.eye(p), atol=1e-8
    )
    columns = table.columns(table.u)
    assert np.allclose(columns.std(axis=1), 1) and np.allclose(np.linalg.solve(table.axes, columns), table.u)
    carried = np.square(table.axes).sum(axis=0)  # eigenvalues, which sum to the number of columns
    assert np.isclose(carried.sum(), p) and (np.diff(carried) <= 1e-12).all()
    assert (np.take_along_axis(table.axes, np.abs(table.axes).argmax(axis=0)[None], axis=0) > 0).all()


@pytest.mark.parametrize("name", REAL_TABLES)
def test_columns_are_those_of_the_bundled_table(name):
    """Every distinct row of the table, standardised, is among the columns, in whatever order."""
    from sklearn import datasets

    rows = np.unique(getattr(datasets, f"load_{name}")(return_X_y=True)[0], axis=0)
    rows = rows[:, rows.std(axis=0) > 0]
    table = load_table(name)
    assert np.allclose(table.columns(table.u).T, (rows - rows.mean(axis=0)) / rows.std(axis=0), atol=1e-8)


@pytest.mark.parametrize("name", REAL_TABLES)
@pytest.mark.parametrize("seed", range(3))
def test_training_and_test_rows_share_no_source(name, seed):
    """The two halves are disjoint and exhaust the table, and each drawn row is near a row of its own half."""
    dna, count = real_dna(name, seed=seed), load_table(name).u.shape[1]
    halves = {part: set(source_rows(dna, part).tolist()) for part in PARTS}
    assert halves["train"] == halves["fresh"] and halves["public"] == halves["private"]
    assert not halves["train"] & halves["public"] and halves["train"] | halves["public"] == set(range(count))
    choose = {part: stream(seed, "real rows", name, part, 0, "choose") for part in PARTS}
    for part in PARTS:  # the centre of a drawn row, undone step by step, is a row of the half
        sources = source_rows(dna, part)
        drawn = real_rows(dna, 40, part) * np.sqrt(1 + PERTURBATION**2)
        step = stream(seed, "real rows", name, part, 0, "move").standard_normal((40, len(drawn))).T
        centre = load_table(name).u[:, sources[choose[part].integers(len(sources), size=40)]]
        assert np.allclose(drawn - PERTURBATION * step, centre)


def test_no_row_is_a_copy():
    """No two drawn rows are equal, in one part or in two, and none is a row of the table."""
    dna = real_dna("iris")
    rows = np.concatenate([real_rows(dna, 2000, part).T for part in PARTS] + [load_table("iris").u.T])
    assert len(np.unique(rows.round(12), axis=0)) == len(rows)
    built = tables(replace(dna, n_noise=0))
    cells = [frame.drop(columns=["id", "target"], errors="ignore").to_numpy() for frame in (built.train, built.test)]
    assert not set(map(bytes, cells[0])) & set(map(bytes, cells[1]))


def test_a_smoothed_bootstrap_keeps_mean_and_covariance():
    """Over a whole table the moments are those of the table, within the error of the draws."""
    u = load_table("breast_cancer").u
    many = smoothed_rows(u, stream(0, "choose"), stream(0, "move"), 200_000)
    assert np.abs(many.mean(axis=1)).max() < 0.015 and np.abs(many @ many.T / 200_000 - np.eye(30)).max() < 0.05


@pytest.mark.parametrize("name", ("iris", "digits"))
def test_a_task_of_any_size_is_one_task(name):
    """The rule, the test rows and the first training rows do not depend on the number of training rows."""
    dna = real_dna(name, rule=RuleDNA("tree", 2), target="multiclass", metric="log_loss", n_classes=3)
    small, large = tables(dna), tables(dna.scaled(3000))
    assert (
        rule_of(dna) == rule_of(dna.scaled(3000))
        and rule_of(dna).constants[0] is rule_of(dna.scaled(3000)).constants[0]
    )
    assert small.test.equals(large.test) and small.answers.equals(large.answers)
    few, many = (World(d).draw_part("train") for d in (dna, dna.scaled(3000)))
    assert (few.rows == many.rows[:, :120]).all() and (few.f == many.f[:, :120]).all() and (few.y == many.y[:120]).all()
    assert large.train.iloc[:120].equals(small.train)


def test_equal_records_give_equal_bytes_and_other_seeds_others():
    """Deterministic, with every disturbance that real rows allow."""
    dna = real_dna("wine", missing=Missing(0.1, "MNAR"), outliers=Outliers(0.03), duplicates=0.1, trap="shortcut_shift")
    assert conflicts(dna) == [] and public_files(tables(dna)) == public_files(tables(dna))
    assert public_files(tables(dna))["train.csv"] != public_files(tables(replace(dna, seed=1)))["train.csv"]


@pytest.mark.parametrize("name", REAL_TABLES)
def test_latents_can_be_read_off_the_files(name):
    """A regression of the latents on the written columns leaves only the rounding to six digits."""
    built = tables(real_dna(name, n_noise=0, n_train=400))
    X = built.train.drop(columns=["id", "target"]).to_numpy(np.float64)
    X = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])
    z = World(built.world.dna).draw_part("train").z.T
    rest = z - X @ np.linalg.lstsq(X, z, rcond=None)[0]
    assert np.abs(rest).max() < 1e-2 and rest.std() < 1e-3


@pytest.mark.parametrize("name", REAL_TABLES)
@pytest.mark.parametrize("family", ("linear", "quadratic", "mixture"))
def test_a_rule_is_standard_under_the_law_of_its_table(name, family):
    """Calibration uses the law of the table: fresh draws of it have about mean 0 and variance 1."""
    rule = HiddenRule(family, 4, 1, 3, name)
    f = rule.score(law_draws(name, 4, 40_000, stream(5, "fresh", name)))
    error = np.sqrt(np.mean(f**4) / 4096)  # of the variance over the calibration draws; tails of products are heavy
    assert abs(f.mean()) < 4 / np.sqrt(4096) and abs(f.var() - 1) < 4 * error
    assert np.isclose(rule.calibration_scores().mean(), 0) and np.isclose(rule.calibration_scores().std(), 1)
    assert (calibration_latents(family, 4, 3, name) != calibration_latents(family, 4, 3)).any()


@pytest.mark.parametrize("name", REAL_TABLES)
def test_the_law_of_a_table_uses_every_row_as_often(name):
    """Over whole decks the mean is off by the steps alone, and by no more than a row's share over any number."""
    u, step = load_table(name).u, PERTURBATION / np.sqrt(1 + PERTURBATION**2)
    p, count = u.shape
    for n in (count, 3 * count):
        z = law_draws(name, p, n, stream(6, name, n))
        assert np.abs(z.mean(axis=1)).max() * np.sqrt(n) < 4.5 * step  # with replacement it is up to 3.5 times that
    for n in (0, 1, count - 1, count + 1):
        z, rng = law_draws(name, p, n, stream(7, name)), stream(7, name)
        dealt = np.concatenate([rng.permutation(count) for _ in range(n // count + 1)])[:n]
        assert z.shape == (p, n) and np.ptp(np.bincount(dealt, minlength=count)) <= 1
        move = rng.standard_normal((n, p)).T
        assert np.allclose(z * np.sqrt(1 + PERTURBATION**2) - PERTURBATION * move, u[:, dealt])


@pytest.mark.parametrize("family", ("quadratic", "interaction"))
def test_products_of_heavy_columns_keep_their_scale(family):
    """Chance in the choice of outlying rows does not set the scale of a rule: over seeds it is right within a tenth."""
    far = law_draws("digits", 6, 40 * 1797, stream(8, family))
    variance = np.array([HiddenRule(family, 6, 1, seed, "digits").score(far).var() for seed in range(12)])
    assert np.sqrt(np.mean(np.square(variance - 1))) < 0.1


@pytest.mark.parametrize("prior", ((0.9, 0.1), (0.5, 0.5)))
def test_class_shares_hold_on_the_law_of_the_table(prior):
    """Intercepts are found on the draws of the table, so the shares come out on other draws of it."""
    dna = real_dna("breast_cancer", prior=prior, rule=RuleDNA("quadratic", 1))
    world = World(dna)
    halves = join([world.draw(20_000, "train"), world.draw(20_000, "private")])
    assert abs(halves.conditional.p[1].mean() - prior[1]) < 0.03


@pytest.mark.parametrize(
    ("target", "metric", "classes"),
    [("binary", "log_loss", 2), ("binary", "auc", 2), ("multiclass", "accuracy", 3), ("regression", "mae", 2)],
)
def test_the_bayes_score_is_that_of_a_monte_carlo(target, metric, classes):
    """The reported expectation is the mean score over targets that are drawn anew, law by law, by other means."""
    dna = real_dna("wine", target=target, metric=metric, n_classes=classes, rule=RuleDNA("radial", 2), seed=4)
    world = World(dna)
    sample = world.draw_part("private")
    report, best, rng = (
        oracle_report(world, sample, bound_rows=2000),
        best_prediction(sample.conditional, metric),
        stream(9),
    )
    scores = []
    for _ in range(300):
        if target == "regression":
            y = sample.conditional.mean + sample.conditional.sd * rng.standard_normal(sample.n)
        else:
            y = (np.log(sample.conditional.p) + rng.gumbel(size=sample.conditional.p.shape)).argmax(axis=0)
        scores.append(score(metric, y, best, n_classes=None if target == "regression" else classes))
    error = np.std(scores) * np.sqrt(1 / 300 + 1 / 200)
    assert abs(np.mean(scores) - report.bayes_expected) < 4 * error


@pytest.mark.parametrize("name", REAL_SEEDS)
def test_no_reference_beats_the_optimum(name):
    """On the parent and on a child of each table, references stay below the optimum within two standard errors."""
    for dna in (seed_dna(name), breed(seed_dna(name), 1)[0]):
        built = tables(dna)
        draft = measured(built, board_of(built, 6), top=np.nan)
        sign = -1.0 if draft.thresholds.lower_is_better else 1.0
        best = (sign * draft.board["private"]).max()
        assert best <= sign * draft.oracle.bayes_private + 2 * draft.oracle.sd_expected
        assert abs(draft.judge.grade(optimum(built)).regret) < 1e-9


@pytest.mark.parametrize("name", REAL_SEEDS)
def test_parents_and_their_children_are_tasks(name):
    """A parent has the structure of its namesake; a child is sound, and of real rows as well."""
    dna, origin = seed_dna(name), seed_dna(name.removeprefix("real-"))
    assert conflicts(dna) == [] and dna.modality == "tabular" and dna.name != origin.name
    assert (dna.target, dna.metric, dna.snr, dna.rule) == (origin.target, origin.metric, origin.snr, origin.rule)
    for seed in range(30):
        child = breed(dna, seed)[0]
        assert conflicts(child) == [] and child.seed_name == name and child.modality == "tabular"
        assert child.k_latent <= REAL_TABLES[real_table(child)]


@pytest.mark.parametrize(
    "genes",
    [
        {"time": Clock(True)},
        {"group": Grouping(12)},
        {"shift": Shift("covariate", 1.0)},
        {"cats": Categories(2)},
        {"heavy_features": True},
    ],
)
def test_disturbances_that_need_normal_latents_are_refused_and_dropped(genes):
    """Each is a contradiction with a reason; a repair drops it and keeps the rows."""
    dna = real_dna("wine", **genes)
    assert len(conflicts(dna)) == 1
    with pytest.raises(ParameterError, match="contradict"):
        World(dna)
    assert repaired(dna) == real_dna("wine") and conflicts(replace(dna, seed_name="wine")) == []


def test_origins_that_cannot_be_are_refused_and_mended():
    """Another modality, an unknown table, more latents than columns."""
    assert repaired(TaskDNA("image", seed_name="real-digits")).seed_name == "digits"
    assert repaired(TaskDNA(seed_name="real-moons")).seed_name == "moons"
    assert repaired(TaskDNA(seed_name="real-iris")).k_latent == 4
    assert repaired(TaskDNA(k_latent=2, rule=RuleDNA("mixture"), seed_name="real-iris")).rule.family == "linear"
    with pytest.raises(UnknownIdError, match="moons"):
        load_table("moons")
    with pytest.raises(ShapeError, match="5 latents"):
        law_draws("iris", 5, 10, stream(0))
    with pytest.raises(ParameterError, match="moons"):
        HiddenRule("linear", 3, source="moons")
    with pytest.raises(UnknownIdError, match="real-wine"):
        seed_dna("real-linnerud")


def test_seeds_that_were_there_are_what_they_were():
    """The table of seeds has its eighteen names, none of them of real rows, and no record of theirs asks for any."""
    assert len(SEEDS) == 18 and not set(SEEDS) & set(REAL_SEEDS)
    assert not any(real_table(seed_dna(name)) for name in SEEDS)
    assert World(TaskDNA()).draw(5, "train").rows is None and rule_of(TaskDNA()).source == ""


def test_the_command_line_makes_tasks_of_real_rows(tmp_path):
    """One task of wines by name, admitted by all gates, whose files are those of its record."""
    from typer.testing import CliRunner

    from rl_oodkit.cli import app
    from rl_oodkit.mle.suite import Suite

    words = "mle gen --seeds real-wine --n 1 --references 40 --out".split()
    result = CliRunner().invoke(app, [*words, str(tmp_path / "suite")])
    assert result.exit_code == 0, result.output
    suite = Suite(tmp_path / "suite")
    (name,) = suite.ids()
    made = suite.load(name)
    assert made.dna.seed_name == "real-wine" and made.dna.name == name and suite.check() >= 4
    files = public_files(tables(made.dna))
    folder = tmp_path / "suite" / "tasks" / name / "public"
    assert all((folder / file).read_bytes() == data for file, data in files.items())
