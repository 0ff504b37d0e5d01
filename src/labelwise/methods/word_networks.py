"""Base of methods over words: vocabulary, trees of recurrent networks, prediction, explanation, state.

A subclass defines the label trees and the network of a level; a model without a tree is one level.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from labelwise.codes.average import averaged
from labelwise.codes.tree import LabelTree
from labelwise.data.dataset import Dataset
from labelwise.encoders.words import Vocabulary, WordTokens
from labelwise.errors import ConfigError, DataError, ModelFormatError, check_installed, import_required
from labelwise.fit_context import FitContext
from labelwise.methods.base import Method
from labelwise.methods.inputs import Documents, split_for_early_stopping
from labelwise.networks.settings import (
    AveragingConfig,
    Count,
    EarlyStoppingConfig,
    OptimiserConfig,
    Positive,
    ScheduleConfig,
    TrainingConfig,
    without_validation,
)
from labelwise.result_fields import PART, deciding_json
from labelwise.store import get_tensor
from labelwise.strings import Strings
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.codes.label_path import LabelPath
    from labelwise.encoders.recurrent import RecurrentEncoder
    from labelwise.networks.attention_tree import AttentionTree
    from labelwise.networks.levels import Level
    from labelwise.training.callbacks import History

MAX_VALID = 1000
"""Maximum number of documents held out from the training documents: they are validated every hundred steps."""
LABELS_PER_TREE = 100
"""Minimum number of labels predicted per tree, if there are several trees."""
STATES_PER_EPOCH, STEPS_BETWEEN_STATES = 10, 100
SEED_STEP = 1000
WORDS = "encoder.words"


class WordTraining(TrainingConfig):
    """Training of recurrent networks: Adam at a constant rate, adaptive clipping, the mean of weights (SWA)."""

    batch_size: Count = 40
    """Maximum number of documents per batch."""
    clip: Positive | Literal["adaptive"] | None = "adaptive"
    """Maximum gradient norm over all parameters; `adaptive` allows five times the largest of the last five."""
    optimiser: OptimiserConfig = OptimiserConfig(name="adam")
    """The optimiser and its settings."""
    schedule: ScheduleConfig = ScheduleConfig(kind="constant")
    """The learning rate schedule."""
    averaging: AveragingConfig = AveragingConfig(kind="swa", start=0.3, window=5)
    """Weight averaging; `every: null` averages ten states per epoch, or one every 100 steps."""
    validate_every: Count | Literal["epoch"] | None = 100
    """Steps between two validations, or every epoch, or null: never."""
    metric: str = "nDCG@5"
    """The metric that decides which weights are best."""
    early_stopping: EarlyStoppingConfig | None = EarlyStoppingConfig(patience=20)
    """Stop when the metric has stopped improving; null: never."""


class WordNetworkMethod(Method):
    """Base of methods over words. Its Config has `words`, `recurrent`, `training` and `valid_fraction`.

    After `fit`: ``vocabulary_``, ``trees_`` (of `AttentionTree`) and ``histories_`` (per tree, of its levels).
    """

    inputs = ("texts",)
    same_on_any_threads = False
    encodes = True
    explains = True

    vocabulary_: Vocabulary
    trees_: list[AttentionTree]
    histories_: list[list[History]]

    # --- hooks of subclasses ---

    def _label_trees(self, train: Dataset) -> list[LabelTree]:
        """The trees to train."""
        return [LabelTree.flat(train.n_labels)]

    def _level(self, encoder: RecurrentEncoder, size: int) -> Level:
        """The network of a level with `size` nodes: the encoder with a head."""
        raise NotImplementedError

    @property
    def _beam(self) -> int:
        return 1

    # --- fit ---

    def check_needs(self) -> None:
        """Raise if a package or the file of word vectors is missing."""
        check_installed(self.name, "nn", "torch", "accelerate")
        vectors = self.config.words.vectors
        if vectors is not None and not Path(vectors).expanduser().exists():
            raise DataError(f"{vectors}: there is no such file of vectors")

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, context: FitContext) -> None:
        import_required(self.name, "nn", "torch", "accelerate")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError(f"{self.name} trains in one process: start it without torchrun")
        import torch

        from labelwise.device import torch_threads
        from labelwise.encoders.word_vectors import word_table
        from labelwise.training.tree_training import TreeData, TreeTraining, with_time_left

        config, training = self.config, self.config.training
        train, held_out = split_for_early_stopping(data, valid, config.valid_fraction, MAX_VALID, training.seed)
        if held_out is None:
            training = without_validation(training, self.Config.model_fields["training"].default)
        training = _with_averaging_interval(training, len(train))
        elsewhere = {"training": True}  # the loop adds it
        settings = deciding_json(config, PART, elsewhere)
        with torch_threads():
            self.vocabulary_, tokens = Vocabulary.learned(train.texts or Strings.of(()), config.words)
            vectors = torch.from_numpy(word_table(self.vocabulary_, training.seed))
            train_data, valid_data = TreeData(tokens, train.labels), None
            if held_out is not None:
                valid_data = TreeData(self.vocabulary_.encode(held_out.texts or Strings.of(())), held_out.labels)
            trees = self._label_trees(train)
            self.trees_, self.histories_ = [], []
            for number, tree in enumerate(trees):
                seed = training.seed + SEED_STEP * number
                spent = sum(history.seconds for histories in self.histories_ for history in histories)
                own = with_time_left(training.model_copy(update={"seed": seed}), spent, len(trees) - number)
                name = f"tree{number}-" if len(trees) > 1 else ""
                make = partial(self._new_level, vectors)
                trained, histories = TreeTraining(make, self._beam, own, context, name, settings).run(
                    tree, train_data, valid_data
                )
                self.trees_.append(trained)
                self.histories_.append(histories)
        self._stored: dict[str, np.ndarray] | None = None

    def _new_level(self, vectors: Any, size: int, seed: int) -> Level:
        """A level over words with these vectors."""
        from labelwise.encoders.recurrent import RecurrentEncoder

        config = self.config
        return self._level(RecurrentEncoder(vectors, config.words.is_frozen, config.recurrent, seed), size)

    # --- predict ---

    def _predict(self, data: Documents, k: int) -> TopK:
        from labelwise.device import torch_threads

        with torch_threads():
            trees, tokens = self.trees_, self._tokens(data)
            if len(trees) == 1:
                return trees[0].best(tokens, k)
            each = min(max(k, LABELS_PER_TREE), len(self.label_names_))
            return averaged([tree.best(tokens, each) for tree in trees], k, product=True)

    def _tokens(self, data: Documents) -> WordTokens:
        return self.vocabulary_.encode(data.texts or Strings.of(()))

    def _encode(self, data: Documents) -> np.ndarray:
        """The mean hidden state of each document at the last level, concatenated over the trees."""
        import torch

        from labelwise.device import torch_threads
        from labelwise.encoders.base import tensors_of
        from labelwise.encoders.batches import batches_by_length
        from labelwise.encoders.embed import TOKENS_AT_ONCE

        tokens = self._tokens(data)
        with torch_threads(), torch.no_grad():
            encoders = [tree.levels[-1].encoder for tree in self.trees_]
            vectors = np.empty((len(tokens), sum(encoder.width for encoder in encoders)), np.float32)
            for documents in batches_by_length(tokens.lengths, TOKENS_AT_ONCE):
                batch = tokens.batch(documents)
                ids, lengths = tensors_of(batch)
                means = [
                    encoder(ids.to(encoder.words.device), lengths).sum(1).cpu() / lengths[:, None]
                    for encoder in encoders
                ]
                vectors[batch.rows] = torch.cat(means, 1).numpy()
        return vectors

    def _explain(self, data: Documents, labels: np.ndarray) -> list[list[LabelPath]]:
        from labelwise.device import torch_threads
        from labelwise.methods.attention_words import explain_labels

        tokens = self._tokens(data)
        with torch_threads():
            return [explain_labels(tree, tokens, labels) for tree in self.trees_]

    def _feature_names(self, columns: np.ndarray) -> list[str] | None:
        return [self.vocabulary_.name(int(word)) for word in columns]

    # --- files ---

    def _state(self) -> dict[str, np.ndarray]:
        if self._stored is not None:
            return self._stored
        state = {"trees": np.array([len(self.trees_)], np.int64), **self.vocabulary_.state()}
        frozen = self.config.words.is_frozen
        if frozen:
            state["words"] = self.trees_[0].levels[0].encoder.words.detach().cpu().numpy()
        for number, tree in enumerate(self.trees_):
            state |= tree.state(f"tree{number}", [WORDS] if frozen else [])
        return state

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        import_required(self.name, "nn", "torch")
        import torch

        from labelwise.device import computing_device
        from labelwise.networks.attention_tree import AttentionTree, restored_levels

        self.vocabulary_ = Vocabulary.restored(tensors, self.config.words, path)
        count = get_tensor(tensors, "trees", path)
        if count.shape != (1,) or count.dtype != np.int64 or not 1 <= count[0] <= 10_000:
            raise ModelFormatError(f"{path}: the number of trees is damaged")
        frozen = self.config.words.is_frozen
        words = get_tensor(tensors, "words" if frozen else f"tree0.level0.{WORDS}", path)
        if words.ndim != 2 or len(words) != len(self.vocabulary_) or words.dtype != np.float32:
            raise ModelFormatError(f"{path}: one vector is needed for each of {len(self.vocabulary_):,} words")
        shared = {WORDS: words} if frozen else {}

        def empty(size: int) -> Level:
            with torch.device("meta"):
                return self._new_level(torch.empty(words.shape), size, 0)

        self.trees_, self.histories_ = [], []
        for number in range(int(count[0])):
            tree = LabelTree.from_tensors(f"tree{number}", tensors, path)
            if tree.n_labels != len(self.label_names_):
                raise ModelFormatError(
                    f"{path}: tree {number} has {tree.n_labels:,} labels, not {len(self.label_names_):,}"
                )
            levels = restored_levels(tree, empty, tensors, f"tree{number}", shared, path)
            levels = [level.to(computing_device()) for level in levels]
            self.trees_.append(AttentionTree(tree, levels, self._beam))
        self._stored = dict(tensors)


def _with_averaging_interval(training: TrainingConfig, n_documents: int) -> TrainingConfig:
    """Set the steps between two averaged states, if the config does not."""
    averaging = training.averaging
    if averaging.kind != "swa" or averaging.every is not None:
        return training
    steps = n_documents // (training.batch_size * training.accumulate)
    every = min(max(steps // STATES_PER_EPOCH, 1), STEPS_BETWEEN_STATES)
    return training.model_copy(update={"averaging": averaging.model_copy(update={"every": every})})
