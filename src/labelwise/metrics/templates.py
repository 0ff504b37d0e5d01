"""Templates: classes that are given by several images, as in the IJB-B and IJB-C protocols.

A template holds images of several media (a photograph, or frames of one video). Vectors are weighted (by the score of
the face detector), averaged per media so that a long video counts as much as a photograph, summed over media and
normalised. Two templates are compared by their cosine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.errors import DataError

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
