"""Which nodes of a level are likely for a document, by linear classifiers on its words and its vector together.

Whenever the encoder has changed, the classifiers of all levels down to that one are trained; upper levels are small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labelwise.codes.tree import LabelTree
from labelwise.data.blocks import Blocks
from labelwise.features.feature_order import FeatureOrder
from labelwise.linear.beam import beam_search
from labelwise.linear.pass_limit import SolverPace
from labelwise.linear.settings import SearchSettings, TrainingSettings
from labelwise.linear.train_tree import TrainingExamples, TreeTime, train_tree
from labelwise.progress import stage
from labelwise.time_budget import TimeBudget
from labelwise.topk import TopK

MATCHER = "the matcher"


def matched_nodes(
    tree: LabelTree,
    targets: Sequence[Any],
    features: Mapping[str, Blocks],
    k: int,
    seed: int,
    budget: TimeBudget,
) -> dict[str, TopK]:
    """The k best nodes of a level for the documents of each split; classifiers are trained on the split `train`.

    `targets` are those of the training documents at each level, down to the one whose nodes are ranked.
    """
    depth = len(targets)
    width = tree.sizes[depth - 1]
    top = LabelTree(tree.parents[:depth], np.arange(width, dtype=np.int32))
    ordered = FeatureOrder.learn(features["train"])
    settings = TrainingSettings(search=SearchSettings(beam=k), negatives="matcher")
    examples = TrainingExamples(ordered.rows, targets[-1])
    with stage(MATCHER):
        levels = train_tree(examples, top, targets, settings, seed, time=TreeTime(budget, SolverPace(ordered.rows)))
    ranked = {}
    for name, part in features.items():
        rows = ordered.rows if name == "train" else ordered.order.rows(part)
        ranked[name] = beam_search(rows, levels, np.arange(width), k, min(k, width), settings.search.post_processor)
    return ranked
