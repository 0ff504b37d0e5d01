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
    """A file that takes the place of `path` when the block ends without an error, and is removed otherwise."""
    target = Path(path)
    hidden = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.new")
    try:
        with hidden.open("xb") if binary else hidden.open("x", encoding="utf-8", newline="\n") as file:
            yield file
        os.replace(hidden, target)
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", target) from error
    finally:
        with suppress(OSError):
            hidden.unlink(missing_ok=True)
