"""N-grams of characters against scikit-learn's analyzers `char` and `char_wb`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from labelwise.config import validated
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.features import vocabulary as text_blocks
from labelwise.features.tfidf import Tfidf, TfidfConfig
from labelwise.io.folder import strings_to_tensors
from labelwise.runtime.threads import using_threads
from labelwise.strings import Strings

PIECES = ["the", "Cat's", "a", "naïve", "ΟΔΟΣ", "İst", "中文", "\U0001d400", "e\u0301", "\u00a0", "\t", " ", "  ", "\n", "\u3000 ", "-", "\x00", "x\x00y"]  # fmt: skip
TEXT = st.lists(st.sampled_from(PIECES) | st.text(st.characters(codec="utf-8"), max_size=3), max_size=12).map("".join)
DOCUMENTS = st.lists(TEXT, min_size=1, max_size=6)
SIZES = st.sampled_from([(1, 1), (1, 3), (2, 2), (3, 5), (5, 8), (8, 8)])


def without_zeros(texts):
    """The character 0 counts as white space here."""
    return [text.replace("\x00", " ") for text in texts]


@settings(max_examples=50)
@given(DOCUMENTS, DOCUMENTS, st.sampled_from(["char", "char_wb"]), SIZES, st.booleans(), st.booleans())
def test_as_scikit_learn(texts, others, analyzer, sizes, lowercase, sublinear):
    config = TfidfConfig(analyzer=analyzer, ngrams=sizes, lowercase=lowercase, sublinear=sublinear)
    theirs = TfidfVectorizer(analyzer=analyzer, ngram_range=sizes, lowercase=lowercase, sublinear_tf=sublinear)
    ours = Tfidf(config)
    try:
        expected = theirs.fit_transform(without_zeros(texts))
    except ValueError:
        with pytest.raises(DataError, match=r"there are no words in the .* texts: none has"):
            ours.fit_transform(texts)
        return
    found = ours.fit_transform(texts)
    assert list(ours.vocabulary_) == theirs.get_feature_names_out().tolist()
    np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=1e-6, atol=1e-6)
    again = ours.transform(texts)
    assert again.indices.tolist() == found.indices.tolist()
    assert again.data.tobytes() == found.data.tobytes()
    unseen = theirs.transform(without_zeros(others)).toarray()
    np.testing.assert_allclose(ours.transform(others).toarray(), unseen, rtol=1e-6, atol=1e-6)
    loaded = Tfidf(config).restore(ours.state(), "model")
    assert (loaded.transform(others) != ours.transform(others)).nnz == 0


@pytest.mark.parametrize("analyzer", ["char", "char_wb"])
def test_threads_and_blocks_do_not_change_a_bit(monkeypatch, analyzer):
    texts = [f"word{n * n % 97} and  other{n % 7}" for n in range(400)]
    config = TfidfConfig(analyzer=analyzer, ngrams=(2, 4), min_df=2)
    expected = Tfidf(config).fit_transform(texts)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 700)
    monkeypatch.setattr(text_blocks, "CAPACITY", 500)
    with using_threads(3):
        model = Tfidf(config)
        for found in (model.fit_transform(texts), model.transform(texts)):
            assert found.indptr.tobytes() == expected.indptr.tobytes()
            assert found.indices.tobytes() == expected.indices.tobytes()
            assert found.data.tobytes() == expected.data.tobytes()


def test_hashed():
    texts = ["The cat", "a cat sat"]
    hashed = Tfidf(TfidfConfig(analyzer="char_wb", ngrams=(2, 3), idf=False, hash_bits=20)).transform(texts)
    plain = Tfidf(TfidfConfig(analyzer="char_wb", ngrams=(2, 3), idf=False)).fit_transform(texts)
    assert hashed.shape == (2, 1 << 20)
    assert sorted(hashed[[1]].data) == sorted(plain[[1]].data)
    np.testing.assert_allclose((hashed @ hashed.T).toarray(), (plain @ plain.T).toarray(), rtol=1e-6)


@pytest.mark.parametrize("terms", [["ab", "ab"], ["ab", ""], ["a\x00b"]])
def test_damaged_vocabularies_are_refused(terms):
    config = TfidfConfig(analyzer="char", ngrams=(2, 2), idf=False)
    with pytest.raises(ModelFormatError, match="duplicate term"):
        Tfidf(config).restore(strings_to_tensors("vocabulary", Strings.of(terms)), "model")


def test_options_for_words_are_refused():
    with pytest.raises(
        ConfigError, match="analyzer: char reads characters, so it cannot be used with stop_words, stemmer"
    ):
        validated(TfidfConfig, {"analyzer": "char", "stemmer": "english", "stop_words": "english"})
