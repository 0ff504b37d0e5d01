"""Plain twins of the kernels: slow, obvious, and used by the tests only."""

from __future__ import annotations

import re

import numpy as np

# --- fields -------------------------------------------------------------------------------------------------------


def split_fields(data: bytes, ranges: list[tuple[int, int]], separator: bytes = b"") -> list[list[bytes]]:
    """The tokens of each range."""
    rows = []
    for start, end in ranges:
        pieces = data[start:end].split(separator) if separator else data[start:end].replace(b"\t", b" ").split(b" ")
        stripped = [piece.strip(b" \t") for piece in pieces]
        rows.append([piece for piece in stripped if piece])
    return rows


def leading_fields(
    data: bytes, ranges: list[tuple[int, int]], prefix: bytes
) -> tuple[list[list[bytes]], list[bytes], list[bool]]:
    """The leading words of each range that begin with `prefix` (without it), the rest, and whether it holds more."""
    leading, rests, scattered = [], [], []
    for start, end in ranges:
        rest, words = data[start:end], []
        while (stripped := rest.lstrip(b" \t")).startswith(prefix):
            word = stripped.replace(b"\t", b" ").split(b" ", 1)[0]
            words.append(word[len(prefix) :])
            rest = stripped[len(word) :]
        rests.append(rest[1:] if words else rest)
        leading.append(words)
        scattered.append(any(w.startswith(prefix) for w in rests[-1].replace(b"\t", b" ").split(b" ")))
    return leading, rests, scattered


def find_byte(data: bytes, ranges: list[tuple[int, int]], byte: int, count: int) -> list[list[int]]:
    """The first `count` places of a byte in each range, filled up with -1."""
    rows = []
    for start, end in ranges:
        found = [place for place in range(start, end) if data[place] == byte][:count]
        rows.append(found + [-1] * (count - len(found)))
    return rows


def intern_tokens(tokens: list[bytes]) -> tuple[list[int], list[bytes]]:
    """A number for each token in the order of first appearance, and the different tokens."""
    names: dict[bytes, int] = {}
    return [names.setdefault(token, len(names)) for token in tokens], list(names)


# --- hits ---------------------------------------------------------------------------------------------------------


def find_hits(ids: list[list[int]], truth: list[set[int]]) -> tuple[list[list[int]], list[int]]:
    """For each prediction whether the truth has it, and for each document how many predictions it has."""
    hits = [[int(label in labels) for label in row] for row, labels in zip(ids, truth, strict=True)]
    return hits, [sum(label != -1 for label in row) for row in ids]


def best_weights(truth: list[set[int]], weights: list[float], places: int) -> list[list[float]]:
    """The largest weights among each document's own labels, filled up with zeros."""
    rows = [sorted((weights[label] for label in labels), reverse=True)[:places] for labels in truth]
    return [row + [0.0] * (places - len(row)) for row in rows]


def tie_range(scores: list[float], hits: list[int], cut: int) -> tuple[int, int]:
    """Fewest and most hits in the first `cut` places of one document: misses first, and hits first, among equals."""
    pairs = list(zip(scores, hits, strict=True))
    worst = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    best = sorted(pairs, key=lambda pair: (-pair[0], -pair[1]))
    return sum(hit for _, hit in worst[:cut]), sum(hit for _, hit in best[:cut])


def count_labels(
    ids: list[list[int]], hits: list[list[int]], lengths: list[int], n_labels: int
) -> tuple[list[int], list[int]]:
    """How often each label is among the first `length` predictions of a document, and how often rightly."""
    counted = [
        (label, hit)
        for row, marks, length in zip(ids, hits, lengths, strict=True)
        for label, hit in zip(row[:length], marks[:length], strict=True)
    ]
    predicted = [sum(label == wanted for label, _ in counted) for wanted in range(n_labels)]
    return predicted, [sum(hit for label, hit in counted if label == wanted) for wanted in range(n_labels)]


def first_places(ids: list[list[int]], hits: list[list[int]], depth: int) -> dict[int, int]:
    """The best place at which each label is a hit; labels without a hit are left out."""
    best: dict[int, int] = {}
    for row, marks in zip(ids, hits, strict=True):
        for place, (label, hit) in enumerate(zip(row[:depth], marks[:depth], strict=True)):
            if hit:
                best[label] = min(place, best.get(label, place))
    return best


# --- sparse text ------------------------------------------------------------------------------------------

_DECIMAL = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")

SparseRow = tuple[list[bytes], list[int], list[float]]
"""The labels of a line, the columns of its features and their values."""


def float32_of(text: bytes) -> np.float32 | None:
    """A decimal number as float32; None for anything else, and for what does not fit."""
    if not _DECIMAL.fullmatch(text):
        return None
    with np.errstate(over="ignore"):
        value = np.float32(float(text))
    return value if np.isfinite(value) else None


def shortest_decimal(value: np.float32) -> str:
    """The fewest significant digits that read back to the same float32."""
    texts = (f"{value:.{digits}g}" for digits in range(1, 10))
    return next(text for text in texts if float32_of(text.encode()) == value)


def added_up(pairs: list[tuple[int, np.float32]]) -> tuple[list[int], list[float]] | None:
    """Ascending columns with the sums of their values, without zeros; None if a sum does not fit."""
    sums: dict[int, np.float32] = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for column, value in pairs:
            sums[column] = sums.get(column, np.float32(0)) + value
    if not np.isfinite(list(sums.values())).all():
        return None
    kept = sorted(column for column, value in sums.items() if value != 0)
    return kept, [float(sums[column]) for column in kept]


def xc_row(line: bytes, n_features: int, n_labels: int) -> SparseRow | None:
    """One line of the XC repository's format; None if it is faulty."""
    words = line.replace(b"\t", b" ").split(b" ")
    labels: list[bytes] = []
    if words[0] and b":" not in words[0]:
        labels = words.pop(0).split(b",")
        if not all(re.fullmatch(rb"\d+", label) and int(label) < n_labels for label in labels):
            return None
        labels = [b"%d" % label for label in sorted({int(label) for label in labels})]
    pairs = []
    for word in filter(None, words):
        column, colon, text = word.partition(b":")
        value = float32_of(text)
        if not colon or not re.fullmatch(rb"\d+", column) or value is None or int(column) >= n_features:
            return None
        pairs.append((int(column), value))
    features = added_up(pairs)
    return None if features is None else (labels, *features)


def vowpal_row(line: bytes, hash_bits: int | None) -> SparseRow | None:
    """One line of Vowpal Wabbit's format that is not blank; None if it is faulty."""
    head, bar, tail = line.replace(b"\t", b" ").partition(b"|")
    words = head.split(b" ")
    words = [word for word in words if word]
    if words and words[-1].startswith(b"'"):
        words.pop()
    faulty = not bar or len(words) > 2 or any(word.startswith(b"'") for word in words[:1])
    if faulty or (len(words) == 2 and (float32_of(words[1]) is None or float(words[1]) != 1)):
        return None
    labels = words[0].split(b",") if words else []
    if not all(labels) or any(b":" in label for label in labels):
        return None
    pairs = []
    for namespace in tail.split(b"|"):
        first, *features = namespace.split(b" ")
        name, colon, text = first.partition(b":")
        scale = float32_of(text) if colon else np.float32(1)
        if scale is None:
            return None
        for word in filter(None, features):
            pair = _vowpal_feature(word, name, float(text) if colon else 1.0, hash_bits)
            if pair is None:
                return None
            pairs.append(pair)
    features = added_up(pairs)
    return None if features is None else (labels, *features)


def _vowpal_feature(
    word: bytes, namespace: bytes, scale: float, hash_bits: int | None
) -> tuple[int, np.float32] | None:
    name, colon, text = word.partition(b":")
    if not name or (colon and float32_of(text) is None):
        return None
    with np.errstate(over="ignore"):
        value = np.float32((float(text) if colon else 1.0) * scale)
    if not np.isfinite(value):
        return None
    if hash_bits is not None:
        seed = murmur3(namespace, 0) if namespace else 0
        return murmur3(name, seed) % (1 << hash_bits), value
    return (int(name), value) if re.fullmatch(rb"\d+", name) and int(name) <= 2**31 - 2 else None


def murmur3(key: bytes, seed: int) -> int:
    """The 32-bit MurmurHash3, x86 variant."""
    state = seed
    for place in range(0, len(key), 4):
        piece = key[place : place + 4]
        word = int.from_bytes(piece, "little") * 0xCC9E2D51 % 2**32
        word = (word << 15 | word >> 17) % 2**32
        state ^= word * 0x1B873593 % 2**32
        if len(piece) == 4:
            state = ((state << 13 | state >> 19) % 2**32 * 5 + 0xE6546B64) % 2**32
    state ^= len(key)
    state = (state ^ state >> 16) * 0x85EBCA6B % 2**32
    state = (state ^ state >> 13) * 0xC2B2AE35 % 2**32
    return state ^ state >> 16
