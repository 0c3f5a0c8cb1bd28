"""Every renderer with every target it can carry: what a task's files promise."""

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rl_oodkit.core.errors import ParameterError, ShapeError
from rl_oodkit.core.registry import get, names
from rl_oodkit.mle.compatibility import METRICS_OF, TARGETS_OF, conflicts
from rl_oodkit.mle.dna import CLASS_TARGETS, Categories, Clock, Grouping, Missing, Outliers, RuleDNA, TaskDNA
from rl_oodkit.mle.meta import read_table
from rl_oodkit.mle.metrics import score
from rl_oodkit.mle.pipeline import Pipeline, run_pipeline
from rl_oodkit.mle.render import features
from rl_oodkit.mle.tables import FIRST_TEST_ID, know_nothing, meta_of, public_files, tables
from rl_oodkit.mle.traps import LEAKS
from rl_oodkit.mle.worlds import World

CELLS = [(m, t) for m in names("renderer") for t in TARGETS_OF[m]]


def dna_of(modality: str, target: str, **genes) -> TaskDNA:
    """Return a small legal task of a cell."""
    base = {"n_train": 80, "n_public": 40, "n_private": 60, "seed": 7}
    several = target in ("multiclass", "ordinal", "ranking")
    clock = {"time": Clock(True)} if target == "forecast" else {}
    return TaskDNA(modality, target, METRICS_OF[target][0], n_classes=3 if several else 2, **(base | clock | genes))


def damaged(modality: str, target: str) -> TaskDNA:
    """Return a task of a cell with as much damage as the cell allows."""
    dna = dna_of(modality, target, duplicates=0.1, domain="health")
    genes = {"missing": Missing(0.1, "MNAR"), "outliers": Outliers(0.05), "heavy_features": True, "cats": Categories(2)}
    for name, value in (genes | {"trap": "shortcut_shift"}).items():
        changed = replace(dna, **{name: value})
        dna = dna if conflicts(changed) else changed
    return dna


@pytest.fixture(scope="module")
def built():
    """Remember what was built."""
    memory = {}

    def build(dna: TaskDNA):
        """Build once."""
        if dna not in memory:
            memory[dna] = tables(dna)
        return memory[dna]

    return build


@pytest.mark.parametrize("make", [dna_of, damaged], ids=["clean", "damaged"])
@pytest.mark.parametrize(("modality", "target"), CELLS)
def test_schema(built, modality, target, make):
    """Ids are unique and apart, the label is in train alone, and the rest of the columns are the same."""
    dna = make(modality, target)
    task = built(dna)
    assert list(task.train) == [*task.test, "target"] and list(task.test)[0] == "id"
    assert len(task.train) == 80 and len(task.test) == len(task.answers) == len(task.sample_submission) == 100
    assert task.train["id"].is_unique and task.train["id"].max() < FIRST_TEST_ID <= task.test["id"].min()
    assert task.test["id"].tolist() == task.answers["id"].tolist() == task.sample_submission["id"].tolist()
    assert task.answers["part"].sum() == 60 and set(task.answers["part"]) == {0, 1}
    assert (task.train.dtypes.drop("target") == task.test.dtypes).all()
    assert tuple(task.sample_submission) == task.meta.submission_columns and task.meta == meta_of(dna)
    for side in task.sides.values():
        assert set(side["id"]) == set(task.train["id"]) | set(task.test["id"])


@pytest.mark.parametrize(("modality", "target"), CELLS)
def test_files_say_what_the_tables_say(built, modality, target, tmp_path):
    """Read with the project's reader, every file is equal to its table, and two builds give the same bytes."""
    dna = damaged(modality, target)
    task, files = built(dna), public_files(built(dna))
    assert files == public_files(tables(dna)) and tuple(files) == task.meta.files
    frames = {"train": task.train, "test": task.test, "sample_submission": task.sample_submission, **task.sides}
    text = (task.meta.label_column, "label") if task.meta.has_names else ()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        pd.testing.assert_frame_equal(read_table(tmp_path / name, text), frames[name[:-4]], check_exact=True)


@pytest.mark.parametrize(("modality", "target"), CELLS)
def test_answers_are_the_sample(built, modality, target):
    """Targets in `answers` are those of the sample in test order, legal for the target, and rounded."""
    task = built(damaged(modality, target))
    y = task.answers["target"].to_numpy()
    assert np.array_equal(y, task.private.y) and task.private.n == len(y)
    assert ("query" in task.answers) == ("query" in task.test) == (target == "ranking")
    if target in CLASS_TARGETS:
        assert set(y) <= set(range(len(task.meta.classes)))
    if target in ("regression", "forecast"):
        assert np.array_equal(y, [float(f"{v:.6g}") for v in y])
    if target == "binary":
        assert set(task.train["target"]) == {"no", "yes"}


@pytest.mark.parametrize(("modality", "target"), CELLS)
def test_size_does_not_matter(built, modality, target):
    """With many more training rows, columns and test rows are what they were."""
    dna = damaged(modality, target)
    small, large = built(dna), tables(dna.scaled(2000))
    assert list(small.train) == list(large.train)
    assert small.test.equals(large.test) and small.answers.equals(large.answers)
    for name, side in small.sides.items():
        test, other = (s[s["id"] >= FIRST_TEST_ID].reset_index(drop=True) for s in (side, large.sides[name]))
        assert test.equals(other)


@pytest.mark.parametrize(("modality", "target"), CELLS)
def test_no_answer_in_public(built, modality, target):
    """No training row repeats a test row, and no test column correlates with the answers like a copy of them."""
    task = built(damaged(modality, target))
    shared = [c for c in task.test if c != "id"]
    if modality != "multitable":
        keys = [set(pd.util.hash_pandas_object(f[shared], index=False)) for f in (task.train, task.test)]
        assert not keys[0] & keys[1]
    numbers = task.test.select_dtypes("number")
    found = numbers.fillna(numbers.median()).corrwith(task.answers["target"].astype(float)).abs()
    assert found.max() < 0.97


@pytest.mark.parametrize("modality", names("renderer"))
def test_renderers_refuse_other_shapes(modality):
    """Latents that do not fit the task are named, for every renderer alike."""
    with pytest.raises(ShapeError, match="latents"):
        get("renderer", modality)(dna_of(modality, "regression"), np.zeros((80, 6)), "train")
    with pytest.raises(ShapeError):
        get("renderer", modality)(dna_of(modality, "regression"), np.zeros(6), "train")


@pytest.mark.parametrize("modality", names("renderer"))
@pytest.mark.parametrize(("k", "noise"), [(1, 0), (2, 0), (3, 20), (17, 3), (64, 0)])
def test_renderers_hold_any_number_of_latents(modality, k, noise):
    """One latent or sixty-four, without noise or with more of it than there is room for."""
    dna = TaskDNA(modality, "regression", "rmse", k_latent=k, n_noise=noise)
    shown = features(dna, World(dna).draw(5, "train"), "train")
    assert len(shown.frame) == 5 and shown.frame.columns.is_unique and shown.frame.shape[1] >= 1
    assert not shown.frame.isna().any(axis=None)


LEAKING = [
    (t, m, g)
    for t in LEAKS
    for m, g in CELLS
    if not conflicts(dna_of(m, g, trap=t, time=Clock(t == "time_leak" or g == "forecast")))
]


@pytest.mark.parametrize(("trap", "modality", "target"), LEAKING)
def test_traps_are_seen_in_training_and_useless_later(trap, modality, target):
    """One column, above 0.97 in training; in testing it never goes along with the answers."""
    dna = dna_of(modality, target, trap=trap, time=Clock(trap == "time_leak" or target == "forecast"), n_train=200)
    task, free = tables(dna), tables(replace(dna, trap="none"))
    (column,) = set(task.test) - set(free.test)
    y = (
        task.train["target"].map({c: i for i, c in enumerate(task.meta.classes)})
        if task.meta.has_names
        else task.train["target"]
    )
    assert abs(np.corrcoef(task.train[column], y)[0, 1]) > 0.97
    assert np.corrcoef(task.test[column], task.answers["target"])[0, 1] < 0.35
    honest = [c for c in free.train if c not in ("id", "target") and free.train[c].dtype.kind in "if"]
    assert not (free.train[honest].corrwith(y.astype(float)).abs() >= 0.97).any()
    assert np.array_equal(free.train["target"], task.train["target"])


def test_there_are_enough_cells():
    """The grid is not empty by mistake."""
    assert len(CELLS) >= 32 and {t for t, _, _ in LEAKING} == set(LEAKS)


@pytest.mark.parametrize("metric", ["accuracy", "auc", "log_loss"])
def test_the_sample_submission_is_constant(metric):
    """It tells no two rows apart."""
    guess = tables(replace(dna_of("tabular", "binary"), metric=metric)).sample_submission
    assert (guess.drop(columns="id").nunique() == 1).all()


def test_context_columns_are_declared(built):
    """Time, group and query are where the facts say."""
    grouped, timed, ranked = (
        built(dna_of("tabular", "regression", group=Grouping(10))),
        built(dna_of("tabular", "regression", time=Clock(True, 0.5))),
        built(dna_of("tabular", "ranking")),
    )
    assert grouped.meta.group_column in grouped.test and timed.meta.time_column in timed.test
    assert ranked.meta.query_column in ranked.test
    assert not set(ranked.train["query"]) & set(ranked.test["query"])
    assert timed.train["time"].is_monotonic_increasing and timed.train["time"].max() < timed.test["time"].min()


@pytest.mark.parametrize("family", ["mixture"])
def test_experts_are_shown(built, family):
    """A mixture's category is a column of codes."""
    with_expert = built(dna_of("tabular", "regression", rule=RuleDNA(family)))
    without = built(dna_of("tabular", "regression"))
    (column,) = set(with_expert.test) - set(without.test)
    assert with_expert.test[column].str.fullmatch(r"[a-z]\d").all()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"modality": "text", "outliers": Outliers(0.1)}, ParameterError),
        ({"target": "forecast", "metric": "rmse"}, ParameterError),
        ({"metric": "rmse"}, ParameterError),
    ],
)
def test_contradictions_are_refused(change, error):
    """A record that is no task has no tables."""
    with pytest.raises(error):
        tables(TaskDNA(**change))


def test_features_refuse_what_is_not_theirs():
    """Unknown parts, samples of other tasks, missing histories."""
    dna = dna_of("tabular", "binary")
    sample = World(dna).draw(5, "train")
    with pytest.raises(ParameterError, match="part"):
        features(dna, sample, "validation")
    with pytest.raises(ShapeError):
        features(replace(dna, k_latent=3), sample, "train")
    with pytest.raises(ShapeError, match="history"):
        features(dna_of("series", "forecast"), sample, "train")
    with pytest.raises(ParameterError):
        features(dna, sample, "fresh", -1)


def test_know_nothing_knows_nothing():
    """It returns one row per prediction of the right kind."""
    meta = meta_of(dna_of("tabular", "multiclass"))
    y = np.array([2, 2, 0])
    assert know_nothing(meta, y, 4).shape in ((4,), (4, 3))
    assert know_nothing(
        meta_of(replace(dna_of("tabular", "multiclass"), metric="log_loss")), y, 4
    ).sum() == pytest.approx(4)


def test_bytes_are_plain_csv(built):
    """One header, commas, unix line ends, no index."""
    data = public_files(built(dna_of("tabular", "binary")))["train.csv"]
    assert data.startswith(b"id,") and b"\r" not in data and data.count(b"\n") == 81
    assert len(pd.read_csv(io.BytesIO(data))) == 80


CURES = [
    ({"modality": "signal"}, {"view": "fft"}),
    ({"modality": "image"}, {"view": "pool2"}),
    ({"modality": "multitable"}, {"view": "aggregate"}),
    ({"missing": Missing(0.3, "MNAR")}, {"impute": "median-indicator"}),
    ({"outliers": Outliers(0.05)}, {"clean": "winsor"}),
    ({"heavy_features": True}, {"scale": "quantile"}),
    ({"cats": Categories(4)}, {"encode": "one-hot"}),
    ({"trap": "train_only_leak"}, {"clean": "drop-suspect"}),
    ({"trap": "id_order_leak"}, {"clean": "drop-suspect"}),
    ({"trap": "shortcut_shift"}, {"clean": "drop-suspect"}),
    ({"trap": "time_leak", "time": Clock(True)}, {"clean": "drop-suspect"}),
]


@pytest.mark.parametrize(("genes", "cure"), CURES, ids=lambda d: "-".join(d))
def test_the_right_preparation_pays(genes, cure):
    """A linear pipeline gains by the one option that cures the task's difficulty, on the median of three tasks."""
    gains = []
    for seed in range(3):
        task = tables(TaskDNA(target="regression", metric="r2", rule=RuleDNA("linear", seed), seed=seed, **genes))
        plain = Pipeline(impute="median", scale="standard")
        found = [run_pipeline(p, task.public).predictions for p in (plain, replace(plain, **cure))]
        without, cured = (score("r2", task.private.y, predictions) for predictions in found)
        gains.append(cured - without)
    assert np.median(gains) > 0.05
