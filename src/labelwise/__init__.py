"""labelwise: classification with very many labels.

Public names are imported on first use, so that `import labelwise` is cheap and never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULES = {
    "AttentionXML": "labelwise.methods.attention_xml",
    "BiGRU": "labelwise.methods.bigru",
    "Blocks": "labelwise.data.csr",
    "Dataset": "labelwise.data.dataset",
    "Ensemble": "labelwise.methods.ensemble",
    "HybridLinear": "labelwise.methods.hybrid_linear",
    "LinearFlat": "labelwise.methods.linear_flat",
    "LinearTree": "labelwise.methods.linear_tree",
    "Mach": "labelwise.methods.mach",
    "MheFace": "labelwise.methods.mhe_face",
    "MheImage": "labelwise.methods.mhe_image",
    "MheText": "labelwise.methods.mhe_text",
    "Popularity": "labelwise.methods.popularity",
    "Strings": "labelwise.strings",
    "TextEncoder": "labelwise.methods.text_encoder",
    "TopK": "labelwise.topk",
    "XRTransformer": "labelwise.methods.xr_transformer",
    "concat": "labelwise.data.rows",
    "dataset": "labelwise.data.catalogue",
    "evaluate": "labelwise.metrics.evaluate",
    "load": "labelwise.model.method",
    "read": "labelwise.data.read",
    "read_splits": "labelwise.data.read",
    "set_device": "labelwise.runtime.device",
    "set_threads": "labelwise.runtime.threads",
    "verify": "labelwise.metrics.verification",
    "write": "labelwise.data.write",
    "write_splits": "labelwise.data.write",
}

__all__ = ["__version__", *_MODULES]

if TYPE_CHECKING:
    from labelwise.data.catalogue import dataset as dataset
    from labelwise.data.csr import Blocks as Blocks
    from labelwise.data.dataset import Dataset as Dataset
    from labelwise.data.read import read as read
    from labelwise.data.read import read_splits as read_splits
    from labelwise.data.rows import concat as concat
    from labelwise.data.write import write as write
    from labelwise.data.write import write_splits as write_splits
    from labelwise.metrics.evaluate import evaluate as evaluate
    from labelwise.metrics.verification import verify as verify
    from labelwise.model.method import load as load
    from labelwise.runtime.device import set_device as set_device
    from labelwise.runtime.threads import set_threads as set_threads
    from labelwise.signatures import AttentionXML as AttentionXML
    from labelwise.signatures import BiGRU as BiGRU
    from labelwise.signatures import Ensemble as Ensemble
    from labelwise.signatures import HybridLinear as HybridLinear
    from labelwise.signatures import LinearFlat as LinearFlat
    from labelwise.signatures import LinearTree as LinearTree
    from labelwise.signatures import Mach as Mach
    from labelwise.signatures import MheFace as MheFace
    from labelwise.signatures import MheImage as MheImage
    from labelwise.signatures import MheText as MheText
    from labelwise.signatures import Popularity as Popularity
    from labelwise.signatures import TextEncoder as TextEncoder
    from labelwise.signatures import XRTransformer as XRTransformer
    from labelwise.strings import Strings as Strings
    from labelwise.topk import TopK as TopK


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'labelwise' has no attribute '{name}'")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
