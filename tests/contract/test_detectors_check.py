"""Every detector of the default board obeys every law, and every broken one is caught by the law it breaks."""

import numpy as np
import pytest

from rl_oodkit.core import registry
from rl_oodkit.core.errors import DetectorOutputError, UndeclaredFieldError
from rl_oodkit.ood.controls import RandomControl
from rl_oodkit.ood.detector import build_detector, default_board, describe_detector
from rl_oodkit.ood.detector_base import Detector
from rl_oodkit.ood.detector_checks import check_detector, synthetic_trajectories
from rl_oodkit.ood.features import next_rows
from rl_oodkit.ood.recursion import Accumulator

EVERY_FACTOR = ["pca/transition", "ocsvm/obs", "kde/transition", "knn/penultimate+conformal-cusum"]
EVERY_FACTOR += ["ridge/transition+page-hinkley", "mahalanobis/window+shiryaev-roberts", "q-margin/q+ewma"]


@pytest.mark.parametrize("name", [*default_board(), *EVERY_FACTOR])
def test_laws(name):
    """Differences are rounding; the planted disturbance is seen, by all but the controls."""
    report = check_detector(name)
    area = report.pop("higher is stranger")
    assert max(report.values()) <= 1e-9
    assert area >= 0.99 or name in ("clock", "constant", "random")


def test_every_part_is_checked():
    """No registered part is left out of the list above."""
    whole = "\n".join([*default_board(), *EVERY_FACTOR])
    for kind, before, after in (("scorer", "", "/"), ("features", "/", ""), ("accumulator", "+", "")):
        ours = [e.id for e in registry.entries(kind) if e.module.startswith("rl_oodkit.")]
        assert not [i for i in ours if f"{before}{i}{after}" not in whole and i != "none"]


def test_the_board_has_the_size_of_a_board():
    """Unique names, each of which can be built and described."""
    board = default_board()
    assert len(set(board)) == len(board) and 20 <= len(board) <= 28
    assert {"random", "clock", "constant"} <= set(board)
    for name in board:
        summary, parameters = describe_detector(name)
        assert summary.endswith(".") and all(isinstance(p, str) for p, _ in parameters)
        assert build_detector(name).id == name


class Distance(Detector):
    """Score by the distance of the next observation from the origin: correct, and a base for what is not."""

    def __init__(self, id="distance", reads=("observations",)):
        super().__init__(id, frozenset(reads))

    def _scores(self, view):
        return np.linalg.norm(view.observations[next_rows(view)].astype(float), axis=1)

    def _advance(self, transition):
        return float(np.linalg.norm(transition.next_observation.astype(float)))


class Centred(Distance):
    """Look one step ahead, in batch and alone."""

    def _scores(self, view):
        raw = super()._scores(view)
        ahead = np.minimum(np.arange(len(raw)) + 1, np.repeat(view.step_starts + view.lengths - 1, view.lengths))
        return raw + 0.5 * raw[ahead]


class WholeEpisode(Distance):
    """Scale by the largest score of the episode."""

    def _scores(self, view):
        raw = super()._scores(view)
        return raw / np.repeat(np.maximum.reduceat(raw, view.step_starts), view.lengths)


class Lengthy(Distance):
    """Know how long the episode will be."""

    def _scores(self, view):
        return super()._scores(view) + np.repeat(view.lengths, view.lengths)


class CarryOver(Distance):
    """Remember the episode before."""

    def _scores(self, view):
        return np.cumsum(super()._scores(view))


class RunningMean(Distance):
    """Update a mean while scoring."""

    mean = 0.0

    def _scores(self, view):
        raw = super()._scores(view)
        self.mean = 0.9 * self.mean + 0.1 * raw.mean()
        return raw


class BatchScale(Distance):
    """Scale by the mean of whatever is scored together."""

    def _scores(self, view):
        raw = super()._scores(view)
        return raw / raw.mean()


class Flipped(Distance):
    """Keep a library's sign, in both twins."""

    def _scores(self, view):
        return -super()._scores(view)

    def _advance(self, transition):
        return -super()._advance(transition)


class OtherTwin(Distance):
    """Score the observation before in the online twin."""

    def _advance(self, transition):
        return float(np.linalg.norm(transition.observation.astype(float)))


class ForgetfulTwin(Distance):
    """Count steps online, and never start again."""

    steps = 0

    def _scores(self, view):
        time = np.arange(view.n_steps) - np.repeat(view.step_starts, view.lengths)
        return super()._scores(view) + 1e-3 * time

    def _advance(self, transition):
        self.steps += 1
        return super()._advance(transition) + 1e-3 * (self.steps - 1)


class InPlace(Distance):
    """Standardise the fit split in place."""

    def _fit(self, view):
        values = view.observations
        values -= values.mean(axis=0)


class ThroughTheBack(Distance):
    """Write into the fit split by way of the memory beneath the read-only view."""

    def _fit(self, view):
        base = view.observations.base
        base.flags.writeable = True
        base += 1.0


class Unseeded(Distance):
    """Draw a weight that no seed fixes."""

    def _fit(self, view):
        self.weight = np.random.default_rng().uniform(1, 2)

    def _scores(self, view):
        return self.weight * super()._scores(view)


class Peeking(Distance):
    """Read the reward without declaring it."""

    def _scores(self, view):
        return super()._scores(view) - view.rewards


class Smuggling(Distance):
    """Reach behind the view for the labels."""

    def _scores(self, view):
        inner = view
        while hasattr(inner, "_trajs"):
            inner = inner._trajs
        return super()._scores(view) + inner.active


class TooLong(Distance):
    """Return one score too many."""

    def _scores(self, view):
        return np.append(super()._scores(view), 0.0)


class Infinite(Distance):
    """Divide by zero."""

    def _scores(self, view):
        with np.errstate(divide="ignore"):
            return super()._scores(view) / (super()._scores(view) > 0.2)


class Gaps(Distance):
    """Leave out steps in the middle."""

    def _scores(self, view):
        raw = super()._scores(view)
        return np.where(np.arange(len(raw)) % 7 == 3, np.nan, raw)


class ScoresTheEnd(Distance):
    """Score the terminal transition."""

    def score_base(self, trajs):
        return trajs.padded(self._scores(trajs))


BROKEN = {
    Centred: "a prefix decides",
    WholeEpisode: "a prefix decides",
    Lengthy: "a prefix decides",
    CarryOver: "a batch is its episodes",
    RunningMean: "scoring changes nothing",
    BatchScale: "a batch is its episodes",
    Flipped: "higher is stranger",
    OtherTwin: "the online twin agrees",
    ForgetfulTwin: "the online twin agrees",
    InPlace: "fit leaves its input alone",
    ThroughTheBack: "fit leaves its input alone",
    Unseeded: "equal fits score equally",
    Smuggling: "undeclared fields are irrelevant",
    TooLong: "returned shape",
    Infinite: "an infinite score",
    Gaps: "no score after warm-up",
    ScoresTheEnd: "terminal transition",
}


def test_the_unbroken_one_passes():
    """What the broken ones derive from is sound."""
    assert check_detector(Distance)["higher is stranger"] >= 0.99


@pytest.mark.parametrize("family", BROKEN, ids=lambda f: f.__name__)
def test_broken_detectors_are_caught(family):
    """By the law they break, with their name in the message."""
    with pytest.raises(DetectorOutputError, match=BROKEN[family]) as caught:
        check_detector(family)
    assert "distance" in str(caught.value)


def test_reading_undeclared_fields_is_caught():
    """At the first look."""
    with pytest.raises(UndeclaredFieldError, match="rewards"):
        check_detector(Peeking)


def test_a_control_that_sees_is_caught():
    """A clock that knew the disturbance would be no control."""
    with pytest.raises(DetectorOutputError, match="a control sees nothing"):
        check_detector(Distance, blind=True)


class Peek(Accumulator):
    """Add the score to come."""

    def run(self, scores):
        return scores + np.nan_to_num(np.roll(scores, -1, axis=1))

    def _step(self, state, s, t):
        return state, s


def test_an_accumulator_that_looks_ahead_is_caught():
    """Causality is tested after accumulation."""

    def build():
        detector = Distance()
        detector.accumulator = Peek()
        return detector

    with pytest.raises(DetectorOutputError, match="a batch is its episodes|a prefix decides"):
        check_detector(build)


def test_random_control_is_independent_of_everything_late():
    """Planted disturbances do not change a single number, since its key is the first observation."""
    from rl_oodkit.ood.detector_checks import planted

    clean = synthetic_trajectories(20)
    np.testing.assert_array_equal(RandomControl().score_batch(clean), RandomControl().score_batch(planted(clean)))
