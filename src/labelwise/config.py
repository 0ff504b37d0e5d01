"""Typed configs from YAML and `--set a.b=c`, with errors that name the line and the nearest valid key.

Every method and every command keeps its own `Config` beside its code; this file holds what they share: the base class,
a YAML reader that remembers line numbers, and the translation of validation errors into sentences.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from labelwise.errors import ConfigError, did_you_mean

KeyPath = tuple[str | int, ...]


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
        """Fill the fields that a section leaves out from that section's default."""
        if not isinstance(given, Mapping):
            return given
        completed = dict(given)
        for name, field in cls.model_fields.items():
            if isinstance(field.default, Config) and name in completed:
                completed[name] = field.default._completed_section(completed[name])
        return completed

    def _completed_section(self, given: Any) -> Any:
        """Complete a section given as a mapping or as a config of this class; anything else is returned unchanged."""
        if type(given) is type(self):
            given = given.given_fields()
        return self.completed(given) if isinstance(given, Mapping) else given

    def given_fields(self) -> dict[str, Any]:
        """The fields that were set explicitly."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    # --- what a method's parameters say beyond their values; sections are asked too ---

    elsewhere: ClassVar[Mapping[str, Any]] = {}
    """Fields on which only some parts of a model depend, so that the method hands their contents to its job itself,
    and `valid`, if held-out documents are such; each with True or with the fields of a section."""

    def sections(self) -> list[Config]:
        """The sections of this config that are set."""
        values = (getattr(self, name) for name in type(self).model_fields)
        return [value for value in values if isinstance(value, Config)]

    def check_files(self) -> None:
        """Raise an error if a file or folder that the parameters name is missing."""
        for section in self.sections():
            section.check_files()

    def contents(self) -> list[Any]:
        """What the files and folders hold that the parameters name (`labelwise.io.contents`), except those elsewhere.

        A result depends on it besides the parameters themselves.
        """
        return [content for section in self.sections() for content in section.contents()]

    def resolved(self) -> dict[str, Any]:
        """All parameters as plain data, and what else identifies a result, such as fingerprints of models."""
        return self.model_dump(mode="json")

    def documents_before(self) -> list[Any]:
        """Arrays of hashes of the documents that models named here were trained on: a result depends on them too."""
        return [hashes for section in self.sections() for hashes in section.documents_before()]

    @classmethod
    def filled_in(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The given parameters, with those that follow from files that they name; not called for saved models."""
        return given

    def facts(self) -> dict[str, Any]:
        """Attributes of the method's class that are others with these parameters, as `Method.fact` reads them."""
        return {}

    def kinds_to_train_on(self, data: Any) -> set[str] | None:
        """The types of documents to train on, of a method that the parameters make of others; None for all others."""
        return None

    def with_members(self, members: Sequence[Any]) -> Self:
        """The parameters of a saved model, with its members in place of what stands for them."""
        return self

    @property
    def parts_folder(self) -> Path | None:
        """A folder of finished parts that the parameters name, beside the work of the fit itself."""
        return None

    @property
    def reads_vectors(self) -> bool:
        """Whether documents are texts with dense features next to them."""
        return False

    def __repr_args__(self) -> Any:
        """The fields that were set explicitly: the whole config would fill a screen."""
        return [(name, getattr(self, name)) for name in type(self).model_fields if name in self.model_fields_set]

    def completed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given`, with missing fields filled from the fields that were set explicitly in this config.

        Classes whose fields depend on each other override this to drop what contradicts `given`.
        """
        own = self.given_fields()
        nested = {
            name: own[name]._completed_section(value)
            for name, value in given.items()
            if isinstance(own.get(name), Config)
        }
        return {**own, **given, **nested}


AnyConfig = TypeVar("AnyConfig", bound=Config)


class _Loader(yaml.SafeLoader):
    """YAML with fewer surprises: 1e-4 is a number, `no` and `on` are strings, duplicate keys are refused.

    Aliases are refused: configs do not need them, and a few of them can expand to billions of values.
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


def _refuse_duplicate_keys(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str | int | float):
            raise yaml.MarkedYAMLError(problem="a key must be a plain word", problem_mark=key_node.start_mark)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"duplicate key '{key}'", problem_mark=key_node.start_mark)
        seen.add(key)
    return yaml.SafeLoader.construct_mapping(loader, node, deep)


_Loader.add_constructor("tag:yaml.org,2002:map", lambda loader, node: _refuse_duplicate_keys(loader, node, deep=True))


class ConfigSource:
    """A mapping read from YAML and changed by overrides, with the file and line of each value."""

    def __init__(self, values: dict[str, Any], name: str = "config", lines: Mapping[KeyPath, int] | None = None):
        self.values = values
        self.name = name
        self.lines = dict(lines or {})
        self.overridden: dict[KeyPath, str] = {}
        self.texts: dict[KeyPath, str] = {}

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
            _collect_lines(node, (), source)
        return source

    @classmethod
    def from_file(cls, path: str | Path) -> ConfigSource:
        """Read a YAML file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ConfigError(
                f"{path}: there is no such config file; a minimal config is "
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
                raise ConfigError(f"--set {assignment}: write section.key=value, for example model.beam=20")
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

    def where(self, key_path: KeyPath) -> str:
        """The file and line, or the command-line option, that a value came from."""
        if key_path not in self.lines:
            for overridden, option in self.overridden.items():
                if overridden[: len(key_path)] == key_path:
                    return option
        for length in range(len(key_path), -1, -1):
            if key_path[:length] in self.overridden:
                return self.overridden[key_path[:length]]
            if key_path[:length] in self.lines:
                return f"{self.name}:{self.lines[key_path[:length]]}"
        return self.name


def _option_value(text: str) -> Any:
    """The text after `=` read as YAML, except that `|`, `#` and the like are plain characters."""
    try:
        value = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if value in (None, "") and text.strip() not in ("", "null", "~", "''", '""'):
        return text
    return value


def _collect_lines(node: yaml.Node, key_path: KeyPath, source: ConfigSource) -> None:
    """Record the line and the original text of every value."""
    source.lines.setdefault(key_path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            here = (*key_path, key_node.value)
            source.lines[here] = key_node.start_mark.line + 1
            _collect_lines(value_node, here, source)
    elif isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            _collect_lines(item, (*key_path, position), source)
    elif isinstance(node, yaml.ScalarNode):
        source.texts[key_path] = node.value


def validated(
    config_class: type[AnyConfig],
    values: Mapping[str, Any],
    source: ConfigSource | None = None,
    prefix: KeyPath = (),
    owner: str | None = None,
) -> AnyConfig:
    """`config_class(**values)`, or one ConfigError that lists every fault with its line, value and accepted values.

    `owner` is whose keys they are, for the message about an unknown one.
    """
    try:
        return config_class.model_validate(dict(values))
    except ValidationError as error:
        faults = error.errors()
    respelled = _with_original_text(values, faults, source, prefix)
    if respelled is not None:
        return validated(config_class, respelled, source, prefix, owner)
    messages = [_fault_message(config_class, fault, source, prefix, owner) for fault in faults]
    raise ConfigError("\n".join(messages)) from None


def _with_original_text(
    values: Mapping[str, Any], faults: Sequence[Any], source: ConfigSource | None, prefix: KeyPath
) -> dict[str, Any] | None:
    """The values with the original text where a string is needed and YAML read something else: 1.10, not 1.1.

    Nothing after `--set key=` is the empty string; an empty value in a file is more likely forgotten.
    """
    if source is None:
        return None
    changed = None
    for fault in faults:
        key_path = (*prefix, *fault["loc"])
        text = source.texts.get(key_path)
        respelled = isinstance(fault["input"], int | float | date) or (text == "" and key_path in source.overridden)
        if fault["type"] == "string_type" and text is not None and respelled:
            changed = copy.deepcopy(dict(values)) if changed is None else changed
            where: Any = changed
            for part in fault["loc"][:-1]:
                where = where[part]
            where[fault["loc"][-1]] = text
    return changed


def _fault_message(
    config_class: type[Config], fault: Any, source: ConfigSource | None, prefix: KeyPath, owner: str | None
) -> str:
    key_path: KeyPath = (*prefix, *fault["loc"])
    dotted = ".".join(map(str, key_path)) or "config"
    start = f"{source.where(key_path)}: {dotted}" if source else dotted
    if fault["type"] == "extra_forbidden":
        section = _owner(config_class, fault["loc"][:-1])
        whose = f" in {owner}" if owner else ""
        return f"{start}: there is no such key{whose}; {_nearest_key(section, str(fault['loc'][-1]))}"
    if fault["type"] == "missing":
        return f"{start}: this key is needed"
    if fault["type"] in ("model_type", "dict_type"):
        example = _section_example(_owner(config_class, fault["loc"]), fault["input"])
        return f"{start}: a section with keys is needed, got {_shown(fault['input'])}{example}"
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
    got = "" if isinstance(fault["input"], dict | BaseModel) else f", got {_shown(fault['input'])}"
    return f"{start}: {message}{got}"


def _section_example(section: type[Config] | None, given: Any) -> str:
    """Where a value was given for a section: the sections that it may have meant, or else the section's keys."""
    if section is None:
        return ""
    fitting = []
    for name in section.model_fields if type(given) in (int, float, str) else ():
        try:
            section.model_validate({name: given})
        except ValidationError:
            continue
        fitting.append(f"{{{name}: {_shown(given)}}}")
    if fitting:
        return f"; for example {' or '.join(fitting[:2])}"
    keys = list(section.model_fields)
    return f"; its keys are {', '.join(keys[:8])}{', ...' if len(keys) > 8 else ''}"


def _nearest_key(owner: type[Config] | None, key: str) -> str:
    """A hint: the section that has the key, or the most similar key."""
    fields = owner.model_fields if owner else {}
    for name, field in fields.items():
        if any(key in section.model_fields for section in sections_of(field.annotation)):
            return f"it belongs to the section {name}"
    return did_you_mean(key, fields)


def _owner(config_class: type[Config], path: Sequence[str | int]) -> type[Config] | None:
    """The config class that holds the key at the end of a validation path."""
    owner: type[Config] = config_class
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
    """Quotes exactly the strings that `_Loader` would otherwise read as another type, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


# --- result fields ---
# Which settings decide a result: all of them, except those that are marked where they are declared.
#
# threads: Annotated[int | None, Decides.NOTHING] = None
#
# A field with a union type must be marked as a whole, as above. The marks decide which runs may be resumed, which
# trials of a sweep are identical, and what is part of the fingerprints of unfinished work.


class Decides(Enum):
    """What a marked field decides."""

    NOTHING = "nothing"
    """Speed, memory, files, output. The result is the same with any value."""
    END = "end"
    """When training ends. Unfinished work is resumed with another value; finished work is another result."""
    ASSEMBLY = "assembly"
    """How trained parts become a model. The parts are the same with any value."""


Scope = frozenset[Decides]
RESULT: Scope = frozenset({Decides.NOTHING})
"""Fields that do not distinguish two results."""
UNFINISHED: Scope = RESULT | {Decides.END}
"""Fields that may change while a run is unfinished."""
PART: Scope = UNFINISHED | {Decides.ASSEMBLY}
"""Fields that do not distinguish two trained parts of a model."""

Fields = dict[str, Any]
"""Names of fields, each with True or with the fields of a section: what pydantic's `exclude` takes."""


def ignored_fields(config_class: type[Config], scope: Scope) -> Fields:
    """The fields of a config, and of its sections, that decide nothing in this scope."""
    ignored: Fields = {}
    for name, field in config_class.model_fields.items():
        if any(mark in scope for mark in field.metadata if isinstance(mark, Decides)):
            ignored[name] = True
            continue
        inner: Fields = {}
        for section in sections_of(field.annotation):
            inner |= ignored_fields(section, scope)
        if inner:
            ignored[name] = inner
    return ignored


def deciding_fields(config: Config, scope: Scope) -> dict[str, Any]:
    """The values of a config that decide the result in this scope, as plain data."""
    return config.model_dump(mode="json", exclude=ignored_fields(type(config), scope))


def without_fields(values: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Plain values without these fields, and without sections of which nothing is left."""
    kept = {}
    for name, value in values.items():
        inner = fields.get(name)
        if inner and inner is not True and isinstance(value, Mapping):
            rest = without_fields(value, inner)
            if rest or not value:
                kept[name] = rest
        elif inner is not True:
            kept[name] = value
    return kept


def with_fields_from(values: Mapping[str, Any], others: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Plain values with these fields taken from `others`."""
    merged = dict(values)
    for name, inner in fields.items():
        if inner is True:
            merged[name] = others.get(name)
        elif isinstance(values.get(name), Mapping):
            merged[name] = with_fields_from(values[name], others.get(name) or {}, inner)
    return merged


def flattened(values: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as one flat mapping with dotted keys."""
    if not isinstance(values, Mapping) or not values:
        return {prefix: values}
    return {
        path: leaf
        for key, value in values.items()
        for path, leaf in flattened(value, f"{prefix}.{key}" if prefix else str(key)).items()
    }


def differing_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The dotted keys at which two configs differ, those of the first in order."""
    earlier, later = flattened(before), flattened(now)
    return [path for path in dict.fromkeys([*earlier, *later]) if earlier.get(path) != later.get(path)]
