"""BiGRU baselines: every label scored for every document, with label-wise attention (BiGRU-LWAN) or without.

With attention each label has its own view of the document and its own weights (LibMultiLabel's BiGRULWAN, after
Mullenbach et al. 2018); without, the mean hidden state is the input of one linear output per label.

Cost: documents x words x recurrent weights, and with attention documents x words x labels x width, which is what trees
avoid. Memory is bounded by blocks of documents and labels; the weights of all labels are updated at every step.
What we do differently: words after a document's end have no weight, and biases start at each label's log-odds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from labelwise.config import Config as BaseConfig
from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.errors import import_required
from labelwise.labelspace.tree import LabelTree
from labelwise.methods.word_networks import WordNetworkMethod, WordTraining, word_data
from labelwise.nn.config import OptimiserConfig, RecurrentConfig, WordsConfig
from labelwise.nn.cost import head_size, label_attention_size, network_cost, recurrent_size
from labelwise.nn.words.vocabulary import Vocabulary
from labelwise.runtime.job import Job

if TYPE_CHECKING:
    from torch import Tensor

    from labelwise.nn.levels import LevelFactory

BEAM = 1
"""A flat tree has no inner nodes to choose from."""

TRAINING = WordTraining(batch_size=16, optimiser=OptimiserConfig(name="adam", rate=3e-4))
"""As AttentionXML, with LibMultiLabel's batch size and rate for BiGRU-LWAN."""


class BiGRU(WordNetworkMethod):
    """A BiGRU that scores all labels, with label-wise attention or without: the baseline of attention_xml."""

    name = "bigru"
    presets = {
        "cpu": {
            "words": {"max_length": 150, "initial": "labels", "width": 100},
            "recurrent": {"width": 128},
            "attention": "none",
            "training": {"epochs": 5, "batch_size": 32, "optimiser": {"rate": 2e-3}},
        }
    }
    good_for = "a neural baseline with up to some thousand labels"
    speed = "hours on a CPU, minutes on a GPU"

    def _cost(self, shape: DataShape, constants: Constants) -> Cost:
        config = self.config
        size, width, words = recurrent_size(shape, config.words, config.recurrent)
        if config.attention == "label":
            size += label_attention_size(width, words, shape.labels, shape.labels, [])
        else:
            size += head_size(shape.labels, width, shape.labels)
        return network_cost(shape, constants, "recurrent", size, config.training, ranks=self.trains_on_ranks)

    class Config(BaseConfig):
        """Parameters."""

        words: WordsConfig = WordsConfig()
        """The vocabulary and the words' vectors."""
        recurrent: RecurrentConfig = RecurrentConfig(cell="gru")
        """The recurrent layer."""
        attention: Literal["label", "none"] = "label"
        """Label-wise attention, or the mean of the hidden states for all labels."""
        training: WordTraining = TRAINING
        """Settings of training."""
        valid_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
        """Fraction of the training documents held out to choose the best weights when the data has no valid part; at
        most 1,000 documents."""

    def _fit(self, data: Dataset, kind: str, valid: Dataset | None, job: Job) -> None:
        import_required(self.name, "nn", *self.needs)
        from labelwise.nn.train.levels import train_trees
        from labelwise.runtime.device import torch_threads

        with torch_threads():
            words = word_data(self.config, data, valid, job)
            self.vocabulary_ = words.vocabulary
            self.trees_, self.histories_ = train_trees(
                [LabelTree.flat(data.n_labels)], [words.training.seed], self._levels(words.vectors), BEAM,
                words.training, (words.train, words.valid), job, words.identity,
            )  # fmt: skip

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        import_required(self.name, "nn", "torch")
        from labelwise.nn.levels import restored_trees, stored_vectors

        words = self.config.words
        self.vocabulary_ = Vocabulary.restored(tensors, words, path)
        levels = self._levels(stored_vectors(tensors, len(self.vocabulary_), words.is_frozen, path))
        self.trees_ = restored_trees(levels, BEAM, tensors, len(self.label_names_), path)
        self.histories_ = []

    def _levels(self, vectors: Tensor) -> LevelFactory:
        from labelwise.nn.levels import LevelFactory, LevelHead

        config = self.config
        head = LevelHead("mean" if config.attention == "none" else "own")
        return LevelFactory(vectors, config.words.is_frozen, config.recurrent, head)
