"""`labelwise models`: every parameter on a row of its own, in lines that fit."""

import pytest

from cli.commands import labelwise
from labelwise.cli.models import overview_lines, parameter_rows, table_lines
from labelwise.errors import MissingDependencyError
from labelwise.methods.text_encoder import TextEncoder
from labelwise.registry import METHODS, method_class


def test_nested_parameters_have_rows_of_their_own():
    said = labelwise("models", "text_encoder").out
    assert max(map(len, said.splitlines())) <= 100
    assert "Config(" not in said
    row = next(line for line in said.splitlines() if line.startswith("training.optimiser.rate "))
    default, about = row.split(maxsplit=2)[1:]
    assert (default, about[:14]) == ("5e-05", "Learning rate;"), "the method's own rate, not torch's"
    assert "training.early_stopping.patience" in said, "sections that are not there by default are listed too"


def test_every_row_has_a_default_that_the_method_takes():
    rows = {name: (default, about) for name, default, about in parameter_rows(TextEncoder.Config, None)}
    assert rows["training.optimiser.head_factor"][0] == "100.0"
    assert rows["encoder.architecture"][0] == "null"
    assert rows["encoder.frozen"][0] == "false"
    assert rows["training"][0] == ""
    assert all(about for _, about in rows.values())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("width", [60, 100])
def test_lines_fit_and_lose_no_word(method, width):
    rows = list(parameter_rows(method_class(method).Config, None))
    if not rows:
        return
    lines = list(table_lines(rows, width))
    assert max(map(len, lines)) <= max(width, 70), "a default in a narrow terminal may stick out"
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(cell for row in rows for cell in row).split())


def test_the_list_shows_what_each_method_suits_reads_and_needs():
    said = labelwise("models").out
    assert max(map(len, said.splitlines())) <= 100
    blocks = {lines[0].split()[0]: "\n".join(lines) for lines in _blocks(said)}
    assert set(blocks) == set(METHODS)
    for name, block in blocks.items():
        method = method_class(name)
        assert all(f"  {head}" in block for head in ("good for ", "speed ", "reads ")), block
        needs = ", ".join(method.needs) or "nothing else"
        assert block.splitlines()[-1].split(maxsplit=1) == ["needs", needs]
    narrow = list(overview_lines(list(METHODS), 60))
    assert max(map(len, narrow)) <= 60


def test_needs_are_what_fit_checks(monkeypatch):
    """A method that imports torch says so, and its check names the package that is missing."""
    monkeypatch.setattr("labelwise.errors.find_spec", lambda name: None)
    monkeypatch.setattr("labelwise.errors.import_module", lambda name: (_ for _ in ()).throw(ImportError(name=name)))
    for name in METHODS:
        method = method_class(name)
        if method.needs:
            with pytest.raises(MissingDependencyError, match=f"needs the package '{method.needs[0]}'"):
                method().check_needs()
        else:
            method().check_needs()


def _blocks(text):
    lines, found = text.splitlines(), []
    for line in lines:
        if not line.startswith(" "):
            found.append([])
        found[-1].append(line)
    return found
