"""Explanations with names: from label paths to names of labels, nodes and features."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from labelwise.errors import ConfigError, DataError
from labelwise.formatting import printable
from labelwise.labelspace.tree import LabelPath, PathStep
from labelwise.model.explanation_text import Explanations, explanation_lines, short_explanation
from labelwise.model.fitted import require
from labelwise.model.inputs import Documents
from labelwise.model.predictions import label_ids
from labelwise.registry import can
from labelwise.topk import NO_LABEL, TopK

if TYPE_CHECKING:
    from PIL.Image import Image

    from labelwise.model.inputs import Documents
    from labelwise.model.method import Method


N_EXAMPLES = 3


@dataclass(frozen=True)
class Term:
    """A word (a feature) of the document and its contribution to the margin: value x weight."""

    name: str
    value: float
    weight: float
    contribution: float


@dataclass(frozen=True)
class TreePath:
    """The path to a label in one tree; ``bias + sum of terms' contributions + other == margin``."""

    steps: tuple[PathStep, ...]
    margin: float
    bias: float
    terms: tuple[Term, ...]
    """The terms with the largest absolute contributions in the label's own classifier, largest first."""
    other: float
    """The sum of all other contributions."""
    score: float
    """The score of the label in this tree, if reached."""
    reached: bool
    """Whether the beam search reached the label."""


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why a document gets a label, or not. Margin, bias and terms are means over the trees and add up as in one."""

    label: str
    text: str | None
    """The label's text, if the model has one."""
    score: float
    """As in `predict`: a probability if the model is calibrated."""
    predicted: bool
    """Whether the label was reached in any tree."""
    margin: float
    bias: float
    terms: tuple[Term, ...]
    other: float
    paths: tuple[TreePath, ...]
    """With scores before calibration."""
    calibrated: bool = False
    """Whether `score` is a probability."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"<Explanation: {short_explanation(self)}>"

    def __str__(self) -> str:
        return "\n".join(explanation_lines(self))


TERMS = 10
"""Words listed per label, unless a number is given."""


def explanations(
    model: Method, document: Any, labels: Sequence[str] | None, k: int, terms: int | Literal["auto"] | None
) -> Any:
    """What `Method.explain` returns."""
    model._check_fitted()
    if can(model, "pixels"):
        return pixel_maps(model, document, labels, k, CELLS if terms in (None, "auto") else int(terms))
    if hasattr(model.fitted_, "explanations"):
        return model.fitted_.explanations(model, document, labels, k, terms)
    terms = TERMS if terms == "auto" else terms
    if terms is not None and terms < 0:
        raise ConfigError(f"terms must be 0 or more, got {terms}")
    data, ids, scores = labels_to_explain(model, document, labels, k)
    require(model, "explain")
    trees = model.fitted_.explain(data, ids, model.config)
    results = Explanations()
    for index, label in enumerate(ids.tolist()):
        paths = [paths[index] for paths in trees]
        score = scores.get(label)
        results.append(_explanation(model, paths, _score(model, paths) if score is None else score, terms))
    return results


def labels_to_explain(
    model: Method, document: Any, labels: Sequence[str] | None, k: int
) -> tuple[Documents, np.ndarray, dict[int, float]]:
    """The one document, the ids of the labels to explain (None: the best k), and the scores of the best k by id."""
    model._check_fitted()
    data = model._as_documents(document)
    if len(data) != 1:
        raise DataError(f"explain takes one document, got {len(data):,}")
    top = model.predict(document, k)
    ids = top.ids[0][top.ids[0] != NO_LABEL]
    if labels is not None:
        given = [labels] if isinstance(labels, str) else labels
        ids = label_ids(given, model.label_names_, "labels", model.label_texts_)
    return data, ids, dict(zip(top.ids[0].tolist(), top.scores[0].tolist(), strict=True))


def _score(model: Method, paths: Sequence[LabelPath]) -> float:
    """The score of a label that is not among the best: the mean over the trees."""
    return calibrated_score(model, sum(path.given for path in paths) / len(paths))


def calibrated_score(model: Method, raw: float) -> float:
    """A score, as it is in a prediction with nothing beside it: a probability if the model is calibrated."""
    if model.calibration_ is None:
        return raw
    one = TopK(np.zeros((1, 1), np.int32), np.full((1, 1), raw, np.float32))
    return float(model.calibration_.apply(one).scores[0, 0])


def _explanation(model: Method, paths: Sequence[LabelPath], score: float, terms: int | None) -> Explanation:
    shown = tuple(_tree_path(model, path, terms) for path in paths)
    best, other = _terms(model, *mean_over_trees(paths), terms)
    bias = sum(path.bias for path in shown) / len(shown)
    margin = bias + sum(term.contribution for term in best) + other
    reached = any(path.reached for path in paths)
    return Explanation(
        *named(model, paths[0].label), score, reached, margin, bias, best, other, shown, model.calibration_ is not None
    )


def named(model: Method, label: int) -> tuple[str, str | None]:
    """The name of a label, and its text if the model has one."""
    return model.label_names_[label], None if model.label_texts_ is None else model.label_texts_[label]


def mean_over_trees(paths: Sequence[LabelPath]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, their values, and their weights as means over the trees."""
    features = np.concatenate([path.features for path in paths])
    values = np.concatenate([path.values for path in paths])
    weights = np.concatenate([path.weights for path in paths]) / len(paths)
    distinct, first, inverse = np.unique(features, return_index=True, return_inverse=True)
    summed, shown_values = np.bincount(inverse, weights, minlength=len(distinct)), values[first]
    if (values != shown_values[inverse]).any():  # values that differ between trees: means with the same products
        shown_values = np.bincount(inverse, values, len(distinct)) / np.bincount(inverse, minlength=len(distinct))
        summed = np.bincount(inverse, weights * values, len(distinct)) / shown_values
    return distinct, shown_values, summed


def _tree_path(model: Method, path: LabelPath, terms: int | None) -> TreePath:
    best, other = _terms(model, path.features, path.values, path.weights, terms)
    last = path.steps[-1]
    steps = tuple(
        replace(step, examples=_examples(model, labels)) for step, labels in zip(path.steps, path.below, strict=True)
    )
    return TreePath(steps, last.margin, last.bias, best, other, last.total, path.reached)


def _terms(
    model: Method, features: np.ndarray, values: np.ndarray, weights: np.ndarray, count: int | None
) -> tuple[tuple[Term, ...], float]:
    """The terms with the largest absolute contributions, and the sum of the others."""
    contributions = values * weights
    order = np.argsort(-np.abs(contributions), kind="stable")
    chosen = order[:count]
    names = feature_names(model, features[chosen])
    columns = zip(names, values[chosen].tolist(), weights[chosen].tolist(), contributions[chosen].tolist(), strict=True)
    return tuple(Term(*column) for column in columns), float(contributions[order[len(chosen) :]].sum())


def feature_names(model: Method, features: np.ndarray) -> list[str]:
    """The words of some features, or `feature 123` where the model does not know them."""
    fitted = model.fitted_
    names = fitted.names(features) if hasattr(fitted, "names") else None
    return names or [f"feature {number}" for number in features.tolist()]


def _examples(model: Method, labels: np.ndarray) -> tuple[str, ...]:
    """The most frequent of some labels, by text where known."""
    frequent = labels[np.argsort(-model.label_counts_[labels], kind="stable")[:N_EXAMPLES]]
    meanings = model.label_names_ if model.label_texts_ is None else model.label_texts_
    return tuple(meanings[int(label)] for label in frequent)


# --- top words ---
# The words that contributed most to each predicted label, for many documents at once.


def top_words(model: Method, documents: Any, top: TopK, count: int) -> list[list[list[str]]]:
    """For each document and each of its predicted labels, at most `count` words, the largest contribution first.

    Only words that speak for the label are listed, as in `explain`: with a positive contribution to the margin of the
    label's own classifier, as a mean over the trees.
    """
    check_explains(model, count)
    data = model._as_documents(documents)
    features, _ = contributions(model, data, top.ids, count)
    distinct, inverse = np.unique(features, return_inverse=True)
    known = distinct[distinct >= 0]
    names = [""] * (len(distinct) - len(known)) + (feature_names(model, known) if len(known) else [])
    words = inverse.reshape(features.shape).tolist()
    counts = (features >= 0).sum(2).tolist()
    filled = (top.ids != NO_LABEL).sum(1).tolist()
    return [
        [[names[word] for word in row[rank][: counts[document][rank]]] for rank in range(filled[document])]
        for document, row in enumerate(words)
    ]


def check_explains(model: Method, count: int) -> None:
    """Raise unless the method can explain predictions, and with so many words."""
    if count < 1:
        raise ConfigError(f"explain: 1 word or more per label is needed, got {count}")
    if can(model, "pixels"):
        raise ConfigError(f"{model.name} has no words to show; `labelwise explain` draws maps of pixels")
    require(model, "explain")


def contributions(model: Method, data: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """For each document and label the `count` features with the largest contributions, and the amounts."""
    if hasattr(model.fitted_, "contributions"):
        return model.fitted_.contributions(data, labels, count)
    return contributions_one_by_one(model, data, labels, count)


def contributions_one_by_one(
    model: Method, data: Documents, labels: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Features with the largest positive contributions [documents, k, count], -1 for none, and the amounts."""
    features = np.full((*labels.shape, count), -1, np.int64)
    amounts = np.zeros(features.shape)
    for document in range(len(labels)):
        ids = labels[document][labels[document] != NO_LABEL]
        if not len(ids):
            continue
        trees = model.fitted_.explain(data.take(slice(document, document + 1)), ids, model.config)
        for rank in range(len(ids)):
            columns, values, weights = mean_over_trees([paths[rank] for paths in trees])
            contributions = values * weights
            best = np.argsort(-contributions, kind="stable")[:count]
            best = best[contributions[best] > 0]
            features[document, rank, : len(best)] = columns[best]
            amounts[document, rank, : len(best)] = contributions[best]
    return features, amounts


# --- term spans ---
# Where in a text the words of its explanation are.

WORD = re.compile(r"\w+")
MOST = 200
"""Positions per term."""
Span = tuple[int, int]


def counted_words(model: Method, words: Sequence[str]) -> list[str]:
    """What each word of a text is counted as, '' if it is not."""
    fitted = model.fitted_
    return fitted.counted(words) if hasattr(fitted, "counted") else [word.lower() for word in words]


def term_spans(model: Method, text: str, terms: Sequence[Sequence[str]]) -> list[list[list[Span]]]:
    """For several lists of terms: the (start, end) of each occurrence of each term in the text.

    Words are compared by what the model counts them as, so that `libraries` is found by its stem; words that it drops
    may lie between those of a term.
    """
    tokens = [(match[0], match.start(), match.end()) for match in WORD.finditer(text)]
    counted = counted_words(model, [word for word, _, _ in tokens])
    kept = [(word, begin, end) for word, (_, begin, end) in zip(counted, tokens, strict=True) if word]
    first: dict[str, list[int]] = {}
    for index, (word, _, _) in enumerate(kept):
        first.setdefault(word, []).append(index)
    found: dict[str, list[Span]] = {}
    for term in {term for some in terms for term in some}:
        found[term] = _occurrences(model, term, kept, first) or _substrings(text, term)
    return [[found[term] for term in some] for some in terms]


def _occurrences(
    model: Method, term: str, kept: Sequence[tuple[str, int, int]], first: dict[str, list[int]]
) -> list[Span]:
    words = [word for word in counted_words(model, term.split()) if word]
    if not words:
        return []
    spans = []
    for index in first.get(words[0], ()):
        some = kept[index : index + len(words)]
        if [word for word, _, _ in some] == words:
            spans.append((some[0][1], some[-1][2]))
    return spans[:MOST]


def _substrings(text: str, term: str) -> list[Span]:
    """Occurrences of a term of characters."""
    wanted, lowered = term.strip().lower(), text.lower()
    if not wanted or len(lowered) != len(text):  # letters whose lower case is longer would shift the positions
        return []
    spans, begin = [], lowered.find(wanted)
    while begin >= 0 and len(spans) < MOST:
        spans.append((begin, begin + len(wanted)))
        begin = lowered.find(wanted, begin + len(wanted))
    return spans


# --- pixel map ---
# Explanations of images: which parts of the image a label's score depends on.

CELLS, MAX_CELLS = 8, 32
"""Parts per side of an image that are covered one after the other to explain a label."""
SHADES = " .:-=+*#%@"
SIDE = 256
"""Pixels of the side of a drawn map."""


@dataclass(frozen=True, repr=False, eq=False)
class PixelMap:
    """How much a label's score falls when each part of the image is covered."""

    label: str
    text: str | None
    """The label's text, if the model has one."""
    score: float
    """As in `predict`: a probability if the model is calibrated."""
    predicted: bool
    """Whether the label is among the predicted ones."""
    falls: np.ndarray
    """Fall of the logarithm of the score, [rows, columns]; negative where the score rises."""
    pixels: np.ndarray
    """The image as the network reads it, uint8 [height, width, channels]."""
    calibrated: bool = False
    """Whether `score` is a probability; `falls` are those of the score before calibration."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        about = {"label": self.label, "text": self.text, "score": self.score, "predicted": self.predicted}
        about["calibrated"] = self.calibrated
        return {**about, "falls": [[round(float(fall), 5) for fall in row] for row in self.falls]}

    def __repr__(self) -> str:
        return f"<PixelMap: {self.label} {self.score:.3g}>"

    def __str__(self) -> str:
        """The label, and the map in characters: the darker, the more the score depends on the part."""
        title = f"{self.text} ({self.label})" if self.text and self.text != self.label else self.label
        kind, strength = "probability" if self.calibrated else "score", self.strength()
        shown = ["".join(2 * SHADES[round(9 * value)] for value in row) for row in strength.tolist()]
        row, column = np.unravel_index(int(np.argmax(self.falls)), self.falls.shape)
        where = f"row {row + 1}, column {column + 1} of {self.falls.shape[0]} x {self.falls.shape[1]}"
        before = " before calibration" if self.calibrated else ""
        largest = f"without {where} the score{before} is multiplied by {np.exp(-self.falls.max()):.2g}"
        return "\n".join(
            [printable(f"{title}  {kind} {self.score:.3g}"), *(f"  |{line}|" for line in shown), f"  {largest}"]
        )

    def strength(self) -> np.ndarray:
        """Falls from 0 to 1; parts whose cover raises the score count as 0."""
        positive = np.maximum(self.falls, 0)
        return positive / positive.max() if positive.max() > 0 else positive

    def plain(self) -> Image:
        """The image alone."""
        from PIL import Image

        return Image.fromarray(np.ascontiguousarray(self.pixels if self.pixels.shape[2] == 3 else self.pixels[:, :, 0]))

    def image(self, side: int = SIDE) -> Image:
        """The image in grey with the map over it in red."""
        from PIL import Image

        strength = Image.fromarray(np.rint(255 * self.strength()).astype(np.uint8))
        mask = strength.resize((side, side), Image.Resampling.BICUBIC).point(lambda value: round(value * 0.6))
        grey = self.plain().convert("L").convert("RGB")
        shown = grey.resize((side, side), Image.Resampling.NEAREST if side > grey.width else Image.Resampling.BILINEAR)
        shown.paste((220, 0, 0), (0, 0), mask)
        return shown

    def data_uri(self, side: int = 96) -> str:
        """The drawn map as the address of an HTML image."""
        content = io.BytesIO()
        self.image(side).save(content, "PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()


def pixel_maps(model: Method, document: Any, labels: Sequence[str] | None, k: int, cells: int) -> Explanations:
    """Which parts of one image, of cells x cells, the scores of its labels depend on."""
    most = min(MAX_CELLS, model.config.image.size)
    if not 1 <= cells <= most:
        raise ConfigError(f"terms: from 1 to {most} parts per side of the image can be covered, got {cells}")
    data, ids, scores = labels_to_explain(model, document, labels, k)
    maps, shown = model.fitted_.pixels(data, ids, cells, model.config)
    missing = [label for label in ids.tolist() if label not in scores]
    if missing:
        every = model.predict(document, len(model.label_names_))
        scores = dict(zip(every.ids[0].tolist(), every.scores[0].tolist(), strict=True))
    calibrated = model.calibration_ is not None
    return Explanations(
        PixelMap(*named(model, label), scores.get(label, 0.0), label not in missing, falls, shown, calibrated)
        for label, falls in zip(ids.tolist(), maps, strict=True)
    )
