"""The members of an ensemble: what a config may name, opening saved models, what they need, training new ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from labelwise.config import RESULT, deciding_fields
from labelwise.data.dataset import Dataset
from labelwise.data.hashing import KINDS
from labelwise.data.out_of_core import scratch_at
from labelwise.errors import ConfigError, LabelwiseError
from labelwise.io import folder as store
from labelwise.io.contents import files_of_model
from labelwise.io.folder import model_folder
from labelwise.model.estimator import with_preset
from labelwise.model.folder import member_folders, member_prefix, write_member
from labelwise.model.inputs import content_of, fit_identity, kinds_to_train_on
from labelwise.model.method import Method, load, load_folder
from labelwise.registry import method_class
from labelwise.runtime.job import Job, Stored, fingerprint

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
        if PATH in keys and (keys - {PATH, FINGERPRINT} or not all(isinstance(one, str) for one in member.values())):
            raise ValueError(f"member {number}: a saved model is given by `path`, and `fingerprint` at most")
        if METHOD in keys and PATH not in keys:
            method_of(member, number)
        if keys & {PATH, METHOD} or keys == {MODEL}:
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
    return [_plain(member) for member in members]


def _plain(member: Any) -> Any:
    if not isinstance(member, Method):
        return member
    return {MODEL: member.name} if is_fitted(member) else {METHOD: member.name, **member.config.model_dump(mode="json")}


def with_fingerprints(members: Sequence[Any]) -> list[Any]:
    """The members as JSON, saved ones with their fingerprints: a run notes which models it was made of."""
    return [_with_fingerprint(_plain(member)) for member in members]


def _with_fingerprint(member: Any) -> Any:
    path = saved_path(member)
    if path is None or (isinstance(member, Mapping) and FINGERPRINT in member):
        return member
    with suppress(LabelwiseError):  # `check_members` reports it
        return {PATH: path, FINGERPRINT: member_fingerprint(path)}
    return member


def saved_path(member: Any) -> str | None:
    """The path of a saved model; None if the member is given in another way."""
    if isinstance(member, str):
        return member
    return member.get(PATH) if isinstance(member, Mapping) else None


def saved_folder(path: str) -> store.Folder:
    """The model folder at the path of a member, or of the run there; to be looked at."""
    return store.Folder(model_folder(path), "model", verify=False)


def member_fingerprint(path: str) -> str:
    """A hash of everything in a model folder that predictions depend on: another one is another model."""
    folder = saved_folder(path)
    return fingerprint({"method": folder.manifest.get("method"), "files": files_of_model(folder)})[:16]


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


def check_members(members: Sequence[Any]) -> None:
    """Raise an error that training would raise for any data: missing models, files or packages."""
    for number, member in enumerate(members):
        check_saved(member, number)
        if is_fresh(member):
            opened(member, number).check_needs()


def opened(member: Any, number: int) -> Method:
    """A member's model: loaded, as given if it is fitted, otherwise fresh and to be trained."""
    path = saved_path(member)
    if path is not None:
        check_saved(member, number)
        return load(Path(path))
    if isinstance(member, Method):
        return member if is_fitted(member) else type(member)(**member.get_params(deep=False))
    if set(member) == {MODEL}:
        raise ConfigError(f"member {number}: {member!r} stands for a model given in Python; give {ACCEPTED}")
    return method_of(member, number)


def is_fresh(member: Any) -> bool:
    """Whether a member is to be trained."""
    if isinstance(member, Method):
        return not is_fitted(member)
    return isinstance(member, Mapping) and METHOD in member


def is_fitted(member: Method) -> bool:
    """Whether a model is trained."""
    return hasattr(member, "label_names_")


# --- what members read and need ---


def facts_of_members(members: Sequence[Any]) -> dict[str, Any]:
    """What an ensemble of these members, as they are given, says of itself in place of its class."""
    known = []
    for number, member in enumerate(members):
        path = saved_path(member)
        if path is not None:
            with suppress(LabelwiseError):  # `check_members` reports it
                known.append(_facts_of_folder(saved_folder(path)))
        elif isinstance(member, Method) or METHOD in member:
            known.append(facts_of_model(opened(member, number)))
    return {**common_facts(known), "refits": any(map(is_fresh, members))}


def facts_of_model(member: Method) -> dict[str, Any]:
    """What a member says of itself."""
    facts = {name: member.fact(name) for name in ("inputs", "needs", "same_on_any_threads")}
    return {**facts, "inputs": (member.input_,)} if is_fitted(member) else facts


def _facts_of_folder(folder: store.Folder) -> dict[str, Any]:
    """The same of a saved model, by its manifest."""
    method, members = method_class(str(folder.manifest.get("method"))), member_folders(folder)
    facts = {"needs": method.needs, "same_on_any_threads": method.same_on_any_threads}
    inner = common_facts([_facts_of_folder(member) for member in members]) if members else {}
    return {**facts, **inner, "inputs": (str(folder.manifest.get("input")),)}


def common_facts(known: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several models say of themselves together; the kinds of documents in the order that the first prefers."""
    kinds = [facts["inputs"] for facts in known]
    return {
        "inputs": tuple(kind for kind in kinds[0] if all(kind in other for other in kinds)) if kinds else KINDS,
        "needs": tuple(dict.fromkeys(need for facts in known for need in facts["needs"])),
        "same_on_any_threads": all(facts["same_on_any_threads"] for facts in known),
    }


def kinds_of_members(members: Sequence[Any], data: Dataset) -> set[str]:
    """The kinds of documents that members read, or learn from, of those that the data has."""
    kinds: set[str] = set()
    for number, member in enumerate(members):
        path = saved_path(member)
        if path is not None:
            manifest = saved_folder(path).manifest
            kinds |= {str(manifest.get("input"))} | ({"features"} if manifest.get("n_features") is not None else set())
        elif is_fresh(member):
            kinds |= kinds_to_train_on(opened(member, number), data)
        else:
            kinds |= kinds_read(opened(member, number))
    if len(kinds) > 1 and kinds != {"features", "texts"}:
        raise ConfigError(
            f"members: some read {', others '.join(sorted(kinds))}: no document can be given to all; texts and "
            "features go together"
        )
    return kinds


def kinds_read(member: Method) -> set[str]:
    """The kinds of documents that a trained model reads."""
    return {member.input_} | ({"features"} if member.feature_width_ is not None else set())


# --- training ---


def train_members(members: Sequence[Method], train: Dataset | None, valid: Dataset | None, job: Job) -> list[Method]:
    """The members, with those trained that are not yet; finished ones are kept if the fit is killed."""
    fresh = {number: member for number, member in enumerate(members) if not is_fitted(member)}
    own = {number: identity_of_member(member, train, valid) for number, member in fresh.items()}
    with job.stage("members", len(fresh) / (len(fresh) + 0.1)) as part:
        shared = fresh, train, valid
        found = part.each("member", list(fresh), fit_member, shared, of=own, complete=True, stored=MODEL_FOLDER)
    return [found.get(number, member) for number, member in enumerate(members)]


def identity_of_member(member: Method, train: Dataset | None, valid: Dataset | None) -> list[Any]:
    """What a finished member follows from: what `fit_identity` has, and fields that only assembling a model reads."""
    held_out = content_of(valid) if valid is not None and "valid" in member.config.elsewhere else None
    return [fit_identity(member, member.config, train, valid), deciding_fields(member.config, RESULT), held_out]


def fit_member(shared: tuple[Mapping[int, Method], Dataset, Dataset | None], job: Job, keys: Iterable[int]) -> Any:
    """Train one member; its own `fit` gives the job its own identity."""
    members, train, valid = shared
    (number,) = keys
    folder = nullcontext() if job.scratch is None else scratch_at(job.scratch / f"member{number}", True)
    with folder as scratch:
        return {number: members[number].fit(train, valid=valid, job=replace(job, scratch=scratch))}


def _content(model: Method) -> list[Any]:
    """The learned arrays of a model and of its members, with their names."""
    arrays = [part for item in sorted(model.fitted_.tensors().items()) for part in item]
    return arrays + [part for member in getattr(model.fitted_, "members", ()) for part in _content(member)]


def _write(folder: store.FolderWriter, model: Method) -> None:
    write_member(folder, 0, model.name, model._saved())


def _read(folder: store.Folder) -> Method:
    return load_folder(folder.nested(member_prefix(0), "model"))


MODEL_FOLDER = Stored(_write, _read, _content)
"""Trained members are kept as model folders."""
