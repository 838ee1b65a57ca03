"""Every Python block of the README runs, on every backend."""

import pathlib

import pages
import pytest

README = pathlib.Path(__file__).parent.parent / "README.md"


@pytest.mark.filterwarnings("ignore:overflow")
def test_readme(backend, tmp_path):
    pages.run(README, tmp_path)
