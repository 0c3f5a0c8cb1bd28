"""What a disturbance costs is measured on the same flights, and remembered numbers are computed once."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_oodkit.core.errors import ShapeError
from rl_oodkit.core.runs import RunSpec, RunStore
from rl_oodkit.core.seeds import stream
from rl_oodkit.reproduce.flights import flight_ends, flight_paths, flight_table, harm_row, remaining_return, remember
from rl_oodkit.training.trajectories import from_numpy


def flight(length, reward, terminated):
    """Make one episode of the lander that ends with a reward."""
    rewards = np.zeros(length)
    rewards[-1] = reward
    place = np.arange((length + 1) * 8, dtype=np.float32).reshape(-1, 8)
    return {
        "observations": place, "actions": np.zeros(length, int), "rewards": rewards, "terminated": terminated,
        "truncated": not terminated,
    }  # fmt: skip


def test_ends_are_read_off_the_last_reward_of_each_flight():
    """Coming to rest pays 100, a crash costs 100, and the time limit does neither."""
    trajs = from_numpy([flight(3, 100, True), flight(1, -100, True), flight(5, 2, False), flight(2, -100, True)])
    assert flight_ends(trajs).tolist() == ["landed", "crashed", "time limit", "crashed"]
    table = flight_table(trajs, cell="c")
    assert table["length"].tolist() == [3, 1, 5, 2] and set(table["cell"]) == {"c"}
    assert len(flight_paths(trajs, 3)) == 4 + 2 + 6 and len(flight_paths(trajs, 99)) == 15


@given(st.integers(2, 30), st.floats(-300, -100), st.floats(0.1, 3), st.floats(-500, 500), st.integers(0, 5))
def test_the_scale_of_the_points_does_not_matter(n, random, factor, shift, seed):
    """A normalised return is the same for affinely transformed points."""
    rng = stream(seed, "test")
    clean, worse = 250 + 30 * rng.standard_normal(n), 150 + 80 * rng.standard_normal(n)
    plain = remaining_return(clean, worse, random, resamples=50)
    moved = remaining_return(factor * clean + shift, factor * worse + shift, factor * random + shift, resamples=50)
    assert np.allclose(plain, moved, rtol=1e-6, atol=1e-6)


def test_limits_of_the_remaining_return():
    """No loss is exactly one, with an interval of no width; a random policy is exactly zero."""
    clean = 250 + 30 * stream(0, "test").standard_normal(40)
    assert remaining_return(clean, clean, -200) == (1.0, 1.0, 1.0)
    assert remaining_return(clean, np.full(40, -200.0), -200) == (0.0, 0.0, 0.0)


def test_the_interval_covers():
    """Over repeated samples the nominal 95 % interval holds the true ratio nine times in ten or more."""
    held = 0
    for i in range(200):
        rng = stream(i, "coverage")
        clean = 250 + 40 * rng.standard_normal(40)
        worse = clean - 50 - 60 * rng.standard_normal(40)
        _, low, high = remaining_return(clean, worse, -200, resamples=200, seed=i)
        held += low <= 400 / 450 <= high
    assert 0.88 <= held / 200 <= 0.99


def test_flights_are_paired_by_seed():
    """Order does not matter, an episode without its twin is left out, and unequal lengths are refused."""
    clean = pd.DataFrame({"seed": [1, 2, 3], "return": [200.0, 220.0, 260.0], "length": 9, "end": "landed"})
    worse = clean.assign(**{"return": clean["return"] - 10, "end": ["crashed", "landed", "landed"]})
    a, b = harm_row(clean, worse, -200.0), harm_row(clean, worse.iloc[::-1], -200.0)
    assert a == b and a["crash"] == 1 / 3
    assert harm_row(clean, worse.iloc[:2], -200.0)["crash"] == 1 / 2
    with pytest.raises(ShapeError):
        remaining_return(np.ones(3), np.ones(4), 0.0)


@pytest.mark.parametrize(("loss", "harmful", "clear"), [(0, False, True), (60, True, True)])
def test_the_verdict(loss, harmful, clear):
    """Harmful means below the border, clear that the interval agrees."""
    returns = 260 + 10 * stream(0, "test").standard_normal(50)
    clean = pd.DataFrame({"seed": range(50), "return": returns, "length": 9, "end": "landed"})
    row = harm_row(clean, clean.assign(**{"return": returns - loss}), -200.0)
    assert (row["harmful"], row["clear"]) == (harmful, clear)


def test_what_is_remembered_is_not_computed_again(tmp_path):
    """One computation a key; another parameter is another key; a damaged unit is made anew."""
    store, calls = RunStore(tmp_path), []

    def compute():
        calls.append(1)
        return pd.DataFrame({"x": [1.5, 2.5]})

    a, b = RunSpec("test", {"n": 1}), RunSpec("test", {"n": 2})
    assert remember(store, a, compute).equals(remember(store, a, compute)) and len(calls) == 1
    remember(store, b, compute)
    (store.folder(a) / "result.parquet").write_bytes(b"damaged")
    assert remember(store, a, compute)["x"].tolist() == [1.5, 2.5] and len(calls) == 3
