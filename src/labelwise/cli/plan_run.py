"""labelwise plan CONFIG.yml: what a run costs and where it fits; labelwise plan --measure."""

from __future__ import annotations

import dataclasses
from typing import Any

from labelwise.cli.terminal import echo, echo_json


def bytes_of_size(given: str | None, name: str) -> float | None:
    """Bytes from '64GB', '512 MB' or a number of GB."""
    from labelwise.errors import ConfigError

    if given is None:
        return None
    text = given.strip().upper().removesuffix("B")
    units = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    unit = units.get(text[-1:], 1e9)
    try:
        amount = float(text[:-1] if text[-1:] in units else text) * unit
    except ValueError:
        amount = 0.0
    if not 0 < amount < 1e18:
        raise ConfigError(f"--{name}: a size above 0 is needed, such as 64GB or a number of GB, got {given}")
    return amount


def measure(constants: str | None) -> None:
    """Measure this machine now and print the constants."""
    from labelwise.errors import ConfigError
    from labelwise.planning.measure import constants_path, machine_constants, to_json

    if constants is not None:
        raise ConfigError("--constants: not used with --measure, which writes the file of this machine")
    echo(to_json(machine_constants(again=True)), nl=False)
    echo(f"kept in {constants_path()}", err=True)


def plan_run(
    config: str, overrides: list[str] | None, given: dict[str, Any], other: dict[str, Any], constants: str | None,
    again: bool, as_json: bool,
) -> None:  # fmt: skip
    """Print what fits where. `given` replaces figures of the data, `other` describes a second machine."""
    from labelwise.cli.output import print_table
    from labelwise.cli.train import config_source
    from labelwise.errors import ConfigError
    from labelwise.formatting import size
    from labelwise.planning.costs import Machine
    from labelwise.planning.measure import machine_constants
    from labelwise.planning.plan import (
        COLUMNS,
        described,
        memory_limit,
        planned_cost,
        planned_shape,
        table,
        this_machine,
    )
    from labelwise.runs.config import run_config
    from labelwise.runs.data import is_config

    if not is_config(config):
        raise ConfigError(
            f"{config}: plan needs a config (CONFIG.yml, or - for stdin), or --labels and --documents without one. "
            "For data that is there: a config with data.path or data.train"
        )
    if other["gpu_memory"] is not None and not other["gpus"]:
        raise ConfigError("--gpu-memory: needs --gpus, the number of GPUs of a machine")
    run = run_config(config_source(config).override(overrides or []))
    shape = planned_shape(run, given)
    measured = machine_constants(constants, again=again)
    cost = planned_cost(run, shape, measured)
    here = this_machine(run)
    machines = [dataclasses.replace(here, name=f"this machine: {described(here)}")]
    chosen = {name: value for name, value in other.items() if value is not None}
    if chosen:
        machine = Machine("", chosen.pop("memory", here.memory), chosen.pop("cores", here.cores), **chosen)
        machines.append(dataclasses.replace(machine, name=described(machine)))
    limit = memory_limit(run)
    if limit is not None:  # the method refuses what needs more, however much there is
        machines = [
            dataclasses.replace(one, memory=limit if one.memory is None else min(limit, one.memory)) for one in machines
        ]
    fits, cells = table(cost, machines)
    if as_json:
        values = [
            {"seconds": fit.seconds, "memory": fit.memory, "fits": fit.fits, "problems": fit.problems,
             "network_seconds": fit.network_seconds, "machine": dataclasses.asdict(fit.machine)}
            for fit in fits
        ]  # fmt: skip
        plain = {"shape": dataclasses.asdict(shape), "cost": dataclasses.asdict(cost), "measured": measured.measured}
        echo_json({"method": run.model["method"], **plain, "machines": values})
        return
    about = f"{shape.documents:,} documents, {shape.labels:,} labels, {shape.nonzeros:,.0f} words per document"
    print_table(f"{run.model['method']}: {about}", COLUMNS, cells)
    if not all(fit.fits for fit in fits) and cost.changes:
        echo(f"to make it smaller: {'; '.join(cost.changes)}")
    shared = min(cost.shares, max(machine.machines for machine in machines))
    if shared < max(machine.machines for machine in machines):
        echo(f"{run.model['method']} is trained on at most {shared} machine{'s' * (shared != 1)}")
    if limit is not None:
        echo(f"model.memory limits training to {size(limit)}")
    source = "constants measured on this machine" if constants is None else f"the constants in {constants}, measured"
    echo(f"estimated from {source} {measured.measured}; see docs/scale.md", err=True)
