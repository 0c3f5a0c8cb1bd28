"""Mistakes are refused under their own names, before anything is computed from them."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from rl_oodkit.core import registry
from rl_oodkit.core.errors import (
    DetectorOutputError,
    EmptySplitError,
    LabelLeakError,
    NonFiniteError,
    ParameterError,
    ShapeError,
    UndeclaredFieldError,
    UnknownIdError,
)
from rl_oodkit.ood.accumulators import Cusum
from rl_oodkit.ood.conformal import Martingale
from rl_oodkit.ood.detector import build_detector, default_board, describe_detector, fit_board
from rl_oodkit.ood.detector_base import Detector
from rl_oodkit.ood.detector_checks import online_scores, planted, synthetic_trajectories
from rl_oodkit.ood.features import Transition, WindowFeatures
from rl_oodkit.ood.readable import View, validated_scores
from rl_oodkit.ood.row_scorer import RowScorer
from rl_oodkit.ood.windows import window_statistics

CLEAN = synthetic_trajectories(30)
BASES = ["mahalanobis/obs", "gmm/transition+cusum", "iforest/window", "q-entropy/q", "random", "clock", "constant"]


@pytest.mark.parametrize(
    "name",
    ["gmm", "gmm/", "/obs", "gmm/obs+", "gmm/obs/obs", "gmm+cusum", "", "ĝmm/obs", "gmm/nowhere", "gmm/obs+x", None, 3],
)
def test_names_of_no_detector(name):
    """Malformed or unknown ids are refused, and the message offers others."""
    with pytest.raises(UnknownIdError, match="Nearest|Write scorer/features"):
        build_detector(name)


def test_unknown_ids_name_the_nearest():
    """A slip of the finger is answered with what was meant."""
    with pytest.raises(UnknownIdError, match="mahalanobis"):
        build_detector("mahalonobis/obs")
    with pytest.raises(UnknownIdError, match="cusum"):
        build_detector("gmm/transition+cusums")
    with pytest.raises(UnknownIdError, match="transition"):
        describe_detector("gmm/transitions")


def test_parameters_find_their_part():
    """By name where it is unique, with the part in front where it is not."""
    made = build_detector("iforest/window+mean20", n_trees=7, features__width=9, accumulator__width=5)
    assert (made.scorer.n_trees, made.features.width, made.accumulator.width) == (7, 9, 5)
    for wrong in ({"width": 5}, {"n_tress": 7}, {"scorer__width": 5}, {"nobody__k": 1}):
        with pytest.raises(ParameterError, match="Known are"):
            build_detector("iforest/window+mean20", **wrong)
    with pytest.raises(ParameterError):
        build_detector("clock", seed_of_time=1)
    assert build_detector("random", seed=4).seed == 4 and build_detector("clock", seed=4).id == "clock"


def test_parts_that_do_not_fit_are_refused():
    """A model of the dynamics needs targets, a policy score needs action values."""
    with pytest.raises(ParameterError, match="transition"):
        build_detector("ens-nll/obs")
    with pytest.raises(ParameterError, match="Features that fit: q"):
        build_detector("q-entropy/transition")


@pytest.mark.parametrize("name", BASES)
def test_disturbed_and_empty_splits(name):
    """Neither fit nor calibration may see a disturbance or a single episode."""
    detector = build_detector(name)
    with pytest.raises(LabelLeakError, match="fit of"):
        detector.fit(planted(CLEAN))
    with pytest.raises(EmptySplitError, match="one episode"):
        detector.fit(CLEAN.select([0]))
    detector.fit(CLEAN)
    with pytest.raises(LabelLeakError, match="calibration of"):
        detector.calibrate(planted(CLEAN))
    with pytest.raises(EmptySplitError):
        detector.calibrate(CLEAN.select([3]))
    one_leak = replace(CLEAN, active=np.arange(CLEAN.n_steps) == 25, onset=np.where(np.arange(30) == 0, 25, -1))
    with pytest.raises(LabelLeakError, match="episode 0"):
        detector.fit(one_leak)


def test_sham_onsets_are_no_disturbance():
    """An onset without active steps may be calibrated on."""
    build_detector("mahalanobis/obs").fit(CLEAN.with_sham_onset(0, 5, 20))


@pytest.mark.parametrize("name", ["mahalanobis/obs", "gmm/transition", "iforest/window", "q-entropy/q"])
def test_scoring_before_the_fit(name):
    """In batch and online."""
    with pytest.raises(NotFittedError):
        build_detector(name).score_batch(CLEAN)
    with pytest.raises(NotFittedError):
        build_detector(name).start()
    with pytest.raises(NotFittedError):
        build_detector(name).calibrate(CLEAN)


def test_accumulating_before_the_calibration():
    """Recursions that need a scale say so; so does a threshold."""
    fitted = build_detector("mahalanobis/obs+cusum").fit(CLEAN)
    with pytest.raises(NotFittedError, match="not calibrated"):
        fitted.score_batch(CLEAN)
    with pytest.raises(NotFittedError, match="not calibrated"):
        _ = fitted.thresholds
    for part in (Cusum(), Martingale()):
        with pytest.raises(NotFittedError, match="not calibrated"):
            part.run(np.zeros((1, 3)))
    assert np.isfinite(build_detector("mahalanobis/obs").fit(CLEAN).score_batch(CLEAN)[0, 0])


def test_calibration_without_any_score():
    """Windows longer than every episode leave nothing to learn from."""
    short = synthetic_trajectories(6, length=12)
    with pytest.raises(EmptySplitError, match="0 rows are defined"):
        build_detector("mahalanobis/window").fit(short)
    with pytest.raises(EmptySplitError, match="no calibration step"):
        build_detector("mahalanobis/window").fit(CLEAN).calibrate(short)


def test_too_few_episodes_for_a_threshold():
    """Ten episodes cannot promise five per cent: infinite threshold, and a warning that says so."""
    detector = build_detector("mahalanobis/obs").fit(CLEAN).calibrate(CLEAN.select(np.arange(10)))
    with pytest.warns(RuntimeWarning, match="10 calibration episodes"):
        assert detector.thresholds == {"per_episode": np.inf}
    assert np.isfinite(detector.threshold(0.2))


def test_other_widths():
    """Episodes of another environment are refused by every part that looks at them."""
    wide = replace(
        CLEAN,
        observations=np.hstack([CLEAN.observations] * 2),
        true_observations=np.hstack([CLEAN.true_observations] * 2),
        internals={k: np.hstack([v, v]) for k, v in CLEAN.internals.items()},
    )
    for name in ("mahalanobis/obs", "gmm/transition", "iforest/window", "q-entropy/q", "mahalanobis/penultimate"):
        with pytest.raises(ShapeError):
            build_detector(name).fit(CLEAN).score_batch(wide)


def test_internals_that_were_not_recorded():
    """The message says how to record them, in batch and online."""
    bare = replace(CLEAN, internals={})
    with pytest.raises(ParameterError, match="record"):
        build_detector("q-entropy/q").fit(bare)
    fitted = build_detector("q-entropy/q").fit(CLEAN)
    with pytest.raises(ParameterError, match="record"):
        fitted.score_batch(bare)
    fitted.start()
    o = CLEAN.observations
    with pytest.raises(ParameterError, match="record"):
        fitted.update(Transition(o[0], 0, 0.0, o[1], False, False))


def test_updating_without_a_start():
    """A monitor that forgot to begin the episode is told."""
    fitted = build_detector("mahalanobis/obs").fit(CLEAN)
    o = CLEAN.observations
    with pytest.raises(ParameterError, match="Call start first"):
        fitted.update(Transition(o[0], 0, 0.0, o[1], False, False))


def test_online_observations_may_be_broken():
    """A NaN or a wrong width from a live sensor is an error, not a score."""
    fitted = build_detector("mahalanobis/obs").fit(CLEAN)
    fitted.start()
    o = CLEAN.observations
    with pytest.raises(ShapeError):
        fitted.update(Transition(o[0], 0, 0.0, o[1][:3], False, False))
    with pytest.raises(NonFiniteError):
        fitted.update(Transition(o[0], 0, 0.0, np.full(5, np.inf), False, False))
    for name in ("gmm/transition", "iforest/window", "mahalanobis/obs+cusum"):
        fitted = build_detector(name).fit(CLEAN).calibrate(CLEAN)
        fitted.start()
        with pytest.raises(NonFiniteError, match="observations"):
            fitted.update(Transition(o[0], 0, 0.0, np.full(5, np.nan), False, False))


def test_terminal_transitions_have_no_score():
    """Terminated episodes end in NaN, truncated ones do not, in batch and online."""
    for name in ("mahalanobis/obs", "gmm/transition", "random", "clock", "constant"):
        fitted = build_detector(name).fit(CLEAN).calibrate(CLEAN)
        table = validated_scores(fitted, CLEAN)
        ends = table[np.arange(CLEAN.n_episodes), CLEAN.lengths - 1]
        np.testing.assert_array_equal(np.isnan(ends), CLEAN.terminated)
        assert [np.isnan(online_scores(fitted, CLEAN.episode(i))[-1]) for i in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    "field", ["true_observations", "executed_actions", "active", "onset", "env_seeds", "terminated"]
)
def test_hidden_fields_cannot_be_declared(field):
    """No declaration opens a label, a diagnostic or the future."""
    with pytest.raises(ParameterError, match=field):
        Detector("curious", frozenset({field}))
    with pytest.raises(UndeclaredFieldError, match="No detector may read it"):
        getattr(View(CLEAN, frozenset({field})), field)


def test_views_show_declared_fields_only():
    """Also through another view, and for internals."""
    view = View(View(CLEAN, frozenset({"observations", "q"})), frozenset({"observations", "actions"}))
    assert view.observations is CLEAN.observations
    for name in ("actions", "rewards"):
        with pytest.raises(UndeclaredFieldError):
            getattr(view, name)
    with pytest.raises(UndeclaredFieldError):
        view.internals["q"]
    with pytest.raises(UndeclaredFieldError):
        View(CLEAN, frozenset({"q"})).internals["features"]
    assert list(View(CLEAN, frozenset({"q"})).internals) == ["q"]
    assert not hasattr(view, "no_such_field")


def test_detectors_without_a_batch_method_are_scored_one_by_one():
    """And a wrong length names detector and episode."""

    class Solo:
        id, reads = "solo", frozenset({"observations"})
        extra = 0

        def score_samples(self, episode):
            scores = np.abs(episode.observations[1:, 0].astype(float))
            scores[episode.terminal] = np.nan
            return np.append(scores, np.zeros(self.extra))

    table = validated_scores(Solo(), CLEAN)
    assert table.shape == (30, CLEAN.lengths.max()) and np.isfinite(table[1, 0])
    solo = Solo()
    solo.extra = 1
    with pytest.raises(DetectorOutputError, match="'solo'.*episode 0"):
        validated_scores(solo, CLEAN)


def test_windows_and_widths():
    """A window of one observation has no slope."""
    for width in (1, 0, -3, 2.5, "20", True):
        with pytest.raises(ParameterError):
            WindowFeatures(width)
        with pytest.raises(ParameterError):
            window_statistics(np.zeros((9, 1)), width)
    assert window_statistics(np.zeros((3, 2)), 9).shape == (0, 6, 2)
    with pytest.raises(ShapeError):
        window_statistics(np.zeros(9), 3)


def test_constant_scores_can_be_calibrated():
    """A constant has no scale, and no accumulator divides by it."""
    for entry in registry.entries("accumulator"):
        part = entry.obj().calibrate(np.zeros((5, 30)))
        assert np.isfinite(part.run(np.zeros((2, 30)))).all()


def test_shared_fits_must_be_equal():
    """Scores with other parameters may not take over a fit."""
    a = registry.make("scorer", "ens-nll", random_state=0)
    assert a.same_fit(registry.make("scorer", "ens-var", random_state=0))
    assert not a.same_fit(registry.make("scorer", "ens-var", random_state=1))
    with pytest.raises(ParameterError, match="cannot share"):
        registry.make("scorer", "ens-var", random_state=1).share(a)
    assert build_detector("iforest/window").fit(CLEAN).same_fit(build_detector("iforest/window")) is False
    assert not build_detector("gmm/window", width=9).same_fit(build_detector("gmm/window").fit(CLEAN))


def test_a_board_is_fitted_as_its_members_are():
    """Sharing changes no bit, and the controls are on it."""
    names = ["gmm/transition", "gmm/transition+cusum", "ens-nll/transition", "ens-var/transition", "random"]
    together = fit_board(names, CLEAN, CLEAN, seed=3)
    assert list(together) == names
    assert together["gmm/transition"].scorer is together["gmm/transition+cusum"].scorer
    for name in names:
        alone = build_detector(name, seed=3).fit(CLEAN).calibrate(CLEAN)
        np.testing.assert_array_equal(alone.score_batch(CLEAN), together[name].score_batch(CLEAN))


def test_a_new_scorer_enters_the_board_by_itself(monkeypatch):
    """One decorated class, and two products stand on the default board, built, fitted and scored."""
    monkeypatch.setattr(registry._STATE, "entries", dict(registry._STATE.entries))

    @registry.register("scorer", "spread")
    class Spread(RowScorer):
        """Score by the largest absolute value of a row."""

        def _fit(self, X):
            self.scale_ = X.std(axis=0) + 1e-9

        def _score(self, X):
            return np.abs(X / self.scale_).max(axis=1)

    assert {"spread/transition", "spread/transition+cusum"} <= set(default_board())
    detector = build_detector("spread/transition+cusum").fit(CLEAN).calibrate(CLEAN)
    assert validated_scores(detector, CLEAN).shape == (30, CLEAN.lengths.max())


def test_listing_loads_no_network_library():
    """Naming and describing the whole board imports neither PyTorch nor plotting."""
    code = (
        "import sys; from rl_oodkit.ood.detector import default_board, describe_detector\n"
        "[describe_detector(n) for n in default_board()]\n"
        "print([m for m in ('torch', 'stable_baselines3', 'matplotlib', 'papermill') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
