"""Maps method names to classes. A method is imported when it is requested by name.

Other packages can add methods through the entry-point group ``labelwise.methods``; built-in names take precedence, so
that an installed package cannot replace a method that saved models rely on.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING

from labelwise import __version__
from labelwise.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from labelwise.model.method import Method

METHODS: dict[str, str] = {
    "attention_xml": "labelwise.methods.attention_xml:AttentionXML",
    "bigru": "labelwise.methods.bigru:BiGRU",
    "ensemble": "labelwise.methods.ensemble:Ensemble",
    "hybrid_linear": "labelwise.methods.hybrid_linear:HybridLinear",
    "linear_flat": "labelwise.methods.linear_flat:LinearFlat",
    "linear_tree": "labelwise.methods.linear_tree:LinearTree",
    "mach": "labelwise.methods.mach:Mach",
    "mhe_face": "labelwise.methods.mhe_face:MheFace",
    "mhe_image": "labelwise.methods.mhe_image:MheImage",
    "mhe_text": "labelwise.methods.mhe_text:MheText",
    "popularity": "labelwise.methods.popularity:Popularity",
    "text_encoder": "labelwise.methods.text_encoder:TextEncoder",
    "xr_transformer": "labelwise.methods.xr_transformer:XRTransformer",
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


def can(model: Method | type[Method], ability: str) -> bool:
    """Whether models of a method have an optional member of `Fitted`; of a fitted model whether that one has it."""
    fitted = getattr(model, "fitted_", None)
    has = hasattr(model.Fitted, ability) or (ability == "explain" and hasattr(model.Fitted, "explanations"))
    return has and ability not in getattr(fitted, "lacks", ())


def methods_that(ability: str) -> str:
    """The built-in methods with an optional member of `Fitted`, or a fact such as `trains_in_tasks`, for messages."""
    classes = {name: method_class(name) for name in METHODS}
    able = [name for name, method in classes.items() if can(method, ability) or getattr(method, ability, False) is True]
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


def method_package(name: str) -> tuple[str, str] | None:
    """Name and version of the installed package that a plugged-in method comes from; None for built-in methods."""
    if name in METHODS:
        return None
    for point in entry_points(group="labelwise.methods"):
        if point.name == name and point.dist is not None:
            return point.dist.name, point.dist.version
    return None


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of labelwise, Python and those of the packages that are installed."""
    found = {package: _version(package) for package in packages}
    own = {"labelwise": __version__, "python": platform.python_version()}
    return own | {package: number for package, number in found.items() if number is not None}


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
