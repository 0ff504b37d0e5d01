"""The page, its files and the page of the API: all from the package, without anything of other servers."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from labelwise.serve.problems import not_found

if TYPE_CHECKING:
    from labelwise.serve.app import Service

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
