"""Errors as RFC 9457 problem details (`application/problem+json`)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from labelwise.errors import LabelwiseError, ModelFormatError, did_you_mean
from labelwise.formatting import cut, printable
from labelwise.serve.logs import event

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MEDIA_TYPE = "application/problem+json"
URN = "urn:labelwise:problem:"
PROJECTS = "/v1/projects/"
"""The beginning of the paths of Annif's API."""
MAX_ERRORS, MAX_DETAIL = 20, 1000
MOST_FAULTS = 10_000
"""Faults of a body that are looked at: pydantic cannot make only the first, and many more take seconds."""
DOCUMENT_BRANCHES = frozenset({"str", "Document"})
"""What pydantic calls the types that `schemas.py` offers for a document."""
DOCUMENT_FIELDS = ("text", "id")
WHOLE_DOCUMENT = 3
"""Parts of the location of a document with its branch: what is wrong inside it has more."""


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


def not_found(what: str, name: str, names: Sequence[str] = ()) -> Problem:
    """A model, project or page that does not exist, and the names there are."""
    there_are = f"; there are: {cut(', '.join(names), 500)}" if names else ""
    return Problem(404, "not-found", f"there is no {what} '{cut(name, 100)}'{there_are}")


def from_validation(error: ValidationError, model: type[BaseModel]) -> Problem:
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
        {"pointer": _pointer(fault["loc"]), "detail": cut(_message(fault, model), 200)}
        for fault in _without_other_branches(faults)[:MAX_ERRORS]
    ]
    first = found[0]
    return Problem(422, "invalid-request", f"{first['pointer'] or 'the body'}: {first['detail']}", errors=found)


def _without_other_branches(faults: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """One fault per value that may have one of two types: pydantic says of each type why the value does not have it."""
    inside = {fault["loc"][:2] for fault in faults if _is_document(fault) and len(fault["loc"]) > WHOLE_DOCUMENT}
    kept, seen = [], set()
    for fault in faults:
        place = fault["loc"]
        if _is_document(fault) and len(place) == WHOLE_DOCUMENT:
            if place[:2] in inside or place[:2] in seen:
                continue
            seen.add(place[:2])
        elif len(place) > 1 and place[0] == "threshold" and fault["type"] == "literal_error":
            continue
        kept.append(fault)
    return kept


def _is_document(fault: ErrorDetails) -> bool:
    place = fault["loc"]
    return len(place) >= WHOLE_DOCUMENT and place[0] == "documents" and place[2] in DOCUMENT_BRANCHES


def _message(fault: ErrorDetails, model: type[BaseModel]) -> str:
    """What is wrong, and what is accepted where pydantic does not say it."""
    place, kind = fault["loc"], fault["type"]
    if kind == "extra_forbidden":
        fields = DOCUMENT_FIELDS if _is_document(fault) else tuple(model.model_fields)
        name = cut(str(place[-1]), 60)
        return f"there is no field '{name}'; {did_you_mean(name, fields)}"
    if _is_document(fault) and len(place) == WHOLE_DOCUMENT:
        return "a document is a text, or an object with `text` and `id`"
    if len(place) > 1 and place[0] == "threshold" and kind in {"float_type", "float_parsing"}:
        return 'a number or "auto" is accepted'
    return fault["msg"].removeprefix("Value error, ")


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
