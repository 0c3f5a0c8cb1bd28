"""The text environment keeps Gymnasium's contract, the referee's rules, and the secrets of its tasks."""

import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from mle_text_toy import FENCE, FIT, SHIFTS, ToyExecutor, fenced, small_task, toy_task

from rl_oodkit.core.errors import ParameterError, SandboxUnavailableError
from rl_oodkit.mle.actions import UnicodeText, feedback, last_lines, parse_action, visible
from rl_oodkit.mle.arenas import default_arenas, toy_arenas
from rl_oodkit.mle.code_env import CODE_ENV, CodeEnv
from rl_oodkit.mle.cold import ColdSubprocess
from rl_oodkit.mle.execution import STATUSES, StepResult
from rl_oodkit.mle.files import task_files
from rl_oodkit.mle.grade import GradeReport
from rl_oodkit.mle.levels import make_code_executor
from rl_oodkit.mle.release import Release
from rl_oodkit.mle.rewards import reward, reward_ids
from rl_oodkit.mle.steps import StepMemory, StepRunner, first_state, runner_of

TIERS = {"valid": 1, "median": 2, "bronze": 3, "silver": 4, "gold": 5}
SPACE = UnicodeText(32_768)


def play(env, *turns, seed=0):
    """Take turns until the episode ends; return the five values of the last step."""
    env.reset(seed=seed)
    for turn in turns:
        last = env.step(turn)
        if last[2] or last[3]:
            break
    return last


def test_gymnasium_accepts_it():
    """The checker's random texts, resets and seeds pass, wrapped and bare."""
    env = gym.make(CODE_ENV, tasks=[toy_task()], executor=ToyExecutor, turns=3)
    check_env(env.unwrapped, skip_render_check=True)
    assert gym.spec(CODE_ENV).entry_point == "rl_oodkit.mle.code_env:CodeEnv"


def test_side_by_side_equals_one_by_one():
    """A vector of four gives what four environments give, and executes equal programs once."""
    executor, turns = ToyExecutor(), [fenced("bronze"), fenced("gold")]
    envs = gym.make_vec(CODE_ENV, num_envs=4, vectorization_mode="sync", tasks=[toy_task()], executor=executor, turns=3)
    envs.reset(seed=0)
    envs.step([fenced("bronze")] * 4)
    _, rewards, ended, _, info = envs.step(tuple(turns[i % 2] if i < 2 else "submit" for i in range(4)))
    assert ended.tolist() == [False, False, True, True] and info["medal"].tolist()[2:] == ["bronze"] * 2
    alone = play(CodeEnv([toy_task()], ToyExecutor(), turns=3), fenced("bronze"), "submit")
    assert rewards[2] == rewards[3] == pytest.approx(alone[1])
    assert [word for _, word in executor.calls] == ["bronze", "bronze", "bronze", "gold"]  # the third remakes a folder
    assert executor.closed == 0


@pytest.mark.parametrize("preset", reward_ids())
@pytest.mark.parametrize("word", SHIFTS)
def test_rewards_are_the_presets(preset, word):
    """Every tier under every preset, with one turn in four wasted."""
    env = CodeEnv([toy_task()], ToyExecutor(), reward=preset)
    _, value, terminated, truncated, info = play(env, fenced(word), "well", "score", "submit")
    assert terminated and not truncated and info["tier"] == TIERS[word] and info["format_share"] == 0.75
    report = toy_task().judge.grade(ToyExecutor().run(word, "t1").submission)
    assert value == pytest.approx(reward(preset, report, 0.75)) == pytest.approx(sum(info["parts"].values()))


def test_no_submission_earns_the_format_alone():
    """An episode that hands in nothing is invalid, and says why."""
    _, value, terminated, _, info = play(CodeEnv([toy_task()], ToyExecutor()), "submit")
    assert terminated and info["grade"] == "missing" and info["reason"] == "no submission.csv was written"
    assert value == reward("paper", GradeReport("invalid"), 1.0) == 0.1


class Writer(ToyExecutor):
    """Write what a program names: nothing, something else than a table, or a file that is refused."""

    def run(self, code, task, **options):
        """Return the outcome of a word."""
        found = {"malformed": b"id,value\n1,x\n"}.get(code.strip())
        reason = {"link": "submission.csv is not a regular file", "nothing": "there is no submission.csv"}
        return StepResult("ok", 0, "", "", found, reason=reason.get(code.strip(), ""))


@pytest.mark.parametrize(
    ("word", "grade", "reason", "answer"),
    [
        ("nothing", "missing", "no submission.csv was written", "There is no submission.csv."),
        ("link", "invalid", "not a regular file", "no usable submission.csv"),
        ("malformed", "invalid", "ids are missing", "submission.csv exists."),
    ],
)
def test_a_missing_file_is_no_malformed_one(word, grade, reason, answer):
    """Three mistakes, three words: in the feedback, in the answer to a question for the score, and in the grade."""
    env = CodeEnv([toy_task()], Writer())
    env.reset(seed=0)
    assert answer in env.step(fenced(word))[0]
    assert ("no submission.csv to score" in env.step("score")[0]) == (word == "nothing")
    text, *_, info = env.step("submit")
    assert info["grade"] == grade and reason in info["reason"] and info["submission"] == (word == "malformed")
    assert ("no submission.csv was written" in text) == (word == "nothing")


def test_the_opening_names_each_path():
    """Once as it is read here, and once for those who know it from the description."""
    text, _ = CodeEnv([toy_task()], ToyExecutor()).reset(seed=0)
    assert all(f"data/{name}" in text for name in ("train.csv", "test.csv", "sample_submission.csv"))
    assert "what the description calls train.csv is data/train.csv" in text


def test_score_calls_are_limited_and_public():
    """Five answers and no sixth, on the public rows; a failed question about nothing costs none."""
    env = CodeEnv([toy_task()], ToyExecutor())
    play(env, "score", fenced("bronze"))
    assert env.episode.budget.left == 5
    for left in (4, 3, 2, 1, 0):
        text, *_, info = env.step("score")
        assert info["public_score"] == pytest.approx(0.15) and info["scores_left"] == left
    text, *_, info = env.step("score")
    assert "No score" in text and "public_score" not in info


def test_turns_run_out_and_the_folder_is_graded():
    """Without a submit the last submission counts, and the episode terminates."""
    _, value, terminated, truncated, info = play(CodeEnv([toy_task()], ToyExecutor(), turns=2), fenced("gold"), "score")
    assert (terminated, truncated, info["ending"], info["medal"], value) == (True, False, "turns", "gold", 1.0)


@pytest.mark.parametrize(
    ("turns", "said", "ending"),
    [
        (4, ["sleep"], "timeout"),
        (10, ["sleep", "gold", "sleep", "sleep"], "timeout"),
        (10, ["sleep", "gold", "submit"], "timeout"),
        (10, ["sleep", "gold", "gold", "bronze", "gold", "submit"], "submitted"),
        (10, ["gold", "lost"], "failed"),
    ],
)
def test_the_clock_masks_and_does_not_punish(turns, said, ending):
    """More than a fifth of programs lost to the clock: truncated, masked, worth nothing either way."""
    env = CodeEnv([toy_task()], ToyExecutor(), turns=turns)
    _, value, terminated, truncated, info = play(env, *[s if s == "submit" else fenced(s) for s in said])
    assert info["ending"] == ending and truncated == info["mask"] == (ending != "submitted") == (not terminated)
    assert (value == 0.0) == truncated


def test_an_episode_has_a_sum_of_seconds():
    """Many slow programs end an episode although none of them exceeds its own limit."""
    env = CodeEnv([toy_task()], ToyExecutor(), turns=100, episode_limit_s=15.0)
    _, _, _, truncated, info = play(env, fenced("sleep"), fenced("sleep"))
    assert truncated and info["mask"] and info["turns_left"] == 98


def test_an_executor_that_does_not_isolate_is_refused(tmp_path):
    """Level 0 and 1 need an explicit word; one that was made for the refusal is closed again."""
    with ColdSubprocess(tmp_path) as cold:
        with pytest.raises(SandboxUnavailableError, match="level 0"):
            CodeEnv([toy_task()], cold)
        CodeEnv([toy_task()], cold, allow_unsafe=True)
    made = ToyExecutor()
    made.level = 1
    with pytest.raises(SandboxUnavailableError, match="level 1"):
        CodeEnv([toy_task()], lambda: made)
    assert made.closed == 1


def test_it_closes_what_it_made():
    """An executor that was passed stays open."""
    passed = ToyExecutor()
    CodeEnv([toy_task()], passed).close()
    env = CodeEnv([toy_task()], lambda: made, turns=3) if (made := ToyExecutor()) else None
    env.close()
    env.close()
    assert (passed.closed, made.closed) == (0, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tasks": None},
        {"tasks": []},
        {"executor": None},
        {"turns": 0},
        {"length": 5},
        {"reward": "applause"},
        {"episode_limit_s": math.nan},
        {"tasks": [toy_task()], "suite": "x"},
        {"tasks": None, "executor": None, "suite": "mikro-1"},
        {"tasks": None, "executor": None, "suite": "toy", "split": "exam"},
    ],
)
def test_bad_configurations_are_named(wrong):
    """Before the first episode, not in the middle of one."""
    with pytest.raises((ParameterError, LookupError)):
        CodeEnv(**{"tasks": [toy_task()], "executor": ToyExecutor(), **wrong})


def test_misuse_is_named():
    """A step without an episode, one after its end, and a task that is not there."""
    env = CodeEnv([toy_task()], ToyExecutor())
    with pytest.raises(ResetNeeded, match="Call reset"):
        env.step("submit")
    play(env, "submit")
    for action in ("submit", "", "no word of the language"):
        with pytest.raises(ResetNeeded, match="over"):
            env.step(action)
    with pytest.raises(ParameterError, match="no task"):
        env.reset(options={"task": "t2"})


def test_answers_are_in_no_observation():
    """Neither opening, feedback nor info holds a label or a threshold."""
    env = CodeEnv([toy_task()], ToyExecutor())
    text, info = env.reset(seed=0)
    said = text + repr(info) + "".join(str(env.step(turn)) for turn in (fenced("median"), "score", "submit"))
    assert "Answers(" not in said and "0.30000" not in said and "Thresholds" not in said


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200) | st.text(alphabet="`<>/code score submit\n", max_size=120))
def test_every_text_is_an_action(text):
    """Reading never fails, and finds a program only where there is one."""
    action = parse_action(text)
    assert action.kind in ("code", "score", "submit", "none")
    assert bool(action.code.strip()) == (action.kind == "code") and bool(action.problem) == (action.kind == "none")


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r`"), min_size=1, max_size=200))
def test_programs_come_through_unchanged(code):
    """What stands between the fences is what runs, whatever else is said around it."""
    action = parse_action(f"I think so.\n{FENCE}python\n{code}\n{FENCE}\nLet us see.")
    if code.strip() and "</think>" not in code:
        assert (action.kind, action.code) == ("code", code + "\n")


@pytest.mark.parametrize("text", [FENCE * 20_000, "<code>" * 20_000, "`\n" * 30_000, "</code>" * 20_000, "<" * 65_536])
def test_reading_takes_linear_time(text):
    """Texts that defeat lazy patterns are read at once."""
    assert parse_action(text).kind == "none"


@settings(max_examples=60, deadline=None)
@given(out=st.text(max_size=300), err=st.binary(max_size=300), status=st.sampled_from(STATUSES))
def test_every_output_is_an_observation(out, err, status):
    """Control characters, halves of characters and long lines all end up in the space."""
    result = StepResult(status, 1, out + "\ud800\x1b[2J", err.decode("latin-1") * 30, reason="a reason")
    assert SPACE.contains(feedback(result))


@given(st.text(max_size=100), st.integers(1, 50))
def test_visible_texts_are_short_and_stay_as_they_are(text, most):
    """The bound holds, and showing twice is showing once."""
    once = visible(text, most)
    assert len(once) <= most and SPACE.contains(once) and visible(once, most) == once


def test_twenty_lines_are_shown():
    """The last twenty, as the benchmarks of the literature do, also with a progress bar's line ends."""
    assert last_lines("\n".join(map(str, range(100)))).split("\n") == [str(i) for i in range(80, 100)]
    assert last_lines("\r".join(map(str, range(100))) + "\n").split("\n") == [str(i) for i in range(80, 100)]


class Journal:
    """Keep a list for each episode's folder, and print it."""

    level = 2

    def __init__(self):
        self.episode, self.folder = "", []

    def run(self, code, task, *, episode, **options):
        """Append a word to the folder; only the last episode's folder exists, as in the real executors."""
        if episode != self.episode:
            self.episode, self.folder = episode, []
        self.folder.append(code)
        return StepResult("ok", 0, " ".join(self.folder), "")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc")), max_size=12))
def test_interleaved_episodes_do_not_see_each_other(moves):
    """Three episodes take turns on one executor in any order, and each sees its own past alone."""
    runner = StepRunner(Journal())
    states = {i: (first_state("t1", 1.0), ()) for i in range(3)}
    for i, word in moves:
        state, history = states[i]
        step = runner.run("t1", history, state, word, 1.0)
        states[i] = step.state, (*history, word)
        assert step.result.stdout == " ".join(states[i][1])


def test_the_memory_is_bounded():
    """The bound on bytes holds after every entry, and a memory of nothing remembers nothing."""
    memory = StepMemory(5_000)
    for i in range(50):
        memory.put(str(i), StepResult("ok", 0, "x" * (37 * i % 2000), ""))
        assert memory.bytes <= 5_000
    none = StepMemory(0)
    none.put("a", StepResult("ok", 0, "", ""))
    assert none.get("a") is None and none.bytes == 0


def test_runners_belong_to_executors():
    """Two environments on one executor share its memory."""
    executor = ToyExecutor()
    envs = [CodeEnv([toy_task()], executor) for _ in range(2)]
    assert envs[0].runner is envs[1].runner is runner_of(executor)


def test_a_real_program_in_a_real_jail(tmp_path):
    """Scikit-learn in the warm executor earns a medal; a program that looks for the answers finds none."""
    task = small_task(tmp_path / "tasks")
    (tmp_path / "private").mkdir()
    secret = tmp_path / "private" / "answers.txt"
    secret.write_text("the answers")
    secret.chmod(0o600)
    try:
        executor = make_code_executor("warm", tmp_path / "tasks")
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    env = CodeEnv([task], executor)
    try:
        _, value, terminated, _, info = play(
            env, fenced(f"print(open({str(secret)!r}).read())"), FIT, "score", "submit"
        )
        assert "the answers" not in str(env.episode.runner.memory._kept)
        assert terminated and info["medal"] in ("bronze", "silver", "gold") and value >= 0.7
        assert np.isfinite(info["score"]) and info["format_share"] == 1.0
    finally:
        executor.close()


def by_name(**options):
    """Make the environment as a user does; the word for trusted code is for machines without jails."""
    return gym.make(CODE_ENV, allow_unsafe=True, **options)


def test_it_is_made_by_name_with_the_tasks_of_the_pipelines():
    """Four training tasks of the released suite, their files in a folder that a program sees and that goes away."""
    env = by_name(turns=2)
    assert list(env.unwrapped.tasks) == [arena.name for arena in default_arenas()]
    _, info = env.reset(seed=0)
    root = env.unwrapped.tasks.root
    text = env.step(fenced("import os\nprint(sorted(os.listdir('data')))"))[0]
    assert "['description.md', 'sample_submission.csv', 'test.csv', 'train.csv']" in text
    shown = {path.name: path.read_bytes() for path in (root / info["task"] / "public").iterdir()}
    task = Release("micro-1").record(info["task"]).task()
    assert {f"public/{name}": data for name, data in shown.items()} == {
        name: data for name, data in task_files(task).items() if name != "task.json"
    }
    env.close()
    env.close()
    assert not root.parent.exists()


def test_suites_go_by_name():
    """The toys and a released suite, any split; nothing is rebuilt before it is drawn."""
    env = by_name(suite="toy", split="val")
    assert list(env.unwrapped.tasks) == [arena.name for arena in toy_arenas(4, seed=1)]
    env.reset(seed=0)
    assert "1\n" in env.step(fenced("print(1)"))[0]
    env.close()
    env = by_name(suite="micro-1", split="test")
    assert len(env.unwrapped.tasks) == 104 and not list(env.unwrapped.tasks.root.iterdir())
    env.close()


def test_a_refused_environment_leaves_no_folder(tmp_path, monkeypatch):
    """What was opened before the refusal is undone."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ParameterError, match="folder of their own"):
        CodeEnv(executor=ToyExecutor())
    assert not list(tmp_path.iterdir())
