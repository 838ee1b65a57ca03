"""docs/limits.md and docs/silent.md: every entry names the tests that pin it, and every such test has its entry."""

import ast
import functools
import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
SILENT = "Silent cases"
SECTIONS = ["On every framework", "JAX", "PyTorch", "TensorFlow", "NumPy", "Keras"]

pytestmark = pytest.mark.only("numpy")


def split(page, marks):
    """The text under each heading of one level, by its title."""
    _, *parts = re.split(rf"^{marks} (.*)$", page, flags=re.MULTILINE)
    return list(zip(parts[::2], parts[1::2], strict=True))


@functools.cache
def entries():
    """`(section, title, bullets, names of tests)` for each entry of both pages."""
    sections = [*split((DOCS / "limits.md").read_text(), "##"), *split((DOCS / "silent.md").read_text(), "#")]
    found = []
    for section, text in sections:
        for title, body in split(text, "##" if section == SILENT else "###"):
            comments = re.findall(r"^<!-- (.*) -->$", body, re.MULTILINE)
            bullets = [" ".join(bullet.split()) for bullet in re.split(r"^- ", body, flags=re.MULTILINE)[1:]]
            found.append((section, title, bullets, " ".join(comments).split()))
    return found


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


def test_every_entry_has_its_tests_and_every_such_test_its_entry():
    named = {name for *_, names in entries() for name in names}
    assert sorted(named) == sorted(set(marked()))
    assert len(marked()) == len(set(marked())), "two tests of one name, of which pytest runs one"


def test_every_entry_ends_with_what_to_do_instead():
    for _, title, bullets, names in entries():
        assert len(bullets) > 1 and all(bullets) and names, title
        last = [place for place, bullet in enumerate(bullets, 1) if bullet.startswith("**Instead:** ")]
        assert last == [len(bullets)], title


def test_the_silent_cases_have_a_page_of_their_own_and_say_where():
    assert list(dict.fromkeys(section for section, *_ in entries())) == [*SECTIONS, SILENT]
    for section, title, bullets, _ in entries():
        assert bullets[0].startswith("**Where:** ") == (section == SILENT), title
        assert section == SILENT or "silent" not in " ".join([title, *bullets]).lower(), title


def test_every_entry_has_an_anchor_of_its_own():
    """Two headings of one title would get anchors that depend on their order."""
    titles = [title.lower() for _, title, *_ in entries()]
    assert sorted(set(titles)) == sorted(titles)
