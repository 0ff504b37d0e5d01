"""Interface of a file format: how to recognise, read and write it.

Each format is one module in this folder that defines ``FORMAT = Format(...)``; `labelwise.data.read` lists them in
the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labelwise.data.dataset import Dataset
from labelwise.data.options import ReadOptions


@dataclass(frozen=True)
class Format:
    """One file format.

    ``recognises(path)`` reads names and the first bytes only and never raises for unexpected content.
    ``read(path, options)`` reads one part (train, or test, ...) given by its main file or folder.
    ``write(dataset, path)`` writes one part so that `read` returns an equal data set; None if the format
    is read-only. ``parts(folder)`` maps split names (train, valid, test) to the paths `read` takes.
    ``part_name(split)`` is the name of a part in a folder that is written; None means the split's name and the
    extension. ``siblings(path)`` are the other files that are read with a part's main file, whether or not they
    exist. ``recognises_unlabelled(path)`` recognises documents without a file of labels beside them.
    ``read_mapped(path, options, folder)`` is `read` for data larger than memory: rows are written to files in the
    folder and mapped. The path of a part with several files is a pattern with `*`, which does not exist.
    ``other_extensions`` are not written, but mean this format too. ``holds_parts(path)`` recognises files that hold
    several parts, such as archives; ``parts`` takes them too, and names parts as if the file were a folder.
    """

    name: str
    about: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path, ReadOptions], Dataset]
    write: Callable[[Dataset, Path], None] | None
    parts: Callable[[Path], dict[str, Path]]
    extension: str
    other_extensions: tuple[str, ...] = ()
    part_name: Callable[[str], str] | None = None
    siblings: Callable[[Path], list[Path]] | None = None
    recognises_unlabelled: Callable[[Path], bool] | None = None
    read_mapped: Callable[[Path, ReadOptions, Path], Dataset] | None = None
    holds_parts: Callable[[Path], bool] | None = None

    def parts_of(self, path: Path) -> dict[str, Path]:
        """The parts of a folder, or of a file that holds several; none of other files."""
        several = path.is_dir() or (self.holds_parts is not None and self.holds_parts(path))
        return self.parts(path) if several else {}
