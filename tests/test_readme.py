"""Every Python block of the README runs, on every backend, from top to bottom in one namespace."""

import pathlib

import pytest
from mktestdocs import check_md_file

README = pathlib.Path(__file__).parent.parent / "README.md"


@pytest.mark.filterwarnings("ignore:overflow")
def test_readme(backend):
    assert "```python" in README.read_text()
    check_md_file(README, memory=True)
