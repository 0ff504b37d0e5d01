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

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labelwise.data.dataset import Dataset
from labelwise.methods.text_network import TextNetwork, TextNetworkConfig
from labelwise.nn.config import HeadConfig, OptimiserConfig, ScheduleConfig, TrainingConfig

if TYPE_CHECKING:
    from labelwise.nn.heads.base import Head

RECIPE = TrainingConfig(
    epochs=5,
    optimiser=OptimiserConfig(name="adamw", rate=5e-5, head_factor=100.0),
    schedule=ScheduleConfig(kind="linear", warmup=0.1),
)


class TextEncoder(TextNetwork):
    """A pretrained text encoder with one output per label, fine-tuned: for short texts and labels with meaning."""

    name = "text_encoder"
    good_for = "short texts and paraphrases, where a pre-trained encoder helps"
    speed = "minutes with a frozen encoder on a CPU; a GPU to fine-tune"

    class Config(TextNetworkConfig):
        """Parameters."""

        head: HeadConfig = HeadConfig()
        """Outputs and loss."""
        training: TrainingConfig = RECIPE
        """Settings of training."""

    def _new_head(self, width: int, train: Dataset) -> Head:
        from labelwise.nn.heads.linear import Outputs

        head = Outputs(width, train.n_labels, self.config.head)
        return head.initialise(train.label_counts(), len(train), self.config.training.seed)

    def _restored_head(self, width: int, tensors: Mapping[str, np.ndarray], path: Path) -> Head:
        import torch

        from labelwise.nn.heads.linear import Outputs

        with torch.device("meta"):
            head = Outputs(width, len(self.label_names_), self.config.head)
        return head.restore(tensors, path)
