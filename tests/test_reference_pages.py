"""The generated reference pages have every command, every field and every method."""

import sys
from pathlib import Path

import pytest

from labelwise.registry import method_class, method_names
from labelwise.runs.config import RunConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import reference_pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    written = reference_pages.write_pages(tmp_path_factory.mktemp("reference"))
    return {path.name: path.read_text(encoding="utf-8") for path in written}


def test_every_command_has_its_help(pages):
    for command in ("train", "predict", "info", "data stats", "config schema"):
        assert f"## labelwise {command}\n" in pages["commands.md"]
    assert pages["commands.md"].count("Usage: labelwise ") == pages["commands.md"].count("\n## labelwise ")
    assert "--threshold" in pages["commands.md"]


def test_every_field_of_a_config_is_listed(pages):
    for section, field in RunConfig.model_fields.items():
        if section != "model":
            for key in getattr(field.annotation, "model_fields", {}):
                assert f"| `{section}.{key}` |" in pages["config.md"]
    assert "| `evaluate.bootstrap` | whole number from 0 to 100,000 | `200` |" in pages["config.md"]


def test_every_parameter_of_every_method_is_listed(pages):
    sections = dict(part.split("\n", 1) for part in pages["methods.md"].split("\n## ")[1:])
    for name in method_names():
        for key in method_class(name).Config.model_fields:
            assert f"| `model.{key}` |" in sections[name], (name, key)
    assert "| `model.tfidf.sublinear` | true or false | `true` |" in sections["linear_tree"], "the method's own default"


def test_pages_that_have_not_changed_are_not_written_again(tmp_path):
    first = {path: path.stat().st_mtime_ns for path in reference_pages.write_pages(tmp_path)}
    assert {path: path.stat().st_mtime_ns for path in reference_pages.write_pages(tmp_path)} == first


def test_results_of_benchmarks_are_listed(tmp_path):
    reference_pages.write_results(Path(__file__).parents[1] / "benchmarks" / "results", tmp_path)
    assert "linear_tree\n" in (tmp_path / "results" / "index.md").read_text()
    assert (tmp_path / "results" / "linear_tree.md").exists()
