"""Typed configs from YAML and `--set a.b=c`, with errors that name the place and the nearest valid name.

Every method and every command keeps its own `Config` beside its code; this file holds what they share: the base class,
a YAML reader that remembers line numbers, and the translation of validation errors into sentences.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from labelwise.errors import ConfigError, did_you_mean

Place = tuple[str | int, ...]


class Config(BaseModel):
    """Base of all configs: frozen, unknown keys refused, the sentence under a field is its documentation."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_sections(cls, given: Any) -> Any:
        """A section of which some fields are given keeps what its default says of the others."""
        if not isinstance(given, Mapping):
            return given
        completed = dict(given)
        for name, field in cls.model_fields.items():
            if isinstance(field.default, Config) and name in completed:
                completed[name] = field.default._completed_section(completed[name])
        return completed

    def _completed_section(self, given: Any) -> Any:
        """A section in the place of this one, as a mapping or as a config of the same class; anything else as it is."""
        if type(given) is type(self):
            given = given._given_fields()
        return self.completed(given) if isinstance(given, Mapping) else given

    def _given_fields(self) -> dict[str, Any]:
        """The fields that were given, and not left to their defaults."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` with what this config says beyond the defaults of its class, in the fields that it leaves out.

        A class whose fields hang on each other leaves away what does not fit to what is given.
        """
        own = self._given_fields()
        deeper = {
            name: own[name]._completed_section(value)
            for name, value in given.items()
            if isinstance(own.get(name), Config)
        }
        return {**own, **given, **deeper}


AnyConfig = TypeVar("AnyConfig", bound=Config)


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: 1e-4 is a number, `no` and `on` are words, a key may not stand twice.

    Aliases are refused: nobody needs them here, and a few of them can stand for billions of values.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not used in configs", problem_mark=mark)
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _refuse_repeated_keys(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float):
            raise yaml.MarkedYAMLError(problem="a key must be a plain word", problem_mark=key_node.start_mark)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"the key '{key}' stands twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


_Loader.add_constructor("tag:yaml.org,2002:map", lambda loader, node: _refuse_repeated_keys(loader, node, deep=True))


class ConfigSource:
    """A mapping read from YAML and changed by overrides, that can tell where each of its values stands."""

    def __init__(self, values: dict[str, Any], name: str = "config", lines: Mapping[Place, int] | None = None):
        self.values = values
        self.name = name
        self.lines = dict(lines or {})
        self.overridden: dict[Place, str] = {}
        self.texts: dict[Place, str] = {}

    @classmethod
    def from_yaml(cls, text: str, name: str) -> ConfigSource:
        """Read YAML text; `name` is the file's name for messages."""
        loader = None
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            values = loader.construct_document(node) if node is not None else {}
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigError(f"{name}:{line}: not valid YAML: {error.problem}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"{name}: not valid YAML: {error}") from None
        finally:
            if loader is not None:
                loader.dispose()
        if not isinstance(values, dict):
            raise ConfigError(f"{name}:1: a config is a mapping of sections, not a {type(values).__name__}")
        source = cls(values, name)
        if node is not None:
            _collect_places(node, (), source)
        return source

    @classmethod
    def from_file(cls, path: str | Path) -> ConfigSource:
        """Read a YAML file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: there is no such config file; the least it holds is "
                "{data: {path: FOLDER}, model: {method: NAME}}"
            ) from None
        except IsADirectoryError:
            raise ConfigError(f"{path}: this is a folder; a config file (YAML) is needed") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: the config cannot be read: {error}") from None
        return cls.from_yaml(text, str(path))

    def override(self, assignments: Sequence[str]) -> ConfigSource:
        """Apply `a.b=value` assignments in order; values are read as YAML."""
        for assignment in assignments:
            key, equals, text = assignment.partition("=")
            parts = key.strip().split(".")
            if not equals or not all(parts):
                raise ConfigError(f"--set {assignment}: write it as section.key=value, for example model.beam=20")
            value = _option_value(text)
            where = self.values
            for depth, part in enumerate(parts[:-1]):
                if where.get(part) is None:
                    where[part] = {}
                where = where[part]
                if not isinstance(where, dict):
                    raise ConfigError(f"--set {assignment}: {'.'.join(parts[: depth + 1])} is a value, not a section")
            where[parts[-1]] = value
            self.overridden[tuple(parts)] = f"--set {assignment}"
            self.texts[tuple(parts)] = text
        return self

    def where(self, place: Place) -> str:
        """The file and line (or the option) a value came from."""
        if place not in self.lines:
            for made, option in self.overridden.items():
                if made[: len(place)] == place:
                    return option
        for length in range(len(place), -1, -1):
            if place[:length] in self.overridden:
                return self.overridden[place[:length]]
            if place[:length] in self.lines:
                return f"{self.name}:{self.lines[place[:length]]}"
        return self.name


def _option_value(text: str) -> Any:
    """What was typed after `=`, read as YAML; but `|`, `#` and the like are characters here, not YAML's signs."""
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if value in (None, "") and text.strip() not in ("", "null", "~", "''", '""'):
        return text
    return value


def _collect_places(node: yaml.Node, place: Place, source: ConfigSource) -> None:
    """Note for every value on which line it stands and how it was written."""
    source.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            here = (*place, key_node.value)
            source.lines[here] = key_node.start_mark.line + 1
            _collect_places(value_node, here, source)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            _collect_places(item, (*place, position), source)
    elif isinstance(node, yaml.ScalarNode):
        source.texts[place] = node.value


def validated(
    kind: type[AnyConfig], values: Mapping[str, Any], source: ConfigSource | None = None, prefix: Place = ()
) -> AnyConfig:
    """`kind(**values)`, or one ConfigError that lists every fault with its place, value and what is accepted."""
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        faults = error.errors()
    respelled = _as_written(values, faults, source, prefix)
    if respelled is not None:
        return validated(kind, respelled, source, prefix)
    raise ConfigError("\n".join(_sentence(kind, fault, source, prefix) for fault in faults)) from None


def _as_written(
    values: Mapping[str, Any], faults: Sequence[Any], source: ConfigSource | None, prefix: Place
) -> dict[str, Any] | None:
    """Where a word is wanted and a number was read, the values with the word as it was written: 1.10, not 1.1."""
    if source is None:
        return None
    changed = None
    for fault in faults:
        text = source.texts.get((*prefix, *fault["loc"]))
        if fault["type"] == "string_type" and text is not None and isinstance(fault["input"], int | float | date):
            changed = copy.deepcopy(dict(values)) if changed is None else changed
            where: Any = changed
            for part in fault["loc"][:-1]:
                where = where[part]
            where[fault["loc"][-1]] = text
    return changed


def _sentence(kind: type[Config], fault: Any, source: ConfigSource | None, prefix: Place) -> str:
    place: Place = (*prefix, *fault["loc"])
    dotted = ".".join(map(str, place)) or "config"
    start = f"{source.where(place)}: {dotted}" if source else dotted
    if fault["type"] == "extra_forbidden":
        return f"{start}: there is no such key; {_nearest_key(_owner(kind, fault['loc'][:-1]), str(fault['loc'][-1]))}"
    if fault["type"] == "missing":
        return f"{start}: this key is needed"
    if fault["type"] in ("model_type", "dict_type"):
        return f"{start}: a section with keys of its own is needed, got {_shown(fault['input'])}"
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
    got = "" if isinstance(fault["input"], dict | BaseModel) else f", got {_shown(fault['input'])}"
    return f"{start}: {message}{got}"


def _nearest_key(owner: type[Config] | None, key: str) -> str:
    """Where the key belongs, or what it may have been meant to be."""
    fields = owner.model_fields if owner else {}
    for name, field in fields.items():
        if any(key in section.model_fields for section in sections_of(field.annotation)):
            return f"it belongs into the section {name}"
    return did_you_mean(key, fields)


def _owner(kind: type[Config], path: Sequence[str | int]) -> type[Config] | None:
    """The config class that holds the key at the end of a validation path."""
    owner: type[Config] = kind
    for part in path:
        field = owner.model_fields.get(str(part))
        nested = sections_of(field.annotation) if field else []
        if not nested:
            return None
        owner = nested[0]
    return owner


def sections_of(annotation: Any) -> list[type[Config]]:
    """The config classes a field may hold."""
    options = [annotation, *getattr(annotation, "__args__", ())]
    return [option for option in options if isinstance(option, type) and issubclass(option, Config)]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def to_yaml(values: Mapping[str, Any]) -> str:
    """Plain values as YAML that `ConfigSource.from_yaml` reads back equal."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Dumper(yaml.SafeDumper):
    """Quotes exactly the words that `_Loader` would otherwise read as something else."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers
