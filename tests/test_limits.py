"""docs/limits.md: every row names the tests that pin it, and every test that pins a limit is named by a row."""

import ast
import functools
import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).parent
PAGE = TESTS.parent / "docs" / "limits.md"
COLUMNS = ["what you do", "what happens", "why", "what to do instead"]
FRAMEWORKS = ["On every framework", "JAX", "PyTorch", "TensorFlow", "NumPy", "Keras"]

pytestmark = pytest.mark.once


def sections(page):
    """The lines of each section, by its title."""
    _, *parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    return dict(zip(parts[::2], map(str.splitlines, parts[1::2]), strict=True))


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(page):
    """`(title, cells, names of tests)` for each row of a table."""
    for title, lines in sections(page).items():
        for line in [line for line in lines if line.startswith("|")][2:]:
            *others, last = cells(line)
            instead, _, comment = last.partition("<!--")
            yield title, [*others, instead.strip()], comment.removesuffix("-->").split()


def pinning(body, inside=""):
    """The names of the tests with the marker, those in classes as well."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from pinning(node.body, f"{node.name}::")
        elif isinstance(node, ast.FunctionDef) and "pytest.mark.limit" in map(ast.unparse, node.decorator_list):
            yield inside + node.name


@functools.cache
def marked():
    """What pins a limit: read from the source, since most of it needs a framework to be imported."""
    return [
        f"{file.relative_to(TESTS).as_posix()}::{name}"
        for file in sorted(TESTS.rglob("test_*.py"))
        for name in pinning(ast.parse(file.read_text()).body)
    ]


def test_every_row_has_its_tests_and_every_such_test_its_row():
    named = {name for _, _, names in rows(PAGE.read_text()) for name in names}
    assert sorted(named) == sorted(set(marked()))
    assert len(marked()) == len(set(marked())), "two tests of one name, of which pytest runs one"


def test_every_row_is_whole():
    for title, row, names in rows(PAGE.read_text()):
        assert len(row) == len(COLUMNS) and all(row) and names, (title, row)


def test_there_is_a_table_for_each_framework_sorted_by_what_one_is_doing():
    page = PAGE.read_text()
    assert list(sections(page)) == FRAMEWORKS
    for title, lines in sections(page).items():
        assert next(cells(line) for line in lines if line.startswith("|")) == COLUMNS, title
        doing = [re.match(r"\*\*([A-Z][a-z ]*)\*\*", row[0])[1] for where, row, _ in rows(page) if where == title]
        together = [name for place, name in enumerate(doing) if doing[place - 1 : place] != [name]]
        assert len(together) == len(set(together)), f"{title}: {together} has one word at two places"


def test_what_is_not_on_the_page_would_be_seen():
    page = "## JAX\n| a | b |\n|---|---|\n| x | y <!-- test_a.py::test_b test_c.py::test_d --> |\n| z | |\n"
    assert list(rows(page)) == [("JAX", ["x", "y"], ["test_a.py::test_b", "test_c.py::test_d"]), ("JAX", ["z", ""], [])]
    code = (
        "@pytest.mark.limit\ndef test_a(): pass\ndef test_b(): pass\nclass C:\n @pytest.mark.limit\n def test_c(): pass"
    )
    assert list(pinning(ast.parse(code).body)) == ["test_a", "C::test_c"]
