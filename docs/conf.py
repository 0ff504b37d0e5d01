"""Sphinx settings: Markdown pages, docstrings, one theme, warnings are errors (see the Makefile)."""

import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

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


def setup(app: Any) -> None:
    """Write the generated pages before Sphinx looks for sources."""
    from reference_pages import write_pages

    app.connect("config-inited", lambda *_: write_pages(DOCS / "reference"))
