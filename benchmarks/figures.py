"""What both reports are written with: the tables of a page, and its figures in git, on few lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], rest: str = "---") -> list[str]:
    """A table in Markdown, and an empty line; `rest` says how all columns but the first are set."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows)]
    return [lines[0], "|---|" + f"{rest}|" * (len(head) - 1), *lines[1:], ""]


def on_few_lines(value: Any, indent: int = 0) -> str:
    """JSON, with as many parts of a list or an object on a line as 200 characters hold."""
    whole = json.dumps(value)
    if len(whole) <= 200 or not isinstance(value, (dict, list)):
        return whole
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    parts = value.values() if isinstance(value, dict) else value
    lines = [" " * indent]
    for place, (key, part) in enumerate(zip(keys, parts, strict=True)):
        told = key + on_few_lines(part, indent + 1) + (", " if place < len(value) - 1 else "")
        if lines[-1].strip() and len(lines[-1]) + len(told) > 200:
            lines.append(" " * indent)
        lines[-1] += told
    return "\n".join([whole[0], *map(str.rstrip, lines), " " * (indent - 1) + whole[-1]])
