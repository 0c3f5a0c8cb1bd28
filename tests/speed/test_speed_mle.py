"""What makes verification cheap keeps its floors, and the answer stays the same."""

import gc

import numpy as np
import pytest

from rl_oodkit.core.errors import SandboxUnavailableError
from rl_oodkit.core.registry import entry, make
from rl_oodkit.mle.levels import unavailable
from rl_oodkit.reproduce.speed import run_speed
from rl_oodkit.reproduce.timing import time_pair

JAILED = pytest.mark.skipif(bool(unavailable(2)), reason=f"no isolation here: {unavailable(2)}")
BUSY = 0.75  # page faults of a fork feel crowded caches first
SHORT = {"size": 20_000, "floor": 2.5}  # mle-micro promises 13 at 200,000 rows; this size takes a second


@JAILED
def test_a_warm_step_keeps_its_floor_and_writes_the_same_bytes():
    """Median of three interleaved ratios of the processor time of all processes."""
    timing = time_pair(make("speed", "mle-step"), 150, repeats=3)
    assert timing.equal and np.median(timing.ratios) >= BUSY * entry("speed", "mle-step").tags["floor"], timing


@JAILED
def test_few_rows_make_a_warm_step_cheap():
    """At a size in between, with the same test rows on both sides."""
    timing = time_pair(make("speed", "mle-micro"), SHORT["size"], repeats=3)
    assert timing.equal and np.median(timing.ratios) >= SHORT["floor"], timing


@JAILED
@pytest.mark.slow
def test_few_rows_keep_their_floor_at_the_promised_size():
    """One round at the usual size; most of the time writes the table of 200,000 rows."""
    tags = entry("speed", "mle-micro").tags
    row = run_speed(["mle-micro"], repeats=1).iloc[0]
    assert tags["size"] == 200_000 and row["equal"] and row["ratio"] >= BUSY * tags["floor"], row


@JAILED
def test_the_clock_counts_other_processes_and_nothing_is_left_of_them():
    """A cold step takes a second of another process; the pair's server ends with the pair."""
    pair = make("speed", "mle-step")
    task = pair.setup(60)
    before = pair.clock()
    pair.reference(task)
    assert pair.clock() - before > 0.3
    assert len(pair.ours(task).splitlines()) == 61
    root, server = pair.shop.root, pair.shop.executors["warm"].slots[0].process
    del pair
    gc.collect()
    assert not root.exists() and server.poll() is not None


def test_a_bootstrap_keeps_its_floor():
    """A thousand resamples of 500 rows; the loop is timed on 50."""
    timing = time_pair(make("speed", "mle-bootstrap"), 500, repeats=3)
    assert timing.equal and np.median(timing.ratios) >= entry("speed", "mle-bootstrap").tags["floor"], timing


def test_without_a_jail_the_pairs_are_left_out_or_refuse(monkeypatch):
    """No step is measured where it would not be isolated."""
    monkeypatch.setattr("rl_oodkit.reproduce.speed_mle.unavailable", lambda level: "no namespaces")
    for name in ("mle-step", "mle-micro"):
        with pytest.raises(SandboxUnavailableError, match="no namespaces"):
            make("speed", name).setup(60)
    monkeypatch.setattr("rl_oodkit.reproduce.speed.names", lambda kind: ["mle-step", "mle-bootstrap"])
    assert run_speed(repeats=1)["path"].tolist() == ["mle-bootstrap"]
