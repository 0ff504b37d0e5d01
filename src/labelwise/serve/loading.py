"""Loads a model for the service: checks that its documents can be sent, and computes once before it is used."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labelwise.commands.describe import describe_model
from labelwise.errors import ConfigError, import_required
from labelwise.io.folder import MANIFEST, model_folder
from labelwise.model.card import PAGE_FILE
from labelwise.model.explanation import top_words
from labelwise.model.method import Method, load
from labelwise.registry import can
from labelwise.serve.answers import Fields, LabelStarts
from labelwise.serve.label_search import LabelSearch

TEXT, IMAGE = "text", "image"
Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass
class LoadedModel:
    """A model that is ready to answer."""

    model: Method
    reads: str
    """`text` or `image`."""
    about: dict[str, Any]
    """What `labelwise info` shows, without folders of this machine."""
    stamp: Stamp
    seconds: float
    """Time of loading, with compilation."""
    _starts: dict[Fields, LabelStarts] = field(default_factory=dict)
    _search: LabelSearch | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def label_starts(self, fields: Fields) -> LabelStarts:
        """The JSON of its labels with some fields."""
        if fields not in self._starts:
            self._starts[fields] = LabelStarts(self.model.label_names_, self.model.label_texts_, fields)
        return self._starts[fields]

    def search(self) -> LabelSearch:
        """The search among its labels, built on first use."""
        with self._lock:
            if self._search is None:
                self._search = LabelSearch(self.model.label_names_, self.model.label_texts_, self.model.label_counts_)
            return self._search


def folder_stamp(path: str) -> Stamp:
    """Changes when a model folder or a file of it is replaced: a copy may bring the manifest before the weights."""
    folder = model_folder(path)
    os.stat(folder / MANIFEST)
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.stat()) for entry in entries if entry.name != PAGE_FILE]
    return tuple(sorted((name, about.st_mtime_ns, about.st_ino, about.st_size) for name, about in found))


def load_model(path: str) -> LoadedModel:
    """Load a model and let it predict and explain once, so that its kernels are compiled."""
    begin = time.monotonic()
    stamp = folder_stamp(path)
    model = load(path)
    reads = what_it_reads(model, path)
    warm_up(model, reads)
    about = describe_model(model_folder(path))
    return LoadedModel(model, reads, about, stamp, time.monotonic() - begin)


def what_it_reads(model: Method, path: str) -> str:
    """`text` or `image`, or an error for models of ready features."""
    kinds = {model.input_, *(model.inputs if model.reads_all_inputs else ())}
    if model.feature_width_ is None and "texts" in kinds:
        return TEXT
    if model.feature_width_ is None and "paths" in kinds:
        import_required("images in requests", "vision", "pillow")
        return IMAGE
    what = "features next to texts" if model.input_ == "texts" else model.input_
    raise ConfigError(f"{path}: this model reads {what}; models of texts or images can be served")


def warm_up(model: Method, reads: str) -> None:
    """Predict, filter and explain for two documents."""
    if reads == IMAGE:
        with tempfile.TemporaryDirectory(prefix="labelwise-") as folder:
            model.predict([_picture(folder)], k=1)
        return
    shown = model.label_names_ if model.label_texts_ is None else model.label_texts_
    texts = [" ".join(shown[:3]) + " a text of words", "another text"]
    top = model.predict(texts, k=min(10, len(shown)))
    if model.calibration_ is not None:
        model.predict(texts, threshold="auto")
    if can(model, "top_of"):
        model.predict(texts, k=1, labels=[0], label_weights={0: 0.5})
    if can(model, "explain"):
        top_words(model, texts, top.head(1), 2)
        model.explain(texts[0], k=1, terms=2)


def _picture(folder: str) -> str:
    from PIL import Image

    path = Path(folder) / "warm-up.png"
    Image.new("RGB", (64, 64), (120, 90, 60)).save(path)
    return str(path)
