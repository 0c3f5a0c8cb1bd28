"""Profiles fit their notebooks, promises are on record, and the doctor sees what is wrong."""

import pytest

from rl_oodkit.core import registry
from rl_oodkit.core.errors import ParameterError, StoreError, UnknownIdError
from rl_oodkit.reproduce import doctor
from rl_oodkit.reproduce.evidence import Evidence, choose_promises, evidence_table, failure_bound, run_promises
from rl_oodkit.reproduce.fingerprints import SURROUNDINGS, fingerprint, fingerprint_elsewhere
from rl_oodkit.reproduce.inputs import WRONG, bad_inputs
from rl_oodkit.reproduce.notebooks import Outcome
from rl_oodkit.reproduce.profiles import load_profiles, make_jobs, select
from rl_oodkit.reproduce.provenance import LIBRARIES, versions
from rl_oodkit.reproduce.session import Session
from rl_oodkit.reproduce.trials import count_trials, leaks, null_trials

PROFILE = """
[group]
both = ["a", "b"]
[after]
b = ["a"]
[quick.a]
n = 3
[quick.b]
"""


def profiles(tmp_path, text=PROFILE):
    """Load profiles from a text."""
    (tmp_path / "profiles.toml").write_text(text)
    return load_profiles(tmp_path / "profiles.toml")


@pytest.mark.parametrize("profile", ["smoke", "quick", "full"])
def test_every_profile_fits_the_notebooks(profile):
    """Every value of every profile is a parameter of its notebook, of the right type; all have the same experiments."""
    known = load_profiles()
    jobs = make_jobs(known, profile, list(known.sets[profile]))
    assert {job.name for job in jobs} == set(known.sets["quick"])
    assert all(set(names) <= set(known.sets[profile]) for names in known.groups.values())


def test_groups_expand_and_predecessors_come_first(tmp_path):
    """A group is its members, each once; what an experiment reads runs before it."""
    known = profiles(tmp_path)
    assert select(known, "quick", ["b"]) == select(known, "quick", ["both", "a"]) == ["a", "b"]


@pytest.mark.parametrize(("profile", "name"), [("quik", "a"), ("quick", "c"), ("full", "a")])
def test_unknown_names_are_answered(tmp_path, profile, name):
    """Unknown profiles and experiments are errors that name the nearest."""
    with pytest.raises(UnknownIdError, match="Nearest"):
        select(profiles(tmp_path), profile, [name])


@pytest.mark.parametrize("text", ["[quick", "quick = 3", "[quick]\na = 3", "[group]\nboth = 'a'", "[after]\nb = [1]"])
def test_a_broken_profile_file_is_an_error(tmp_path, text):
    """A file that is no TOML, or is nested otherwise, is refused with its name."""
    with pytest.raises(ParameterError, match="profiles.toml"):
        profiles(tmp_path, text)
    with pytest.raises(ParameterError, match="no readable profiles"):
        load_profiles(tmp_path / "absent.toml")


def test_a_session_plans_without_running(tmp_path):
    """Listing and planning leave no file."""
    session = Session("smoke", ("ood_null",), tmp_path / "out")
    assert "ood_null" in session.plan() and "replicates" in session.listing()
    assert not (tmp_path / "out").exists()


def test_a_session_reports_what_is_not_there(tmp_path):
    """The report of an empty folder says so, and ends with its own path."""
    session = Session("smoke", ("ood_null",), tmp_path / "out")
    page = session.report()
    assert "No whole result folder" in page.read_text() and session.closing(page).endswith(str(page))
    with pytest.raises(StoreError):
        session.publish()


def test_promises_are_on_record_once_a_row():
    """The rows that this package promises, each with an area, in one order."""
    rows = [promise.tags["row"] for promise in choose_promises()]
    assert rows == [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 22, 24]
    assert [p.id for p in choose_promises(["13", "faults"])] == [p.id for p in choose_promises(["faults"])]
    assert all(promise.summary.endswith(".") for promise in choose_promises())
    for wrong in ("23", "fault", "1 3"):
        with pytest.raises(UnknownIdError):
            choose_promises([wrong])


def test_a_promise_that_raises_has_failed():
    """An error in a check counts as a failure, others still run, and another scale is refused."""

    @registry.register("promise", "90-test", row=90, area="test", summary="A check that is broken.")
    def broken(scale):
        raise ZeroDivisionError("oops")

    try:
        (found,) = run_promises(["90"])
    finally:
        registry._STATE.entries.pop(("promise", "90-test"))
    assert (found.ran, found.failed) == (1, 1) and "ZeroDivisionError: oops" in found.detail
    with pytest.raises(ParameterError):
        run_promises(["15"], "medium")


def test_the_bound_is_the_rule_of_three():
    """No failure in n trials bounds the probability by about 3/n; one failure bounds nothing."""
    assert failure_bound(10_000, 0) * 10_000 == pytest.approx(3, rel=2e-3)
    assert all(bound != bound for bound in (failure_bound(10, 1), failure_bound(0, 0)))
    assert "2 promise(s), 14 trials, 3 failures" in evidence_table(
        [Evidence(1, "a", 4, 3, ""), Evidence(2, "b", 10, 0, "")]
    )


def test_the_doctor_sees_everything_good_here():
    """In this clone every check is good."""
    assert [check for check in doctor.examine() if not check.good] == []


@pytest.mark.parametrize(
    ("name", "broken", "says"),
    [("_simulator", ImportError("no Box2D"), "no Box2D"), ("_writable", StoreError("read-only"), "read-only")],
)
def test_the_doctor_reports_and_goes_on(monkeypatch, name, broken, says):
    """A failing check is reported, and the others are made."""

    def fail():
        raise broken

    monkeypatch.setattr(doctor, name, fail)
    bad = [check for check in doctor.examine() if not check.good]
    assert len(bad) == 1 and says in bad[0].detail


def test_the_doctor_sees_a_damaged_policy_and_a_full_disk(monkeypatch, tmp_path):
    """A checkpoint with one flipped bit and a disk without space are named."""
    import shutil
    from collections import namedtuple

    from rl_oodkit.core.store import resource

    for kind in ("safetensors", "json"):
        for suffix in ("", ".sha256"):
            name = f"dqn-lunarlander.{kind}{suffix}"
            shutil.copy(resource(f"checkpoints/{name}"), tmp_path / name)
    path = tmp_path / "dqn-lunarlander.safetensors"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(bytes(data))
    monkeypatch.setattr("rl_oodkit.training.checkpoint.resource", lambda name: tmp_path / name.split("/")[-1])
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 1000))
    assert [check.name for check in doctor.examine() if not check.good] == ["checkpoint", "disk space"]


def test_versions_name_every_library():
    """Each library has a version, read without importing it."""
    found = versions()
    assert set(LIBRARIES) <= set(found) and "absent" not in found.values()


def test_bad_inputs_are_many_and_of_every_kind():
    """More than two thousand wrong calls; none is accepted, and none ends in a library's error."""
    found = bad_inputs()
    assert found["ran"] >= 2000 and all(len(pool) >= 20 for pool in WRONG.values())
    assert found["failures"] == []


def test_the_same_seed_gives_the_same_digests_elsewhere():
    """A process with another hash seed and two threads computes the same bytes; another seed gives others."""
    arguments = [4, ["noise", "gravity"], ["mahalanobis/transition+cusum", "mahalanobis/window"]]
    here = fingerprint(*arguments)
    assert here == fingerprint_elsewhere(arguments, SURROUNDINGS[2])
    other = fingerprint(*arguments, seed=1)
    assert [name for name in here if here[name] == other[name]] == ["weights"]


def test_trials_count_what_fails():
    """A failing trial is counted and named; a leak and a shifted null are found."""

    def bad():
        raise AssertionError("no")

    assert count_trials({"a": bad, "b": lambda: {"x": 1, "y": 2}}, "t") == {"ran": 3, "failed": 1, "detail": "t; a: no"}
    assert leaks(["knn/obs", "random"])["failed"] == 0
    import numpy as np

    noise = np.random.default_rng(0).standard_normal((2, 60, 20))
    assert null_trials({"a": (noise[0], noise[1])}, 20)["failed"] == 0
    assert null_trials({"a": (noise[0], noise[1] + 9)}, 20)["failed"] == 1


def test_outcomes_are_told_in_one_line():
    """Done, skipped and failed each have their line."""
    from rl_oodkit.reproduce.session import _line

    lines = [
        _line(Outcome("x", status, None, 3.2, error))
        for status, error in (("done", ""), ("skipped", ""), ("failed", "why"))
    ]
    assert [line.split()[1:] for line in lines] == [["done", "3", "s"], ["skipped", "unchanged"], ["failed", "why"]]
