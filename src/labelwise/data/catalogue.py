"""Named data sets: their metadata (catalogue.yml), their folder on this machine, and how to read them.

Nothing here uses the network: a data set that is not there is an error that names the command to download it.
"""

from __future__ import annotations

import difflib
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, overload

from pydantic import Field

from labelwise.config import Config, ConfigSource, validated
from labelwise.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from labelwise.data.dataset import Dataset

HOME_VARIABLE = "LABELWISE_DATA"
CATALOGUE = Path(__file__).with_name("catalogue.yml")

Count = Annotated[int, Field(ge=1)]


class Source(Config):
    """One file of a data set on the web."""

    file: str
    """Name of the downloaded file."""
    addresses: Annotated[list[str], Field(min_length=1)]
    """URLs, tried in this order."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Expected hash; not given: not known."""
    unpack: bool = True
    """Whether it is an archive to be unpacked."""
    optional: bool = False
    """Whether the data can be used without it."""


class PublishedFigures(Config):
    """Published statistics of a data set; None if not known."""

    train: Count | None = None
    valid: Count | None = None
    test: Count | None = None
    features: Count | None = None
    labels: Count | None = None
    mean_labels: Annotated[float, Field(gt=0)] | None = None


class Entry(Config):
    """Metadata of a named data set."""

    title: str
    format: Literal["native", "pecos", "lines", "xc", "vowpal"]
    """Format of the files after download and conversion."""
    sources: Annotated[list[Source], Field(min_length=1)]
    prepare: Literal["eurlex57k"] | None = None
    """The converter to run after unpacking; not given: none."""
    licence: str
    citation: str
    propensity: tuple[float, float]
    """A and B of the propensity-scored metrics."""
    published: PublishedFigures
    notes: str
    """Which of several versions in circulation this is."""


class _Catalogue(Config):
    sets: dict[str, Entry]


@lru_cache(maxsize=1)
def _entries() -> dict[str, Entry]:
    source = ConfigSource.from_file(CATALOGUE)
    return validated(_Catalogue, {"sets": source.values}, source).sets


def names() -> list[str]:
    """The names of all known data sets."""
    return list(_entries())


def near_sets(name: str) -> str:
    """A question that names the known data sets whose names begin like this, or the nearest; empty if none is near."""
    beginning = [known for known in names() if known.startswith(name)][:3] if len(name) > 2 else []
    near = [f"'{known}'" for known in beginning or difflib.get_close_matches(name, names(), n=1)]
    several = f"{', '.join(near[:-1])} or {near[-1]}" if len(near) > 1 else "".join(near)
    return f"did you mean the data set {several}?" if near else ""


def entry(name: str) -> Entry:
    """Metadata of a data set; DataError with the nearest name if there is none of that name."""
    known = _entries().get(name)
    if known is None:
        raise DataError(f"there is no known data set '{name}'; {did_you_mean(name, names())}")
    return known


def data_home() -> Path:
    """The folder named data sets are kept in: $LABELWISE_DATA, or ~/.cache/labelwise/data."""
    given = os.environ.get(HOME_VARIABLE)
    return Path(given).expanduser() if given else Path.home() / ".cache" / "labelwise" / "data"


def folder_of(name: str, folder: str | Path | None = None) -> Path:
    """The folder of a named data set, which need not exist, below `folder` (not given: the data home)."""
    entry(name)
    return (Path(folder).expanduser() if folder is not None else data_home()) / name


def downloaded_folder(name: str, folder: str | Path | None = None) -> Path:
    """The folder of a downloaded data set; DataError with the download command if it does not exist."""
    path = folder_of(name, folder)
    if not path.is_dir():
        option = f" --folder {folder}" if folder is not None else ""
        raise DataError(
            f"the data set '{name}' is not in {path.parent}; get it with: labelwise data download {name}{option}"
        )
    return path


@overload
def dataset(
    name: str, split: None = None, folder: str | Path | None = None, scratch: Path | None = None
) -> dict[str, Dataset]: ...
@overload
def dataset(name: str, split: str, folder: str | Path | None = None, scratch: Path | None = None) -> Dataset: ...
def dataset(
    name: str, split: str | None = None, folder: str | Path | None = None, scratch: Path | None = None
) -> Dataset | dict[str, Dataset]:
    """Read a named data set that has been downloaded before.

    Parameters
    ----------
    name
        One of `names()`.
    split
        `train`, `valid` or `test` for that part only; not given: a dict of all parts, in the label space of
        train.
    folder
        Where named data sets are kept; not given: `data_home()`.
    scratch
        As that of `labelwise.read`.
    """
    from labelwise.data.read import read, read_splits

    known, path = entry(name), downloaded_folder(name, folder)
    if split is None:
        return read_splits(path, known.format, scratch=scratch)
    return read(path, known.format, split, scratch=scratch)
