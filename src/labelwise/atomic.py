"""Files that appear whole or not at all: written under a hidden name beside their place, then renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from labelwise.errors import DataError


@contextmanager
def replacing(path: str | Path, binary: bool = False) -> Iterator[IO]:
    """A file that takes the place of `path` when the block ends without an error, and is removed otherwise.

    Of a link, what it points to is replaced. A pipe or a device is no place to put a file: it is written to.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") if binary else target.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            return
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", path) from error
    hidden = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.new")
    try:
        with hidden.open("xb") if binary else hidden.open("x", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(hidden, target)
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", path) from error
    finally:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
