"""What a person should know about a result before relying on it, in words: one list for log, table, file and report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labelwise.formatting import percent
from labelwise.metrics.result import Evaluation, cut_remarks
from labelwise.report.wording import family_and_k, sorted_metrics
from labelwise.runs.evaluate import ModelEvaluation, still_falling

SEEN_IN_TRAINING = "the model has seen them with their labels, so these scores are higher than on new documents"
CALIBRATION = "calibration: "
MIN_OCCURRENCES = 10
"""True labels that a group needs before its recall is remarked on."""


def evaluation_remarks(measured: ModelEvaluation) -> list[str]:
    """Remarks on an evaluation alone; those on ties belong to the table of scores."""
    overlap = measured.overlap
    seen = [overlap.remark(SEEN_IN_TRAINING)] if overlap is not None and overlap.seen else []
    if measured.ended_by_budget:
        seen.append(f"evaluated on {measured.evaluated} documents: the time budget ended the prediction")
    return [*seen, *cut_remarks(measured.evaluation.n_cut)]


def run_remarks(
    measured: ModelEvaluation, baseline: Mapping[str, float] | None, records: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Remarks on a run: those on its evaluation, and signs that the model has learned too little.

    `baseline` are the values of popularity (None: the method does not learn), `records` the lines of metrics.jsonl.
    """
    found = evaluation_remarks(measured)
    if baseline is not None:
        found += _not_better(measured.evaluation, baseline)
        found += _never_predicted(measured.evaluation)
    return found + still_falling(records)


def with_calibration(remarks: Sequence[str], calibration: Mapping[str, Any], threshold: float | None) -> list[str]:
    """Remarks on a run with those on its latest calibration; F1 was evaluated at `threshold`."""
    found = [remark for remark in remarks if not remark.startswith(CALIBRATION)]
    found += [CALIBRATION + remark for remark in calibration["remarks"]]
    if threshold is not None and threshold != calibration["threshold"]:
        found.append(
            f"{CALIBRATION}the model was calibrated again after the evaluation: F1 is that of the threshold "
            f"{threshold:.4g}, not of {calibration['threshold']:.4g}; labelwise evaluate computes it"
        )
    return found


def _not_better(evaluation: Evaluation, baseline: Mapping[str, float]) -> list[str]:
    """The main metrics whose interval reaches down to the baseline, or whose value is below it."""
    shown = []
    for name in _main_metrics(evaluation):
        value, floor = evaluation.values[name], baseline.get(name)
        low, high = evaluation.intervals.get(name) or (value, value)
        if floor is not None and floor >= low:
            interval = f" (interval {percent(low)} - {percent(high)})" if low < value else ""
            shown.append(f"{name} {percent(value)}{interval} against {percent(floor)}")
    if not shown:
        return []
    return [
        f"not clearly better than popularity, which predicts the same labels for every document: {', '.join(shown)}"
    ]


def _main_metrics(evaluation: Evaluation) -> list[str]:
    """P@1, P@k and nDCG@k with the largest k up to 5."""
    ordered = [name for name in sorted_metrics(evaluation.values) if (family_and_k(name)[1] or 0) in range(1, 6)]
    last = {family_and_k(name)[0]: name for name in ordered}
    first = [name for name in ordered if name == "P@1"]
    return list(dict.fromkeys([*first, *(last[family] for family in ("P", "nDCG") if family in last)]))


def _never_predicted(evaluation: Evaluation) -> list[str]:
    """Groups of labels, seen in training, that were never predicted correctly."""
    lost = []
    for group in evaluation.groups:
        if group.name != "unseen" and group.recall and group.occurrences >= MIN_OCCURRENCES:
            k = max(group.recall)
            if group.recall[k] == 0:
                lost.append((group.name, k))
    if not lost:
        return []
    names = " and ".join(name for name, _ in lost)
    return [f"recall of {names} labels is 0: none was ever right among the first {lost[0][1]} predictions"]
