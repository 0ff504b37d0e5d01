"""Fine-tuning of an encoder through the levels of a label tree, from coarse to fine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labelwise.data.dataset import Dataset
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.solver import SolverConfig
from labelwise.nn.config import without_validation
from labelwise.nn.fine_tuning_settings import LEVEL_TRAINING
from labelwise.nn.train.fine_tuning import EncoderTreeTraining, LevelRecipe, check_fine_tuning_memory
from labelwise.nn.train.levels import TreeData
from labelwise.runtime.device import computing_device, torch_threads
from labelwise.runtime.job import Job
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.nn.train.callbacks import History

log = logging.getLogger("labelwise")


def fine_tune(
    encoder: Any,
    tree: LabelTree,
    words: Sequence[Any],
    parts: Sequence[Dataset | None],
    config: Any,
    job: Job,
) -> list[History]:
    """Train the encoder through the levels of a tree; the training of each level.

    `parts` are the training documents and held-out ones, or None, `words` their TF-IDF.
    """
    fine = config.fine_tuning
    sizes = fine.trained_levels(tree.sizes)
    trainings = fine.trainings(sizes)
    if parts[1] is None:
        trainings = tuple(without_validation(training, LEVEL_TRAINING) for training in trainings)
    check_fine_tuning_memory(encoder, sizes, len(parts[0] or ()), fine.training, config.memory)
    log.info("fine-tuning: %d levels of %s nodes", len(sizes), ", ".join(f"{size:,}" for size in sizes))
    cost = {"cost_positive": fine.bootstrap_cost, "cost_negative": fine.bootstrap_cost, "threshold": 0.0}
    recipe = LevelRecipe(
        loss=fine.loss,
        weighted=fine.weighted,
        dropout=fine.dropout,
        bootstrap=fine.bootstrap,
        first_bootstrap="linear" if fine.first_head == "linear" else "none",
        bootstrap_solver=SolverConfig(**cost),
        matcher=None if fine.negatives == "teacher" else fine.negatives,
        vector_scale=config.vector_scale,
        trainings=trainings,
    )
    with torch_threads():
        encoder.to(computing_device())  # all documents are encoded before the first level is trained
        data: list[Any] = [
            None if part is None else TreeData(_tokens(encoder, part), part.labels, part.texts or Strings.of(()), rows)
            for part, rows in zip(parts, words, strict=True)
        ]
        training = EncoderTreeTraining(
            fine.beam, trainings[0], job, "", job.fingerprint("fine-tuning"), encoder, recipe
        )
        return training.train_levels(tree, len(sizes), *data)[1]


def _tokens(encoder: Any, part: Dataset) -> Any:
    return encoder.tokenizer.encode(part.texts or Strings.of(()), encoder.config)
