"""The path to a label through a tree, as data for explanations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PathStep:
    """A node on the path to a label."""

    node: int
    """Its index in its level."""
    n_labels: int
    """Labels below it."""
    examples: tuple[str, ...]
    """The most frequent of them, by their texts where known."""
    margin: float
    """The output of the node's classifier: all its terms and the bias."""
    bias: float
    score: float
    """The margin after the post-processor, of this node alone."""
    total: float
    """The score of the path so far."""
    kept: bool
    """Whether the beam search kept the node; at the label itself: whether it was scored."""


@dataclass(frozen=True)
class LabelPath:
    """The path to one label in one tree, and the document's features that its own classifier has weights for."""

    label: int
    steps: tuple[PathStep, ...]
    """From the top to the label itself; the examples are not filled in yet."""
    below: tuple[np.ndarray, ...]
    """The labels (ids) below each step."""
    features: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    given: float
    """The label's score from the tree: the last step's total, or 0 where scores are products and it was not reached."""

    @property
    def reached(self) -> bool:
        """Whether the beam search scored the label."""
        return self.steps[-1].kept
