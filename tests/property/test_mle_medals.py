"""Medal positions by hand, tiers as MLE-bench decides them, peer ranks between 0 and 1, rewards by hand."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rl_oodkit.core.errors import ParameterError, RlOodkitError, UnknownIdError
from rl_oodkit.core.seeds import stream
from rl_oodkit.core.store import load_frame
from rl_oodkit.mle.grade import GradeReport, failed
from rl_oodkit.mle.medals import TIERS, Thresholds, medal_interval, peer_rank, positions, thresholds, tier, tiers
from rl_oodkit.mle.release import Release
from rl_oodkit.mle.rewards import reward, reward_ids, reward_parts

BY_HAND = {
    1: (1, 1, 1), 4: (1, 1, 1), 5: (1, 1, 2), 50: (5, 10, 20), 99: (9, 19, 39), 100: (10, 20, 40), 150: (10, 30, 60),
    249: (10, 49, 99), 250: (10, 50, 100), 600: (11, 50, 100), 999: (11, 50, 100), 1000: (12, 50, 100),
    3000: (16, 150, 300),
}  # fmt: skip
BOARDS = arrays(float, st.integers(4, 60), elements=st.integers(-20, 20).map(lambda i: i / 7))


@pytest.mark.parametrize("n", BY_HAND)
def test_positions_by_hand(n):
    """The published table, at both sides of every border."""
    assert positions(n) == BY_HAND[n]


def test_positions_equal_the_rule_in_floating_point():
    """MLE-bench truncates products with 0.1, 0.2, 0.4, 0.002 and 0.05; for no size does that differ."""
    for n in range(1, 12_001):
        if n < 100:
            expected = tuple(max(1, int(n * share)) for share in (0.1, 0.2, 0.4))
        elif n < 250:
            expected = (10, int(n * 0.2), int(n * 0.4))
        elif n < 1000:
            expected = (10 + int(n * 0.002), 50, 100)
        else:
            expected = (10 + int(n * 0.002), int(n * 0.05), int(n * 0.1))
        assert positions(n) == expected


def test_kaggle1000_is_the_top_two_five_and_ten_per_cent():
    """At every size."""
    assert [positions(n, "kaggle1000") for n in (1, 40, 200, 1000)] == [
        (1, 1, 1),
        (1, 2, 4),
        (4, 10, 20),
        (20, 50, 100),
    ]


@pytest.mark.parametrize(
    ("n", "preset"), [(0, "mlebench"), (3, "ladder"), (10, "other"), (True, "mlebench"), (2.0, "ladder")]
)
def test_bad_boards_and_presets_are_refused(n, preset):
    """With a named error."""
    with pytest.raises(ParameterError):
        positions(n, preset)


def published_rule(score, board, lower):
    """Decide a tier as MLE-bench does, with its own words on a sorted board."""
    ordered = sorted(np.round(board, 5), reverse=not lower)
    gold, silver, bronze = (ordered[p - 1] for p in positions(len(board)))
    s, reach = round(score, 5), (lambda a, b: a <= b) if lower else (lambda a, b: a >= b)
    for level, mark in ((5, gold), (4, silver), (3, bronze)):
        if reach(s, mark):
            return level
    median = np.median(ordered)
    return 2 if (s < round(median, 5) if lower else s > round(median, 5)) else 1


@given(
    board=BOARDS, lower=st.booleans(), pick=st.integers(0, 59), nudge=st.sampled_from([0.0, 4e-6, -4e-6, 2e-5, -2e-5])
)
@settings(max_examples=200)
def test_tiers_equal_the_published_rule(board, lower, pick, nudge):
    """Scores on, near and between the thresholds."""
    t = thresholds(board, 0.0, 1.0, 1.0, "mlebench", lower)
    value = float(np.round(board[pick % len(board)], 5)) + nudge
    assert tier(value, t) == published_rule(value, board, lower)


@given(board=BOARDS, value=st.integers(-21, 21))
def test_direction_is_a_mirror(board, value):
    """Negating scores and turning the direction changes nothing."""
    up, down = (thresholds(s * board, 0.0, 1.0, 1.0, "kaggle1000", s < 0) for s in (1, -1))
    assert tier(value / 7, up) == tier(-value / 7, down)
    assert peer_rank(value / 7, board, False) == peer_rank(-value / 7, -board, True)


def test_ties_earn_and_the_median_is_strict():
    """Exactly on a line: the medal, but not the median."""
    t = Thresholds(0.1, 0.5, 0.6, 0.7, 0.8, 1.0, 0.9, False)
    assert [tier(s, t) for s in (0.5, 0.500004, 0.500006, 0.6, 0.599996, 0.7, 0.8)] == [1, 1, 2, 3, 3, 4, 5]


def test_what_is_not_a_number_earns_nothing():
    """None, NaN and infinity."""
    t = Thresholds(0.1, 0.5, 0.6, 0.7, 0.8, 1.0, 0.9, False)
    assert [tier(s, t) for s in (None, np.nan, np.inf, -np.inf)] == [0, 0, 0, 0]
    assert tiers(np.array([[0.9, np.nan]]), t).tolist() == [[5, 0]]


def test_failed_references_have_no_place():
    """A board with NaN is the board without them."""
    board = stream(0, "nan").normal(size=50)
    gaps = np.concatenate([board, [np.nan, np.inf, -np.inf]])
    assert thresholds(gaps, 0, 1, 1) == thresholds(board, 0, 1, 1)
    assert peer_rank(0.0, gaps, False) == peer_rank(0.0, board, False)


def test_ladder_takes_four_baselines_in_order():
    """Gold, silver, bronze, median."""
    t = thresholds([0.4, 0.1, 0.3, 0.2], 0.9, 0.0, 0.05, "ladder", True)
    assert (t.gold, t.silver, t.bronze, t.median) == (0.1, 0.2, 0.3, 0.4)


@given(board=BOARDS)
def test_peer_rank_runs_from_zero_to_one(board):
    """Both limits, in both variants, and monotone in between."""
    assert peer_rank(-99.0, board, False) == 0 and peer_rank(99.0, board, False) == 1
    assert peer_rank(-99.0, board, False, "paper") == 0
    assert peer_rank(99.0, board, False, "paper") == 1 - 1 / len(board)
    ranks = [peer_rank(s, board, False) for s in np.sort(board)]
    assert ranks == sorted(ranks) and ranks[-1] == 1 and 0 < ranks[0]
    assert peer_rank(None, board, False) == 0 == peer_rank(np.nan, board, False)


@given(board=BOARDS, value=st.floats(-5, 5))
def test_peer_rank_is_its_definition(board, value):
    """(N - p + 1)/N with p one more than the strictly better entries."""
    better = sum(np.round(b, 5) > np.round(value, 5) for b in board)
    assert peer_rank(value, board, False) == pytest.approx((len(board) - better) / len(board))


def test_peer_rank_refuses_nonsense():
    """An unknown variant and an empty board."""
    for board, variant in (([1.0], "other"), ([], "code"), ([np.nan], "code")):
        with pytest.raises(ParameterError):
            peer_rank(0.5, board, False, variant)


def test_medal_interval_covers_and_adds_up():
    """Shares sum to one; the interval holds the score; a tier far away has no share."""
    rng = stream(1, "interval")
    y = rng.integers(0, 2, 400)
    p = np.where(rng.random(400) < 0.85, y, 1 - y)
    value = (y == p).mean()
    t = Thresholds(0.5, 0.6, value - 0.005, value + 0.3, value + 0.4, 1.0, 1.0, False)
    found = medal_interval("accuracy", y, p, t, seed=3)
    assert found.low < value < found.high and sum(found.probabilities) == pytest.approx(1)
    assert found.probabilities[4:] == (0.0, 0.0) and 0.3 < found.any_medal < 0.9
    assert found == medal_interval("accuracy", y, p, t, seed=3) != medal_interval("accuracy", y, p, t, seed=4)
    assert len(found.probabilities) == len(TIERS)


TOTALS = {
    "paper": (0.4, 0.5, 0.7, 0.9, 1.0),
    "release": (0.3, 0.4, 0.8, 0.9, 1.0),
    "sparse": (0.1, 0.1, 0.1, 0.1, 1.0),
}


@pytest.mark.parametrize("preset", TOTALS)
def test_milestone_rewards_by_hand(preset):
    """Totals at full form, and the same less a tenth without any."""
    for level, total in enumerate(TOTALS[preset], start=1):
        report = GradeReport("valid", tier=level)
        assert reward(preset, report) == total
        assert reward(preset, report, 0.0) == pytest.approx(total - 0.1)
        assert reward(preset, report, 0.5) == pytest.approx(total - 0.05)


@pytest.mark.parametrize("status", ["invalid", "timeout", "crash"])
def test_failures_earn_form_alone(status):
    """Whatever the preset."""
    for preset in reward_ids():
        assert reward(preset, failed(status, "why")) == 0.1
        assert reward(preset, failed(status, "why"), 0.0) == 0.0


@pytest.mark.parametrize(
    ("preset", "rank", "normalised", "expected"),
    [
        ("peer_rank", 0.0, 0.3, 0.1), ("peer_rank", 0.5, 0.3, 0.55), ("peer_rank", 1.0, 0.3, 1.0),
        ("normalised", 0.5, -0.5, 0.1), ("normalised", 0.5, 0.0, 0.1), ("normalised", 0.5, 1.0, 1.0),
        ("normalised", 0.5, 0.4, 0.46), ("dense", 0.5, -0.5, 0.4), ("dense", 0.5, 0.5, 0.7), ("dense", 0.5, 1.0, 1.0),
    ],
)  # fmt: skip
def test_smooth_rewards_by_hand(preset, rank, normalised, expected):
    """And a poor valid submission is never worth less than none."""
    report = GradeReport("valid", tier=1, peer_rank=rank, normalised=normalised)
    assert reward(preset, report) == pytest.approx(expected)
    assert reward(preset, report) >= reward(preset, failed("invalid", ""))


@given(level=st.integers(0, 5), rank=st.floats(0, 1), normalised=st.floats(-0.5, 1), share=st.floats(0, 1))
def test_rewards_stay_in_the_unit_interval_and_parts_add_up(level, rank, normalised, share):
    """Every preset, every report."""
    report = GradeReport("valid" if level else "invalid", tier=level, peer_rank=rank, normalised=normalised)
    for preset in reward_ids():
        total = reward(preset, report, share)
        assert 0 <= total <= 1 and total == pytest.approx(sum(reward_parts(preset, report, share).values()))


def test_the_median_is_passed_strictly_and_medals_are_won_on_a_tie():
    """In both directions of a metric, for the presets that pay milestones."""
    for sign in (1, -1):
        steps = Thresholds(*(sign * x for x in (0.5, 0.6, 0.66, 0.7, 0.74, 0.9, 0.8)), sign < 0)
        paid = [reward("paper", GradeReport("valid", tier=tier(sign * s, steps))) for s in (0.6, 0.60001, 0.66, 0.74)]
        assert paid == [0.4, 0.5, 0.7, 1.0]
        assert reward("release", GradeReport("valid", tier=tier(sign * 0.6, steps))) == 0.3


def test_ties_with_a_median_are_common_only_where_labels_are_judged():
    """On the boards of the shipped suite: several percent of the references, or a few in a thousand."""
    suite, ties = Release("micro-1"), {True: [], False: []}
    boards = load_frame(suite.folder / "boards.parquet").dropna(subset="private").groupby("task")["private"]
    for row in suite.candidates[suite.candidates["chosen"]].to_dict("records"):
        median, metric = json.loads(row["thresholds"])["median"], json.loads(row["dna"])["metric"]
        tied = boards.get_group(row["task"]).round(5) == round(median, 5)
        ties[metric in ("accuracy", "macro_f1", "qwk")].append(tied.mean())
    assert np.mean(ties[True]) > 0.03 > 0.01 > np.mean(ties[False])


def test_bad_rewards_are_refused():
    """Unknown presets and shares that are none."""
    with pytest.raises(UnknownIdError):
        reward("generous", GradeReport("valid", tier=1))
    for share in (-0.1, 1.1, np.nan, "all", None):
        with pytest.raises(RlOodkitError):
            reward("paper", GradeReport("valid", tier=1), share)
