"""Every method, those of installed plug-ins too, through every check."""

import pytest

from conformance.small import SMALL, small_and_short
from labelwise.registry import method_class, method_names
from labelwise.testing.folder_checks import CHECKS
from labelwise.testing.subject import Subject

FIT_AGAIN = {
    "is_deterministic", "fit_again_forgets", "more_places_than_labels", "empty_rows", "sklearn_manners", "never_dense",
    "calibration_keeps_the_ranking",
}  # fmt: skip
"""Checks that fit models of their own, whatever these learn; networks are trained for a few steps there."""


@pytest.fixture(scope="module")
def subjects():
    """Methods with the models that checks share, by name and by whether their training is short."""
    return {
        (name, short): Subject(
            lambda name=name, short=short: method_class(name)(
                **(small_and_short(name, steps=20) if short else SMALL.get(name, {}))
            )
        )
        for name in method_names()
        for short in (False, True)
    }


@pytest.mark.parametrize("name", method_names())
@pytest.mark.parametrize("check", CHECKS)
def test_method_conforms(name, check, subjects, tmp_path):
    CHECKS[check](subjects[name, check in FIT_AGAIN], tmp_path)


def test_checks_that_fit_again_exist():
    assert set(CHECKS) >= FIT_AGAIN
