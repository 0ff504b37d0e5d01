"""The collapse monitor: reads the same few documents (the probe) at every validation and diagnoses the training.

Between validations it samples gradients and weights every few steps, to measure the size of updates and whether an
optimiser's eps or L2 term dominates the gradient.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.encoders.attention import attention_entropy, attention_of_first
from labelwise.encoders.batches import batches_by_length
from labelwise.encoders.embed import TOKENS_AT_ONCE
from labelwise.networks.settings import MonitorConfig, OptimiserConfig
from labelwise.training.callbacks import Callback
from labelwise.training.encoder_fitting import EncoderBatch, EncoderFitting
from labelwise.training.torch_defaults import torch_defaults
from labelwise.training.verdicts import Reading, Verdict, diagnose

log = logging.getLogger("labelwise")

SAMPLE_EVERY = 10
"""Steps between two samples of gradients."""
ENTRIES_PER_MATRIX = 256
"""Entries sampled per weight matrix."""
ATTENTION_DOCUMENTS = 16
"""Documents of the probe whose attention entropy is computed."""


class CollapseMonitor(Callback):
    """Diagnoses a training after every validation; see `readings` and `verdict`."""

    def __init__(self, fitting: EncoderFitting, config: MonitorConfig) -> None:
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

    def _load(self, rows: np.ndarray) -> EncoderBatch:
        device, batch = self.fitting.head.device, self.fitting.load_rows(rows)
        inputs = tuple(part.to(device) for part in batch.inputs)
        return EncoderBatch(batch.documents.to(device), batch.labels.to(device), inputs)

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
        return [
            p.detach().view(-1)[at.to(p.device)].double() for p, at in zip(self.matrices, self.indices, strict=True)
        ]

    def _measure(self, before: list[Tensor]) -> dict[str, float]:
        updates, gradients, ratios = [], [], []
        for parameter, indices, old in zip(self.matrices, self.indices, before, strict=True):
            if parameter.grad is None or parameter.grad.is_sparse:
                continue
            new = parameter.detach().view(-1)[indices.to(parameter.device)].double()
            gradient = parameter.grad.view(-1)[indices.to(parameter.device)].double()
            updates.append(_root_mean_square(new - old) / max(_root_mean_square(old), 1e-30))
            gradients.append(_root_mean_square(gradient))
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


def _root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
