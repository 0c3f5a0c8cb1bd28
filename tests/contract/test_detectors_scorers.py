"""Every registered scorer is an honest scikit-learn estimator that points the declared way."""

import numpy as np
import pytest
from sklearn.base import OutlierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from rl_oodkit.core.errors import NonFiniteError, ShapeError
from rl_oodkit.core.registry import entries, make, names

SMALL = {"iforest": {"n_trees": 10}, **{name: {"hidden": 4, "epochs": 1} for name in ("ens-nll", "ens-mse", "ens-var")}}
OURS = [e.id for e in entries("scorer") if e.module.startswith("rl_oodkit.")]
BLIND_TO_A_SHIFT = {"ens-var", "q-entropy", "q-maxsoftmax", "q-margin"}  # of targets, or common to all actions


def small(name):
    """Make a scorer that is quick to fit."""
    return make("scorer", name, **SMALL.get(name, {}))


def seeded(scorer):
    """Fix the random state of a scorer that has one."""
    return scorer.set_params(**({"random_state": 0} if "random_state" in scorer.get_params() else {}))


@parametrize_with_checks([small(name) for name in OURS])
def test_estimator_checks(estimator, check):
    """All of scikit-learn's checks pass, none is excepted."""
    check(estimator)


@pytest.mark.parametrize("name", names("scorer"))
def test_no_scorer_inherits_the_opposite_sign(name):
    """`OutlierMixin` promises that lower is stranger."""
    assert not isinstance(small(name), OutlierMixin)


@pytest.mark.parametrize("name", OURS)
def test_a_shift_of_ten_sd_ranks_above_clean_rows(name):
    """The area between clean rows and rows with shifted targets is at least .99."""
    rows, fresh = np.random.default_rng(0).normal(size=(2, 400, 6))
    scorer = seeded(make("scorer", name)).fit(rows)
    shifted = fresh - 10 if name.startswith("q-") else fresh + [0, 0, 0, 10, 10, 10]
    x, y = scorer.score_samples(fresh), scorer.score_samples(shifted)
    area = np.mean(y[:, None] > x) + 0.5 * np.mean(y[:, None] == x)
    if name in BLIND_TO_A_SHIFT:
        np.testing.assert_allclose(y, x, atol=1e-12)
    else:
        assert area >= 0.99


@pytest.mark.parametrize("name", OURS)
def test_bad_rows_are_named(name):
    """NaN and infinity in fit or score, wrong widths, and scoring before the fit."""
    rows = np.random.default_rng(0).normal(size=(40, 6))
    bad = rows.copy()
    with pytest.raises(NotFittedError):
        small(name).score_samples(rows)
    for value in (np.nan, np.inf, -np.inf):
        bad[3, 2] = value
        with pytest.raises(NonFiniteError, match=type(small(name)).__name__):
            small(name).fit(bad)
    scorer = small(name).fit(rows)
    with pytest.raises(NonFiniteError):
        scorer.score_samples(bad)
    with pytest.raises(ShapeError, match="expecting 6 features"):
        scorer.score_samples(rows[:, :5])


@pytest.mark.parametrize("name", OURS)
def test_rows_do_not_see_each_other(name):
    """Order and batch size change a score by rounding at most, and the fit leaves its input alone."""
    rows = np.random.default_rng(1).normal(size=(300, 6))
    kept = rows.copy()
    scorer = seeded(small(name))
    scores = scorer.fit(rows).score_samples(rows)
    np.testing.assert_array_equal(rows, kept)
    order = np.random.default_rng(2).permutation(300)
    np.testing.assert_allclose(scorer.score_samples(rows[order]), scores[order], rtol=1e-9, atol=1e-9)
    one_by_one = [scorer.score_samples(row[None])[0] for row in rows[:7]]
    np.testing.assert_allclose(one_by_one, scores[:7], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OURS)
def test_one_seed_one_score(name):
    """Two fits with one seed agree bit for bit."""
    rows = np.random.default_rng(1).normal(size=(300, 6))
    a, b = (seeded(small(name)).fit(rows).score_samples(rows) for _ in range(2))
    np.testing.assert_array_equal(a, b)
