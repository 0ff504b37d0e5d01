"""Free memory as the system reports it, and the estimated memory of training."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from common import default_malloc  # noqa: F401
from labelwise.data.csr import MappedCsrBuilder
from labelwise.errors import ConfigError
from labelwise.features.rows import FeatureRows
from labelwise.labelspace.tree import LabelTree
from labelwise.linear.memory import (
    FEATURE_BYTES,
    PACKED,
    PACKING,
    ROW_BYTES,
    WEIGHT_BYTES,
    InUse,
    MemoryNeed,
    check_memory,
    clustering_need,
    training_need,
)
from labelwise.linear.settings import SearchSettings, TrainingSettings
from labelwise.linear.solver import SolverConfig
from labelwise.linear.train import TrainingExamples, train_tree
from labelwise.methods.linear_tree import LinearTree
from labelwise.planning.measure import planted_features
from labelwise.runtime.job import Job
from labelwise.runtime.memory import free_memory
from labelwise.runtime.threads import using_threads
from labelwise.testing.subject import resident_memory

GB = 1 << 30


def system(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = f"MemTotal: {64 * GB // 1024} kB\nMemFree: 5 kB\nMemAvailable:   {32 * GB // 1024} kB\n"
STAT = f"anon 5\ninactive_file {GB - 7}\nactive_file 7\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 32 * GB),
        ({"proc/meminfo": "nonsense\n"}, None),
        # a container, version 2: cached files can be dropped
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": f"{8 * GB}\n",
                "sys/fs/cgroup/memory.current": f"{3 * GB}\n",
                "sys/fs/cgroup/memory.stat": STAT,
            },
            6 * GB,
        ),
        # no own limit, but one of its parent
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/jobs/one\n",
                "sys/fs/cgroup/jobs/one/memory.max": "max\n",
                "sys/fs/cgroup/jobs/one/memory.current": "5\n",
                "sys/fs/cgroup/jobs/memory.max": f"{4 * GB}\n",
                "sys/fs/cgroup/jobs/memory.current": f"{4 * GB + 10}\n",
            },
            0,
        ),
        # version 1
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "5:cpu:/x\n4:memory,other:/box\n0::/y\n",
                "sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{2 * GB}\n",
                "sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{50 * GB}\n",
            },
            GB,
        ),
    ],
)
def test_free_memory_is_the_least_that_anybody_allows(tmp_path, files, expected):
    assert free_memory(system(tmp_path, files)) == expected


def problem(n=3000, n_features=5000, n_labels=400):
    rng = np.random.default_rng(0)
    features = sparse.random_array((n, n_features), density=0.01, format="csr", rng=rng, dtype=np.float32)
    labels = sparse.csr_array((np.ones(n, np.float32), (np.arange(n), rng.integers(0, n_labels, n))), (n, n_labels))
    bounds = np.linspace(0, n_labels, 9).astype(int)
    return features, labels, LabelTree.from_bounds(np.arange(n_labels), [bounds])


def need(solver=None, **options) -> MemoryNeed:
    features, labels, tree = problem()
    with using_threads(options.pop("threads", 2)):
        sizes = {name: options.pop(name) for name in ("trees", "hold") if name in options}
        settings = TrainingSettings(SolverConfig(**(solver or {})), **options)
        return training_need(features, tree.aggregate(labels), tree, settings, **sizes)


def trained(features, labels, tree, solver):
    examples = TrainingExamples(FeatureRows.of(features))
    return train_tree(examples, tree, tree.aggregate(labels), TrainingSettings(solver), Job())


def test_what_takes_more_is_thought_to_take_more():
    plain = need()
    assert need(threads=4).threads > 1.5 * plain.threads
    assert need(relevance=True).total > plain.total
    assert need(search=SearchSettings(beam=10), negatives="matcher").targets > plain.targets
    assert need(trees=5).weights > 2 * plain.weights
    assert need(trees=5, precision="float16").weights < need(trees=5).weights
    assert need({"threshold": 0}).weights > plain.weights > need({"threshold": 2.0}).weights
    assert need({"max_weights": 3}).weights < plain.weights


def test_mapped_features_need_what_is_held_of_them(tmp_path):
    """Sampled documents are read in batches; larger chunks are not copied to memory, and the others are as without."""
    features, labels, _ = problem()
    tree = LabelTree.from_bounds(np.arange(400), [np.arange(0, 401, 10)])  # 40 nodes with 2.5 % of the documents each
    builder = MappedCsrBuilder(True, tmp_path)
    builder.add(np.diff(features.indptr), features.indices, features.data, 1.0)
    mapped, targets, settings = builder.matrix(features.shape[1]), tree.aggregate(labels), TrainingSettings()
    largest = 8 * max(np.diff(features.indptr) @ targets[0].toarray())
    documents = np.sort(targets[0].sum(axis=0))
    with using_threads(2):
        plain = training_need(features, targets, tree, settings)
        for hold in (1, 20_000, int(largest), 1 << 30):
            found = training_need(mapped, targets, tree, settings, hold=hold)
            assert found.weights == plain.weights
            if hold < largest:  # the two largest chunks have weights of all features, and numbers of them
                used = sum(ROW_BYTES * count + FEATURE_BYTES * 5000 for count in documents[-2:]) + 2 * 8 * 5000
                assert found.threads == pytest.approx(used + hold)
            else:
                assert found.threads == pytest.approx(plain.threads + min(hold, 8 * features.nnz))
            clustered = clustering_need(mapped, labels, None, hold=hold)
            assert clustered.threads == 2 * 8 * 5000 + min(hold, 8 * features.nnz)
        assert clustering_need(features, labels, None, hold=20_000).threads == 2 * 8 * 5000


@pytest.mark.parametrize("used", [1e6, 244e6, 1.249e9, 7e9])
@pytest.mark.parametrize("grows", [0.0, 0.2, 0.8])
def test_the_advised_limit_is_accepted(used, grows):
    """Also if more documents are held under a higher limit, and a little more is held in the next attempt."""

    def need_of(hold):
        return MemoryNeed(threads=used + hold)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelwise.linear.memory.held_bytes", lambda limit: grows * limit * 1e9)
        with pytest.raises(ConfigError, match="raise the limit to") as refused:
            check_memory(need_of, 0.6e-3, InUse(10_000_000))
        advised = float(re.search(r"raise the limit to (\S+) GB", str(refused.value))[1])
        patch.setattr("labelwise.linear.memory.free_memory", lambda: None)
        check_memory(need_of, advised, InUse(10_200_000))
    assert advised * 1e9 < 1.3 * (used + 30e6) / (1 - 1.15 * grows) + 0.1e9


def test_similarities_to_many_clusters_are_counted():
    features, labels, _ = problem()
    kway, plain = clustering_need(features, labels, None, clusters=300), clustering_need(features, labels, None)
    assert kway.similarities == 4 * 400 * 300
    assert kway.total - plain.total == pytest.approx(1.15 * 4 * 400 * 300, abs=2)
    with pytest.raises(ConfigError, match=r"into fewer groups at once \(branching\)"):
        check_memory(lambda hold: MemoryNeed(similarities=1e9), 0.5, InUse())


def test_clustering_at_once_into_too_many_groups_is_refused():
    data = planted_features(200, 3000)
    with pytest.raises(ConfigError, match=r"into fewer groups at once \(branching\)"):
        LinearTree(tree="kway", branching=3000, leaf_size=1, memory=0.05).fit(data)


def test_weights_are_counted_exactly_when_all_are_kept():
    """With a threshold of 0 no weight is lost, so their number is known."""
    features, labels, tree = problem()
    solver = SolverConfig(threshold=0, max_passes=3)
    kept = [level.n_weights for level in trained(features, labels, tree, solver)]
    expected = WEIGHT_BYTES * sum(kept) + PACKING["float32"] * max(kept)
    assert need({"threshold": 0}).weights == pytest.approx(expected, rel=0.05)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.usefixtures("default_malloc")
def test_the_estimate_against_the_measured_peak():
    solver = SolverConfig(threshold=0, max_passes=3)
    with using_threads(2):
        trained(*problem(300, 500, 40), solver)  # what is compiled or loaded at the first use does not count
        features, labels, tree = problem(n_features=20_000, n_labels=1000)
        expected = training_need(features, tree.aggregate(labels), tree, TrainingSettings(solver)).total
        with resident_memory() as grown:
            levels = trained(features, labels, tree, solver)
    assert sum(level.n_weights for level in levels) > 15_000_000
    assert 0.4 * expected < max(grown) < expected  # the peak may lie between two looks at it


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_finished_trees_take_what_is_estimated(precision):
    """Packed weights of labels that share features as those of real tasks do."""
    model = LinearTree(trees=1, precision=precision).fit(planted_features(2000, 3000))
    levels = model.linear_.trees[0][1]
    total = sum(array.nbytes for level in levels for array in level.to_tensors("").values())
    kept = sum(level.n_weights for level in levels)
    assert 0.5 * PACKED[precision] * kept < total < 1.15 * PACKED[precision] * kept


def test_describing_labels_is_bounded_by_what_is_kept_of_each():
    features, labels, _ = problem()
    whole, few = clustering_need(features, labels, None), clustering_need(features, labels, 5)
    assert few.label_features <= 3 * 8 * 5 * 400
    assert whole.label_features > 10 * few.label_features
    assert clustering_need(features.toarray(), labels, 5).label_features == 4 * 5000 * 400
