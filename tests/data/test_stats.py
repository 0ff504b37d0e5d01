"""Statistics against counting in plain Python, and the drawing against what it must show."""

import statistics as plain
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from labelwise.cli.output import draw_curve
from labelwise.data import describe as stats
from labelwise.data.csr import labels_from_lists
from labelwise.data.dataset import Dataset
from labelwise.data.describe import (
    frequency_curve,
    split_statistics,
    statistics,
    text_digests,
    word_counts,
)
from labelwise.strings import Strings

WORDS = st.text(st.sampled_from("abé \t\n\x0b\x0c\r漢"), max_size=12)
LABELS = st.lists(st.sampled_from([f"l{n}" for n in range(12)]), max_size=5)
DOCUMENTS = st.lists(st.tuples(WORDS, LABELS), min_size=1, max_size=30)


def words_of(text):
    for blank in "\t\n\x0b\x0c\r":
        text = text.replace(blank, " ")
    return [word for word in text.split(" ") if word]


def make(documents, label_names=None):
    labels, names = labels_from_lists([row for _, row in documents], label_names)
    return Dataset(labels, names, texts=Strings.of([text for text, _ in documents]), name="made")


@given(DOCUMENTS)
def test_one_data_set(documents):
    found = statistics(make(documents))
    rows = [set(labels) for _, labels in documents]
    counts = Counter(label for row in rows for label in row)
    lengths, words = [len(row) for row in rows], [len(words_of(text)) for text, _ in documents]
    by_count = sorted(counts.values(), reverse=True)
    assert found.documents == len(documents)
    assert found.labels == found.labels_used == len(counts)
    assert found.occurrences == sum(lengths)
    assert found.mean_labels == pytest.approx(plain.mean(lengths))
    assert found.median_labels == plain.median(lengths)
    assert found.max_labels == max(lengths)
    assert found.documents_without_labels == lengths.count(0)
    assert found.mean_words == pytest.approx(plain.mean(words))
    assert (found.median_words, found.max_words) == (plain.median(words), max(words))
    assert found.texts_without_words == words.count(0)
    assert found.repeated_texts == len(documents) - len({text for text, _ in documents})
    assert found.features is found.nonzeros is found.mean_nonzeros is None
    if counts:
        assert found.mean_documents == pytest.approx(plain.mean(by_count))
        assert (found.median_documents, found.max_documents) == (plain.median(by_count), by_count[0])
        for most, share in (
            (1, found.share_labels_1),
            (5, found.share_labels_5),
            (10, found.share_labels_10),
        ):
            assert share == pytest.approx(sum(count <= most for count in by_count) / len(by_count))
        assert found.top_1_percent == pytest.approx(by_count[0] / sum(by_count))
    reported = found.to_dict()
    assert "label_counts" not in reported
    assert all(value is None or isinstance(value, str | int | float) for value in reported.values())


def test_shares_of_occurrences():
    counts = np.arange(1, 201)
    found = stats._statistics("x", counts, np.full(300, 2), None, None, None)
    assert found.top_1_percent == pytest.approx((200 + 199) / counts.sum())
    assert found.top_10_percent == pytest.approx(sum(range(181, 201)) / counts.sum())


@given(st.lists(WORDS, max_size=20), st.data())
def test_words_of_texts_in_any_order(texts, data):
    order = data.draw(st.lists(st.integers(0, max(len(texts) - 1, 0)), max_size=25 if texts else 0))
    picked = Strings.of(texts)[np.array(order, np.int64)]
    expected = [len(words_of(texts[place])) for place in order]
    assert word_counts(picked).tolist() == expected
    digests = text_digests(picked)
    assert len(np.unique(digests)) == len({texts[place] for place in order})


def test_words_across_blocks(monkeypatch):
    texts = [" ".join(["word"] * (n % 9)) + " " * (n % 2) for n in range(500)]
    monkeypatch.setattr(stats, "WORD_BLOCK_BYTES", 64)
    assert word_counts(Strings.of(texts)).tolist() == [n % 9 for n in range(500)]


@given(DOCUMENTS, DOCUMENTS, st.booleans())
def test_parts_and_all_of_them(train, test, aligned):
    parts = {"train": make(train), "test": make(test)}
    if aligned:
        parts["test"] = parts["test"].align(parts["train"].label_names)
    found = split_statistics(parts)
    counts = {name: Counter(label for _, row in rows for label in set(row))
              for name, rows in (("train", train), ("test", test))}  # fmt: skip
    together = counts["train"] + counts["test"]
    assert found.labels_not_in_train == {"test": len(set(counts["test"]) - set(counts["train"]))}
    texts = {text for text, _ in train}
    assert found.texts_in_train == {"test": sum(text in texts for text, _ in test)}
    assert found.overall.documents == len(train) + len(test)
    assert found.overall.labels_used == len(together)
    assert sorted(found.overall.label_counts[found.overall.label_counts > 0]) == sorted(together.values())
    everything = make(train + test)
    for figure in (
        "occurrences",
        "mean_labels",
        "max_labels",
        "mean_words",
        "repeated_texts",
        "share_labels_5",
    ):
        assert getattr(found.overall, figure) == pytest.approx(getattr(statistics(everything), figure)), figure
    assert found.parts["train"].documents == len(train)


def test_features_sparse_and_dense():
    matrix = sparse.random_array((20, 7), density=0.3, rng=np.random.default_rng(0), format="csr")
    labels = sparse.csr_array(np.eye(20, 9))
    for features in (matrix, matrix.toarray()):
        found = statistics(Dataset(labels, features=features))
        assert (found.features, found.nonzeros) == (7, matrix.nnz)
        assert found.mean_nonzeros == pytest.approx(matrix.nnz / 20)
        assert found.mean_words is None
        assert (found.labels, found.labels_used) == (9, 9)
    both = split_statistics({"train": Dataset(labels, features=matrix), "test": Dataset(labels, features=matrix)})
    assert both.overall.nonzeros == 2 * matrix.nnz
    assert both.texts_in_train == {"test": None}
    assert both.to_dict()["overall"]["features"] == 7


def test_nothing_at_all():
    found = statistics(make([]).take(slice(0, 0)))
    assert (found.documents, found.labels, found.mean_labels, found.mean_words) == (0, 0, 0.0, 0.0)
    assert found.frequency_curve() == {"rank": [], "count": []}


@given(st.lists(st.integers(0, 1000), max_size=3000), st.integers(2, 300))
def test_frequency_curve(counts, points):
    ranks, frequencies = frequency_curve(np.array(counts, np.int64), points)
    found = sorted((count for count in counts if count), reverse=True)
    assert len(ranks) <= points
    assert frequencies.tolist() == [found[rank - 1] for rank in ranks]
    assert (np.diff(ranks) > 0).all()
    if found:
        assert (ranks[0], ranks[-1]) == (1, len(found))


# --- the drawing -------------------------------------------------------------------------------------------------


def test_drawing_in_ascii():
    counts = np.round(1000 / np.arange(1, 1001)).astype(int)
    lines = draw_curve(counts, width=40, height=10, braille=False)
    body = lines[1:11]
    assert all(line.isascii() for line in lines)
    assert body[0].startswith("1,000 |*")
    assert body[-1].startswith("    1 |")
    assert body[-1].rstrip().endswith("*")
    assert lines[-1].split()[:3] == ["1", "32", "1,000"]
    # a power law is a straight line on log axes
    middle = [line.index("*") + (line.rindex("*") - line.index("*")) / 2 for line in body]
    assert np.corrcoef(np.arange(10), middle)[0, 1] > 0.99


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200), st.booleans())
def test_drawings_have_their_size(counts, braille):
    lines = draw_curve(np.array(counts), width=30, height=6, braille=braille)
    if not any(counts):
        assert lines == []
        return
    assert len(lines) == 9
    margin = len(f"{max(counts):,}") + 2
    assert all(len(line) <= margin + 30 for line in lines[1:-1])
    assert any(line[margin:].strip() for line in lines[1:-2])


def test_every_column_has_a_dot():
    counts = np.random.default_rng(0).zipf(1.5, 5000)
    for line in [draw_curve(np.bincount(np.minimum(counts, 900)), width=50, height=12, braille=True)]:
        margin = line[-2].index("└") + 1
        body = [row.ljust(margin + 50)[margin:] for row in line[1:-2]]
        assert all(any(row[column] != " " for row in body) for column in range(50))
