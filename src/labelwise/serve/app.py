"""The application: routes, errors and the life of the models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from labelwise import __version__
from labelwise.errors import LabelwiseError
from labelwise.formatting import cut
from labelwise.serve.annif import add_annif_routes
from labelwise.serve.gate import (
    ROUTE,
    STARTED,
    ApiKeys,
    Counters,
    Gate,
    KeyCheck,
    unexpected,
)
from labelwise.serve.model_routes import add_model_routes, json_response
from labelwise.serve.models import LOADING_RETRY, ServedModels
from labelwise.serve.openapi import add_openapi, problems
from labelwise.serve.predictions import add_prediction_routes
from labelwise.serve.schemas import (
    Health,
    Problem,
    Readiness,
    from_error,
    not_found,
)
from labelwise.serve.settings import Settings

# --- pages ---
# The page, its files and the page of the API: all from the package, without anything of other servers.

TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@cache
def static_files() -> dict[str, tuple[bytes, str, str]]:
    """Content, media type and version of each file, by name; read once, so that no request names a path."""
    import hashlib

    found = {}
    for file in (files("labelwise.serve") / "static").iterdir():
        extension = file.name.rpartition(".")[2]
        if extension in TYPES:
            content = file.read_bytes()
            tag = '"' + hashlib.sha256(content).hexdigest()[:16] + '"'
            found[file.name] = (content, f"{TYPES[extension]}; charset=utf-8", tag)
    return found


def add_pages(app: FastAPI, service: Service) -> None:
    """Add the routes to the app."""
    del service

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return _file("index.html", request)

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return _file("docs.html", request)

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str, request: Request) -> Response:
        return _file(name, request)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon(request: Request) -> Response:
        return _file("icon.svg", request)


def _file(name: str, request: Request) -> Response:
    found = static_files().get(name)
    if found is None:
        raise not_found("file", name)
    content, media_type, tag = found
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


# --- direct ---
# Calls the endpoints that get nearly all requests without FastAPI's routing, which takes longer than they do.
#
# They are FastAPI's routes all the same: declared, described and tested there. They take a name and the request, check
# everything themselves and return a response, so nothing else of FastAPI is needed for them.

PATHS = ("/v1/models/{name}/predict", "/v1/projects/{project_id}/suggest")


class Direct:
    """The application, with a short way to some POST routes of the form /v1/KIND/NAME/ACTION."""

    def __init__(self, app: FastAPI, routes: Iterable[APIRoute]) -> None:
        self.app = app
        self.endpoints: dict[tuple[str, str], tuple[str, Callable[[str, Request], Awaitable[Response]]]] = {}
        for route in routes:
            if route.path in PATHS:
                _, _, kind, _, action = route.path.split("/")
                self.endpoints[kind, action] = route.path, route.endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        parts: list[str] = scope["path"].split("/") if scope["type"] == "http" and scope["method"] == "POST" else []
        found = self.endpoints.get((parts[2], parts[4])) if len(parts) == 5 and parts[1] == "v1" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        scope[ROUTE], endpoint = found
        try:
            response = await endpoint(parts[3], Request(scope, receive))
        except Problem as problem:
            response = problem.response(scope["path"])
        except LabelwiseError as error:
            response = from_error(error).response(scope["path"])
        await response(scope, receive, send)


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
