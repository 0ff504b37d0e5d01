"""Routes that show models: list, card, label search."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Query
from starlette.responses import Response

from labelwise.registry import can
from labelwise.serve.loading import LoadedModel
from labelwise.serve.openapi import problems
from labelwise.serve.schemas import LabelList, ModelDetails, ModelList, Problem
from labelwise.serve.settings import Settings

if TYPE_CHECKING:
    from labelwise.serve.app import Service

MAX_FOUND = 200


def json_response(value: Any) -> Response:
    """Plain values as JSON in ASCII, so that no text can break out of anything; numbers that are not finite as null."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(value), separators=(",", ":"))
    return json_text_response(text)


def json_text_response(text: str) -> Response:
    """JSON that is written already, in ASCII."""
    return Response(text.encode("ascii"), media_type="application/json")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_texts(texts: Sequence[str], settings: Settings) -> None:
    """Raise unless the documents are within the limits."""
    if len(texts) > settings.max_documents:
        detail = f"{len(texts):,} documents; a request may have {settings.max_documents:,} at most"
        raise Problem(413, "too-large", detail)
    for index, text in enumerate(texts):
        if len(text) > settings.max_text:
            which = "the text" if len(texts) == 1 else f"document {index}"
            detail = f"{which} has {len(text):,} characters; {settings.max_text:,} are accepted"
            raise Problem(413, "too-large", detail)


def summary(name: str, loaded: LoadedModel) -> dict[str, Any]:
    """The fields of `ModelSummary`."""
    model = loaded.model
    return {
        "name": name, "status": "ready", "method": model.name, "reads": loaded.reads, "labels": len(model.label_names_),
        "documents": model.n_documents_ or None, "calibrated": model.calibration_ is not None,
        "threshold": model.threshold_, "explains": can(model, "explain") or can(model, "pixels"),
        "chooses_labels": can(model, "top_of"), "has_label_texts": model.label_texts_ is not None,
    }  # fmt: skip


def add_model_routes(app: FastAPI, service: Service) -> None:
    """Add the routes to the app."""
    settings = service.settings
    model_errors = problems(401, 404, 503)

    @app.get("/v1/models", tags=["models"], response_model=None, responses={200: {"model": ModelList}, **problems(401)})
    async def list_models() -> Response:
        """List the models, and the limits of requests. Of a model that is being loaded only the name is known."""
        models = [
            {"name": name, "status": "loading"} if one.loaded is None else summary(name, one.loaded)
            for name, one in service.models.models.items()
        ]
        limits = {
            "request_bytes": settings.max_request, "text_characters": settings.max_text,
            "documents": settings.max_documents, "k": settings.max_k, "seconds": settings.timeout,
        }  # fmt: skip
        return json_response({"models": models, "limits": limits})

    @app.get(
        "/v1/models/{name}",
        tags=["models"],
        response_model=None,
        responses={200: {"model": ModelDetails}, **model_errors},
    )
    async def show_model(name: str) -> Response:
        """Show a model: what it was trained on, its scores, parameters and versions."""
        _, loaded = service.models.find(name)
        about = loaded.about
        card = about["card"]
        return json_response({
            **summary(name, loaded), "created": card.get("created"), "parameters": about["parameters"],
            "metrics": card.get("scores"), "expected": about["expected"], "card": card,
        })  # fmt: skip

    @app.get(
        "/v1/models/{name}/labels", tags=["models"], response_model=None,
        responses={200: {"model": LabelList}, **model_errors, **problems(422)},
    )  # fmt: skip
    async def search_labels(
        name: str,
        query: Annotated[str, Query(max_length=1000, description="Part of a name or text; empty: all labels.")] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_FOUND)] = 20,
        offset: Annotated[int, Query(ge=0, le=1800)] = 0,
    ) -> Response:
        """Search labels: equal names first, then those that begin with the query, then the most frequent ones."""
        _, loaded = service.models.find(name)
        found, more = await asyncio.to_thread(lambda: loaded.search().find(query, limit, offset))
        labels = [{"label": one.label, "text": one.text, "documents": one.documents} for one in found]
        return json_response({"labels": labels, "more": more})
