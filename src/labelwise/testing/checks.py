"""What every method must do. Each check takes a `Subject`, which makes fresh methods and keeps a fitted one.

The checks know nothing of any one method; the tests of this package prove that each can fail. Checks of model folders
are in `folder_checks.py`.
"""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import shutil
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from labelwise.data.dataset import Dataset
from labelwise.errors import (
    ConfigError,
    DataError,
    LabelwiseError,
    ModelFormatError,
    NotFittedError,
)
from labelwise.io.tensors import mapping_of
from labelwise.methods.popularity import Popularity
from labelwise.metrics.evaluate import evaluate
from labelwise.model.card import PAGE_FILE
from labelwise.model.method import Method, load
from labelwise.registry import can
from labelwise.runtime.threads import threads, using_threads
from labelwise.strings import Strings
from labelwise.testing.subject import (
    Subject,
    as_given,
    empty_documents,
    planted,
    refused,
    require,
    resident_memory,
    same_predictions,
)

CHECKS: dict[str, Callable[[Subject, Path], None]] = {}
MARGIN = 0.3


def check(function: Callable[[Subject, Path], None]) -> Callable[[Subject, Path], None]:
    """Add a function to the checks."""
    CHECKS[function.__name__.removeprefix("check_")] = function
    return function


@check
def check_solves_planted_data(subject: Subject, tmp_path: Path) -> None:
    """Beats popularity by a wide margin on documents it has not seen; a baseline must at least equal it."""
    for kind in subject.kinds():
        train, test = planted(kind, n_documents=900).split(1 / 3, seed=1)
        floor = evaluate(Popularity().fit(train).predict(test, k=3), test, metrics=["P@1", "P@3"])
        found = evaluate(subject().fit(train).predict(test, k=3), test, metrics=["P@1", "P@3"])
        margin = MARGIN if subject().learns else 0.0
        require(
            found["P@1"] >= min(floor["P@1"] + margin, 0.95),
            f"{kind}: P@1 is {found['P@1']:.3f}, that of popularity {floor['P@1']:.3f}",
        )
        require(
            found["P@3"] >= floor["P@3"] + margin / 3,
            f"{kind}: P@3 is {found['P@3']:.3f}, that of popularity {floor['P@3']:.3f}",
        )


@check
def check_predictions_are_well_formed(subject: Subject, tmp_path: Path) -> None:
    """Finite scores, best first, equal scores by id, no label twice, empty places at the end."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        top = model.predict(data, k=20)
        require(
            top.ids.shape == top.scores.shape == (len(data), 20),
            f"{kind}: ids {top.ids.shape} and scores {top.scores.shape} for {len(data)} documents and k=20",
        )
        require(
            top.label_names == data.label_names,
            f"{kind}: the predictions have other label names than the training data",
        )
        filled = top.ids >= 0
        require(bool(np.isfinite(top.scores[filled]).all()), f"{kind}: scores must be finite")
        require(bool((top.ids[~filled] == -1).all()), f"{kind}: a rank without a prediction has the id -1")
        require(bool(np.isneginf(top.scores[~filled]).all()), f"{kind}: a rank without a prediction has the score -inf")
        require(bool((top.ids < data.n_labels).all()), f"{kind}: ids must be below the number of labels")
        for ids, scores in zip(top.ids, top.scores, strict=True):
            count = int((ids >= 0).sum())
            require(bool((ids[:count] >= 0).all()), f"{kind}: ranks without a prediction are the last ones")
            require(len(set(ids[:count].tolist())) == count, f"{kind}: a label is predicted twice for one document")
            order = sorted(range(count), key=lambda j: (-scores[j], ids[j]))
            require(order == list(range(count)), f"{kind}: best score first, equal scores by label id")


@check
def check_batch_equals_single(subject: Subject, tmp_path: Path) -> None:
    """A document's prediction does not depend on the company it is in."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        whole = model.predict(data, k=5)
        for row in (0, 17, len(data) - 1):
            single = model.predict(data.take(slice(row, row + 1)), k=5)
            np.testing.assert_array_equal(single.ids[0], whole.ids[row])
            np.testing.assert_allclose(single.scores[0], whole.scores[row], rtol=1e-5, atol=1e-6)


@check
def check_is_deterministic(subject: Subject, tmp_path: Path) -> None:
    """The same data and parameters give the same model, on one thread or several.

    A method that says that its sums depend on the threads must give the same on the same number of them, and nearly the
    same on others.
    """
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        one = model.predict(data, k=5)
        if subject().fact("same_on_any_threads"):
            for count in (1, 3):
                with using_threads(count):
                    same_predictions(one, subject().fit(data).predict(data, k=5))
        else:
            same_predictions(one, subject().fit(data).predict(data, k=5))
            with using_threads(3 if threads() == 1 else 1):
                other = subject().fit(data).predict(data, k=5)
            np.testing.assert_allclose(one.scores, other.scores, rtol=1e-2, atol=1e-3)


@check
def check_fit_again_forgets(subject: Subject, tmp_path: Path) -> None:
    """A second fit leaves nothing of the first."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        used = subject().fit(subject.planted(kind, n_labels=40, seed=5)).fit(data)
        same_predictions(used.predict(data, k=5), model.predict(data, k=5))


@check
def check_more_places_than_labels(subject: Subject, tmp_path: Path) -> None:
    """k above the number of labels gives k places, the rest of them empty."""
    for kind in subject.kinds():
        data = subject.planted(kind, n_labels=7)
        model = subject().fit(data)
        top = model.predict(data.take(slice(0, 3)), k=12)
        require(top.ids.shape == (3, 12), f"{kind}: k=12 must give 12 ranks, also for 7 labels")
        require(bool((top.ids[:, 7:] == -1).all()), f"{kind}: ranks beyond the number of labels must be empty")
        wrong: list[Any] = [0, -1, 2.5]
        for bad in wrong:
            with refused(ConfigError, "k must be"):
                model.predict(data, k=bad)


@check
def check_empty_rows(subject: Subject, tmp_path: Path) -> None:
    """Empty documents, documents without labels, labels without documents and an empty batch all work."""
    for kind in subject.kinds():
        data = subject.planted(kind)
        labels = sparse.lil_array(data.labels)
        labels[3], labels[:, 5] = 0, 0
        data = replace(data, labels=sparse.csr_array(labels))
        model = subject().fit(data)
        empty = empty_documents(data, kind)
        top = model.predict(empty, k=4)
        require(bool(np.isfinite(top.scores[top.ids >= 0]).all()), f"{kind}: scores of empty documents must be finite")
        nothing = data.take(slice(0, 0))
        require(
            model.predict(nothing, k=4).ids.shape == (0, 4),
            f"{kind}: no documents must give predictions of shape (0, k)",
        )
        with refused(DataError, "no document"):
            subject().fit(nothing)


@check
def check_unseen_labels(subject: Subject, tmp_path: Path) -> None:
    """Test labels that training has not seen count as misses; the label space of the model does not change."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        test = replace(data, label_names=Strings.of(f"new{j}" for j in range(data.n_labels)))
        top = model.predict(test, k=3)
        require(evaluate(top, test, metrics=["P@3"])["P@3"] == 0, f"{kind}: labels unknown to the model are predicted")
        require(model.label_names_ == data.label_names, f"{kind}: predict has changed label_names_")


@check
def check_unfitted_is_refused(subject: Subject, tmp_path: Path) -> None:
    """Predict and save before fit say so."""
    with refused(NotFittedError, "fit"):
        subject().predict(["text"])
    with refused(NotFittedError, "fit"):
        subject().save(tmp_path / "nothing")
    require(not (tmp_path / "nothing").exists(), "save before fit has written a folder")


@check
def check_sklearn_manners(subject: Subject, tmp_path: Path) -> None:
    """clone, get_params, set_params and fit(X, Y) work; fit returns self and does not touch parameters."""
    model, clone = subject(), _clone()
    before = model.get_params()
    twin = clone(model)
    require(twin is not model, "clone returns the same object")
    require(twin.get_params() == before, "a clone, or its fit, has other parameters")
    require(
        set(model.get_params(deep=False)) == set(type(model).Config.model_fields),
        "get_params(deep=False) must have the fields of Config",
    )
    require(model.set_params(**before) is model, "set_params must return self")
    kind = subject.kinds()[0]
    fitted, data = subject.fitted(kind)
    documents = as_given(data, kind)
    require(twin.fit(documents, data.labels) is twin, "fit must return self")
    require(twin.__sklearn_is_fitted__(), "the model must count as fitted")
    require(twin.get_params() == before, "a clone, or its fit, has other parameters")
    same_predictions(twin.predict(documents, k=3), fitted.predict(data, k=3))
    require(0 <= twin.score(documents, data.labels) <= 1, "score must be P@1, a fraction")


def _clone() -> Callable[[Any], Any]:
    """scikit-learn's `clone`, or the same by hand where it is not installed."""
    try:
        from sklearn.base import clone
    except ImportError:
        return lambda model: type(model)(**copy.deepcopy(model.get_params(deep=False)))
    return clone


@check
def check_unknown_parameters_are_refused(subject: Subject, tmp_path: Path) -> None:
    """A misspelt parameter is an error in the constructor and in set_params, and changes nothing."""
    model = subject()
    before = model.get_params()
    with refused(ConfigError, "no_such_parameter"):
        type(model)(no_such_parameter=1)
    with refused(ConfigError, "no_such_parameter"):
        model.set_params(no_such_parameter=1)
    require(model.get_params() == before, "a refused parameter has changed others")


@check
def check_inputs_are_left_alone(subject: Subject, tmp_path: Path) -> None:
    """Neither fit nor predict changes the data it is given."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        model.predict(data, k=3)
        files = [Path(path).read_bytes() for path in data.paths] if kind == "paths" else None
        untouched = subject.planted(kind)
        require((data.labels != untouched.labels).nnz == 0, f"{kind}: the labels were changed")
        if kind == "features":
            require((data.features != untouched.features).nnz == 0, f"{kind}: the features were changed")
        elif kind == "arrays":
            np.testing.assert_array_equal(data.arrays, untouched.arrays)
        else:
            require(getattr(data, kind) == getattr(untouched, kind), f"{kind}: the documents were changed")
        if files is not None:
            require(files == [Path(path).read_bytes() for path in untouched.paths], f"{kind}: the files were changed")


@check
def check_never_dense(subject: Subject, tmp_path: Path) -> None:
    """Learning from and predicting for documents over many labels takes far less memory than documents x labels."""
    kind = subject.kinds()[-1]
    n_labels, n_documents = 40_000, 1_000
    small = planted(kind, n_documents=300, n_labels=60).take(np.arange(n_documents) % 300)
    rows = np.repeat(np.arange(n_documents), 2)
    columns = np.random.default_rng(0).integers(0, n_labels, len(rows))
    labels = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n_documents, n_labels))
    data = replace(small, labels=labels, label_names=Strings.numbers(n_labels))
    model = subject()
    subject.fitted(kind)[0].predict(small, k=5)  # what is imported and compiled at the first use does not count
    for step in (lambda: model.fit(data), lambda: model.predict(data, k=5)):
        tracemalloc.start()
        step()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        require(peak < n_documents * n_labels * 4 / 4, f"{peak:,} bytes for {n_documents:,} x {n_labels:,}")
    many = data.take(np.tile(np.arange(n_documents), 2))  # networks keep blocks of a fixed size beside
    with resident_memory() as grown:
        model.predict(many, k=5)
    require(max(grown) < len(many) * n_labels * 3, f"the process grew by {max(grown):,} bytes for {len(many):,}")


@check
def check_calibration_keeps_the_ranking(subject: Subject, tmp_path: Path) -> None:
    """Probabilities in the order of the scores, ties as before, the same after saving; a new fit forgets them."""
    for kind in subject.kinds():
        fitted, train = subject.fitted(kind)
        model, valid = copy.copy(fitted), planted(kind, n_documents=200, seed=3)
        before = model.predict(valid, k=20)
        require(model.threshold_ is None, f"{kind}: there is a threshold before calibrate")
        report = model.calibrate(valid, k=20)
        after = model.predict(valid, k=20)
        np.testing.assert_array_equal(after.ids, before.ids)
        filled = after.ids >= 0
        require(
            bool(((after.scores[filled] > 0) & (after.scores[filled] <= 1)).all()),
            f"{kind}: probabilities must be above 0 and at most 1",
        )
        steps = [np.sign(top.scores[:, 1:] - top.scores[:, :-1])[filled[:, 1:]] for top in (before, after)]
        np.testing.assert_array_equal(steps[0], steps[1])
        require(0 < (model.threshold_ or 0) <= 1, f"{kind}: the threshold must be a probability")
        require(model.threshold_ == report.threshold, f"{kind}: threshold_ differs from the report")
        model.save(tmp_path / f"calibrated-{kind}")
        same_predictions(load(tmp_path / f"calibrated-{kind}").predict(valid, k=20), after)
        same_predictions(model.fit(train).predict(valid, k=20), before)
        same_predictions(fitted.predict(valid, k=20), before)


@check
def check_learns_more(subject: Subject, tmp_path: Path) -> None:
    """More documents are learned, also with a new label; nothing is learned of no documents. Others refuse."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        if not can(model, "learned"):
            with refused(ConfigError, "cannot learn more documents"):
                model.learn(data)
            continue
        names = Strings.of("new" if name == "L0" else name for name in data.label_names)
        half = len(data) // 2
        more = replace(data.take(slice(0, half)), label_names=names)
        model = subject().fit(data.take(slice(half, None)))
        old_names, before = model.label_names_, model.predict(more, k=5)
        require(model.learn(data.take(slice(0, 0))).n_documents == 0, f"{kind}: learned documents where there are none")
        same_predictions(model.predict(more, k=5), before)
        require(model.learn(more).n_new_labels == 1, f"{kind}: one label of the documents is new")
        require(list(model.label_names_) == [*old_names, "new"], f"{kind}: new labels must follow the others")
        after, truth = model.predict(more, k=5), more.align(model.label_names_)
        was, now = (evaluate(top, truth, metrics=["P@5"])["P@5"] for top in (before, after))
        require(now > was, f"{kind}: P@5 of the learned documents was {was:.3f} and is {now:.3f}")
        true = [row for row in range(len(more)) if "new" in more.labels_of(row)]
        found = float(np.mean(["new" in after.labels[row] for row in true]))
        require(found > 0.5, f"{kind}: the new label is predicted for {found:.0%} of its documents")
        model.save(tmp_path / f"learned-{kind}")
        same_predictions(load(tmp_path / f"learned-{kind}").predict(more, k=5), after)
        if can(model, "explain"):
            explained = model.explain(more.take([true[0]]), labels=["new"])[0].label
            require(explained == "new", f"{kind}: the new label cannot be explained")


@check
def check_wrong_inputs_are_refused(subject: Subject, tmp_path: Path) -> None:
    """Documents of another kind or width, NaN, and nonsense get a clear error."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        for documents in wrong_documents(data, kind, model.inputs if model.reads_all_inputs else (kind,)):
            with refused(DataError):
                model.predict(documents)
        if kind == "features":
            with refused(DataError, "NaN"):
                model.predict(sparse.csr_array(np.full((1, data.features.shape[1]), np.nan)))
        if kind == "arrays":
            with refused(DataError, "NaN"):
                model.predict(np.full((1, *data.arrays.shape[1:]), np.nan))
        if kind == "paths" and subject().learns:
            with refused(DataError, r"missing\.pgm"):
                model.predict([str(tmp_path / "missing.pgm")])
        with refused(DataError):
            subject().fit(as_given(data, kind), [["x"]])
        with refused(DataError):
            subject().fit(as_given(data, kind))


def wrong_documents(data: Dataset, kind: str, readable: Sequence[str]) -> Iterator[Any]:
    """Documents that a model trained on the planted ones, which reads these types, cannot read."""
    yield from (None, [1, 2], {"a": 1}, b"bytes", sparse.csr_array((2, 10_000), dtype=np.float32))
    if kind in ("texts", "paths"):
        yield np.zeros((2, 5))
        if "arrays" not in readable:
            yield np.zeros((2, 5, 5))
    else:
        yield from ("text", ["text"], [Path("picture.pgm")], data.labels[:1].toarray()[0])
    if kind == "features":
        yield np.zeros((2, 3, 3))


# --- folder checks ---
# What every method must do when it is saved and loaded; with these, `CHECKS` has all checks.

__all__ = ["CHECKS"]

MAPPINGS = Path("/proc/self/maps")


def is_mapped(array: np.ndarray) -> bool:
    """Whether the array's memory is a file's, by the process's own table of mappings where the system has one."""
    if not MAPPINGS.exists():
        return mapping_of(array) is not None
    address = array.__array_interface__["data"][0]
    for line in MAPPINGS.read_text(encoding="utf-8").splitlines():
        bounds, _, _, _, inode, *_ = line.split()
        first, _, last = bounds.partition("-")
        if int(first, 16) <= address < int(last, 16):
            return inode != "0"
    return False


@check
def check_save_and_load_are_exact(subject: Subject, tmp_path: Path) -> None:
    """A loaded model predicts the very same, its arrays are mapped from the files, and saving it again works."""
    for kind in subject.kinds():
        model, data = subject.fitted(kind)
        folder = tmp_path / kind
        model.save(folder)
        loaded = load(folder)
        require(type(loaded) is type(model), f"{kind}: the folder loads as {type(loaded).__name__}")
        require(loaded.get_params() == model.get_params(), f"{kind}: the loaded model has other parameters")
        same_predictions(loaded.predict(data, k=7), model.predict(data, k=7))
        np.testing.assert_array_equal(loaded.label_counts_, model.label_counts_)
        state = _arrays(loaded)
        mapped = sum(array.nbytes for array in state if is_mapped(array))
        require(
            mapped > 0.9 * sum(array.nbytes for array in state),
            f"{kind}: arrays must be mapped from the file, not copied: use labelwise.io.folder (csr_from_tensors)",
        )
        loaded.save(tmp_path / f"{kind}-again")
        same_predictions(load(tmp_path / f"{kind}-again").predict(data, k=7), model.predict(data, k=7))
        with refused(ConfigError, "exists"):
            model.save(folder)


def _arrays(model: Method) -> list[np.ndarray]:
    """The learned arrays of a model, with those of its members."""
    members = [array for member in getattr(model, "members_", ()) for array in _arrays(member)]
    return [*model.fitted_.tensors().values(), *members]


@check
def check_shrinks_or_refuses(subject: Subject, tmp_path: Path) -> None:
    """With `shrinks`, `shrink` gives another, smaller model that can be saved; without, it is refused."""
    model, data = subject.fitted(subject.kinds()[0])
    before = model.predict(data, k=3)
    if not can(model, "shrunk"):
        with refused(ConfigError, "shrunk"):
            model.shrink(precision="int8")
        return
    smaller = model.shrink(precision="int8", threshold=0.5)
    sizes = [sum(array.nbytes for array in _arrays(one)) for one in (smaller, model)]
    require(sizes[0] < sizes[1], f"the smaller model has {sizes[0]:,} bytes, the larger {sizes[1]:,}")
    same_predictions(model.predict(data, k=3), before)
    smaller.save(tmp_path / "smaller")
    same_predictions(load(tmp_path / "smaller").predict(data, k=3), smaller.predict(data, k=3))


@check
def check_damaged_folders_are_refused(subject: Subject, tmp_path: Path) -> None:
    """Each file cut short, changed in one bit, emptied or removed: a ModelFormatError that names the file."""
    model, data = subject.fitted(subject.kinds()[0])
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
            if file.name in ("manifest.json", PAGE_FILE):  # the page is for people, and is not read
                _refused_or_equal(bad, model, data)
            else:
                with refused(ModelFormatError, file.name.replace(".", r"\.")):
                    load(bad)
            shutil.rmtree(bad)


def _flipped(content: bytes, place: int) -> bytes:
    changed = bytearray(content)
    changed[place] ^= 1
    return bytes(changed)


def _refused_or_equal(folder: Path, model: Method, data: Dataset) -> None:
    """A change of the manifest that means nothing may load, but then the model must be the same."""
    try:
        loaded = load(folder)
    except ModelFormatError:
        return
    same_predictions(loaded.predict(data, k=3), model.predict(data, k=3))


class Bomb:
    """Leaves a file behind if anybody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@check
def check_strangers_cannot_run_code(subject: Subject, tmp_path: Path) -> None:
    """No file of a folder is unpickled, and the manifest can name neither a module nor a path outside."""
    model, data = subject.fitted(subject.kinds()[0])
    good = tmp_path / "good"
    model.save(good)
    suffixes = {path.suffix for path in good.iterdir()}
    require(suffixes <= {".json", ".safetensors", ".txt", ".md", ".yml"}, f"files that may hold code: {suffixes}")
    marker = tmp_path / "exploded"
    payload = pickle.dumps(Bomb(marker))
    for file in sorted(good.iterdir()):
        bad = tmp_path / "bad"
        shutil.copytree(good, bad)
        (bad / file.name).write_bytes(payload)
        if file.name == PAGE_FILE:
            load(bad).predict(data, k=2)
        else:
            if file.name != "manifest.json":
                _rehash(bad, file.name)
            with refused(LabelwiseError):
                load(bad).predict(data, k=2)
        require(not marker.exists(), "a file of the folder was unpickled")
        shutil.rmtree(bad)
    for name in ("os:system", "labelwise.cli.main:main", "../../evil", "subprocess"):
        _set_manifest(good, method=name)
        with refused(ModelFormatError, "no method"):
            load(good)


def _rehash(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _set_manifest(folder: Path, **values: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **values}))
