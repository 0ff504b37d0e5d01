"""Any text transformer as an encoder: weights from a folder, a hub name, a saved model, or drawn at random.

Only safetensors are read and no code that comes with weights is ever run. One forward pass gives one vector per
document: the first, last or mean token vector of the last layer, or of the last few layers concatenated; the windows
of a long document are averaged.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from labelwise.errors import ConfigError, ModelFormatError
from labelwise.io.folder import STATE_FILE, Folder, check_weights, get_tensor
from labelwise.nn.config import EncoderConfig
from labelwise.nn.inputs import as_array, as_tensor, tensors_of
from labelwise.nn.text.files import (
    FIRST_TOKEN_FAMILIES,
    SECTION,
    call_configured,
    call_guarded,
    check_encoder,
    check_shapes,
    check_vocabulary,
    checked_settings,
    encoder_source,
    no_encoder,
    saved_folder,
    state_of,
    why_no_safetensors,
)
from labelwise.nn.text.tokens import TextTokenizer
from labelwise.runtime.device import computing_device, seeded, torch_threads
from labelwise.strings import Strings

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

    def attention_reader(self) -> AttentionReader:
        """Computes attention weights [layers, windows, heads, length, length] of ids and mask; for a few documents.

        None for models without attention (FNet, Mamba). It is valid while neither the device nor the mode changes.
        """
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
            backbone.load_state_dict({key: as_tensor(value) for key, value in weights.items()}, assign=True)
            call_guarded(model.eval()._try, f"{path}: the encoder fails with its settings")
        except ModelFormatError:
            raise
        except (ConfigError, ValueError, TypeError, RuntimeError) as error:
            raise ModelFormatError(f"{path}: the settings of the encoder are damaged: {error}") from None
        return model.eval()


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that could download code, or that name the folder they came from."""
    return {key: value for key, value in settings.items() if key not in NOT_DATA and not key.startswith("_")}


def _architecture(settings: Mapping[str, Any]) -> Any:
    """A transformer with the given settings and random weights (or none, inside `_empty_weights`)."""
    return call_configured(
        lambda: transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**_plain(settings))),
        "encoder.architecture",
    )


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
    source, tokenizer_source = encoder_source(config.model)
    local = Path(source).is_dir()
    if not local:
        log.info("encoder: %s is no folder, it is taken from the Hugging Face hub or from the hub's cache", source)
    try:
        with _quiet():
            settings = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
            settings._attn_implementation = None  # torch's own where the model can, never a kernel that files name
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tokenizer_source, trust_remote_code=False)
            unused = () if config.pooling == "pooler" else ("pooler.",)
            backbone = load_weights(source, settings, "encoder.model", unused)
    except (ConfigError, MemoryError):
        raise
    except Exception as error:  # files can break a library in any way: its own errors, safetensors', validators'
        raise ConfigError(f"encoder.model: {_why(source, local, error)}") from None
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


def load_weights(source: str, settings: Any, field: str, unused: tuple[str, ...] = ("pooler.",)) -> Any:
    """A pretrained network of text or images with the weights of its safetensors.

    transformers draws missing weights at random, which is an error here, except those whose names start as `unused`.
    """
    network, loading = transformers.AutoModel.from_pretrained(
        source,
        config=settings,
        use_safetensors=True,
        trust_remote_code=False,
        dtype=torch.float32,
        output_loading_info=True,
    )
    drawn = sorted(name for name in loading["missing_keys"] if not name.startswith(unused))
    if drawn:
        raise ConfigError(
            f"{field}: {source} lacks {len(drawn):,} of the weights that its config.json describes, for example "
            f"{drawn[0]}; config.json and weights must come from the same model"
        )
    return network


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


# --- 8-bit layers ---
# Nearly the same vectors in less time on CPUs; everything else of a network shares memory with the original.
#
# Weights have 7 bits and a scale per output; activations have 8 bits, with an offset and a scale per token that are
# computed from the token itself. torch's dynamic quantisation has one scale per batch: a token with large values makes
# all others coarse, and vectors depend on the other texts of a batch. 8 times 7 bits is what the 16-bit sums of AVX2
# hold without overflow, so the products are the same on all processors.

LEVELS = 255
"""Steps of an activation between the smallest and the largest value of its token."""
MAX_WEIGHT = 64
"""Largest 8-bit weight. Two products of this with 255 fit into 16 bits."""
SMALLEST = 1e-30
"""Smallest scale: its inverse times any activation is finite."""
X86 = ("AVX2", "AVX512")


def why_not_int8(device: torch.device) -> str | None:
    """What keeps a device from computing with 8-bit layers; None if it can."""
    if device.type != "cpu":
        return f"8-bit layers are computed on a CPU, and this is {device.type}"
    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith(X86):
        return f"8-bit layers need an x86 processor with AVX2, and torch uses {capability} here"
    if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")):
        return "this build of torch has no 8-bit linear layers (oneDNN)"
    return None


class Int8Linear(nn.Module):
    """A linear layer with 8-bit weights and, at run time, 8-bit inputs; it computes outputs in float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        scales = (weight.abs().amax(1) / MAX_WEIGHT).clamp_min_(SMALLEST)
        rounded = torch.round(weight / scales.unsqueeze(1))
        self.features = linear.out_features
        self.scales = scales
        self.sums = rounded.sum(1).mul_(scales)
        self.bias = torch.zeros(self.features) if linear.bias is None else linear.bias.detach().float()
        self.zeros = torch.zeros(self.features, dtype=torch.int32)
        self.packed = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), None)

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer's outputs for inputs [..., features]."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        low = rows.amin(1, keepdim=True)
        scale = rows.amax(1, keepdim=True).sub_(low).div_(LEVELS).clamp_min_(SMALLEST)
        inverse = scale.reciprocal()
        rounded = torch.addcmul((low * inverse).neg_().add_(0.5), rows, inverse).to(torch.uint8)
        products = torch.ops.onednn.qlinear_pointwise(
            rounded, 1.0, 0, self.packed, self.scales, self.zeros, None, 1.0, 0, torch.float32, "none", [], "none"
        )
        # in place: pages of another array of this size would take longer than the additions
        products.addcmul_(low * inverse, self.sums)
        outputs = torch.addcmul(self.bias, products, scale, out=products)
        return outputs.reshape(*inputs.shape[:-1], self.features)


def with_int8_layers(module: Any) -> Any:
    """A copy of a module with 8-bit linear layers; everything else shares memory with the original."""
    parts = [*module.parameters(), *module.buffers()]
    copied = copy.deepcopy(module, {id(part): part for part in parts})
    for parent in list(copied.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, Int8Linear(child))
    return copied.eval()


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
