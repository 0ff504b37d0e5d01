"""A corpus from Debian's package index: a package's description is the text, what it needs are the labels.

The index lies on every Debian and Ubuntu machine after `apt-get update`. It is read where it stands; nothing
is downloaded. Long descriptions come from the translation files when apt keeps them.
"""

from __future__ import annotations

import io
import logging
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from labelwise.data.builders.corpus import Built, Document, write_corpus
from labelwise.data.files import open_stream
from labelwise.errors import DataError

log = logging.getLogger(__name__)

LISTS = Path("/var/lib/apt/lists")
APT_HELPER = "/usr/lib/apt/apt-helper"
_PACKAGES = re.compile(r"(^|.*_)Packages(\.(gz|xz|bz2|lz4))?")
_TRANSLATION = re.compile(r".*_Translation-en(\.(gz|xz|bz2|lz4))?")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.\-]*")
_FIELDS = ("Package", "Depends", "Description", "Description-en", "Description-md5")


def build_debian(
    folder: str | Path,
    lists: str | Path | None = None,
    seed: int = 0,
    limit: int | None = None,
    min_label_count: int = 1,
    force: bool = False,
) -> Built:
    """Build the corpus into a folder of line files.

    Parameters
    ----------
    lists
        Folder with apt's index files; not given: /var/lib/apt/lists.
    seed, limit, min_label_count, force
        As for `build_pydocs`.
    """
    place = Path(lists) if lists is not None else LISTS
    packages, skipped = _readable(place, _PACKAGES)
    translations, _ = _readable(place, _TRANSLATION)
    if not packages:
        if skipped:
            raise DataError(f"only files that apt itself can unpack are here, and {APT_HELPER} is not", place)
        raise DataError("there is no package index here; `apt-get update` (as root) fetches it", place)
    long_texts = _long_descriptions(translations)
    documents = _documents((stanza for path in packages for stanza in _stanzas(path)), long_texts)
    source = {
        "builder": "debian",
        "indexes": [path.name for path in packages],
        "translations": [path.name for path in translations],
        "indexes_skipped": [path.name for path in skipped],
    }
    return write_corpus(folder, documents, source, seed, limit, min_label_count, force)


def _readable(place: Path, pattern: re.Pattern[str]) -> tuple[list[Path], list[Path]]:
    """Index files that can be read, and those that cannot."""
    try:
        found = sorted(path for path in place.iterdir() if pattern.fullmatch(path.name) and path.is_file())
    except OSError:
        return [], []
    can_lz4 = shutil.which(APT_HELPER) is not None
    readable = [path for path in found if path.suffix != ".lz4" or can_lz4]
    return readable, [path for path in found if path not in readable]


def _lines(path: Path) -> Iterator[str]:
    if path.suffix == ".lz4":
        command = [APT_HELPER, "cat-file", str(path.absolute())]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as helper:
            for line in helper.stdout or ():
                yield line.decode("utf-8", "replace").rstrip("\n")
        if helper.returncode:
            raise DataError(f"apt's own {APT_HELPER} could not unpack it", path)
        return
    with io.BufferedReader(open_stream(path), 1 << 20) as lines:
        for line in lines:
            yield line.decode("utf-8", "replace").rstrip("\n")


def _stanzas(path: Path) -> Iterator[dict[str, str]]:
    """The records of an index: fields up to an empty line; a line that begins with a blank continues one."""
    fields: dict[str, list[str]] = {}
    current: list[str] = []
    for line in _lines(path):
        if not line.strip():
            if fields:
                yield {name: "\n".join(lines) for name, lines in fields.items()}
            fields = {}
        elif line[0] in " \t":
            current.append(line.strip())
        else:
            name, _, value = line.partition(":")
            current = [value.strip()]
            if name in _FIELDS:
                fields[name] = current
    if fields:
        yield {name: "\n".join(lines) for name, lines in fields.items()}


def _long_descriptions(files: Sequence[Path]) -> dict[str, str]:
    """Descriptions by the sum that the package index names them by."""
    return {
        stanza["Description-md5"]: stanza["Description-en"]
        for path in files
        for stanza in _stanzas(path)
        if "Description-md5" in stanza and "Description-en" in stanza
    }


def _documents(stanzas: Iterable[dict[str, str]], long_texts: dict[str, str]) -> Iterator[Document]:
    """One document a package: of a package in several indexes the first."""
    seen: set[str] = set()
    for stanza in stanzas:
        name, text = stanza.get("Package", ""), stanza.get("Description", "")
        if not name or name in seen:
            continue
        seen.add(name)
        if "\n" not in text:
            text = long_texts.get(stanza.get("Description-md5", ""), text)
        labels = dependencies(stanza.get("Depends", ""))
        plain = " ".join(word for word in text.split() if word != ".")
        if plain and labels:
            yield Document(plain, tuple(labels))


def dependencies(field: str) -> list[str]:
    """The names in a Depends field: without versions and architectures, of alternatives all."""
    names = []
    for alternative in re.split(r"[,|]", field):
        match = _NAME.match(alternative.strip())
        if match:
            names.append(match[0])
    return list(dict.fromkeys(names))
