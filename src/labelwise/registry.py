"""Maps method names to classes. A method is imported when it is requested by name.

Other packages can add methods through the entry-point group ``labelwise.methods``; built-in names take precedence, so
that an installed package cannot replace a method that saved models rely on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from labelwise.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from labelwise.methods.base import Method

METHODS: dict[str, str] = {
    "attention_xml": "labelwise.methods.attention_xml:AttentionXML",
    "bigru": "labelwise.methods.bigru:BiGRU",
    "linear_flat": "labelwise.methods.linear_flat:LinearFlat",
    "linear_tree": "labelwise.methods.linear_tree:LinearTree",
    "mach": "labelwise.methods.mach:Mach",
    "popularity": "labelwise.methods.popularity:Popularity",
    "text_encoder": "labelwise.methods.text_encoder:TextEncoder",
}
_registered: dict[str, type[Method]] = {}
"""Classes of `registered`."""


@contextmanager
def registered(method: type[Method]) -> Iterator[None]:
    """A name for a class that is not installed, for as long as this lasts; names that have a class keep it."""
    try:
        known = method_class(method.name)
    except ConfigError:
        known = None
    if known is not None and known is not method:
        raise ConfigError(
            f"the name '{method.name}' of {method.__name__} belongs to {known.__module__}; choose another"
        )
    if known is None:
        _registered[method.name] = method
    try:
        yield
    finally:
        if known is None:
            del _registered[method.name]


def method_names() -> list[str]:
    """All available methods: built-in ones first, then those of other packages."""
    plugins = sorted({point.name for point in entry_points(group="labelwise.methods")} | set(_registered))
    return [*METHODS, *(name for name in plugins if name not in METHODS)]


def methods_that(capability: str) -> str:
    """The built-in methods whose class declares a capability, such as `encodes`, joined for a message."""
    able = [name for name in METHODS if getattr(method_class(name), capability)]
    return " and ".join([", ".join(able[:-1]), able[-1]] if len(able) > 1 else able)


def method_class(name: str) -> type[Method]:
    """Import and return the class of a method."""
    target = METHODS.get(name)
    if target is None:
        if name in _registered:
            return _registered[name]
        for point in entry_points(group="labelwise.methods"):
            if point.name == name:
                return point.load()
        raise ConfigError(f"there is no method '{name}'; {did_you_mean(name, method_names())}")
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
