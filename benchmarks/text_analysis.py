"""What stop words, stems, n-grams and label names bring: accuracy, number of features and CPU seconds.

    python benchmarks/text_analysis.py --data FOLDER [FOLDER ...] [--limit 150000] [--only NAME ...]
    python benchmarks/text_analysis.py            # writes the page from the stored figures

`linear_tree` with one tree and its other defaults, on held-out documents, never on the test split: the valid split of a
folder that has one, otherwise 10,000 training documents. Stop words and stems are English. Figures are appended to
benchmarks/results/text_analysis.csv; rows in it are not measured again (delete it to start over).
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results" / "text_analysis.csv"
METRICS = ("P@1", "P@3", "P@5", "PSP@5")
HELD_OUT = 10_000

STOP, STEM, PAIRS = {"stop_words": "english"}, {"stemmer": "english"}, {"ngrams": (1, 2)}
NAMES = {"label_documents": "texts"}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "words": ({}, {}),
    "words, another seed": ({}, {"seed": 1}),
    "stop words": (STOP, {}),
    "stems": (STEM, {}),
    "stop words, stems": (STOP | STEM, {}),
    "word pairs": (PAIRS, {}),
    "word pairs, stems": (PAIRS | STEM, {}),
    "word pairs, stop words, stems": (PAIRS | STOP | STEM, {}),
    "characters in words, 4": ({"analyzer": "char_wb", "ngrams": (4, 4)}, {}),
    "characters in words, 3 to 5": ({"analyzer": "char_wb", "ngrams": (3, 5)}, {}),
    "label names": ({}, NAMES),
    "label names, stems": (STEM, NAMES),
    "label names, stop words, stems": (STOP | STEM, NAMES),
    "label names, word pairs, stems": (PAIRS | STEM, NAMES),
    "label names, word pairs, stop words, stems": (PAIRS | STOP | STEM, NAMES),
}
"""Options of TF-IDF and of the method, by name."""


def parts_of(folder: Path, limit: int | None) -> tuple[Any, Any]:
    """Training and held-out documents."""
    import labelwise as lw
    from labelwise.data.read import find_parts

    train = lw.read(folder, split="train")
    order = np.random.default_rng(0).permutation(len(train))
    if "valid" in find_parts(folder)[1]:
        held_out = lw.read(folder, split="valid").align(train.label_names)
    else:
        held_out, order = train.take(np.sort(order[:HELD_OUT])), order[HELD_OUT:]
    return train.take(np.sort(order[:limit])), held_out


def measure(train: Any, held_out: Any, tfidf: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds and scores of one setting."""
    import labelwise as lw
    from labelwise.features.tfidf import LINEAR_TFIDF, Tfidf, TfidfConfig

    begin = time.process_time()
    words = Tfidf(TfidfConfig(**LINEAR_TFIDF.completed(tfidf)))
    words.fit_transform(train.texts)
    words_seconds = time.process_time() - begin
    begin = time.process_time()
    model = lw.LinearTree(trees=1, tfidf=tfidf, **params).fit(train)
    seconds = time.process_time() - begin
    top = model.predict(held_out, k=5)
    scores = lw.evaluate(top, held_out, METRICS, train=train).values
    return {
        "features": words.n_features,
        "tfidf_seconds": round(words_seconds, 1),
        "fit_seconds": round(seconds, 1),
        **{metric: round(100 * scores[metric], 2) for metric in METRICS},
    }


def known_rows() -> list[dict[str, str]]:
    """The stored figures."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def add_row(row: dict[str, Any]) -> None:
    """Append one row of figures."""
    fresh = not RESULTS.exists()
    with RESULTS.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)


def write_page(rows: list[dict[str, str]]) -> None:
    """The figures as a page with a table per data set; differences are to the row `words`."""
    lines = [
        "# Text analysis",
        "",
        "`python benchmarks/text_analysis.py`: `linear_tree` with one tree and its other defaults, on held-out",
        "documents (the valid split of eurlex57k, 10,000 training titles of yso-en). English stop words and stems.",
        "CPU seconds of all threads, `fit` including TF-IDF; the machine was shared. The second row shows the",
        "variation between seeds.",
    ]
    for data, documents in dict.fromkeys((row["data"], row["documents"]) for row in rows):
        here = [row for row in rows if (row["data"], row["documents"]) == (data, documents)]
        base = next((row for row in here if row["setting"] == "words"), here[0])
        lines += ["", f"## {data}, {int(documents):,} training documents", ""]
        lines += [
            "| setting | " + " | ".join(METRICS) + " | features | TF-IDF, s | fit, s |",
            "|---" + "|--:" * 7 + "|",
        ]
        order = list(SETTINGS)
        for row in sorted(here, key=lambda row: order.index(row["setting"])):
            shown = []
            for metric in METRICS:
                change = float(row[metric]) - float(base[metric])
                shown.append(f"{float(row[metric]):.2f}" + (f" ({change:+.2f})" if row is not base else ""))
            figures = [f"{int(row['features']):,}", row["tfidf_seconds"], row["fit_seconds"]]
            lines.append(f"| {row['setting']} | " + " | ".join(shown + figures) + " |")
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Measure what is missing, then write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", nargs="*", default=[], type=Path, help="folders with texts")
    options.add_argument("--limit", type=int, help="maximum number of training documents")
    options.add_argument("--only", nargs="*", help="names of settings to measure")
    given = options.parse_args()
    for folder in given.data:
        train, held_out = parts_of(folder, given.limit)
        measure(train.take(slice(0, 2000)), held_out.take(slice(0, 100)), STEM, NAMES)  # compiles the kernels
        for name, (tfidf, params) in SETTINGS.items():
            key = (folder.name, str(len(train)), name)
            known = {(row["data"], row["documents"], row["setting"]) for row in known_rows()}
            if key not in known and name in (given.only or SETTINGS):
                row = {"data": folder.name, "documents": len(train), "setting": name}
                row |= measure(train, held_out, tfidf, params)
                add_row(row)
                print(row, flush=True)
    if rows := known_rows():
        write_page(rows)


if __name__ == "__main__":
    main()
