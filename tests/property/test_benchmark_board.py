"""Laws of rows, panels, tables and null experiments."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_oodkit.core.errors import EmptySplitError, LabelLeakError, ParameterError, UnknownIdError
from rl_oodkit.core.formats import frame_from_bytes, frame_to_bytes
from rl_oodkit.core.seeds import stream
from rl_oodkit.ood.alarms import per_episode_threshold
from rl_oodkit.ood.board_tables import board_table, paired_board, risk_table, rows_of
from rl_oodkit.ood.detector import build_detector
from rl_oodkit.ood.matched import matched_auroc
from rl_oodkit.ood.null import coverage_rows, false_alarm_row, null_intervals
from rl_oodkit.ood.panel import Panel, panels, scored
from rl_oodkit.ood.rows import COLUMNS, Question, Scored, cell_frame
from rl_oodkit.training.trajectories import from_numpy

seeds = st.integers(0, 2**32 - 1)
ASKED = Question(resamples=60)


def batch(rng, episodes, lift=0.0, steps=120, onset=None):
    """Score episodes of noise that rises by `lift` at the onset."""
    tau = rng.integers(30, 91, episodes) if onset is None else np.full(episodes, onset)
    after = np.arange(steps) >= tau[:, None]
    scores, never = rng.normal(size=(episodes, steps)) + lift * after, np.full(episodes, -1)
    return Scored(scores, tau, never, np.full(episodes, steps), after, restarted=np.where(after, scores, np.nan))


def frame_of(clean, here, threshold=3.0, cell="c", asked=ASKED):
    """Evaluate a cell and index it by metric."""
    return cell_frame(clean, here, threshold, 100, asked, cell).set_index("metric")


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_every_value_lies_in_its_interval_and_every_gap_has_a_reason(seed):
    rng = np.random.default_rng(seed)
    frame = frame_of(batch(rng, 60), batch(rng, 30, 1.0))
    whole = frame[frame["interval"].isin(["delong", "binomial"]) & frame["value"].notna()]
    assert ((whole["low"] <= whole["value"] + 1e-12) & (whole["value"] <= whole["high"] + 1e-12)).all()
    assert (frame["low"].isna() == frame["high"].isna()).all()
    assert (frame.loc[frame["value"].isna(), "reason"] != "").all()
    assert frame.index.is_unique


def test_rows_agree_with_the_functions_they_come_from():
    rng = np.random.default_rng(0)
    clean, here = batch(rng, 60), batch(rng, 30, 1.5)
    frame, result = frame_of(clean, here), matched_auroc(clean.scores, here.disturbed)
    assert frame.loc["auroc_landmark", "value"] == result.value_landmark
    assert frame.loc["auroc_full", "value"] == result.value_full
    assert frame.loc["auroc_landmark", "landmark"] == result.landmark
    assert frame.loc["auroc_landmark", "dropped"] == result.dropped
    samples = np.array(frame.loc["auroc_landmark", "replicates"])
    assert len(samples) == 60 and frame.loc["auroc_landmark", "low"] <= np.median(samples)
    assert frame["replicates"].notna().sum() == 1


def test_a_statistic_restarted_at_the_onset_has_no_alarm_before_it():
    rng = np.random.default_rng(1)
    clean, here = batch(rng, 40), batch(rng, 40, 2.0)
    frame = frame_of(clean, here, threshold=1.5)
    assert frame.loc["false_before", "value"] > 0.8
    assert frame.loc["rmst100_restart", "p"] == 40 > frame.loc["rmst100", "p"]


def test_cells_without_any_value_have_the_schema_of_full_ones():
    rng = np.random.default_rng(2)
    full = cell_frame(batch(rng, 40), batch(rng, 20), 3.0, 40, ASKED, "c")
    here = batch(rng, 3, steps=20, onset=30)
    here = Scored(here.scores, np.full(3, -1), here.offset, here.lengths, here.counted)
    empty = cell_frame(batch(rng, 40), here, math.inf, 40, ASKED, "c")
    assert list(empty) == list(full) == list(COLUMNS)
    assert empty.dtypes.drop("replicates").equals(full.dtypes.drop("replicates"))
    assert empty.loc[empty["metric"] == "auroc_landmark", "reason"].item() == "no disturbed step has a score"
    assert empty.loc[empty["metric"] == "far", "reason"].item().startswith("no finite threshold")
    both = pd.concat([full, empty], ignore_index=True)
    again = frame_from_bytes(frame_to_bytes(both))
    assert frame_to_bytes(again) == frame_to_bytes(both)


def test_detectors_of_a_cell_share_their_resamples():
    rng = np.random.default_rng(3)
    clean, here = batch(rng, 40), batch(rng, 20, 0.5)
    one, two = (frame_of(c, h).loc["auroc_landmark", "replicates"] for c, h in ((clean, here), (clean, here)))
    assert one == two
    other = frame_of(clean, here, cell="d").loc["auroc_landmark", "replicates"]
    assert one != other


def made_up(episodes, rng, active=False):
    """Draw episodes of a noisy point."""
    lengths = rng.integers(30, 50, episodes)
    made = [
        {"observations": rng.normal(size=(n + 1, 2)), "actions": rng.integers(0, 2, n), "rewards": np.zeros(n)}
        | ({"active": np.arange(n) >= 10, "onset": 10} if active else {"onset": 10})
        for n in lengths
    ]
    return from_numpy(made)


def test_a_panel_answers_as_its_members_and_refuses_disturbed_episodes():
    rng = stream(0, "test", "panel")
    panel = Panel(["mahalanobis/obs", "mahalanobis/obs+cusum"])
    with pytest.raises(LabelLeakError):
        panel.prepare(made_up(5, rng, active=True), made_up(30, rng), 0.1)
    with pytest.raises(LabelLeakError):
        panel.prepare(made_up(5, rng), made_up(30, rng, active=True), 0.1)
    panel.prepare(made_up(10, rng), made_up(40, rng), 0.1)
    here = made_up(6, rng, active=True)
    found = scored(here, panel, injected=True)["mahalanobis/obs+cusum"]
    np.testing.assert_array_equal(found.counted, here.padded(here.active, 0).astype(bool))
    assert np.isnan(found.restarted[:, :10]).all() and np.isfinite(found.scores[:, :10]).all()
    first = found.restarted[:, 10]
    late = {name: scores[:, 10:] for name, scores in panel.step_scores(here).items()}
    fresh = panel.gather(late)["mahalanobis/obs+cusum"][:, 0]
    np.testing.assert_array_equal(first, fresh)
    clean = scored(made_up(6, rng), panel, injected=False)["mahalanobis/obs"]
    assert not clean.counted[:, :10].any() and clean.counted[:, 10:30].all()


def test_a_panel_shares_one_fit_among_readings_of_it():
    """Three readings of one ensemble answer as each would after a fit of its own, and the stack is trained once."""
    rng = stream(0, "test", "shared fit")
    fit, cal, test = made_up(6, rng), made_up(20, rng), made_up(4, rng)
    ids = ["ens-mse/transition", "ens-nll/transition", "ens-nll/transition+cusum", "ens-var/transition"]
    assert panels(ids) == {"ens-mse/transition": ids}
    panel = Panel(ids)
    panel.prepare(fit, cal, 0.1)
    weights = {id(d.scorer.weights_) for d in panel.heads.values()}
    assert len(weights) == 1
    together = panel.gather(panel.step_scores(test))
    for i in ids:
        alone = build_detector(i).fit(fit).calibrate(cal)
        np.testing.assert_array_equal(together[i], alone.score_batch(test))


def test_panels_keep_every_detector_once_and_together():
    ids = ["b/x+s", "a/x", "b/x", "a/y", "b/x+t"]
    assert panels(ids) == {"b/x": ["b/x+s", "b/x", "b/x+t"], "a/x": ["a/x"], "a/y": ["a/y"]}


def toy_board(detectors=4, cells=3, draws=80, seed=0):
    """Make a tidy board of made-up values with replicates."""
    rng, rows = np.random.default_rng(seed), []
    for c in range(cells):
        shared = 0.05 * rng.normal(size=draws)
        for d in range(detectors):
            value = 0.5 + 0.1 * d
            row = {"detector": f"d{d}", "cell": f"c{c}", "metric": "m", "value": value, "low": value - 0.1}
            noise = value + shared + 0.01 * rng.normal(size=draws)
            rows.append(row | {"high": value + 0.1, "replicates": noise.tolist()})
    return pd.DataFrame(rows)


def test_paired_board_is_antisymmetric_and_sees_through_shared_noise():
    board = toy_board()
    pairs = paired_board(board, "m")
    assert len(pairs) == 3 * 6 and (pairs["difference"] < 0).all() and (pairs["p_holm"] < 0.01).all()
    assert ((pairs["low"] < pairs["difference"]) & (pairs["difference"] < pairs["high"])).all()
    against = paired_board(board, "m", reference="d1")
    assert len(against) == 3 * 3 and (against["second"] == "d1").all()
    mirrored = pairs[(pairs["first"] == "d1") | (pairs["second"] == "d1")]
    assert sorted(mirrored["difference"].abs().round(9)) == sorted(against["difference"].abs().round(9))
    assert (pairs["p_holm"] >= pairs["p"]).all()


def test_equal_detectors_differ_by_nothing():
    board = toy_board(detectors=1)
    twin = pd.concat([board, board.assign(detector="twin")], ignore_index=True)
    pairs = paired_board(twin, "m")
    assert (pairs["difference"] == 0).all() and (pairs["p"] == 1).all() and (pairs["p_holm"] == 1).all()


def test_tables_keep_order_and_name_what_is_missing():
    board = toy_board()
    board = board.iloc[::-1].reset_index(drop=True)
    table = board_table(board, "m")
    assert list(table.index) == ["d3", "d2", "d1", "d0"] and list(table.columns) == ["c2", "c1", "c0"]
    assert board_table(board, "m", interval=True).loc["d1", "c0"] == "0.60 [0.50, 0.70]"
    with pytest.raises(UnknownIdError, match="metrics are: m"):
        board_table(board, "n")
    with pytest.raises(ParameterError, match="cell"):
        rows_of(board.drop(columns="cell"), "m")
    with pytest.raises(UnknownIdError, match="nobody"):
        paired_board(board, "m", reference="nobody")
    with pytest.raises(ParameterError, match="replicates"):
        paired_board(board.drop(columns="replicates"), "m")


def test_risk_table_counts_what_padding_would_show():
    rng = np.random.default_rng(0)
    length, onset = rng.integers(20, 80, 50), rng.integers(10, 40, 50)
    onset = np.where(onset < length, onset, -1)
    offset = np.where((onset >= 0) & (rng.random(50) < 0.5), onset + 15, -1)
    episodes = pd.DataFrame({"cell": "c", "onset": onset, "offset": offset, "length": length})
    episodes = pd.concat([episodes.assign(cell="test"), episodes], ignore_index=True)
    table, t = risk_table(episodes, steps=(5, 25, 45)), np.array([5, 25, 45])
    alive = t < length[:, None]
    on = alive & (onset[:, None] >= 0) & (t >= onset[:, None]) & ((offset[:, None] < 0) | (t < offset[:, None]))
    assert table.loc["test", [5, 25, 45]].tolist() == alive.sum(axis=0).tolist()
    assert table.loc["c", [5, 25, 45]].tolist() == on.sum(axis=0).tolist()
    assert table.loc["c", "no_onset"] == (onset < 0).sum()
    with pytest.raises(ParameterError, match="length"):
        risk_table(episodes.drop(columns="length"))


def test_null_intervals_cover_one_half_about_as_often_as_they_should():
    rng = stream(0, "test", "null")
    noise = rng.normal(size=(150, 60))
    for t in range(1, 60):
        noise[:, t] = 0.9 * noise[:, t - 1] + math.sqrt(1 - 0.81) * noise[:, t]
    found = coverage_rows(null_intervals(noise, rng.integers(5, 20, 150), p=40, replicates=120, resamples=150, seed=1))
    assert found["coverage"].between(0.88, 1.0).all() and (abs(found["mean_auroc"] - 0.5) < 0.02).all()
    assert found["width"].between(0.05, 0.3).all()


def test_null_intervals_need_episodes_on_both_sides():
    with pytest.raises(EmptySplitError):
        null_intervals(np.zeros((10, 3)), np.zeros(10, int), p=9, replicates=1, resamples=2, seed=0)


def test_false_alarms_of_honest_detectors_are_not_blamed_and_leaks_are():
    rng, p = np.random.default_rng(0), []
    for _ in range(300):
        cal, test = rng.normal(size=(99, 2)), rng.normal(size=(100, 2))
        p.append(false_alarm_row(cal, test, per_episode_threshold(cal, 0.05), 0.05)["p"])
    assert np.mean(np.array(p) < 0.05) < 0.07
    leaking = rng.normal(size=(100, 2)) + 1.0
    assert false_alarm_row(cal, leaking, per_episode_threshold(cal, 0.05), 0.05)["p"] < 0.001


def test_ties_excuse_few_alarms_and_not_many():
    tied = np.round(np.random.default_rng(0).normal(size=(99, 1)))
    h = per_episode_threshold(tied, 0.1)
    quiet = false_alarm_row(tied, np.full((100, 1), h), h, 0.1)
    assert quiet["tied"] > 1 and quiet["alarms"] == 0 and quiet["p"] == 1.0
    assert false_alarm_row(tied, np.full((100, 1), h + 1), h, 0.1)["p"] < 1e-6
