"""Measure the constants of this machine for `labelwise plan`: about a minute of short runs of the real code.

Every figure is the processor time of the code that training runs, divided by the units that its cost is counted in
(`linear/cost.py`, `networks/cost.py`); medians of a few runs, after one that compiles.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np

from labelwise.codes.bucket_search import BucketSearch
from labelwise.codes.buckets import BucketTables
from labelwise.codes.tree import LabelTree
from labelwise.costs import Constants, DataShape
from labelwise.data.dataset import Dataset
from labelwise.features.label_features import pifa
from labelwise.features.tfidf import LINEAR_TFIDF, Tfidf
from labelwise.linear.cost import groups_of_children, halving_layers
from labelwise.linear.settings import PRECISIONS
from labelwise.methods.linear_tree import LinearTree
from labelwise.progress import progress
from labelwise.registry import installed_versions, method_class
from labelwise.runs.measure_search import measure_search
from labelwise.runs.measured_data import planted_features, planted_images, planted_texts
from labelwise.strings import Strings

log = logging.getLogger("labelwise")

DOCUMENTS, LABELS = 36_500, 50_000
"""Of the linear measurement; 0.73 documents per label as in Amazon-670K, more than caches hold."""
MANY_LABELS, TABLES, BUCKETS = 200_000, 8, 5000
"""Of bucket tables, so that looking labels up takes longer than calling the kernels."""
BUCKET_WIDTH = 1024
"""Hidden units: a step of narrow bucket networks is mostly the update of their weights, not operations."""
KEEP = 500
THRESHOLDS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


def measure_machine() -> Constants:
    """Run everything; networks only if torch is installed."""
    with _quiet(), progress("measuring this machine", 6) as step:
        found = _linear(step)
        networks: dict[str, float] = {}
        if installed_versions(("torch",)).get("torch") and installed_versions(("accelerate",)).get("accelerate"):
            for kind, measure in NETWORKS.items():
                rates = measure()
                networks |= rates if isinstance(rates, dict) else {kind: rates}
                step(1)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return Constants(**found, networks=networks, measured=now)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the measured code reports about itself."""
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    result = work()
    return max(time.process_time() - begin, 1e-6), result


def _linear(step: Callable[[int], None]) -> dict[str, Any]:
    data = planted_features(DOCUMENTS, LABELS)
    texts = planted_texts(2000, 500).texts or Strings.of(())
    features: Any = data.features
    few = np.arange(500)
    small = data.take(few)
    LinearTree(trees=1, precision=PRECISIONS[0]).fit(small).predict(small, k=10)  # compiles
    Tfidf(LINEAR_TFIDF).fit_transform(texts)
    step(1)
    tfidf, _ = _seconds(lambda: Tfidf(LINEAR_TFIDF).fit_transform(texts))
    described_in, described = _seconds(lambda: pifa(data.features, data.labels, keep=KEEP))
    halved_in, tree = _seconds(lambda: LabelTree.balanced(described))
    whole, model = _seconds(lambda: LinearTree(trees=1, precision=PRECISIONS[0]).fit(data))
    entries, ones = features.nnz, data.labels.nnz
    above = tree.aggregate(data.labels)
    occupied = [len(data), *(level.nnz for level in above)]
    units = 0.0
    for level, parents in enumerate((1, *tree.sizes[:-1])):
        units += entries * occupied[level] / len(data) * groups_of_children(parents, tree.sizes[level])
    lowest = above[-2].nnz / len(data)
    per_document = ones / len(data)
    everything = LinearTree(trees=1, precision="float32", solver={"threshold": 0.0}).fit(small)
    leaves = everything.linear_.trees[0][1][-1].unpacked()
    trained = [level.n_weights for level in model.linear_.trees[0][1]]
    full = trained[-1] / (entries * per_document)
    inner = trained[-2] / (entries * lowest)
    lasting = {t: leaves.pruned(t).n_weights if t else leaves.n_weights for t in THRESHOLDS}
    kept = [(t, full * count / lasting[0.1]) for t, count in lasting.items()]
    searched = measure_search(model.shrink(precision=PRECISIONS[-1]), data)
    step(1)
    return {
        "tfidf": tfidf / texts.buffer.nbytes,
        "pifa": described_in / (ones * entries / len(data)),
        "cluster": halved_in / (described.nnz * halving_layers(described.nnz, tree.sizes[-2])),
        "solve": max(whole - described_in - halved_in, 0.1 * whole) / units,
        **searched,
        "spread": max((lowest - 1) / (per_document - 1), 1e-3),
        "distinct": described.nnz / (ones * entries / len(data)),
        "inner": inner / full,
        "kept": tuple((t, float(part)) for t, part in kept),
        "weight_bytes": _weight_bytes(model),
    }


def _weight_bytes(model: LinearTree) -> dict[str, float]:
    """Bytes of weights on disk per kept weight, in each precision."""
    found = {}
    for precision in PRECISIONS:
        same = model if precision == model.config.precision else model.shrink(precision=precision)
        levels = same.linear_.trees[0][1]
        found[precision] = sum(level.stored_bytes for level in levels) / sum(level.n_weights for level in levels)
    return found


# --- networks: operations per second and core, from the time of some steps ------------------------------------------

STEPS = (1, 2, 14)
"""The first is not measured: it loads packages."""


def _rate(name: str, data: Dataset, settings: dict[str, Any], shape: DataShape, fast: Constants) -> float:
    """Operations per second of processor time, between a short and a longer training."""
    times, counts = [], []
    for steps in STEPS:
        training = {**settings.get("training", {}), "epochs": None, "steps": steps, "validate_every": None,
                    "restore_best": False, "early_stopping": None, "averaging": {"kind": "none"}}  # fmt: skip
        given = {**settings, "training": training, "valid_fraction": 0.0}
        if name == "mach":
            del given["valid_fraction"]
        model = method_class(name)(**given)
        counts.append(model._cost(shape, fast).operations)
        times.append(_seconds(lambda model=model: model.fit(data))[0])
    return (counts[2] - counts[1]) / max(times[2] - times[1], 1e-3)


def _counting() -> Constants:
    """Constants with which only operations are counted."""
    ones: Any = dict.fromkeys(
        ("tfidf", "pifa", "cluster", "solve", "search", "call", "spread", "distinct", "inner"), 1.0
    )
    every = dict.fromkeys(("transformer", "recurrent", "image", "buckets", "decoding"), 1.0)
    return Constants(**ones, kept=((0.0, 1.0),), lookups=((1.0, 1.0),), weight_bytes={}, networks=every)


def _texts() -> tuple[Dataset, DataShape]:
    data = planted_texts(600, 200)
    words = float(np.mean([len(text.split()) for text in data.texts or ()]))
    labels = data.labels.nnz / len(data)
    return data, DataShape(len(data), data.n_labels, labels, features=8000, nonzeros=words, words=words)


def _recurrent() -> float:
    data, shape = _texts()
    settings = {"words": {"width": 128}, "recurrent": {"width": 256, "cell": "gru"}, "attention": "label"}
    return _rate("bigru", data, settings, shape, _counting())


def _transformer() -> float:
    data, shape = _texts()
    architecture = {"model_type": "bert", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
                    "intermediate_size": 1024}  # fmt: skip
    encoder = {"architecture": architecture, "max_length": 64, "vocabulary": 2000}
    settings = {"encoder": encoder, "head_epochs": 0, "monitor": {"enabled": False}, "training": {"batch_size": 16}}
    return _rate("text_encoder", data, settings, shape, _counting())


def _image() -> float:
    data = planted_images(256, 10, 32)
    settings = {"backbone": {"name": "resnet10", "channels": 32}, "monitor": {"enabled": False, "attention": False}}
    settings["training"] = {"batch_size": 32}
    return _rate("mhe_image", data, settings, DataShape(256, 10, 1.0), _counting())


def _buckets() -> dict[str, float]:
    """Bucket networks as wide as usual ones, and labels and tables per second when a document is ranked."""
    data = planted_features(4000, 1000)
    features: Any = data.features
    shape = DataShape(len(data), data.n_labels, features=features.shape[1], nonzeros=features.nnz / len(data))
    settings = {"repetitions": 1, "buckets": BUCKETS, "hidden": [BUCKET_WIDTH]}
    rate = _rate("mach", data, settings, shape, _counting())
    search = BucketSearch(BucketTables(MANY_LABELS, BUCKETS, tuple(range(TABLES))))
    scores = np.random.default_rng(0).normal(-6, 1, (TABLES, BUCKETS, 1)).astype(np.float32)
    search.best(scores, 10)
    searched = _seconds(lambda: [search.best(scores, 10) for _ in range(20)])[0] / 20
    return {"buckets": rate, "decoding": MANY_LABELS * TABLES / searched}


NETWORKS: dict[str, Callable[[], float | dict[str, float]]] = {
    "recurrent": _recurrent, "transformer": _transformer, "image": _image, "buckets": _buckets,
}  # fmt: skip
