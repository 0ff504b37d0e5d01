"""`cifar`: the files of CIFAR-10 and CIFAR-100, binary or Python's, in a folder or in their tar archive. Only read.

Images become arrays [documents, 32, 32, 3]. Of CIFAR-100 the fine labels are read. Python's files are pickles, which
are interpreted without running anything (`restricted_pickle`).
"""

from __future__ import annotations

import codecs
import io
import re
import struct
import tarfile
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.archives import DAMAGED
from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.options import ReadOptions, files_in, sort_parts
from labelwise.data.stream import first_bytes, open_stream
from labelwise.data.tables import refuse_empty
from labelwise.errors import DataError
from labelwise.strings import Strings

# --- restricted pickle ---
# Reads pickled plain data (CIFAR archives, `.bin` sets of faces) without running anything.
#
# A pickle is a program; here it is interpreted by a machine that knows containers, strings, numbers and NumPy arrays of
# numbers, and no other object. Names of modules are compared with a list and never imported. Memory is bounded by a
# multiple of the file's size: arrays are views of its bytes, and what is decoded, nested or numbered is counted. Time
# is linear in it. All protocols from 0 to 5 are read; strings of Python 2 become bytes.

MAX_LINE = 1 << 20
DECODED_PER_BYTE = 4
"""Bytes that conversions of strings may create, per byte of the file."""
BYTES_PER_OBJECT, FEW_OBJECTS = 4, 10_000
"""Bytes of the file per container, and per number of the memo; fewer are refused where there are many. Python writes at
least 5 for a short string or tuple that it numbers."""
NUMBER_KINDS = "biuf"
_MARK = object()


class _Symbol:
    """A name that a pickle refers to; it stands for itself and is never imported."""

    def __init__(self, name: str) -> None:
        self.name = name


class _UnfinishedArray:
    """What `_reconstruct` returns, before its state is set."""

    index: int | None = None
    """Its number in the memo."""


class _UnfinishedType:
    """What `dtype(...)` returns; its byte order follows."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "="

    def finished(self) -> np.dtype:
        dtype = np.dtype(self.code)
        return dtype.newbyteorder(">") if self.order == ">" else dtype


_RECONSTRUCT, _SCALAR, _FROM_BUFFER = "_reconstruct", "scalar", "_frombuffer"
_ALLOWED = {
    **{(f"numpy.{core}.multiarray", name): name for core in ("core", "_core") for name in (_RECONSTRUCT, _SCALAR)},
    **{(f"numpy.{core}.numeric", _FROM_BUFFER): _FROM_BUFFER for core in ("core", "_core")},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
    ("__builtin__", "bytes"): "bytes",  # how protocols 0 to 2 write empty ones
}


def read_pickle(content: bytes | memoryview, path: str | Path) -> Any:
    """The value of a pickle: dict, list, tuple, str, bytes, int, float, bool, None and arrays of numbers.

    Raises a `DataError` that names `path` for anything else, and for damaged files.
    """
    machine = _Machine(memoryview(content), path)
    try:
        return machine.run()
    except DataError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, SyntaxError, OverflowError, struct.error) as error:
        raise DataError(f"the pickle is damaged at byte {machine.at:,} ({error})", path) from None


class _Machine:
    """The stack machine of pickles, for plain data only."""

    def __init__(self, content: memoryview, path: str | Path) -> None:
        self.content, self.path, self.at = content, path, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.decoded = self.containers = 0
        self.most_objects = FEW_OBJECTS + len(content) // BYTES_PER_OBJECT

    def run(self) -> Any:
        """Interpret operations until the one that ends the pickle."""
        while True:
            if self.at >= len(self.content):
                raise self.refuse("ends too early; copy or download it again")
            code = self.content[self.at : self.at + 1].tobytes()
            self.at += 1
            if code == b".":
                return _checked(self.stack.pop())
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise self.refuse(
                    f"the pickle has the operation {code!r} at byte {self.at - 1:,}, which plain data does not need; "
                    "it is not run"
                )
            operation(self)

    def refuse(self, reason: str) -> DataError:
        return DataError(reason, self.path)

    # --- the bytes ---

    def take(self, count: int) -> memoryview:
        """The next bytes, as a view."""
        if count < 0 or count > len(self.content) - self.at:
            raise self.refuse("a string reaches beyond the end of the file; copy or download it again")
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, format: str) -> Any:
        return struct.unpack(format, self.take(struct.calcsize(format)))[0]

    def line(self) -> bytes:
        """The bytes up to the next line feed."""
        size, end, piece = 64, -1, b""
        while end < 0:
            piece = self.content[self.at : self.at + size].tobytes()
            end = piece.find(b"\n")
            if end < 0 and (size >= MAX_LINE or len(piece) < size):
                raise self.refuse("a line has no end; copy or download the file again")
            size *= 8  # most lines are short, and copying 1 MB for each would take hours
        self.at += end + 1
        return piece[:end]

    def count_bytes(self, size: int) -> None:
        """Refuse to create many times as many bytes as the file has."""
        self.decoded += size
        if self.decoded > DECODED_PER_BYTE * len(self.content) + MAX_LINE:
            raise self.refuse("the pickle repeats its strings until they are much larger than the file")

    # --- the stack ---

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def push_container(self, value: Any) -> None:
        self.containers += 1
        if self.containers > self.most_objects:
            raise self.refuse(
                "the pickle has hardly anything but containers, which need much more memory than the file"
            )
        self.push(value)

    def to_mark(self) -> list[Any]:
        """Pop everything above the last mark, and the mark."""
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is _MARK:
                items = self.stack[index + 1 :]
                del self.stack[index:]
                return items
        raise self.refuse("the pickle is damaged: a mark is missing")

    def top(self, kind: type) -> Any:
        value = self.stack[-1]
        if type(value) is not kind:
            raise self.refuse(f"the pickle is damaged: a {kind.__name__} is expected, got {type(value).__name__}")
        return value

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict)
        if len(items) % 2:
            raise self.refuse("the pickle is damaged: a key has no value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, Hashable) or isinstance(key, tuple):
                raise self.refuse(f"keys of {type(key).__name__} are not read")
            target[key] = value

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def new_tuple(self, count: int) -> None:
        if count > len(self.stack):
            raise self.refuse("the pickle is damaged: a tuple lacks its items")
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        self.push_container(items)

    def keep(self, index: int) -> None:
        value = self.memo[index] = self.stack[-1]
        if isinstance(value, _UnfinishedArray):
            value.index = index
        if len(self.memo) > self.most_objects:
            raise self.refuse("the pickle numbers more objects than a file of its size can have")

    # --- names and objects ---

    def name(self, module: Any, attribute: Any) -> None:
        key = (_text(module), _text(attribute))
        if key not in _ALLOWED:
            raise self.refuse(
                f"the pickle refers to {key[0]}.{key[1]}; only plain data and NumPy arrays are read, nothing is run"
            )
        self.push(_Symbol(_ALLOWED[key]))

    def reduce(self) -> None:
        """The few calls that arrays and bytes are written as."""
        arguments, symbol = self.stack.pop(), self.stack.pop()
        if not isinstance(symbol, _Symbol) or not isinstance(arguments, tuple):
            raise self.refuse("the pickle calls an object that is no array; nothing is run")
        if symbol.name == _RECONSTRUCT:
            self.push(_UnfinishedArray())
        elif symbol.name == "dtype":
            code = _text(arguments[0])
            if len(code) > 8 or np.dtype(code).kind not in NUMBER_KINDS:
                raise self.refuse(f"arrays of type {code[:20]!r} are not read, only numbers")
            self.push(_UnfinishedType(code))
        elif symbol.name == "encode":
            text, encoding = arguments
            if _text(encoding) != "latin1" or not isinstance(text, str):
                raise self.refuse("the pickle converts a string in an unknown way")
            self.count_bytes(len(text))
            self.push(text.encode("latin1"))
        elif symbol.name == "bytes" and not arguments:
            self.push(b"")
        elif symbol.name == _SCALAR:
            self.push(self.array((), *arguments)[()].item())
        elif symbol.name == _FROM_BUFFER:
            content, dtype, shape, order = arguments
            self.push(self.array(shape, dtype, content, _text(order) == "F"))
        else:
            raise self.refuse(f"the pickle calls {symbol.name}, which is not read")

    def build(self) -> None:
        """The state of an array or of its type."""
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, _UnfinishedType):
            if not isinstance(state, tuple) or len(state) < 2:
                raise self.refuse("the type of an array is damaged")
            target.order = _text(state[1])
        elif isinstance(target, _UnfinishedArray):
            _, shape, dtype, fortran, content = state
            finished = self.array(shape, dtype, content, bool(fortran))
            self.stack[-1] = finished
            if target.index is not None and self.memo[target.index] is target:
                self.memo[target.index] = finished
        else:
            raise self.refuse(f"the pickle sets the state of a {type(target).__name__}; nothing is run")

    def array(self, shape: Any, dtype: Any, content: Any, fortran: bool = False) -> np.ndarray:
        """An array over the bytes of the file."""
        if not isinstance(dtype, _UnfinishedType) or not isinstance(content, bytes | memoryview):
            raise self.refuse("an array is damaged: its type or its content is missing")
        if not isinstance(shape, tuple) or len(shape) > 8 or not all(type(n) is int and n >= 0 for n in shape):
            raise self.refuse("an array is damaged: its shape is no tuple of sizes")
        values, size = np.frombuffer(content, dtype.finished()), 1
        for length in shape:
            size *= length
        if size != len(values):
            raise self.refuse(f"an array is damaged: {len(values):,} values for the shape {shape}")
        return values.reshape(shape, order="F" if fortran else "C")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise ValueError(f"a name is a {type(value).__name__}")
    return value.decode("ascii")


def _checked(value: Any) -> Any:
    """The value, if names and unfinished objects are neither it nor anywhere in it."""
    todo, seen = [value], set()
    while todo:
        one = todo.pop()
        if isinstance(one, _Symbol | _UnfinishedArray | _UnfinishedType) or one is _MARK:
            raise ValueError("it ends before its value is complete")
        if isinstance(one, list | tuple | dict) and id(one) not in seen:
            seen.add(id(one))
            todo.extend(one)
            if isinstance(one, dict):
                todo.extend(one.values())
    return value


def _protocol_number(line: bytes) -> int | bool:
    """Protocol 0 writes False and True as 00 and 01."""
    return line == b"01" if line in (b"00", b"01") else int(line)


def _quoted(line: bytes) -> bytes:
    if len(line) < 2 or line[:1] not in b"'\"" or line[-1:] != line[:1]:
        raise ValueError("a string without quotes")
    return codecs.escape_decode(line[1:-1])[0]  # type: ignore[missing-attribute]


def _restricted_pickle_binary(format: str) -> Callable[[_Machine], None]:
    return lambda m: m.push(m.take(m.number(format)).tobytes())


def _unicode(format: str) -> Callable[[_Machine], None]:
    return lambda m: m.push(m.take(m.number(format)).tobytes().decode("utf-8", "surrogatepass"))


def _long(format: str) -> Callable[[_Machine], None]:
    def push(machine: _Machine) -> None:
        size = machine.number(format)
        if size > 16:
            raise machine.refuse("a number of more than 16 bytes is not read")
        machine.push(int.from_bytes(machine.take(size), "little", signed=True))

    return push


_OPERATIONS: dict[bytes, Callable[[_Machine], Any]] = {
    b"\x80": lambda m: m.number("<B"),  # protocol
    b"\x95": lambda m: m.number("<Q"),  # frame
    b"(": lambda m: m.push(_MARK),
    b"0": lambda m: m.stack.pop(),
    b"1": lambda m: m.to_mark(),
    b"2": lambda m: m.push(m.stack[-1]),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"I": lambda m: m.push(_protocol_number(m.line())),
    b"L": lambda m: m.push(int(m.line()[:40].rstrip(b"L"))),
    b"F": lambda m: m.push(float(m.line())),
    b"J": lambda m: m.push(m.number("<i")),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"G": lambda m: m.push(m.number(">d")),
    b"\x8a": _long("<B"),
    b"\x8b": _long("<i"),
    b"S": lambda m: m.push(_quoted(m.line())),
    b"V": lambda m: m.push(m.line().decode("raw-unicode-escape")),
    b"T": _restricted_pickle_binary("<i"),
    b"U": _restricted_pickle_binary("<B"),
    b"C": _restricted_pickle_binary("<B"),
    b"B": _restricted_pickle_binary("<I"),
    b"\x8e": _restricted_pickle_binary("<Q"),
    b"\x96": _restricted_pickle_binary("<Q"),
    b"X": _unicode("<I"),
    b"\x8c": _unicode("<B"),
    b"\x8d": _unicode("<Q"),
    b"]": lambda m: m.push_container([]),
    b"}": lambda m: m.push_container({}),
    b")": lambda m: m.push(()),
    b"l": lambda m: m.push_container(m.to_mark()),
    b"t": lambda m: m.push_container(tuple(m.to_mark())),
    b"d": lambda m: (items := m.to_mark(), m.push_container({}), m.set_items(items)),
    b"\x85": lambda m: m.new_tuple(1),
    b"\x86": lambda m: m.new_tuple(2),
    b"\x87": lambda m: m.new_tuple(3),
    b"a": lambda m: (item := m.stack.pop(), m.extend([item])),
    b"e": lambda m: m.extend(m.to_mark()),
    b"s": lambda m: m.set_item(),
    b"u": lambda m: m.set_items(m.to_mark()),
    b"p": lambda m: m.keep(int(m.line())),
    b"q": lambda m: m.keep(m.number("<B")),
    b"r": lambda m: m.keep(m.number("<I")),
    b"\x94": lambda m: m.keep(len(m.memo)),
    b"g": lambda m: m.push(m.memo[int(m.line())]),
    b"h": lambda m: m.push(m.memo[m.number("<B")]),
    b"j": lambda m: m.push(m.memo[m.number("<I")]),
    b"c": lambda m: m.name(m.line(), m.line()),
    b"\x93": lambda m: (attribute := m.stack.pop(), m.name(m.stack.pop(), attribute)),
    b"R": lambda m: m.reduce(),
    b"b": lambda m: m.build(),
}


NAME = "cifar"
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
MAX_BYTES = 1 << 30
"""Most bytes of one file, and of all files of an archive; the largest real archive has 186 million."""
MAX_MEMBERS = 1000
TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
BATCHES = re.compile(r"data_batch_\d+(\.bin)?")
PARTS = {
    "test_batch": "test", "test_batch.bin": "test", "train": "train", "test": "test", "train.bin": "train",
    "test.bin": "test",
}  # fmt: skip
"""Files of one part by name, besides the five batches of CIFAR-10's train."""
NAME_FILES = ("batches.meta.txt", "fine_label_names.txt", "batches.meta", "meta")
"""Files of label names, the first that is there counts."""
Open = Callable[[str], bytes | None]
"""The content of a file next to the data, by name."""


def part_of(name: str) -> str | None:
    """The part that a file belongs to, by its name."""
    return "train" if BATCHES.fullmatch(name) else PARTS.get(name)


def recognises(path: Path) -> bool:
    """Whether this is a file of one part; names without extension need a pickle and a file of label names."""
    if not path.is_file() or part_of(path.name) is None:
        return False
    if path.suffix == ".bin":
        size = path.stat().st_size
        return size > 0 and (size % (PIXELS + 1) == 0 or size % (PIXELS + 2) == 0)
    known = any((path.parent / name).is_file() for name in NAME_FILES)
    return known and first_bytes(path, 1)[:1] in (b"\x80", b"(")


def holds_parts(path: Path) -> bool:
    """Whether this is an archive whose first files are those of CIFAR, as far as it can be read.

    A truncated one is too, so that reading it reports what is wrong.
    """
    if not path.is_file() or not path.name.lower().endswith(TAR_SUFFIXES):
        return False
    known = {*PARTS, *NAME_FILES, "readme.html", "file.txt~", "coarse_label_names.txt"}
    names: list[str] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                names.append(member.name.rpartition("/")[2])
                if len(names) == 8 or member.size > MAX_BYTES:  # to find the next one, all of it would be unpacked
                    break
    except (OSError, ValueError):
        return False
    except DAMAGED:
        names.append(path.name)  # files may follow whose names cannot be read
        return any(name.startswith("cifar") or part_of(name) for name in names)
    return any(part_of(name) for name in names) and all(
        not name or name in known or part_of(name) or name.startswith("cifar") for name in names
    )


def parts(folder: Path) -> dict[str, Path]:
    """The parts of a folder, or of an archive, whose parts are named as if it were a folder."""
    if folder.is_file():
        return {"train": folder / "train", "test": folder / "test"}
    found: dict[str, Path] = {}
    for path in files_in(folder):
        if recognises(path):
            part = str(part_of(path.name))
            batch = BATCHES.fullmatch(path.name)
            found.setdefault(part, folder / f"data_batch_[0-9]*{batch[1] or ''}" if batch else path)
    return sort_parts(found)


def read(path: Path, options: ReadOptions) -> Dataset:
    """Read a file, or a part of an archive."""
    if path.parent.is_file():
        return _read_archive(path.parent, path.name, options)

    def beside(name: str) -> bytes | None:
        side = path.parent / name
        return _content(side) if side.is_file() else None

    return _dataset([(str(path), _content(path))], beside, options, str(path))


def _content(path: Path) -> bytes:
    with open_stream(path) as stream:
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise DataError(f"the file has more than {MAX_BYTES:,} bytes, which no file of CIFAR has", path)
    refuse_empty(len(content), path)
    return content


def _read_archive(archive: Path, part: str, options: ReadOptions) -> Dataset:
    """All files of a part, in the order of their names."""
    files: dict[str, bytes] = {}
    for name, content in _members(archive):
        if part_of(name) == part or name in NAME_FILES:
            if name in files:
                raise DataError(f"the archive has two files {name!r}; one data set per archive is read", archive)
            files[name] = content()
    chosen = sorted(name for name in files if part_of(name) == part)
    if not chosen:
        raise DataError(f"the archive has no files of the part '{part}'", archive)
    batches = [(f"{archive}: {name}", files[name]) for name in chosen]
    return _dataset(batches, files.get, options, str(archive / part))


def _members(archive: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names of plain files of an archive without their folders, and how to read each; nothing is written to disk."""
    try:
        with tarfile.open(archive) as tar:
            total = 0
            for count, member in enumerate(tar):
                total += member.size
                if count > MAX_MEMBERS:
                    raise DataError(f"the archive has more than {MAX_MEMBERS:,} members, CIFAR has 9", archive)
                if total > MAX_BYTES:
                    raise DataError(
                        f"the archive has more than {MAX_BYTES:,} bytes up to {member.name!r}, which no archive of "
                        "CIFAR has; it is refused",
                        archive,
                    )
                if not member.isreg() or member.issparse():
                    continue
                source: Any = tar.extractfile(member)
                yield member.name.rpartition("/")[2], partial(_member_content, source, archive)
    except (*DAMAGED, OSError) as error:
        raise _unreadable(archive, error) from None


def _member_content(source: Any, archive: Path) -> bytes:
    try:
        return source.read()
    except (*DAMAGED, OSError) as error:
        raise _unreadable(archive, error) from None


def _unreadable(archive: Path, error: Exception) -> DataError:
    if isinstance(error, EOFError) or "unexpected end of data" in str(error):
        return DataError("the archive is truncated: it ends before its last file does; download it again", archive)
    if isinstance(error, DAMAGED):
        return DataError(f"the archive is damaged ({error}); download it again", archive)
    return DataError(f"the archive cannot be read: {getattr(error, 'strerror', None) or error}", archive)


# --- contents ---------------------------------------------------------------------------------------------


def _dataset(batches: list[tuple[str, bytes]], beside: Open, options: ReadOptions, name: str) -> Dataset:
    images, labels = [], []
    for where, content in batches:
        pixels, numbers = _binary(where, content) if where.endswith(".bin") else _pickled(where, content)
        images.append(pixels)
        labels.append(numbers)
    numbers, names = np.concatenate(labels), _label_names(beside, name)
    count = len(names) if names is not None else 100 if numbers.max(initial=0) > 9 else 10
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= count):
        raise DataError(f"the label {int(numbers.max())} is not one of the {count} labels", name)
    matrix = sparse.csr_array(
        (np.ones(len(numbers), np.float32), numbers.astype(np.int32), np.arange(len(numbers) + 1)),
        shape=(len(numbers), count),
    )
    pixels = np.concatenate(images).reshape(-1, *SHAPE).transpose(0, 2, 3, 1)
    label_names = Strings.of(names) if names is not None else Strings.numbers(count)
    return Dataset(matrix, label_names, arrays=np.ascontiguousarray(pixels), name=name)


def _binary(where: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Records of one label byte (CIFAR-10) or two (CIFAR-100: coarse, fine) and the pixels, channel by channel."""
    batch = BATCHES.fullmatch(Path(where).name) or "test_batch" in where
    sizes = (PIXELS + 1, PIXELS + 2) if batch else (PIXELS + 2, PIXELS + 1)
    size = next((size for size in sizes if len(content) % size == 0), None)
    if size is None or not content:
        raise DataError(
            f"{len(content):,} bytes are no whole number of records of {PIXELS + 1:,} or {PIXELS + 2:,} bytes; the "
            "file is truncated or not of CIFAR",
            where,
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, size - PIXELS :], records[:, size - PIXELS - 1].astype(np.int64)


def _pickled(where: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    batch = read_pickle(content, where)
    pixels, labels = (_entry(batch, *names) for names in (("data",), ("fine_labels", "labels")))
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise DataError(f"the entry 'data' must be an array of bytes [images, {PIXELS}]", where)
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 1000 for label in labels):
        raise DataError("the entry 'labels' or 'fine_labels' must be a list of label numbers", where)
    if len(labels) != len(pixels):
        raise DataError(f"{len(labels):,} labels for {len(pixels):,} images", where)
    return pixels, np.array(labels, np.int64)


def _entry(mapping: Any, *names: str) -> Any:
    """An entry of a dict whose keys are bytes (Python 2) or str."""
    if not isinstance(mapping, dict):
        return None
    return next((mapping[key] for name in names for key in (name.encode(), name) if key in mapping), None)


def _label_names(beside: Open, where: str) -> list[str] | None:
    for name in NAME_FILES:
        content = beside(name)
        if content is None:
            continue
        if name.endswith(".txt"):
            lines = [line.strip() for line in io.StringIO(content.decode("utf-8", "replace"))]
            names: Any = [line for line in lines if line]
        else:
            names = _entry(read_pickle(content, f"{where}: {name}"), "fine_label_names", "label_names")
            if not isinstance(names, list) or not all(isinstance(one, bytes | str) for one in names):
                raise DataError(f"{name} has no list of label names", where)
            names = [one if isinstance(one, str) else one.decode("utf-8", "replace") for one in names]
        if len(set(names)) != len(names) or not 1 <= len(names) <= 1000:
            raise DataError(f"{name}: {len(names)} label names, which must be distinct and at most 1,000", where)
        return names
    return None


FORMAT = Format(
    name=NAME,
    about="CIFAR-10 and CIFAR-100, binary or Python's: a folder, or the .tar.gz as it is; only read",
    recognises=recognises,
    read=read,
    write=None,
    parts=parts,
    extension="",
    holds_parts=holds_parts,
)
