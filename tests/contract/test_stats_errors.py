"""Bad input to the statistics is refused by name, and importing them loads nothing heavy."""

import subprocess
import sys

import numpy as np
import pytest

from rl_oodkit.core.errors import NonFiniteError, ParameterError, RlOodkitError, ShapeError, UnknownIdError
from rl_oodkit.reproduce import speed
from rl_oodkit.reproduce.metric_checks import auroc_oracle, null_coverage
from rl_oodkit.stats import aggregate, bootstrap, delong, ranking, rate_bootstrap, tests

X = np.zeros((3, 4))
ONES = np.ones((2, 3), int)
RNG = np.random.Generator(np.random.PCG64(0))
RESULT = delong.cluster_delong(X, X, np.ones(4))
METRICS = (ranking.auroc_by_step, ranking.auprc_by_step, ranking.fpr_at_tpr_by_step, ranking.counts_by_step)
RESAMPLED = (
    bootstrap.auroc_bootstrap,
    bootstrap.mean_auroc_bootstrap,
    rate_bootstrap.auprc_bootstrap,
    rate_bootstrap.fpr_at_tpr_bootstrap,
)
BAD_GROUPS = {
    "one dimension": (np.zeros(3), ShapeError),
    "three dimensions": (np.zeros((2, 2, 4)), ShapeError),
    "other steps": (np.zeros((3, 5)), ShapeError),
    "infinite": (np.full((3, 4), np.inf), NonFiniteError),
    "minus infinite": (np.where(np.eye(3, 4) > 0, -np.inf, 0.0), NonFiniteError),
    "objects": (np.full((3, 4), None), ShapeError),
    "text": (np.full((3, 4), "0"), ShapeError),
    "complex": (np.zeros((3, 4), complex), ShapeError),
    "ragged": ([[0.0], [0.0, 1.0]], ShapeError),
    "nothing": (None, ShapeError),
}


@pytest.mark.parametrize("metric", METRICS + (delong.placements,), ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", BAD_GROUPS)
def test_groups_of_scores(metric, case):
    """Either group may be the bad one."""
    bad, error = BAD_GROUPS[case]
    for groups in ((bad, X), (X, bad)):
        with pytest.raises(error) as caught:
            metric(*groups)
        assert isinstance(caught.value, RlOodkitError)


@pytest.mark.parametrize("function", RESAMPLED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", BAD_GROUPS)
def test_groups_of_resampled_scores(function, case):
    """The same for the bootstrap."""
    bad, error = BAD_GROUPS[case]
    for groups in ((bad, X), (X, bad)):
        with pytest.raises((error, ShapeError)):
            function(*groups, ONES, ONES)


@pytest.mark.parametrize("function", RESAMPLED, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("weights", "error"),
    [
        (np.ones((2, 4), int), ShapeError),
        (np.ones(3, int), ShapeError),
        (np.full((2, 3), 0.5), ShapeError),
        (np.full((2, 3), np.nan), NonFiniteError),
        (-ONES, ParameterError),
        (np.ones((5, 3), int), ShapeError),
    ],
)
def test_weights(function, weights, error):
    """Weights are whole, not negative, one an episode, as many resamples in both groups."""
    for pair in ((weights, ONES), (ONES, weights)):
        with pytest.raises(error):
            function(X, X, *pair)


FRACTIONS = (0.0, 1.0, -0.1, 2, np.nan, np.inf, "half", None, True)
CALLS = {
    "prevalence": lambda v: ranking.auprc_by_step(X, X, v),
    "tpr": lambda v: ranking.fpr_at_tpr_by_step(X, X, v),
    "resampled prevalence": lambda v: rate_bootstrap.auprc_bootstrap(X, X, ONES, ONES, v),
    "resampled tpr": lambda v: rate_bootstrap.fpr_at_tpr_bootstrap(X, X, ONES, ONES, v),
    "percentile level": lambda v: bootstrap.percentile_interval(np.zeros(3), v),
    "delong level": lambda v: delong.delong_interval(RESULT, v),
    "iqm level": lambda v: aggregate.iqm_interval(X, RNG, 5, v),
    "profile level": lambda v: aggregate.performance_profile_interval(X, np.zeros(1), RNG, 5, v),
    "binomial level": lambda v: tests.clopper_pearson(1, 2, v),
    "alpha": lambda v: tests.conformal_rank(v, 20),
    "calibration alpha": lambda v: tests.beta_binomial_interval(v, 20, 20),
    "calibration level": lambda v: tests.beta_binomial_interval(0.1, 20, 20, v),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", FRACTIONS, ids=str)
def test_fractions(name, value):
    """Levels, rates and prevalences are numbers strictly between 0 and 1."""
    with pytest.raises(ParameterError):
        CALLS[name](value)


COUNTS = {
    "episodes": lambda v: bootstrap.episode_weights(RNG, v, 3),
    "resamples": lambda v: bootstrap.episode_weights(RNG, 3, v),
    "iqm resamples": lambda v: aggregate.iqm_bootstrap(X, RNG, v),
    "profile resamples": lambda v: aggregate.performance_profile_interval(X, np.zeros(1), RNG, v),
    "calibration": lambda v: tests.conformal_rank(0.1, v),
    "fresh": lambda v: tests.beta_binomial_interval(0.1, 20, v),
    "clusters": lambda v: bootstrap.percentile_interval(np.zeros(3), 0.9, clusters=v if v is not None else 1),
    "oracle": lambda v: auroc_oracle(v, 0),
    "coverage": lambda v: null_coverage(v, 0),
    "repeats": lambda v: speed.run_speed(["iqm-bootstrap"], v),
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -1, 1.5, "3", None, True, np.nan], ids=str)
def test_counts(name, value):
    """Numbers of things are whole and positive."""
    with pytest.raises(ParameterError):
        COUNTS[name](value)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: ranking.time_weights(np.ones(3), np.ones(4)), ShapeError),
        (lambda: ranking.time_weights(np.full(3, np.nan), np.ones(3)), NonFiniteError),
        (lambda: ranking.midranks_by_step(np.zeros(3)), ShapeError),
        (lambda: ranking.pooled_auroc(np.array([np.inf]), np.zeros(2)), NonFiniteError),
        (lambda: bootstrap.weighted_mean_by_step(X, np.ones(3)), ShapeError),
        (lambda: bootstrap.weighted_mean_by_step(X, -np.ones(4)), ParameterError),
        (lambda: bootstrap.weighted_mean_by_step(X, np.full(4, np.nan)), NonFiniteError),
        (lambda: bootstrap.weighted_mean_by_step(np.float64(1), np.ones(1)), ShapeError),
        (lambda: bootstrap.percentile_interval(np.zeros((0, 3))), ShapeError),
        (lambda: bootstrap.percentile_interval(np.array([np.inf])), NonFiniteError),
        (lambda: bootstrap.resampled_counts(X, np.ones((2, 4), int)), ShapeError),
        (lambda: delong.cluster_delong(X, X, np.ones(3)), ShapeError),
        (lambda: delong.cluster_delong(X, X, -np.ones(4)), ParameterError),
        (lambda: delong.cluster_delong(X, X, np.full(4, np.inf)), NonFiniteError),
        (lambda: delong.paired_difference(RESULT, delong.cluster_delong(X[:2], X, np.ones(4))), ShapeError),
        (lambda: aggregate.iqm(np.zeros(0)), ShapeError),
        (lambda: aggregate.iqm(np.array([1.0, np.nan])), NonFiniteError),
        (lambda: aggregate.iqm_bootstrap(np.zeros(4), RNG), ShapeError),
        (lambda: aggregate.iqm_bootstrap(np.zeros((0, 3)), RNG), ShapeError),
        (lambda: aggregate.performance_profile(X, np.zeros((2, 2))), ShapeError),
        (lambda: aggregate.performance_profile(X, np.array([np.nan])), NonFiniteError),
        (lambda: tests.holm(np.array([0.5, 1.1])), ParameterError),
        (lambda: tests.holm(np.array([-0.1])), ParameterError),
        (lambda: tests.holm(X), ShapeError),
        (lambda: tests.clopper_pearson(3, 2), ParameterError),
        (lambda: tests.clopper_pearson(-1, 2), ParameterError),
        (lambda: tests.beta_binomial_pvalue(5, 0.1, 20, 4), ParameterError),
        (lambda: tests.beta_binomial_pvalue(-1, 0.1, 20, 4), ParameterError),
        (lambda: tests.coverage(np.zeros(0), np.zeros(0), 0.5), ShapeError),
        (lambda: tests.coverage(np.zeros(2), np.zeros(3), 0.5), ShapeError),
        (lambda: tests.coverage(np.zeros(2), np.ones(2), np.zeros(3)), ShapeError),
        (lambda: speed.run_speed(["iqm-bootstrop"]), UnknownIdError),
        (lambda: speed.growth("auroc-cells", [0]), ParameterError),
        (lambda: speed.growth("iqm-bootstrap", [3], "sizes"), ParameterError),
    ],
)
def test_the_rest(call, error):
    """One call a line, each with the error it must raise."""
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_empty_groups_give_nan_and_no_error(shape):
    """Nobody to compare is not a mistake of the caller: a step may lose a whole group."""
    empty, other = np.zeros(shape), np.zeros((3, shape[1]))
    none = np.ones((2, len(empty)), int)
    for groups, weights in (((empty, other), (none, ONES)), ((other, empty), (ONES, none))):
        for metric in METRICS[:3]:
            value = metric(*groups)
            assert value.shape == (shape[1],) and np.isnan(value).all()
        for function in (RESAMPLED[0], *RESAMPLED[2:]):
            value = function(*groups, *weights)
            assert value.shape == (2, shape[1]) and np.isnan(value).all()
        assert np.isnan(delong.cluster_delong(*groups, np.ones(shape[1])).auc)


def test_inputs_are_left_alone():
    """No function writes into what it was given."""
    x, y = RNG.normal(size=(6, 4)), RNG.normal(size=(5, 4))
    wx, wy = bootstrap.episode_weights(RNG, 6, 3), bootstrap.episode_weights(RNG, 5, 3)
    for array in (x, y, wx, wy):
        array.flags.writeable = False
    for metric in METRICS:
        metric(x, y)
    for function in RESAMPLED:
        function(x, y, wx, wy)
    delong.cluster_delong(x, y, np.ones(4))
    aggregate.iqm(x)
    aggregate.iqm_interval(x, RNG, 5)
    bootstrap.percentile_interval(x)


def test_the_statistics_import_nothing_heavy():
    """NumPy and SciPy suffice; learners and plots come in where they are used."""
    modules = [f"rl_oodkit.stats.{m}" for m in ("ranking", "rate_bootstrap", "delong", "aggregate", "tests")]
    code = (
        f"import sys, importlib; [importlib.import_module(m) for m in {modules}]; "
        "print(sorted({'sklearn', 'torch', 'matplotlib', 'pandas', 'gymnasium'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
