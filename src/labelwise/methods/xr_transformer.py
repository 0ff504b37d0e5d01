"""XR-Transformer: an encoder fine-tuned from coarse to fine label clusters, then linear trees over words and vectors.

Zhang et al., NeurIPS 2021. Labels are clustered by TF-IDF into a preliminary tree; a pretrained encoder learns to rank
its top level, then the next below the nodes that are true or likely, and so on, each time with new outputs that start
from linear classifiers on its current vectors. The vectors of all documents then join TF-IDF, labels are clustered
again, and a tree of linear classifiers (`linear_tree`) ranks.

Cost: fine-tuning is steps x batch x tokens x weights of the encoder, and all documents are encoded once per level and
once at the end; the number of labels matters for the linear part only. Memory: the encoder four times, the outputs of
one level four times, a vector per document, then that of the linear trees.
What we do differently: the first outputs are linear classifiers too, vectors are centred and stay dense in the trees,
texts are padded to their batch only, several trees are averaged, every stage resumes, and nothing is selected on test
documents; the token vectors are pooled directly, without the layer that BERT adds for sentence pairs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import model_validator

from labelwise.data.dataset import Dataset
from labelwise.features.featurizers import Words
from labelwise.features.labels import pifa
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.memory import bytes_of, check_memory, clustering_need
from labelwise.linear.settings import user_input
from labelwise.linear.train import fit_trees
from labelwise.methods.hybrid_linear import EncodedConfig
from labelwise.methods.linear_tree import LinearTree
from labelwise.model.fitted import Saved
from labelwise.model.method import Method
from labelwise.nn.config import FineTuningConfig
from labelwise.nn.featurizer import EncodedLinearModel, WordsAndVectors
from labelwise.runtime.job import Job
from labelwise.strings import Strings

FINE_TUNING_TIME = 0.5
"""Maximum fraction of the time budget for fine-tuning; the rest is for encoding and for the trees."""
MAX_VALID = 2000
"""Maximum number of documents held out from the training documents."""


class XRTransformer(Method):
    """An encoder fine-tuned through a label tree, and linear trees over TF-IDF and its vectors: for a GPU."""

    name = "xr_transformer"
    Fitted = EncodedLinearModel
    inputs = ("texts",)
    needs = ("torch", "transformers")
    good_for = "many documents and a GPU, up to millions of labels"
    speed = "minutes to hours on a GPU; hours on a CPU with a small encoder"
    changeable = LinearTree.changeable
    same_on_any_threads = False
    validates = True
    trains_in_tasks = True
    trains_on_ranks = True

    class Config(EncodedConfig):
        """Parameters."""

        fine_tuning: FineTuningConfig = FineTuningConfig()
        """How the encoder is fine-tuned."""

        @model_validator(mode="after")
        def _fine_tuning_fits(self) -> Self:
            if self.encoder.frozen:
                raise ValueError(
                    "encoder.frozen: xr_transformer trains its encoder; use hybrid_linear for a frozen one"
                )
            if self.fine_tuning.keep_tree and (self.trees > 1 or self.tree != "balanced"):
                raise ValueError(
                    "fine_tuning.keep_tree: the preliminary tree is a single balanced one; set trees to 1, tree to "
                    "balanced, or keep_tree to false"
                )
            if self.fine_tuning.keep_tree and self.label_text_weight > 0:
                raise ValueError(
                    "label_text_weight is for clustering labels again, which fine_tuning.keep_tree leaves out; set one "
                    "of them"
                )
            return self

    def _fit(self, train: Dataset, valid: Dataset | None, job: Job) -> EncodedLinearModel:
        from labelwise.nn.fine_tuning import fine_tune
        from labelwise.nn.text.transformer import open_encoder

        config, fine = self.config, self.config.fine_tuning
        given, ranked_on = user_input(config, train, job)  # the ranker may learn from names of labels too
        encoder = open_encoder(config.encoder, train.texts or Strings.of(()), fine.training.seed)
        words, counted = Words.learn(config, train, Job())  # in memory, where the vectors are too: no scratch folder
        tree = preliminary_tree(counted, train.labels, config, job)
        with job.stage("fine-tuning", FINE_TUNING_TIME) as part:
            documents = fine_tuning_documents(train, valid, words, counted, fine)
            histories = fine_tune(encoder, tree, documents, config, part)

        made: list[EncodedLinearModel] = []  # on rank 0, which trains it; other ranks restore what it has sent

        def ranker(alone: Job) -> dict[str, np.ndarray]:
            known = (words, counted) if ranked_on is train else None
            features, rows = WordsAndVectors.learn(encoder, config, ranked_on, alone, known)
            own = replace(given, trees=[tree]) if fine.keep_tree else given
            made.append(EncodedLinearModel(features, fit_trees(features, rows, ranked_on.labels, own, config, alone)))
            return made[0].tensors()

        tensors = job.alone(ranker)
        model = made[0] if made else EncodedLinearModel.from_tensors(tensors, Saved.of(config, train))
        model.histories = histories
        return model


def preliminary_tree(words: Any, labels: Any, config: XRTransformer.Config, job: Job) -> LabelTree:
    """The tree of the labels' words, through whose levels the encoder is fine-tuned."""
    fine = config.fine_tuning

    def clustered() -> dict[str, np.ndarray]:
        need = partial(clustering_need, words, labels, config.label_features)
        check_memory(need, config.memory, bytes_of(words, labels), report=False)
        described = pifa(words, labels, keep=config.label_features)
        tree = LabelTree.balanced(
            described, leaf_size=fine.leaf_size, branching=fine.branching, seed=config.seed, top_nodes=fine.top_nodes
        )
        fine.trainings(fine.trained_levels(tree.sizes))  # refuses wrong settings before anything is kept
        return tree.to_tensors()

    return LabelTree.from_tensors("tree", job.kept("preliminary-tree", clustered), Path("preliminary-tree"))


def fine_tuning_documents(
    train: Dataset, valid: Dataset | None, words: Words, counted: Any, fine: FineTuningConfig
) -> tuple[Dataset, Dataset | None]:
    """The documents to fine-tune on, and those to validate with if that is wanted and there are any.

    Their TF-IDF, of the training documents `counted`, is in their features.
    """
    train = replace(train, features=counted)
    random = np.random.default_rng(fine.training.seed)
    chosen, held_out = np.arange(len(train)), None
    if fine.training.validate_every is not None and valid is not None:
        held_out = valid.take(np.sort(random.permutation(len(valid))[:MAX_VALID]))
        held_out = replace(held_out, features=words.tfidf.transform(held_out.texts or ()))
    elif fine.valid_fraction:
        count = min(round(fine.valid_fraction * len(train)), MAX_VALID, len(train) - 1)
        rows = np.sort(random.permutation(chosen)[:count])
        chosen = np.setdiff1d(chosen, rows)
        if count:
            held_out = train.take(rows)
    if fine.documents is not None and fine.documents < len(chosen):
        chosen = np.sort(random.permutation(chosen)[: fine.documents])
    return train if len(chosen) == len(train) else train.take(chosen), held_out
