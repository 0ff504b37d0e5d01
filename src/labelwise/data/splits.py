"""The parts of a data set by their file names: train, valid and test, whatever their authors called them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

ALIASES = {
    "train": ("train", "trn", "training"),
    "valid": ("valid", "val", "dev", "validation"),
    "test": ("test", "tst", "testing"),
}
PACKED = (".gz", ".xz", ".bz2")
LABEL_NAMES = "label_names"
"""Files whose name before the extension ends so tell what labels mean; they are no documents."""

_SPLIT_OF = {alias: split for split, aliases in ALIASES.items() for alias in aliases}


def canonical_split(name: str) -> str:
    """'trn' is 'train', 'dev' is 'valid'; other names stay as they are."""
    return _SPLIT_OF.get(name.lower(), name)


def split_of(stem: str) -> str | None:
    """The split a file name speaks of ('eurlex_trn' is of 'train'); None when it names none, or several."""
    if stem.lower() in _SPLIT_OF:
        return _SPLIT_OF[stem.lower()]
    found = {_SPLIT_OF[word] for word in re.split(r"[._\-]", stem.lower()) if word in _SPLIT_OF}
    return found.pop() if len(found) == 1 else None


def plain_name(path: Path) -> str:
    """The file's name without the suffix of a packed file."""
    return path.name.removesuffix(path.suffix) if path.suffix.lower() in PACKED else path.name


def stem_and_extension(path: Path) -> tuple[str, str]:
    """'train.tsv.gz' is 'train' and '.tsv'."""
    name = Path(plain_name(path))
    return name.stem, name.suffix.lower()


def files_in(folder: Path) -> list[Path]:
    """The visible files of a folder by name, plain before packed ones; none if unreadable."""
    try:
        found = [path for path in folder.iterdir() if not path.name.startswith(".") and path.is_file()]
    except OSError:
        return []
    return sorted(found, key=lambda path: (plain_name(path), path.name))


def split_files(folder: Path, recognises: Callable[[Path], bool], extensions: Iterable[str] = ()) -> dict[str, Path]:
    """The parts of a format that keeps each part in one file.

    A file counts if its name speaks of a split or has one of the extensions, and the format recognises it. A
    file that names no split, or the same one as another file, goes by its own name. Of a file that lies there
    both plain and packed the plain one is taken.
    """
    chosen: dict[str, Path] = {}
    for path in files_in(folder):
        stem, extension = stem_and_extension(path)
        wanted = split_of(stem) is not None or extension in extensions
        if plain_name(path) not in chosen and wanted and not stem.endswith(LABEL_NAMES) and recognises(path):
            chosen[plain_name(path)] = path
    return named_parts({path: stem_and_extension(path)[0] for path in chosen.values()})


def named_parts(stems: dict[Path, str]) -> dict[str, Path]:
    """Names for parts with these stems: the split it speaks of unless another does so too, else the stem."""
    claims: dict[str, list[Path]] = {}
    for path, stem in stems.items():
        claims.setdefault(split_of(stem) or stem, []).append(path)
    parts: dict[str, Path] = {}
    for split, paths in claims.items():
        exact = [path for path in paths if canonical_split(stems[path]) == split]
        owner = paths[0] if len(paths) == 1 else exact[0] if exact else None
        for path in paths:
            parts[split if path == owner else stems[path]] = path
    return in_order(parts)


def sharded_parts(stems: dict[Path, str], folder: Path, extension: str = "") -> dict[str, Path]:
    """As `named_parts`, but several of one split are one part, under a path with stars that `sharded_split` knows.

    One that is called after the split alone is its part, and the others then go by their own names.
    """
    claims: dict[str, list[Path]] = {}
    for path, stem in stems.items():
        claims.setdefault(split_of(stem) or "", []).append(path)
    found = {stems[path]: path for path in claims.pop("", [])}
    for split, paths in claims.items():
        exact = [path for path in paths if stems[path].lower() in ALIASES[split]]
        if exact:
            owner = min(exact, key=lambda path: ALIASES[split].index(stems[path].lower()))
            found |= {split if path == owner else stems[path]: path for path in paths}
        else:
            found[split] = paths[0] if len(paths) == 1 else folder / f"*{split}*{extension}"
    return in_order(found)


def sharded_split(path: Path, extension: str = "") -> str | None:
    """The split of a path with stars as `sharded_parts` gives it; None for the path of a single file or folder."""
    if path.exists():
        return None
    return next((split for split in ALIASES if path.name == f"*{split}*{extension}"), None)


def in_order(parts: dict[str, Path]) -> dict[str, Path]:
    """Train, valid and test first, then the others by name."""
    order = list(ALIASES)
    return {
        split: parts[split]
        for split in sorted(parts, key=lambda split: (order.index(split) if split in order else 9, split))
    }
