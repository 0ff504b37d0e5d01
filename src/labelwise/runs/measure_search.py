"""Measure how long linear models take for a single document: per call, per look-up, per score, and outside caches.

A look-up is that of one feature of a document among the features of one chunk. The weights of a large model are not in
the processor's caches, nor all of their pages in its table of addresses. Training a model of that size takes long, so
copies of a small one stand for it: consecutive documents are searched in different copies, in pages as small as those
of a model that is opened from a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import cycle
from typing import Any

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.linear.beam import TreeSearch
from labelwise.linear.cost import visited
from labelwise.linear.level_trainer import LANES
from labelwise.linear.packed import PackedWeights
from labelwise.methods.linear_flat import LinearFlat
from labelwise.methods.linear_tree import LinearTree
from labelwise.pages import in_small_pages
from labelwise.runs.measured_data import planted_features

COPIES = (1, 4, 16)
"""Copies of the model, and so multiples of its size."""
FLAT_LABELS, FEW_LABELS, FLAT_DOCUMENTS = 1000, LANES, 1000
"""Of models with a single chunk, whose search is nearly all scores, or nearly all calls."""
SINGLES, ROUNDS = 200, 9
LEAST = 1e-12
"""Seconds: what is smaller than the noise of a measurement is still above 0."""

FINE = 1e-5
"""Seconds: a clock of processor time whose steps are longer (Windows) cannot measure a prediction."""

Search = Callable[[Any], Any]


def measure_search(model: LinearTree, data: Dataset) -> dict[str, Any]:
    """`call`, `search` and `lookups` of `Constants`, by a tree that was trained on sparse documents like these."""
    features: Any = data.features
    rows = [features[row : row + 1] for row in range(min(SINGLES, len(data)))]
    nonzeros = float(np.median([row.nnz for row in rows]))
    chunks, groups = visited([1, *model.linear_.trees[0][0].sizes], int(np.max(model.config.beam)))
    cases = [(_predicting(model), rows), _flat(FLAT_LABELS), _flat(FEW_LABELS), *_in_copies(model, rows)]
    tree, flat, few, *in_copies = measure_times(cases)
    search = max((flat - few) / (nonzeros * (FLAT_LABELS - FEW_LABELS) / LANES), LEAST)
    lookup = max(((tree - few) / nonzeros - search * (groups - 1)) / (chunks - 1), LEAST)
    slower = (np.maximum.accumulate(in_copies) - in_copies[0]) / (nonzeros * chunks)
    size = sum(level.stored_bytes for level in model.linear_.trees[0][1])
    return {
        "call": max(few - nonzeros * (lookup + search), 1e-6),
        "search": search,
        "lookups": tuple((float(n * size), lookup + float(more)) for n, more in zip(COPIES, slower, strict=True)),
    }


def measure_times(cases: Sequence[tuple[Sequence[Search], Sequence[Any]]]) -> list[float]:
    """Median time per document for each case: some searches, of which each document gets the next, and documents.

    The cases alternate, so that a machine that becomes busy changes all of them; the first round is not counted.
    """
    fine = time.get_clock_info("process_time").resolution < FINE
    clock = time.process_time if fine else time.perf_counter
    found: list[list[float]] = [[] for _ in cases]
    for _ in range(1 + ROUNDS):
        for times, (searches, rows) in zip(found, cases, strict=True):
            spent = []
            for search, row in zip(cycle(searches), rows, strict=False):
                begin = clock()
                search(row)
                spent.append(clock() - begin)
            times.append(float(np.median(spent)))
    return [float(np.median(times[1:])) for times in found]


def _predicting(model: LinearTree | LinearFlat) -> list[Search]:
    return [lambda row: model.predict(row, k=10)]


def _flat(labels: int) -> tuple[list[Search], list[Any]]:
    """A model with one chunk, and its documents."""
    data = planted_features(FLAT_DOCUMENTS, labels)
    features: Any = data.features
    model = LinearFlat().fit(data)
    return _predicting(model), [features[row : row + 1] for row in range(SINGLES)]


def _in_copies(model: LinearTree, rows: Sequence[Any]) -> list[tuple[list[Search], list[Any]]]:
    """The tree alone, without what a prediction does beyond it, in each number of copies."""
    (tree, levels), settings = model.linear_.trees[0], model.search_settings
    ordered = [model.linear_.order.rows(row) for row in rows]
    copies = [
        TreeSearch([_copied(level) for level in levels], tree.label_order, settings.post_processor)
        for _ in range(COPIES[-1])
    ]
    searches: list[Search] = [lambda row, one=one: one.best(row, settings.beam, 10) for one in copies]
    return [(searches[:count], ordered) for count in COPIES]


def _copied(level: PackedWeights) -> PackedWeights:
    arrays: Any = {one.name: getattr(level, one.name) for one in fields(level)}
    copies: Any = {name: in_small_pages(one) for name, one in arrays.items() if isinstance(one, np.ndarray)}
    return replace(level, **copies)
