"""What holds for any latents: exact rounding, laws of damage, and disturbances that leave no other trace."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import kstest, norm
from scipy.stats import t as student

from rl_oodkit.core.errors import ParameterError, ShapeError
from rl_oodkit.core.seeds import stream
from rl_oodkit.mle.compatibility import conflicts
from rl_oodkit.mle.corruptions import (
    category_cells,
    category_columns,
    category_levels,
    corrupt,
    heavy,
    heavy_columns,
    missing_mask,
    outlier_shift,
    repeats,
)
from rl_oodkit.mle.dna import DOMAINS, MECHANISMS, Categories, Clock, Missing, Outliers, TaskDNA
from rl_oodkit.mle.multitable import children
from rl_oodkit.mle.pictures import blobs, places
from rl_oodkit.mle.render import features
from rl_oodkit.mle.rendered import STEMS, Rendered, column_names, dress, row_stream, significant, slot_of
from rl_oodkit.mle.sequences import correlated_noise, series, tones, waves, window_shapes
from rl_oodkit.mle.tables import regrouped, tables
from rl_oodkit.mle.texts import documents, frequencies, text, topics, vocabulary
from rl_oodkit.mle.traps import LEAKS, set_trap
from rl_oodkit.mle.worlds import World

few = hypothesis_settings(max_examples=25)
finite = st.floats(-1e24, 1e24, allow_subnormal=False)


@given(arrays(np.float64, st.integers(1, 30), elements=finite))
def test_rounding_is_printing(x):
    """Six significant digits, as printed and read, except for numbers that are as good as zero."""
    x = np.where(np.abs(x) > 1e-14, x, 0.0)
    printed = np.array([float(f"{v:.6g}") for v in x])
    ours = significant(x)
    assert np.abs(ours - printed).max() <= 1.1e-5 * np.abs(x).max()
    assert np.array_equal(ours, significant(ours))
    assert np.array_equal(ours, [float(f"{v:.6g}") for v in ours])


def test_rounding_keeps_holes_and_refuses_giants():
    """NaN stays, infinity and 1e30 are refused, zero is not negative."""
    assert np.isnan(significant(np.array([np.nan, 1.0]))).tolist() == [True, False]
    assert not np.signbit(significant(np.array([-1e-30]))).any()
    for bad in (np.inf, 1e30):
        with pytest.raises(ParameterError):
            significant(np.array([1.0, bad]))
    with pytest.raises(ParameterError):
        significant(np.ones(2), digits=0)


@pytest.mark.parametrize("domain", DOMAINS)
def test_names_are_plain_and_unique(domain):
    """Every domain has stems of its own; no name is reserved or looks like a pixel or a sample."""
    names = column_names(TaskDNA(domain=domain, seed=5), np.arange(2080))
    assert domain in STEMS and len(set(names)) == 2080
    assert all(pd.Series(names).str.fullmatch(r"[a-z]+_\d[a-z]"))
    with pytest.raises(ParameterError):
        column_names(TaskDNA(), np.array([2080]))


@pytest.mark.parametrize("name", ["x00", "z", "zz", "", "time"])
def test_foreign_names_have_no_slot(name):
    """A column that is not canonical cannot be dressed."""
    with pytest.raises(ParameterError):
        slot_of(name)


@given(st.integers(0, 2**31 - 1), st.sets(st.sampled_from(["z00", "z01", "n00", "n07", "trap", "mode"]), min_size=1))
@few
def test_a_column_is_dressed_alone(seed, kept):
    """Units, names and relative places do not depend on which other columns there are."""
    dna, columns = TaskDNA(seed=seed), ["z00", "z01", "n00", "n07", "trap", "mode"]
    frame = pd.DataFrame(stream(seed, "cells").normal(size=(3, 6)), columns=columns)
    full = dress(dna, Rendered(frame, measured=tuple(columns))).frame
    some = [c for c in columns if c in kept]
    part = dress(dna, Rendered(frame[some], measured=tuple(some))).frame
    assert full[list(part)].equals(part) and [c for c in full if c in set(part)] == list(part)


RICH = TaskDNA(
    n_train=90,
    n_public=50,
    n_private=50,
    missing=Missing(0.15, "MNAR"),
    outliers=Outliers(0.05),
    heavy_features=True,
    cats=Categories(2, unseen_rate=0.1),
    duplicates=0.1,
    trap="train_only_leak",
    time=Clock(True),
    seed=11,
)
OFF = {
    "missing": Missing(),
    "outliers": Outliers(),
    "heavy_features": False,
    "cats": Categories(),
    "duplicates": 0.0,
    "trap": "none",
}


def compared(switch: str, modality: str = "tabular"):
    """Return train and test with everything on, and with one switch off, columns in the order of the second."""
    dna = replace(RICH, modality=modality, cats=RICH.cats if modality == "tabular" else Categories(2, 4, 0.1))
    dna = dna if not conflicts(dna) else replace(dna, cats=Categories(), time=Clock())
    on, off = tables(dna), tables(replace(dna, **{switch: OFF[switch]}))
    shared = [c for c in on.test if c in off.test]
    assert shared == list(off.test)
    for name in ("train", "test"):
        a, b = getattr(on, name)[shared], getattr(off, name)[shared]
        yield a, b, name == "train"


def same(a: pd.DataFrame, b: pd.DataFrame) -> np.ndarray:
    """Return where two tables agree to the last bit, holes included, as a bool array."""
    return np.stack([((a[c] == b[c]) | (a[c].isna() & b[c].isna())).to_numpy(dtype=bool) for c in a], axis=1)


@pytest.mark.parametrize("modality", ["tabular", "series", "multitable"])
def test_a_trap_is_one_column(modality):
    """Without the trap everything else is equal to the last bit."""
    for a, b, _ in compared("trap", modality):
        assert same(a, b).all()


def test_missing_cells_hide_and_change_nothing():
    """Where there is no hole the cell is what it was; where there is none any more, it is filled."""
    for a, b, _ in compared("missing"):
        hole = a.isna().to_numpy()
        assert (same(a, b) | hole).all() and not b.isna().any(axis=None)
        assert 0.08 < hole[:, 1:].mean() < 0.25


@pytest.mark.parametrize("modality", ["tabular", "series"])
def test_outliers_change_their_cells(modality):
    """Few cells differ, and holes are where they were."""
    for a, b, _ in compared("outliers", modality):
        assert (a.isna() == b.isna()).all(axis=None)
        assert 0 < (~same(a, b)).mean() < 0.1


def test_heavy_features_change_their_columns():
    """Half of the measured columns are equal to the last bit, and holes are where they were."""
    for a, b, _ in compared("heavy_features"):
        assert (a.isna() == b.isna()).all(axis=None)
        changed = (~same(a, b)).any(axis=0)
        assert 1 <= changed.sum() <= 5


def test_categories_change_their_columns():
    """Two columns turn into text, under their old names and with their old holes."""
    for a, b, _ in compared("cats"):
        assert (a.isna() == b.isna()).all(axis=None)
        assert (~same(a.astype(str), b.astype(str))).any(axis=0).sum() == 2


def test_duplicates_change_their_rows():
    """A tenth of the training rows are replaced, and no test row."""
    for a, b, train in compared("duplicates"):
        rows = (~same(a, b)).any(axis=1)
        assert rows.sum() == (9 if train else 0)


@given(st.integers(0, 1000), st.sampled_from(MECHANISMS), st.floats(0.02, 0.6))
@few
def test_the_rate_of_holes(seed, mechanism, rate):
    """The closed form gives the rate that was asked for."""
    v = stream(seed, "v").normal(size=(4000, 3))
    mask = missing_mask(stream(seed, "m"), v, np.array([1.0, -1.0, 1.0]), rate, mechanism)
    columns = mask[:, 1:] if mechanism == "MAR" else mask
    assert np.abs(columns.mean(axis=0) - rate).max() < 0.05
    assert mechanism != "MAR" or not mask[:, 0].any()


def test_holes_say_what_their_mechanism_says():
    """Under MCAR the hole is independent of the value, under MNAR it is not, under MAR only given the driver."""
    v = stream(0, "v").normal(size=(20_000, 3))
    found = {}
    for mechanism in MECHANISMS:
        mask = missing_mask(stream(1, "m"), v, np.ones(3), 0.3, mechanism)
        own, driver = (abs(np.corrcoef(mask[:, 1], v[:, j])[0, 1]) for j in (1, 0))
        found[mechanism] = (own > 0.1, driver > 0.1)
    assert found == {"MCAR": (False, False), "MAR": (False, True), "MNAR": (True, False)}


def test_outliers_are_student():
    """The added numbers follow Student's law with two degrees of freedom."""
    shift = outlier_shift(stream(0, "t"), (20_000, 1), 0.5, 3.0)
    hit = shift[shift != 0] / 3
    assert abs(len(hit) / 20_000 - 0.5) < 0.02
    assert kstest(hit, student(2).cdf).pvalue > 1e-3


@given(arrays(np.float64, 20, elements=st.floats(-5, 5)))
def test_heavy_features_keep_ranks(v):
    """The stretch is increasing and positive; on normal values it has unit variance."""
    assert (np.diff(heavy(np.sort(v))) >= 0).all() and heavy(v).min() > 0
    x = norm.ppf((np.arange(200_000) + 0.5) / 200_000)
    assert abs(heavy(x).std() - 1) < 0.1


@given(st.integers(2, 40), st.integers(0, 100))
@few
def test_categories_are_quantiles(count, seed):
    """Each code is an interval of values, and codes are about equally frequent."""
    levels = category_levels(TaskDNA(seed=seed), "z00", count)
    x = norm.ppf((np.arange(2000) + 0.5) / 2000)
    cells = category_cells(x, levels)
    codes = np.array([levels.tolist().index(c) for c in cells])
    assert (np.diff(codes) >= 0).all() and np.bincount(codes, minlength=count).min() >= 2000 // count - 1


def test_unseen_codes_are_for_tests_alone():
    """Training rows show the codes of the quantiles and no other."""
    dna = TaskDNA(cats=Categories(3, unseen_rate=0.3), n_noise=0, k_latent=3)
    frame = pd.DataFrame(stream(0, "z").normal(size=(400, 3)), columns=["z00", "z01", "z02"])
    shown = {p: corrupt(dna, Rendered(frame, measured=tuple(frame)), p).frame for p in ("train", "public")}
    assert (shown["train"].nunique() == 4).all() and (shown["public"].nunique() == 6).all()
    known = shown["public"].isin(shown["train"].to_numpy().ravel().tolist())
    assert category_columns(dna, ("z00", "z01", "z02")) != [] and known.to_numpy().mean() > 0.5


def test_damage_names_what_it_refuses():
    """Rates and mechanisms out of range are named."""
    v = np.zeros((3, 2))
    for call in (
        lambda: missing_mask(stream(0), v, np.ones(2), 0.1, "MNAR2"),
        lambda: missing_mask(stream(0), v, np.ones(2), 1.5, "MCAR"),
        lambda: outlier_shift(stream(0), (3, 2), -0.1, 1.0),
        lambda: correlated_noise(stream(0), 2, 3, 1.0),
        lambda: window_shapes(5),
        lambda: waves(np.ones((2, 1)), np.ones((2, 1)), np.array([1, 1]), 8),
        lambda: waves(np.ones((1, 1)), np.ones((1, 1)), np.array([4]), 8),
    ):
        with pytest.raises(ParameterError):
            call()
    with pytest.raises(ShapeError):
        series(TaskDNA("series"), np.zeros((6, 3)), "train", history=np.zeros((5, 3)))
    assert heavy_columns(TaskDNA(), ("z00",)) == []


@given(st.integers(1, 12), st.integers(0, 8), st.integers(0, 99))
@few
def test_the_spectrum_is_sufficient(k, m, seed):
    """Magnitudes at the tones give the strengths back, whatever the phases."""
    samples, bins = tones(TaskDNA("signal", k_latent=k, n_noise=m, seed=seed))
    rng = stream(seed, "waves")
    strength = np.exp(rng.normal(size=(len(bins), 5)))
    wave = waves(strength, rng.uniform(0, 7, size=strength.shape), bins, samples)
    assert np.allclose(np.abs(np.fft.rfft(wave))[:, bins].T / (samples / 2), strength)
    assert len(set(bins.tolist())) == len(bins) >= k


def test_raw_samples_are_uncorrelated_with_the_latents():
    """Random phases leave no linear trace, to the accuracy of twenty thousand rows."""
    dna = TaskDNA("signal", "regression", "rmse", k_latent=2, n_noise=0)
    sample = World(dna).draw(20_000, "fresh")
    X = features(dna, sample, "fresh").frame.to_numpy()
    both = np.corrcoef(np.vstack([sample.z, X.T]))[:2, 2:]
    assert np.abs(both).max() < 5 / np.sqrt(20_000)


def test_blobs_add_up():
    """A picture of two blobs is the sum of two pictures, and light stays when a blob moves inside its cell."""
    rng = stream(0, "blobs")
    b, c = rng.uniform(50, 100, size=(2, 3)), rng.uniform(5, 10, size=(2, 3, 2))
    assert np.allclose(blobs(b, c, 16), blobs(b[:1], c[:1], 16) + blobs(b[1:], c[1:], 16))
    assert np.allclose(blobs(b[:1], c[:1], 16).sum((1, 2)), blobs(b[:1], c[1:], 16).sum((1, 2)), rtol=1e-2)
    for k in (1, 4, 16, 17, 64):
        side, centres = places(TaskDNA("image", k_latent=k, n_noise=0))
        assert len(np.unique(centres, axis=0)) == k and centres.max() < side


@given(st.integers(1, 20), st.integers(0, 5), st.integers(0, 50))
@few
def test_topics_and_frequencies(k, m, seed):
    """Topics balance plus and minus; frequencies are a law; the tilt of one latent is exponential."""
    dna = TaskDNA("text", k_latent=k, n_noise=m, seed=seed)
    tilt = topics(dna)
    assert tilt.shape == (k + min(m, 2), 120) and set(np.unique(tilt)) <= {-1.0, 0.0, 1.0}
    assert np.abs(tilt.sum(1)).max() <= 2 and np.abs(tilt).sum(1).min() >= 4
    p = frequencies(stream(seed).normal(size=(len(tilt), 4)), tilt)
    assert np.allclose(p.sum(1), 1) and p.min() > 0
    assert len(set(vocabulary(dna))) == 120


def test_documents_have_their_lengths():
    """Words are of the vocabulary, as many as asked for, and never of probability zero."""
    words = np.array(["ba", "be", "bi"], dtype=object)
    law = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    notes = documents(stream(0), law, np.array([200, 3]), words)
    assert notes[1] == "bi bi bi" and set(notes[0].split()) == {"ba", "be"} and len(notes[0].split()) == 200
    shown = text(TaskDNA("text"), stream(1).normal(size=(6, 50)), "train").frame["text"].str.split().str.len()
    assert shown.between(50, 150).all() and shown.nunique() > 10


def test_children_have_the_moments_of_their_parents():
    """Mean and spread within a parent are the latents, the variance of the column is one."""
    rng = stream(0, "children")
    mean, spread = rng.normal(size=(1, 50)), rng.normal(size=(1, 50))
    parent = np.repeat(np.arange(50), 4000)
    cells = children(mean, spread, parent, rng.normal(size=(1, len(parent)))).reshape(50, 4000)
    unit = np.sqrt(1 + np.sqrt(np.e))
    assert np.abs(cells.mean(1) * unit - mean[0]).max() < 0.2
    assert np.abs(np.log(cells.std(1) * unit) - spread[0] / 2).max() < 0.06


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_children_follow_their_parents(sizes, data):
    """Any sequence of parents brings exactly its children, in order."""
    side = pd.DataFrame({"id": np.repeat(np.arange(len(sizes)), sizes)})
    side["c00"] = np.arange(len(side), dtype=float)
    source = np.array(data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=9)))
    moved = regrouped(side, source)
    expected = [(j, x) for j, s in enumerate(source) for x in side.loc[side["id"] == s, "c00"]]
    assert list(map(tuple, moved[["id", "c00"]].to_numpy().tolist())) == [(float(j), x) for j, x in expected]


@given(st.integers(50, 300), st.floats(0, 0.5), st.integers(0, 99))
def test_repeats_come_from_originals(n, share, seed):
    """The share is met, sources are no repetitions, and none of it depends on anything but the record."""
    dna = TaskDNA(n_train=n, duplicates=share, seed=seed)
    source = repeats(dna)
    assert (source != np.arange(n)).sum() == int(share * n) and (source[source] == source).all()
    assert np.array_equal(source, repeats(dna))


@pytest.mark.parametrize("trap", LEAKS)
def test_traps_do_not_know_test_outcomes(trap):
    """With other outcomes the test column is the same to the last bit; in training it is not."""
    dna = TaskDNA(target="regression", metric="rmse", trap=trap, time=Clock(trap == "time_leak"))
    sample = World(dna).draw(60, "public")
    other = replace(sample, y=sample.y + row_stream(dna, "fresh", "other").normal(size=60))
    empty = Rendered(pd.DataFrame(index=range(60)))
    columns = {
        p: [set_trap(dna, empty, s, p).frame["trap"] for s in (sample, other)] for p in ("train", "public", "private")
    }
    assert columns["public"][0].equals(columns["public"][1]) and columns["private"][0].equals(columns["private"][1])
    assert not columns["train"][0].equals(columns["train"][1])
    with pytest.raises(ParameterError):
        set_trap(dna, Rendered(pd.DataFrame(index=range(59))), sample, "train")


def test_fresh_rows_are_independent_repetitions():
    """Every index is another draw, and the same index is the same draw."""
    dna = replace(RICH, duplicates=0.0)
    world = World(dna)
    first, again, second = (features(dna, world.draw(30, "fresh", i), "fresh", i).frame for i in (1, 1, 2))
    assert first.equals(again) and list(first) == list(second)
    assert not same(first, second)[:, 1:].any(axis=0).all()
