"""What methods over words share: their settings of training, the data to train on, prediction and explanation.

A method builds its label trees and trains them itself; a model without a tree is one level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from labelwise.config import PART, deciding_json
from labelwise.data.dataset import Dataset
from labelwise.linear.trees import averaged
from labelwise.model.affordable import affordable
from labelwise.model.inputs import Documents, split_for_early_stopping
from labelwise.model.old_method import OldMethod as Method
from labelwise.nn.config import (
    AveragingConfig,
    Count,
    EarlyStoppingConfig,
    OptimiserConfig,
    Positive,
    ScheduleConfig,
    TrainingConfig,
    without_validation,
)
from labelwise.nn.words.vocabulary import Vocabulary, WordTokens
from labelwise.runtime.job import Job
from labelwise.runtime.progress import progress
from labelwise.strings import Strings
from labelwise.topk import TopK

if TYPE_CHECKING:
    from torch import Tensor

    from labelwise.labelspace.tree import LabelPath, LabelTree
    from labelwise.nn.levels import AttentionTree
    from labelwise.nn.train.callbacks import History
    from labelwise.nn.train.levels import TreeData

MAX_VALID = 1000
"""Maximum number of documents held out from the training documents: they are validated every hundred steps."""
LABELS_PER_TREE = 100
"""Minimum number of labels predicted per tree, if there are several trees."""
STATES_PER_EPOCH, STEPS_BETWEEN_STATES = 10, 100


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
    """A method that holds a vocabulary and trees of networks, which its `_fit` and `_restore` build.

    Its Config has `words`, `recurrent`, `training` and `valid_fraction`.

    After `fit`: ``vocabulary_``, ``trees_`` (of `AttentionTree`) and ``histories_`` (per tree, of its levels).
    """

    inputs = ("texts",)
    needs = ("torch",)
    same_on_any_threads = False
    validates = True
    encodes = True
    explains = True
    trains_on_ranks = True
    plans = True

    vocabulary_: Vocabulary
    trees_: list[AttentionTree]
    histories_: list[list[History]]

    # --- fit ---

    # --- predict ---

    def _label_tree(self) -> LabelTree:
        return self.trees_[0].tree

    def _predict(self, data: Documents, k: int) -> TopK:
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            trees, tokens = self.trees_, self._tokens(data)
            if len(trees) == 1:
                return trees[0].best(tokens, k)
            each = min(max(k, LABELS_PER_TREE), len(self.label_names_))
            tops = []
            with progress("predicting", len(trees), "work") as step:
                for tree in trees:
                    with step.part(1):
                        tops.append(tree.best(tokens, each))
            return averaged(tops, k, product=True)

    def _tokens(self, data: Documents) -> WordTokens:
        return self.vocabulary_.encode(data.texts or Strings.of(()))

    def _encode(self, data: Documents) -> np.ndarray:
        """The mean hidden state of each document at the last level, concatenated over the trees."""
        import torch

        from labelwise.nn.encode import TOKENS_AT_ONCE
        from labelwise.nn.inputs import batches_by_length, tensors_of
        from labelwise.runtime.device import torch_threads

        tokens = self._tokens(data)
        with torch_threads(), torch.no_grad():
            encoders = [tree.levels[-1].encoder for tree in self.trees_]
            vectors = np.empty((len(tokens), sum(encoder.width for encoder in encoders)), np.float32)
            with progress("encoding", len(tokens)) as step:
                for documents in batches_by_length(tokens.lengths, TOKENS_AT_ONCE):
                    batch = tokens.batch(documents)
                    ids, lengths = tensors_of(batch)
                    means = [
                        encoder(ids.to(encoder.words.device), lengths).sum(1).cpu() / lengths[:, None]
                        for encoder in encoders
                    ]
                    vectors[batch.rows] = torch.cat(means, 1).numpy()
                    step(len(documents))
        return vectors

    def _explain(self, data: Documents, labels: np.ndarray) -> list[list[LabelPath]]:
        from labelwise.model.attention_words import explain_labels
        from labelwise.runtime.device import torch_threads

        tokens = self._tokens(data)
        with torch_threads():
            return [explain_labels(tree, tokens, labels) for tree in self.trees_]

    def _feature_names(self, columns: np.ndarray) -> list[str] | None:
        return [self.vocabulary_.name(int(word)) for word in columns]

    # --- files ---

    def _state(self) -> dict[str, np.ndarray]:
        from labelwise.nn.levels import state_of_trees

        trees = state_of_trees(self.trees_, self.config.words.is_frozen)
        return {"trees": trees.pop("trees"), **self.vocabulary_.state(), **trees}


@dataclass(frozen=True)
class WordData:
    """Documents to train on as words, with what depends on them alone.

    Parameters
    ----------
    documents
        The training documents, without those held out.
    vocabulary, vectors
        The words of these documents, and a vector per word.
    train, valid
        Words and labels to train on and to validate with.
    training
        Settings of the loop, for this number of documents and this split.
    identity
        Everything else in the config that affects the result, for fingerprints.
    """

    documents: Dataset
    vocabulary: Vocabulary
    vectors: Tensor
    train: TreeData
    valid: TreeData | None
    training: TrainingConfig
    identity: str


def word_data(config: Any, data: Dataset, valid: Dataset | None, job: Job) -> WordData:
    """Hold out documents if none are given, learn the vocabulary, and read or draw the word vectors.

    With little time, only some of the documents are used.
    """
    import torch

    from labelwise.nn.train.levels import TreeData
    from labelwise.nn.words.vocabulary import word_table

    training = config.training
    train, held_out = split_for_early_stopping(data, valid, config.valid_fraction, MAX_VALID, training.seed)

    def prepare(part: Dataset) -> None:
        Vocabulary.learned(part.texts or Strings.of(()), config.words)

    train, held_out = affordable(train, held_out, prepare, job, training.seed)
    if held_out is None:
        training = without_validation(training, type(config).model_fields["training"].default)
    training = _with_averaging_interval(training, len(train))
    elsewhere = {"training": True}  # the loop adds it
    identity = deciding_json(config, PART, elsewhere)
    vocabulary, tokens = Vocabulary.learned(train.texts or Strings.of(()), config.words)
    vectors = torch.from_numpy(word_table(vocabulary, tokens, train.labels, training.seed))
    valid_data = None
    if held_out is not None:
        valid_data = TreeData(vocabulary.encode(held_out.texts or Strings.of(())), held_out.labels)
    return WordData(train, vocabulary, vectors, TreeData(tokens, train.labels), valid_data, training, identity)


def _with_averaging_interval(training: TrainingConfig, n_documents: int) -> TrainingConfig:
    """Set the steps between two averaged states, if the config does not."""
    averaging = training.averaging
    if averaging.kind != "swa" or averaging.every is not None:
        return training
    steps = n_documents // (training.batch_size * training.accumulate)
    every = min(max(steps // STATES_PER_EPOCH, 1), STEPS_BETWEEN_STATES)
    return training.model_copy(update={"averaging": averaging.model_copy(update={"every": every})})
