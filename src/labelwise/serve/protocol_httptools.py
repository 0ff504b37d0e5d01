"""The protocol of httptools with our limits: heads have a maximum size, and offers of other protocols are ignored."""

from __future__ import annotations

from collections.abc import Callable

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from labelwise.serve.protocol import LimitedProtocol
from labelwise.serve.schemas import Problem

MAX_HEAD = 64 * 1024
"""Bytes of a head, or of what follows a body in chunks."""
HOP = (b"upgrade", b"http2-settings")
"""Headers, and words of the header Connection, that ask for another protocol."""


class ParsingProtocol(HttpToolsProtocol):
    """Feeds the parser."""

    _head = 0
    """Bytes since the last of a head or body; those that follow it in the same piece are not counted."""
    _plain_head: bytes | None = None
    """The head of a request that asked for another protocol, without that."""
    refuse: Callable[[Problem], None]
    """Answers what is no request: a method of the other base of the protocol."""

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        self._unset_keepalive_if_required()
        self._head += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, Problem):
                self.refuse(error.__context__)
            else:
                self.send_400_response("")
        else:
            if self._head > MAX_HEAD:
                self.refuse(_too_large())

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        if self._head > MAX_HEAD and sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD:
            raise _too_large()
        self._head = 0
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._plain_head = self._head_without_upgrade()
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The end of the body."""
        self._head = 0
        if self._plain_head is None:
            super().on_message_complete()

    def _head_without_upgrade(self) -> bytes:
        """As a server that speaks only HTTP/1.1 has to read it (RFC 9110, 7.8)."""
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(word for word in value.split(b",") if word.strip().lower() not in HOP)
            if name not in HOP and (value or name != b"connection"):
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def _read_without_upgrade(self, rest: bytes) -> None:
        """The parser reads no body after such a head: another one reads it again."""
        head, self._plain_head = self._plain_head, None
        if head is None:  # of CONNECT
            self.send_400_response("")
            return
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._head = 0
        ParsingProtocol.data_received(self, head + rest)


class LimitedHttpTools(LimitedProtocol, ParsingProtocol):
    """Importable by its name, because worker processes are given the class."""


def _too_large() -> Problem:
    return Problem(431, "too-large", f"the head of a request may have {MAX_HEAD:,} bytes at most")
