"""Runs the Python of a page of documentation."""

import runpy

from mktestdocs import grab_code_blocks


def run(page, folder):
    """Runs every Python block of `page`, from top to bottom in one module: torch.compile looks for it by its name."""
    text = page.read_text()
    assert "```python" in text
    source = folder / f"{page.stem.lower()}_blocks.py"
    source.write_text("\n".join(grab_code_blocks(text, lang="python")))
    runpy.run_path(str(source), run_name=source.stem)
