"""What every pipeline promises on every task: no exception, finite predictions of the right kind, the same bytes."""

import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rl_oodkit.core.errors import ParameterError
from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.compatibility import METRICS_OF, TARGETS_OF, repaired
from rl_oodkit.mle.dna import MODALITIES, Categories, Missing, TaskDNA
from rl_oodkit.mle.landmarks import LANDMARK_NAMES, landmarks
from rl_oodkit.mle.meta import PublicTask, TaskMeta, submission_frame
from rl_oodkit.mle.metrics import score
from rl_oodkit.mle.options import SLOTS, options
from rl_oodkit.mle.pipeline import Pipeline, canonical, run_pipeline, same_outcome
from rl_oodkit.mle.practitioner import population
from rl_oodkit.mle.reader import read_submission
from rl_oodkit.mle.references import AnswerScorer, ceiling, fit_board, run_in_turn
from rl_oodkit.mle.tables import tables
from rl_oodkit.mle.toys import toy_task

CELLS = (("tabular", "binary"), ("series", "forecast"), ("signal", "multiclass"), ("image", "ordinal"))
CELLS += (("text", "regression"), ("multitable", "count"))


def drawn(modality: str, target: str, metric: str | None = None, **genes) -> TaskDNA:
    """Return a small task with empty cells and categories where they can be."""
    metric = metric or METRICS_OF[target][0]
    shape = {"n_train": 60, "n_public": 60, "n_private": 60, "n_classes": 3}
    genes = {"missing": Missing(0.1, "MNAR"), "cats": Categories(2, 4, 0.05)} | shape | genes
    return repaired(TaskDNA(modality, target, metric, **genes))


REAL = {cell: tables(drawn(*cell)) for cell in CELLS}


def check(task: PublicTask, predictions: np.ndarray) -> None:
    """Assert that predictions are of the kind the task asks for, and would be accepted as a submission."""
    meta, n = task.meta, len(task.test)
    assert np.isfinite(predictions).all()
    assert predictions.shape == ((n, len(meta.classes)) if meta.prediction == "probabilities" else (n,))
    if meta.prediction in ("probability", "probabilities"):
        assert predictions.min() >= 0 and predictions.max() <= 1
    if meta.prediction == "probabilities":
        assert np.allclose(predictions.sum(axis=1), 1, atol=1e-9)
    if meta.prediction == "label":
        assert predictions.dtype == np.int64 and 0 <= predictions.min() <= predictions.max() < len(meta.classes)
    ids = task.test["id"].to_numpy()
    assert len(read_submission(submission_frame(meta, ids, predictions), meta, ids)) == n


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_fifty_random_sentences_end_well(cell):
    """No exception, finite predictions of the right kind or a reason in one line, and no more than a second."""
    task, rng = REAL[cell].public, stream(7, "sentences", *cell)
    for _ in range(50):
        o = run_pipeline(Pipeline(*(rng.choice(options(s)) for s in SLOTS)), task)
        assert (o.status == "ok") == (o.reason == "") == (o.predictions is not None)
        assert o.status in ("ok", "error") and "\n" not in o.reason and o.seconds < 5
        if o.good:
            check(task, o.predictions)


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_practitioners_nearly_always_hand_in_something_valid(cell):
    """Failures are logarithms of negative numbers, and nothing else."""
    task = REAL[cell].public
    outcomes = [run_pipeline(p, task) for p in population(task.meta, 15)]
    assert all(o.good or "log1p" in o.reason for o in outcomes) and sum(o.good for o in outcomes) >= 11
    for o in outcomes:
        if o.good:
            check(task, o.predictions)


GOOD = {
    "raw": toy_task(missing=0.1),
    "fft": toy_task("signal"),
    "pool2": toy_task("image"),
    "tfidf-word": toy_task("text"),
    "tfidf-char": toy_task("text"),
    "aggregate": toy_task("multitable"),
    "log": toy_task(target="count", missing=0.1),
    "number": toy_task(target="ordinal", missing=0.1),
}


@pytest.mark.parametrize(("slot", "name"), [(s, n) for s in SLOTS for n in options(s)])
def test_every_option_is_part_of_a_pipeline_that_works(slot, name):
    """Each option succeeds somewhere."""
    view = name if slot == "view" else "raw"
    model = "hgb" if (slot, name) == ("impute", "none") else "linear"
    pipeline = replace(Pipeline(view, "median", "none", "one-hot", "standard", "none", model), **{slot: name})
    task = GOOD.get(name if slot in ("view", "target") else "raw", GOOD["raw"])
    o = run_pipeline(pipeline, task)
    assert o.good, o.reason
    check(task, o.predictions)


@pytest.mark.parametrize(
    ("modality", "target"), [(m, t) for m in MODALITIES for t in TARGETS_OF[m] if (m, t) not in CELLS]
)
def test_every_cell_has_a_working_default(modality, target):
    """All modalities with all their targets, in the view that suits them."""
    task = tables(drawn(modality, target)).public
    view = {"signal": "fft", "image": "pool2", "text": "tfidf-word", "multitable": "aggregate"}.get(modality, "raw")
    o = run_pipeline(Pipeline(view, "median", scale="standard", model="rf"), task)
    assert o.good, o.reason
    check(task, o.predictions)
    assert np.isfinite(landmarks(task)).all() and len(landmarks(task)) == len(LANDMARK_NAMES)


SAMPLE = (
    "raw/median/winsor/one-hot/standard/none/rf/mid/none/isotonic",
    "raw/none/none/ordinal/none/none/hgb/low/balanced/none",
)
PROBE = """
import hashlib
from rl_oodkit.mle.pipeline import from_tokens, run_pipeline
from rl_oodkit.mle.toys import toy_task
task = toy_task("tabular", "multiclass", missing=0.1)
for text in {sample!r}:
    print(hashlib.sha256(run_pipeline(from_tokens(text), task).predictions.tobytes()).hexdigest())
"""


def test_the_same_bytes_again_and_in_a_fresh_process():
    """Also when the environment asks for two threads."""
    from rl_oodkit.mle.pipeline import from_tokens

    task = toy_task("tabular", "multiclass", missing=0.1)
    mine = [run_pipeline(from_tokens(t), task).predictions for t in SAMPLE]
    assert all(
        a.tobytes() == run_pipeline(from_tokens(t), task).predictions.tobytes()
        for t, a in zip(SAMPLE, mine, strict=True)
    )
    command = [sys.executable, "-c", PROBE.format(sample=SAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert done.stdout.split() == [hashlib.sha256(a.tobytes()).hexdigest() for a in mine]


@pytest.mark.parametrize(
    ("pipeline", "task", "words"),
    [
        (Pipeline(model="svm"), toy_task(missing=0.1), "Input X contains NaN"),
        (Pipeline(features="pca"), toy_task(missing=0.1), "Input X contains NaN"),
        (Pipeline(), toy_task("text"), "could not convert string to float"),
        (Pipeline("tfidf-word"), toy_task(), "KeyError: 'text'"),
        (Pipeline("aggregate"), toy_task(), "No such file or directory"),
        (Pipeline("pool2"), toy_task(), "cannot reshape"),
        (Pipeline(target="log"), toy_task(target="regression"), "log1p"),
        (Pipeline(target="log"), toy_task(), "ufunc 'log1p'"),
        (Pipeline(target="number"), toy_task(), "could not convert string to float"),
        (Pipeline(target="balanced"), toy_task(target="regression"), "unexpected keyword argument 'class_weight'"),
        (Pipeline(model="nb"), toy_task(target="regression"), "Unknown label type"),
        (Pipeline(calibration="sigmoid"), toy_task(target="count"), "predict_proba"),
        (
            Pipeline(),
            toy_task("multitable").__class__(
                toy_task("multitable").meta,
                *[
                    f[[c for c in f if c in ("id", "target")]]
                    for f in (toy_task("multitable").train, toy_task("multitable").test)
                ],
                toy_task("multitable").sample_submission,
            ),
            "0 feature",
        ),
    ],
)
def test_wrong_choices_fail_in_the_words_of_a_script(pipeline, task, words):
    """The reason is what the last line of a traceback would say."""
    o = run_pipeline(pipeline, task)
    assert o.status == "error" and words in o.reason


def test_a_class_that_no_training_row_shows_has_probability_zero():
    """Its column is there nevertheless, and so it is after calibration with few rows."""
    task = toy_task("tabular", "multiclass")
    few = replace(task, train=task.train[task.train["target"] != "oak"])
    for name in options("model"):
        p = run_pipeline(Pipeline(impute="median", model=name), few).predictions
        assert p.shape[1] == 3 and (p[:, 2] == 0).all() and np.allclose(p.sum(axis=1), 1)
    one = replace(task, train=task.train[task.train["target"] == "elm"])
    assert "class" in run_pipeline(Pipeline(), one).reason and run_pipeline(Pipeline(model="rf"), one).good


def test_unseen_and_missing_categories_are_handled():
    """A new town, an empty town, and a column of them that is empty altogether."""
    task = toy_task()
    test = task.test.assign(kind=["zoo", None] * (len(task.test) // 2))
    train = task.train.assign(void=np.nan)
    changed = replace(task, train=train, test=test.assign(void=np.nan))
    for encode in options("encode"):
        for impute in options("impute")[1:]:
            o = run_pipeline(Pipeline(impute=impute, encode=encode, scale="standard"), changed)
            assert o.good, o.reason


@pytest.mark.parametrize("damage", ["label", "class", "id"])
def test_a_damaged_task_is_named(damage):
    """What is not a pipeline's fault is raised."""
    task = toy_task()
    train = {
        "label": task.train.drop(columns="target"),
        "class": task.train.assign(target="maybe"),
        "id": task.train.drop(columns="id"),
    }[damage]
    with pytest.raises(ParameterError, match="damaged"):
        run_pipeline(Pipeline(), replace(task, train=train))


def test_files_and_frames_lead_to_the_same_bytes(tmp_path):
    """A task read back from its CSV files is the same task to every pipeline."""
    from rl_oodkit.mle.meta import csv_bytes, read_table

    task = REAL["tabular", "binary"].public
    read = {}
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(csv_bytes(getattr(task, name)))
        read[name] = read_table(tmp_path / name, (task.meta.label_column,))
    for pipeline in population(task.meta, 5):
        assert same_outcome(run_pipeline(pipeline, task), run_pipeline(pipeline, replace(task, **read)))


def test_board_and_ceiling():
    """The board has one row a pipeline; with more rows the ceiling is above the crowd's median."""
    built = REAL["tabular", "binary"]
    scorer = AnswerScorer(built.meta, built.answers)
    board = fit_board(built.public, scorer, population(built.meta, 8))
    assert list(board.columns) == ["pipeline", "public", "private", "seconds", "status"] and len(board) == 8
    assert ceiling(built.world.dna, rows=3000).score > board["private"].median()
    o = run_pipeline(canonical(population(built.meta, 1)[0], built.meta), built.public)
    private = built.answers["part"].to_numpy() == 1
    assert board["private"][0] == score("auc", built.answers["target"].to_numpy()[private], o.predictions[private])


def test_a_leak_and_a_drift_move_their_landmarks():
    """What the statistics are for."""
    at = {name: i for i, name in enumerate(LANDMARK_NAMES)}
    task = toy_task(target="regression")
    leak = replace(task, train=task.train.assign(z=2 * task.train["target"]), test=task.test.assign(z=50.0))
    empty = replace(task, train=task.train.assign(a=task.train["a"].where(task.train["target"] < 0.5)))
    plain, copied, hollow = landmarks(task), landmarks(leak), landmarks(empty)
    assert copied[at["suspect_share"]] > 0 == plain[at["suspect_share"]]
    assert copied[at["suspect_shift"]] > 5 and hollow[at["empty_corr"]] > 0.6 > plain[at["empty_corr"]]
    assert pd.Index(LANDMARK_NAMES).is_unique and len(LANDMARK_NAMES) >= 29


def test_meta_alone_decides_the_canonical_form():
    """Facts suffice; no row is looked at."""
    meta = TaskMeta("t1", "signal", "binary", "accuracy", False, "label", ("no", "yes"))
    assert canonical(
        Pipeline("fft", "knn", "none", "one-hot", "quantile", model="et", calibration="sigmoid"), meta
    ) == (Pipeline("fft", model="et"))


@pytest.mark.parametrize("modality", ["tabular", "text", "image", "multitable"])
def test_a_crowd_in_turn_predicts_what_each_predicts_alone(modality):
    """To the last bit: tables are shared, and no step changes one."""
    task = toy_task(modality)
    crowd = population(task.meta, 12)
    for pipeline, together in zip(crowd, run_in_turn([(task, p) for p in crowd]), strict=True):
        assert same_outcome(together, run_pipeline(pipeline, task)), str(pipeline)
