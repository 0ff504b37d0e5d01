"""Sphinx settings: Markdown pages, one theme, warnings are errors (see the Makefile)."""

project = "labelwise"
author = "the labelwise developers"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "labelwise"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
