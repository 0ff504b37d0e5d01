"""A small reader of HTML pages for tests: tables, texts and attributes, by the standard library's parser."""

from __future__ import annotations

from html.parser import HTMLParser

from labelwise.report.run import write_report

VOID = {"meta", "br", "wbr", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Everything on a page: `tags` with attributes, `text`, and `tables` by their class as lists of rows."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.cells: list[tuple[str, dict[str, str]]] = []
        self.pieces: list[str] = []
        self.in_word = False
        self.open: list[str] = []
        self.by_id: dict[str, list[str]] = {}
        self.ids_open: list[tuple[int, str]] = []
        self.rows: list[list[str]] | None = None
        self.cell: dict[str, str] | None = None
        self.feed(source)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        attributes = {key: value or "" for key, value in attrs}
        self.tags.append((tag, attributes))
        self.in_word = tag == "wbr"
        if tag not in VOID:
            self.open.append(tag)
            if "id" in attributes:
                self.ids_open.append((len(self.open), attributes["id"]))
        if tag == "table":
            self.rows = self.tables.setdefault(attributes.get("class", ""), [])
        elif tag == "tr" and self.rows is not None:
            self.rows.append([])
        elif tag in ("td", "th") and self.rows is not None:
            self.rows[-1].append("")
            self.cell = attributes

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> without a beginning"
        assert self.open[-1] == tag, f"</{tag}> closes <{self.open[-1]}>"
        if self.ids_open and self.ids_open[-1][0] == len(self.open):
            self.ids_open.pop()
        self.open.pop()
        self.in_word = False
        if tag in ("td", "th") and self.rows:
            self.cells.append((self.rows[-1][-1].strip(), self.cell or {}))
            self.rows[-1][-1] = self.rows[-1][-1].strip()
            self.cell = None
        elif tag == "table":
            self.rows = None

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            return
        if self.in_word:
            self.pieces[-1] += data  # a place where a line may end does not part a word
        else:
            self.pieces.append(data)
        for _, name in self.ids_open:
            self.by_id.setdefault(name, []).append(data)
        if self.rows and self.cell is not None:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.pieces).split())

    def inside(self, identity: str) -> str:
        """The text of the element with this id."""
        return " ".join("".join(self.by_id.get(identity, [])).split())

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [attributes for found, attributes in self.tags if found == tag]


def page_of(run, path=None) -> Page:
    """The report of a run, written and read."""
    return Page(write_report(run, path).read_text(encoding="utf-8"))
