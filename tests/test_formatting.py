"""Control characters of names and texts are shown, not sent to the terminal; other text stays as it is."""

import io
import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labelwise as lw
from cli.commands import labelwise
from labelwise.cli.output import print_table, show_explanation
from labelwise.cli.terminal import LogFormatter, echo, echo_json
from labelwise.errors import (
    ConfigError,
    DataError,
    LabelwiseError,
    MissingDependencyError,
    NotFittedError,
)
from labelwise.formatting import json_text, number, printable

HOSTILE = "red\x1b[31m back\rspace\x08 c1\x9b2J bell\x07 title\x1b]0;x\x07 bidi\u202e half\ud800"
SHOWN = r"red\x1b[31m back\rspace\x08 c1\x9b2J bell\x07 title\x1b]0;x\x07 bidi\u202e half\ud800"


def is_harmless(text):
    return not any((letter < " " and letter not in "\t\n") or "\x7f" <= letter <= "\x9f" for letter in text)


def test_what_a_terminal_obeys_is_escaped():
    assert printable(HOSTILE) == SHOWN
    assert printable("Käse 東京 \u200d🧀\ttab\nline") == "Käse 東京 \u200d🧀\ttab\nline"


@given(st.text())
def test_any_text_is_harmless_and_can_be_encoded(text):
    assert is_harmless(printable(text))
    printable(text).encode("utf-8")


@given(st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))
def test_json_is_harmless_and_means_the_same(value):
    text = json_text(value, indent=1)
    assert is_harmless(text)
    assert json.loads(text) == value


@pytest.mark.parametrize("kind", [LabelwiseError, ConfigError, DataError, NotFittedError])
def test_messages_of_errors(kind):
    assert str(kind(f"the label {HOSTILE} is unknown")) == f"the label {SHOWN} is unknown"
    assert str(DataError("is bad", HOSTILE, 3)) == f"{SHOWN}:3: is bad"
    assert SHOWN in str(MissingDependencyError("a", "b", HOSTILE))


def test_output_of_commands(capfd):
    echo(HOSTILE)
    echo_json({"label": HOSTILE})
    print_table(HOSTILE, ["a", HOSTILE], [[HOSTILE, "two\nlines"]])
    out = capfd.readouterr().out
    assert is_harmless(out)
    assert out.count(SHOWN) == 4
    assert "two lines" in out


def test_messages_of_the_log():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter())
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning("%s is left out", HOSTILE)
    assert stream.getvalue() == f"{SHOWN} is left out\n"


def test_labels_of_explanations(capfd):
    name = "cat\x1b[2J\x9b1m\r"
    labels = np.array([[1, 0], [0, 1]] * 10)
    data = lw.Dataset(labels, [name, "dog"], texts=["meow purr", "bark growl"] * 10)
    model = lw.LinearTree().fit(data)
    for one in model.explain("meow purr", k=2):
        show_explanation(one)
    out = capfd.readouterr().out
    assert is_harmless(out)
    assert r"cat\x1b[2J\x9b1m\r" in out
    with pytest.raises(LabelwiseError) as raised:
        model.explain("meow", ["do\x1bg"])
    assert is_harmless(str(raised.value))


def test_predictions_of_hostile_labels(tmp_path):
    name = "cat\x1b[2J\x9b1m\r"
    model = lw.Popularity().fit(lw.Dataset(np.array([[1, 1], [1, 0]]), [name, "dog"], texts=["a", "b"]))
    model.save(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("meow\n")
    for format, shown in (("jsonl", name), ("tsv", "cat [2J 1m ")):
        out = labelwise("predict", tmp_path / "model", tmp_path / "texts.txt", "--to", format).out
        assert is_harmless(out)
        first = json.loads(out)["labels"][0]["label"] if format == "jsonl" else out.split("\n")[1].split("\t")[1]
        assert first == shown


def test_numbers_with_a_fixed_number_of_decimals():
    assert [number(value, 2) for value in (5, 5.0, 1234.567, None)] == ["5", "5.00", "1,234.57", "–"]
