"""Sphinx settings: Markdown pages, docstrings, one theme, warnings are errors (see the Makefile)."""

import posixpath
import re
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
exclude_patterns = ["_build"]
default_role = "code"  # docstrings write `name`
myst_heading_anchors = 3
napoleon_google_docstring = False
autodoc_typehints = "none"  # signatures have them, and the types of NumPy and SciPy have no pages here
autodoc_member_order = "bysource"
autoclass_content = "class"


def link_copies(app: Any, page: str, source: list[str]) -> None:
    """Links to benchmarks/results and CONTRIBUTING, which work in the repository, lead to the copies on this site."""
    here = posixpath.dirname(page) or "."
    copies = {"benchmarks/results/": "reference/results/", "CONTRIBUTING.md": "reference/contributing.md"}
    for outside, copy in copies.items():
        target = posixpath.relpath(copy, here) + "/" * copy.endswith("/")
        source[0] = re.sub(rf"\]\((?:\.\./)+{re.escape(outside)}", f"]({target}", source[0])


def setup(app: Any) -> None:
    """Write the generated pages before Sphinx looks for sources."""
    from reference_pages import write_contributing, write_pages, write_results

    app.connect("config-inited", lambda *_: write_pages(DOCS / "reference"))
    app.connect("config-inited", lambda *_: write_results(DOCS.parent / "benchmarks" / "results", DOCS / "reference"))
    app.connect("config-inited", lambda *_: write_contributing(DOCS.parent / "CONTRIBUTING.md", DOCS / "reference"))
    app.connect("source-read", link_copies)
