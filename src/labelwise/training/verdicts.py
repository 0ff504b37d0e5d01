"""Diagnosis of a training: readings, and a verdict with its reason and remedy. Does not import torch.

Losses are compared with the floor: the loss of the best model that ignores the documents. For cross-entropy it is the
entropy of the label marginals. Every run with zero initial biases first falls to it; good ones continue below it, some
stay there for long (the plateau), and some for ever, because all document vectors have become equal (collapse).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labelwise.networks.settings import VerdictName

BELOW = 0.95
"""A loss below this fraction of the floor means that the model uses the documents."""
NEAR = 1.10
"""A loss below this multiple of the floor is at the floor."""
ONE_POINT = 1e-4
"""Vectors whose mean cosine is nearer to 1 than this are one point; runs at 1e-3 have recovered."""
FALLING = 0.98
"""A loss below this fraction of the previous one is falling."""
SLOW = 5e-5
"""Updates that never exceed this fraction of the weights are too small for a usual training."""
DIVERGED = 1.5
"""A loss above this multiple of both the first one and the floor has diverged."""
SAME_FOR_ALL = 0.9
"""Fraction of documents with the same first label from which on the model ignores the documents."""


@dataclass(frozen=True)
class Reading:
    """Measurements of a model during training, always on the same documents (the probe)."""

    loss: float
    """Loss on the probe."""
    floor: float
    """Lowest loss of scores that are equal for all documents; where that is unknown, the loss before the first step."""
    cosine: float
    """Mean cosine between the vectors of two documents."""
    effective_rank: float
    """Effective rank of the vectors: exp of the entropy of the normalised squared singular values; 1 for one point."""
    distinct: int
    """Number of different first labels."""
    commonest: float
    """Fraction of documents with the most common first label."""
    attention_entropy: tuple[float, ...] = ()
    """Per layer the mean entropy of attention over ln(tokens); 1 is uniform."""
    gradient: float = math.nan
    """Gradient norm before clipping."""
    update_ratio: float = math.nan
    """Norm of a weight matrix's update over that of the matrix, the median over matrices."""
    gradient_over_eps: float = math.nan
    """Size of a gradient entry over the optimiser's eps; below 1 eps decides the step."""
    pull_over_gradient: float = math.nan
    """Size of the L2 term over that of the gradient; above 1 the L2 term dominates the step."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values; unknown and non-finite values, which JSON lacks, are left out."""
        values = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}
        return {key: v for key, v in values.items() if v != [] and not (isinstance(v, float) and not math.isfinite(v))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reading:
        """From what `to_dict` returned."""
        known: dict[str, Any] = dict.fromkeys(("loss", "cosine", "effective_rank"), math.nan)
        known |= {**values, "attention_entropy": tuple(values.get("attention_entropy", ()))}
        return cls(**known)


@dataclass(frozen=True)
class Verdict:
    """A diagnosis: its name, the reason and a remedy."""

    name: VerdictName
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" + (f". {self.remedy}" if self.remedy else "")


def diagnose(readings: Sequence[Reading]) -> Verdict:
    """Diagnose a training from all readings; the first one is from before the first step."""
    now = readings[-1]
    if not math.isfinite(now.loss) or now.loss > DIVERGED * max(readings[0].loss, now.floor):
        return Verdict(
            "diverged",
            f"the loss is {_number(now.loss)}, it was {_number(readings[0].loss)} at the start",
            "Use a rate ten times lower, a warm-up, or clip gradients",
        )
    one_point = 1 - now.cosine < ONE_POINT and not _as_at_the_start(readings)
    # independent of the loss: the probe may be easier than the floor's documents
    if one_point and now.commonest >= SAME_FOR_ALL:
        return _collapsed(now)
    best = min(reading.loss for reading in readings if math.isfinite(reading.loss))
    if best < BELOW * now.floor and now.loss > DIVERGED * best:
        return Verdict(
            "diverged",
            f"the loss is {_of_floor(now)} of the floor, it was {best / now.floor:.0%}: what was learned gets lost",
            "Use a rate ten times lower, or a warm-up",
        )
    if now.loss < BELOW * now.floor:
        return Verdict("healthy", f"the loss is {_of_floor(now)} of the floor, {now.distinct} different first labels")
    if one_point:
        return _collapsed(now)
    return _above_or_at_the_floor(readings)


def _as_at_the_start(readings: Sequence[Reading]) -> bool:
    """Whether vectors have been one point since initialisation with random weights, and have not moved closer."""
    spreads = [1 - reading.cosine for reading in readings]
    return max(spreads) < ONE_POINT and spreads[-1] > spreads[0] / 2


def _collapsed(now: Reading) -> Verdict:
    where = (
        f"the vectors of all documents are one point (mean cosine {now.cosine:.4f}), loss {_of_floor(now)} of the floor"
    )
    if now.pull_over_gradient > 1:
        return Verdict("collapsed", f"{where}; dominated by L2: {_pull(now)}", _L2_REMEDY)
    return Verdict(
        "collapsed",
        where,
        "It will not recover. Start again with a rate ten times lower and a warm-up over a tenth of the steps",
    )


def _above_or_at_the_floor(readings: Sequence[Reading]) -> Verdict:
    now, before = readings[-1], readings[-2] if len(readings) > 1 else readings[-1]
    where = f"the loss is {_of_floor(now)} of the floor"
    if now.pull_over_gradient > 1:
        name: VerdictName = "collapsed" if now.commonest >= SAME_FOR_ALL else "under-trained"
        return Verdict(name, f"{where}; dominated by L2: {_pull(now)}", _L2_REMEDY)
    if now.gradient_over_eps < 1:
        return Verdict(
            "under-trained",
            f"{where}; eps-limited: the optimiser's eps decides steps, a gradient is {now.gradient_over_eps:.1g} of it",
            "Sum the loss over labels instead of taking the mean, lower eps, or raise the rate",
        )
    fastest = max((r.update_ratio for r in readings if not math.isnan(r.update_ratio)), default=math.nan)
    if fastest < SLOW:
        return Verdict(
            "under-trained",
            f"{where}; updates are at most {fastest:.1g} of the weights",
            "Use a rate ten times higher",
        )
    if 1 - now.cosine < ONE_POINT:
        return Verdict(
            "under-trained",
            f"{where}; the vectors of all documents are one point (mean cosine {now.cosine:.4f}), as at the start",
            "Continue: with random weights they separate slowly. If they do not, change the rate and add a warm-up",
        )
    if now.loss > NEAR * now.floor:
        how, remedy = _movement(now.loss / before.loss)
        return Verdict("under-trained", f"{where} and {how}", remedy)
    same = f"{now.commonest:.0%} of the documents have the same first label"
    return Verdict(
        "on the plateau",
        f"{where}, vectors still differ (mean cosine {now.cosine:.3f}), {same}",
        "Continue: good runs pass through it. If it lasts, raise the head's rate and start biases at the prior",
    )


def _movement(ratio: float) -> tuple[str, str]:
    """How a loss above the floor changes, and the remedy."""
    if ratio < FALLING:
        return "falling", "Continue, or start biases at the prior"
    if ratio < 1:
        return "hardly falling", "Use a rate ten times higher, or start biases at the prior"
    return "not falling", "Use a rate ten times lower and a warm-up"


_L2_REMEDY = "Use adamw, whose decay stays out of the gradient, or weight_decay 0, or sum the loss over labels"


def _pull(now: Reading) -> str:
    return f"the L2 term is {now.pull_over_gradient:.1f} times the gradient"


def _of_floor(now: Reading) -> str:
    return f"{now.loss / now.floor:.0%}" if now.floor > 0 else f"{_number(now.loss)} (floor 0)"


def _number(value: float) -> str:
    return f"{value:.3g}"
