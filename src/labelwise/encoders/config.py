"""Which pretrained encoder to use and how; free of torch, so that configs can be checked without it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config

TINY = "tiny"
"""The name of a small BERT with random weights, for tests and for trials without pretrained weights."""


class EncoderConfig(Config):
    """A text encoder: weights, maximum length of texts, and pooling."""

    model: str = "distilbert/distilbert-base-uncased"
    """Folder with weights, folder of a saved model or run whose encoder is used, or a name on the Hugging Face hub;
    `tiny` is a small BERT with random weights."""
    architecture: dict[str, Any] | None = None
    """Random weights instead: the settings of any transformers config, including `model_type`."""
    vocabulary: Annotated[int, Field(ge=16)] = 8000
    """Vocabulary size of the tokenizer that is trained on the training texts when weights are random."""
    max_length: Annotated[int, Field(ge=4)] = 128
    """Tokens the encoder reads at once, special ones included."""
    long_texts: Literal["head", "head_tail", "windows"] = "head"
    """What is read of a longer text: its start, its start and its end, or several windows (their vectors are
    averaged)."""
    windows: Annotated[int, Field(ge=1)] = 4
    """Maximum number of windows per text, with `long_texts: windows`."""
    pooling: Literal["first", "mean", "last", "summary", "pooler"] = "first"
    """The vector of a text: that of its first token (BERT's [CLS]), the mean, the last token (XLNet, decoders), the one
    of these two in which the model's family sums up a text, or what the model's own pooling layer makes of the first
    one (XR-Transformer)."""
    layers: Annotated[int, Field(ge=1)] = 1
    """Number of last layers whose pooled vectors are concatenated (LightXML uses 5 of 12)."""
    frozen: bool = False
    """Train only the head; each text is then encoded only once."""
    precision: Literal["float32", "int8"] = "float32"
    """Linear layers when texts are encoded: int8 takes about two thirds of the CPU time on x86, for nearly the same
    vectors. Weights are trained and saved in float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third slower, much less memory."""

    @model_validator(mode="after")
    def _check_architecture(self) -> Self:
        if self.architecture is not None and not isinstance(self.architecture.get("model_type"), str):
            raise ValueError("architecture needs a model_type, for example {model_type: distilbert, n_layers: 2}")
        if self.pooling == "pooler" and self.layers > 1:
            raise ValueError("layers: with pooling: pooler there is one vector, that of the model's pooling layer")
        if self.long_texts != "windows" and self.windows != type(self).model_fields["windows"].default:
            raise ValueError(f"windows is a setting of long_texts: windows, this is {self.long_texts}")
        return self

    @property
    def starts_random(self) -> bool:
        """Whether weights are initialised at random instead of loaded."""
        return self.architecture is not None or self.model == TINY
