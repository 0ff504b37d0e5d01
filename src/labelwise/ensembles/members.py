"""The members of an ensemble: what a config may name, opening saved models, their fingerprints, their common labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.data.csr import positions_in
from labelwise.data.hashing import KINDS
from labelwise.errors import ConfigError, DataError, LabelwiseError
from labelwise.io import folder as store
from labelwise.io.run_schema import model_folder
from labelwise.model.card import CARD_FILE
from labelwise.model.estimator import with_preset
from labelwise.model.feature_width import FeatureWidth
from labelwise.model.inputs import Documents
from labelwise.model.method import Method, load
from labelwise.model.predictions import LabelFilter
from labelwise.registry import method_class
from labelwise.runtime.finished import fingerprint
from labelwise.strings import Strings
from labelwise.topk import NO_LABEL, TopK, sorted_by_score

PATH, FINGERPRINT, METHOD, MODEL = "path", "fingerprint", "method", "model"
ACCEPTED = "a path of a model or a run, a mapping with `method` and its parameters, or a model"


def checked_members(given: Any) -> list[Any]:
    """The members as they are given, or a ValueError; nothing is opened."""
    if isinstance(given, str | os.PathLike | Mapping | Method) or not isinstance(given, Sequence):
        raise ValueError(f"a list is needed; each member is {ACCEPTED}")
    return [_checked(member, number) for number, member in enumerate(given)]


def _checked(member: Any, number: int) -> Any:
    if isinstance(member, os.PathLike):
        return os.fspath(member)
    if isinstance(member, Method) or (isinstance(member, str) and member):
        return member
    if isinstance(member, Mapping):
        keys = set(member)
        if PATH in keys:
            wrong = keys - {PATH, FINGERPRINT} or not all(isinstance(value, str) for value in member.values())
            if wrong:
                raise ValueError(f"member {number}: a saved model is given by `path`, and `fingerprint` at most")
            return dict(member)
        if keys == {MODEL}:
            return dict(member)
        if METHOD in keys:
            method_of(member, number)
            return dict(member)
    raise ValueError(f"member {number}: {ACCEPTED} is needed, got {member!r}")


def method_of(member: Mapping[str, Any], number: int) -> Method:
    """A fresh method from its name and parameters."""
    parameters = {key: value for key, value in member.items() if key != METHOD}
    try:
        kind = method_class(str(member[METHOD]))
        return kind(**with_preset(kind, parameters))
    except ConfigError as error:
        raise ValueError(f"member {number}: {error}") from None


def plain_members(members: Sequence[Any]) -> list[Any]:
    """The members as JSON: a fitted model is in the model folder itself, so only its method is named."""
    plain = []
    for member in members:
        if isinstance(member, Method):
            fitted = hasattr(member, "label_names_")
            about = {MODEL: member.name} if fitted else {METHOD: member.name, **member.config.model_dump(mode="json")}
            plain.append(about)
        else:
            plain.append(member)
    return plain


def with_fingerprints(members: Sequence[Any]) -> list[Any]:
    """The members as JSON, saved ones with their fingerprints: a run notes which models it was made of."""
    plain = []
    for member in plain_members(members):
        path = saved_path(member)
        known = member.get(FINGERPRINT) if isinstance(member, Mapping) else None
        if path is not None and known is None:
            try:
                known = member_fingerprint(path)
            except LabelwiseError:
                known = None  # `check_needs` reports it
        plain.append(member if path is None or known is None else {PATH: path, FINGERPRINT: known})
    return plain


def saved_path(member: Any) -> str | None:
    """The path of a saved model; None if the member is given in another way."""
    if isinstance(member, str):
        return member
    return member.get(PATH) if isinstance(member, Mapping) else None


def saved_input(path: str) -> str:
    """What a saved model reads, by its manifest."""
    return str(store.Folder(model_folder(path), "model", verify=False).manifest.get("input"))


def member_fingerprint(path: str) -> str:
    """A hash of everything in a model folder that predictions depend on: another one is another model."""
    folder = store.Folder(model_folder(path), "model", verify=False)
    files = {name: entry["sha256"] for name, entry in folder.manifest["files"].items() if not name.endswith(CARD_FILE)}
    return fingerprint({"method": folder.manifest.get("method"), "files": files})[:16]


def check_saved(member: Any, number: int) -> None:
    """Raise unless a saved member is there, and is the one that was noted, if one was."""
    path = saved_path(member)
    if path is None:
        return
    try:
        actual = member_fingerprint(path)
    except LabelwiseError as error:
        raise ConfigError(f"member {number}: {error}") from None
    noted = member.get(FINGERPRINT) if isinstance(member, Mapping) else None
    if noted is not None and noted != actual:
        raise ConfigError(
            f"member {number}: {path} has changed: its fingerprint is {actual}, that of the ensemble's member {noted}; "
            "leave out `fingerprint` to use it as it is now, or start a new run"
        )


def opened(member: Any, number: int) -> Method:
    """A member's model: loaded, as given if it is fitted, otherwise fresh and to be trained."""
    path = saved_path(member)
    if path is not None:
        check_saved(member, number)
        return load(Path(path))
    if isinstance(member, Method):
        return member if hasattr(member, "label_names_") else type(member)(**member.get_params(deep=False))
    if set(member) == {MODEL}:
        raise ConfigError(f"member {number}: {member!r} stands for a model given in Python; give {ACCEPTED}")
    return method_of(member, number)


def common_labels(first: Strings | None, members: Sequence[Method]) -> Strings:
    """The labels of all members by name, those of `first`, or of the first member, before the others."""
    names = members[0].label_names_ if first is None else first
    for number, member in enumerate(members):
        own = member.label_names_
        if own is names or own == names:
            continue
        if own.column_numbers or names.column_numbers:
            raise DataError(
                f"member {number} has {len(own):,} labels, others {len(names):,}, and not all of them have names: "
                "labels without names cannot be matched"
            )
        new = np.flatnonzero(positions_in(own, names) < 0)
        names = names + [own[int(label)] for label in new] if len(new) else names
    return names


def columns_of(member: Method, names: Strings) -> np.ndarray | None:
    """The id of each of a member's labels among these names; None if they are the same."""
    own = member.label_names_
    return None if own is names or own == names else positions_in(own, names).astype(np.int32)


def common_input(members: Sequence[Method]) -> tuple[str, FeatureWidth | None]:
    """What documents have to be given as, and the width of their features, next to texts if members read both."""
    kinds = sorted({member.input_ for member in members})
    if len(kinds) > 1 and kinds != ["features", "texts"]:
        read = ", ".join(f"member {number} reads {member.input_}" for number, member in enumerate(members))
        raise ConfigError(f"no document can be given to all members: {read}; texts and features go together")
    widths = {number: member.feature_width_ for number, member in enumerate(members) if member.feature_width_}
    width = next(iter(widths.values()), None)
    for number, other in widths.items():
        if width is not None and (other.columns, other.dense or 0) != (width.columns, width.dense or 0):
            raise ConfigError(f"member {number} reads {other}, another member {width}; all need the same features")
    return ("texts" if "texts" in kinds else kinds[0]), width


def is_fresh(member: Any) -> bool:
    """Whether a member is to be trained."""
    if isinstance(member, Method):
        return not hasattr(member, "label_names_")
    return isinstance(member, Mapping) and METHOD in member


def inputs_of(members: Sequence[Method]) -> tuple[str, ...]:
    """The kinds of documents that all members can read, in the order that the first one prefers."""
    kinds = [(member.input_,) if hasattr(member, "label_names_") else member.inputs for member in members]
    return tuple(kind for kind in kinds[0] if all(kind in other for other in kinds)) if kinds else KINDS


def member_top(
    member: Method, columns: np.ndarray | None, data: Documents, count: int, chosen: LabelFilter | None
) -> TopK:
    """A member's best labels with plain scores, in the label space of the ensemble; of each document what it reads."""
    own = documents_for(member, data)
    wanted = None if chosen is None else _filter_for(member, columns, chosen)
    if wanted is not None and wanted.allowed is not None and not wanted.allowed.any():
        return TopK(np.full((len(data), 1), NO_LABEL, np.int32), np.full((len(data), 1), -np.inf, np.float32))
    top = member._ranked(own, min(count, len(member.label_names_)), wanted)
    scores, ids = top.scores, top.ids
    if wanted is not None and wanted.weights is not None:
        scores = scores / np.where(ids == NO_LABEL, 1.0, wanted.weights[np.maximum(ids, 0)]).astype(np.float32)
    if columns is not None:
        ids = np.where(ids == NO_LABEL, NO_LABEL, columns[np.maximum(ids, 0)])
    return TopK(ids, scores) if wanted is None else sorted_by_score(ids, scores)


def documents_for(member: Method, data: Documents) -> Documents:
    """Of some documents what a member reads."""
    kinds = {member.input_} | ({"features"} if member.feature_width_ is not None else set())
    return Documents(**{kind: getattr(data, kind) for kind in kinds})


def _filter_for(member: Method, columns: np.ndarray | None, chosen: LabelFilter) -> LabelFilter:
    """The user's choice of labels as vectors over a member's labels."""
    if columns is None:
        return chosen
    allowed = None if chosen.allowed is None else chosen.allowed[columns]
    weights = None if chosen.weights is None else chosen.weights[columns]
    return LabelFilter(allowed, weights, len(columns))
