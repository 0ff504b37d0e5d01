"""Heads from their settings, and from the arrays of a saved model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, ModelFormatError
from labelwise.labelspace.digits import DigitCode, make_code
from labelwise.nn.config import DigitHeadConfig, HeadConfig, MarginConfig
from labelwise.nn.heads.base import Head
from labelwise.nn.heads.digits import Cascade, Product
from labelwise.nn.heads.linear import Outputs
from labelwise.nn.heads.sampled import Margin, Sampling, radices_of

HeadSettings = HeadConfig | DigitHeadConfig | MarginConfig
Features = Callable[[], Any] | None
"""Computes features of the labels."""
ORDER = "label_at"
"""Name of the array with the order of the labels in a model file."""


def make_head(
    width: int, n_labels: int, config: HeadSettings, counts: np.ndarray, seed: int, features: Features = None
) -> Head:
    """The head of a config, without weights.

    Parameters
    ----------
    width
        Dimension of the documents' vectors.
    n_labels
        Number of labels.
    config
        Settings.
    counts
        Documents of each label.
    seed
        Of random orders and of clustering.
    features
        Only `config.order: clustered` needs them.
    """
    code = None
    if isinstance(config, DigitHeadConfig) and config.has_code:
        described = features() if features is not None and config.order == "clustered" else None
        code = make_code(radices_of(config, n_labels), n_labels, config.order, counts, seed, described)
    return _built(width, n_labels, config, code)


def new_head(width: int, train: Dataset, config: HeadSettings, seed: int, features: Features = None) -> Head:
    """The head of a config with initial weights for training documents; `features` of labels, if they are clustered."""
    counts = train.label_counts()
    return make_head(width, train.n_labels, config, counts, seed, features).initialise(counts, len(train), seed)


def head_state(head: Head) -> dict[str, np.ndarray]:
    """The arrays to write to a model file, with the order of the labels."""
    code: DigitCode | None = getattr(head, "code", None)
    order = {} if code is None or code.label_at is None else {ORDER: code.label_at}
    return {**head.state(), **order}


def restored_head(
    width: int, n_labels: int, config: HeadSettings, tensors: Mapping[str, np.ndarray], path: Path
) -> Head:
    """Rebuild a head from what `head_state` returned, without copying weights."""
    code = None
    if isinstance(config, DigitHeadConfig) and config.has_code:
        order = None if config.order == "index" else tensors.get(ORDER)
        if order is not None and (order.dtype != np.int32 or not np.array_equal(np.sort(order), np.arange(n_labels))):
            raise ModelFormatError(f"{path}: the order of the labels is no permutation of {n_labels:,} labels")
        if order is None and config.order != "index" and n_labels > 1:
            raise ModelFormatError(f"{path}: the order of the labels ({ORDER}) is missing")
        try:
            code = DigitCode(radices_of(config, n_labels), n_labels, order)
        except ConfigError as error:
            raise ModelFormatError(f"{path}: {error}") from None
    with torch.device("meta"):
        head = _built(width, n_labels, config, code)
    return head.restore(tensors, path)


def _built(width: int, n_labels: int, config: HeadSettings, code: DigitCode | None) -> Head:
    if isinstance(config, HeadConfig):
        return Outputs(width, n_labels, config)
    if isinstance(config, MarginConfig):
        return Margin(width, n_labels, config)
    if code is None:
        return Outputs(width, n_labels, config.flat())
    kinds = {"product": Product, "cascade": Cascade, "sampling": Sampling}
    return kinds[config.kind](width, code, config)
