"""Small runs of every neural method for torchrun: without dropout, and with optimisers that do not amplify rounding."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import labelwise as lw
from conformance.planted import planted_texts
from data.record_files import image_bytes
from labelwise.io.folder import STATE_FILE

ADAM = {"name": "adam", "rate": 0.003, "eps": 1e-3}
ADAMW = {"rate": 0.003, "eps": 1e-3}
ENCODER = {"model": "tiny", "max_length": 16, "pooling": "mean"}
KEPT = {"checkpoint_every": {"steps": 3}}
WORDS = {
    "words": {"width": 8}, "recurrent": {"width": 8, "word_dropout": 0.0, "dropout": 0.0},
    "training": {"epochs": 2, "batch_size": 9, "optimiser": ADAM, "validate_every": "epoch", **KEPT},
}  # fmt: skip
IMAGES = {
    "image": {"size": 16, "augmentation": {"flip": True}}, "valid_fraction": 0.2,
    "monitor": {"enabled": False, "attention": False},
}  # fmt: skip
IMAGE_TRAINING = {"epochs": 3, "batch_size": 10, "optimiser": {"name": "sgd", "rate": 0.02, "momentum": 0.9}, **KEPT}
FACE_NETWORK = {"network": "r10", "width_factor": 0.125, "dimension": 8}
MODELS = {
    "text_encoder": {
        "method": "text_encoder", "encoder": ENCODER, "head": {"dropout": 0.0},
        "training": {"epochs": 2, "batch_size": 9, "optimiser": ADAMW, **KEPT},
    },
    "mhe_text": {
        "method": "mhe_text", "encoder": {**ENCODER, "layers": 2}, "num_group": 4, "groups": 2, "bottleneck": 8, "dropout": 0.0,
        "training": {"epochs": 2, "batch_size": 9, "accumulate": 2, "optimiser": ADAMW, **KEPT},
    },
    "mhe_image": {
        "method": "mhe_image", **IMAGES, "backbone": {"name": "tiny", "channels": 4},
        "head": {"kind": "product", "radices": (3, 2), "order": "random"}, "training": IMAGE_TRAINING,
    },
    "mhe_face": {
        "method": "mhe_face", **IMAGES, "network": FACE_NETWORK, "training": IMAGE_TRAINING,
        "head": {"margin": 0.2, "scale": 8.0, "sampling": "groups", "radices": (5, 2), "negatives": "document"},
    },
    "xr_transformer": {
        "method": "xr_transformer", "encoder": ENCODER, "trees": 1,
        "fine_tuning": {
            "leaf_size": 4, "branching": 4, "top_nodes": 4, "beam": 2, "dropout": 0.0, "valid_fraction": 0.1,
            "training": {"epochs": None, "steps": 10, "batch_size": 9, "validate_every": 5, "optimiser": ADAMW, **KEPT},
        },
    },
    "attention_xml": {"method": "attention_xml", **WORDS, "hidden": [8], "cluster_size": 4, "beam_width": 2},
    "bigru": {"method": "bigru", **WORDS},
    "mach": {
        "method": "mach", "repetitions": 2, "buckets": 8, "hidden": [16], "repartition": {"times": 1, "every": 1},
        "training": {"epochs": 2, "batch_size": 9, "optimiser": ADAM, **KEPT},
    },
}  # fmt: skip
PATIENCE = 900
"""Seconds until a command counts as hanging: it has to start several processes, perhaps on a busy machine."""
SHARDED = {
    "text_encoder softmax": ("text_encoder", {"head": {"dropout": 0.0, "loss": {"name": "softmax"}}}),
    "mhe_face all": ("mhe_face", {"head": {"margin": 0.2, "scale": 8.0}}),
}


def write_config(folder: Path, name: str, **changes: object) -> Path:
    """The config of a case, with its data beside it."""
    model = {**MODELS[name], **changes}
    data = folder / "texts.jsonl"
    if name in ("mhe_image", "mhe_face"):
        data = folder / "images"
        pixels = np.random.default_rng(0).integers(0, 256, (62, 16, 16, 3), np.uint8)
        for number, picture in enumerate(pixels):
            (data / f"class{number % 6}").mkdir(parents=True, exist_ok=True)
            (data / f"class{number % 6}" / f"{number}.png").write_bytes(image_bytes(picture))
    else:
        lw.write(planted_texts(110, 12), data)
    values = {
        "data": {"train": str(data), "test_fraction": 0.2}, "model": model,
        "evaluate": {"bootstrap": 0, "metrics": ["P@1", "P@3"]}, "inspect": {"enabled": False},
        "calibrate": {"enabled": False}, "run": {"report": False, "threads": 1},
    }  # fmt: skip
    path = folder / "run.yml"
    path.write_text(json.dumps(values))
    return path


def torchrun(*words: object, ranks: int = 2, restarts: int = 0) -> subprocess.CompletedProcess:
    """`torchrun --standalone WORDS` with some ranks on this machine."""
    options = ["--standalone", "--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    command = [sys.executable, "-m", "torch.distributed.run", *options, *map(str, words)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "LABELWISE_DEVICE": "cpu"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)


def torchrun_on_two_nodes(
    folder: Path, *words: object, restarts: int, more: Sequence[Mapping[str, str]]
) -> list[tuple[int, str]]:
    """`torchrun WORDS` on two nodes of this machine, a rank each; returns their exit codes and what they have printed.

    `more` are further variables of each node's environment.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = [
        "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", str(restarts), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "two-nodes", "--local-addr", "127.0.0.1",
    ]  # fmt: skip
    command = [sys.executable, "-m", "torch.distributed.run", *options, *map(str, words)]
    env, nodes = {**os.environ, "OMP_NUM_THREADS": "1", "LABELWISE_DEVICE": "cpu"}, []
    for number, variables in enumerate(more):
        with (folder / f"node{number}.txt").open("wb") as output:
            nodes.append(subprocess.Popen(command, env={**env, **variables}, stdout=output, stderr=output))
    try:
        codes = [node.wait(PATIENCE) for node in nodes]
    finally:
        for node in nodes:
            node.terminate()  # a node that hangs ends its ranks then
            node.wait()
    return [(code, (folder / f"node{number}.txt").read_text()) for number, code in enumerate(codes)]


def one_process(*words: object) -> subprocess.CompletedProcess:
    """`labelwise WORDS` without torchrun."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "LABELWISE_DEVICE": "cpu"}
    command = [sys.executable, "-m", "labelwise", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)


def difference(one: Path, other: Path) -> float:
    """The largest absolute difference of the weights of two runs, which must have the same names and shapes."""
    mine, theirs = (load_file(run / "model" / STATE_FILE) for run in (one, other))
    assert mine.keys() == theirs.keys()
    differences = [0.0]
    for name, array in mine.items():
        its = theirs[name]
        assert (array.shape, array.dtype) == (its.shape, its.dtype), name
        if np.issubdtype(array.dtype, np.floating):
            differences.append(float(np.abs(array.astype(np.float64) - its).max(initial=0.0)))
        else:
            assert np.array_equal(array, its), name
    return max(differences)
