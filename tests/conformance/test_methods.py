"""Every registered method through every check."""

import pytest

from conformance.folder_checks import CHECKS
from conformance.small import SMALL
from conformance.subject import Subject
from labelwise.registry import METHODS, method_class


@pytest.fixture(scope="module")
def subjects():
    """Methods with the models that checks share."""
    return {name: Subject(lambda name=name: method_class(name)(**SMALL.get(name, {}))) for name in METHODS}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("check", CHECKS)
def test_method_conforms(name, check, subjects, tmp_path):
    CHECKS[check](subjects[name], tmp_path)
