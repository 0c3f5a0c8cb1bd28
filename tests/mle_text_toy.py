"""What tests of text agents share: a task made by hand, and an executor that understands the names of medals."""

from pathlib import Path

import numpy as np
import pandas as pd

from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.code_episode import CodeTask
from rl_oodkit.mle.execution import StepResult
from rl_oodkit.mle.grade import Answers, Judge
from rl_oodkit.mle.medals import Thresholds, thresholds
from rl_oodkit.mle.meta import PublicTask, TaskMeta, csv_bytes, submission_frame

FENCE = "```"
LOOK = f"First a look.\n{FENCE}python\nimport pandas as pd\nprint(pd.read_csv('data/train.csv').shape)\n{FENCE}"
WRONG = f"{FENCE}python\nprint(open('train.csv').read())\n{FENCE}"
FIT = f"""A linear model.
{FENCE}python
import pandas as pd
from sklearn.linear_model import LogisticRegression
train, test = pd.read_csv("data/train.csv"), pd.read_csv("data/test.csv")
columns = [c for c in train if c.startswith("x")]
model = LogisticRegression().fit(train[columns], train["target"])
test["probability"] = model.predict_proba(test[columns])[:, 1]
test[["id", "probability"]].to_csv("submission.csv", index=False)
{FENCE}"""
META = TaskMeta("t1", "tabular", "regression", "mae", True, "value", title="Twelve numbers")
IDS, Y = np.arange(12), np.linspace(0.0, 1.1, 12)
SHIFTS = {"gold": 0.01, "silver": 0.08, "bronze": 0.15, "median": 0.25, "valid": 0.5}


def fenced(code: str) -> str:
    """Return a turn that runs a program."""
    return f"{FENCE}python\n{code}\n{FENCE}"


def toy_task() -> CodeTask:
    """Return a task of twelve numbers."""
    frames = [pd.DataFrame({"id": IDS, "x": Y})] * 2
    public = PublicTask(META, *frames, submission_frame(META, IDS, np.full(12, 0.5)), description="Predict.")
    limits = Thresholds(0.6, 0.3, 0.2, 0.1, 0.05, 0.0, 0.01, True)
    return CodeTask(public, Judge(META, Answers(IDS, Y, np.arange(12) % 2), limits, np.linspace(0.04, 0.5, 40)))


class ToyExecutor:
    """Write the submission that a word names; wait on "sleep", fail on anything else."""

    level = 2

    def __init__(self):
        self.calls, self.closed = [], 0

    def run(self, code, task, *, episode="", keep=True, seed=0, time_limit_s=10.0):
        """Return the outcome of a word."""
        word = code.strip()
        self.calls.append((episode, word))
        if word == "sleep":
            return StepResult("timeout", None, "", "", reason="more than 10 s", wall_seconds=10.0)
        if word == "lost":
            return StepResult("jail-failed", None, "", "", reason="no server")
        if word not in SHIFTS:
            return StepResult("error", 1, "", f"NameError: {word}", reason="exit code 1")
        return StepResult("ok", 0, word, "", csv_bytes(submission_frame(META, IDS, Y + SHIFTS[word])))

    def close(self):
        """Count the calls."""
        self.closed += 1


def small_task(root: Path, name: str = "t-small", n: int = 120, tests: int = 600) -> CodeTask:
    """Write the public files of a classification task below a root; return its two faces."""
    rng = stream(0, "react")
    x = rng.normal(size=(n + tests, 5)).round(3)
    chance = 1 / (1 + np.exp(-2 * x[:, 0] + 2 * x[:, 1]))
    y, ids = (rng.random(n + tests) < chance).astype(int), np.arange(n + tests)
    meta = TaskMeta(name, "tabular", "binary", "auc", False, "probability", ("no", "yes"), n_train=n, n_test=tests)
    table = pd.DataFrame({"id": ids, **{f"x{i}": x[:, i] for i in range(5)}})
    frames = table[:n].assign(target=np.array(meta.classes)[y[:n]]), table[n:]
    public = PublicTask(meta, *frames, submission_frame(meta, ids[n:], np.full(tests, 0.5)), description="Buy?")
    folder = root / name / "public"
    folder.mkdir(parents=True)
    for file, frame in zip(meta.files, (public.train, public.test, public.sample_submission), strict=True):
        (folder / file).write_bytes(csv_bytes(frame))
    answers = Answers(ids[n:], y[n:], (np.arange(tests) % 3 > 0).astype(int))
    rough = Judge(meta, answers, Thresholds(0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, False), [0.5])
    noisy = [np.clip(chance[n:] + rng.normal(0, s, tests), 0, 1) for s in np.linspace(0.3, 3.0, 40)]
    board = [rough.score(p, "private") for p in noisy]
    oracle = rough.score(chance[n:], "private")
    return CodeTask(public, Judge(meta, answers, thresholds(board, 0.5, oracle, oracle, "mlebench"), board))
