"""Records of tasks: written forms, names, laws, mutations, distance and seeds."""

import json
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_oodkit.core.errors import ParameterError, ShapeError, UnknownIdError
from rl_oodkit.core.registry import entries, names
from rl_oodkit.core.seeds import stream
from rl_oodkit.mle import dna as genes
from rl_oodkit.mle.compatibility import LAWS, METRICS_OF, SNR_RANGE, TARGETS_OF, check_dna, conflicts, repaired
from rl_oodkit.mle.dna import Categories, Clock, Grouping, Missing, Outliers, RuleDNA, Shift, TaskDNA
from rl_oodkit.mle.mutations import OPERATORS, breed, distance, mutate, offspring
from rl_oodkit.mle.seeds import SEEDS, extract, profile_of, seed_dna, snr_of_score

reals = st.floats(0, 1, allow_nan=False)


@st.composite
def records(draw):
    """Draw any record whose fields are in range, contradictory or not."""
    n_classes = draw(st.integers(2, 6))
    equal = draw(st.booleans())
    cut = [round(1 / n_classes, 6)] * (n_classes - 1)
    return TaskDNA(
        modality=draw(st.sampled_from(genes.MODALITIES)),
        target=draw(st.sampled_from(genes.TARGETS)),
        metric=draw(st.sampled_from(sorted({m for ms in METRICS_OF.values() for m in ms}))),
        n_train=draw(st.integers(50, 300)),
        k_latent=draw(st.integers(1, 12)),
        n_noise=draw(st.integers(0, 30)),
        n_classes=n_classes,
        rule=RuleDNA(draw(st.sampled_from(names("rule"))), draw(st.integers(0, 9))),
        snr=draw(st.floats(0.1, 50)),
        prior=() if equal else (*cut, 1 - sum(cut)),
        label_noise=0.4 * draw(reals),
        missing=Missing(0.5 * draw(reals), draw(st.sampled_from(genes.MECHANISMS))),
        outliers=Outliers(0.2 * draw(reals), 1 + 9 * draw(reals)),
        heavy_features=draw(st.booleans()),
        heavy_target=draw(st.booleans()),
        cats=Categories(draw(st.integers(0, 9)), draw(st.integers(2, 12)), 0.3 * draw(reals)),
        duplicates=0.3 * draw(reals),
        group=Grouping(draw(st.integers(0, 90)), draw(st.booleans())),
        trap=draw(st.sampled_from(genes.TRAPS)),
        shift=Shift(draw(st.sampled_from(genes.SHIFTS)), 2 * draw(reals)),
        time=Clock(draw(st.booleans()), draw(st.sampled_from([0.0, 0.5]))),
        domain=draw(st.sampled_from(genes.DOMAINS)),
        seed_name=draw(st.sampled_from(["", "iris", "real-iris", "real-digits", "real-moons"])),
        seed=draw(st.integers(0, 2**31 - 1)),
    )


@settings(max_examples=150, deadline=None)
@given(records())
def test_a_record_survives_its_written_form(dna):
    """JSON and back is the identity, name included."""
    again = TaskDNA.from_json(dna.to_json())
    assert again == dna and again.name == dna.name and hash(again) == hash(dna)
    assert set(json.loads(dna.to_json())) == {f.name for f in fields(TaskDNA)}


@settings(max_examples=150, deadline=None)
@given(records())
def test_every_record_can_be_repaired(dna):
    """A repair ends, mends everything, keeps the modality, and leaves a sound record alone."""
    mended = repaired(dna)
    assert conflicts(mended) == [] and repaired(mended) == mended and mended.modality == dna.modality
    assert (mended == dna) == (conflicts(dna) == [])


def test_every_field_is_part_of_the_name():
    """A change of any field is a change of the name."""
    changes = {
        "modality": "text", "target": "regression", "metric": "rmse", "n_train": 121, "n_public": 201, "n_private": 501,
        "k_latent": 7, "n_noise": 5, "n_classes": 3, "rule": RuleDNA("linear", 1), "snr": 4.1, "prior": (0.4, 0.6),
        "label_noise": 0.1, "missing": Missing(0.1), "outliers": Outliers(0.1), "heavy_features": True,
        "heavy_target": True, "cats": Categories(1), "duplicates": 0.1, "group": Grouping(5), "trap": "id_order_leak",
        "shift": Shift("prior", 0.5), "time": Clock(True), "domain": "health", "seed_name": "iris",
        "parents": ("tabc",), "seed": 1,
    }  # fmt: skip
    assert set(changes) == {f.name for f in fields(TaskDNA)}
    made = {replace(TaskDNA(), **{name: value}).name for name, value in changes.items()}
    assert len(made | {TaskDNA().name}) == len(changes) + 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"modality": "sound"}, "modality"),
        ({"target": None}, "target"),
        ({"metric": "Log Loss"}, "metric"),
        ({"n_train": 49}, "n_train"),
        ({"n_train": 120.0}, "n_train"),
        ({"n_train": True}, "n_train"),
        ({"k_latent": 0}, "k_latent"),
        ({"snr": float("nan")}, "snr"),
        ({"snr": "4"}, "snr"),
        ({"prior": (0.5, 0.6)}, "prior"),
        ({"prior": (1.0, 0.0)}, "prior"),
        ({"prior": 0.5}, "prior"),
        ({"label_noise": 0.6}, "label_noise"),
        ({"missing": 0.1}, "missing"),
        ({"heavy_target": 1}, "heavy_target"),
        ({"trap": "pit"}, "trap"),
        ({"parents": ("../x",)}, "parents"),
        ({"seed": -1}, "seed"),
        ({"domain": ""}, "domain"),
    ],
)
def test_a_bad_field_is_named(change, word):
    """The error is a ParameterError and says which field."""
    with pytest.raises(ParameterError, match=word):
        TaskDNA(**change)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: RuleDNA("Tree"), "family"),
        (lambda: RuleDNA(seed=-1), "seed"),
        (lambda: Missing(0.1, "random"), "mechanism"),
        (lambda: Missing(-0.1), "rate"),
        (lambda: Outliers(0.1, 0.0), "scale"),
        (lambda: Categories(1, 1), "cardinality"),
        (lambda: Grouping(-1), "n_groups"),
        (lambda: Grouping(3, leak=0), "leak"),
        (lambda: Shift("drift", 1.0), "kind"),
        (lambda: Clock(True, float("inf")), "drift"),
    ],
)
def test_a_bad_part_is_named(make, word):
    """Parts check themselves."""
    with pytest.raises(ParameterError, match=word):
        make()


@pytest.mark.parametrize("text", ["", "[]", '{"snr": "x"}', '{"what": 1}', '{"missing": 3}', '{"prior": 1}'])
def test_foreign_text_is_refused(text):
    """What is not a record raises ParameterError."""
    with pytest.raises(ParameterError):
        TaskDNA.from_json(text)


def test_every_law_can_be_broken_and_mended():
    """No law is dead: some record breaks it; its repair mends it; names are unique; defaults break none."""
    rng, broken = np.random.default_rng(0), set()
    for _ in range(3000):
        dna = TaskDNA(
            modality=str(rng.choice(genes.MODALITIES)),
            target=str(rng.choice(genes.TARGETS)),
            metric=str(rng.choice(["auc", "rmse", "rmsle", "qwk"])),
            n_train=int(rng.integers(50, 120)),
            k_latent=int(rng.integers(1, 6)),
            n_classes=int(rng.integers(2, 13)),
            rule=RuleDNA(str(rng.choice(["linear", "mixture", "unknown"]))),
            prior=() if rng.random() < 0.5 else (0.95, 0.05),
            label_noise=float(rng.choice([0, 0.1])),
            missing=Missing(float(rng.choice([0, 0.1])), "MAR"),
            outliers=Outliers(float(rng.choice([0, 0.1])), 3.0),
            heavy_features=bool(rng.random() < 0.5),
            heavy_target=bool(rng.random() < 0.5),
            cats=Categories(int(rng.integers(0, 6)), 5),
            group=Grouping(int(rng.choice([0, 5, 60])), bool(rng.random() < 0.5)),
            trap=str(rng.choice(genes.TRAPS)),
            shift=Shift(str(rng.choice(genes.SHIFTS)), float(rng.choice([0, 1]))),
            time=Clock(bool(rng.random() < 0.5), float(rng.choice([0, 1]))),
            seed_name=("", "real-iris", "real-wine", "real-moons")[int(rng.integers(4))],
        )
        for law in LAWS:
            if law.name not in broken and law.broken(dna):
                mended = replace(dna, **law.repair(dna))
                assert not law.broken(mended), law.name
                broken.add(law.name)
    assert broken == {law.name for law in LAWS}
    assert all(law.reason[0].islower() or law.reason.startswith("R") for law in LAWS)


def test_contradictions_are_refused_with_their_reasons():
    """All reasons are in the message, and other objects are refused."""
    with pytest.raises(ParameterError, match="word or a pixel.*stretched"):
        check_dna(TaskDNA(modality="text", outliers=Outliers(0.1), heavy_features=True))
    with pytest.raises(ParameterError, match="not a TaskDNA"):
        check_dna({"modality": "text"})


def test_metrics_agree_with_the_registry():
    """Each metric that a target may have declares that target, and each declared one that has an oracle is listed."""
    declared = {e.id.replace("-", "_"): e.tags["targets"] for e in entries("task-metric")}
    for target, metrics in METRICS_OF.items():
        assert all(target in declared[m] for m in metrics), target
    assert set(METRICS_OF) == set(genes.TARGETS) and set(TARGETS_OF) == set(genes.MODALITIES)


def test_offspring_are_tasks_for_generations():
    """Three generations from every seed, 2,160 children: each is sound, micro, knows its parent and differs from it."""
    count = 0
    for name in SEEDS:
        line = seed_dna(name)
        for s in range(120):
            child, operators = breed(line, s)
            assert conflicts(child) == [] and child.parents == (line.name,) and child.seed_name == name
            assert 3 <= len(operators) <= 6 and len(set(operators)) == len(operators)
            assert child.is_micro and SNR_RANGE[0] <= child.snr <= SNR_RANGE[1]
            assert distance(child, line) > 0 or set(operators) <= {"domain"}
            line = child if s % 40 == 39 else line
            count += 1
    assert count == 2160


def test_children_differ_in_what_decides_the_winner():
    """Over children of all seeds: few linear rules, every family, and many that need care with their data."""
    children = [offspring(seed_dna(name), s) for name in SEEDS for s in range(30)]
    families = Counter(c.rule.family for c in children)
    assert families["linear"] / len(children) <= 0.2 and set(families) == set(names("rule"))
    careful = [c.trap != "none" or c.missing.rate > 0 or c.outliers.rate > 0 for c in children]
    assert np.mean(careful) > 0.5
    assert len({c.name for c in children}) == len(children)


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_works_somewhere_and_harms_nowhere(operator):
    """On parents of all kinds the result is a task; on some it is another one; equal generators give equal results."""
    parents = [seed_dna(name) for name in SEEDS] + [offspring(seed_dna(name), 7) for name in SEEDS]
    changed = 0
    for i, parent in enumerate(parents):
        child = mutate(parent, operator, stream(i, operator))
        assert conflicts(child) == [] and child == mutate(parent, operator, stream(i, operator))
        changed += child != parent
    assert changed > 0


def test_mutations_refuse_nonsense():
    """Unknown operators, contradictory parents and bad numbers are named."""
    with pytest.raises(UnknownIdError, match="sharpen"):
        mutate(TaskDNA(), "sharpen", stream(0))
    with pytest.raises(ParameterError, match="contradicts"):
        offspring(TaskDNA(metric="rmse"), 0)
    with pytest.raises(ParameterError, match="n_mutations"):
        offspring(TaskDNA(), 0, 0)


def test_the_distance_is_a_pseudometric():
    """In [0, 1], symmetric, zero on equals, triangle inequality; blind to seeds and parents, not to structure."""
    rows = [offspring(seed_dna(name), s) for name in SEEDS for s in range(3)]
    d = np.array([[distance(a, b) for b in rows] for a in rows])
    assert (d >= 0).all() and (d <= 1).all() and (d == d.T).all() and (np.diag(d) == 0).all()
    assert (d[:, None, :] <= d[:, :, None] + d[None, :, :] + 1e-12).all()
    a = TaskDNA()
    assert distance(a, replace(a, seed=5, parents=("tx",), seed_name="iris", domain="health")) == 0
    for change in (
        {"modality": "text"},
        {"snr": 3.0},
        {"rule": RuleDNA("tree")},
        {"prior": (0.9, 0.1)},
        {"n_train": 60},
    ):
        assert distance(a, replace(a, **change)) > 0


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_becomes_a_task(name):
    """Every seed gives a sound micro task, the same one each time, within the clamp."""
    dna = seed_dna(name)
    assert conflicts(dna) == [] and dna.seed_name == name and dna.is_micro
    assert SNR_RANGE[0] <= dna.snr <= SNR_RANGE[1]
    assert (dna.modality, dna.target) == SEEDS[name][1:]


def test_extraction_reads_structure():
    """Classes, shares, gaps, codes and skewness come from the data; a linear data set gets a linear rule."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4))
    y = (X[:, 0] + 0.3 * rng.standard_normal(300) > 1).astype(int)
    dna = extract(X, y)
    assert dna.target == "binary" and dna.rule.family == "linear" and dna.prior[1] == pytest.approx(y.mean(), abs=1e-3)
    holes = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    assert extract(holes, y).missing.rate == pytest.approx(np.isnan(holes).mean(), abs=1e-3)
    assert extract(np.exp(2 * X), X[:, 0]).heavy_features
    coded = np.column_stack([X, rng.integers(0, 3, (300, 2))])
    assert extract(coded, y).cats.count == 2
    assert extract(X, np.sign(X[:, 0] * X[:, 1]).astype(int)).rule.family != "linear"
    labels = np.array(["no", "yes", "perhaps"])[rng.integers(0, 3, 300)]
    assert extract(X, labels).n_classes == 3


def test_extraction_refuses_nonsense():
    """Shapes and names are checked."""
    with pytest.raises(ShapeError):
        profile_of(np.zeros((10, 2)), np.zeros(10), classes=False)
    with pytest.raises(ShapeError):
        profile_of(np.zeros((30, 2)), np.zeros(29), classes=False)
    with pytest.raises(ParameterError, match="target"):
        extract(np.zeros((30, 2)), np.zeros(30), target="guess")
    with pytest.raises(UnknownIdError, match="titanic"):
        seed_dna("titanic")


@given(st.floats(1.5, 8))
def test_the_ratio_inverts_both_scores(snr):
    """A Gaussian accuracy, and a coefficient of determination, give back their ratio."""
    assert snr_of_score(1 - np.arctan(snr**-0.5) / np.pi, chance=0.5) == pytest.approx(snr, abs=2e-3)
    assert snr_of_score(snr / (1 + snr)) == pytest.approx(snr, abs=2e-3)
