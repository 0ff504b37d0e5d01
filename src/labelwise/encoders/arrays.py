"""Weights as arrays and arrays as weights."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor


def as_array(tensor: Tensor) -> np.ndarray:
    """A weight as a NumPy array that NumPy has a type for."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def as_tensor(array: np.ndarray) -> Tensor:
    """A stored array as a tensor over the same memory; nobody writes to it, although torch fears so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(array))
