"""labelwise plan --labels 10000000 --documents 1000000 --features 500000 --memory 8"""

from __future__ import annotations

from typing import Annotated

import typer

from labelwise.cli.terminal import echo


def plan_command(
    labels: Annotated[int, typer.Option(help="Labels of the task.", min=1)],
    documents: Annotated[int, typer.Option(help="Training documents.", min=1)],
    features: Annotated[int, typer.Option(help="Features, such as words, before hashing.", min=1)] = 100_000,
    memory: Annotated[float | None, typer.Option(help="GB for training and serving; default: all free memory.")] = None,
    confusion: Annotated[float, typer.Option(help="Probability that any two labels share all buckets.")] = 0.01,
    repetitions: Annotated[int | None, typer.Option(help="Fix the repetitions.", min=1, max=1000)] = None,
    buckets: Annotated[int | None, typer.Option(help="Fix the buckets.", min=2)] = None,
) -> None:
    """Propose buckets, repetitions and hidden units for `mach`, with their memory.

    The config is written to stdout, the reasons to stderr.
    """
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
