"""The pipeline environment keeps Gymnasium's promises; feedback is made of public facts, rewards of private ones."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_oodkit.core.errors import NonFiniteError, ParameterError, ShapeError
from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.arenas import Arena, check_arenas, default_arenas, toy_arenas
from rl_oodkit.mle.episode import FEEDBACK, Episode, Mark, Workshop, indices_of, make_workshop, pipeline_of, vocabulary
from rl_oodkit.mle.grade import GradeReport, failed
from rl_oodkit.mle.options import SLOTS, mask, options, width
from rl_oodkit.mle.pipeline import Outcome, Pipeline, canonical, run_pipeline
from rl_oodkit.mle.pipeline_env import PipelineEnv, PipelineVectorEnv, register_pipeline_env
from rl_oodkit.mle.rewards import reward, reward_ids

QUICK = ("linear", "knn", "tree", "nb")
GOOD = Pipeline("fft", scale="standard")


def quick(requests):
    """Run fast models and refuse the others."""
    return [run_pipeline(p, t) if p.model in QUICK else Outcome("error", "refused") for t, p in requests]


def hanging(requests):
    """Let every pipeline run into its time limit."""
    return [Outcome("timeout", "10 s are over", seconds=10.0) for _ in requests]


@pytest.fixture(scope="module")
def arenas():
    """Return three small tasks."""
    return toy_arenas(3, rows=40)


@pytest.fixture(scope="module")
def shop():
    """Return a workshop that all tests share."""
    return Workshop(quick)


@pytest.mark.parametrize("level", ["token", "attempt"])
def test_gymnasium_finds_nothing_to_say(arenas, shop, level):
    """Warnings are errors, but for the one on boxes without bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*Box observation space (minimum|maximum) value is.*")
        check_env(PipelineEnv(arenas, level=level, workshop=shop), skip_render_check=True)


def test_stable_baselines_accepts_it(arenas, shop):
    """Its checker has rules of its own, about dictionaries in particular."""
    from stable_baselines3.common.env_checker import check_env as check_sb3

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_sb3(PipelineEnv(arenas, workshop=shop))


@pytest.mark.parametrize("preset", reward_ids())
def test_the_reward_is_the_judges(arenas, shop, preset):
    """Zero until the end, and then the preset of the incumbent's report with the share of good form."""
    env = PipelineEnv(arenas, reward=preset, workshop=shop)
    env.reset(seed=0, options={"task": arenas[1].name})
    rewards = [env.step(token)[1] for token in [*indices_of(GOOD), *indices_of(Pipeline("tfidf-word"))]]
    report = shop.marks([(arenas[1], GOOD)])[0].report
    assert set(rewards[:-1]) == {0.0} and rewards[-1] == reward(preset, report, 0.5)


def test_masks_name_the_options_and_submit(arenas, shop):
    """They agree with the grammar's own masks; submit is offered between attempts only."""
    env = PipelineEnv(arenas, workshop=shop)
    _, info = env.reset(seed=3)
    for number in range(2):
        for slot in SLOTS:
            assert (info["action_mask"][:-1].astype(bool) == mask(slot, (), env.seat.arena.meta)).all()
            assert info["action_mask"][-1] == (number == 1 and slot == SLOTS[0])
            info = env.step(0)[4]


def test_submitting_ends_an_episode(arenas, shop):
    """After one attempt; the second is not missed."""
    env = PipelineEnv(arenas, workshop=shop)
    env.reset(seed=0, options={"task": arenas[1].name})
    for token in indices_of(GOOD):
        observation = env.step(token)[0]
    assert observation["turns_left"] == 1 and not observation["tokens"].any()
    _, paid, terminated, truncated, info = env.step(width())
    assert (terminated, truncated) == (True, False) and info["tier"] >= 3 and paid > 0.6
    for action in (0, width(), width() + 1, -1, "submit", None):
        with pytest.raises(gym.error.ResetNeeded, match="Call reset"):
            env.step(action)


def test_an_illegal_token_costs_good_form_only(arenas, shop):
    """It is read as the first option; with submit before any attempt it is the same."""
    env = PipelineEnv(arenas, turns=1, workshop=shop)
    legal = [int(t) for t in indices_of(Pipeline(impute="median"))]
    paid = []
    for first in (legal[0], width(), len(vocabulary()[0])):
        env.reset(seed=0, options={"task": arenas[0].name})
        paid.append([env.step(token)[1] for token in [first, *legal[1:]]][-1])
    assert paid[0] == pytest.approx(paid[1] + 0.1) and paid[1] == paid[2]


def test_time_outs_truncate_and_mask(arenas):
    """An episode with a late attempt of two is left out by learners; nothing of it is remembered."""
    shop = Workshop(hanging)
    env = PipelineEnv(arenas, workshop=shop)
    env.reset(seed=0)
    for token in [*indices_of(GOOD), *indices_of(GOOD)]:
        observation, _, terminated, truncated, info = env.step(token)
    assert (terminated, truncated, info["mask"], info["status"]) == (False, True, True, "timeout")
    assert observation["feedback"][FEEDBACK.index("timed_out")] == 1 and shop.executed == 2


def test_a_failure_is_told_with_its_reason(arenas, shop):
    """In words, when the attempt ends and once more at the end of the episode, alone and in a vector."""
    failing, good = indices_of(Pipeline("tfidf-word")), indices_of(GOOD)
    env, envs = PipelineEnv(arenas, workshop=shop), PipelineVectorEnv(arenas, num_envs=2, workshop=shop)
    env.reset(seed=0, options={"task": arenas[1].name})
    envs.reset(seed=0, options={"task": arenas[1].name})
    for token, other in zip(failing, good):
        *_, info = env.step(token)
        *_, infos = envs.step(np.array([token, other]))
    assert info["status"] == "error" and "KeyError" in info["reason"] and info["pipeline"].startswith("tfidf-word")
    assert infos["status"].tolist() == ["error", "ok"] and infos["reason"].tolist() == [info["reason"], ""]
    *_, terminated, _, last = env.step(width())
    *_, infos = envs.step(np.array([width(), width()]))
    assert terminated and last["tier"] == 0 and (last["status"], last["reason"]) == ("error", info["reason"])
    assert infos["reason"].tolist() == [info["reason"], ""] and infos["_reason"].all()
    for key in ("status", "reason", "action_mask", "normalised", "mask"):
        assert f"{key}" in PipelineEnv.__doc__


def test_seeds_decide_on_tasks(arenas, shop):
    """Equal seeds give equal episodes, and all tasks occur."""
    env = PipelineEnv(arenas, workshop=shop)
    names = [env.reset(seed=i)[1]["task"] for i in range(30)]
    assert names == [env.reset(seed=i)[1]["task"] for i in range(30)] and len(set(names)) == 3


def test_worlds_of_a_vector_are_single_ones(arenas, shop):
    """World i of seed s is the single environment of seed s + i, over resets, under random actions without masks."""
    envs = PipelineVectorEnv(arenas, num_envs=3, workshop=shop)
    singles = [PipelineEnv(arenas, workshop=shop) for _ in range(3)]
    envs.reset(seed=11)
    for i, env in enumerate(singles):
        env.reset(seed=11 + i)
    over, rng = [False] * 3, stream(0, "actions")
    for _ in range(45):
        actions = rng.integers(0, width() + 1, 3)
        seen, rewards, terminated, truncated, infos = envs.step(actions)
        for i, env in enumerate(singles):
            observation, *rest = env.reset() if over[i] else env.step(actions[i])
            paid, over[i] = (0.0, False) if over[i] else (rest[0], rest[1] or rest[2])
            assert all((seen[k][i] == v).all() for k, v in observation.items())
            assert (rewards[i], terminated[i] or truncated[i]) == (paid, over[i])
            assert (infos["action_mask"][i] == env.seat.mask()).all()
    assert envs.observation_space.contains(seen)


def test_it_is_made_by_name():
    """Alone and as a vector, with tasks of its own."""
    register_pipeline_env()
    env = gym.make("rl_oodkit/MLEPipeline-v0", turns=1)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    envs = gym.make_vec("rl_oodkit/MLEPipeline-v0", num_envs=2)
    assert envs.reset(seed=0)[0]["meta"].shape[0] == 2
    assert len(default_arenas()) == 4


@pytest.mark.parametrize("bad", [{"tasks": []}, {"tasks": [1]}, {"reward": "fame"}, {"turns": 0}, {"level": "word"}])
def test_bad_arguments_are_refused(arenas, bad):
    """Before the first step."""
    with pytest.raises(ParameterError):
        PipelineEnv(**{"tasks": arenas, **bad})


def test_bad_calls_are_refused(arenas, shop):
    """Unknown tasks and options, actions outside the space, wrong numbers of seeds."""
    env, envs = PipelineEnv(arenas, workshop=shop), PipelineVectorEnv(arenas, num_envs=2, workshop=shop)
    for options_ in ({"task": "nowhere"}, {"colour": 1}):
        with pytest.raises(ParameterError):
            env.reset(options=options_)
    env.reset(seed=0)
    for action in (width() + 1, -1, "submit"):
        with pytest.raises(ParameterError):
            env.step(action)
    with pytest.raises(gym.error.ResetNeeded):
        envs.step([0, 0])
    envs.reset(seed=0)
    for actions in ([0, width() + 1], [0, -1], [0, 0.5], [0, np.nan], ["a", "b"]):
        with pytest.raises((ParameterError, ShapeError, NonFiniteError)):
            envs.step(actions)
    for options_ in ({"task": "nowhere"}, {"colour": 1}):
        with pytest.raises(ParameterError):
            envs.reset(options=options_)
    for wrong in (5, "shop", object()):
        for make in (PipelineEnv, PipelineVectorEnv):
            with pytest.raises(ParameterError, match="workshop"):
                make(arenas, workshop=wrong)
    envs.reset(seed=0)
    with pytest.raises(ShapeError):
        envs.step([0])
    with pytest.raises(ShapeError):
        envs.reset(seed=[1])


def test_private_scores_stay_private(arenas, shop):
    """Feedback is a function of public facts: other private answers change rewards, and nothing that is told."""
    arena, rng = arenas[1], stream(0, "private")
    answers = arena.judge.answers
    y = answers.y.copy()
    private = np.flatnonzero(answers.part == 1)
    y[private] = rng.permutation(y[private])
    other = type(arena.judge)(
        arena.meta, type(answers)(answers.ids, y, answers.part), arena.judge.thresholds, arena.judge.board
    )
    twin = Arena(arena.public, other, arena.landmarks, arena.board)
    told, paid = [], []
    for world in (arena, twin):
        env = PipelineEnv([world], workshop=Workshop(quick))
        env.reset(seed=0)
        steps = [env.step(t) for t in [*indices_of(GOOD), *indices_of(Pipeline("fft", model="knn"))]]
        told.append([s[0]["feedback"].tolist() for s in steps])
        paid.append(steps[-1][1])
    assert told[0] == told[1] and paid[0] > paid[1]


def test_the_incumbent_is_best_by_public_score():
    """A later attempt with a better private and a worse public score is not handed in."""
    arena = toy_arenas(1, rows=40)[0]
    episode = Episode(arena)
    for public, private in ((0.8, 0.6), (0.7, 0.9), (0.8, 0.95)):
        episode.add(Pipeline(), Mark("ok", GradeReport("valid", score=private, public_score=public, tier=1)))
    assert episode.report.score == 0.6
    assert [a.repeated for a in episode.attempts] == [False, True, True]
    assert episode.format_share == pytest.approx(1 / 3)
    assert [a.feedback[FEEDBACK.index("improved")] for a in episode.attempts] == [1, 0, 0]


@pytest.mark.parametrize("late", range(5))
def test_masks_begin_beyond_a_fifth(late):
    """One of five attempts is forgiven, two are not."""
    episode = Episode(toy_arenas(1, rows=40)[0])
    for i in range(5):
        status = "timeout" if i < late else "error"
        episode.add(Pipeline(), Mark(status, failed("timeout" if status == "timeout" else "crash", "")))
    assert episode.masked == (late > 1)


def test_a_workshop_runs_each_canonical_pipeline_once(arenas):
    """In one batch, in order, with equal marks for equal pipelines; time-outs are asked for again."""
    calls = []

    def counted(requests):
        calls.append(len(requests))
        return quick(requests)

    shop, rng = Workshop(counted), stream(0, "workshop")
    drawn = [Pipeline(*(options(s)[rng.integers(len(options(s)))] for s in SLOTS)) for _ in range(40)]
    marks = shop.marks([(arenas[1], p) for p in drawn + drawn])
    distinct = len({canonical(p, arenas[1].meta) for p in drawn})
    assert calls == [distinct] and marks[:40] == marks[40:] and shop.asked == 80
    shop.marks([(arenas[1], drawn[0])])
    assert calls == [distinct, 0]
    late = Workshop(hanging)
    for _ in range(2):
        assert late.marks([(arenas[1], GOOD)])[0].status == "timeout"
    assert late.executed == 2


def test_the_usual_executor_gives_the_same_marks(arenas):
    """A workshop with an executor of its own agrees with running in place."""
    requests = [(arenas[1], GOOD), (arenas[0], Pipeline(impute="median")), (arenas[0], Pipeline("pool2"))]
    with make_workshop() as usual:
        here, there = Workshop().marks(requests), usual.marks(requests)
    assert [m.report for m in here] == [m.report for m in there]


def test_words_and_numbers_are_one_to_one():
    """All options of all slots survive the way to indices and back."""
    for slot, words in zip(SLOTS, vocabulary()):
        for word in words:
            pipeline = Pipeline(**{slot: word})
            assert pipeline_of(indices_of(pipeline)) == pipeline
    for bad in (np.full(10, -1), np.full(10, 99)):
        with pytest.raises(ParameterError):
            pipeline_of(bad)
    with pytest.raises(ShapeError):
        pipeline_of(np.zeros(9, int))


def test_arenas_have_two_matching_faces(arenas):
    """A judge of another task is refused, as are repeated tasks and landmarks that are no vector."""
    with pytest.raises(ParameterError, match="one task"):
        Arena(arenas[0].public, arenas[1].judge, arenas[0].landmarks)
    with pytest.raises(ShapeError):
        Arena(arenas[0].public, arenas[0].judge, np.zeros((2, 2)))
    with pytest.raises(ParameterError, match="share a name"):
        check_arenas([arenas[0], arenas[0]])
    assert all(a.judge.grade(a.public.sample_submission).valid for a in arenas)
