"""Any text transformer as an encoder: weights from a folder, a hub name, a saved model, or drawn at random.

Only safetensors are read and no code that comes with weights is ever run. One forward pass gives one vector per
document: the first, last or mean token vector of the last layer, or of the last few layers concatenated; the windows
of a long document are averaged.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.config import validated
from labelwise.errors import ConfigError, LabelwiseError, MissingDependencyError, ModelFormatError
from labelwise.io.folder import (
    CONFIG_FILE,
    MANIFEST,
    STATE_FILE,
    Folder,
    check_weights,
    get_tensor,
    model_folder,
)
from labelwise.nn.config import TINY, EncoderConfig
from labelwise.nn.inputs import as_array, as_tensor, tensors_of
from labelwise.nn.text.int8 import why_not_int8, with_int8_layers
from labelwise.nn.text.tokens import (
    FIRST_TOKEN_FAMILIES,
    TextTokenizer,
    call_guarded,
    check_shapes,
    checked_settings,
    state_of,
)
from labelwise.registry import methods_that
from labelwise.runtime.device import computing_device, seeded, torch_threads
from labelwise.strings import Strings

# --- saved encoder ---
# The text encoder inside a saved model, given as `encoder.model` by the folder of the model or of its run.
#
# A fine-tuned encoder is useful only with the settings it was trained with, so those that decide its vectors come from
# the saved model, and others are refused. Free of torch; `transformer.open_encoder` reads the weights.

# --- encoder files ---
# Checks of a pretrained encoder's folder, without torch, so that they run before anything is loaded.
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


class EncoderSource(NamedTuple):
    """Where a pretrained encoder is."""

    weights: str
    """Folder with config.json and weights, or a name on the hub."""
    tokenizer: str
    local: bool
    """Whether it is a folder."""


def encoder_source(model: str) -> EncoderSource:
    """Find an encoder by its folder, by the folder of a model of XR-Transformer, or by its name on the hub."""
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
        return EncoderSource(str(weights), str(tokenizer), True)
    if folder.exists() or folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise ConfigError(f"encoder.model: {model} is not a folder; give a folder with weights or a hub name")
    return EncoderSource(model, model, False)


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


try:
    import transformers
except ImportError:
    raise MissingDependencyError("transformers", "nn", "a text encoder") from None

log = logging.getLogger("labelwise")

TINY_ARCHITECTURE = {
    "model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 512, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}  # fmt: skip
SHIFTED_POSITIONS = ("roberta", "camembert", "mpnet", "longformer")
"""Families that count positions from the padding id, so that two positions are never used."""
NOT_DATA = ("auto_map", "attn_implementation", "experts_implementation", "quantization_config", "dtype", "torch_dtype")
"""Settings that name code to download or hardware; saved models leave them out."""


_EMPTY_WEIGHTS, _INT8_WEIGHTS = threading.Lock(), threading.Lock()


class TransformerEncoder(nn.Module):
    """A transformer, its tokenizer, and the pooling of token vectors into one vector per document."""

    def __init__(self, backbone: Any, tokenizer: TextTokenizer, config: EncoderConfig) -> None:
        super().__init__()
        pooler = getattr(backbone, "pooler", None)
        if pooler is not None and config.pooling != "pooler":
            backbone.pooler = None  # it would be trained without use
        elif pooler is None and config.pooling == "pooler":
            raise ConfigError(f"encoder.pooling: {backbone.config.model_type} has no pooling layer; use first or mean")
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.config = config
        self._int8: tuple[Any, Any] | None = None
        self._check()
        if config.gradient_checkpointing:
            backbone.gradient_checkpointing_enable({"use_reentrant": False})

    def _check(self) -> None:
        settings, config = self.backbone.config, self.config
        if settings.is_encoder_decoder:
            raise ConfigError(f"encoder.model: {settings.model_type} is an encoder with a decoder; use a plain encoder")
        limit = getattr(settings, "max_position_embeddings", None)
        limit = limit if limit and limit > 0 else None  # XLNet says -1
        if limit and any(word in settings.model_type for word in SHIFTED_POSITIONS):
            limit -= 2
        if limit and config.max_length > limit:
            raise ConfigError(f"encoder.max_length: this model reads at most {limit} tokens, got {config.max_length}")
        try:
            known = self.backbone.get_input_embeddings().num_embeddings
        except (AttributeError, NotImplementedError):
            raise ConfigError(f"encoder.model: {settings.model_type} does not read tokens; use a text model") from None
        if max(self.tokenizer.size - 1, self.tokenizer.pad, *self.tokenizer.prefix, *self.tokenizer.suffix) >= known:
            raise ConfigError(
                f"encoder.model: the tokenizer has {self.tokenizer.size:,} tokens, the weights know {known:,}; "
                "tokenizer and weights must come from the same model"
            )
        if config.layers > settings.num_hidden_layers:
            raise ConfigError(
                f"encoder.layers: this model has {settings.num_hidden_layers} layers, got {config.layers}"
            )

    @property
    def width(self) -> int:
        """Dimension of a document's vector."""
        return int(self.backbone.config.hidden_size) * self.config.layers

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.backbone.parameters()).device

    def forward(self, ids: Tensor, mask: Tensor, documents: Tensor) -> Tensor:
        """Vectors [documents, width] of padded windows [windows, length]."""
        several = self.config.layers > 1
        int8 = self.config.precision == "int8" and torch.is_inference_mode_enabled()
        backbone = self._int8_backbone() if int8 else self.backbone
        output = backbone(input_ids=ids, attention_mask=mask.long(), output_hidden_states=several)
        if self.config.pooling == "pooler":
            pooled = output.pooler_output
        else:
            states = output.hidden_states[-self.config.layers :] if several else (output.last_hidden_state,)
            pooled = torch.cat([self._pooled(state, mask) for state in states], dim=-1)
        count = int(documents[-1]) + 1 if len(documents) else 0
        if count == len(pooled):
            return pooled
        sums = pooled.new_zeros(count, pooled.shape[1]).index_add(0, documents, pooled)
        return sums / torch.bincount(documents, minlength=count).unsqueeze(1)

    def train(self, mode: bool = True) -> TransformerEncoder:
        """As `torch.nn.Module.train`. The 8-bit layers are built again afterwards: fused optimisers change weights
        without changing the version that torch counts.
        """
        if mode:
            self._int8 = None
        return super().train(mode)

    def _int8_backbone(self) -> Any:
        """The backbone with 8-bit layers, built again when weights have changed; itself where that is not possible."""
        with _INT8_WEIGHTS:
            version = [self.device, *((id(part), part._version) for part in self.backbone.parameters())]
            if self._int8 is None or self._int8[0] != version:
                reason = why_not_int8(self.device)
                if reason is not None:
                    log.warning("encoder.precision: %s; texts are encoded in float32", reason)
                with torch.inference_mode(False):
                    built = self.backbone if reason else with_int8_layers(self.backbone)
                self._int8 = (version, built)
            return self._int8[1]

    def _pooled(self, states: Tensor, mask: Tensor) -> Tensor:
        pooling = self.config.pooling
        if pooling == "summary":
            pooling = "first" if self.backbone.config.model_type in FIRST_TOKEN_FAMILIES else "last"
        if pooling == "first":
            return states[:, 0]
        if pooling == "last":
            return states[torch.arange(len(states), device=states.device), mask.sum(1) - 1]
        weights = mask.unsqueeze(-1).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)

    @torch.no_grad()
    def _try(self) -> None:
        """Encode one short text: wrong settings may fail only in the forward pass."""
        ids = [*self.tokenizer.prefix, *([self.tokenizer.pad] * 5), *self.tokenizer.suffix][: self.config.max_length]
        row = torch.tensor([ids])
        with torch_threads():
            self(row, torch.ones_like(row, dtype=torch.bool), torch.zeros(1, dtype=torch.long))

    def attentions(self, ids: Tensor, mask: Tensor) -> Tensor | None:
        """Attention weights [layers, windows, heads, length, length]; slow, for a few documents.

        None for models without attention (FNet, Mamba).
        """
        return self.attention_reader()(ids, mask)

    def attention_reader(self) -> Callable[[Tensor, Tensor], Tensor | None]:
        """`attentions` for several calls while neither the device nor the mode of the encoder changes."""
        # a copy of the modules over the same weights: other threads may predict with this one
        weights = [*self.backbone.parameters(), *self.backbone.buffers()]
        backbone = copy.deepcopy(self.backbone, {id(weight): weight for weight in weights})
        backbone.set_attn_implementation("eager")

        @torch.no_grad()
        def read(ids: Tensor, mask: Tensor) -> Tensor | None:
            output = backbone(input_ids=ids, attention_mask=mask.long(), output_attentions=True)
            attentions = getattr(output, "attentions", None)
            return torch.stack(attentions) if attentions else None

        return read

    # --- files ---

    def state(self) -> dict[str, np.ndarray]:
        """Settings, tokenizer and weights as arrays."""
        text = json.dumps(_plain(json.loads(self.backbone.config.to_json_string(use_diff=False))))
        weights = {f"weights.{key}": as_array(value) for key, value in self.backbone.state_dict().items()}
        return {"config": np.frombuffer(text.encode(), np.uint8), **self.tokenizer.state(), **weights}

    @classmethod
    def restored(cls, tensors: Mapping[str, np.ndarray], config: EncoderConfig, path: Path) -> TransformerEncoder:
        """Rebuild the encoder from what `state` returned. Weights stay memory-mapped."""
        tokenizer = TextTokenizer.restored(tensors, path)
        weights = state_of("weights.", tensors)
        settings = checked_settings(get_tensor(tensors, "config", path), len(weights), path)
        try:
            with _quiet():
                check_shapes(lambda: _architecture(settings), weights, path, config.pooling == "pooler")
                with _empty_weights():
                    backbone = _architecture(settings)
            model = cls(backbone, tokenizer, config)
            _take_weights(backbone, weights, path)
            call_guarded(model.eval()._try, f"{path}: the encoder fails with its settings")
        except ModelFormatError:
            raise
        except (ConfigError, ValueError, TypeError, RuntimeError) as error:
            raise ModelFormatError(f"{path}: the settings of the encoder are damaged: {error}") from None
        return model.eval()


def _take_weights(backbone: Any, arrays: Mapping[str, np.ndarray], path: Path) -> None:
    for name, expected in backbone.state_dict().items():
        array = get_tensor(arrays, name, path)
        if array.shape != tuple(expected.shape) or array.dtype.kind != dtype_kind(expected):
            raise ModelFormatError(f"{path}: the shape of the weight {name} differs from the settings")
    backbone.load_state_dict({key: as_tensor(value) for key, value in arrays.items()}, strict=True, assign=True)


def dtype_kind(tensor: Tensor) -> str:
    """NumPy's `dtype.kind` of a tensor's numbers."""
    return "f" if tensor.dtype.is_floating_point else "b" if tensor.dtype == torch.bool else "i"


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that could download code, or that name the folder they came from."""
    return {key: value for key, value in settings.items() if key not in NOT_DATA and not key.startswith("_")}


def _architecture(settings: Mapping[str, Any]) -> Any:
    """A transformer with the given settings and random weights (or none, inside `_empty_weights`)."""
    try:
        return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**_plain(settings)))
    except Exception as error:  # settings can break a constructor in any way
        raise ConfigError(f"encoder.architecture: {' '.join(str(error).split())[:300]}") from None


@contextmanager
def _empty_weights() -> Iterator[None]:
    """Modules that this thread builds have parameters on the meta device; buffers, which files may lack, are real."""
    thread = threading.get_ident()

    def register_empty(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and threading.get_ident() == thread:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    with _EMPTY_WEIGHTS:
        register = nn.Module.register_parameter
        nn.Module.register_parameter = register_empty  # type: ignore[bad-assignment]
        try:
            yield
        finally:
            nn.Module.register_parameter = register  # type: ignore[bad-assignment]


# --- where an encoder comes from ---------------------------------------------------------------------------------


def open_encoder(config: EncoderConfig, texts: Strings, seed: int) -> TransformerEncoder:
    """Open the encoder of a config: pretrained, that of a saved model, or with random weights.

    With random weights, the tokenizer is trained on the texts.
    """
    reason = why_not_int8(computing_device()) if config.precision == "int8" else None
    if reason is not None:
        raise ConfigError(f"encoder.precision: {reason}; use float32")
    if config.starts_random:
        tokenizer = TextTokenizer.trained(texts, config.vocabulary)
        settings = {**(config.architecture or TINY_ARCHITECTURE), "vocab_size": tokenizer.size}
        settings.setdefault("pad_token_id", tokenizer.pad)
        with _quiet(), seeded(seed):
            return TransformerEncoder(_architecture(settings), tokenizer, config)
    folder = saved_folder(config.model)
    return _pretrained(config) if folder is None else _from_saved_model(config, folder)


def _from_saved_model(config: EncoderConfig, folder: Folder) -> TransformerEncoder:
    """A copy of the encoder of a saved model, which may be trained further."""
    check_encoder(config)
    path = folder.file(STATE_FILE)
    state = state_of(f"{SECTION}.", folder.tensors(STATE_FILE))
    if "tokenizer" not in state:
        raise no_encoder(config.model, folder)
    check_weights(state, path)
    return TransformerEncoder.restored({name: np.array(value) for name, value in state.items()}, config, path)


def _pretrained(config: EncoderConfig) -> TransformerEncoder:
    source, tokenizer_source, local = encoder_source(config.model)
    if not local:
        log.info("encoder: %s is no folder, it is taken from the Hugging Face hub or from the hub's cache", source)
    try:
        with _quiet():
            settings = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
            settings._attn_implementation = None  # torch's own where the model can, never a kernel that files name
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tokenizer_source, trust_remote_code=False)
            backbone, loading = transformers.AutoModel.from_pretrained(
                source,
                config=settings,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
            )
    except MemoryError:
        raise
    except Exception as error:  # files can break a library in any way: its own errors, safetensors', validators'
        raise ConfigError(f"encoder.model: {_why(source, local, error)}") from None
    # transformers draws missing weights at random. Only a pooler that is not used may be missing.
    unused = () if config.pooling == "pooler" else ("pooler.",)
    drawn = sorted(name for name in loading["missing_keys"] if not name.startswith(unused))
    if drawn:
        raise ConfigError(
            f"encoder.model: {source} lacks {len(drawn):,} of the weights that its config.json describes, for example "
            f"{drawn[0]}; config.json and weights must come from the same model"
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(f"encoder.model: {source} has no fast tokenizer (tokenizer.json)")
    # A model without a table of tokens is refused by the encoder itself.
    with suppress(AttributeError, NotImplementedError):
        rows = backbone.get_input_embeddings().num_embeddings
        check_vocabulary(source, tokenizer.get_vocab(), tokenizer.all_special_tokens, rows)
    pads = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    pad = next(int(value) for value in pads if value is not None)
    return TransformerEncoder(backbone, TextTokenizer(backend, pad), config)


def _why(source: str, local: bool, error: Exception) -> str:
    """Why the weights could not be opened, and what to do about it."""
    said = " ".join(str(error).split())
    if "trust_remote_code" in said or "custom code" in said:
        return f"{source} needs its own code, which labelwise does not run; use a model that is part of transformers"
    if type(error).__name__ == "SafetensorError":
        return (
            f"{source}: a file of weights (.safetensors) is cut off or damaged; copy or download it again. "
            f"The reader said: {said[:200]}"
        )
    if "safetensors" in said or "model.safetensors" in said:
        return why_no_safetensors(source)
    if not local:
        return (
            f"{source} is not a folder and could not be downloaded from the Hugging Face hub (no network, or no such "
            f"model); give the folder of a model on disk. The hub said: {said.split('. ')[0][:200]}"
        )
    return f"{source} cannot be opened: {said[:300]}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress bars and log messages of transformers, and the messages of the hub about each retry."""
    own, hub = transformers.utils.logging, logging.getLogger("huggingface_hub")
    level, bars, hub_level = own.get_verbosity(), own.is_progress_bar_enabled(), hub.level
    own.set_verbosity_error()
    own.disable_progress_bar()
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        own.set_verbosity(level)
        hub.setLevel(hub_level)
        if bars:
            own.enable_progress_bar()


# --- attention ---
# Attention maps of a text encoder for single documents: a few tokens and one map per layer, for drawing.

AttentionReader = Callable[[Tensor, Tensor], Tensor | None]


@dataclass(frozen=True)
class AttentionMap:
    """Attention among the tokens of one document, the mean over heads."""

    tokens: list[str]
    """The tokens shown, special ones included."""
    n_tokens: int
    """Tokens the encoder read; those in the middle are left out when there are more than are shown."""
    weights: np.ndarray
    """[layers, from, to] over the tokens shown; rows sum to 1 if all are. Models without attention have no layers."""
    entropy: np.ndarray
    """Per layer the entropy of attention over ln(tokens), the mean over tokens and heads; 1 is uniform."""


@torch.inference_mode()
def attention_maps(encoder: TransformerEncoder, texts: Strings, max_tokens: int) -> list[AttentionMap]:
    """Maps of at most `max_tokens` tokens of each text's first window: its start and the special tokens at its end."""
    encoder.eval()
    tokens = encoder.tokenizer.encode(texts, encoder.config)
    read, maps = encoder.attention_reader(), []
    for document in range(len(tokens)):
        inputs = tensors_of(tokens.batch(np.array([document])), encoder.device)
        attended, mask = attention_of_first(read, inputs)
        ids, length = inputs[0], mask.shape[1]
        if attended is None:
            attended = ids.new_zeros(0, 1, 1, length, length)
        entropy = np.array(attention_entropy(attended.double(), mask))
        after = len(tokens.suffix)
        positions = np.arange(length)
        if length > max_tokens:
            positions = np.concatenate([positions[: max_tokens - after], positions[length - after :]])
        shown = attended[:, 0].double().mean(1).cpu().numpy()[:, positions][:, :, positions]  # the mean over heads
        words = encoder.tokenizer.words(ids[0].cpu().numpy()[positions].tolist())
        maps.append(AttentionMap(words, length, shown, entropy))
    return maps


def attention_of_first(read: AttentionReader, inputs: Sequence[Tensor]) -> tuple[Tensor | None, Tensor]:
    """Attention weights of the first window of a batch, without padding, and its mask [1, length].

    `read` is the encoder's `attention_reader()`.
    """
    ids, mask = inputs[0][:1], inputs[1][:1]
    length = int(mask.sum())
    return read(ids[:, :length], mask[:, :length]), mask[:, :length]


def attention_entropy(weights: Tensor, mask: Tensor) -> tuple[float, ...]:
    """Per layer the entropy of attention over ln(tokens), the mean over heads and tokens.

    `weights` is [layers, documents, heads, tokens, tokens]. Documents of one token are left out.
    """
    lengths = mask.sum(1)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean(2)  # [layers, documents, tokens]
    relative = entropy / lengths.clamp_min(2).log()[None, :, None]
    counted = (mask & (lengths > 1).unsqueeze(1)).unsqueeze(0).to(relative.dtype)
    means = (relative * counted).sum((1, 2)) / counted.sum().clamp_min(1)
    return tuple(round(float(mean), 6) for mean in means)
