"""The data of a run: named sets, folders with parts or single files, split as configured, all in one label space."""

from __future__ import annotations

import io
import logging
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy import sparse

from labelwise.config import ConfigSource
from labelwise.data.catalogue import dataset as named_dataset
from labelwise.data.catalogue import downloaded_folder, near_sets
from labelwise.data.catalogue import entry as known_entry
from labelwise.data.catalogue import names as named_sets
from labelwise.data.csr import widened
from labelwise.data.dataset import HASH, Dataset, EmptyPartError, check_labelled
from labelwise.data.describe import doubt_about_labels
from labelwise.data.formats.csv import OTHER_SPREADSHEETS
from labelwise.data.images import is_image_name
from labelwise.data.options import ALIASES, ReadOptions, stem_and_extension
from labelwise.data.out_of_core import scratch_beside, split_mapped, take_mapped
from labelwise.data.read import (
    AUTO,
    FORMATS,
    detect,
    expand_paths,
    find_parts,
    format_named,
    has_parts,
    read,
    read_splits,
)
from labelwise.data.rows import concat
from labelwise.data.stream import decoded_line, open_stream
from labelwise.errors import ConfigError, DataError
from labelwise.io.folder import MANIFEST, is_run_folder
from labelwise.runs.config import DataSection
from labelwise.runs.vectors import attach_to_parts, vectors_file

log = logging.getLogger("labelwise")

LARGE_INPUT = 64 << 20
"""Bytes of files from which on the documents to predict for are not held in memory."""
FEW_DOCUMENTS = 100
"""A held-out part with fewer documents is too small to rely on."""


@dataclass(frozen=True)
class Purpose:
    """What documents are held out for."""

    name: str
    seed: int
    """Added to the seed of the splits, so that each is drawn independently."""
    without: str
    """What follows if there is no such part."""
    with_few: str
    """What follows if it has few documents."""


TEST = Purpose("test", 0, "the model is not evaluated", "the scores vary by chance, see their intervals")
VALID = Purpose("valid", 1, "nothing stops the training early", "early stopping and calibration are unreliable")
CALIBRATION = Purpose("calibration", 2, "scores are not probabilities", "probabilities and threshold are unreliable")


@dataclass(frozen=True)
class RunData:
    """The parts of a run's data; valid and test are aligned to the labels of train."""

    train: Dataset
    valid: Dataset | None
    test: Dataset | None


def load_run_data(section: DataSection, scratch: Path | None = None) -> RunData:
    """Read the data of a config's data section; with a `scratch` folder, rows are written there and memory-mapped."""
    if section.mapped:
        _refuse_unmapped(section)
    parts = _parts_of_path(section, scratch) if section.path is not None else _parts_of_files(section, scratch)
    if section.features is not None:
        parts = attach_to_parts(parts, vectors_file(section.features))
    train, valid, test = parts.pop("train"), parts.get("valid"), parts.get("test")  # pop frees the unsplit rows
    if not len(train):
        raise DataError(f"{train.name}: there are no documents")
    check_labelled(train.labels, train.name, "there is nothing to learn")
    doubt = doubt_about_labels(train.label_counts(), len(train), section.options.chosen_label_column)
    if doubt is not None:
        log.warning("%s: %s", train.name, doubt)
    if section.test_fraction is not None:
        if test is not None:
            raise DataError("data.test_fraction is given, but the data has a test part already; remove one of them")
        train, test = hold_out(train, section.test_fraction, section, TEST, scratch)
    if section.valid_fraction is not None:
        if valid is not None:
            raise DataError("data.valid_fraction is given, but the data has a valid part already; remove one of them")
        train, valid = hold_out(train, section.valid_fraction, section, VALID, scratch)
    if section.limit is not None:
        some = slice(0, section.limit)
        train = train.take(some) if scratch is None else take_mapped(train, some, scratch)
    return RunData(*_equal_width(train, valid, test))


def hold_out(
    data: Dataset, fraction: float, section: DataSection, purpose: Purpose, scratch: Path | None
) -> tuple[Dataset, Dataset | None]:
    """Split off documents for a purpose, in memory, or in files if there is a `scratch` folder.

    A split by hash takes about that fraction, so of a few documents it may take none: then there is no such part.
    """
    seed, by = section.split_seed + purpose.seed, section.split_by
    try:
        if scratch is None:
            rest, held_out = data.split(fraction, seed, by)
        else:
            rest, held_out = split_mapped(data, fraction, seed, scratch, by)
    except EmptyPartError:
        if by != HASH:
            raise
        log.warning(
            "%s: %s documents are too few to hold out %.3g of them for the %s part: there is none, and %s",
            data.name, f"{len(data):,}", fraction, purpose.name, purpose.without,
        )  # fmt: skip
        return data, None
    if by == HASH and not held_out.labels.nnz:
        log.warning(
            "none of the %s documents of the %s part has a label: there is no such part, and %s",
            f"{len(held_out):,}", purpose.name, purpose.without,
        )  # fmt: skip
        return data, None
    if by == HASH and len(held_out) < FEW_DOCUMENTS:
        log.warning(
            "the %s part has %s documents, too few to rely on: %s", purpose.name, len(held_out), purpose.with_few
        )
    return rest, held_out


def _refuse_unmapped(section: DataSection) -> None:
    """Refuse data in a format whose rows cannot be memory-mapped."""
    given = [path for part in (section.train, section.valid, section.test) if part for path in expand_paths(part)]
    for path in [section.path, *map(str, given)]:
        if path is not None and Path(path).exists():
            format = detect(path) if section.format == AUTO else format_named(section.format)
        elif path is not None and path == section.path:
            format = format_named(known_entry(known_name(path, "data.path")).format)
        else:
            continue  # a missing file is reported when it is read
        if format.read_mapped is None:
            mappable = [name for name in FORMATS if format_named(name).read_mapped is not None]
            raise ConfigError(
                f"data.mapped: {path} is in the format {format.name}, whose documents are read into memory; rows of "
                f"{', '.join(mappable)} can be mapped. Leave out data.mapped"
            )


def _equal_width(*parts: Dataset | None) -> list[Any]:
    """Sparse parts with the same number of features: a file without a header may lack the last ones."""
    sparse_parts: list[Any] = [p.features for p in parts if p is not None and sparse.issparse(p.features)]
    width = max((features.shape[1] for features in sparse_parts), default=0)
    return [
        part
        if part is None or not sparse.issparse(part.features) or part.features.shape[1] == width
        else replace(part, features=widened(part.features, width))
        for part in parts
    ]


def _parts_of_path(section: DataSection, scratch: Path | None) -> dict[str, Dataset]:
    path = str(section.path)
    if Path(path).is_file():
        return {"train": read(path, section.format, None, section.options, scratch=scratch)}
    if Path(path).exists():
        found = find_parts(path, section.format)[1]
        only = tuple(ALIASES) if "train" in found else None  # other files of the folder are none of this run's data
        parts = read_splits(path, section.format, section.options, scratch, only)
        if len(found) == 1 and not found.keys() & ALIASES.keys():
            parts = {"train": next(iter(parts.values()))}
    else:
        name = known_name(path, "data.path")
        if section.format != "auto" or section.options != ReadOptions():
            raise ConfigError(f"data: {name} is a known data set; its format is known, leave out format and options")
        parts = named_dataset(name, scratch=scratch)
    if "train" not in parts:
        hint = "; the folder is one part itself, give it as data.train" if _is_a_part(path, section.format) else ""
        raise DataError(f"{path}: there is no training part; parts: {', '.join(parts) or 'none'}{hint}")
    return parts


def known_name(name: str, where: str) -> str:
    """Return the name of a known data set, or raise an error: there is no such file or folder either."""
    if name in named_sets():
        return name
    question = near_sets(name)
    hint = f"; {question}" if question else ", nor a known data set of that name"
    raise DataError(f"{where}: there is no file or folder {name}{hint}")


def read_part(
    path: str,
    format: str,
    split: str | None,
    options: ReadOptions | None = None,
    labels: bool = True,
    scratch: Path | None = None,
) -> Dataset:
    """One part of a file, a folder or a known data set; with a `scratch` folder, documents are mapped from there."""
    if Path(path).exists():
        return read(path, format, split if has_parts(path) else None, options, labels, scratch)
    data = named_dataset(known_name(path, "data"), split, scratch=scratch)
    if not isinstance(data, Dataset):
        raise DataError(f"{path} has the parts {', '.join(data)}; choose one with --split")
    return data


@contextmanager
def scratch_for(path: str, output: str | None = None) -> Iterator[Path | None]:
    """A folder for the documents of a large file or folder while they are read; None for small ones.

    It is beside the output file, which is on a disk with space, or where temporary files are.
    """
    if _bytes_in(Path(path)) < LARGE_INPUT:
        yield None
    elif output not in (None, "-"):
        with scratch_beside(Path(output)) as folder:
            yield folder
    else:
        with scratch_beside(Path(tempfile.gettempdir()) / "documents") as folder:
            yield folder


def _bytes_in(path: Path) -> int:
    try:
        files = path.rglob("*") if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files if file.is_file())
    except OSError:
        return 0


def _is_a_part(path: str, format: str) -> bool:
    """Whether this is a single part of any name, and not a folder of parts."""
    return not has_parts(path) or Path(path) in find_parts(path, format)[1].values()


def _parts_of_files(section: DataSection, scratch: Path | None) -> dict[str, Dataset]:
    parts: dict[str, Dataset] = {}
    for name in ("train", "valid", "test"):
        given = getattr(section, name)
        if given is not None:
            part = _read_joined(expand_paths(given), name, section, scratch)
            parts[name] = part.align(parts["train"].label_names) if parts else part
    return parts


def _read_joined(paths: list[Path], name: str, section: DataSection, scratch: Path | None) -> Dataset:
    """One part from one or several files or folders."""
    pieces = []
    for path in paths:
        chosen = None if _is_a_part(str(path), section.format) else name
        pieces.append(read(path, section.format, chosen, section.options, scratch=scratch))
    return concat(pieces, pieces[0].name if len(pieces) == 1 else None, scratch=scratch)


# --- from data ---
# The config of a run on given data, without a config file: what `labelwise train DATA.csv` does.
#
# A test part and a calibration part are held out by a hash of each document, unless the data has parts of its own, and
# the saved model is trained on everything once the scores are known. Every default can be overridden as in a config.

CONFIG_EXTENSIONS = (".yml", ".yaml")
METHOD, AUTO_METHOD, BASELINE = "linear_tree", "auto", "popularity"
"""The method if none is given; the name that stands for a choice; what the choice begins with."""
FRACTION = 0.1


def is_config(argument: str) -> bool:
    """Whether an argument of `train` is a config: a YAML file, or `-` for standard input. Anything else is data."""
    return argument == "-" or Path(argument).suffix.lower() in CONFIG_EXTENSIONS


def config_from_data(
    data: Sequence[str],
    options: Mapping[str, str],
    method: str | None,
    folder: str | None,
    overrides: Sequence[str],
    budget: float | None = None,
) -> ConfigSource:
    """A run config for data: files (read as one part), a folder with its parts, or a known data set.

    `options` are reading options that the command line has names for; `overrides` are `--set` assignments. With the
    method `auto`, documents are held out to compare methods on, which also serve for the calibration, and the section
    `model` is that of a baseline until one is chosen within the `budget` of seconds.
    """
    described = " ".join(data)
    source = ConfigSource({}, f"{AUTO_METHOD if method == AUTO_METHOD else 'train'} {described}").override(overrides)
    if method == AUTO_METHOD and "model" in source.values:
        raise ConfigError("auto chooses the method and its parameters; leave out --set model")
    section, calibrate, run = (_section(source, name) for name in ("data", "calibrate", "run"))
    format = section.get("format", AUTO)
    parts = _parts(data, format if isinstance(format, str) else AUTO)
    whole = data[0] if len(data) == 1 else list(data)
    key = "path" if len(data) == 1 and not Path(data[0]).is_file() and "train" in parts else "train"
    _set(section, key, whole, described, f"data.{key}")
    for key, value in options.items():
        _set(_section(source, "data", "options"), key, value, f"{key}={value}", f"data.options.{key}")
    section.setdefault("split_by", "hash")
    if "test" not in parts and section.get("test") is None:
        section.setdefault("test_fraction", FRACTION)
    has_valid = "valid" in parts or any(section.get(key) is not None for key in ("valid", "valid_fraction"))
    if not has_valid and method == AUTO_METHOD:
        section["valid_fraction"] = FRACTION
    elif not has_valid and calibrate.get("enabled") is not False:
        calibrate.setdefault("fraction", FRACTION)
    model = _section(source, "model")
    if method == AUTO_METHOD:
        model["method"] = BASELINE
    elif method is not None:
        _set(model, "method", method, f"--method {method}", "model.method")
    if folder is not None:
        _set(run, "folder", folder, f"-o {folder}", "run.folder")
    if budget is not None:
        _set(run, "time_budget", budget, f"--budget {budget:g}s", "run.time_budget")
    model.setdefault("method", METHOD)
    run.setdefault("folder", str(Path("runs") / _name(data[0])))
    run.setdefault("refit", True)
    return source


def _section(source: ConfigSource, *names: str) -> dict[str, Any]:
    """A section of the config, created if it is missing; the config's own check refuses other values."""
    values = source.values
    for name in names:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            return {}
    return values


def _set(section: dict[str, Any], key: str, value: Any, given: str, name: str) -> None:
    """Set what the command line gives; another value with `--set` is refused, because one of them would be ignored."""
    if section.get(key, value) != value:
        raise ConfigError(f"{given} and --set {name}={section[key]} contradict each other; leave out one of them")
    section[key] = value


def _parts(data: Sequence[str], format: str) -> set[str]:
    """The parts (train, valid, test) that the data has of its own."""
    if len(data) > 1:
        missing = [str(path) for path in expand_paths(data) if not path.exists()]
        if missing:
            raise DataError(f"there is no file {missing[0]}")
        return set()
    path = Path(data[0])
    if path.exists() and has_parts(path):
        _refuse_results(path)
        found = find_parts(path, format)[1]
        if len(found) == 1 and not found.keys() & ALIASES.keys() and path not in found.values():
            return {"train"}  # one file of another name
        return set(found) & set(ALIASES)
    if path.exists() or expand_paths(path) != [path]:
        return set()
    if path.suffix:
        raise DataError(f"there is no file {path}")
    name = known_name(str(path), "data")
    return set(find_parts(downloaded_folder(name), known_entry(name).format)[1]) & set(ALIASES)


def _refuse_results(folder: Path) -> None:
    if is_run_folder(folder):
        raise ConfigError(f"{folder}: this is a run folder, not data; labelwise train {folder}/config.yml resumes it")
    if (folder / MANIFEST).exists() and not format_named("native").recognises(folder):
        raise ConfigError(f"{folder}: this is a model folder, not data")


def _name(path: str) -> str:
    """A name for the run: that of the file without extensions, or of the folder."""
    plain = Path(path).resolve()
    name = plain.name if plain.is_dir() else stem_and_extension(plain)[0]
    return "".join(character for character in name if character not in "*?[]") or "run"


# --- documents ---
# Input documents of a command: a file of texts, one per line, standard input, or a data set.

PIECE = 1 << 20
"""Bytes read at a time."""


@dataclass(frozen=True)
class Request:
    """Which documents to predict for, and which predictions to output."""

    documents: str
    """A file, a folder, the name of a known data set, `-` for standard input, or a text."""
    format: str = "auto"
    """`text` for one text (or path, if the model reads files) per line, a data format, or `auto`: a data format if the
    name says so, text otherwise."""
    split: str = "test"
    options: ReadOptions = field(default_factory=ReadOptions)
    k: int | None = None
    """Maximum number of labels per document. None: 10, or as many as reach the threshold."""
    threshold: float | None = None
    labels: str | None = None
    """File of allowed labels, one per line."""
    label_weights: str | None = None
    """File of label<TAB>factor lines; scores are multiplied by the factors."""
    explain: int | None = None
    """Words to list per predicted label: those that contributed most."""
    is_the_text: bool = False
    """Whether `documents` is a text itself."""
    features: str | None = None
    """File of vectors next to the documents."""


def is_text_argument(argument: str, format: str, model: str) -> bool:
    """Whether an argument is a text and not the name of documents: there is no such file, and it has a blank.

    Raises an error that names both readings, and the command for a text with this model, if it can be neither.
    """
    if argument == "-" or format not in ("auto", "text"):
        return False
    if not argument.strip():
        raise ConfigError("no text given: the argument is empty; give a text, a file, or - for standard input")
    try:
        if Path(argument).exists() or argument in named_sets():
            return False
    except (OSError, ValueError):
        return True  # no path at all: too long, or with a NUL byte
    file_name = stem_and_extension(Path(argument))[1] in {*_data_extensions(), ".txt"}
    if len(argument.split()) > 1 and not file_name:
        return True
    question = near_sets(argument)
    hint = f" ({question})" if question else ""
    reading = "it looks like the name of a file" if file_name else "a text has more than one word"
    if is_image_name(argument):
        raise DataError(f"there is no file '{argument}'{hint}")
    raise DataError(
        f"there is no file, folder or known data set '{argument}'{hint}, and as a text it is not read, because "
        f"{reading}; to read it as a text: echo {shlex.quote(argument)} | "
        f"labelwise predict {shlex.quote(model)}"
    )


def is_text(request: Request) -> bool:
    """Whether the documents are plain text, one per line."""
    if request.is_the_text:
        return True
    if request.documents == "-":
        if request.format not in ("auto", "text"):
            raise ConfigError("standard input is read as texts, one per line; other formats need a file")
        return True
    if request.format != "auto":
        return request.format == "text"
    path = Path(request.documents)
    return path.is_file() and stem_and_extension(path)[1] not in {*_data_extensions(), *OTHER_SPREADSHEETS}


def _data_extensions() -> set[str]:
    """Extensions of data formats, without .txt, which may be anything."""
    formats = [format_named(name) for name in FORMATS]
    return {extension for one in formats for extension in (one.extension, *one.other_extensions)} - {"", ".txt"}


def open_documents(documents: str) -> Any:
    """Open a file (decompressed) or standard input, in binary mode."""
    if documents == "-":
        if sys.stdin is None:
            raise DataError("standard input is closed: give a file", "stdin")
        return nullcontext(sys.stdin.buffer)
    return io.BufferedReader(open_stream(documents), PIECE)


def warn_empty(name: str) -> None:
    """Warn of a file or stream of lines without any: a stream may be empty, a file is more likely the wrong one."""
    log.warning("%s: there are no documents, it is empty; one per line is expected", name)


def decode_lines(lines: Iterable[bytes], name: str, first: int, options: ReadOptions) -> tuple[list[str], int]:
    """Decode lines, numbered from `first`; also returns in how many lines invalid bytes were replaced."""
    lines_and_flags = [
        decoded_line(line.removesuffix(b"\r"), name, number, options.encoding, options.on_bad_bytes)
        for number, line in enumerate(lines, first)
    ]
    return [text for text, _ in lines_and_flags], sum(replaced for _, replaced in lines_and_flags)
