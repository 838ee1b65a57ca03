"""The pages in docs: their Python runs on every backend, and their commands do what they say."""

import html
import pathlib
import re
import shlex
import subprocess
import sys

import pages
import pytest

import keras_cg.recipes

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "checking.md"


def run(*arguments):
    command = [sys.executable, "-m", "keras_cg", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


PAGES = (
    "checking",
    "how-it-works",
    "memory",
    "ops",
    "recipes",
    "upgrade",
    "usage",
    "why-frameworks-differ",
    "wrapping",
)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore:overflow")
def test_python_blocks(backend, page, tmp_path):
    pages.run(ROOT / "docs" / f"{page}.md", tmp_path)


def test_python_blocks_of_the_digits(backend, tmp_path):
    pytest.importorskip("sklearn")
    pages.run(ROOT / "docs" / "two-bits.md", tmp_path)


def marks(report, backend):
    """The cells of a backend in the table of a report, without numbers, which rounding changes."""
    head, *rows = [re.split(r"\s*│\s*", line) for line in report.splitlines() if line.startswith("│")]
    cells = {row[1]: row[head.index(backend)] for row in rows if row[1] != "agreement"}  # which takes several backends
    return {check: re.sub(r" \d.*", "", cell) for check, cell in cells.items()}


def test_the_bug_is_found_as_the_page_says_and_the_picture_shows(backends):
    shown = re.search(r"<!-- output -->\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    picture = (ROOT / "docs" / "check.svg").read_text(encoding="utf-8")
    # A line of the terminal is several texts at one height.
    lines = {}
    for height, text in re.findall(r'<text class="check-r\d+" x="[^"]*" y="([^"]*)"[^>]*>([^<]*)</text>', picture):
        lines[height] = lines.get(height, "") + html.unescape(text).replace("\xa0", " ")
    drawn = "\n".join(line.rstrip() for line in lines.values())
    assert "$ keras-cg check docs/softplus.py:softplus" in drawn
    found = run("check", "docs/softplus.py:softplus", f"--backends={','.join(backends)}")
    assert found.returncode == 1

    def findings(text):
        text = text.replace("jax, numpy, tensorflow, torch", ", ".join(backends))
        return text[text.index("✗ first order") :].strip()

    # Rounding shows in the table.
    assert findings(shown) in found.stdout
    assert findings(drawn) == findings(found.stdout)
    for name in backends:
        assert marks(shown, name) == marks(found.stdout, name)


@pytest.mark.only("numpy")
def test_pictures_load_nothing(backend):
    pictures = sorted((ROOT / "docs").rglob("*.svg"))
    assert len(pictures) > 1
    for path in pictures:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"url\(\s*['\"]?http|@import|@font-face|href=.(?!#)|<script|<image", text), path.name


def test_the_fixed_one_passes(backends):
    found = run("check", "docs/softplus.py:fixed", f"--backends={','.join(backends)}")
    agree = ", which agree" if len(backends) > 1 else ""
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, f"✓ passed: fixed on {', '.join(backends)}{agree}")


@pytest.mark.only("torch")  # on the others the page says the same, in a block
def test_the_wrapped_function_passes(backend):
    found = run("check", "docs/wrapping.py:digamma", "--modes=reverse", f"--backends={backend}")
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, f"✓ passed: digamma on {backend}")


@pytest.mark.only("numpy")
def test_the_plot_is_drawn_by_the_command_of_the_page(backend, tmp_path):
    command = next(line for line in PAGE.read_text().splitlines() if line.startswith("keras-cg plot docs"))
    arguments = shlex.split(command.replace("docs/softplus.png", str(tmp_path / "softplus.png")))[1:]
    found = run(*arguments, "--backends=numpy")
    assert (found.returncode, (tmp_path / "softplus.png").stat().st_size > 10_000) == (0, True)


@pytest.mark.thorough
@pytest.mark.only("numpy")
def test_the_recipes_are_drawn(backend, tmp_path):
    subprocess.run([sys.executable, "docs/recipes.py", str(tmp_path)], cwd=ROOT, check=True)
    sizes = {path.stem: path.stat().st_size for path in tmp_path.glob("*.svg")}
    assert sorted(sizes) == sorted(keras_cg.recipes.__all__)
    assert all(5_000 < size < 100_000 for size in sizes.values())


@pytest.mark.only("numpy")
def test_every_recipe_has_a_section_with_a_picture(backend):
    text = (ROOT / "docs" / "recipes.md").read_text()
    assert sorted(re.findall(r"^## (.*)$", text, re.MULTILINE)) == ["Edge cases", *keras_cg.recipes.__all__]
    pictures = re.findall(r"^## (\w+)\n\n!\[.+\]\(assets/recipes/(\w+)\.svg\)$", text, re.MULTILINE)
    assert sorted(pictures) == [(name, name) for name in keras_cg.recipes.__all__]
    assert all((ROOT / "docs" / "assets" / "recipes" / f"{name}.svg").exists() for name, _ in pictures)


@pytest.mark.only("numpy")
def test_the_way_of_a_call_names_functions_that_exist(backend):
    rows = re.findall(
        r"^\|.*\| `(\w+)` \| `(keras_cg/[\w/]+\.py)` \|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 10
    for name, file in rows:
        assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {name}"


@pytest.mark.only("numpy")
def test_the_map_names_files_that_exist(backend):
    drawing = re.search(r"```\nkeras_cg/\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    folders, found = [ROOT / "keras_cg"], set()
    for line in drawing.splitlines():
        indent, name = re.match(r"( *)([\w./]*)", line).groups()
        if not name or len(indent) not in (0, 2, 4):
            continue
        path = (ROOT if not indent else folders[len(indent) // 2 - 1]) / name
        assert path.exists(), path
        folders[len(indent) // 2 :] = [path]
        found.add(path)
    missing = {
        path for path in (ROOT / "keras_cg").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert missing - found == {ROOT / "keras_cg" / "__init__.py", ROOT / "keras_cg" / "__main__.py"}
