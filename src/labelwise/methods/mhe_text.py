"""MHE for texts: a fine-tuned transformer whose labels are scored in groups, or all at once.

Multi-Head Encoding for Extreme Label Classification, Liang et al., TPAMI 2025, its form for texts with many labels
(MHC): the summary tokens of the last five layers side by side, an output per group of labels, and below a narrow layer
with an embedding per label. Training scores the labels of the true groups and of the groups that the model ranks
highest, prediction those of the best groups. It is LightXML (Jiang et al., AAAI 2021) with a mixed-radix code instead
of clusters; `order: clustered` is LightXML's grouping. `num_group: 0` has one output per label and no groups.

Cost: that of `text_encoder` without documents x labels x width; instead documents x (groups x width + labels of
`groups` groups x bottleneck). Memory: width x groups + width x bottleneck + labels x bottleneck weights with their
moments; gradients of embeddings have only the rows of a batch.
What we do differently: biases start at priors and losses are sums, as in `text_encoder`; the beam may be wider than in
training; labels of a document are never cut off, weights are chosen on held-out documents, never on test documents; any
of the other heads (product, sampling, several digits) can be used.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from labelwise.data.dataset import Dataset
from labelwise.features.labels import pifa
from labelwise.features.settings import LINEAR_TFIDF
from labelwise.features.tfidf import Tfidf
from labelwise.model.folder import documents_of_encoder
from labelwise.model.inputs import hold_out
from labelwise.model.method import Method
from labelwise.nn.config import (
    AveragingConfig,
    DigitHeadConfig,
    EncoderConfig,
    OptimiserConfig,
    ScheduleConfig,
    TextNetworkConfig,
    TrainingConfig,
    Width,
)
from labelwise.nn.inputs import texts_of
from labelwise.nn.model import MAX_VALID_TEXTS, TextModel, train_text_network
from labelwise.runtime.job import Job

LAYERS = 5
"""Last layers whose summary tokens are concatenated, as published."""
FEATURES_PER_LABEL = 500
"""Largest features of a label by which labels are clustered."""
RECIPE = TrainingConfig(
    epochs=5,
    batch_size=16,
    optimiser=OptimiserConfig(name="adamw", rate=5e-5, head_factor=20.0),
    schedule=ScheduleConfig(kind="linear", warmup=0.1),
    averaging=AveragingConfig(kind="swa", start=0.5, every=100),
    metric="P@5",
)
GROUP_FIELDS = ("num_group", "groups", "beam", "bottleneck", "order")


class MheText(Method):
    """A fine-tuned text encoder that scores labels in groups: multi-head encoding, for many labels."""

    name, inputs, Fitted = "mhe_text", ("texts",), TextModel
    needs = ("torch", "transformers")
    good_for = "very many labels with a pre-trained encoder, on a GPU"
    speed = "a GPU to fine-tune; a step does not score all labels"
    validates = trains_on_ranks = True
    same_on_any_threads = False

    class Config(TextNetworkConfig):
        """Parameters."""

        encoder: EncoderConfig = EncoderConfig(model="google-bert/bert-base-uncased", pooling="summary", layers=LAYERS)
        """The pretrained encoder and its tokenization."""
        num_group: Annotated[int, Field(ge=0)] = 0
        """Groups of labels, fewer if the last ones would be empty; 0: one output per label, without groups. A good
        number is some times the square root of the number of labels (`labelwise plan --digits`)."""
        groups: Annotated[int, Field(ge=1)] = 10
        """Groups per document whose labels are scored in training: all true ones, then those ranked highest."""
        beam: Annotated[int, Field(ge=1)] | None = None
        """Groups whose labels are scored in prediction; null: as many as in training."""
        bottleneck: Width = 400
        """Width of the label embeddings."""
        order: Literal["index", "frequency", "clustered", "random"] = "index"
        """Which labels form a group: neighbours by index, as published; labels dealt out by frequency; neighbours in
        a balanced tree of the labels' TF-IDF features, which is better where training is short; or at random."""
        loss: Literal["bce", "softmax"] = "bce"
        """Binary cross-entropy of each score, or softmax, for documents with one label."""
        reduction: Literal["sum", "mean"] = "sum"
        """Sum of the binary cross-entropies of a document, or the mean over groups and over labels, as published."""
        dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
        """Dropout rate of the document's vector."""
        head: DigitHeadConfig | None = None
        """Any other head; instead of all settings of groups, loss and dropout."""
        training: TrainingConfig = RECIPE
        """Settings of training."""

        @model_validator(mode="after")
        def _check(self) -> Self:
            fields = type(self).model_fields
            if self.head is not None:
                for field in (*GROUP_FIELDS, "loss", "reduction", "dropout"):
                    if getattr(self, field) != fields[field].default:
                        raise ValueError(f"{field} is not used with a head; set it there")
            elif self.num_group == 0:
                for field in GROUP_FIELDS[1:]:
                    if getattr(self, field) != fields[field].default:
                        raise ValueError(f"{field} needs groups of labels; set num_group")
            if self.reduction == "mean" and self.loss == "softmax":
                raise ValueError("reduction: only bce has a term per score to take the mean of")
            return self

        def head_for(self, n_labels: int) -> DigitHeadConfig:
            """The settings of the head for a number of labels."""
            from labelwise.labelspace.digits import group_radices

            if self.head is not None:
                return self.head
            common: dict[str, Any] = {"loss": self.loss, "reduction": self.reduction, "dropout": self.dropout}
            if self.num_group == 0 or n_labels < 2:
                return DigitHeadConfig(kind="one_hot", **common)
            groups, per_group = group_radices(n_labels, min(self.num_group, n_labels))
            return DigitHeadConfig(
                kind="cascade", radices=(groups, per_group), order=self.order, bottleneck=self.bottleneck,
                groups=self.groups, beam=self.beam or self.groups, **common,
            )  # fmt: skip

        def documents_before(self) -> list[np.ndarray]:
            return documents_of_encoder(self.encoder)

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> TextModel:
        from labelwise.nn.heads.make_head import new_head
        from labelwise.nn.text.transformer import open_encoder

        config = self.config
        train, valid, training = hold_out(train, valid, config, most=MAX_VALID_TEXTS)
        encoder = open_encoder(config.encoder, texts_of(train), training.seed)

        def label_features() -> Any:
            return pifa(Tfidf(LINEAR_TFIDF).fit_transform(texts_of(train)), train.labels, FEATURES_PER_LABEL)

        settings = config.head_for(train.n_labels)
        head = new_head(encoder.width, train, settings, training.seed, label_features)
        return train_text_network(encoder, head, train, valid, config, training, job)
