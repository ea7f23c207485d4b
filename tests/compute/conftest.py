"""Machines with tenants; tenants.py says what they are."""

import pytest
from tenants import CANTLE, GATE, STUB, Box, load_program, machines


def pytest_collection_modifyitems(items):
    machines.skip_unless_built(items, CANTLE, STUB, GATE)


@pytest.fixture(autouse=True, scope="session")
def ahead_of_others():
    """As the arbiter does."""
    with machines.ahead_of_others():
        yield


@pytest.fixture(scope="session")
def load():
    with load_program() as program:
        yield program


@pytest.fixture
def box(load):
    box = Box(load)
    yield box
    box.end()


@pytest.fixture
def pair(load):
    """A machine with two GPUs."""
    box = Box(load, "2xA100-40GB")
    yield box
    box.end()
