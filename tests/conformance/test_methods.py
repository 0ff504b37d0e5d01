"""Every method, those of installed plug-ins too, through every check."""

import pytest

from conformance.small import SMALL
from labelwise.registry import method_class, method_names
from labelwise.testing.folder_checks import CHECKS
from labelwise.testing.subject import Subject


@pytest.fixture(scope="module")
def subjects():
    """Methods with the models that checks share."""
    return {name: Subject(lambda name=name: method_class(name)(**SMALL.get(name, {}))) for name in method_names()}


@pytest.mark.parametrize("name", method_names())
@pytest.mark.parametrize("check", CHECKS)
def test_method_conforms(name, check, subjects, tmp_path):
    CHECKS[check](subjects[name], tmp_path)
