"""The application: routes, errors and the life of the models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from labelwise import __version__
from labelwise.errors import LabelwiseError
from labelwise.formatting import cut
from labelwise.serve.annif_routes import add_annif_routes
from labelwise.serve.counters import STARTED, Counters
from labelwise.serve.direct import Direct
from labelwise.serve.gate import Gate, KeyCheck, unexpected
from labelwise.serve.keys import ApiKeys
from labelwise.serve.model_routes import add_model_routes, json_response
from labelwise.serve.openapi import add_openapi, problems
from labelwise.serve.pages import add_pages
from labelwise.serve.prediction_routes import add_prediction_routes
from labelwise.serve.problems import Problem, from_error
from labelwise.serve.schemas import Health, Readiness
from labelwise.serve.served import LOADING_RETRY, ServedModels
from labelwise.serve.settings import Settings

ABOUT = """Labels for texts and images by models of labelwise.

Errors are problem details (RFC 9457, `application/problem+json`). If the server has API keys, send
`Authorization: Bearer KEY`. The routes under `/v1/projects` are those of Annif."""

METRICS = """# TYPE labelwise_documents_total counter
labelwise_documents_total{model="catalogue"} 3
"""
"""The beginning of what Prometheus reads, as an example."""


@dataclass
class Service:
    """What routes share."""

    settings: Settings
    counters: Counters = field(init=False)
    models: ServedModels = field(init=False)


def create_app(
    settings: Settings, on_failure: Callable[[Exception], None], on_start: Callable[[], None] | None = None
) -> ASGIApp:
    """The application of some settings.

    `on_failure` is called if a model cannot be loaded at the start, `on_start` before a request is accepted; one of
    several workers has loaded its models then.
    """
    keys = ApiKeys.of(settings)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await service.models.start()
        if on_start is not None:
            on_start()
        yield
        await service.models.stop()

    app = FastAPI(
        title="labelwise", version=__version__, description=ABOUT, docs_url=None, redoc_url=None, lifespan=life,
        redirect_slashes=False,
    )  # fmt: skip
    service = Service(settings)  # the rest follows, because the counters need the paths of the routes
    add_status_routes(app, service)
    add_model_routes(app, service)
    add_prediction_routes(app, service)
    add_annif_routes(app, service)
    add_pages(app, service)
    add_openapi(app)
    _add_errors(app)
    paths = [path for path in (getattr(route, "path", None) for route in app.routes) if path]
    service.counters = Counters(paths, settings.models, settings.counters)
    service.models = ServedModels(settings, service.counters, on_failure)
    inner: ASGIApp = KeyCheck(Direct(app, [route for route in app.routes if isinstance(route, APIRoute)]), keys)
    if settings.allow_origins:
        inner = CORSMiddleware(
            inner, allow_origins=list(settings.allow_origins), allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "X-API-Key", "Content-Type"],
            expose_headers=["Retry-After", "X-Request-ID"],
        )  # fmt: skip
    return Gate(inner, settings, service.counters)


def add_status_routes(app: FastAPI, service: Service) -> None:
    """Health, readiness and counts."""
    all_loaded = service.settings.counters is None  # of a single process

    @app.get("/health", tags=["status"], response_model=None, responses={200: {"model": Health}})
    async def health() -> Response:
        """Whether the process answers."""
        return json_response({"status": "ok"})

    @app.get("/ready", tags=["status"], response_model=None, responses={200: {"model": Readiness}, **problems(503)})
    async def ready() -> Response:
        """Whether all models are loaded and have predicted once, in every worker process.

        Workers that end later do not matter: the others answer while they are started again.
        """
        nonlocal all_loaded
        if not service.models.ready:
            loading = [name for name, state in service.models.states.items() if state != "ready"]
            raise Problem(503, "loading", f"models are being loaded: {', '.join(loading)}", retry_after=LOADING_RETRY)
        if not all_loaded:
            loaded = int(service.counters.total("labelwise_ready_workers"))
            if loaded < service.settings.workers and not service.counters.total(STARTED):
                detail = f"{loaded} of {service.settings.workers} worker processes have loaded the models"
                raise Problem(503, "loading", detail, retry_after=LOADING_RETRY)
            all_loaded = True
        return json_response({"status": "ready", "models": dict(service.models.states)})

    @app.get(
        "/metrics", tags=["status"], response_model=None, response_class=PlainTextResponse,
        responses={200: {"content": {"text/plain": {"example": METRICS}}}, **problems(401)},
    )  # fmt: skip
    async def metrics() -> Response:
        """Counts in Prometheus' text format."""
        return Response(service.counters.text(), media_type="text/plain; version=0.0.4")


def _add_errors(app: FastAPI) -> None:
    """Every error as problem details."""

    @app.exception_handler(Problem)
    async def on_problem(request: Request, error: Problem) -> Response:
        return error.response(request.url.path)

    @app.exception_handler(LabelwiseError)
    async def on_error(request: Request, error: LabelwiseError) -> Response:
        return from_error(error).response(request.url.path)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> Response:
        return unexpected(request.scope).response()  # the gate logs it

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        found = [
            {"pointer": "/" + "/".join(str(part) for part in fault["loc"]), "detail": cut(fault["msg"], 200)}
            for fault in error.errors()
        ]
        detail = f"{found[0]['pointer']}: {found[0]['detail']}"
        return Problem(422, "invalid-request", detail, errors=found).response(request.url.path)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        detail = error.detail
        if error.status_code == 404:
            detail = f"there is nothing at {cut(request.url.path, 200)}; /docs lists what there is"
        elif error.status_code == 405:
            detail = f"{request.method} is not possible here"
        return Problem(error.status_code, "", detail, headers=error.headers).response()
