"""Small model folders as PECOS and omikuji write them, for the cases of `golden.py`."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

N_FEATURES = 30


def weights(rng: np.random.Generator, children: int) -> np.ndarray:
    found = rng.normal(0, 1, (N_FEATURES + 1, children)) * (rng.random((N_FEATURES + 1, children)) < 0.4)
    return found.astype(np.float32)


def write_pecos(folder: Path) -> None:
    """An XR-Linear folder of three levels."""
    rng, above = np.random.default_rng(1), 1
    folder.mkdir()
    (folder / "param.json").write_text(json.dumps({"__meta__": {"class_fullname": "pecos.xmc.xlinear.model###X"}}))
    for depth, nodes in enumerate((3, 7, 25)):
        inside = folder / "ranker" / f"{depth}.model"
        inside.mkdir(parents=True)
        kwargs = {"only_topk": 3, "post_processor": "l3-hinge"}
        (inside / "param.json").write_text(json.dumps({"model": "MLModel", "bias": 1.0, "pred_kwargs": kwargs}))
        parents = rng.permutation(np.append(np.arange(above), rng.integers(0, above, nodes - above)))
        clusters = sparse.csc_matrix((np.ones(nodes, np.float32), (np.arange(nodes), parents)), shape=(nodes, above))
        sparse.save_npz(inside / "W.npz", sparse.csc_matrix(weights(rng, nodes)), compressed=False)
        sparse.save_npz(inside / "C.npz", clusters, compressed=False)
        above = nodes
    (folder / "ranker" / "param.json").write_text(json.dumps({"model": "HierarchicalMLModel", "depth": 3}))


def write_omikuji(folder: Path) -> None:
    """A tree with leaves at two depths."""
    rng = np.random.default_rng(2)

    def node(children: list[dict] | None = None, labels: list[int] | None = None) -> dict:
        dense = weights(rng, len(children or labels or []))
        stored = {"Dense": {"v": 1, "dim": list(dense.shape), "data": [float(x) for x in dense.ravel()]}}
        below = {"children": children} if children else {"labels": labels}
        return {"Branch" if children else "Leaf": {"weights": stored, **below}}

    leaves = [node(labels=list(range(first, first + 5))) for first in (0, 5, 10)]
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"n_features": N_FEATURES, "classifier_loss_type": "Hinge"}))
    (folder / "tree0.cbor").write_bytes(cbor(node([node(leaves[:2]), leaves[2]])))


def cbor(value: Any) -> bytes:
    """Encode as serde_cbor does, with floats of 32 bits."""
    if isinstance(value, dict):
        return head(5, len(value)) + b"".join(cbor(key) + cbor(one) for key, one in value.items())
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(cbor, value))
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    return b"\xfa" + struct.pack(">f", value) if isinstance(value, float) else head(0, value)


def head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    code, letter = (24, "B") if number < 1 << 8 else (25, "H")
    return bytes([major << 5 | code]) + struct.pack(f">{letter}", number)
