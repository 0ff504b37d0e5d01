"""Measured constants of this machine, kept in the user's cache folder under the machine's fingerprint."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path

from labelwise import __version__
from labelwise.atomic import replacing
from labelwise.costs import Constants
from labelwise.errors import ConfigError
from labelwise.finished import fingerprint
from labelwise.kernels.jit import user_cache
from labelwise.runs.machine import describe_machine
from labelwise.runs.measure_machine import measure_machine

log = logging.getLogger("labelwise")


def machine_constants(given: str | None = None, *, again: bool = False) -> Constants:
    """From a file, or those measured on this machine; they are measured if they are not known yet, or `again`."""
    if given is not None:
        return read_constants(Path(given))
    path = constants_path()
    if path.exists() and not again:
        try:
            return read_constants(path)
        except ConfigError as error:  # of another version
            log.info("%s; measured again", error)
    log.info("measuring this machine, which takes about a minute; the constants are kept in %s", path)
    found = measure_machine()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(to_json(found))
    return found


def constants_path() -> Path:
    """Named by what decides the speed: processor, cores, threads and versions of packages."""
    about = describe_machine()
    about.pop("memory_bytes")
    return user_cache() / "labelwise" / "plan" / f"{fingerprint({**about, 'labelwise': __version__})[:16]}.json"


def to_json(constants: Constants) -> str:
    """As text of a file."""
    return json.dumps(dataclasses.asdict(constants), indent=1) + "\n"


def read_constants(path: Path) -> Constants:
    """A file of constants; ConfigError names what is wrong with it."""
    try:
        return Constants.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: not a file of constants of labelwise plan --measure ({error})") from None
