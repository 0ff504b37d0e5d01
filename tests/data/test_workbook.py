"""Excel workbooks are read like CSV files; other spreadsheets are refused with what to do."""

import datetime
import sys
import zipfile

import pytest
from data_cases import assert_same, put

import labelwise as lw
from cli.commands import labelwise
from labelwise.data.formats import csv as workbook
from labelwise.data.options import ReadOptions
from labelwise.errors import ConfigError, DataError, MissingDependencyError
from labelwise.model.card import Reading

openpyxl = pytest.importorskip("openpyxl")
OPTIONS = {"text_column": "title+abstract", "label_column": "subjects", "id_column": "no"}


def book(path, rows, sheets=1):
    made = openpyxl.Workbook()
    for row in rows:
        made.active.append(row)
    for _ in range(sheets - 1):
        made.create_sheet("other").append(["nothing"])
    made.save(path)
    return path


@pytest.fixture
def catalogue(tmp_path):
    rows = [
        ["no", "title", "abstract", "subjects", "date"],
        [1, "Fish, farming", "in cold\nwater", "fish farms; aquaculture", datetime.date(2024, 12, 31)],
        [2.0, "Ölmalerei", None, "art", None],
        [None, None, None, None],
        ["x3", 1984, 2.5, None, True],
    ]
    return book(tmp_path / "catalogue.xlsx", rows)


def test_a_workbook_is_read_like_the_same_table_as_csv(catalogue, tmp_path):
    table = '"no",title,abstract,subjects\n1,"Fish, farming","in cold\nwater",fish farms; aquaculture\n'
    expected = lw.read(put(tmp_path / "a.csv", table + "2,Ölmalerei,,art\nx3,1984,2.5,\n"), options=OPTIONS)
    data = lw.read(catalogue, options=OPTIONS)
    assert data.name == str(catalogue)
    object.__setattr__(data, "name", expected.name)
    assert_same(data, expected)
    assert "date" not in " ".join(data.texts)


def test_missing_columns_are_proposed(catalogue, tmp_path):
    error = labelwise("train", "catalogue.xlsx", cwd=tmp_path, code=2).err
    assert "labelwise train catalogue.xlsx --text title+abstract --labels subjects" in error


def test_a_model_of_a_csv_file_reads_workbooks_with_the_same_columns():
    reading = Reading.of("a.csv", "auto", ReadOptions(text_column="title", encoding="latin-1"))
    assert reading.options_for("b.xlsx") == {"text_column": "title"}
    assert reading.options_for("b.csv") == {"text_column": "title", "encoding": "latin-1"}
    assert reading.options_for("b.jsonl") == {}


def test_the_first_of_several_sheets_is_read(tmp_path, caplog):
    assert len(lw.read(book(tmp_path / "a.xlsx", [["text", "labels"], ["x", "y"]], sheets=2))) == 1
    assert "2 sheets; the first is read" in caplog.text


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:1000]), "the workbook cannot be read: File is not a zip"),
        (lambda path: path.write_bytes(b"text,labels\na,b\n"), "the workbook cannot be read: File is not a zip"),
        (lambda path: without(path, "xl/workbook.xml"), "the workbook cannot be read"),
        (lambda path: without(path, "xl/worksheets/sheet1.xml", b"<worksheet><sheet"), "the workbook cannot be read"),
    ],
)
def test_damaged_workbooks_are_errors(catalogue, damage, message):
    damage(catalogue)
    with pytest.raises(DataError, match=message):
        lw.read(catalogue, options=OPTIONS)


def without(path, member, content=None):
    with zipfile.ZipFile(path) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    kept.pop(member)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (kept | ({member: content} if content else {})).items():
            archive.writestr(name, data)


def test_what_unpacks_to_too_much_is_refused(catalogue, monkeypatch):
    monkeypatch.setattr(workbook, "MAX_UNPACKED", 100)
    with pytest.raises(DataError, match=r"catalogue.xlsx: the workbook unpacks to .* more than 100; use CSV"):
        lw.read(catalogue, options=OPTIONS)


def test_options_of_text_files_have_no_effect_and_are_refused(catalogue):
    with pytest.raises(ConfigError, match="encoding is for text files and has no effect for a workbook"):
        lw.read(catalogue, options={**OPTIONS, "encoding": "latin-1"})


def test_without_the_package_the_message_says_what_to_install(catalogue, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'labelwise\[xlsx\]'"):
        lw.read(catalogue, options=OPTIONS)


@pytest.mark.parametrize("extension", [".xls", ".ods"])
def test_other_spreadsheets_are_refused(tmp_path, extension):
    path = put(tmp_path / f"table{extension}", b"\xd0\xcf\x11\xe0\tx")
    with pytest.raises(DataError, match=rf"type {extension} are not read; save it as CSV \(UTF-8\) or .xlsx"):
        lw.read(path)
    assert "save it as CSV" in labelwise("train", path, code=2).err
