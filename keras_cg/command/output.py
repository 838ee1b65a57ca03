"""Writes JSON to the standard output, and errors to the standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import keras_cg

__all__ = ["SCHEMA", "complain", "write_json"]

# The version of the JSON that the commands write: it changes when a key is removed or changes its meaning.
SCHEMA = 1


def complain(line: str) -> None:
    """Writes a line to the standard error, if there is one."""
    if sys.stderr is not None:  # `2>&-` closes it, and `print` would write to the standard output instead
        print(line, file=sys.stderr)  # noqa: T201 - a command prints


def write_json(data: Mapping[str, Any]) -> None:
    """Writes `data` as JSON, with the version of its schema; NaN and infinity become null."""
    json.dump({"schema": SCHEMA, "keras_cg": keras_cg.__version__, **_strict(data)}, sys.stdout, indent=2)
    sys.stdout.write("\n")


def _strict(data: Any) -> Any:
    """Returns `data` with None for NaN and infinity, which JSON does not have."""
    if isinstance(data, dict):
        return {key: _strict(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_strict(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
