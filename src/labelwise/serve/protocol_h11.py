"""The protocol of h11, with a deadline for heads: where httptools is not installed."""

from uvicorn.protocols.http.h11_impl import H11Protocol

from labelwise.serve.protocol import HeadDeadline


class TimedH11(HeadDeadline, H11Protocol):
    """Importable by its name, because worker processes are given the class."""
