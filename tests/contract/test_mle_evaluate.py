"""Learners, scaffolds, controls and statistics on machine-learning tasks."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_oodkit.core.errors import EmptySplitError, ParameterError, ShapeError, UnknownIdError
from rl_oodkit.core.registry import entries, entry
from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.agents import PolicyAgent, Question
from rl_oodkit.mle.arenas import toy_arenas
from rl_oodkit.mle.comparison import adaptation_gap, by_task, cluster_interval, compare, sign_flip_test, static_choice
from rl_oodkit.mle.controls import PortfolioAgent, PractitionerAgent, UniformAgent, board_table, portfolio_of
from rl_oodkit.mle.episode import Workshop
from rl_oodkit.mle.evaluate import evaluate, summary
from rl_oodkit.mle.pipeline import Outcome, Pipeline, run_pipeline
from rl_oodkit.mle.sampler import INFO, PipelineSampler, demonstrations, examination, spec_of
from rl_oodkit.mle.scaffolds import play
from rl_oodkit.training.clone import CloneRecipe, bc
from rl_oodkit.training.grpo import grpo, grpo_preset
from rl_oodkit.training.sequences import GrammarPolicy

QUICK = ("linear", "knn", "tree", "nb")


def quick(requests):
    """Run fast models and refuse the others."""
    return [run_pipeline(p, t) if p.model in QUICK else Outcome("error", "refused") for t, p in requests]


@pytest.fixture(scope="module")
def arenas():
    """Return eight small tasks of different kinds."""
    return toy_arenas(8, rows=40)


@pytest.fixture(scope="module")
def shop():
    """Return a workshop that all tests share."""
    return Workshop(quick)


def test_grpo_learns_pipelines(arenas, shop, tmp_path):
    """Eight tasks, 25 iterations, from a uniform start: the mean reward rises by 0.15 and more."""
    sampler = PipelineSampler(arenas, shop)
    start = GrammarPolicy(sampler.spec, contexts=sampler.contexts)
    found = grpo(start, sampler, grpo_preset("toy"), tmp_path, validate=examination(arenas, shop), progress=False)
    examine = examination(arenas, shop, rollouts=4, seed=9)
    assert examine(found.policy) - examine(start) >= 0.15
    assert set(INFO) < set(found.curve.columns) and found.curve["valid"].iloc[-1] > found.curve["valid"].iloc[0]


def test_a_training_on_tasks_resumes_bit_for_bit(arenas, shop, tmp_path):
    """Whatever the workshop remembers, the curve and the weights are the same."""
    recipe = grpo_preset("toy", iterations=4, groups=2, save_every=3)

    def train(folder, workshop, **said):
        """Train on three tasks."""
        sampler = PipelineSampler(arenas[:3], workshop)
        start = GrammarPolicy(sampler.spec, contexts=sampler.contexts)
        return grpo(start, sampler, recipe, tmp_path / folder, progress=False, **said)

    once = train("whole", shop)
    train("parts", shop, until=2)
    again = train("parts", Workshop(quick))
    assert again.curve.drop(columns="seconds").equals(once.curve.drop(columns="seconds"))
    assert all((once.policy.weights()[k] == v).all() for k, v in again.policy.weights().items())


def test_imitation_of_a_search_is_better_than_chance(arenas, shop):
    """Demonstrations have two different turns of pipelines that work, and an imitator mostly writes such ones."""
    shown = demonstrations(arenas[:3], shop, tries=12, top=3)
    assert (shown.info["valid"] == 1).all() and shown.turns == 2 and len(shown) <= 9
    start = GrammarPolicy(spec_of(arenas), contexts=np.stack([a.landmarks for a in arenas]))
    policy = bc(start, shown, CloneRecipe(epochs=40, learning_rate=1e-2)).policy
    examine = examination(arenas[:3], shop, rollouts=6)
    assert examine(policy) > examine(start) + 0.3


def test_masked_attempts_are_not_kept(arenas):
    """Time-outs reach the learner as what they are."""
    sampler = PipelineSampler(arenas[:1], Workshop(lambda rs: [Outcome("timeout", "late")] * len(rs)))
    batch = sampler.sample(GrammarPolicy(sampler.spec), 1, 4, stream(0, "late"))
    assert not batch.keep.any() and batch.info["timed_out"].mean() == 1


@pytest.mark.parametrize("scaffold", [e.id for e in entries("scaffold")])
def test_scaffolds_make_as_many_attempts_as_they_say(arenas, shop, scaffold):
    """For every kind of agent; the incumbent is the best by public score."""
    policy = PolicyAgent(GrammarPolicy(spec_of(arenas)))
    portfolio = PortfolioAgent(portfolio_of(board_table(arenas[:2])))
    for agent in (policy, UniformAgent(), PractitionerAgent(), portfolio):
        for episode in play(agent, arenas[:2], scaffold, shop, stream(0, "scaffold"), rollouts=2):
            assert len(episode.attempts) == entry("scaffold", scaffold).tags["attempts"]
            sign = -1 if episode.arena.meta.lower_is_better else 1
            scores = [sign * a.mark.public for a in episode.attempts if a.mark.executed]
            assert not scores or sign * episode.report.public_score == max(scores)


def test_improvements_change_one_slot(arenas, shop):
    """The tree's last two attempts differ from the incumbent of their time in exactly one slot."""
    for episode in play(PractitionerAgent(), arenas[:3], "aide", shop, stream(0, "aide"), rollouts=3):
        for number in (3, 4):
            before = [a for a in episode.attempts[:number] if a.mark.executed]
            if before:
                sign = -1 if episode.arena.meta.lower_is_better else 1
                best = max(before, key=lambda a: sign * a.mark.public).pipeline
                changed = sum(x != y for x, y in zip(best.tokens, episode.attempts[number].pipeline.tokens))
                assert changed == 1


def test_the_policy_is_asked_in_batches_with_any_past(arenas, shop):
    """Questions with different numbers of shown attempts are answered in their order."""
    agent = PolicyAgent(GrammarPolicy(spec_of(arenas)))
    episode = play(agent, arenas[:1], "seq2", shop, stream(0, "past"))[0]
    base = Pipeline("fft")
    asked = [
        Question(arenas[0], tuple(episode.attempts)),
        Question(arenas[1], base=base, free="model"),
        Question(arenas[2], (episode.attempts[0],), base=base, free="scale"),
    ]
    answers = agent.propose(asked, stream(0, "ask"))
    assert answers[1].view == answers[2].view == "fft" and answers[1].model != "linear" and answers[2].scale != "none"


def test_evaluation_repeats_itself_and_counts(arenas, shop):
    """The same seed gives the same rows; medals are exclusive; counts are sums of rows."""
    one, two = (evaluate(PractitionerAgent(), arenas[:4], rollouts=2, workshop=shop, seed=3) for _ in range(2))
    assert one.equals(two) and len(one) == 8
    assert (one[["bronze", "silver", "gold"]].sum(axis=1) == one["any_medal"]).all()
    assert (one["regret"].notna() == one["valid"]).all() and (one["regret"].dropna() >= 0).all()
    table = summary(pd.concat([one, one.assign(agent="twin")]), resamples=100)
    assert table["episodes"].tolist() == [8, 8] and table["valid"].tolist() == [one["valid"].sum()] * 2
    assert ((table["reward_low"] <= table["reward_mean"]) & (table["reward_mean"] <= table["reward_high"])).all()


def test_controls_are_ordered_as_they_must_be(arenas, shop):
    """Common sense beats chance; the list read off these boards gets their medals."""
    mean = {}
    for agent in (UniformAgent(), PractitionerAgent(), PortfolioAgent(portfolio_of(board_table(arenas)))):
        mean[agent.name] = evaluate(agent, arenas, rollouts=2, workshop=Workshop())["any_medal"].mean()
    assert mean["portfolio"] >= 0.9 and mean["uniform"] < mean["portfolio"]


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=10), st.sampled_from([1e-9, 1e-3, 1.0, 1e6]))
@settings(max_examples=60, deadline=None)
def test_the_sign_flip_test_is_exact(differences, scale):
    """It agrees with brute force in whole numbers, and forgets scale and direction."""
    whole = np.array(differences)
    signs = np.array(np.meshgrid(*[[-1, 1]] * len(whole))).reshape(len(whole), -1).T
    expected = (np.abs((signs * whole).sum(axis=1)) >= abs(whole.sum())).mean()
    assert sign_flip_test(scale * whole) == pytest.approx(expected, abs=1e-12)
    assert sign_flip_test(-scale * whole) == sign_flip_test(scale * whole)


def test_the_sign_flip_test_agrees_with_scipy():
    """On thirty tasks, where both draw patterns."""
    from scipy.stats import permutation_test

    d = stream(0, "scipy").normal(0.3, 1, 30)
    found = permutation_test(
        (d,), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(0)
    )
    assert sign_flip_test(d, resamples=20_000) == pytest.approx(found.pvalue, abs=0.015)


def test_intervals_take_tasks_for_the_sample():
    """Copies of rollouts change nothing; more trainings narrow what comes from them."""
    rng = stream(0, "intervals")
    frame = pd.DataFrame({"task": np.repeat(np.arange(20), 3), "x": rng.normal(size=60)})
    one, two = cluster_interval(frame, "x"), cluster_interval(pd.concat([frame, frame]), "x")
    assert (one.low, one.high) == pytest.approx((two.low, two.high)) and one.tasks == two.tasks == 20
    seeds = np.repeat(rng.normal(size=8), 20)
    many = pd.DataFrame({"task": np.tile(np.arange(20), 8), "training_seed": np.repeat(np.arange(8), 20), "x": seeds})
    few = cluster_interval(many[many["training_seed"] < 2], "x")
    assert cluster_interval(many, "x").seeds == 8 and few.seeds == 2 and few.high > few.low


def test_agents_are_compared_on_the_same_tasks_only():
    """Different tasks are an error; equal agents differ by nothing."""
    frame = pd.DataFrame({"task": list("abcdef"), "x": [0, 1, 1, 0, 1, 0]})
    same = compare(frame, frame, "x")
    assert (same.p, same.difference.mean, same.wins, same.losses) == (1.0, 0.0, 0, 0)
    with pytest.raises(ShapeError):
        compare(frame, frame[frame["task"] != "a"], "x")
    with pytest.raises(ParameterError):
        by_task(frame, "y")
    with pytest.raises(EmptySplitError):
        by_task(frame[:0], "x")
    holes = frame.assign(training_seed=[0, 0, 0, 1, 1, 1])
    with pytest.raises(ParameterError, match="some task"):
        by_task(holes, "x")


def test_the_gap_is_zero_where_one_pipeline_is_best_everywhere():
    """And it is the mean advantage of the favourites where each task has its own."""
    board = pd.DataFrame([(t, "c", p, v, v) for t in range(6) for p, v in (("a", 0.9), ("b", 0.2))])
    board.columns = ["task", "cell", "pipeline", "public", "normalised"]
    assert adaptation_gap(board, board).gap == 0 and static_choice(board) == {"c": "a"}
    own = board.assign(
        normalised=[0.9 if (t % 2 == 0) == (p == "a") else 0.1 for t, p in zip(board.task, board.pipeline)]
    )
    own["public"] = own["normalised"]
    found = adaptation_gap(own, own)
    assert found.gap == pytest.approx(0.4) and found.static == pytest.approx(0.5) and found.optimistic >= found.gap
    with pytest.raises(EmptySplitError):
        adaptation_gap(own.assign(cell="d"), own)


def test_the_gap_counts_what_it_leaves_out():
    """Tasks of unseen kinds, without the static pipeline, or without a public score; a failed one counts."""
    train = pd.DataFrame([(t, "c", p, v, v) for t in range(4) for p, v in (("a", 0.9), ("b", 0.2))])
    train.columns = ["task", "cell", "pipeline", "public", "normalised"]
    full, none = adaptation_gap(train, train), train.assign(public=np.nan)
    assert (full.tasks, full.unseen, full.dropped) == (4, 0, 0)
    test = pd.concat([train[train["task"] < 2], train[train["task"] == 2].query("pipeline == 'b'"), none[-2:]])
    found = adaptation_gap(pd.concat([test, train[:2].assign(task=9, cell="d")]), train)
    assert (found.tasks, found.unseen, found.dropped) == (2, 1, 2) and found.gap == full.gap
    failed = adaptation_gap(train.assign(normalised=train["normalised"].where(train["pipeline"] == "b")), train)
    assert failed.dropped == 0 and failed.static == -0.5
    with pytest.raises(EmptySplitError, match="static pipeline"):
        adaptation_gap(train.query("pipeline == 'b'"), train)


def test_bad_input_is_refused(arenas, shop):
    """Each with the class that says what is wrong."""
    for call, error in (
        (lambda: PipelineSampler([]), ParameterError),
        (lambda: PipelineSampler(arenas, reward="fame"), ParameterError),
        (lambda: evaluate(UniformAgent(), arenas, "forest"), UnknownIdError),
        (lambda: evaluate(UniformAgent(), arenas, rollouts=0), ParameterError),
        (lambda: summary(pd.DataFrame()), EmptySplitError),
        (lambda: portfolio_of(board_table(arenas[:1]), size=0), ParameterError),
        (lambda: portfolio_of(board_table(arenas[:1])[:0]), EmptySplitError),
        (lambda: PortfolioAgent({"a": []}), ParameterError),
        (lambda: demonstrations(arenas[:1], Workshop(lambda rs: [Outcome("error", "no")] * len(rs))), EmptySplitError),
    ):
        with pytest.raises(error):
            call()
