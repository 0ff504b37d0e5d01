"""Is a training healthy? The numbers that tell, and the judgement: a verdict, the reason, what to do. Without torch.

The yardstick is the floor: the loss of the best model that does not look at documents. For cross-entropy it is the
entropy of the label marginals. Every run that starts with zero biases falls to it first; good ones go on below it, some
stay there for long (the plateau), and some for ever, because their documents' vectors have become one point (collapse).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labelwise.networks.settings import VerdictName

BELOW = 0.95
"""A loss below this share of the floor comes from looking at the documents."""
NEAR = 1.10
"""A loss below this multiple of the floor is at the floor."""
ONE_POINT = 1e-4
"""Vectors whose mean cosine is nearer to 1 than this are one point; runs at 1e-3 have been seen to recover."""
FALLING = 0.98
"""A loss below this share of the one before is falling."""
SLOW = 5e-5
"""Steps that never move weights by more than this share of themselves lead nowhere in a usual training."""
BLOWN_UP = 1.5
"""A loss above this multiple of the first one, and of the floor, has blown up."""
SAME_FOR_ALL = 0.9
"""Share of documents with the same first label from which on the model says the same to everybody."""


@dataclass(frozen=True)
class Reading:
    """What was seen of a model at one moment of its training, on the same documents each time."""

    loss: float
    """Loss on the probe."""
    floor: float
    """Loss of the best scores that are the same for every document."""
    cosine: float
    """Mean cosine between the vectors of two documents."""
    effective_rank: float
    """Directions the vectors use: exp of the entropy of the shares of variance about zero; 1 for one point."""
    distinct: int
    """Different first labels."""
    commonest: float
    """Share of documents with the commonest first label."""
    attention_entropy: tuple[float, ...] = ()
    """For each layer the mean entropy of attention over ln(tokens); 1 is uniform."""
    gradient: float = math.nan
    """Length of the gradient before clipping."""
    update_ratio: float = math.nan
    """Change of a weight matrix in one step over its size, the median of all matrices."""
    gradient_over_eps: float = math.nan
    """Size of a gradient entry over what the optimiser's eps amounts to; below 1 eps sets the step."""
    pull_over_gradient: float = math.nan
    """Size of an L2 term in the gradient over the gradient itself; above 1 the optimiser serves the L2 term."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values; what is not known or not finite is left out, JSON has no word for it."""
        found = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}
        return {key: v for key, v in found.items() if v != [] and not (isinstance(v, float) and not math.isfinite(v))}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reading:
        """Take back what `to_dict` gave."""
        known: dict[str, Any] = dict.fromkeys(("loss", "cosine", "effective_rank"), math.nan)
        known |= {**values, "attention_entropy": tuple(values.get("attention_entropy", ()))}
        return cls(**known)


@dataclass(frozen=True)
class Verdict:
    """A judgement in words."""

    name: VerdictName
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" + (f". {self.remedy}" if self.remedy else "")


def judge(readings: Sequence[Reading]) -> Verdict:
    """The state of a training from all that was seen of it; the first reading is from before the first step."""
    now = readings[-1]
    if not math.isfinite(now.loss) or now.loss > BLOWN_UP * max(readings[0].loss, now.floor):
        return Verdict(
            "diverged",
            f"the loss is {_number(now.loss)}, it began at {_number(readings[0].loss)}",
            "Take a rate ten times lower, a warm-up, or clip gradients",
        )
    one_point = 1 - now.cosine < ONE_POINT and not _as_at_the_start(readings)
    # whatever the loss: the probe may be easier than the floor's documents
    if one_point and now.commonest >= SAME_FOR_ALL:
        return _collapsed(now)
    best = min(reading.loss for reading in readings if math.isfinite(reading.loss))
    if best < BELOW * now.floor and now.loss > BLOWN_UP * best:
        return Verdict(
            "diverged",
            f"the loss is {_share(now)} of the floor, it has been {best / now.floor:.0%}: what was learned gets lost",
            "Take a rate ten times lower, or a warm-up",
        )
    if now.loss < BELOW * now.floor:
        return Verdict("healthy", f"the loss is {_share(now)} of the floor, {now.distinct} different first labels")
    if one_point:
        return _collapsed(now)
    return _above_or_at_the_floor(readings)


def _as_at_the_start(readings: Sequence[Reading]) -> bool:
    """Whether vectors have been one point from the start, as random weights make them, and have not come nearer."""
    spreads = [1 - reading.cosine for reading in readings]
    return max(spreads) < ONE_POINT and spreads[-1] > spreads[0] / 2


def _collapsed(now: Reading) -> Verdict:
    where = (
        f"the vectors of all documents are one point (mean cosine {now.cosine:.4f}), loss {_share(now)} of the floor"
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
    where = f"the loss is {_share(now)} of the floor"
    if now.pull_over_gradient > 1:
        name: VerdictName = "collapsed" if now.commonest >= SAME_FOR_ALL else "under-trained"
        return Verdict(name, f"{where}; dominated by L2: {_pull(now)}", _L2_REMEDY)
    if now.gradient_over_eps < 1:
        return Verdict(
            "under-trained",
            f"{where}; eps-limited: the optimiser's eps sets the step, a gradient is {now.gradient_over_eps:.1g} of it",
            "Sum the loss over labels instead of taking the mean, lower eps, or raise the rate",
        )
    fastest = max((r.update_ratio for r in readings if not math.isnan(r.update_ratio)), default=math.nan)
    if fastest < SLOW:
        return Verdict(
            "under-trained",
            f"{where}; a step changes weights by {fastest:.1g} of their size at most",
            "Take a rate ten times higher",
        )
    if 1 - now.cosine < ONE_POINT:
        return Verdict(
            "under-trained",
            f"{where}; the vectors of all documents are one point (mean cosine {now.cosine:.4f}) as they were at first",
            "Go on: random weights part them slowly. If they stay, change the rate and add a warm-up",
        )
    if now.loss > NEAR * now.floor:
        how, remedy = _movement(now.loss / before.loss)
        return Verdict("under-trained", f"{where} and {how}", remedy)
    said = f"{now.commonest:.0%} of the documents have the same first label"
    return Verdict(
        "on the plateau",
        f"{where}, vectors still differ (mean cosine {now.cosine:.3f}), {said}",
        "Go on: good runs pass here. If it lasts, raise the head's rate and start biases at the prior",
    )


def _movement(ratio: float) -> tuple[str, str]:
    """How a loss above the floor moves, and what to do about it."""
    if ratio < FALLING:
        return "falling", "Go on, or start biases at the prior"
    if ratio < 1:
        return "hardly falling", "Take a rate ten times higher, or start biases at the prior"
    return "not falling", "Take a rate ten times lower and a warm-up"


_L2_REMEDY = "Use adamw, whose decay stays out of the gradient, or weight_decay 0, or sum the loss over labels"


def _pull(now: Reading) -> str:
    return f"the L2 term is {now.pull_over_gradient:.1f} times the gradient"


def _share(now: Reading) -> str:
    return f"{now.loss / now.floor:.0%}" if now.floor > 0 else f"{_number(now.loss)} (floor 0)"


def _number(value: float) -> str:
    return f"{value:.3g}"
