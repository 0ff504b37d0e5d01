"""Texts and features in files: the same model as in memory to the last bit, however small the blocks are."""

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from cli.commands import labelwise
from conformance.planted import planted
from labelwise import memory_limit
from labelwise.data.csr import MappedCsrBuilder
from labelwise.data.shard import shard
from labelwise.errors import DataError
from labelwise.features import label_features, streamed_terms
from labelwise.features.held_rows import batches_of, hold_rows
from labelwise.features.label_features import pifa
from labelwise.features.rows import FeatureRows
from labelwise.features.tfidf import Tfidf, TfidfConfig
from labelwise.fit_context import FitContext
from labelwise.linear import level_trainer
from labelwise.mapped import mapping_of
from labelwise.runs import load_data
from labelwise.strings import Strings
from labelwise.testing.memory import resident_memory

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
    if blocked:
        monkeypatch.setattr(level_trainer, "BLOCKED_FROM", 100)
        monkeypatch.setattr(level_trainer, "BLOCK_ENTRIES", 50)
    data = planted(kind, n_documents=250, n_labels=30)
    lw.write(data, tmp_path / "data")
    in_files = lw.read(tmp_path / "data", scratch=tmp_path)
    expected = type(model)(**model.get_params(deep=False)).fit(data)
    found = type(model)(**model.get_params(deep=False)).fit(in_files, context=FitContext(scratch=tmp_path))
    state = found._state()
    for name, array in expected._state().items():
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
