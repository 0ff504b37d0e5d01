"""The OpenAPI document: bodies that routes read themselves, and problem details for errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import JSONResponse

from labelwise.serve.schemas import (
    MEDIA_TYPE,
    PROJECTS,
    AnnifBatch,
    AnnifForm,
    ExplainOptions,
    ExplainRequest,
    PredictOptions,
    PredictRequest,
    ProblemDetails,
)

REF = "#/components/schemas/{model}"
BODIES: list[type[BaseModel]] = [
    PredictRequest, PredictOptions, ExplainRequest, ExplainOptions, AnnifForm, AnnifBatch, ProblemDetails,
]  # fmt: skip
WHEN = {
    400: "The body cannot be read; of Annif's routes also: something in the request is wrong.",
    401: "An API key is needed.",
    404: "There is no such model.",
    408: "The body came too slowly.",
    413: "The request or a text is too large.",
    415: "The body has a type that cannot be read.",
    422: "Something in the request is wrong; `errors` names it.",
    429: "Too many documents wait; try again after `Retry-After` seconds.",
    503: "The model is being loaded, or the time is over; try again after `Retry-After` seconds.",
}


class ProblemResponse(JSONResponse):
    """The only answer of a route that always refuses."""

    media_type = MEDIA_TYPE


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Errors that a route may answer with."""
    content = {MEDIA_TYPE: {"schema": {"$ref": REF.format(model=ProblemDetails.__name__)}}}
    return {status: {"description": WHEN[status], "content": content} for status in statuses}


def body_of(model: type[BaseModel], options: type[BaseModel] | None = None, media: str = "application/json") -> dict:
    """The body of a route; `options` are those of an upload of images."""
    content: dict[str, Any] = {media: {"schema": {"$ref": REF.format(model=model.__name__)}}}
    if options is not None:
        image = {"type": "array", "items": {"type": "string", "format": "binary"}}
        fields = {"type": "object", "properties": {"image": image}, "required": ["image"]}
        both = {"allOf": [fields, {"description": f"Options as fields: see {options.__name__}."}]}
        content["multipart/form-data"] = {"schema": both}
    return {"requestBody": {"required": True, "content": content}}


def add_openapi(app: FastAPI) -> None:
    """Let the app describe what its routes read."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=app.openapi_tags,
            )
            _, definitions = models_json_schema([(model, "validation") for model in BODIES], ref_template=REF)
            schemas = made.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(definitions["$defs"])
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            for path, operations in made["paths"].items():
                for operation in operations.values():
                    if path.startswith(PROJECTS):  # 400 instead
                        operation["responses"].pop("422", None)
                    found = operation["responses"].get("422", {}).get("content", {})
                    if "application/json" in found:
                        operation["responses"]["422"] = problems(422)[422]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
