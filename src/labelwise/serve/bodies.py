"""Reads bodies of requests within the limits: JSON, Annif's forms, and uploaded images."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from labelwise.formatting import cut, size
from labelwise.serve.schemas import MAX_LABELS, Problem, from_validation
from labelwise.serve.settings import Settings

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"
MAX_FIELDS, MAX_FIELD_BYTES = 200, 1 << 20
Model = TypeVar("Model", bound=BaseModel)


def media_type(request: Request) -> str:
    """The type of the body, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def wrong_media_type(request: Request, *accepted: str) -> Problem:
    """The body is of a type that cannot be read here."""
    given = cut(media_type(request), 100) or "a body without Content-Type"
    return Problem(415, "media-type", f"{given} cannot be read; send {' or '.join(accepted)}")


def too_large(settings: Settings) -> Problem:
    """The body is larger than the limit."""
    detail = f"a request may have {size(settings.max_request)} at most; send fewer documents at once"
    return Problem(413, "too-large", detail, headers={"Connection": "close"})


def too_busy() -> Problem:
    """The requests of all clients together are larger than the limit."""
    detail = "the server is receiving as much as it can hold; send the request again later"
    return Problem(503, "busy", detail, retry_after=1, headers={"Connection": "close"})


async def read_body(request: Request, settings: Settings) -> bytes:
    """The whole body."""
    parts = [part async for part in _pieces(request, settings)]
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _pieces(request: Request, settings: Settings) -> AsyncGenerator[bytes, None]:
    """The body as it arrives; a Problem if it is too large or comes too slowly."""
    count, more = 0, True
    deadline = asyncio.get_running_loop().time() + settings.timeout
    while more:
        try:
            async with asyncio.timeout_at(deadline):  # per piece: a context must not span a yield
                message = await request.receive()
        except TimeoutError:
            detail = f"the body did not arrive within {settings.timeout:g} seconds"
            raise Problem(408, "slow-client", detail, headers={"Connection": "close"}) from None
        if message["type"] == "http.disconnect":
            raise Problem(400, "disconnected", "the client has closed the connection")
        part, more = message.get("body", b""), message.get("more_body", False)
        count += len(part)
        if count > settings.max_request:
            raise too_large(settings)
        if part:
            yield part


async def read_json(request: Request, settings: Settings, model: type[Model], strict: bool = True) -> Model:
    """A JSON body, checked."""
    if media_type(request) != JSON:
        raise wrong_media_type(request, JSON)
    body = await read_body(request, settings)
    check_values(body, settings)
    return parsed(body, model, strict)


def check_values(body: bytes, settings: Settings) -> None:
    """Refuse JSON of many more values than a request can have, which would take seconds and a gigabyte to parse."""
    most = 3 * MAX_LABELS + 5 * settings.max_documents + 1000  # as many marks as labels, weights and documents need
    if len(body) <= most or _marks(body) <= most:
        return
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if _marks(b"".join(plain.split(b'"')[::2])) > most:  # outside strings
        detail = f"a request may have {settings.max_documents:,} documents and {MAX_LABELS:,} labels at most"
        raise Problem(413, "too-large", detail)


def _marks(text: bytes) -> int:
    return sum(text.count(mark) for mark in (b",", b":", b"[", b"{"))


def parsed(body: bytes, model: type[Model], strict: bool = True) -> Model:
    """JSON as a request; numbers as strings and the like are refused if `strict`."""
    try:
        return model.model_validate_json(body, strict=strict)
    except ValidationError as error:
        raise from_validation(error, model) from None


def validated_values(values: Any, model: type[Model]) -> Model:
    """Values of forms and queries, which are strings, as a request."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise from_validation(error, model) from None


async def read_form(request: Request, settings: Settings, model: type[Model]) -> Model:
    """A form as HTML pages and Annif's clients send it; also as multipart without files."""
    if media_type(request) == MULTIPART:
        async with uploaded(request, settings, 0) as (_, values):
            return validated_values({key: some[-1] for key, some in values.items()}, model)
    if media_type(request) != FORM:
        raise wrong_media_type(request, FORM)
    body = await read_body(request, settings)
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), errors="strict",
            max_num_fields=MAX_FIELDS,
        )  # fmt: skip
    except (UnicodeDecodeError, ValueError):
        raise Problem(400, "invalid-form", "the body is not a URL-encoded form in UTF-8") from None
    return validated_values(dict(pairs), model)


@asynccontextmanager
async def uploaded(
    request: Request, settings: Settings, max_files: int
) -> AsyncIterator[tuple[list[tuple[str, str]], dict[str, list[str]]]]:
    """Uploaded files (path, the client's name) in a folder that is removed afterwards, and the values of other fields.

    The paths are ours: a client cannot name a file of this machine.
    """
    parser = MultiPartParser(
        request.headers, _pieces(request, settings), max_files=max_files, max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES if max_files else settings.max_request,
    )  # fmt: skip
    try:
        form = await parser.parse()
    except (MultiPartException, HTTPException, KeyError, UnicodeError, AssertionError) as error:
        reason = getattr(error, "message", None) or getattr(error, "detail", None) or "it is malformed"
        raise Problem(400, "invalid-form", f"the multipart form cannot be read: {cut(str(reason), 200)}") from None
    try:
        files: list[tuple[str, str]] = []
        values: dict[str, list[str]] = {}
        with TemporaryDirectory(prefix="labelwise-") as folder:
            for key, value in form.multi_items():
                if isinstance(value, UploadFile):
                    if key != "image":
                        raise Problem(
                            422, "invalid-request", f"the field '{cut(key, 60)}' is a file; send it as `image`"
                        )
                    path = Path(folder) / str(len(files))
                    await asyncio.to_thread(path.write_bytes, await value.read())
                    files.append((str(path), value.filename or f"image {len(files)}"))
                else:
                    values.setdefault(key, []).append(value)
            yield files, values
    finally:
        await form.close()


def form_options(values: dict[str, list[str]], model: type[Model]) -> Model:
    """Options in the fields of a multipart form: `labels` may be repeated, `label_weights` is JSON."""
    given: dict[str, Any] = {}
    for key, some in values.items():
        if key == "labels":
            given[key] = some
        elif key == "label_weights":
            try:
                given[key] = json.loads(some[-1])
            except (ValueError, RecursionError):
                raise Problem(422, "invalid-request", "label_weights: a JSON object is needed") from None
        else:
            given[key] = some[-1]
    return validated_values(given, model)
