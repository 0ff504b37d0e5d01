"""scikit-learn's conventions for methods: parameters, presets, tags, classes and sparse scores.

scikit-learn itself is never imported, except by the one method that only it calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

import numpy as np
from scipy import sparse

from labelwise.config import Config, sections_of, validated
from labelwise.config import Config as BaseConfig
from labelwise.errors import ConfigError, DataError, NotFittedError, did_you_mean
from labelwise.model.predictions import checked_k
from labelwise.strings import Strings
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.model.method import Method


# --- signature ---
# Signatures and documentation of methods, from the fields of their configs.
#
# `help(LinearTree)` and editors that run the code use `__signature__` and `__doc__`. Editors that only read it use
# `signatures.pyi`, which `tools/signatures.py` writes and a test compares.


def signature_of(config: type[Config]) -> inspect.Signature:
    """Keyword-only parameters with types and defaults."""
    return inspect.Signature([
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=plain_type(field.annotation),
            default=inspect.Parameter.empty if field.is_required() else field.get_default(call_default_factory=True),
        )
        for name, field in config.model_fields.items()
    ])  # fmt: skip


def documented(text: str | None, config: type[Config]) -> str:
    """A class's documentation with a section on its parameters."""
    about = inspect.cleandoc(text or "")
    entries = [f"{name}\n    {meaning}" for name, meaning in meanings(config)]
    return "\n".join([about, "", "Parameters", "----------", *entries]) if entries else about


def meanings(config: type[Config]) -> Iterator[tuple[str, str]]:
    """Each parameter with the sentence under its field, and the keys of a section."""
    for name, field in config.model_fields.items():
        text = " ".join((field.description or "").split())
        keys = [key for section in sections_of(field.annotation) for key in section.model_fields]
        yield name, f"{text} Keys: {', '.join(keys)}." if keys else text


def plain_type(annotation: Any) -> Any:
    """A type without the bounds that pydantic checks."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return plain_type(arguments[0])
    if origin in (Union, UnionType):
        return reduce(or_, (plain_type(argument) for argument in arguments))
    if origin is None or origin is Literal or not arguments:
        return annotation
    return origin[tuple(argument if argument is ... else plain_type(argument) for argument in arguments)]


PRESET = "preset"
"""Key of a config's model section."""


def with_preset(method: type[Method], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a model section, with the defaults of its preset filled in; unchanged without one.

    Every parameter that is given besides the preset wins, and a section that is given in part keeps the preset's other
    fields. Resolved configs and saved models hold the parameters, not the name of the preset.
    """
    given = {key: value for key, value in parameters.items() if key != PRESET}
    name = parameters.get(PRESET)
    if name is None:
        return given
    if not method.presets:
        raise ConfigError(f"{PRESET}: {method.name} has none; leave it out")
    if name not in method.presets:
        raise ConfigError(f"{PRESET}: {method.name} has no preset '{name}'; {did_you_mean(str(name), method.presets)}")
    completed = method.Config(**method.presets[name]).completed(given)
    return {
        key: value.model_dump(mode="json", exclude_unset=True) if isinstance(value, Config) else value
        for key, value in completed.items()
    }


NESTED = "__"
"""Between a section and its field in a parameter's name, as scikit-learn writes it: solver__cost_positive."""
SPARSE_K = 100
"""Labels per document in the matrices of `predict_proba` and `decision_function`."""


class Estimator:
    """Base of `Method`: what scikit-learn's searches, pipelines and `clone` use."""

    Config: ClassVar[type[BaseConfig]] = BaseConfig
    """The parameters; each method has its own nested class."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Named sets of parameters, such as `cpu`, that a config or a constructor starts from."""

    label_names_: Strings
    calibration_: Any = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Config" in cls.__dict__:  # so that help() and editors show the parameters
            cls.__signature__ = signature_of(cls.Config)  # type: ignore[missing-attribute]
            cls.__doc__ = documented(cls.__doc__, cls.Config)

    def __init__(self, **params: Any) -> None:
        self._params: dict[str, Any] = {}
        self.config: Any = self.Config()
        self._configure(params)

    @classmethod
    def from_preset(cls, preset: str, **params: Any) -> Self:
        """A method with the parameters of a preset, such as `cpu`, and those given, which win."""
        return cls(**with_preset(cls, {**params, PRESET: preset}))  # type: ignore[bad-argument-type]

    # --- parameters ---

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All parameters by name, as given; with `deep` also fields of sections, as ``solver__cost_positive``."""
        params = {key: self._params.get(key, getattr(self.config, key)) for key in self.Config.model_fields}
        return params | (dict(_nested(self.config)) if deep else {})

    def set_params(self, **params: Any) -> Self:
        """Change parameters; unknown names and invalid values raise an error and change nothing."""
        self._configure(params)
        return self

    def _configure(self, params: Mapping[str, Any]) -> None:
        """Check and set parameters, those of sections after the sections themselves."""
        merged = self._params | {key: value for key, value in params.items() if NESTED not in key}
        try:
            config = validated(self.Config, self.Config.filled_in(merged))
            before = dict(_nested(config))
            changed = {
                key: value
                for key, value in params.items()
                if NESTED in key and (key not in before or not _equal(before[key], value))
            }
            for key, value in changed.items():
                _set_nested(merged, self.Config, key.split(NESTED), value)
            self.config = validated(self.Config, self.Config.filled_in(merged)) if changed else config
        except ConfigError as error:
            raise ConfigError(f"{type(self).__name__}: {error}") from None
        self._params = merged

    def __repr__(self) -> str:
        """The parameters that differ from the defaults."""
        default = self.Config()
        changed = [
            f"{key}={value!r}" for key, value in self._params.items()
            if not _equal(getattr(self.config, key), getattr(default, key))
        ]  # fmt: skip
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """Sparse features and texts in, several labels per document out.

        Not a classifier by its tag: scikit-learn refuses lists of labels for classifiers, and stratifies nothing here.
        """
        from sklearn import utils  # only ever called by scikit-learn itself

        return utils.Tags(  # type: ignore[missing-attribute]
            estimator_type=None,
            target_tags=utils.TargetTags(required=True, multi_output=True),  # type: ignore[missing-attribute]
            input_tags=utils.InputTags(sparse=True, string=True),  # type: ignore[missing-attribute]
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "label_names_")

    # --- classes, and scores as matrices ---

    @property
    def classes_(self) -> np.ndarray:
        """The label names, in the order of the columns of `predict_proba` and `decision_function`."""
        return np.array(list(self.label_names_), dtype=object)

    def predict_proba(self, documents: Any, k: int = SPARSE_K) -> sparse.csr_array:
        """Probabilities of the best k labels per document, sparse [documents, labels]; others are not stored.

        Only of a calibrated model: the scores of others are not probabilities. Rows do not sum to 1, because a
        document may have several labels.
        """
        self._check_fitted()
        if self.calibration_ is None:
            raise NotFittedError(
                f"this {type(self).__name__} is not calibrated, so it has no probabilities: call calibrate with "
                "held-out documents first, or use decision_function for its scores"
            )
        return self._scores(documents, k, calibrated=True)

    def decision_function(self, documents: Any, k: int = SPARSE_K) -> sparse.csr_array:
        """Scores of the best k labels per document, before calibration, sparse [documents, labels].

        Labels that are not stored have lower scores. Scores below 0 raise an error, because a sparse matrix would
        rank them below the labels that it does not store; `predict` returns them.
        """
        self._check_fitted()
        scores = self._scores(documents, k, calibrated=False)
        if (scores.data < 0).any():
            raise DataError(
                f"scores of this {type(self).__name__} are below 0, less than what a sparse matrix does not store: "
                "use predict, or predict_proba after calibrate"
            )
        return scores

    def _scores(self, documents: Any, k: int, calibrated: bool) -> sparse.csr_array:
        n_labels = len(self.label_names_)
        top = self._ranked(self._as_documents(documents), min(checked_k(k), n_labels))
        return (self.calibration_.apply(top) if calibrated else top).to_csr(n_labels)

    def _check_fitted(self) -> None:
        raise NotImplementedError

    def _as_documents(self, documents: Any) -> Any:
        raise NotImplementedError

    def _ranked(self, data: Any, k: int) -> TopK:
        raise NotImplementedError


def _nested(config: BaseConfig, prefix: str = "") -> Any:
    """Names and values of the fields of all sections, each section before its own sections."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseConfig):
            for field in type(value).model_fields:
                yield f"{prefix}{name}{NESTED}{field}", getattr(value, field)
            yield from _nested(value, f"{prefix}{name}{NESTED}")


def _set_nested(values: dict[str, Any], owner: type[BaseConfig], path: list[str], value: Any) -> None:
    """Set a field of a section in the given values, where the section may be a mapping, a config or missing."""
    name, rest = path[0], path[1:]
    if not rest:
        values[name] = value
        return
    field = owner.model_fields.get(name)
    sections = sections_of(field.annotation) if field is not None else []
    if field is not None and not sections:
        raise ConfigError(f"{NESTED.join(path)}: {name} is not a section with keys of its own")
    given = values.get(name)
    inner = given.given_fields() if isinstance(given, BaseConfig) else dict(given) if isinstance(given, Mapping) else {}
    _set_nested(inner, sections[0] if sections else owner, rest, value)
    values[name] = inner


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
