"""Planted data, under the name that tests know it by."""

from labelwise.testing.subject import *  # noqa: F403
