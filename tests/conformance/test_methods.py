"""Every registered method through every check."""

import pytest

from conformance.checks import CHECKS
from labelwise.registry import METHODS, method_class

# Parameters that make a method small enough for the suite; a new method that needs some adds a line.
SMALL: dict[str, dict] = {}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("check", CHECKS)
def test_method_conforms(name, check, tmp_path):
    CHECKS[check](lambda: method_class(name)(**SMALL.get(name, {})), tmp_path)
