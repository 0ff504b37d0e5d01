"""Linear label trees over TF-IDF and the vectors of a frozen text encoder, side by side.

The ranker of XR-Transformer (Zhang et al., NeurIPS 2021) without its fine-tuning: a pretrained encoder reads each
document once, and the trees of `linear_tree` learn from words and vectors together.

Cost: one forward pass per document, in training and in prediction; training the trees takes two to three times as long
as on TF-IDF alone. Memory: a vector per document and up to one weight per number of the vector and label.
What we do differently: vectors are centred by the training mean, a text without time to encode it counts as the mean,
and the encoder is saved inside the model, which predicts from raw texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from labelwise.data.dataset import Dataset
from labelwise.methods.encoded_tree import EncodedTree, refuse_training_settings
from labelwise.runtime.job import Job
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.nn.text.transformer import TransformerEncoder


class HybridLinear(EncodedTree):
    """Linear trees over TF-IDF and the vectors of a pretrained encoder that is not trained: more accurate, no GPU."""

    name = "hybrid_linear"
    good_for = "texts of any length, the best accuracy without a GPU"
    speed = "minutes on a CPU, most of it reading each text with the encoder"

    class Config(EncodedTree.Config):
        """Parameters."""

        @model_validator(mode="after")
        def _encoder_is_not_trained(self) -> Self:
            refuse_training_settings(self.encoder, HybridLinear.name)
            return self

    def _training_encoder(self, data: Dataset, valid: Dataset | None, job: Job) -> TransformerEncoder:
        from labelwise.nn.text.transformer import open_encoder

        return open_encoder(self.config.encoder, data.texts or Strings.of(()), self.config.seed).requires_grad_(False)

    def _vector_folder(self, count: int, job: Job) -> Path | None:
        from labelwise.nn.vector_cache import cache_folder

        shared = None if self.config.encoder.starts_random else cache_folder(count)
        return super()._vector_folder(count, job) if shared is None else shared
