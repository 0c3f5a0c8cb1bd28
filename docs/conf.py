"""Sphinx configuration: the title comes from _quarto.yml, the pages from nbs/ by way of docs/build.py."""

import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent))

_quarto = yaml.safe_load((Path(__file__).parent.parent / "_quarto.yml").read_text(encoding="utf-8"))

project = _quarto["website"]["title"]
html_title = project
author = "The rl_oodkit authors"
copyright = "2026, The rl_oodkit authors"

extensions = ["myst_nb", "mathml"]
html_math_renderer = "mathml"  # no script from the network draws the equations
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_dmath_double_inline = True  # display equations may stand within a paragraph
myst_heading_anchors = 3
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]

html_theme = "furo"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["house.css"]
html_theme_options = {"navigation_with_keys": True}
