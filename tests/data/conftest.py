"""Fixtures of the tests of data."""

import pytest

from data.faulty_server import FaultyServer


@pytest.fixture
def server():
    with FaultyServer() as running:
        yield running
