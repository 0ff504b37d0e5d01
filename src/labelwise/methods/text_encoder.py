"""Text encoder with one output per label: a pretrained transformer, fine-tuned with a loss on all labels at once.

Known from the DistilBERT + BCE baselines of extreme classification and from LightXML's pooling of several layers
(Jiang et al., AAAI 2021). The encoder reads up to `max_length` tokens, token vectors are pooled to one, and a linear
head scores every label.

Cost: training is documents x tokens x weights of the encoder, prediction a third of that; the head adds documents x
labels x width to both. Memory: the weights four times (weights, gradients, two moments) and batch x block beside them;
an array of documents x labels never exists. Good up to some hundred thousand labels; beyond, trees are cheaper.
What we do differently: biases start at each label's log-odds and the loss is summed over labels, so that training does
not begin with the long plateau at which many such runs fail; a monitor distinguishes collapsed runs from slow ones.
"""

from __future__ import annotations

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.model.folder import documents_of_encoder
from labelwise.model.inputs import hold_out
from labelwise.model.method import Method
from labelwise.nn.config import (
    HeadConfig,
    OptimiserConfig,
    ScheduleConfig,
    TextNetworkConfig,
    TrainingConfig,
)
from labelwise.nn.inputs import texts_of
from labelwise.nn.model import MAX_VALID_TEXTS, TextModel, train_text_network
from labelwise.runtime.job import Job

RECIPE = TrainingConfig(
    epochs=5,
    optimiser=OptimiserConfig(name="adamw", rate=5e-5, head_factor=100.0),
    schedule=ScheduleConfig(kind="linear", warmup=0.1),
)


class TextEncoder(Method):
    """A pretrained text encoder with one output per label, fine-tuned: for short texts and labels with meaning."""

    name, inputs, Fitted = "text_encoder", ("texts",), TextModel
    needs = ("torch", "transformers")
    good_for = "short texts and paraphrases, where a pre-trained encoder helps"
    speed = "minutes with a frozen encoder on a CPU; a GPU to fine-tune"
    validates = trains_on_ranks = True
    same_on_any_threads = False

    class Config(TextNetworkConfig):
        """Parameters."""

        head: HeadConfig = HeadConfig()
        """Outputs and loss."""
        training: TrainingConfig = RECIPE
        """Settings of training."""

        def documents_before(self) -> list[np.ndarray]:
            return documents_of_encoder(self.encoder)

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> TextModel:
        from labelwise.nn.heads.linear import Outputs
        from labelwise.nn.text.transformer import open_encoder

        config = self.config
        train, valid, training = hold_out(train, valid, config, most=MAX_VALID_TEXTS)
        encoder = open_encoder(config.encoder, texts_of(train), training.seed)
        head = Outputs(encoder.width, train.n_labels, config.head)
        head.initialise(train.label_counts(), len(train), training.seed)
        return train_text_network(encoder, head, train, valid, config, training, job)
