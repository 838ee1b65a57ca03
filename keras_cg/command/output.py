"""What is written: JSON to the standard output, and what went wrong to the standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

__all__ = ["complain", "write_json"]


def complain(line: str) -> None:
    """Writes a line to the standard error, if there is one."""
    if sys.stderr is not None:  # as `2>&-` makes it, and `print` would take the standard output
        print(line, file=sys.stderr)  # noqa: T201 - that is what a command does


def write_json(data: Mapping[str, Any]) -> None:
    """Writes `data`, whose numbers may be no numbers: these become null."""
    json.dump(_strict(data), sys.stdout, indent=2)
    sys.stdout.write("\n")


def _strict(data: Any) -> Any:
    """The same without NaN and infinity, which JSON does not have."""
    if isinstance(data, dict):
        return {key: _strict(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_strict(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
