"""Presets: named sets of parameters for a purpose, such as `cpu`, that a config or a constructor starts from.

A preset replaces defaults; every parameter that is given besides it wins, and a section that is given in part keeps the
preset's other fields. Resolved configs and saved models hold the parameters, not the name of the preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from labelwise.config import Config
from labelwise.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from labelwise.methods.base import Method

PRESET = "preset"
"""Key of a config's model section."""


def with_preset(method: type[Method], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a model section, with the defaults of its preset filled in; unchanged without one."""
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
