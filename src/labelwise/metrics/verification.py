"""Verification: do two images (texts, vectors) belong to the same class? Metrics of pairs with a score and an answer.

Scores are similarities, higher is more alike; pass the negative of a distance. Every threshold that separates two
scores is considered, not a grid of them, and tied scores are accepted or rejected together. A pair is accepted if its
score is at least the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labelwise.errors import ConfigError, DataError

RATES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""False accept rates at which the true accept rate is reported by default."""


@dataclass(frozen=True)
class Roc:
    """Rates at every threshold, from "accept nothing" (threshold infinity) to "accept all" (the lowest score)."""

    thresholds: np.ndarray
    """Descending."""
    false_accepts: np.ndarray
    """Pairs of different classes that are accepted."""
    true_accepts: np.ndarray
    """Pairs of one class that are accepted."""

    @property
    def n_same(self) -> int:
        """Pairs of one class."""
        return int(self.true_accepts[-1])

    @property
    def n_different(self) -> int:
        """Pairs of different classes."""
        return int(self.false_accepts[-1])

    @property
    def far(self) -> np.ndarray:
        """False accept rate at each threshold."""
        return self.false_accepts / self.n_different

    @property
    def tar(self) -> np.ndarray:
        """True accept rate at each threshold."""
        return self.true_accepts / self.n_same

    def auc(self) -> float:
        """Area under the curve: how often a pair of one class has the higher score, ties counting a half."""
        return float(np.trapezoid(self.tar, self.far))

    def equal_error_rate(self) -> float:
        """The rate at which as many pairs are wrongly accepted as wrongly rejected, between two thresholds linearly."""
        far, missed = self.far, 1.0 - self.tar
        last = int(np.argmax(far >= missed))  # exists: everything is accepted at the end
        before, after = last - 1, last
        rise = (far[after] - far[before]) - (missed[after] - missed[before])
        step = (missed[before] - far[before]) / rise
        return float(far[before] + step * (far[after] - far[before]))

    def corners(self) -> Roc:
        """The same curve without points on straight horizontal or vertical parts, for plots of many pairs."""
        if len(self.thresholds) < 3:
            return self
        flat = np.diff(self.true_accepts) == 0
        steep = np.diff(self.false_accepts) == 0
        inner = ~((flat[:-1] & flat[1:]) | (steep[:-1] & steep[1:]))
        keep = np.concatenate([[True], inner, [True]])
        return Roc(self.thresholds[keep], self.false_accepts[keep], self.true_accepts[keep])


@dataclass(frozen=True)
class TarAtFar:
    """The true accept rate at a false accept rate."""

    far: float
    tar: float | None
    """The highest true accept rate among thresholds whose false accept rate is at most `far`; None if there are too few
    pairs of different classes to measure it."""
    threshold: float | None
    """The lowest threshold that gives it; infinity if a tie of scores leaves none but to accept nothing."""
    reason: str | None = None
    """Why there is no value."""


@dataclass(frozen=True)
class FoldAccuracy:
    """Accuracy per fold, each at the threshold that is best on the other folds."""

    mean: float
    standard_error: float
    """Sample standard deviation of the folds' accuracies divided by the square root of their number."""
    accuracies: tuple[float, ...]
    thresholds: tuple[float, ...]


@dataclass(frozen=True)
class Verification:
    """What `verify` returns."""

    n_same: int
    n_different: int
    auc: float
    equal_error_rate: float
    rates: tuple[TarAtFar, ...]
    accuracy: FoldAccuracy | None
    """None without folds."""
    roc: Roc

    def to_dict(self) -> dict[str, Any]:
        """A dict that can be written as JSON, without the curve."""
        plain = {key: value for key, value in vars(self).items() if key != "roc"}
        plain["rates"] = [
            asdict(rate) | {"threshold": _finite(rate.threshold)} for rate in self.rates
        ]  # JSON has no infinity
        accuracy = self.accuracy
        plain["accuracy"] = accuracy and asdict(accuracy) | {"thresholds": [*map(_finite, accuracy.thresholds)]}
        return plain


def verify(scores: Any, same: Any, folds: Any = None, rates: Sequence[float] = RATES) -> Verification:
    """All metrics of scored pairs.

    Parameters
    ----------
    scores
        One similarity per pair.
    same
        Whether the pair is of one class.
    folds
        The fold of each pair, for `fold_accuracy`; None for no accuracy.
    rates
        False accept rates for `tar_at_far`.
    """
    roc = roc_curve(scores, same)
    accuracy = None if folds is None else fold_accuracy(scores, same, folds)
    return Verification(
        roc.n_same,
        roc.n_different,
        roc.auc(),
        roc.equal_error_rate(),
        tuple(tar_at_far(roc, rate) for rate in rates),
        accuracy,
        roc,
    )


def roc_curve(scores: Any, same: Any) -> Roc:
    """Accepted pairs of either type at every threshold."""
    scores, same = _checked(scores, same)
    for name, count in (("of one class", int(same.sum())), ("of different classes", int((~same).sum()))):
        if count == 0:
            raise DataError(f"none of the {len(same):,} pairs is {name}; a ROC curve needs pairs of both types")
    order = np.argsort(-scores, kind="stable")
    ordered, hits = scores[order], same[order]
    last = np.concatenate([np.flatnonzero(np.diff(ordered)), [len(ordered) - 1]])  # the last pair of each score
    true_accepts = np.cumsum(hits)[last]
    return Roc(
        np.concatenate([[np.inf], ordered[last]]),
        np.concatenate([[0], last + 1 - true_accepts]),
        np.concatenate([[0], true_accepts]),
    )


def tar_at_far(roc: Roc, rate: float) -> TarAtFar:
    """The true accept rate at a false accept rate; no value if not a single false accept would be allowed.

    With n pairs of different classes the lowest rate that can be measured is 1/n. Below, the answer is None with a
    reason, never that of a nearby rate.
    """
    if not 0 < rate <= 1:
        raise ConfigError(f"a false accept rate is above 0 and at most 1, got {rate!r}")
    allowed = math.floor(rate * roc.n_different * (1 + 1e-12))  # 1e-3 x 3,000 is 3, whatever rounding says
    if allowed < 1:
        needed = math.ceil(1 / rate * (1 - 1e-12))
        return TarAtFar(
            rate, None, None,
            f"needs at least {needed:,} pairs of different classes, there are {roc.n_different:,}",
        )  # fmt: skip
    point = int(np.searchsorted(roc.false_accepts, allowed, side="right")) - 1
    return TarAtFar(rate, float(roc.true_accepts[point] / roc.n_same), float(roc.thresholds[point]))


def fold_accuracy(scores: Any, same: Any, folds: Any) -> FoldAccuracy:
    """The k-fold accuracy of the LFW protocol: for each fold the threshold is chosen on all other folds.

    The threshold is halfway between two neighbouring scores; of several equally accurate ones the middle one is taken.
    """
    scores, same = _checked(scores, same)
    folds = np.asarray(folds)
    if folds.shape != scores.shape:
        raise DataError(f"{len(scores):,} pairs need a fold each, got an array of shape {folds.shape}")
    names = np.unique(folds)
    if len(names) < 2:
        raise DataError("the pairs are in one fold; a threshold needs other folds to be chosen on")
    accuracies, thresholds = [], []
    for name in names:
        inside = folds == name
        threshold = best_threshold(scores[~inside], same[~inside])
        thresholds.append(threshold)
        accuracies.append(float(np.mean((scores[inside] >= threshold) == same[inside])))
    error = float(np.std(accuracies, ddof=1) / math.sqrt(len(names)))
    return FoldAccuracy(float(np.mean(accuracies)), error, tuple(accuracies), tuple(thresholds))


def best_threshold(scores: Any, same: Any) -> float:
    """The threshold with the highest accuracy: halfway between two scores, or infinite where all or no pairs pass."""
    scores, same = _checked(scores, same)
    order = np.argsort(-scores, kind="stable")
    ordered, hits = scores[order], same[order]
    last = np.concatenate([[-1], np.flatnonzero(np.diff(ordered)), [len(ordered) - 1]])
    accepted = np.concatenate([[0], np.cumsum(hits)])[last + 1]
    right = accepted + ((~same).sum() - (last + 1 - accepted))
    ties = np.flatnonzero(right == right.max())
    chosen = int(ties[len(ties) // 2])
    above = np.inf if chosen == 0 else float(ordered[last[chosen]])
    below = -np.inf if chosen == len(last) - 1 else float(ordered[last[chosen] + 1])
    if math.isinf(above) or math.isinf(below):
        return above if math.isinf(above) else below
    between = below + (above - below) / 2
    return between if between > below else above  # neighbouring floats have nothing between them


def _checked(scores: Any, same: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores as floats and answers as booleans, of equal length."""
    scores, same = np.asarray(scores), np.asarray(same)
    if scores.ndim != 1 or scores.shape != same.shape or len(scores) == 0:
        raise DataError(f"one score and one answer per pair are needed, got shapes {scores.shape} and {same.shape}")
    if scores.dtype.kind not in "fiu":
        raise DataError(f"scores of pairs are numbers, got an array of {scores.dtype}")
    scores = scores.astype(np.float64)  # a threshold between two float32 would be rounded to one of them
    wrong = np.flatnonzero(~np.isfinite(scores))
    if len(wrong):
        raise DataError(f"the score of pair {wrong[0]:,} is {scores[wrong[0]]}; scores must be finite numbers")
    if same.dtype != bool:
        if not np.isin(same, (0, 1)).all():
            raise DataError("whether pairs are of one class is given as true and false, or 1 and 0")
        same = same.astype(bool)
    return scores, same


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# --- templates ---
# Templates: classes that are given by several images, as in the IJB-B and IJB-C protocols.
#
# A template holds images of several media (a photograph, or frames of one video). Vectors are weighted (by the score of
# the face detector), averaged per media so that a long video counts as much as a photograph, summed over media and
# normalised. Two templates are compared by their cosine.

PAIRS_AT_ONCE = 1 << 16
"""Pairs whose vectors are gathered at a time."""
IMAGES_AT_ONCE = 1 << 14
"""Images whose vectors are converted to double precision at a time."""


@dataclass(frozen=True)
class Templates:
    """One vector of norm 1 per template."""

    ids: np.ndarray
    """Ascending and distinct."""
    vectors: np.ndarray

    def rows(self, ids: Any) -> np.ndarray:
        """The row of each template id."""
        ids = np.asarray(ids)
        rows = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        unknown = np.flatnonzero(self.ids[rows] != ids)
        if len(unknown):
            raise DataError(
                f"pair {unknown[0]:,} names template {ids[unknown[0]]}, which no image belongs to; are the two files "
                "of the same protocol?"
            )
        return rows

    def scores(self, first: Any, second: Any) -> np.ndarray:
        """The cosines of pairs of templates, given by their ids."""
        one, other = self.rows(first), self.rows(second)
        if one.shape != other.shape:
            raise DataError(f"pairs of templates need two lists of equal length, got {one.shape} and {other.shape}")
        found = np.empty(len(one), np.float32)
        for begin in range(0, len(one), PAIRS_AT_ONCE):
            part = slice(begin, begin + PAIRS_AT_ONCE)
            found[part] = np.einsum("ij,ij->i", self.vectors[one[part]], self.vectors[other[part]])
        return found


def pool_templates(vectors: Any, templates: Any, media: Any, weights: Any = None) -> Templates:
    """One vector per template from vectors of images.

    Parameters
    ----------
    vectors
        One row per image, not normalised: the norm of a vector is a sign of the image's quality.
    templates, media
        Ids of the template and of the media of each image; media ids count within a template.
    weights
        Detector scores, by which vectors are multiplied; None for equal weights.
    """
    vectors = np.asarray(vectors)
    ids, groups = np.asarray(templates), np.asarray(media)
    if vectors.ndim != 2 or ids.shape != (len(vectors),) or groups.shape != ids.shape or len(ids) == 0:
        raise DataError(
            "templates need one vector, one template id and one media id per image, got shapes "
            f"{vectors.shape}, {ids.shape} and {groups.shape}"
        )
    if weights is not None and np.shape(weights) != ids.shape:
        raise DataError(f"{len(ids):,} images need a weight each, got an array of shape {np.shape(weights)}")
    weight = np.ones(len(ids)) if weights is None else np.array(weights, np.float64)
    names, template = np.unique(ids, return_inverse=True)
    _, medium = np.unique(np.stack([template, np.unique(groups, return_inverse=True)[1]]), axis=1, return_inverse=True)
    weight /= np.bincount(medium)[medium]
    sums = np.zeros((len(names), vectors.shape[1]))
    for begin in range(0, len(ids), IMAGES_AT_ONCE):
        part = slice(begin, begin + IMAGES_AT_ONCE)
        weighted = vectors[part] * weight[part, None]
        wrong = np.flatnonzero(~np.isfinite(weighted).all(1))
        if len(wrong):
            raise DataError(f"the vector or weight of image {begin + wrong[0]:,} is not finite")
        np.add.at(sums, template[part], weighted)
    norms = np.linalg.norm(sums, axis=1)
    if (norms == 0).any():
        raise DataError(
            f"template {names[int(np.argmin(norms))]} has the vector 0; it has no direction to compare with others"
        )
    return Templates(names, (sums / norms[:, None]).astype(np.float32))
