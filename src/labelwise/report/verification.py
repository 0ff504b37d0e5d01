"""A page about the verification of a model, and the ROC plot of one or several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labelwise.formatting import MISSING, cut, percent
from labelwise.report.charts import DASHES, SERIES, Chart
from labelwise.report.run import for_page, write_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = Mapping[str, Mapping[str, Any]]
"""By name, the rates `far` and `tar` at the corners of a curve."""


def roc_chart(curves: Curves, lowest: float) -> Chart:
    """True accept rate over false accept rate, on a logarithmic axis from `lowest` on."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for index, (name, curve) in enumerate(curves.items()):
            axes.plot(
                [max(far, lowest / 10) for far in curve["far"]],
                [100 * tar for tar in curve["tar"]],
                drawstyle="steps-post", label=cut(name, 40), color=SERIES[index % len(SERIES)],
                linestyle=DASHES[index // len(SERIES) % len(DASHES)],
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlim(lowest, 1.0)
        axes.set_ylim(0, 101)
        axes.set_xlabel("false accept rate")
        axes.set_ylabel("true accept rate, %")
        if len(curves) > 1:
            axes.legend(loc="lower right")

    return Chart(
        "roc",
        "ROC",
        "True accept rate against false accept rate, one line per model",
        draw,
        6.4,
        4.2,
    )


def verification_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and remark of each metric, from `VerificationRun.to_dict`."""
    rows = []
    accuracy = found["accuracy"]
    if accuracy is not None:
        error = percent(accuracy["standard_error"])
        rows.append(
            (f"accuracy, {len(accuracy['accuracies'])} folds", percent(accuracy["mean"]), f"standard error {error}")
        )
    rows += [("AUC", percent(found["auc"]), ""), ("equal error rate", percent(found["equal_error_rate"]), "")]
    for rate in found["rates"]:
        value = MISSING if rate["tar"] is None else percent(rate["tar"])
        threshold = rate["threshold"]
        remark = rate["reason"] or ("" if threshold is None else f"threshold {threshold:.4f}")
        rows.append((f"TAR at FAR {rate['far']:g}", value, remark))
    return rows


def write_verification(found: Mapping[str, Any], model: str, path: Path) -> None:
    """Write the page."""
    lowest = max(1e-6, 1.0 / max(found["n_different"], 1))
    chart = for_page(roc_chart({cut(model, 40): found["roc"]}, lowest))
    templates = "" if found["templates"] is None else f" in {found['templates']:,} templates"
    about = {
        "model": model,
        "pairs": f"{found['pairs']}: {found['n_same']:,} of the same, {found['n_different']:,} of different people",
        "images": f"{found['images']:,}{templates}, encoded in {found['seconds']:.1f} s",
    }
    accuracy = found["accuracy"]
    folds = [] if accuracy is None else list(zip(accuracy["accuracies"], accuracy["thresholds"], strict=True))
    write_page(
        path,
        "verification.html",
        {
            "title": f"Verification: {cut(Path(model).name or model, 80)} on {cut(found['pairs'], 80)}",
            "rows": verification_rows(found),
            "folds": [
                (number, percent(value), f"{threshold:.4f}") for number, (value, threshold) in enumerate(folds, 1)
            ],
            "chart": chart,
            "about": about,
        },
    )
