"""Errors as RFC 9457 problem details (`application/problem+json`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from labelwise.errors import LabelwiseError, ModelFormatError
from labelwise.formatting import cut, printable
from labelwise.serve.logs import event

MEDIA_TYPE = "application/problem+json"
URN = "urn:labelwise:problem:"
PROJECTS = "/v1/projects/"
"""The beginning of the paths of Annif's API."""
MAX_ERRORS, MAX_DETAIL = 20, 1000
MOST_FAULTS = 10_000
"""Faults of a body that are looked at: pydantic cannot make only the first, and many more take seconds."""
DOCUMENT_BRANCHES = frozenset({"str", "Document"})
"""What pydantic calls the types that `schemas.py` offers for a document."""


class FieldProblem(BaseModel):
    """One wrong part of a request."""

    pointer: str
    """JSON pointer to it."""
    detail: str


class ProblemDetails(BaseModel):
    """An error, in the form of RFC 9457."""

    type: str
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    errors: list[FieldProblem] | None = None


class Problem(Exception):
    """A request that is not answered as asked. Routes raise it; `response` is what the client gets."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        retry_after: float | None = None,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.errors = status, kind, detail, list(errors)
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, round(retry_after)))

    def response(self, path: str = "") -> Response:
        """The answer to a request of some path; Annif's API has no 422."""
        status = 400 if self.status == 422 and path.startswith(PROJECTS) else self.status
        content: dict[str, Any] = {
            "type": URN + self.kind if self.kind else "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": printable(self.detail)[:MAX_DETAIL],
        }
        if self.errors:
            content["errors"] = self.errors
        return Response(json.dumps(content).encode(), status, self.headers, MEDIA_TYPE)


def not_found(what: str, name: str) -> Problem:
    """A model, project or page that does not exist."""
    return Problem(404, "not-found", f"there is no {what} '{cut(name, 100)}'")


def from_validation(error: ValidationError) -> Problem:
    """A body that is not JSON (400), or JSON that does not match the schema (422)."""
    if error.error_count() > MOST_FAULTS:
        return Problem(
            422, "invalid-request", f"{error.error_count():,} parts of the body are wrong, or have no meaning"
        )
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    if faults[0]["type"] == "json_invalid":
        return Problem(
            400, "invalid-json", f"the body is not valid JSON: {faults[0]['msg'].removeprefix('Invalid JSON: ')}"
        )
    found = [
        {"pointer": _pointer(fault["loc"]), "detail": cut(fault["msg"].removeprefix("Value error, "), 200)}
        for fault in faults[:MAX_ERRORS]
    ]
    first = found[0]
    return Problem(422, "invalid-request", f"{first['pointer'] or 'the body'}: {first['detail']}", errors=found)


def _pointer(location: Sequence[str | int]) -> str:
    """The JSON pointer (RFC 6901) to a location of pydantic, which also names branches of unions, and wrong keys."""
    parts = list(location)
    if len(parts) > 2 and parts[0] == "documents" and parts[2] in DOCUMENT_BRANCHES:
        del parts[2]
    elif parts[:1] == ["threshold"]:
        del parts[1:]
    elif len(parts) == 3 and parts[0] == "label_weights":
        del parts[2]
    return "".join("/" + cut(str(part), 60).replace("~", "~0").replace("/", "~1") for part in parts)


def from_error(error: LabelwiseError) -> Problem:
    """What a model or reader refuses: the client's fault unless the model itself is damaged."""
    if isinstance(error, ModelFormatError):
        event("a model is damaged", logging.ERROR, error=str(error))  # it names folders, which clients need not know
        return Problem(500, "damaged-model", "the model is damaged; the log of the server has the reason")
    return Problem(422, "invalid-request", str(error))
