"""Texts as tokens: the same tokens as the library gives, whatever is kept of long texts, and batches of them."""

import numpy as np
import pytest

from labelwise.errors import ConfigError, ModelFormatError
from labelwise.nn.config import EncoderConfig, TrainingConfig
from labelwise.nn.inputs import training_batches
from labelwise.nn.text.tokens import BYTES_PER_TOKEN, CHUNK, TextTokenizer
from labelwise.strings import Strings

WORDS = [f"word{number}" for number in range(300)]


def made_up_texts(count=60, seed=0):
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(0, 90))) for _ in range(count)]
    return Strings.of([*texts, "", "   ", "é" * 50, "x" * 5000, " ".join(WORDS * 5)])


@pytest.fixture(scope="module")
def texts():
    return made_up_texts()


@pytest.fixture(scope="module")
def tokenizer(texts):
    return TextTokenizer.trained(texts, 200)


def rows_of(tokens, documents):
    batch = tokens.batch(np.asarray(documents))
    ids, mask, _ = batch.arrays
    return [row[real].tolist() for row, real in zip(ids, mask, strict=True)], batch


def test_the_trained_tokenizer_is_always_the_same(texts, tokenizer):
    again = TextTokenizer.trained(list(texts), 200)
    assert again.backend.to_str() == tokenizer.backend.to_str()
    assert tokenizer.size == 200
    assert (tokenizer.prefix, tokenizer.suffix, tokenizer.pad) == ((2,), (3,), 0)


@pytest.mark.parametrize("length", [4, 16, 64])
def test_the_head_of_a_text_is_what_the_library_gives(texts, tokenizer, length):
    tokens = tokenizer.encode(texts, EncoderConfig(max_length=length))
    rows, _ = rows_of(tokens, np.arange(len(texts)))
    for text, row in zip(texts, rows, strict=True):
        inner = tokenizer.backend.encode(text).ids[1:-1]
        assert row == [2, *inner[: length - 2], 3]
    np.testing.assert_array_equal(tokens.lengths, [len(row) for row in rows])


def test_a_long_text_is_cut_before_it_is_tokenised_and_gives_the_same(tokenizer):
    long = Strings.of(["a b c " * 2000, "word1 " + " " * 40_000 + "word2 word3", "z" * 9000 + " word4"])
    assert min(long.ends - long.starts) > 2 * BYTES_PER_TOKEN * 40
    tokens = tokenizer.encode(long, EncoderConfig(max_length=20))
    rows, _ = rows_of(tokens, np.arange(3))
    for text, row in zip(long, rows, strict=True):
        assert row == [2, *tokenizer.backend.encode(text).ids[1:-1][:18], 3]


def test_head_and_tail(texts, tokenizer):
    tokens = tokenizer.encode(texts, EncoderConfig(max_length=15, long_texts="head_tail"))
    rows, _ = rows_of(tokens, np.arange(len(texts)))
    for text, row in zip(texts, rows, strict=True):
        inner = tokenizer.backend.encode(text).ids[1:-1]
        assert row == [2, *(inner if len(inner) <= 13 else inner[:7] + inner[-6:]), 3]


def test_windows_follow_each_other(texts, tokenizer):
    tokens = tokenizer.encode(texts, EncoderConfig(max_length=10, long_texts="windows", windows=3))
    chosen = np.array([64, 3, 60, 0])
    rows, batch = rows_of(tokens, chosen)
    expected, owners = [], []
    for place, document in enumerate(chosen):
        inner = tokenizer.backend.encode(texts[document]).ids[1:-1][:24]
        windows = [inner[begin : begin + 8] for begin in range(0, len(inner), 8)] or [[]]
        expected += [[2, *window, 3] for window in windows]
        owners += [place] * len(windows)
    assert rows == expected
    assert batch.arrays[2].tolist() == owners
    assert len(tokens) == len(texts)


def test_batches_of_windows_keep_to_the_number_of_tokens(texts, tokenizer):
    tokens = tokenizer.encode(texts, EncoderConfig(max_length=10, long_texts="windows", windows=3))
    assert np.diff(tokens.windows).max() == 3
    for documents in training_batches(tokens.lengths, TrainingConfig(tokens_per_batch=60), 0):
        assert tokens.batch(documents).arrays[0].size <= 60


def test_more_texts_than_a_chunk_and_none(tokenizer):
    many = Strings.of([f"word{number % 300}" for number in range(CHUNK + 5)])
    tokens = tokenizer.encode(many, EncoderConfig())
    assert len(tokens) == CHUNK + 5
    assert (tokens.lengths == 3).all()
    assert tokens.ids.dtype == np.int32
    assert len(tokenizer.encode(Strings.of([]), EncoderConfig())) == 0


def test_a_tokenizer_without_special_tokens_still_gives_every_text_a_token(tokenizer):
    from tokenizers import Tokenizer

    bare = Tokenizer.from_str(tokenizer.backend.to_str())
    bare.post_processor = None
    plain = TextTokenizer(bare, pad=0)
    assert (plain.prefix, plain.suffix) == ((), ())
    tokens = plain.encode(Strings.of(["", "word1"]), EncoderConfig())
    assert tokens.lengths.tolist() == [1, 1]


def test_too_short_for_the_special_tokens():
    from tokenizers import processors

    tokenizer = TextTokenizer.trained(["word"], 20)
    names = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.backend.post_processor = processors.TemplateProcessing("[CLS] [CLS] $A [SEP] [SEP]", None, names)
    with pytest.raises(ConfigError, match="leaves no token"):
        TextTokenizer(tokenizer.backend, 0).encode(Strings.of(["word"]), EncoderConfig(max_length=4))


def test_state_goes_there_and_back(texts, tokenizer):
    again = TextTokenizer.restored(tokenizer.state(), "state")
    assert again.backend.to_str() == tokenizer.backend.to_str()
    config = EncoderConfig(max_length=12)
    np.testing.assert_array_equal(again.encode(texts, config).ids, tokenizer.encode(texts, config).ids)
    for damage in (b"{}", b"no JSON", b"\xff\xff"):
        with pytest.raises(ModelFormatError, match="tokenizer"):
            TextTokenizer.restored({**tokenizer.state(), "tokenizer": np.frombuffer(damage, np.uint8)}, "state")
    with pytest.raises(ModelFormatError, match="damaged"):
        TextTokenizer.restored({**tokenizer.state(), "pad": np.array([-1])}, "state")
