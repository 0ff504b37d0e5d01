"""Every method, those of installed plug-ins too, through every check."""

import pytest

from conformance.small import SMALL, small_and_short
from labelwise.registry import can, method_class, method_names
from labelwise.testing.checks import CHECKS
from labelwise.testing.subject import Subject

STEPS, DOCUMENTS = 6, 240
ELSEWHERE = ("resumes_exactly", "never_reuses")
"""Checks that `test_unfinished_work.py` runs."""


def needs_learning(name, check):
    """Whether a check is about what a model has learned; in all others networks are trained for a few steps only."""
    return check == "solves_planted_data" or (check == "learns_more" and can(method_class(name), "learned"))


def trained(name):
    """Learns from arrays, if it reads these and files of images: that both give the same is a test of such methods."""
    method = method_class(name)
    kinds = method(**SMALL.get(name, {})).fact("inputs")
    learned = [kind for kind in kinds if kind != "paths" or "arrays" not in kinds]
    return Subject(lambda: method(**SMALL.get(name, {})), learned)


def trained_briefly(name):
    return Subject(lambda: method_class(name)(**small_and_short(name, steps=STEPS)), n_documents=DOCUMENTS)


@pytest.fixture(scope="module")
def subjects():
    """Methods with the models that checks share, by name and by whether they need learning."""
    makers = {True: trained, False: trained_briefly}
    return {(name, learning): make(name) for name in method_names() for learning, make in makers.items()}


@pytest.mark.parametrize("name", method_names())
@pytest.mark.parametrize("check", [check for check in CHECKS if check not in ELSEWHERE])
def test_method_conforms(name, check, subjects, tmp_path):
    CHECKS[check](subjects[name, needs_learning(name, check)], tmp_path)


def test_the_check_that_needs_learning_exists():
    assert {"solves_planted_data", "learns_more", *ELSEWHERE} <= set(CHECKS)
