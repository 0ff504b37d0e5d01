"""Settings of the heads of multi-head encoding. Does not import torch, so that configs need none."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config
from labelwise.heads.config import HeadConfig, LossConfig

Count = Annotated[int, Field(ge=1)]

# Fields that only some kinds of heads have. Setting one for another kind is an error.
ONLY_FOR = {
    "radices": ("product", "cascade", "sampling"),
    "heads": ("product", "cascade", "sampling"),
    "order": ("product", "cascade", "sampling"),
    "reduction": ("one_hot", "product", "cascade"),
    "bottleneck": ("cascade",),
    "groups": ("cascade",),
    "beam": ("cascade",),
    "negatives": ("sampling",),
    "sampled_groups": ("sampling",),
    "sampled_fraction": ("sampling",),
    "log_q": ("sampling",),
}


class DigitHeadConfig(Config):
    """A head: one output per label, or labels as digits in mixed radix (multi-head encoding)."""

    kind: Literal["one_hot", "product", "cascade", "sampling"] = "one_hot"
    """one_hot: an output per label. product: an output per value of each digit, digits are independent. cascade: the
    first digit is a group of labels; labels of the best groups are scored by embeddings. sampling: an output per label,
    trained against the labels of some groups only."""
    loss: Literal["softmax", "joint_softmax", "bce"] = "softmax"
    """softmax: cross-entropy, for documents with one label; several divide the target equally. bce: binary
    cross-entropy, for documents with several labels. joint_softmax: one softmax over the outputs of all digits together
    (product only)."""
    reduction: Literal["sum", "mean"] = "sum"
    """With bce: sum over outputs, or their mean."""
    radices: Annotated[tuple[Count, ...], Field(max_length=8)] | None = None
    """Values of each digit, the most significant first; their product is at least the number of labels. null: near
    equal."""
    heads: Annotated[int, Field(ge=2, le=8)] = 2
    """Number of digits when `radices` is null."""
    order: Literal["index", "frequency", "clustered", "random"] = "index"
    """Which labels share digits: neighbours by index; labels dealt to groups by frequency, so that groups have equally
    many documents; neighbours in a balanced tree of the labels' features; or at random."""
    bottleneck: Count | None = None
    """Width of the label embeddings (cascade); null is 256, or the width of the vectors if that is smaller."""
    groups: Count | None = None
    """Nodes per document and level whose children are scored in training (cascade): the true ones, all of them, then
    those that the model ranks highest. null is 1 with softmax (only the true node) and 10 with bce."""
    beam: Count = 10
    """Nodes per level whose children are scored in prediction (cascade)."""
    negatives: Literal["batch", "document", "V0", "V2", "B1"] = "batch"
    """Groups that a step is trained against (sampling). batch: those of the batch's labels and random ones, the same
    for all its documents. document: those of a document's labels and random ones, drawn for each document. V0: those of
    the document's labels only. V2: these and one random group. B1: those of the batch's labels only."""
    sampled_groups: Count | None = None
    """Groups per batch, or per document, with those of the labels (sampling); null is 10, or `sampled_fraction`."""
    sampled_fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    """Instead of `sampled_groups`: the fraction of all groups."""
    log_q: bool = False
    """Correct scores of random groups by the logarithm of the probability of being drawn (sampling): the softmax is
    then an unbiased estimate of that over all labels."""
    bias: Literal["prior", "zero"] = "prior"
    """Initial biases: from label frequencies, or 0."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout rate of the document's vector."""
    block: Count = 8192
    """Labels per block: memory beside the weights is bounded by batch x block."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field, kinds in ONLY_FOR.items():
            if self.kind not in kinds and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"{field} is a setting of {', '.join(kinds)} heads, the kind is {self.kind}")
        if self.loss == "joint_softmax" and self.kind != "product":
            raise ValueError(f"loss: joint_softmax is a loss of product heads, the kind is {self.kind}")
        if self.loss == "bce" and self.kind == "sampling":
            raise ValueError("loss: sampling heads are trained by softmax; several labels share the target equally")
        if self.reduction == "mean" and self.loss != "bce":
            raise ValueError("reduction: only bce has a term per output to take the mean of")
        if self.radices is not None and len(self.radices) < 2:
            raise ValueError("radices: give at least two digits; one is kind: one_hot")
        if self.radices is not None and self.heads != type(self).model_fields["heads"].default:
            raise ValueError("give radices or heads, not both")
        if self.sampled_groups is not None and self.sampled_fraction is not None:
            raise ValueError("give sampled_groups or sampled_fraction, not both")
        if self.negatives in ("V0", "B1") and self.log_q:
            raise ValueError(f"log_q: negatives: {self.negatives} draws no random groups to correct")
        if self.negatives in ("V0", "V2", "B1") and (self.sampled_groups or self.sampled_fraction):
            raise ValueError(f"negatives: {self.negatives} fixes the number of groups; leave sampled_groups out")
        return self

    @property
    def has_code(self) -> bool:
        """Whether labels have digits."""
        return self.kind != "one_hot"

    def flat(self) -> HeadConfig:
        """The settings of a flat head with the same loss, of all labels or of the groups."""
        name = "bce" if self.loss == "bce" else "softmax"
        loss = LossConfig(name=name, reduction=self.reduction)
        return HeadConfig(loss=loss, bias=self.bias, dropout=self.dropout, block=self.block)
