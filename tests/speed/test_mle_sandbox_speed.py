"""A warm step is much cheaper than a new interpreter, and writes the same file."""

import os

import pytest

from rl_oodkit.mle.cold import ColdSubprocess
from rl_oodkit.mle.levels import unavailable
from rl_oodkit.mle.step_costs import FOREST, TRIVIAL, cost_ratio, make_step_task, paired_costs
from rl_oodkit.mle.warm import WarmForkServer

pytestmark = pytest.mark.skipif(bool(unavailable(2)), reason=f"no isolation here: {unavailable(2)}")
FLOOR = 8.0  # processor time, the server's share included
BUSY = 0.75  # page faults of a fork feel crowded caches first


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """Return the costs of both programs, in pairs."""
    root = tmp_path_factory.mktemp("tasks")
    os.chmod(root, 0o755)
    make_step_task(root)
    with WarmForkServer(root, first_uid=64301) as warm, ColdSubprocess(root) as cold:
        pair = {"warm": warm, "cold": cold}
        return {"forest": paired_costs(pair, FOREST, pairs=5), "trivial": paired_costs(pair, TRIVIAL, pairs=3)}


def test_a_forest_step_is_eight_times_cheaper(costs):
    """Median of paired ratios of processor time; files are equal byte by byte in every pair."""
    ratio, equal = cost_ratio(costs["forest"])
    assert equal and ratio >= BUSY * FLOOR, costs["forest"].drop(columns="submission")


def test_different_seeds_write_different_files(costs):
    """Equal files prove something only if the seed matters."""
    assert costs["forest"]["submission"].nunique() == 5


def test_the_frame_of_a_step_costs_milliseconds(costs):
    """Namespaces, mounts, fork, filter and exit, with the server's share."""
    warm = costs["trivial"].query("executor == 'warm'")["cpu"]
    assert warm.median() < 0.06
