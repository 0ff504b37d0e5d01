"""Word vectors from labels: words of one topic are near each other; the SVD is that of the whole table."""

import numpy as np
import pytest
from scipy import sparse

from labelwise.nn.config import WordsConfig
from labelwise.nn.words.vocabulary import Vocabulary, _weighted_words, label_vectors, word_table
from labelwise.strings import Strings

TOPICS, WORDS = 6, 5


@pytest.fixture(scope="module")
def corpus():
    """Documents of one topic each: three of its words, and some words of all topics; three labels per topic."""
    rng = np.random.default_rng(0)
    topics = rng.integers(0, TOPICS, 300)
    texts = [
        " ".join([f"t{topic}w{w}" for w in rng.integers(0, WORDS, 3)] + [f"common{w}" for w in rng.integers(0, 3, 4)])
        for topic in topics
    ]
    labels = np.zeros((300, 3 * TOPICS), np.float32)
    labels[np.arange(300), 3 * topics + rng.integers(0, 3, 300)] = 1
    return texts, sparse.csr_array(labels)


def learned(texts, **settings):
    config = WordsConfig(initial="labels", **settings)
    return Vocabulary.learned(Strings.of(texts), config)


def test_words_of_a_topic_are_near_each_other(corpus):
    texts, labels = corpus
    vocabulary, tokens = learned(texts, width=8)
    table = word_table(vocabulary, tokens, labels, seed=0)
    assert table.shape == (len(vocabulary), 8)
    assert table.dtype == np.float32
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    position = vocabulary.words.positions
    rows = np.array([[position[f"t{t}w{w}"] + 1 for w in range(WORDS)] for t in range(TOPICS)])
    within = np.mean([unit[row] @ unit[row].T for row in rows])
    across = np.mean([unit[rows[a]] @ unit[rows[b]].T for a in range(TOPICS) for b in range(a)])
    assert within > 0.9
    assert across < 0.3


def test_similarities_are_those_of_the_plain_svd(corpus):
    texts, labels = corpus
    vocabulary, tokens = learned(texts)
    n, width = len(vocabulary), 5
    before = tokens.ids.copy()
    found = label_vectors(tokens, labels, n, width, 0.4, seed=0)
    assert np.array_equal(tokens.ids, before)  # the network is trained on them afterwards
    counts = np.asarray(labels.sum(0)).ravel()
    table = _weighted_words(tokens, n).toarray().T.astype(float) @ (labels.toarray() / np.sqrt(np.maximum(counts, 1)))
    left, sizes, _ = np.linalg.svd(table, full_matrices=False)
    plain = left[:, :width] * np.sqrt(sizes[:width])
    plain /= np.maximum(np.linalg.norm(plain, axis=1, keepdims=True), 1e-12)
    words = slice(1, None)  # the unknown word occurs nowhere
    np.testing.assert_allclose(
        found[words] @ found[words].T / (0.16 * width), (plain @ plain.T)[words, words], atol=2e-3
    )


def test_more_dimensions_than_labels_and_texts_without_words():
    vocabulary, tokens = learned(["a b", "b", "", "12"], width=50)
    table = word_table(vocabulary, tokens, sparse.csr_array(np.eye(4, 2, dtype=np.float32)), seed=0)
    assert table.shape == (3, 50)
    assert np.isfinite(table).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vectors": "v.txt", "initial": "labels"}, "initial is for vectors without a file"),
        ({"frozen": True}, "set initial to labels"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ValueError, match=message):
        WordsConfig(**settings)
