"""Properties of the grammar, the canonical form, the steps, and what is drawn from them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_oodkit.core.errors import ParameterError
from rl_oodkit.core.registry import entries
from rl_oodkit.mle.calibration import calibrated, from_places, isotonic, normalised, parts_of, sigmoid
from rl_oodkit.mle.cleaning import drop_suspect, median, quantile, standard, winsor
from rl_oodkit.mle.options import SLOTS, mask, option, options, practical_mask, width
from rl_oodkit.mle.pipeline import Pipeline, Shelf, canonical, from_tokens, run_pipeline, same_outcome
from rl_oodkit.mle.practitioner import WEIGHTS, population, practitioner
from rl_oodkit.mle.shaping import association, select
from rl_oodkit.mle.toys import toy_task
from rl_oodkit.mle.views import Table

TASKS = [toy_task(m, t, rows=50) for m, t in (("tabular", "ordinal"), ("image", "regression"), ("text", "multiclass"))]
TASKS += [toy_task("series", "forecast", rows=50, missing=0.1), toy_task("multitable", "count", rows=50)]
PIPELINES = st.tuples(*(st.sampled_from(options(slot)) for slot in SLOTS)).map(from_tokens)


def table_of(x: np.ndarray, y: np.ndarray, classes: bool = False) -> Table:
    """Return a table of numbers whose test rows are its training rows."""
    none = np.empty((len(x), 0), np.int64)
    return Table(x, x, none, none, (), y, classes)


@settings(max_examples=60, deadline=None)
@given(PIPELINES, st.sampled_from(TASKS))
def test_the_canonical_form_has_the_same_outcome_bit_for_bit(pipeline, task):
    """What canonicalisation changes cannot matter: bytes of predictions, or words of the error, agree."""
    assert same_outcome(run_pipeline(pipeline, task), run_pipeline(canonical(pipeline, task.meta), task))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.meta.modality)
def test_a_shelf_changes_no_bit_whatever_was_run_before(task):
    """In any order, after failures too: predictions or reasons of a lonely run, and kept tables stay as they were."""
    rng = np.random.default_rng(0)
    words = [[str(rng.choice(options(slot))) for slot in SLOTS] for _ in range(12)]
    for i in range(1, len(words)):  # heads in common are what a shelf is for
        words[i][: i % 6] = words[i - 1][: i % 6]
    crowd, shelf, before = [from_tokens(w) for w in words], Shelf.of(task), {}
    for i in rng.permutation(12):
        assert same_outcome(run_pipeline(crowd[i], shelf), run_pipeline(crowd[i], task)), str(crowd[i])
        for steps, (table, _) in shelf.kept.items():
            cells = table.train.tobytes(), table.test.tobytes(), table.train_codes.tobytes()
            assert before.setdefault(steps, cells) == cells


@given(PIPELINES, st.sampled_from(TASKS))
def test_canonicalising_twice_is_canonicalising_once(pipeline, task):
    """The canonical form is its own canonical form."""
    once = canonical(pipeline, task.meta)
    assert canonical(once, task.meta) == once


@given(PIPELINES)
def test_a_pipeline_is_its_tokens_its_text_and_its_indices(pipeline):
    """Three written forms lead back to the pipeline."""
    assert from_tokens(pipeline.tokens) == from_tokens(str(pipeline)) == pipeline
    assert Pipeline(*(options(s)[i] for s, i in zip(SLOTS, pipeline.indices, strict=True))) == pipeline


@given(PIPELINES, st.sampled_from(TASKS), st.sampled_from(SLOTS))
def test_masks_allow_all_options_and_practical_ones_a_part_of_them(pipeline, task, slot):
    """The mild mask is every option of the slot; the practical one is never empty and never wider."""
    chosen = pipeline.tokens[: SLOTS.index(slot)]
    mild, practical = mask(slot, chosen, task.meta), practical_mask(slot, chosen, task.meta)
    assert mild.shape == practical.shape == (width(),) and mild.sum() == len(options(slot))
    assert practical[~mild].sum() == 0
    assert practical[0] or practical.any()


def test_every_slot_has_one_default_and_every_option_a_slot_and_a_weight():
    """The registry holds the grammar of ten slots and nothing beside it."""
    found = [e for e in entries("option") if e.module.startswith("rl_oodkit.")]
    assert {e.tags["slot"] for e in found} == set(SLOTS) and len(SLOTS) == 10
    assert sum(len(options(s)) for s in SLOTS) >= len(found)
    for slot in SLOTS:
        assert sum(bool(option(slot, n).tags.get("default")) for n in options(slot)) == 1
        assert set(WEIGHTS[slot]) <= set(options(slot)) and getattr(Pipeline(), slot) == options(slot)[0]


@pytest.mark.parametrize("tokens", [(), ("raw",) * 10, "raw/none", ("raw", None, *Pipeline().tokens[2:])])
def test_bad_words_are_refused(tokens):
    """Too few words, words of another slot, and things that are no words."""
    with pytest.raises(ParameterError):
        from_tokens(tokens)


@given(st.integers(0, 10_000), st.sampled_from(TASKS))
@settings(deadline=None)
def test_practitioners_obey_the_practical_masks(seed, task):
    """Each choice is allowed after the ones before it."""
    tokens = practitioner(task.meta, np.random.default_rng(seed)).tokens
    for i, slot in enumerate(SLOTS):
        assert practical_mask(slot, tokens[:i], task.meta)[options(slot).index(tokens[i])]


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.name)
def test_a_larger_population_begins_with_the_smaller_one(task):
    """Two hundred different canonical pipelines in every cell, and another version is another crowd."""
    crowd = population(task.meta, 200)
    assert len(set(crowd)) == 200 and crowd[:40] == population(task.meta, 40) != population(task.meta, 40, version=2)
    assert all(canonical(p, task.meta) == p for p in crowd)


ARRAYS = st.integers(0, 2**31 - 1).map(lambda s: np.random.default_rng(s).normal(size=(40, 5)))


@given(ARRAYS, st.floats(0.1, 1000), st.floats(-1000, 1000))
@settings(deadline=None, max_examples=25)
def test_scales_forget_units(x, a, b):
    """Standardising and ranking give the same table in any units."""
    y = np.zeros(40)
    for step in (standard, quantile):
        assert np.allclose(step(table_of(x, y)).train, step(table_of(a * x + b, y)).train, atol=1e-5)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
@pytest.mark.parametrize("rows", (1, 2, 99, 150))
@pytest.mark.parametrize("order", "CF")
def test_ranks_are_those_of_the_library(rows, order):
    """On columns that are constant, tied, wild, tiny, full of holes or empty, and on values at and past the ends."""
    from sklearn.preprocessing import QuantileTransformer

    x = np.random.default_rng(rows).normal(size=(rows, 9))
    x[:, 1], x[:, 2], x[:, 3] = 3.7, np.round(x[:, 2]), np.exp(8 * x[:, 3])
    x[:, 4], x[:, 5], x[:, 6] = 1e-9 * x[:, 4], 1e300 * x[:, 5], np.nan
    x[::3, 7], x[1::2, 8] = np.nan, np.nan
    x = np.asarray(x, order=order)
    ends = [np.nanmin(x, axis=0, initial=9), np.nanmax(x, axis=0, initial=-9)]
    new = np.vstack([*(e + s for e in ends for s in (-1, -1e-7, -1e-8, 0, 1e-8, 1e-7, 1)), np.full(9, np.nan), x[:5]])
    library = QuantileTransformer(n_quantiles=min(100, rows), output_distribution="normal", subsample=None)
    with np.errstate(all="ignore"):
        expected = library.fit_transform(x), library.transform(new)
        found = quantile(replace(table_of(x, np.zeros(rows)), test=new))
    for a, b in zip((found.train, found.test), expected, strict=True):
        assert np.array_equal(a, b, equal_nan=True) and (np.signbit(a) == np.signbit(b))[~np.isnan(b)].all()
    assert np.isnan(found.train[np.isnan(x)]).all()


@given(ARRAYS)
@settings(deadline=None, max_examples=25)
def test_steps_leave_good_cells_alone(x):
    """Filling touches only empty cells, clipping only cells outside the percentiles."""
    y, holes = np.zeros(40), x.copy()
    holes[::7, 0] = np.nan
    filled = median(table_of(holes, y)).train
    assert np.array_equal(filled[~np.isnan(holes)], holes[~np.isnan(holes)]) and not np.isnan(filled).any()
    clipped, (low, high) = winsor(table_of(x, y)).train, np.percentile(x, [1, 99], axis=0)
    inside = (x >= low) & (x <= high)
    assert np.array_equal(clipped[inside], x[inside]) and (clipped >= low).all() and (clipped <= high).all()


@given(ARRAYS)
def test_a_copy_of_the_answer_is_dropped_and_noise_is_not(x):
    """Whatever its units, also with cells missing."""
    y = x[:, 0].copy()
    columns = np.column_stack([-3 * y + 7, x[:, 1:]])
    columns[3, 0] = np.nan
    assert np.array_equal(drop_suspect(table_of(columns, y)).train, x[:, 1:])


@given(ARRAYS)
@settings(deadline=None, max_examples=20)
def test_association_is_the_f_statistic_in_another_form(x):
    """F of a line, and F between classes, as scikit-learn has them."""
    from sklearn.feature_selection import f_classif, f_regression

    y, c = x @ np.arange(5.0) + 1, (np.arange(40) % 3).astype(float)
    r = association(x, y, False)
    assert np.allclose(38 * r / (1 - r), f_regression(x, y)[0], rtol=1e-6)
    e = association(x, c, True)
    assert np.allclose(e / 2 / ((1 - e) / 37), f_classif(x, c)[0], rtol=1e-6)
    assert select(table_of(x, y)).train.shape == x.shape


@given(ARRAYS, st.integers(2, 5))
@settings(deadline=None, max_examples=25)
def test_probabilities_are_probabilities(x, n_classes):
    """Normalising, sharing a place, and both calibrations end on the simplex."""
    p = normalised(np.abs(x[:, :n_classes]))
    y = np.arange(40) % n_classes
    shares = from_places(10 * x[:, 0], "probabilities", n_classes)
    for q in (p, shares, calibrated(sigmoid, p, y, p), calibrated(isotonic, p, y, p)):
        assert (q >= 0).all() and np.allclose(q.sum(axis=1), 1)


@given(st.lists(st.integers(0, 3), min_size=3, max_size=60))
def test_parts_are_balanced_in_size_and_in_classes(y):
    """Sizes of parts differ by one at most, and so do the rows of each class."""
    y = np.array(y)
    part = parts_of(y)
    assert np.ptp(np.bincount(part, minlength=3)) <= 1
    for k in np.unique(y):
        assert np.ptp(np.bincount(part[y == k], minlength=3)) <= 1
