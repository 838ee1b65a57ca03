"""The right rules.

A rule is flat: it gets tensors, and returns `(outputs, gradient)`. `outputs` is a tensor or a tuple of them, and
`gradient` takes an upstream for each output and returns a gradient for each argument, None for integers. Beside it
stand two closed forms for NumPy, which share nothing with it: the outputs; and the gradients, by arguments and
upstreams.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

RULES: dict[str, "Rule"] = {}

GROUPS = ("elementwise", "reductions", "algebra", "several", "losses", "complexes", "precision", "declared", "shapes")


class Rule(NamedTuple):
    """A right rule, and all that is needed to plant faults in it and to know what they change."""

    name: str
    group: str
    flat: Callable[..., Any]
    output: Callable[..., Any]
    gradient: Callable[..., Any]
    draws: tuple[Callable[..., Any], ...]
    # From the flat rule to the one that is decorated: with nests, say.
    dress: Callable[..., Any]
    # From NumPy's arguments to those of the decorated function.
    pack: Callable[..., Any]
    # What is declared to the checker; None where the gradient is the derivative.
    expected: Callable[..., Any] | None
    # The coarsest dtype that the rule computes in by itself.
    inner: str
    # Whether rounding is too large to tell.
    is_rounded: bool
    # Not the linear map that a gradient is: a declared rule that clips.
    is_linear: bool

    def arrays(self, seed):
        """The arguments for a seed."""
        draw = np.random.default_rng([seed, *self.name.encode()])
        return [make(draw) for make in self.draws]

    def decorated(self, flat=None):
        """The function as a user has it."""
        import keras_cg

        return keras_cg.custom_gradient(self.dress(flat or self.flat))


def as_tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def plain(flat):
    """The rule with single outputs and gradients bare, as people write it."""

    def function(*args):
        outputs, gradient = flat(*args)
        if isinstance(outputs, tuple):
            return outputs, lambda upstreams: as_tuple(gradient(*upstreams))
        return outputs, lambda upstream: gradient(upstream)

    return function


def rule(output, gradient, *draws, name=None, dress=plain, pack=lambda *args: args, **options):
    """Registers a flat rule beside its closed forms."""

    def register(flat):
        named = name or flat.__name__.rstrip("_").replace("_", " ")
        assert named not in RULES, named
        group = flat.__module__.rpartition(".")[2]
        chosen = {"expected": None, "inner": "float64", "is_rounded": False, "is_linear": True, **options}
        RULES[named] = Rule(named, group, flat, output, gradient, draws, dress, pack, **chosen)
        return flat

    return register


# --- arguments --------------------------------------------------------------------------------------------------------


def uniform(low, high, *shape, dtype="float32"):
    """Numbers between two bounds."""
    return lambda draw: draw.uniform(low, high, shape).astype(dtype)


def signed(*shape, dtype="float32"):
    """Numbers of either sign, none of them near zero; of two or more, one of each sign at least."""

    def make(draw):
        signs = draw.choice([-1.0, 1.0], shape)
        if signs.size > 1:
            signs.ravel()[:2] = -1, 1
        found = draw.uniform(0.3, 1.6, shape) * signs
        if np.dtype(dtype).kind == "c":
            found = found + 1j * draw.uniform(0.3, 1.6, shape) * draw.choice([-1.0, 1.0], shape)
        return found.astype(dtype)

    return make


def positive(*shape, dtype="float32"):
    return uniform(0.3, 2.2, *shape, dtype=dtype)


def apart(*shape):
    """Numbers in any order of which no two are near each other."""

    def make(draw):
        size = int(np.prod(shape))
        found = draw.permutation(size) * 0.7 - 0.35 * size + 0.2 + draw.uniform(0, 0.2, size)
        return found.reshape(shape).astype("float32")

    return make


def regular(n, dtype="float32"):
    """A square matrix far from singular."""
    return lambda draw: (draw.uniform(-0.8, 0.8, (n, n)) + 2 * np.eye(n)).astype(dtype)


def labels(classes, *shape):
    return lambda draw: draw.integers(0, classes, shape)


# In NumPy, for the closed forms.


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_gradient(x, u):
    p = softmax(x)
    return p * (u - (u * p).sum(-1, keepdims=True))


def load():
    """All rules, by name."""
    for group in GROUPS:
        importlib.import_module(f"benchmarks.checker.rules.{group}")
    return RULES
