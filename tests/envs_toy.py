"""A family of the tests' own, registered as a user would register one."""

import dataclasses

from rl_oodkit.envs.registration import certified_env
from rl_oodkit.oracles.fixture import Fixture
from rl_oodkit.oracles.toys import ToySpec, small_fixture

ID = "tests/Plant-v1"


@certified_env(ID, ToySpec, render="envs_toy:draw")
def plant(spec: ToySpec) -> Fixture:
    """A plant with one actuator."""
    return dataclasses.replace(small_fixture(**vars(spec)), id=ID, spec=spec)


def draw(spec: ToySpec, state):
    """Draw a black picture whose corner tells the state."""
    import numpy as np

    picture = np.zeros((8, 8, 3), np.uint8)
    picture[0, 0] = int(abs(state[0]) * 10) % 256
    return picture
