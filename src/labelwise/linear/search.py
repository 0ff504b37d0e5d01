"""Beam search for the best labels of documents through the levels of a tree."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from labelwise.errors import ConfigError
from labelwise.features.rows import FeatureRows
from labelwise.kernels.intrinsics import address_row
from labelwise.kernels.search import descend
from labelwise.linear.weights import ChunkedWeights, PackedWeights
from labelwise.runtime.threads import ranges, run_all, threads
from labelwise.topk import NO_LABEL, TopK

BLOCK_DOCUMENTS = 2048
MAX_BEAM_NODES = 1 << 24  # kept for a block of documents at a time
MIN_PARALLEL = 16  # documents below which one thread is faster than several
MIN_DIVIDED = 256  # documents from which on threads always divide them

POST_PROCESSORS: dict[str, tuple[int, int, bool]] = {
    **{f"l{p}_hinge": (0, p, True) for p in (1, 2, 3, 4)},
    **{f"log_l{p}_hinge": (0, p, False) for p in (1, 2, 3, 4)},
    "smooth_l3_hinge": (3, 3, True),
    "log_smooth_l3_hinge": (3, 3, False),
    "sigmoid": (1, 1, True),
    "log_sigmoid": (1, 1, False),
    "none": (2, 1, False),
}
"""Name to (the kernel's transform, power, whether the sum of logarithms is exponentiated to a product)."""


@dataclass(frozen=True)
class LabelChoice:
    """Mask of the labels that may be predicted and numbers added to their scores, in tree order; None: all, 0."""

    allowed: np.ndarray | None = None
    extra: np.ndarray | None = None


ALL_LABELS = LabelChoice()


class TreeSearch:
    """A tree prepared for beam search: the kernel's arguments are built once.

    The post-processor is that of all levels, or there is one per level from the top.
    """

    def __init__(
        self,
        levels: Sequence[ChunkedWeights | PackedWeights],
        label_order: np.ndarray,
        post_processor: str | tuple[str, ...] = "l3_hinge",
    ) -> None:
        packed = [PackedWeights.of(level) for level in levels]
        self._arguments = packed, label_order, post_processor
        names = per_level(post_processor, len(levels), "post_processor")
        self._transforms = [POST_PROCESSORS[name][:2] for name in names]
        self.product = POST_PROCESSORS[names[-1]][2]
        check_combination(names)
        self._levels = packed
        self._runs = _runs(packed)
        self._widest_level = max(level.n_children for level in packed)
        self._names = np.ascontiguousarray(label_order, np.int32).view()
        self._names.flags.writeable = False  # as that of a loaded model, so that the kernel is compiled once for both

    def __reduce__(self) -> tuple:
        return TreeSearch, self._arguments  # addresses are valid in this process only

    def best(self, features: Any, beam: int | tuple[int, ...], k: int, choice: LabelChoice = ALL_LABELS) -> TopK:
        """The best k labels per row of a CSR matrix (float32, sorted int32 indices) or of `FeatureRows`.

        The beam is that of all levels but the last, or there is one per level.
        """
        return best_of_trees([self], features, beam, k, [choice])[0]

    def prepare(
        self, features: FeatureRows, beam: int | tuple[int, ...], k: int, choice: LabelChoice
    ) -> tuple[TopK, Callable[[int, int], None]]:
        """The result, not yet filled, and the function that fills its rows begin..end."""
        n = features.shape[0]
        beams = [min(one, self._widest_level) for one in per_level(beam, len(self._levels) - 1, "beam")]
        widest = max([*beams, 1])
        rules = np.array([[one, *rule] for one, rule in zip([*beams, 1], self._transforms, strict=True)], np.int64)
        extra = _empty(np.float32) if choice.extra is None else choice.extra.astype(np.float32)
        allowed = _allowed(self._levels, choice.allowed)
        top = TopK(np.empty((n, k), np.int32), np.empty((n, k), np.float32))

        def fill(begin: int, end: int) -> None:
            position = _empty(np.int32) if end - begin == 1 else np.full(features.shape[1], NO_LABEL, np.int32)
            block_size = min(BLOCK_DOCUMENTS, max(1, MAX_BEAM_NODES // widest))
            for first in range(begin, end, block_size):
                last = min(first + block_size, end)
                dense = np.ascontiguousarray(features.dense[first:last], np.float32)
                dense.flags.writeable = False  # so that the kernel is compiled for one array type only
                block = dense, features.first_dense, features.zeros
                nodes, kept = np.empty((last - first, widest), np.int32), np.empty((last - first, widest), np.float32)
                for run in self._runs:
                    arguments = (
                        *run.levels, features.indptr, features.indices, features.data, block,
                        first, last, nodes, kept, rules[run.depths], self.product, allowed, extra,
                        self._names, position, top.ids, top.scores,
                    )  # fmt: skip
                    while (unchecked := descend(*arguments)) >= 0:
                        self._levels[run.depths][unchecked].check_wanted()

        return top, fill


def best_of_trees(
    searches: Sequence[TreeSearch],
    features: Any,
    beam: int | tuple[int, ...],
    k: int,
    choices: Sequence[LabelChoice],
) -> list[TopK]:
    """The best k labels per document in each of several trees, see `TreeSearch.best`.

    Some documents are not divided among threads if every thread has a tree: the more of them visit a node together, the
    less work each is.
    """
    rows = FeatureRows.of(features)
    n = rows.shape[0]
    prepared = [one.prepare(rows, beam, k, choice) for one, choice in zip(searches, choices, strict=True)]
    if n < MIN_PARALLEL:
        for _, fill in prepared:
            fill(0, n)
    else:
        parts = ranges(n, 1 if n < MIN_DIVIDED and len(searches) >= threads() else threads())
        run_all(lambda task: task(), [partial(fill, *part) for _, fill in prepared for part in parts])
    return [top for top, _ in prepared]


class _Run(NamedTuple):
    """Consecutive levels with the same types, as `descend` takes them, and the arrays that its addresses point to."""

    levels: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, bool, bool]
    arrays: list[list[np.ndarray]]
    depths: slice


def _runs(levels: Sequence[PackedWeights]) -> list[_Run]:
    """Levels for the kernel; nearly always one run, because lanes need more bytes only above 256 siblings."""
    children_before = np.cumsum([0, *(level.n_children for level in levels)])
    runs = []
    for _, group in itertools.groupby(
        range(len(levels)), lambda depth: (levels[depth].lanes.dtype, levels[depth].values.dtype)
    ):
        depths = list(group)
        arrays, rows = [], []
        for depth in depths:  # in the kernel's order, which does not check types; copied only if not aligned
            level = levels[depth]
            small = (np.require(array, np.float32, ["C", "A"]) for array in (level.bias, level.scales))
            arrays.append([level.children_offsets, *level.sets, *level.rows, *small, level.checked])
            rows.append([*address_row(arrays[-1]), level.widest, children_before[depth]])
        lanes, values = arrays[0][13:15]
        lane, value, word, byte = (np.empty(0, one) for one in (lanes.dtype, values.dtype, np.uint64, np.uint8))
        bounds = depths[0] == 0, depths[-1] == len(levels) - 1
        given = np.array(rows, np.int64), lane, value, word, byte, *bounds
        runs.append(_Run(given, arrays, slice(depths[0], depths[-1] + 1)))
    return runs


def beam_search(
    features: Any,
    levels: Sequence[ChunkedWeights | PackedWeights],
    label_order: np.ndarray,
    beam: int | tuple[int, ...],
    k: int,
    post_processor: str | tuple[str, ...] = "l3_hinge",
) -> TopK:
    """A single search, without keeping the prepared tree."""
    return TreeSearch(levels, label_order, post_processor).best(features, beam, k)


T = TypeVar("T", int, str)


def per_level(value: T | tuple[T, ...], count: int, what: str) -> tuple[T, ...]:
    """One value per level from the top: the same for all, or those given, whose number has to be right."""
    if not isinstance(value, tuple):
        return (value,) * count
    if len(value) != count:
        raise ConfigError(f"{what}: {len(value)} values are given for a tree that needs {count}, or one for all levels")
    return value


def check_combination(names: Sequence[str]) -> None:
    """Refuse post-processors whose scores cannot be combined from level to level: sums are in logarithms.

    `none` ignores the levels above. Products and sums of logarithms cannot follow each other, nor products `none`.
    """
    for above, below in itertools.pairwise(names):
        if below == "none" or (above == "none" and not POST_PROCESSORS[below][2]):
            continue
        if above == "none" or POST_PROCESSORS[above][2] != POST_PROCESSORS[below][2]:
            raise ConfigError(
                f"post_processor: {below} cannot follow {above} in a tree; use products (such as l3_hinge), or their "
                "logarithms (log_l3_hinge), at all levels; none may be that of the labels"
            )


def _allowed(levels: Sequence[PackedWeights], allowed: np.ndarray | None) -> np.ndarray:
    """Mask of the nodes with an allowed label below, level after level; empty if all labels are allowed."""
    if allowed is None:
        return _empty(np.bool_)
    masks = [np.ascontiguousarray(allowed, np.bool_)]
    for level in reversed(levels[1:]):
        before = np.append(0, np.cumsum(masks[0]))
        masks.insert(0, np.diff(before[level.children_offsets]) > 0)
    return np.concatenate(masks)


@lru_cache
def _empty(dtype: Any) -> np.ndarray:
    return np.empty(0, dtype)
