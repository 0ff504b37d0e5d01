"""Featurizers: what they learn gives other documents the same columns, and is the same again from arrays."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from conformance.planted import planted
from labelwise.data.csr import Blocks
from labelwise.data.dataset import Documents
from labelwise.errors import ConfigError, DataError
from labelwise.features.featurizers import (
    Given,
    Words,
    WordsAndGiven,
    csr_rows,
    featurizer_of,
    saved_featurizer,
)
from labelwise.model.fitted import Saved
from labelwise.runtime.job import Job


def both():
    data = planted("texts", n_documents=50)
    vectors = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    return lw.Dataset(data.labels, data.label_names, texts=data.texts, features=vectors)


CASES = {
    Given: ({"feature_norm": "l2"}, planted("features", n_documents=50)),
    Words: ({}, planted("texts", n_documents=50)),
    WordsAndGiven: ({"vector_scale": 0.5}, both()),
}


def dense(rows):
    return (rows.to_csr() if isinstance(rows, Blocks) else getattr(rows, "sparse", rows)).toarray()


@pytest.mark.parametrize("kind", CASES)
def test_other_documents_have_the_columns_of_the_training_documents(kind):
    params, train = CASES[kind]
    config = lw.LinearTree(**params).config
    assert featurizer_of(config, train) is kind
    features, rows = kind.learn(config, train, Job())
    assert rows.shape == (50, features.n_features)
    np.testing.assert_array_equal(dense(features.rows(train)), dense(rows))
    some = Documents(
        texts=None if train.texts is None else train.texts[:3],
        features=None if train.features is None else train.features[:3],
    )
    np.testing.assert_array_equal(dense(features.rows(some)), dense(rows)[:3])
    np.testing.assert_array_equal(csr_rows(features, some).toarray(), dense(rows)[:3])


@pytest.mark.parametrize("kind", CASES)
def test_a_saved_featurizer_is_the_same(kind, tmp_path):
    params, train = CASES[kind]
    model = lw.LinearTree(**params)
    features, rows = kind.learn(model.config, train, Job())
    width = None if train.features is None else SimpleNamespace(columns=train.features.shape[1])
    again = saved_featurizer(features.tensors(), Saved(model.config, train.kind, train.label_names, width, tmp_path))
    assert type(again) is kind
    assert again.n_features == features.n_features
    np.testing.assert_array_equal(dense(again.rows(train)), dense(rows))


def test_columns_have_names():
    words, _ = Words.learn(lw.LinearTree().config, CASES[Words][1], Job())
    next_to, _ = WordsAndGiven.learn(lw.LinearTree(vector_scale=1).config, both(), Job())
    count, (first, second) = words.n_features, words.names(np.array([0, 1]))
    assert next_to.names(np.array([0, count + 2, 1])) == [first, "vector[2]", second]
    hashed, _ = Words.learn(lw.LinearTree(tfidf={"hash_bits": 8, "idf": False}).config, CASES[Words][1], Job())
    assert hashed.names(np.array([0])) is None


def test_a_norm_of_features_is_refused_for_texts():
    with pytest.raises(ConfigError, match=r"tfidf\.norm"):
        featurizer_of(lw.LinearTree(feature_norm="l2").config, CASES[Words][1])


def test_vectors_next_to_texts_are_dense():
    features, _ = WordsAndGiven.learn(lw.LinearTree(vector_scale=1).config, both(), Job())
    with pytest.raises(DataError, match="must be dense"):
        features.rows(Documents(texts=both().texts, features=sparse.csr_array((50, 4))))
