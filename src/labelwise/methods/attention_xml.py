"""AttentionXML: a shallow label tree, a BiLSTM with label-wise attention at each level, few candidates per document.

You et al., NeurIPS 2019. Labels are clustered into a balanced tree by the words of their documents. The first network
scores clusters; the next starts from its weights and scores the members of the true clusters and of those that the
first ranks highest, and so on down to the labels. A label's score is the product of the probabilities along its path.

Cost: training is documents x words x (recurrent weights + candidates x width) per level; the number of labels
matters only for the table of label vectors, of which a step updates the candidates' rows. Memory: that table three
times (weights, two moments), four with averaging, five during validation.
What we do differently: words after a document's end have no weight (LibMultiLabel ignores its mask), tables are updated
row by row, trees may have any number of levels, every level resumes at a step, a saved model predicts and explains.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator, model_validator

from labelwise.config import Config as BaseConfig
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError
from labelwise.features.labels import pifa
from labelwise.features.tfidf import Tfidf, TfidfConfig
from labelwise.labelspace.tree import LabelTree
from labelwise.model.inputs import hold_out
from labelwise.model.method import Method
from labelwise.nn.config import RecurrentConfig, Width, WordsConfig, WordTraining
from labelwise.nn.levels import MAX_VALID_WORDS, LevelsModel
from labelwise.runtime.job import Job

Count = Annotated[int, Field(ge=1)]
SEED_STEP = 1000
"""Difference between the seeds of two trees."""


class AttentionXML(Method):
    """A label tree with a BiLSTM and label-wise attention at each level: for long texts and many labels."""

    name = "attention_xml"
    Fitted = LevelsModel
    inputs = ("texts",)
    needs = ("torch",)
    same_on_any_threads = False
    validates = True
    trains_on_ranks = True
    presets = {
        "cpu": {
            "words": {"max_length": 150, "initial": "labels", "width": 100},
            "recurrent": {"width": 128},
            "hidden": [128],
            "cluster_size": 16,
            "beam_width": 16,
            "training": {"epochs": 5, "batch_size": 32, "optimiser": {"rate": 2e-3}},
        }
    }
    good_for = "long texts and tens of thousands of documents or more, with a GPU"
    speed = "hours on a CPU, minutes to hours on a GPU"

    class Config(BaseConfig):
        """Parameters."""

        words: WordsConfig = WordsConfig()
        """The vocabulary and the words' vectors."""
        recurrent: RecurrentConfig = RecurrentConfig()
        """The recurrent layer."""
        hidden: Annotated[list[Width], Field(max_length=64)] = [256]
        """Widths of the layers between a label's view of a document and its score; all labels share them."""
        flat: bool = False
        """No tree: all labels are scored for every document. For a few thousand labels."""
        cluster_size: Annotated[int, Field(ge=2)] = 8
        """Maximum number of labels per cluster; clusters are halved until they are that small."""
        levels: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=1)] | None = None
        """Instead of `cluster_size`: clusters at each level from the top, powers of 2, for deeper trees."""
        beam_width: Count = 64
        """Beam width: nodes per level whose children are scored."""
        trees: Count = 1
        """Number of trees (with their networks) whose scores are averaged; each is clustered with another seed."""
        tfidf: TfidfConfig = TfidfConfig()
        """TF-IDF of the documents that represent labels in clustering."""
        label_features: Count | None = 500
        """Largest features per label in clustering; null keeps all."""
        training: WordTraining = WordTraining()
        """How each level is trained."""
        valid_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
        """Fraction of the training documents held out to choose the best weights when the data has no valid part; at
        most 1,000 documents."""

        @field_validator("levels")
        @classmethod
        def _powers_of_two(cls, levels: list[int] | None) -> list[int] | None:
            for size in levels or []:
                if size & (size - 1):
                    raise ValueError(f"clusters are halved, so a level has 2, 4, 8, ... of them; got {size}")
            if levels and any(above >= below for above, below in pairwise(levels)):
                raise ValueError(f"levels must have increasing numbers of clusters from the top down, got {levels}")
            return levels

        @model_validator(mode="after")
        def _flat_or_not(self) -> AttentionXML.Config:
            given = {
                field
                for field in self.model_fields_set
                if getattr(self, field) != type(self).model_fields[field].default
            }
            for field in ("cluster_size", "levels", "beam_width", "tfidf", "label_features"):
                if self.flat and field in given:
                    raise ValueError(f"{field} has no effect without a tree; set flat to false")
            if self.levels is not None and "cluster_size" in given:
                raise ValueError("levels already set the number of clusters; leave out levels or cluster_size")
            return self

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> LevelsModel:
        from labelwise.nn.level_networks import initialised, new_network
        from labelwise.nn.train.levels import train_levels, word_data
        from labelwise.runtime.device import torch_threads

        config = self.config
        trees, histories = [], []
        with torch_threads():
            train, valid, training = hold_out(train, valid, config, most=MAX_VALID_WORDS)
            words = word_data(config, train, valid, training, job)
            described = label_features(words.documents, config)
            for number in range(config.trees):
                seed = words.training.seed + SEED_STEP * number
                with tree_stage(job, number, config.trees) as part:
                    tree = label_tree(described, words.documents.n_labels, config, seed, part)

                    def level(depth: int, targets: Any, above: Any, tree: Any = tree, seed: int = seed) -> Any:
                        network = new_network(words.vectors, config, tree.sizes[depth], seed + depth)
                        return initialised(network, above, targets, seed + depth)

                    training = words.training.model_copy(update={"seed": seed})
                    trained, own = train_levels(tree, level, words.parts, config.beam_width, training, part)
                trees.append(trained)
                histories.append(own)
        return LevelsModel(words.vocabulary, trees, config.words.is_frozen, histories)


def tree_stage(job: Job, number: int, count: int) -> AbstractContextManager[Job]:
    """A stage per tree, if there are several; they have equal parts of the time."""
    if count == 1:
        return nullcontext(job)
    return job.stage(f"tree{number}", 1 / (count - number), f"tree {number + 1} of {count}")


def label_features(train: Dataset, config: Any) -> Any:
    """TF-IDF of the labels' documents, for clustering; None if there is nothing to cluster."""
    if config.flat:
        return None
    if config.levels is not None and config.levels[-1] >= train.n_labels:
        raise ConfigError(f"levels: {config.levels[-1]:,} clusters are too many for {train.n_labels:,} labels")
    return pifa(Tfidf(config.tfidf).fit_transform(train.texts or ()), train.labels, keep=config.label_features)


def label_tree(described: Any, n_labels: int, config: Any, seed: int, job: Job) -> LabelTree:
    """The tree of described labels, from disk if an earlier attempt has made it."""
    if described is None:
        return LabelTree.flat(n_labels)
    kept = job.kept("tree", lambda: clustered(described, config.cluster_size, config.levels, seed).to_tensors())
    return LabelTree.from_tensors("tree", kept, Path("memory"))


def clustered(described: Any, cluster_size: int, levels: list[int] | None, seed: int) -> LabelTree:
    """Labels halved into clusters of `cluster_size` at most, or into the last of `levels` with the others above it."""
    from labelwise.labelspace.clustering import halve

    count = described.shape[0]
    size = cluster_size if levels is None else -(-count // levels[-1])
    order, edges = halve(described, size, seed)
    groups = len(edges) - 1
    level_sizes = [groups] if levels is None else levels
    return LabelTree.from_bounds(
        order, [np.append(edges[: -1 : groups // clusters], count) for clusters in level_sizes]
    )
