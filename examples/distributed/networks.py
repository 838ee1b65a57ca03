"""Two quantised networks that the other files here train on several devices.

Both round their weights and activations, with the straight-through gradient: a decorated function of two lines.
`digits` is the 2-bit network of `examples/digits.py`; `transformer` has a few blocks, of which the weights are
multiples of 1/16, and learns to continue sequences of tokens. Nothing here names a framework or knows of devices: a
network is written with `linear(name, x)`, the product with a rounded matrix, and the caller says where that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy

import keras_cg
from keras_cg import ops

LAYERS, WIDTH, HEAD, TOKENS, LENGTH = 4, 16, 2, 8, 8

# The product of its second argument with the matrix of that name.
Linear = Callable[[str, Any], Any]
Weights = dict[str, Any]


@keras_cg.custom_gradient
def rounded(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """The nearest integer, with the gradient of the identity."""
    return ops.floor(x + 0.5), lambda upstream: upstream


# --- digits -------------------------------------------------------------------------------------------------


def two_bits(x: Any, low: float, high: float) -> Any:
    """`x`, clipped to [low, high] and rounded to one of four evenly spaced levels."""
    step = (high - low) / 3
    return low + step * rounded((ops.clip(x, low, high) - low) / step)


def digits_scores(linear: Linear, images: Any) -> Any:
    """Rows of 64 pixels, 0 to 16, to rows of 10 scores."""
    hidden = linear("hidden", images) / 64 + 1 / 128
    return linear("output", two_bits(hidden, 0.0, 3.0)) / 16


def digits_weights() -> dict[str, numpy.ndarray]:
    random = numpy.random.default_rng(0)
    shapes = {"hidden": (64, 32), "output": (32, 10)}
    return {name: random.uniform(-3, 3, shape).astype("float32") for name, shape in shapes.items()}


def digits_batches(steps: int) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
    from sklearn.datasets import load_digits

    data = load_digits()
    random = numpy.random.default_rng(0)
    for _ in range(steps):
        batch = random.integers(0, len(data.target), 64)
        yield data.data[batch].astype("float32"), numpy.eye(10, dtype="float32")[data.target[batch]]


# --- transformer --------------------------------------------------------------------------------------------


def sixteenths(x: Any) -> Any:
    """The nearest multiple of 1/16."""
    return rounded(16 * x) / 16


def normalised(x: Any) -> Any:
    """`x`, its last axis scaled to a mean square of 1."""
    return x / (ops.mean(x**2, axis=-1, keepdims=True) + 1e-3) ** 0.5


def block(linear: Linear, x: Any) -> Any:
    """Causal attention, and two layers with ReLU between; of how many heads, the width of the products says."""

    def heads(name: str) -> Any:
        y = linear(name, normalised(x))
        return ops.permute_dims(ops.reshape(y, (*y.shape[:2], y.shape[2] // HEAD, HEAD)), (0, 2, 1, 3))

    query, key, value = map(heads, ("query", "key", "value"))
    # Of what comes later nothing is left.
    later = ops.asarray(numpy.triu(numpy.full((LENGTH, LENGTH), -100.0, "float32"), 1), dtype=query.dtype)
    weight = ops.matmul(query, ops.permute_dims(key, (0, 1, 3, 2))) / HEAD**0.5 + later
    weight = ops.exp(weight - ops.max(weight, axis=-1, keepdims=True))
    mixed = ops.permute_dims(ops.matmul(weight / ops.sum(weight, axis=-1, keepdims=True), value), (0, 2, 1, 3))
    x = x + linear("project", ops.reshape(mixed, (*mixed.shape[:2], mixed.shape[2] * HEAD)))
    up = linear("up", normalised(x))
    return x + linear("down", sixteenths(ops.where(up > 0, up, ops.zeros_like(up))))


def transformer_weights() -> dict[str, numpy.ndarray]:
    random = numpy.random.default_rng(0)
    shapes = {"embed": (TOKENS, WIDTH), "position": (LENGTH, WIDTH), "unembed": (WIDTH, TOKENS)}
    for layer in range(LAYERS):
        shapes |= {f"{name}{layer}": (WIDTH, WIDTH) for name in ("query", "key", "value", "project")}
        shapes |= {f"up{layer}": (WIDTH, 2 * WIDTH), f"down{layer}": (2 * WIDTH, WIDTH)}
    return {name: random.normal(0, 0.3, shape).astype("float32") for name, shape in shapes.items()}


def transformer_batches(steps: int) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
    """Tokens and those that follow, one-hot: each token is the one before it and the same number more, in a ring."""
    random = numpy.random.default_rng(0)
    for _ in range(steps):
        start, stride = random.integers(0, TOKENS, (2, 16, 1))
        tokens = numpy.eye(TOKENS, dtype="float32")[(start + stride * numpy.arange(LENGTH + 1)) % TOKENS]
        yield tokens[:, :-1], tokens[:, 1:]


# --- both ---------------------------------------------------------------------------------------------------


class Network(NamedTuple):
    """What a training needs.

    Attributes:
        weights: Makes the weights that every training starts from.
        batches: Makes as many batches of inputs and one-hot targets, the same ones every time.
        quantised: What rounds the weights.
        rate: The rate of gradient descent.
    """

    weights: Callable[[], dict[str, numpy.ndarray]]
    batches: Callable[[int], Iterator[tuple[numpy.ndarray, numpy.ndarray]]]
    quantised: Callable[[Any], Any]
    rate: float


NETWORKS = {
    "digits": Network(digits_weights, digits_batches, lambda weight: two_bits(weight, -3.0, 3.0), 30.0),
    "transformer": Network(transformer_weights, transformer_batches, sixteenths, 0.3),
}

# Model parallelism cuts these along their columns, so that each device has some of the units, and those that follow
# along their rows, so that each device has its part of a sum. The others are whole on every device.
COLUMNS = ("hidden", "query", "key", "value", "up")
ROWS = ("output", "project", "down")


def cut(name: str) -> int | None:
    """The axis along which model parallelism cuts a weight; None for one that stays whole."""
    name = name.rstrip("0123456789")
    return 1 if name in COLUMNS else 0 if name in ROWS else None


def cross_entropy(scores: Any, targets: Any) -> Any:
    """The mean over everything but the last axis; `targets` are one-hot."""
    scores = scores - ops.max(scores, axis=-1, keepdims=True)
    return ops.mean(ops.log(ops.sum(ops.exp(scores), axis=-1)) - ops.sum(scores * targets, axis=-1))


def scores(name: str, weights: Weights, inputs: Any, total: Callable[[Any], Any] = lambda x: x) -> Any:
    """What a network gives for a batch.

    Args:
        name: Which network.
        weights: Its weights; or one device's part of them, as `cut` says.
        inputs: The inputs of a batch.
        total: The sum of what the devices give, where each has a part of the weights.
    """
    quantised = NETWORKS[name].quantised

    def linear_of(layer: int | str) -> Linear:
        def linear(name: str, x: Any) -> Any:
            product = ops.matmul(x, quantised(weights[f"{name}{layer}"]))
            return total(product) if name in ROWS else product

        return linear

    if name == "digits":
        return digits_scores(linear_of(""), inputs)
    x = linear_of("")("embed", inputs) + weights["position"]
    for layer in range(LAYERS):
        x = block(linear_of(layer), x)
    return linear_of("")("unembed", normalised(x))


def train_alone(name: str, steps: int) -> list[float]:
    """The losses of a training on one device, by the active backend."""
    network = NETWORKS[name]
    weights: Weights = {key: ops.asarray(array) for key, array in network.weights().items()}

    def loss(weights: Weights, inputs: Any, targets: Any) -> Any:
        return cross_entropy(scores(name, weights, inputs), targets)

    losses = []
    for batch in network.batches(steps):
        value, gradient = keras_cg.value_and_grad(loss)(weights, *map(ops.asarray, batch))
        losses.append(float(value))
        weights = {key: weights[key] - network.rate * gradient[key] for key in weights}
    return losses
