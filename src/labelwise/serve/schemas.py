"""Requests and answers of the API, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

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
