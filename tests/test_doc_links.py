"""Pages link to each other with plain Markdown links, which work on GitHub and in Sphinx, and their lines can be read."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "docs" / "reference"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if GENERATED not in page.parents),
]
ROLE = re.compile(r"\{(doc|ref|term|numref)\}`|^\([\w-]+\)=$", re.M)
WIDTH = 130
CODE = re.compile(r"^ *```.*?^ *```", re.M | re.S)
LINK = re.compile(r"\]\((?!https?://|mailto:)([^)#\s]*)(#[^)\s]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_are_plain_and_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    assert not ROLE.search(text), "roles of Sphinx stand raw on GitHub"
    for path, anchor in LINK.findall(text):
        target = (page.parent / path) if path else page
        assert target.exists(), path
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
            assert anchor[1:] in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_of_prose_are_not_too_long(page):
    """Code is left out, and so are tables and images, which cannot be wrapped."""
    prose = CODE.sub("", page.read_text(encoding="utf-8")).splitlines()
    assert [line for line in prose if len(line) > WIDTH and not line.lstrip().startswith(("|", "!["))] == []
