"""Product tagging: tags for product descriptions, only those of one department, and tags that are new.

    python examples/product_tagging.py [TABLE.csv]

TABLE.csv has the columns `text` and `labels`. Without it a small table is made.
"""

import argparse
import random
from pathlib import Path

import labelwise as lw

TAGS = {
    "shoes/running": "shoe sole cushion mesh running jogging",
    "shoes/hiking": "boot ankle trail grip waterproof hiking",
    "kitchen/knives": "knife blade steel chef handle sharp",
    "kitchen/pans": "pan coated induction frying lid steel",
    "garden/hoses": "hose water nozzle garden metre reel",
    "garden/tools": "spade rake handle garden soil steel",
}
NEW_TAG = {"kitchen/scales": "scale gram digital weigh display kitchen"}


def products(tags: dict[str, str], count: int, seed: int) -> lw.Dataset:
    """Descriptions of eight words, most of them from the vocabulary of the tag."""
    draw = random.Random(seed)
    texts, labels = [], []
    for _ in range(count):
        tag = draw.choice(sorted(tags))
        texts.append(
            " ".join([*draw.choices(tags[tag].split(), k=6), *draw.choices(["new", "blue", "light", "set"], k=2)])
        )
        labels.append([tag])
    return lw.Dataset(texts=texts, labels=labels, name="products")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path)
    table = parser.parse_args().table
    data = products(TAGS, 500, seed=0) if table is None else lw.read(table)
    train, test = data.split(0.2)
    model = lw.LinearTree().fit(train)
    print(lw.evaluate(model.predict(test, k=3), test, metrics=["P@1", "R@3"]))

    first = (test.texts or [""])[0]
    print(f"\n{first}: {model.predict([first], k=2).to_lists()[0]}")
    department = test.labels_of(0)[0].partition("/")[0]
    allowed = [name for name in model.label_names_ if name.startswith(department)]
    print(f"among the tags of {department}: {model.predict([first], k=2, labels=allowed).to_lists()[0]}")

    if table is None:
        more = products(NEW_TAG, 40, seed=1)
        print(f"\n{model.learn(more, old=train)}")
        text = "digital scale weigh gram"
        print(f"{text}: {model.predict([text], k=1).to_lists()[0]}")


if __name__ == "__main__":
    main()
