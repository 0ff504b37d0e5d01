"""Predictions for a test set as one safetensors file, with the sums that a paired comparison needs.

The file names the labels that are predicted, so that it can be read without the model, and holds a hash of every
document, so that two files are only compared if they are of the same documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from labelwise.errors import DataError, ModelFormatError
from labelwise.io.folder import get_tensor, strings_from_tensors, strings_to_tensors
from labelwise.io.run_folder import PREDICTIONS
from labelwise.io.tensors import in_range, map_tensors, write_tensor_file
from labelwise.metrics.bootstrap import RESAMPLING_GROUPS, Difference, ResamplingSums, percentiles
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK


@dataclass(frozen=True, eq=False)
class SavedPredictions:
    """The best labels of each test document, and sums of the metrics for the method and for the baseline."""

    top: TopK
    documents: np.ndarray
    """Hash of each document (`data.document_hash`), uint64."""
    sums: ResamplingSums
    baseline: ResamplingSums | None = None

    def write(self, path: Path) -> None:
        """Write the file; a link is refused."""
        used, positions = np.unique(self.top.ids, return_inverse=True)
        padding = int(len(used) > 0 and used[0] == NO_LABEL)  # -1 comes first
        named = used[padding:]
        names = self.top.label_names[named] if self.top.label_names is not None else Strings.of(map(str, named))
        tensors = {
            "ids": (positions.reshape(self.top.ids.shape) - padding).astype(np.int32),
            "scores": self.top.scores.astype(np.float32),
            "documents": self.documents,
            **strings_to_tensors("labels", names),
            **_sums_to_tensors("", self.sums),
        }
        if self.baseline is not None:
            tensors |= _sums_to_tensors("baseline.", self.baseline)
        write_tensor_file(path, tensors)

    @classmethod
    def read(cls, path: Path) -> SavedPredictions:
        """Read the file; it may be untrusted, so everything is checked."""
        try:
            tensors = map_tensors(path)
            ids, scores, documents = (get_tensor(tensors, key, path) for key in ("ids", "scores", "documents"))
            names = strings_from_tensors("labels", tensors, path)
            sound = (
                ids.ndim == 2
                and ids.dtype == np.int32
                and scores.dtype == np.float32
                and documents.dtype == np.uint64
                and ids.shape == scores.shape
                and documents.shape == ids.shape[:1]
                and in_range(ids.reshape(-1) + 1, len(names) + 1)
                and not np.isnan(scores).any()
            )
            if not sound:
                raise DataError("damaged: ids, scores and documents do not match", path)
            sums = _sums_from_tensors("", tensors, path, len(documents))
            has_baseline = any(key.startswith("baseline.") for key in tensors)
            baseline = _sums_from_tensors("baseline.", tensors, path, len(documents)) if has_baseline else None
        except ModelFormatError as error:
            raise DataError(f"damaged: {error}") from None
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", path) from None
        return cls(TopK(ids, scores, names), documents, sums, baseline)


def _sums_to_tensors(prefix: str, sums: ResamplingSums) -> dict[str, np.ndarray]:
    return {
        **strings_to_tensors(f"{prefix}metrics", Strings.of(sums.metrics)),
        f"{prefix}numerators": sums.numerators,
        f"{prefix}denominators": sums.denominators,
        f"{prefix}truth": np.array([sums.truth], np.uint64),
    }


def _sums_from_tensors(prefix: str, tensors: dict[str, np.ndarray], path: Path, n_documents: int) -> ResamplingSums:
    metrics = tuple(strings_from_tensors(f"{prefix}metrics", tensors, path))
    numerators, denominators, truth = (
        get_tensor(tensors, f"{prefix}{part}", path) for part in ("numerators", "denominators", "truth")
    )
    shape = (len(metrics), min(n_documents, RESAMPLING_GROUPS))
    sound = (
        all(array.dtype == np.float64 and array.shape == shape for array in (numerators, denominators))
        and np.isfinite(numerators).all()
        and np.isfinite(denominators).all()
        and truth.dtype == np.uint64
        and truth.shape == (1,)
    )
    if not sound:
        raise DataError(f"damaged: the sums of {prefix or 'the '}metrics do not match", path)
    return ResamplingSums(metrics, numerators, denominators, n_documents, int(truth[0]))


# --- paired ---
# Scores of several runs on the same test documents, resampled together (paired bootstrap).
#
# Two intervals may overlap although one run is better on almost every resample of the documents, because hard documents
# are hard for both. The difference on the same resamples shows it.

REPEATS, SEED = 1000, 0


def saved_predictions(folder: Path) -> SavedPredictions | None:
    """The test predictions that a run has kept; None where it has none."""
    path = folder / PREDICTIONS
    return SavedPredictions.read(path) if path.is_file() else None


def same_documents(predictions: Sequence[SavedPredictions]) -> bool:
    """Whether all predictions are of the same documents, in the same order, with as many true labels each."""
    first = predictions[0]
    return all(
        one.sums.pairs_with(first.sums) and np.array_equal(one.documents, first.documents) for one in predictions[1:]
    )


class PairedScores:
    """Sums of the same documents by several methods, resampled alike."""

    def __init__(self, sums: Sequence[ResamplingSums]) -> None:
        self.sums = sums

    @cached_property
    def _samples(self) -> list[np.ndarray]:
        return [one.resampled(REPEATS, SEED) for one in self.sums]

    def difference(self, one: int, other: int, metric: str) -> Difference | None:
        """How much larger the metric of one is than that of the other; None if either lacks it."""
        if any(metric not in self.sums[index].metrics for index in (one, other)):
            return None
        columns = [self.sums[index].metrics.index(metric) for index in (one, other)]
        first, second = (self.sums[index].values()[column] for index, column in zip((one, other), columns, strict=True))
        low, high = percentiles(self._samples[one][:, columns[0]] - self._samples[other][:, columns[1]])
        return Difference(float(first - second), float(low), float(high))

    def interval(self, index: int, metric: str) -> tuple[float, float] | None:
        """The 95 % interval of a metric; None if the run lacks it."""
        if metric not in self.sums[index].metrics:
            return None
        low, high = percentiles(self._samples[index][:, self.sums[index].metrics.index(metric)])
        return float(low), float(high)
