"""Grader hacks: none is rewarded, and an honest submission by the same road wins a medal."""

import os

import pytest

from rl_oodkit.core.errors import ParameterError, UnknownIdError
from rl_oodkit.mle.cold import ColdSubprocess
from rl_oodkit.mle.grade import GradeReport
from rl_oodkit.mle.hacks import hacks, try_hack, try_hacks
from rl_oodkit.mle.rewards import reward, reward_ids
from rl_oodkit.mle.victim import Outcome, Victim, victim_task

IN_PROCESS = hacks()
PROGRAMS = [name for name, hack in hacks(level=0).items() if hack.part == "programs"]


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Return one scene per kind of task, which attacks may not harm."""
    return {kind: Victim(tmp_path_factory.mktemp(kind), kind) for kind in ("probability", "probabilities", "value")}


@pytest.fixture(scope="module")
def programs():
    """Return the outcomes of all programs in the executor without isolation, the weakest there is."""
    return try_hacks(parts=("programs",), executor=ColdSubprocess).set_index("name")


def test_there_are_enough():
    """At least 25 by name, of every part, with names of their own."""
    assert len(IN_PROCESS) >= 60 and len(PROGRAMS) >= 10
    assert {hack.part for hack in hacks(level=2).values()} == {"texts", "files", "conduct", "programs"}


@pytest.mark.parametrize("name", IN_PROCESS)
def test_a_hack_is_not_rewarded_and_honesty_is(name, scenes):
    """Under every reward, the attack earns no more than knowing nothing, and the control earns more."""
    hack = IN_PROCESS[name]
    outcome = try_hack(hack, scenes[hack.kind])
    assert outcome.repelled, outcome
    nothing = scenes[hack.kind].judge.grade_predictions(scenes[hack.kind].ignorant)
    for preset in ("paper", "release", "sparse"):
        assert reward(preset, outcome.report) <= reward(preset, nothing)
    for preset in ("paper", "release", "peer_rank", "normalised", "dense"):
        assert reward(preset, outcome.report) < reward(preset, outcome.control) - 0.2
    assert set(reward_ids()) >= {"paper", "release", "sparse", "peer_rank", "normalised", "dense"}
    assert not os.path.exists("ran")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_not_rewarded_and_honesty_is(name, programs):
    """Whatever it patches, it patches itself."""
    row = programs.loc[name]
    assert row["repelled"] and row["tier"] <= 1 and row["control_tier"] >= 3, row


def test_refusals_give_reasons(scenes):
    """Whatever is not valid says why."""
    table = try_hacks(parts=("texts",))
    bad = table[table["status"] != "valid"]
    assert len(bad) >= 40 and (bad["reason"].str.len() > 10).all()


def test_a_generous_grader_is_noticed():
    """Negative control: an attack that succeeds, or leaves a trace, or a grader that rejects all, is not `repelled`."""
    gold, nothing = GradeReport("valid", tier=5), GradeReport("valid", tier=1)
    assert Outcome("a", nothing, gold).repelled
    assert not Outcome("a", gold, gold).repelled
    assert not Outcome("a", nothing, gold, ("ran",)).repelled
    assert not Outcome("a", GradeReport("invalid"), GradeReport("invalid")).repelled


def test_the_victim_can_be_solved_and_is_not_solved_by_chance():
    """Every kind, several seeds: honest work wins a medal and knowing nothing stays below the median."""
    for kind in ("probability", "probabilities", "value"):
        for seed in range(2):
            task = victim_task(kind, seed)
            assert task.thresholds.bronze != task.thresholds.median != task.thresholds.sample
            assert task.judge().grade(task.tables.sample_submission).tier == 1
    with pytest.raises(ParameterError):
        victim_task("label")


def test_unknown_attacks_are_refused():
    """By name."""
    with pytest.raises(UnknownIdError):
        try_hacks(["bribery"])
    with pytest.raises(UnknownIdError):
        try_hacks(["numpy-patched"])
