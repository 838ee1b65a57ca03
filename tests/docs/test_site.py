"""The documentation site has every page of docs, and its reference every public name. `nox -s docs` tries its links."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PUBLIC = ROOT / "tests" / "docs" / "public.txt"  # compared with the package by test_public.py

pytestmark = pytest.mark.once


def test_every_page_is_in_the_navigation():
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    # The files of these four are at the top of the repository; README is the home page.
    top = {"changelog.md", "contributing.md", "index.md", "security.md"}
    assert sorted(named) == sorted({*top, *(page for page in pages if not page.startswith("reports/"))})


def test_every_report_is_linked_from_the_evidence():
    links = re.findall(r"\]\((reports/[\w.]+)\)", (DOCS / "evidence.md").read_text())
    assert sorted(links) == sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "reports").glob("*.md"))


def test_every_public_name_is_in_the_reference():
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    told = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    lines = PUBLIC.read_text().splitlines()
    names = {re.match(r"(?:class )?([\w.]+)", line)[1] for line in lines}
    classes = {name for name in names if any(line.startswith(f"class {name}(") for line in lines)}
    # A class is told with what it has.
    assert {name for name in names if name.rpartition(".")[0] not in classes} - set(told) == set()
    assert len(told) == len(set(told))
