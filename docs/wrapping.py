"""The function of SciPy that docs/wrapping.md makes: `keras-cg check docs/wrapping.py:digamma --modes=reverse`."""

from __future__ import annotations

from typing import Any

from scipy import special

from keras_cg import recipes


def polygamma(n: int, x: Any) -> Any:
    """The nth derivative of digamma, in the dtype of x."""
    return special.polygamma(n, x).astype(x.dtype)


def rule(x: Any, upstream: Any) -> Any:
    """The gradient of digamma."""
    return upstream * polygamma(1, x)


def rule_of_rule(x: Any, upstream: Any, arriving: Any) -> tuple[Any, Any]:
    """The gradients of `rule` with respect to x and upstream."""
    return arriving * upstream * polygamma(2, x), arriving * polygamma(1, x)


digamma = recipes.from_numpy(special.digamma, recipes.from_numpy(rule, rule_of_rule))
digamma.example_args = {"x": "rng.uniform(0.5, 4, 3)"}
