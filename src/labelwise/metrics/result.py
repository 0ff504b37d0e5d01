"""Evaluation: metric values of one set of predictions, with what is needed to interpret them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import ConfigError, DataError, ModelFormatError
from labelwise.io.folder import PREDICTIONS, get_tensor, strings_from_tensors, strings_to_tensors
from labelwise.io.tensors import in_range, map_tensors, write_tensor_file
from labelwise.metrics.formulas import RESAMPLING_GROUPS, GroupRow, Propensity, ratio
from labelwise.metrics.names import parse_metric
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK

# --- bootstrap ---
# Bootstrap confidence intervals over documents, without keeping the documents.
#
# Document i belongs to group i mod RESAMPLING_GROUPS, sums are kept per group, and whole groups are drawn with
# replacement. With no more documents than groups this is the ordinary bootstrap over documents. Numerator and
# denominator of a metric are drawn together, so ratios of sums get proper intervals as well.

LEVEL = 0.95
_REPEATS_PER_CHUNK = 256


@dataclass(frozen=True, eq=False)
class ResamplingSums:
    """Numerators and denominators of metrics, summed per resampling group: what intervals and differences need."""

    metrics: tuple[str, ...]
    numerators: np.ndarray
    """[metrics, groups], float64; groups beyond the number of documents are left out."""
    denominators: np.ndarray
    n_documents: int
    truth: int
    """Hash of the number of true labels per document, in order: equal for evaluations on the same documents."""

    def resampled(self, repeats: int, seed: int) -> np.ndarray:
        """Values of the metrics in each bootstrap sample, [repeats, metrics].

        With the same seed, sums of the same documents are resampled alike, so that differences are paired.
        """
        groups = self.numerators.shape[1]
        generator = np.random.default_rng(seed)
        samples = [np.empty((0, len(self.metrics)))]
        for start in range(0, repeats, _REPEATS_PER_CHUNK):
            times = np.zeros((min(_REPEATS_PER_CHUNK, repeats - start), groups))
            for row in times:
                row += np.bincount(generator.integers(0, groups, groups), minlength=groups)
            samples.append(ratio(times @ self.numerators.T, times @ self.denominators.T))
        return np.concatenate(samples)

    def values(self) -> np.ndarray:
        """The metrics of all documents."""
        return ratio(self.numerators.sum(1), self.denominators.sum(1))

    def intervals(self, repeats: int, seed: int) -> dict[str, tuple[float, float]]:
        """The 95 % percentile interval per metric."""
        low, high = percentiles(self.resampled(repeats, seed))
        return dict(zip(self.metrics, zip(low.tolist(), high.tolist(), strict=True), strict=True))

    def pairs_with(self, other: ResamplingSums) -> bool:
        """Whether both are of the same documents, as far as their true labels show."""
        return self.n_documents == other.n_documents and self.truth == other.truth


@dataclass(frozen=True)
class Difference:
    """How much larger one value is than another on the same documents, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def distinguishable(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def paired_differences(
    one: ResamplingSums, other: ResamplingSums, repeats: int = 1000, seed: int = 0
) -> dict[str, Difference]:
    """The metrics of one evaluation minus those of another on the same documents, by paired bootstrap."""
    shared = [metric for metric in one.metrics if metric in other.metrics]
    mine, theirs = ([sums.metrics.index(metric) for metric in shared] for sums in (one, other))
    values = one.values()[mine] - other.values()[theirs]
    low, high = percentiles(one.resampled(repeats, seed)[:, mine] - other.resampled(repeats, seed)[:, theirs])
    return {
        metric: Difference(*bounds)
        for metric, *bounds in zip(shared, values.tolist(), low.tolist(), high.tolist(), strict=True)
    }


def percentiles(samples: np.ndarray) -> np.ndarray:
    """Lower and upper end of the 95 % interval of each column."""
    edge = (1 - LEVEL) / 2
    return np.quantile(samples, [edge, 1 - edge], axis=0)


def check_repeats(repeats: int) -> int:
    """Validate the number of bootstrap repeats; 0 means no intervals."""
    if isinstance(repeats, bool) or not isinstance(repeats, int | np.integer) or repeats < 0:
        raise ConfigError(
            f"bootstrap is a number of repeats: 0 for no intervals, at least 200 for usable ones; got {repeats!r}"
        )
    return int(repeats)


TIE_RANGE_TO_SHOW = 0.001


@dataclass(frozen=True, repr=False)
class Evaluation:
    """What `evaluate` returns; ``evaluation["P@1"]`` is one value.

    Parameters
    ----------
    values
        Each metric as a fraction from 0 to 1.
    intervals
        95 % bootstrap intervals of the metrics that are ratios of sums over documents, if requested.
    groups
        Metrics per group of labels, most frequent labels first; empty without training counts.
    ties
        Lowest and highest P@k over all orders of predictions with equal scores.
    ties_cut_off
        Number of documents whose tie at rank k extends to the end of the list. If there are any, the range in
        `ties` is a lower bound.
    propensity
        A, B and N behind PSP and PSnDCG; None if neither was requested.
    n_documents, n_without_labels
        Documents evaluated, and how many of them have no label in the truth (these count as zero).
    n_cut
        Documents in which every listed prediction reaches the threshold, and further labels may reach it too; F1
        without k does not count those.
    n_unseen_labels
        Labels of the truth without a training document, or (without training counts) that are not among the
        predictions' label names.
    sums
        What `difference` needs; not part of `to_dict`.
    """

    values: dict[str, float]
    n_documents: int
    n_without_labels: int = 0
    n_unseen_labels: int = 0
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    groups: list[GroupRow] = field(default_factory=list)
    ties: dict[str, tuple[float, float]] = field(default_factory=dict)
    ties_cut_off: dict[str, int] = field(default_factory=dict)
    propensity: Propensity | None = None
    n_cut: int = 0
    sums: ResamplingSums | None = field(default=None, repr=False, compare=False)

    def __getitem__(self, name: str) -> float:
        return self.values[name if name in self.values else parse_metric(name).name]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}: {value:.4f}" for name, value in self.values.items())
        return f"Evaluation({values}; {self.n_documents:,} documents)"

    def __str__(self) -> str:
        lines = []
        for name, value in self.values.items():
            low, high = self.intervals.get(name, (None, None))
            between = "" if low is None or high is None else f"  [{100 * low:.2f}, {100 * high:.2f}]"
            lines.append(f"{name:<12}{100 * value:6.2f}{between}")
        if self.propensity is not None:
            used = self.propensity
            lines.append(f"propensity with A={used.a:g}, B={used.b:g}, N={used.n_documents:,}")
        lines.append(f"{self.n_documents:,} documents, {self.n_without_labels:,} of them without labels")
        return "\n".join(lines)

    def remarks(self) -> list[str]:
        """What to know about the values before relying on them, in words."""
        return tie_remarks(self.ties, self.ties_cut_off) + cut_remarks(self.n_cut)

    def difference(self, other: Evaluation, repeats: int = 1000, seed: int = 0) -> dict[str, Difference]:
        """These metrics minus those of another evaluation on the same documents, with 95 % intervals.

        The documents are resampled together for both (paired bootstrap), which shows differences that two overlapping
        intervals hide. Only metrics that are ratios of sums over documents are compared.
        """
        if self.sums is None or other.sums is None:
            raise DataError("an evaluation that was read from JSON cannot be compared; evaluate again")
        if not self.sums.pairs_with(other.sums):
            raise DataError(
                f"the evaluations are of different documents ({self.n_documents:,} and {other.n_documents:,}, or "
                "others in another order); a paired comparison needs the same documents in the same order"
            )
        if check_repeats(repeats) == 0:
            raise ConfigError("repeats: at least one bootstrap sample is needed, 1000 are usual")
        return paired_differences(self.sums, other.sums, repeats, seed)

    def to_dict(self) -> dict[str, Any]:
        """A dict that can be written as JSON."""
        plain = asdict(replace(self, sums=None))
        del plain["sums"]
        plain["groups"] = [
            row | {part: {str(k): value for k, value in row[part].items()} for part in ("contribution", "recall")}
            for row in plain["groups"]
        ]
        for part in ("intervals", "ties"):
            plain[part] = {name: list(pair) for name, pair in plain[part].items()}
        used = self.propensity
        plain["propensity"] = None if used is None else {"A": used.a, "B": used.b, "N": used.n_documents}
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Evaluation:
        """Inverse of `to_dict`."""
        try:
            used = plain["propensity"]
            return cls(
                values=dict(plain["values"]),
                n_documents=plain["n_documents"],
                n_without_labels=plain["n_without_labels"],
                n_unseen_labels=plain["n_unseen_labels"],
                intervals={name: _pair(pair) for name, pair in plain["intervals"].items()},
                groups=[_group(row) for row in plain["groups"]],
                ties={name: _pair(pair) for name, pair in plain["ties"].items()},
                ties_cut_off=dict(plain["ties_cut_off"]),
                propensity=None if used is None else Propensity(used["A"], used["B"], used["N"]),
                n_cut=plain.get("n_cut", 0),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"not an evaluation written by labelwise: {error!r}") from None


def _pair(pair: Any) -> tuple[float, float]:
    low, high = pair
    return low, high


def _group(row: Mapping[str, Any]) -> GroupRow:
    plain: dict[str, Any] = dict(row)
    for part in ("contribution", "recall"):
        plain[part] = {int(k): value for k, value in plain[part].items()}
    return GroupRow(**plain)


def tie_remarks(ties: Mapping[str, tuple[float, float] | None], cut_off: Mapping[str, int]) -> list[str]:
    """Which P@k depend on the order of equal scores, in words."""
    found = []
    for name, (low, high) in ((name, span) for name, span in ties.items() if span is not None):
        if high - low > TIE_RANGE_TO_SHOW:
            more = ", or more, as ties extend beyond the listed labels" if cut_off.get(name) else ""
            found.append(
                f"some labels of a document have equal scores: in another order {name} could be {100 * low:.2f} to "
                f"{100 * high:.2f}{more}"
            )
    return found


def cut_remarks(n_cut: int) -> list[str]:
    """In how many documents F1 at a threshold misses labels because the lists end, in words."""
    if not n_cut:
        return []
    return [
        f"in {n_cut:,} documents every listed prediction reaches the threshold, and so may labels beyond the list, "
        "which F1 does not count; predict with a larger k, or with the threshold and no k"
    ]


# --- saved predictions ---
# Predictions for a test set as one safetensors file, with the sums that a paired comparison needs.
#
# The file names the labels that are predicted, so that it can be read without the model, and holds a hash of every
# document, so that two files are only compared if they are of the same documents.


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
