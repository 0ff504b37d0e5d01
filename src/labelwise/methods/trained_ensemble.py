"""An ensemble of models that were trained one by one, with a combination that was learned from their predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labelwise.ensembles.combine import Combination
from labelwise.methods.ensemble import Ensemble
from labelwise.methods.ensemble_fit import MergedLabels, card_of_members
from labelwise.model.method import Method


def ensemble_of(
    members: Sequence[Method], combination: Combination, learned_on: int, settings: Mapping[str, Any]
) -> Ensemble:
    """The fitted ensemble that a training with these settings would have given.

    Parameters
    ----------
    members
        Trained models with the same labels.
    combination
        How they are combined.
    learned_on
        Held-out documents that the combination was learned on.
    settings
        Parameters of the ensemble, whose `members` are methods with parameters: a refit trains them again.
    """
    model = Ensemble(**settings)
    model.members_, model.combination_, model.learned_on_ = list(members), combination, (learned_on, 0)
    merged = MergedLabels.of(members, None)
    model._columns, model._names, model._counts = merged.columns, merged.names, merged.counts
    model.calibration_, model._loaded_from, model.fitted_config_ = None, None, model.config
    model.label_texts_, model.label_counts_ = None, np.zeros(0, np.int64)
    model.n_documents_, model.trained_on_ = 0, None
    model._describe()
    model.card_ = card_of_members(model)
    return model
