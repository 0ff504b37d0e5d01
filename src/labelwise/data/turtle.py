"""Triples of a Turtle or N-Triples text (N-Triples is a subset of Turtle).

One regular expression splits the text into tokens; a stack of open brackets replaces recursion. Contents of collections
are read and left out: thesauri use them for ordered members only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urljoin

from labelwise.errors import DataError

RDF_TYPE = "http://www.w3.org/1999/02/22-rdf-syntax-ns#type"
_LOCAL = r"(?:[\w\-:%·]|\\.|\.+(?=[\w\-:%\\]))*"
_PREFIXED = rf"(?:[\w\-]|\.+(?=[\w\-.]*:))*:{_LOCAL}"
_TOKEN = re.compile(
    r"[ \t\r\n]+|\#[^\n]*"
    r"|<(?P<iri>[^<>\"{}|^`\x00-\x20]*)>"
    r"|(?P<literal>\"\"\"(?:[^\"\\]|\\.|\"(?!\"\"))*\"\"\"|'''(?:[^'\\]|\\.|'(?!''))*'''"
    r"|\"(?:[^\"\\\n\r]|\\.)*\"|'(?:[^'\\\n\r]|\\.)*')"
    rf"(?:@(?P<language>[A-Za-z]+(?:-[A-Za-z0-9]+)*)|\^\^(?:<[^<>\s]*>|{_PREFIXED}))?"
    r"|(?P<directive>@prefix\b|@base\b|(?i:prefix|base)\b(?=\s))"
    r"|(?P<blank>_:[\w\-]+(?:\.+[\w\-]+)*)"
    rf"|(?P<prefixed>{_PREFIXED})"
    r"|(?P<word>true\b|false\b|a\b|[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<mark>[.;,\[\]()])",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "b": "\b", "n": "\n", "r": "\r", "f": "\f"}


class Term(NamedTuple):
    """An IRI or blank node (`is_node`), or a literal with its language, in lower case, or ''."""

    value: str
    is_node: bool
    language: str = ""


Triple = tuple[str, str, Term]
_SKIPPED = Term("", True)


def turtle_triples(text: str, path: object) -> Iterator[Triple]:
    """Subject, predicate and object of each triple; a syntax error raises a DataError with its line."""
    return _Reader(text, path).triples()


class _Reader:
    def __init__(self, text: str, path: object) -> None:
        self.text, self.path = text, path
        self.position = 0
        self.base = ""
        self.prefixes: dict[str, str] = {}
        self.blanks = 0

    def triples(self) -> Iterator[Triple]:  # noqa: C901
        subject: Term | None = None
        predicate: Term | None = None
        opened: list[tuple[str, Term | None, Term | None]] = []
        for kind, match in self._tokens():
            if kind == "directive":
                self._directive(match[0].strip("@").lower(), match[0].startswith("@"))
                continue
            mark = match[0] if kind == "mark" else ""
            if mark in ("[", "("):
                opened.append((mark, subject, predicate))
                subject, predicate = (self._blank(), None) if mark == "[" else (_SKIPPED, _SKIPPED)
                continue
            term: Term | None = None
            if mark in ("]", ")"):
                if not opened or opened[-1][0] != {"]": "[", ")": "("}[mark]:
                    raise self._error(f"'{mark}' closes nothing", match.start())
                term = subject
                _, subject, predicate = opened.pop()
            elif mark == ".":
                if opened:
                    raise self._error(f"a '{opened[-1][0]}' is not closed", match.start())
                subject = predicate = None
            elif mark == ";":
                predicate = None
            elif not mark:
                term = self._term(kind, match)
            if term is None:
                continue
            if subject is None:
                subject = term
            elif predicate is None:
                predicate = term
            elif subject is not _SKIPPED and term is not _SKIPPED:
                yield subject.value, predicate.value, term
        if subject is not None:
            raise self._error("the file ends inside a statement", len(self.text))

    def _blank(self) -> Term:
        self.blanks += 1
        return Term(f"_:[{self.blanks}]", True)

    def _tokens(self) -> Iterator[tuple[str, re.Match[str]]]:
        while self.position < len(self.text):
            match = _TOKEN.match(self.text, self.position)
            if match is None or match.end() == self.position:
                raise self._error(f"cannot read {self.text[self.position : self.position + 40]!r}", self.position)
            self.position = match.end()
            if match.lastgroup:
                kind = "literal" if match.lastgroup == "language" else match.lastgroup
                yield kind, match

    def _directive(self, name: str, closed: bool) -> None:
        """`@prefix p: <iri> .` or `PREFIX p: <iri>`, and the same for base."""
        pattern = r"\s+([\w\-.]*):\s*<([^<>\s]*)>" if name == "prefix" else r"(\s+)<([^<>\s]*)>"
        match = re.compile(pattern + (r"\s*\." if closed else "")).match(self.text, self.position)
        if match is None:
            raise self._error(f"cannot read this {name}", self.position)
        self.position = match.end()
        if name == "prefix":
            self.prefixes[match[1]] = self._resolved(match[2])
        else:
            self.base = self._resolved(match[2])

    def _term(self, kind: str, match: re.Match[str]) -> Term:
        if kind == "iri":
            return Term(self._resolved(match["iri"]), True)
        if kind == "prefixed":
            prefix, _, local = match["prefixed"].partition(":")
            if prefix not in self.prefixes:
                raise self._error(f"the prefix '{prefix}:' is not declared", match.start())
            return Term(self.prefixes[prefix] + re.sub(r"\\(.)", r"\1", local), True)
        if kind == "blank":
            return Term(match["blank"], True)
        if kind == "word":
            return Term(RDF_TYPE, True) if match[0] == "a" else Term(match[0], False)
        quoted = match["literal"]
        size = 3 if quoted[:3] in ('"""', "'''") and len(quoted) >= 6 else 1
        return Term(self._unescaped(quoted[size:-size], match.start()), False, (match["language"] or "").lower())

    def _resolved(self, iri: str) -> str:
        iri = self._unescaped(iri, self.position)
        return urljoin(self.base, iri) if self.base and ":" not in iri.split("/")[0] else iri

    def _unescaped(self, text: str, position: int) -> str:
        if "\\" not in text:
            return text
        try:
            return _ESCAPE.sub(lambda m: chr(int(m[1] or m[2], 16)) if m[1] or m[2] else _ESCAPED.get(m[3], m[3]), text)
        except (ValueError, OverflowError):
            raise self._error("an escape is no Unicode character", position) from None

    def _error(self, what: str, position: int) -> DataError:
        return DataError(f"this is not Turtle: {what}", str(self.path), self.text.count("\n", 0, position) + 1)
