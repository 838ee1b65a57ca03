"""Runs the Python of a page of documentation, and reads its tables."""

import re
import runpy

from mktestdocs import grab_code_blocks

import keras_cg

# A block that is about some backends says so before it.
SOME = re.compile(r"<!-- on: ([a-z ]+) -->\n```python\n.*?```", re.DOTALL)


def run(page, folder):
    """Runs the Python blocks of `page` in one module: torch.compile looks for it by its name.

    Those that are about other backends than the active one are left out.
    """
    text = SOME.sub(lambda block: block[0] if keras_cg.backend() in block[1].split() else "", page.read_text())
    assert "```python" in text
    source = folder / f"{page.stem.lower()}_blocks.py"
    source.write_text("\n".join(grab_code_blocks(text, lang="python")))
    runpy.run_path(str(source), run_name=source.stem)


def rows(text):
    """The cells of each row of the tables in a text; the first two rows of a table are its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
