"""Measure the constants of this machine for `labelwise plan`: about a minute of short runs of the real code.

Every figure is the processor time of the code that training runs, divided by the units that its cost is counted in
(`planning/linear.py`, `planning/networks.py`); medians of a few runs, after one that compiles.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise import __version__
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError
from labelwise.features.labels import pifa
from labelwise.features.tfidf import LINEAR_TFIDF, Tfidf
from labelwise.io.atomic import replacing
from labelwise.kernels.jit import user_cache
from labelwise.labelspace.bucket_search import BucketSearch
from labelwise.labelspace.buckets import BucketTables
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.search import TreeSearch
from labelwise.linear.settings import PRECISIONS, SearchSettings
from labelwise.linear.solver import LANES
from labelwise.linear.weights import PackedWeights
from labelwise.methods.linear_flat import LinearFlat
from labelwise.methods.linear_tree import LinearTree
from labelwise.planning.costs import Constants, DataShape
from labelwise.planning.linear import groups_of_children, halving_layers, visited
from labelwise.planning.methods import COSTS
from labelwise.registry import installed_versions, method_class
from labelwise.runs.machine import describe_machine
from labelwise.runtime.job import fingerprint
from labelwise.runtime.progress import progress
from labelwise.strings import Strings

# --- measured data ---
# Data for short measurements: sparse features, texts or images with a planted structure, in the shape of real tasks.
#
# As in Amazon-670K, documents have about 76 of 135,909 words and five labels, of one topic of 100 labels; words belong
# to labels, to topics or to nothing, and those of nothing follow Zipf's law.

TOPIC, WORDS = 100, 135_909
OF_LABEL, OF_TOPIC, OF_NOTHING = 5, 12, 45
PER_LABEL, PER_TOPIC = 8, 40


def planted_features(documents: int, labels: int, seed: int = 0) -> Dataset:
    """Documents with sparse features of unit norm."""
    random = np.random.default_rng(seed)
    topics = random.integers(0, max(1, labels // TOPIC), documents)
    counts = 1 + random.poisson(4.4, documents)
    rows = np.repeat(np.arange(documents), counts)
    inside = (min(TOPIC, labels) * random.random(len(rows)) ** 2).astype(np.int64)
    columns = np.minimum(topics[rows] * TOPIC + inside, labels - 1)
    order = random.permutation(WORDS)  # words of labels and topics are spread over all frequencies but the highest
    own = np.repeat(columns, OF_LABEL) * PER_LABEL + random.integers(0, PER_LABEL, len(rows) * OF_LABEL)
    shared = np.repeat(topics, OF_TOPIC) * PER_TOPIC + random.integers(0, PER_TOPIC, documents * OF_TOPIC)
    common = (WORDS ** random.random(documents * OF_NOTHING)).astype(np.int64) - 1
    words = np.concatenate([order[own % WORDS], order[(shared * 7) % WORDS], np.clip(common, 0, WORDS - 1)])
    holders = np.concatenate([np.repeat(rows, OF_LABEL), *(np.repeat(np.arange(documents), n) for n in COUNTS)])
    features = sparse.csr_array((np.ones(len(words), np.float32), (holders, words)), shape=(documents, WORDS))
    features.sum_duplicates()
    seen = np.bincount(features.indices, minlength=WORDS)
    features.data = (np.log((1 + documents) / (1 + seen)) + 1).astype(np.float32)[features.indices]
    norms = np.sqrt(np.add.reduceat(features.data**2, features.indptr[:-1]))
    features.data /= np.repeat(norms, np.diff(features.indptr))
    found = sparse.csr_array((np.ones(len(rows), np.float32), (rows, columns)), shape=(documents, labels))
    found.sum_duplicates()
    found.data[:] = 1
    return Dataset(features=features, labels=found)


COUNTS = (OF_TOPIC, OF_NOTHING)


def planted_texts(documents: int, labels: int, seed: int = 0) -> Dataset:
    """The same documents as texts."""
    data = planted_features(documents, labels, seed)
    csr: Any = data.features
    parts = np.split(csr.indices, csr.indptr[1:-1])
    return Dataset(texts=Strings.of(" ".join(f"word{word}" for word in part) for part in parts), labels=data.labels)


def planted_images(documents: int, labels: int, size: int) -> Dataset:
    """Noise, each with one label."""
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (documents, size, size, 3), dtype=np.uint8)
    rows = np.arange(documents)
    found = sparse.csr_array((np.ones(documents, np.float32), (rows, rows % labels)), shape=(documents, labels))
    return Dataset(arrays=images, labels=found)


# --- measure search ---
# Measure how long linear models take for a single document: per call, per look-up, per score, and outside caches.
#
# A look-up is that of one feature of a document among the features of one chunk. The weights of a large model are not
# in the processor's caches, nor all of their pages in its table of addresses. Training a model of that size takes long,
# so copies of a small one stand for it: consecutive documents are searched in different copies, in pages as small as
# those of a model that is opened from a file.

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
    (tree, levels), settings = model.linear_.trees[0], SearchSettings.of(model.config)
    ordered = [model.linear_.order.rows(row) for row in rows]
    copies = [
        TreeSearch([_copied(level) for level in levels], tree.label_order, settings.post_processor)
        for _ in range(COPIES[-1])
    ]
    searches: list[Search] = [lambda row, one=one: one.best(row, settings.beam, 10) for one in copies]
    return [(searches[:count], ordered) for count in COPIES]


def _in_small_pages(array: np.ndarray) -> np.ndarray:
    """A copy in pages as small as those of a mapped file; NumPy would request huge ones."""
    if array.nbytes == 0:
        return array
    memory = mmap.mmap(-1, array.nbytes)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    copy = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
    copy[...] = array
    return copy


def _copied(level: PackedWeights) -> PackedWeights:
    arrays: Any = {one.name: getattr(level, one.name) for one in fields(level)}
    copies: Any = {name: _in_small_pages(one) for name, one in arrays.items() if isinstance(one, np.ndarray)}
    return replace(level, **copies)


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
        if installed_versions(("torch",)).get("torch"):
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
        counts.append(COSTS[name](model.config, shape, fast).operations)
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


# --- machine constants ---
# Measured constants of this machine, kept in the user's cache folder under the machine's fingerprint.


def machine_constants(given: str | None = None, *, again: bool = False) -> Constants:
    """From a file, or those measured on this machine; they are measured if they are not known yet, or `again`."""
    if given is not None:
        return read_constants(Path(given))
    path = constants_path()
    if path.exists() and not again:
        try:
            return read_constants(path)
        except ConfigError as error:  # of another version
            log.info("%s; measured again", error)
    log.info("measuring this machine, which takes about a minute; the constants are kept in %s", path)
    found = measure_machine()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(to_json(found))
    return found


def constants_path() -> Path:
    """Named by what decides the speed: processor, cores, threads and versions of packages."""
    about = describe_machine()
    about.pop("memory_bytes")
    return user_cache() / "labelwise" / "plan" / f"{fingerprint({**about, 'labelwise': __version__})[:16]}.json"


def to_json(constants: Constants) -> str:
    """As text of a file."""
    return json.dumps(dataclasses.asdict(constants), indent=1) + "\n"


def read_constants(path: Path) -> Constants:
    """A file of constants; ConfigError names what is wrong with it."""
    try:
        return Constants.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: not a file of constants of labelwise plan --measure ({error})") from None
