"""Images as documents: decoding, sizes, hostile files, augmentation."""

import struct
import tracemalloc
import zlib
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from scipy import sparse

import labelwise as lw
from labelwise.data.hashing import document_hashes
from labelwise.data.images import ImageError, check_images
from labelwise.errors import DataError, LabelwiseError
from labelwise.nn.config import AugmentationConfig, ImageConfig
from labelwise.nn.images import inputs as images
from labelwise.nn.images.inputs import (
    ImageInputs,
    as_pixels,
    label_means,
    normalisation,
    resized_crop_box,
    uniform,
)
from labelwise.nn.inputs import Part
from labelwise.strings import Strings

RNG = np.random.default_rng(0)


def noise(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def saved(folder, name, pixels, **options):
    Image.fromarray(pixels).save(folder / name, **options)
    return str(folder / name)


def inputs_of(paths, **settings):
    return ImageInputs(ImageConfig(**settings), paths=Strings.of(paths))


def test_files_and_arrays_give_the_same_pixels(tmp_path):
    pixels = noise(5, 12, 12, 3)
    paths = [saved(tmp_path, f"{i}.png", one) for i, one in enumerate(pixels)]
    config = ImageConfig(size=12)
    rows = np.array([3, 0, 4])
    from_files = ImageInputs(config, paths=Strings.of(paths)).batch(rows)
    from_arrays = ImageInputs(config, arrays=pixels).batch(rows)
    np.testing.assert_array_equal(from_files.arrays[0], pixels[rows].transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(from_files.arrays[0], from_arrays.arrays[0])
    np.testing.assert_array_equal(from_files.rows, rows)
    kept = ImageInputs(config, paths=Strings.of(paths), keep=True)
    for _ in range(2):
        np.testing.assert_array_equal(kept.batch(rows).arrays[0], from_files.arrays[0])


def test_the_middle_is_kept_and_the_border_filled():
    picture = np.zeros((1, 8, 16), np.uint8)
    picture[:, :, 4:12] = 200
    crop = ImageInputs(ImageConfig(size=8, channels=1), arrays=picture).batch(np.array([0])).arrays[0]
    assert (crop == 200).all()
    pad = ImageInputs(ImageConfig(size=16, channels=1, fit="pad"), arrays=picture).batch(np.array([0])).arrays[0][0, 0]
    np.testing.assert_array_equal(pad[4:12], picture[0])
    assert pad[:4].sum() == pad[12:].sum() == 0
    stretched = ImageInputs(ImageConfig(size=4, channels=1, fit="stretch"), arrays=picture).batch(np.array([0]))
    assert stretched.arrays[0].shape == (1, 1, 4, 4)
    assert 0 < stretched.arrays[0][0, 0, 0, 1] <= 200


def test_resize_is_the_middle_of_a_larger_image():
    """224 of 256: as scaling to 256 and cutting out the middle, up to the rounding of one resampling."""
    picture = np.tile(np.linspace(0, 255, 64).astype(np.uint8), (64, 1))[None]
    got = ImageInputs(ImageConfig(size=28, channels=1, resize=32), arrays=picture).batch(np.array([0])).arrays[0][0, 0]
    whole = np.asarray(Image.fromarray(picture[0]).resize((32, 32), Image.Resampling.BILINEAR))
    assert np.abs(got.astype(int) - whole[2:30, 2:30]).max() <= 3


def test_shapes_and_types_of_arrays():
    colour = noise(3, 6, 7, 3)
    np.testing.assert_array_equal(as_pixels(colour, 3), colour.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(as_pixels(colour.transpose(0, 3, 1, 2), 3), colour.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(as_pixels(colour / 255.0, 3), colour.transpose(0, 3, 1, 2))
    grey = noise(2, 5, 5)
    np.testing.assert_array_equal(as_pixels(grey, 3)[:, 2], grey)
    np.testing.assert_array_equal(as_pixels(grey > 100, 1)[:, 0], (grey > 100) * 255)
    by_pillow = np.stack([np.asarray(Image.fromarray(one).convert("L")) for one in colour])
    np.testing.assert_array_equal(as_pixels(colour, 1)[:, 0], by_pillow)
    for wrong, message in (
        (np.zeros((2, 10)), "shape"),
        (np.zeros((2, 4, 4, 5)), "shape"),
        (np.full((1, 3, 3), 1.5), "0 to 1"),
        (np.full((1, 3, 3), np.nan), "0 to 1"),
        (np.full((1, 3, 3), 300), "0 to 255"),
        (np.zeros((2, 0, 4), np.uint8), "without pixels"),
    ):
        with pytest.raises(DataError, match=message):
            as_pixels(wrong, 3)


def test_other_modes_of_files(tmp_path):
    clear = np.zeros((6, 6, 4), np.uint8)
    clear[:3] = (10, 20, 30, 255)
    found = inputs_of([saved(tmp_path, "a.png", clear)], size=6).batch(np.array([0])).arrays[0][0]
    assert found[:, 0, 0].tolist() == [10, 20, 30]
    assert found[:, 5, 5].tolist() == [255, 255, 255]
    deep = (np.arange(36, dtype=np.uint16).reshape(6, 6) * 1800).astype(np.uint16)
    grey = inputs_of([saved(tmp_path, "b.png", deep)], size=6, channels=1).batch(np.array([0])).arrays[0][0, 0]
    np.testing.assert_array_equal(grey, deep >> 8)
    palette = Image.fromarray(noise(6, 6)).convert("P")
    palette.save(tmp_path / "c.gif")
    assert inputs_of([str(tmp_path / "c.gif")], size=6).batch(np.array([0])).arrays[0].shape == (1, 3, 6, 6)


def test_wide_files_need_finite_numbers(tmp_path):
    wide = np.linspace(-1, 3, 16, dtype=np.float32).reshape(4, 4)
    grey = inputs_of([saved(tmp_path, "wide.tif", wide)], size=4, channels=1).batch(np.array([0])).arrays[0][0, 0]
    assert grey.min() == 0
    assert grey.max() == 255
    wide[1, 2] = np.nan
    with pytest.raises(ImageError, match=r"wide\.tif.*finite"):
        inputs_of([saved(tmp_path, "wide.tif", wide)], size=4, channels=1).batch(np.array([0]))


def lying_png(width, height):
    """A PNG that claims to have so many pixels and has none."""

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bomb.png", lying_png(60_000, 60_000), r"pixels|refused|exceeds"),
        ("large.png", lying_png(9_000, 9_000), "more than the"),
        ("lying.png", lying_png(40, 40), "damaged"),
        ("text.jpg", b"no image at all", "not an image"),
        ("empty.png", b"", "not an image"),
        ("eps.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    ],
)
def test_hostile_files_name_themselves(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ImageError, match=rf"{name}.*({message})"):
        inputs_of([str(tmp_path / name)], size=8).batch(np.array([0]))


def test_truncated_files_are_found(tmp_path):
    path = saved(tmp_path, "whole.jpg", noise(64, 64, 3), quality=95)
    content = (tmp_path / "whole.jpg").read_bytes()
    (tmp_path / "half.jpg").write_bytes(content[: len(content) // 2])
    paths = [path, str(tmp_path / "half.jpg"), str(tmp_path / "missing.jpg")]
    bad = check_images(paths, 1 << 20)
    assert bad[0] is None
    assert "half.jpg" in str(bad[1])
    assert "no such image" in str(bad[2])


def test_mutated_images_never_surprise(tmp_path):
    originals = []
    for name in ("a.png", "a.jpg", "a.gif", "a.bmp", "a.webp", "a.tif"):
        saved(tmp_path, name, noise(9, 9, 3))
        originals.append((name, (tmp_path / name).read_bytes()))
    for round_ in range(20):
        for name, content in originals:
            changed = bytearray(content)
            for at in RNG.integers(0, len(changed), 1 + round_ % 4):
                changed[at] = RNG.integers(0, 256)
            (tmp_path / name).write_bytes(changed)
            try:
                inputs_of([str(tmp_path / name)], size=8).batch(np.array([0]))
            except LabelwiseError as error:
                assert name in str(error)


# --- augmentation ---


def test_augmentation_depends_on_document_and_epoch_alone():
    pixels = noise(20, 10, 10, 3)
    settings = AugmentationConfig(crop="padded", padding=2, flip=True)
    inputs = ImageInputs(ImageConfig(size=10, augmentation=settings), arrays=pixels, seed=3)
    rows = np.arange(20)
    whole = inputs.batch(rows, 1).arrays[0]
    some = rows[[7, 2, 11]]
    np.testing.assert_array_equal(inputs.batch(some, 1).arrays[0], whole[some])
    through = Part(inputs, rows=np.array([2, 7, 11]))
    np.testing.assert_array_equal(through.batch(np.array([1, 0]), 1).arrays[0], whole[[7, 2]])
    assert (inputs.batch(rows, 2).arrays[0] != whole).any()
    np.testing.assert_array_equal(inputs.batch(rows).arrays[0], pixels.transpose(0, 3, 1, 2))


def test_padded_crops_are_shifts():
    pixels = noise(40, 1, 8, 8)
    settings = AugmentationConfig(crop="padded", padding=2, flip=True, pad_with="white")
    inputs = ImageInputs(ImageConfig(size=8, channels=1, augmentation=settings), arrays=pixels)
    got = inputs.batch(np.arange(40), 0).arrays[0]
    padded = np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2)), constant_values=255)
    seen = set()
    for index in range(40):
        matches = [
            (top, left, flip)
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
            if np.array_equal(got[index], padded[index, :, top : top + 8, left : left + 8][..., :: -1 if flip else 1])
        ]
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) > 20


def test_uniform_numbers_are_uniform():
    draws = uniform(np.arange(20_000), 3, 1, 0, 3)
    assert (draws >= 0).all()
    assert (draws < 1).all()
    counts = np.histogram(draws[:, 1], 20, (0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi squared with 19 degrees of freedom
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 0.03
    other = uniform(np.arange(20_000), 4, 1, 0, 3)
    assert abs(np.corrcoef(draws[:, 0], other[:, 0])[0, 1]) < 0.03


def test_resized_crops_are_inside_and_have_the_asked_area():
    settings = AugmentationConfig(crop="resized", scale=(0.2, 0.5))
    areas, shapes = [], []
    for draws in uniform(np.arange(500), 0, 0, 3, 4):
        left, top, right, bottom = resized_crop_box(draws, 60, 40, settings)
        assert 0 <= left < right <= 60
        assert 0 <= top < bottom <= 40
        areas.append((right - left) * (bottom - top) / 2400)
        shapes.append((right - left) / (bottom - top))
    assert 0.19 < min(areas) < 0.25
    assert 0.45 < max(areas) < 0.51
    assert 0.74 < min(shapes) < 0.8
    assert 1.25 < max(shapes) < 1.34
    picture = np.broadcast_to(np.arange(40, dtype=np.uint8)[None, :, None], (1, 40, 60))
    inputs = ImageInputs(ImageConfig(size=8, channels=1, augmentation=settings), arrays=picture)
    part = inputs.batch(np.array([0]), 5).arrays[0][0, 0]
    assert part[0, 0] < part[-1, 0]
    assert part.max() - part.min() < 40


def test_another_image_of_the_same_name_and_size_is_another_input(tmp_path):
    path = saved(tmp_path, "a.bmp", noise(8, 8, 3))
    data = lw.Dataset([["a"]], paths=[path])
    before = document_hashes(data, "paths")
    assert document_hashes(data, "paths") == before
    saved(tmp_path, "a.bmp", noise(8, 8, 3))
    assert document_hashes(data, "paths") != before


def test_mean_and_deviation_are_measured():
    pixels = noise(50, 9, 9, 3)
    mean, std = normalisation(ImageInputs(ImageConfig(size=9), arrays=pixels))
    np.testing.assert_allclose(mean, (pixels / 255.0).mean((0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(std, (pixels / 255.0).std((0, 1, 2)), rtol=1e-5)
    _, flat = normalisation(ImageInputs(ImageConfig(size=9), arrays=np.zeros((3, 9, 9), np.uint8)))
    assert (flat == 1).all()


def test_mean_images_of_labels_take_the_memory_of_the_result():
    n_labels, rng = 30_000, np.random.default_rng(2)
    pixels = noise(600, 12, 12, 3)
    labels = sparse.random_array((600, n_labels), density=5e-5, format="csr", dtype=np.float32, rng=rng)
    labels.data[:] = 1
    tracemalloc.start()
    found = label_means(ImageInputs(ImageConfig(size=12), arrays=pixels), labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.shape == (n_labels, 192)
    assert peak < 1.5 * found.nbytes
    edges = np.linspace(0, 12, 9).astype(int)
    small = np.array(
        [
            [pixels[:, top:bottom, left:right].mean((1, 2)) for left, right in pairwise(edges)]
            for top, bottom in pairwise(edges)
        ]
    )
    features = small.transpose(2, 3, 0, 1).reshape(600, 192)
    used = np.flatnonzero(labels.sum(0))
    means = np.array([features[labels[:, [label]].nonzero()[0]].mean(0) for label in used])
    means -= means.mean(0)
    np.testing.assert_allclose(found[used], means / np.linalg.norm(means, axis=1, keepdims=True), atol=1e-4)
    assert (np.delete(found, used, axis=0) == 0).all()


def test_mean_images_of_many_labels_are_smaller(monkeypatch):
    monkeypatch.setattr(images, "MEAN_VALUES", 20 * 3 * 16)
    labels = sparse.csr_array(np.eye(20, dtype=np.float32))
    assert label_means(ImageInputs(ImageConfig(size=8), arrays=noise(20, 8, 8, 3)), labels).shape == (20, 48)


@pytest.mark.parametrize(
    "settings",
    [
        {"mean": (0.5,), "std": (0.5,)},
        {"mean": (0.5,) * 3},
        {"resize": 16, "size": 32},
        {"max_pixels": 1 << 28},  # Pillow refuses them in any case
        {"augmentation": {"padding": 8}},
        {"augmentation": {"crop": "resized", "scale": (0.9, 0.1)}},
    ],
)
def test_settings_without_effect_are_refused(settings):
    with pytest.raises((ValueError, LabelwiseError)):
        ImageConfig(**settings)
