"""What methods with a text encoder share, whether they train it or not: where it comes from, and its documents."""

from __future__ import annotations

import numpy as np

from labelwise.model.folder import read_training_documents
from labelwise.model.old_method import OldMethod as Method
from labelwise.nn.config import EncoderConfig
from labelwise.nn.text.saved_encoder import saved_folder


def documents_of_encoder(encoder: EncoderConfig) -> list[np.ndarray]:
    """Hashes of the documents that a saved model's encoder was trained on."""
    folder = None if encoder.starts_random else saved_folder(encoder.model)
    before = None if folder is None else read_training_documents(folder)
    return [] if before is None else [before.hashes]


class UsesTextEncoder(Method):
    """A method whose Config has a section `encoder`, an `EncoderConfig`."""

    needs = ("torch", "transformers")
    inputs = ("texts",)
    same_on_any_threads = False
    encodes = True
    attends = True
