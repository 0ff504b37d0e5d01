"""Checks of the settings and tokenizers of saved encoders, which may come from an untrusted folder.

Loading a model must not access the network, hang, or allocate much more memory than its weights take. So only
families of plain text transformers are built, counts are bounded before anything is built, and a tokenizer may not
make texts much longer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from labelwise.errors import ModelFormatError

Result = TypeVar("Result")

TEXT_FAMILIES = frozenset((
    "albert", "bert", "bert-generation", "big_bird", "biogpt", "bloom", "camembert", "canine", "convbert", "ctrl",
    "data2vec-text", "deberta", "deberta-v2", "deepseek_v3", "diffllama", "distilbert", "electra", "ernie", "esm",
    "eurobert", "exaone4", "falcon", "flaubert", "fnet", "funnel", "gemma", "gemma2", "gemma3_text", "glm", "glm4",
    "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "gte", "helium", "ibert",
    "jina_embeddings_v3", "llama", "longformer", "luke", "mamba", "mamba2", "megatron-bert", "minimax", "ministral",
    "mistral", "mixtral", "mobilebert", "modernbert", "modernbert-decoder", "mpnet", "mpt", "mra", "nemotron",
    "nomic_bert", "nystromformer", "olmo", "olmo2", "olmo3", "openai-gpt", "opt", "persimmon", "phi", "phi3",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "reformer", "rembert", "roberta",
    "roberta-prelayernorm", "roc_bert", "roformer", "seed_oss", "smollm3", "squeezebert", "stablelm", "starcoder2",
    "xlm", "xlm-roberta", "xlm-roberta-xl", "xlnet", "xmod", "yoso",
))  # fmt: skip
"""Families that are built from their settings alone. Others may name a second model, which would be downloaded."""
FIRST_TOKEN_FAMILIES = frozenset((
    "albert", "bert", "bert-generation", "big_bird", "camembert", "canine", "convbert", "data2vec-text", "deberta",
    "deberta-v2", "distilbert", "electra", "ernie", "esm", "eurobert", "flaubert", "fnet", "funnel", "gte", "ibert",
    "jina_embeddings_v3", "longformer", "luke", "megatron-bert", "mobilebert", "modernbert", "mpnet", "mra",
    "nomic_bert", "nystromformer", "rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "squeezebert",
    "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod", "yoso",
))  # fmt: skip
"""Families that sum up a text in its first token; others in the last: XLNet, and all that read from left to right."""
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
    if text.dtype != np.uint8 or text.ndim != 1 or len(text) > MAX_SETTINGS_BYTES:
        raise ModelFormatError(f"{path}: the settings of the encoder are damaged")
    try:
        settings = json.loads(text.tobytes())
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path}: the settings of the encoder are damaged: {error}") from None
    family = settings.get("model_type") if isinstance(settings, dict) else None
    if not isinstance(family, str) or family not in families:
        raise ModelFormatError(
            f"{path}: the encoder is of the family {str(family)[:80]!r}, which is not a plain network of this kind"
        )
    settings = {key: value for key, value in settings.items() if key not in HEAD_SETTINGS}
    for name, number in _numbers(settings):
        most = min(MAX_REPEATED, max(64, n_weights)) if any(word in name for word in REPEATED) else MAX_COUNT
        if isinstance(number, int) and abs(number) > most:
            raise ModelFormatError(f"{path}: the encoder's setting {name} is {number}; at most {most:,} is accepted")
    if settings.get("chunk_size_feed_forward", 0) not in (0, 1):
        raise ModelFormatError(
            f"{path}: the encoder's setting chunk_size_feed_forward must be 0, or most texts would fail"
        )
    return settings


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, int | float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, "")
    elif isinstance(value, int | float):
        yield name, value


def check_shapes(make: Callable[[], Any], weights: Mapping[str, np.ndarray], path: Path, pooler: bool = False) -> None:
    """Compare the shapes of a network (on the meta device) with the stored weights before it is built in memory.

    A pooling layer counts if `pooler` is true.
    """
    import torch

    with torch.device("meta"):
        network = make()
    if not pooler and getattr(network, "pooler", None) is not None:
        network.pooler = None
    for name, expected in network.state_dict().items():
        weight = weights.get(name)
        if weight is None or weight.shape != tuple(expected.shape):
            raise ModelFormatError(f"{path}: the weight {name} is missing or its shape differs from the settings")
    if sum(buffer.nbytes for buffer in network.buffers()) > MAX_BUFFER_BYTES:
        raise ModelFormatError(f"{path}: the encoder's settings need more memory than its weights can explain")


def check_tokenizer(text: np.ndarray, path: Path) -> str:
    """The JSON of a tokenizer, if its rules cannot make texts much longer."""
    if text.dtype != np.uint8 or text.ndim != 1 or len(text) > MAX_TOKENIZER_BYTES:
        raise ModelFormatError(f"{path}: the tokenizer is damaged")
    try:
        json_text = text.tobytes().decode()
        tokenizer = json.loads(json_text)
        rules = [rule for part in ("normalizer", "pre_tokenizer") for rule in _rules(tokenizer.get(part))]
    except (ValueError, RecursionError, AttributeError) as error:
        raise ModelFormatError(f"{path}: the tokenizer cannot be read: {error}") from None
    growth = 1.0
    for rule in rules:
        if rule.get("type") in ("Replace", "Prepend"):
            growth *= max(
                1.0, len(str(rule.get("content") or rule.get("prepend") or "")) / _shortest(rule.get("pattern"))
            )
    if growth > MAX_GROWTH or len(rules) > MAX_RULES:
        raise ModelFormatError(f"{path}: the tokenizer's rules could make a text more than {MAX_GROWTH} times longer")
    return json_text


def _rules(part: Any) -> Iterator[dict[str, Any]]:
    """All rules of a normalizer or pre-tokenizer, nested ones included."""
    if isinstance(part, dict):
        yield part
        for inner in part.values():
            yield from _rules(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _rules(inner)


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
