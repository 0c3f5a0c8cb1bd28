"""A small board of controls on the shipped policy, in this process: what must come out is known."""

import numpy as np
import pytest

from rl_oodkit.core.errors import StoreError
from rl_oodkit.core.formats import frame_to_bytes
from rl_oodkit.core.runs import RunStore
from rl_oodkit.ood.batches import batch_spec, cell_batch, clean_batch, load_batch
from rl_oodkit.ood.benchmark import board_episodes, run_board
from rl_oodkit.ood.board_tables import board_table, paired_board, risk_table
from rl_oodkit.ood.cells import BoardSpec, Cell, parse_cell
from rl_oodkit.ood.null import false_alarm_table, null_coverage_board
from rl_oodkit.ood.phases import phase_board
from rl_oodkit.ood.schedules import Schedule
from rl_oodkit.training.checkpoint import load_policy

SPEC = BoardSpec(
    "dqn-lunarlander",
    detectors=("clock", "constant", "random", "q-energy/q"),
    cells=("noise=0.5",),
    schedule=Schedule("transient", onset=40, duration=30),
    fit=3,
    cal=24,
    test=24,
    ood=12,
    resamples=40,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Share the episodes and the finished units between the tests of this file."""
    return RunStore(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def board(store):
    """Run the board once."""
    return run_board(SPEC, store)


def test_controls_are_worth_nothing_in_every_cell(board):
    table = board_table(board)
    assert list(table.index) == list(SPEC.detectors) and list(table.columns) == ["null", "noise=0.5"]
    assert (table.loc[["clock", "constant"]] == 0.5).all(axis=None)
    far = board[(board["metric"] == "far") & (board["detector"] == "constant")]
    assert (far["value"] == 0).all()
    assert (abs(table.loc["random"] - 0.5) < 0.1).all()


def test_a_finished_board_is_returned_and_not_computed(board, store):
    stamps = {p: p.stat().st_mtime_ns for p in store.root.glob("*/*/manifest.json")}
    assert frame_to_bytes(run_board(SPEC, store)) == frame_to_bytes(board)
    assert all(p.stat().st_mtime_ns == t for p, t in stamps.items())


def test_forcing_computes_again_and_changes_nothing(board, store):
    one = BoardSpec(**(vars(SPEC) | {"detectors": ("constant",)}))
    assert frame_to_bytes(run_board(one, store, force=True)) == frame_to_bytes(
        board[board["detector"] == "constant"].reset_index(drop=True)
    )


def test_episodes_are_common_to_the_cells_and_counted(board, store):
    episodes = board_episodes(SPEC, store)
    null, noise = (episodes[episodes["cell"] == c].reset_index(drop=True) for c in ("null", "noise=0.5"))
    assert null["env_seed"].equals(noise["env_seed"]) and (null["onset"] == 40).all()
    assert not set(episodes.loc[episodes["cell"] == "test", "env_seed"]) & set(null["env_seed"])
    counts = risk_table(episodes, steps=(39, 40, 69, 70))
    assert counts.loc["test", 39] == 24
    assert counts.loc["noise=0.5", [39, 40, 69, 70]].tolist() == [0, 12, 12, 0]


def test_internals_are_computed_from_what_the_policy_saw(board, store):
    policy = load_policy(SPEC.policy)
    unit = batch_spec(SPEC, cell_batch(SPEC, parse_cell("noise=0.5")), policy.sha256)
    trajs = load_batch(store, unit, policy, ("q",))
    np.testing.assert_array_equal(
        trajs.internals["q"].argmax(axis=1)[
            np.delete(np.arange(len(trajs.observations)), trajs.row_starts + trajs.lengths)
        ],
        trajs.actions,
    )
    assert load_batch(store, unit).internals == {}
    absent = BoardSpec(**(vars(SPEC) | {"seed": 5}))
    with pytest.raises(StoreError):
        load_batch(store, batch_spec(absent, clean_batch(absent, "fit"), policy.sha256))


def test_pairs_of_a_real_board_use_common_resamples(board):
    pairs = paired_board(board, reference="clock")
    assert set(pairs["second"]) == {"clock"} and len(pairs) == 2 * 3
    same = pairs[pairs["first"] == "constant"]
    assert (same["difference"] == 0).all() and (same["p_holm"] == 1).all()


def test_null_experiments_find_nothing(board, store):
    coverage = null_coverage_board(SPEC, store, replicates=6, resamples=30).set_index(["detector", "interval"])
    assert (coverage.loc[["clock", "constant"], "coverage"] == 1).all()
    assert (coverage["splits"] == 6).all()
    alarms = false_alarm_table(SPEC, store).set_index("detector")
    assert alarms.loc["constant", "alarms"] == 0 and (alarms["p_holm"] > 0.01).all()
    assert alarms["p_holm"].ge(alarms["p"]).all()


def test_phases_partition_the_episodes_and_pre_is_chance(board, store):
    table = phase_board(SPEC, store)
    assert list(table["segment"].unique()) == ["pre", "transient", "steady", "post"]
    control = table[table["detector"] == "clock"]
    assert (control["auroc"] == 0.5).all()
    scored = table[(table["detector"] == "random") & (table["cell"] == "null")]
    assert scored["steps"].iloc[0] == 12 * 40 and scored["steps"].iloc[1:3].tolist() == [12 * 20, 12 * 10]
    pre = table[table["segment"] == "pre"]
    assert ((pre["auroc_low"] - 1e-9 <= 0.5) & (0.5 <= pre["auroc_high"] + 1e-9)).all()
    assert table.loc[table["segment"] != "post", "recovery"].isna().all()


def test_a_cell_that_nobody_reaches_has_rows_and_reasons(store):
    late = BoardSpec(**(vars(SPEC) | {"detectors": ("clock",), "schedule": Schedule(onset=995)}))
    frame = run_board(late, store)
    rows = frame[frame["metric"] == "auroc_landmark"]
    assert rows["value"].isna().all() and (rows["reason"] != "").all()
    assert Cell("null").facts()["cell"] in set(frame["cell"])
