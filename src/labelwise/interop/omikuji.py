"""Model folders of omikuji: `settings.json`, and one `tree<number>.cbor` per tree.

omikuji normalizes each document to unit L2 norm and appends a constant feature of 1. A node's score is the sum of
log(exp(-max(0, 1 - margin)^2)) (loss `Hinge`) or of log(sigmoid(margin)) (`Log`) over its path: our `l2_hinge` and
`sigmoid`. A label's score is its exponential, averaged over the trees. Leaves may be at different depths; here a leaf
above the lowest gets nodes with a single child, which pass its score on unchanged.

omikuji averages the best `beam` labels of each leaf in the beam of each tree; ours the best beam x beam labels of each
tree, so that the average of a label that ranks low in some tree may differ.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from labelwise.errors import DataError
from labelwise.interop.foreign_model import (
    ALWAYS,
    MAX_FEATURES,
    ForeignLevel,
    ForeignModel,
    ForeignTree,
)
from labelwise.interop.json_file import read_json_object
from labelwise.io.tensors import are_offsets, in_range, is_increasing
from labelwise.labelspace.tree import MAX_LEVELS

# --- cbor ---
# A reader of CBOR (RFC 8949) for files from untrusted sources: JSON's types only, and arrays of numbers as NumPy's.
#
# Tags, byte strings and items of indefinite length are refused. Lengths are compared with the bytes that are left
# before anything is allocated, and nesting is limited. A number takes at most 16 bytes of memory per byte of the file,
# an empty array or map, which omikuji hardly writes, about 60.

MAX_NESTING = 600
UNSIGNED, NEGATIVE, BYTES, TEXT, ARRAY, MAP, TAG, SIMPLE = range(8)
SIMPLE_VALUES = {20: False, 21: True, 22: None}
FLOATS = (25, 26, 27)


def read_cbor(path: Path) -> Any:
    """The only item of a file. An array of numbers becomes int64 or float64, an empty array an empty list."""
    return _Reader(np.fromfile(path, np.uint8), path).only_item()


class _Reader:
    """Reads items one after the other; open arrays and maps are on a stack, so that nesting needs no recursion."""

    def __init__(self, data: np.ndarray, path: Path) -> None:
        self.data, self.path, self.position = data, path, 0

    def only_item(self) -> Any:
        top: list[Any] = []
        stack: list[tuple[Any, int]] = [(top, 1)]
        while stack:
            container, length = stack[-1]
            if len(container) == length:
                stack.pop()
                continue
            key = self._key(container) if isinstance(container, dict) else None
            item, inside = self._item()
            if isinstance(container, dict):
                container[key] = item
            else:
                container.append(item)
            if inside:
                stack.append((item, inside))
                if len(stack) > MAX_NESTING:
                    raise self._damaged(f"items are nested more than {MAX_NESTING} deep")
        if self.position != len(self.data):
            raise self._damaged("there are bytes after the end")
        return top[0]

    def _item(self) -> tuple[Any, int]:
        """The next item, and if it is an array or a map that is still empty how many items belong into it."""
        major, size = self._first_byte()
        if major == SIMPLE and size in SIMPLE_VALUES:
            self.position += 1
            return SIMPLE_VALUES[size], 0
        if self._starts_number():
            return self._numbers(1)[0].item(), 0
        if major not in (TEXT, ARRAY, MAP):
            raise self._damaged("byte strings, tags and undefined values are not supported")
        self.position += 1
        length = self._length(size)
        if major == TEXT:
            return self._text(length), 0
        if major == MAP:
            return {}, length
        if length and self._starts_number():
            return self._numbers(length), 0
        return [], length

    def _key(self, found: dict[str, Any]) -> str:
        major, size = self._first_byte()
        if major != TEXT:
            raise self._damaged("a key is not a text")
        self.position += 1
        key = self._text(self._length(size))
        if key in found:
            raise self._damaged(f"the key {key[:40]!r} occurs twice")
        return key

    def _first_byte(self) -> tuple[int, int]:
        """Type of the next item, and the bits that hold its size."""
        if self.position >= len(self.data):
            raise self._damaged("the file is cut off")
        byte = int(self.data[self.position])
        return byte >> 5, byte & 31

    def _starts_number(self) -> bool:
        major, size = self._first_byte()
        return major in (UNSIGNED, NEGATIVE) or (major == SIMPLE and size in FLOATS)

    def _length(self, size: int) -> int:
        """A length; every item in an array, and every byte of a text, takes at least one byte."""
        length = size
        if size >= 24:
            width = 1 << (size - 24)
            if size > 27 or self.position + width > len(self.data):
                raise self._damaged("a length is cut off, or indefinite")
            length = int.from_bytes(self.data[self.position : self.position + width].tobytes(), "big")
            self.position += width
        if length > len(self.data) - self.position:
            raise self._damaged(f"{length:,} items or bytes are announced, but the file ends before")
        return length

    def _text(self, length: int) -> str:
        begin, self.position = self.position, self.position + length
        try:
            return self.data[begin : self.position].tobytes().decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged("a text is not UTF-8") from None

    def _numbers(self, count: int) -> np.ndarray:
        from labelwise.kernels.cbor_numbers import read_numbers

        numbers = np.empty(count, np.float64)
        position, integers = read_numbers(self.data, self.position, numbers)
        if position < 0:
            raise self._damaged("an array mixes numbers with something else, or is cut off")
        self.position = int(position)
        return numbers.astype(np.int64) if integers else numbers

    def _damaged(self, why: str) -> DataError:
        return DataError(f"not a CBOR file that can be read, or damaged, at byte {self.position:,}: {why}", self.path)


SETTINGS = "settings.json"
TREE_FILE = re.compile(r"tree(\d{1,9})\.cbor")
LOSSES = {"Hinge": ("l2_hinge", "squared_hinge"), "Log": ("sigmoid", "logistic")}
"""omikuji's losses to our post-processors and losses."""
BEAM = 10
"""omikuji's default; a folder does not hold it."""


def is_omikuji(folder: Path) -> bool:
    """Whether a folder looks like one of omikuji."""
    return (folder / SETTINGS).is_file() and any(TREE_FILE.fullmatch(file.name) for file in folder.iterdir())


def read_omikuji(folder: Path) -> ForeignModel:
    """Read a model folder."""
    settings = read_json_object(folder / SETTINGS)
    n_features, loss = settings.get("n_features"), settings.get("classifier_loss_type")
    if type(n_features) is not int or not isinstance(loss, str) or loss not in LOSSES:
        raise DataError(
            f"the number `n_features` and a `classifier_loss_type` of {' or '.join(LOSSES)} are needed",
            folder / SETTINGS,
        )
    if not 0 < n_features <= MAX_FEATURES:
        raise DataError(f"{n_features:,} features; 1 to {MAX_FEATURES:,} can be imported", folder / SETTINGS)
    matches = [match for match in map(TREE_FILE.fullmatch, (file.name for file in folder.iterdir())) if match]
    files = [folder / match[0] for match in sorted(matches, key=lambda match: int(match[1]))]
    readers = [_TreeReader(path, n_features) for path in files]
    trees = [reader.tree() for reader in readers]
    post_processor, solver_loss = LOSSES[loss]
    return ForeignModel(
        "omikuji",
        trees,
        n_features,
        max(int(tree.labels.max(initial=-1)) for tree in trees) + 1,
        {
            "post_processor": post_processor,
            "beam": BEAM,
            "labels_per_tree": BEAM * BEAM,
            "feature_norm": "l2",
            "tree": "kway" if any(reader.uneven for reader in readers) else "balanced",
            "solver": {"loss": solver_loss, "bias": 1.0},
        },
        notes=(f"the folder of an omikuji model does not hold a beam width; {BEAM} is omikuji's default",),
    )


class _TreeReader:
    """Reads one tree level by level; leaves above the lowest level are extended by nodes with one child."""

    def __init__(self, path: Path, n_features: int) -> None:
        self.path, self.n_features = path, n_features
        self.uneven = False

    def tree(self) -> ForeignTree:
        levels: list[ForeignLevel] = []
        labels: list[np.ndarray] = []
        nodes: list[tuple[int, Any]] = [(0, self._node(read_cbor(self.path)))]
        while nodes:
            if len(levels) == MAX_LEVELS:
                raise DataError(f"the tree has more than {MAX_LEVELS} levels", self.path)
            level = _LevelBuilder(self.n_features)
            below = []
            lowest = all("labels" in node for _, node in nodes)
            for parent, node in nodes:
                if lowest:
                    labels.append(self._integers(node["labels"]))
                    level.add(parent, len(labels[-1]), self._weights(node, len(labels[-1])))
                elif "labels" in node:
                    self.uneven = True
                    below.append((level.pass_on(parent), node))
                else:
                    children = [self._node(child) for child in node["children"]]
                    first = level.add(parent, len(children), self._weights(node, len(children)))
                    below.extend((first + index, child) for index, child in enumerate(children))
            levels.append(level.built())
            nodes = below
        return ForeignTree(levels, np.concatenate(labels))

    def _node(self, item: Any) -> dict[str, Any]:
        """The fields of a node: `weights`, and `children` of a branch or `labels` of a leaf."""
        if isinstance(item, dict) and len(item) == 1:
            kind, fields = next(iter(item.items()))
            inside = {"Branch": "children", "Leaf": "labels"}.get(kind)
            sound = isinstance(fields, dict) and fields.keys() == {"weights", inside}
            if sound and (kind == "Leaf" or (isinstance(fields["children"], list) and fields["children"])):
                return fields
        raise DataError("a node of the tree is neither a branch nor a leaf as omikuji 0.5 writes them", self.path)

    def _weights(self, node: dict[str, Any], children: int) -> _Weights:
        """The weights of a node's children, checked."""
        shape, given = (self.n_features + 1, children), node["weights"]
        if isinstance(given, dict) and isinstance(given.get("Sparse"), dict):
            return self._sparse(given["Sparse"], shape)
        if isinstance(given, dict) and isinstance(given.get("Dense"), dict):
            return self._dense(given["Dense"], shape)
        raise DataError("the weights of a node are neither sparse nor dense as omikuji 0.5 writes them", self.path)

    def _sparse(self, given: dict[str, Any], shape: tuple[int, int]) -> _Weights:
        """`outer_inds` are the features that have weights, the rest is as in CSR."""
        features, children, offsets = (self._integers(given.get(key)) for key in ("outer_inds", "inner_inds", "indptr"))
        values = self._numbers(given.get("data"))
        sound = (
            all(type(given.get(key)) is int for key in ("outer_dim", "inner_dim"))
            and (given["outer_dim"], given["inner_dim"]) == shape
            and len(offsets) == len(features) + 1
            and len(children) == len(values)
            and are_offsets(offsets, len(children))
            and in_range(features, shape[0])
            and in_range(children, shape[1])
        )
        if sound:
            features = np.repeat(features, np.diff(offsets))
            sound = is_increasing(features * shape[1] + children)
        if not sound:
            raise DataError("the sparse weights of a node are damaged", self.path)
        return _Weights(features, children, values)

    def _dense(self, given: dict[str, Any], shape: tuple[int, int]) -> _Weights:
        values = self._numbers(given.get("data"))
        if self._integers(given.get("dim")).tolist() != list(shape) or len(values) != shape[0] * shape[1]:
            raise DataError("the dense weights of a node do not have a number per feature and child", self.path)
        used = np.flatnonzero(values)
        return _Weights(*np.divmod(used, shape[1]), values[used])

    def _integers(self, values: Any) -> np.ndarray:
        if isinstance(values, list) and not values:
            return np.empty(0, np.int64)
        if not isinstance(values, np.ndarray) or values.dtype != np.int64:
            raise DataError("labels, offsets and indices have to be lists of whole numbers", self.path)
        return values

    def _numbers(self, values: Any) -> np.ndarray:
        if isinstance(values, list) and not values:
            return np.empty(0)
        if not isinstance(values, np.ndarray):
            raise DataError("weights have to be a list of numbers", self.path)
        return values


class _Weights(NamedTuple):
    """Weights of a node's children: the last feature is the constant one."""

    features: np.ndarray
    children: np.ndarray
    values: np.ndarray


class _LevelBuilder:
    """Collects the nodes of one level."""

    def __init__(self, n_features: int) -> None:
        self.n_features, self.count = n_features, 0
        self.parents: list[np.ndarray] = []
        self.weights: list[_Weights] = []

    def add(self, parent: int, count: int, weights: _Weights) -> int:
        """Add the children of a node; returns the index of the first."""
        first, self.count = self.count, self.count + count
        self.parents.append(np.full(count, parent))
        self.weights.append(weights._replace(children=weights.children + first))
        return first

    def pass_on(self, parent: int) -> int:
        """Add a single child that has the score of its parent."""
        constant = _Weights(np.array([self.n_features]), np.array([0]), np.array([ALWAYS]))
        return self.add(parent, 1, constant)

    def built(self) -> ForeignLevel:
        """The level, with its biases apart from the other weights."""
        features, children, values = (np.concatenate(parts) for parts in zip(*self.weights, strict=True))
        constant = features == self.n_features
        bias = np.zeros(self.count, np.float32)
        bias[children[constant]] = values[constant]
        features, children, values = (array[~constant] for array in (features, children, values))
        shape = (self.n_features, self.count)
        weights = sparse.coo_array((values.astype(np.float32), (features, children)), shape=shape)
        return ForeignLevel(np.concatenate(self.parents), weights, bias)
