"""What every method must hold to. Each check takes a function that makes a fresh, unfitted method.

The checks know nothing of any one method. `test_broken_methods.py` proves that each can fail.
"""

from __future__ import annotations

import json
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import labelwise as lw
from conformance.memory import resident_memory
from conformance.planted import planted
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError, DataError, LabelwiseError, ModelFormatError, NotFittedError
from labelwise.methods.base import Method
from labelwise.parallel import using_threads

Make = Callable[[], Method]
CHECKS: dict[str, Callable[[Make, Path], None]] = {}
MARGIN = 0.3


def check(function):
    CHECKS[function.__name__.removeprefix("check_")] = function
    return function


def kinds(make: Make) -> list[str]:
    return [kind for kind in make().inputs if kind in ("texts", "features")]


def is_mapped(array) -> bool:
    """Whether the array's memory is a file's."""
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


def same(a, b) -> None:
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_array_equal(a.scores, b.scores)


@check
def check_solves_planted_data(make: Make, tmp_path: Path) -> None:
    """Beats popularity by a wide margin on documents it has not seen; a baseline must at least equal it."""
    for kind in kinds(make):
        train, test = planted(kind, n_documents=900).split(1 / 3, seed=1)
        floor = lw.evaluate(lw.Popularity().fit(train).predict(test, k=3), test, metrics=["P@1", "P@3"])
        found = lw.evaluate(make().fit(train).predict(test, k=3), test, metrics=["P@1", "P@3"])
        margin = MARGIN if make().learns else 0.0
        assert found["P@1"] >= min(floor["P@1"] + margin, 0.95), (kind, found["P@1"], floor["P@1"])
        assert found["P@3"] >= floor["P@3"] + margin / 3, (kind, found["P@3"], floor["P@3"])


@check
def check_predictions_are_well_formed(make: Make, tmp_path: Path) -> None:
    """Finite scores, best first, equal scores by id, no label twice, empty places at the end."""
    for kind in kinds(make):
        data = planted(kind)
        top = make().fit(data).predict(data, k=20)
        assert top.ids.shape == top.scores.shape == (len(data), 20)
        assert top.label_names == data.label_names
        filled = top.ids >= 0
        assert np.isfinite(top.scores[filled]).all()
        assert (top.ids[~filled] == -1).all()
        assert np.isneginf(top.scores[~filled]).all()
        assert (top.ids < data.n_labels).all()
        for ids, scores in zip(top.ids, top.scores, strict=True):
            count = int((ids >= 0).sum())
            assert (ids[:count] >= 0).all()
            assert len(set(ids[:count].tolist())) == count
            order = sorted(range(count), key=lambda j: (-scores[j], ids[j]))
            assert order == list(range(count))


@check
def check_batch_equals_single(make: Make, tmp_path: Path) -> None:
    """A document's prediction does not depend on the company it is in."""
    for kind in kinds(make):
        data = planted(kind)
        model = make().fit(data)
        whole = model.predict(data, k=5)
        for row in (0, 17, len(data) - 1):
            single = model.predict(data.take(slice(row, row + 1)), k=5)
            np.testing.assert_array_equal(single.ids[0], whole.ids[row])
            np.testing.assert_allclose(single.scores[0], whole.scores[row], rtol=1e-5, atol=1e-6)


@check
def check_save_and_load_are_exact(make: Make, tmp_path: Path) -> None:
    """A loaded model predicts the very same, its arrays are mapped from the files, and saving it again works."""
    for kind in kinds(make):
        data = planted(kind)
        model = make().fit(data)
        folder = tmp_path / kind
        model.save(folder)
        loaded = lw.load(folder)
        assert type(loaded) is type(model)
        assert loaded.get_params() == model.get_params()
        same(loaded.predict(data, k=7), model.predict(data, k=7))
        np.testing.assert_array_equal(loaded.label_counts_, model.label_counts_)
        state = list(loaded._state().values())
        mapped = sum(array.nbytes for array in state if is_mapped(array))
        assert mapped > 0.9 * sum(array.nbytes for array in state), "arrays must be mapped from the file, not copied"
        loaded.save(tmp_path / f"{kind}-again")
        same(lw.load(tmp_path / f"{kind}-again").predict(data, k=7), model.predict(data, k=7))
        with pytest.raises(ConfigError, match="exists"):
            model.save(folder)


@check
def check_is_deterministic(make: Make, tmp_path: Path) -> None:
    """The same data and parameters give the same model, on one thread or several.

    A method that says that its sums depend on the threads must give the same on the same number of them, and nearly the
    same on others.
    """
    for kind in kinds(make):
        data = planted(kind)
        with using_threads(1):
            one = make().fit(data).predict(data, k=5)
            again = one if make().same_on_any_threads else make().fit(data).predict(data, k=5)
        with using_threads(3):
            several = make().fit(data).predict(data, k=5)
        same(one, again)
        if make().same_on_any_threads:
            same(one, several)
        else:
            np.testing.assert_allclose(one.scores, several.scores, rtol=1e-2, atol=1e-3)


@check
def check_fit_again_forgets(make: Make, tmp_path: Path) -> None:
    """A second fit leaves nothing of the first."""
    for kind in kinds(make):
        first, second = planted(kind, seed=0), planted(kind, n_labels=40, seed=5)
        used = make().fit(first).fit(second)
        same(used.predict(second, k=5), make().fit(second).predict(second, k=5))


@check
def check_more_places_than_labels(make: Make, tmp_path: Path) -> None:
    """k above the number of labels gives k places, the rest of them empty."""
    for kind in kinds(make):
        data = planted(kind, n_labels=7)
        top = make().fit(data).predict(data.take(slice(0, 3)), k=12)
        assert top.ids.shape == (3, 12)
        assert (top.ids[:, 7:] == -1).all()
        for bad in (0, -1, 2.5):
            with pytest.raises(ConfigError, match="k must be"):
                make().fit(data).predict(data, k=bad)


@check
def check_empty_rows(make: Make, tmp_path: Path) -> None:
    """Empty documents, documents without labels, labels without documents and an empty batch all work."""
    for kind in kinds(make):
        data = planted(kind)
        labels = sparse.lil_array(data.labels)
        labels[3], labels[:, 5] = 0, 0
        data = replace(data, labels=sparse.csr_array(labels))
        model = make().fit(data)
        empty = Dataset(
            data.labels[:2], data.label_names, **{kind: ["", " \t"] if kind == "texts" else data.features[:2] * 0}
        )
        top = model.predict(empty, k=4)
        assert np.isfinite(top.scores[top.ids >= 0]).all()
        assert model.predict(data.take(slice(0, 0)), k=4).ids.shape == (0, 4)
        nothing = data.take(slice(0, 0))
        with pytest.raises(DataError, match="no document"):
            make().fit(nothing)


@check
def check_unseen_labels(make: Make, tmp_path: Path) -> None:
    """Test labels that training has not seen count as misses; the label space of the model does not change."""
    for kind in kinds(make):
        data = planted(kind)
        model = make().fit(data)
        test = replace(data, label_names=lw.Strings.of(f"new{j}" for j in range(data.n_labels)))
        top = model.predict(test, k=3)
        assert lw.evaluate(top, test, metrics=["P@3"])["P@3"] == 0
        assert model.label_names_ == data.label_names


@check
def check_unfitted_is_refused(make: Make, tmp_path: Path) -> None:
    """Predict and save before fit say so."""
    with pytest.raises(NotFittedError, match="fit"):
        make().predict(["text"])
    with pytest.raises(NotFittedError, match="fit"):
        make().save(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@check
def check_sklearn_manners(make: Make, tmp_path: Path) -> None:
    """clone, get_params, set_params and fit(X, Y) work; fit returns self and does not touch parameters."""
    from sklearn.base import clone
    from sklearn.utils.validation import check_is_fitted

    model = make()
    before = model.get_params()
    copy = clone(model)
    assert copy is not model
    assert copy.get_params() == before
    assert set(before) == set(type(model).Config.model_fields)
    assert model.set_params(**before) is model
    kind = kinds(make)[0]
    data = planted(kind)
    documents = list(data.texts) if kind == "texts" else data.features
    assert model.fit(documents, data.labels) is model
    check_is_fitted(model)
    assert model.get_params() == before
    same(model.predict(documents, k=3), clone(model).fit(data).predict(data, k=3))
    assert 0 <= model.score(documents, data.labels) <= 1


@check
def check_unknown_parameters_are_refused(make: Make, tmp_path: Path) -> None:
    """A misspelt parameter is an error in the constructor and in set_params, and changes nothing."""
    model = make()
    before = model.get_params()
    with pytest.raises(ConfigError, match="no_such_parameter"):
        type(model)(no_such_parameter=1)
    with pytest.raises(ConfigError, match="no_such_parameter"):
        model.set_params(no_such_parameter=1)
    assert model.get_params() == before


@check
def check_inputs_are_left_alone(make: Make, tmp_path: Path) -> None:
    """Neither fit nor predict changes the data it is given."""
    for kind in kinds(make):
        data, untouched = planted(kind), planted(kind)
        make().fit(data).predict(data, k=3)
        assert (data.labels != untouched.labels).nnz == 0
        if kind == "features":
            assert (data.features != untouched.features).nnz == 0
        else:
            assert data.texts == untouched.texts


@check
def check_never_dense(make: Make, tmp_path: Path) -> None:
    """Learning from and predicting for documents over many labels takes far less memory than documents x labels."""
    kind = kinds(make)[-1]
    n_labels, n_documents = 40_000, 1_000
    small = planted(kind, n_documents=300, n_labels=60).take(np.arange(n_documents) % 300)
    rows = np.repeat(np.arange(n_documents), 2)
    columns = np.random.default_rng(0).integers(0, n_labels, len(rows))
    labels = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n_documents, n_labels))
    data = replace(small, labels=labels, label_names=lw.Strings.numbers(n_labels))
    model = make()
    make().fit(small.take(slice(0, 60)))  # what is imported and compiled at the first use does not count
    for step in (lambda: model.fit(data), lambda: model.predict(data, k=5)):
        tracemalloc.start()
        step()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < n_documents * n_labels * 4 / 4, f"{peak:,} bytes for {n_documents:,} x {n_labels:,}"
    many = data.take(np.tile(np.arange(n_documents), 2))  # networks keep blocks of a fixed size beside
    with resident_memory() as grown:
        model.predict(many, k=5)
    assert max(grown) < len(many) * n_labels * 3, f"the process grew by {max(grown):,} bytes for {len(many):,}"


@check
def check_calibration_keeps_the_ranking(make: Make, tmp_path: Path) -> None:
    """Probabilities in the order of the scores, ties as before, the same after saving; a new fit forgets them."""
    for kind in kinds(make):
        train, valid = planted(kind).split(1 / 3, seed=1)
        model = make().fit(train)
        before = model.predict(valid, k=20)
        assert model.threshold_ is None
        report = model.calibrate(valid, k=20)
        after = model.predict(valid, k=20)
        np.testing.assert_array_equal(after.ids, before.ids)
        filled = after.ids >= 0
        assert ((after.scores[filled] > 0) & (after.scores[filled] <= 1)).all()
        steps = [np.sign(top.scores[:, 1:] - top.scores[:, :-1])[filled[:, 1:]] for top in (before, after)]
        np.testing.assert_array_equal(*steps)
        assert 0 < model.threshold_ <= 1
        assert model.threshold_ == report.threshold
        model.save(tmp_path / f"calibrated-{kind}")
        same(lw.load(tmp_path / f"calibrated-{kind}").predict(valid, k=20), after)
        same(model.fit(train).predict(valid, k=20), before)


@check
def check_wrong_inputs_are_refused(make: Make, tmp_path: Path) -> None:
    """Documents of another kind or width, NaN, and nonsense get a clear error."""
    for kind in kinds(make):
        data = planted(kind)
        model = make().fit(data)
        wide = sparse.csr_array((2, 10_000), dtype=np.float32)
        with pytest.raises(DataError):
            model.predict(wide if kind == "features" else sparse.csr_array((2, 5)))
        with pytest.raises(DataError):
            model.predict([1, 2])
        if kind == "features":
            with pytest.raises(DataError, match="NaN"):
                model.predict(sparse.csr_array(np.full((1, data.features.shape[1]), np.nan)))
        with pytest.raises(DataError):
            model.predict(None)
        with pytest.raises(DataError):
            make().fit(["a", "b"], [["x"]])
        with pytest.raises(DataError):
            make().fit(["a", "b"])


@check
def check_damaged_folders_are_refused(make: Make, tmp_path: Path) -> None:
    """Each file cut short, changed in one bit, emptied or removed: a ModelFormatError that names the file."""
    kind = kinds(make)[0]
    model = make().fit(planted(kind))
    good = tmp_path / "good"
    model.save(good)
    for file in sorted(good.iterdir()):
        content = file.read_bytes()
        flips = [_flipped(content, place) for place in (0, len(content) // 4, len(content) // 2, len(content) - 2)]
        for damage in (content[: len(content) // 2], b"", content + b"x", None, *flips):
            bad = tmp_path / "bad"
            shutil.copytree(good, bad)
            if damage is None:
                (bad / file.name).unlink()
            else:
                (bad / file.name).write_bytes(damage)
            if file.name == "manifest.json":
                _refused_or_equal(bad, model, kind)
            else:
                with pytest.raises(ModelFormatError, match=file.name.replace(".", r"\.")):
                    lw.load(bad)
            shutil.rmtree(bad)


def _flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


def _refused_or_equal(folder: Path, model: Method, kind: str) -> None:
    """A change of the manifest that means nothing may load, but then the model must be the same."""
    try:
        loaded = lw.load(folder)
    except ModelFormatError:
        return
    data = planted(kind)
    same(loaded.predict(data, k=3), model.predict(data, k=3))


class Bomb:
    """Leaves a file behind if anybody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@check
def check_strangers_cannot_run_code(make: Make, tmp_path: Path) -> None:
    """No file of a folder is unpickled, and the manifest can name neither a module nor a path outside."""
    model = make().fit(planted(kinds(make)[0]))
    good = tmp_path / "good"
    model.save(good)
    suffixes = {path.suffix for path in good.iterdir()}
    assert suffixes <= {".json", ".safetensors", ".txt", ".md", ".yml"}, suffixes
    marker = tmp_path / "exploded"
    payload = pickle.dumps(Bomb(marker))
    for file in sorted(good.iterdir()):
        bad = tmp_path / "bad"
        shutil.copytree(good, bad)
        (bad / file.name).write_bytes(payload)
        if file.name != "manifest.json":
            _rehash(bad, file.name)
        with pytest.raises(LabelwiseError):
            lw.load(bad).predict(planted(kinds(make)[0]), k=2)
        assert not marker.exists()
        shutil.rmtree(bad)
    for name in ("os:system", "labelwise.cli.main:main", "../../evil", "subprocess"):
        _set_manifest(good, method=name)
        with pytest.raises(ModelFormatError, match="no method"):
            lw.load(good)


def _rehash(folder: Path, name: str) -> None:
    import hashlib

    content = (folder / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _set_manifest(folder: Path, **values) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **values}))
