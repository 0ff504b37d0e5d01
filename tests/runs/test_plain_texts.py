"""Plain texts, one a line, in encodings other than UTF-8."""

import json
import logging

import pytest

import labelwise as lw
from cli.commands import labelwise
from labelwise.commands.encode import _documents
from labelwise.commands.predict import predict_file
from labelwise.data.options import ReadOptions
from labelwise.errors import DataError
from labelwise.runs.data import Request, is_text

LINES = ["caf\u00e9", "plain", "na\u00efve\r", "\u00fcber"]


@pytest.fixture
def latin(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("\n".join(LINES).encode("latin-1"))
    return path


class Listening(lw.Popularity):
    """Remembers what it was asked about."""

    def predict(self, data, k=10, **wishes):
        self.heard = [*getattr(self, "heard", []), *data]
        return super().predict(data, k, **wishes)


def heard_by_predict(path, tmp_path, **options):
    model = Listening().fit(["a", "b"], [["x"], ["y"]])
    predict_file(model, Request(str(path), options=ReadOptions(**options)), str(tmp_path / "out.jsonl"), None, True)
    return model.heard


def heard_by_encode(path, _, **options):
    return list(_documents(Request(str(path), options=ReadOptions(**options))))


@pytest.mark.parametrize("heard", [heard_by_predict, heard_by_encode])
def test_the_encoding_is_honoured(latin, tmp_path, heard, caplog):
    texts = [line.removesuffix("\r") for line in LINES]
    assert heard(latin, tmp_path, encoding="latin-1") == texts
    with pytest.raises(DataError, match=r"latin\.txt:1: byte 0xE9 at column 4 is not utf-8; .*--set encoding=latin-1"):
        heard(latin, tmp_path)
    with caplog.at_level(logging.WARNING, "labelwise"):
        replaced = heard(latin, tmp_path, on_bad_bytes="replace")
    assert replaced == [text.encode("ascii", "replace").decode().replace("?", "\ufffd") for text in texts]
    assert "were replaced by U+FFFD: 3" in caplog.text


def test_from_the_command_line(tmp_path, latin):
    model = tmp_path / "model"
    lw.Popularity().fit(["a", "b"], [["x"], ["y"]]).save(model)
    assert "--set encoding=latin-1" in labelwise("predict", model, latin, code=2).err
    done = labelwise("predict", model, latin, "--set", "encoding=latin-1")
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == ["0", "1", "2", "3"]
    assert labelwise("predict", model, "--set", "encoding=latin-1", stdin=latin.read_bytes()).out == done.out


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("name", ["csv", "tsv", "jsonl", "ndjson", "json", "ft", "fasttext", "vw", "vowpal", "xc", "svm",
                                  "npz", "tfrecords", "tfrecord", "CSV"])  # fmt: skip
def test_names_of_data_files_are_not_taken_for_texts(tmp_path, name, packed):
    for ending, text in ((name, False), ("txt", True), ("text", True), ("log", True)):
        path = tmp_path / f"documents.{ending}{packed}"
        path.write_text("")
        assert is_text(Request(str(path))) is text
