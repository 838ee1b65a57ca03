"""The documentation site has every page of docs, and its reference every public name. `nox -s docs` tries its links."""

import inspect
import pathlib
import re

import programs
import pytest

from keras_cg import ops, recipes

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PUBLIC = ROOT / "tests" / "docs" / "public.txt"  # compared with the package by test_public.py

pytestmark = pytest.mark.only("numpy")


def test_every_page_is_in_the_navigation():
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    # The files of these five are at the top of the repository; README is the home page.
    top = {"changelog.md", "conduct.md", "contributing.md", "index.md", "security.md"}
    assert sorted(named) == sorted({*top, *(page for page in pages if not page.startswith("reports/"))})


def test_every_report_is_linked_from_the_evidence():
    links = re.findall(r"\]\((reports/[\w.]+)\)", (DOCS / "evidence.md").read_text())
    assert sorted(links) == sorted(path.relative_to(DOCS).as_posix() for path in (DOCS / "reports").glob("*.md"))


def test_the_gallery_has_every_recipe_and_every_example():
    parts = re.findall(
        r"^### \[(\w+)\]\((\S+)\)\n\n.+\n\n!\[.+\]\((\S+)\)$", (DOCS / "gallery.md").read_text(), re.MULTILINE
    )
    links = {f"../examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}
    links |= {f"recipes.md#{name}" for name in recipes.__all__}
    assert {link for _, link, _ in parts} == links
    assert all((DOCS / picture).exists() for *_, picture in parts)


@pytest.mark.parametrize("name", ["rule", "how-it-works"])
def test_a_drawing_has_colours_for_dark_pages(name):
    light, _, dark = (DOCS / f"{name}.svg").read_text().partition("@media (prefers-color-scheme: dark)")
    light, dark = (set(re.findall(r"([.\w-]+) \{[^}]*#\w", part)) for part in (light, dark))
    assert light - {".first", ".light"} == dark  # these two are white on blue on every page


def test_the_link_to_the_repository_asks_no_server():
    # Material's script fetches the stars of each link with this component.
    assert "data-md-component" not in (DOCS / "theme" / "partials" / "source.html").read_text()


def test_a_release_begins_with_at_most_ten_changes_and_has_the_headings_of_keep_a_changelog():
    _, *releases = (ROOT / "CHANGELOG.md").read_text().split("\n## ")
    for release in releases:
        first, *others = release.split("\n### ")
        assert 1 <= first.count("\n- ") <= 10, first
        headings = {re.match(r"\w+", other)[0] for other in others}
        assert headings <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def without_code(page):
    return re.sub(r"^(```|~~~).*?^\1", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def test_a_link_that_reads_as_a_title_has_the_title_of_its_page():
    found = []
    for page in DOCS.rglob("*.md"):
        for text, target in re.findall(r"(?<!!)\[([^\]]*)\]\(((?!http)[^)#\s]+\.md)\)", without_code(page)):
            path = page.parent / target
            # The home page is README.
            title = re.search(r"^# (.*)$", path.read_text(), re.MULTILINE)[1] if path.name != "index.md" else text
            if text[:1].isupper() and text.replace("`", "") != title.replace("`", ""):
                found.append(f"{page.name}: [{text}] leads to {title!r}")
    assert found == []


def test_every_public_name_is_in_the_reference():
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    told = re.findall(r"^::: (\S+)$", text, re.MULTILINE)
    lines = PUBLIC.read_text().splitlines()
    names = {re.match(r"(?:class )?([\w.]+)", line)[1] for line in lines}
    classes = {name for name in names if any(line.startswith(f"class {name}(") for line in lines)}
    # A class is told with what it has.
    assert {name for name in names if name.rpartition(".")[0] not in classes} - set(told) == set()
    assert len(told) == len(set(told))


@pytest.fixture(scope="module")
def to_mathml():
    return programs.load(DOCS / "formulas.py").to_mathml


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("y = x^2", "<mi>y</mi><mo>=</mo><msup><mrow><mi>x</mi></mrow><mrow><mn>2</mn></mrow></msup>"),
        ("x_k", "<msub><mrow><mi>x</mi></mrow><mrow><mi>k</mi></mrow></msub>"),
        ("a_scale", "<mi>a_scale</mi>"),
        ("a / b", "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi></mrow></mfrac>"),
        ("1 / (2)", "<mfrac><mrow><mn>1</mn></mrow><mrow><mn>2</mn></mrow></mfrac>"),
        ("a b/c", '<mi>a</mi><mspace width="0.2em"/><mfrac><mrow><mi>b</mi></mrow><mrow><mi>c</mi></mrow></mfrac>'),
        ("dL/dx", "<mfrac><mrow><mi>∂</mi><mi>L</mi></mrow><mrow><mi>∂</mi><mi>x</mi></mrow></mfrac>"),
        ("f(x)", "<mrow><mi>f</mi><mo>&#x2061;</mo><mo>(</mo><mi>x</mi><mo>)</mo></mrow>"),
        ("f (x)", '<mi>f</mi><mspace width="0.2em"/><mrow><mo>(</mo><mi>x</mi><mo>)</mo></mrow>'),
        ("-a - b", '<mo form="prefix">&minus;</mo><mi>a</mi><mo>&minus;</mo><mi>b</mi>'),
        ("sqrt(x)", "<msqrt><mi>x</mi></msqrt>"),
        ("|x| where x >= 0", "<mrow><mo>|</mo><mi>x</mi><mo>|</mo></mrow><mtext>&nbsp;where&nbsp;</mtext><mi>x</mi>"),
        ("a,    b", '<mi>a</mi><mo>,</mo><mspace width="1.5em"/><mi>b</mi>'),
    ],
)
def test_a_formula_becomes_mathml(to_mathml, formula, expected):
    assert to_mathml(formula, is_line=True).startswith(f'<math displaystyle="true">{expected}')


def test_a_formula_in_a_sentence_has_low_fractions(to_mathml):
    slash = '<mo lspace="0" rspace="0">/</mo>'
    divisor = "<mrow><mo>(</mo><mi>b</mi><mo>)</mo></mrow>"
    assert to_mathml("a / (b)") == f"<math><mrow><mi>a</mi>{slash}{divisor}</mrow></math>"


@pytest.mark.parametrize("formula", ["(x", "x)", "f(x", "|x", "x_", "/ x", "x /", "x & y", "x^"])
def test_a_wrong_formula_raises(to_mathml, formula):
    with pytest.raises(ValueError, match=r"formula|parenthesis"):
        to_mathml(formula)


@pytest.mark.parametrize("name", [*recipes.__all__, *(name for name in ops.__all__ if name != "custom_gradient")])
def test_the_formulas_are_in_the_notation(to_mathml, name):
    text = inspect.getdoc(getattr(recipes, name, None) or getattr(ops, name)).partition("\nArgs:\n")[0]
    formulas = re.findall(r"^ {4}(\S.*)", text, re.MULTILINE)
    assert formulas or name in ("recompute", "stop_gradient")  # whose gradient is that of the function, or 0
    for formula in formulas:
        assert "<math" in to_mathml(formula, is_line=True)
