"""The page Google Drive puts before large files: find out what the button on it would ask for.

Drive cannot scan large files for viruses and answers with a page that holds either a form with hidden fields
or, in its older shape, a link with a `confirm` token. Both are read here with the standard library's HTML
parser.
"""

from __future__ import annotations

import urllib.parse
from html.parser import HTMLParser

from labelwise.errors import DataError

TRUSTED_DOMAINS = (".google.com", ".googleusercontent.com")
FORM_IDS = ("download-form", "downloadForm")


class _Page(HTMLParser):
    """Collects the title, the download form and links with a confirm token."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.action: str | None = None
        self.fields: list[tuple[str, str]] = []
        self.link: str | None = None
        self._in_title = self._in_form = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "title":
            self._in_title = True
        elif tag == "form" and self.action is None and values.get("id") in FORM_IDS:
            self.action, self._in_form = values.get("action", ""), True
        elif tag == "input" and self._in_form and values.get("type") == "hidden" and values.get("name"):
            self.fields.append((values["name"], values.get("value", "")))
        elif tag == "a" and self.link is None and "confirm=" in values.get("href", ""):
            self.link = values["href"]

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag == "form":
            self._in_form = False

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title += data


def confirmed_address(page: str, page_address: str) -> str:
    """The address behind the page's download button; DataError with the page's title if there is no button.

    The button may lead to the page's own host or to Google, nowhere else.
    """
    parsed = _Page()
    parsed.feed(page)
    parsed.close()
    if parsed.action is not None:
        address = _with_query(urllib.parse.urljoin(page_address, parsed.action), parsed.fields)
    elif parsed.link is not None:
        address = urllib.parse.urljoin(page_address, parsed.link)
    else:
        title = " ".join(parsed.title.split()) or "without a title"
        advice = ""
        if "quota" in page.lower():
            advice = "; too many people have fetched it lately: try tomorrow, or with a browser that is logged in"
        raise DataError(f"{page_address}: the server sent a web page ({title}) instead of the file{advice}")
    here, there = (urllib.parse.urlsplit(a) for a in (page_address, address))
    host = there.hostname or ""
    if there.scheme not in ("http", "https") or (host != here.hostname and not host.endswith(TRUSTED_DOMAINS)):
        raise DataError(f"{page_address}: the page leads to {address}, which is refused")
    if here.scheme == "https" and there.scheme != "https":
        raise DataError(f"{page_address}: the page leads from https to {address}, which is refused")
    return address


def _with_query(address: str, fields: list[tuple[str, str]]) -> str:
    split = urllib.parse.urlsplit(address)
    query = dict(urllib.parse.parse_qsl(split.query, keep_blank_values=True)) | dict(fields)
    return urllib.parse.urlunsplit(split._replace(query=urllib.parse.urlencode(query)))
