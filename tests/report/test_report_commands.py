"""The commands `compare` and `report`, and the lines under a table of scores: what is printed and what is written."""

from __future__ import annotations

import re
import sys

import pytest
from drawn import draw_once
from made_up_run import make_run, results

from labelwise.cli.output import show_evaluation
from labelwise.cli.report import compare_command, report_command
from labelwise.errors import DataError, LabelwiseError

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


@pytest.fixture
def two(tmp_path):
    return [
        str(make_run(tmp_path / "a", name="tree [1]", fit=13.4)),
        str(make_run(tmp_path / "b", name="attention", method="attention_xml", gain=0.01, fit=4210.0)),
    ]


@pytest.fixture
def terminal(monkeypatch, capsys):
    """Standard output as a terminal of a given width."""

    def opened(columns: int) -> None:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    return opened


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│┃").split("│")] for line in text.splitlines() if line[:1] == "│"]


def test_compare_prints_markdown_into_a_pipe(two, capsys):
    compare_command(two)
    out = capsys.readouterr().out
    assert out.startswith("| run | method | P@1 |")
    assert "| **92.65** |" in out


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_compare_prints_tables_on_a_terminal(two, capsys, terminal, columns):
    terminal(columns)
    compare_command(two)
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "**" not in out
    assert max(len(line) for line in out.splitlines() if line[:1] in "│┃┏└") <= columns
    rows = rows_of(out)
    assert {row[0] for row in rows} == {"tree [1]", "attention", "popularity"}
    cells = {name: [cell for row in rows if row[0] == name for cell in row[1:]] for name in ("tree [1]", "attention")}
    assert cells["tree [1]"][:3] == ["linear_tree", "91.65", "81.79"]
    assert cells["attention"][:3] == ["attention_xml", "* 92.65", "* 82.79"]
    assert "* 13.4 s" in cells["tree [1]"]
    assert len(cells["tree [1]"]) == 1 + 9 + 4  # method, scores, costs: none is lost between the tables
    assert "\n* marks the best of each column\n" in out
    assert "\n* marks the best of each column; within 10 % of the best counts as equal\n" in out


def test_compare_on_a_terminal_says_what_cannot_be_compared(tmp_path, capsys, terminal):
    runs = [str(make_run(tmp_path / "a")), str(make_run(tmp_path / "b", name="b", gain=0.1, n_documents=5))]
    terminal(100)
    compare_command(runs)
    out = capsys.readouterr().out
    assert "- The runs were evaluated on different documents" in out
    assert "*" not in out


def test_report_replaces_charts_only_when_forced(tmp_path, capsys, monkeypatch):
    draw_once(monkeypatch)
    run, plots = make_run(tmp_path / "run"), tmp_path / "plots"
    report_command(str(run), str(plots))
    assert capsys.readouterr().out.splitlines()[0] == f"written: {run / 'report.html'}"
    (plots / "groups.png").write_bytes(b"mine")
    (run / "report.html").write_bytes(b"old")
    with pytest.raises(DataError, match="exists already; --force replaces it"):
        report_command(str(run), str(plots))
    assert (plots / "groups.png").read_bytes() == b"mine"
    assert (run / "report.html").read_bytes() == b"old"
    report_command(str(run))
    assert (run / "report.html").stat().st_size > 1000
    report_command(str(run), str(plots), force=True)
    assert (plots / "groups.png").read_bytes().startswith(b"\x89PNG")


def test_report_of_no_run(tmp_path):
    with pytest.raises(DataError, match="nope: there is no such folder"):
        report_command(str(tmp_path / "nope"))
    with pytest.raises(LabelwiseError, match="neither the folder of a run"):
        report_command(str(tmp_path))


def test_scores_on_the_terminal_name_the_propensities(capsys):
    evaluation = results(0.0, 1.0, 6000, "eurlex57k", 0.0)["evaluation"]
    show_evaluation("scores", evaluation)
    assert capsys.readouterr().out.endswith("\nPSP with A 0.55, B 1.5, N 45,000 training documents\n")
    show_evaluation("scores", evaluation | {"propensity": None})
    assert "PSP with" not in capsys.readouterr().out
