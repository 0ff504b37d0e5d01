"""What is said about installing the neural parts is the same everywhere."""

import re
from pathlib import Path

import pytest

from labelwise.errors import MissingDependencyError

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_pages_tell_both_ways_with_the_version_of_the_makefile(page):
    version = re.search(r"torch==([\d.]+\d)", (ROOT / "Makefile").read_text())[1]
    text = " ".join((ROOT / page).read_text().split())
    assert 'pip install "labelwise[nn]"' in text
    assert f"CPU build of `torch=={version}` first" in text


def test_methods_point_there():
    assert "## Neural methods\n" in (ROOT / "docs" / "quickstart.md").read_text()
    for page in ("text-encoder", "attention-xml", "mach"):
        assert "(../quickstart.md#neural-methods)" in (ROOT / "docs" / "methods" / f"{page}.md").read_text()


def test_the_message_about_torch_names_the_cpu_build():
    assert "CPU build of torch before that" in str(MissingDependencyError("torch", "nn", "text_encoder"))
    assert "CPU" not in str(MissingDependencyError("jinja2", "report", "a report"))
