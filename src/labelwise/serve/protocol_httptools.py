"""The protocol of httptools, with a deadline for heads."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from labelwise.serve.protocol import HeadDeadline


class TimedHttpTools(HeadDeadline, HttpToolsProtocol):
    """Importable by its name, because worker processes are given the class."""
