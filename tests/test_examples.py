"""The scripts in examples/ run on the data that they make, and come to sensible results."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def output(name, capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_subject_indexing(capsys, monkeypatch):
    printed = output("subject_indexing.py", capsys, monkeypatch)
    assert float(re.search(r"P@1 ([\d.]+) %", printed)[1]) > 90
    assert "because of" in printed


def test_subject_indexing_of_a_given_table(capsys, monkeypatch, tmp_path):
    lines = [f"{'cats purr' if i % 2 else 'dogs bark'} {i},{'cat' if i % 2 else 'dog'}\n" for i in range(100)]
    (tmp_path / "mine.csv").write_text("name,topic\n" + "".join(lines))
    printed = output(
        "subject_indexing.py", capsys, monkeypatch, str(tmp_path / "mine.csv"), "--text", "name", "--labels", "topic"
    )
    assert "P@1 100.0 %" in printed


def test_product_tagging(capsys, monkeypatch):
    printed = output("product_tagging.py", capsys, monkeypatch)
    assert "digital scale weigh gram: ['kitchen/scales']" in printed


def test_face_verification(capsys, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("PIL")
    printed = output("face_verification.py", capsys, monkeypatch)
    assert float(re.search(r"AUC ([\d.]+) %", printed)[1]) > 70


def test_all_examples_are_listed():
    page = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"`(\w+\.py)", page)) == {path.name for path in EXAMPLES.glob("*.py")}
