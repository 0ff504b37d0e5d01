"""Vocabularies: the same concepts from Turtle, N-Triples, RDF/XML and a table; matching, languages, hierarchy, limits."""

import gzip
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import labelwise as lw
from labelwise.data import rdf_xml
from labelwise.data import vocabulary as thesaurus
from labelwise.data.turtle import turtle_triples
from labelwise.data.vocabulary import Concept, read_thesaurus
from labelwise.errors import ConfigError, DataError

Y = "http://example.org/y/"
S = "http://www.w3.org/2004/02/skos/core#"
TURTLE = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix y: <http://example.org/y/> .
PREFIX owl: <http://www.w3.org/2002/07/owl#>
# comments, lists, brackets and long strings
y:p1 a skos:Concept ; skos:prefLabel "cats"@en, "kissat"@fi ; skos:altLabel "felines"@en ; # broader twice
  skos:broader y:p3 , y:p2 ; skos:notation "12.3" .
y:p2 a skos:Concept ; skos:prefLabel \"\"\"all "animals\\"\"\"\"@en ; skos:related [ skos:prefLabel "no"@en ; y:x [] ] ;
  skos:member ( y:p1 "x" ( y:p2 ) ) ; skos:topConceptOf <> .
y:p3 a skos:Concept ; skos:prefLabel 'pets'@en-GB ; skos:broader y:p2 .
<http://example.org/y/p4> a y:Kind , skos:Concept ; skos:prefLabel "caf\\u00e9"@en; skos:narrower y:p5; y:size 1.5, true, "x"^^y:t.
y:p5 skos:prefLabel "bars"@en ; owl:deprecated true .
y:c a skos:Collection ; skos:prefLabel "cats"@en .
"""
TRIPLES = [
    (f"<{subject}> <{predicate}> {value} .")
    for subject, predicate, value in [
        (Y + "p1", f"{S}prefLabel", '"cats"@en'),
        (Y + "p1", f"{S}prefLabel", '"kissat"@fi'),
        (Y + "p1", f"{S}altLabel", '"felines"@en'),
        (Y + "p1", f"{S}broader", f"<{Y}p3>"),
        (Y + "p1", f"{S}broader", f"<{Y}p2>"),
        (Y + "p1", f"{S}notation", '"12.3"^^<http://www.w3.org/2001/XMLSchema#string>'),
        (Y + "p2", f"{S}prefLabel", '"all \\"animals\\""@en'),
        (Y + "p3", f"{S}prefLabel", '"pets"@en-GB'),
        (Y + "p3", f"{S}broader", f"<{Y}p2>"),
        (Y + "p4", f"{S}prefLabel", '"caf\\u00E9"@en'),
        (Y + "p5", f"{S}prefLabel", '"bars"@en'),
        (Y + "p4", f"{S}narrower", f"<{Y}p5>"),
        (Y + "p5", "http://www.w3.org/2002/07/owl#deprecated", '"true"'),
    ]
]
XML = """<?xml version="1.0"?>
<!DOCTYPE rdf:RDF [ <!ENTITY y "http://example.org/y/"> ]>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:skos="http://www.w3.org/2004/02/skos/core#"
  xmlns:owl="http://www.w3.org/2002/07/owl#" xml:base="http://example.org/y/">
  <skos:Concept rdf:about="&y;p1" skos:notation="12.3">
    <skos:prefLabel xml:lang="en">cats</skos:prefLabel><skos:prefLabel xml:lang="fi">kissat</skos:prefLabel>
    <skos:altLabel xml:lang="en">felines</skos:altLabel>
    <skos:broader><skos:Concept rdf:about="p3"><skos:prefLabel xml:lang="en-GB">pets</skos:prefLabel>
      <skos:broader rdf:resource="p2"/></skos:Concept></skos:broader>
    <skos:broader rdf:resource="&y;p2"/>
    <skos:note rdf:parseType="Literal"><b>not <i>read</i></b></skos:note>
  </skos:Concept>
  <skos:Concept rdf:about="p2" xml:lang="en"><skos:prefLabel>all "animals"</skos:prefLabel>
    <skos:related rdf:parseType="Resource"><skos:prefLabel>no</skos:prefLabel></skos:related></skos:Concept>
  <rdf:Description rdf:about="p4"><skos:prefLabel xml:lang="en">café</skos:prefLabel>
    <skos:narrower rdf:resource="p5"/></rdf:Description>
  <rdf:Description rdf:about="p5"><skos:prefLabel xml:lang="en">bars</skos:prefLabel>
    <owl:deprecated>true</owl:deprecated></rdf:Description>
  <skos:Collection rdf:about="c"><skos:prefLabel xml:lang="en">cats</skos:prefLabel></skos:Collection>
</rdf:RDF>
"""
FILES = {"t.ttl": TURTLE, "t.nt": "\n".join(TRIPLES) + "\n", "t.rdf": XML}
EXPECTED = {
    Y + "p1": Concept(
        Y + "p1", [("en", "cats"), ("fi", "kissat")], [("en", "felines")], ["12.3"], [Y + "p3", Y + "p2"]
    ),
    Y + "p2": Concept(Y + "p2", [("en", 'all "animals"')]),
    Y + "p3": Concept(Y + "p3", [("en-gb", "pets")], broader=[Y + "p2"]),
    Y + "p4": Concept(Y + "p4", [("en", "café")]),
    Y + "p5": Concept(Y + "p5", [("en", "bars")], broader=[Y + "p4"], deprecated=True),
}


@pytest.fixture(params=list(FILES))
def file(tmp_path, request):
    path = tmp_path / request.param
    path.write_text(FILES[request.param], encoding="utf-8")
    return path


def test_every_format_gives_the_same_concepts(file):
    assert read_thesaurus(file, "en").concepts == EXPECTED
    packed = file.with_name(file.name + ".gz")
    packed.write_bytes(gzip.compress(file.read_bytes()))
    assert read_thesaurus(packed).concepts == EXPECTED


def test_labels_are_matched_by_uri_notation_or_name(file, caplog):
    found = read_thesaurus(file, "en").match(
        ["p1", "12.3", "cats", "felines", Y + "p1", f"<{Y}p1>", "pets", "p5", "bars", "kissat", "zzz"]
    )
    assert [None if one is None else one.uri[-2:] for one in found] == ["p1"] * 6 + ["p3", "p5", None, None, None]
    assert "3 of 11 labels are no concepts of this file: 'bars', 'kissat', 'zzz'" in caplog.text
    with pytest.raises(DataError, match=f"none of the 2 labels is a concept .*'x', 'z'; a concept has the URI '{Y}p1'"):
        read_thesaurus(file, "en").match(["x", "z"])


def test_one_parent_per_concept(file):
    """The broader concept nearest to the top, although another one is first."""
    parents = read_thesaurus(file).tree()
    assert parents == {Y + "p1": Y + "p2", Y + "p2": None, Y + "p3": Y + "p2", Y + "p4": None, Y + "p5": Y + "p4"}


def test_label_texts_of_a_data_set(file, tmp_path):
    (tmp_path / "train.csv").write_text("text,labels\na cat,p1;p2\na bar,p5;other\n")
    data = lw.read(tmp_path / "train.csv", options={"label_names": str(file), "label_language": "en"})
    texts = dict(zip(data.label_names, data.label_texts, strict=True))
    assert texts == {"p1": "cats", "p2": 'all "animals"', "p5": "bars", "other": "other"}
    with pytest.raises(ConfigError, match=r"several languages \(en, en-gb, fi\); choose one with label_language"):
        lw.read(tmp_path / "train.csv", options={"label_names": str(file)})
    with pytest.raises(ConfigError, match="no preferred name is in the language 'sv'; accepted: en, en-gb, fi"):
        lw.read(tmp_path / "train.csv", options={"label_names": str(file), "label_language": "sv"})


TABLE = (
    "name\ttext\talternatives\tparents\np1\tcats\tfelines|kittens\tp3|p2\np2\tanimals\np3\tpets\t\tp2\np5\tbars\t\tp4\n"
)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "label_names.tsv"
    path.write_text(TABLE)
    return path


def test_a_table_next_to_the_data(table, tmp_path):
    (tmp_path / "train.csv").write_text("text,labels\na cat,p1;p2\na bar,p5\n")
    data = lw.read(tmp_path / "train.csv")
    assert list(data.label_texts) == ["cats", "animals", "bars"]
    read = read_thesaurus(table)
    assert read.concepts["p1"].all_names(None) == ["cats", "felines", "kittens"]
    assert read.tree() == {"p1": "p2", "p2": None, "p3": "p2", "p5": "p4", "p4": None}
    with pytest.raises(ConfigError, match="label_language is for SKOS files"):
        lw.read(tmp_path / "train.csv", options={"label_names": str(table), "label_language": "en"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("p1\tx\t\t", "'p1' is on an earlier line"),
        ("p9\tx\t\t\ty", "5 fields, but the header has 4 columns"),
        ("\tx", "there is no name"),
    ],
)
def test_bad_tables(table, line, message):
    table.write_text(TABLE + line + "\n")
    with pytest.raises(DataError, match=rf"label_names.tsv:6: {message}"):
        read_thesaurus(table)


# --- methods --------------------------------------------------------------------------------------------------------

TEXTS = ["a cat sleeps", "cats and dogs", "an animal farm", "beer in a bar", "the bar opens", "pets welcome"]
LABELS = [["p1"], ["p1"], ["p2"], ["p5"], ["p5"], ["p3"]]


@pytest.mark.parametrize("name", ["t.ttl", "label_names.tsv"])
def test_a_tree_from_a_vocabulary(tmp_path, name):
    path = tmp_path / name
    path.write_text(TABLE if name.endswith("tsv") else TURTLE)
    model = lw.LinearTree(tree="hierarchy", hierarchy=str(path)).fit(TEXTS, LABELS)
    tree = model.trees_[0][0]
    names = list(model.label_names_)
    groups = {tuple(sorted(names[int(label)] for label in tree.label_order[tree.parents[-1] == node])) for node in set(tree.parents[-1].tolist())}  # fmt: skip
    assert groups == {("p1", "p2", "p3"), ("p5",)}
    cyclic = tmp_path / "cycle.ttl"
    cyclic.write_text("@prefix s: <http://www.w3.org/2004/02/skos/core#> . <p1> s:broader <p2> . <p2> s:broader <p1> .")
    with pytest.raises(DataError, match="the hierarchy has a cycle: p1 < p2 < p1"):
        lw.LinearTree(tree="hierarchy", hierarchy=str(cyclic)).fit(TEXTS, LABELS)


@pytest.mark.parametrize("kind", [lw.LinearTree, lw.LinearFlat])
def test_label_names_are_training_documents(tmp_path, kind):
    path = tmp_path / "t.ttl"
    path.write_text(TURTLE)
    plain = kind().fit(TEXTS, LABELS)
    named = kind(label_documents=str(path), label_language="en").fit(TEXTS, LABELS)
    assert "felines" not in plain.tfidf_.vocabulary_.positions
    assert named.predict(["felines"], k=1).to_csr(4).indices.tolist() == [list(named.label_names_).index("p1")]
    assert named.label_counts_.tolist() == plain.label_counts_.tolist()
    data = lw.Dataset(texts=TEXTS, labels=LABELS, label_texts=["tabby", "zoo", "pub", "hamster"])
    model = kind(label_documents="texts").fit(data)
    assert {"tabby", "zoo", "pub", "hamster"} <= set(model.tfidf_.vocabulary_)
    with pytest.raises(ConfigError, match=r"label_documents: label names are texts, but .* is read as features"):
        kind(label_documents="texts").fit(plain.tfidf_.transform(TEXTS), LABELS)
    with pytest.raises(ConfigError, match="label_language chooses names of a vocabulary; it needs a file"):
        kind(label_documents="texts", label_language="en")
    with pytest.raises(ConfigError, match="label_documents cannot be used with vector_scale"):
        kind(label_documents="texts", vector_scale=1.0)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.ttl", "@prefix a: <b> .\na:x a:y a:z", "x.ttl:2: this is not Turtle: the file ends inside a statement"),
        ("x.ttl", "\n<a> b:c <d> .", "x.ttl:2: .*the prefix 'b:' is not declared"),
        ("x.ttl", "<a> <b> [ <c> <d> .", "a '\\[' is not closed"),
        ("x.ttl", "<a> <b> ) .", "'\\)' closes nothing"),
        ("x.ttl", '<a> <b> "\\UFFFFFFFF" .', "no Unicode character"),
        ("x.ttl", "<a> <b> <c> .", "there are no concepts in this file"),
        ("x.ttl", b"\xff\xfe", "not UTF-8"),
        ("x.rdf", "<a><b></a>", "x.rdf:1: this is not XML: mismatched tag"),
        ("x.rdf", '<!DOCTYPE a [<!ENTITY x SYSTEM "/etc/passwd">]><a>&x;</a>', "refers to another file"),
        ("x.rdf", '<!DOCTYPE a [<!ENTITY x "y"><!ENTITY z "&x;&x;">]><a>&z;</a>', "contains other entities"),
        ("x.rdf", "<a>" * 1200, "nested more than 1000 deep"),
    ],
)
def test_bad_files(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=message):
        read_thesaurus(path)


def test_size_is_bounded(tmp_path, monkeypatch):
    (tmp_path / "x.ttl").write_text(TURTLE)
    monkeypatch.setattr(thesaurus, "MAX_BYTES", 100)
    with pytest.raises(DataError, match="the file has more than"):
        read_thesaurus(tmp_path / "x.ttl")


PIECES = st.sampled_from(["<a>", "y:p", "@prefix y: <z> .", '"x"@en', '"""', "'", "[", "]", "(", ")", ";", ",", ".", "a", "1.", "\\", "#\n", " "])  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=3), max_size=20).map("".join))
def test_any_text_is_read_or_refused(text):
    with suppress(DataError):
        list(turtle_triples(text, "x.ttl"))
    with suppress(DataError):
        list(rdf_xml.rdf_xml_triples(iter([text.encode(errors="replace")]), "x.rdf"))
