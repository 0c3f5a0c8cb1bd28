"""Tables and figures are deterministic, and the report is one file that refers to nothing and runs nothing."""

import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_oodkit.core.errors import DamagedFileError, ParameterError, StoreError
from rl_oodkit.core.store import load_json, save_json, sha256_file
from rl_oodkit.report.figures import curves, heatmap, interval_plot, paths, write_figure
from rl_oodkit.report.tables import read_cards, spread, with_interval, write_summary, write_table
from rl_oodkit.reproduce.notebooks import MANIFEST, read_manifest
from rl_oodkit.reproduce.report import build_report, publish, read_section

FRAME = pd.DataFrame(
    {"who": list("aabb"), "cell": list("xyxy"), "t": [0, 1, 0, 1], "value": [0.2, 0.5, 0.7, np.nan]}
).assign(low=lambda f: f["value"] - 0.1, high=lambda f: f["value"] + 0.1)
STEPS = pd.DataFrame(
    {"episode": [0, 0, 1, 1], "x": [0, 0.1, 0, 0.2], "y": [1, 0, 1, 0], "end": list("llcc"), "cell": "k"}
)
DRAWINGS = {
    "heatmap": lambda: heatmap(spread(FRAME, "who", "cell"), {"x": "one", "y": "two"}),
    "intervals": lambda: interval_plot(FRAME, "who", group="cell", label="share", reference=0.5, band=(0.4, 0.6)),
    "curves": lambda: curves(FRAME, "t", panel="cell", line="who", xlabel="t (steps)", ylabel="share"),
    "paths": lambda: paths(STEPS, panel="cell", xlabel="x", ylabel="y", limits=(-1, 1, 0, 1)),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_same_frame_gives_the_same_bytes(tmp_path, name):
    """Two drawings of one frame are equal in both formats, and every axis says what it is."""
    kept = []
    for i in range(2):
        figure = DRAWINGS[name]()
        write_figure(figure, tmp_path / str(i), "f", title="T", read="R")
        kept.append({p.name: p.read_bytes() for p in sorted((tmp_path / str(i)).iterdir())})
    assert kept[0] == kept[1] and {"f.png", "f.svg"} <= set(kept[0])
    svg = kept[0]["f.svg"].decode()
    assert "<script" not in svg and "Date" not in svg and not re.search(r'href="http', svg)


def test_the_scale_of_a_board_is_fixed_and_parts_at_one_half():
    """Colours do not depend on what else is on the board, and one half is the neutral colour."""
    colours = []
    for other in (0.6, 1.0):
        figure = heatmap(pd.DataFrame({"a": [0.5], "b": [other]}, index=["d"]))
        mesh = figure.axes[0].collections[0]
        figure.canvas.draw()
        colours.append(mesh.get_facecolors()[0])
        assert (mesh.norm(0.0), mesh.norm(0.5), mesh.norm(1.0)) == (0.0, 0.5, 1.0)
    assert np.array_equal(*colours) and np.ptp(colours[0][:3]) < 0.02


def test_nothing_to_draw_and_nothing_to_read_are_errors(tmp_path):
    """An empty board, and a figure or table without reading instructions, are refused."""
    with pytest.raises(ParameterError):
        heatmap(pd.DataFrame())
    with pytest.raises(ParameterError, match="explanation"):
        write_table(FRAME, tmp_path, "t", title="T", read=" ")
    with pytest.raises(ParameterError, match="explanation"):
        write_figure(DRAWINGS["heatmap"](), tmp_path, "f", title="", read="R")


@given(st.floats(-1e3, 1e3), st.floats(1e-6, 1e2), st.integers(0, 6))
def test_intervals_are_printed_no_finer_than_they_are_known(value, half, digits):
    """The printed interval holds the value, within the last printed digit, and shows at most the digits asked for."""
    text = with_interval(value, value - half, value + half, digits)
    shown, low, high = map(float, re.fullmatch(r"(\S+) \[(\S+), (\S+)\]", text).groups())
    assert low <= shown <= high
    assert max(len(n.partition(".")[2]) for n in re.findall(r"-?\d+\.?\d*", text)) <= digits


def test_a_table_leaves_as_csv_and_latex(tmp_path):
    """CSV reads back as the frame; LaTeX escapes what it would interpret and draws no missing number as zero."""
    frame = pd.DataFrame({"id_%": ["a_b & c%"], "value": [np.nan], "exact": [0.123456789]})
    write_table(frame, tmp_path, "t", title="100% of_it", read="One row.")
    back = pd.read_csv(tmp_path / "t.csv")
    assert back["id_%"].tolist() == ["a_b & c%"] and abs(back["exact"][0] - 0.123456789) < 1e-6
    tex = (tmp_path / "t.tex").read_text()
    assert r"a\_b \& c\%" in tex and r"100\% of\_it" in tex and "nan" not in tex.lower() and "–" in tex


def test_spreading_refuses_to_merge_and_keeps_the_order():
    """A pair that occurs twice is an error; rows and columns come in order of appearance."""
    tidy = pd.DataFrame({"d": ["z", "a", "z"], "c": ["q", "b", "b"], "value": [1.0, 2.0, 3.0]})
    wide = spread(tidy, "d", "c")
    assert (list(wide.index), list(wide.columns)) == (["z", "a"], ["q", "b"]) and np.isnan(wide.loc["a", "q"])
    with pytest.raises(ParameterError, match="twice"):
        spread(pd.concat([tidy, tidy]), "d", "c")


def test_cards_come_in_order_and_damage_is_noticed(tmp_path):
    """Cards are read in the order of writing; writing again keeps the place; an edited card is refused."""
    for name in ("z", "a", "m", "z"):
        write_table(FRAME, tmp_path, name, title=name, read="R")
    assert [card.name for card in read_cards(tmp_path)] == ["z", "a", "m"]
    path = tmp_path / "table-a.card.json"
    path.write_bytes(path.read_bytes().replace(b'"R"', b'"Q"'))
    with pytest.raises(DamagedFileError):
        read_cards(tmp_path)


def whole_folder(folder, name="trial"):
    """Make a result folder as the runner would leave it."""
    folder = folder / name
    write_figure(DRAWINGS["heatmap"](), folder, "f", title="A <b>figure</b>", read="Look & see.")
    write_table(FRAME.assign(who="<script>alert(1)</script>"), folder, "t", title="A table", read="One row a cell.")
    write_summary(folder, ["It is <i>0.5</i>."], value=np.float64(0.5), lost=np.nan, many=(np.int64(1),))
    (folder / f"{name}.ipynb").write_text(
        '{"cells": [{"cell_type": "markdown", "source": ["# T\\n", "\\n", "> Why."]}]}'
    )
    files = {p.name: {"sha256": sha256_file(p), "bytes": p.stat().st_size} for p in folder.iterdir()}
    record = {"parameters": {"n": 1}, "inputs": {"notebook": "0" * 64}, "wall_seconds": 3.0, "finished": "now"}
    save_json(folder / MANIFEST, {**record, "versions": {"python": "3"}, "files": files})
    return folder


class Links(HTMLParser):
    """Collect what a page would fetch, and its tags."""

    def __init__(self):
        super().__init__()
        self.fetched, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.fetched += [v for k, v in attrs if k in ("src", "href", "srcset", "action") and v]


def test_the_report_holds_everything_and_fetches_nothing(tmp_path):
    """Figures, tables, texts and provenance are in one page without scripts, and foreign text stays text."""
    whole_folder(tmp_path)
    page = build_report(tmp_path, ["trial", "absent"], title="Two <experiments>").read_text()
    links = Links()
    links.feed(page)
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in links.fetched)
    assert not {"script", "link", "iframe", "object", "form"} & set(links.tags) and "i" not in links.tags
    for text in (
        '<h2 id="trial">T</h2>',
        "Why.",
        "&lt;i&gt;0.5&lt;/i&gt;",
        "Look &amp; see.",
        "No whole result folder",
        "python",
    ):
        assert text in page


def test_a_damaged_folder_is_not_reported_and_not_published(tmp_path):
    """One changed byte in any file takes the whole folder out."""
    folder = whole_folder(tmp_path)
    assert read_section(folder).cards
    (folder / "t.csv").write_text("who,value\na,1.0\n")
    assert read_manifest(folder) is None and not read_section(folder).cards
    with pytest.raises(StoreError, match="no whole results"):
        publish(tmp_path, ["trial"], tmp_path / "kept", profile="smoke")


def test_publishing_leaves_out_notebooks_and_large_files_and_says_so(tmp_path):
    """What is published is whole by its own manifest, which lists what was left out; old files go."""
    folder, kept = whole_folder(tmp_path), tmp_path / "kept"
    (kept / "trial").mkdir(parents=True)
    (kept / "trial" / "old.csv").write_text("old")
    size = (folder / "f.png").stat().st_size
    (path,) = publish(tmp_path, ["trial"], kept, profile="quick", largest=size - 1)
    manifest = read_manifest(path)
    assert manifest["profile"] == "quick" and {"trial.ipynb", "f.png"} <= set(manifest["left_out"])
    assert {p.name for p in path.iterdir()} == set(manifest["files"]) | {"manifest.json", "manifest.json.sha256"}
    assert load_json(path / "summary.json")["numbers"] == {"value": 0.5, "lost": None, "many": [1]}
