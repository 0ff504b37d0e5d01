"""LIBLINEAR's command-line options, as in LibMultiLabel's `liblinear_options`, as settings of our solver."""

from __future__ import annotations

import math
import shlex

from labelwise.errors import ConfigError
from labelwise.interop.config_conversion import ConfigConversion

KEY = "liblinear_options"
LOSSES = {0: "logistic", 1: "squared_hinge", 2: "squared_hinge", 3: "hinge", 7: "logistic"}
DUAL = (1, 3, 7)
MAX_PASSES = 300
"""Maximum number of passes of LIBLINEAR's dual solvers."""
WITH_VALUE = ("-s", "-c", "-p", "-e", "-B", "-m", "-w1", "-w-1")


def convert_solver_options(conversion: ConfigConversion) -> None:
    """Set the solver's fields; options that are not given have LIBLINEAR's defaults."""
    text = conversion.get(KEY, kind="word") or ""
    where = f"{conversion.source.where((KEY,))}: {KEY}"
    options = _parse_options(text, where)
    solver = _number(options, "-s", 1, where)
    if solver not in LOSSES:
        raise ConfigError(
            f"{where}: -s {solver:g} is not offered; L2-regularised solvers are: 0, 7 (logistic), 1, 2 (squared hinge) "
            "and 3 (hinge)"
        )
    conversion.put("model.solver.loss", LOSSES[int(solver)], KEY)
    cost = _number(options, "-c", 1, where)
    conversion.put("model.solver.cost_positive", cost * _number(options, "-w1", 1, where), KEY)
    conversion.put("model.solver.cost_negative", cost * _number(options, "-w-1", 1, where), KEY)
    conversion.put("model.solver.bias", max(0.0, _number(options, "-B", -1, where)), KEY)
    if solver in DUAL:
        conversion.put("model.solver.tolerance", _number(options, "-e", 0.1, where), KEY)
        conversion.put("model.solver.max_passes", MAX_PASSES, KEY)
    elif "-e" in options:
        conversion.note(f"-e left out: -s {solver:g} has another stopping criterion; model.solver.tolerance stays", KEY)
    if "-m" in options:
        conversion.put("run.threads", int(_number(options, "-m", 1, where)), KEY)
    if "-q" in options:
        conversion.note("-q left out: the solver prints nothing", KEY)
    if "-p" in options:
        conversion.note("-p left out: it is for regression", KEY)
    conversion.note_file(
        "weights below model.solver.threshold (0.1) are dropped; LIBLINEAR keeps all, as threshold 0 does here"
    )


def _parse_options(text: str, where: str) -> dict[str, str]:
    """Parse options and their values; `-c 2` and `-c2` are the same."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from None
    options: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "-q":
            options[word] = ""
            continue
        name = next((name for name in sorted(WITH_VALUE, key=len, reverse=True) if word.startswith(name)), None)
        if name is None:
            raise ConfigError(f"{where}: '{word}' is not offered; accepted: -q {' '.join(WITH_VALUE)}")
        value = word.removeprefix(name) or (words.pop(0) if words else "")
        if not value:
            raise ConfigError(f"{where}: {name} needs a value")
        options[name] = value
    return options


def _number(options: dict[str, str], name: str, default: float, where: str) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {name} needs a number, got '{options[name]}'")
    return value
