"""Task metrics against scikit-learn, ties and one-class cases included, and the bootstrap against repeated tables."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as sk

from rl_oodkit.core.errors import NonFiniteError, ParameterError, RlOodkitError, ShapeError, UnknownIdError
from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.metrics import bootstrap, graded, metric_ids, score, task_metric
from rl_oodkit.mle.resampling import paired_difference, score_interval, standard_error
from rl_oodkit.stats.bootstrap import episode_weights

CLASSES = 4
ROUND = st.integers(0, 8).map(lambda i: i / 8)  # few values, so that ties are the rule
REALS = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))


def per_query(function):
    """Return the mean of a library function over queries."""
    return lambda y, p, q: float(np.mean([function(y[q == i], p[q == i]) for i in np.unique(q)]))


def average_precision(y, p):
    """Return the library's average precision, and 0 without anything relevant."""
    return sk.average_precision_score(y > 0, p) if (y > 0).any() else 0.0


def discounted_gain(y, p):
    """Return the library's normalised gain, which wants two items or more."""
    return sk.ndcg_score([y], [p]) if len(y) > 1 else float(y[0] > 0)


LABELS = list(range(CLASSES))
LIBRARY = {
    "accuracy": lambda y, p, q: sk.accuracy_score(y, p),
    "macro_f1": lambda y, p, q: sk.f1_score(y, p, average="macro"),
    "qwk": lambda y, p, q: sk.cohen_kappa_score(y, p, labels=LABELS, weights="quadratic"),
    "log_loss": lambda y, p, q: sk.log_loss(y, p, labels=LABELS),
    "brier": lambda y, p, q: sk.brier_score_loss(y, p),
    "auc": lambda y, p, q: sk.roc_auc_score(y, p),
    "rmse": lambda y, p, q: sk.root_mean_squared_error(y, p),
    "mae": lambda y, p, q: sk.mean_absolute_error(y, p),
    "rmsle": lambda y, p, q: sk.root_mean_squared_log_error(y, p),
    "r2": lambda y, p, q: sk.r2_score(y, p),
    "map": per_query(average_precision),
    "ndcg": per_query(discounted_gain),
}


@st.composite
def cases(draw, metric, least=2, most=25):
    """Draw answers, predictions and queries that suit a metric."""
    n, kind = draw(st.integers(least, most)), task_metric(metric).prediction
    query = np.sort(draw(arrays(np.int64, n, elements=st.integers(0, 4)))) if kind == "score" else None
    if kind == "label":
        y, p = (draw(arrays(np.int64, n, elements=st.integers(0, CLASSES - 1))) for _ in "yp")
    elif kind == "probabilities":
        y = draw(arrays(np.int64, n, elements=st.integers(0, CLASSES - 1)))
        p = draw(arrays(float, (n, CLASSES), elements=ROUND)) + 0.125
        p /= p.sum(axis=1, keepdims=True)
    elif kind == "probability":
        y, p = draw(arrays(np.int64, n, elements=st.integers(0, 1))), draw(arrays(float, n, elements=ROUND))
        y[:2] = 0, 1
    elif kind == "score":
        y, p = draw(arrays(np.int64, n, elements=st.integers(0, 3))), draw(arrays(float, n, elements=ROUND))
    else:
        values = ROUND if metric == "rmsle" else REALS
        y, p = (draw(arrays(float, n, elements=values)) for _ in "yp")
    return y, p, query


def library(metric, y, p, query) -> float:
    """Return the library's score without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(LIBRARY[metric](y, p, query))


def classes(metric) -> int | None:
    """Return the number of classes where there are any."""
    return {"label": CLASSES, "probabilities": CLASSES}.get(task_metric(metric).prediction)


def test_all_twelve_are_compared():
    """The table of library functions is the table of metrics."""
    assert set(LIBRARY) == set(metric_ids())


@pytest.mark.parametrize("metric", LIBRARY)
@given(data=st.data())
@settings(max_examples=60)
def test_scores_equal_the_library(metric, data):
    """To 1e-12, relative where the score is large, ties included."""
    y, p, query = data.draw(cases(metric))
    ours, theirs = score(metric, y, p, query=query, n_classes=classes(metric)), library(metric, y, p, query)
    if metric == "qwk" and np.isnan(theirs):
        theirs = 1.0  # one single class throughout, which we call perfect agreement
    assert abs(ours - theirs) <= 1e-12 * max(1.0, abs(theirs))


@pytest.mark.parametrize("metric", LIBRARY)
def test_bootstrap_equals_the_library_on_repeated_rows(metric):
    """A resample is a table; scoring the table with the library gives the same number."""
    rng, n = stream(3, metric), 60
    kind, query = task_metric(metric).prediction, None
    y = rng.integers(0, 2 if kind == "probability" else CLASSES, n)
    p = rng.integers(0, CLASSES, n) if kind == "label" else np.round(rng.random(n), 1)
    if kind == "probabilities":
        p = rng.dirichlet(np.ones(CLASSES), n)
    if kind == "score":
        query = np.repeat(np.arange(6), 10)
    y = y.astype(float) if kind == "value" else y
    ours = bootstrap(metric, y, p, resamples=12, seed=4, query=query, n_classes=classes(metric))
    units = n if query is None else 6
    for value, counts in zip(ours, episode_weights(stream(4, "bootstrap"), units, 12), strict=True):
        if query is None:
            rows = np.repeat(np.arange(n), counts)
            expected = library(metric, y[rows], p[rows], None)
        else:
            picked = np.repeat(np.arange(6), counts)
            rows = np.concatenate([np.flatnonzero(query == i) for i in picked])
            expected = library(metric, y[rows], p[rows], np.repeat(np.arange(6), 10))
        assert abs(value - expected) <= 1e-12 * max(1.0, abs(expected))


@pytest.mark.parametrize("metric", LIBRARY)
@given(data=st.data())
@settings(max_examples=15)
def test_order_of_rows_means_nothing(metric, data):
    """Rows may be shuffled, within 1e-12."""
    y, p, query = data.draw(cases(metric))
    order = stream(data.draw(st.integers(0, 9)), "shuffle").permutation(len(y))
    before = score(metric, y, p, query=query, n_classes=classes(metric))
    after = score(metric, y[order], p[order], query=None if query is None else query[order], n_classes=classes(metric))
    assert abs(before - after) <= 1e-12 * max(1.0, abs(before))


@pytest.mark.parametrize("metric", LIBRARY)
@given(data=st.data())
@settings(max_examples=15)
def test_scores_stay_in_their_declared_range(metric, data):
    """Low and high bound every score."""
    y, p, query = data.draw(cases(metric))
    facts = task_metric(metric)
    assert facts.low - 1e-12 <= score(metric, y, p, query=query, n_classes=classes(metric)) <= facts.high + 1e-12


def test_perfect_predictions_reach_the_best_score():
    """And the direction says which end that is."""
    y = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    q, two = np.repeat([0, 1], 4), y % 2
    perfect = {
        "accuracy": y, "macro_f1": y, "qwk": y, "log_loss": np.eye(4)[y], "brier": two * 1.0, "auc": two * 1.0,
        "rmse": y, "mae": y, "rmsle": y, "r2": y, "map": y, "ndcg": y,
    }  # fmt: skip
    for metric, p in perfect.items():
        answers = two if metric in ("brier", "auc") else y
        value = score(metric, answers, p, query=q)
        assert value == pytest.approx(task_metric(metric).best, abs=1e-14), metric


@pytest.mark.parametrize(
    ("y", "p", "expected"),
    [([3.0, 3.0], [3.0, 3.0], 1.0), ([3.0, 3.0], [3.0, 4.0], 0.0), ([0.1] * 7, [0.1] * 7, 1.0)],
)
def test_constant_answers_have_a_defined_r2(y, p, expected):
    """1 if perfect, else 0, as in the library."""
    assert score("r2", y, p) == expected


def test_one_class_has_no_area_and_says_so():
    """A single score is an error with a name; in a bootstrap it is NaN and left out of intervals."""
    with pytest.raises(ParameterError, match="auc is undefined"):
        score("auc", [1, 1], [0.1, 0.9])
    draws = bootstrap("auc", [0, 1], [0.1, 0.9], resamples=200)
    assert np.isnan(draws).any() and set(draws[np.isfinite(draws)]) == {1.0}
    assert score_interval("auc", [0, 1], [0.1, 0.9], resamples=200)[1:] == (1.0, 1.0)


def test_one_single_class_is_perfect_agreement():
    """The quadratic kappa of a constant task, right and wrong."""
    assert score("qwk", [2, 2, 2], [2, 2, 2]) == 1.0
    assert score("qwk", [2, 2, 2], [1, 1, 1]) == 0.0


def test_queries_without_anything_relevant_count_zero():
    """Whatever their ranking."""
    for metric in ("map", "ndcg"):
        assert score(metric, [0, 0, 1, 0], [3.0, 1.0, 2.0, 1.0], query=[0, 0, 1, 1]) == 0.5


@given(data=st.data())
@settings(max_examples=30)
def test_weights_are_repetitions(data):
    """An integer weight stands for that many equal rows."""
    metric = data.draw(st.sampled_from(["accuracy", "auc", "rmse", "qwk", "macro_f1", "brier", "r2"]))
    y, p, _ = data.draw(cases(metric, least=3))
    w = data.draw(arrays(np.int64, len(y), elements=st.integers(1, 4)))
    repeated = score(metric, np.repeat(y, w), np.repeat(p, w), n_classes=classes(metric))
    assert score(metric, y, p, weights=w, n_classes=classes(metric)) == pytest.approx(repeated, abs=1e-9)


BAD = [
    ("accuracy", [0, 1], [0, 2], {"n_classes": 2}, ParameterError),
    ("accuracy", [0, 1], [0, -1], {}, ParameterError),
    ("accuracy", [0, 1], [0.5, 1], {}, ShapeError),
    ("accuracy", [0, 1], ["a", "b"], {}, ShapeError),
    ("accuracy", [], [], {}, ShapeError),
    ("accuracy", [0, 1], [0], {}, ShapeError),
    ("brier", [0, 2], [0.5, 0.5], {}, ParameterError),
    ("brier", [0, 1], [0.5, 1.5], {}, ParameterError),
    ("brier", [0, 1], [0.5, np.nan], {}, NonFiniteError),
    ("auc", [0, 1], [[0.5, 0.5], [0.5, 0.5]], {}, ShapeError),
    ("log_loss", [0, 1], [[0.5, 0.6], [0.5, 0.5]], {}, ParameterError),
    ("log_loss", [0, 3], [[0.5, 0.5], [0.5, 0.5]], {}, ParameterError),
    ("log_loss", [0, 1], [[0.5, 0.5], [0.5, 0.5]], {"n_classes": 3}, ShapeError),
    ("rmse", [0.0, np.inf], [0.5, 0.5], {}, NonFiniteError),
    ("rmsle", [0.0, 1.0], [0.5, -1.0], {}, ParameterError),
    ("ndcg", [0, 1], [0.5, 0.5], {}, ShapeError),
    ("ndcg", [0, -1], [0.5, 0.5], {"query": [0, 0]}, ParameterError),
    ("map", [0, 1], [0.5, 0.5], {"query": [0]}, ShapeError),
    ("nonsense", [0, 1], [0, 1], {}, UnknownIdError),
    (3, [0, 1], [0, 1], {}, UnknownIdError),
]


@pytest.mark.parametrize(("metric", "y", "p", "more", "error"), BAD, ids=range(len(BAD)))
def test_what_is_no_prediction_is_refused_by_name(metric, y, p, more, error):
    """Each with an error of this package, from `score` and `bootstrap` alike."""
    for function in (score, bootstrap):
        with pytest.raises(error):
            function(metric, y, p, **more)


def test_weights_are_checked():
    """Negative, all zero and misshapen weights."""
    for w in ([-1.0, 1.0], [0.0, 0.0], [1.0], [np.nan, 1.0]):
        with pytest.raises(RlOodkitError):
            score("mae", [0.0, 1.0], [0.0, 1.0], weights=w)


def test_both_spellings_find_a_metric():
    """Registry names use hyphens."""
    assert task_metric("log-loss") == task_metric("log_loss") and "log_loss" in metric_ids()


def test_a_pair_of_equal_predictions_does_not_differ():
    """Zero, with zero error, in both directions."""
    y, p = stream(0, "pair").normal(size=(2, 50))
    for metric in ("rmse", "r2"):
        found = paired_difference(metric, y, p, p)
        assert (found.value, found.standard_error, found.low, found.high) == (0, 0, 0, 0)
    better = paired_difference("rmse", y, y, p)
    assert better.value > 0 and better.resolved


def test_standard_error_of_a_mean():
    """The bootstrap of a mean absolute error has the textbook standard error."""
    y = stream(1, "se").exponential(size=400)
    draws = bootstrap("mae", y, np.zeros(400), resamples=4000)
    assert standard_error(draws) == pytest.approx(y.std() / 20, rel=0.05)
    with pytest.raises(ParameterError):
        standard_error(np.array([1.0, np.nan]))


def test_big_bootstraps_are_cut_into_pieces():
    """More counts than fit into one piece, same law, seeds decide."""
    y = stream(2, "big").normal(size=1_200_000)
    draws = bootstrap("mae", y, y + 1.0, resamples=3)
    assert draws.shape == (3,) and np.allclose(draws, 1.0)


def test_graded_fills_in_both_columns_of_one_probability():
    """A single probability of the second class will do for the log loss."""
    p = np.array([0.25, 0.75])
    assert graded("log_loss", [0, 1], p)[1].prediction.tolist() == [[0.75, 0.25], [0.25, 0.75]]
    assert score("log_loss", [0, 1], p) == pytest.approx(-np.log(0.75))
