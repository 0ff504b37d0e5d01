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

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import model_validator

from labelwise.config import PART, deciding_fields
from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError
from labelwise.features.labels import pifa
from labelwise.features.tfidf import Tfidf
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.memory import bytes_of, check_memory, clustering_need
from labelwise.linear.solver import SolverConfig
from labelwise.methods.encoded_tree import EncodedTree
from labelwise.nn.config import LEVEL_TRAINING, FineTuningConfig, without_validation
from labelwise.nn.cost import fine_tuning_cost
from labelwise.runtime.finished import find_finished, fingerprint, keep_finished
from labelwise.runtime.job import Job
from labelwise.runtime.ranks import on_rank_zero
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.nn.text.transformer import TransformerEncoder
    from labelwise.nn.train.callbacks import History
    from labelwise.nn.train.fine_tuning import LevelRecipe
    from labelwise.nn.train.levels import TreeData

log = logging.getLogger("labelwise")

FINE_TUNING_TIME = 0.5
"""Maximum fraction of the time budget for fine-tuning; the rest is for encoding and for the trees."""
MAX_VALID = 2000
"""Maximum number of documents held out from the training documents."""
TREE_KIND, TREE_FILE = "preliminary tree", "tree.safetensors"


class XRTransformer(EncodedTree):
    """An encoder fine-tuned through a label tree, and linear trees over TF-IDF and its vectors: for a GPU."""

    name = "xr_transformer"
    needs = ("torch", "transformers")
    good_for = "many documents and a GPU, up to millions of labels"
    speed = "minutes to hours on a GPU; hours on a CPU with a small encoder"
    validates = True
    trains_on_ranks = True

    class Config(EncodedTree.Config):
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

    histories_: list[History]
    """Training of each level; empty after loading."""
    _preliminary: LabelTree | None = None
    """Between fine-tuning and ranking."""
    _words: tuple[Strings, Tfidf, Any] | None = None
    """Texts, the TF-IDF that was fitted on them, and their features; between fine-tuning and ranking."""

    def _cost(self, shape: DataShape, constants: Constants, width: int = 0) -> Cost:
        fine_tuning = fine_tuning_cost(shape, constants, self.config.encoder, self.config.fine_tuning)
        return replace(fine_tuning + super()._cost(shape, constants), shares=1)

    # --- fit ---

    def _training_encoder(self, data: Dataset, valid: Dataset | None, job: Job) -> TransformerEncoder:
        from labelwise.nn.text.transformer import open_encoder
        from labelwise.nn.train.fine_tuning import EncoderTreeTraining, check_fine_tuning_memory

        config, fine = self.config, self.config.fine_tuning
        texts, tfidf = data.texts or Strings.of(()), Tfidf(config.tfidf)
        encoder = open_encoder(config.encoder, texts, fine.training.seed)
        words = tfidf.fit_transform(texts)
        self._words = texts, tfidf, words
        tree = self._preliminary = on_rank_zero(lambda: self._preliminary_tree(data, words, job))
        sizes = self._level_sizes(tree)
        parts = self._split(data, words, valid, tfidf, encoder)
        recipe = self._recipe(sizes, parts[1] is not None)
        check_fine_tuning_memory(encoder, sizes, len(parts[0].inputs), fine.training, config.memory)
        log.info("fine-tuning: %d levels of %s nodes", len(sizes), ", ".join(f"{size:,}" for size in sizes))
        within = job.within(job.budget.part(FINE_TUNING_TIME))
        training = EncoderTreeTraining(
            fine.beam, recipe.trainings[0], within, "fine-tuning-", self._identity(), encoder, recipe
        )
        _, self.histories_ = training.train_levels(tree, len(sizes), *parts)
        return encoder.requires_grad_(False)

    def _split(
        self, data: Dataset, words: Any, valid: Dataset | None, tfidf: Tfidf, encoder: TransformerEncoder
    ) -> tuple[TreeData, TreeData | None]:
        """The documents to fine-tune on, and those to validate with if that is wanted and there are any."""
        from labelwise.nn.train.levels import TreeData

        def prepared(part: Dataset, features: Any) -> TreeData:
            texts = part.texts or Strings.of(())
            return TreeData(encoder.tokenizer.encode(texts, self.config.encoder), part.labels, texts, features)

        fine, random = self.config.fine_tuning, np.random.default_rng(self.config.fine_tuning.training.seed)
        rows, held_out = np.arange(len(data)), None
        if fine.training.validate_every is not None and valid is not None:
            valid = valid.take(np.sort(random.permutation(len(valid))[:MAX_VALID]))
            held_out = prepared(valid, tfidf.transform(valid.texts or ()))
        elif fine.valid_fraction:
            chosen = random.permutation(rows)[: min(round(fine.valid_fraction * len(data)), MAX_VALID, len(data) - 1)]
            rows, chosen = np.setdiff1d(rows, chosen), np.sort(chosen)
            held_out = prepared(data.take(chosen), words[chosen]) if len(chosen) else None
        if fine.documents is not None and fine.documents < len(rows):
            rows = np.sort(random.permutation(rows)[: fine.documents])
        if len(rows) == len(data):
            return prepared(data, words), held_out
        return prepared(data.take(rows), words[rows]), held_out

    def _recipe(self, sizes: list[int], validates: bool) -> LevelRecipe:
        from labelwise.nn.train.fine_tuning import LevelRecipe

        fine = self.config.fine_tuning
        trainings = fine.trainings(sizes)
        if not validates:
            trainings = tuple(without_validation(training, LEVEL_TRAINING) for training in trainings)
        cost = {"cost_positive": fine.bootstrap_cost, "cost_negative": fine.bootstrap_cost, "threshold": 0.0}
        return LevelRecipe(
            loss=fine.loss,
            weighted=fine.weighted,
            dropout=fine.dropout,
            bootstrap=fine.bootstrap,
            first_bootstrap="linear" if fine.first_head == "linear" else "none",
            bootstrap_solver=SolverConfig(**cost),
            matcher=None if fine.negatives == "teacher" else fine.negatives,
            vector_scale=self.config.vector_scale,
            trainings=trainings,
        )

    def _identity(self) -> str:
        """The settings that decide the fine-tuned encoder, except those of the loop, which adds them."""
        fields = deciding_fields(self.config, PART)
        fine = {name: value for name, value in fields["fine_tuning"].items() if name not in ("training", "keep_tree")}
        other = {name: fields[name] for name in ("encoder", "tfidf", "label_features", "vector_scale", "seed")}
        return fingerprint({**other, "fine_tuning": fine})

    def _preliminary_tree(self, data: Dataset, words: Any, job: Job) -> LabelTree:
        """The tree of the labels' words, from disk if an earlier attempt has saved it."""
        config, fine = self.config, self.config.fine_tuning
        path = None if job.folder is None else job.folder / "preliminary-tree"
        own = ""
        if path is not None:
            settings = [fine.leaf_size, fine.branching, fine.top_nodes, config.label_features, config.seed]
            labels = data.labels
            own = fingerprint(settings, words.indptr, words.indices, words.data, labels.indptr, labels.indices)
            held = find_finished(path, TREE_KIND, own)
            if held is not None:
                return LabelTree.from_tensors("tree", held.tensors(TREE_FILE), path)
        need = clustering_need(words, data.labels, config.label_features)
        check_memory(need, config.memory, bytes_of(words, data.labels), report=False)
        described = pifa(words, data.labels, keep=config.label_features)
        tree = LabelTree.balanced(
            described, leaf_size=fine.leaf_size, branching=fine.branching, seed=config.seed, top_nodes=fine.top_nodes
        )
        fine.trainings(self._level_sizes(tree))  # refuses wrong settings before anything is kept: they can be changed
        if path is not None:
            keep_finished(path, TREE_KIND, own, TREE_FILE, tree.to_tensors("tree"))
        return tree

    def _learn_words(self, texts: Strings) -> Any:
        known, self._words = self._words, None
        if known is None or known[0] is not texts:  # `label_documents` adds texts
            return super()._learn_words(texts)
        _, self.tfidf_, words = known
        return words

    def _level_sizes(self, tree: LabelTree) -> list[int]:
        """The number of nodes of each level that is fine-tuned."""
        fine = self.config.fine_tuning
        sizes = [size for size in tree.sizes if size <= fine.max_nodes]
        if not sizes:
            raise ConfigError(
                f"fine_tuning.max_nodes: the top level of the tree has {tree.sizes[0]:,} nodes, more than "
                f"{fine.max_nodes:,}; there is nothing to train"
            )
        return sizes

    def _given_tree(self, data: Dataset) -> LabelTree | None:
        tree, self._preliminary = self._preliminary, None
        return tree if self.config.fine_tuning.keep_tree else super()._given_tree(data)

    # --- files ---

    def _restore(self, tensors: Mapping[str, np.ndarray], path: Path) -> None:
        super()._restore(tensors, path)
        self.histories_ = []
