"""Sphinx extension: equations become MathML when the site is built, so its pages need no script and no network."""

import re
import unicodedata
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number

# what the converter leaves as LaTeX: delimiters behind \big, marks within \text, and \arg
LEFT_OVER = {
    r"\{": "{",
    r"\}": "}",
    r"\|": "\u2016",
    r"\lceil": "\u2308",
    r"\rceil": "\u2309",
    r"\_": "_",
    r"\arg": "arg",
}
SPELLED = {  # what the converter does not know, in words that it does: rows aligned within an equation, and \binom52
    r"(?<={)aligned(?=})": "align*",
    r"\\binom(\w)(\w)": r"\\binom{\1}{\2}",
}
STYLED = re.compile(r'<(mi|mn) mathvariant="(bold|double-struck|script|sans-serif)">(\w)</\1>')
FUNCTION = re.compile(r"<mi>([A-Za-z]{2,})</mi>(?=(<mo[^>]*>\()?)")


def styled(letter: str, style: str) -> str:
    """Return the character that is a letter or digit in a style: browsers know no styles of letters but these."""
    name = re.sub("LATIN |GREEK | LETTER", "", unicodedata.name(letter))
    for first in ("MATHEMATICAL ", ""):  # some letters are older than the others and are called without it
        try:
            return unicodedata.lookup(f"{first}{style.upper()} {name}")
        except KeyError:
            continue
    return letter


def mathml(latex: str, display: str = "inline") -> str:
    """Return an equation as a MathML element; raise `ValueError` if part of it would stay LaTeX."""
    known = latex.strip()
    for words, others in SPELLED.items():
        known = re.sub(words, others, known)
    element = re.sub(r"\\([A-Za-z]+|.)", lambda m: LEFT_OVER.get(m[0], m[0]), convert(known, display=display))
    if unknown := re.findall(r"\\(?:[A-Za-z]+|.)|(?<=>)&(?=<)", element):
        raise ValueError(f"no MathML for {', '.join(unknown)} in {latex!r}: write it otherwise, or add it above")
    element = STYLED.sub(lambda m: f"<{m[1]}>{styled(m[3], m[2])}</{m[1]}>", element)
    return FUNCTION.sub(lambda m: f'<mo lspace="0.17em" rspace="{0 if m[2] else 0.17}em">{m[1]}</mo>', element)


def visit_inline(translator: Any, node: nodes.math) -> None:
    """Write an equation within a line."""
    translator.body.append(f'<span class="math">{mathml(node.astext())}</span>')
    raise nodes.SkipNode


def visit_display(translator: Any, node: nodes.math_block) -> None:
    """Write an equation on a line of its own, with its number if it has a label."""
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    if node["number"]:
        translator.body.append(f'<span class="eqno">({get_node_equation_number(translator, node)})</span>')
    translator.body.append(f"{mathml(node.astext(), 'block')}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer under the name that `html_math_renderer` gives."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
