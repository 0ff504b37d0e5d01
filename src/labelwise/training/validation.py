"""The numbers that training looks at: ranking metrics of predictions for held-out documents."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from labelwise.mapped import counts_of
from labelwise.metrics.evaluate import evaluate
from labelwise.topk import TopK

VALIDATED = ("P@1", "P@3", "P@5", "nDCG@5")


def validated_metrics(metric: str) -> tuple[list[str], int]:
    """The metrics to work out, that of the training config among them, and the places they look at."""
    metrics = list(dict.fromkeys([*VALIDATED, *([metric] if "loss" not in metric else [])]))
    return metrics, max(int(found) for name in metrics for found in re.findall(r"@(\d+)", name) or ["5"])


def validation_numbers(top: TopK, labels: Any, metrics: list[str], train_labels: Any) -> dict[str, float]:
    """Metrics of predictions; `labels` may have columns that training has not."""
    counts = counts_of(train_labels.indices, labels.shape[1])
    # places instead of scores: a network that has hardly begun gives many equal ones, which is not worth a warning
    places = np.where(np.isneginf(top.scores), -np.inf, -np.arange(top.k)).astype(np.float32)
    found = evaluate(
        TopK(top.ids, places), labels, metrics, train=counts, train_documents=train_labels.shape[0], groups=()
    )
    return dict(found.values)
