"""Settings of training and searching linear trees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from labelwise.linear.level_trainer import SolverConfig
from labelwise.linear.memory_estimate import Memory

Negatives = Literal["teacher", "matcher"]
Precision = Literal["float32", "float16", "int8"]
PRECISIONS = get_args(Precision)
"""From the most to the fewest bits per weight."""
SEED_STEP = 1009
"""Difference between the seeds of two trees."""


@dataclass(frozen=True)
class SearchSettings:
    """How trees are searched."""

    post_processor: str = "l3_hinge"
    """How a node's margin is transformed to a score, which is combined with its parent's."""
    beam: int = 1
    """Nodes kept per level."""


@dataclass(frozen=True)
class TrainingSettings:
    """How trees are trained."""

    solver: SolverConfig = field(default_factory=SolverConfig)
    search: SearchSettings = field(default_factory=SearchSettings)
    negatives: Negatives = "teacher"
    """The training documents of a node: see `train_tree`."""
    relevance: bool = False
    """Weight positive examples by the labels' values."""
    precision: Precision = "float32"
    """The type of stored weights."""
    memory: Memory = "check"
    seed: int = 0

    def seeds(self, trees: int) -> list[int]:
        """One seed per tree."""
        return [self.seed + SEED_STEP * number for number in range(trees)]
