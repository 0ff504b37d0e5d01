"""Files of encoders: pretrained ones, those of saved models, and checks of their settings. Does not import torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from labelwise.config import validated
from labelwise.errors import ConfigError, LabelwiseError, ModelFormatError
from labelwise.io.folder import CONFIG_FILE, MANIFEST, Folder, model_folder
from labelwise.nn.config import TINY, EncoderConfig
from labelwise.registry import methods_that

Result = TypeVar("Result")

# --- pretrained encoders ---
# Their folders are checked before anything is loaded.
#
# transformers accepts incomplete folders: without the files of a tokenizer it builds one that knows only the special
# tokens, and every word becomes "unknown". So both the files and the tokenizer are checked here. A folder that PECOS's
# XR-Transformer has written holds weights and tokenizer in folders of their own, next to files that are not read.

TOKENIZER_FILES = (
    ("tokenizer.json",),
    ("vocab.txt",),
    ("vocab.json", "merges.txt"),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("sentencepiece.model",),
    ("spm.model",),
    ("tokenizer.model",),
)
"""Any of these sets of files makes a tokenizer."""
MIN_KNOWN_FRACTION = 0.1
"""A tokenizer that knows a smaller fraction of the embedding rows than this belongs to another model."""


PICKLED = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
"""Files of weights that run code when they are read."""
PECOS_POOLING = {"distilbert": "first", "xlnet": "last"}
"""How XR-Transformer pools, by type of model; the others have a pooler."""
PECOS_LENGTH = 128


def encoder_source(model: str) -> tuple[str, str]:
    """Where the weights and the tokenizer of an encoder are: folders, or a name on the hub.

    `model` is a folder, that of a model of XR-Transformer, or the name.
    """
    folder = Path(os.path.expanduser(model))
    if folder.is_dir():
        matcher = _matcher_folder(folder)
        weights, tokenizer = (
            (folder, folder) if matcher is None else (matcher / "text_encoder", matcher / "text_tokenizer")
        )
        if not (weights / "config.json").is_file():
            raise ConfigError(
                f"encoder.model: {weights} has no config.json; the folder of a transformers model is needed"
            )
        _check_tokenizer_files(tokenizer)
        return str(weights), str(tokenizer)
    if folder.exists() or folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ConfigError(f"encoder.model: {model} is not a folder; give a folder with weights or a hub name")
    return model, model


def _matcher_folder(folder: Path) -> Path | None:
    """The part of a model of XR-Transformer that has weights and tokenizer; None if this is no such model."""
    if (folder / "config.json").exists():
        return None
    candidates = (folder, folder / "text_encoder")
    return next((path for path in candidates if (path / "text_tokenizer").is_dir()), None)


def matcher_settings(model: str) -> dict[str, Any]:
    """`pooling` and `max_length` of a model of XR-Transformer, as it was trained; empty for any other encoder."""
    folder = Path(os.path.expanduser(model))
    matcher = _matcher_folder(folder) if folder.is_dir() else None
    if matcher is None:
        return {}
    kind = _json_object(matcher / "text_encoder" / "config.json").get("model_type")
    length = PECOS_LENGTH
    if (matcher / "param.json").exists():
        given = _json_object(matcher / "param.json").get("pred_params")
        length = given.get("truncate_length") if isinstance(given, dict) else None
    return {
        "pooling": PECOS_POOLING.get(str(kind), "pooler"),
        "max_length": length if isinstance(length, int) and length > 0 else PECOS_LENGTH,
    }


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"encoder.model: {path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"encoder.model: {path} is damaged; a JSON object is needed")
    return value


def why_no_safetensors(source: str) -> str:
    """What to do about an encoder without weights in safetensors."""
    folder = Path(source)
    pickled = [path.name for pattern in PICKLED for path in sorted(folder.glob(pattern))] if folder.is_dir() else []
    if not pickled:
        return f"{source} has no weights in safetensors; weights in pickle files (.bin, .pt) are not read"
    return (
        f"{source} has no weights in safetensors, and {pickled[0]} is a pickle file, which can run code: it is not "
        "read. If you trust it, convert it once: AutoModel.from_pretrained(folder).save_pretrained(new_folder) of "
        "transformers writes model.safetensors; copy that into this folder"
    )


def _check_tokenizer_files(folder: Path) -> None:
    if any(all((folder / name).is_file() for name in names) for names in TOKENIZER_FILES):
        return
    accepted = ", ".join(" with ".join(names) for names in TOKENIZER_FILES)
    raise ConfigError(
        f"encoder.model: {folder} has no tokenizer; accepted is one of {accepted}. Copy these files from where the "
        "weights came from, or save both there with tokenizer.save_pretrained and model.save_pretrained"
    )


def check_vocabulary(source: str, vocabulary: Collection[str], special: Collection[str], rows: int) -> None:
    """Refuse a tokenizer that knows hardly any of the tokens that the weights have embeddings for."""
    words = len(set(vocabulary) - set(special))
    if words == 0 or words < MIN_KNOWN_FRACTION * rows:
        raise ConfigError(
            f"encoder.model: the tokenizer of {source} knows {words:,} tokens beside the special ones, the weights "
            f"know {rows:,}; its files are cut off or of another model; copy them from where the weights came from"
        )


# --- encoders of saved models ---
# Given as `encoder.model` by the folder of the model or of its run.
#
# A fine-tuned encoder is useful only with the settings it was trained with, so those that decide its vectors come from
# the saved model, and others are refused. `transformer.open_encoder` reads the weights.

SECTION = "encoder"
"""Of a method's parameters, and before the names of an encoder's arrays in a model."""
TRAINED_WITH = ("max_length", "long_texts", "windows", "pooling", "layers")
"""Settings that decide vectors and that an encoder was trained with."""


def saved_folder(model: str) -> Folder | None:
    """Open the model folder at a path, or that of the run there; None for any other folder, and for hub names."""
    folder = Path(os.path.expanduser(model))
    if not folder.is_dir():
        return None
    folder = model_folder(folder)
    return Folder(folder, "model") if (folder / MANIFEST).is_file() else None


def saved_settings(model: str) -> dict[str, Any]:
    """The settings of the encoder in a saved model that decide its vectors; empty for any other encoder."""
    folder = saved_folder(model)
    if folder is None:
        return {}
    values = folder.read_json(CONFIG_FILE)
    section = values.get(SECTION) if isinstance(values, dict) else None
    if not isinstance(section, dict):
        raise no_encoder(model, folder)
    try:
        config = validated(EncoderConfig, section)
    except ConfigError as error:
        raise ModelFormatError(f"{folder.file(CONFIG_FILE)}: {error}") from None
    return {name: getattr(config, name) for name in (*TRAINED_WITH, "precision")}


def no_encoder(model: str, folder: Folder) -> ConfigError:
    """The error for a saved model without a text encoder."""
    return ConfigError(
        f"encoder.model: {model} is a saved model of {folder.manifest.get('method')}, which has no text encoder of its "
        f"own; accepted are saved models of {methods_that('attention')}, folders with weights, and hub names"
    )


def with_saved_settings(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """A method's parameters as given, with settings of its encoder from the saved model that they name, if they do.

    Nothing is refused here; `check_encoder` is called before training.
    """
    given = parameters.get(SECTION)
    given = given.given_fields() if isinstance(given, EncoderConfig) else given
    if not isinstance(given, Mapping) or given.get("architecture"):
        return parameters
    if not isinstance(given.get("model"), str) or given["model"] == TINY:  # also if there is such a folder
        return parameters
    try:
        saved = saved_settings(given["model"])
    except LabelwiseError:
        return parameters
    return {**parameters, SECTION: {**saved, **given}} if saved else parameters


def check_encoder(config: EncoderConfig) -> None:
    """Raise if there is no such encoder, or if it is one of a saved model that was trained with other settings."""
    if config.starts_random:
        return
    saved = saved_settings(config.model)
    if not saved:
        encoder_source(config.model)
        return
    for name in TRAINED_WITH:
        own = getattr(config, name)
        if own != saved[name]:
            raise ConfigError(
                f"encoder.{name}: the encoder in {config.model} was trained with {saved[name]}, got {own}; leave "
                f"{name} out, it is taken from there"
            )


# --- saved settings ---
# Checks of the settings and tokenizers of saved encoders, which may come from an untrusted folder.
#
# Loading a model must not access the network, hang, or allocate much more memory than its weights take. So only
# families of plain text transformers are built, counts are bounded before anything is built, and a tokenizer may not
# make texts much longer.

FIRST_TOKEN_FAMILIES = frozenset((
    "albert", "bert", "bert-generation", "big_bird", "camembert", "canine", "convbert", "data2vec-text", "deberta",
    "deberta-v2", "distilbert", "electra", "ernie", "esm", "eurobert", "flaubert", "fnet", "funnel", "gte", "ibert",
    "jina_embeddings_v3", "longformer", "luke", "megatron-bert", "mobilebert", "modernbert", "mpnet", "mra",
    "nomic_bert", "nystromformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "squeezebert",
    "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso",
))  # fmt: skip
"""Families that sum up a text in its first token; others in the last: XLNet, and all that read from left to right."""
TEXT_FAMILIES = FIRST_TOKEN_FAMILIES | frozenset((
    "biogpt", "bloom", "ctrl", "deepseek_v3", "diffllama", "exaone4", "falcon", "gemma", "gemma2", "gemma3_text", "glm",
    "glm4", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "helium", "llama",
    "mamba", "mamba2", "minimax", "ministral", "mistral", "mixtral", "modernbert-decoder", "mpt", "nemotron", "olmo",
    "olmo2", "olmo3", "openai-gpt", "opt", "persimmon", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "qwen3_next", "reformer", "seed_oss", "smollm3", "stablelm", "starcoder2", "xlnet",
))  # fmt: skip
"""Families that are built from their settings alone. Others may name a second model, which would be downloaded."""
HEAD_SETTINGS = ("num_labels", "id2label", "label2id", "problem_type", "task_specific_params", "finetuning_task")
"""Settings of heads that an encoder does not have; a large number of labels would be expanded one by one."""
MAX_SETTINGS_BYTES = 1 << 20
MAX_TOKENIZER_BYTES = 1 << 28
MAX_COUNT = 1 << 31
MAX_REPEATED = 512
"""Maximum number of layers, groups or blocks; also at most the number of weights, but 64 are always allowed because
layers can share weights."""
REPEATED = ("layer", "group", "block", "stage", "expert")
MAX_BUFFER_BYTES = 1 << 30
MAX_GROWTH = 64
"""How many times longer the replacement rules of a tokenizer may make a text."""
MAX_RULES = 200


def checked_settings(
    text: np.ndarray, n_weights: int, path: Path, families: Collection[str] = TEXT_FAMILIES
) -> dict[str, Any]:
    """The settings of a saved encoder of some families with `n_weights` weights, if it is safe to build it."""
    settings = _parsed(text, MAX_SETTINGS_BYTES, f"{path}: the settings of the encoder are damaged")
    family = settings.get("model_type") if isinstance(settings, dict) else None
    if not isinstance(family, str) or family not in families:
        raise ModelFormatError(
            f"{path}: the encoder is of the family {str(family)[:80]!r}, which is not a plain network of this kind"
        )
    settings = {key: value for key, value in settings.items() if key not in HEAD_SETTINGS}
    for name, number in _parts(settings):
        most = min(MAX_REPEATED, max(64, n_weights)) if any(word in name for word in REPEATED) else MAX_COUNT
        if isinstance(number, int) and abs(number) > most:
            raise ModelFormatError(f"{path}: the encoder's setting {name} is {number}; at most {most:,} is accepted")
    if settings.get("chunk_size_feed_forward", 0) not in (0, 1):
        raise ModelFormatError(
            f"{path}: the encoder's setting chunk_size_feed_forward must be 0, or most texts would fail"
        )
    return settings


def _parsed(text: np.ndarray, most: int, fault: str) -> Any:
    """The JSON in an array of at most `most` bytes."""
    if text.dtype != np.uint8 or text.ndim != 1 or len(text) > most:
        raise ModelFormatError(fault)
    try:
        return json.loads(text.tobytes().decode())
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{fault}: {error}") from None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """All parts of a JSON value, nested ones included, with their names in objects; without recursion."""
    todo = [("", value)]
    while todo:
        name, part = todo.pop()
        yield name, part
        if isinstance(part, dict):
            todo += [(str(key), inner) for key, inner in part.items()][::-1]
        elif isinstance(part, list):
            todo += [("", inner) for inner in part][::-1]


def check_shapes(make: Callable[[], Any], weights: Mapping[str, np.ndarray], path: Path, pooler: bool = False) -> None:
    """Compare a network (on the meta device) with the stored weights before it is built in memory.

    A pooling layer counts if `pooler` is true.
    """
    import torch

    with torch.device("meta"):
        network = make()
    if not pooler and getattr(network, "pooler", None) is not None:
        network.pooler = None
    for name, expected in network.state_dict().items():
        weight = weights.get(name)
        kind = "f" if expected.is_floating_point() else "b" if expected.dtype == torch.bool else "i"
        if weight is None or weight.shape != tuple(expected.shape) or weight.dtype.kind != kind:
            raise ModelFormatError(f"{path}: the weight {name} is missing or its shape differs from the settings")
    if sum(buffer.nbytes for buffer in network.buffers()) > MAX_BUFFER_BYTES:
        raise ModelFormatError(f"{path}: the encoder's settings need more memory than its weights can explain")


def check_tokenizer(text: np.ndarray, path: Path) -> str:
    """The JSON of a tokenizer, if its rules cannot make texts much longer."""
    tokenizer = _parsed(text, MAX_TOKENIZER_BYTES, f"{path}: the tokenizer is damaged")
    if not isinstance(tokenizer, dict):
        raise ModelFormatError(f"{path}: the tokenizer is damaged")
    nested = [part for name in ("normalizer", "pre_tokenizer") for _, part in _parts(tokenizer.get(name))]
    rules = [part for part in nested if isinstance(part, dict)]
    growth = 1.0
    for rule in rules:
        if rule.get("type") in ("Replace", "Prepend"):
            growth *= max(
                1.0, len(str(rule.get("content") or rule.get("prepend") or "")) / _shortest(rule.get("pattern"))
            )
    if growth > MAX_GROWTH or len(rules) > MAX_RULES:
        raise ModelFormatError(f"{path}: the tokenizer's rules could make a text more than {MAX_GROWTH} times longer")
    return text.tobytes().decode()


def _shortest(pattern: Any) -> int:
    """The minimum number of characters that a pattern matches."""
    plain = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1, len(plain)) if isinstance(plain, str) else 1


def call_guarded(work: Callable[[], Result], what: str) -> Result:
    """Call `work`, raising its errors as ModelFormatError; also panics of Rust libraries, which are no Exceptions."""
    try:
        return work()
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        message = " ".join(str(error).split())[:200]
        raise ModelFormatError(f"{what}: {message}") from None


def call_configured(work: Callable[[], Result], field: str) -> Result:
    """Call `work`, raising its errors as ConfigError."""
    try:
        return work()
    except (ConfigError, MemoryError):
        raise
    except Exception as error:  # settings and files can break a library in any way
        raise ConfigError(f"{field}: {' '.join(str(error).split())[:300]}") from None


def state_of(prefix: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays whose names start with the prefix, by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
