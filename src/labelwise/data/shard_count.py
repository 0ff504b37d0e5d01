"""Shards that `labelwise data shard` has written and that are no longer there: documents would be missing unnoticed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from labelwise.data.atomic_folder import SOURCE
from labelwise.errors import DataError

SHARDS_OF, SHARDS = "shards_of", "shards"
"""Keys of source.json: what was sharded, and the number of shards of each part."""
MOST_SHARDS = 99_999
"""Of a part: their numbers have five digits."""


def shard_name(part: str, number: int) -> str:
    """The folder of a shard."""
    return f"{part}-{number:05d}"


def check_shards(folder: Path) -> None:
    """Raise DataError if one of the shards that source.json counts is missing.

    Folders of earlier versions have no counts: there the numbers of a part have to be those from 0 on.
    """
    try:
        about = json.loads((folder / SOURCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return  # no folder of ours
    if not isinstance(about, dict) or SHARDS_OF not in about:
        return
    counts = about.get(SHARDS)
    counted = _valid_counts(counts)
    if counted is None:
        if counts is not None:
            raise DataError(f"{SHARDS}: the number of shards of each part is needed, got {counts!r}", folder / SOURCE)
        counted = _highest_numbers(folder)
    for part, count in counted.items():
        missing = [
            shard_name(part, number) for number in range(count) if not (folder / shard_name(part, number)).is_dir()
        ]
        if missing:
            others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            raise DataError(
                f"this shard{others} of the {count} of {part} is missing; copy it again, or write all of them with "
                "labelwise data shard. A folder with some of them on purpose: read them by a pattern",
                folder / missing[0],
            )


def _valid_counts(counts: object) -> dict[str, int] | None:
    if not isinstance(counts, dict) or not all(
        type(count) is int and 0 <= count <= MOST_SHARDS for count in counts.values()
    ):
        return None
    return counts


def _highest_numbers(folder: Path) -> dict[str, int]:
    highest: dict[str, int] = {}
    for path in folder.iterdir():
        if (found := re.fullmatch(r"(\w+)-(\d{5})", path.name)) and path.is_dir():
            highest[found[1]] = max(highest.get(found[1], 0), int(found[2]) + 1)
    return highest
