"""The protocol of h11, with our limits: where httptools is not installed."""

from uvicorn.protocols.http.h11_impl import H11Protocol

from labelwise.serve.protocol import LimitedProtocol


class LimitedH11(LimitedProtocol, H11Protocol):
    """Importable by its name, because worker processes are given the class."""
