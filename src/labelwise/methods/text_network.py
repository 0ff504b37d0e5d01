"""What methods share that fine-tune a pretrained text encoder with a head: stages, time, prediction, files.

Two stages: the head alone on the vectors of the pretrained encoder, which are computed once, then both together. A
method brings its Config and its head.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from labelwise.config import PART, deciding_json
from labelwise.config import Config as BaseConfig
from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.errors import import_required
from labelwise.methods.uses_encoder import UsesTextEncoder, documents_of_encoder
from labelwise.model.affordable import affordable
from labelwise.model.inputs import Documents, split_for_early_stopping
from labelwise.nn.config import EncoderConfig, MonitorConfig, TrainingConfig, without_validation
from labelwise.nn.cost import NetworkSize, encoder_size, head_size, text_network_cost
from labelwise.nn.text.saved_encoder import with_saved_settings
from labelwise.runtime.finished import fingerprint
from labelwise.runtime.job import Job
from labelwise.runtime.ranks import on_rank_zero
from labelwise.runtime.time_budget import TimeBudget
from labelwise.strings import Strings
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.nn.encoder_head import EncoderHead
    from labelwise.nn.heads.base import Head
    from labelwise.nn.inputs import Part
    from labelwise.nn.text.tokens import Tokens
    from labelwise.nn.text.transformer import AttentionMap
    from labelwise.nn.train.callbacks import History
    from labelwise.nn.train.fit import Fit

log = logging.getLogger("labelwise")

HEAD_TIME, ENCODING_TIME, VALID_TIME = 0.75, 0.85, 0.1
"""Maximum fractions of the time budget: of training the head alone, of encoding the texts for that, and of that for
held-out ones."""
STEP_COST = 8
"""Time of a document in a step of training, as a multiple of encoding it; rather too much than too little."""
MAX_VALID = 2000
"""Maximum number of documents held out from the training documents: more would only cost time."""


class TextNetworkConfig(BaseConfig):
    """Parameters of a text encoder with a head; a method has its own `head` and its own default of `training`."""

    encoder: EncoderConfig = EncoderConfig()
    """The pretrained encoder and its tokenization."""
    head: Any = None
    """The head."""
    training: TrainingConfig = TrainingConfig()
    """Settings of training."""
    head_epochs: Annotated[int, Field(ge=0)] | None = None
    """Epochs in which only the head is trained, on the vectors of the pretrained encoder, before both are trained
    together: the texts are encoded once more, and gradients of an untrained head do not disturb the encoder.
    null is 10, and 0 if the encoder is frozen or starts from random weights."""
    valid_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Fraction of the training documents held out to choose the best weights when the data has no valid part; at
    most 2,000 documents."""
    monitor: MonitorConfig = MonitorConfig()
    """Detects collapse during training."""

    @classmethod
    def filled_in(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters, with settings of the encoder of a saved model that they name."""
        return with_saved_settings(given)

    def documents_before(self) -> list[np.ndarray]:
        return documents_of_encoder(self.encoder)

    @model_validator(mode="after")
    def _frozen_encoders_have_no_second_stage(self) -> Self:
        if self.encoder.frozen and self.head_epochs:
            raise ValueError("head_epochs: with a frozen encoder only the head is trained anyway, for training.epochs")
        return self


class TextNetwork(UsesTextEncoder):
    """A text encoder with a head."""

    needs = ("torch", "transformers")
    validates = True
    trains_on_ranks = True
    plans = True

    Config: ClassVar[type[TextNetworkConfig]] = TextNetworkConfig

    def _head_size(self, labels: int, width: float) -> NetworkSize:
        """Weights and operations of the head."""
        return head_size(labels, width, labels)

    def _cost(self, shape: DataShape, constants: Constants) -> Cost:
        width = encoder_size(self.config.encoder).width * self.config.encoder.layers
        return text_network_cost(shape, constants, self.config, self._head_size(shape.labels, width))

    @abstractmethod
    def _new_head(self, width: int, train: Dataset) -> Head:
        """The head for vectors of `width`, with initial weights."""

    @abstractmethod
    def _restored_head(self, width: int, tensors: Mapping[str, np.ndarray], path: Path) -> Head:
        """The head of a saved model, from what `_head_state` returned."""

    def _head_state(self, head: Head) -> dict[str, np.ndarray]:
        return head.state()

    network_: EncoderHead
    history_: History | None

    # --- fit ---

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, job: Job) -> None:
        import_required(self.name, "nn", *self.needs)
        from labelwise.nn.encoder_head import EncoderHead
        from labelwise.nn.text.transformer import open_encoder
        from labelwise.nn.train.head_shards import join_head, split_head
        from labelwise.runtime.device import computing_device, torch_threads

        config = self.config
        train, held_out = split_for_early_stopping(data, valid, config.valid_fraction, MAX_VALID, config.training.seed)
        with torch_threads():
            encoder = open_encoder(config.encoder, train.texts or Strings.of(()), config.training.seed)
            head = self._new_head(encoder.width, train)
            split_head(head, config.training)
            self.network_ = EncoderHead(encoder, head).to(computing_device())
            self.history_ = self._train(train, held_out, job)
            join_head(self.network_)
        self._stored: dict[str, np.ndarray] | None = None

    def _train(self, train: Dataset, valid: Dataset | None, job: Job) -> History:
        from labelwise.nn.inputs import Part
        from labelwise.nn.train.fit import Fit

        config, training = self.config, self.config.training
        if valid is None:
            training = without_validation(training, self.Config().training)
        train, valid = affordable(train, valid, self._tokens, job, training.seed)
        tokens = [Part(self._tokens(part), part.labels) for part in (train, valid) if part is not None]
        texts = [part.texts or Strings.of(()) for part in (train, valid) if part is not None]
        if config.encoder.frozen:
            return self._train_head(tokens, texts, training, job, watched=True)[0]
        epochs = self._head_epochs()
        if epochs and not (job.budget.is_limited and on_rank_zero(lambda: self._has_begun(job))):
            plain = training.schedule.model_copy(update={"warmup": 0.0})  # a linear model needs none
            alone = {
                "epochs": epochs, "steps": None, "validate_every": None, "early_stopping": None, "schedule": plain,
            }  # fmt: skip
            within = job.within(job.budget.part(HEAD_TIME))
            history, pace = self._train_head(
                tokens[:1], texts[:1], training.model_copy(update=alone), within, watched=False
            )
            step = pace * STEP_COST * training.batch_size * training.accumulate
            if on_rank_zero(lambda: job.budget.remaining() <= step):
                job.budget.end_early()
                log.info("training: left out, only the head is trained: the time budget does not allow a step of both")
                return history
        fitting = Fit(self.network_, tokens[0], tokens[1] if valid is not None else None, training)
        return self._loop(fitting, training, job, "train", config.monitor.enabled)

    def _has_begun(self, job: Job) -> bool:
        """Whether an interrupted attempt has weights of both; with little time the head is not trained again."""
        folder = job.folder
        return folder is not None and any((folder / "train").glob("last-*"))

    def _head_epochs(self) -> int:
        """Epochs in which only the head is trained."""
        given, random = self.config.head_epochs, self.config.encoder.starts_random
        return (0 if random else 10) if given is None else given

    def _train_head(
        self,
        tokens: list[Part],
        texts: list[Strings],
        training: TrainingConfig,
        job: Job,
        watched: bool,
    ) -> tuple[History, float]:
        """Train only the head, on vectors that are computed once; with little time, of some of the documents.

        Returns its history and the seconds of encoding a document.
        """
        from labelwise.nn.train.fit import Fit

        budget = job.budget.part(ENCODING_TIME)
        folder = self._vector_folder(texts[0], job)
        held_out = [
            self._encoded(part, its_texts, folder, budget.part(VALID_TIME))
            for part, its_texts in zip(tokens[1:], texts[1:], strict=True)
        ]
        begin = time.monotonic()
        parts = [self._encoded(tokens[0], texts[0], folder, budget), *held_out]
        if len(parts[0]) < len(tokens[0]):
            budget.end_early()
        pace = (time.monotonic() - begin) / max(len(parts[0]), 1)
        fitting = Fit(self.network_.head, parts[0], parts[1] if len(parts) > 1 else None, training)
        stage = "train" if watched else "head"
        watched = watched and self.config.monitor.enabled
        return self._loop(fitting, training, job, stage, watched), pace

    def _loop(
        self,
        fitting: Fit,
        training: TrainingConfig,
        job: Job,
        stage: str,
        watched: bool,
    ) -> History:
        from labelwise.nn.inputs import Part, Vectors
        from labelwise.nn.train.loop import train as train_loop
        from labelwise.nn.train.monitor import CollapseMonitor

        config = self.config
        monitor = CollapseMonitor(fitting, config.monitor) if watched else None
        elsewhere = {
            "training": True,
            "valid_fraction": True,
        }  # in the loop's fingerprint, and in that of the documents
        settings = deciding_json(config, PART, elsewhere)
        identity = fingerprint(
            *fitting.train.identity(), *(fitting.valid or Part(Vectors(np.empty(0)))).identity(), settings
        )
        title = "training the head" if fitting.encoder is None else "training"
        return train_loop(
            fitting, training, job=job, monitor=monitor, stage=stage, title=title, identity=identity,
        )  # fmt: skip

    def _tokens(self, data: Dataset | Documents) -> Tokens:
        return self.network_.encoder.tokenizer.encode(data.texts or Strings.of(()), self.config.encoder)

    def _vector_folder(self, texts: Strings, job: Job) -> Path | None:
        """Where vectors of the untrained encoder are kept: random weights are of no use to other runs."""
        from labelwise.nn.vector_cache import cache_folder

        if not self.config.encoder.starts_random:
            return cache_folder(len(texts))
        return None if job.folder is None else job.folder / "vectors"

    def _encoded(self, part: Part, texts: Strings, folder: Path | None, budget: TimeBudget) -> Part:
        """Replace tokens by the encoder's vectors, of as many documents as there is time for."""
        from labelwise.nn.encode import encode_some_texts
        from labelwise.nn.inputs import Part, Vectors

        encode = partial(
            encode_some_texts, self.network_.encoder, texts, folder=folder, budget=budget,
            seed=self.config.training.seed, inputs=part.inputs,
        )  # fmt: skip
        rows, vectors = on_rank_zero(encode)
        if len(rows) == len(part):
            return Part(Vectors(vectors), part.labels)
        log.info(
            "encoding: ended by the time budget after %s of %s documents, on which the head is trained",
            f"{len(rows):,}", f"{len(part):,}",
        )  # fmt: skip
        return Part(Vectors(vectors), part.labels[rows])

    # --- predict ---

    def _predict(self, data: Documents, k: int) -> TopK:
        from labelwise.nn.encode import distinct_texts
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            distinct = distinct_texts(data.texts or Strings.of(()))
            best = self.network_.best(self._tokens(data.take(distinct.rows)), k, "predicting")
            return best[distinct.copies]

    def _encode(self, data: Documents) -> np.ndarray:
        from labelwise.nn.encode import encode_corpus
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            return encode_corpus(self.network_.encoder, data.texts or Strings.of(()))

    def _attention(self, data: Documents, tokens: int) -> list[AttentionMap]:
        from labelwise.nn.text.transformer import attention_maps
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            return attention_maps(self.network_.encoder, data.texts or Strings.of(()), tokens)

    # --- files ---

    def _state(self) -> dict[str, np.ndarray]:
        if self._stored is not None:
            return self._stored
        state = {f"encoder.{key}": value for key, value in self.network_.encoder.state().items()}
        head = {f"head.{key}": value for key, value in self._head_state(self.network_.head).items()}
        return {**state, **head}

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        import_required(self.name, "nn", "torch", "transformers")
        from labelwise.nn.encoder_head import EncoderHead
        from labelwise.nn.text.tokens import state_of
        from labelwise.nn.text.transformer import TransformerEncoder
        from labelwise.runtime.device import computing_device

        encoder = TransformerEncoder.restored(state_of("encoder.", tensors), self.config.encoder, path)
        head = self._restored_head(encoder.width, state_of("head.", tensors), path)
        self.network_ = EncoderHead(encoder, head).requires_grad_(False).to(computing_device()).eval()
        self.history_ = None
        self._stored = dict(tensors)
