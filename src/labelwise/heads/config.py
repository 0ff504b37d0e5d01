"""How documents' vectors become label scores; free of torch, so that configs can be checked without it."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config


class LossConfig(Config):
    """The loss of one score for each label."""

    name: Literal["bce", "squared_hinge", "focal", "asymmetric"] = "bce"
    """Binary cross-entropy, squared hinge, focal loss (Lin et al. 2017) or asymmetric loss (Ridnik et al. 2021)."""
    reduction: Literal["sum", "mean"] = "sum"
    """Sum or mean over labels, always the mean over documents. With the mean, gradients shrink as labels grow in
    number, until an optimiser's eps or L2 term drowns them."""
    focus: Annotated[float, Field(ge=0)] = 2.0
    """Focal loss: the power that plays down scores which are right already."""
    focus_positive: Annotated[float, Field(ge=0)] = 0.0
    """Asymmetric loss: the same for labels a document has."""
    focus_negative: Annotated[float, Field(ge=0)] = 4.0
    """Asymmetric loss: the same for labels a document does not have."""
    shift: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Asymmetric loss: a wrong label whose probability is below this costs nothing."""

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
        return self


class HeadConfig(Config):
    """One linear output per label."""

    loss: LossConfig = LossConfig()
    """What is minimised."""
    bias: Literal["prior", "zero"] = "prior"
    """Where biases start: at the best score for a model that knows only how frequent labels are (for cross-entropy
    the log-odds of each label), or at 0."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Fraction of the vector's entries that is left out in each training step."""
    block: Annotated[int, Field(ge=1)] = 8192
    """Labels handled at a time: memory beside the weights is bounded by batch x block."""
