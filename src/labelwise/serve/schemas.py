"""Requests and answers of the API, as the OpenAPI document describes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.config import JsonDict
from starlette.responses import Response

from labelwise.errors import LabelwiseError, ModelFormatError, did_you_mean
from labelwise.formatting import cut, printable
from labelwise.serve.logs import event

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


MAX_LABELS = 100_000
"""Labels that a request may name."""
MOST_LABELS: JsonDict = {"maximum": 100_000}
"""Most labels per document that a server can be set to return; the routes refuse more than theirs is set to."""
Label = Annotated[str, Field(max_length=10_000)]
Weight = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


class Request(BaseModel):
    """Base of all bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class Document(Request):
    """A document with its own identifier."""

    text: str
    id: str | None = None
    """Returned with the labels."""


class PredictOptions(Request):
    """Which labels to return."""

    k: Annotated[int, Field(ge=1, json_schema_extra=MOST_LABELS)] | None = None
    """Maximum number of labels per document. Not given: 10, or with a threshold as many as reach it, within the
    server's limit."""
    threshold: Annotated[float, Field(ge=-1e30, le=1e30)] | Literal["auto"] | None = None
    """Only labels with at least this score; `auto`: the calibrated threshold."""
    labels: Annotated[list[Label], Field(min_length=1, max_length=MAX_LABELS, fail_fast=True)] | None = None
    """The only labels to predict."""
    label_weights: Annotated[dict[Label, Weight], Field(max_length=MAX_LABELS)] | None = None
    """Factors by which scores of labels are multiplied."""
    explain: Annotated[int, Field(ge=1, le=100)] | None = None
    """Words to list per label: those that contributed most."""


class PredictRequest(PredictOptions):
    """One text, or several documents."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["text"]}, {"required": ["documents"]}],
            "examples": [
                {"text": "A bill to fund school lunches", "k": 3},
                {
                    "documents": ["A bill to fund school lunches", {"id": "hr-7", "text": "Quotas for herring"}],
                    "threshold": "auto",
                },
            ],
        }
    )

    text: str | None = None
    """A single document."""
    documents: Annotated[list[str | Document], Field(fail_fast=True)] | None = None
    """Several documents: texts, or objects with `id` and `text`."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.text is None) == (self.documents is None):
            raise ValueError("give either `text`, for one document, or `documents`, for several")
        return self


class ExplainOptions(Request):
    """Which labels to explain, and how."""

    labels: Annotated[list[Label], Field(min_length=1, max_length=100)] | None = None
    """Labels to explain, predicted or not. Not given: the best k."""
    k: Annotated[int, Field(ge=1, le=100)] = 5
    """Number of best labels to explain, if none are named."""
    terms: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Words per label, 10 if not given; of images: parts per side that are covered, 8."""


class ExplainRequest(ExplainOptions):
    """A text to explain labels of."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "A bill to fund school lunches", "labels": ["T12"], "terms": 5}]}
    )

    text: str


class Answer(BaseModel):
    """Base of what is returned."""

    model_config = ConfigDict(use_attribute_docstrings=True, allow_inf_nan=False)


class PredictedLabel(Answer):
    """A predicted label."""

    label: str
    text: str | None = None
    """What the label means, if the model knows it."""
    score: float
    words: list[str] | None = None
    """The words that contributed most."""


class PredictedDocument(Answer):
    """The labels of a document, best first."""

    id: str | None = None
    labels: list[PredictedLabel]


class Predictions(Answer):
    """The labels of all documents, in their order."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "catalogue",
                    "scores": "probability",
                    "results": [
                        {"labels": [{"label": "T12", "text": "schools", "score": 0.93}]},
                        {"id": "hr-7", "labels": [{"label": "T31", "text": "fisheries", "score": 0.88}]},
                    ],
                }
            ]
        }
    )

    model: str
    scores: Literal["probability", "score"]
    """What the scores are; probabilities if the model is calibrated."""
    results: list[PredictedDocument]


class Explanations(Answer):
    """Why a document has its labels."""

    model: str
    scores: Literal["probability", "score"]
    explanations: list[dict[str, Any]]
    """As `labelwise explain --json` prints them; of texts with `spans`: [start, end, contribution] of the words in the
    text, counted in Unicode characters."""


class Health(Answer):
    """The process answers."""

    status: Literal["ok"]


class Readiness(Answer):
    """All models are loaded."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ready", "models": {"catalogue": "ready"}}]})

    status: Literal["ready"]
    models: dict[str, Literal["ready", "loading"]]


class LoadingModel(Answer):
    """A model that is being loaded."""

    name: str
    status: Literal["loading"]


class ModelSummary(Answer):
    """A served model that is ready."""

    name: str
    status: Literal["ready"]
    method: str
    reads: Literal["text", "image"]
    labels: int
    documents: int | None
    calibrated: bool
    threshold: float | None
    explains: bool
    chooses_labels: bool
    has_label_texts: bool
    """Whether labels have texts next to their names."""


class ModelList(Answer):
    """All models."""

    models: list[ModelSummary | LoadingModel]
    limits: dict[str, float]


class ModelDetails(ModelSummary):
    """A model with its card: training data, scores, versions."""

    created: str | None
    parameters: dict[str, Any]
    metrics: dict[str, Any] | None
    """Scores of its run, as fractions, with the data they were measured on."""
    expected: dict[str, Any] | None
    """What the calibrated threshold promises."""
    card: dict[str, Any]


class LabelEntry(Answer):
    """A label of a model."""

    label: str
    text: str | None
    documents: int
    """Training documents that have it."""


class LabelList(Answer):
    """Labels that match a search."""

    labels: list[LabelEntry]
    more: bool
    """Whether there are more than were asked for."""


class AnnifInfo(Answer):
    """What Annif's clients ask first."""

    title: str
    version: str


class AnnifBackend(Answer):
    """Annif's name for the method."""

    backend_id: str


class AnnifProject(Answer):
    """A model as a project of Annif."""

    project_id: str
    name: str
    language: str
    backend: AnnifBackend
    is_trained: bool | None
    modification_time: str | None


class AnnifProjects(Answer):
    """All models as projects of Annif."""

    projects: list[AnnifProject]


class AnnifSuggestion(Answer):
    """A suggested subject."""

    uri: str
    label: str
    notation: str | None
    score: float


class AnnifSuggestions(Answer):
    """The subjects of a text."""

    results: list[AnnifSuggestion]


class AnnifBatchResult(AnnifSuggestions):
    """The subjects of one document of a batch."""

    document_id: str | None


class AnnifRequest(BaseModel):
    """Base of requests of Annif's clients: fields that Annif does not know are ignored, as Annif does."""

    model_config = ConfigDict(allow_inf_nan=False)


class AnnifForm(AnnifRequest):
    """The form of `suggest`."""

    text: str
    limit: Annotated[int, Field(ge=0, json_schema_extra=MOST_LABELS)] = 10
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    language: str | None = None


class AnnifQuery(AnnifRequest):
    """The query of `suggest-batch`."""

    limit: Annotated[int, Field(ge=0, json_schema_extra=MOST_LABELS)] = 10
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.0
    language: str | None = None


class AnnifDocument(AnnifRequest):
    """A document of `suggest-batch`."""

    text: str
    document_id: str | None = None


class AnnifBatch(AnnifRequest):
    """The body of `suggest-batch`."""

    documents: Annotated[list[AnnifDocument], Field(max_length=32)]


# --- problems ---
# Errors as RFC 9457 problem details (`application/problem+json`).

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
