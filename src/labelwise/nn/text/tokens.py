"""Texts as token ids: a fast tokenizer, and the tokens of all texts in one flat buffer.

Texts are tokenised once, before training. A token takes 4 bytes and a text 16 more; lists of Python integers would take
ten times that. Special tokens are not stored: they are added to each window when a batch is built.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labelwise.errors import ConfigError, ModelFormatError
from labelwise.io.folder import get_tensor
from labelwise.nn.config import EncoderConfig
from labelwise.nn.inputs import Batch
from labelwise.nn.text.files import call_guarded, check_tokenizer
from labelwise.runtime.progress import progress
from labelwise.strings import Strings

if TYPE_CHECKING:
    from tokenizers import Tokenizer


CHUNK = 1024
"""Texts tokenised at a time."""
BYTES_PER_TOKEN = 8
"""Bytes of a long text that are tokenised first, per token needed of it."""
MARGIN = 8
"""Tokens before a cut that are discarded: a tokenizer may merge across the cut."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


@dataclass(frozen=True)
class Tokens:
    """The tokens of many texts. Window s is ``ids[starts[s]:starts[s + 1]]``; document d owns the windows from
    ``windows[d]`` to ``windows[d + 1]``, one unless long texts are read in windows."""

    ids: np.ndarray
    starts: np.ndarray
    windows: np.ndarray
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad: int

    def __len__(self) -> int:
        return len(self.windows) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document as the encoder reads it, special ones and padding included.

        A document of several windows takes as many rows, each as long as its longest window.
        """
        sizes = np.diff(self.starts)
        longest = np.maximum.reduceat(sizes, self.windows[:-1]) if len(self) else sizes
        return (longest + len(self.prefix) + len(self.suffix)) * np.diff(self.windows)

    def batch(self, documents: np.ndarray, epoch: int | None = None) -> Batch:
        """The given documents, padded to the longest of them.

        Ids and mask [windows, length], and the document of each window, counted from 0 within the batch.
        """
        counts = self.windows[documents + 1] - self.windows[documents]
        owners = np.repeat(np.arange(len(documents)), counts)
        within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(self.windows[documents], counts) + within
        begins, ends = self.starts[rows], self.starts[rows + 1]
        before, after = len(self.prefix), len(self.suffix)
        lengths = ends - begins + before + after
        ids = np.full((len(rows), int(lengths.max(initial=0))), self.pad, np.int64)
        ids[:, :before] = self.prefix
        for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            text_end = before + end - begin
            ids[row, before:text_end] = self.ids[begin:end]
            ids[row, text_end : text_end + after] = self.suffix
        return Batch(documents, (ids, np.arange(ids.shape[1]) < lengths[:, None], owners))


class TextTokenizer:
    """A tokenizer of the `tokenizers` library, the special tokens around a text, and the padding id."""

    def __init__(self, backend: Tokenizer, pad: int) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.pad = pad
        probe = backend.encode("a")
        plain = np.flatnonzero(np.array(probe.special_tokens_mask) == 0)
        first, last = (int(plain[0]), int(plain[-1])) if len(plain) else (len(probe.ids), len(probe.ids) - 1)
        self.prefix: tuple[int, ...] = tuple(probe.ids[:first])
        self.suffix: tuple[int, ...] = tuple(probe.ids[last + 1 :])

    @classmethod
    def trained(cls, texts: Sequence[str], vocabulary: int) -> TextTokenizer:
        """Train a tokenizer of the most frequent words of the given texts, for encoders with random weights.

        Whole words instead of subwords: the library's subword trainers assign different ids at every run.
        """
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

        backend = Tokenizer(models.WordLevel(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordLevelTrainer(vocab_size=vocabulary, special_tokens=list(SPECIAL), show_progress=False)
        backend.train_from_iterator(texts, trainer, length=len(texts))
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[(name, SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")]
        )
        return cls(backend, pad=0)

    @property
    def size(self) -> int:
        """The largest id plus 1."""
        return max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def words(self, ids: Sequence[int]) -> list[str]:
        """The tokens of some ids, as strings."""
        return [self.backend.id_to_token(int(i)) or "" for i in ids]

    def encode(self, texts: Strings, config: EncoderConfig) -> Tokens:
        """Tokenise texts, keeping only the tokens that the encoder will read."""
        room = config.max_length - len(self.prefix) - len(self.suffix)
        if room < 1:
            raise ConfigError(f"encoder.max_length: {config.max_length} leaves no token between the special ones")
        count = room * (config.windows if config.long_texts == "windows" else 1)
        flat, sizes = array("i"), array("q")
        nothing = [] if self.prefix or self.suffix else [self.pad]  # an encoder cannot read a text without any token
        with progress("tokenising", len(texts), alone=True) as step:
            for begin in range(0, len(texts), CHUNK):
                chunk = texts[begin : begin + CHUNK]
                for ids in self._ids(chunk, None if config.long_texts == "head_tail" else count):
                    ids = _head_and_tail(ids, room) if config.long_texts == "head_tail" else ids[:count]
                    flat.extend(ids or nothing)
                    sizes.append(len(ids or nothing))
                step(len(chunk))
        starts, windows = _cut(np.array(sizes, np.int64), room)
        return Tokens(np.array(flat, np.int32), starts, windows, self.prefix, self.suffix, self.pad)

    def _ids(self, texts: Strings, count: int | None) -> Iterator[list[int]]:
        """Token ids of each text, at least the first `count` of them (all if None)."""
        limit = None if count is None else (count + MARGIN) * BYTES_PER_TOKEN
        starts = [_start_of(texts, index, limit) for index in range(len(texts))]
        plain = [text for text, _ in starts]
        encodings = call_guarded(
            lambda: self.backend.encode_batch_fast(plain, add_special_tokens=False), "the model's tokenizer has failed"
        )
        for index, (_, whole) in enumerate(starts):
            ids = encodings[index].ids
            if not whole and count is not None and len(ids) < count + MARGIN:
                ids = self.backend.encode(texts[index], add_special_tokens=False).ids
            yield ids

    def state(self) -> dict[str, np.ndarray]:
        """The tokenizer as arrays."""
        text = np.frombuffer(self.backend.to_str().encode(), np.uint8)
        return {"tokenizer": text, "pad": np.array([self.pad], np.int64)}

    @classmethod
    def restored(cls, tensors: Mapping[str, np.ndarray], path: Path) -> TextTokenizer:
        """Rebuild the tokenizer from what `state` returned; only data is read, no code is run."""
        from tokenizers import Tokenizer

        text, pad = get_tensor(tensors, "tokenizer", path), get_tensor(tensors, "pad", path)
        if pad.dtype != np.int64 or pad.shape != (1,) or pad[0] < 0:
            raise ModelFormatError(f"{path}: the tokenizer is damaged")
        rules = check_tokenizer(text, path)
        return call_guarded(
            lambda: cls(Tokenizer.from_str(rules), int(pad[0])), f"{path}: the tokenizer cannot be read"
        )


def _start_of(texts: Strings, index: int, limit: int | None) -> tuple[str, bool]:
    """A text, or if it is much longer than the limit its start up to a space; and whether it is whole."""
    begin, end = int(texts.starts[index]), int(texts.ends[index])
    if limit is None or end - begin <= 2 * limit:
        return texts[index], True
    head = texts.buffer[begin : begin + limit].tobytes()
    blank = head.rfind(b" ")
    return (head[:blank].decode(), False) if blank > 0 else (texts[index], True)


def _head_and_tail(ids: list[int], room: int) -> list[int]:
    """The start and the end of a long text, half of the tokens each."""
    if len(ids) <= room:
        return ids
    tail = room // 2
    return ids[: room - tail] + ids[len(ids) - tail :]


def _cut(sizes: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut documents of these sizes into windows of at most `room` tokens: starts of windows, and of documents."""
    counts = np.maximum(-(-sizes // room), 1)
    windows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    within = np.arange(windows[-1]) - np.repeat(windows[:-1], counts)
    lengths = np.minimum(np.repeat(sizes, counts) - within * room, room)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), windows
