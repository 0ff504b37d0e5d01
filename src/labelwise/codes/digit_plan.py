"""Propose radices for the heads of multi-head encoding, with their parameters, operations and memory.

Rules: near-equal radices make the product head smallest. A cascade scores `groups` nodes' labels below the first digit,
so its cheapest number of groups g balances width x g against bottleneck x groups x labels / g. Sampling costs the
fraction of groups that it draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labelwise.codes.digits import DigitCode, balanced_radices, group_radices
from labelwise.errors import ConfigError

MOMENTS = 2
"""State arrays of Adam per weight."""
BLOCK = 8192
"""Labels whose scores a batch holds at a time, where all are scored."""


@dataclass(frozen=True)
class HeadPlan:
    """A head and what it costs."""

    kind: str
    radices: tuple[int, ...]
    surplus: int
    """Codes without a label."""
    parameters: int
    step_operations: int
    """Multiplications and additions of a document's scores and gradients in training."""
    predict_operations: int
    """The same of its scores in prediction."""
    training_bytes: int
    """Weights, moments, gradients of a batch and its scores."""


def plan_heads(
    n_labels: int,
    width: int,
    batch: int = 32,
    bottleneck: int = 400,
    groups: int = 10,
    sampled: int = 10,
    depths: Sequence[int] = (2, 3, 4),
) -> list[HeadPlan]:
    """The four heads for a number of labels, the digit heads with radices of each depth.

    Parameters
    ----------
    n_labels, width
        Labels, and the dimension of the documents' vectors.
    batch
        Documents per batch.
    bottleneck, groups
        Of a cascade: the width of embeddings, and nodes per document and level whose children are scored.
    sampled
        Groups that a batch of sampled softmax is trained against.
    depths
        Numbers of digits.
    """
    named = {"labels": n_labels, "width": width, "batch": batch, "bottleneck": bottleneck, "groups": groups}
    for name, value in {**named, "sampled": sampled}.items():
        if value < 1:
            raise ConfigError(f"{name}: must be 1 or more, got {value}")
    if n_labels < 2:
        raise ConfigError("labels: digits need at least 2 labels")
    plans = [_full("one_hot", n_labels, width, batch)]
    for depth in depths:
        radices = balanced_radices(n_labels, depth)
        plans.append(_product(radices, n_labels, width, batch))
        first = best_groups(n_labels, width, bottleneck, groups)
        cascade = group_radices(n_labels, first) if depth == 2 else _graded(n_labels, depth)
        plans.append(_cascade(cascade, n_labels, width, batch, bottleneck, groups))
    plans.append(_sampling(balanced_radices(n_labels, 2), n_labels, width, batch, sampled))
    return plans


def best_groups(n_labels: int, width: int, bottleneck: int, groups: int) -> int:
    """The number of groups with which a cascade of two digits has the fewest operations."""
    best = round(math.sqrt(bottleneck * groups * n_labels / width))
    return max(1, min(best, n_labels))


def _graded(n_labels: int, depth: int) -> tuple[int, ...]:
    """Near-equal radices for a cascade of several levels, the largest last: upper levels are searched more widely."""
    return tuple(sorted(balanced_radices(n_labels, depth)))


def _full(kind: str, n_labels: int, width: int, batch: int) -> HeadPlan:
    parameters = n_labels * (width + 1)
    scores = batch * min(n_labels, BLOCK) * 3
    memory = 4 * (parameters * (2 + MOMENTS) + scores)
    return HeadPlan(kind, (n_labels,), 0, parameters, 6 * n_labels * width, 2 * n_labels * width, memory)


def _product(radices: tuple[int, ...], n_labels: int, width: int, batch: int) -> HeadPlan:
    code = DigitCode(radices, n_labels)
    outputs = sum(code.sizes)
    parameters = outputs * (width + 1)
    memory = 4 * (parameters * (2 + MOMENTS) + 3 * batch * outputs) + 8 * n_labels * code.depth
    return HeadPlan("product", radices, code.surplus, parameters, 6 * outputs * width, 2 * outputs * width, memory)


def _cascade(radices: tuple[int, ...], n_labels: int, width: int, batch: int, bottleneck: int, groups: int) -> HeadPlan:
    code = DigitCode(radices, n_labels)
    nodes = [code.n_nodes(digit) for digit in range(code.depth)]
    below = sum(nodes[1:])
    scored = [min(groups, nodes[digit - 1]) * radices[digit] for digit in range(1, code.depth)]
    dense = nodes[0] * (width + 1) + (code.depth - 1) * (width + 1) * bottleneck
    parameters = dense + below * (bottleneck + 1)
    operations = width * (nodes[0] + (code.depth - 1) * bottleneck) + bottleneck * sum(scored)
    rows = sum(min(batch * count, total) for count, total in zip(scored, nodes[1:], strict=True))
    memory = 4 * (parameters * (1 + MOMENTS) + dense + 2 * rows * (bottleneck + 1) + 4 * batch * rows)
    return HeadPlan("cascade", radices, code.surplus, parameters, 6 * operations, 2 * operations, memory)


def _sampling(radices: tuple[int, ...], n_labels: int, width: int, batch: int, sampled: int) -> HeadPlan:
    code = DigitCode(radices, n_labels)
    # the groups of the batch's own labels always take part
    own = code.n_nodes(0) * (1 - (1 - 1 / code.n_nodes(0)) ** batch)
    drawn = min(round(max(sampled, own)) * code.places[0], n_labels)
    parameters = n_labels * (width + 1)
    memory = 4 * (parameters * (1 + MOMENTS) + 2 * drawn * width + 3 * batch * min(drawn, BLOCK))
    return HeadPlan("sampling", radices, code.surplus, parameters, 6 * drawn * width, 2 * n_labels * width, memory)
