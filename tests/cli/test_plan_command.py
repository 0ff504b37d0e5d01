"""`labelwise plan CONFIG.yml`: every method has a cost, which follows data, settings and measured constants."""

import json
from types import SimpleNamespace

import pytest

from cli.commands import labelwise
from conformance.small import SMALL
from labelwise.io.tensors import mapping_of
from labelwise.methods.popularity import Popularity
from labelwise.planning import plan
from labelwise.planning.costs import (
    Constants,
    Cost,
    Machine,
    Scratch,
    on_machine,
)
from labelwise.registry import METHODS, registered

CONSTANTS = {
    "tfidf": 2e-8, "pifa": 3e-8, "cluster": 3e-8, "solve": 1.5e-7, "search": 7e-9, "call": 3e-4, "spread": 0.1,
    "lookups": [[1e7, 8e-8], [1e8, 1.2e-7]],
    "distinct": 0.8, "inner": 0.4, "kept": [[0.0, 14.0], [0.1, 0.5], [0.5, 0.0]],
    "weight_bytes": {"float32": 10.0, "float16": 7.0, "int8": 5.0},
    "networks": {"recurrent": 3e10, "transformer": 3e10, "image": 3e10, "buckets": 1e10, "decoding": 1e9},
    "measured": "2026-01-01 00:00 UTC",
}  # fmt: skip
DATA = ("--documents", 100_000, "--labels", 50_000, "--nonzeros", 75, "--labels-per-document", 5, "--json")


@pytest.fixture
def constants(tmp_path):
    def write(**changed):
        path = tmp_path / "constants.json"
        path.write_text(json.dumps(CONSTANTS | changed))
        return path

    return write


@pytest.fixture
def config(tmp_path):
    def write(method, **model):
        path = tmp_path / f"{method}.yml"
        path.write_text(json.dumps({"data": {"path": "not there yet"}, "model": {"method": method, **model}}))
        return path

    return write


def settings(method):
    return json.loads(json.dumps(SMALL.get(method, {}), default=lambda section: section.model_dump(mode="json")))


def planned(*arguments):
    return json.loads(labelwise("plan", *arguments).out)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_planned_and_grows_with_the_data(method, config, constants):
    given = config(method, **settings(method)), "--constants", constants()
    few = planned(*given, *DATA)
    assert few["method"] == method
    assert few["measured"] == CONSTANTS["measured"]
    assert few["cost"]["model"] > 0
    assert few["cost"]["latency"] > 0
    assert few["machines"][0]["seconds"] > 0
    assert few["cost"]["memory"] > 1e8
    more = [planned(*given, *DATA, name, value) for name, value in (("--documents", 200_000), ("--labels", 400_000))]
    for name in ("memory", "model", "disk", "cpu", "network", "device_memory", "latency"):
        assert all(one["cost"][name] >= few["cost"][name] for one in more), name
    assert more[1]["cost"]["model"] > few["cost"]["model"]


@pytest.mark.parametrize("method", ["linear_tree", "mach"])
def test_constants_decide(method, config, constants):
    path = config(method)
    slow = {name: 2 * CONSTANTS[name] for name in ("tfidf", "pifa", "cluster", "solve", "search", "call")}
    slow["lookups"] = [[size, 2 * seconds] for size, seconds in CONSTANTS["lookups"]]
    slow["networks"] = {name: value / 2 for name, value in CONSTANTS["networks"].items()}
    large = {"weight_bytes": {name: 3 * value for name, value in CONSTANTS["weight_bytes"].items()}}
    one = planned(path, "--constants", constants(), *DATA)
    two = planned(path, "--constants", constants(**slow), *DATA)
    assert two["machines"][0]["seconds"] == pytest.approx(2 * one["machines"][0]["seconds"])
    assert two["cost"]["latency"] == pytest.approx(2 * one["cost"]["latency"])
    assert two["cost"]["model"] == one["cost"]["model"]
    if method == "linear_tree":
        assert planned(path, "--constants", constants(**large), *DATA)["cost"]["model"] > 2.5 * one["cost"]["model"]


def test_latency_of_a_tree_counts_chunks_levels_and_the_size_of_the_model(config, constants):
    """By hand: 75 features, the chunks visited per level, and groups of 16 of their children."""
    path = config("linear_tree", trees=1, leaf_size=100, branching=16, beam=10)
    trees = {
        10_000: (1 + 8 + 10, 1 + 8 * 1 + 10 * 5),  # nodes 8, 128, 10,000
        100_000: (1 + 4 + 10 + 10, 1 + 4 + 10 + 10 * 7),  # 4, 64, 1024, 100,000
        1_000_000: (1 + 4 + 10 + 10 + 10, 1 + 4 + 10 + 10 + 10 * 4),  # 4, 64, 1024, 16384, 1,000,000
    }
    for labels, (chunks, groups) in trees.items():
        for sizes, lookup in (([1, 2], 9e-8), ([1e14, 1e15], 5e-8)):  # all models are larger, or smaller
            given = constants(lookups=[[sizes[0], 5e-8], [sizes[1], 9e-8]])
            cost = planned(path, "--constants", given, *DATA, "--labels", labels)["cost"]
            assert cost["latency"] == pytest.approx(3e-4 + 75 * (chunks * lookup + groups * 7e-9))


def test_machines_side_by_side(config, constants):
    given = config("linear_tree"), "--constants", constants(), "--documents", 10**7, "--labels", 10**7
    small = labelwise("plan", *given, "--memory", "1GB", "--cores", 16, "--machines", 4)
    assert "4 x 1.0 GB, 16 cores" in small.out
    assert "no: memory" in small.out
    assert "this machine" in small.out
    assert "to make it smaller: " in small.out
    assert "solver.threshold" in small.out
    fits = labelwise("plan", *given, "--memory", "9TB", "--cores", 16)
    assert [line for line in fits.out.splitlines() if "9.0 TB" in line and line.endswith("yes")]


def test_machines_share_and_exchange_gradients():
    cost = Cost(network=3600, operations=3600 * 1e11, step_bytes=4e8, steps=1000, shares=100, device_memory=3e10)
    alone, four = (on_machine(cost, Machine("", 1e11, 10, machines=count)) for count in (1, 4))
    assert alone.seconds == 360
    assert alone.network_seconds == 0
    # a quarter of the steps, each with 2 x 3/4 of the gradients in and out
    assert four.network_seconds == pytest.approx(250 * 2 * 0.75 * 4e8 / 1e9)
    assert four.seconds == pytest.approx(90 + four.network_seconds)
    gpu = on_machine(cost, Machine("", 1e11, 10, gpus=1, gpu_speed=1e13))
    assert gpu.seconds == pytest.approx(36)
    assert gpu.problems == ("GPU memory",)
    assert gpu.memory < alone.memory


@pytest.mark.parametrize("method", ["linear_flat", "linear_tree"])
def test_memory_grows_with_the_threads(method, config, constants):
    """Each needs a table of all features, and in the root a row per document."""
    given = config(method, **({} if method == "linear_flat" else {"leaf_size": 10})), "--constants", constants(), *DATA
    given = (*given, "--documents", 2_000_000, "--features", 1_000_000)
    few, many = (planned(*given, "--cores", cores)["machines"][1]["memory"] for cores in (2, 64))
    least = 62 * (108 * 2_000_000 + 84 * 1_000_000 if method == "linear_flat" else 84 * 1_000_000)
    assert least < many - few < 1.5 * least
    here = planned(*given, "--set", "run.threads=64")["machines"][0]
    assert (here["memory"], here["machine"]["cores"]) == (many, 64)


def test_members_one_after_the_other_have_the_larger_peak_with_any_number_of_threads():
    few = Cost(memory=10, scratch=(Scratch(per_thread=1, threads=100, below=2),))
    many = Cost(memory=8, scratch=(Scratch(per_thread=3, threads=4),))
    for both in (few + many, many + few):
        for threads in (1, 2, 4, 64):
            assert both.memory_with(threads) == max(few.memory_with(threads), many.memory_with(threads))


@pytest.mark.parametrize(
    ("labels", "documents", "measured"), [(10**4, 7319, 0.25), (10**5, 73_191, 0.69), (10**6, 731_914, 5.71)]
)
def test_memory_is_as_measured(labels, documents, measured, config, constants):
    """benchmarks/results/linear_scale.md, on two cores."""
    path = config("linear_tree", trees=1, branching=16, leaf_size=100, precision="int8")
    shape = ("--documents", documents, "--labels", labels, "--features", 135_909, "--labels-per-document", 5.45)
    found = planned(path, "--constants", constants(), *DATA, *shape, "--cores", 2)["machines"][1]
    assert 1 / 1.5 < found["memory"] / 1e9 / measured < 1.5


def test_free_space_is_that_of_the_run_folder(tmp_path, config, constants, monkeypatch):
    asked = []
    monkeypatch.setattr("shutil.disk_usage", lambda path: asked.append(path) or SimpleNamespace(free=7))
    run = ("--set", f"run.folder={tmp_path / 'runs' / 'one'}")
    assert (
        planned(config("linear_tree"), "--constants", constants(), *DATA, *run)["machines"][0]["machine"]["disk"] == 7
    )
    assert asked == [tmp_path]


def test_mapped_data_is_planned_from_files(tmp_path, constants, config, monkeypatch):
    lines = "\n".join(f"label{n % 7}\tsome words of document {n} and {n * n}" for n in range(60))
    (tmp_path / "train.tsv").write_text(lines + "\n")
    (tmp_path / "runs").mkdir()
    data = ("--set", f"data={{train: {tmp_path / 'train.tsv'}, mapped: true}}")
    read, plain = [], plan.shape_of

    def shape_of(train, *given):
        read.append(mapping_of(train.texts.buffer) is not None)
        return plain(train, *given)

    monkeypatch.setattr(plan, "shape_of", shape_of)
    given = config("linear_tree"), "--constants", constants(), "--json", "--set", f"run.folder={tmp_path}/runs/one"
    found = planned(*given, *data)
    assert found["shape"]["mapped"]
    assert read == [True]
    assert list((tmp_path / "runs").iterdir()) == []
    large = ("--documents", 10**6, "--labels", 1000, "--words", 200)
    in_files, in_memory = planned(*given, *data, *large)["cost"], planned(*given, *large)["cost"]
    assert in_files["memory"] < in_memory["memory"] - 3e9
    assert in_files["disk"] > in_memory["disk"] + 3e9


def test_the_shape_is_read_from_data(tmp_path, constants, config):
    lines = "\n".join(f"label{n % 7}\tsome words of document {n} and {n * n}" for n in range(60))
    (tmp_path / "train.tsv").write_text(lines + "\n")
    path = config("linear_tree")
    found = planned(path, "--constants", constants(), "--set", f"data.path={tmp_path / 'train.tsv'}", "--json")
    shape = found["shape"]
    assert (shape["documents"], shape["labels"], shape["labels_per_document"]) == (60, 7, 1)
    assert shape["words"] == 7
    assert 5 <= shape["nonzeros"] <= 7
    assert shape["features"] > 60
    larger = planned(
        path, "--constants", constants(), "--set", f"data.path={tmp_path / 'train.tsv'}", "--json", "--documents", 6000
    )
    assert larger["shape"] == shape | {"documents": 6000}


def test_mistakes(config, constants, tmp_path):
    path = config("linear_tree")
    assert "--width: not used with a config" in labelwise("plan", path, "--width", 8, code=2).err
    assert "--cores: needs a config" in labelwise("plan", "--labels", 50, "--cores", 8, code=2).err
    assert "64GB" in labelwise("plan", path, *DATA, "--memory", "much", code=2).err
    assert "give a config" in labelwise("plan", code=2).err
    labelwise("plan", path, "--unknown", code=2)
    labelwise("plan", path, *DATA, "--cores", 0, code=2)
    labelwise("plan", tmp_path / "none.yml", *DATA, code=2)
    broken = constants(solve=-1)
    assert "above 0" in labelwise("plan", path, *DATA, "--constants", broken, code=2).err
    disordered = constants(lookups=[[1e8, 1e-7], [1e7, 1e-7]])
    assert "lookups: sizes must increase" in labelwise("plan", path, *DATA, "--constants", disordered, code=2).err
    incomplete = constants(weight_bytes={"float16": 7.0, "int8": 5.0})
    assert "float32 is missing" in labelwise("plan", path, *DATA, "--constants", incomplete, code=2).err
    assert "cannot be read" in labelwise("plan", path, *DATA, "--constants", tmp_path / "none.json", code=2).err
    unknown = config("text_encoder", encoder={"model": "nobody/knows"})
    assert "config.json" in labelwise("plan", unknown, *DATA, "--constants", constants(), code=2).err
    no_torch = constants(networks={})
    assert "labelwise[nn]" in labelwise("plan", config("mach"), *DATA, "--constants", no_torch, code=2).err


def test_a_method_without_a_plan(config, constants):
    class Foreign(Popularity):
        name = "foreign"
        cost = None

    with registered(Foreign):
        shown = labelwise("plan", config("foreign"), *DATA, "--constants", constants(), code=2).err
    assert "foreign" in shown
    assert "cannot be planned" in shown


def test_constants_survive_a_file():
    constants = Constants.from_json(CONSTANTS)
    assert constants.kept_at(0.05) == pytest.approx(7.25)
    assert constants.kept_at(0.9) == 0
    assert constants.lookup_at(10**7.5) == pytest.approx(1e-7), "halfway between the logarithms of two sizes"
    assert (constants.lookup_at(0), constants.lookup_at(1e12)) == (8e-8, 1.2e-7)
    with pytest.raises(ValueError, match="fields"):
        Constants.from_json({"solve": 1.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--labels-per-document", 60_000),
            "--labels-per-document: 60000 per document are more than 50,000 labels",
        ),
        (("--labels-per-document", "nan"), "--labels-per-document"),
        (("--features", 50), "--nonzeros: 75 different features per document of 50 features in all"),
        (("--gpu-memory", "80GB"), "--gpu-memory: needs --gpus"),
        (("--gpu-memory", "80GB", "--gpus", 0), "--gpu-memory: needs --gpus"),
    ],
)
def test_shapes_and_machines_that_cannot_be(options, message, config, constants):
    assert message in labelwise("plan", config("linear_tree"), "--constants", constants(), *DATA, *options, code=2).err


def test_few_labels_have_fewer_per_document(config, constants):
    given = config("linear_tree"), "--constants", constants(), "--documents", 100, "--labels", 2, "--json"
    assert planned(*given)["shape"]["labels_per_document"] == 2


def test_data_is_not_a_config(tmp_path):
    (tmp_path / "catalogue.csv").write_text("text,labels\na,b\n")
    assert "plan needs a config (CONFIG.yml" in labelwise("plan", tmp_path / "catalogue.csv", code=2).err


def test_the_file_of_constants_is_named(config, constants):
    path = constants()
    done = labelwise("plan", config("linear_tree"), "--constants", path, *DATA[:-1])
    assert f"the constants in {path}, measured 2026-01-01" in " ".join(done.err.split())
    assert "on this machine" not in done.err


def test_the_limit_of_the_method_counts(config, constants):
    wide = planned(config("linear_tree"), "--constants", constants(), *DATA, "--memory", "500GB")
    narrow = planned(config("linear_tree", memory=0.05), "--constants", constants(), *DATA, "--memory", "500GB")
    assert wide["machines"][1]["fits"]
    assert [one["problems"][:1] for one in narrow["machines"]] == [["memory"], ["memory"]]
    assert narrow["machines"][1]["machine"]["memory"] == 0.05e9
