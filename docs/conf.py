"""Sphinx settings: Markdown pages, docstrings, one theme, warnings are errors (see the Makefile)."""

project = "labelwise"
author = "the labelwise developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "labelwise"
exclude_patterns = ["_build", "examples"]
default_role = "code"  # docstrings write `name`
myst_heading_anchors = 3
napoleon_google_docstring = False
autodoc_typehints = "none"  # signatures have them, and the types of NumPy and SciPy have no pages here
autodoc_member_order = "bysource"
autoclass_content = "class"
