"""TF-IDF against scikit-learn: same words, same columns, same values; and what only ours has."""

import copy
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

import reference_kernels as reference
from labelwise.config import validated
from labelwise.errors import ConfigError, DataError, ModelFormatError, NotFittedError
from labelwise.features import vocabulary as text_blocks
from labelwise.features.tfidf import Tfidf, TfidfConfig
from labelwise.io import folder as store
from labelwise.runtime.threads import using_threads
from labelwise.strings import Strings

PIECES = [
    "the", "The", "THE", "of", "a", "x1", "_", "__", "cat", "cats", "ca", "naïve", "NAÏVE", "ΟΔΟΣ", "Σίσυφος", "ΣΣ", "ςσ",
    "İstanbul", "ISPARTA", "ırmak", "中文", "中", "日本語", "e\u0301te\u0301", "\u200d", "क्\u200dष", "\U0001d400\U0001d401",
    "\U00010400\U00010401", "٣٤", "²³", "½", "Ⅷ", "ⅷ", "\u212aelvin", "Ⱥꞵ", "Straße", "STRASSE", "ẞ", "\x00", "x\x00y",
    "\U0001f600", "don't", "e-mail", "a" * 16, "a" * 17, "A" * 100, "a" * 16 + "b",
]  # fmt: skip
GAPS = [" ", "  ", "\n", ", ", "", ".", "\u00a0", "\u3000", "-"]
WORDS = st.sampled_from(PIECES) | st.text(st.characters(codec="utf-8"), max_size=4)
TEXT = st.lists(st.tuples(WORDS, st.sampled_from(GAPS)), max_size=25).map(lambda parts: "".join(map("".join, parts)))
DOCUMENTS = st.lists(TEXT, min_size=1, max_size=8)
NGRAMS = st.sampled_from([(1, 1), (1, 2), (2, 2), (2, 3), (1, 3)])
LIMITS = st.sampled_from([(1, 1.0), (2, 1.0), (1, 2), (0.3, 0.8), (2, 3), (0.5, 1.0), (1, 0.5), (1.0, 1.0), (3, 1)])
VOCABULARY = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
]


def both(texts, config):
    """Our matrix and names, and scikit-learn's; None where a side finds nothing to count."""
    theirs = TfidfVectorizer(
        ngram_range=config.ngrams, min_df=config.min_df, max_df=config.max_df, max_features=config.max_features,
        sublinear_tf=config.sublinear, use_idf=config.idf, norm=config.norm, lowercase=config.lowercase,
    )  # fmt: skip
    ours = Tfidf(config)
    try:
        expected = theirs.fit_transform(texts)
    except ValueError:
        expected = None
    try:
        found = ours.fit_transform(texts)
    except DataError:
        found = None
    assert (found is None) == (expected is None)
    return ours, found, theirs, expected


def assert_equal_rows(found, expected):
    expected = expected.tocsr()
    expected.sort_indices()
    assert found.dtype == np.float32
    assert found.indices.dtype == np.int32
    assert found.shape == expected.shape
    assert found.indptr.tolist() == expected.indptr.tolist()
    assert found.indices.tolist() == expected.indices.tolist()
    np.testing.assert_allclose(found.data, expected.data, rtol=1e-6, atol=1e-6)


def sample(count, seed=0, longest=30):
    """Documents of words drawn by rank, some empty."""
    rng = np.random.default_rng(seed)
    words = [f"{name}{n}" for n in range(40) for name in VOCABULARY]
    sizes = rng.integers(0, longest, count)
    return [" ".join(words[int(w)] for w in len(words) * rng.random(size) ** 3) for size in sizes]


# --- the same as scikit-learn ---------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(
    DOCUMENTS, DOCUMENTS, NGRAMS, LIMITS, st.booleans(), st.booleans(), st.sampled_from(["l2", None]), st.booleans()
)  # fmt: skip
def test_as_scikit_learn(texts, others, ngrams, limits, sublinear, idf, norm, lowercase):
    config = TfidfConfig(
        ngrams=ngrams, min_df=limits[0], max_df=limits[1], sublinear=sublinear, idf=idf, norm=norm, lowercase=lowercase
    )
    ours, found, theirs, expected = both(texts, config)
    if found is None:
        return
    assert list(ours.vocabulary_) == theirs.get_feature_names_out().tolist()
    assert ours.n_features == len(theirs.vocabulary_)
    if idf:
        np.testing.assert_allclose(ours.idf_, theirs.idf_, rtol=1e-12)
    assert_equal_rows(found, expected)
    assert_equal_rows(ours.transform(others), theirs.transform(others))
    again = ours.transform(texts)
    assert again.indices.tolist() == found.indices.tolist()
    assert again.data.tobytes() == found.data.tobytes()
    assert list(Tfidf(config).fit(texts).vocabulary_) == list(ours.vocabulary_)


@pytest.mark.parametrize("ngrams", [(1, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("limits", [(1, 1.0), (3, 0.2), (0.01, 50)])
def test_as_scikit_learn_on_many_texts(monkeypatch, ngrams, limits):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 5000)
    monkeypatch.setattr(text_blocks, "CAPACITY", 2000)
    texts = sample(1500)
    with using_threads(3):
        ours, found, theirs, expected = both(texts, TfidfConfig(ngrams=ngrams, min_df=limits[0], max_df=limits[1]))
        assert list(ours.vocabulary_) == theirs.get_feature_names_out().tolist()
        assert_equal_rows(found, expected)
        assert_equal_rows(ours.transform(texts[::-1]), theirs.transform(texts[::-1]))


def test_greek_and_turkish_among_others(monkeypatch):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 300)
    monkeypatch.setattr(text_blocks, "PYTHON_BATCH", 3)
    texts = sample(60)
    for index in (0, 7, 8, 20, 21, 22, 23, 24, 59):
        texts[index] += " ΟΔΟΣ ΟΔΟΣΑ İzmir IZMIR ırmak"
    ours, found, theirs, expected = both(texts, TfidfConfig(ngrams=(1, 2)))
    assert "οδος" in ours.vocabulary_.positions
    assert list(ours.vocabulary_) == theirs.get_feature_names_out().tolist()
    assert_equal_rows(found, expected)
    assert_equal_rows(ours.transform(texts), theirs.transform(texts))


def test_one_and_one_point_zero_differ():
    texts = ["aa bb", "aa cc", "aa dd"]
    assert list(Tfidf(TfidfConfig(max_df=1)).fit(texts).vocabulary_) == ["bb", "cc", "dd"]
    assert list(Tfidf(TfidfConfig(max_df=1.0)).fit(texts).vocabulary_) == ["aa", "bb", "cc", "dd"]
    assert list(Tfidf(TfidfConfig(min_df=1.0)).fit(texts).vocabulary_) == ["aa"]
    assert TfidfConfig.model_validate_json(TfidfConfig(max_df=1.0, min_df=1).model_dump_json()) == TfidfConfig()


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 20, 10_000])
@pytest.mark.parametrize("ngrams", [(1, 1), (1, 2)])
def test_most_frequent_terms(limit, ngrams):
    texts = sample(80, seed=3)
    ours, found, _theirs, expected = both(texts, TfidfConfig(ngrams=ngrams, max_features=limit, norm=None, idf=False))
    assert sorted(found.sum(axis=0).tolist()) == sorted(np.asarray(expected.sum(axis=0)).ravel().tolist())
    every = Tfidf(TfidfConfig(ngrams=ngrams, norm=None, idf=False))
    totals = every.fit_transform(texts).sum(axis=0)
    ranked = sorted(zip(-totals, every.vocabulary_, strict=True))[:limit]
    assert list(ours.vocabulary_) == sorted(name for _, name in ranked)
    assert ours.vocabulary_ == Tfidf(ours.config).fit(texts).vocabulary_


def test_words_with_long_common_beginnings_are_in_order():
    beginnings = ("a" * 8, "a" * 16, "a" * 17, "é" * 8, "b" * 30)
    words = {begin + end for begin in beginnings for end in ("", "z", "a", "é", "aa", "\u4e2d")}
    assert list(Tfidf().fit([" ".join(words)]).vocabulary_) == sorted(words)


# --- any number of threads, any size of blocks ----------------------------------------------------------------------


@pytest.mark.parametrize("ngrams", [(1, 1), (1, 3)])
def test_threads_and_blocks_do_not_change_a_bit(monkeypatch, ngrams):
    texts = Strings.of(sample(700, seed=1))
    config = TfidfConfig(ngrams=ngrams, min_df=2)
    first = Tfidf(config)
    expected = first.fit_transform(texts)
    for threads, block, capacity in ((1, 900, 50), (2, 3000, 1 << 20), (5, 700, 3000)):
        monkeypatch.setattr(text_blocks, "BLOCK_BYTES", block)
        monkeypatch.setattr(text_blocks, "CAPACITY", capacity)
        with using_threads(threads):
            model = Tfidf(config)
            for found in (model.fit_transform(texts), model.transform(texts), first.transform(texts)):
                assert found.indptr.tobytes() == expected.indptr.tobytes()
                assert found.indices.tobytes() == expected.indices.tobytes()
                assert found.data.tobytes() == expected.data.tobytes()
            assert model.vocabulary_ == first.vocabulary_
            assert model.idf_.tobytes() == first.idf_.tobytes()
            assert Tfidf(config).fit(texts).vocabulary_ == first.vocabulary_


def test_blocks_cover_all_documents_once(monkeypatch):
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 10)
    for lengths in ([], [0], [0, 0, 0], [5, 5, 5], [100], [0, 100, 0, 3, 9, 10, 11, 0, 0], [10] * 7, [1] * 50):
        sizes = np.cumsum(lengths)
        bounds = text_blocks._bounds(sizes, sum(lengths))
        assert [row for first, last in bounds for row in range(first, last)] == list(range(len(lengths)))
        assert all(first < last for first, last in bounds)


def test_picked_and_repeated_rows():
    texts = Strings.of(sample(50))
    picked = texts[np.array([3, 3, 49, 0, 17])]
    model = Tfidf()
    found = model.fit_transform(picked)
    assert (found != Tfidf().fit_transform(list(picked))).nnz == 0
    assert (model.transform(texts[::7]) != model.transform(list(texts)[::7])).nnz == 0


def test_one_very_long_text(monkeypatch):
    monkeypatch.setattr(text_blocks, "CAPACITY", 100)
    text = " ".join(f"w{n * n % 5000}" for n in range(20_000))
    _, found, _, expected = both(["aa", text, "bb"], TfidfConfig(ngrams=(1, 2)))
    assert_equal_rows(found, expected)


def test_rows_have_canonical_format():
    found = Tfidf().fit_transform(sample(20))
    assert found.has_canonical_format
    assert sparse.csr_array((found.data, found.indices, found.indptr), shape=found.shape).has_canonical_format
    norms = np.sqrt(found.multiply(found).sum(axis=1))
    assert set(np.round(norms, 5)) == {0.0, 1.0}


# --- hashing --------------------------------------------------------------------------------------------------------


@given(DOCUMENTS, NGRAMS)
def test_hashed_terms(texts, ngrams):
    model = Tfidf(TfidfConfig(hash_bits=20, idf=False, norm=None, ngrams=ngrams))
    assert model.n_features == 1 << 20
    expected = np.zeros((len(texts), 1 << 20), np.float32)
    for row, text in enumerate(texts):
        for term in reference.terms_of(reference.words_of(text, True), *ngrams):
            expected[row, reference.hashed_column(term, 20)] += 1
    found = model.transform(texts)
    assert (found != expected).sum() == 0
    assert (model.fit(texts).fit_transform(texts) != found).nnz == 0


HASHED = {
    "fish": [68549],
    "Regulation of fish": [68549, 84451, 105271, 227979, 239239],
    "internationalisation": [65586],
    "Übergrößenträger": [21886],
}


def test_hashed_columns_do_not_change():
    """Models trained on hashed columns depend on these numbers."""
    model = Tfidf(TfidfConfig(hash_bits=18, idf=False, ngrams=(1, 2)))
    found = {text: sorted(model.transform([text]).indices.tolist()) for text in HASHED}
    assert found == HASHED
    assert model.state() == {}
    assert model.restore({}, Path("model")) is model
    with pytest.raises(ConfigError, match="columns have no terms"):
        model.terms([0])


# --- saved state ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [TfidfConfig(), TfidfConfig(ngrams=(2, 3), idf=False)])
def test_state_goes_through_a_folder(tmp_path, config):
    texts = sample(40)
    model = Tfidf(config).fit(texts)
    with store.new_folder(tmp_path / "model", "model", {}) as folder:
        folder.write_tensors("state.safetensors", model.state())
    tensors = store.Folder(tmp_path / "model", "model").tensors("state.safetensors")
    again = Tfidf(config).restore(tensors, tmp_path / "model")
    assert again.vocabulary_ == model.vocabulary_
    assert (again.transform(texts) != model.transform(texts)).nnz == 0


def damaged(**changes):
    model = Tfidf(TfidfConfig(ngrams=(1, 2))).fit(["aa bb", "cc", "bb cc"])
    tensors = model.state()
    if "terms" in changes:
        tensors |= store.strings_to_tensors("vocabulary", Strings.of(changes.pop("terms")))
        tensors["idf"] = np.ones(len(tensors["vocabulary.ends"]))
    return tensors | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"idf": np.ones(3)}, "each of 5 terms"),
        ({"idf": np.ones(5, np.float32)}, "finite weight"),
        ({"idf": np.array([1, 2, np.nan, 1, 1])}, "finite weight"),
        ({"idf": np.ones((5, 1))}, "finite weight"),
        ({"terms": ["aa", "bb", "aa"]}, "duplicate term"),
        ({"terms": ["aa", ""]}, "does not consist of words"),
        ({"terms": ["aa", "a"]}, "does not consist of words"),
        ({"terms": ["aa", "b b"]}, "does not consist of words"),
        ({"terms": ["aa-bb"]}, "does not consist of words"),
        ({"terms": ["aa\x00bb"]}, "does not consist of words"),
        ({"terms": ["aa  bb"]}, "does not consist of words"),
        ({"terms": [" aa"]}, "does not consist of words"),
        ({"terms": ["aa bb cc"]}, "does not consist of words"),
        ({"terms": ["aa " * 1000]}, "does not consist of words"),
        (None, "missing"),
    ],
)
def test_damaged_state_is_refused(changes, message):
    tensors = {} if changes is None else damaged(**changes)
    model = Tfidf(TfidfConfig(ngrams=(1, 2)))
    with pytest.raises(ModelFormatError, match=message) as caught:
        model.restore(tensors, Path("some/model"))
    assert str(caught.value).startswith("some/model: ")
    with pytest.raises(NotFittedError):
        model.transform(["aa"])


@given(st.lists(st.text(st.sampled_from("aB Σİ_-é\x00中") | st.characters(codec="utf-8"), max_size=12), max_size=8))
def test_any_vocabulary_is_refused_or_works(terms):
    """A folder from a stranger may hold anything."""
    tensors = store.strings_to_tensors("vocabulary", Strings.of(terms)) | {"idf": np.ones(len(terms))}
    model = Tfidf(TfidfConfig(ngrams=(1, 2), lowercase=False))
    sound = len(set(terms)) == len(terms) and all(
        term in reference.terms_of(reference.words_of(term, False), 1, 2) for term in terms
    )
    if not sound:
        with pytest.raises(ModelFormatError):
            model.restore(tensors, Path("model"))
        return
    model.restore(tensors, Path("model"))
    for index, term in enumerate(terms):
        assert index in model.transform([term]).indices.tolist()


def test_copies_and_pickles_work():
    model = Tfidf().fit(["aa bb", "bb cc"])
    row = model.transform(["aa cc"])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert (other.transform(["aa cc"]) != row).nnz == 0


def test_threads_may_share_a_model():
    texts = sample(30)
    model = Tfidf(TfidfConfig(ngrams=(1, 2))).fit(texts)
    expected = Tfidf(TfidfConfig(ngrams=(1, 2))).fit_transform(texts)
    found = []
    ready = threading.Barrier(6)

    def transform():
        ready.wait()
        found.append(model.transform(texts))

    workers = [threading.Thread(target=transform) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 6
    assert all((rows != expected).nnz == 0 for rows in found)


def test_terms_of_columns():
    model = Tfidf().fit(["one two", "three"])
    assert model.terms([2, 0]) == ["two", "one"]
    assert model.terms(model.transform(["three two two"]).indices) == ["three", "two"]
    assert model.terms([]) == []
    for outside in ([3], [-1]):
        with pytest.raises(DataError, match="columns go from 0 to 2"):
            model.terms(outside)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [[], [""], ["a b c", "- - \x00"], ["\u0301"]])
def test_texts_without_words(texts):
    for learn in (Tfidf().fit, Tfidf().fit_transform):
        with pytest.raises(DataError, match="no words"):
            learn(texts)


def test_limits_that_leave_nothing():
    with pytest.raises(DataError, match=r"none of 3 terms .* lower min_df \(now 3\)"):
        Tfidf(TfidfConfig(min_df=3)).fit(["aa bb", "bb cc"])


def test_documents_without_known_words_are_empty_rows():
    model = Tfidf().fit(["one two", "", "three"])
    found = model.transform(["", "four", "one", "x"])
    assert np.diff(found.indptr).tolist() == [0, 0, 1, 0]
    assert model.transform([]).shape == (0, 3)
    assert model.fit_transform(["one", "", "two"]).shape == (3, 2)


def test_what_is_not_a_list_of_texts():
    with pytest.raises(DataError, match=r"pass \[text\]"):
        Tfidf().fit("one text")
    with pytest.raises(DataError, match="item 1 is a int"):
        Tfidf().fit(["one", 2])
    with pytest.raises(NotFittedError, match="fit"):
        Tfidf().transform(["one"])
    for part in (lambda: Tfidf().n_features, lambda: Tfidf().state(), lambda: Tfidf().terms([0])):
        with pytest.raises(NotFittedError):
            part()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_df": 0}, "min_df: as an integer must be 1 or more"),
        ({"max_df": 1.5}, "max_df: as a fraction must lie between"),
        ({"min_df": True}, "min_df: must be a count"),
        ({"min_df": "many"}, "min_df: must be a count"),
        ({"max_df": float("nan")}, "max_df: "),
        ({"ngrams": [2, 1]}, "minimum 2 is larger than the maximum 1"),
        ({"ngrams": [0, 1]}, "ngrams.0"),
        ({"ngrams": [1, 9]}, "ngrams.1"),
        ({"max_features": 0}, "max_features"),
        ({"norm": "l1"}, "norm"),
        ({"hash_bits": 18}, "hash_bits learns nothing .* with idf"),
        ({"hash_bits": 18, "idf": False, "min_df": 2, "max_features": 9}, "with min_df, max_features"),
        ({"hash_bits": 18, "idf": False, "max_df": 1}, "with max_df"),
        ({"hash_bits": 40, "idf": False}, "hash_bits"),
        ({"stop_word": "english"}, "stop_word: there is no such key"),
    ],
)
def test_configs_that_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        validated(TfidfConfig, values)


def test_configs_that_are_accepted():
    config = validated(TfidfConfig, {"ngrams": [1, 2], "min_df": 0.5, "max_df": 7})
    assert (config.ngrams, config.min_df, config.max_df) == ((1, 2), 0.5, 7)
    assert isinstance(config.max_df, int)
    assert validated(TfidfConfig, {"hash_bits": 18, "idf": False, "min_df": 1, "max_df": 1.0}).hash_bits == 18
