"""What each method costs on data of some shape; a method of another package has a function `cost`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

from labelwise.ensembles.members import opened, saved_path
from labelwise.errors import ConfigError
from labelwise.labelspace.buckets import bucket_dtype
from labelwise.methods.ensemble import NO_MEMBERS
from labelwise.model.method import Method
from labelwise.planning.costs import BASE_BYTES, HASH_BYTES, NAME_BYTES, Constants, Cost, DataShape
from labelwise.planning.linear import linear_flat_cost, linear_tree_cost
from labelwise.planning.networks import (
    attention_xml_cost,
    bigru_cost,
    bucket_size,
    hybrid_linear_cost,
    image_network_cost,
    network_cost,
    text_network_cost,
    xr_transformer_cost,
)
from labelwise.planning.proposals import ORDER_BYTES


def cost_of(method: Method, shape: DataShape, constants: Constants) -> Cost | None:
    """What a method costs; None if it does not say so."""
    count = COSTS.get(method.name) or method.cost
    return None if count is None else count(method.config, shape, constants)


def popularity_cost(config: Any, shape: DataShape, constants: Constants) -> Cost:
    """What counting labels costs."""
    model = shape.labels * (NAME_BYTES + 12) + shape.documents * HASH_BYTES
    return Cost(
        cpu=constants.pifa * shape.ones, memory=BASE_BYTES + shape.bytes + 2 * model, disk=shape.bytes + model,
        model=model, latency=constants.call,
    )  # fmt: skip


def mach_cost(config: Any, shape: DataShape, constants: Constants) -> Cost:
    """Repetitions one after the other; every label is looked up in every table to be ranked."""
    size = bucket_size(shape, config.feature_hashing or shape.features, list(config.hidden), config.buckets)
    one = network_cost(shape, constants, "buckets", size, config.training, ranks=True)
    tables = config.repetitions * shape.labels * bucket_dtype(config.buckets).itemsize
    decoding = config.repetitions * shape.labels / constants.rate("decoding")
    names = one.model - 4 * (size.weights + size.rows)
    model = config.repetitions * 4 * (size.weights + size.rows) + names
    words = shape.feature_bytes if shape.words is not None else 0.0
    return replace(
        one, cpu=constants.tfidf * shape.text_bytes, network=config.repetitions * one.network,
        operations=config.repetitions * one.operations, steps=config.repetitions * one.steps,
        memory=one.memory + words + tables + ORDER_BYTES * shape.labels + model, model=model,
        disk=one.disk + 2 * model, shares=config.repetitions, step_bytes=0.0,
        latency=constants.call + config.repetitions * size.forward / constants.rate("buckets") + decoding,
        changes=("feature_hashing", "fewer hidden units", "fewer buckets", "fewer repetitions"),
    )  # fmt: skip


def ensemble_cost(config: Any, shape: DataShape, constants: Constants) -> Cost:
    """Members that are trained, one after the other."""
    saved = [path for member in config.members if (path := saved_path(member)) is not None]
    if saved:
        raise ConfigError(f"members: {saved[0]} is trained already; plan the configs of the members instead")
    members = [opened(member, number) for number, member in enumerate(config.members)]
    if not members:
        raise ConfigError(NO_MEMBERS)
    costs = []
    for number, member in enumerate(members):
        cost = cost_of(member, shape, constants)
        if cost is None:
            raise ConfigError(f"member {number}: {member.name} does not say what it costs, so it cannot be planned")
        costs.append(cost)
    return reduce(add, costs)


COSTS: dict[str, Callable[[Any, DataShape, Constants], Cost]] = {
    "attention_xml": attention_xml_cost,
    "bigru": bigru_cost,
    "ensemble": ensemble_cost,
    "hybrid_linear": hybrid_linear_cost,
    "linear_flat": linear_flat_cost,
    "linear_tree": linear_tree_cost,
    "mach": mach_cost,
    "mhe_face": image_network_cost,
    "mhe_image": image_network_cost,
    "mhe_text": text_network_cost,
    "popularity": popularity_cost,
    "text_encoder": text_network_cost,
    "xr_transformer": xr_transformer_cost,
}
