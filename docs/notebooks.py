"""Writes docs/notebooks, the tutorials as notebooks, from their pages, and runs them: `nox -s notebooks`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parent
REPOSITORY = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
BACKEND = "jax"
PAGES = ("tutorial", "two-bits")
# The first cell: what a page asks of its reader.
SETUP = """\
# %pip install "keras-cg[cli,examples,keras,{backend}] @ git+{repository}"
import os

os.environ["KERAS_BACKEND"] = "{backend}"\
"""
LINK = re.compile(r"\]\((?!https?:|#)(\.\./)?")
OTHERS = re.compile(rf"\s*<!-- on: (?!.*\b{BACKEND}\b).* -->$")


def notebook(page: str) -> Any:
    """The notebook of a page. Code of another backend, and commands of a shell, are text in it."""
    found = jupytext.reads((DOCS / f"{page}.md").read_text(encoding="utf-8"), fmt="md")
    cells = [nbformat.v4.new_code_cell(SETUP.format(backend=BACKEND, repository=REPOSITORY))]
    for cell in found.cells:
        if cell.cell_type == "code" and cell.source.startswith("%%sh\n"):
            cells.append(nbformat.v4.new_markdown_cell(f"```sh\n{cell.source.removeprefix('%%sh')[1:]}\n```"))
        elif cell.cell_type == "code" and OTHERS.search(cells[-1].source):
            cells[-1].source = OTHERS.sub("", cells[-1].source) + f"\n\n```python\n{cell.source}\n```"
        elif cell.cell_type == "code":
            cells.append(nbformat.v4.new_code_cell(cell.source))
        else:
            cells.append(nbformat.v4.new_markdown_cell(LINK.sub(_absolute, cell.source).rstrip()))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # not a random one, so that the same page gives the same notebook
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def _absolute(link: re.Match[str]) -> str:
    return f"]({REPOSITORY}/blob/main/{'' if link[1] else 'docs/'}"


def main() -> str | None:
    """Writes and runs the notebooks. Returns an error if one has changed."""
    changed = []
    for page in PAGES:
        made, path = notebook(page), DOCS / "notebooks" / f"{page}.ipynb"
        text = nbformat.writes(made) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(str(path.relative_to(DOCS.parent)))
        NotebookClient(made, timeout=600).execute()
    return f"these have changed: {', '.join(changed)}" if changed else None


if __name__ == "__main__":
    sys.exit(main())
