"""Whatever is in a file: a data set comes out, or one of our errors. A thousand small damages, the same every time."""

from __future__ import annotations

import hashlib
import json
import random
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from data_cases import WRITTEN, small
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.data.options import ReadOptions
from labelwise.data.read import read
from labelwise.data.write import write
from labelwise.errors import LabelwiseError
from labelwise.strings import Strings
from reference_records import framed

CASES = 100
PIECES = [
    b"\n", b"\r\n", b"\t", b" ", b",", b":", b";", b'"', b"|", b"{", b"}", b"[", b"__label__", b"\0", b"\xff", b"\xc3",
    b"\xef\xbb\xbf", b"-1", b"99999999999999999999", b"1e400", b"nan", b"\\u", b"\xe2\x80\xa8", b"'", b"0",
]  # fmt: skip
LENIENT = ReadOptions(on_bad_bytes="replace", header="ignore")


def damaged(raw: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, taken out, put in or doubled; or cut short, or nothing but noise."""
    if chance.random() < 0.05:
        return chance.randbytes(chance.randrange(60))
    for _ in range(chance.randrange(1, 4)):
        place, length = chance.randrange(len(raw) + 1), chance.randrange(1, 9)
        kind = chance.randrange(5)
        if kind == 0:
            raw = raw[:place] + chance.randbytes(length) + raw[place + length :]
        elif kind == 1:
            raw = raw[:place] + chance.choice(PIECES) + raw[place:]
        elif kind == 2:
            raw = raw[:place] + raw[place + length :]
        elif kind == 3:
            raw = raw[:place] + raw[max(0, place - 20) :]
        elif chance.random() < 0.3:
            raw = raw[:place]
    return raw


def sample(name: str) -> tuple[Dataset, str]:
    """A data set and the file it is written to."""
    matrix = sparse.csr_array(np.array([[1.5, 0, 2], [0, 0, 0], [0, -3, 0]], np.float32))
    if name in ("xc", "vowpal", "tfrecord"):
        data = small(None, [["0", "1"], [], ["1"]], features=matrix)
    elif name == "pecos":
        data = small(labels=[["0", "1"], [], ["1"]], features=matrix)
    elif name in ("jsonl", "native"):
        data = small(features=matrix, ids=Strings.of("abc"))
    else:
        data = small(["some text", "", "é, more"], ids=Strings.of("abc") if name in ("csv", "tsv") else None)
    files = {"native": "out", "lines": "a_texts.txt", "pecos": "Y.trn.npz", "xc": "a.txt", "vowpal": "a.vw",
             "fasttext": "a.ft", "tfrecord": "a.tfrecords"}  # fmt: skip
    return data, files.get(name, f"a.{name}")


def comes_out_well(path, name: str) -> bool:
    """Read it; True for a data set, False for one of our errors. Everything else is raised."""
    well = False
    for format, options in ((name, ReadOptions()), (name, LENIENT), ("auto", ReadOptions())):
        try:
            found = read(path, format, options=options)
        except LabelwiseError as error:
            assert str(error)
            continue
        assert len(list(found.texts or [])) in (0, len(found))
        assert len(set(found.label_names)) == found.n_labels
        well = True
    return well


@pytest.mark.parametrize("name", WRITTEN)
def test_damaged_files_give_a_data_set_or_an_error(tmp_path, name):
    data, file = sample(name)
    write(data, tmp_path / file)
    path = tmp_path / file
    assert comes_out_well(path, name)
    chance = random.Random(name)
    files = [one for one in tmp_path.rglob("*") if one.is_file()]
    contents = {one: one.read_bytes() for one in files}
    outcomes = set()
    for _ in range(CASES):
        target = chance.choice(files)
        raw = contents[target]
        inside = name == "tfrecord" and chance.random() < 0.8
        target.write_bytes(damaged_inside(raw, chance) if inside else damaged(raw, chance))
        if name == "native":
            sign_again(path)
        outcomes.add(comes_out_well(path, name))
        for one, raw in contents.items():
            one.write_bytes(raw)
    assert outcomes == {True, False}, "damage must sometimes matter and sometimes not"


def damaged_inside(raw: bytes, chance: random.Random) -> bytes:
    """One message of a TFRecord file damaged and framed with sound checksums, so that what is behind them is tested."""
    messages = []
    while raw:
        end = 12 + int.from_bytes(raw[:8], "little")
        messages.append(raw[12:end])
        raw = raw[end + 4 :]
    place = chance.randrange(len(messages))
    messages[place] = damaged(messages[place], chance)
    return b"".join(map(framed, messages))


def sign_again(folder) -> None:
    """Let the manifest agree with a damaged file, so that what is behind the checksum is tested."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        for name, entry in manifest["files"].items():
            raw = (folder / name).read_bytes()
            entry |= {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    except (ValueError, TypeError, KeyError, AttributeError, OSError):
        pass


def test_damaged_arrays_with_sound_checksums(tmp_path):
    """The same for what is inside a .npz, where the archive's own checksum would stop most damages."""
    data, file = sample("pecos")
    write(data, tmp_path / file)
    chance = random.Random("arrays")
    target = tmp_path / "Y.trn.npz"
    with zipfile.ZipFile(target) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    outcomes = set()
    for _ in range(2 * CASES):
        changed = chance.choice(list(members))
        with zipfile.ZipFile(target, "w") as archive:
            for name, raw in members.items():
                archive.writestr(name, damaged(raw, chance) if name == changed else raw)
        outcomes.add(comes_out_well(tmp_path / file, "pecos"))
    assert outcomes == {True, False}


@pytest.mark.parametrize("extension", ["", ".txt", ".tsv", ".csv", ".jsonl", ".vw", ".ft", ".txt.gz", ".tfrecords"])
def test_noise_gives_a_data_set_or_an_error(tmp_path, extension):
    chance = random.Random(extension)
    for _ in range(40):
        noise = b"".join(
            chance.choice(PIECES) if chance.random() < 0.7 else chance.randbytes(3) for _ in range(chance.randrange(30))
        )
        path = tmp_path / f"train{extension}"
        path.write_bytes(noise)
        comes_out_well(path, "auto")
        with suppress(LabelwiseError):
            read(tmp_path)
