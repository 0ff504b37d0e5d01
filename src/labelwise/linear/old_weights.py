"""Weights in the layout of model folders of format version 1: lists of features and offsets, full rows with lanes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from labelwise.checks import all_finite, are_offsets, in_range
from labelwise.errors import ModelFormatError
from labelwise.linear.weights import ChunkedWeights, lane_type
from labelwise.store import get_tensor

_ARRAYS = ("chunk_offsets", "features", "row_offsets", "lanes", "values", "bias", "scales")


def is_old(prefix: str, tensors: Mapping[str, np.ndarray]) -> bool:
    """Whether the weights of a level have the old layout."""
    return f"{prefix}.chunk_offsets" in tensors


def read_old(
    prefix: str, tensors: Mapping[str, np.ndarray], n_features: int, children_offsets: np.ndarray, path: Path
) -> ChunkedWeights:
    """The weights of a level, every index checked: kernels read these arrays without checks."""
    arrays = {name: get_tensor(tensors, f"{prefix}.{name}", path) for name in _ARRAYS}
    level = ChunkedWeights(n_features, children_offsets=children_offsets.astype(np.int64), **arrays)
    if not _is_valid(level):
        raise ModelFormatError(f"{path}: the weights of {prefix} are damaged")
    return level


def _is_valid(level: ChunkedWeights) -> bool:
    types_match = (
        level.chunk_offsets.dtype == level.row_offsets.dtype == np.int64
        and level.features.dtype == np.int32
        and level.lanes.dtype == lane_type(level.children_offsets)
        and level.values.dtype in (np.float32, np.float16, np.int8)
        and level.bias.dtype == level.scales.dtype == np.float32
    )
    if not types_match or any(getattr(level, name).ndim != 1 for name in _ARRAYS):
        return False
    sizes_match = (
        len(level.chunk_offsets) == len(level.children_offsets)
        and len(level.row_offsets) == len(level.features) + 1
        and len(level.lanes) == len(level.values)
        and len(level.bias) == level.n_children
        and len(level.scales) == (level.n_children if level.values.dtype == np.int8 else 0)
    )
    if (
        not sizes_match
        or not are_offsets(level.chunk_offsets, len(level.features))
        or not are_offsets(level.row_offsets, len(level.lanes))
    ):
        return False
    if not all(all_finite(array) for array in (level.bias, level.scales, level.values)):
        return False
    if not in_range(level.features, level.n_features):
        return False
    inner = np.ones(len(level.features), bool)
    inner[level.chunk_offsets[:-1][level.chunk_offsets[:-1] < len(level.features)]] = False
    if len(inner) and not (np.diff(level.features, prepend=-1)[inner] > 0).all():
        return False
    entries = level.row_offsets[level.chunk_offsets]
    widths = np.repeat(np.diff(level.children_offsets), np.diff(entries))
    return bool((level.lanes < widths).all())
