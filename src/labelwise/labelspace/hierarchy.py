"""Convert a user's label hierarchy to levels of equal depth for `LabelTree`.

Every label hangs under a *home* node: its parent, or the label's own node if it has children. The levels above a home
hold its ancestors; the levels below, down to the deepest home, repeat it, so that all labels have the same depth and
labels of one home stay together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from labelwise.errors import DataError

MAX_DEPTH = 100
"""Maximum number of ancestors: a tree repeats nodes level by level, and each level is a step of every search."""

Bounds = tuple[np.ndarray, list[np.ndarray]]
"""The order of the labels and, level by level from the top, the bounds of the nodes in it."""


def bounds_from_names(parents: Mapping[str, str | None], label_names: Sequence[str]) -> Bounds:
    """Labels in the order of the hierarchy, and the bounds of each level's nodes."""
    nodes, parent_ids = _numbered(parents)
    label_nodes = np.fromiter((nodes.get(name, -1) for name in label_names), np.int64, len(label_names))
    if len(label_nodes) and label_nodes.max() < 0:
        raise DataError(
            f"none of the {len(label_nodes):,} labels is in the hierarchy of {len(nodes):,} names; "
            f"a label is called '{label_names[0]}'" + (f", a node '{next(iter(nodes))}'" if nodes else "")
        )
    has_child = np.zeros(len(nodes) + 1, bool)
    has_child[parent_ids] = True  # -1 is the extra last entry
    homes = np.where(has_child[label_nodes], label_nodes, parent_ids[label_nodes])
    return bounds_from_ids(parent_ids, np.where(label_nodes < 0, -1, homes), list(nodes))


def bounds_from_ids(parents: np.ndarray, homes: np.ndarray, names: Sequence[str]) -> Bounds:
    """`bounds_from_names` by indices: the parent of each node or -1, and the home of each label or -1."""
    depths = np.append(depths_of_nodes(parents, names), 0)
    parents = np.append(parents, -1)
    nodes = np.where(homes < 0, len(parents) - 1, homes)  # one extra node at the top for labels without a home
    order = np.arange(len(nodes))
    levels: list[np.ndarray] = []
    for level in range(int(depths[nodes].max(initial=0)), -1, -1):
        nodes = np.where(depths[nodes] > level, parents[nodes], nodes)
        order = order[np.argsort(nodes[order], kind="stable")]
        levels.insert(0, nodes)
    return order, _bounds(levels, order)


def _numbered(parents: Mapping[str, str | None]) -> tuple[dict[str, int], np.ndarray]:
    """The index of each name, and the index of each node's parent or -1."""
    nodes: dict[str, int] = {}
    for child, parent in parents.items():
        if not child:
            raise DataError("the hierarchy has a child without a name")
        nodes.setdefault(child, len(nodes))
        if parent:
            nodes.setdefault(parent, len(nodes))
    ids = np.full(len(nodes), -1)
    for child, parent in parents.items():
        if parent:
            ids[nodes[child]] = nodes[parent]
    return nodes, ids


def _bounds(levels: list[np.ndarray], order: np.ndarray) -> list[np.ndarray]:
    """Where the node changes along the order, level by level; a bound of a level is a bound of all levels below it."""
    bounds = []
    changes = np.zeros(max(0, len(order) - 1), bool)
    for nodes in levels:
        changes |= np.diff(nodes[order]) != 0
        bounds.append(np.concatenate([[0], np.flatnonzero(changes) + 1, [len(order)]]))
    return bounds


def depths_of_nodes(parents: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The depth of each node. Cycles and depths above MAX_DEPTH raise; `names` are for the message."""
    depths = np.zeros(len(parents), np.int64)
    above = parents.copy()
    while (waiting := np.flatnonzero(above >= 0)).size:
        depths[waiting] += 1
        if depths[waiting[0]] > MAX_DEPTH:
            cycle = _cycle(parents, int(waiting[0]))
            if not cycle:
                raise DataError(f"the hierarchy is too deep: a node may have at most {MAX_DEPTH} ancestors")
            shown = [names[node] for node in cycle]
            if len(shown) > 8:
                shown[4:-4] = ["..."]
            raise DataError(f"the hierarchy has a cycle: {' < '.join(shown)}; every branch must end in a root")
        above[waiting] = parents[above[waiting]]
    return depths


def _cycle(parents: np.ndarray, node: int) -> list[int]:
    """The nodes of the cycle above a node, the first one again at the end; empty if there is none."""
    path: dict[int, None] = {}
    while node >= 0 and node not in path:
        path[node] = None
        node = int(parents[node])
    return [*list(path)[list(path).index(node) :], node] if node >= 0 else []


def hierarchy_of_labels(
    path: str | Path, label_names: Sequence[str], language: str | None = None
) -> tuple[dict[str, str | None], Sequence[str]]:
    """The parent of each name in a file, and the label names in the terms of that file.

    In a vocabulary (`data.thesaurus`) names are URIs, and each concept has one of its parents.
    """
    from labelwise.data.vocabulary import is_thesaurus, read_thesaurus

    if not is_thesaurus(Path(path)):
        return read_hierarchy(path), label_names
    thesaurus = read_thesaurus(path, language)
    found = thesaurus.match(label_names)
    names = [label if concept is None else concept.uri for label, concept in zip(label_names, found, strict=True)]
    return thesaurus.tree(), names


def read_hierarchy(path: str | Path) -> dict[str, str | None]:
    """Read the parent of each child from a file of `child<TAB>parent` lines; an empty parent makes a root.

    Blank lines are ignored, and blanks around names stripped. A name has one parent: another one in a later line
    is an error, and so are cycles.
    """
    from labelwise.data.stream import text_lines

    path = Path(path)
    parents: dict[str, str | None] = {}
    lines: dict[str, int] = {}
    for number, line in text_lines(path):
        if not line.strip():
            continue
        names = [name.strip(" ") for name in line.split("\t")]
        if len(names) != 2 or not names[0]:
            raise DataError(f"{line[:80]!r} is not child<TAB>parent", path, number)
        child, parent = names[0], names[1] or None
        if child in parents and parents[child] != parent:
            here, before = (f"under '{name}'" if name else "at the top" for name in (parent, parents[child]))
            what = f"'{child}' is {here} here but {before} in line {lines[child]}; a name can have one parent only"
            raise DataError(what, path, number)
        parents[child] = parent
        lines.setdefault(child, number)
    if not parents:
        raise DataError("the file is empty; lines of child<TAB>parent are needed", path)
    nodes, ids = _numbered(parents)
    try:
        depths_of_nodes(ids, list(nodes))
    except DataError as error:
        raise DataError(error.what, path) from None
    return parents
