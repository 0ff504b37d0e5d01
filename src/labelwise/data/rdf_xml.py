"""Triples of an RDF/XML file, as far as thesauri use it: nodes, properties, and nodes inside properties.

Nothing outside the file is read: external entities are refused, and so are entities that contain others, with which a
few lines can expand to gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urljoin
from xml.parsers import expat

from labelwise.data.turtle import RDF_TYPE, Term, Triple
from labelwise.errors import DataError

_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_XML = "http://www.w3.org/XML/1998/namespace"
MAX_DEPTH = 1000
MAX_ENTITY = 1000
"""Characters of an entity, as declared for names of namespaces."""


def rdf_xml_triples(blocks: Iterator[bytes], path: object) -> Iterator[Triple]:
    """Subject, predicate and object of each triple, while the file is read."""
    reader = _Reader()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.CharacterDataHandler, parser.EntityDeclHandler = reader.text, reader.entity
    try:
        for block in blocks:
            parser.Parse(block, False)
            yield from reader.taken()
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        raise DataError(f"this is not XML: {expat.ErrorString(error.code)}", str(path), error.lineno) from None
    except _RefusedError as error:
        raise DataError(str(error), str(path), parser.CurrentLineNumber) from None
    yield from reader.taken()


class _RefusedError(Exception):
    pass


class _Reader:
    """Elements alternate between nodes and properties; `stack` holds those that are open."""

    def __init__(self) -> None:
        self.stack: list[_Node | _Property] = []
        self.contexts: list[tuple[str, str]] = [("", "")]  # base and language
        self.found: list[Triple] = []
        self.blanks = 0
        self.skipped = 0  # depth inside an element that is left out

    def taken(self) -> list[Triple]:
        found, self.found = self.found, []
        return found

    def entity(self, name: str, is_parameter: int, value: str | None, *_others: object) -> None:
        if value is None:
            raise _RefusedError(f"the entity '{name}' refers to another file, which is not read")
        if "&" in value or "%" in value or len(value) > MAX_ENTITY:
            raise _RefusedError(f"the entity '{name}' is too long or contains other entities")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        base, language = self.contexts[-1]
        base, language = attributes.get(f"{_XML} base", base), attributes.get(f"{_XML} lang", language).lower()
        self.contexts.append((base, language))
        if len(self.contexts) > MAX_DEPTH:
            raise _RefusedError(f"elements are nested more than {MAX_DEPTH} deep")
        if self.skipped:
            self.skipped += 1
            return
        full = name.replace(" ", "")
        top = self.stack[-1] if self.stack else None
        if not self.stack and full == f"{_RDF}RDF":
            return
        if isinstance(top, _Node):
            self._start_property(top, full, attributes, base, language)
        else:
            self._start_node(top, full, attributes, base, language)

    def _start_node(
        self, outer: _Property | None, name: str, attributes: dict[str, str], base: str, language: str
    ) -> None:
        about = attributes.get(f"{_RDF} about")
        if about is not None:
            subject = _resolved(base, about)
        elif f"{_RDF} ID" in attributes:
            subject = _resolved(base, "#" + attributes[f"{_RDF} ID"])
        elif f"{_RDF} nodeID" in attributes:
            subject = "_:" + attributes[f"{_RDF} nodeID"]
        else:
            subject = self._blank()
        if outer is not None:
            outer.used = True
            self.found.append((outer.subject, outer.predicate, Term(subject, True)))
        if name != f"{_RDF}Description":
            self.found.append((subject, RDF_TYPE, Term(name, True)))
        for key, value in attributes.items():
            if " " in key and not key.startswith((_RDF, _XML)):
                self.found.append((subject, key.replace(" ", ""), Term(value, False, language)))
        self.stack.append(_Node(subject))

    def _start_property(self, node: _Node, name: str, attributes: dict[str, str], base: str, language: str) -> None:
        opened = _Property(node.subject, name, language)
        if f"{_RDF} resource" in attributes:
            value = _resolved(base, attributes[f"{_RDF} resource"])
        elif f"{_RDF} nodeID" in attributes:
            value = "_:" + attributes[f"{_RDF} nodeID"]
        elif attributes.get(f"{_RDF} parseType") == "Resource":
            value = self._blank()
            self.found.append((node.subject, name, Term(value, True)))
            self.stack.append(_Node(value))
            return
        elif f"{_RDF} parseType" in attributes:
            self.skipped = 1
            return
        else:
            self.stack.append(opened)
            return
        opened.used = True
        self.found.append((node.subject, name, Term(value, True)))
        self.stack.append(opened)

    def text(self, text: str) -> None:
        if not self.skipped and self.stack and isinstance(self.stack[-1], _Property):
            self.stack[-1].parts.append(text)

    def end(self, _name: str) -> None:
        self.contexts.pop()
        if self.skipped:
            self.skipped -= 1
            return
        if not self.stack:
            return
        closed = self.stack.pop()
        if isinstance(closed, _Property) and not closed.used:
            self.found.append((closed.subject, closed.predicate, Term("".join(closed.parts), False, closed.language)))

    def _blank(self) -> str:
        self.blanks += 1
        return f"_:[{self.blanks}]"


class _Node:
    def __init__(self, subject: str) -> None:
        self.subject = subject


class _Property:
    def __init__(self, subject: str, predicate: str, language: str) -> None:
        self.subject, self.predicate, self.language = subject, predicate, language
        self.used = False  # whether its value was an IRI or a node
        self.parts: list[str] = []


def _resolved(base: str, iri: str) -> str:
    return urljoin(base, iri) if base else iri
