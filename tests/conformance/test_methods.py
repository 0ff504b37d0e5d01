"""Every registered method through every check."""

import pytest

from conformance.checks import CHECKS
from conformance.small import SMALL
from labelwise.registry import METHODS, method_class


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("check", CHECKS)
def test_method_conforms(name, check, tmp_path):
    CHECKS[check](lambda: method_class(name)(**SMALL.get(name, {})), tmp_path)
