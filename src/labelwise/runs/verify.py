"""Verifies a model of images: pairs of images, or pairs of templates, scored by the cosine of their vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.data.ijb import TemplateProtocol, is_protocol, read_protocol
from labelwise.data.image_files import open_image
from labelwise.data.pairs import Pairs, read_pairs
from labelwise.errors import ConfigError, DataError
from labelwise.metrics.templates import pool_templates
from labelwise.metrics.verification import Verification, verify
from labelwise.progress import progress
from labelwise.registry import methods_that

if TYPE_CHECKING:
    from PIL.Image import Image

    from labelwise.methods.base import Method

AT_ONCE = 1024
"""Images that are kept, at the size that the network reads, until their mirror images are encoded too."""


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
    config = model.config.image

    def image(index: int) -> Image:
        source = pairs.images[index]
        name = f"{pairs.name}, image {index:,}" if isinstance(source, bytes) else None
        return open_image(source, config.channels, config.max_pixels, config.shrink_to, name)

    vectors, seconds = _vectors(model, len(pairs.images), image)
    vectors = _of_norm_one(vectors)
    scores = np.einsum("ij,ij->i", vectors[pairs.first], vectors[pairs.second])
    found = verify(scores, pairs.same, pairs.folds, rates)
    return VerificationRun(found, pairs.name, len(vectors), None, seconds)


def verify_templates(
    model: Method, protocol: TemplateProtocol, images: Path, rates: Sequence[float]
) -> VerificationRun:
    """Verify a model on pairs of templates; faces are cut out of the images by their five points."""
    config = model.config.image

    def face(row: int) -> Image:
        whole = open_image(images / protocol.names[row], config.channels, config.max_pixels)
        return protocol.face(whole, row, config.short_side)

    vectors, seconds = _vectors(model, len(protocol.names), face)
    templates = pool_templates(vectors, protocol.templates, protocol.media, protocol.scores)
    found = verify(templates.scores(protocol.first, protocol.second), protocol.same, None, rates)
    return VerificationRun(found, protocol.name, len(protocol.names), len(templates.ids), seconds)


@dataclass(frozen=True)
class _Opened:
    """Some of the images that a function opens."""

    open: Callable[[int], Image]
    rows: range

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Image:
        return self.open(self.rows[index])


def _vectors(model: Method, count: int, image: Callable[[int], Image]) -> tuple[np.ndarray, float]:
    """Vectors of all images, and the seconds they took; images are kept at the size that the network reads."""
    from labelwise.encoders.images import ImageInputs

    begin, parts = time.monotonic(), []
    with progress("encoding images", count) as step:
        for start in range(0, count, AT_ONCE):
            some = _Opened(image, range(start, min(start + AT_ONCE, count)))
            with step.part(len(some)):
                parts.append(model.image_vectors(ImageInputs(model.config.image, images=some, keep=True)))
    return np.concatenate(parts), time.monotonic() - begin


def _of_norm_one(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _few(count: int, most: int = 2000) -> np.ndarray:
    """At most `most` indices, the first and the last included; dense at low false accept rates too."""
    if count <= most:
        return np.arange(count)
    even, low = np.linspace(0, count - 1, most // 2), np.geomspace(1, count - 1, most // 2)
    return np.unique(np.concatenate([even, low]).astype(np.int64))
