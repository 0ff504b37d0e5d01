"""What only some methods can do: an attribute per capability, and its hook, which raises unless a method overrides it.

The command line and messages use the attributes, never the name of a method.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from labelwise.costs import Constants, Cost, DataShape
from labelwise.data.dataset import Dataset
from labelwise.errors import ConfigError
from labelwise.fit_context import FitContext
from labelwise.methods.inputs import Documents
from labelwise.methods.label_filter import LabelFilter
from labelwise.registry import methods_that
from labelwise.topk import TopK

if TYPE_CHECKING:
    from labelwise.codes.label_path import LabelPath
    from labelwise.codes.tree import LabelTree
    from labelwise.encoders.attention import AttentionMap
    from labelwise.encoders.images import ImageInputs
    from labelwise.methods.card import Card
    from labelwise.methods.learning import LearningReport, NewDocuments


class Capabilities:
    """Base of `Method`: the optional parts of the contract."""

    name: ClassVar[str]
    card_: Card

    changeable: ClassVar[tuple[str, ...]] = ()
    """Parameters that predictions read each time, so that they may be changed after fitting."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Packages that the method needs in addition to those of the core install."""
    good_for: ClassVar[str] = ""
    """In a few words: the data and the machine that the method suits."""
    speed: ClassVar[str] = ""
    """In a few words: how long training takes."""

    reads_all_inputs: ClassVar[bool] = False
    """Whether a model predicts for every type of `inputs`, whatever it was trained on."""
    chooses_labels: ClassVar[bool] = False
    """Whether predictions can be restricted to some labels, and labels weighted."""

    encodes: ClassVar[bool] = False
    """Whether `encode` works: documents have vectors."""
    attends: ClassVar[bool] = False
    """Whether `attention` works: tokens attend to tokens."""
    verifies: ClassVar[bool] = False
    """Whether vectors of images tell whether two show the same: `labelwise verify`."""
    explains: ClassVar[bool] = False
    """Whether `explain` works."""
    shows_pixels: ClassVar[bool] = False
    """Whether `explain` works for images: it returns a `PixelMap` per label."""
    validates: ClassVar[bool] = False
    """Whether `fit` uses its `valid` documents, to stop early or to keep the best weights."""
    learns_more: ClassVar[bool] = False
    """Whether `learn` works: a fitted model can be trained on more documents, which may have new labels."""
    trains_in_parts: ClassVar[bool] = False
    """Whether `fit_parts` works: parts of a model can be trained by separate processes."""
    trains_in_tasks: ClassVar[bool] = False
    """Whether `fit` has work that shares nothing, which an executor may distribute: `train --launcher`."""
    trains_on_ranks: ClassVar[bool] = False
    """Whether `fit` may run in several processes under torchrun, which then train together."""

    refits: ClassVar[bool] = True
    """Whether training again on more documents makes another model: not of models that are trained already."""

    shrinks: ClassVar[bool] = False
    """Whether `shrink` works: trained weights can be pruned or stored in fewer bits."""

    plans: ClassVar[bool] = False
    """Whether `labelwise plan` can say what it costs."""

    def learn(self, data: Any, labels: Any = None, *, old: Any = None) -> LearningReport:
        """Train a fitted model on more documents, which may have new labels, for methods with `learns_more`.

        Much faster than `fit` on all documents and nearly as good, as long as they are few compared with those of
        `fit`; the report says when a full training is due. New labels are appended, others keep their ids.

        Parameters
        ----------
        data, labels
            Documents with their labels, as in `fit`.
        old
            A Dataset of documents that the model was trained on. Known documents in `data` are then skipped, or
            learned with their changed labels, and new labels are trained against old documents, which makes them as
            good as in `fit`.
        """
        from labelwise.methods.learning import learn

        return learn(self, data, labels, old)  # type: ignore[bad-argument-type]

    def shrink(self, *, precision: str | None = None, threshold: float | None = None) -> Self:
        """A smaller model, without training; this one does not change. For methods with `shrinks`.

        Parameters
        ----------
        precision
            Store the weights as `float16` or `int8`.
        threshold
            Drop weights with an absolute value below this.

        Returns
        -------
        Method
            For linear methods the model that training with this `precision` and `solver.threshold` gives (without
            `matcher` negatives, which depend on the weights). The calibration is kept; scores differ slightly.
        """
        self._check_fitted()
        if precision is None and threshold is None:
            raise ConfigError("shrink needs a precision, such as int8, a threshold, such as 0.2, or both")
        smaller = self._shrink(precision, threshold)
        dropped = [] if threshold is None else [f"weights below {threshold:g} dropped"]
        stored = [] if precision is None else [f"weights stored as {precision}"]
        smaller.card_ = self.card_.with_change(f"shrunk: {', '.join(dropped + stored)}")
        return smaller

    def sibling_groups(self) -> np.ndarray | None:
        """For each label (by its id) the group of labels that the first tree separates last; None without a tree."""
        tree = self._label_tree()
        return None if tree is None or tree.depth < 2 else tree.ancestors(tree.depth - 2)

    def _label_tree(self) -> LabelTree | None:
        """The first tree over labels, of methods that have some."""
        return None

    @classmethod
    def saved_learns_more(cls, config: Any, arrays: Collection[str]) -> bool:
        """Whether a saved model with these parameters, and arrays of these names, can `learn`."""
        return cls.learns_more

    def _check_fitted(self) -> None:
        raise NotImplementedError

    # --- hooks ---

    def _predict_chosen(self, data: Documents, k: int, chosen: LabelFilter) -> TopK:
        """The best k labels with some left out or weighted, for methods with `chooses_labels`."""
        raise ConfigError(f"{self.name} cannot leave out or weight labels; {methods_that('chooses_labels')} can")

    def _explain(self, data: Documents, labels: np.ndarray) -> list[list[LabelPath]]:
        """Per tree the paths of some labels (ids), for one document."""
        raise ConfigError(f"{self.name} cannot explain its predictions; {methods_that('explains')} can")

    def _top_contributions(self, data: Documents, labels: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Features with the largest positive contributions [documents, k, count], -1 for none, and the amounts.

        For methods with `explains`; a method that can do better than one explanation per document overrides it.
        """
        from labelwise.methods.top_words import contributions_one_by_one

        return contributions_one_by_one(self, data, labels, count)

    def _encode(self, data: Documents) -> np.ndarray:
        """The documents' vectors."""
        raise ConfigError(f"{self.name} has no document vectors; {methods_that('encodes')} can")

    def image_vectors(self, data: Documents | ImageInputs) -> np.ndarray:
        """Vectors of images, whatever the model was trained on; their norms have a meaning."""
        raise ConfigError(f"{self.name} has no vectors to compare images by; {methods_that('verifies')} has")

    def _attention(self, data: Documents, tokens: int) -> list[AttentionMap]:
        """The documents' attention."""
        raise ConfigError(f"{self.name} has no attention among tokens; {methods_that('attends')} has")

    def _feature_names(self, columns: np.ndarray) -> list[str] | None:
        """Names of some features, or None if unknown."""
        return None

    def _counted_words(self, words: Sequence[str]) -> list[str]:
        """What each word of a text is counted as, '' if it is not; to find the words of explanations in a text."""
        return [word.lower() for word in words]

    def _shrink(self, precision: str | None, threshold: float | None) -> Self:
        """A smaller model: weights in this precision, and without those below the threshold (None: as they are)."""
        raise ConfigError(f"{self.name} cannot be shrunk after training; {methods_that('shrinks')} can")

    def _check_restored(self) -> None:
        """Check what `_restore` has left to be checked at the first use; not called with `verify=False`."""

    def _learn(self, new: NewDocuments) -> tuple[int, tuple[str, ...]]:
        """Train on more documents, for methods with `learns_more`; an error must leave the model unchanged.

        Returns the number of new features, and the reasons why a full training is due.
        """
        raise NotImplementedError

    def _cost(self, shape: DataShape, constants: Constants) -> Cost:
        """What training and prediction cost with the current parameters, for methods with `plans`."""
        raise ConfigError(f"{self.name} has no model of its cost; {methods_that('plans')} can be planned")

    def check_parts(self, numbers: Sequence[int]) -> Path:
        """Raise unless these parts can be trained alone; returns the folder of finished ones."""
        raise ConfigError(f"{self.name} is not made of repetitions; {methods_that('trains_in_parts')} is")

    def fit_parts(
        self, data: Dataset, numbers: Sequence[int], valid: Dataset | None = None, context: FitContext | None = None
    ) -> Path:
        """Train some parts and write them to the folder of `check_parts`, which is returned."""
        return self.check_parts(numbers)
