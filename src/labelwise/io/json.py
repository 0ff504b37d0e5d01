"""One way to read JSON and text files that may be damaged: errors name the file, and nothing is left out silently."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from labelwise.errors import DataError

MAX_FILE_BYTES = 64 << 20


class Record(BaseModel):
    """Base of the JSON schemas. Unknown keys are ignored, so that newer runs can be read; null means absent."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"larger than {MAX_FILE_BYTES >> 20} MiB, the limit for this file of a run", path)
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"damaged: not UTF-8 at byte {error.start:,}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None


def parse_json(text: str, path: Path, line: int | None = None) -> Any:
    """Parse JSON; NaN and infinities, which Python writes although JSON has none, are read as None."""
    try:
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise DataError(f"damaged: not valid JSON: {error}", path, line) from None


def validate(value: Any, kind: type[AnyRecord], path: Path, line: int | None = None) -> AnyRecord:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise DataError(f"damaged: {key}: {fault['msg'].removeprefix('Input ')}", path, line) from None


def read_json(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    return validate(parse_json(read_text(path), path), kind, path)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines, without line ends."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"damaged: not UTF-8: {error.reason}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None
