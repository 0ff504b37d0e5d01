"""JSON files of other toolkits, which may be damaged or hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labelwise.errors import DataError

MAX_BYTES = 1 << 30


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"larger than {MAX_BYTES >> 20} MiB, the limit for a JSON file", path)
        return json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON: {error}", path) from None


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"an object is needed, this is a {type(value).__name__}", path)
    return value
