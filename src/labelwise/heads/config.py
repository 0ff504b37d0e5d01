"""Settings of heads and losses. Does not import torch, so that configs need none."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config


class LossConfig(Config):
    """The loss of one score per label."""

    name: Literal["bce", "hinge", "squared_hinge", "focal", "asymmetric", "softmax"] = "bce"
    """Binary cross-entropy, hinge, squared hinge, focal loss (Lin et al. 2017), asymmetric loss (Ridnik et al. 2021),
    or cross-entropy of the softmax over all labels, for documents with one label each; several divide the target
    equally."""
    reduction: Literal["sum", "mean"] = "sum"
    """Sum or mean over labels; always the mean over documents. With the mean, gradients shrink with the number of
    labels, until an optimiser's eps or L2 term dominates them."""
    focus: Annotated[float, Field(ge=0)] = 2.0
    """Focal loss: the focusing parameter (gamma), which reduces the loss of labels that are already right."""
    focus_positive: Annotated[float, Field(ge=0)] = 0.0
    """Asymmetric loss: the focusing parameter for labels a document has."""
    focus_negative: Annotated[float, Field(ge=0)] = 4.0
    """Asymmetric loss: the focusing parameter for labels a document does not have."""
    shift: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Asymmetric loss: probability margin; wrong labels below it have no loss."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        owners = {
            "focus": "focal",
            "focus_positive": "asymmetric",
            "focus_negative": "asymmetric",
            "shift": "asymmetric",
        }
        for field, name in owners.items():
            if name != self.name and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"{field} is a setting of the {name} loss, this is {self.name}")
        if self.name == "softmax" and self.reduction == "mean":
            raise ValueError("reduction: the softmax loss has no term per label to take the mean of; leave it at sum")
        return self


class HeadConfig(Config):
    """One linear output per label."""

    loss: LossConfig = LossConfig()
    """The loss to minimise."""
    bias: Literal["prior", "zero"] = "prior"
    """Initial biases: the constant scores with the lowest loss given the label frequencies (for cross-entropy the
    log-odds of each label), or 0."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout rate of the document's vector."""
    block: Annotated[int, Field(ge=1)] = 8192
    """Labels per block: memory beside the weights is bounded by batch x block."""
