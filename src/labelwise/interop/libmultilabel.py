"""Run configs from LibMultiLabel's YAML: AttentionXML, BiGRU and BiLSTM with label-wise attention, linear SVMs.

Settings with a counterpart are converted; where LibMultiLabel's default differs from ours, it is written out. Settings
that its file does not have (averaged weights, clipping, the memory check) keep our defaults. Every other key is
reported with its line.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.config import ConfigSource, KeyPath, to_yaml
from labelwise.errors import ConfigError, did_you_mean
from labelwise.metrics.names import parse_metric
from labelwise.runs.config import RunConfig, run_config

# --- config conversion ---
# Converts another tool's config to one of ours: typed values, the line each came from, and notes on all other keys.
#
# Every key is either converted or gets a note; keys that were never read are reported at the end. Line numbers of the
# other tool's file are kept, so that an error in the result names the line that caused it.

YAML_1_1 = {"yes": True, "on": True, "no": False, "off": False}
"""Words that most YAML readers parse as true and false, and ours as strings."""
KINDS = {
    "count": "a whole number",
    "number": "a number",
    "switch": "true or false",
    "word": "a word",
    "words": "a list of words",
    "counts": "a list of whole numbers",
    "section": "a section with keys",
}


@dataclass(frozen=True)
class Note:
    """A key that was not converted unchanged, and why."""

    where: str
    key: str
    text: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.where}: {self.key}: {self.text}" if self.key else f"{self.where}: {self.text}"


class ConfigConversion:
    """A run config that is being built from the values of `source`."""

    def __init__(self, source: ConfigSource) -> None:
        self.source = source
        self.values: dict[str, Any] = {}
        self.notes: list[Note] = []
        self.defaults_used: list[str] = []
        self.seen: set[KeyPath] = set()
        self._lines: dict[KeyPath, int] = {}

    def has(self, *keys: str) -> bool:
        """Whether the key is present with a value."""
        return self._raw_value(keys) is not None

    def get(self, *keys: str, kind: str) -> Any:
        """The checked value of a key, or None; marks the key as read."""
        self.seen.add(keys)
        raw = self._raw_value(keys)
        if raw is None:
            return None
        value = self._as_kind(raw, keys, kind)
        if value is None:
            raise ConfigError(f"{self.source.where(keys)}: {'.'.join(keys)}: {KINDS[kind]} is needed, got {raw!r}")
        return value

    def put(self, ours: str, value: Any, *keys: str) -> None:
        """Set one of our fields; `keys` is the key it came from."""
        parts = tuple(ours.split("."))
        section = self.values
        for part in parts[:-1]:
            section = section.setdefault(part, {})
        section[parts[-1]] = value
        if keys in self.source.lines:
            self._lines[parts] = self.source.lines[keys]

    def move(self, *keys: str, to: str, kind: str, default: Any = None) -> Any:
        """Copy a value to our field; a default of the other tool is written out."""
        value = self.get(*keys, kind=kind)
        if value is None and default is not None:
            value = default
            self.defaults_used.append(f"{to} {default}")
        if value is not None:
            self.put(to, value, *keys)
        return value

    def note(self, text: str, *keys: str) -> None:
        """Add a note on a key, if the file has it."""
        self.seen.add(keys)
        if self.has(*keys):
            where = self.source.where(keys)
            self.notes.append(Note(where, ".".join(keys), text, self.source.lines.get(keys, 0)))

    def note_file(self, text: str) -> None:
        """Add a note on the whole file."""
        self.notes.append(Note(self.source.name, "", text))

    def note_unknown(self, known: Iterable[str], section: str | None = None) -> None:
        """Add a note on every key that was not read; `known` are the candidates for spelling suggestions."""
        values = self.source.values if section is None else self.source.values.get(section)
        for key in values if isinstance(values, dict) else ():
            keys = (str(key),) if section is None else (section, str(key))
            if keys not in self.seen:
                hint = did_you_mean(str(key), known)
                suggestion = f"; {hint}" if hint.startswith("did") else ""
                line = self.source.lines.get(keys, 0)
                text = f"unknown key, ignored{suggestion}"
                self.notes.append(Note(self.source.where(keys), ".".join(keys), text, line))

    def validate(self) -> RunConfig:
        """The validated result; errors name the line of the other tool's file."""
        self.notes.sort(key=lambda note: (note.line == 0, note.line))
        return run_config(ConfigSource(self.values, self.source.name, self._lines))

    def to_yaml(self, heading: str) -> str:
        """The fields that were set, with the notes as comments above them."""
        notes = [line for note in self.notes for line in str(note).splitlines()]
        ordered = {name: self.values[name] for name in RunConfig.model_fields if name in self.values}
        return "".join(f"# {line}\n" for line in (heading, *notes)) + to_yaml(ordered)

    def _raw_value(self, keys: tuple[str, ...]) -> Any:
        value: Any = self.source.values
        for part in keys:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def _as_kind(self, value: Any, keys: tuple[str, ...], kind: str) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if kind == "section":
            return value if isinstance(value, dict) else None
        if kind == "switch":
            return value if isinstance(value, bool) else YAML_1_1.get(str(value).lower())
        if kind == "count":
            return int(value) if is_number and int(value) == value else None
        if kind == "number":
            return value if is_number else None
        if kind == "word":
            return None if isinstance(value, dict | list | bool) else str(self.source.texts.get(keys, value))
        items = value if isinstance(value, list) else re.split(r"[\s,]+", str(value)) if kind == "words" else [value]
        if kind == "words":
            return [str(item) for item in items]
        return items if all(isinstance(item, int) and not isinstance(item, bool) for item in items) else None


# --- liblinear ---
# LIBLINEAR's command-line options, as in LibMultiLabel's `liblinear_options`, as settings of our solver.

KEY = "liblinear_options"
LOSSES = {0: "logistic", 1: "squared_hinge", 2: "squared_hinge", 3: "hinge", 7: "logistic"}
DUAL = (1, 3, 7)
MAX_PASSES = 300
"""Maximum number of passes of LIBLINEAR's dual solvers."""
WITH_VALUE = ("-s", "-c", "-p", "-e", "-B", "-m", "-w1", "-w-1")


def convert_solver_options(conversion: ConfigConversion) -> None:
    """Set the solver's fields; options that are not given have LIBLINEAR's defaults."""
    text = conversion.get(KEY, kind="word") or ""
    where = f"{conversion.source.where((KEY,))}: {KEY}"
    options = _parse_options(text, where)
    solver = _number(options, "-s", 1, where)
    if solver not in LOSSES:
        raise ConfigError(
            f"{where}: -s {solver:g} is not offered; L2-regularised solvers are: 0, 7 (logistic), 1, 2 (squared hinge) "
            "and 3 (hinge)"
        )
    conversion.put("model.solver.loss", LOSSES[int(solver)], KEY)
    cost = _number(options, "-c", 1, where)
    conversion.put("model.solver.cost_positive", cost * _number(options, "-w1", 1, where), KEY)
    conversion.put("model.solver.cost_negative", cost * _number(options, "-w-1", 1, where), KEY)
    conversion.put("model.solver.bias", max(0.0, _number(options, "-B", -1, where)), KEY)
    if solver in DUAL:
        conversion.put("model.solver.tolerance", _number(options, "-e", 0.1, where), KEY)
        conversion.put("model.solver.max_passes", MAX_PASSES, KEY)
    elif "-e" in options:
        conversion.note(f"-e left out: -s {solver:g} has another stopping criterion; model.solver.tolerance stays", KEY)
    if "-m" in options:
        conversion.put("run.threads", int(_number(options, "-m", 1, where)), KEY)
    if "-q" in options:
        conversion.note("-q left out: the solver prints nothing", KEY)
    if "-p" in options:
        conversion.note("-p left out: it is for regression", KEY)
    conversion.note_file(
        "weights below model.solver.threshold (0.1) are dropped; LIBLINEAR keeps all, as threshold 0 does here"
    )


def _parse_options(text: str, where: str) -> dict[str, str]:
    """Parse options and their values; `-c 2` and `-c2` are the same."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from None
    options: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "-q":
            options[word] = ""
            continue
        name = next((name for name in sorted(WITH_VALUE, key=len, reverse=True) if word.startswith(name)), None)
        if name is None:
            raise ConfigError(f"{where}: '{word}' is not offered; accepted: -q {' '.join(WITH_VALUE)}")
        value = word.removeprefix(name) or (words.pop(0) if words else "")
        if not value:
            raise ConfigError(f"{where}: {name} needs a value")
        options[name] = value
    return options


def _number(options: dict[str, str], name: str, default: float, where: str) -> float:
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {name} needs a number, got '{options[name]}'")
    return value


GLOVE = ("glove.42B.300d", "glove.840B.300d", *(f"glove.6B.{width}d" for width in (50, 100, 200, 300)))
NETWORKS = {"attentionxml": "attention_xml", "bigrulwan": "bigru", "bilstmlwan": "bigru", "bigru": "bigru"}
NOT_OFFERED = {
    **dict.fromkeys(("kimcnn", "xmlcnn", "cnnlwan", "caml"), "bigru (label-wise attention)"),
    "bilstmlwmhan": "bigru with recurrent.cell: lstm (one head of attention)",
    **dict.fromkeys(("bert", "bertattention"), "text_encoder"),
}
TECHNIQUES = {"tree": "linear_tree", "1vsrest": "linear_flat"}
OTHER_TECHNIQUES = ("thresholding", "cost_sensitive", "cost_sensitive_micro", "binary_and_multiclass")
SEARCHES = ("grid_search", "choice", "uniform", "quniform", "loguniform", "qloguniform", "randn", "randint")
LINEAR_KEYS = ("linear", "linear_technique", "liblinear_options", "tree_degree", "tree_max_depth")
LINEAR_KEYS += ("tree_ensemble_models", "save_positive_predictions")
NETWORK_KEYS = (
    "model_name", "network_config", "epochs", "batch_size", "optimizer", "learning_rate", "weight_decay",
    "momentum", "lr_scheduler", "scheduler_config", "patience", "early_stopping_metric", "val_metric",
    "init_weight", "min_vocab_freq", "loss_function", "embed_file", "embed_cache_dir", "normalize_embed",
    "vocab_file", "max_seq_length", "shuffle", "add_special_tokens", "val_file", "val_size", "merge_train_val",
    "metric_threshold", "cluster_size", "cpu", "data_workers", "limit_train_batches", "limit_val_batches",
    "limit_test_batches",
)  # fmt: skip
COMMON_KEYS = ("data_name", "training_file", "test_file", "data_format", "label_file", "seed", "monitor_metrics")
COMMON_KEYS += ("eval_batch_size", "result_dir", "beam_width", "remove_no_label_data", "include_test_labels")
NO_COUNTERPART = {
    "cpu": "left out: a GPU is used when there is one; CUDA_VISIBLE_DEVICES= hides it",
    "silent": "left out: `labelwise -q train` is quiet",
    "data_workers": "left out: batches are built in the process; model.training.load_ahead builds them on threads",
    "eval": "left out: `labelwise evaluate RUN DATA` evaluates a trained model",
    "checkpoint_path": "left out: the same command resumes a stopped run, and a run folder has its model",
    "checkpoint_dir": "left out: checkpoints are in the run folder",
    "log_path": "left out: the log is in the run folder",
    "predict_out_path": "left out: `labelwise predict RUN DATA -o FILE` writes predictions",
    "save_k_predictions": "left out: `labelwise predict RUN DATA --k K -o FILE` writes predictions",
    "save_positive_predictions": "left out: `labelwise predict RUN DATA --threshold T -o FILE` writes them",
    "label_file": "left out: the labels are those of the training documents",
    "include_test_labels": "left out: labels that no training document has cannot be predicted; scores count them",
    "remove_no_label_data": "left out: documents without labels are used for training",
    "eval_batch_size": "left out: documents are predicted in batches of similar length that fit into memory",
    "add_special_tokens": "left out: it concerns tokenisers of pretrained encoders",
    "vocab_file": "left out: the vocabulary is learned from the training documents",
    "init_weight": "left out: layers are initialised Xavier-uniform, label vectors with a fixed norm",
    "limit_train_batches": "left out: data.limit keeps only the first training documents",
    "limit_val_batches": "left out: all held-out documents are used",
    "limit_test_batches": "left out: all test documents are used",
    "tree_max_depth": "left out: the depth follows from model.branching and model.leaf_size",
    "lr_scheduler": "left out: the rate is constant; model.training.schedule can decrease it",
    "scheduler_config": "left out with lr_scheduler",
    **dict.fromkeys(
        ("search_alg", "num_samples", "cpu_count", "gpu_count", "no_retrain", "scheduler"),
        "left out: searches have their own files here, see `labelwise sweep`",
    ),
}


def import_libmultilabel(source: ConfigSource) -> ConfigConversion:
    """Convert a LibMultiLabel config; `values` holds the fields that are set, `notes` the remarks on other keys."""
    _refuse_searches(source)
    conversion = ConfigConversion(source)
    linear = conversion.get("linear", kind="switch")
    _convert_data(conversion, linear=bool(linear))
    if linear:
        _convert_linear(conversion)
    else:
        _convert_network(conversion)
    unused = NETWORK_KEYS if linear else LINEAR_KEYS
    side = "linear" if linear else "neural"
    for key in unused:
        if key not in NO_COUNTERPART and (key,) not in conversion.seen:
            conversion.note(f"left out: LibMultiLabel does not use it on its {side} side", key)
    for key, text in NO_COUNTERPART.items():
        if (key,) not in conversion.seen:
            conversion.note(text, key)
    conversion.note_unknown((*COMMON_KEYS, *LINEAR_KEYS, *NETWORK_KEYS, *NO_COUNTERPART))
    if conversion.defaults_used:
        conversion.note_file(
            f"set to LibMultiLabel's defaults, as the file does not set them: {', '.join(conversion.defaults_used)}"
        )
    conversion.validate()
    return conversion


def _refuse_searches(source: ConfigSource) -> None:
    """Refuse files for search_params.py, which have lists such as ['grid_search', [...]] for values."""
    network = source.values.get("network_config")
    values = {(key,): value for key, value in source.values.items()}
    values |= {("network_config", key): value for key, value in (network if isinstance(network, dict) else {}).items()}
    for keys, value in values.items():
        if isinstance(value, list) and value and value[0] in SEARCHES:
            raise ConfigError(
                f"{source.where(keys)}: {'.'.join(map(str, keys))}: this is a search ('{value[0]}'); put one value "
                "here to import the file, and search with `labelwise sweep`"
            )


def _convert_data(conversion: ConfigConversion, linear: bool) -> None:
    if not conversion.has("training_file"):
        raise ConfigError(f"{conversion.source.name}: training_file is missing; a run needs documents to train on")
    conversion.move("training_file", to="data.train", kind="word")
    if not linear:
        conversion.move("val_file", to="data.valid", kind="word")
    conversion.move("test_file", to="data.test", kind="word")
    format = conversion.get("data_format", kind="word") or "txt"
    formats = {"txt": "tsv", "svm": "xc"}
    if format not in formats or (format == "svm" and not linear):
        accepted = "txt or svm" if linear else "txt (networks read texts)"
        raise ConfigError(
            f"{conversion.source.where(('data_format',))}: data_format: {accepted} is needed, got '{format}'"
        )
    conversion.put("data.format", formats[format], "data_format")
    folder, name = conversion.get("result_dir", kind="word"), conversion.get("data_name", kind="word")
    stem = Path(conversion.source.name).stem
    conversion.put(
        "run.folder", (Path(folder or "runs") / (f"{name}_{stem}" if name else stem)).as_posix(), "data_name"
    )


def _convert_linear(conversion: ConfigConversion) -> None:
    conversion.note("left out: on the linear side linear_technique selects the model", "model_name")
    technique = conversion.get("linear_technique", kind="word") or "1vsrest"
    where = f"{conversion.source.where(('linear_technique',))}: linear_technique"
    if technique in OTHER_TECHNIQUES:
        raise ConfigError(
            f"{where}: '{technique}' is not offered; accepted: 1vsrest (linear_flat), tree (linear_tree). Calibration "
            "chooses the threshold with the best micro-F1"
        )
    if technique not in TECHNIQUES:
        raise ConfigError(f"{where}: there is no '{technique}'; {did_you_mean(technique, TECHNIQUES)}")
    conversion.put("model.method", TECHNIQUES[technique], "linear_technique")
    if (conversion.source.values.get("data_format") or "txt") == "txt":
        conversion.put("model.tfidf.sublinear", False)
    convert_solver_options(conversion)
    conversion.move("seed", to="model.seed", kind="count")
    if technique == "tree":
        conversion.put("model.tree", "kway")
        degree = conversion.move("tree_degree", to="model.branching", kind="count", default=100)
        conversion.put("model.leaf_size", degree, "tree_degree")
        conversion.move("tree_ensemble_models", to="model.trees", kind="count", default=1)
        conversion.move("beam_width", to="model.beam", kind="count", default=10)
        conversion.put("model.post_processor", "l2_hinge")
    else:
        for key in ("beam_width", "tree_degree", "tree_max_depth", "tree_ensemble_models"):
            conversion.note("left out: it concerns trees, linear_technique is 1vsrest", key)
    conversion.note("left out: LibMultiLabel's linear side has no held-out documents", "val_file")
    conversion.note("left out: LibMultiLabel's linear side has no held-out documents", "val_size")
    # a margin of 0 is a sigmoid of one half
    _convert_metrics(conversion, threshold=None if technique == "tree" else 0.5)


def _convert_network(conversion: ConfigConversion) -> None:
    name = conversion.get("model_name", kind="word")
    where = f"{conversion.source.where(('model_name',))}: model_name"
    if name is None:
        raise ConfigError(f"{conversion.source.name}: model_name is missing (or `linear: true`); it selects the model")
    if name.lower() in NOT_OFFERED:
        raise ConfigError(f"{where}: {name} is not offered; the nearest method here is {NOT_OFFERED[name.lower()]}")
    if name.lower() not in NETWORKS:
        accepted = ("AttentionXML", "BiGRULWAN", "BiLSTMLWAN")
        raise ConfigError(f"{where}: there is no network '{name}'; {did_you_mean(name, accepted)}")
    method = NETWORKS[name.lower()]
    conversion.put("model.method", method, "model_name")
    _convert_words(conversion)
    _convert_layers(conversion, name.lower())
    if method == "attention_xml":
        conversion.move("cluster_size", to="model.cluster_size", kind="count", default=8)
        conversion.move("beam_width", to="model.beam_width", kind="count", default=10)
    else:
        for key in ("cluster_size", "beam_width"):
            conversion.note(f"left out: it concerns trees, {name} has none", key)
    _convert_held_out(conversion)
    _convert_training(conversion)
    threshold = conversion.get("metric_threshold", kind="number")
    _convert_metrics(conversion, threshold=0.5 if threshold is None else threshold)


def _convert_words(conversion: ConfigConversion) -> None:
    conversion.move("max_seq_length", to="model.words.max_length", kind="count", default=500)
    conversion.move("min_vocab_freq", to="model.words.min_frequency", kind="count", default=1)
    vectors, folder = conversion.get("embed_file", kind="word"), conversion.get("embed_cache_dir", kind="word")
    if vectors in GLOVE:
        file = (Path(folder or ".vector_cache") / f"{vectors}.txt").as_posix()
        conversion.note(f"{file}: nothing is downloaded; put the file there, or set model.words.vectors", "embed_file")
        conversion.put("model.words.vectors", file, "embed_file")
    elif vectors is not None:
        conversion.put("model.words.vectors", vectors, "embed_file")
        conversion.note("left out: it is for vectors that LibMultiLabel downloads", "embed_cache_dir")
    else:
        conversion.note("left out: there is no embed_file", "embed_cache_dir")
        conversion.note_file("there is no embed_file: word vectors are drawn at random and trained")
    conversion.move("normalize_embed", to="model.words.normalise", kind="switch")


def _convert_layers(conversion: ConfigConversion, name: str) -> None:
    section, tree = "network_config", name == "attentionxml"
    conversion.get(section, kind="section")
    conversion.move(section, "rnn_dim", to="model.recurrent.width", kind="count", default=512)
    conversion.move(section, "embed_dropout", to="model.recurrent.word_dropout", kind="number", default=0.2)
    conversion.move(
        section, "post_encoder_dropout", to="model.recurrent.dropout", kind="number", default=0.5 if tree else 0.0
    )
    conversion.note("left out: it applies between recurrent layers, and there is one", section, "encoder_dropout")
    if (conversion.get(section, "rnn_layers", kind="count") or 1) > 1:
        conversion.note("only one recurrent layer is supported; one is used", section, "rnn_layers")
    frozen = conversion.get(section, "freeze_embed_training", kind="switch") if tree else False
    if conversion.has("embed_file") or frozen:
        conversion.put("model.words.frozen", bool(frozen), section, "freeze_embed_training")
    if tree:
        conversion.move(section, "linear_size", to="model.hidden", kind="counts")
    else:
        conversion.put("model.attention", "none" if name == "bigru" else "label", "model_name")
        conversion.put("model.recurrent.cell", "lstm" if name == "bilstmlwan" else "gru", "model_name")
    known = ("rnn_dim", "rnn_layers", "embed_dropout", "encoder_dropout", "post_encoder_dropout")
    conversion.note_unknown((*known, "linear_size", "freeze_embed_training"), section)


def _convert_held_out(conversion: ConfigConversion) -> None:
    """Convert the held-out documents that select the best weights."""
    size = conversion.get("val_size", kind="number")
    merged = conversion.get("merge_train_val", kind="switch")
    if conversion.has("val_file"):
        conversion.note("left out: val_file holds the documents", "val_size")
        if merged:
            conversion.note(
                "not supported: concatenate the two files and set model.valid_fraction to 0", "merge_train_val"
            )
        return
    if merged or size == 0:
        conversion.put("model.valid_fraction", 0.0, "merge_train_val" if merged else "val_size")
        return
    if size is None:
        size = 0.2
        conversion.defaults_used.append("data.valid_fraction 0.2")
    if size >= 1:
        documents = _count_lines(Path(str(conversion.source.values["training_file"])))
        if documents is None or documents <= size:
            conversion.note(
                "held-out documents are given as a fraction here, and the training file is not there to be counted: "
                "left out, model.valid_fraction applies (0.05, at most 1,000 documents)",
                "val_size",
            )
            return
        conversion.note(f"of {documents:,} training documents, as a fraction", "val_size")
        size = round(size / documents, 6)
    conversion.put("data.valid_fraction", float(size), "val_size")


def _count_lines(path: Path) -> int | None:
    """The number of lines that are not blank; None if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())
    except OSError:
        return None


def _convert_training(conversion: ConfigConversion) -> None:
    training = "model.training"
    conversion.move("epochs", to=f"{training}.epochs", kind="count", default=10_000)
    conversion.move("batch_size", to=f"{training}.batch_size", kind="count", default=16)
    conversion.move("seed", to=f"{training}.seed", kind="count")
    name = (conversion.get("optimizer", kind="word") or "adam").lower()
    if name not in ("adam", "adamw", "sgd"):
        conversion.note(f"{name} is not offered, adam is used", "optimizer")
        name = "adam"
    conversion.put(f"{training}.optimiser.name", name, "optimizer")
    conversion.move("learning_rate", to=f"{training}.optimiser.rate", kind="number", default=1e-4)
    decay = conversion.move("weight_decay", to=f"{training}.optimiser.weight_decay", kind="number", default=0.0)
    if decay:
        conversion.put(f"{training}.optimiser.decay_on", "all", "weight_decay")
    if name == "sgd":
        conversion.move("momentum", to=f"{training}.optimiser.momentum", kind="number", default=0.9)
    else:
        conversion.note(f"left out: it is a setting of sgd, the optimiser is {name}", "momentum")
    if "valid_fraction" not in conversion.values["model"]:  # without held-out documents training runs to its end
        conversion.put(f"{training}.validate_every", "epoch")
        conversion.move("patience", to=f"{training}.early_stopping.patience", kind="count", default=5)
        _convert_validation_metric(conversion)
    else:
        for key in ("patience", "val_metric", "early_stopping_metric"):
            conversion.note("left out: no documents are held out", key)
    loss = conversion.get("loss_function", kind="word")
    if loss not in (None, "binary_cross_entropy_with_logits"):
        conversion.note("not offered, binary_cross_entropy_with_logits is used", "loss_function")
    if conversion.get("shuffle", kind="switch") is False:
        conversion.note("left out: documents are always shuffled", "shuffle")
    conversion.note_file(
        "gradients are clipped adaptively and weights averaged (SWA), where LibMultiLabel clips each component at 0.5; "
        "model.training.clip and model.training.averaging change this"
    )


def _convert_validation_metric(conversion: ConfigConversion) -> None:
    """Convert the metric that selects the best weights."""
    monitored, stopping = (
        conversion.get("val_metric", kind="word"),
        conversion.get("early_stopping_metric", kind="word"),
    )
    metric = _metric(monitored or "P@1")
    if monitored is None:
        conversion.defaults_used.append("model.training.metric P@1")
    if metric is None or "@" not in metric:
        conversion.note("cannot be computed during training, nDCG@5 is used", "val_metric")
        metric = "nDCG@5"
    conversion.put("model.training.metric", metric, "val_metric")
    if stopping not in (None, monitored):
        conversion.note(f"left out: {metric} selects the weights and stops training", "early_stopping_metric")


def _convert_metrics(conversion: ConfigConversion, threshold: float | None) -> None:
    """Convert the metrics of the evaluation; without a threshold F1 cannot be computed."""
    given = conversion.get("monitor_metrics", kind="words")
    kept: list[str] = []
    for name in given or ["P@1", "P@3", "P@5"]:
        metric = _metric(name)
        if metric is None:
            conversion.note(f"{name} is not offered, left out", "monitor_metrics")
        elif threshold is None and "@" not in metric:
            conversion.note(
                f"{name} left out: LibMultiLabel counts all labels that its beam reaches as predicted; "
                "set evaluate.threshold or calibrate the model to compute it",
                "monitor_metrics",
            )
        elif metric not in kept:
            kept.append(metric)
    if given is None:
        conversion.defaults_used.append("evaluate.metrics P@1, P@3, P@5")
    if kept:
        conversion.put("evaluate.metrics", kept, "monitor_metrics")
    if any("@" not in name for name in kept):
        conversion.put("evaluate.threshold", threshold, "metric_threshold")
        conversion.put("calibrate.enabled", False)  # the threshold is one of raw scores
    else:
        conversion.note("left out: it is for F1, which is not requested", "metric_threshold")


def _metric(name: str) -> str | None:
    """Our name of a metric, or None if it is unknown."""
    try:
        return parse_metric(name).name
    except ConfigError:
        return None
