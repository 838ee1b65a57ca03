"""`from_autograd_function` for a framework whose tensors do not say whether they are differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def forward(function: Callable[..., Any], *args: Any, inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Calls a static method of the class; `inputs` are the arguments that are differentiated."""
    return function(*args, **kwargs)
