"""The columns of the features that a model was trained on, and whether other documents have the same ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scipy import sparse

from labelwise.data.csr import Blocks, widened
from labelwise.errors import DataError, ModelFormatError

MAX_FEATURES = 1 << 31


@dataclass(frozen=True)
class FeatureWidth:
    """Number of columns, and how many of them, the last ones, are the dense block of `Blocks`."""

    columns: int
    dense: int | None = 0
    """None if it is not known: model folders did not always contain it."""

    @classmethod
    def of(cls, features: Any) -> FeatureWidth:
        """The width of training features."""
        dense = features.dense if isinstance(features, Blocks) else None
        return cls(features.shape[1], 0 if dense is None else dense.shape[1])

    def fitted(self, features: Any, open_columns: bool) -> Any:
        """Features with these columns, or a DataError.

        With `open_columns`, sparse features may lack the last columns. Never does a dense block count as missing.
        """
        if isinstance(features, Blocks):
            return self._fitted_blocks(features, open_columns)
        given = features.shape[1]
        if given == self.columns:
            return features
        if open_columns and given < self.columns and not self.dense and sparse.issparse(features):
            return widened(features, self.columns)
        raise self._error(FeatureWidth.of(features))

    def _fitted_blocks(self, features: Blocks, open_columns: bool) -> Blocks:
        given = FeatureWidth.of(features)
        if not self.dense:  # both blocks stand for one matrix
            if given.columns != self.columns:
                raise self._error(given)
            return features
        left, columns = features.sparse, self.columns - self.dense
        if open_columns and left is not None and left.shape[1] < columns:
            features = Blocks(widened(left, columns), features.dense)
            given = FeatureWidth.of(features)
        if given != self:
            raise self._error(given)
        return features

    def _error(self, given: FeatureWidth) -> DataError:
        if not self.dense and not given.dense:
            return DataError(
                f"the model was trained on {self.columns:,} features, the documents have {given.columns:,}; "
                "they need the same columns in the same order"
            )
        return DataError(f"the model was trained on {self}, the documents have {given}; give Blocks with these widths")

    def __str__(self) -> str:
        if self.dense is None:
            return f"{self.columns:,} features"
        return f"{self.columns - self.dense:,} sparse and {self.dense:,} dense features"

    def to_manifest(self) -> dict[str, int | None]:
        """The keys of a model's manifest."""
        return {"n_features": self.columns, "n_dense_features": self.dense}

    @classmethod
    def from_manifest(cls, manifest: dict[str, Any], path: Any, next_to_texts: bool = False) -> FeatureWidth | None:
        """From the keys of a manifest, which may be untrusted; None for a model that reads no features."""
        columns, dense = manifest.get("n_features"), manifest.get("n_dense_features")
        if manifest.get("input") != "features" and not next_to_texts:
            sound = columns is None and dense is None
        else:
            sound = type(columns) is int and 0 <= columns < MAX_FEATURES
            sound = sound and (dense is None or (type(dense) is int and 0 <= dense <= columns))
        if not sound:
            raise ModelFormatError(f"{path}: the numbers of features do not fit the manifest")
        return None if columns is None else cls(columns, dense)
