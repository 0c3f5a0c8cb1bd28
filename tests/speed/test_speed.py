"""Every registered pair computes the same thing twice, and ours is at least as many times faster as promised."""

import numpy as np
import pytest

from rl_oodkit.core.registry import entry, make, names
from rl_oodkit.reproduce.speed import growth, run_speed
from rl_oodkit.reproduce.timing import time_pair

# steps of agents are run by other processes and have tests of their own
HERE = [name for name in names("speed") if name not in ("mle-step", "mle-micro")]


@pytest.mark.parametrize("name", HERE)
def test_both_sides_give_the_same_answer(name):
    """At the usual size and at a tenth of it."""
    pair, size = make("speed", name), entry("speed", name).tags["size"]
    for inputs in (pair.part(pair.setup(n)) for n in (max(2, size // 10), size)):
        assert pair.equal(pair.ours(inputs), pair.reference(inputs))


@pytest.mark.parametrize("name", HERE)
def test_the_ratio_keeps_its_floor(name):
    """Median of five interleaved ratios of CPU time; a machine in motion is asked twice more, and all rounds count."""
    pair, tags, ratios = make("speed", name), entry("speed", name).tags, []
    for _ in range(3):
        timing = time_pair(pair, tags["size"], repeats=5)
        assert timing.equal
        ratios.extend(timing.ratios)
        if np.median(ratios) >= tags["floor"]:
            return
    raise AssertionError(
        f"{name}: median {np.median(ratios):.3g} of {len(ratios)} rounds, floor {tags['floor']:g}: {ratios}"
    )


@pytest.mark.parametrize("name", names("speed"))
def test_pairs_declare_what_a_table_needs(name):
    """A floor above zero, a unit, a size."""
    tags = entry("speed", name).tags
    assert tags["floor"] > 0 and tags["unit"] and tags["size"] >= 1


def test_the_table_names_machine_and_versions():
    """One row a pair, with what the ratio depends on."""
    table = run_speed(["iqm-bootstrap"], repeats=1)
    assert len(table) == 1 and table["equal"].all()
    assert table["ratio_low"][0] <= table["ratio"][0] <= table["ratio_high"][0]
    assert "cores" in table["machine"][0] and "numpy" in table["versions"][0]


def test_twice_the_episodes_do_not_cost_four_times_as_much():
    """The staircase grows with the sum of the groups, not with their product."""
    curve = growth("auroc-bootstrap", [200, 800], repeats=3)
    assert curve["ours_per_s"][0] / curve["ours_per_s"][1] < 8
