"""What the site has besides the pages in docs. MkDocs calls the functions, griffe, which reads docstrings, the class.

- CONTRIBUTING.md and its like stand at the top of the repository, where GitHub looks for them, and are pages here.
- A link is written as GitHub needs it. One that leads out of docs leads on the site to the page of that file; a file
  that is no page of its own, or a folder, becomes one which shows what is in it.
- `<!-- keras-cg check --help -->` on a page is what that command prints.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
# The page, and the file at the top of the repository that it is made of. README is found by links alone: the site has a
# first page of its own.
TOP = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "readme.md": "README.md",
    "security.md": "SECURITY.md",
}
LINK = re.compile(r"(?<=\]\()[^)#\s]+(?=[)#])")
HELP = re.compile(r"<!-- keras-cg (.*--help) -->")
SHOWN = """\
---
title: {name}
search:
  exclude: true
---
# `{name}`

{parts}
"""


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that stand elsewhere, and those of files that a page links to."""
    for page, source in TOP.items():
        inclusion = InclusionLevel.NOT_IN_NAV if page == "readme.md" else InclusionLevel.UNDEFINED
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source), inclusion=inclusion))
    for file in list(files.documentation_pages()):
        for target in filter(None, (linked(file, link) for link in LINK.findall(file.content_string))):
            page = page_of(target)
            if page not in files.src_uris:
                shown = File.generated(config, page, content=text_of(target), inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(shown)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turns links that lead out of docs to the pages of the site, and fills in what commands print."""

    def turned(match: re.Match[str]) -> str:
        target = linked(page.file, match[0])
        return posixpath.relpath(page_of(target), posixpath.dirname(page.file.src_uri)) if target else match[0]

    if page.file.src_uri == "readme.md":
        page.meta["search"] = {"exclude": True}  # it says again what the other pages say
    return HELP.sub(printed, LINK.sub(turned, markdown))


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
    """What a command prints, as a block."""
    command = [sys.executable, "-m", "keras_cg", *match[1].split()]
    environment = {**os.environ, "COLUMNS": "88"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return f"```text\n{done.stdout}```"


class AsShown(griffe.Extension):
    """Docstrings and signatures as griffe needs them to show what a user sees."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """The house says `Example:`, griffe `Examples:`."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """What is decorated returns the output alone, not the pair with the rule."""
        if any(decorator.callable_path.endswith("custom_gradient") for decorator in func.decorators):
            func.returns = None
