"""Pages link to each other with plain Markdown links, which work on GitHub and in Sphinx."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROLE = re.compile(r"\{(doc|ref|term|numref)\}`|^\([\w-]+\)=$", re.M)
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
