"""Import a model that another toolkit has trained: the result is a `linear_tree` or `linear_flat` like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.csr import check_distinct
from labelwise.data.formats.pecos import load_npz_sparse
from labelwise.errors import ConfigError, DataError, did_you_mean
from labelwise.features.featurizers import Given, Words
from labelwise.features.tfidf import Tfidf
from labelwise.interop.foreign_model import (
    MAX_FEATURES,
    NO_PARENT,
    ForeignLevel,
    ForeignModel,
    ForeignTree,
    check_model,
    linear_trees,
    smallest_weight,
)
from labelwise.interop.json_file import read_json, read_json_object
from labelwise.interop.omikuji import is_omikuji, read_omikuji
from labelwise.labelspace.tree import MAX_LEVELS, LabelTree
from labelwise.linear.model import LinearModel
from labelwise.linear.search import POST_PROCESSORS, check_combination
from labelwise.linear.trees import LinearTrees
from labelwise.methods.linear_flat import LinearFlat
from labelwise.methods.linear_tree import LinearTree
from labelwise.model.card import CORE_PACKAGES, Card, TrainingData, now
from labelwise.model.fitted import ModelLabels
from labelwise.model.folder import SavedModel
from labelwise.model.inputs import FeatureWidth
from labelwise.model.method import Method, load
from labelwise.registry import installed_versions
from labelwise.strings import Strings

# --- pecos model ---
# Model folders of PECOS: XR-Linear, the ensembles of its text2text application, and the ranker of XR-Transformer.
#
# An XR-Linear folder holds `ranker/<level>.model/` from the top level on: `W.npz` [features + 1, nodes] (the last row
# belongs to a constant feature, unless `bias` is not above 0), `C.npz` [nodes, nodes above] with the parent of each
# node, and `param.json` with `bias` and `pred_kwargs`: post-processor and number of nodes that are kept, which of the
# last level is the default number of labels. An inner node's score is combined with its parent's as ours are. Children
# are listed parent by parent, the best first, and of equal scores the first in the list wins: with parents that tie as
# well, which saturated scores do, this is the position in the tree (`ties: tree`).
#
# Vectorizers are not imported: PECOS's TF-IDF splits texts at blanks only and keeps case and punctuation, which ours
# does not, and those of scikit-learn are pickled.

PARAMETERS, RANKER, ENSEMBLE, CONCATENATED = "param.json", "ranker", "xlinear_ensemble", "concat_model"
ITEMS = "output_items.json"
OWN = [name for name in POST_PROCESSORS if "smooth" in name]
OURS = {**{name.replace("_", "-"): name for name in POST_PROCESSORS if name not in ("none", *OWN)}, "noop": "none"}
"""PECOS's post-processors to ours; it does not have those in `OWN`."""
FEATURES_NOTE = "the vectorizer is not imported: give the model the features that PECOS's vectorizer computes"
CONCATENATED_NOTE = (
    "this is the ranker of an XR-Transformer: give it the TF-IDF features followed by the encoder's vectors of unit "
    "length, as XR-Transformer does"
)


def is_pecos(folder: Path) -> bool:
    """Whether a folder looks like one of PECOS."""
    return (folder / ENSEMBLE).is_dir() or _ranker_folder(folder) is not None


def read_pecos(folder: Path) -> ForeignModel:
    """Read a model folder."""
    if (folder / ENSEMBLE).is_dir():
        return _read_ensemble(folder)
    ranker = _ranker_folder(folder)
    assert ranker is not None
    inside = ranker.parent.name == CONCATENATED or ranker.name == CONCATENATED
    model = _Model(ranker)
    return ForeignModel(
        "PECOS XR-Transformer" if inside else "PECOS XR-Linear",
        [model.tree],
        model.n_features,
        model.n_labels,
        {**model.parameters, "ties": "tree"},
        fixed_labels=True,
        notes=(CONCATENATED_NOTE,) if inside else (),
    )


def _ranker_folder(folder: Path) -> Path | None:
    """The folder with the levels, in a model folder or in that of an XR-Transformer."""
    for inside in (folder, folder / RANKER, folder / CONCATENATED / RANKER, folder / CONCATENATED):
        if (inside / PARAMETERS).is_file() and (inside / "0.model").is_dir():
            return inside
    return None


def _read_ensemble(folder: Path) -> ForeignModel:
    """A text2text model: XR-Linear models whose scores are averaged, with the names of the labels."""
    count = read_json_object(folder / ENSEMBLE / "config.json").get("nr_ensembles")
    if type(count) is not int or not 0 < count <= 10_000:
        raise DataError("the number of models `nr_ensembles` is needed", folder / ENSEMBLE / "config.json")
    models = []
    for number in range(count):
        ranker = _ranker_folder(folder / ENSEMBLE / str(number))
        if ranker is None:
            raise DataError("there is no XR-Linear model in this folder", folder / ENSEMBLE / str(number))
        models.append(_Model(ranker))
    first = models[0]
    for model in models[1:]:
        if model.search != first.search or (model.n_features, model.n_labels) != (first.n_features, first.n_labels):
            raise ConfigError(
                f"{model.folder}: its post-processors, beams or sizes differ from those of the first model; "
                "import the models one by one"
            )
    if count > 1 and not first.product:
        raise ConfigError(
            f"{folder}: the scores of these {count} models are not products of probabilities, and PECOS's average of "
            f"others counts missing labels as 0, which ours does not; import the models in {ENSEMBLE} one by one"
        )
    items = read_json(folder / ITEMS)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise DataError("a list of label names is needed", folder / ITEMS)
    return ForeignModel(
        "PECOS text2text",
        [model.tree for model in models],
        first.n_features,
        first.n_labels,
        first.parameters,
        Strings.of(items),
        fixed_labels=True,
        notes=(FEATURES_NOTE,),
    )


class _Model:
    """One XR-Linear model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = read_json_object(folder / PARAMETERS)
        if about.get("is_mmap"):
            raise ConfigError(
                f"{folder}: this model was compiled for memory-mapping; import the folder it was compiled from"
            )
        depth = about.get("depth")
        if type(depth) is not int or not 0 < depth <= MAX_LEVELS:
            raise DataError(f"`depth` has to be a number of levels from 1 to {MAX_LEVELS}", folder / PARAMETERS)
        read = [_Level(folder / f"{level}.model") for level in range(depth)]
        self.n_features = read[0].weights.shape[0]
        self.n_labels = read[-1].weights.shape[1]
        levels = [ForeignLevel(one.parents, one.weights, one.bias) for one in read]
        self.tree = ForeignTree(levels, np.arange(self.n_labels))
        names, beams = tuple(one.post_processor for one in read), tuple(one.kept for one in read[:-1])
        try:
            check_combination(names)
        except ConfigError as error:
            raise ConfigError(f"{folder}: {error}") from None
        self.search: dict[str, Any] = {"post_processor": names[0] if len(set(names)) == 1 else names}
        if beams:
            self.search["beam"] = beams[0] if len(set(beams)) == 1 else beams
        self.product = POST_PROCESSORS[names[-1]][2]
        self.parameters: dict[str, Any] = {**self.search, "solver": {"bias": read[-1].constant}}


class _Level:
    """One level of an XR-Linear model."""

    def __init__(self, folder: Path) -> None:
        about = read_json_object(folder / PARAMETERS)
        constant, search = about.get("bias"), about.get("pred_kwargs")
        if not isinstance(constant, int | float) or isinstance(constant, bool) or not -1e6 <= constant <= 1e6:
            raise DataError("the number `bias` is needed", folder / PARAMETERS)
        self.constant = max(float(constant), 0.0)
        search = search if isinstance(search, dict) else about
        name, kept = search.get("post_processor"), search.get("only_topk")
        if not isinstance(name, str) or name not in OURS:
            raise DataError(f"post_processor {name!r}: {did_you_mean(str(name), OURS)}", folder / PARAMETERS)
        if type(kept) is not int or not 0 < kept < 1 << 31:
            raise DataError("the number of kept nodes `only_topk` is needed", folder / PARAMETERS)
        self.post_processor, self.kept = OURS[name], kept
        weights, parents = (load_npz_sparse(folder / f"{part}.npz") for part in ("W", "C"))
        if weights.format != "csc" or parents.format != "csc":  # others could announce rows and columns they lack
            raise DataError("W.npz and C.npz have to be in the format csc, in which PECOS writes them", folder)
        if not 1 < weights.shape[0] <= MAX_FEATURES:
            raise DataError(f"{weights.shape[0]:,} features; at most {MAX_FEATURES:,} can be imported", folder)
        if parents.shape[0] != weights.shape[1]:
            raise DataError(f"C.npz has {parents.shape[0]:,} nodes, W.npz {weights.shape[1]:,}", folder)
        self.parents = _parents(parents, folder / "C.npz")
        weights = sparse.csc_array(weights, dtype=np.float32)
        weights.sum_duplicates()
        if self.constant > 0:
            self.bias = weights[[-1]].toarray().ravel() * np.float32(self.constant)
            weights = weights[:-1]
        else:
            self.bias = np.zeros(weights.shape[1], np.float32)
        self.weights = weights


def _parents(matrix: Any, path: Path) -> np.ndarray:
    """The parent of each node, from a matrix [nodes, nodes above] with at most one entry per row."""
    entries = matrix.tocoo()
    parents = np.full(matrix.shape[0], NO_PARENT)
    if len(entries.row) and np.bincount(entries.row).max() > 1:
        raise DataError("a node has more than one parent, which is not supported", path)
    parents[entries.row] = entries.col
    return parents


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


def import_model(model: ForeignModel, names: Strings | None = None, tfidf: Tfidf | None = None) -> Method:
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
    config = method(**_parameters(model, linear, tfidf)).config
    names = chosen if chosen is not None else Strings.numbers(n_labels)
    features = Given(config.feature_norm, model.n_features) if tfidf is None else Words(tfidf)
    kind, width = ("features", FeatureWidth(model.n_features)) if tfidf is None else ("texts", None)
    fitted, labels = LinearModel(features, linear), ModelLabels(names, None, np.zeros(n_labels, np.int64))
    about = TrainingData(labels=n_labels)
    card = Card(created=now(), data=about, packages=installed_versions(CORE_PACKAGES))
    card = card.with_change(f"imported from {model.origin}")
    return method.of(fitted, SavedModel(config, labels, kind, 0, width, fitted.tensors(), None, None, card))


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
