"""The collapse monitor: reads the same few documents (the probe) at every validation and diagnoses the training.

Between validations it samples gradients and weights every few steps, to measure the size of updates and whether an
optimiser's eps or L2 term dominates the gradient.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.nn.config import MonitorConfig, OptimiserConfig, VerdictName
from labelwise.nn.encode import TOKENS_AT_ONCE
from labelwise.nn.inputs import batches_by_length
from labelwise.nn.text.transformer import attention_entropy, attention_of_first
from labelwise.nn.train.fit import Loaded, NetworkFitting
from labelwise.nn.train.optim import torch_defaults

log = logging.getLogger("labelwise")

# --- verdicts ---
# Diagnosis of a training: readings, and a verdict with its reason and remedy. Does not import torch.
#
# Losses are compared with the floor: the loss of the best model that ignores the documents. For cross-entropy it is the
# entropy of the label marginals. Every run with zero initial biases first falls to it; good ones continue below it,
# some stay there for long (the plateau), and some for ever, because all document vectors have become equal (collapse).

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

# remedies
SLOWER = "Use a rate ten times lower, a warm-up, or clip gradients"
KEEP_WHAT_IS_LEARNED = "Use a rate ten times lower, or a warm-up"
START_AGAIN = "It will not recover. Start again with a rate ten times lower and a warm-up over a tenth of the steps"
WITHOUT_L2 = "Use adamw, whose decay stays out of the gradient, or weight_decay 0, or sum the loss over labels"
BELOW_EPS = "Sum the loss over labels instead of taking the mean, lower eps, or raise the rate"
FASTER = "Use a rate ten times higher"
APART = "Continue: with random weights they separate slowly. If they do not, change the rate and add a warm-up"
THROUGH = "Continue: good runs pass through it. If it lasts, raise the head's rate and start biases at the prior"


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
        reason = f"the loss is {_number(now.loss)}, it was {_number(readings[0].loss)} at the start"
        return Verdict("diverged", reason, SLOWER)
    one_point = 1 - now.cosine < ONE_POINT and not _as_at_the_start(readings)
    # independent of the loss: the probe may be easier than the floor's documents
    if one_point and now.commonest >= SAME_FOR_ALL:
        return _collapsed(now)
    best = min(reading.loss for reading in readings if math.isfinite(reading.loss))
    if best < BELOW * now.floor and now.loss > DIVERGED * best:
        reason = f"the loss is {_of_floor(now)} of the floor, it was {best / now.floor:.0%}: what was learned gets lost"
        return Verdict("diverged", reason, KEEP_WHAT_IS_LEARNED)
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
    where = f"the vectors of all documents are one point (mean cosine {now.cosine:.4f})"
    where = f"{where}, loss {_of_floor(now)} of the floor"
    if now.pull_over_gradient > 1:
        return Verdict("collapsed", f"{where}; {_pull(now)}", WITHOUT_L2)
    return Verdict("collapsed", where, START_AGAIN)


def _above_or_at_the_floor(readings: Sequence[Reading]) -> Verdict:
    now, before = readings[-1], readings[-2] if len(readings) > 1 else readings[-1]
    where = f"the loss is {_of_floor(now)} of the floor"
    if now.pull_over_gradient > 1:
        name: VerdictName = "collapsed" if now.commonest >= SAME_FOR_ALL else "under-trained"
        return Verdict(name, f"{where}; {_pull(now)}", WITHOUT_L2)
    if now.gradient_over_eps < 1:
        limited = f"eps-limited: the optimiser's eps decides steps, a gradient is {now.gradient_over_eps:.1g} of it"
        return Verdict("under-trained", f"{where}; {limited}", BELOW_EPS)
    fastest = max((r.update_ratio for r in readings if not math.isnan(r.update_ratio)), default=math.nan)
    if fastest < SLOW:
        return Verdict("under-trained", f"{where}; updates are at most {fastest:.1g} of the weights", FASTER)
    if 1 - now.cosine < ONE_POINT:
        one = f"the vectors of all documents are one point (mean cosine {now.cosine:.4f}), as at the start"
        return Verdict("under-trained", f"{where}; {one}", APART)
    if now.loss > NEAR * now.floor:
        how, remedy = _movement(now.loss / before.loss)
        return Verdict("under-trained", f"{where} and {how}", remedy)
    same = f"{now.commonest:.0%} of the documents have the same first label"
    return Verdict("on the plateau", f"{where}, vectors still differ (mean cosine {now.cosine:.3f}), {same}", THROUGH)


def _movement(ratio: float) -> tuple[str, str]:
    """How a loss above the floor changes, and the remedy."""
    if ratio < FALLING:
        return "falling", "Continue, or start biases at the prior"
    if ratio < 1:
        return "hardly falling", "Use a rate ten times higher, or start biases at the prior"
    return "not falling", "Use a rate ten times lower and a warm-up"


def _pull(now: Reading) -> str:
    return f"dominated by L2: the L2 term is {now.pull_over_gradient:.1f} times the gradient"


def _of_floor(now: Reading) -> str:
    return f"{now.loss / now.floor:.0%}" if now.floor > 0 else f"{_number(now.loss)} (floor 0)"


def _number(value: float) -> str:
    return f"{value:.3g}"


SAMPLE_EVERY = 10
"""Steps between two samples of gradients."""
ENTRIES_PER_MATRIX = 256
"""Entries sampled per weight matrix."""
ATTENTION_DOCUMENTS = 16
"""Documents of the probe whose attention entropy is computed."""


class CollapseMonitor:
    """Diagnoses a training after every validation; see `readings` and `verdict`."""

    def __init__(self, fitting: NetworkFitting, config: MonitorConfig) -> None:
        self.fitting, self.config = fitting, config
        self.verdict: Verdict | None = None
        self.in_a_row = 0
        self.steps = StepSampler(fitting.module, fitting.config.optimiser)
        rows = np.random.default_rng(fitting.config.seed).permutation(len(fitting.train))[: config.probe]
        self.rows = rows[np.argsort(fitting.lengths[rows], kind="stable")]
        self.floor = fitting.head.constant_loss(fitting.train.labels, self.rows)
        first = self._read_probe()
        if math.isnan(self.floor):  # a head whose loss has no simple floor
            self.floor = first.loss
            first = replace(first, floor=first.loss)
        self.readings = [first]  # later readings are compared with the start

    # --- the hooks of the loop ---

    def clipped(self, norm: Tensor) -> None:
        """Keep the gradient norm."""
        self.steps.norm = norm

    def after_step(self, step: int, loss: Tensor) -> str | None:
        """Sample gradients and weights."""
        self.steps.sample(step)
        return None

    def after_validation(self, numbers: dict[str, Any]) -> str | None:
        """Read the probe and diagnose; returns a reason to stop if the config says so."""
        self.readings.append(self._read_probe())
        before = self.verdict
        self.verdict = diagnose(self.readings)
        same = before is not None and before.name == self.verdict.name
        self.in_a_row = self.in_a_row + 1 if same else 1
        seen = self.readings[-1].to_dict()
        numbers |= {
            "probe_loss": seen.pop("loss", math.nan),
            **seen,
            "verdict": self.verdict.name,
            "reason": self.verdict.reason,
            "remedy": self.verdict.remedy,
        }
        if not same:
            log.info("monitor: %s", self.verdict)
        if self.verdict.name in self.config.stop_on and self.in_a_row >= self.config.patience:
            return str(self.verdict)
        return None

    def state(self) -> dict[str, Any]:
        """All readings and samples so far."""
        readings = [reading.to_dict() for reading in self.readings]
        return {"readings": readings, "in_a_row": self.in_a_row, "steps": self.steps.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.readings = [Reading.from_dict(values) for values in state["readings"]]
        self.in_a_row = int(state["in_a_row"])
        self.steps.restore(state.get("steps", {}))
        self.verdict = diagnose(self.readings) if len(self.readings) > 1 else None

    # --- readings ---

    @torch.inference_mode()
    def _read_probe(self) -> Reading:
        module, head = self.fitting.module, self.fitting.head
        was_training = module.training
        module.eval()
        parts, loss = [], 0.0
        try:
            for some in batches_by_length(self.fitting.lengths[self.rows], TOKENS_AT_ONCE):
                batch = self._load(self.rows[some])
                parts.append(self.fitting.vectors(batch).float())
                loss += len(some) / len(self.rows) * float(head.loss(parts[-1], batch.targets))
            vectors = torch.cat(parts)
            first = head.best(vectors, 1)[0][:, 0].cpu().numpy()
            entropy = self._attention_entropy()
        finally:
            module.train(was_training)
        counts = np.unique(first, return_counts=True)[1]
        cosine, rank = spread(vectors)
        seen = (loss, self.floor, cosine, rank, len(counts), float(counts.max() / counts.sum()), entropy)
        return Reading(*seen, **self.steps.summary())

    def _load(self, rows: np.ndarray) -> Loaded:
        """Some training documents as they are predicted, on the device."""
        device, batch = self.fitting.head.device, self.fitting.load(rows)
        return Loaded(tuple(part.to(device) for part in batch.inputs), batch.targets.to(device))

    def _attention_entropy(self) -> tuple[float, ...]:
        """Entropy per layer of the longest documents, one at a time: all maps together would take gigabytes."""
        encoder = self.fitting.encoder
        if encoder is None or not self.config.attention:
            return ()
        read, total, tokens = encoder.attention_reader(), np.zeros(0), 0
        for row in self.rows[-ATTENTION_DOCUMENTS:]:
            weights, mask = attention_of_first(read, self._load(np.array([row])).inputs)
            length = mask.shape[1]
            if weights is not None and length > 1:
                total = length * np.array(attention_entropy(weights, mask)) + (total if tokens else 0.0)
                tokens += length
        return tuple(round(float(value), 6) for value in total / max(tokens, 1))


def spread(vectors: Tensor) -> tuple[float, float]:
    """Mean cosine between two different vectors, and the effective rank of all vectors."""
    count = len(vectors)
    if count < 2 or not bool(torch.isfinite(vectors).all()):
        return math.nan, math.nan
    unit = nn.functional.normalize(vectors.double(), dim=1)
    cosine = (float(unit.sum(0).square().sum()) - count) / (count * (count - 1))
    fractions = torch.linalg.svdvals(unit).square() / count
    entropy = -(fractions * fractions.clamp_min(1e-30).log()).sum()
    return cosine, math.exp(float(entropy))


class StepSampler:
    """Measures updates, gradients, eps and L2 terms, from a few entries of each weight matrix."""

    def __init__(self, module: nn.Module, optimiser: OptimiserConfig) -> None:
        embeddings = {p for part in module.modules() if isinstance(part, nn.Embedding) for p in part.parameters()}
        self.module = module
        self.matrices = [p for p in module.parameters() if p.requires_grad and p.ndim == 2 and p not in embeddings]
        self.indices = [torch.arange(0, p.numel(), max(1, p.numel() // ENTRIES_PER_MATRIX)) for p in self.matrices]
        defaults = torch_defaults(optimiser.name)
        eps = optimiser.eps if optimiser.eps is not None else defaults.get("eps")
        self.eps = None if eps is None else math.sqrt(eps) if optimiser.name == "adadelta" else float(eps)
        decay = defaults["weight_decay"] if optimiser.weight_decay is None else optimiser.weight_decay
        self.decay = 0.0 if optimiser.name == "adamw" else float(decay)
        self.before: list[Tensor] | None = None
        self.norm: Tensor | None = None
        """Gradient norm of this step before clipping; None without clipping."""
        self.seen: list[dict[str, float]] = []

    def sample(self, step: int) -> None:
        """After a step: keep the weights before the step to be measured, or measure the step."""
        if step % SAMPLE_EVERY == SAMPLE_EVERY - 1 or (step == 1 and not self.seen):
            self.before = self._weights()
        elif self.before is not None:
            self.seen.append(self._measure(self.before))
            self.before = None

    def state(self) -> dict[str, Any]:
        """What was measured since the last summary, and the weights that the next measurement needs."""
        before = None if self.before is None else [values.tolist() for values in self.before]
        return {"seen": self.seen, "before": before}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        kept = state.get("before")
        self.seen = list(state.get("seen", []))
        self.before = kept and [
            torch.tensor(values, dtype=torch.float64, device=p.device)
            for values, p in zip(kept, self.matrices, strict=True)
        ]

    def _weights(self) -> list[Tensor]:
        return [_sampled(p.detach(), at) for p, at in zip(self.matrices, self.indices, strict=True)]

    def _measure(self, before: list[Tensor]) -> dict[str, float]:
        updates, gradients, ratios = [], [], []
        for parameter, indices, old, new in zip(self.matrices, self.indices, before, self._weights(), strict=True):
            if parameter.grad is None or parameter.grad.is_sparse:
                continue
            updates.append(_root_mean_square(new - old) / max(_root_mean_square(old), 1e-30))
            gradients.append(_root_mean_square(_sampled(parameter.grad, indices)))
            ratios.append(self.decay * _root_mean_square(old) / max(gradients[-1], 1e-30))
        if not updates:
            return {}
        norms = [p.grad.float().norm() for p in self.module.parameters() if p.grad is not None]
        norm = torch.stack(norms).norm() if self.norm is None else self.norm
        measured = {"gradient": float(norm), "update_ratio": float(np.median(updates))}
        if self.eps is not None:
            measured["gradient_over_eps"] = float(np.median(gradients)) / self.eps
        if self.decay:
            measured["pull_over_gradient"] = float(np.median(ratios))
        return measured

    def summary(self) -> dict[str, float]:
        """Medians of the samples since the last summary."""
        seen, self.seen = [sample for sample in self.seen if sample], []
        keys = seen[0] if seen else {}
        return {key: float(np.median([sample[key] for sample in seen])) for key in keys}


def _sampled(table: Tensor, indices: Tensor) -> Tensor:
    return table.view(-1)[indices.to(table.device)].double()


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
