"""What methods with a text encoder share, whether they train it or not: where it comes from, and its documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from labelwise.errors import check_installed
from labelwise.model.fitted import read_training_documents
from labelwise.model.method import Method
from labelwise.nn.text.saved_encoder import check_encoder, saved_folder, with_saved_settings


class UsesTextEncoder(Method):
    """A method whose Config has a section `encoder`, an `EncoderConfig`."""

    needs = ("torch", "transformers")
    inputs = ("texts",)
    same_on_any_threads = False
    encodes = True
    attends = True

    @classmethod
    def completed_parameters(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters, with settings of the encoder of a saved model that they name."""
        return with_saved_settings(given)

    def check_needs(self) -> None:
        """Raise if a package or the encoder is missing."""
        super().check_needs()
        check_installed(self.name, "nn", *self.needs)
        check_encoder(self.config.encoder)

    def _documents_behind(self, hashes: np.ndarray) -> np.ndarray:
        encoder = self.config.encoder
        folder = None if encoder.starts_random else saved_folder(encoder.model)
        before = None if folder is None else read_training_documents(folder)
        return hashes if before is None else np.concatenate([hashes, before.hashes])
