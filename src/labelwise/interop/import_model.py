"""Import a model that another toolkit has trained: the result is a `linear_tree` or `linear_flat` like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labelwise.codes.tree import LabelTree
from labelwise.data.label_space import check_distinct
from labelwise.errors import ConfigError, DataError
from labelwise.features.tfidf import Tfidf
from labelwise.interop.foreign_model import ForeignModel, check_model, linear_trees, smallest_weight
from labelwise.interop.omikuji_model import is_omikuji, read_omikuji
from labelwise.interop.pecos_model import is_pecos, read_pecos
from labelwise.linear.trees import LinearTrees
from labelwise.methods.base import load
from labelwise.methods.linear_base import LinearMethod
from labelwise.methods.linear_flat import LinearFlat
from labelwise.methods.linear_tree import LinearTree
from labelwise.strings import Strings


def read_foreign_model(source: str | Path) -> ForeignModel:
    """Read the folder of a model of PECOS or omikuji. Nothing in it is executed, and every index is checked."""
    folder = Path(source)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder")
    if is_omikuji(folder):
        model = read_omikuji(folder)
    elif is_pecos(folder):
        model = read_pecos(folder)
    else:
        raise ConfigError(
            f"{folder}: neither a model folder of omikuji (settings.json, tree0.cbor, ...) nor one of PECOS "
            "(XR-Linear: param.json and ranker/; text2text: xlinear_ensemble/; XR-Transformer: concat_model/)"
        )
    check_model(model, str(folder))
    return model


def import_model(model: ForeignModel, names: Strings | None = None, tfidf: Tfidf | None = None) -> LinearMethod:
    """The model in our format.

    Parameters
    ----------
    model
        What `read_foreign_model` returned.
    names
        Names of the labels. None: those in the folder, else their numbers.
    tfidf
        The TF-IDF whose features the model was trained on; it then reads texts. None: it reads features.
    """
    chosen = names if names is not None else model.names
    n_labels = model.n_labels
    if chosen is not None:
        n_labels = len(chosen)
        if n_labels < model.n_labels or (model.fixed_labels and n_labels != model.n_labels):
            least = "" if model.fixed_labels else "at least "
            raise DataError(f"{n_labels:,} label names are given, but the model has {least}{model.n_labels:,} labels")
        check_distinct(chosen, "label names")
    if tfidf is not None and tfidf.n_features != model.n_features:
        raise ConfigError(
            f"the TF-IDF has {tfidf.n_features:,} columns, but the model was trained on {model.n_features:,} features"
        )
    linear = linear_trees(model, n_labels)
    method = LinearFlat if _is_flat(linear) else LinearTree
    return method.of_trees(
        linear,
        _parameters(model, linear, tfidf),
        chosen if chosen is not None else Strings.numbers(n_labels),
        tfidf,
        f"imported from {model.origin}",
    )


def tfidf_of(path: str | Path) -> Tfidf:
    """The TF-IDF of a labelwise model."""
    tfidf = getattr(load(path), "tfidf_", None)
    if tfidf is None:
        raise ConfigError(f"{path}: this model has no TF-IDF; name a labelwise model that was trained on texts")
    return tfidf


def _is_flat(linear: LinearTrees) -> bool:
    return len(linear.trees) == 1 and linear.trees[0][0].depth == 1


def _parameters(model: ForeignModel, linear: LinearTrees, tfidf: Tfidf | None) -> dict[str, Any]:
    """The fields of our Config, as far as the folder and the trees show them."""
    parameters: dict[str, Any] = {**model.parameters, "precision": "float32"}
    parameters["solver"] = {**parameters.get("solver", {}), "threshold": smallest_weight(linear)}
    if tfidf is not None:
        parameters["tfidf"] = tfidf.config
        norm = parameters.pop("feature_norm", None)  # of TF-IDF, which has its own
        if norm not in (None, tfidf.config.norm):
            raise ConfigError(
                f"the model was trained on rows of {norm} norm, but the TF-IDF has the norm {tfidf.config.norm}; "
                "import it without a TF-IDF, and give it features"
            )
    if _is_flat(linear):
        of_trees = ("beam", "labels_per_tree", "ties", "tree")
        return {key: value for key, value in parameters.items() if key not in of_trees}
    trees = [tree for tree, _ in linear.trees]
    inner = [_widest(tree, level) for tree in trees for level in range(tree.depth - 1)]
    return parameters | {
        "trees": len(trees),
        "leaf_size": max(_widest(tree, tree.depth - 1) for tree in trees),
        "branching": max([2, *inner]),
    }


def _widest(tree: LabelTree, level: int) -> int:
    """The largest number of children of a node above a level."""
    offsets = tree.children_offsets(level)
    return int((offsets[1:] - offsets[:-1]).max())
