"""The framework of the active backend, for the tests that are about one."""

import pytest


@pytest.fixture
def torch(backend):
    return pytest.importorskip("torch")


@pytest.fixture
def tf(backend):
    return pytest.importorskip("tensorflow")
