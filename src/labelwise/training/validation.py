"""Ranking metrics on held-out documents during training."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from labelwise.mapped import counts_of
from labelwise.metrics.streaming import Evaluator
from labelwise.topk import TopK

VALIDATED = ("P@1", "P@3", "P@5", "nDCG@5")


def metrics_to_validate(metric: str) -> tuple[list[str], int]:
    """The metrics to compute, including that of the training config, and the number of predictions they need."""
    metrics = list(dict.fromkeys([*VALIDATED, *([metric] if "loss" not in metric else [])]))
    return metrics, max(int(k) for name in metrics for k in re.findall(r"@(\d+)", name) or ["5"])


def validation_metrics(top: TopK, labels: Any, metrics: list[str], train_labels: Any) -> dict[str, float]:
    """Metrics of predictions; `labels` may have columns that the training labels lack."""
    counts = counts_of(train_labels.indices, labels.shape[1])
    # ranks instead of scores: a network has many ties early in training, which need no warning
    by_rank = np.where(np.isneginf(top.scores), -np.inf, -np.arange(top.k)).astype(np.float32)
    evaluator = Evaluator(metrics, labels.shape[1], train=counts, train_documents=train_labels.shape[0], groups=())
    evaluator.update(TopK(top.ids, by_rank), labels)
    return dict(evaluator.result().values)
