"""Vocabularies of labels: names, other names and broader concepts, from SKOS files or a table.

Subjects of another type than skos:Concept are left out if the file has any of that type: collections have names, too.

A label of the data is matched with a concept by its URI, its notation, the last part of its URI, or one of its names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labelwise.data.options import stem_and_extension
from labelwise.data.stream import open_stream, text_lines
from labelwise.data.turtle import RDF_TYPE, Term, Triple
from labelwise.errors import ConfigError, DataError, did_you_mean

log = logging.getLogger(__name__)

TURTLE, XML = (".ttl", ".nt", ".n3", ".turtle"), (".rdf", ".xml", ".skos")
COLUMNS = ("name", "text", "alternatives", "parents", "notation")
SEPARATOR = "|"
MAX_BYTES = 1 << 30
"""Size of an uncompressed file that is read."""
_SKOS = "http://www.w3.org/2004/02/skos/core#"
_DEPRECATED = "http://www.w3.org/2002/07/owl#deprecated"
_PROPERTIES = ("prefLabel", "altLabel", "hiddenLabel", "notation", "broader", "narrower")
_BLOCK = 1 << 20


@dataclass
class Concept:
    """One concept. Names are pairs of language ('' if not given) and text."""

    uri: str
    names: list[tuple[str, str]] = field(default_factory=list)
    alternatives: list[tuple[str, str]] = field(default_factory=list)
    notations: list[str] = field(default_factory=list)
    broader: list[str] = field(default_factory=list)
    deprecated: bool = False

    def name(self, language: str | None) -> str | None:
        """The preferred name in a language, or one without a language."""
        return next(iter(_in_language(self.names, language)), None)

    def all_names(self, language: str | None) -> list[str]:
        """The preferred name and the alternatives in a language, each once."""
        return list(dict.fromkeys(_in_language(self.names, language)[:1] + _in_language(self.alternatives, language)))


class Thesaurus:
    """Concepts by URI. `language` chooses among names; it may be left out if the file has only one."""

    def __init__(self, concepts: dict[str, Concept], path: Path, language: str | None = None) -> None:
        self.concepts, self.path = concepts, path
        self.language = None if language is None else language.lower()
        self._indices: list[dict[str, str | None]] | None = None

    @property
    def languages(self) -> list[str]:
        """The languages of the preferred names."""
        return sorted({language for concept in self.concepts.values() for language, _ in concept.names if language})

    def match(self, labels: Iterable[str]) -> list[Concept | None]:
        """The concept of each label; labels without one are reported, and it is an error if there is none at all."""
        labels = list(labels)
        found = [self._find(label) for label in labels]
        unknown = [label for label, concept in zip(labels, found, strict=True) if concept is None]
        shown = ", ".join(f"'{label}'" for label in unknown[:5]) + (", ..." if len(unknown) > 5 else "")
        if unknown and len(unknown) == len(labels):
            example = next(iter(self.concepts.values()))
            raise DataError(
                f"none of the {len(labels):,} labels is a concept of this file: {shown}; a concept has the URI "
                f"'{example.uri}' and the name '{example.name(self.language)}'",
                self.path,
            )
        if unknown:
            counts = f"{len(unknown):,} of {len(labels):,}"
            log.warning("%s: %s labels are no concepts of this file: %s", self.path, counts, shown)
        return found

    def check_language(self) -> None:
        """Refuse a missing language if names are in several, and one that no name has."""
        languages = self.languages
        if self.language is None and len(languages) > 1:
            raise ConfigError(
                f"{self.path}: names are in several languages ({', '.join(languages[:20])}); choose one with "
                "label_language (--set label_language=en, in a config data.options.label_language)"
            )
        if self.language is not None and not any(_is_language(one, self.language) for one in languages):
            hint = did_you_mean(self.language, languages) if languages else "names in it have no language"
            raise ConfigError(f"{self.path}: no preferred name is in the language '{self.language}'; {hint}")

    def tree(self) -> dict[str, str | None]:
        """One parent per concept, or None at the top.

        Of several broader concepts the one with the shortest path to the top is taken, the first in the file among
        equal ones. Concepts in a cycle that no top concept reaches keep their first, so that the cycle is reported.
        """
        broader = {
            uri: [above for above in concept.broader if above in self.concepts and above != uri]
            for uri, concept in self.concepts.items()
        }
        narrower: dict[str, list[str]] = {}
        for uri, above in broader.items():
            for parent in above:
                narrower.setdefault(parent, []).append(uri)
        level = [uri for uri, above in broader.items() if not above]
        depth: dict[str, int] = {}
        while level:
            depth |= dict.fromkeys(level, max(depth.values(), default=-1) + 1)
            below = (child for parent in level for child in narrower.get(parent, ()) if child not in depth)
            level = list(dict.fromkeys(below))
        return {
            uri: None if not above else min(above, key=lambda parent: depth.get(parent, len(broader)))
            for uri, above in broader.items()
        }

    def _find(self, label: str) -> Concept | None:
        uri = label[1:-1] if label.startswith("<") and label.endswith(">") else label
        if uri in self.concepts:
            return self.concepts[uri]
        if self._indices is None:
            self._indices = self._make_indices()
        for index in self._indices:
            found = index.get(label)
            if found is not None:
                return self.concepts[found]
        return None

    def _make_indices(self) -> list[dict[str, str | None]]:
        """URIs by notation, last part of the URI, preferred and other name; None for what several concepts share."""
        current = [concept for concept in self.concepts.values() if not concept.deprecated]
        return [
            _index((text, concept.uri) for concept in self.concepts.values() for text in concept.notations),
            _index((_last_part(uri), uri) for uri in self.concepts),
            _index((text, concept.uri) for concept in current for text in _in_language(concept.names, self.language)),
            _index((text, one.uri) for one in current for text in _in_language(one.alternatives, self.language)),
        ]


def _index(pairs: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    index: dict[str, str | None] = {}
    for text, uri in pairs:
        if index.setdefault(text, uri) != uri:
            index[text] = None
    return index


def _last_part(uri: str) -> str:
    return uri.rstrip("/#").replace("#", "/").rsplit("/", 1)[-1]


def _is_language(tag: str, language: str) -> bool:
    return tag == language or tag.startswith(language + "-")


def _in_language(names: Sequence[tuple[str, str]], language: str | None) -> list[str]:
    """Names in a language (all if None), else those without a language."""
    chosen = [text for tag, text in names if language is None or _is_language(tag, language)]
    return chosen or [text for tag, text in names if not tag]


# --- files ----------------------------------------------------------------------------------------------------------


def is_thesaurus(path: Path) -> bool:
    """Whether the file is SKOS by its extension, or a table with a header of our columns."""
    extension = stem_and_extension(path)[1]
    if extension in TURTLE + XML:
        return True
    if extension != ".tsv" or not path.is_file():
        return False
    header = next((line for _, line in text_lines(path)), "").split("\t")
    return len(header) > 2 and header[0] == "name" and set(header) <= set(COLUMNS)


def read_thesaurus(path: str | Path, language: str | None = None) -> Thesaurus:
    """Read SKOS in Turtle, N-Triples or RDF/XML, or a table; plain or compressed."""
    path = Path(path)
    extension = stem_and_extension(path)[1]
    if extension in TURTLE:
        from labelwise.data.turtle import turtle_triples

        try:
            concepts = _concepts(turtle_triples(b"".join(_blocks(path)).decode("utf-8-sig"), path))
        except UnicodeDecodeError as error:
            raise DataError(f"the file is not UTF-8: {error.reason}", path) from None
    elif extension in XML:
        from labelwise.data.rdf_xml import rdf_xml_triples

        concepts = _concepts(rdf_xml_triples(_blocks(path), path))
    else:
        if language is not None:
            raise ConfigError(f"{path}: label_language is for SKOS files; names in a table have no language")
        concepts = _from_table(path)
    if not concepts:
        raise DataError("there are no concepts in this file: none has a skos:prefLabel, skos:broader or the like", path)
    thesaurus = Thesaurus(concepts, path, language)
    if language is not None:
        thesaurus.check_language()
    return thesaurus


def _blocks(path: Path) -> Iterator[bytes]:
    size = 0
    with open_stream(path) as stream:
        while block := stream.read(_BLOCK):
            size += len(block)
            if size > MAX_BYTES:
                raise DataError(f"the file has more than {MAX_BYTES >> 20:,} MB; keep the SKOS properties only", path)
            yield bytes(block)


def _concepts(triples: Iterable[Triple]) -> dict[str, Concept]:
    """The concepts that SKOS triples describe, in the order of their first triple."""
    concepts: dict[str, Concept] = {}
    typed: dict[str, bool] = {}
    for subject, predicate, value in triples:
        if subject.startswith("_:"):
            continue
        if predicate == RDF_TYPE:
            typed[subject] = typed.get(subject, False) or value.value == f"{_SKOS}Concept"
        elif predicate == _DEPRECATED:
            concepts.setdefault(subject, Concept(subject)).deprecated = value.value in ("true", "1")
        elif predicate.startswith(_SKOS):
            _add(concepts, subject, predicate.removeprefix(_SKOS), value)
    described = {uri: one for uri, one in concepts.items() if one.names or one.broader or one.notations}
    return {uri: one for uri, one in described.items() if typed.get(uri, True)} if any(typed.values()) else described


def _add(concepts: dict[str, Concept], subject: str, name: str, value: Term) -> None:
    """Add a property of SKOS to a concept; those that are not used are ignored."""
    is_link = name in ("broader", "narrower")
    if value.is_node != is_link or name not in _PROPERTIES or (is_link and value.value.startswith("_:")):
        return
    text = value.value.strip()
    if name == "narrower":
        subject, text = text, subject
    concept = concepts.setdefault(subject, Concept(subject))
    if name == "prefLabel":
        concept.names.append((value.language, text))
    elif name in ("altLabel", "hiddenLabel"):
        concept.alternatives.append((value.language, text))
    elif name == "notation":
        concept.notations.append(text)
    elif text not in concept.broader:
        concept.broader.append(text)


def _from_table(path: Path) -> dict[str, Concept]:
    """A table with a header: name, text, alternatives, parents and notation, the middle two separated by |."""
    concepts: dict[str, Concept] = {}
    header: list[str] = []
    for number, line in text_lines(path):
        fields = line.split("\t")
        if not header:
            header = fields
            if header[0] != "name" or not set(header) <= set(COLUMNS) or len(set(header)) < len(header):
                columns = ", ".join(COLUMNS[1:])
                raise DataError(f"the first line must name the columns: name and some of {columns}", path, 1)
            continue
        if not line.strip():
            continue
        if len(fields) > len(header) or not fields[0]:
            what = (
                f"{len(fields)} fields, but the header has {len(header)} columns" if fields[0] else "there is no name"
            )
            raise DataError(what, path, number)
        row = dict(zip(header, fields, strict=False))  # the last columns may be missing
        if row["name"] in concepts:
            raise DataError(f"'{row['name']}' is on an earlier line, too", path, number)
        alternatives, parents = (_separated(row.get(key, "")) for key in ("alternatives", "parents"))
        concepts[row["name"]] = Concept(
            row["name"],
            [("", row.get("text") or row["name"])],
            [("", text) for text in alternatives],
            [row["notation"]] if row.get("notation") else [],
            parents,
        )
    for parent in {parent for concept in concepts.values() for parent in concept.broader} - set(concepts):
        concepts[parent] = Concept(parent, [("", parent)])
    return concepts


def _separated(text: str) -> list[str]:
    return [one.strip() for one in text.split(SEPARATOR) if one.strip()]
