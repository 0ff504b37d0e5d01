"""Which figures of several runs are comparable, and notes on those that are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labelwise.formatting import cut, number
from labelwise.report.comparison_table import TIMES
from labelwise.report.run_files import Run
from labelwise.run_schema import RESULTS


def differences_of_runs(runs: Sequence[Run]) -> tuple[list[str], set[str]]:
    """Notes on what differs, and the kinds or names of columns in which no value may be marked as best."""
    names = run_names(runs)
    notes: list[str] = []
    not_ranked: set[str] = set()
    without = [name for run, name in zip(runs, names, strict=True) if run.results is None]
    if without:
        notes.append(f"Without {RESULTS}, so not evaluated: {', '.join(without)}.")
    evaluated = [(name, run, run.results) for run, name in zip(runs, names, strict=True) if run.results is not None]
    notes += [f"{name}: {cut(run.model_changes, 400)}." for name, run, _ in evaluated if run.model_changes]
    if _differ([run.test_set for _, run, _ in evaluated]):
        test_sets = "; ".join(
            f"{name}: {number(r.n_documents)} documents of {cut(run.test_set[1], 60) or 'unnamed data'}"
            for name, run, r in evaluated
        )
        notes.append(
            f"The runs were evaluated on different documents, so their figures are not comparable ({test_sets})."
        )
        not_ranked |= {"score", "group", "cost"}
    parts = [r.data.get("train") for _, _, r in evaluated]
    if _differ([str(part.get("documents")) for part in parts if isinstance(part, dict)]):
        notes.append("The runs were trained on different numbers of documents.")
    different = _different_propensities([r.evaluation.propensity for _, _, r in evaluated if r.evaluation.propensity])
    if different:
        notes.append(f"The propensities differ in {different}, so the PSP figures are not comparable.")
        metrics = {metric for _, _, r in evaluated for metric in r.evaluation.values}
        not_ranked |= {metric for metric in metrics if metric.startswith("PS")}
    if _differ([(run.machine.cpu, run.machine.threads) for _, run, _ in evaluated if run.machine is not None]):
        notes.append("The runs used different processors or numbers of threads, so their times are not comparable.")
        not_ranked |= set(TIMES)
    return notes, not_ranked


def run_names(runs: Sequence[Run]) -> list[str]:
    """Distinct names of the runs: equal names get their folders or, as a last resort, numbers appended."""
    names = [cut(run.name, 80) or "run" for run in runs]
    names = [
        name if names.count(name) == 1 else cut(f"{name} ({run.folder})", 120)
        for name, run in zip(names, runs, strict=True)
    ]
    return [
        name if names.count(name) == 1 else f"{name} #{names[: index + 1].count(name)}"
        for index, name in enumerate(names)
    ]


def _different_propensities(given: Sequence[dict[str, float | None]]) -> str:
    """The constants that differ, with their values: 'N, the number of training documents (100; 45,000)'."""
    titles = {"A": "the constant A", "B": "the constant B", "N": "N, the number of training documents"}
    differences = []
    for key in dict.fromkeys(key for constants in given for key in constants):
        values = [constants.get(key) for constants in given]
        if _differ(values):
            known = sorted({value for value in values if value is not None})
            shown = [number(value) for value in known[:4]] + (["…"] if len(known) > 4 else [])
            differences.append(f"{titles.get(key, cut(key, 20))} ({'; '.join(shown)})")
    return " and ".join(differences)


def _differ(values: Sequence[Any]) -> bool:
    return len({value for value in values if value is not None}) > 1
