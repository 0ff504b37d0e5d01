"""BiGRU baselines: every label scored for every document, with label-wise attention (BiGRU-LWAN) or without.

With attention each label has its own view of the document and its own weights (LibMultiLabel's BiGRULWAN, after
Mullenbach et al. 2018); without, the mean hidden state is the input of one linear output per label.

Cost: documents x words x recurrent weights, and with attention documents x words x labels x width, which is what trees
avoid. Memory is bounded by blocks of documents and labels; the weights of all labels are updated at every step.
What we do differently: words after a document's end have no weight, and biases start at each label's log-odds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from labelwise.config import Config as BaseConfig
from labelwise.data.dataset import Dataset
from labelwise.labelspace.tree import LabelTree
from labelwise.model.inputs import hold_out
from labelwise.model.method import Method
from labelwise.nn.config import OptimiserConfig, RecurrentConfig, WordsConfig, WordTraining
from labelwise.nn.levels import MAX_VALID_WORDS, LevelsModel
from labelwise.runtime.job import Job

BEAM = 1
"""A flat tree has no inner nodes to choose from."""

TRAINING = WordTraining(batch_size=16, optimiser=OptimiserConfig(name="adam", rate=3e-4))
"""As AttentionXML, with LibMultiLabel's batch size and rate for BiGRU-LWAN."""


class BiGRU(Method):
    """A BiGRU that scores all labels, with label-wise attention or without: the baseline of attention_xml."""

    name = "bigru"
    Fitted = LevelsModel
    inputs = ("texts",)
    needs = ("torch",)
    same_on_any_threads = False
    validates = True
    trains_on_ranks = True
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

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> LevelsModel:
        from labelwise.nn.level_networks import initialised, new_network
        from labelwise.nn.train.levels import train_levels, word_data
        from labelwise.runtime.device import torch_threads

        config = self.config
        with torch_threads():
            train, valid, training = hold_out(train, valid, config, most=MAX_VALID_WORDS)
            words = word_data(config, train, valid, training, job)
            tree, training = LabelTree.flat(train.n_labels), words.training

            def level(depth: int, targets: Any, above: Any) -> Any:
                network = new_network(words.vectors, config, train.n_labels, training.seed)
                return initialised(network, above, targets, training.seed)

            trained, histories = train_levels(tree, level, words.parts, BEAM, training, job)
        return LevelsModel(words.vocabulary, [trained], config.words.is_frozen, [histories])
