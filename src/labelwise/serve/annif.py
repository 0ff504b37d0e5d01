"""Annif's API, so that its clients and its `http` backend work with our models: a project is a model.

The name of a label is its URI, or its notation if a prefix makes the URI; its text is the label that people read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Query
from starlette.requests import Request
from starlette.responses import Response

from labelwise import __version__
from labelwise.serve import bodies
from labelwise.serve.answers import compact, labels_json
from labelwise.serve.batching import Labelled, Options
from labelwise.serve.loading import IMAGE, LoadedModel
from labelwise.serve.model_routes import check_texts, json_response, json_text_response
from labelwise.serve.openapi import ProblemResponse, body_of, problems
from labelwise.serve.schemas import (
    MOST_LABELS,
    AnnifBatch,
    AnnifBatchResult,
    AnnifForm,
    AnnifInfo,
    AnnifProject,
    AnnifProjects,
    AnnifQuery,
    AnnifSuggestions,
    Problem,
)
from labelwise.serve.settings import URI

if TYPE_CHECKING:
    from labelwise.serve.app import Service

IN_PATHS = "/!$&'()*+,;=:@"
"""What a path of a URI may have besides letters, digits and -._~ (RFC 3986); all else is percent-encoded."""


def add_annif_routes(app: FastAPI, service: Service) -> None:
    """Add the routes to the app."""
    settings = service.settings
    fields = partial(subject, prefix=settings.uri_prefix)
    errors = problems(400, 401, 404, 408, 413, 415, 429, 503)

    @app.get("/v1/", tags=["Annif"], response_model=None, responses={200: {"model": AnnifInfo}, **problems(401)})
    async def show_info() -> Response:
        """Name and version of the service."""
        return json_response({"title": "labelwise, with Annif's REST API", "version": __version__})

    @app.get(
        "/v1/projects", tags=["Annif"], response_model=None, responses={200: {"model": AnnifProjects}, **problems(401)}
    )
    async def list_projects() -> Response:
        """List the models of texts as projects."""
        ready = {name: one.loaded for name, one in service.models.models.items() if one.loaded is not None}
        return json_response({"projects": [project(name, one) for name, one in ready.items() if one.reads != IMAGE]})

    @app.get(
        "/v1/projects/{project_id}", tags=["Annif"], response_model=None,
        responses={200: {"model": AnnifProject}, **problems(401, 404, 503)},
    )  # fmt: skip
    async def show_project(project_id: str) -> Response:
        """Show a model as a project."""
        return json_response(project(project_id, find(project_id)[1]))

    @app.post(
        "/v1/projects/{project_id}/suggest", tags=["Annif"], response_model=None,
        responses={200: {"model": AnnifSuggestions}, **errors}, openapi_extra=body_of(AnnifForm, media=bodies.FORM),
    )  # fmt: skip
    async def suggest(project_id: str, request: Request) -> Response:
        """Suggest subjects for a text."""
        batcher, _ = find(project_id)
        asked = await bodies.read_form(request, settings, AnnifForm)
        found = await suggestions(batcher, [asked.text], asked)
        return json_text_response(f'{{"results":{found[0]}}}')

    @app.post(
        "/v1/projects/{project_id}/suggest-batch", tags=["Annif"], response_model=None,
        responses={200: {"model": list[AnnifBatchResult]}, **errors}, openapi_extra=body_of(AnnifBatch),
    )  # fmt: skip
    async def suggest_batch(
        project_id: str,
        request: Request,
        limit: Annotated[int, Query(ge=0, json_schema_extra=MOST_LABELS)] = 10,
        threshold: Annotated[float, Query(ge=0, le=1)] = 0.0,
        language: Annotated[str | None, Query()] = None,
    ) -> Response:
        """Suggest subjects for up to 32 documents."""
        batcher, _ = find(project_id)
        query = AnnifQuery(limit=limit, threshold=threshold, language=language)
        asked = await bodies.read_json(request, settings, AnnifBatch)
        found = await suggestions(batcher, [one.text for one in asked.documents], query)
        results = [
            f'{{"results":{some},"document_id":{compact(one.document_id)}}}'
            for one, some in zip(asked.documents, found, strict=True)
        ]
        return json_text_response(f"[{','.join(results)}]")

    @app.post(
        "/v1/projects/{project_id}/learn", tags=["Annif"], response_model=None, responses={**problems(401, 404, 503)},
        status_code=503, response_class=ProblemResponse,
    )  # fmt: skip
    async def learn(project_id: str) -> Response:
        """Refuse to learn: answered as Annif does for a backend that cannot."""
        find(project_id)
        detail = (
            "learning over HTTP is not supported: requests never change a model. `labelwise learn MODEL MORE.csv` adds "
            "documents to its folder, and the server loads the changed folder by itself"
        )
        return Problem(503, "learning-not-supported", detail).response()

    def find(project_id: str) -> Any:
        batcher, loaded = service.models.find(project_id, "project")
        if loaded.reads == IMAGE:
            raise Problem(404, "not-found", f"'{project_id}' is a model of images; projects read texts")
        return batcher, loaded

    def project(name: str, loaded: LoadedModel) -> dict[str, Any]:
        return {
            "project_id": name, "name": name, "language": settings.language,
            "backend": {"backend_id": loaded.model.name}, "is_trained": True,
            "modification_time": loaded.about["card"].get("created"),
        }  # fmt: skip

    async def suggestions(batcher: Any, texts: Sequence[str], asked: AnnifForm | AnnifQuery) -> list[str]:
        """The JSON of each text's subjects."""
        if asked.language and asked.language != settings.language:
            detail = f"the language of the labels is '{settings.language}'; `labelwise serve --language` sets it"
            raise Problem(400, "language", detail)
        if asked.limit > settings.max_k:
            raise Problem(400, "limit", f"limit: {settings.max_k:,} subjects at most are returned")
        check_texts(texts, settings)
        if asked.limit == 0:
            return ["[]" for _ in texts]
        least = asked.threshold if asked.threshold > 0 else None
        found: Labelled = await batcher.submit(texts, Options(asked.limit, least, max_k=settings.max_k))
        starts = found.loaded.label_starts(fields)
        return [labels_json(starts, document) for document in found.documents]


def subject(name: str, text: str | None, prefix: str) -> dict[str, Any]:
    """A label as a subject of Annif, which finds subjects by URI and fails if its vocabulary does not have it."""
    prefixed = bool(prefix) and URI.fullmatch(name) is None
    uri, notation = (prefix + quote(name, IN_PATHS), name) if prefixed else (name, None)
    return {"uri": uri, "label": text or name, "notation": notation}
