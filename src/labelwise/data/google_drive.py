"""Google Drive answers a request for a large file with a warning page; its form contains the address of the file."""

from __future__ import annotations

import urllib.parse
from html.parser import HTMLParser

from labelwise.errors import DataError

TRUSTED_DOMAINS = (".google.com", ".googleusercontent.com")


class _WarningPage(HTMLParser):
    """The title, and the action and hidden fields of the download form."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.title, self.action, self.fields = "", "", dict[str, str]()
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "title" or (tag == "form" and values.get("id") == "download-form"):
            self._inside, self.action = tag, values.get("action", self.action)
        elif tag == "input" and self._inside == "form" and values.get("type") == "hidden":
            self.fields[values.get("name", "")] = values.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data: str) -> None:
        self.title += data if self._inside == "title" else ""


def confirmed_address(page: str, page_address: str) -> str:
    """The address that the page's form requests: on the same host or on Google's, never from https to http."""
    parsed = _WarningPage(page)
    if not parsed.action:
        quota = "; its download quota is exceeded, try again tomorrow" if "quota" in page.lower() else ""
        title = " ".join(parsed.title.split()) or "without a title"
        raise DataError(f"{page_address}: the server sent a web page ({title}) instead of the file{quota}")
    here, there = map(urllib.parse.urlsplit, (page_address, urllib.parse.urljoin(page_address, parsed.action)))
    host = there.hostname or ""
    schemes = ("https",) if here.scheme == "https" else ("http", "https")
    if there.scheme not in schemes or (host != here.hostname and not host.endswith(TRUSTED_DOMAINS)):
        raise DataError(f"{page_address}: the page leads to {there.geturl()}, which is refused")
    query = dict(urllib.parse.parse_qsl(there.query, keep_blank_values=True)) | parsed.fields
    return there._replace(query=urllib.parse.urlencode(query)).geturl()
