"""Settings of the service: which models, limits of requests, who may ask."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from labelwise.config import Config
from labelwise.errors import ConfigError
from labelwise.io.folder import MANIFEST, model_folder

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names of models: they are part of addresses."""
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"]*")
"""A scheme, and characters that can be written without quotes."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SETTINGS_VARIABLE = "LABELWISE_SERVE"
"""Environment variable with the settings as JSON, for worker processes."""
KEYS_VARIABLE = "LABELWISE_API_KEYS"
"""Environment variable with API keys, separated by commas."""

BODIES = 256_000_000
"""Bytes of all requests of a process together, unless they are set or one request may have more."""
OPTIONS = {"keys_file": "api_keys", "allow_origins": "allow_origin", "allow_hosts": "allow_host"}
"""Options of the command that are not called like the setting."""


def _language(given: str) -> str:
    if not re.fullmatch(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*", given):
        raise ValueError("a language code is needed, such as en or de-CH")
    return given


def _uri_prefix(given: str) -> str:
    if given and not URI.fullmatch(given):
        raise ValueError("the beginning of a URI is needed, such as http://example.org/, without spaces and quotes")
    return given


class Settings(Config):
    """All settings of a server."""

    models: dict[str, str]
    """Model or run folders by name."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0: any free one."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Processes; each maps the same model files."""
    keys_file: str | None = None
    """File of API keys, one per line."""
    key_hashes: tuple[str, ...] | None = None
    """SHA-256 of the accepted keys in hex: set where the server starts, which reads the file once; it may be a pipe."""
    allow_origins: tuple[str, ...] = ()
    """Web origins whose pages may send requests (CORS)."""
    allow_hosts: tuple[str, ...] = ()
    """Names under which the server may be addressed, next to those of this machine."""
    max_request: Annotated[int, Field(ge=1024)] = 16_000_000
    """Maximum bytes of a request."""
    max_text: Annotated[int, Field(ge=1)] = 1_000_000
    """Maximum characters of a text."""
    max_documents: Annotated[int, Field(ge=1)] = 1000
    """Maximum number of documents in a request."""
    max_k: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """Maximum number of labels per document."""
    max_bodies: Annotated[int, Field(ge=1024)] | None = None
    """Maximum bytes of all requests together that a process receives or answers; further ones are answered with 503."""
    max_connections: Annotated[int, Field(ge=1)] = 1000
    """Maximum number of open connections per process; further ones are answered with 503."""
    queue: Annotated[int, Field(ge=1)] = 2000
    """Maximum number of documents per model that wait or are computed; further requests are answered with 429."""
    batch: Annotated[int, Field(ge=1)] = 256
    """Maximum number of documents of several requests that are computed together; 1: each request alone."""
    timeout: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Seconds that a request may take, and that a client has to send one."""
    reload: Annotated[float, Field(ge=0)] = 2.0
    """Seconds between looks at the model folders; a changed one is loaded again. 0: never."""
    language: Annotated[str, AfterValidator(_language)] = "und"
    """Language of the labels, for Annif's clients (`und`: not known)."""
    uri_prefix: Annotated[str, AfterValidator(_uri_prefix)] = ""
    """What Annif's clients get before the names of labels that are no URIs."""
    log_requests: bool = True
    """Write a line per request to the log."""
    log_format: Literal["json", "text"] = "json"
    """Format of the log."""
    counters: str | None = None
    """File in which worker processes count together."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.queue < self.max_documents:
            raise ValueError(
                f"--queue: {self.queue:,} documents are fewer than the {self.max_documents:,} that one request may "
                "have; raise it, or lower --max-documents"
            )
        if self.all_bodies < self.max_request:
            raise ValueError(
                f"--max-bodies: {self.all_bodies:,} bytes for all requests are fewer than the {self.max_request:,} of "
                "one; raise it, or lower --max-request"
            )
        return self

    @property
    def all_bodies(self) -> int:
        """`max_bodies`, or what it is if it was not given."""
        return max(BODIES, self.max_request) if self.max_bodies is None else self.max_bodies

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can connect."""
        return self.host in LOOPBACK


def settings_of_options(given: Mapping[str, Any]) -> Settings:
    """The settings of the command's options; an error names the options that are wrong."""
    try:
        return Settings.model_validate(dict(given))
    except ValidationError as error:
        faults = error.errors()
    messages = []
    for fault in faults:
        message = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
        if fault["loc"]:
            name = str(fault["loc"][0])
            message = f"--{OPTIONS.get(name, name).replace('_', '-')}: {message}, got {fault['input']!r}"
        messages.append(message)
    raise ConfigError("\n".join(messages))


def named_models(arguments: Sequence[str]) -> dict[str, str]:
    """Folders by name from arguments: FOLDER, whose own name is taken, or NAME=FOLDER."""
    found: dict[str, str] = {}
    for argument in arguments:
        name, separator, path = argument.partition("=")
        if not separator or Path(argument).exists():
            name, path = "", argument
        folder = Path(path)
        if not folder.is_dir():
            raise ConfigError(f"{path}: there is no such folder; give a model folder or a run folder, or NAME=FOLDER")
        if not (model_folder(folder) / MANIFEST).is_file():
            raise ConfigError(f"{path}: this is not a model folder: it has no {MANIFEST}")
        if not name:
            whole = folder.resolve()
            name = whole.parent.name if whole.name == "model" else whole.name
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"'{name}' cannot be the name of a model in addresses, which have letters, digits, '.', '_' and '-'; "
                f"give one: NAME={path}"
            )
        if name in found:
            raise ConfigError(f"two models are called '{name}': {found[name]} and {path}; give names: NAME={path}")
        found[name] = str(folder)
    return found


def settings_from_environment() -> Settings:
    """The settings that the parent process has left for its workers."""
    given = os.environ.get(SETTINGS_VARIABLE)
    if given is None:
        raise ConfigError(f"{SETTINGS_VARIABLE} is not set; start the server with `labelwise serve`")
    return Settings.model_validate_json(given)
