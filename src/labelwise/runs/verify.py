"""Verifies a model of images: pairs of images, or pairs of templates, scored by the cosine of their vectors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.data.ijb import TemplateProtocol, align_face, is_protocol, read_protocol
from labelwise.data.image_files import open_image
from labelwise.data.pairs import Pairs, read_pairs
from labelwise.errors import ConfigError, DataError
from labelwise.methods.inputs import Documents
from labelwise.metrics.templates import pool_templates
from labelwise.metrics.verification import Verification, verify
from labelwise.parallel import run_all
from labelwise.progress import progress
from labelwise.registry import methods_that
from labelwise.strings import Strings

if TYPE_CHECKING:
    from labelwise.methods.base import Method

AT_ONCE = 1024
"""Images that are decoded and encoded at a time."""


@dataclass(frozen=True)
class VerificationRun:
    """The metrics of a model, and what they are of."""

    verification: Verification
    name: str
    """The pairs."""
    n_images: int
    n_templates: int | None
    seconds: float
    """Of encoding."""

    def to_dict(self) -> dict[str, Any]:
        """A dict that can be written as JSON, with the curve at its corners."""
        corners = self.verification.roc.corners()
        points = _few(len(corners.far))
        return {
            "pairs": self.name,
            "images": self.n_images,
            "templates": self.n_templates,
            "seconds": round(self.seconds, 3),
            **self.verification.to_dict(),
            "roc": {"far": corners.far[points].tolist(), "tar": corners.tar[points].tolist()},
        }


def verify_model(
    model: Method, pairs: str | Path, images: str | Path | None, rates: Sequence[float]
) -> VerificationRun:
    """Verify a model on a file of pairs, or on the folder of a template protocol."""
    if not model.verifies:
        raise ConfigError(f"{model.name} has no vectors to compare images by; {methods_that('verifies')} has")
    if is_protocol(pairs):
        if images is None:
            raise DataError("the protocol names images; give their folder (--images FOLDER)", pairs)
        return verify_templates(model, read_protocol(pairs), Path(images), rates)
    return verify_pairs(model, read_pairs(pairs, images), rates)


def verify_pairs(model: Method, pairs: Pairs, rates: Sequence[float]) -> VerificationRun:
    """Verify a model on pairs of images."""
    begin, parts = time.monotonic(), []
    with progress("encoding images", len(pairs.images)) as step:
        for start in range(0, len(pairs.images), AT_ONCE):
            some: Any = pairs.images[start : start + AT_ONCE]
            with step.part(len(some)):
                parts.append(model.image_vectors(_documents(model, some, f"{pairs.name}, image ", start)))
    seconds, vectors = time.monotonic() - begin, _of_norm_one(np.concatenate(parts))
    scores = np.einsum("ij,ij->i", vectors[pairs.first], vectors[pairs.second])
    found = verify(scores, pairs.same, pairs.folds, rates)
    return VerificationRun(found, pairs.name, len(vectors), None, seconds)


def _documents(model: Method, images: list[str] | list[bytes], name: str, start: int) -> Documents:
    """Paths as they are; encoded images are decoded, and must have equal sizes."""
    if isinstance(images[0], str):
        return Documents(paths=Strings.of(images))  # type: ignore[arg-type]
    most = model.config.image.max_pixels

    def pixels(index: int) -> np.ndarray:
        return np.asarray(open_image(images[index], 3, most, name=f"{name}{start + index:,}"))

    arrays = run_all(pixels, range(len(images)))
    for index, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            height, width = array.shape[:2]
            expected = " x ".join(map(str, arrays[0].shape[1::-1]))
            raise DataError(f"{name}{start + index:,} has {width} x {height} pixels, the others {expected}")
    return Documents(arrays=np.stack(arrays))


def verify_templates(
    model: Method, protocol: TemplateProtocol, images: Path, rates: Sequence[float]
) -> VerificationRun:
    """Verify a model on pairs of templates; faces are cut out of the images by their five points."""
    image, begin, parts = model.config.image, time.monotonic(), []

    def face(row: int) -> np.ndarray:
        whole = open_image(images / protocol.names[row], 3, image.max_pixels)
        return np.asarray(align_face(whole, protocol.points[row], image.short_side))

    with progress("encoding images", len(protocol.names)) as step:
        for start in range(0, len(protocol.names), AT_ONCE):
            rows = range(start, min(start + AT_ONCE, len(protocol.names)))
            with step.part(len(rows)):
                parts.append(model.image_vectors(Documents(arrays=np.stack(run_all(face, rows)))))
    seconds = time.monotonic() - begin
    templates = pool_templates(np.concatenate(parts), protocol.templates, protocol.media, protocol.scores)
    found = verify(templates.scores(protocol.first, protocol.second), protocol.same, None, rates)
    return VerificationRun(found, protocol.name, len(protocol.names), len(templates.ids), seconds)


def _of_norm_one(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _few(count: int, most: int = 2000) -> np.ndarray:
    """At most `most` indices, the first and the last included; dense at low false accept rates too."""
    if count <= most:
        return np.arange(count)
    even, low = np.linspace(0, count - 1, most // 2), np.geomspace(1, count - 1, most // 2)
    return np.unique(np.concatenate([even, low]).astype(np.int64))
