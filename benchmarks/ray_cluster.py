"""A Ray cluster of two nodes on this machine, one of which is killed in the middle of a training.

    python benchmarks/ray_cluster.py --data DATA/eurlex57k --out build/ray

Trains a linear tree and MACH in one process, then on the cluster; `kill -9` ends the second node as soon as a task has
written its first result. Prints seconds and whether the files of the two models are equal byte by byte; card.json (it
has dates) and its hash in the manifest are left out. Needs the extras nn and ray.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIGS = {"linear_tree": ["model.trees=1"], "mach": ["model.repetitions=4", "model.training.epochs=1"]}
COMMON = ["calibrate.enabled=false", "inspect.enabled=false", "run.report=false", "run.threads=1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=list(CONFIGS))
    given = parser.parse_args()
    for name in given.models:
        alone = train(name, given, "alone", [])
        faulty, killed_after = with_a_killed_node(name, given)
        one, other = (model_files(given.out / f"{name}-{kind}" / "model") for kind in ("alone", "cluster"))
        row = {
            "model": name, "alone": alone, "cluster": faulty, "node killed after": killed_after,
            "files": len(one), "bytes": sum(map(len, one.values())), "equal": one == other,
        }  # fmt: skip
        print(json.dumps(row), flush=True)


def train(name: str, given: argparse.Namespace, kind: str, options: list[str]) -> dict[str, float]:
    settings = [f"data.path={given.data}", *CONFIGS[name], *COMMON]
    command = [
        sys.executable,
        "-m",
        "labelwise",
        "train",
        str(ROOT / "configs" / "eurlex57k" / f"{name}.yml"),
        "--force",
    ]
    command += [word for setting in settings for word in ("--set", setting)]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run([*command, "-o", str(given.out / f"{name}-{kind}"), *options], check=True, stdout=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(time.monotonic() - begin, 1), "cpu_of_driver": round(cpu, 1)}


def with_a_killed_node(name: str, given: argparse.Namespace) -> tuple[dict[str, float], float | None]:
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("RAY_worker_niceness", "0")  # as one process has it; Ray's default is 15
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    checkpoints, begin = given.out / f"{name}-cluster" / "checkpoints", time.monotonic()
    killed: list[float] = []

    def kill() -> None:
        pattern = "chunks-*" if name == "linear_tree" else "repetitions/0*"
        while not any(checkpoints.glob(pattern)):
            time.sleep(0.05)
        cluster.remove_node(node, allow_graceful=False)
        killed.append(round(time.monotonic() - begin, 1))

    threading.Thread(target=kill, daemon=True).start()
    try:
        return train(name, given, "cluster", ["--launcher", "ray", "--address", cluster.address]), next(
            iter(killed), None
        )
    finally:
        cluster.shutdown()


def model_files(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "card.json"}
    manifest = json.loads(files["manifest.json"])
    del manifest["files"]["card.json"]
    return {**files, "manifest.json": json.dumps(manifest).encode()}


if __name__ == "__main__":
    main()
