"""The words of the package, its pages and tests: names, docstrings, comments and messages use the terms of the field.

A word below is banned because it stood for a term, or because it made a sentence hard to read. The failure names the
file, the line, the word and what to write instead.
"""

import ast
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.only("numpy")

# Banned in prose and in names, with what to write instead.
PROSE = {
    "anew": "again",
    "besides": "also, in addition to",
    "deaf": "not recording",
    "hiding": "containing tensors",
    "laid": "flattened",
    "lay": "flatten",
    "mend": "fix",
    "mended": "fixed",
    "nobody": "the passive, or you",
    "parted": "split, partitioned",
    "settled": "converged, checked (check_or_nan)",
    "somebody": "the passive, or you",
    "whoever": "the passive, or you",
}
# Banned in the tests, the examples and the changelog, too: no program is the subject of these.
EVERYWHERE = ("anew", "besides", "nobody", "somebody", "whoever")
# Banned in names alone: in a sentence these are ordinary words.
NAMES = {
    "apart": "copies, differs",
    "around": "closure_convert, context",
    "carried": "tied, exported",
    "form": "plan, syntax",
    "given": "bound, arguments",
    "held": "residuals, references",
    "kept": "saved, cached",
    "likes": "specs",
    "made": "built, rebuilt",
    "moving": "active",
    "owned": "callback",
    "site": "call cache, entry",
    "steady": "saved call",
    "still": "pure, unchanged",
    "straight": "fast_path",
    "taken": "captures",
    **PROSE,
}
# How no docstring begins: these words mean nothing without the docstring above.
OPENINGS = {
    "As": "name the thing, such as `Like f, but ...`",
    "That of": "repeat the noun",
    "The same": "name the thing",
    "Those": "repeat the noun",
    "What": "name the thing, or begin with a verb: Returns, Finds, Whether",
    "Whoever": "the passive, or you",
}
# Names that are not ours to choose, or that the field uses.
EXCEPTIONS = ("straight_through", "StraightThrough", "straight-through")


def parts(name):
    """The words of a name in snake_case or CamelCase."""
    for exception in EXCEPTIONS:
        name = name.replace(exception, "")
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def named(tree):
    """Each name that the source of a module defines or reads from an object, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def written(source):
    """Each line of a comment or a string in the source of a module, with its number."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if tokenize.tok_name[token.type] in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
            yield from enumerate(token.string.splitlines(), token.start[0])


def openings(tree):
    """The first words of each docstring that no docstring begins with, with the line."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            text = ast.get_docstring(node) or ""
            for opening in OPENINGS:
                if re.match(rf"{opening}\b", text):
                    yield node.body[0].lineno, opening


def banned(line):
    """The banned words of a line of prose."""
    for exception in EXCEPTIONS:
        line = line.replace(exception, "")
    return [word for word in re.findall(r"[a-z]+", line.lower()) if word in PROSE]


def findings_of_source(path, source):
    """A line for each banned word in the name, the names, the prose and the docstrings of a module."""
    tree = ast.parse(source)
    for part in parts(path.stem):
        if part in NAMES:
            yield f"{path}:1: {part!r} in the name of the file: write {NAMES[part]}"
    for number, name in named(tree):
        for part in parts(name):
            if part in NAMES:
                yield f"{path}:{number}: {part!r} in the name {name!r}: write {NAMES[part]}"
    for number, line in written(source):
        for word in banned(line):
            yield f"{path}:{number}: {word!r}: write {PROSE[word]}"
    for number, opening in openings(tree):
        yield f"{path}:{number}: the docstring begins with {opening!r}: {OPENINGS[opening]}"


def findings_of_page(path, text):
    """A line for each banned word on a page."""
    for number, line in enumerate(text.splitlines(), 1):
        for word in banned(line):
            yield f"{path}:{number}: {word!r}: write {PROSE[word]}"


def findings_of_text(path, text):
    """A line for each word of EVERYWHERE in a file, in names also."""
    for number, line in enumerate(text.splitlines(), 1):
        for word in re.findall(rf"(?<![a-z])(?:{'|'.join(EVERYWHERE)})(?![a-z])", line.lower()):
            yield f"{path}:{number}: {word!r}: write {PROSE[word]}"


def assert_clean(findings):
    """Fails with all findings of all files."""
    found = [line for each in findings for line in each]
    assert found == [], "\n".join(["banned words:", *found])


def test_the_package_uses_the_words_of_the_field():
    paths = [path.relative_to(ROOT) for folder in ("keras_cg", "_keras_cg") for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 100
    assert_clean(findings_of_source(path, (ROOT / path).read_text()) for path in sorted(paths))


def test_the_pages_use_plain_words():
    top = [ROOT / name for name in ("README.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md")]
    paths = [*top, *sorted((ROOT / "docs").rglob("*.md"))]
    assert len(paths) > 20
    assert_clean(findings_of_page(path.name, path.read_text()) for path in paths)


def test_the_tests_and_the_examples_use_plain_words():
    folders = ("tests", "examples", "contrib", "benchmarks")
    paths = [path for folder in folders for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)]
    paths = [ROOT / "noxfile.py", ROOT / "CHANGELOG.md", *sorted({*paths} - {pathlib.Path(__file__)})]
    assert len(paths) > 150
    assert_clean(findings_of_text(path.relative_to(ROOT), path.read_text()) for path in paths)
