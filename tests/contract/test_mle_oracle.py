"""The best prediction is best: not beaten by perturbations, by fitted models, or by brute force."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from rl_oodkit.core.errors import ParameterError, ShapeError
from rl_oodkit.core.seeds import stream
from rl_oodkit.core.spec import from_json, to_json
from rl_oodkit.mle.compatibility import METRICS_OF
from rl_oodkit.mle.dna import Clock, RuleDNA, TaskDNA
from rl_oodkit.mle.measures import Graded
from rl_oodkit.mle.metrics import score, task_metric
from rl_oodkit.mle.mutations import offspring
from rl_oodkit.mle.oracle import (
    OracleReport,
    _kappa_rules,
    best_prediction,
    finite_best,
    finite_lead,
    oracle_report,
    redrawn,
)
from rl_oodkit.mle.seeds import SEEDS, seed_dna
from rl_oodkit.mle.targets import Conditional
from rl_oodkit.mle.worlds import World

CELLS = [(target, metric) for target, metrics in METRICS_OF.items() for metric in metrics]
ROWS, REDRAWS, CHALLENGERS = 150, 24, 200


def task(target: str, metric: str) -> TaskDNA:
    """Return a task of a target and a metric."""
    classes = {"multiclass": 4, "ordinal": 5, "ranking": 3}.get(target, 2)
    modality, time = ("series", Clock(True)) if target == "forecast" else ("tabular", Clock())
    prior = {"binary": (0.75, 0.25), "multiclass": (0.5, 0.3, 0.15, 0.05)}.get(target, ())
    heavy = metric == "rmsle" and target == "regression"
    return TaskDNA(
        modality,
        target,
        metric,
        n_classes=classes,
        prior=prior,
        heavy_target=heavy,
        time=time,
        snr=2.0,
        rule=RuleDNA("tree", 4),
    )


def perturbed(law: Conditional, best: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Return a challenger of the best prediction: a little, or a lot, and often systematically different."""
    size = rng.choice([0.05, 0.2, 0.6])
    if kind == "label":
        if rng.random() < 0.5:  # another decision rule
            return (law.p * np.exp(3 * size * rng.standard_normal((len(law.p), 1)))).argmax(axis=0)
        return np.where(rng.random(len(best)) < size / 3, rng.integers(len(law.p), size=len(best)), best)
    if kind in ("probability", "probabilities"):
        p = law.p ** np.exp(size * rng.standard_normal()) * np.exp(size * rng.standard_normal(law.p.shape))
        p = p / p.sum(axis=0)
        return p[1] if kind == "probability" else p.T
    spread = best.std()
    bent = (
        best * np.exp(0.3 * size * rng.standard_normal()) + spread * size * rng.choice([0, 1]) * rng.standard_normal()
    )
    return np.maximum(
        bent + 0.5 * spread * size * rng.standard_normal(len(best)), 0.0 if law.kind != "normal" else -np.inf
    )


def scores(
    metric_id: str, draws: np.ndarray, prediction: np.ndarray, query: np.ndarray | None, n_classes: int
) -> np.ndarray:
    """Return utilities of one prediction over redrawn targets, by the graders' function."""
    metric = task_metric(metric_id)
    units = np.ones((1, len(draws[0]) if query is None else int(query.max()) + 1))
    return np.array([metric.sign * metric.fn(Graded(y, prediction, query, n_classes), units)[0] for y in draws])


@pytest.mark.parametrize(("target", "metric"), CELLS)
def test_no_perturbation_is_better(target, metric):
    """Of 200 challengers none has a larger mean utility beyond two standard errors of the paired difference."""
    world = World(task(target, metric))
    sample = world.draw(ROWS, "private")
    law, kind = sample.conditional, task_metric(metric).prediction
    query = None if sample.query is None else np.unique(sample.query, return_inverse=True)[1]
    best = best_prediction(law, metric, query=sample.query)
    draws = redrawn(law, REDRAWS, 11)
    n_classes = len(law.p) if law.kind == "classes" else 0
    ours, rng = scores(metric, draws, best, query, n_classes), stream(1, "challengers", target, metric)
    better, gains = 0, []
    for _ in range(CHALLENGERS):
        gain = scores(metric, draws, perturbed(law, best, kind, rng), query, n_classes) - ours
        better += gain.mean() > 2 * gain.std(ddof=1) / np.sqrt(REDRAWS) + 1e-12
        gains.append(gain.mean())
    assert better <= CHALLENGERS * 0.025, better  # as many as pure chance would pass at two standard errors
    assert np.mean(gains) < 0


@pytest.mark.parametrize(("classes", "rows"), [(2, 6), (3, 4)])
def test_the_f_rule_against_brute_force(classes, rows):
    """Of all labellings, by their exact mean over all outcomes, the rule's is the best or next to it."""
    law = Conditional("classes", p=stream(classes, "p").dirichlet(np.full(classes, 0.7), rows).T)
    every = np.array(list(product(range(classes), repeat=rows)))
    chance = law.p[every, np.arange(rows)].prod(axis=1)
    values = np.array([scores("macro_f1", every, labels, None, classes) @ chance for labels in every])
    mine = values[(every == best_prediction(law, "macro_f1")).all(axis=1)][0]
    assert chance.sum() == pytest.approx(1) and mine > values.max() - 0.02 > values.mean()


@pytest.mark.parametrize("seed", range(5))
def test_the_kappa_rule_against_brute_force(seed):
    """Of all labellings of seven rows into three classes none has a smaller ratio of expected disagreements."""
    law = Conditional("classes", p=stream(seed, "p").dirichlet(np.full(3, 0.7), 7).T)
    every = np.array(list(product(range(3), repeat=7)))
    cost = np.square(np.arange(3)[:, None] - np.arange(3))
    wrong, chance = (cost @ law.p)[every, np.arange(7)].sum(axis=1), (cost @ law.p.mean(axis=1))[every].sum(axis=1)
    least = min(wrong / chance)
    rules = np.stack(list(_kappa_rules(law.p)))
    last = (cost @ law.p)[rules[-1], np.arange(7)].sum() / (cost @ law.p.mean(axis=1))[rules[-1]].sum()
    assert last == pytest.approx(least)


def test_expectations_in_closed_form():
    """Expected accuracy, log-loss, Brier and RMSE are those of the law."""
    for metric, closed in {
        "accuracy": lambda p: p.max(axis=0).mean(),
        "log_loss": lambda p: -(p * np.log(p)).sum(axis=0).mean(),
        "brier": lambda p: (p[0] * p[1]).mean(),
    }.items():
        world = World(task("binary", metric))
        sample = world.draw_part("private")
        report = oracle_report(world, sample, resamples=300, bound_rows=2000)
        error = 4 * report.sd_expected / np.sqrt(300)
        assert abs(report.bayes_expected - closed(sample.conditional.p)) < error
    world = World(task("regression", "rmse"))
    report = oracle_report(world, world.draw_part("private"), bound_rows=5000)
    assert report.bayes_expected == pytest.approx(world.draw(1, "private").conditional.sd[0], rel=0.01)


def test_the_realised_score_is_a_draw_from_its_expectation():
    """Over one child of every seed the realised scores have standardised mean 0 and spread 1."""
    away = []
    for name in SEEDS:
        world = World(offspring(seed_dna(name), 1))
        report = oracle_report(world, world.draw(200, "private"), resamples=40, bound_rows=500)
        away.append((report.bayes_private - report.bayes_expected) / max(report.sd_expected, 1e-12))
    assert abs(np.mean(away)) < 3 / np.sqrt(len(away)) and 0.6 < np.std(away) < 1.5 and np.abs(away).max() < 5


@pytest.mark.parametrize("family", ["linear", "tree", "radial"])
def test_fitted_models_stay_below_the_bound(family):
    """Models fitted on 1,500 rows of clean latents approach the Bayes score and do not pass it."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    world = World(TaskDNA(k_latent=4, rule=RuleDNA(family, 2)))
    train, test = world.draw(1500, "fresh"), world.draw(3000, "private")
    report = oracle_report(world, test, resamples=30, bound_rows=3000)
    found = []
    for model in (LogisticRegression(), RandomForestClassifier(40, random_state=0), SVC(random_state=0)):
        model.fit(train.z.T, train.y)
        decide = getattr(model, "decision_function", None) or (lambda x, m=model: m.predict_proba(x)[:, 1])
        found.append(score("auc", test.y, 1 / (1 + np.exp(-np.clip(decide(test.z.T), -30, 30)))))
    assert max(found) < report.bayes_private + 2 * report.sd_expected
    assert max(found) > report.bayes_private - 0.08


def test_a_report_is_plain_data():
    """It survives JSON, and the ceiling is filled in later."""
    world = World(TaskDNA())
    report = oracle_report(world, world.draw_part("private"), resamples=20, bound_rows=1000)
    filled = replace(report, ceiling=0.8)
    assert from_json(OracleReport, to_json(filled)) == filled and report.ceiling is None
    again = oracle_report(world, world.draw_part("private"), resamples=20, bound_rows=1000)
    assert again == report and "auc" in report.note


def test_predictions_have_the_kind_of_their_metric():
    """Shapes and dtypes are what the graders ask for, for every cell."""
    for target, metric in CELLS:
        sample = World(task(target, metric)).draw(50, "public")
        best, kind = best_prediction(sample.conditional, metric), task_metric(metric).prediction
        assert best.shape == ((50, len(sample.conditional.p)) if kind == "probabilities" else (50,))
        assert (best.dtype.kind == "i") == (kind == "label")
        assert np.isfinite(score(metric, sample.y, best, query=sample.query))


def test_decisions_are_repeatable_and_may_be_written_to():
    """The cache is not handed out."""
    law = Conditional("classes", p=stream(0, "p").dirichlet(np.ones(3), 40).T)
    first = best_prediction(law, "qwk")
    first[:] = 0
    assert best_prediction(law, "qwk").any()
    same = Conditional("classes", p=law.p.copy())
    assert (best_prediction(law, "macro_f1") == best_prediction(same, "macro_f1")).all()


def test_the_oracle_refuses_nonsense():
    """Metrics without a best prediction, wrong laws and wrong queries are named."""
    classes = Conditional("classes", p=np.full((3, 4), 1 / 3))
    for law, metric in ((classes, "auc"), (classes, "rmse"), (Conditional("poisson", rate=np.ones(4)), "accuracy")):
        with pytest.raises(ParameterError, match="no best prediction"):
            best_prediction(law, metric)
    with pytest.raises(ParameterError, match="logarithm|log"):
        best_prediction(Conditional("normal", mean=np.zeros(3), sd=np.ones(3)), "rmsle")
    with pytest.raises(ShapeError):
        best_prediction(classes, "accuracy", query=np.zeros(3))


@pytest.mark.parametrize("rate", [0.0, 0.2, 5.0, 400.0])
def test_poisson_summaries_against_scipy(rate):
    """Median and mean logarithm agree with scipy's law."""
    from scipy.stats import poisson

    law = Conditional("poisson", rate=np.array([rate]))
    assert best_prediction(law, "mae")[0] == (poisson(rate).median() if rate else 0)
    counts = np.arange(2000)
    expected = np.expm1((np.log1p(counts) * poisson(rate).pmf(counts)).sum()) if rate else 0.0
    assert best_prediction(law, "rmsle")[0] == pytest.approx(expected, abs=1e-9)


def test_lognormal_summaries_against_quadrature():
    """The mean logarithm of 1 + y agrees with adaptive integration."""
    from scipy.integrate import quad
    from scipy.stats import norm

    for mean, sd in ((0.0, 0.3), (4.0, 0.8), (-3.0, 0.6)):
        law = Conditional("lognormal", mean=np.array([mean]), sd=np.array([sd]))
        inner = quad(lambda u, m=mean, s=sd: np.logaddexp(0, u) * norm.pdf(u, m, s), mean - 10 * sd, mean + 10 * sd)[0]
        assert best_prediction(law, "rmsle")[0] == pytest.approx(np.expm1(inner), rel=1e-8)
        assert best_prediction(law, "mae")[0] == pytest.approx(np.exp(mean))


def heavy_law(n, sd=1.0):
    """Return a lognormal law of n rows."""
    return Conditional("lognormal", mean=stream(0, "heavy").standard_normal(n), sd=np.full(n, sd))


@pytest.mark.parametrize("metric", ["rmse", "r2"])
def test_the_mean_is_not_best_for_a_root_or_a_ratio(metric):
    """By a lead that is certain at 50 rows, under half a deviation of the paired difference, and vanishes."""
    few, many = finite_lead(heavy_law(50), metric, 1500), finite_lead(heavy_law(500), metric, 1500)
    assert 3 * few[1] / np.sqrt(1500) < few[0] < 0.5 * few[1]
    assert many[0] < few[0] / 5 and many[0] < 0.25 * many[1]


def test_the_mean_is_best_for_the_squared_error():
    """The prediction for the root has a larger squared error on unseen draws, whatever its root."""
    law = heavy_law(50)
    fit, seen = redrawn(law, 3000, 1), redrawn(law, 3000, 2)
    other = finite_best(fit, "rmse")
    excess = np.square(seen - other).mean(axis=1) - np.square(seen - law.expectation()).mean(axis=1)
    assert excess.mean() > 0 and other.mean() < law.expectation().mean()


def test_best_for_a_finite_sample_in_closed_form():
    """The spatial median of a triangle is its Fermat point; a symmetric law has its centre; R2 weighs by spread."""
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])
    assert finite_best(corners, "rmse") == pytest.approx(corners.mean(axis=0), abs=1e-6)
    y = stream(3, "symmetric").standard_normal((40, 3))
    assert finite_best(np.vstack([5 + y, 5 - y]), "rmse") == pytest.approx(np.full(3, 5.0), abs=1e-6)
    assert finite_best(np.expm1(corners), "rmsle") == pytest.approx(np.expm1(corners.mean(axis=0)), abs=1e-6)
    two = np.array([[0.0, 2.0], [0.0, 4.0]])  # spreads 2 and 8
    assert finite_best(two, "r2") == pytest.approx(two.T @ [0.8, 0.2])
    with pytest.raises(ParameterError):
        finite_best(two, "mae")
