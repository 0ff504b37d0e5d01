"""Where the cases of `golden.py` run, their planted data, and how results become arrays and texts."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from scipy import sparse

import labelwise as lw

N_LABELS = 24
LARGEST = 300_000
"""Numbers of an array that are kept; of larger ones the hash is."""


class Place:
    """Folders of one process: the tree under test, results, a fresh working folder, and models that the base saved."""

    def __init__(self, tree: Path, out: Path, base: Path, group: str) -> None:
        self.tree, self.out = tree, out
        self.models, self.base_models = out / "models", base / "models"
        self.work = Path(tempfile.mkdtemp(prefix=f"golden-{group}-"))
        for folder in (self.models, out / "facts"):
            folder.mkdir(parents=True, exist_ok=True)

    def files(self) -> dict[str, str]:
        """Files that parameters name."""
        rng = np.random.default_rng(3)
        names = [f"L{label}" for label in range(N_LABELS)]
        parents = [f"{name}\tgroup{label // 6}\n" for label, name in enumerate(names)]
        (self.work / "hierarchy.tsv").write_text(
            "".join(parents + [f"group{one}\ttop{one // 2}\n" for one in range(4)])
        )
        (self.work / "lemmas.tsv").write_text("word1x1\tword1x0\nword2x1\tword2x0\nnoise1\tnoise2\n")
        lines = [f"{name}\tword{n}x0 word{n}x1\n" for n, name in enumerate(names)]
        (self.work / "names.tsv").write_text("name\ttext\n" + "".join(lines))
        concepts = [
            f'<{name}> a s:Concept; s:prefLabel "word{n}x0"@en, "word{n}x1"@de .\n' for n, name in enumerate(names)
        ]
        (self.work / "vocabulary.ttl").write_text(
            "@prefix s: <http://www.w3.org/2004/02/skos/core#> .\n" + "".join(concepts)
        )
        sparse.save_npz(self.work / "negatives.npz", sparse.random(90, N_LABELS, 0.2, "csr", np.float32, rng))
        words = [f"word{label}x{part}" for label in range(N_LABELS) for part in range(4)]
        lines = [" ".join([word, *(f"{x:.4f}" for x in rng.normal(size=8))]) for word in words]
        (self.work / "vectors.txt").write_text("\n".join(lines) + "\n")
        (self.work / "lookups").mkdir(exist_ok=True)
        for number in range(2):
            np.save(self.work / "lookups" / f"bucket_order_{number}.npy", rng.integers(0, 16, N_LABELS))
        found = {path.stem: str(path) for path in self.work.iterdir() if path.stem != "data"}
        return {**found, "bert": str(bert_folder(self.work / "bert"))}


def bert_folder(folder: Path) -> Path:
    """A pretrained encoder as Transformers saves it: a small BERT with planted weights and a tokenizer of words."""
    if folder.exists():
        return folder
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{a}x{b}" for a in range(N_LABELS) for b in range(4))]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, **shape)).save_pretrained(folder)
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    return folder


# --- planted data -----------------------------------------------------------------------------------------------------


def planted(
    kind: str, n: int, seed: int, folder: Path | None = None, described: bool = False, labels: int = N_LABELS
) -> Any:
    """Documents of one to three labels, with words that belong to the labels; of any kind that a method reads."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, labels + 1)
    chosen = [rng.choice(labels, rng.integers(1, 4), replace=False, p=share / share.sum()) for _ in range(n)]
    texts, counts = [], np.zeros((n, 4 * labels + 20), np.float32)
    for row, its in enumerate(chosen):
        columns = [
            *(4 * label + part for label in its for part in rng.integers(0, 4, 4)),
            *(4 * labels + rng.integers(0, 20, 4)),
        ]
        rng.shuffle(columns)
        np.add.at(counts[row], columns, 1)
        texts.append(" ".join(f"word{c // 4}x{c % 4}" if c < 4 * labels else f"noise{c - 4 * labels}" for c in columns))
    rows = np.repeat(np.arange(n), [len(its) for its in chosen])
    matrix = sparse.csr_array((np.ones(len(rows), np.float32), (rows, np.concatenate(chosen))), shape=(n, labels))
    given: dict[str, Any] = {"label_names": lw.Strings.of(f"L{label}" for label in range(labels)), "name": "planted"}
    if described:
        given["label_texts"] = lw.Strings.of(f"word{label}x0 word{label}x1" for label in range(labels))
    if kind in ("texts", "both"):
        given["texts"] = lw.Strings.of(texts)
    if kind in ("csr", "blocks", "dense", "both"):
        plain, vectors = sparse.csr_array(counts), counts @ np.random.default_rng(9).normal(size=(counts.shape[1], 6))
        given["features"] = {
            "csr": plain, "dense": counts, "both": vectors.astype(np.float32),
            "blocks": lw.Blocks(plain, vectors.astype(np.float32)),
        }[kind]  # fmt: skip
    if kind in ("arrays", "paths"):
        pixels = np.zeros((n, 144), np.uint8)
        pixels[:, : min(144, counts.shape[1])] = np.minimum(counts[:, :144] * 60, 255)
        given["arrays"] = pixels.reshape(n, 12, 12)
    if kind == "paths":
        assert folder is not None
        paths = [folder / f"picture-{seed}-{row}.pgm" for row in range(n)]
        for path, picture in zip(paths, given.pop("arrays"), strict=True):
            path.write_bytes(b"P5 12 12 255\n" + picture.tobytes())
        given["paths"] = lw.Strings.of(map(str, paths))
    return lw.Dataset(matrix, **given)


def write_csv(path: Path, data: Any) -> None:
    """A table of ids, texts and labels."""
    names = [[data.label_names[i] for i in data.labels[[row]].indices] for row in range(len(data))]
    lines = [f"d{row},{text},{';'.join(names[row])}\n" for row, text in enumerate(data.texts)]
    path.write_text("id,text,labels\n" + "".join(lines))


# --- results ----------------------------------------------------------------------------------------------------------

MASKS = [
    (re.compile(pattern), with_what)
    for pattern, with_what in (
        (r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?( ?UTC|Z|\+00:00)?", "DATE"),
        (r"\b\d\d:\d\d:\d\d\b", "TIME"),
        (r"\b[\d.,]+ ?(ms|s|min|h|seconds?|minutes?|hours?|µs)(?![\w.])", "DURATION"),
        (r"\b[\d.,]+ (documents|texts|images) (per|a) second", "RATE"),
        (r"\b[\d.,]+(/s| per second)", "RATE"),
        (r"documents per second.*", "RATE"),
        (r"DURATION \| [\d.,]+", "DURATION | RATE"),
        (r" +[\d.]+  (finished|failed)", r" DURATION \1"),
        (r"\b[\d.,]+ ?(KB|kB|MB|GB|GiB|MiB|bytes)\b", "SIZE"),
        (r"(localhost|127\.0\.0\.1):\d+", "HOST"),
        (r"\b(pid|process) \d+", "PROCESS"),
        (r"\b[0-9a-f]{32,64}\b", "HASH"),
    )
]
VOLATILE = re.compile(
    r"second|time|date|created|started|finished|duration|memory|bytes|size_mb|peak|package|versions?$|machine|commit|host|"
    r"python|platform|cpu|processor|threads|throughput|latency|hash|sha256|path|folder|pid|rss|gpu|speed",
    re.I,
)
"""Keys of JSON files whose values are of the moment or the machine."""


def masked(text: str, place: Place) -> str:
    """A text without what differs from run to run."""
    for folder, name in ((place.work, "WORK"), (place.out, "OUT"), (place.tree, "TREE")):
        text = text.replace(str(folder), name)
    for pattern, with_what in MASKS:
        text = pattern.sub(with_what, text)
    return text


def facts_of(value: Any, place: Place, path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a result by their names: arrays, or masked texts."""
    inside = f"{path}/" if path else ""
    if isinstance(value, np.ndarray):
        yield path, value
    elif hasattr(value, "ids") and hasattr(value, "scores"):
        yield from facts_of({"ids": np.asarray(value.ids), "scores": np.asarray(value.scores)}, place, path)
    elif sparse.issparse(value):
        yield from facts_of({part: getattr(value, part) for part in ("data", "indices", "indptr")}, place, path)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from facts_of({one.name: getattr(value, one.name) for one in dataclasses.fields(value)}, place, path)
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from facts_of(one, place, inside + str(key))
    elif isinstance(value, list | tuple) and value and all(type(one) in (int, float) for one in value):
        yield path, np.asarray(value)
    elif isinstance(value, list | tuple | lw.Strings):
        yield path + "#", str(len(value))
        for number, one in enumerate(value):
            yield from facts_of(one, place, f"{inside}{number}")
    elif isinstance(value, float):
        yield path, np.asarray(value)
    else:
        yield path, masked(str(value), place)


def without_moments(value: Any) -> Any:
    """JSON without keys whose values are of the moment."""
    if isinstance(value, dict):
        return {key: without_moments(one) for key, one in value.items() if not VOLATILE.search(key)}
    return [without_moments(one) for one in value] if isinstance(value, list) else value


def folder_facts(folder: Path) -> dict[str, Any]:
    """Tensors, parameters, manifest and card of a model folder."""
    found: dict[str, Any] = {"files": sorted(path.name for path in folder.iterdir())}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            found[path.name] = load_file(path)
        elif path.name == "config.json" or path.name.endswith(".config.json"):
            found[path.name] = json.loads(path.read_text())
        elif path.suffix == ".json":
            values = without_moments(json.loads(path.read_text()))
            values.pop("files", None)  # their hashes; the files themselves are compared
            found[path.name] = values
        elif path.name == "README.md":
            found[path.name] = path.read_text().splitlines()
    return found


def run_facts(run: Path) -> dict[str, Any]:
    """A run folder: its model, results, predictions and the text of its report."""
    found: dict[str, Any] = {"files": sorted(path.name for path in run.iterdir() if not path.name.startswith("."))}
    if (run / "model").is_dir():
        found["model"] = folder_facts(run / "model")
    for name in ("results.json", "config.yml", "predictions.jsonl"):
        if (run / name).exists():
            text = (run / name).read_text()
            found[name] = without_moments(json.loads(text)) if name.endswith(".json") else text.splitlines()
    if (run / "report.html").exists():
        page = re.sub(r"<(script|style|svg)\b.*?</\1>", "", (run / "report.html").read_text(), flags=re.S)
        lines = (re.sub(r"\s+", " ", line).strip() for line in re.sub(r"<[^>]*>", "\n", page).splitlines())
        found["report"] = [line for line in lines if line]
    return found
