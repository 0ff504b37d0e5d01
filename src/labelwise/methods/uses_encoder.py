"""What methods with a text encoder share."""

from __future__ import annotations

from labelwise.model.folder import documents_of_encoder as documents_of_encoder
from labelwise.model.old_method import OldMethod as Method


class UsesTextEncoder(Method):
    """A method whose Config has a section `encoder`, an `EncoderConfig`."""

    needs = ("torch", "transformers")
    inputs = ("texts",)
    same_on_any_threads = False
    encodes = True
    attends = True
