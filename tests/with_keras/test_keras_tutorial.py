"""docs/tutorial.md: its Python runs on every backend."""

import pathlib

import pages
import pytest
from export import WARNINGS

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "tutorial.md"
pytestmark = WARNINGS


@pytest.mark.filterwarnings("ignore:overflow")
def test_python_blocks(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run(PAGE, tmp_path)
