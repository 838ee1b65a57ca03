"""Adds to the site what is not in docs. MkDocs calls the functions; griffe, which reads docstrings, calls the class.

- README.md, CONTRIBUTING.md and similar files are at the top of the repository, where GitHub looks for them. They are
  pages of the site. The home page is README up to its commands, with cards after it.
- A link is written as GitHub needs it. If it leads out of docs, it leads on the site to the page of that file. A file
  without a page, or a folder, gets a page that shows its content.
- `<!-- keras-cg check --help -->` on a page is replaced by the output of that command.
- Formulas become MathML: those between dollar signs on a page, and the indented lines of a recipe's docstring.
- The names under "See Also" in a docstring become links.
- Generated reports stay out of the search.
- The header has the version, with a link to the repository.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files, InclusionLevel

sys.path.insert(0, str(Path(__file__).parent))
from formulas import to_mathml

ROOT = Path(__file__).parents[1]
# Pages, each with its file at the top of the repository.
TOP = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    "conduct.md": "CODE_OF_CONDUCT.md",
}
LINK = re.compile(r"(?<=\]\()[^)#\s]+(?=[)#])")
# Code, in which no formula is looked for, or a formula.
FORMULA = re.compile(r"(^~~~+.*?^~~~+$|^```.*?^```$|`[^`]+`)|\$([^$\n]+)\$", re.DOTALL | re.MULTILINE)
FORMULA_LINES = re.compile(r"(?:^ {4}\S.*\n)+", re.MULTILINE)
SEE_ALSO = re.compile(r"^See Also:\n(?: .*\n)+", re.MULTILINE)
HELP = re.compile(r"<!-- keras-cg (.*--help) -->")
# On the home page in place of the sections of README that begin with these commands.
CARDS = """\

## Where to go

<div class="grid cards" markdown>

- **[Your first custom gradient](tutorial.md)**

    A tutorial of ten minutes: write a rule, break it, check it.

- **[Train a 2-bit network](two-bits.md)**

    A tutorial of fifteen minutes: a straight-through rule, and a training that autodiff cannot do.

- **[Move from keras.ops.custom_gradient](migration.md)**

    Before and after, for each idiom.

- **[Check a gradient](checking.md)**

    In a terminal, from Python and in pytest.

- **[Choose a recipe](recipes.md)**

    Straight-through estimators, clipping, stable functions, implicit differentiation.

- **[Wrap SciPy, Numba or C](wrapping.md)**

    Functions of NumPy arrays, with their derivatives.

- **[Export and deploy](deploy.md)**

    SavedModel, ONNX, LiteRT, `torch.export` and `jax.export`.

- **[Fix an error](errors.md)**

    Each message with its cause and its fix.

- **[Silent cases](silent.md)** and **[limitations](limits.md)**

    The known exceptions.

- **[How it works](how-it-works.md)**

    What becomes of a rule in each framework.

- **[Reference](reference/index.md)**

    Every public name, with examples.

</div>
"""
SHOWN = """\
---
title: {name}
search:
  exclude: true
---
# `{name}`

{parts}
"""


def on_config(config: Any) -> Any:
    """Names the repository and the version, which stand in the header."""
    config.repo_url = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    (version,) = re.findall(r'^__version__ = "(.*)"$', (ROOT / "keras_cg" / "__init__.py").read_text(), re.MULTILINE)
    config.repo_name = f"keras-cg {version}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of files outside docs: those of `TOP`, and those that a page links to."""
    for page, source in TOP.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for file in list(files.documentation_pages()):
        for target in filter(None, (linked(file, link) for link in LINK.findall(file.content_string))):
            page = page_of(target)
            if page not in files.src_uris:
                shown = File.generated(config, page, content=text_of(target), inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(shown)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links that lead out of docs to pages of the site, and fills in the output of commands."""

    def turned(match: re.Match[str]) -> str:
        target = linked(page.file, match[0])
        return posixpath.relpath(page_of(target), posixpath.dirname(page.file.src_uri)) if target else match[0]

    if page.file.src_uri.startswith("reports/"):
        page.meta["search"] = {"exclude": True}
    if page.file.src_uri == "index.md":
        first, commands, _ = markdown.partition("\n## Two commands\n")
        assert commands, "README has no section of commands"
        return LINK.sub(turned, first) + CARDS
    if page.file.src_uri.startswith(("reports/", "files/")):
        return LINK.sub(turned, markdown)
    return HELP.sub(printed, FORMULA.sub(inline, LINK.sub(turned, markdown)))


def inline(match: re.Match[str]) -> str:
    """Returns code unchanged, and a formula as MathML in a sentence."""
    # In a span, because Markdown takes a line that begins with <math> for a block.
    return match[1] or f"<span>{to_mathml(match[2])}</span>"


def in_lines(match: re.Match[str]) -> str:
    """Returns formulas, each a line, as MathML."""
    lines = "".join(f"<div>{to_mathml(line.strip(), is_line=True)}</div>" for line in match[0].splitlines())
    return f'<div class="formulas">{lines}</div>\n'


def linked(file: File, link: str) -> Path | None:
    """The file or folder of the repository that a link leads to; None elsewhere."""
    if file.abs_src_path is None:  # a page made by `text_of`
        return None
    target = (Path(file.abs_src_path).parent / link).resolve()
    return target if target.is_relative_to(ROOT) and target.exists() else None


def page_of(target: Path) -> str:
    """The page, or the picture, that a file of the repository is on the site."""
    path = target.relative_to(ROOT).as_posix()
    for page, source in TOP.items():
        if source == path:
            return page
    if target.is_relative_to(ROOT / "docs") and target.suffix != ".py":
        return target.relative_to(ROOT / "docs").as_posix()
    return f"files/{path}.md"


def text_of(target: Path) -> str:
    """A page with a file, or with the Python files of a folder."""
    name = target.relative_to(ROOT).as_posix()
    files = sorted(target.glob("*.py")) if target.is_dir() else [target]
    parts = []
    for file in files:
        heading = f"## `{file.name}`\n\n" if target.is_dir() else ""
        parts.append(f"{heading}~~~~~ {file.suffix[1:]}\n{file.read_text()}~~~~~\n")
    return SHOWN.format(name=name, parts="\n".join(parts))


def printed(match: re.Match[str]) -> str:
    """Returns the output of a command, as a block."""
    command = [sys.executable, "-m", "keras_cg", *match[1].split()]
    environment = {**os.environ, "COLUMNS": "88"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return f"```text\n{done.stdout}```"


class AsShown(griffe.Extension):
    """Changes docstrings and signatures, so that griffe shows what a user sees."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Turns `Example:` into `Examples:`, which griffe reads, formulas into MathML and names into links."""
        if obj.docstring is None:
            return
        text, arguments, rest = obj.docstring.value.partition("\nArgs:\n")
        if arguments and obj.path.startswith("keras_cg.recipes."):
            text = FORMULA_LINES.sub(in_lines, text)
        value = re.sub(r"^Example:$", "Examples:", text + arguments + rest, flags=re.MULTILINE)
        obj.docstring.value = SEE_ALSO.sub(lambda part: re.sub(r"`(keras_cg\.[\w.]+)`", r"[`\1`][\1]", part[0]), value)

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Drops Any, where the docstring has a shape, and a result that a decorator replaces: a pair, an iterator."""
        is_replaced = any(
            each.callable_path.endswith(("custom_gradient", "contextmanager")) for each in func.decorators
        )
        if is_replaced or str(func.returns) == "Any":
            func.returns = None
        for parameter in func.parameters:
            if str(parameter.annotation) == "Any":
                parameter.annotation = None
