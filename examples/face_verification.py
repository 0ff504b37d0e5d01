"""Face verification: train a small network on some people, and compare images of people it has never seen.

    python examples/face_verification.py [FOLDER] [--size 112] [--epochs 25]

FOLDER has a folder of images per person; the last fifth of the people is kept for the comparison. Without it, simple
drawings of faces are made. Needs labelwise[vision]. Real accuracy needs thousands of people and a GPU; see
docs/methods/mhe-face.md. `labelwise verify` does the comparison for LFW pairs, .bin sets and IJB templates.
"""

import argparse
import itertools
import tempfile
from pathlib import Path

import numpy as np

import labelwise as lw


def drawn_faces(folder: Path, people: int = 30, images: int = 8, size: int = 24) -> Path:
    """A head with eyes and a mouth, whose places and colours belong to a person; each image is shifted and noisy."""
    from PIL import Image, ImageDraw

    draw = np.random.default_rng(0)
    for person in range(people):
        looks = draw.random(9)
        (folder / f"person{person:02d}").mkdir(parents=True)
        for number in range(images):
            image = Image.new("RGB", (size, size), (30, 30, 40))
            pen = ImageDraw.Draw(image)
            dx, dy = draw.normal(0, 0.6, 2)
            skin = tuple(int(90 + 150 * part) for part in looks[:3])
            pen.ellipse((3 + dx, 2 + dy, size - 4 + dx, size - 2 + dy), fill=skin)
            gap, height = 3 + 4 * looks[3], 7 + 4 * looks[4]
            for side in (-1, 1):
                x, r = size / 2 + side * gap + dx, 1 + 1.5 * looks[5]
                pen.ellipse((x - r, height + dy - r, x + r, height + dy + r), fill=(0, 0, int(255 * looks[6])))
            wide, low = 2 + 5 * looks[7], 15 + 4 * looks[8]
            pen.line((size / 2 - wide + dx, low + dy, size / 2 + wide + dx, low + dy), fill=(150, 20, 20), width=2)
            pixels = np.asarray(image, np.float32) + draw.normal(0, 6, (size, size, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"person{person:02d}" / f"{number}.png")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--size", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        data = lw.read(options.folder or drawn_faces(Path(made) / "faces"))
        person = data.labels.indices  # one label per image: the person
        strangers = person >= data.n_labels - max(2, data.n_labels // 5)
        train, unseen = data.take(np.flatnonzero(~strangers)), data.take(np.flatnonzero(strangers))
        model = lw.MheFace(
            image={"size": options.size},
            network={"network": "r10", "width_factor": 0.25, "dimension": 64},
            head={"margin": 0.2, "scale": 16},
            training={"epochs": options.epochs, "batch_size": 32},
            monitor={"enabled": False},
            valid_fraction=0.0,
        ).fit(train)
        vectors = model.encode(unseen)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    who = unseen.labels.indices
    pairs = np.array(list(itertools.combinations(range(len(who)), 2)))
    same = who[pairs[:, 0]] == who[pairs[:, 1]]
    cosines = (vectors[pairs[:, 0]] * vectors[pairs[:, 1]]).sum(axis=1)
    found = lw.verify(cosines, same)
    print(f"trained on {len(train):,} images; {len(pairs):,} pairs of {len(np.unique(who))} others")
    print(f"cosine of the same person {cosines[same].mean():.2f}, of two people {cosines[~same].mean():.2f}")
    print(f"AUC {100 * found.auc:.1f} %, equal error rate {100 * found.equal_error_rate:.1f} %")


if __name__ == "__main__":
    main()
