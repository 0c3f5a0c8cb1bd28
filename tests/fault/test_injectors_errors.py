"""Whatever is configured wrongly is refused with a named error that says what to do instead."""

import gymnasium as gym
import numpy as np
import pytest

from rl_oodkit.core.errors import (
    EmptySplitError,
    InjectorLawError,
    NonFiniteError,
    OnsetError,
    ParameterError,
    RlOodkitError,
    ShapeError,
    StrengthError,
    UnknownIdError,
)
from rl_oodkit.ood.case import probe
from rl_oodkit.ood.collect import collect, make_lander
from rl_oodkit.ood.contract import InjectionSpec, Injector, SensorFloor, SensorScale, sensor_scale
from rl_oodkit.ood.injectors import InjectorWrapper, check_injector, make_injector
from rl_oodkit.ood.labels import active_labels, seed_range, segments
from rl_oodkit.ood.lander import lunar_lander
from rl_oodkit.ood.schedules import Schedule, make_schedule
from rl_oodkit.ood.strengths import calibrate_strengths, normalised_return

STEP = Schedule(onset=5)


def wrap(injector, schedule=STEP, env=lunar_lander, **options):
    """Put a law into a new environment."""
    return InjectorWrapper(env(), injector, schedule, seed=0, **options)


class Rows:
    """Stand for trajectories."""

    def __init__(self, rows):
        self.observations = np.array(rows, dtype=float)


CASES = {
    "onset beyond the horizon": (OnsetError, lambda: wrap(make_injector("gain"), Schedule(onset=1000))),
    "earliest onset beyond": (
        OnsetError,
        lambda: wrap(make_injector("gain"), Schedule(onset_low=2000, onset_high=3000)),
    ),
    "onset beyond, by collect": (
        OnsetError,
        lambda: collect("dqn-lunarlander", 2, "ood", injector="gain", schedule=Schedule(onset=5000)),
    ),
    "negative onset": (OnsetError, lambda: Schedule(onset=-1)),
    "empty onset range": (OnsetError, lambda: Schedule(onset_low=50, onset_high=40)),
    "onset of text": (ParameterError, lambda: Schedule(onset="soon")),
    "onset of a fraction": (ParameterError, lambda: Schedule(onset=3.5)),
    "unknown schedule": (UnknownIdError, lambda: make_schedule("stair")),
    "schedule of no text": (UnknownIdError, lambda: Schedule(kind=None)),
    "unknown schedule parameter": (ParameterError, lambda: make_schedule("ramp", slope=3)),
    "step with a period": (ParameterError, lambda: Schedule("step", period=5)),
    "step with a ramp": (ParameterError, lambda: Schedule("step", ramp=5)),
    "transient without duration": (ParameterError, lambda: Schedule("transient")),
    "recurring without duty": (ParameterError, lambda: Schedule("recurring", period=5)),
    "ramp of nothing": (ParameterError, lambda: Schedule("ramp")),
    "negative duration": (ParameterError, lambda: Schedule("transient", duration=-3)),
    "zero duty": (ParameterError, lambda: Schedule("recurring", period=5, duty=0)),
    "duty above one": (ParameterError, lambda: Schedule("recurring", period=5, duty=1.5)),
    "duty of NaN": (ParameterError, lambda: Schedule("recurring", period=5, duty=float("nan"))),
    "ramped code": (ParameterError, lambda: wrap(make_injector("swap"), make_schedule("ramp"))),
    "ramped stuck": (ParameterError, lambda: wrap(make_injector("stuck"), make_schedule("ramp"))),
    "half a code": (StrengthError, lambda: make_injector("swap", 1.5)),
    "strength too large": (StrengthError, lambda: make_injector("dropout", 1.5)),
    "strength of NaN": (StrengthError, lambda: make_injector("noise", float("nan"))),
    "strength of text": (StrengthError, lambda: make_injector("noise", "huge")),
    "no such level": (StrengthError, lambda: make_injector("stuck", "light")),
    "unknown injector": (UnknownIdError, lambda: make_injector("gravitty")),
    "injector of unicode": (UnknownIdError, lambda: make_injector("grävity☃")),
    "unknown law parameter": (ParameterError, lambda: make_injector("gain", 0.1, colour=3)),
    "too many stuck channels": (ParameterError, lambda: wrap(make_injector("stuck", 9)).reset(seed=0)),
    "a pair that is not there": (StrengthError, lambda: make_injector("swap", 2, pairs=((0, 1),))),
    "check of an unknown injector": (UnknownIdError, lambda: check_injector("nois")),
    "lander law elsewhere": (
        ParameterError,
        lambda: wrap(make_injector("gravity"), env=lambda: gym.make("CartPole-v1")),
    ),
    "no scale": (
        ParameterError,
        lambda: wrap(make_injector("bias"), env=lambda: gym.make("CartPole-v1")).reset(seed=0),
    ),
    "no scale for the floor": (
        ParameterError,
        lambda: InjectorWrapper(gym.make("CartPole-v1"), None, None, seed=0, floor=SensorFloor(0.1)).reset(seed=0),
    ),
    "discrete observations": (ParameterError, lambda: InjectorWrapper(gym.make("FrozenLake-v1"), None, None, seed=0)),
    "action law without discrete actions": (
        ParameterError,
        lambda: wrap(make_injector("aswap"), env=lambda: gym.make("Pendulum-v1")).reset(seed=0),
    ),
    "law without schedule": (ParameterError, lambda: wrap(make_injector("gain"), None)),
    "schedule without law": (ParameterError, lambda: wrap(None, STEP)),
    "schedule without law, by name": (ParameterError, lambda: make_lander(schedule=STEP)),
    "strength without law": (ParameterError, lambda: collect("dqn-lunarlander", 2, "ood", strength=0.1)),
    "negative floor": (StrengthError, lambda: SensorFloor(-0.1)),
    "floor of NaN": (StrengthError, lambda: make_lander(floor=float("nan"))),
    "scales and channels": (ShapeError, lambda: SensorScale((0, 1), (1.0,))),
    "channel beyond": (ShapeError, lambda: wrap(make_injector("bias"), scale=SensorScale((9,), (1.0,)))),
    "scale of NaN rows": (NonFiniteError, lambda: sensor_scale(Rows([[np.nan], [1.0]]))),
    "scale of a vector": (ShapeError, lambda: sensor_scale(Rows([1.0, 2.0]))),
    "unknown split": (UnknownIdError, lambda: seed_range("train", 3)),
    "no episodes": (ParameterError, lambda: seed_range("fit", 0)),
    "too many episodes": (ParameterError, lambda: seed_range("fit", 10_001)),
    "negative block": (ParameterError, lambda: seed_range("fit", 3, -1)),
    "block too large": (ParameterError, lambda: seed_range("fit", 3, 10_000)),
    "negative length": (ParameterError, lambda: active_labels(-1, 0)),
    "offset before onset": (ParameterError, lambda: active_labels(9, 5, 3)),
    "negative transient": (ParameterError, lambda: segments(9, 5, 7, transient=-1)),
    "every episode too short": (
        EmptySplitError,
        lambda: collect("dqn-lunarlander", 1, "ood", injector="gain", strength="light", schedule=Schedule(onset=999)),
    ),
    "calibration of a code": (ParameterError, lambda: calibrate_strengths("dqn-lunarlander", "swap", n=2)),
    "calibration of a reward": (ParameterError, lambda: calibrate_strengths("dqn-lunarlander", "rnoise", n=2)),
    "an untrained policy": (ParameterError, lambda: normalised_return(0.0, clean=-300.0, random=-200.0)),
    "a probe of text": (ParameterError, lambda: probe(gym.spaces.Text(3))),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused(name):
    """The error has the right class and says something."""
    error, call = CASES[name]
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, RlOodkitError) and len(str(caught.value)) > 10


def test_an_unknown_injector_is_answered_with_the_nearest():
    """Three ids, the intended one among them."""
    with pytest.raises(UnknownIdError, match="gravity"):
        make_injector("gravitty")


def test_a_strength_error_names_the_range_and_the_identity():
    """A reader can correct the value from the message alone."""
    with pytest.raises(StrengthError, match=r"\[1, 100\]; 1 does nothing"):
        make_injector("hold", 0)


def test_an_observation_of_the_wrong_shape_is_the_laws_fault():
    """The wrapper names the law and the step."""

    class Short(Injector):
        high = 1.0

        def observe(self, state, observation, c):
            return observation[:3]

    env = wrap(Short(1.0), Schedule(onset=2))
    env.reset(seed=0)
    env.step(0)
    env.step(0)
    with pytest.raises(InjectorLawError, match="Short, step 2"):
        env.step(0)


def test_a_spec_without_scale_says_so():
    """Laws that need none work without."""
    spec = InjectionSpec(gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2))
    for read in (lambda: spec.sd, lambda: spec.mask):
        with pytest.raises(ParameterError, match="scale"):
            read()
