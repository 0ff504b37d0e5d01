"""Reference implementations of the kernels: slow, simple, and used by the tests only."""

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
    """The first `count` positions of a byte in each range, padded with -1."""
    rows = []
    for start, end in ranges:
        found = [index for index in range(start, end) if data[index] == byte][:count]
        rows.append(found + [-1] * (count - len(found)))
    return rows


def intern_tokens(tokens: list[bytes]) -> tuple[list[int], list[bytes]]:
    """A number for each token in the order of first appearance, and the distinct tokens."""
    names: dict[bytes, int] = {}
    return [names.setdefault(token, len(names)) for token in tokens], list(names)


# --- hits ---------------------------------------------------------------------------------------------------------


def find_hits(ids: list[list[int]], truth: list[set[int]]) -> tuple[list[list[int]], list[int]]:
    """For each prediction whether the truth has it, and for each document how many predictions it has."""
    hits = [[int(label in labels) for label in row] for row, labels in zip(ids, truth, strict=True)]
    return hits, [sum(label != -1 for label in row) for row in ids]


def best_weights(truth: list[set[int]], weights: list[float], n_ranks: int) -> list[list[float]]:
    """The largest weights among each document's own labels, padded with zeros."""
    rows = [sorted((weights[label] for label in labels), reverse=True)[:n_ranks] for labels in truth]
    return [row + [0.0] * (n_ranks - len(row)) for row in rows]


def tie_range(scores: list[float], hits: list[int], cut: int) -> tuple[int, int]:
    """Minimum and maximum hits in the top `cut` of one document: misses first, and hits first, among equals."""
    pairs = list(zip(scores, hits, strict=True))
    worst = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    best = sorted(pairs, key=lambda pair: (-pair[0], -pair[1]))
    return sum(hit for _, hit in worst[:cut]), sum(hit for _, hit in best[:cut])


def count_labels(
    ids: list[list[int]], hits: list[list[int]], lengths: list[int], n_labels: int
) -> tuple[list[int], list[int]]:
    """How often each label is among the first `length` predictions of a document, and how often correctly."""
    counted = [
        (label, hit)
        for row, marks, length in zip(ids, hits, lengths, strict=True)
        for label, hit in zip(row[:length], marks[:length], strict=True)
    ]
    predicted = [sum(label == target for label, _ in counted) for target in range(n_labels)]
    return predicted, [sum(hit for label, hit in counted if label == target) for target in range(n_labels)]


def first_ranks(ids: list[list[int]], hits: list[list[int]], depth: int) -> dict[int, int]:
    """The best rank at which each label is a hit; labels without a hit are left out."""
    best: dict[int, int] = {}
    for row, marks in zip(ids, hits, strict=True):
        for index, (label, hit) in enumerate(zip(row[:depth], marks[:depth], strict=True)):
            if hit:
                best[label] = min(index, best.get(label, index))
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


def summed(pairs: list[tuple[int, np.float32]]) -> tuple[list[int], list[float]] | None:
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
    features = summed(pairs)
    return None if features is None else (labels, *features)


def vowpal_row(line: bytes, hash_bits: int | None) -> SparseRow | None:
    """One line of Vowpal Wabbit's format that is not blank; None if it is faulty."""
    head, bar, tail = line.replace(b"\t", b" ").partition(b"|")
    words = head.split(b" ")
    words = [word for word in words if word]
    touching = len(words) > 1 and head[-1:] != b" " and not _DECIMAL.fullmatch(words[-1])
    if touching or (words and words[-1].startswith(b"'")):
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
    features = summed(pairs)
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
    for index in range(0, len(key), 4):
        piece = key[index : index + 4]
        word = int.from_bytes(piece, "little") * 0xCC9E2D51 % 2**32
        word = (word << 15 | word >> 17) % 2**32
        state ^= word * 0x1B873593 % 2**32
        if len(piece) == 4:
            state = ((state << 13 | state >> 19) % 2**32 * 5 + 0xE6546B64) % 2**32
    state ^= len(key)
    state = (state ^ state >> 16) * 0x85EBCA6B % 2**32
    state = (state ^ state >> 13) * 0xC2B2AE35 % 2**32
    return state ^ state >> 16


# --- label features and clusters (rows are dense here) --------------------------------------------------------------


def sum_documents(weights: np.ndarray, documents: np.ndarray, keep: int) -> np.ndarray:
    """Weights [labels, documents] times documents, only the `keep` largest of each row, rows of unit norm."""
    sums = weights @ documents
    for row in sums:
        row[sorted(range(len(row)), key=lambda column: (-abs(row[column]), column))[keep:]] = 0
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.divide(sums, norms, out=np.zeros_like(sums), where=norms > 0)


def halve_recursively(
    rows: np.ndarray, members: list[int], layers: int, draws: np.ndarray, node: int, max_iterations: int
) -> list[int]:
    """Members in the order of the leaves after `layers` halvings of at most `max_iterations` iterations."""
    if layers == 0 or len(members) < 2:
        return members
    left = halve(rows[members], draws[node], max_iterations)
    lefts, rights = ([m for m, is_left in zip(members, left, strict=True) if is_left == side] for side in (True, False))
    return [
        *halve_recursively(rows, lefts, layers - 1, draws, 2 * node + 1, max_iterations),
        *halve_recursively(rows, rights, layers - 1, draws, 2 * node + 2, max_iterations),
    ]


def halve(rows: np.ndarray, draws: np.ndarray, max_iterations: int) -> np.ndarray:
    """Whether each row goes to the left half; of several starts the best after three iterations is continued."""
    count = len(rows)
    found = []
    for one, step in draws.tolist():
        pair = rows[one % count] - rows[(one % count + 1 + step % (count - 1)) % count]
        found.append(iterate_halves(rows, np.zeros(count, bool), rows @ pair, min(3, max_iterations)))
    best, _ = max(found, key=lambda start: start[1])
    return iterate_halves(rows, best, half_scores(rows, best), max_iterations - 3)[0]


def iterate_halves(rows: np.ndarray, left: np.ndarray, scores: np.ndarray, iterations: int) -> tuple[np.ndarray, float]:
    """The last assignment, and the sum of the norms of the halves whose scores it follows (0 for given scores)."""
    objective = 0.0
    for iteration in range(iterations):
        if iteration > 0:
            scores = half_scores(rows, left)
            objective = sum(float(np.sqrt(side @ side)) for side in (rows[left].sum(0), rows[~left].sum(0)))
        lower = np.isin(np.arange(len(rows)), np.argsort(scores, kind="stable")[: len(rows) // 2])
        if (lower == left).all():
            break
        left = lower
    return left, objective


def half_scores(rows: np.ndarray, left: np.ndarray) -> np.ndarray:
    """The products of the rows with the direction from the left half to the other."""
    to_left, to_right = inverse_norm(rows[left].sum(0)), inverse_norm(rows[~left].sum(0))
    return rows @ rows.sum(0) * to_right - rows @ rows[left].sum(0) * (to_right + to_left)


def inverse_norm(vector: np.ndarray) -> float:
    """1 / norm; 0 for the zero vector."""
    return 1 / float(np.sqrt(vector @ vector)) if vector.any() else 0.0


def cluster_rows(rows: np.ndarray, draws: list[float], smallest: int, largest: int, max_iterations: int) -> list[int]:
    """The cluster of each row, by spherical k-means with at most `max_iterations` iterations and sizes between two bounds."""
    chosen: list[int] = []
    for draw in draws:
        nearest = [float(max(rows[chosen] @ row)) if chosen else 0.0 for row in rows]
        weights = [0.0 if i in chosen else max(0.0, 1 - near) for i, near in enumerate(nearest)]
        if not any(weights):
            weights[next(i for i in range(len(rows)) if i not in chosen)] = 1.0
        above = [i for i, total in enumerate(np.cumsum(weights)) if total > draw * sum(weights)]
        chosen.append(above[0])
    similarities = (rows[chosen] @ rows.T).astype(np.float32)
    clusters: list[int] = []
    for _ in range(max_iterations):
        before, clusters = clusters, choose_clusters(similarities, smallest, largest)
        if clusters == before:
            break
        sums = [rows[np.array(clusters) == cluster].sum(0) for cluster in range(len(draws))]
        similarities = np.array([rows @ total * inverse_norm(total) for total in sums], np.float32)
    return clusters


def choose_clusters(similarities: np.ndarray, smallest: int, largest: int) -> list[int]:
    """The best cluster that is not full for each row; rows whose best leads the second best by the largest margin are assigned first."""
    n_clusters, count = similarities.shape
    ranked = np.sort(similarities, axis=0)
    clusters = [-1] * count
    for row in np.argsort(ranked[-2] - ranked[-1], kind="stable").tolist():
        sizes = [clusters.count(cluster) for cluster in range(n_clusters)]
        missing = sum(max(0, smallest - size) for size in sizes)
        may_exceed = clusters.count(-1) > missing
        open_ones = [c for c, size in enumerate(sizes) if size < smallest or (size < largest and may_exceed)]
        clusters[row] = max(open_ones, key=lambda cluster: (similarities[cluster, row], -cluster))
    return clusters


# --- words and terms ----------------------------------------------------------------------------------------------


def words_of(text: str, lowercase: bool) -> list[str]:
    """Runs of two or more letters, digits or underscores."""
    return re.findall(r"\w\w+", text.lower() if lowercase else text)


def terms_of(words: list[str], min_words: int, max_words: int) -> list[str]:
    """The words and runs of words of a text."""
    sizes = range(min_words, max_words + 1)
    return [" ".join(words[begin : begin + n]) for n in sizes for begin in range(len(words) - n + 1)]


def hashed_column(term: str, bits: int) -> int:
    """The column of a term without a vocabulary."""
    value = None
    for word in term.encode().split(b" "):
        eights = [int.from_bytes(word[begin : begin + 8], "little") for begin in range(0, len(word), 8)]
        if len(word) <= 16:
            first, second = [*eights, 0][:2]
        else:
            first, second = 0, 0xFF << 56
            for eight in eights:
                first = _mixed(first, eight)
            first |= 1
        own = _mixed(first, second)
        value = own if value is None else _mixed(value, own)
    return (value or 0) >> (64 - bits)


def _mixed(first: int, second: int) -> int:
    value = first * 0x9E3779B97F4A7C15 % 2**64
    value = (value ^ value >> 32 ^ second) * 0xD6E8FEB86659FD93 % 2**64
    return value ^ value >> 32


def tfidf_row(counts: dict[int, int], weights: np.ndarray | None, sublinear: bool, unit: bool) -> dict[int, float]:
    """Values by column, in the order of columns."""
    row = {column: 1 + np.log(n) if sublinear else float(n) for column, n in sorted(counts.items())}
    if weights is not None:
        row = {column: value * weights[column] for column, value in row.items()}
    norm = np.sqrt(sum(value * value for value in row.values()))
    return {column: value / norm if unit else value for column, value in row.items()}


def search_row(
    row: np.ndarray,
    levels: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    beam: int,
    k: int,
    power: int,
    allowed: list[np.ndarray],
    names: np.ndarray,
) -> list[tuple[int, float]]:
    """The best k (name, sum of hinge logarithms) of one document; a level is (weights, biases, children's offsets)."""
    kept = [(0, 0.0)]
    for depth, (weights, bias, offsets) in enumerate(levels):
        leaf = depth == len(levels) - 1
        costs = np.maximum(0, 1 - row @ weights - bias) ** power
        candidates = [
            (int(names[child]) if leaf else child, score - float(costs[child]))
            for node, score in kept
            for child in range(offsets[node], offsets[node + 1])
            if allowed[depth][child]
        ]
        kept = sorted(candidates, key=lambda pair: (-pair[1], pair[0]))[: k if leaf else beam]
    return kept


# --- dropout ------------------------------------------------------------------------------------------------------


def drop_out(values: list[float], first: int, key: int, other_key: int, threshold: int, factor: float) -> list[float]:
    """`dropout.drop_out` in plain Python."""
    kept = []
    for index, value in enumerate(values, first):
        mixed = (index * 0x9E3779B9 + key) % 2**32
        mixed = (mixed ^ (mixed >> 16) ^ other_key) * 0x7FEB352D % 2**32
        mixed = (mixed ^ (mixed >> 15)) * 0x846CA68B % 2**32
        mixed ^= mixed >> 16
        kept.append(value * factor if mixed >= threshold else 0.0)
    return kept


# --- Adam by rows -------------------------------------------------------------------------------------------------


def update_rows(weights, first, second, rows, gradient, decay, beta1, beta2, rate, root, eps) -> None:
    """`row_adam.update_rows` in float64."""
    for index, row in enumerate(rows):
        for j in range(len(weights[row])):
            total = gradient[index][j] + decay * weights[row][j]
            first[row][j] = beta1 * first[row][j] + (1 - beta1) * total
            second[row][j] = beta2 * second[row][j] + (1 - beta2) * total * total
            weights[row][j] -= rate * first[row][j] / (second[row][j] ** 0.5 * root + eps)


# --- buckets ------------------------------------------------------------------------------------------------------


def murmur(key: int, seed: int) -> int:
    """MurmurHash3 (x86, 32 bits) of one number of four bytes, as a signed integer."""

    def rotated(number: int, bits: int) -> int:
        return (number << bits | number >> (32 - bits)) & 0xFFFFFFFF

    mixed = rotated(key * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
    state = (rotated(seed ^ mixed, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF ^ 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = (state ^ state >> shift) * factor & 0xFFFFFFFF
    return state - (1 << 32) if state >> 31 else state


def bucket_scores(scores: np.ndarray, rows: np.ndarray, aggregation: str) -> np.ndarray:
    """The score of every label [documents, labels] from those of its buckets [tables, buckets, documents]."""
    values = np.stack([table[buckets] for table, buckets in zip(scores, rows.T, strict=True)]).astype(np.float64)
    combine = {"mean": np.mean, "least": np.min, "median": np.median}[aggregation]
    return combine(values, axis=0).astype(np.float32).T
