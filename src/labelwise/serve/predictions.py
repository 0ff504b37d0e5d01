"""Routes that compute: predictions and explanations of texts and images."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from labelwise.commands.writers import score_name
from labelwise.data.images import ImageError
from labelwise.formatting import cut
from labelwise.serve import bodies
from labelwise.serve.answers import compact, label_fields, labels_json
from labelwise.serve.batching import Batcher, Labelled, Options, explanations
from labelwise.serve.loading import IMAGE, TEXT, LoadedModel
from labelwise.serve.model_routes import check_texts, json_response, json_text_response
from labelwise.serve.openapi import body_of, problems
from labelwise.serve.schemas import (
    Document,
    ExplainOptions,
    ExplainRequest,
    Explanations,
    Predictions,
    PredictOptions,
    PredictRequest,
    Problem,
)
from labelwise.serve.settings import Settings

if TYPE_CHECKING:
    from labelwise.serve.app import Service

Uploads = tuple[list[tuple[str, str]], dict[str, list[str]]]
"""Files (path, the client's name), and the values of other fields."""


def options_of(asked: PredictOptions, settings: Settings, loaded: LoadedModel) -> Options:
    """The options of a request, within the limits."""
    if loaded.model.calibration_ is not None and isinstance(asked.threshold, float | int) and asked.threshold > 1:
        detail = f"threshold: {asked.threshold:g} is never reached: scores of this model are probabilities, 1 at most"
        raise Problem(422, "invalid-request", detail, errors=[{"pointer": "/threshold", "detail": detail}])
    if asked.k is not None and asked.k > settings.max_k:
        detail = f"k: {cut(f'{asked.k:,}', 30)} labels per document; {settings.max_k:,} at most are returned"
        raise Problem(422, "invalid-request", detail, errors=[{"pointer": "/k", "detail": detail}])
    labels = None if asked.labels is None else tuple(asked.labels)
    return Options(asked.k, asked.threshold, labels, asked.label_weights, asked.explain, settings.max_k)


def add_prediction_routes(app: FastAPI, service: Service) -> None:
    """Add the routes to the app."""
    settings = service.settings
    computing_errors = problems(400, 401, 404, 408, 413, 415, 422, 429, 503)

    @app.post(
        "/v1/models/{name}/predict", tags=["predictions"], response_model=None,
        responses={200: {"model": Predictions}, **computing_errors},
        openapi_extra=body_of(PredictRequest, PredictOptions),
    )  # fmt: skip
    async def predict(name: str, request: Request) -> Response:
        """Predict labels of one document, or of several.

        Texts are sent as JSON, images as fields `image` of a multipart form, whose other fields are the options.
        """
        batcher, loaded = service.models.find(name)
        if loaded.reads == IMAGE:
            return await predict_images(name, request)
        asked = await bodies.read_json(request, settings, PredictRequest)
        ids: list[str | None] = []
        if asked.documents is None:
            texts = [asked.text or ""]
        else:
            texts = [one.text if isinstance(one, Document) else one for one in asked.documents]
            ids = [one.id if isinstance(one, Document) else None for one in asked.documents]
        check_texts(texts, settings)
        _check_not_blank(texts, asked.documents)
        found: Labelled = await batcher.submit(texts, options_of(asked, settings, loaded))
        return _labels(name, found, ids)

    async def predict_images(name: str, request: Request) -> Response:
        batcher, loaded = service.models.find(name)
        async with _images(request, settings) as (files, values):
            asked = bodies.form_options(values, PredictOptions)
            try:
                options = options_of(asked, settings, loaded)
                found = await batcher.submit([path for path, _ in files], options, reads=IMAGE)
            except ImageError as error:
                raise _named(error, files) from None
        return _labels(name, found, [given for _, given in files])

    @app.post(
        "/v1/models/{name}/explain", tags=["predictions"], response_model=None,
        responses={200: {"model": Explanations}, **computing_errors},
        openapi_extra=body_of(ExplainRequest, ExplainOptions),
    )  # fmt: skip
    async def explain(name: str, request: Request) -> Response:
        """Explain labels of one document: words with their contributions and positions, and the path in each tree.

        Of an image, sent as in `predict`: how much the score depends on each part.
        """
        batcher, loaded = service.models.find(name)
        if loaded.reads == IMAGE:
            async with _images(request, settings) as (files, values):
                options = bodies.form_options(values, ExplainOptions)
                if len(files) > 1:
                    raise Problem(422, "invalid-request", f"one image can be explained at a time, got {len(files)}")
                try:
                    return await _explained(batcher, name, files[0][0], options, IMAGE)
                except ImageError as error:
                    raise _named(error, files) from None
        asked = await bodies.read_json(request, settings, ExplainRequest)
        check_texts([asked.text], settings)
        _check_not_blank([asked.text])
        return await _explained(batcher, name, asked.text, asked)


def _check_not_blank(texts: Sequence[str], documents: Sequence[str | Document] | None = None) -> None:
    """Raise if a text has no characters but blanks: its labels would be those of no document."""
    for index, text in enumerate(texts):
        if text and not text.isspace():
            continue
        pointer, which = "/text", "text"
        if documents is not None:
            pointer = f"/documents/{index}" + ("/text" if isinstance(documents[index], Document) else "")
            which = f"document {index}"
        errors = [{"pointer": pointer, "detail": "a text is needed"}]
        raise Problem(422, "invalid-request", f"{which}: a text is needed, this one is blank", errors=errors)


@asynccontextmanager
async def _images(request: Request, settings: Settings) -> AsyncIterator[Uploads]:
    """The uploaded images of a request, at least one."""
    if bodies.media_type(request) != bodies.MULTIPART:
        wanted = f"{bodies.MULTIPART} with files `image`, because this model reads images"
        raise bodies.wrong_media_type(request, wanted)
    async with bodies.uploaded(request, settings, settings.max_documents) as (files, values):
        if not files:
            raise Problem(422, "invalid-request", "there is no file `image` in the form")
        yield files, values


async def _explained(batcher: Batcher, name: str, document: str, asked: ExplainOptions, reads: str = TEXT) -> Response:
    def call(loaded: LoadedModel) -> Any:
        return loaded, explanations(loaded.model, document, asked.labels, asked.k, asked.terms)

    loaded, found = await batcher.submit([document], call=call, reads=reads)
    return json_response({"model": name, "scores": score_name(loaded.model), "explanations": found})


def _labels(name: str, found: Labelled, ids: Sequence[str | None]) -> Response:
    """The fields of `Predictions`."""
    starts, results = found.loaded.label_starts(label_fields), []
    for index, document in enumerate(found.documents):
        end = f',"id":{compact(ids[index])}}}' if ids and ids[index] is not None else "}"
        results.append(f'{{"labels":{labels_json(starts, document)}{end}')
    start = compact({"model": name, "scores": score_name(found.loaded.model)})[:-1]
    return json_text_response(f'{start},"results":[{",".join(results)}]}}')


def _named(error: ImageError, files: Sequence[tuple[str, str]]) -> Problem:
    """The error of an image with the client's name of it instead of our path."""
    names = dict(files)
    called = names.get(str(error.path), "the image")
    return Problem(422, "invalid-image", f"{called}: {error.what}")
