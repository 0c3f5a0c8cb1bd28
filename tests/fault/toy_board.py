"""A whole benchmark that shares no name with the package: one environment, two laws, two scores, one policy."""

from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from sklearn.base import BaseEstimator

from rl_oodkit.core.registry import register
from rl_oodkit.ood.contract import Injector
from rl_oodkit.ood.schedules import Schedule
from rl_oodkit.training.checkpoint import save_checkpoint
from rl_oodkit.training.policy import QPolicy


class Drifter(gym.Env):
    """A noisy point that the policy pulls back to zero, and that stops by chance."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.x, self.t, self.end = np.zeros(2, np.float32), 0, int(self.np_random.integers(25, 40))
        return self.x.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        push = np.array([-0.2, 0.2][int(action)], np.float32)
        self.x = (0.9 * self.x + push + 0.3 * self.np_random.normal(size=2)).astype(np.float32)
        self.t += 1
        return self.x.copy(), 1.0, self.t >= self.end, False, {}


@register("env", "toy-drifter")
def drifter() -> gym.Env:
    """Make a drifter."""
    return Drifter()


@register("injector", "toy-shift", family="toy", levels={"mild": 0.5, "wild": 3.0})
class Shift(Injector):
    """Add k to what is seen."""

    family: ClassVar[str] = "toy"
    high: ClassVar[float] = 10.0

    def observe(self, state: Any, observation: np.ndarray, c: float) -> np.ndarray:
        """Shift; see `Injector.observe`."""
        return observation + np.float32(self.at(c))


@register("injector", "toy-reverse", family="toy", levels={"wild": 1.0})
class Reverse(Injector):
    """Do the opposite with probability k."""

    family: ClassVar[str] = "toy"
    layer: ClassVar[str] = "action"
    high: ClassVar[float] = 1.0

    def action(self, state: Any, action: int, c: float) -> int:
        """Reverse; see `Injector.action`."""
        return 1 - action if state.rng.random() < self.at(c) else action


class Distance(BaseEstimator):
    """Score rows by a norm of their distance from the mean."""

    def __init__(self, power: float = 2.0) -> None:
        self.power = power

    def fit(self, X: np.ndarray, y: None = None) -> "Distance":
        """Learn the mean."""
        self.mean_, self.n_features_in_ = np.mean(X, axis=0), X.shape[1]
        return self

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        """Return the distance."""
        return (np.abs(X - self.mean_) ** self.power).sum(axis=1)


@register("scorer", "toy-square", board=("toy-square/obs",))
class Square(Distance):
    """Score by the squared distance."""


@register("scorer", "toy-absolute", board=("toy-absolute/obs+cusum",))
class Absolute(Distance):
    """Score by the absolute distance."""

    def __init__(self, power: float = 1.0) -> None:
        super().__init__(power)


def policy_file(folder: Path) -> str:
    """Write a policy that pulls the first channel to zero, and return its path."""
    identity, zero = np.eye(2, dtype=np.float32), np.zeros(2, np.float32)
    away = np.array([[1.0, -1.0], [0.0, 0.0]], np.float32)
    weights = {"w0": identity, "b0": zero, "w1": away, "b1": zero}
    return str(save_checkpoint(folder, "toy", QPolicy(weights), {"env_id": "toy-drifter"}))


def early_onset() -> Schedule:
    """Return a schedule that fits episodes of some thirty steps."""
    return Schedule(onset_low=5, onset_high=10)
