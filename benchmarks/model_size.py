"""Size and scores of linear models by precision and pruning, next to PECOS's; how fast a large model opens.

    python benchmarks/model_size.py --data FOLDER [FOLDER ...] --peers PYTHON ... [--cache FOLDER] [--copies 20]

Each FOLDER holds a train and a test split with texts. Both packages get the same features (our TF-IDF of single words)
and train one tree with PECOS's defaults; the other rows are `model.shrink` of ours. Predictions run in a process per
row. Then the trees of the last data set's int8 model are copied until the file is large, and a linear and a MACH model
are opened by several processes at once. Results are written to benchmarks/results/model_size.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from peers import driving

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "model_size.md"
METRICS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@5")
SETTINGS = {
    "float32": {},
    "float16": {"precision": "float16"},
    "int8": {"precision": "int8"},
    "int8, threshold 0.15": {"precision": "int8", "threshold": 0.15},
    "int8, threshold 0.2": {"precision": "int8", "threshold": 0.2},
    "int8, threshold 0.3": {"precision": "int8", "threshold": 0.3},
}
PROCESSES = 4


def make_models(folder: Path, threads: int) -> None:
    """Train one tree and write it in all settings."""
    os.environ["LABELWISE_THREADS"] = str(threads)
    sys.path.insert(0, str(HERE / "peers"))
    from measuring import load

    import labelwise as lw

    whole = folder / "models" / "float32"
    if not whole.exists():
        features, labels = (load(folder, name) for name in ("X", "Y"))
        settings = {"trees": 1, "branching": 16, "leaf_size": 100, "beam": 10, "precision": "float32"}
        lw.LinearTree(**settings).fit(features, labels).save(whole)
    for name, given in SETTINGS.items():
        if given and not (folder / "models" / name).exists():
            lw.load(whole).shrink(**given).save(folder / "models" / name)


def measured(name: str, python: str, script: str, folder: Path, model: Path, threads: int) -> dict[str, float]:
    """Size, prediction times and scores of a saved model, in a process of its own."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    command = [python, str(HERE / "peers" / script), str(folder), str(scratch), "--model", str(model)]
    ended = driving.run([*command, "--threads", str(threads)], 1800, threads)
    if ended.fault:
        raise SystemExit(f"{name}: {ended.fault}")
    found = json.loads(ended.output.splitlines()[-1]) | driving.evaluate(folder, scratch / "predictions.npz")
    print(folder.name, name, {key: value for key, value in found.items() if key != "versions"}, flush=True)
    return found


def table(rows: dict[str, dict[str, float]]) -> list[str]:
    """One row per model; differences of scores are to our float32."""
    lines = [
        "| model | MB | of PECOS | " + " | ".join(METRICS) + " | batch (CPU s) | one document (ms) |",
        "|---" * (5 + len(METRICS)) + "|",
    ]
    for name, row in rows.items():
        scores = []
        for metric in METRICS:
            change = row[metric] - rows["float32"][metric]
            scores.append(f"{row[metric]:.2f}" + (f" ({change:+.2f})" if name != "float32" else ""))
        size = f"{row['bytes'] / 1e6:.1f} | {row['bytes'] / rows['PECOS']['bytes']:.2f}"
        times = f"{row['predict cpu']:.2f} | {1e3 * row['single']:.2f}"
        lines.append(f"| {name} | {size} | {' | '.join(scores)} | {times} |")
    return lines


OPEN = """
import json, sys, time
import numpy as np
from pathlib import Path
sys.path.insert(0, {peers!r})
from measuring import load
import labelwise as lw
rows = load(Path({folder!r}), "Xt")[:200]
lw.load({small!r}).predict(rows, k=5)
begin = time.perf_counter(), time.process_time()
model = lw.load({model!r}, verify={verify})
opened = time.perf_counter() - begin[0], time.process_time() - begin[1]
begin = time.perf_counter()
model.predict(rows[:1], k=5)
first = time.perf_counter() - begin
model.predict(rows, k=5)
print("ready", flush=True)
sys.stdin.readline()
pages = {{}}
for block in Path("/proc/self/smaps").read_text().split("VmFlags")[:-1]:
    if {state!r} in block:
        for line in block.splitlines():
            parts = line.split()
            if parts and parts[0] in ("Rss:", "Pss:", "Private_Dirty:"):
                pages[parts[0][:-1]] = pages.get(parts[0][:-1], 0) + int(parts[1]) * 1024
print(json.dumps({{"open": opened[0], "open cpu": opened[1], "first": first, **pages}}), flush=True)
sys.stdin.readline()
"""


def opened(folder: Path, model: Path, small: Path, verify: bool, processes: int) -> list[dict[str, float]]:
    """Open a model in some processes that stay alive together; times and memory of the mapped file in each."""
    code = OPEN.format(
        peers=str(HERE / "peers"), folder=str(folder), model=str(model), small=str(small), verify=verify,
        state=str(model / "state.safetensors"),
    )  # fmt: skip
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    found = []
    for process in started:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{model}: could not be opened")
    for process in started:  # all have used their pages by now, and none has ended
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        found.append(json.loads(process.stdout.readline()))
    for process in started:
        process.communicate("\n")
    print(model.name, verify, found, flush=True)
    return found


def make_large(folder: Path, copies: int) -> None:
    """A model of many equal trees, and a MACH model with weights that are not trained to an end."""
    from dataclasses import replace

    sys.path.insert(0, str(HERE / "peers"))
    from measuring import load

    import labelwise as lw

    model = lw.load(folder / "models" / "int8")
    model.linear_.trees = model.linear_.trees * copies
    counts = model.linear_.statistics.documents * copies
    model.linear_.statistics = replace(model.linear_.statistics, documents=counts)
    model.save(folder / "models" / "large", force=True)
    features, labels = load(folder, "X")[:200], load(folder, "Y")[:200]
    mach = lw.Mach(repetitions=8, buckets=1000, hidden=(256,), training={"epochs": 1})
    mach.fit(features, labels).save(folder / "models" / "mach", force=True)


def opening(folder: Path) -> list[str]:
    """Time to open large models, and how much of the file each of several processes has for itself."""
    lines = [
        "| model | file (MB) | opened by | `verify` | open (s) | open (CPU s) | first document (ms) | resident, of the "
        "file (MB) | its part of it, per process (MB) | written copies (MB) |",
        "|---" * 10 + "|",
    ]
    for name in ("large", "mach"):
        model = folder / "models" / name
        small = folder / "models" / ("int8" if name == "large" else "mach")
        size = (model / "state.safetensors").stat().st_size / 1e6
        for processes, verify in ((1, True), (1, False), (PROCESSES, False)):
            found = opened(folder, model, small, verify, processes)
            mean = {key: sum(one.get(key, 0) for one in found) / len(found) for key in found[0]}
            lines.append(
                f"| {'linear tree' if name == 'large' else 'MACH'} | {size:,.0f} | {processes} | {verify} | "
                f"{mean['open']:.2f} | {mean['open cpu']:.2f} | {1e3 * mean['first']:.1f} | "
                f"{mean.get('Rss', 0) / 1e6:.1f} | {mean.get('Pss', 0) / 1e6:.1f} | "
                f"{mean.get('Private_Dirty', 0) / 1e6:.1f} |"
            )
    return lines


def main() -> None:
    """Make features and models, measure, write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", nargs="+", required=True, help="folders with train and test texts")
    options.add_argument("--peers", nargs="*", default=[], help="Pythons that have PECOS")
    options.add_argument("--cache", type=Path, default=Path("model_size"), help="folder for features and models")
    options.add_argument("--copies", type=int, default=20, help="trees of the large model")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--results", type=Path, default=RESULTS)
    options.add_argument("--part", choices=["features", "models", "large"], help=argparse.SUPPRESS)
    given = options.parse_args()
    folders = [given.cache / Path(data).name for data in given.data]
    if given.part == "features":
        for data, folder in zip(given.data, folders, strict=True):
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "Xt.npz").exists():
                driving.make_features(data, folder)
        return
    if given.part:
        for folder in folders:
            (folder / "models").mkdir(exist_ok=True)
            make_models(folder, given.threads) if given.part == "models" else make_large(folder, given.copies)
        return
    pecos = driving.python_with("pecos.xmc.xlinear.model", given.peers)
    if pecos is None:
        raise SystemExit("no interpreter given has PECOS")
    own = [sys.executable, __file__, "--cache", str(given.cache), "--threads", str(given.threads)]
    subprocess.run([*own, "--part", "features", "--data", *given.data], check=True)
    subprocess.run([*own, "--part", "models", "--data", *given.data], check=True)
    lines = [
        "# Size of linear models", "",
        f"{driving.machine()}, shared with other work (load {os.getloadavg()[0]:.0f}): compare CPU seconds, not wall "
        "time. Created by `python benchmarks/model_size.py --data "
        f"{' '.join(folder.name for folder in folders)} --peers PYTHON`.", "",
        "One tree with PECOS's defaults (16 children per node, leaves of 100 labels, threshold 0.1) from the same "
        "TF-IDF of single words, beam 10. MB are the whole folder, with labels, hashes of training documents and what "
        "`learn` needs; PECOS's has weights and tree only. In brackets: the difference to our float32. Labels with "
        "equal scores are ordered by their index here and by their position in the tree by PECOS, which decides up to "
        "0.4 of P@1 on eurlex57k (`ties: tree` orders them as PECOS).", "",
    ]  # fmt: skip
    for folder in folders:
        if not (folder / "pecos").exists():
            (folder / "scratch").mkdir(exist_ok=True)
            script = [pecos, str(HERE / "peers" / "saved_pecos.py"), str(folder), str(folder / "scratch")]
            options_ = ["--train", "--model", str(folder / "pecos"), "--threads", str(given.threads)]
            subprocess.run([*script, *options_], check=True)
        rows = {"PECOS": measured("PECOS", pecos, "saved_pecos.py", folder, folder / "pecos", given.threads)}
        for name in SETTINGS:
            model = folder / "models" / name
            rows[name] = measured(name, sys.executable, "saved_labelwise.py", folder, model, given.threads)
        lines += [f"## {folder.name}", "", *table(rows), ""]
        _write(given.results, lines)
    subprocess.run([*own, "--part", "large", "--data", given.data[-1], "--copies", str(given.copies)], check=True)
    lines += [
        "## Opening a large model", "",
        f"The int8 tree of {folders[-1].name} {given.copies} times in one file, and a MACH model; the file is in the "
        f"page cache, kernels are compiled. 200 documents were predicted before memory was read (`/proc/PID/smaps` of "
        f"the mapped file): of {PROCESSES} processes each counts its part of shared pages.", "",
        *opening(folders[-1]), "",
    ]  # fmt: skip
    _write(given.results, lines)


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
