"""Settings of fine-tuning an encoder through the levels of a label tree. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from labelwise.config import Config
from labelwise.errors import ConfigError
from labelwise.nn.config import (
    Count,
    LossConfig,
    NotNegative,
    OptimiserConfig,
    Positive,
    ScheduleConfig,
    TrainingConfig,
)

PER_LEVEL = ("level_steps", "level_rates", "level_warmup")
LEVEL_TRAINING = TrainingConfig(
    epochs=1,
    optimiser=OptimiserConfig(name="adamw", rate=5e-5, weight_decay=0.0),
    schedule=ScheduleConfig(kind="linear", warmup=0.1),
    validate_every=None,
    metric="P@5",
)


class FineTuningConfig(Config):
    """Fine-tuning through the levels of a preliminary tree, from coarse to fine."""

    leaf_size: Annotated[int, Field(ge=1)] = 16
    """Maximum number of labels per leaf cluster of the preliminary tree."""
    branching: Annotated[int, Field(ge=2)] = 16
    """Children per inner node of the preliminary tree."""
    top_nodes: Annotated[int, Field(ge=2)] = 128
    """Nodes are joined, `branching` under one, level by level, until a level has at most this many: it is the top
    level, the first that is fine-tuned. A larger number means fewer levels."""
    keep_tree: bool = False
    """Rank with the preliminary tree; otherwise labels are clustered again, by words and vectors."""
    max_nodes: Annotated[int, Field(ge=2)] = 32_768
    """Levels with more nodes are not fine-tuned."""
    documents: Count | None = None
    """Maximum number of documents to fine-tune on, drawn at random; null: all."""
    loss: LossConfig = LossConfig(name="squared_hinge", reduction="mean")
    """The loss of a node's score, over the nodes that are scored for a document."""
    weighted: bool = True
    """Weight the loss of a true node by the number of the document's labels below it."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout rate of a document's vector."""
    first_head: Literal["linear", "random"] = "linear"
    """Initial weights of the first level's outputs: linear classifiers on the vectors of the pretrained encoder, which
    encodes all documents for that, or random."""
    bootstrap: Literal["linear", "weighted", "inherit", "none"] = "weighted"
    """Initial weights of the outputs below the first level: linear classifiers on the current vectors, the same with
    examples weighted by the number of labels below a node, the parent's weights, or random."""
    bootstrap_cost: Positive = 100.0
    """Cost of examples in these classifiers relative to the regularization of weights (C)."""
    negatives: Literal["teacher", "linear", "network"] = "linear"
    """Nodes scored besides the siblings of true nodes: none; those below the nodes that are ranked highest above, by
    linear classifiers on words and vectors or by the network itself."""
    beam: Count = 10
    """Nodes per document that are ranked highest."""
    training: TrainingConfig = LEVEL_TRAINING
    """Settings of training, for each level."""
    level_steps: Annotated[list[Count], Field(min_length=1)] | None = None
    """Instead of `training.steps` and `training.epochs`: steps for each level from the top."""
    level_rates: Annotated[list[Positive], Field(min_length=1)] | None = None
    """Instead of `training.optimiser.rate`: a learning rate for each level."""
    level_warmup: Annotated[list[NotNegative], Field(min_length=1)] | None = None
    """Instead of `training.schedule.warmup`: steps of warm-up for each level; below 1 a fraction of its steps."""
    valid_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Fraction of the training documents held out to choose the best weights of each level when the data has no valid
    part; at most 2,000 documents. Used with `training.validate_every`."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.training.time_budget is not None:
            raise ValueError("training.time_budget: set the method's time_budget, which limits all of fit")
        if self.training.validate_every is None and self.valid_fraction:
            raise ValueError("valid_fraction holds out documents to validate with; set training.validate_every as well")
        if self.loss.name == "softmax":
            raise ValueError("loss.name: softmax is a loss of all labels together; levels of a tree score a few nodes")
        return self

    def trained_levels(self, sizes: Sequence[int]) -> list[int]:
        """The numbers of nodes of the levels that are fine-tuned, of a tree with levels of these sizes."""
        trained = [size for size in sizes if size <= self.max_nodes]
        if not trained:
            raise ConfigError(
                f"fine_tuning.max_nodes: the top level of the tree has {sizes[0]:,} nodes, more than "
                f"{self.max_nodes:,}; there is nothing to train"
            )
        return trained

    def trainings(self, sizes: Sequence[int]) -> tuple[TrainingConfig, ...]:
        """The settings of each level; `sizes` are the numbers of nodes of the levels that are trained."""
        for field in PER_LEVEL:
            values = getattr(self, field)
            if values is not None and len(values) != len(sizes):
                nodes = ", ".join(f"{size:,}" for size in sizes)
                raise ConfigError(
                    f"fine_tuning.{field} has {len(values)} entries, but {len(sizes)} levels are trained ({nodes} "
                    "nodes); give one entry per level, or change leaf_size, branching, top_nodes or max_nodes"
                )
        return tuple(self._training(depth) for depth in range(len(sizes)))

    def _training(self, depth: int) -> TrainingConfig:
        training = self.training
        changed: dict[str, Any] = {"seed": training.seed + depth}
        if self.level_steps is not None:
            changed |= {"steps": self.level_steps[depth], "epochs": None}
        if self.level_rates is not None:
            changed["optimiser"] = training.optimiser.model_copy(update={"rate": self.level_rates[depth]})
        if self.level_warmup is not None:
            changed["schedule"] = ScheduleConfig(kind=training.schedule.kind, warmup=self.level_warmup[depth])
        return training.model_copy(update=changed)
