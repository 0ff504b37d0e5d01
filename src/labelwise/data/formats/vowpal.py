"""Vowpal Wabbit's text format for many classes: `label [weight] ['tag]|namespace feature[:value] ...`.

- The label may be any word, or several separated by commas (`3,17 | ...`); a line that begins with the bar has
  none. Labels are sorted by number if all are plain numbers, else by code point.
- Only the weight 1 is accepted, as a data set cannot store others. Tags are ignored; one directly before
  the bar (`3 1.0 page7| ...`) needs no quote.
- A feature without a value has the value 1; a value after a namespace (`|words:2.0`) multiplies its features. Zeros
  are not stored, and values of features in the same column are added.
- Feature names are column numbers, whatever their namespace. With the option `hash_bits` every name is hashed
  instead: the 32-bit MurmurHash3 of the name, its seed that of the namespace's name (0 where it has none),
  truncated to that number of bits.
- Blank lines are skipped. Cost-sensitive labels (`3:0.5`) are errors.

When written, features are column numbers; labels without documents are not in the file.
"""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.data.csr import csr_builder
from labelwise.data.dataset import Dataset
from labelwise.data.formats.base import Format
from labelwise.data.formats.sparse_text import READ_BYTES, sparse_features, token_at, write_lines
from labelwise.data.options import ReadOptions, how_to_set, split_files, stem_and_extension
from labelwise.data.stream import (
    NEWLINE,
    ByteBlock,
    decode_block,
    first_bytes,
    line_blocks,
    text_codec,
    warn_replaced,
)
from labelwise.data.tables import LabelAccumulator, refuse_empty, refuse_label_names, used_label_names
from labelwise.errors import DataError
from labelwise.runtime.threads import run_stream

NAME = "vowpal"
EXTENSION = ".vw"
RESERVED = b" \t\r\n,:|"
"""Bytes that label names cannot contain in this format."""

_WORD = rb"[^\s|:,']"
_LABELS = _WORD + rb"+(?:," + _WORD + rb"+)*(?:[ \t]+[-+]?[\d.]+)?"
_HEAD = re.compile(rb"(?:" + _LABELS + rb"(?:[ \t]+[^\s|']+(?=\|))?)?(?:[ \t]*'[^\s|]*)?[ \t]*\|")
_NAMESPACE = re.compile(rb"\|[^\s|]*")
_FEATURE = re.compile(rb"[^\s|:]+:[-+]?(?:\d|\.\d)[\d.eE+-]*|\d+")


@dataclass(frozen=True, eq=False)
class _ParsedBlock:
    """The rows of one block; labels are given by their positions in its bytes."""

    block: ByteBlock
    feature_counts: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    first_label: np.ndarray
    label_starts: np.ndarray
    label_ends: np.ndarray
    n_features: int


def read(path: Path, options: ReadOptions, folder: Path | None = None) -> Dataset:
    """Read one file; with a folder, features are written to files in it and mapped. Labels stay in memory."""
    text_codec(options.encoding)
    bits = options.hash_bits

    def parse(block: ByteBlock) -> _ParsedBlock:
        return _parse(decode_block(block, path, options.encoding, options.on_bad_bytes), path, bits)

    features, labels = csr_builder(True, folder), LabelAccumulator()
    n_features, replaced = 0, 0
    with closing(line_blocks(path, READ_BYTES)) as blocks:
        for part in run_stream(parse, blocks):
            features.add(part.feature_counts, part.indices, part.values, part.block.fraction_read)
            labels.add_tokens(part.block.data, part.label_starts, part.label_ends, part.first_label)
            n_features = max(n_features, part.n_features)
            replaced += part.block.replaced_lines
    warn_replaced(path, replaced, options.encoding)
    matrix, names = labels.matrix()
    refuse_empty(len(matrix.indptr) - 1, path)
    columns = n_features if bits is None else 1 << bits
    return Dataset(matrix, names, features=features.matrix(columns), name=str(path))


def _parse(block: ByteBlock, path: Path, bits: int | None) -> _ParsedBlock:
    from labelwise.kernels import vowpal_text as kernel

    data = block.data
    blanks = int(np.count_nonzero(data == kernel.SPACE) + np.count_nonzero(data == kernel.TAB))
    words = int(np.count_nonzero(data == kernel.COMMA)) + block.lines
    feature_counts, label_counts = np.empty(block.lines, np.int32), np.empty(block.lines, np.int32)
    indices, values = np.empty(blanks, np.int32), np.empty(blanks, np.float32)
    label_starts, label_ends = np.empty(words, np.int64), np.empty(words, np.int64)
    mask = kernel.NOT_HASHED if bits is None else (1 << bits) - 1
    fault, position, rows, stored, tagged, n_features = kernel.parse_vowpal(
        data, mask, feature_counts, label_counts, indices, values, label_starts, label_ends
    )
    if fault != kernel.FINE:
        raise DataError(_explain(data, fault, position), path, block.line_at(position))
    first_label = np.zeros(rows + 1, np.int64)
    np.cumsum(label_counts[:rows], out=first_label[1:])
    return _ParsedBlock(
        block, feature_counts[:rows], indices[:stored], values[:stored],
        first_label, label_starts[:tagged], label_ends[:tagged], n_features,
    )  # fmt: skip


def _explain(data: np.ndarray, fault: int, position: int) -> str:
    """The message for a fault code of the kernel at a byte."""
    from labelwise.kernels import vowpal_text as kernel

    if fault in (kernel.BAD_HEAD, kernel.BAD_LABEL, kernel.BAD_WEIGHT) and not _bar_follows(data, position):
        fault = kernel.NO_BAR  # what looks wrong before the bar does so because the bar is missing
    token = token_at(data, position, b" \t\r\n|")
    name = token_at(data, position, b" \t\r\n|:")
    scale = token_at(data, position + 1, b" \t\r\n|")
    hashing = how_to_set("hash_bits", "18")
    sentences = {
        kernel.NO_BAR: "the line has no '|'; the form is: label | feature:value feature:value ...",
        kernel.BAD_HEAD: f"{token} instead of '|'; a label, a weight and a 'tag may precede it",
        kernel.BAD_LABEL: f"{token} is not a label: a word, or several separated by commas, without a colon",
        kernel.BAD_WEIGHT: f"{token} is at the position of an importance weight, which must be 1",
        kernel.BAD_SCALE: f"the value of the namespace {scale} is not a finite decimal number",
        kernel.BAD_FEATURE: f"{token} is a value without a feature; features are written feature:value",
        kernel.BAD_VALUE: f"the value of {token} is not a finite decimal number that fits a float32",
        kernel.NOT_A_COLUMN: f"the feature {name} is not a column number; {hashing} to hash names",
        kernel.INDEX_TOO_LARGE: f"the column {name} is too large; at most {kernel.MAX_INDEX} is possible",
        kernel.SUM_TOO_LARGE: "the sum of the values in one column does not fit a float32",
    }
    return sentences[fault]


def _bar_follows(data: np.ndarray, position: int) -> bool:
    """Whether the rest of the line holds a bar."""
    rest = data[position:]
    return b"|" in rest[: int(np.argmax(rest == NEWLINE))].tobytes()


def write(dataset: Dataset, path: Path) -> None:
    """Write one file; features are written as column numbers."""
    features = sparse_features(dataset, path, NAME)
    used = used_label_names(dataset)
    refuse_label_names(used, RESERVED, path, NAME)
    quoted = np.flatnonzero(used.buffer[used.starts] == ord("'"))
    if len(quoted):
        first = used[int(quoted[0])]
        raise DataError(f"the label {first!r} begins with a quote, which the format {NAME} reads as a tag", path)
    write_lines(dataset, features, dataset.label_names, path, b"", bar=True)


def recognises(path: Path) -> bool:
    """Whether the name ends in .vw, or the first lines look like this format with numbers as features."""
    if stem_and_extension(path)[1] == EXTENSION:
        return path.is_file()
    lines = first_bytes(path).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    lines = [line for line in lines[: max(1, len(lines) - 1)] if line.strip()][:20]  # the last may be cut short
    return bool(lines) and all(map(_HEAD.match, lines)) and any(map(_has_numbers, lines))


def _has_numbers(line: bytes) -> bool:
    """Whether the first features of a line have values or are numbers; prose with bars does not."""
    words = _NAMESPACE.sub(b" ", line[line.index(b"|") :]).split()[:10]
    return bool(words) and all(map(_FEATURE.fullmatch, words))


def parts(folder: Path) -> dict[str, Path]:
    """Files named train, test, ... or ending in .vw that look like this format."""
    return split_files(folder, recognises, (EXTENSION,))


FORMAT = Format(
    name=NAME,
    about="Vowpal Wabbit's lines: a label, a bar, and features by number or name",
    recognises=recognises,
    read=read,
    write=write,
    parts=parts,
    extension=EXTENSION,
    other_extensions=(".vowpal",),
    read_mapped=read,
)
