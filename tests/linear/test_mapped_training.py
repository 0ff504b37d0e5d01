"""Texts and features in files: the same model as in memory to the last bit, however small the blocks are."""

import weakref
from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from cli.commands import labelwise
from common import same_predictions
from conformance.planted import planted
from labelwise.data.csr import MappedCsrBuilder
from labelwise.data.shard import shard
from labelwise.errors import DataError
from labelwise.features import labels as label_features
from labelwise.features import rows as held_rows
from labelwise.features import vocabulary as streamed_terms
from labelwise.features.labels import pifa
from labelwise.features.rows import FeatureRows, batches_of, copy_rows_to_disk, hold_rows
from labelwise.features.tfidf import Tfidf, TfidfConfig
from labelwise.io.tensors import mapping_of
from labelwise.linear import memory as memory_estimate
from labelwise.linear import solver as level_trainer
from labelwise.runs import data as load_data
from labelwise.runtime import memory as memory_limit
from labelwise.runtime.job import Job
from labelwise.runtime.threads import using_threads
from labelwise.strings import Strings
from labelwise.testing.subject import resident_memory

CONFIGS = [
    {},
    {"sublinear": True, "ngrams": (1, 3), "min_df": 2},
    {"ngrams": (2, 2), "max_features": 50, "max_df": 0.5},
    {"analyzer": "char_wb", "ngrams": (2, 4), "min_df": 3},
    {"stemmer": "english", "stop_words": "english", "ngrams": (1, 2)},
    {"hash_bits": 10, "idf": False},
]


def some_texts(rows=400, seed=0):
    random = np.random.default_rng(seed)
    words = [f"{stem}{ending}" for stem in ("walk", "jump", "Éclair", "naïve", "x", "long" * 6) for ending in
             ("", "ed", "ing", "s", "er")] + [f"rare{n}" for n in range(300)]  # fmt: skip
    return Strings(
        [" ".join(words[int(i)] for i in len(words) * random.random(1 + row % 25) ** 3) for row in range(rows)]
    )


def on_disk(matrix, folder):
    builder = MappedCsrBuilder(True, folder)
    builder.add(np.diff(matrix.indptr), matrix.indices, matrix.data, 1.0)
    return builder.matrix(matrix.shape[1])


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Counts are written to disk after 100 terms, and a few documents are held at a time."""
    monkeypatch.setattr(memory_limit, "LEAST_BYTES", 1 << 12)
    monkeypatch.setattr(memory_limit, "MOST_BYTES", 100 * streamed_terms.TERM_BYTES)
    monkeypatch.setattr(streamed_terms, "LEAST_GROUP", 1 << 13)
    monkeypatch.setattr(label_features, "MAX_WORK_PER_TASK", 2000)


@pytest.mark.parametrize("given", CONFIGS)
@pytest.mark.parametrize("terms", [100, 1 << 20])
def test_streamed_tfidf_is_that_of_texts_in_memory(tmp_path, monkeypatch, given, terms):
    monkeypatch.setattr(streamed_terms, "LEAST_GROUP", 1 << 13)
    texts, config = some_texts(), TfidfConfig(**given)
    expected, streamed = Tfidf(config), Tfidf(config)
    matrix = expected.fit_transform(texts)
    found = streamed.fit_transform_mapped(texts, tmp_path, terms * streamed_terms.TERM_BYTES)
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, part), getattr(matrix, part))
    for name, array in expected.state().items():
        np.testing.assert_array_equal(streamed.state()[name], array)
    assert mapping_of(found.indices) is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("texts", [["", " "], ["one two", "three four"]])
def test_streamed_tfidf_refuses_the_same(tmp_path, texts):
    config = TfidfConfig(min_df=2)
    with pytest.raises(DataError) as expected:
        Tfidf(config).fit_transform(texts)
    with pytest.raises(DataError) as found:
        Tfidf(config).fit_transform_mapped(Strings(texts), tmp_path, 1)
    assert str(found.value) == str(expected.value)


def test_label_features_from_batches_are_the_same(tmp_path, tiny_blocks):
    data = planted("features", n_documents=300, n_labels=40)
    features = on_disk(data.features, tmp_path)
    for hold in (1, 3000, 1 << 30):  # none, some and all documents at a time
        for keep in (None, 5):
            found, expected = pifa(features, data.labels, keep, hold), pifa(data.features, data.labels, keep)
            np.testing.assert_array_equal(found.toarray(), expected.toarray())


def test_batches_hold_what_their_items_need(tmp_path):
    matrix = sparse.random_array((50, 30), density=0.3, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
    features = FeatureRows.of(on_disk(matrix, tmp_path))
    documents = [np.unique(np.random.default_rng(n).integers(0, 50, 1 + n)) for n in range(20)]
    limit = 8 * 120
    seen = []
    for batch, rows in batches_of(list(range(20)), documents, features, limit):
        seen += batch
        held = hold_rows(features, rows)
        assert 8 * len(held.indices) <= limit
        for item in batch if len(rows) else ():
            for row, position in zip(documents[item], held.positions(documents[item]), strict=True):
                begin, end = held.indptr[position], held.indptr[position + 1]
                np.testing.assert_array_equal(held.indices[begin:end], matrix[[row]].indices)
                np.testing.assert_array_equal(held.data[begin:end], matrix[[row]].data)
    assert sorted(seen) == list(range(20))


@pytest.mark.parametrize("entries", [1, 30, 1 << 20])
def test_rows_in_a_file_of_their_own(tmp_path, monkeypatch, entries):
    monkeypatch.setattr(held_rows, "WRITTEN_ENTRIES", entries)
    matrix = sparse.random_array((50, 30), density=0.3, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
    rows = np.flatnonzero(np.arange(50) % 3 != 1)
    found = copy_rows_to_disk(FeatureRows.of(on_disk(matrix, tmp_path)), rows, tmp_path)
    expected = matrix[rows]
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(found, part), getattr(expected, part))
    np.testing.assert_array_equal(found.positions(rows[[3, 7]]), [3, 7])
    assert mapping_of(found.indices) is not None
    assert mapping_of(found.data) is not None
    assert list(tmp_path.iterdir()) == []


def test_labels_are_held_unless_one_alone_has_too_many_documents(tmp_path, monkeypatch):
    random, hold, unheld = np.random.default_rng(0), 8 * 400, []
    features = sparse.random_array((300, 50), density=0.2, format="csr", dtype=np.float32, rng=random)
    labels = sparse.random_array((300, 40), density=0.03, format="lil", dtype=np.float32, rng=random)
    labels[:, [7, 30]] = 1
    labels = sparse.csr_array(labels)
    plain = label_features.batches_of

    def watched(*given):
        for batch, rows in plain(*given):
            unheld.extend([] if len(rows) else batch)
            yield batch, rows

    monkeypatch.setattr(label_features, "batches_of", watched)
    found = pifa(on_disk(features, tmp_path), labels, hold=hold)
    assert unheld == [(7, 8), (30, 31)]
    np.testing.assert_array_equal(found.toarray(), pifa(features, labels).toarray())


def test_large_chunks_are_copied_to_files_and_others_held(tmp_path, monkeypatch, tiny_blocks):
    """The root and nodes with most documents are read in place, other large ones from a file, the rest from memory."""
    monkeypatch.setattr(level_trainer, "HELD", 0.0)
    monkeypatch.setattr(level_trainer, "BLOCKED_FROM", 600)
    monkeypatch.setattr(level_trainer, "BLOCK_ENTRIES", 50)
    seen, plain, copy = [], level_trainer.LevelTrainer._local, level_trainer.copy_rows_to_disk
    copied = []

    def local(self, chunk):
        found = plain(self, chunk)
        entries = int((found.ends - found.starts).sum())
        seen.append((entries, mapping_of(found.indices) is not None, len(self.features.indices)))
        return found

    monkeypatch.setattr(level_trainer.LevelTrainer, "_local", local)
    monkeypatch.setattr(level_trainer, "copy_rows_to_disk", lambda *given: copied.append(1) or copy(*given))
    data = planted("features", n_documents=250, n_labels=30)
    lw.write(data, tmp_path / "data")
    in_files = lw.read(tmp_path / "data", scratch=tmp_path)
    lw.LinearTree(trees=1, leaf_size=4, branching=3).fit(in_files, job=Job(scratch=tmp_path))
    hold = level_trainer.held_bytes("check")
    large = [entries for entries, mapped, _ in seen if mapped]
    assert all(mapped == (8 * entries > hold) for entries, mapped, _ in seen)
    assert len(copied) == sum(entries < level_trainer.COPIED_BELOW * total for entries, mapped, total in seen if mapped)
    assert 0 < len(copied) < len(large) < len(seen)
    assert [path for path in tmp_path.iterdir() if path.suffix == ".rows"] == []


@pytest.mark.parametrize("full", ["before", "meanwhile"])
def test_training_continues_without_copies_on_a_full_disk(tmp_path, monkeypatch, tiny_blocks, caplog, full):
    monkeypatch.setattr(level_trainer, "HELD", 0.0)
    monkeypatch.setattr(level_trainer, "BLOCKED_FROM", 600)
    monkeypatch.setattr(held_rows, "WRITTEN_ENTRIES", 500)
    data = planted("features", n_documents=250, n_labels=30)
    lw.write(data, tmp_path / "data")
    in_files = lw.read(tmp_path / "data", scratch=tmp_path)
    method = lw.LinearTree(trees=1, leaf_size=4, branching=3)
    expected = method.fit(in_files, job=Job(scratch=tmp_path)).predict(data, 5)
    if full == "before":
        monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100))
    else:
        plain = held_rows.MappedCsrBuilder.add

        def add(self, *given):
            if len(self.counts) == 1:
                plain(self, *given)
                raise DataError("rows cannot be written to: No space left on device", tmp_path)
            plain(self, *given)

        monkeypatch.setattr(held_rows.MappedCsrBuilder, "add", add)
    with using_threads(1):
        found = method.fit(in_files, job=Job(scratch=tmp_path)).predict(data, 5)
    assert caplog.text.count("documents of large nodes are not copied") == 1
    assert ("100 bytes are free" if full == "before" else "No space left") in caplog.text
    assert [path for path in tmp_path.iterdir() if path.suffix == ".rows"] == []
    same_predictions(found, expected)


def test_held_documents_are_freed_before_others_are_read(tmp_path, monkeypatch, tiny_blocks):
    """The estimate of memory counts them once."""
    monkeypatch.setattr(level_trainer, "HELD", 0.0)
    monkeypatch.setattr(level_trainer, "BLOCKED_FROM", 600)
    living, calls = [], []

    def hold(where, features, rows):
        calls.append(where)
        assert [held() for held in living if held() is not None] == [], where
        found = hold_rows(features, rows)
        living.append(weakref.ref(found.indices))
        return found

    for module in (label_features, level_trainer, memory_estimate):
        monkeypatch.setattr(module, "hold_rows", partial(hold, module.__name__))
    data = planted("features", n_documents=250, n_labels=30)
    lw.write(data, tmp_path / "data")
    in_files = lw.read(tmp_path / "data", scratch=tmp_path)
    lw.LinearTree(trees=1, leaf_size=4, branching=3).fit(in_files, job=Job(scratch=tmp_path))
    assert min(Counter(calls).values()) > 1
    assert len(Counter(calls)) == 3


@pytest.mark.parametrize("kind", ["texts", "features"])
@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize(
    "model",
    [
        lw.LinearTree(trees=2, leaf_size=4, branching=3),
        lw.LinearTree(trees=1, leaf_size=4, negatives="matcher", label_documents="texts"),
        lw.LinearFlat(),
    ],
    ids=["trees", "matcher", "flat"],
)
def test_models_from_files_are_the_same(tmp_path, monkeypatch, tiny_blocks, kind, blocked, model):
    if kind == "features" and getattr(model.config, "label_documents", None):
        pytest.skip("label names are texts")
    if blocked:  # 500 of 2,500 entries are held
        monkeypatch.setattr(level_trainer, "HELD", 0.0)
        monkeypatch.setattr(level_trainer, "BLOCKED_FROM", 100)
        monkeypatch.setattr(level_trainer, "BLOCK_ENTRIES", 50)
    data = planted(kind, n_documents=250, n_labels=30)
    lw.write(data, tmp_path / "data")
    in_files = lw.read(tmp_path / "data", scratch=tmp_path)
    expected = type(model)(**model.get_params(deep=False)).fit(data)
    found = type(model)(**model.get_params(deep=False)).fit(in_files, job=Job(scratch=tmp_path))
    state = found.fitted_.tensors()
    for name, array in expected.fitted_.tensors().items():
        np.testing.assert_array_equal(state[name], array, err_msg=name)
    assert found.score(data) > 0.8


@pytest.mark.parametrize("name", ["new.csv", "new.jsonl.gz", "shards"])
def test_large_files_are_mapped_to_predict_and_evaluate(tmp_path, monkeypatch, name):
    data, documents = planted("texts", n_documents=120, n_labels=12), tmp_path / name
    lw.LinearTree(trees=1).fit(data).save(tmp_path / "model")
    if name == "shards":
        shard(write_to(data, tmp_path / "all.csv"), documents, documents=50, split="test")
    else:
        write_to(data, documents)
    found = []
    for large in (load_data.LARGE_INPUT, 0):
        monkeypatch.setattr(load_data, "LARGE_INPUT", large)
        predicted, scores = tmp_path / f"{large}.tsv", tmp_path / f"{large}.json"
        labelwise("predict", tmp_path / "model", documents, "-o", predicted)
        labelwise("evaluate", tmp_path / "model", documents, "-o", scores)
        found.append((predicted.read_bytes(), scores.read_bytes()))
    assert found[0] == found[1]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def write_to(data, path):
    lw.write(data, path)
    return path


def test_memory_of_streamed_tfidf_is_bounded(tmp_path):
    random = np.random.default_rng(0)
    words = np.array([f"w{n} " for n in range(20_000)])
    texts = Strings("".join(words[(20_000 * random.random(2000) ** 2).astype(int)]) for _ in range(1000))
    with resident_memory() as in_memory:
        expected = Tfidf().fit_transform(texts)
    del expected
    with resident_memory() as in_files:
        Tfidf().fit_transform_mapped(texts, tmp_path, 1 << 20)
    assert max(in_files) < 0.6 * max(in_memory)
