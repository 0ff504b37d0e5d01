"""Files of pairs and of template protocols, good and bad; alignment of faces."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from labelwise.data.faces import (
    MEAN_FACE,
    align_face,
    is_protocol,
    read_pairs,
    read_protocol,
    similarity,
)
from labelwise.errors import DataError


def people(folder, **counts):
    for name, count in counts.items():
        (folder / name).mkdir()
        for number in range(1, count + 1):
            (folder / name / f"{name}_{number:04d}.jpg").write_bytes(b"image")


def lfw(folder, text):
    people(folder, Ann_Lee=3, Bo=2, Cy_O=1)
    (folder / "pairs.txt").write_text(text)
    return folder / "pairs.txt"


GOOD = "2\t1\nAnn_Lee\t1\t3\nAnn_Lee\t2\tBo\t1\nBo\t1\t2\nBo\t2\tCy_O\t1\n"


def test_pairs_of_lfw(tmp_path):
    pairs = read_pairs(lfw(tmp_path, GOOD), tmp_path)
    assert pairs.same.tolist() == [True, False, True, False]
    assert pairs.folds.tolist() == [0, 0, 1, 1]
    names = [image.rpartition("/")[2] for image in pairs.images]
    assert [names[i] for i in pairs.first] == ["Ann_Lee_0001.jpg", "Ann_Lee_0002.jpg", "Bo_0001.jpg", "Bo_0002.jpg"]
    assert [names[i] for i in pairs.second] == ["Ann_Lee_0003.jpg", "Bo_0001.jpg", "Bo_0002.jpg", "Cy_O_0001.jpg"]
    assert len(names) == len(set(names)) == 6
    single = tmp_path / "dev.txt"
    single.write_text("1\nBo\t1\t2\nBo\t2\tCy_O\t1\n")
    assert read_pairs(single, tmp_path).folds is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2\t1\nBo\t1\t2\n", "promises 2 folds of 1 pairs of either type, which is 4 lines, but 1 follow"),
        (GOOD.replace("Ann_Lee\t1\t3", "Ann_Lee\t1\tBo\t1"), ":2: a pair of this part"),
        (GOOD.replace("Ann_Lee\t1\t3", "Ann_Lee\t1\t9"), ":2: there is no image .*Ann_Lee_0009.jpg"),
        (GOOD.replace("Ann_Lee\t1\t3", "Ann_Lee\tx\t3"), ":2: 'x' is no number"),
        (GOOD.replace("Ann_Lee\t1\t3", "../Bo\t1\t2"), ":2: '../Bo' is no name of a folder"),
        ("", "empty"),
    ],
)
def test_bad_pairs_of_lfw(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_pairs(lfw(tmp_path, text), tmp_path)


def test_pairs_of_lfw_need_a_folder(tmp_path):
    with pytest.raises(DataError, match="--images FOLDER"):
        read_pairs(lfw(tmp_path, GOOD))


def test_a_table(tmp_path):
    people(tmp_path, Ann=2, Bo=1)
    table = tmp_path / "my.tsv"
    table.write_text("Ann/Ann_0001.jpg\tAnn/Ann_0002.jpg\t1\tx\n\nAnn/Ann_0001.jpg\tBo/Bo_0001.jpg\tdifferent\ty\n")
    pairs = read_pairs(table)
    assert (pairs.first.tolist(), pairs.second.tolist()) == ([0, 0], [1, 2])
    assert (pairs.same.tolist(), pairs.folds.tolist()) == ([True, False], [0, 1])
    table.write_text("Ann/Ann_0001.jpg\tAnn/Ann_0002.jpg\t1\n")
    assert read_pairs(table).folds is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Ann/Ann_0001.jpg\tAnn/Ann_0002.jpg\tmaybe\n", ":1: a pair is two paths"),
        ("Ann/Ann_0001.jpg\tAnn/Ann_0009.jpg\t1\n", ":1: there is no image"),
        ("Ann/Ann_0001.jpg\tAnn/Ann_0002.jpg\t1\t1\nAnn/Ann_0001.jpg\tAnn/Ann_0002.jpg\t1\n", ":2: some pairs have"),
        ("\n\n", "no pairs"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    people(tmp_path, Ann=2)
    (tmp_path / "my.tsv").write_text(text)
    with pytest.raises(DataError, match=message):
        read_pairs(tmp_path / "my.tsv")


def as_bin(path, value, protocol=2):
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_bin_sets(tmp_path, protocol):
    images = [f"image {number}".encode() for number in range(80)]
    answers = [number % 3 == 0 for number in range(40)]
    pairs = read_pairs(as_bin(tmp_path / "a.bin", (images, answers), protocol))
    assert pairs.images == images
    assert pairs.same.tolist() == answers
    assert pairs.second.tolist() == list(range(1, 80, 2))
    assert np.bincount(pairs.folds).tolist() == [4] * 10
    arrays = [np.frombuffer(image, np.uint8) for image in images]
    again = read_pairs(as_bin(tmp_path / "b.bin", [arrays, np.array(answers)], protocol))
    assert again.images == images
    assert again.same.tolist() == answers


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (([b"a", b"b", b"c"], [True]), "3 images for 1 pairs"),
        (([], []), "0 images for 0 pairs"),
        (([b"a", "b"], [True]), "image 1 is a str"),
        (([b"a", b"b"], [2]), "answer 0 is 2"),
        ({"a": 1}, "two lists"),
        ((b"ab", [True]), "got a bytes"),
    ],
)
def test_bad_bin_sets(tmp_path, value, message):
    with pytest.raises(DataError, match=message):
        read_pairs(as_bin(tmp_path / "a.bin", value))


def test_a_bin_set_runs_nothing(tmp_path):
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    with pytest.raises(DataError, match="nothing is run"):
        read_pairs(as_bin(tmp_path / "a.bin", ([Evil(), b""], [True])))
    assert not marker.exists()
    whole = pickle.dumps(([b"a", b"b"], [True]))
    for size in range(len(whole)):
        (tmp_path / "a.bin").write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"a\.bin"):
            read_pairs(tmp_path / "a.bin")


# --- templates ---


def protocol(folder, images, pairs, prefix="ijbc", points=None):
    lines = [f"{name} {template} {medium}" for name, template, medium in images]
    (folder / f"{prefix}_face_tid_mid.txt").write_text("\n".join(lines) + "\n")
    (folder / f"{prefix}_template_pair_label.txt").write_text("".join(f"{a} {b} {c}\n" for a, b, c in pairs))
    points = MEAN_FACE if points is None else points
    numbers = " ".join(f"{value:.4f}" for value in np.ravel(points))
    scored = [f"{name} {numbers} 0.{5 + place}" for place, (name, _, _) in enumerate(images)]
    (folder / f"{prefix}_name_5pts_score.txt").write_text("\n".join(scored))


IMAGES = [("1.jpg", 7, 1), ("2.jpg", 7, 1), ("3.jpg", 9, 2)]


def test_a_protocol(tmp_path):
    assert not is_protocol(tmp_path)
    protocol(tmp_path, IMAGES, [(7, 9, 0), (7, 7, 1)])
    with (tmp_path / "ijbc_template_pair_label.txt").open("a") as file:
        file.write("\n\n")
    assert is_protocol(tmp_path)
    found = read_protocol(tmp_path)
    assert found.names == ["1.jpg", "2.jpg", "3.jpg"]
    assert found.templates.tolist() == [7, 7, 9]
    assert found.media.tolist() == [1, 1, 2]
    assert found.scores.tolist() == [0.5, 0.6, 0.7]
    assert found.points.shape == (3, 5, 2)
    np.testing.assert_allclose(found.points[1], MEAN_FACE)
    assert (found.first.tolist(), found.second.tolist(), found.same.tolist()) == ([7, 7], [9, 7], [False, True])


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("face_tid_mid", "2.jpg 7 1", "2.jpg 7", ":2: 3 columns are needed, got 2"),
        ("face_tid_mid", "2.jpg 7 1", "2.jpg 7 x", ":2: a column that should be a number"),
        ("face_tid_mid", "2.jpg 7 1", "2.jpg 7 nan", ":2: a number is not finite"),
        ("face_tid_mid", "2.jpg 7 1", "\n2.jpg 7 1.5", ":3: templates and media are whole"),
        ("name_5pts_score", "2.jpg", "other.jpg", ":2: image 1 is other.jpg, in the file of templates 2.jpg"),
        ("name_5pts_score", "3.jpg", "\n3.jpg 38 51 73 51 56 71 41 92 70 inf 0.7\n3.jpg", ":4: a number is not finite"),
        ("template_pair_label", "7 7 1", "7 7 2", ":2: the third column .* 1 or 0"),
        ("template_pair_label", "7 7 1", "7 7", ":2: 3 whole numbers"),
        ("template_pair_label", "7 7 1", "7 7 x", ":2: 3 whole numbers"),
        ("template_pair_label", "7 7 1", "7 7\n1 7 8 9", ":2: 3 whole numbers"),
        ("template_pair_label", "7 9 0\n7 7 1", "7 9 0\n\n7 7 1", ":2: 3 whole numbers"),
        ("template_pair_label", "7 9 0\n7 7 1\n", " ", "empty"),
    ],
)
def test_bad_protocols(tmp_path, file, old, new, message):
    protocol(tmp_path, IMAGES, [(7, 9, 0), (7, 7, 1)])
    path = tmp_path / f"ijbc_{file}.txt"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        read_protocol(tmp_path)


def test_protocols_with_missing_or_several_files(tmp_path):
    protocol(tmp_path, IMAGES, [(7, 9, 0)])
    protocol(tmp_path, IMAGES, [(7, 9, 0)], prefix="ijbb")
    with pytest.raises(DataError, match="exactly one file"):
        read_protocol(tmp_path)


def test_similarity_finds_rotation_scale_and_shift():
    rng = np.random.default_rng(0)
    for _ in range(20):
        angle, scale, shift = rng.uniform(-3, 3), rng.uniform(0.2, 4), rng.normal(size=2) * 50
        turn = scale * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        found = similarity(MEAN_FACE, MEAN_FACE @ turn.T + shift)
        np.testing.assert_allclose(found, np.column_stack([turn, shift]), atol=1e-8)
    with pytest.raises(DataError, match="all the same"):
        similarity(np.ones((5, 2)), MEAN_FACE)
    with pytest.raises(DataError, match="not arranged"):
        similarity([[1, 0], [-1, 0], [1, 0], [-1, 0], [0, 0]], [[1, 1], [1, 1], [-1, -1], [-1, -1], [0, 0]])


def test_points_that_are_no_face_are_refused_with_their_line(tmp_path):
    from PIL import Image

    protocol(tmp_path, IMAGES, [(7, 9, 0)], points=np.ones((5, 2)))
    found = read_protocol(tmp_path)
    with pytest.raises(DataError, match=r"ijbc_name_5pts_score\.txt:2: the points of a face are all the same"):
        found.face(Image.new("RGB", (50, 50)), 1, 32)


def test_an_aligned_face_has_its_points_where_they_belong():
    from PIL import Image, ImageDraw

    angle = 0.4
    turn = 1.7 * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    points = MEAN_FACE @ turn.T + [90, 20]
    picture = Image.new("RGB", (300, 300))
    for x, y in points:
        ImageDraw.Draw(picture).ellipse([x - 6, y - 6, x + 6, y + 6], fill=(255, 255, 255))
    for size in (112, 56):
        face = np.asarray(align_face(picture, points, size)).mean(2)
        assert face.shape == (size, size)
        for x, y in MEAN_FACE * size / 112:
            assert face[int(y), int(x)] > 200
        assert face[2, 2] == 0
