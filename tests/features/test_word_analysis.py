"""Stop words, lemmas and stems against scikit-learn with a tokenizer of the same steps; what is stored and checked."""

import copy
import pickle
import re
from importlib.metadata import EntryPoint, EntryPoints

import numpy as np
import pytest
import snowballstemmer
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

import labelwise as lw
from labelwise.config import validated
from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.features import settings as stemming
from labelwise.features import vocabulary as text_blocks
from labelwise.features import words as rewriting
from labelwise.features import words as word_analysis
from labelwise.features.tfidf import Tfidf, TfidfConfig
from labelwise.features.words import STOP_WORDS
from labelwise.io.folder import strings_to_tensors
from labelwise.runtime.threads import using_threads
from labelwise.strings import Strings

WORDS = [
    "the", "The", "of", "and", "cat", "Cats", "running", "runs", "ran", "lunches", "lunch", "ΟΔΟΣ", "İstanbul", "naïve",
    "flies", "as", "is", "a", "skies", "中文", "a" * 17 + "s", "regulations", "Regulation",
]  # fmt: skip
GAPS = st.sampled_from([" ", ", ", "\n", ".", "-"])
TEXT = st.lists(st.tuples(st.sampled_from(WORDS), GAPS), max_size=15).map(lambda parts: "".join(map("".join, parts)))
DOCUMENTS = st.lists(TEXT, min_size=1, max_size=6)
TEXTS = ["The cats were running", "a cat runs and lunches, and lunches", "lunch of the runners", "ΟΔΟΣ running"]
ENGLISH = snowballstemmer.stemmer("english")
LEMMAS = {"ran": "run", "flies": "fly"}


def tokens(text, stop, lemmas, stem):
    words = [word for word in re.findall(r"\w\w+", text.lower()) if word not in stop]
    words = [lemmas.get(word, word) for word in words]
    return [word if len(s := ENGLISH.stemWord(word)) < 2 else s for word in words] if stem else words


@pytest.fixture(scope="module")
def lemma_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("lemmas") / "lemmas.tsv"
    path.write_text("".join(f"{form.title()}\t{lemma}\n" for form, lemma in LEMMAS.items()))
    return str(path)


@settings(max_examples=60)
@given(DOCUMENTS, DOCUMENTS, st.booleans(), st.booleans(), st.booleans(), st.sampled_from([(1, 1), (1, 2), (2, 3)]))
def test_as_scikit_learn(lemma_file, texts, others, stop, lemmas, stem, ngrams):
    config = TfidfConfig(
        ngrams=ngrams, stop_words="english" if stop else None, lemmas=lemma_file if lemmas else None,
        stemmer="english" if stem else None,
    )  # fmt: skip
    steps = STOP_WORDS["english"] if stop else (), LEMMAS if lemmas else {}, stem
    theirs = TfidfVectorizer(
        tokenizer=lambda text: tokens(text, *steps), lowercase=False, token_pattern=None, ngram_range=ngrams
    )
    ours = Tfidf(config)
    try:
        expected = theirs.fit_transform(texts)
    except ValueError:
        with pytest.raises(DataError, match="there are no words"):
            ours.fit_transform(texts)
        return
    found = ours.fit_transform(texts)
    assert list(ours.vocabulary_) == theirs.get_feature_names_out().tolist()
    np.testing.assert_allclose(found.toarray(), expected.toarray(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(
        ours.transform(others).toarray(), theirs.transform(others).toarray(), rtol=1e-6, atol=1e-6
    )
    assert ours.transform(texts).data.tobytes() == found.data.tobytes()


def test_threads_and_blocks_do_not_change_a_bit(monkeypatch):
    texts = [f"{WORDS[n * n % len(WORDS)]} cats{n % 7} ran running{n % 5}" for n in range(300)]
    config = TfidfConfig(stemmer="english", stop_words=["the"], ngrams=(1, 2))
    first = Tfidf(config)
    expected = first.fit_transform(texts)
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 300)
    monkeypatch.setattr(text_blocks, "CAPACITY", 200)
    monkeypatch.setattr(rewriting, "MAX_WORDS", 5)  # rewriters and cache start over all the time
    with using_threads(3):
        model = Tfidf(config)
        for found in (model.fit_transform(texts), model.transform(texts), first.transform(texts)):
            assert found.indices.tobytes() == expected.indices.tobytes()
            assert found.data.tobytes() == expected.data.tobytes()
    assert model.analysis_.readable == first.analysis_.readable


def test_explanations_show_the_most_frequent_form():
    config = TfidfConfig(stemmer="english", ngrams=(1, 2))
    model = Tfidf(config).fit(["regulation of cats", "regulations of a cat", "regulations"])
    names = dict(zip(model.vocabulary_, model.readable_terms(range(model.n_features)), strict=True))
    assert names == {"regul": "regulations", "of": "of", "cat": "cat", "regul of": "regulations of", "of cat": "of cat"}
    fitted = lw.LinearFlat(tfidf=config).fit(
        ["regulations of wine", "wine regulation", "cats"], [["law"], ["law"], ["animal"]]
    )
    (one,) = fitted.explain("a regulation", labels=["law"])
    assert {term.name for term in one.terms} <= {"regulation", "wine", "of", "wine regulation"}
    assert "regulation" in {term.name for term in one.terms}


@pytest.mark.parametrize("name", ["linear_tree", "linear_flat"])
def test_a_saved_model_needs_no_file(tmp_path, name):
    (tmp_path / "stop.txt").write_text("wine\n\nDon't\n")
    (tmp_path / "lemmas.tsv").write_text("grapes\tgrape\nfeet\tfoot\n")
    tfidf = {"stop_words": str(tmp_path / "stop.txt"), "lemmas": str(tmp_path / "lemmas.tsv"), "stemmer": "english"}
    texts = ["wine grapes", "growing grape wine", "feet and shoes", "a foot in a shoe"]
    labels = [["vine"], ["vine"], ["walk"], ["walk"]]
    kind = {"linear_tree": lw.LinearTree, "linear_flat": lw.LinearFlat}[name]
    fitted = kind(tfidf=tfidf).fit(texts, labels)
    assert list(fitted.tfidf_.vocabulary_) == ["and", "foot", "grape", "grow", "in", "shoe"]
    fitted.save(tmp_path / "model")
    (tmp_path / "stop.txt").unlink()
    (tmp_path / "lemmas.tsv").unlink()
    loaded = lw.load(tmp_path / "model")
    for document in (["feet"], ["GRAPES and wine"], ["unseen shoeing"]):
        assert loaded.predict(document).scores.tobytes() == fitted.predict(document).scores.tobytes()
    for name, message in (("stop_words", r"'.*stop.txt' is neither a file nor a language"), ("lemmas", "no such file")):
        with pytest.raises(lw.errors.LabelwiseError, match=message):
            kind(tfidf={name: tfidf[name]}).fit(texts, labels)


def test_hashed_columns_are_those_of_the_stems(tmp_path):
    config = TfidfConfig(stemmer="english", stop_words="english", idf=False, hash_bits=20)
    model = Tfidf(config)
    plain = Tfidf(TfidfConfig(idf=False, hash_bits=20))
    found = model.transform(["The cats were running"])
    assert (found != plain.transform(["cat run"])).nnz == 0
    again = Tfidf(config).restore(model.state(), tmp_path)
    assert (again.fit_transform(["The cats were running"]) != found).nnz == 0


def test_copies_and_pickles_work():
    model = Tfidf(TfidfConfig(stemmer="english", stop_words="english")).fit(TEXTS)
    row = model.transform(["cats and lunches"])
    assert row.nnz == 2
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert (other.transform(["cats and lunches"]) != row).nnz == 0
        assert other.readable_terms([0]) == model.readable_terms([0])


def test_words_that_are_added_later_are_readable_too():
    model = Tfidf(TfidfConfig(stemmer="english", stop_words="english")).fit(TEXTS)
    more = model.extended(["regulations and cats", "regulations", "regulation"], len(TEXTS))
    assert more.terms([model.n_features]) == ["regul"]
    assert more.readable_terms([model.n_features]) == ["regulations"]
    columns = range(model.n_features)
    assert more.readable_terms(columns) == model.readable_terms(columns)


# --- versions of stemmers and lemmatizers ---------------------------------------------------------------------------


def test_another_version_that_stems_otherwise_is_refused(monkeypatch, tmp_path):
    config = TfidfConfig(stemmer="english")
    state = Tfidf(config).fit(TEXTS).state()
    monkeypatch.setattr(word_analysis, "stemmer_version", lambda: "snowballstemmer 99")
    assert Tfidf(config).restore(state, tmp_path).n_features  # the same stems: no reason to refuse
    monkeypatch.setattr(word_analysis, "snowball", lambda language: lambda words: [word[:2] for word in words])
    with pytest.raises(
        ModelFormatError, match=r"'\w+' became '\w+' when .* becomes '\w\w' here.*installed: snowballstemmer 99"
    ):
        Tfidf(config).restore(state, tmp_path)


def test_hashed_words_are_compared_too(monkeypatch, tmp_path, caplog):
    config = TfidfConfig(stemmer="english", idf=False, hash_bits=12)
    states = []
    for count in (1, 3):
        model = Tfidf(config)
        with using_threads(count):
            model.fit_transform(TEXTS)
        states.append(model.state())
    assert all((states[0][name] == states[1][name]).all() for name in states[0])
    without_words = Tfidf(config).state()
    monkeypatch.setattr(word_analysis, "stemmer_version", lambda: "snowballstemmer 99")
    Tfidf(config).restore(states[0], tmp_path)
    assert not caplog.messages
    Tfidf(config).restore(without_words, tmp_path)
    assert "the model has no words by which both can be compared" in caplog.text
    monkeypatch.setattr(word_analysis, "snowball", lambda language: lambda words: [word[:2] for word in words])
    with pytest.raises(ModelFormatError, match="installed: snowballstemmer 99"):
        Tfidf(config).restore(states[0], tmp_path)


@pytest.mark.parametrize("text", ["5", "null", "[1]", "{", "[" * 100_000])
def test_damaged_versions_are_refused(tmp_path, text):
    config = TfidfConfig(stemmer="english")
    state = Tfidf(config).fit(TEXTS).state() | strings_to_tensors("analysis", Strings.of([text]))
    with pytest.raises(ModelFormatError, match="versions of the text analysis are damaged"):
        Tfidf(config).restore(state, tmp_path)


class Package:
    """The package of an entry point."""

    name, version = "own-lemmas", "1.0"


def lemmatize(words):
    return ["" if word == "the" else {"cats": "Cat", "ran": "run far"}.get(word, word) for word in words]


def refuse(words):
    return words[:-1]


@pytest.fixture
def registered(monkeypatch):
    points = EntryPoints(
        EntryPoint(name, f"{__name__}:{name}", word_analysis.GROUP)._for(Package) for name in ("lemmatize", "refuse")
    )
    monkeypatch.setattr(word_analysis, "entry_points", lambda group: points.select(group=group))


@pytest.mark.usefixtures("registered")
def test_a_registered_lemmatizer(monkeypatch, tmp_path):
    config = TfidfConfig(lemmatizer="lemmatize")
    model = Tfidf(config).fit(["the cats ran", "cat"])
    assert list(model.vocabulary_) == ["cat", "far", "run"]
    again = Tfidf(config).restore(model.state(), tmp_path)
    assert (again.transform(["cats"]) != model.transform(["cat"])).nnz == 0
    stemmed = Tfidf(TfidfConfig(lemmatizer="lemmatize", stemmer="english")).fit(["ran", "running"])
    assert list(stemmed.vocabulary_) == ["far", "run"]
    with pytest.raises(ConfigError, match="'refuse' must return a list with one str per word"):
        Tfidf(TfidfConfig(lemmatizer="refuse")).fit(["aa bb"])
    monkeypatch.setattr(word_analysis, "entry_points", lambda group: EntryPoints())
    with pytest.raises(ConfigError, match="no installed package registers 'lemmatize'"):
        Tfidf(config).restore(model.state(), tmp_path)


@pytest.mark.usefixtures("registered")
def test_modules_and_functions_are_no_lemmatizers():
    for name in ("os:system", "labelwise.features.tfidf:Tfidf"):
        with pytest.raises(ConfigError, match="no installed package registers"):
            Tfidf(TfidfConfig(lemmatizer=name)).fit(["aa"])
    with pytest.raises(ConfigError, match="lemmatizer"):
        validated(TfidfConfig, {"lemmatizer": lemmatize})


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a b\n", "2: 'a b' is not form<TAB>lemma"),
        ("aa\t\n", "2: .* is not form<TAB>lemma"),
        ("xx\tyy\nxx\tzz\n", "3: 'xx' has the lemma 'yy' on an earlier line"),
    ],
)
def test_bad_lemma_files(tmp_path, lines, message):
    path = tmp_path / "lemmas.tsv"
    path.write_text("geese\tgoose\n" + lines)
    with pytest.raises(DataError, match=message):
        Tfidf(TfidfConfig(lemmas=str(path))).fit(["aa"])


def test_stop_words_that_never_occur_are_reported(caplog):
    model = Tfidf(TfidfConfig(stop_words=["Cat", "don't", "x"])).fit(["cat dog"])
    assert list(model.vocabulary_) == ["dog"]
    assert "stop_words: 2 never occur as words" in caplog.text


def test_misspelt_languages():
    with pytest.raises(ConfigError, match="no Snowball stemmer 'englsh'; did you mean 'english'"):
        validated(TfidfConfig, {"stemmer": "englsh"})
    with pytest.raises(ConfigError, match=r"stop_words: 'finish' is neither a file nor a language.*'finnish'"):
        Tfidf(TfidfConfig(stop_words="finish")).fit(["aa"])
    with pytest.raises(DataError, match=r"no words .* is not dropped by stop_words"):
        Tfidf(TfidfConfig(stop_words="english")).fit(["the and"])


def test_every_listed_language_exists():
    assert set(stemming.LANGUAGES) == set(snowballstemmer.algorithms())
    assert set(STOP_WORDS) <= set(stemming.LANGUAGES)
    for words in STOP_WORDS.values():
        assert all(re.fullmatch(r"\w\w+", word) and word == word.lower() for word in words)


@pytest.mark.parametrize(
    "changes", [{"stems": ["cat", "dog"]}, {"analysis": ["{"]}, {"analysis": []}, {"lemmas": ["x"]}]
)
def test_damaged_word_lists_are_refused(tmp_path, changes):
    from labelwise.io.folder import strings_to_tensors
    from labelwise.strings import Strings

    config = TfidfConfig(stemmer="english")
    state = Tfidf(config).fit(TEXTS).state()
    for name, words in changes.items():
        state |= strings_to_tensors(name, Strings.of(words))
    with pytest.raises(ModelFormatError, match=str(tmp_path)):
        Tfidf(config).restore(state, tmp_path)
