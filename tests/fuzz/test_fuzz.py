"""Broken files thrown at every reader and at every file of a model folder.

What may come out: a data set or model, or one of our errors, whose message names the file. What may not: another
exception, a hang, half-written output. A sample runs with the suite; `make fuzz` runs LABELWISE_FUZZ_CASES in all.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import pickle
import random
import resource
import shutil
import signal
import struct
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

import labelwise as lw
from conformance.planted import planted, planted_features, planted_texts
from conformance.small import small_and_short
from data.record_files import content, image_bytes, write_records
from fuzz.mutations import broken
from labelwise.commands.describe import describe
from labelwise.data.dataset import Dataset
from labelwise.data.read import FORMATS
from labelwise.data.write import write
from labelwise.errors import LabelwiseError
from labelwise.io.folder import MANIFEST
from labelwise.nn.config import ImageConfig
from labelwise.nn.images.inputs import ImageInputs
from labelwise.registry import METHODS, method_class
from reference_records import framed

CASES = int(os.environ.get("LABELWISE_FUZZ_CASES", "0"))
SECONDS = 20
SEED_VARIABLE = "LABELWISE_FUZZ_SEED"
TARGETS = [*(f"read-{name}" for name in FORMATS), *(f"model-{name}" for name in METHODS)]


@contextmanager
def at_most(seconds: int):
    """Turn a hang into a failure."""

    def late(*_):
        raise TimeoutError(f"no answer after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def little_memory():
    """A file of a kilobyte that makes a reader ask for gigabytes is a failure, not a slow machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def seeds(name: str, folder: Path) -> list[Path]:
    """Small sound data sets in this format, each in a folder of its own."""
    texts = planted_texts(n_documents=6, n_labels=8)
    features = planted_features(n_documents=6, n_labels=8)
    wanted = {
        "xc": [features],
        "vowpal": [features],
        "tfrecord": [features],
        "pecos": [features, texts],
        "native": [texts, features],
    }
    if name in IMAGE_SETS:
        return [_image_set(name, folder / "seed0")]
    if name == "fulltext":
        return [_folder_of_texts(texts, folder / "seed0")]
    made = []
    for number, data in enumerate(wanted.get(name, [texts])):
        numbered = (
            Dataset(data.labels, texts=data.texts, features=data.features)
            if name in ("xc", "pecos", "tfrecord")
            else data
        )
        place = folder / f"seed{number}"
        place.mkdir(parents=True)
        main_file = {"pecos": "X.trn.npz" if data.texts is None else "X.trn.txt", "lines": "train_texts.txt"}
        write(numbered, place / main_file.get(name, f"train.{name}"), name)
        made.append(place)
    return made


IMAGE_SETS = ("cifar", "idx", "image_folder", "recordio")


def _image_set(name: str, place: Path) -> Path:
    place.mkdir(parents=True)
    pixels = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    if name == "cifar":
        (place / "batches.meta").write_bytes(pickle.dumps({b"label_names": ["a", "b"]}, 2))
        (place / "test_batch").write_bytes(pickle.dumps({b"data": pixels, b"labels": [1, 0]}, 2))
    elif name == "idx":
        (place / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + struct.pack(">3I", 2, 3, 4) + bytes(24))
        (place / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 2) + bytes([1, 0]))
    elif name == "recordio":
        write_records(place / "train.rec", [content(label, image_bytes(pixels[:, :4])) for label in (0, 1)])
    else:
        for label in "ab":
            (place / label).mkdir()
            (place / label / "1.pgm").write_bytes(b"P5 2 2 255\nabcd")
    return place


def _folder_of_texts(data: Dataset, place: Path) -> Path:
    place.mkdir(parents=True)
    for row, text in enumerate(data.texts or ()):
        (place / f"a{row}.txt").write_text(text, encoding="utf-8")
        lines = [f"<http://x/{name}>\t{name}\n" for name in data.labels_of(row)]
        (place / f"a{row}.tsv").write_text("".join(lines), encoding="utf-8")
    return place


def entry(folder: Path, name: str) -> Path:
    """What a user would give to `read`: the only file, or the folder."""
    inside = [p for p in folder.iterdir() if not p.name.startswith(".")]
    return inside[0] if len(inside) == 1 else folder


def files_below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def packed(content: bytes, rng: random.Random) -> bytes:
    """Now and then the file arrives packed, whole or cut."""
    way = rng.random()
    if way < 0.05:
        content = gzip.compress(content)
    elif way < 0.1:
        content = lzma.compress(content)
    else:
        return content
    return content if rng.random() < 0.5 else broken(content, rng)


def fuzz_reader(name: str, cases: int, rng: random.Random, tmp_path: Path) -> Counter:
    outcomes: Counter = Counter()
    sources = seeds(name, tmp_path / "seeds")
    for source in sources:
        lw.read(entry(source, name), name)  # compiles the kernels, which takes longer than a case may
    work = tmp_path / "work"
    for _ in range(cases):
        shutil.copytree(rng.choice(sources), work)
        victim = rng.choice(files_below(work))
        sound = victim.read_bytes()
        inside = name == "tfrecord" and rng.random() < 0.7
        victim.write_bytes(packed(broken_message(sound, rng) if inside else broken(sound, rng), rng))
        if name == "native" and rng.random() < 0.7:
            rehash(victim)
        before = [str(p) for p in files_below(work)]
        with at_most(SECONDS):
            try:
                data = lw.read(entry(work, name), name if rng.random() < 0.8 else "auto")
                assert isinstance(data, Dataset)
                if name in ("image_folder", "recordio"):
                    ImageInputs(ImageConfig(size=4), paths=data.paths).batch(np.arange(len(data)))
                outcomes["read"] += 1
                copy_somewhere(data, work, tmp_path, outcomes)
            except LabelwiseError as error:
                assert str(error).strip()
                outcomes["refused"] += 1
        assert [str(p) for p in files_below(work)] == before, "a reader left something behind"
        shutil.rmtree(work)
    return outcomes


def broken_message(content: bytes, rng: random.Random) -> bytes:
    """A TFRecord file in which one message is broken and its checksums agree, as a stranger would make it."""
    messages = []
    while content:
        end = 12 + int.from_bytes(content[:8], "little")
        messages.append(content[12:end])
        content = content[end + 4 :]
    place = rng.randrange(len(messages))
    messages[place] = broken(messages[place], rng)
    return b"".join(map(framed, messages))


def copy_somewhere(data: Dataset, work: Path, tmp_path: Path, outcomes: Counter) -> None:
    """What was read can be written whole, or the writer refuses and leaves nothing."""
    out = tmp_path / "out"
    out.mkdir()
    try:
        write(data, out / "copy", "native")
        assert {p.name for p in out.iterdir()} == {"copy"}
        again = lw.read(out / "copy")
        assert len(again) == len(data)
        write(data, out / "copy.jsonl", "jsonl")
    except LabelwiseError:
        assert {p.name for p in out.iterdir()} <= {"copy"}, "a writer left something behind"
        outcomes["not written"] += 1
    finally:
        shutil.rmtree(out)


def rehash(victim: Path) -> None:
    """Let the manifest agree with the broken file, as a stranger would."""
    manifest = victim.parent / MANIFEST
    if victim.name == MANIFEST or not manifest.exists():
        return
    content = victim.read_bytes()
    try:
        about = json.loads(manifest.read_bytes())
    except ValueError:
        return
    about["files"][victim.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest.write_text(json.dumps(about))


def fuzz_model(name: str, cases: int, rng: random.Random, tmp_path: Path) -> Counter:
    outcomes: Counter = Counter()
    kind = method_class(name)
    good = tmp_path / "good"
    data = planted(kind.inputs[0], n_documents=60, n_labels=12)
    model = kind(**small_and_short(name)).fit(data)
    model.calibrate(data, k=5)
    model.save(good)
    lw.load(good).predict(data, k=3)  # what a broken folder is refused for is what is broken in it
    outcomes["loaded"] += 1
    work = tmp_path / "work"
    for _ in range(cases):
        shutil.copytree(good, work)
        victim = rng.choice(files_below(work))
        victim.write_bytes(broken(victim.read_bytes(), rng))
        if rng.random() < 0.8:
            rehash(victim)
        with at_most(SECONDS):
            try:
                lw.load(work).predict(data, k=3)
                outcomes["loaded"] += 1
            except LabelwiseError as error:
                assert str(work) in str(error), error
                outcomes["refused"] += 1
            with suppress(LabelwiseError):
                json.dumps(describe(work))
        shutil.rmtree(work)
    return outcomes


def fuzz(target: str, cases: int, tmp_path: Path) -> None:
    seed = os.environ.get(SEED_VARIABLE, str(random.SystemRandom().randrange(2**32)))
    kind, _, name = target.partition("-")
    print(f"{target}: {cases:,} cases, {SEED_VARIABLE}={seed}")
    run = fuzz_reader if kind == "read" else fuzz_model
    outcomes = run(name, cases, random.Random(f"{seed}-{target}"), tmp_path)
    print(f"{target}: {dict(outcomes)}")
    assert outcomes["refused"] > 0
    assert outcomes["read"] + outcomes["loaded"] > 0


@pytest.mark.parametrize("target", TARGETS)
def test_sample(target, tmp_path, monkeypatch):
    monkeypatch.setenv(SEED_VARIABLE, "1")
    fuzz(target, 80 if target.startswith("read") else 20, tmp_path)  # to load a model and predict takes longer


@pytest.mark.fuzz
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", TARGETS)
def test_fuzz(target, tmp_path):
    fuzz(target, -(-CASES // len(TARGETS)) or 100, tmp_path)
