"""labelwise plan CONFIG.yml [--memory 64GB --cores 16], or --labels 10000000 --documents 1000000 --memory 8"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from labelwise.cli.options import SetOption
from labelwise.cli.terminal import echo

LABELS = typer.Option(help="Labels of the task.", min=1)
DOCUMENTS = typer.Option(help="Training documents; with --labels, data is not read.", min=1)
FOR_BUCKETS = ("documents", "features", "memory", "confusion", "repetitions", "buckets")
FOR_DIGITS = ("width", "bottleneck", "groups", "batch")
FOR_BOTH = ("confusion", "repetitions", "buckets", "digits", *FOR_DIGITS)
FOR_CONFIG = (
    "overrides", "nonzeros", "words", "labels_per_document", "cores", "machines", "gpus", "gpu_memory", "as_json",
)  # fmt: skip
DIGITS = typer.Option("--digits", help="Plan the heads of mhe_text instead: labels as digits in mixed radix.")
CONFIG = typer.Argument(metavar="[CONFIG.yml]", help="Config of a run to plan; - is stdin.")
MEMORY = typer.Option(metavar="SIZE", help="Memory of a machine, such as 64GB; a number is GB. [all free memory]")
CONSTANTS = typer.Option(metavar="FILE.json", help="Constants of another machine, from its plan --measure.")


def plan_command(
    context: typer.Context,
    config: Annotated[str | None, CONFIG] = None,
    labels: Annotated[int | None, LABELS] = None,
    documents: Annotated[int | None, DOCUMENTS] = None,
    features: Annotated[int, typer.Option(help="Features, such as words, before hashing.", min=1)] = 100_000,
    nonzeros: Annotated[float | None, typer.Option(help="Different features per document.", min=1)] = None,
    words: Annotated[float | None, typer.Option(help="Words per text, if the data is texts.", min=1)] = None,
    labels_per_document: Annotated[float | None, typer.Option(help="Labels per document.", min=0.01)] = None,
    memory: Annotated[str | None, MEMORY] = None,
    cores: Annotated[int | None, typer.Option(help="Cores of a machine.", min=1)] = None,
    machines: Annotated[int | None, typer.Option(help="Number of equal machines.", min=1)] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of a machine.", min=0)] = None,
    gpu_memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of a GPU. [24GB]")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine now: about a minute.")] = False,
    constants: Annotated[str | None, CONSTANTS] = None,
    overrides: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
    confusion: Annotated[float, typer.Option(help="Probability that any two labels share all buckets.")] = 0.01,
    repetitions: Annotated[int | None, typer.Option(help="Fix the repetitions.", min=1, max=1000)] = None,
    buckets: Annotated[int | None, typer.Option(help="Fix the buckets.", min=2)] = None,
    digits: Annotated[bool, DIGITS] = False,
    width: Annotated[int, typer.Option(help="Digits: dimension of the encoder's vectors.", min=1)] = 3840,
    bottleneck: Annotated[int, typer.Option(help="Digits: width of label embeddings.", min=1)] = 400,
    groups: Annotated[int, typer.Option(help="Digits: groups per document whose labels are scored.", min=1)] = 10,
    batch: Annotated[int, typer.Option(help="Digits: documents per batch.", min=1)] = 32,
) -> None:
    """Say what a run costs and on which machines it fits: time, memory, disk, model size and latency, for any method.

    Data that can be read gives documents, labels and words; --documents and --labels stand for data that there is not
    yet. The speed of this machine is measured at the first call, which takes about a minute.

    Without a config: propose buckets, repetitions and hidden units for `mach`, with their memory, or with --digits
    the digits of `mhe_text`. The proposed config is written to stdout, the reasons to stderr.
    """
    from labelwise.cli.plan_run import bytes_of_size, plan_run
    from labelwise.cli.plan_run import measure as measure_now
    from labelwise.errors import ConfigError

    def refuse(names: Iterable[str], why: str) -> None:
        for name in names:
            if str(context.get_parameter_source(name)).endswith("COMMANDLINE"):
                shown = {"overrides": "set", "as_json": "json"}.get(name, name.replace("_", "-"))
                raise ConfigError(f"--{shown}: {why}; see labelwise plan --help")

    if config is not None:
        refuse(FOR_BOTH, "not used with a config")
        known = str(context.get_parameter_source("features")).endswith("COMMANDLINE")
        data = {
            "documents": documents, "labels": labels, "features": features if known else None, "nonzeros": nonzeros,
            "words": words, "labels_per_document": labels_per_document,
        }  # fmt: skip
        other = {
            "memory": bytes_of_size(memory, "memory"), "cores": cores, "machines": machines, "gpus": gpus,
            "gpu_memory": bytes_of_size(gpu_memory, "gpu-memory"),
        }  # fmt: skip
        plan_run(config, overrides, data, other, constants, measure, as_json)
        return
    refuse(FOR_CONFIG, "needs a config")
    if measure:
        refuse(("labels", *FOR_BUCKETS, "digits", *FOR_DIGITS), "not used with --measure")
        measure_now(constants)
        return
    refuse(("constants",), "needs a config")
    if labels is None:
        raise ConfigError("give a config to plan, --labels to propose settings of mach, or --measure")
    refuse(FOR_BUCKETS if digits else FOR_DIGITS, f"{'not used with' if digits else 'needs'} --digits")
    if digits:
        _plan_digits(labels, width, bottleneck, groups, batch)
        return
    if documents is None:
        raise ConfigError("--documents: give the number of training documents, or --digits to plan mhe_text")
    available = bytes_of_size(memory, "memory")
    _plan_buckets(labels, documents, features, available, confusion, repetitions, buckets)


def _plan_buckets(
    labels: int,
    documents: int,
    features: int,
    memory: float | None,
    confusion: float,
    repetitions: int | None,
    buckets: int | None,
) -> None:
    import yaml

    from labelwise.errors import ConfigError
    from labelwise.formatting import size
    from labelwise.planning.proposals import plan_buckets
    from labelwise.runtime.memory import free_memory

    if memory is None:
        memory = free_memory()
        if memory is None:
            raise ConfigError("--memory: give the GB to plan for; this system does not report free memory")
    plan = plan_buckets(labels, documents, features, int(memory), confusion, repetitions, buckets)
    collisions = plan.collisions
    rows = {
        "memory to plan for": size(memory),
        "weights per repetition": f"{plan.weights:,}",
        "memory to train one repetition": size(plan.training_bytes),
        "memory to serve all repetitions": size(plan.serving_bytes),
        "outputs in total": f"{plan.repetitions * plan.buckets:,} instead of {labels:,}",
        "label pairs that share all buckets": f"{collisions:.2g} expected",
    }
    for name, value in rows.items():
        echo(f"{name:<44}{value}", err=True)
    if plan.repetitions * plan.buckets >= labels:
        echo("so few labels need no buckets: linear_tree and text_encoder have one output per label", err=True)
    echo(yaml.safe_dump({"model": plan.config()}, sort_keys=False), nl=False)


def _plan_digits(labels: int, width: int, bottleneck: int, groups: int, batch: int) -> None:
    import yaml

    from labelwise.formatting import size
    from labelwise.planning.proposals import plan_heads

    plans = plan_heads(labels, width, batch, bottleneck, groups)
    echo(
        f"{'head':<10}{'radices':<26}{'surplus':>9}{'weights':>17}{'training':>12}{'step':>12}{'prediction':>13}",
        err=True,
    )
    for plan in plans:
        radices = " x ".join(f"{radix:,}" for radix in plan.radices)
        costs = (
            f"{size(plan.training_bytes):>12}",
            f"{plan.step_operations:>12.3g}",
            f"{plan.predict_operations:>13.3g}",
        )
        echo(f"{plan.kind:<10}{radices:<26}{plan.surplus:>9,}{plan.parameters:>17,}{''.join(costs)}", err=True)
    echo(f"vectors of {width:,}, batches of {batch}; step and prediction: operations per document", err=True)
    flat, cascade = plans[0], next(plan for plan in plans if plan.kind == "cascade")
    model: dict[str, object] = {"method": "mhe_text", "num_group": 0}
    if cascade.step_operations < flat.step_operations and cascade.parameters < flat.parameters:
        model |= {"num_group": cascade.radices[0], "groups": groups, "bottleneck": bottleneck}
    else:
        echo("so few labels need no groups", err=True)
    echo(yaml.safe_dump({"model": model}, sort_keys=False), nl=False)
