"""labelwise plan --labels 10000000 --documents 1000000 --features 500000 --memory 8"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.terminal import echo

LABELS = typer.Option(help="Labels of the task.", min=1)
DOCUMENTS = typer.Option(help="Training documents; needed for mach.", min=1)
FOR_BUCKETS = ("documents", "features", "memory", "confusion", "repetitions", "buckets")
FOR_DIGITS = ("width", "bottleneck", "groups", "batch")
DIGITS = typer.Option("--digits", help="Plan the heads of mhe_text instead: labels as digits in mixed radix.")


def plan_command(
    context: typer.Context,
    labels: Annotated[int, LABELS],
    documents: Annotated[int | None, DOCUMENTS] = None,
    features: Annotated[int, typer.Option(help="Features, such as words, before hashing.", min=1)] = 100_000,
    memory: Annotated[float | None, typer.Option(help="GB for training and serving; default: all free memory.")] = None,
    confusion: Annotated[float, typer.Option(help="Probability that any two labels share all buckets.")] = 0.01,
    repetitions: Annotated[int | None, typer.Option(help="Fix the repetitions.", min=1, max=1000)] = None,
    buckets: Annotated[int | None, typer.Option(help="Fix the buckets.", min=2)] = None,
    digits: Annotated[bool, DIGITS] = False,
    width: Annotated[int, typer.Option(help="Digits: dimension of the encoder's vectors.", min=1)] = 3840,
    bottleneck: Annotated[int, typer.Option(help="Digits: width of label embeddings.", min=1)] = 400,
    groups: Annotated[int, typer.Option(help="Digits: groups per document whose labels are scored.", min=1)] = 10,
    batch: Annotated[int, typer.Option(help="Digits: documents per batch.", min=1)] = 32,
) -> None:
    """Propose buckets, repetitions and hidden units for `mach`, with their memory; or the digits of `mhe_text`.

    The config is written to stdout, the reasons to stderr.
    """
    from labelwise.errors import ConfigError

    for name in FOR_BUCKETS if digits else FOR_DIGITS:
        if str(context.get_parameter_source(name)).endswith("COMMANDLINE"):
            raise ConfigError(f"--{name}: {'not used with' if digits else 'needs'} --digits; see labelwise plan --help")
    if digits:
        _plan_digits(labels, width, bottleneck, groups, batch)
        return
    if documents is None:
        raise ConfigError("--documents: give the number of training documents, or --digits to plan mhe_text")
    _plan_buckets(labels, documents, features, memory, confusion, repetitions, buckets)


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

    from labelwise.codes.bucket_plan import plan_buckets
    from labelwise.errors import ConfigError
    from labelwise.formatting import size
    from labelwise.free_memory import free_memory

    if memory is None:
        available = free_memory()
        if available is None:
            raise ConfigError("--memory: give the GB to plan for; this system does not report free memory")
        memory = available / 1e9
    elif not 0 < memory < 1e9:
        raise ConfigError(f"--memory: a number of GB above 0 is needed, got {memory}")
    plan = plan_buckets(labels, documents, features, int(memory * 1e9), confusion, repetitions, buckets)
    collisions = plan.collisions
    rows = {
        "memory to plan for": size(memory * 1e9),
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

    from labelwise.codes.digit_plan import plan_heads
    from labelwise.formatting import size

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
