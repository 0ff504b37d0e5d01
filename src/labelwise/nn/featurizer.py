"""TF-IDF of texts with the vectors of a text encoder next to it, and linear trees on both.

The vectors stay a dense block: as CSR they would take twice the memory and several times the time.
Importing this module does not import torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset, Documents
from labelwise.data.hashing import text_hashes
from labelwise.errors import import_required
from labelwise.features.featurizers import VectorScaling, Words, names_of_blocks
from labelwise.features.tfidf import Tfidf
from labelwise.labelspace.tree import LabelPath
from labelwise.linear.memory import InUse, check_memory, encoding_need
from labelwise.linear.model import LinearRanker
from labelwise.nn.inputs import texts_of
from labelwise.runtime.device import computing_device, torch_threads

if TYPE_CHECKING:
    from labelwise.nn.encode import VectorCache
    from labelwise.nn.text.transformer import AttentionMap, TransformerEncoder
    from labelwise.nn.train.loop import History
    from labelwise.runtime.job import Job

log = logging.getLogger("labelwise")

ENCODING_TIME = 0.6
"""Maximum fraction of the time budget for encoding the training documents."""
REMEMBERED = 4096
"""Maximum number of texts whose vectors are remembered after a call."""
DOCUMENT_VECTOR = "document vector"
"""Name of the vector's numbers in explanations, where they are one term."""


@dataclass(frozen=True)
class RecentVectors:
    """The texts that were encoded last, so that the calls of one request (predict, explain) encode them once."""

    hashes: np.ndarray
    """Ascending."""
    vectors: np.ndarray

    @classmethod
    def of(cls, hashes: np.ndarray, vectors: np.ndarray) -> RecentVectors:
        """Remember texts, of which some may be equal."""
        distinct, first = np.unique(hashes, return_index=True)
        return cls(distinct, vectors[first])

    def find(self, hashes: np.ndarray) -> np.ndarray | None:
        """The vectors of these texts; None unless all are known."""
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return self.vectors[at] if (self.hashes[at] == hashes).all() else None


class WordsAndVectors:
    """TF-IDF, and the vectors of an encoder, centred and scaled.

    `published`: the encoder is as others have published it, so that its vectors are in the user's cache.
    """

    def __init__(self, words: Words, encoder: TransformerEncoder, scaling: VectorScaling, published: bool) -> None:
        self.words, self.tfidf, self.encoder, self.scaling = words, words.tfidf, encoder, scaling
        self.published = published
        self._recent: RecentVectors | None = None
        self._cache: tuple[Path, VectorCache] | None = None

    @property
    def n_features(self) -> int:
        return self.words.n_features + self.encoder.width

    @classmethod
    def learn(
        cls, encoder: TransformerEncoder, config: Any, train: Dataset, job: Job, known: tuple[Words, Any] | None = None
    ) -> tuple[Self, Blocks]:
        """Learn the scaling of an encoder's vectors, and TF-IDF unless it and its rows are `known`.

        Documents that there is no time to encode have vectors of 0, as the mean has.
        """
        from labelwise.nn.encode import cache_folder, encode_some_texts

        texts = texts_of(train)
        need = partial(encoding_need, len(train), train.n_labels, encoder.width, config.trees)
        check_memory(need, config.memory, InUse(int(texts.buffer.nbytes)), report=False)
        encoder = encoder.requires_grad_(False).to(computing_device()).eval()
        with job.stage("vectors", ENCODING_TIME) as part, torch_threads():
            folder = (cache_folder(len(texts)) if config.encoder_is_published else None) or part.folder
            rows, encoded = encode_some_texts(encoder, texts, folder=folder, budget=part.budget, seed=config.seed)
            scaling = VectorScaling.learn(encoded, config.vector_scale, config.whitening)
            vectors = scaling.apply(encoded)
            if len(rows) < len(texts):
                part.budget.end_early()
                log.info(
                    "encoding: ended by the time budget after %s of %s documents; the others are learned from their "
                    "words only", f"{len(rows):,}", f"{len(texts):,}",
                )  # fmt: skip
                some, vectors = vectors, np.zeros((len(texts), encoder.width), np.float32)
                vectors[rows] = some
            part.follow(vectors)
        if known is None:
            tfidf = Tfidf(config.tfidf)
            known = Words(tfidf), tfidf.fit_transform(texts)
        words, counted = known
        return cls(words, encoder, scaling, config.encoder_is_published), Blocks(counted, vectors)

    def rows(self, documents: Dataset | Documents) -> Blocks:
        return Blocks(self.tfidf.transform(documents.texts or ()), self.scaling.apply(self.vectors(documents)))

    def vectors(self, documents: Dataset | Documents) -> np.ndarray:
        """Vectors as the encoder gives them; those of the last call are remembered."""
        from labelwise.nn.encode import encode_corpus

        texts = texts_of(documents)
        hashes = text_hashes(texts)
        found = None if self._recent is None else self._recent.find(hashes)
        if found is None:
            with torch_threads():
                found = encode_corpus(self.encoder, texts, folder=self._opened_cache(len(texts)))
            if 0 < len(texts) <= REMEMBERED:
                self._recent = RecentVectors.of(hashes, found)
        return found

    def _opened_cache(self, count: int) -> VectorCache | None:
        """The user's cache for so many texts, opened once: that reads all weights, for their fingerprint."""
        from labelwise.nn.encode import cache_folder, open_cache

        folder = cache_folder(count) if self.published else None
        if folder is None:
            return None
        if self._cache is None or self._cache[0] != folder:
            self._cache = folder, open_cache(self.encoder, folder)
        return self._cache[1]

    def names(self, columns: np.ndarray) -> list[str]:
        named = names_of_blocks(self.words, columns, lambda _: DOCUMENT_VECTOR)
        if named is not None:
            return named
        count = self.words.n_features
        return [f"feature {column}" if column < count else DOCUMENT_VECTOR for column in columns.tolist()]

    def counted(self, words: Sequence[str]) -> list[str]:
        return self.words.counted(words)

    def tensors(self) -> dict[str, np.ndarray]:
        encoder = {f"encoder.{key}": value for key, value in self.encoder.state().items()}
        return self.words.tensors() | self.scaling.state() | encoder

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], about: Any) -> Self:
        import_required("a model with a text encoder", "nn", "torch", "transformers")
        from labelwise.nn.text.files import state_of
        from labelwise.nn.text.transformer import TransformerEncoder

        config, path = about.config, about.path
        encoder = TransformerEncoder.restored(state_of("encoder.", tensors), config.encoder, path)
        encoder = encoder.requires_grad_(False).to(computing_device()).eval()
        scaling = VectorScaling.restored(tensors, encoder.width, config.vector_scale, config.whitening > 0, path)
        return cls(Words.from_tensors(tensors, about), encoder, scaling, config.encoder_is_published)


class EncodedLinearModel(LinearRanker):
    """Linear trees on TF-IDF and the vectors of an encoder."""

    def __init__(self, features: WordsAndVectors, linear: Any) -> None:
        super().__init__(features, linear)
        self.histories: list[History] = []
        """Training of each level of the encoder; empty after loading."""

    @property
    def encoder(self) -> TransformerEncoder:
        """The encoder of the document vectors."""
        return self.features.encoder

    @classmethod
    def _featurizer(cls, tensors: Mapping[str, np.ndarray], about: Any) -> WordsAndVectors:
        return WordsAndVectors.from_tensors(tensors, about)

    def vectors(self, documents: Documents, config: Any) -> np.ndarray:
        return self.features.vectors(documents)

    def attention(self, documents: Documents, tokens: int, config: Any) -> list[AttentionMap]:
        from labelwise.nn.text.transformer import attention_maps

        with torch_threads():
            return attention_maps(self.encoder, texts_of(documents), tokens)

    def explain(self, documents: Documents, labels: np.ndarray, config: Any) -> list[list[LabelPath]]:
        trees, count = super().explain(documents, labels, config), self.features.words.n_features
        return [[_with_vector_as_one_term(path, count) for path in paths] for paths in trees]

    def contributions(self, documents: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        return self.linear.top_contributions(self.features.rows(documents), labels, count, dense_as_one=True)


def _with_vector_as_one_term(path: LabelPath, n_words: int) -> LabelPath:
    """The numbers of the vector, whose columns follow those of words, as one feature with the vector's norm."""
    dense = path.features >= n_words
    if not dense.any():
        return path
    norm = float(np.linalg.norm(path.values[dense]))
    weight = float(path.values[dense] @ path.weights[dense]) / (norm or 1.0)  # the mean has the norm 0
    words = ~dense
    return replace(
        path,
        features=np.append(path.features[words], n_words),
        values=np.append(path.values[words], norm),
        weights=np.append(path.weights[words], weight),
    )
