import json
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file, save_file
from scipy import sparse

from labelwise.errors import ConfigError, ModelFormatError
from labelwise.io import folder as store
from labelwise.io import tensors as tensor_file
from labelwise.strings import Strings

arrays = hnp.arrays(
    st.sampled_from([np.dtype(name) for name in tensor_file.TYPE_NAMES]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


@given(st.dictionaries(st.text("abc.", min_size=1), arrays, max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_our_files_are_read_by_safetensors_and_the_other_way_round(tmp_path_factory, tensors):
    folder = tmp_path_factory.mktemp("tensors")
    with store.new_folder(folder / "ours", "test", {}) as writer:
        writer.write_tensors("a.safetensors", tensors)
    theirs = load_file(folder / "ours" / "a.safetensors")
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / "theirs.safetensors")
    ours = store.map_tensors(folder / "theirs.safetensors")
    again = store.Folder(folder / "ours", "test").tensors("a.safetensors")
    assert set(ours) == set(theirs) == set(again) == set(tensors)
    for key, value in tensors.items():
        for found in (theirs[key], ours[key], again[key]):
            assert found.dtype == value.dtype
            np.testing.assert_array_equal(found, value)


def test_tensors_are_mapped_and_aligned(tmp_path):
    with store.new_folder(tmp_path / "m", "test", {}) as writer:
        writer.write_tensors("a.safetensors", {"a": np.zeros(3, np.uint8), "b": np.ones(5, np.float64)})
    tensors = store.Folder(tmp_path / "m", "test").tensors("a.safetensors")
    assert not tensors["b"].flags.writeable
    assert tensors["b"].ctypes.data % 8 == 0
    base = tensors["b"]
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)


def write(path, force=False, value=1, fail=False):
    with store.new_folder(path, "test", {"about": "x"}, force) as writer:
        writer.write_json("a.json", value)
        if fail:
            raise RuntimeError("in the middle")


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError):
        write(tmp_path / "m", fail=True)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_keeps_the_old_folder(tmp_path):
    write(tmp_path / "m", value=1)
    with pytest.raises(ConfigError, match="exists"):
        write(tmp_path / "m", value=2)
    with pytest.raises(RuntimeError):
        write(tmp_path / "m", force=True, value=2, fail=True)
    assert store.Folder(tmp_path / "m", "test").read_json("a.json") == 1
    write(tmp_path / "m", force=True, value=2)
    assert store.Folder(tmp_path / "m", "test").read_json("a.json") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_force_never_replaces_what_is_not_ours(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    (tmp_path / "file").write_text("x")
    for name in ("photos", "file"):
        with pytest.raises(ConfigError, match="not a labelwise folder"):
            write(tmp_path / name, force=True)
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"cat"


def edit(path, **values):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, **values}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "labelwise-model"}, "not a labelwise test"),
        ({"format_version": 99}, "format version 99"),
        ({"files": []}, "list of files is damaged"),
        ({"files": {}}, "not listed"),
        ({"files": {"a.json": {"bytes": 5, "sha256": "0"}}}, "bytes where the manifest says 5"),
        ({"files": {"a.json": {"bytes": 2, "sha256": "0"}}}, "contents are damaged"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path, change, message):
    write(tmp_path / "m")
    edit(tmp_path / "m", **change)
    with pytest.raises(ModelFormatError, match=message):
        store.Folder(tmp_path / "m", "test").read_json("a.json")


def test_no_name_leads_outside_the_folder(tmp_path):
    write(tmp_path / "m")
    (tmp_path / "secret.json").write_text("1")
    edit(tmp_path / "m", files={"../secret.json": {"bytes": 1, "sha256": "0"}})
    folder = store.Folder(tmp_path / "m", "test", verify=False)
    with pytest.raises(ModelFormatError, match="plain file name"):
        folder.read_json("../secret.json")


def test_symbolic_links_are_refused(tmp_path):
    write(tmp_path / "m")
    (tmp_path / "other.json").write_text((tmp_path / "m" / "a.json").read_text())
    (tmp_path / "m" / "a.json").unlink()
    os.symlink(tmp_path / "other.json", tmp_path / "m" / "a.json")
    with pytest.raises(ModelFormatError, match="regular file"):
        store.Folder(tmp_path / "m", "test").read_json("a.json")


@pytest.mark.parametrize(
    "header",
    [
        b"", b"[]", b"{", b'{"a": 1}', b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}',
        b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}',
        b'{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}',
        b'{"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_damaged_tensor_headers_are_refused(tmp_path, header):
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ModelFormatError):
        store.map_tensors(path)


def test_strings_and_matrices_round_trip_and_are_checked(tmp_path):
    names = Strings.of(["é", "", "b"])
    matrix = sparse.random_array((4, 6), density=0.4, format="csr", rng=0, dtype=np.float32)
    tensors = store.strings_to_tensors("n", names[[2, 0]]) | store.csr_to_tensors("m", matrix)
    assert store.strings_from_tensors("n", tensors, tmp_path) == ["b", "é"]
    assert (store.csr_from_tensors("m", tensors, tmp_path) != matrix).nnz == 0
    for key, bad in {
        "n.ends": np.array([1, 2], np.int64),  # cuts é
        "n.buffer": np.array([98, 255, 255], np.uint8),
        "m.indices": np.full(matrix.nnz, 6, np.int32),
        "m.indptr": np.array([0, 9, 3, 4, matrix.nnz], np.int64),
        "m.shape": np.array([4, -6], np.int64),
        "m.data": np.zeros(3, np.float32),
    }.items():
        with pytest.raises(ModelFormatError):
            broken = {**tensors, key: bad}
            store.strings_from_tensors("n", broken, tmp_path)
            store.csr_from_tensors("m", broken, tmp_path)


WRAPPING = [0, 2**63 - 1, -(2**63), -1, 4]


def test_offsets_that_wrap_around_are_refused(tmp_path):
    strings = {"s.buffer": np.frombuffer(b"abcd", np.uint8), "s.ends": np.array([*WRAPPING, 4])}
    with pytest.raises(ModelFormatError, match="text positions of s"):
        store.strings_from_tensors("s", strings, tmp_path)
    matrix = {"m.indptr": np.array(WRAPPING), "m.indices": np.zeros(4, np.int64), "m.data": np.ones(4, np.float32)}
    for shape in ([4, 4], [4, 2**40], [-1, 4], [2**63 - 1, 4]):
        with pytest.raises(ModelFormatError, match="sparse matrix m"):
            store.csr_from_tensors("m", matrix | {"m.shape": np.array(shape)}, tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_folders_have_the_permissions_of_the_umask_which_never_changes(tmp_path, monkeypatch):
    """The umask belongs to the whole process: a change for a moment would open the files of other threads."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", None)
            with store.new_folder(tmp_path / "model", "model", {}) as folder:
                folder.write_json("a.json", {})
    finally:
        os.umask(before)
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o750
