"""Draws docs/check.svg, the output of the command on README: `python docs/check.py`.

Rich draws the lines that the command prints. Its own template loads a web font; this one names the reader's fonts.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).parent
COMMAND = "keras-cg check docs/softplus.py:softplus"
WIDTH = 88


def printed() -> str:
    """What the command prints to a terminal, with its colours."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "keras_cg", *COMMAND.split()[1:]]
    done = subprocess.run(command, cwd=DOCS.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stdout


def drawing(lines: str) -> str:
    """The lines as an SVG that loads nothing."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), legacy_windows=False)
    console.print(Text.from_ansi(f"$ {COMMAND}\n{lines.rstrip()}"))
    # Rich has no option for the font (15.0): without this the SVG would load one from another server.
    template = inspect.signature(Console.export_svg).parameters["code_format"].default
    template = re.sub(r"@font-face \{\{.*?\}\}", "", template, flags=re.DOTALL)
    template = template.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    svg = console.export_svg(title="keras-cg check", code_format=template, unique_id="check")
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else DOCS / "check.svg").write_text(drawing(printed()), encoding="utf-8")
