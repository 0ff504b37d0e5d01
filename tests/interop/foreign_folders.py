"""Model folders as PECOS and omikuji write them, from dense arrays; and what both toolkits predict, by brute force.

Independent of the readers: SciPy writes the matrices, and CBOR is encoded here.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse

N_FEATURES = 30


@dataclass
class Node:
    """A node of a planted tree: weights [features + 1, children], and children or labels."""

    weights: np.ndarray
    children: list[Node] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)


def documents(n: int = 40, seed: int = 5) -> sparse.csr_array:
    """Sparse rows of different norms; the first is empty."""
    rng = np.random.default_rng(seed)
    dense = rng.random((n, N_FEATURES)) * (rng.random((n, N_FEATURES)) < 0.3) * rng.uniform(0.5, 3, (n, 1))
    dense[0] = 0
    return sparse.csr_array(dense.astype(np.float32))


def planted_weights(rng: np.random.Generator, children: int) -> np.ndarray:
    weights = rng.normal(0, 1, (N_FEATURES + 1, children)) * (rng.random((N_FEATURES + 1, children)) < 0.4)
    weights[-1] = rng.normal(-0.3, 0.5, children)
    return weights.astype(np.float32)


# --- omikuji ---------------------------------------------------------------------------------------------------------


def uneven_tree(seed: int, labels: list[int]) -> Node:
    """Leaves at three depths: a leaf under the root, one below it, and two below that."""
    rng = np.random.default_rng(seed)
    rng.shuffle(labels)
    parts = np.array_split(labels, 4)
    leaves = [Node(planted_weights(rng, len(part)), labels=part.tolist()) for part in parts]
    lowest = Node(planted_weights(rng, 2), leaves[:2])
    middle = Node(planted_weights(rng, 2), [leaves[2], lowest])
    return Node(planted_weights(rng, 2), [middle, leaves[3]])


def write_omikuji(folder, trees: list[Node], loss: str = "Hinge", dense: bool = False) -> None:
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"n_features": N_FEATURES, "classifier_loss_type": loss}))
    for number, tree in enumerate(trees):
        (folder / f"tree{number}.cbor").write_bytes(cbor(_as_maps(tree, dense)))


def _as_maps(node: Node, dense: bool) -> dict:
    weights = node.weights
    if dense:
        stored = {"Dense": {"v": 1, "dim": list(weights.shape), "data": [float(x) for x in weights.ravel()]}}
    else:
        used = np.flatnonzero((weights != 0).any(axis=1))
        rows = [np.flatnonzero(weights[feature]) for feature in used]
        stored = {
            "Sparse": {
                "outer_dim": weights.shape[0],
                "inner_dim": weights.shape[1],
                "indptr": np.cumsum([0, *map(len, rows)]).tolist(),
                "outer_inds": used.tolist(),
                "inner_inds": [int(child) for row in rows for child in row],
                "data": [float(weights[f, child]) for f, row in zip(used, rows, strict=True) for child in row],
            }
        }
    if node.children:
        return {"Branch": {"weights": stored, "children": [_as_maps(child, dense) for child in node.children]}}
    return {"Leaf": {"weights": stored, "labels": node.labels}}


def cbor(value) -> bytes:
    """Encode as serde_cbor does: a float that fits 16 bits takes 16."""
    if isinstance(value, dict):
        return _head(5, len(value)) + b"".join(cbor(key) + cbor(item) for key, item in value.items())
    if isinstance(value, list):
        return _head(4, len(value)) + b"".join(map(cbor, value))
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    if isinstance(value, float):
        exact = abs(value) < 65504 and float(np.float16(value)) == value
        return b"\xf9" + struct.pack(">e", value) if exact else b"\xfa" + struct.pack(">f", value)
    return _head(0, value)


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for code, (size, letter) in enumerate([(1 << 8, "B"), (1 << 16, "H"), (1 << 32, "I"), (1 << 64, "Q")], 24):
        if number < size:
            return bytes([major << 5 | code]) + struct.pack(f">{letter}", number)
    raise ValueError(number)


def omikuji_scores(trees: list[Node], row: np.ndarray, beam: int, loss: str) -> dict[int, float]:
    """What omikuji computes, except that it drops all but the best `beam` labels of each leaf."""
    norm = np.sqrt((row.astype(float) ** 2).sum())
    extended = np.append(row / norm if norm else row, 1.0)
    means: dict[int, float] = {}
    for tree in trees:
        kept = [(tree, 0.0)]
        while any(node.children for node, _ in kept):
            below = []
            for node, score in kept:
                if node.labels:
                    below.append((node, score))
                    continue
                terms = _logarithms(extended @ node.weights, loss)
                below += [(child, score + term) for child, term in zip(node.children, terms, strict=True)]
            kept = sorted(below, key=lambda pair: -pair[1])[:beam]
        for leaf, score in kept:
            for label, term in zip(leaf.labels, _logarithms(extended @ leaf.weights, loss), strict=True):
                means[label] = means.get(label, 0.0) + float(np.exp(score + term)) / len(trees)
    return means


def _logarithms(margins: np.ndarray, loss: str) -> np.ndarray:
    return -(np.maximum(0, 1 - margins) ** 2) if loss == "Hinge" else -np.logaddexp(0, -margins)


# --- PECOS -----------------------------------------------------------------------------------------------------------


@dataclass
class PecosLevel:
    """A level: weights [features (+ 1), nodes], the parent of each node, post-processor, and nodes that are kept."""

    weights: np.ndarray
    parents: np.ndarray
    post_processor: str = "l3-hinge"
    kept: int = 3


def planted_levels(seed: int, sizes: tuple[int, ...] = (3, 7, 25), constant: bool = True) -> list[PecosLevel]:
    """Levels whose nodes have their parents in any order; each parent has a child."""
    rng = np.random.default_rng(seed)
    levels, above = [], 1
    for size in sizes:
        parents = rng.permutation(np.append(np.arange(above), rng.integers(0, above, size - above)))
        weights = planted_weights(rng, size)
        levels.append(PecosLevel(weights if constant else weights[:-1], parents))
        above = size
    return levels


def write_pecos(folder, levels: list[PecosLevel], bias: float = 1.0) -> None:
    """An XR-Linear folder."""
    folder.mkdir(parents=True)
    (folder / "param.json").write_text(json.dumps({"__meta__": {"class_fullname": "pecos.xmc.xlinear.model###X"}}))
    above = 1
    for depth, level in enumerate(levels):
        inside = folder / "ranker" / f"{depth}.model"
        inside.mkdir(parents=True)
        nodes = len(level.parents)
        kwargs = {"only_topk": level.kept, "post_processor": level.post_processor}
        (inside / "param.json").write_text(json.dumps({"model": "MLModel", "bias": bias, "pred_kwargs": kwargs}))
        sparse.save_npz(inside / "W.npz", sparse.csc_matrix(level.weights), compressed=False)
        parents = sparse.csc_matrix(
            (np.ones(nodes, np.float32), (np.arange(nodes), level.parents)), shape=(nodes, above)
        )
        sparse.save_npz(inside / "C.npz", parents, compressed=False)
        above = nodes
    (folder / "ranker" / "param.json").write_text(json.dumps({"model": "HierarchicalMLModel", "depth": len(levels)}))


def pecos_scores(levels: list[PecosLevel], row: np.ndarray, bias: float = 1.0) -> dict[int, float]:
    """The scores of the labels that PECOS's beam search reaches, best first.

    Children are listed parent by parent, the best parent first; of equal scores the first in the list wins.
    """
    extended = np.append(row, bias) if bias > 0 else row
    kept = {0: None}
    for level in levels:
        margins = extended.astype(float) @ level.weights
        found = {
            node: _combined(level.post_processor, margins[node], above)
            for parent, above in kept.items()
            for node in np.flatnonzero(level.parents == parent).tolist()
        }
        last = level is levels[-1]
        best = sorted(found, key=lambda node: -found[node])
        kept = {node: found[node] for node in (best if last else best[: level.kept])}
    return kept


def _combined(name: str, margin: float, above: float | None) -> float:
    logarithmic, plain = name.startswith("log-"), name.removeprefix("log-")
    if plain == "noop":
        return margin
    log = -np.logaddexp(0, -margin) if plain == "sigmoid" else -(max(0, 1 - margin) ** int(plain[1]))
    if logarithmic:
        return log + (above or 0.0)
    return float(np.exp(log)) * (1.0 if above is None else above)
