"""Method names to classes. Nothing is imported before a method is asked for by name.

Other packages can add methods through the entry-point group ``labelwise.methods``; ours win over theirs, so that an
installed package cannot take over a name that saved models rely on.
"""

from __future__ import annotations

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


def method_names() -> list[str]:
    """All methods that can be asked for: ours first, then those of other packages."""
    plugged = sorted(point.name for point in entry_points(group="labelwise.methods"))
    return [*METHODS, *(name for name in plugged if name not in METHODS)]


def methods_that(capability: str) -> str:
    """The names of our methods whose class declares a capability, such as `encodes`, for a sentence."""
    able = [name for name in METHODS if getattr(method_class(name), capability)]
    return " and ".join([", ".join(able[:-1]), able[-1]] if len(able) > 1 else able)


def method_class(name: str) -> type[Method]:
    """The class of a method, imported now."""
    target = METHODS.get(name)
    if target is None:
        for point in entry_points(group="labelwise.methods"):
            if point.name == name:
                return point.load()
        raise ConfigError(f"there is no method '{name}'; {did_you_mean(name, method_names())}")
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
