"""User hierarchies: by names, by indices, from a file."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelwise.errors import DataError
from labelwise.labelspace.hierarchy import MAX_DEPTH, bounds_from_ids, read_hierarchy
from labelwise.labelspace.tree import LabelTree
from labelwise.strings import Strings


def tree_of_ids(parents, homes):
    """From the parent of each node and the node of each label."""
    names = list(map(str, range(len(parents))))
    return LabelTree.from_bounds(*bounds_from_ids(np.array(parents, np.int64), np.array(homes, np.int64), names))


def groups(tree, names, level):
    """The names of the labels under each node of a level."""
    found = [set() for _ in range(tree.sizes[level])]
    for label, node in enumerate(tree.ancestors(level)):
        found[node].add(names[label])
    return sorted(map(sorted, found))


def test_a_plain_hierarchy():
    parents = {"cat": "animal", "dog": "animal", "oak": "plant", "animal": "living", "plant": "living"}
    names = ["oak", "dog", "cat"]
    tree = LabelTree.from_parents(parents, names)
    assert tree.sizes == (2, 3)
    assert groups(tree, names, 0) == [["cat", "dog"], ["oak"]]
    assert LabelTree.from_parents(parents, Strings.of(names)) == tree


def test_several_roots_and_unequal_depth():
    """'iron' hangs under a root, 'cat' two nodes deeper: single children fill the levels between."""
    parents = {
        "cat": "pet",
        "dog": "pet",
        "pet": "animal",
        "wolf": "animal",
        "animal": "",
        "iron": "metal",
        "tin": "metal",
    }
    names = ["cat", "dog", "wolf", "iron", "tin"]
    tree = LabelTree.from_parents(parents, names)
    assert tree.sizes == (2, 3, 5)
    assert groups(tree, names, 0) == [["cat", "dog", "wolf"], ["iron", "tin"]]
    assert groups(tree, names, 1) == [["cat", "dog"], ["iron", "tin"], ["wolf"]]


def test_labels_at_inner_nodes_are_leaves_under_their_own_node():
    parents = {"cat": "animal", "dog": "animal", "animal": None, "oak": "plant", "ash": "plant"}
    names = ["animal", "cat", "dog", "oak", "ash"]
    assert groups(LabelTree.from_parents(parents, names), names, 0) == [["animal", "cat", "dog"], ["ash", "oak"]]


def test_names_without_a_label_below_are_left_out():
    parents = {"cat": "animal", "eel": "fish", "fish": "animal", "oak": "plant", "ash": "plant", "dog": "animal"}
    names = ["cat", "dog", "oak", "ash"]
    tree = LabelTree.from_parents(parents, names)
    assert tree.sizes == (2, 4)
    assert groups(tree, names, 0) == [["ash", "oak"], ["cat", "dog"]]


def test_labels_that_the_hierarchy_does_not_know_are_put_under_one_extra_node():
    names = ["new", "cat", "newer", "dog"]
    tree = LabelTree.from_parents({"cat": "animal", "dog": "animal", "alone": None}, [*names, "alone"])
    assert groups(tree, [*names, "alone"], 0) == [["alone", "new", "newer"], ["cat", "dog"]]


def test_a_hierarchy_without_groups_is_flat():
    assert LabelTree.from_parents({"a": "top", "b": "top"}, ["b", "a"]) == LabelTree.flat(2)
    assert LabelTree.from_parents({"a": None, "b": ""}, ["a", "b"]) == LabelTree.flat(2)


def test_by_numbers():
    tree = tree_of_ids([-1, -1, 0, 0], [3, 1, 2, 2, -1, 0])
    assert groups(tree, "abcdef", 0) == [["a", "c", "d", "f"], ["b"], ["e"]]
    assert groups(tree, "abcdef", 1) == [["a"], ["b"], ["c", "d"], ["e"], ["f"]]
    assert tree_of_ids([], [-1, -1]) == LabelTree.flat(2)


@pytest.mark.parametrize(
    ("parents", "nodes", "words"),
    [
        ([1, 0], [0], "cycle: 0 < 1 < 0"),
        ([0], [0], "cycle: 0 < 0"),
        ([-1], [], "needs at least one label"),
    ],
)
def test_numbers_that_are_refused(parents, nodes, words):
    with pytest.raises(DataError, match=words):
        tree_of_ids(parents, nodes)


def test_names_that_are_refused():
    with pytest.raises(DataError, match=r"cycle: (a < b < c < a|b < c < a < b|c < a < b < c); every branch"):
        LabelTree.from_parents({"x": "a", "a": "b", "b": "c", "c": "a"}, ["x"])
    with pytest.raises(DataError, match="cycle: a < a"):
        LabelTree.from_parents({"a": "a"}, ["a"])
    with pytest.raises(DataError, match="none of the 2 labels is in the hierarchy of 2 names; a label is called 'x'"):
        LabelTree.from_parents({"a": "b"}, ["x", "y"])
    with pytest.raises(DataError, match="none of the 1 labels"):
        LabelTree.from_parents({}, ["x"])
    with pytest.raises(DataError, match="child without a name"):
        LabelTree.from_parents({"": "b"}, ["b"])


def test_long_cycles_are_shortened_in_the_message():
    with pytest.raises(DataError) as caught:
        LabelTree.from_parents({f"n{i}": f"n{(i + 1) % 500}" for i in range(500)}, ["n0"])
    assert caught.value.what.count("<") == 8


def chain(length):
    return {f"n{i}": f"n{i - 1}" for i in range(1, length + 1)}


def test_deep_hierarchies():
    """Every node of the chain is a label: a tree of as many levels as the chain is long."""
    names = [f"n{i}" for i in range(MAX_DEPTH + 1)]
    tree = LabelTree.from_parents(chain(MAX_DEPTH), names)
    assert tree.depth == MAX_DEPTH  # without the level of the one root
    assert groups(tree, names, 0) == [["n0"], sorted(names[1:])]
    with pytest.raises(DataError, match=f"at most {MAX_DEPTH} ancestors"):
        LabelTree.from_parents(chain(MAX_DEPTH + 1), names)


@given(st.data())
def test_labels_share_a_node_as_far_as_they_share_ancestors(data):
    """In every level, two labels are under one node exactly when their paths are equal down to there."""
    nodes = data.draw(st.integers(1, 12))
    parents = {f"n{i}": f"n{p}" if p >= 0 else None for i in range(nodes) for p in [data.draw(st.integers(-1, i - 1))]}
    names = sorted(data.draw(st.sets(st.sampled_from([*parents, "unknown", "other"]), min_size=1)))
    if not set(names) & set(parents):
        return
    tree = LabelTree.from_parents(parents, names)

    def path(name):
        home = name if name in parents.values() else parents.get(name)
        above = []
        while home is not None:
            above.insert(0, home)
            home = parents[home]
        return above or ["no home"]

    paths = {name: path(name) for name in names}
    deepest = max(map(len, paths.values()))
    paths = {name: above + above[-1:] * (deepest - len(above)) for name, above in paths.items()}
    cuts = []
    for level in range(deepest):
        by_prefix = {}
        for name, above in paths.items():
            by_prefix.setdefault(tuple(above[: level + 1]), []).append(name)
        cut = sorted(map(sorted, by_prefix.values()))
        if 1 < len(cut) < len(names) and cut not in cuts:
            cuts.append(cut)
    assert [groups(tree, names, level) for level in range(tree.depth - 1)] == cuts


# --- files --------------------------------------------------------------------------------------------------------


def written(tmp_path, content):
    path = tmp_path / "hierarchy.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_file_is_read(tmp_path):
    text = "cat\tanimal\n\ndog \t animal\r\nanimal\t\ncat\tanimal\nblue whale\tanimal\nčáp\tpták"
    assert read_hierarchy(written(tmp_path, "\ufeff" + text)) == {
        "cat": "animal", "dog": "animal", "animal": None, "blue whale": "animal", "čáp": "pták",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "where", "words"),
    [
        ("cat\tanimal\ncat animal\n", ":2", "is not child<TAB>parent"),
        ("cat\tanimal\tlife\n", ":1", "is not child<TAB>parent"),
        ("cat\tanimal\n\tanimal\n", ":2", "is not child<TAB>parent"),
        ("cat\tanimal\ndog\tanimal\n\ncat\tpet\n", ":4", "'cat' is under 'pet' here but under 'animal' in line 1"),
        ("cat\tanimal\ncat\t\n", ":2", "at the top here but under 'animal' in line 1"),
        ("a\tb\nb\ta\n", "", "has a cycle"),
        ("", "", "the file is empty"),
        ("\n \n", "", "the file is empty"),
        (b"caf\xe9\tanimal\n", ":1", "utf-8"),
    ],
)
def test_faulty_files(tmp_path, content, where, words):
    path = written(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_hierarchy(path)
    assert str(caught.value).startswith(f"{path}{where}: ")
    assert words.lower() in str(caught.value).lower()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_hierarchy(tmp_path / "nothing.tsv")


def test_from_file_to_tree(tmp_path):
    rows = [f"l{i}\tg{i % 7}" for i in range(100)] + [f"g{i}\ttop{i % 2}" for i in range(7)]
    np.random.default_rng(0).shuffle(rows)
    names = [f"l{i}" for i in range(100)]
    tree = LabelTree.from_parents(read_hierarchy(written(tmp_path, "\n".join(rows))), names)
    assert tree.sizes == (2, 7, 100)
    assert groups(tree, names, 1) == sorted(sorted(f"l{i}" for i in range(g, 100, 7)) for g in range(7))
