"""Planted data, under the name that tests know it by."""

from labelwise.testing.planted import *  # noqa: F403
