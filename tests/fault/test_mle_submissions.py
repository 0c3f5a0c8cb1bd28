"""Malformed submissions: each a clear status with a reason, in less than a second, in bounded memory."""

import os
import time
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_oodkit.core.errors import ParameterError, RlOodkitError, ShapeError, SubmissionError
from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.grade import Answers, GradeReport, Judge, ScoreBudget, failed
from rl_oodkit.mle.medals import Thresholds
from rl_oodkit.mle.meta import TaskMeta, check_name, csv_bytes, submission_frame
from rl_oodkit.mle.reader import CAP, read_bytes, read_submission

N = 12
IDS = np.arange(100, 100 + N)
KINDS = {
    "label": ("multiclass", "accuracy", ("red", "green", "blue")),
    "grades": ("ordinal", "qwk", ("0", "1", "2", "3")),
    "probability": ("binary", "auc", ("no", "yes")),
    "probabilities": ("multiclass", "log_loss", ("red", "green", "blue")),
    "value": ("regression", "rmse", ()),
    "score": ("ranking", "ndcg", ()),
}


def meta(kind: str) -> TaskMeta:
    """Return the facts of a task of a kind."""
    target, metric, classes = KINDS[kind]
    prediction = "label" if kind == "grades" else kind
    query = "query" if kind == "score" else ""
    lower = metric in ("log_loss", "rmse")
    return TaskMeta("t1", "tabular", target, metric, lower, prediction, classes, query_column=query, n_test=N)


def good(kind: str) -> np.ndarray:
    """Return perfect predictions."""
    y = truth(kind)
    return (
        np.eye(3)[y]
        if kind == "probabilities"
        else y.astype(float if kind in ("probability", "value", "score") else int)
    )


def truth(kind: str) -> np.ndarray:
    """Return the answers."""
    return np.arange(N) % {"probability": 2, "grades": 4}.get(kind, 3)


def judge(kind: str) -> Judge:
    """Return a judge for whom everything valid is worth a medal."""
    facts = meta(kind)
    sign = -1.0 if facts.lower_is_better else 1.0
    query = np.arange(N) // 4 if kind == "score" else None
    answers = Answers(IDS, truth(kind), np.arange(N) // (N // 2), query)
    marks = Thresholds(-sign, -sign, -sign, -sign, -sign, sign, sign, facts.lower_is_better)
    return Judge(facts, answers, marks, np.array([0.0]))


def text(kind: str) -> bytes:
    """Return a valid submission."""
    return csv_bytes(submission_frame(meta(kind), IDS, good(kind)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_good_are_accepted(kind, tmp_path):
    """Positive control: bytes, file, table and array, in any order of rows, with CRLF and quotes."""
    (tmp_path / "s.csv").write_bytes(text(kind))
    frame, lines = submission_frame(meta(kind), IDS, good(kind)), text(kind).split(b"\n")
    shuffled = b"\n".join([lines[0], *lines[-2:0:-1], b""])
    quoted = b"\n".join(b",".join(b'"' + c + b'"' for c in line.split(b",")) for line in lines if line)
    forms = [text(kind), tmp_path / "s.csv", str(tmp_path / "s.csv"), frame, frame[::-1], shuffled, quoted]
    forms += [text(kind).replace(b"\n", b"\r\n"), text(kind).rstrip(b"\n"), good(kind)]
    reports = [judge(kind).grade(form) for form in forms]
    assert all(r.status == "valid" and r.tier >= 1 for r in reports), reports
    assert len({(r.score, r.public_score) for r in reports}) == 1


def lines(kind, change):
    """Return a valid text after a change of its list of lines."""
    rows = text(kind).decode().strip().split("\n")
    out = change(rows)
    return ("\n".join(rows if out is None else out) + "\n").encode()


def cell(kind, value):
    """Return a valid text with another first prediction."""
    return lines(kind, lambda rows: [rows[0], ",".join(["100", value, *rows[1].split(",")[2:]]), *rows[2:]])


MALFORMED = {
    "missing ids": (lambda: lines("value", lambda r: r[:-2]), "missing"),
    "duplicate id": (lambda: lines("value", lambda r: [*r[:-1], r[1]]), "twice"),
    "unknown id": (lambda: lines("value", lambda r: [*r[:-1], "999,1"]), "not in test"),
    "too many rows": (lambda: lines("value", lambda r: [*r, "999,1"]), "more than"),
    "doubled table": (lambda: text("value") * 2, "more than"),
    "header only": (lambda: text("value").split(b"\n")[0] + b"\n", "missing"),
    "empty": (lambda: b"", "empty"),
    "blank": (lambda: b"\n\n\n", "header"),
    "blank line": (lambda: lines("value", lambda r: [*r[:3], "", *r[3:]]), "fields"),
    "no header": (lambda: lines("value", lambda r: r[1:]), "header"),
    "renamed column": (lambda: lines("value", lambda r: ["id,prediction", *r[1:]]), "header"),
    "upper case header": (lambda: lines("value", lambda r: ["ID,value", *r[1:]]), "header"),
    "swapped columns": (lambda: lines("value", lambda r: [",".join(x.split(",")[::-1]) for x in r]), "header"),
    "extra column": (lambda: lines("value", lambda r: [x + ",1" for x in r]), "header"),
    "extra field": (lambda: lines("value", lambda r: [*r[:3], r[3] + ",1", *r[4:]]), "fields"),
    "missing field": (lambda: lines("value", lambda r: [*r[:3], "103", *r[4:]]), "fields"),
    "index column": (lambda: lines("value", lambda r: [f"{i},{x}" for i, x in enumerate(r)]), "header"),
    "tabs": (lambda: text("value").replace(b",", b"\t"), "header"),
    "semicolons": (lambda: text("value").replace(b",", b";"), "header"),
    "nan": (lambda: cell("value", "nan"), "number"),
    "NaN quoted": (lambda: cell("value", '"NaN"'), "number"),
    "empty cell": (lambda: cell("value", ""), "empty"),
    "inf": (lambda: cell("value", "-inf"), "number"),
    "overflow": (lambda: cell("value", "1e999"), "finite"),
    "long exponent": (lambda: cell("value", "1e" + "9" * 60), "number"),
    "hexadecimal": (lambda: cell("value", "0x10"), "number"),
    "octal": (lambda: cell("value", "0o10"), "number"),
    "underscore": (lambda: cell("value", "1_000"), "number"),
    "thousands": (lambda: cell("value", '"1,000"'), "number"),
    "decimal comma": (lambda: cell("value", '"0,5"'), "number"),
    "complex": (lambda: cell("value", "1+2j"), "number"),
    "word": (lambda: cell("value", "high"), "number"),
    "list": (lambda: cell("value", '"[1, 2]"'), "number"),
    "unicode digits": (lambda: cell("value", "١٢"), "number"),
    "superscript": (lambda: cell("value", "2²"), "number"),
    "spaces": (lambda: cell("value", " 1"), "number"),
    "trailing junk": (lambda: cell("value", "1;"), "number"),
    "formula": (lambda: cell("value", "=1+1"), "number"),
    "newline in a field": (lambda: cell("value", '"1\n2"'), "number"),
    "open quote": (lambda: lines("value", lambda r: [*r[:-1], '111,"1']), "table"),
    "quote inside": (lambda: cell("value", '"1"2'), "table"),
    "huge field": (lambda: cell("value", "1" * 500_000), "table"),
    "long number": (lambda: cell("value", "1" * 100_000), "number"),
    "square overflows": (lambda: cell("value", "1e300"), "finite"),
    "too large": (lambda: text("value") + b" " * CAP, "bytes"),
    "a million lines": (lambda: text("value") + b"\n" * (CAP - 1000), "fields"),
    "commas": (lambda: b"," * (CAP - 10), "header"),
    "quotes": (lambda: b'"' * (CAP - 11), "table"),
    "binary": (lambda: bytes(range(128, 256)) * 50, "pickle"),
    "random bytes": (lambda: b"\x01" + stream(0, "x").bytes(5000), "NUL|UTF-8|header"),
    "pickle": (lambda: b"\x80\x04\x95\x00.", "pickle"),
    "old pickle": (lambda: b"cos\nsystem\n(S'true'\ntR.", "header"),
    "zip": (lambda: b"PK\x03\x04" + bytes(50), "zip"),
    "gzip": (lambda: b"\x1f\x8b" + bytes(50), "gzip"),
    "npy": (lambda: b"\x93NUMPY" + bytes(50), "NumPy"),
    "parquet": (lambda: b"PAR1" + bytes(50), "Parquet"),
    "utf-16": (lambda: text("value").decode().encode("utf-16"), "UTF-16"),
    "utf-16 without mark": (lambda: text("value").decode().encode("utf-16-le"), "NUL"),
    "utf-32": (lambda: text("value").decode().encode("utf-32"), "UTF-16|NUL"),
    "byte order mark": (lambda: b"\xef\xbb\xbf" + text("value"), "byte order mark"),
    "latin-1": (lambda: cell("label", "grün").decode().encode("latin-1"), "UTF-8"),
    "surrogates": (lambda: b"id,value\n100,\xed\xa0\x80\n", "UTF-8"),
    "nul": (lambda: text("value").replace(b"0", b"\0", 1), "NUL"),
    "wrong class": (lambda: cell("label", "violet"), "class"),
    "class in capitals": (lambda: cell("label", "RED"), "class"),
    "class index": (lambda: cell("label", "0"), "class"),
    "padded class": (lambda: cell("label", " red"), "class"),
    "grade out of range": (lambda: cell("grades", "4"), "label"),
    "negative grade": (lambda: cell("grades", "-1"), "label"),
    "fraction of a grade": (lambda: cell("grades", "1.5"), "label"),
    "huge grade": (lambda: cell("grades", "9" * 40), "label"),
    "probability above 1": (lambda: cell("probability", "1.0001"), "probability"),
    "negative probability": (lambda: cell("probability", "-1e-9"), "probability"),
    "percent": (lambda: cell("probability", "50%"), "number"),
    "sum above 1": (lambda: cell("probabilities", "0.1"), "sum"),
    "sum of 0": (lambda: cell("probabilities", "0"), "sum"),
    "classes swapped": (lambda: text("probabilities").replace(b"p_red,p_green", b"p_green,p_red"), "header"),
    "a class missing": (lambda: lines("probabilities", lambda r: [x.rsplit(",", 1)[0] for x in r]), "header"),
}
KIND_OF = {
    **dict.fromkeys(("wrong class", "class in capitals", "class index", "padded class", "latin-1"), "label"),
    **dict.fromkeys(("grade out of range", "negative grade", "fraction of a grade", "huge grade"), "grades"),
    **dict.fromkeys(("probability above 1", "negative probability", "percent"), "probability"),
    **dict.fromkeys(("sum above 1", "sum of 0", "classes swapped", "a class missing"), "probabilities"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_texts_are_invalid_with_a_reason(name, tmp_path):
    """As bytes and as a file: status, reason, time."""
    make, reason = MALFORMED[name]
    data, grader = make(), judge(KIND_OF.get(name, "value"))
    (tmp_path / "s.csv").write_bytes(data)
    for source in (data, tmp_path / "s.csv"):
        start = time.process_time()
        report = grader.grade(source)
        assert time.process_time() - start < 1
        assert report.status == "invalid" and report.tier == 0 and report.score is None
        assert any(word in report.reason for word in reason.split("|")), report.reason
        assert len(report.reason) < 700


def places(tmp_path):
    """Make every kind of thing that is not a plain file."""
    (tmp_path / "answers.csv").write_bytes(text("value"))
    (tmp_path / "symlink").symlink_to(tmp_path / "answers.csv")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.link(tmp_path / "answers.csv", tmp_path / "hard")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 30)
    names = ["symlink", "dangling", "loop", "hard", "fifo", "folder", "sparse", "absent", "answers.csv/under"]
    return [tmp_path / n for n in names] + ["/dev/zero", "/dev/stdin", "/proc/self/mem", "a\0b", "x" * 5000, ""]


def test_what_is_no_plain_file_is_refused_at_once(tmp_path):
    """Links, pipes, folders, devices, a gigabyte, nothing: quickly, and without reading."""
    tracemalloc.start()
    for path in places(tmp_path):
        start = time.perf_counter()
        report = judge("value").grade(path)
        assert report.status == "invalid" and report.reason, path
        assert time.perf_counter() - start < 1, path
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 << 20


def test_memory_is_bounded_by_the_cap(tmp_path):
    """The worst megabyte costs a few dozen at most."""
    worst = [
        b"id,value\n" + b"100,1\n" * 170_000,
        b"id,value\n" + b'"' * 1_000_000,
        b"\n" * CAP,
        b"id,value\n" + b"a," * 500_000,
    ]
    tracemalloc.start()
    for data in worst:
        assert judge("value").grade(data).status == "invalid"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20


def test_the_cap_is_exact(tmp_path):
    """A file of the cap is read, one byte more is not."""
    (tmp_path / "s").write_bytes(b"x" * 100)
    assert read_bytes(tmp_path / "s", cap=100) == b"x" * 100
    with pytest.raises(SubmissionError):
        read_bytes(tmp_path / "s", cap=99)
    with pytest.raises(ParameterError):
        read_bytes(tmp_path / "s", cap=0)


class Trap:
    """An object that would run code if it were turned into text."""

    def __str__(self):
        raise RuntimeError("ran")

    __repr__ = __str__


TABLES = {
    "no table": lambda: [1, 2, 3],
    "none": lambda: None,
    "number": lambda: 3.5,
    "dictionary": lambda: {"id": [1]},
    "series": lambda: pd.Series([1.0]),
    "empty": lambda: pd.DataFrame(),
    "wide": lambda: pd.DataFrame(np.zeros((N, 50))),
    "tall": lambda: pd.DataFrame({"id": np.arange(10**6), "value": 0.0}),
    "nan": lambda: pd.DataFrame({"id": IDS, "value": np.nan}),
    "inf": lambda: pd.DataFrame({"id": IDS, "value": np.inf}),
    "float ids": lambda: pd.DataFrame({"id": IDS * 1.0, "value": 0.0}),
    "objects": lambda: pd.DataFrame({"id": IDS, "value": [Trap()] * N}),
    "lists": lambda: pd.DataFrame({"id": IDS, "value": [[1.0]] * N}),
    "text": lambda: pd.DataFrame({"id": IDS, "value": ["a"] * N}),
    "surrogates": lambda: pd.DataFrame({"id": IDS, "value": np.array(["\ud800"] * N, object)}, dtype=object),
    "booleans": lambda: pd.DataFrame({"id": IDS, "value": [True] * N}),
    "dates": lambda: pd.DataFrame({"id": IDS, "value": pd.Timestamp("2020-01-01")}),
    "repeated column": lambda: pd.DataFrame(np.zeros((N, 2)), columns=["id", "id"]),
    "numbered columns": lambda: pd.DataFrame(np.zeros((N, 2))),
    "levels": lambda: pd.DataFrame(np.zeros((N, 2)), columns=pd.MultiIndex.from_tuples([("id", "a"), ("value", "b")])),
}


@pytest.mark.parametrize("name", TABLES)
def test_bad_tables_are_invalid_with_a_reason(name):
    """Whatever is passed as a table."""
    report = judge("value").grade(TABLES[name]())
    assert report.status == "invalid" and report.reason


ARRAYS = {
    "short": np.zeros(N - 1), "long": np.zeros(N + 1), "two-dimensional": np.zeros((N, 1)), "scalar": np.array(1.0),
    "nan": np.full(N, np.nan), "inf": np.full(N, np.inf), "text": np.array(["a"] * N), "objects": np.array([None] * N),
    "complex": np.zeros(N, complex), "huge": np.full(N, 1e308), "masked": np.ma.masked_array(np.zeros(N), True),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_bad_arrays_are_invalid_with_a_reason(name):
    """On the road without a file."""
    report = judge("value").grade(ARRAYS[name])
    assert report.status == "invalid" and report.reason


def test_bad_arrays_of_classes_and_probabilities():
    """Indices out of range, fractions, sums."""
    assert judge("label").grade_predictions(np.full(N, 3)).status == "invalid"
    assert judge("label").grade_predictions(np.full(N, -1)).status == "invalid"
    assert judge("label").grade_predictions(np.full(N, 0.5)).status == "invalid"
    assert judge("probability").grade_predictions(np.full(N, 1.01)).status == "invalid"
    assert judge("probabilities").grade_predictions(np.full((N, 3), 0.5)).status == "invalid"
    assert judge("probabilities").grade_predictions(np.full((N, 2), 0.5)).status == "invalid"


def test_what_the_metric_refuses_is_the_submissions_fault():
    """A count of -2 has no logarithm."""
    facts = TaskMeta("t1", "tabular", "count", "rmsle", True, "value")
    grader = Judge(facts, Answers(IDS, truth("value"), np.arange(N) % 2), Thresholds(1, 1, 1, 1, 1, 0, 0, True), [0.5])
    report = grader.grade_predictions(np.full(N, -2.0))
    assert report.status == "invalid" and "log" in report.reason
    assert grader.grade_predictions(np.full(N, 2.0)).status == "valid"


def test_probabilities_within_a_thousandth_are_rescaled():
    """Rounded files are forgiven, to exact sums."""
    rows = np.round(stream(0, "dirichlet").dirichlet(np.ones(3), N), 4)
    out = read_submission(submission_frame(meta("probabilities"), IDS, rows), meta("probabilities"), IDS)
    assert np.abs(out.sum(axis=1) - 1).max() < 1e-15 and np.abs(out - rows).max() < 2e-4


@given(data=st.binary(max_size=300))
@settings(max_examples=300)
def test_random_bytes_never_pass_and_never_crash(data):
    """Only SubmissionError comes out of the reader."""
    with pytest.raises(SubmissionError):
        read_submission(data, meta("value"), IDS)


@given(value=st.text(max_size=12))
@settings(max_examples=300)
def test_a_cell_is_a_number_or_refused(value):
    """Whatever text stands in it; what passes is what a spreadsheet would read."""
    frame = pd.DataFrame({"id": IDS, "value": ["1"] * N})
    frame.loc[0, "value"] = value
    try:
        out = read_submission(frame, meta("value"), IDS)
    except RlOodkitError:
        return
    assert value.isascii() and np.isfinite(out[0]) and out[0] == float(value)


@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=N, max_size=N))
def test_finite_numbers_survive_the_way_through_text(values):
    """Bit by bit, except for the sign of zero."""
    out = read_submission(submission_frame(meta("value"), IDS, np.array(values)), meta("value"), IDS)
    assert np.array_equal(out, np.array(values))


def test_a_judge_never_prints_answers():
    """Not in its own representation, nor in that of the answers."""
    grader = judge("value")
    assert repr(grader) == "Judge('t1')" and repr(grader.answers) == "Answers()"


def test_contradictory_judges_are_refused():
    """Metric, direction and thresholds must agree; answers must be rectangular with unique ids."""
    marks = Thresholds(1, 1, 1, 1, 1, 0, 0, True)
    answers = Answers(IDS, truth("value"), np.arange(N) % 2)
    wrong = TaskMeta("t1", "tabular", "regression", "rmse", False, "value")
    with pytest.raises(ParameterError):
        Judge(wrong, answers, marks, [0.5])
    with pytest.raises(ParameterError):
        Judge(meta("value"), answers, Thresholds(0, 0, 0, 0, 0, 1, 1, False), [0.5])
    with pytest.raises(ShapeError):
        Judge(meta("value"), answers, marks, [[0.5]])
    for bad in ((IDS[:-1], truth("value"), np.zeros(N)), (np.zeros(N), truth("value"), np.zeros(N))):
        with pytest.raises(ShapeError):
            Answers(*bad)
    with pytest.raises(ParameterError):
        Answers(IDS, truth("value"), np.full(N, 2))
    with pytest.raises(ParameterError):
        failed("perhaps", "")


def test_the_budget_counts_every_question():
    """Bad files count too; afterwards it refuses; nothing else changes."""
    budget = ScoreBudget(judge("value"), 3)
    assert budget.score(good("value")) == 0.0
    with pytest.raises(SubmissionError):
        budget.score(b"junk")
    budget.score(good("value") + 1)
    assert (budget.used, budget.left, budget.scores, budget.best) == (3, 0, [0.0, 1.0], 0.0)
    for _ in range(10):
        with pytest.raises(SubmissionError, match="all 3 score calls"):
            budget.score(good("value"))
    assert budget.used == 3
    with pytest.raises(ParameterError):
        ScoreBudget(judge("value"), -1)
    with pytest.raises(ParameterError):
        judge("value").score(good("value"), "secret")


def test_grade_numbers_by_hand():
    """Regret, normalised score and their clipping, in both directions."""
    facts, y = meta("value"), truth("value").astype(float)
    marks = Thresholds(1.0, 0.8, 0.6, 0.5, 0.4, 0.2, 0.3, True)
    grader = Judge(facts, Answers(IDS, y, np.arange(N) // (N // 2)), marks, np.array([0.4, 0.6, 0.8, np.nan]))
    report = grader.grade_predictions(y + 0.5)
    expected = GradeReport("valid", "", 0.5, 0.5, 4, "silver", True, 2 / 3, 0.3, 0.2, 0.625)
    for name in ("status", "score", "public_score", "tier", "medal", "above_median"):
        assert getattr(report, name) == getattr(expected, name)
    for name in ("peer_rank", "regret", "ceiling_regret", "normalised"):
        assert getattr(report, name) == pytest.approx(getattr(expected, name))
    assert grader.grade_predictions(y + 9).normalised == -0.5
    assert grader.grade_predictions(y).normalised == 1.0
    with_interval = grader.grade_predictions(y + stream(0, "n").normal(0, 0.5, N), resamples=200)
    assert with_interval.interval[0] <= with_interval.score <= with_interval.interval[1]
    assert sum(with_interval.tier_probabilities) == pytest.approx(1)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "A", "a b", "a\n", "-a", "_a", "é", "a" * 65, None, 3, "a\0"]
)
def test_names_that_are_not_safe_folders_are_refused(name):
    """No separators, no dots, no capitals, no surprises."""
    with pytest.raises(ParameterError):
        check_name(name)
