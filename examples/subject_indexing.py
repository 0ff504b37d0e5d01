"""Subject indexing from a table: train, calibrate, suggest subjects above a threshold, and say why.

    python examples/subject_indexing.py [TABLE.csv] [--text title+abstract] [--labels subjects]

Without a table a small one is made. In practice the command does all of this and writes a report:
`labelwise train TABLE.csv --text title+abstract --labels subjects`.
"""

import argparse
import csv
import random
import tempfile
from pathlib import Path

import labelwise as lw

SUBJECTS = {
    "forestry": "forest tree timber felling pine stand",
    "fisheries": "fish trout catch net coast stock",
    "libraries": "library catalogue reader loan shelf book",
    "education": "school pupil teacher lesson classroom exam",
    "energy": "power wind turbine grid solar plant",
    "health": "patient hospital nurse care treatment clinic",
}


def made_up_table(path: Path, records: int = 600) -> Path:
    """Records whose words come from the vocabularies of their one or two subjects."""
    draw = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["title", "abstract", "subjects"])
        for _ in range(records):
            chosen = draw.sample(sorted(SUBJECTS), draw.choice([1, 1, 2]))
            words = [draw.choice(SUBJECTS[subject].split()) for subject in chosen for _ in range(7)]
            draw.shuffle(words)
            table.writerow(
                [" ".join(words[:3]), " ".join(["a report on", *words[3:], "in the region"]), ";".join(chosen)]
            )
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path)
    parser.add_argument("--text", default="title+abstract")
    parser.add_argument("--labels", default="subjects")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = options.table or made_up_table(Path(folder) / "catalogue.csv")
        data = lw.read(table, options={"text_column": options.text, "label_column": options.labels})
    rest, test = data.split(0.1)
    train, valid = rest.split(0.1)
    print(f"{len(train):,} records to train on, {len(valid):,} to calibrate on, {len(test):,} to test on")

    model = lw.LinearTree().fit(train)
    report = model.calibrate(valid)
    print(f"threshold {report.threshold:.2f}: expect precision {report.precision:.2f}, recall {report.recall:.2f}")
    scores = lw.evaluate(model.predict(test, k=5), test, metrics=["P@1", "nDCG@5"], train=train)
    print("on the test records: " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in scores.values.items()))

    text = (test.texts or [""])[0]
    suggested = model.predict([text], threshold="auto").to_lists()[0]
    print(
        f"\n{text[:100]}\n  indexed with {', '.join(test.labels_of(0))}; suggested: {', '.join(suggested) or 'nothing'}"
    )
    for one in model.explain(text, k=1, terms=4):
        print(f"  {one.label} because of {', '.join(str(term.name) for term in one.terms)}")


if __name__ == "__main__":
    main()
