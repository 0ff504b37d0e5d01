"""Linear label trees over TF-IDF and the vectors of a frozen text encoder, side by side.

The ranker of XR-Transformer (Zhang et al., NeurIPS 2021) without its fine-tuning: a pretrained encoder reads each
document once, and the trees of `linear_tree` learn from words and vectors together.

Cost: one forward pass per document, in training and in prediction; training the trees takes two to three times as long
as on TF-IDF alone. Memory: a vector per document and up to one weight per number of the vector and label.
What we do differently: vectors are centred by the training mean, a text without time to encode it counts as the mean,
and the encoder is saved inside the model, which predicts from raw texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from labelwise.data.dataset import Dataset
from labelwise.linear.settings import Precision, user_input
from labelwise.linear.train import fit_trees
from labelwise.methods.linear_tree import LinearTree
from labelwise.model.folder import documents_of_encoder
from labelwise.model.method import Method
from labelwise.nn.config import EncoderConfig
from labelwise.nn.featurizer import EncodedLinearModel, WordsAndVectors
from labelwise.nn.text.files import with_saved_settings
from labelwise.runtime.job import Job
from labelwise.strings import Strings

VectorNorm = Annotated[float, Field(gt=0, le=1e6)]
WhiteningPower = Annotated[float, Field(ge=0, le=0.5)]


class EncodedConfig(LinearTree.Config):
    """Parameters of linear trees on TF-IDF and the vectors of an encoder."""

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
        return with_saved_settings(given)

    def documents_before(self) -> list[np.ndarray]:
        return documents_of_encoder(self.encoder)

    @model_validator(mode="after")
    def _texts_have_no_norm(self) -> EncodedConfig:
        if self.feature_norm is not None:
            raise ValueError("feature_norm is for features that the data has, and this method reads texts")
        return self

    @property
    def reads_vectors(self) -> bool:
        """False: vectors are computed here, not given with the data."""
        return False

    @property
    def encoder_is_published(self) -> bool:
        """Whether the encoder is as others have published it, so that its vectors may be in the user's cache."""
        return False


class HybridLinear(Method):
    """Linear trees over TF-IDF and the vectors of a pretrained encoder that is not trained: more accurate, no GPU."""

    name = "hybrid_linear"
    Fitted = EncodedLinearModel
    inputs = ("texts",)
    needs = ("torch", "transformers")
    good_for = "texts of any length, the best accuracy without a GPU"
    speed = "minutes on a CPU, most of it reading each text with the encoder"
    changeable = LinearTree.changeable
    same_on_any_threads = False
    trains_in_tasks = True

    class Config(EncodedConfig):
        """Parameters."""

        @model_validator(mode="after")
        def _encoder_is_not_trained(self) -> Self:
            for name in ("frozen", "gradient_checkpointing"):
                if getattr(self.encoder, name) != EncoderConfig.model_fields[name].default:
                    raise ValueError(
                        f"encoder.{name} is for methods that train the encoder, {HybridLinear.name} never does; leave "
                        "it out"
                    )
            return self

        @property
        def encoder_is_published(self) -> bool:
            return not self.encoder.starts_random

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> EncodedLinearModel:
        from labelwise.nn.text.transformer import open_encoder

        config = self.config
        given, named = user_input(config, train, job)
        encoder = open_encoder(config.encoder, train.texts or Strings.of(()), config.seed)
        features, rows = WordsAndVectors.learn(encoder, config, named, job)
        return EncodedLinearModel(features, fit_trees(features, rows, named.labels, given, config, job))
