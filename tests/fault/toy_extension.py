"""A new score and a new disturbance, twenty lines each; neither knows of a board."""

from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator

from rl_oodkit.core.registry import register
from rl_oodkit.ood.contract import Injector


@register("scorer", "my-range", board=("my-range/obs",))
class Range(BaseEstimator):
    """Score by how far a row leaves the box of the clean rows."""

    def fit(self, X: np.ndarray, y: None = None) -> "Range":
        self.low_, self.high_ = X.min(axis=0), X.max(axis=0)
        return self

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        return np.maximum(self.low_ - X, X - self.high_).max(axis=1)


@register("injector", "my-mirror", family="toy", levels={"wild": 1.0})
class Mirror(Injector):
    """Show minus k times what is there."""

    family: ClassVar[str] = "toy"
    high: ClassVar[float] = 1.0

    def observe(self, state: Any, observation: np.ndarray, c: float) -> np.ndarray:
        return (1 - 2 * self.at(c)) * observation
