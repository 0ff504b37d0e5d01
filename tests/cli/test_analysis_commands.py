"""Stems and vocabularies from the command line: a config with both, an explanation, label texts, what is refused."""

import pytest
from commands import labelwise

ROWS = [
    ("the cats are sleeping", "p1"),
    ("a cat, two cats", "p1"),
    ("a farm of animals", "p2"),
    ("beer in a bar", "p5"),
]
THESAURUS = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix y: <http://example.org/> .
y:p1 skos:prefLabel "cats"@en, "kissat"@fi ; skos:altLabel "felines"@en .
y:p2 skos:prefLabel "animals"@en .
y:p5 skos:prefLabel "bars"@en .
"""
CONFIG = """
data: {train: train.csv, options: {label_names: t.ttl, label_language: en}}
model:
  method: linear_flat
  tfidf: {stop_words: english, stemmer: english}
  label_documents: t.ttl
  label_language: en
run: {folder: out, report: false}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("analysis")
    (path / "train.csv").write_text("text,labels\n" + "".join(f'"{text}",{label}\n' for text, label in ROWS))
    (path / "t.ttl").write_text(THESAURUS)
    (path / "config.yml").write_text(CONFIG)
    return path


def test_stems_and_names_from_a_config(folder):
    labelwise("train", "config.yml", cwd=folder)
    shown = labelwise("explain", "out", "the felines of a farm and their sleep", "-k", 1, cwd=folder).out
    assert shown.startswith("cats (p1)")
    assert "sleeping" in shown
    assert "felines" in shown
    assert "their" not in shown


def test_label_texts_from_a_vocabulary(folder):
    options = "--set", "label_names=t.ttl", "--set", "label_language=en"
    labelwise("data", "convert", "train.csv", "out.jsonl", *options, cwd=folder)
    assert (folder / "out_label_names.tsv").read_text() == "p1\tcats\np2\tanimals\np5\tbars\n"


def test_a_missing_language_is_asked_for(folder):
    refused = labelwise("data", "stats", "train.csv", "--set", "label_names=t.ttl", cwd=folder, code=2)
    assert "names are in several languages (en, fi); choose one with label_language" in refused.err
