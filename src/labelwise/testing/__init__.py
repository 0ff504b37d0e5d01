"""Checks that every method must pass, for methods of this package and of others: `check_method`."""

from labelwise.testing.check_method import ConformanceError, check_method

__all__ = ["ConformanceError", "check_method"]
