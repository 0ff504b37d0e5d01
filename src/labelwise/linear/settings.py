"""Settings of training and searching linear trees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from labelwise.linear.memory import Memory
from labelwise.linear.search import check_combination, per_level
from labelwise.linear.solver import SolverConfig

Negatives = Literal["teacher", "matcher"]
Ties = Literal["label", "tree"]
Precision = Literal["float32", "float16", "int8"]
PRECISIONS = get_args(Precision)
"""From the most to the fewest bits per weight."""
SEED_STEP = 1009
"""Difference between the seeds of two trees."""


@dataclass(frozen=True)
class SearchSettings:
    """How trees are searched."""

    post_processor: str | tuple[str, ...] = "l3_hinge"
    """How a node's margin is transformed to a score, which is combined with its parent's; or one per level."""
    beam: int | tuple[int, ...] = 1
    """Nodes kept per level, or for each level above the labels."""
    labels_per_tree: int = 20
    """Minimum labels that each of several trees contributes to the average: for smaller `k` the result is a prefix."""
    ties: Ties = "label"
    """Order of labels with equal scores: by their index in the label space, or by position in the (first) tree."""

    def check(self, levels: int) -> None:
        """Refuse lists that do not have a value for each level of a tree, or whose scores cannot be combined."""
        check_combination(per_level(self.post_processor, levels, "post_processor"))
        per_level(self.beam, levels - 1, "beam")

    def upper(self, levels: int) -> tuple[str | tuple[str, ...], int | tuple[int, ...], int]:
        """Post-processors and beams of a search in the first levels only, and the nodes kept at the last of them."""
        names, beams = self.post_processor, self.beam
        if isinstance(names, tuple):
            names = names[:levels]
        if isinstance(beams, tuple):
            return names, beams[: levels - 1], beams[min(levels, len(beams)) - 1]
        return names, beams, beams


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
