"""Hidden rules, laws of targets, and worlds: the same whatever the number of rows, and what they claim to be."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from rl_oodkit.core import registry
from rl_oodkit.core.errors import NonFiniteError, ParameterError, ShapeError, UnknownIdError
from rl_oodkit.core.registry import names, register
from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.curves import expert_of
from rl_oodkit.mle.dna import Clock, Grouping, RuleDNA, Shift, TaskDNA
from rl_oodkit.mle.mutations import offspring
from rl_oodkit.mle.rules import HiddenRule, calibration_latents, category_of, rule_of
from rl_oodkit.mle.seeds import SEEDS, seed_dna
from rl_oodkit.mle.targets import Conditional, conditional, draw, temperature, units
from rl_oodkit.mle.worlds import HISTORY, PARTS, World, join, redraw

FAMILIES = names("rule")
TASKS = {
    "binary": TaskDNA(prior=(0.8, 0.2), label_noise=0.1),
    "multiclass": TaskDNA(target="multiclass", metric="log_loss", n_classes=4, prior=(0.4, 0.3, 0.2, 0.1)),
    "ordinal": TaskDNA(target="ordinal", metric="qwk", n_classes=5),
    "regression": TaskDNA(target="regression", metric="rmse"),
    "heavy": TaskDNA(target="regression", metric="rmsle", heavy_target=True),
    "count": TaskDNA(target="count", metric="mae"),
    "ranking": TaskDNA(target="ranking", metric="ndcg", n_classes=3),
    "forecast": TaskDNA("series", "forecast", "rmse", time=Clock(True)),
}


def latents(k: int, n: int, seed: int = 0) -> np.ndarray:
    """Return standard normal latents."""
    return stream(seed, "latents").standard_normal((k, n))


@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_has_one_score_whatever_its_company(family, outputs):
    """Bit-equal alone, in any batch, in any memory layout."""
    rule, z = HiddenRule(family, 9, outputs, 3), latents(9, 2500)
    f = rule.score(z)
    for n in (1, 2, 3, 5, 8, 13, 100, 1023):
        assert (rule.score(z[:, :n]) == f[:, :n]).all()
        assert (rule.score(np.ascontiguousarray(z[:, 7 : 7 + n])) == f[:, 7 : 7 + n]).all()
    assert (rule.score(np.asfortranarray(z)) == f).all()
    assert (rule.score(z[:, ::-1]) == f[:, ::-1]).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_standardised_on_their_own_calibration_draws(family):
    """Mean 0 and variance 1 there to rounding, and about so on fresh draws, for many seeds and shapes."""
    for seed in range(4):
        for k, outputs in ((3, 1), (6, 4), (12, 2)):
            rule = HiddenRule(family, k, outputs, seed)
            f = rule.calibration_scores()
            assert f.shape == (outputs, 4096)
            assert np.abs(f.mean(axis=1)).max() < 1e-12 and np.abs(f.std(axis=1) - 1).max() < 1e-12
            fresh = rule.score(latents(k, 4000, seed))
            assert np.abs(fresh.mean(axis=1)).max() < 0.15 and np.abs(fresh.std(axis=1) - 1).max() < 0.2
            if outputs > 1:
                assert np.corrcoef(f)[np.triu_indices(outputs, 1)].max() < 0.995  # no two classes coincide


def test_rules_are_the_same_in_another_process():
    """The scores of all families, digested, do not depend on the process."""
    code = (
        "from rl_oodkit.core.registry import names; from rl_oodkit.core.spec import content_hash;"
        "from rl_oodkit.mle.rules import HiddenRule; import numpy as np;"
        "z = np.linspace(-2, 2, 60).reshape(6, 10);"
        "print(content_hash([content_hash(HiddenRule(f, 6, 2, 1).score(z)) for f in names('rule')]))"
    )
    said = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": s}, capture_output=True, text=True).stdout
        for s in ("0", "1")
    }
    assert len(said) == 1 and len(said.pop().strip()) == 64


def test_seeds_shapes_and_families_give_different_rules():
    """No two of a grid of rules agree."""
    z = latents(6, 50)
    f = [HiddenRule(family, 6, 1, seed).score(z) for family in FAMILIES for seed in range(5)]
    assert len({row.tobytes() for row in f}) == len(f)


def test_what_makes_each_family_itself():
    """One theorem a family."""
    z, step = latents(6, 500), 0.3 * latents(6, 1, 1)

    def second(rule, a, b):
        """Return the mixed second difference of the scores."""
        return rule.score(z + a + b) - rule.score(z + a) - rule.score(z + b) + rule.score(z)

    for family in ("linear", "sparse"):
        assert np.allclose(second(HiddenRule(family, 6), step, step), 0)
    weights = HiddenRule("sparse", 9).score(np.eye(9)) - HiddenRule("sparse", 9).score(np.zeros((9, 1)))
    assert np.count_nonzero(np.abs(weights) > 1e-12) == 3
    one, two = np.eye(6)[:, :1], np.eye(6)[:, 1:2]
    assert np.allclose(second(HiddenRule("additive", 6), one, two), 0)
    quadratic = second(HiddenRule("quadratic", 6), step, step)
    assert np.ptp(quadratic) < 1e-9 and abs(quadratic).max() > 1e-3
    interaction = HiddenRule("interaction", 6)
    assert np.allclose(second(interaction, one, one), 0) and np.ptp(second(interaction, step, step)) < 1e-9
    assert len(np.unique(HiddenRule("tree", 6).score(latents(6, 5000)).round(9))) <= 2**8
    far = HiddenRule("radial", 6).score(np.full((6, 4), 50.0) * np.array([1, -1, 1, -1]))
    assert np.ptp(far) == 0
    mixture = HiddenRule("mixture", 6)
    inside = np.array([1.0, -1, 0.5, 0.2, 0, 0])[:, None]
    assert np.allclose(second(mixture, inside, inside), 0)
    assert (np.bincount(expert_of(latents(6, 30_000))) / 30_000 == pytest.approx(1 / 3, abs=0.01)) is True


def test_a_monotone_rule_has_one_sign_a_latent():
    """Raising one latent moves all scores the same way."""
    for seed in range(5):
        rule, z = HiddenRule("monotone", 5, 1, seed), latents(5, 400)
        for j in range(5):
            change = rule.score(z + np.eye(5)[:, j : j + 1]) - rule.score(z)
            assert (change >= -1e-12).all() or (change <= 1e-12).all()


def test_parity_has_next_to_no_main_effects():
    """Correlation with each latent is that of the weak linear part; without it the product decides the sign."""
    for seed in range(5):
        z = latents(6, 20_000, seed)
        f = HiddenRule("parity", 6, 1, seed).score(z)
        assert np.abs(np.corrcoef(np.vstack([f, z]))[0, 1:]).max() < 0.5


def test_a_family_may_be_registered_from_outside():
    """One decorated function is a family: rules, worlds and children use it."""
    try:

        @register("rule", "test-cube", k_min=2)
        def cube(rng, k, outputs):
            """Draw cubes."""
            w = rng.normal(size=(outputs, k))
            return lambda z: np.einsum("ok,kn->on", w, z**3)

        dna = TaskDNA(rule=RuleDNA("test-cube", 1))
        assert World(dna).draw(10, "train").f.shape == (1, 10)
    finally:
        registry._STATE.entries.pop(("rule", "test-cube"), None)


def test_rules_refuse_nonsense():
    """Unknown families, too few latents, wrong shapes and NaN are named."""
    with pytest.raises(UnknownIdError, match="linear"):
        HiddenRule("liner", 3)
    with pytest.raises(ParameterError, match="parity"):
        HiddenRule("parity", 2)
    with pytest.raises(ParameterError, match="outputs"):
        HiddenRule("linear", 2, 0)
    rule = HiddenRule("linear", 3)
    with pytest.raises(ShapeError):
        rule.score(np.zeros((2, 5)))
    with pytest.raises(ShapeError):
        rule.score(np.zeros(3))
    with pytest.raises(NonFiniteError):
        rule.score(np.full((3, 2), np.nan))
    assert (calibration_latents("linear", 3, 0) != calibration_latents("linear", 3, 1)).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", TASKS)
def test_draws_have_the_law_they_claim(name, family):
    """Standardised residuals have mean 0, and the law's own spread; class counts fit by a chi-square."""
    dna = replace(TASKS[name], rule=RuleDNA(family, 2))
    sample = World(dna).draw(6000, "private")
    law, y = sample.conditional, sample.y.astype(float)
    if law.p is not None:
        expected, seen = law.p.sum(axis=1), np.bincount(sample.y, minlength=len(law.p))
        variance = (law.p * (1 - law.p)).sum(axis=1)
        assert (np.abs(seen - expected) / np.sqrt(variance + 1e-9)).max() < 4.5
        return
    if law.kind == "lognormal":
        rest = (np.log(y) - law.mean) / law.sd
    elif law.kind == "poisson":
        rest = (y - law.rate) / np.sqrt(law.rate)
    else:
        rest = (y - law.mean) / law.sd
    assert abs(rest.mean()) < 4.5 / np.sqrt(6000) and abs(np.square(rest).mean() - 1) < 0.12


def test_means_match_monte_carlo():
    """The stated mean of every kind of law is the mean of its draws."""
    for name, dna in TASKS.items():
        law = World(dna).draw(40, "private").conditional
        draws = np.stack([draw(law, stream(s, "mc")) for s in range(3000)])
        error = draws.std(axis=0, ddof=1) / np.sqrt(3000)
        assert (np.abs(draws.mean(axis=0) - law.expectation()) / np.maximum(error, 1e-12)).max() < 6, name


def test_class_laws_in_closed_form():
    """Two classes are a logistic curve; label noise mixes; ordered classes are differences of logistic curves."""
    f = latents(1, 200)
    plain = conditional(TaskDNA(), f).p
    assert np.allclose(plain[1], 1 / (1 + np.exp(-temperature(TaskDNA()) * f[0])))
    noisy = conditional(TaskDNA(label_noise=0.2), f).p
    assert np.allclose(noisy, 0.8 * plain + 0.1)
    ordinal = conditional(TaskDNA(target="ordinal", metric="qwk", n_classes=4), np.sort(f)).p
    assert (np.diff(np.cumsum(ordinal, axis=0)[:-1], axis=1) <= 1e-12).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_shares_are_set_by_intercepts_of_the_rule(family):
    """On calibration draws the class shares are the prior, whatever the target of classes."""
    for dna in (
        TaskDNA(prior=(0.93, 0.07)),
        TaskDNA(target="multiclass", metric="accuracy", n_classes=3, prior=(0.7, 0.1, 0.2)),
        TaskDNA(target="ordinal", metric="qwk", n_classes=4, prior=(0.1, 0.2, 0.6, 0.1)),
    ):
        dna = replace(dna, rule=RuleDNA(family, 5))
        p = conditional(dna, rule_of(dna).calibration_scores()).p
        assert np.abs(p.mean(axis=1) - dna.prior).max() < 1e-6


def test_the_ratio_means_what_it_says():
    """Signal variance over noise variance is the ratio, on calibration draws exactly."""
    for snr in (1.5, 4.0, 8.0):
        dna = TaskDNA(target="regression", metric="rmse", snr=snr, seed=3)
        law = conditional(dna, rule_of(dna).calibration_scores())
        assert law.mean.var() / law.sd[0] ** 2 == pytest.approx(snr)
    assert units(TaskDNA(seed=1)) != units(TaskDNA(seed=2))


@pytest.mark.parametrize(
    ("kind", "arrays", "error"),
    [
        ("gamma", {}, ParameterError),
        ("classes", {}, ParameterError),
        ("classes", {"p": np.full((2, 3), 0.5), "mean": np.zeros(3)}, ParameterError),
        ("classes", {"p": np.full((2, 3), 0.6)}, ParameterError),
        ("classes", {"p": np.array([[1.5], [-0.5]])}, ParameterError),
        ("classes", {"p": np.zeros(3)}, ShapeError),
        ("normal", {"mean": np.zeros(3), "sd": np.ones(2)}, ShapeError),
        ("normal", {"mean": np.zeros(3), "sd": np.zeros(3)}, ParameterError),
        ("poisson", {"rate": np.array([-1.0])}, ParameterError),
        ("poisson", {"rate": np.array([np.nan])}, NonFiniteError),
    ],
)
def test_a_law_that_is_none_is_refused(kind, arrays, error):
    """Missing, needless, misshapen and impossible arrays raise named errors."""
    with pytest.raises(error):
        Conditional(kind, **arrays)


def test_scores_of_another_width_are_refused():
    """A law needs as many scores as the task has."""
    with pytest.raises(ShapeError):
        conditional(TaskDNA(), np.zeros((2, 3)))


@pytest.mark.parametrize("name", [n for n in TASKS if n not in ("forecast", "count")])
def test_the_first_rows_of_a_large_task_are_the_small_task(name):
    """Latents, scores and targets, bit for bit; Poisson draws and sorted clocks are the exceptions."""
    small, large = (World(TASKS[name].scaled(n)).draw(n, "train") for n in (120, 5000))
    assert (small.z == large.z[:, :120]).all() and (small.f == large.f[:, :120]).all()
    assert (small.y == large.y[:120]).all()


def test_worlds_of_any_size_have_one_rule_and_one_law():
    """Scores and laws of given latents do not change when a task is scaled."""
    for seed in SEEDS:
        dna = offspring(seed_dna(seed), 3)
        z = latents(dna.k_latent, 300)
        f, g = (rule_of(d).score(z) for d in (dna, dna.scaled(100_000)))
        laws = conditional(dna, f), conditional(dna.scaled(100_000), g)
        assert (f == g).all() and (laws[0].expectation() == laws[1].expectation()).all()


def test_every_child_draws():
    """Children of every seed draw all parts, with finite numbers and the promised shapes."""
    for seed in SEEDS:
        for s in range(4):
            dna = offspring(seed_dna(seed), s)
            for part in PARTS:
                sample = World(dna).draw(90, part)
                assert (
                    sample.z.shape == (dna.k_latent, 90) and np.isfinite(sample.z).all() and np.isfinite(sample.f).all()
                )
                assert sample.y.shape == (90,) and np.isfinite(sample.y).all()
                assert (sample.category is None) == (dna.rule.family != "mixture")
                assert (sample.group is None) == (dna.group.n_groups == 0)
                assert (sample.time is None) == (not dna.time.ordered)
                assert (sample.query is None) == (dna.target != "ranking")
                assert (sample.history is None) == (dna.target != "forecast")


def test_parts_and_repetitions_are_independent():
    """No two parts or repetitions share a latent; equal arguments give equal draws; JSON does not matter."""
    world = World(TaskDNA())
    z = [world.draw(30, part, index).z for part in PARTS for index in range(2)]
    assert len({x.tobytes() for x in z}) == len(z)
    again = World(TaskDNA.from_json(world.dna.to_json())).draw(30, "train")
    assert (again.z == z[0]).all() and (again.y == world.draw(30, "train").y).all()


def test_groups_return_only_where_they_leak():
    """Test rows share groups with training rows exactly in tasks that say so."""
    for leak in (False, True):
        world = World(TaskDNA(group=Grouping(10, leak)))
        train, test = world.draw(200, "train"), world.draw(200, "private")
        assert bool(np.isin(test.group, train.group).all()) == leak == bool(np.isin(test.group, train.group).any())
        assert set(world.draw(200, "fresh").group) == set(train.group)
        heads = [[s.z[0, s.group == g].mean() for g in range(10)] for s in (world.draw(20_000, "fresh"), train)]
        assert np.corrcoef(heads)[0, 1] > 0.8  # a group has the same latents wherever it appears


def test_shifts_move_test_rows_only():
    """A covariate shift moves latents by its size; a prior shift moves scores by its size."""
    covariate = World(TaskDNA(shift=Shift("covariate", 1.0)))
    moved = covariate.draw(20_000, "private").z.mean(axis=1)
    assert np.sqrt(np.square(moved).sum()) == pytest.approx(1.0, abs=0.05)
    assert np.abs(covariate.draw(20_000, "fresh").z.mean(axis=1)).max() < 0.05
    prior = TaskDNA(target="multiclass", metric="accuracy", n_classes=4, shift=Shift("prior", 0.8))
    plain = replace(prior, shift=Shift())
    apart = World(prior).draw(10, "public").f - World(plain).draw(10, "public").f
    assert np.sqrt(np.square(apart).mean()) == pytest.approx(0.8) and np.ptp(apart, axis=1).max() < 1e-12
    assert (World(prior).draw(10, "train").f == World(plain).draw(10, "train").f).all()


def test_a_clock_orders_rows_and_drift_follows_it():
    """Training comes before testing; neighbours correlate by 0.7; the drift is linear in time."""
    world = World(TaskDNA(time=Clock(True, 1.0)))
    train, test = world.draw(5000, "train"), world.draw(5000, "private")
    assert (np.diff(train.time) >= 0).all() and train.time.max() < 600 <= test.time.min() and test.time.max() < 1000
    assert np.corrcoef(train.z[0, 1:], train.z[0, :-1])[0, 1] == pytest.approx(0.7, abs=0.05)
    drift = train.f[0] - world.rule.score(train.z)[0]
    assert np.allclose(np.abs(drift), np.abs(train.time - 300) / 1000)


def test_a_forecast_is_what_the_textbook_says():
    """Regressing on two lags, the season and the score leaves the innovation variance, and finds their weights."""
    dna = TASKS["forecast"]
    world = World(dna)
    sample = world.draw(20_000, "train")
    location, scale = units(dna)
    x, past = (sample.y - location) / scale, (sample.history - location) / scale
    assert sample.history.shape == (HISTORY, 20_000)
    from rl_oodkit.mle.worlds import dynamics

    c = dynamics(dna)
    angle = 2 * np.pi * sample.time / c["period"]
    design = np.column_stack([past[-1], past[-2], np.sin(angle), np.cos(angle), sample.f[0]])
    weights, rest, *_ = np.linalg.lstsq(design, x, rcond=None)
    assert weights[:2] == pytest.approx([c["phi1"], c["phi2"]], abs=0.03) and weights[4] == pytest.approx(1, abs=0.03)
    assert np.hypot(*weights[2:4]) == pytest.approx(c["amplitude"], abs=0.05)
    assert rest[0] / 20_000 == pytest.approx(1 / dna.snr, rel=0.05)


def test_queries_have_ten_items_and_parts_have_their_own():
    """Queries are numbered in tens; items of a query resemble each other."""
    world = World(TASKS["ranking"])
    train, test = world.draw(5000, "train"), world.draw(100, "private")
    assert set(np.unique(train.query, return_counts=True)[1]) == {10} and not np.isin(test.query, train.query).any()
    z = train.z[0].reshape(500, 10)
    assert np.corrcoef(z[:, 0], z[:, 1])[0, 1] == pytest.approx(0.3, abs=0.12)


def test_samples_split_and_join():
    """Selecting two halves and joining them is the identity, field by field."""
    for dna in (*TASKS.values(), TaskDNA(rule=RuleDNA("mixture")), TaskDNA(group=Grouping(9))):
        sample = World(dna).draw(40, "public")
        again = join([sample.select(np.arange(15)), sample.select(np.arange(40) >= 15)])
        for name in ("z", "f", "y", "category", "group", "time", "query", "history"):
            a, b = getattr(sample, name), getattr(again, name)
            assert (a is None and b is None) or np.array_equal(a, b)
        assert np.array_equal(sample.conditional.expectation(), again.conditional.expectation())
        assert category_of(dna, sample.z) is None or (category_of(dna, sample.z) == sample.category).all()
        assert redraw(sample, stream(0)).z is sample.z
    with pytest.raises(ParameterError):
        join([])


def test_worlds_refuse_nonsense():
    """Contradictions, unknown parts and bad numbers are named."""
    with pytest.raises(ParameterError, match="contradict"):
        World(TaskDNA(modality="image", target="ranking", metric="map"))
    world = World(TaskDNA())
    for call in (lambda: world.draw(0, "train"), lambda: world.draw(5, "test"), lambda: world.draw(5, "train", -1)):
        with pytest.raises(ParameterError):
            call()
    with pytest.raises(ParameterError):
        world.draw_part("fresh")
    assert world.draw_part("public").n == 200
