"""Losses of buckets: values and gradients against torch's own losses on dense targets."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch.nn import functional

from labelwise.nn.sparse_mlp import BucketTargets, bucket_loss

LABELS = sparse.csr_array(np.array([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 1, 0, 1], [0, 0, 0, 1, 0]], np.float32))
TABLES = [np.array([0, 1, 0, 2, 2], np.uint16), np.array([2, 1, 1, 1, 0], np.uint16)]


def dense_targets(rows):
    """Counts of true labels in each bucket [networks, documents, buckets]."""
    found = np.zeros((2, len(rows), 3), np.float32)
    for network, table in enumerate(TABLES):
        for place, row in enumerate(rows):
            for label in np.flatnonzero(LABELS.toarray()[row]):
                found[network, place, table[label]] += 1
    return torch.from_numpy(found)


def both(kind, rows, expected):
    scores = torch.randn(2, len(rows), 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = BucketTargets.of_rows(LABELS, np.array(rows), TABLES, 3)
    value = bucket_loss(scores, targets, kind)
    (2 * value).backward()
    gradients, scores.grad = scores.grad, None
    wanted = expected(scores) / len(rows)
    (2 * wanted).backward()
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(gradients, scores.grad)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2], [3, 0]])
def test_cross_entropy_of_every_bucket(rows):
    """A bucket is true if any label of the document is in it."""
    hits = (dense_targets(rows) > 0).float()
    both("bce", rows, lambda scores: functional.binary_cross_entropy_with_logits(scores, hits, reduction="sum"))


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2], [3, 0]])
def test_softmax_over_buckets(rows):
    """A document's labels share the probability; one without labels says nothing."""
    counts = dense_targets(rows)
    shares = counts / counts.sum(2, keepdim=True).clamp_min(1)
    both("softmax", rows, lambda scores: -(shares * functional.log_softmax(scores, 2)).sum())


def test_targets_stand_once():
    targets = BucketTargets.of_rows(LABELS, np.array([0, 2]), TABLES, 3)
    assert targets.indices.T.tolist() == [
        [0, 0, 0], [0, 1, 0], [0, 1, 1], [0, 1, 2], [1, 0, 1], [1, 0, 2], [1, 1, 0], [1, 1, 1],
    ]  # fmt: skip
    assert targets.fractions.tolist() == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2, 1 / 3, 2 / 3])
