"""Vectors of documents, and the network of an encoder with a head.

Of a corpus equal texts are encoded once, finished blocks are kept, and known texts are not encoded again. `EncoderHead`
is what predicts and is trained.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.data.hashing import text_hashes
from labelwise.errors import ConfigError, LabelwiseError
from labelwise.io.tensors import map_tensors, write_tensor_file
from labelwise.nn.inputs import Encoder, Inputs, Part, batches_by_length, tensors_of
from labelwise.runtime.budget import NO_LIMIT, Budget
from labelwise.runtime.device import limited_threads
from labelwise.runtime.job import fingerprint, flat
from labelwise.runtime.memory import keep_freed_memory
from labelwise.runtime.progress import progress
from labelwise.runtime.threads import run_stream
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

if TYPE_CHECKING:
    from labelwise.nn.text.transformer import TransformerEncoder

log = logging.getLogger("labelwise")

# --- vector cache ---
# Vectors of texts on disk, so that an encoder reads no text again: after a kill, in other runs, in sweeps.
#
# A cache folder has one folder per encoder, named by a fingerprint of everything that decides its vectors, with
# safetensors files of some hundred texts each: the hash of every text and its vector. Files are written atomically, are
# named by the texts in them and never change, so any number of processes can use a cache at the same time without
# locks. A damaged file is ignored, and replaced once its texts are encoded again. The user's cache has a maximum size:
# the files that were used least recently are removed.

VARIABLE, OFF = "LABELWISE_VECTORS", "off"
LIMIT_VARIABLE, DEFAULT_LIMIT = "LABELWISE_VECTORS_GB", 20.0
"""The maximum size of the user's cache, in GB."""
KEPT = 0.9
"""Fraction of the maximum size to which a cache that exceeds it is reduced, so that not every new file removes one."""
MIN_TEXTS = 256
"""Fewer texts than this are not worth a look into the cache: reading the weights for the fingerprint takes longer."""
OUTDATED = 30 * 24 * 3600
"""Age in seconds after which the vectors of an encoder that was not used since are removed."""
HASHES, VECTORS, CHECKSUM = "hashes", "vectors", "checksum"
TYPES = ["uint64", "float32", "uint8"]
"""Of hashes, vectors and checksum."""
NAME = re.compile("[0-9a-f]{32}")
"""Names of the folders of encoders, and of files before their suffix."""


def cache_folder(count: int = MIN_TEXTS) -> Path | None:
    """The user's cache folder, for corpora of so many texts; None if they are too few, or if the cache is off.

    It is ~/.cache/labelwise/vectors, or what LABELWISE_VECTORS names; `LABELWISE_VECTORS=off` switches it off.
    """
    given = os.environ.get(VARIABLE)
    if given == OFF or count < MIN_TEXTS:
        return None
    return Path(given).expanduser() if given else Path.home() / ".cache" / "labelwise" / "vectors"


def size_limit(folder: Path) -> int | None:
    """The maximum bytes of a folder: that of the user's cache is limited, those of checkpoints are not (None)."""
    if folder != cache_folder():
        return None
    given = os.environ.get(LIMIT_VARIABLE, str(DEFAULT_LIMIT))
    try:
        gigabytes = float(given)
    except ValueError:
        gigabytes = 0.0
    if not 0 < gigabytes < 1e9:
        raise ConfigError(f"{LIMIT_VARIABLE}: the size of the cache of vectors, a number of GB above 0, got '{given}'")
    return int(gigabytes * 1e9)


class VectorCache:
    """The vectors that one encoder has computed before, by the hash of their texts."""

    def __init__(self, folder: Path, encoder: str, width: int, limit: int | None = None) -> None:
        """Open the cache of an encoder, given by its fingerprint; the folder need not exist.

        `limit` is the maximum number of bytes in the folder, of all encoders together.
        """
        self.folder, self.width, self.limit = folder / encoder[:32], width, limit
        self._failed = False
        _remove_outdated(folder, self.folder)
        self._space = 0 if limit is None else _reduce(folder, limit)
        with suppress(OSError):
            os.utime(self.folder)
        # only hashes are held: every mapped file would keep a file descriptor, and there may be thousands
        opened = ((path, self._opened(path)) for path in sorted(self.folder.glob("*.safetensors")))
        self._known = [(path, np.array(block[0])) for path, block in opened if block is not None]

    def fill(self, hashes: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Write the vectors that are known into the rows of their texts; returns the rows that are not known.

        `hashes` must be distinct, and at least one.
        """
        order = np.argsort(hashes)
        missing = np.ones(len(hashes), bool)
        for path, known in self._known:
            at = order[np.minimum(np.searchsorted(hashes, known, sorter=order), len(hashes) - 1)]
            here = np.flatnonzero(hashes[at] == known)
            rows = at[here]
            new = missing[rows]
            found = self._read(path, known) if new.any() else None
            if found is not None:
                vectors[rows[new]] = found[here[new]]
                missing[rows] = False
                with suppress(OSError):
                    os.utime(path)  # it is in use
        return np.flatnonzero(missing)

    def known(self, hashes: np.ndarray) -> np.ndarray | None:
        """The vectors of exactly these texts, if another process has stored them since this cache was opened."""
        path = self._path(hashes)
        return self._read(path, hashes) if path.exists() else None

    def keep(self, hashes: np.ndarray, vectors: np.ndarray) -> None:
        """Store vectors. If that is not possible, a warning is logged once: they are then not known next time."""
        if self._failed or len(hashes) == 0:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checksum = np.frombuffer(fingerprint(hashes, vectors).encode(), np.uint8)
            path = self._path(hashes)
            write_tensor_file(path, {HASHES: hashes, VECTORS: vectors, CHECKSUM: checksum})
            self._known.append((path, np.array(hashes)))
            if self.limit is not None:
                self._space -= path.stat().st_size
                if self._space < 0:
                    self._space = _reduce(self.folder.parent, self.limit)
        except (LabelwiseError, OSError) as error:
            self._failed = True
            log.warning("vectors are not kept for the next time: %s", error)

    def _path(self, hashes: np.ndarray) -> Path:
        return self.folder / f"{fingerprint(hashes)[:32]}.safetensors"

    def _opened(self, path: Path) -> list[np.ndarray] | None:
        """Hashes, vectors and checksum in a file; None if it cannot be used."""
        try:
            tensors = map_tensors(path)
            block = [tensors[name] for name in (HASHES, VECTORS, CHECKSUM)]
            shapes = [(len(block[0]),), (len(block[0]), self.width), (64,)]
            if [part.shape for part in block] == shapes and [part.dtype.name for part in block] == TYPES:
                return block
            log.warning("%s: not used: it does not hold hashes and vectors of width %s", path, self.width)
        except FileNotFoundError:  # removed by the user in this moment
            pass
        except (LabelwiseError, OSError, KeyError) as error:
            log.warning("%s: not used: %s", path, error)
        return None

    def _read(self, path: Path, hashes: np.ndarray) -> np.ndarray | None:
        """The vectors in a file, if it holds exactly these texts and is whole."""
        block = self._opened(path)
        if block is None or not np.array_equal(block[0], hashes):
            return None
        own, vectors, checksum = block
        if fingerprint(own, vectors) != checksum.tobytes().decode("ascii", "replace"):
            log.warning("%s: not used: its contents are damaged", path)
            return None
        return vectors


def _remove_outdated(folder: Path, own: Path) -> None:
    """Remove the vectors of encoders that have not been used for a month, and nothing else that is in the folder."""
    with suppress(OSError):
        for other in _encoders(folder):
            if other != own and other.stat().st_mtime < time.time() - OUTDATED:
                with suppress(OSError):
                    for path in _blocks(other):
                        path.unlink()
                    other.rmdir()  # refused by the system if there is anything else in it


def _reduce(folder: Path, limit: int) -> int:
    """Remove the files that were used least recently from a cache above its limit; returns the bytes that are free."""
    found = []
    with suppress(OSError):
        for path in (path for encoder in _encoders(folder) for path in _blocks(encoder)):
            with suppress(OSError):  # removed by another process
                status = path.stat()
                found.append((status.st_mtime_ns, path, status.st_size))
    total = sum(size for _, _, size in found)
    if total > limit:
        for _, path, size in sorted(found):
            with suppress(OSError):
                path.unlink()
                total -= size
            if total <= KEPT * limit:
                break
        log.info("%s: the vectors used least recently are removed, to stay below %s GB (%s)", folder,
                 f"{limit / 1e9:g}", LIMIT_VARIABLE)  # fmt: skip
    return limit - total


def _encoders(folder: Path) -> Iterator[Path]:
    """The folders of encoders in a cache folder, and nothing else that is in it."""
    return (path for path in folder.iterdir() if NAME.fullmatch(path.name) and not path.is_symlink())


def _blocks(folder: Path) -> Iterator[Path]:
    """The files of vectors in the folder of an encoder."""
    return (path for path in folder.iterdir() if path.suffix == ".safetensors" and NAME.fullmatch(path.stem))


# --- embed ---
# Encode many documents in batches of similar length; `encode_corpus` is what methods call for texts.

TOKENS_AT_ONCE = 8192
"""Tokens per batch, padding included."""
TOKENS_PER_THREAD = 1024
"""Tokens per batch of a thread on a CPU: its arrays stay in the cache of the processor."""
BLOCK = 1024
"""Documents that are encoded, and kept, at a time."""


def vectors_in_batches(
    encoder: Encoder, inputs: Inputs, what: str, budget: Budget = NO_LIMIT
) -> Generator[tuple[np.ndarray, Tensor], None, None]:
    """Encode documents in order of length; yields the indices and vectors [documents, width] of each batch.

    Raises `OutOfTimeError` as soon as the last batch is expected to end after the budget.

    On a CPU every thread encodes batches of its own: layers of small encoders are over before threads have divided them
    among themselves, and vectors do not depend on the number of threads. Fewer batches than threads share all threads.
    Callers close it, because a traceback may keep it: until then the process keeps freed memory.
    """
    encoder.eval()
    lengths, usual = inputs.lengths, torch.get_num_threads()
    on_cpu = torch.device(encoder.device).type == "cpu"
    batches = list(batches_by_length(lengths, TOKENS_PER_THREAD if on_cpu else TOKENS_AT_ONCE))
    alone = on_cpu and len(batches) >= usual > 1

    @torch.inference_mode()
    def encode(documents: np.ndarray) -> tuple[np.ndarray, Tensor]:
        batch = inputs.batch(documents)
        with limited_threads(1, usual) if alone else nullcontext():
            return batch.rows, encoder(*tensors_of(batch, encoder.device)).float()

    begin, done, total = time.monotonic(), 0, int(lengths.sum())
    with progress(what, len(inputs)) as step, keep_freed_memory() if len(batches) > 1 else nullcontext():
        for rows, vectors in run_stream(encode, batches) if alone else map(encode, batches):
            yield rows, vectors
            step(len(rows))
            done += int(lengths[rows].sum())
            budget.check_pace(begin, done, total)


def encode_inputs(encoder: Encoder, inputs: Inputs) -> np.ndarray:
    """One vector per document, float32 [documents, width]."""
    vectors = np.empty((len(inputs), encoder.width), np.float32)
    with closing(vectors_in_batches(encoder, inputs, "encoding")) as batches:
        for documents, batch in batches:
            vectors[documents] = batch.cpu().numpy()
    return vectors


class Distinct(NamedTuple):
    """The different texts of a corpus."""

    rows: np.ndarray
    """Index of the first of each group of equal texts, ascending."""
    copies: np.ndarray
    """For each text of the corpus, which of `rows` is equal to it."""
    hashes: np.ndarray
    """Of the texts in `rows`."""


def distinct_texts(texts: Strings) -> Distinct:
    """Find equal texts, by their hashes."""
    hashes = text_hashes(texts)
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rows, rank = first[order], np.argsort(order)
    return Distinct(rows, rank[inverse], hashes[rows])


def open_cache(encoder: TransformerEncoder, folder: Path) -> VectorCache:
    """The vectors that an encoder has computed before; for several calls that would each open the folder."""
    return VectorCache(folder, encoder_fingerprint(encoder), encoder.width, size_limit(folder))


def encode_corpus(encoder: TransformerEncoder, texts: Strings, folder: Path | VectorCache | None = None) -> np.ndarray:
    """One vector per text, float32 [texts, width], the same to the last bit with and without a folder.

    Equal texts are encoded once. With a folder, texts that this encoder has encoded before are taken from it, and
    finished blocks are kept in it: `cache_folder(len(texts))` for an encoder as it was published, a folder
    of the run's checkpoints for one that was trained, or what `open_cache` returned. Texts that are found among others
    than those they were encoded with may differ in the last bits, as in batches of another shape.
    """
    return encode_some_texts(encoder, texts, folder)[1]


def encode_some_texts(
    encoder: TransformerEncoder,
    texts: Strings,
    folder: Path | VectorCache | None = None,
    *,
    budget: Budget = NO_LIMIT,
    seed: int = 0,
    inputs: Inputs | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """`encode_corpus` within a time budget: indices and vectors of as many texts as it allows, drawn at random.

    Texts that are in the folder take no time. `inputs` are the tokens of the texts, if the caller has them already.
    """
    distinct = distinct_texts(texts)
    vectors = np.empty((len(distinct.rows), encoder.width), np.float32)
    cache, missing = None, np.arange(len(distinct.rows))
    if folder is not None and len(missing):
        cache = open_cache(encoder, folder) if isinstance(folder, Path) else folder
        missing = cache.fill(distinct.hashes, vectors)
        if len(missing) < len(vectors):
            known, count = f"{len(vectors) - len(missing):,}", f"{len(vectors):,}"
            log.info("encoding: %s of %s texts are known, in %s", known, count, cache.folder)
    done = np.ones(len(vectors), bool)
    done[missing] = False
    if budget.is_limited:
        blocks = budget.blocks(np.random.default_rng(seed).permutation(len(missing)))
    else:
        blocks = (np.arange(begin, min(begin + BLOCK, len(missing))) for begin in range(0, len(missing), BLOCK))
    with progress("encoding", len(vectors), seconds_left=budget.remaining if budget.is_limited else None) as step:
        step.start_at(len(vectors) - len(missing))
        rows = distinct.rows[missing]
        inputs = encoder.tokenizer.encode(texts[rows], encoder.config) if inputs is None else Part(inputs, rows=rows)
        for block in blocks:
            some, hashes = missing[block], distinct.hashes[missing[block]]
            with step.part(len(block)):
                found = None if cache is None else cache.known(hashes)
                if found is None:
                    found = encode_inputs(encoder, Part(inputs, rows=block))
            vectors[some], done[some] = found, True
            if cache is not None:
                cache.keep(hashes, found)
    if done.all():
        return np.arange(len(texts)), vectors if len(vectors) == len(texts) else vectors[distinct.copies]
    kept = np.flatnonzero(done[distinct.copies])
    return kept, vectors[distinct.copies[kept]]


def encoder_fingerprint(encoder: TransformerEncoder) -> str:
    """A hash of everything that decides an encoder's vectors: weights, tokenizer, settings, device, torch's version."""
    config = encoder.config
    settings = [config.max_length, config.long_texts, config.windows, config.pooling, config.layers, config.precision]
    return fingerprint(settings, encoder.device.type, torch.__version__, *flat(encoder.state()))


# --- mirrored ---


class WithMirror:
    """An encoder of images whose vectors are sums: those of each image and of its mirror image."""

    def __init__(self, encoder: Any) -> None:
        self.encoder, self.width, self.device = encoder, encoder.width, encoder.device

    def eval(self) -> None:
        self.encoder.eval()

    def __call__(self, *images: Tensor) -> Tensor:
        return self.encoder(*images) + self.encoder(*(part.flip(-1) for part in images))


# --- with a head ---


class EncoderHead(nn.Module):
    """An encoder and a head; `forward` returns the documents' vectors."""

    def __init__(self, encoder: Any, head: Any) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.head: Any = head

    def forward(self, *inputs: Tensor) -> Tensor:
        """Vectors of a batch."""
        return self.encoder(*inputs)

    def best(self, inputs: Inputs, k: int, what: str) -> TopK:
        """The k best labels of each document, with probabilities as scores."""
        ids, scores = np.empty((len(inputs), k), np.int32), np.empty((len(inputs), k), np.float32)
        with closing(vectors_in_batches(self.encoder, inputs, what)) as batches:
            for documents, vectors in batches:
                labels, best = self.head.best(vectors, k)
                best = torch.where(labels == NO_LABEL, best, self.head.probabilities(best))
                ids[documents], scores[documents] = labels.cpu().numpy(), best.cpu().numpy()
        return sorted_by_score(ids, scores)
