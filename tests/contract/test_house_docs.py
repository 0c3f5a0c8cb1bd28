"""The README and the site are made from the notebooks, and say what the notebooks say."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest
from house import NBS, ROOT, load_script, read_notebook

build = load_script(ROOT / "docs" / "build.py", "docs_build")
equations = load_script(ROOT / "docs" / "mathml.py", "docs_mathml")


def test_readme_is_made_from_the_index():
    """README.md equals what docs/build.py makes of nbs/index.ipynb, and its code fences keep their language."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == build.readme()
    fences = re.findall(r"^```(\w*)$", text, re.M)[::2]
    assert fences and all(fences)


def test_links_of_the_readme_lead_somewhere():
    """Relative links are files of the clone."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [t for t in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in t]
    assert targets and not [t for t in targets if not (ROOT / t).exists()]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the built site: the one in _docs/ when it is newer than every source, or a fresh build."""
    sources = [*NBS.rglob("*.ipynb"), ROOT / "_quarto.yml", *(ROOT / "docs").rglob("*.*"), ROOT / "settings.ini"]
    front = ROOT / "_docs" / "index.html"
    if front.exists() and front.stat().st_mtime > max(p.stat().st_mtime for p in sources):
        return front.parent
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, ROOT / "docs" / "build.py", "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def pages() -> list[str]:
    """Return the notebooks of the sidebar."""
    return [name for _, names in build.sidebar() for name in names]


def test_every_chapter_is_a_page_with_its_title(site):
    """Each notebook of the sidebar is a page that opens with its title and sentence, and shows no directive."""
    for name in pages():
        html = unescape((site / f"{build.page_name(name)}.html").read_text(encoding="utf-8")).replace("\u2019", "'")
        first = next(c["source"] for c in read_notebook(NBS / name)["cells"] if c["cell_type"] == "markdown")
        title = re.match(r"# (.+)", first)[1].strip()
        assert re.search(rf"<h1>{re.escape(title)}<", html), name
        assert "#|" not in re.sub(r"<[^>]+>", "", html), name
        assert not re.search(r"\$\s*<(span|div) class=\"math", html), f"{name}: a display equation is cut in two"


def test_the_site_shows_equations_tables_figures_and_code(site):
    """One of each, somewhere in the book, in the form a browser draws."""
    html = "\n".join((site / f"{build.page_name(n)}.html").read_text(encoding="utf-8") for n in pages())
    assert "<math " in html and 'display="block"' in html
    assert "<table" in html
    assert 'class="highlight-ipython3' in html or 'class="highlight-python' in html
    drawn = any("image/svg+xml" in str(c.get("outputs")) for n in pages() for c in read_notebook(NBS / n)["cells"])
    assert "_images/" in html or "<svg" in html or not drawn


def test_the_site_is_readable_without_a_network(site):
    """No page and no style sheet asks another host for a script, a style, a font or a picture."""
    loads = (
        r"<(?:script|link|img|iframe|source|video|object|embed)\b[^>]*?\s(?:src|href|data)\s*=\s*[\"']?(?:https?:)?//"
    )
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(loads, text), page.relative_to(site)
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", text), sheet.relative_to(site)


def test_equations_become_mathml_or_are_refused():
    """What browsers cannot draw is spelled in characters they can; nothing stays LaTeX in silence."""
    assert "\U0001d53c" in equations.mathml(r"\mathbb E[x]") and "mathvariant" not in equations.mathml(r"\mathbb 1")
    assert "\u2308" in equations.mathml(r"\Big\lceil x \Big\rceil", "block")
    assert 'display="block"' in equations.mathml("x", "block")
    with pytest.raises(ValueError, match="no MathML for .*nosuchcommand"):
        equations.mathml(r"\nosuchcommand x")


def test_the_front_page_has_title_and_sidebar(site):
    """Title and navigation are those of _quarto.yml."""
    html = (site / "index.html").read_text(encoding="utf-8")
    assert "<title>rl_oodkit</title>" in html
    for caption, names in build.sidebar():
        assert caption in html
        assert all(f'href="{build.page_name(n)}.html"' in html for n in names)


def test_experiments_open_with_what_came_out(site):
    """Committed tables and figures stand before the code that made them, and every figure is there."""
    shown = [n for n in pages() if n.startswith("experiments/") and (build.RESULTS / Path(n).stem).is_dir()]
    assert shown
    for name in shown:
        html = (site / f"{build.page_name(name)}.html").read_text(encoding="utf-8")
        title, results, made = (html.index(mark) for mark in ("</h1>", "<h2>What came out", "<h2>How it was made"))
        assert title < results < made < html.index('class="highlight-'), name
        assert "<h3>" in html[results:made], name


def test_inner_links_lead_to_pages(site):
    """No link of the site points to a page that is not there."""
    for page in site.rglob("*.html"):
        for target in re.findall(r'href="([^"#?:]+\.html)', page.read_text(encoding="utf-8")):
            assert (page.parent / target).resolve().exists(), f"{page.relative_to(site)} -> {target}"
