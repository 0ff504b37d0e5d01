"""Base of the linear trees over two blocks of features: TF-IDF of the texts, and the vectors of a text encoder.

A subclass returns the encoder in `_training_encoder`: opened as it is, or fine-tuned first. All documents are then
encoded once, labels are clustered by both blocks, and `LinearTrees` ranks. The vectors stay a dense block: as CSR they
would take twice the memory and several times the time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.csr import Blocks
from labelwise.data.dataset import Dataset
from labelwise.data.hashing import text_hashes
from labelwise.errors import import_required
from labelwise.features.rows import FeatureOrder, OrderedFeatures
from labelwise.features.tfidf import Tfidf
from labelwise.features.vectors import VectorScaling
from labelwise.labelspace.tree import LabelPath
from labelwise.linear.memory import Held, check_memory, encoding_need
from labelwise.linear.trees import LinearTrees
from labelwise.methods.linear_base import Precision
from labelwise.methods.linear_tree import LinearTree
from labelwise.methods.uses_encoder import UsesTextEncoder
from labelwise.model.folder import documents_of_encoder
from labelwise.model.inputs import Documents
from labelwise.nn.config import EncoderConfig
from labelwise.nn.cost import encoder_size, with_encoding
from labelwise.nn.text.saved_encoder import with_saved_settings
from labelwise.runtime.job import Job
from labelwise.runtime.ranks import n_ranks, on_rank_zero, rank
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.nn.text.transformer import AttentionMap, TransformerEncoder

log = logging.getLogger("labelwise")

VectorNorm = Annotated[float, Field(gt=0, le=1e6)]
WhiteningPower = Annotated[float, Field(ge=0, le=0.5)]
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
        if not len(self.hashes):
            return None
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return self.vectors[at] if (self.hashes[at] == hashes).all() else None


class EncodedTree(UsesTextEncoder, LinearTree):
    """A linear tree over TF-IDF and the vectors of an encoder; subclasses provide the encoder."""

    learns_more = False

    class Config(LinearTree.Config):
        """Parameters."""

        encoder: EncoderConfig = EncoderConfig(model="sentence-transformers/all-MiniLM-L6-v2", pooling="mean")
        """The encoder of the document vectors."""
        vector_scale: VectorNorm = 0.5  # type: ignore[bad-override]
        """Norm of a document's vector, which is centred by the mean of the training documents; rows of TF-IDF have the
        norm 1. 0.5 suits long texts, up to 1 short ones, in which words say less."""
        whitening: WhiteningPower = 0.25
        """Divide every principal direction of the vectors by its variance to this power: 0 for vectors as they are, 0.5
        for the same variance in all directions."""
        precision: Precision = "float32"
        """Precision of the stored weights."""

        @classmethod
        def filled_in(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
            """The parameters, with settings of the encoder of a saved model that they name."""
            return with_saved_settings(given)

        def documents_before(self) -> list[np.ndarray]:
            return documents_of_encoder(self.encoder)

        @model_validator(mode="after")
        def _texts_have_no_norm(self) -> EncodedTree.Config:
            if self.feature_norm is not None:
                raise ValueError("feature_norm is for features that the data has, and this method reads texts")
            return self

        @property
        def reads_vectors(self) -> bool:
            """False: vectors are computed here, not given with the data."""
            return False

    encoder_: TransformerEncoder
    scaling_: VectorScaling
    _recent: RecentVectors | None = None

    def _cost(self, shape: DataShape, constants: Constants, width: int = 0) -> Cost:
        encoder = self.config.encoder
        trees = super()._cost(shape, constants, encoder_size(encoder).width * encoder.layers)
        return with_encoding(trees, shape, constants, encoder)

    # --- fit ---

    def _training_encoder(self, data: Dataset, valid: Dataset | None, job: Job) -> TransformerEncoder:
        """The encoder whose vectors the trees read; with its time and unfinished work in the job."""
        raise NotImplementedError

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, job: Job) -> None:
        import_required(self.name, "nn", *self.needs)
        from labelwise.runtime.device import computing_device, torch_threads

        with torch_threads():
            self._recent = None
            self.encoder_ = self._training_encoder(data, valid, job).to(computing_device()).eval()
        state = on_rank_zero(lambda: self._fit_ranker(data, kind, valid, job))
        if rank() > 0:
            self.label_names_, self.input_ = data.label_names, kind  # which a model is restored with
            self._restore(state, Path("rank 0"))

    def _fit_ranker(self, data: Dataset, kind: str, valid: Dataset | None, job: Job) -> dict[str, np.ndarray]:
        """Train the linear trees; returns the whole model for other ranks, if there are any."""
        super()._fit(data, kind, valid, job)
        return self._state() if n_ranks() > 1 else {}

    def training_features(self, data: Dataset, kind: str, job: Job) -> tuple[OrderedFeatures, Any]:
        """TF-IDF, which is fitted here, and the vectors of the encoder, scaled."""
        config = self.config
        texts = data.texts or Strings.of(())
        need = encoding_need(len(data), data.n_labels, self.encoder_.width, config.trees)
        check_memory(need, config.memory, Held(int(texts.buffer.nbytes)), report=False)
        vectors = self._training_vectors(texts, job)
        self.vector_scale_ = config.vector_scale
        both = Blocks(self._learn_words(texts), vectors)
        return FeatureOrder.learn(both), both

    def _learn_words(self, texts: Strings) -> Any:
        """TF-IDF of the training texts, which is fitted here."""
        self.tfidf_ = Tfidf(self.config.tfidf)
        return self.tfidf_.fit_transform(texts)

    def _training_vectors(self, texts: Strings, job: Job) -> np.ndarray:
        """Scaled vectors of the training texts; those that there is no time to encode have 0, as the mean has."""
        from labelwise.nn.encode import encode_some_texts
        from labelwise.runtime.device import torch_threads

        folder, budget = self._vector_folder(len(texts), job), job.budget.part(ENCODING_TIME)
        with torch_threads():
            rows, vectors = encode_some_texts(self.encoder_, texts, folder=folder, budget=budget, seed=self.config.seed)
        self.scaling_ = VectorScaling.learn(vectors, self.config.vector_scale, self.config.whitening)
        if len(rows) == len(texts):
            return self.scaling_.apply(vectors)
        budget.end_early()
        log.info(
            "encoding: ended by the time budget after %s of %s documents; the others are learned from their words only",
            f"{len(rows):,}", f"{len(texts):,}",
        )  # fmt: skip
        scaled = np.zeros((len(texts), vectors.shape[1]), np.float32)
        scaled[rows] = self.scaling_.apply(vectors)
        return scaled

    def _vector_folder(self, count: int, job: Job) -> Path | None:
        """Where the vectors of so many texts are kept, to resume and to use again."""
        return None if job.folder is None else job.folder / "vectors"

    # --- predict ---

    def _encode(self, data: Documents) -> np.ndarray:
        from labelwise.nn.encode import encode_corpus
        from labelwise.runtime.device import torch_threads

        texts = data.texts or Strings.of(())
        hashes = text_hashes(texts)
        vectors = None if self._recent is None else self._recent.find(hashes)
        if vectors is None:
            with torch_threads():
                vectors = encode_corpus(self.encoder_, texts, folder=self._vector_folder(len(texts), Job()))
            if len(texts) <= REMEMBERED:
                self._recent = RecentVectors.of(hashes, vectors)
        return vectors

    def _attention(self, data: Documents, tokens: int) -> list[AttentionMap]:
        from labelwise.nn.text.transformer import attention_maps
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            return attention_maps(self.encoder_, data.texts or Strings.of(()), tokens)

    def _features(self, data: Documents) -> Any:
        assert self.tfidf_ is not None
        return Blocks(self.tfidf_.transform(data.texts or ()), self.scaling_.apply(self._encode(data)))

    # --- explain ---

    def _explain(self, data: Documents, labels: np.ndarray) -> list[list[LabelPath]]:
        trees = super()._explain(data, labels)
        return [[_with_vector_as_one_term(path, self.feature_count) for path in paths] for paths in trees]

    def _top_contributions(self, data: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        return self.linear_.top_contributions(self._features(data), labels, count, dense_as_one=True)

    def _feature_names(self, columns: np.ndarray) -> list[str] | None:
        count = self.feature_count
        words = columns[columns < count]
        named = super()._feature_names(words) or [f"feature {number}" for number in words.tolist()]
        terms = iter(named)
        return [next(terms) if column < count else DOCUMENT_VECTOR for column in columns.tolist()]

    # --- files ---

    def _state(self) -> dict[str, np.ndarray]:
        encoder = {f"encoder.{key}": value for key, value in self.encoder_.state().items()}
        return {**super()._state(), **self.scaling_.state(), **encoder}

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        import_required(self.name, "nn", "torch", "transformers")
        from labelwise.linear.compile_ahead import compile_ahead
        from labelwise.nn.text.tokens import state_of
        from labelwise.nn.text.transformer import TransformerEncoder
        from labelwise.runtime.device import computing_device

        compile_ahead(["search", "words"], self.config.precision)
        encoder = TransformerEncoder.restored(state_of("encoder.", tensors), self.config.encoder, path)
        self.encoder_ = encoder.requires_grad_(False).to(computing_device()).eval()
        self.vector_scale_ = self.config.vector_scale
        config = self.config
        self.scaling_ = VectorScaling.restored(tensors, encoder.width, config.vector_scale, config.whitening > 0, path)
        self.restore_features(tensors, path)
        self.linear_ = LinearTrees.restored(tensors, self.feature_count + encoder.width, len(self.label_names_), path)

    def _check_restored(self) -> None:
        self.linear_.check()


def refuse_training_settings(encoder: EncoderConfig, method: str) -> None:
    """Raise ValueError for settings of an encoder that have a meaning only if it is trained."""
    for name in ("frozen", "gradient_checkpointing"):
        if getattr(encoder, name) != EncoderConfig.model_fields[name].default:
            raise ValueError(f"encoder.{name} is for methods that train the encoder, {method} never does; leave it out")


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
