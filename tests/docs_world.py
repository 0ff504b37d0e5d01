"""A folder with the files that the pages name, and the Python names that their blocks assume."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import labelwise as lw
from labelwise.testing.subject import planted_features, planted_texts

RUN = "data: {{path: corpus}}\nmodel: {{method: {method}, {more}}}\nrun: {{folder: runs/{name}}}\n"
TABLES = {"catalogue": 0, "new": 1, "more": 2, "train": 3, "notes": 4, "a": 5, "b": 6, "valid": 7}


def write_tables(folder: Path, n_documents: int = 160) -> None:
    """Tables with title, abstract and subjects, as a library might have them."""
    for name, seed in TABLES.items():
        data = planted_texts(n_documents, 8, seed=seed)
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["title", "abstract", "text", "subjects", "labels"])
            for row, text in enumerate(data.texts or ()):
                first, _, rest = text.partition(" ")
                joined = ";".join(data.labels_of(row))
                rows.writerow([first, rest, text, joined, joined])


def write_corpus(folder: Path) -> None:
    """The folder `corpus` with three splits, and texts as lines."""
    for seed, split in enumerate(("train", "valid", "test")):
        lw.write(planted_texts(200, 8, seed=seed), folder / "corpus" / f"{split}.jsonl")
    texts = list(planted_texts(20, 8, seed=9).texts or ())
    for name in ("texts.txt", "new.txt", "X.trn.txt"):
        (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    shutil.copytree(folder / "corpus", folder / "eurlex")
    for line_file in ("train.tsv",):
        lw.write(planted_texts(60, 8), folder / line_file)


def write_thesaurus(folder: Path) -> None:
    """A SKOS file whose concepts are the labels."""
    lines = ["@prefix skos: <http://www.w3.org/2004/02/skos/core#> .\n"]
    lines += [
        f'<http://x/L{i}> a skos:Concept ; skos:notation "L{i}" ; skos:prefLabel "subject {i}"@en .\n' for i in range(8)
    ]
    (folder / "yso-skos.ttl").write_text("".join(lines), encoding="utf-8")


def write_foreign_files(folder: Path) -> None:
    """Data as other toolkits have it, one folder each."""
    from scipy import sparse

    texts = planted_texts(160, 8)
    lw.write(texts, folder / "libmultilabel" / "train.tsv")
    for seed, split in enumerate(("train", "test")):
        lw.write(planted_texts(160, 8, seed=seed), folder / "fasttext" / f"{split}.ft")
    lw.write(planted_features(160, 8), folder / "xc" / "train.txt", format="xc", drop=["label_names"])
    (folder / "pecos").mkdir()
    for seed, split in enumerate(("trn", "tst")):
        part = planted_texts(160, 8, seed=seed)
        (folder / "pecos" / f"X.{split}.txt").write_text("\n".join(part.texts or ()) + "\n", encoding="utf-8")
        sparse.save_npz(folder / "pecos" / f"Y.{split}.npz", sparse.csr_matrix(part.labels))
    (folder / "annif").mkdir()
    for row, text in enumerate(texts.texts or ()):
        (folder / "annif" / f"d{row}.txt").write_text(text, encoding="utf-8")
        (folder / "annif" / f"d{row}.key").write_text("\n".join(texts.labels_of(row)) + "\n", encoding="utf-8")
    with (folder / "annif.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "subject_uris"])
        rows.writerows((text, " ".join(texts.labels_of(row))) for row, text in enumerate(texts.texts or ()))


def train_models(folder: Path, run: Any) -> None:
    """Runs of the names that pages use, and their models; `run` is the command labelwise."""
    (folder / "run.yml").write_text(RUN.format(method="linear_tree", more="trees: 1", name="run"), encoding="utf-8")
    run("train", "run.yml", "--set", "run.folder=runs/first", "-q")
    run("train", "run.yml", "--set", "run.folder=runs/uncalibrated", "--set", "calibrate.enabled=false", "-q")
    for name in ("run", "a", "b", "words", "catalogue"):
        shutil.copytree(folder / "runs" / "first", folder / "runs" / name)
    for name in ("model", "subjects"):
        shutil.copytree(folder / "runs" / "first" / "model", folder / name)
    shutil.rmtree(folder / "runs" / "run")
    shutil.rmtree(folder / "runs" / "catalogue")


def write_mach(folder: Path) -> None:
    """run.yml trains MACH, small."""
    settings = "preset: cpu, repetitions: 3, buckets: 4, training: {epochs: 1}"
    (folder / "run.yml").write_text(RUN.format(method="mach", more=settings, name="run"), encoding="utf-8")


def without_calibration(folder: Path) -> None:
    """For pages that calibrate: runs/first is not calibrated yet, nor will be what run.yml trains."""
    shutil.rmtree(folder / "runs" / "first")
    shutil.copytree(folder / "runs" / "uncalibrated", folder / "runs" / "first")
    with (folder / "run.yml").open("a", encoding="utf-8") as file:
        file.write("calibrate: {enabled: false}\n")


def write_encoder(folder: Path) -> None:
    """A folder ENCODER as transformers saves it, tiny and untrained."""
    import transformers

    from labelwise.nn.config import EncoderConfig
    from labelwise.nn.text.transformer import open_encoder

    lines = lw.Strings.of((folder / "texts.txt").read_text(encoding="utf-8").splitlines())
    encoder = open_encoder(EncoderConfig(model="tiny", max_length=16), lines, seed=0)
    encoder.backbone.save_pretrained(folder / "ENCODER")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=encoder.tokenizer.backend, pad_token="[PAD]")
    tokenizer.save_pretrained(folder / "ENCODER")


def write_images(folder: Path) -> None:
    """Folders of images per label and per person, and pairs of people."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for kind in ("photos", "people"):
        for label in range(3):
            (folder / kind / f"{kind}{label}").mkdir(parents=True)
            for number in range(8):
                pixels = np.clip(rng.normal(60 + 60 * label, 20, (24, 24, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / kind / f"{kind}{label}" / f"{number}.png")
    shutil.copyfile(folder / "photos" / "photos0" / "0.png", folder / "new-photo.jpg")
    pairs = [(a, b, int(a == b)) for a in range(3) for b in range(3)]
    lines = [f"people/people{a}/0.png\tpeople/people{b}/{n}.png\t{same}\n" for n in range(1, 5) for a, b, same in pairs]
    (folder / "pairs.tsv").write_text("".join(lines), encoding="utf-8")


def names_of(folder: Path) -> dict[str, Any]:
    """What the Python blocks of a page may use without defining it."""
    parts = lw.read_splits(folder / "corpus")
    model = lw.load(folder / "runs" / "first")
    texts = list(parts["test"].texts or ())[:10]
    rng = np.random.default_rng(0)
    same = np.arange(300) % 2 == 0
    return {
        "__name__": "page",
        "lw": lw,
        **parts,
        "model": model,
        "other_model": lw.LinearFlat().fit(parts["train"]),
        "texts": texts,
        "text": texts[0],
        "documents": texts,
        "labels": [["L1"]] * len(texts),
        "more": planted_texts(40, 8, seed=5),
        "top": model.predict(parts["test"], k=5),
        "features": planted_features(20, 8).features,
        "same": same,
        "scores": rng.normal(size=300) + same,
        "folds": np.arange(300) % 10,
        "array": rng.integers(0, 255, (4, 24, 24, 3), dtype=np.uint8),
    }
