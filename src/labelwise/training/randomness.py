"""The state of every random generator (Python, NumPy, torch, the GPU) as arrays that can be stored without pickle.

NumPy's legacy global generator is included because other libraries draw from it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch


def random_state() -> dict[str, np.ndarray]:
    """The state of all generators of this process, including its GPU."""
    version, words, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    inner = numpy_state["state"]
    state = {
        "python": np.array([version, *words], np.int64),
        "python_gauss": np.array([np.nan if gauss is None else gauss]),
        "numpy": np.array([*inner["key"], inner["pos"], numpy_state["has_gauss"]], np.int64),
        "numpy_gauss": np.array([numpy_state["gauss"]], np.float64),
        "torch": torch.get_rng_state().numpy(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state().numpy()
    return state


def set_random_state(state: Mapping[str, np.ndarray]) -> None:
    """Restore what `random_state` returned."""
    version, *words = state["python"].tolist()
    gauss = float(state["python_gauss"][0])
    random.setstate((version, tuple(words), None if np.isnan(gauss) else gauss))
    *key, position, has_gauss = state["numpy"].tolist()
    np.random.set_state(  # noqa: NPY002
        {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, np.uint32), "pos": position},
            "has_gauss": has_gauss,
            "gauss": float(state["numpy_gauss"][0]),
        }
    )
    torch.set_rng_state(torch.from_numpy(np.array(state["torch"])))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.from_numpy(np.array(state["cuda"])))


@contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the state of all generators after the block."""
    before = random_state()
    try:
        yield
    finally:
        set_random_state(before)


@contextmanager
def seed_random_state(seed: int) -> Iterator[None]:
    """Seed all generators inside the block, and restore their state afterwards."""
    with preserve_random_state():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        torch.manual_seed(seed % 2**63)
        yield
