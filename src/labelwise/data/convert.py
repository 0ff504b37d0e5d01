"""Converts a data set from one format to another, also if it is larger than memory.

Rows of formats with numbered features are written to temporary files beside the output while they are read, and
memory-mapped while they are written, so that only their offsets are in memory. The files are removed at the end, also
after an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from labelwise.data.options import ReadOptions
from labelwise.data.out_of_core import scratch_beside
from labelwise.data.read import AUTO, DataPath, format_named, has_parts, read, read_splits
from labelwise.data.write import refuse_existing_path, refuse_parts, write, write_splits


def convert(
    path: DataPath,
    output: str | Path,
    from_format: str = AUTO,
    to_format: str | None = None,
    split: str | None = None,
    options: ReadOptions | Mapping[str, Any] | None = None,
    force: bool = False,
    drop: Iterable[str] = (),
) -> int:
    """Write a data set in another format; returns the number of documents.

    Parameters
    ----------
    path
        A file or a folder; of a folder all parts are written, or the one that `split` names. Several, or a pattern, are
        read and written as one.
    output
        The file or folder to write.
    from_format, to_format
        As `format` of `labelwise.read` and `labelwise.write`; a folder with all parts is written as `native` by
        default.
    options, force, drop
        As those of `labelwise.read` and `labelwise.write`.
    """
    output = Path(output)
    if split is None and isinstance(path, str | Path) and has_parts(path):
        chosen = to_format or "native"
        refuse_parts(output, format_named(chosen), force)
        with scratch_beside(output) as scratch:
            parts = read_splits(path, from_format, options, scratch)
            write_splits(parts, output, chosen, force, drop)
            return sum(map(len, parts.values()))
    refuse_existing_path(output, force)
    with scratch_beside(output) as scratch:
        data = read(path, from_format, split, options, scratch=scratch)
        write(data, output, to_format, force, drop)
        return len(data)
