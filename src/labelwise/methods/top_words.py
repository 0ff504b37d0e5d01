"""The words that contributed most to each predicted label, for many documents at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.errors import ConfigError
from labelwise.methods.explanation import feature_names, mean_over_trees
from labelwise.methods.inputs import Documents
from labelwise.registry import methods_that
from labelwise.topk import NO_LABEL, TopK

if TYPE_CHECKING:
    from labelwise.methods.base import Method
    from labelwise.methods.capabilities import Capabilities


def top_words(model: Method, documents: Any, top: TopK, count: int) -> list[list[list[str]]]:
    """For each document and each of its predicted labels, at most `count` words, the largest contribution first.

    Only words that speak for the label are listed, as in `explain`: with a positive contribution to the margin of the
    label's own classifier, as a mean over the trees.
    """
    check_explains(model, count)
    data = model._as_documents(documents)
    features, _ = model._top_contributions(data, top.ids, count)
    distinct, inverse = np.unique(features, return_inverse=True)
    known = distinct[distinct >= 0]
    names = [""] * (len(distinct) - len(known)) + (feature_names(model, known) if len(known) else [])
    words = inverse.reshape(features.shape).tolist()
    counts = (features >= 0).sum(2).tolist()
    filled = (top.ids != NO_LABEL).sum(1).tolist()
    return [
        [[names[word] for word in row[rank][: counts[document][rank]]] for rank in range(filled[document])]
        for document, row in enumerate(words)
    ]


def check_explains(model: Method, count: int) -> None:
    """Raise unless the method can explain predictions, and with so many words."""
    if count < 1:
        raise ConfigError(f"explain: 1 word or more per label is needed, got {count}")
    if model.shows_pixels:
        raise ConfigError(f"{model.name} has no words to show; `labelwise explain` draws maps of pixels")
    if not model.explains:
        raise ConfigError(f"{model.name} cannot explain its predictions; {methods_that('explains')} can")


def contributions_one_by_one(
    model: Capabilities, data: Documents, labels: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """What `Method._top_contributions` returns, from one explanation per document."""
    features = np.full((*labels.shape, count), -1, np.int64)
    amounts = np.zeros(features.shape)
    for document in range(len(labels)):
        ids = labels[document][labels[document] != NO_LABEL]
        if not len(ids):
            continue
        trees = model._explain(data.take(slice(document, document + 1)), ids)
        for rank in range(len(ids)):
            columns, values, weights = mean_over_trees([paths[rank] for paths in trees])
            contributions = values * weights
            best = np.argsort(-contributions, kind="stable")[:count]
            best = best[contributions[best] > 0]
            features[document, rank, : len(best)] = columns[best]
            amounts[document, rank, : len(best)] = contributions[best]
    return features, amounts
