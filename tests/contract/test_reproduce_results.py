"""The committed results are whole, come from the shipped policy, and carry their explanations."""

import pandas as pd
import pytest

from rl_oodkit.core.store import clone_root, load_frame, load_json
from rl_oodkit.report.tables import read_cards
from rl_oodkit.reproduce.notebooks import read_manifest
from rl_oodkit.reproduce.profiles import load_profiles
from rl_oodkit.training.checkpoint import load_card

RESULTS = clone_root() / "data" / "results"
EXPERIMENTS = sorted(load_profiles().sets["quick"])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_committed_results_are_whole(name):
    """Every file matches the manifest, none is missing, none is left over, and the profile is stated."""
    folder = RESULTS / name
    manifest = read_manifest(folder)
    assert manifest is not None and manifest["experiment"] == name and manifest["profile"] in ("quick", "full")
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert found == set(manifest["files"]) | {"manifest.json", "manifest.json.sha256"}
    assert all(entry["bytes"] <= 2_000_000 for entry in manifest["files"].values())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_figure_and_table_is_explained(name):
    """Each result has at least one table, and each card's files are there with a way to read them."""
    cards = read_cards(RESULTS / name)
    assert any(card.kind == "table" for card in cards)
    for card in cards:
        assert len(card.read.split()) >= 15 and all((RESULTS / name / file).exists() for file in card.files)
        if card.kind == "table":
            assert len(pd.read_csv(RESULTS / name / card.files[0]))


@pytest.mark.parametrize("name", ["ood_policy", "ood_injectors", "ood_board", "ood_null"])
def test_committed_results_are_of_the_shipped_policy(name):
    """Numbers of another policy are not on display."""
    assert load_json(RESULTS / name / "summary.json")["numbers"]["policy_sha256"] == load_card()["policy_sha256"]


def test_the_committed_numbers_keep_what_is_promised():
    """Clocks are worth nothing, intervals cover, false alarms are as rare as told, the card holds."""
    number = lambda name: load_json(RESULTS / name / "summary.json")["numbers"]
    assert number("ood_time")["clock_matched"] == [0.5]
    assert number("ood_null")["coverage_good"] and number("ood_null")["alarms_good"]
    assert number("ood_policy")["card_good"] and number("ood_policy")["trained"]["return_low"] >= 200
    board = load_frame(RESULTS / "ood_board" / "board.parquet")
    areas = board[board["metric"] == "auroc_landmark"]
    assert (areas[areas["detector"].isin(["clock", "constant"])]["value"] == 0.5).all()
    assert areas.groupby("family")["injector"].nunique().drop("null").min() >= 3 and areas["floor"].nunique() == 2
