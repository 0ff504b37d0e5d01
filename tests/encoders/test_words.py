"""Vocabularies, packed batches of words and files of word vectors."""

import gzip
import re

import numpy as np
import pytest

from labelwise.config import validated
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.nn.config import WordsConfig
from labelwise.nn.words.vocabulary import Vocabulary, first_words, word_table
from labelwise.strings import Strings

TEXTS = Strings.of(["The cat sat, the cat ran 42 times.", "A dog sat", "", "12 34", "Élan vital: a dog"])


def learned(**settings):
    return Vocabulary.learned(TEXTS, WordsConfig(**settings))


def spelled(vocabulary, tokens, document):
    begin, end = tokens.starts[document : document + 2]
    return [vocabulary.name(word) for word in tokens.ids[begin:end].tolist()]


def test_words_in_the_order_of_their_frequency():
    vocabulary, tokens = learned()
    # in texts: a 2, dog 2, sat 2, and the rest 1 each
    assert list(vocabulary.words) == ["a", "dog", "sat", "cat", "ran", "the", "times", "vital", "élan"]
    assert spelled(vocabulary, tokens, 0) == ["the", "cat", "sat", "the", "cat", "ran", "times"]
    assert spelled(vocabulary, tokens, 2) == spelled(vocabulary, tokens, 3) == ["(unknown)"]


def test_limits_of_the_vocabulary():
    vocabulary, tokens = learned(min_frequency=2)
    assert list(vocabulary.words) == ["a", "dog", "sat"]
    assert spelled(vocabulary, tokens, 4) == ["(unknown)", "(unknown)", "a", "dog"]
    assert list(learned(max_size=2)[0].words) == ["a", "dog"]
    assert "42" in learned(numbers=True)[0].words
    assert "The" in learned(lowercase=False)[0].words
    vocabulary, tokens = learned(max_length=2)
    assert tokens.lengths.tolist() == [2, 2, 1, 1, 2]
    assert "ran" not in vocabulary.words, "words that are never read are not learned"


def test_encoding_again_gives_the_same_ids():
    vocabulary, tokens = learned()
    again = vocabulary.encode(TEXTS)
    np.testing.assert_array_equal(again.ids, tokens.ids)
    np.testing.assert_array_equal(again.starts, tokens.starts)
    assert again.ids.dtype == np.int32
    assert vocabulary.encode(Strings.of(["unheard things"])).ids.tolist() == [0, 0]
    assert len(vocabulary.encode(Strings.of([]))) == 0


def test_long_texts_are_cut_where_a_plain_reading_would():
    random = np.random.default_rng(0)
    for size in (3, 10, 40):
        text = " ".join("x" * int(n) for n in random.integers(1, 60, 500))
        config = WordsConfig(max_length=size)
        assert first_words(text, config) == re.findall(r"\w+", text)[:size]


def test_batches_are_packed_by_steps_with_the_longest_first():
    vocabulary, tokens = learned()
    batch = tokens.batch(np.array([1, 2, 0, 4]))
    ids, lengths = batch.arrays
    assert batch.rows.tolist() == [0, 4, 1, 2]
    assert lengths.tolist() == [7, 4, 3, 1]
    steps = [[], [], [], []]
    place = 0
    for step in range(7):
        for row in range(int((lengths > step).sum())):
            steps[row].append(vocabulary.name(ids[place]))
            place += 1
    assert place == len(ids)
    assert steps == [spelled(vocabulary, tokens, document) for document in batch.rows]


def test_a_stored_vocabulary_comes_back(tmp_path):
    vocabulary, _ = learned()
    assert Vocabulary.restored(vocabulary.state(), vocabulary.config, tmp_path).words == vocabulary.words
    twice = Vocabulary(Strings.of(["a", "a"]), vocabulary.config).state()
    with pytest.raises(ModelFormatError, match="duplicate word"):
        Vocabulary.restored(twice, vocabulary.config, tmp_path)


# --- vectors ---


def table_of(path, **settings):
    vocabulary, tokens = learned(vectors=str(path), **settings)
    return vocabulary, word_table(vocabulary, tokens, None, seed=0)


@pytest.mark.parametrize("kind", ["glove", "word2vec", "gzip", "npy"])
def test_every_kind_of_file_gives_the_same_vectors(kind, tmp_path):
    rows = {"dog": [1.0, 2.0, -3.5], "cat": [0.5, 0.25, 1e-3], "whale": [9.0, 9.0, 9.0], ". . dog": [7.0, 7.0, 7.0]}
    lines = "".join(f"{word} {' '.join(map(str, values))}\n" for word, values in rows.items())
    settings = {}
    path = tmp_path / {"gzip": "v.txt.gz", "npy": "v.npy"}.get(kind, "v.txt")
    if kind == "gzip":
        path.write_bytes(gzip.compress(lines.encode()))
    elif kind == "npy":
        np.save(path, np.array(list(rows.values()), np.float64))
        (tmp_path / "words.txt").write_text("\n".join(rows) + "\n")
        settings = {"vectors_words": str(tmp_path / "words.txt")}
    else:
        path.write_text(("4 3\n" if kind == "word2vec" else "") + lines)
    vocabulary, table = table_of(path, **settings)
    assert table.shape == (10, 3)
    places = vocabulary.words.positions
    for word in ("dog", "cat"):
        np.testing.assert_allclose(table[places[word] + 1], rows[word], rtol=1e-6)
    np.testing.assert_allclose(table[0], np.mean([rows["dog"], rows["cat"]], 0), rtol=1e-6)
    assert np.abs(table[places["sat"] + 1]).max() > 0, "a word without a vector gets a random one"
    unit = table_of(path, normalise=True, **settings)[1]
    np.testing.assert_allclose(np.linalg.norm(unit[places["dog"] + 1]), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cat 1 2\ndog 1 x\n", r"v\.txt:2: not a word and 2 numbers: 'dog 1 x'"),
        ("cat 1 2\n\ndog 1\n", r"v\.txt:3: 1 numbers, the lines before have 2"),
        ("cat 1 2\ndog 1 2 3\n", r"v\.txt:2: more than the 2 numbers"),
        ("cat 1 2\ndog 1 nan\n", r"v\.txt:2: a number is not finite"),
        ("cat\n", r"v\.txt:1: a word and its numbers"),
        ("whale 1 2\n", "none of the 9 words"),
        ("", "none of the 9 words"),
    ],
)
def test_mistakes_in_a_file_of_vectors_are_told_by_line(content, message, tmp_path):
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        table_of(tmp_path / "v.txt")


def test_other_mistakes_with_vectors(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        table_of(tmp_path / "v.txt")
    with pytest.raises(DataError, match="folder"):
        table_of(tmp_path)
    (tmp_path / "v.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        table_of(tmp_path / "v.gz")
    np.save(tmp_path / "v.npy", np.ones((3, 2)))
    (tmp_path / "w.txt").write_text("cat\ndog\n")
    with pytest.raises(DataError, match="2 words for the 3 vectors"):
        table_of(tmp_path / "v.npy", vectors_words=str(tmp_path / "w.txt"))
    np.save(tmp_path / "v.npy", np.array([[1.0, np.inf], [1, 1]]))
    with pytest.raises(DataError, match=r"row 0 \('cat'\)"):
        table_of(tmp_path / "v.npy", vectors_words=str(tmp_path / "w.txt"))
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match="not an array of numbers"):
        table_of(tmp_path / "o.npy", vectors_words=str(tmp_path / "w.txt"))
    (tmp_path / "o.npy").write_bytes(b"")
    with pytest.raises(DataError, match="not an array of numbers"):
        table_of(tmp_path / "o.npy", vectors_words=str(tmp_path / "w.txt"))
    np.savez(tmp_path / "o.npz", np.ones((2, 2)))
    (tmp_path / "o.npz").rename(tmp_path / "o.npy")
    with pytest.raises(DataError, match="an archive"):
        table_of(tmp_path / "o.npy", vectors_words=str(tmp_path / "w.txt"))
    damaged = bytearray(gzip.compress(b"cat 1 2\n" * 1000))
    damaged[20] ^= 0xFF
    (tmp_path / "v.gz").write_bytes(damaged)
    with pytest.raises(DataError, match="cannot be read"):
        table_of(tmp_path / "v.gz")


def test_blanks_around_a_line_of_vectors_mean_nothing(tmp_path):
    (tmp_path / "v.txt").write_text(" cat 1 2 \n\tdog 3 4\n")
    vocabulary, table = table_of(tmp_path / "v.txt")
    places = vocabulary.words.positions
    assert table[[places["cat"] + 1, places["dog"] + 1]].tolist() == [[1, 2], [3, 4]]


def test_random_vectors_depend_on_the_seed_alone():
    vocabulary, tokens = learned(width=8)
    table = word_table(vocabulary, tokens, None, 1)
    assert table.shape == (10, 8)
    np.testing.assert_array_equal(table, word_table(vocabulary, tokens, None, 1))
    assert not np.array_equal(table, word_table(vocabulary, tokens, None, 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vectors": "v.npy"}, "go together"),
        ({"vectors": "v.txt", "vectors_words": "w"}, "go together"),
        ({"vectors_words": "w"}, "needs a file of vectors"),
        ({"frozen": True}, "random vectors cannot be frozen"),
        ({"vectors": "v.txt", "width": 5}, "has its own"),
    ],
)
def test_settings_that_would_mean_nothing_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        validated(WordsConfig, settings)
    assert WordsConfig(vectors="v.txt").is_frozen
    assert not WordsConfig().is_frozen
