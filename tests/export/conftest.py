"""As for `with_keras`: a process has one Keras on one backend, which must be the one under test."""

from with_keras.conftest import pytest_sessionstart

__all__ = ["pytest_sessionstart"]
