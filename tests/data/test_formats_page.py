"""The page on formats says what the code does: its examples are read, its tables agree with the registry."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from data_cases import plain, put

from labelwise.data.options import ReadOptions
from labelwise.data.read import FORMATS, read
from labelwise.data.write import HOLDS

PAGE = Path(__file__).parents[2] / "docs" / "data-formats.md"


def section(name: str) -> str:
    found = re.search(rf"^### {name}$(.*?)(?=^##)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert found, f"there is no section on {name}"
    return found.group(1)


def example(name: str) -> str:
    return re.search(r"```\w+\n(.*?)```", section(name), re.S).group(1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("jsonl", [{"fish farms": 1, "aquaculture": 1}, {"art": 1, "handicraft": 0.5}]),
        ("csv", [{"fish farms": 1, "aquaculture": 1}]),
        ("tsv", [{"fish-farms": 1, "aquaculture": 1}]),
        ("fasttext", [{"fish-farms": 1, "aquaculture": 1}]),
        ("xc", [{"17": 1, "205": 1}]),
        ("vowpal", [{"17": 1, "205": 1}]),
    ],
)
def test_the_examples_are_read_without_naming_the_format(tmp_path, name, expected):
    assert plain(read(put(tmp_path / "example", example(name)))) == expected


def test_the_example_of_two_files(tmp_path):
    for line in example("lines").splitlines():
        name, content = re.split(r" {2,}", line)
        put(tmp_path / name, content + "\n")
    assert plain(read(tmp_path)) == [{"fish-farms": 1, "aquaculture": 1}]


@pytest.mark.parametrize("name", FORMATS)
def test_the_table_tells_what_each_format_holds(name):
    row = re.search(rf"^\| `{name}` \|.*\|(.*)\|.*\|$", PAGE.read_text(encoding="utf-8"), re.M).group(1)
    for part in ("texts", "features", "paths", "ids", "relevances"):
        held = re.search(rf"\b(?<!label ){part}\b", row) is not None or "everything" in row
        assert held == (part in HOLDS[name]), part
    assert ("numbered labels" in row) == ("label_names" not in HOLDS[name])


def test_the_table_of_options_is_whole():
    rows = re.findall(r"^\| `(\w+)` \| ([\w, ]+) \| .* \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    documented = {name: default for name, _, default in rows if name in ReadOptions.model_fields}
    assert list(documented) == list(ReadOptions.model_fields)
    for name, field in ReadOptions.model_fields.items():
        if field.default is not None:
            shown = str(field.default).lower() if isinstance(field.default, bool) else field.default
            assert documented[name] == f"`{shown}`"
