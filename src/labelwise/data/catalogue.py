"""Named data sets: what is known of each (catalogue.yml), where it lies on this machine, and how to read it.

Nothing here touches the network: a set that is not there is an error that names the command to download it.
"""

from __future__ import annotations

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
    """The name it gets here."""
    addresses: Annotated[list[str], Field(min_length=1)]
    """Where it can be had, tried in this order."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """What it must hash to; not given: not known."""
    unpack: bool = True
    """Whether it is an archive to be unpacked."""
    optional: bool = False
    """The data can be used without it."""


class Published(Config):
    """Figures the data's makers or users have printed; None where none is known."""

    train: Count | None = None
    valid: Count | None = None
    test: Count | None = None
    features: Count | None = None
    labels: Count | None = None
    mean_labels: Annotated[float, Field(gt=0)] | None = None


class Entry(Config):
    """What is known of a named data set."""

    title: str
    format: Literal["native", "pecos", "lines", "xc", "vowpal"]
    """Format of the files once they are ready."""
    sources: Annotated[list[Source], Field(min_length=1)]
    prepare: Literal["eurlex57k"] | None = None
    """The converter that makes them ready; not given: they are as they come."""
    licence: str
    citation: str
    propensity: tuple[float, float]
    """A and B of the propensity-scored metrics."""
    published: Published
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


def entry(name: str) -> Entry:
    """What is known of a data set; DataError with the nearest name if there is none of that name."""
    found = _entries().get(name)
    if found is None:
        raise DataError(f"there is no known data set '{name}'; {did_you_mean(name, names())}")
    return found


def data_home() -> Path:
    """The folder named data sets are kept in: $LABELWISE_DATA, or ~/.cache/labelwise/data."""
    given = os.environ.get(HOME_VARIABLE)
    return Path(given).expanduser() if given else Path.home() / ".cache" / "labelwise" / "data"


def folder_of(name: str, folder: str | Path | None = None) -> Path:
    """Where a named data set lies, or would lie, below `folder` (not given: the data home)."""
    entry(name)
    return (Path(folder).expanduser() if folder is not None else data_home()) / name


def require(name: str, folder: str | Path | None = None) -> Path:
    """Where a named data set lies; DataError with the command to get it if it is not there."""
    place = folder_of(name, folder)
    if not place.is_dir():
        option = f" --folder {folder}" if folder is not None else ""
        raise DataError(
            f"the data set '{name}' is not in {place.parent}; get it with: labelwise data download {name}{option}"
        )
    return place


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
        `train`, `valid` or `test` for that part alone; not given: all parts by name, in the label space of
        train.
    folder
        Where named data sets are kept; not given: `data_home()`.
    scratch
        As that of `labelwise.read`.
    """
    from labelwise.data.read import read, read_splits

    known, place = entry(name), require(name, folder)
    if split is None:
        return read_splits(place, known.format, scratch=scratch)
    return read(place, known.format, split, scratch=scratch)
