"""Make a trained model smaller, and compare it with the larger one on labelled documents."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.config import ConfigSource
from labelwise.data.dataset import Dataset
from labelwise.data.faces import (
    Pairs,
    TemplateProtocol,
    is_protocol,
    read_pairs,
    read_protocol,
)
from labelwise.data.images import open_image
from labelwise.errors import DataError
from labelwise.io.folder import CONFIG, is_run_folder, model_folder
from labelwise.metrics.verification import Verification, pool_templates, verify
from labelwise.model.card import Scores, update_card
from labelwise.model.fitted import require
from labelwise.model.method import load
from labelwise.runs.config import EvaluateSection, run_config
from labelwise.runs.data import load_run_data
from labelwise.runs.evaluate import evaluate_model
from labelwise.runs.folder import folder_bytes
from labelwise.runs.remarks import evaluation_remarks
from labelwise.runtime.progress import progress

if TYPE_CHECKING:
    from PIL.Image import Image

    from labelwise.model.method import Method


METRICS = ["P@1", "P@3", "P@5", "nDCG@5", "PSP@5"]
AT_THRESHOLD = "micro-F1"
WARM_UP = 200
MOSTLY = 0.5
"""Scores on documents of which more than this fraction was trained on do not become those of the smaller model."""


@dataclass(frozen=True)
class Size:
    """A model on disk, and how it does on documents, if there are any."""

    bytes: int
    values: dict[str, float | None]
    documents_per_second: float | None
    remarks: tuple[str, ...] = ()
    """What to know before relying on the values, such as that the model was trained on the documents."""


def shrink_model(
    model: str,
    target: Path,
    precision: str | None,
    threshold: float | None,
    data: Dataset | None,
    section: EvaluateSection,
    force: bool = False,
) -> tuple[Size, Size]:
    """Write the smaller model to the target; returns the sizes of both.

    With data that the model was not trained on, its card gets the new scores.
    """
    source = model_folder(model)
    smaller = load(source).shrink(precision=precision, threshold=threshold)
    before = _measured(source, data, section)  # before saving: the target may replace the source
    smaller.save(target, force)
    return before, _measured(target, data, section, keep=True)


def data_of_run(run: str) -> Dataset | None:
    """The test documents of a run, else its valid ones; None for a model folder."""
    if not is_run_folder(Path(run)):
        return None
    section = run_config(ConfigSource.from_file(Path(run) / CONFIG)).data
    if section.mapped:
        raise DataError("its rows are memory-mapped; --data gives documents to compare both models on")
    parts = load_run_data(section)
    return parts.test if parts.test is not None else parts.valid


def _measured(folder: Path, data: Dataset | None, section: EvaluateSection, keep: bool = False) -> Size:
    if data is None:
        return Size(folder_bytes(folder), {}, None)
    if len(data) == 0:
        raise DataError(f"{data.name}: there are no documents to compare the models on")
    model = load(folder)
    metrics = METRICS if model.threshold_ is None else [*METRICS, AT_THRESHOLD]
    chosen = section.model_copy(update={"metrics": metrics, "bootstrap": 0, "examples": 0})
    model.predict(data.take(slice(0, WARM_UP)))  # weights are read from the disk, and kernels compiled
    measured = evaluate_model(model, data, chosen)
    overlap = measured.overlap
    if keep and (overlap is None or overlap.seen <= MOSTLY * overlap.documents):
        update_card(folder, {"scores": Scores.of(measured.evaluation, measured.test)})
    rate = len(measured.test) / max(measured.seconds["predict"], 1e-9)
    values, remarks = measured.evaluation.to_dict()["values"], tuple(evaluation_remarks(measured))
    return Size(folder_bytes(folder), values, rate, remarks)


# --- verify ---
# Verifies a model of images: pairs of images, or pairs of templates, scored by the cosine of their vectors.

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
    require(model, "image_vectors")
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
    from labelwise.nn.images.inputs import ImageInputs

    begin, parts = time.monotonic(), []
    with progress("encoding images", count) as step:
        for start in range(0, count, AT_ONCE):
            some = _Opened(image, range(start, min(start + AT_ONCE, count)))
            with step.part(len(some)):
                images = ImageInputs(model.config.image, images=some, keep=True)
                parts.append(model.fitted_.image_vectors(images, model.config))
    return np.concatenate(parts), time.monotonic() - begin


def _of_norm_one(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _few(count: int, most: int = 2000) -> np.ndarray:
    """At most `most` indices, the first and the last included; dense at low false accept rates too."""
    if count <= most:
        return np.arange(count)
    even, low = np.linspace(0, count - 1, most // 2), np.geomspace(1, count - 1, most // 2)
    return np.unique(np.concatenate([even, low]).astype(np.int64))
