"""Calls the endpoints that get nearly all requests without FastAPI's routing, which takes longer than they do.

They are FastAPI's routes all the same: declared, described and tested there. They take a name and the request, check
everything themselves and return a response, so nothing else of FastAPI is needed for them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from labelwise.errors import LabelwiseError
from labelwise.serve.gate import ROUTE
from labelwise.serve.problems import Problem, from_error

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
