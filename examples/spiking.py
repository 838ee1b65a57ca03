"""Trains a network of spiking neurons on handwritten digits, on any backend, in the framework's own loop.

A neuron collects current, leaks some of it, and sends a spike when its potential passes a threshold. The spike is a
step, whose gradient is zero, so the network cannot be trained by plain differentiation. The surrogate gradient is
that of a smooth step in its place: 1 / (1 + 5 |v|)^2, of the "fast sigmoid" v / (1 + 5 |v|). F. Zenke and S. Ganguli,
"SuperSpike", Neural Computation 30(6), 2018, arXiv:1705.11146.

Time is a loop, and the gradient goes back through all of it. The model is written once; `over_time` is a `scan` on
JAX, a `while_loop` on TensorFlow, and a loop of Python on torch and NumPy.

    pip install "keras-cg[examples]"
    KERAS_CG_BACKEND=torch python examples/spiking.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy

import keras_cg
from keras_cg import ops

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    sys.exit(f'spiking.py needs {error.name}: pip install "keras-cg[examples]"')

STEPS, LEAK, THRESHOLD = 12, 0.75, 1.0
BATCH, RATE = 128, 0.3

State = tuple[Any, ...]
Spike = Callable[[Any], Any]


def step_function(v: Any) -> Any:
    """1 where `v` is positive and 0 elsewhere, with the gradient that the framework gives it: zero."""
    return ops.where(v > 0, ops.ones_like(v), ops.zeros_like(v))


@keras_cg.custom_gradient
def surrogate(v: Any) -> tuple[Any, Callable[[Any], Any]]:
    """1 where `v` is positive and 0 elsewhere, with the gradient of the fast sigmoid."""

    def grad(upstream: Any) -> Any:
        return upstream / (1 + 5 * ops.abs(v)) ** 2

    return step_function(v), grad


# For `keras-cg check examples/spiking.py`: the gradient is that of the fast sigmoid.
surrogate.example_args = {"v": "rng.normal(size=(4, 3))"}
surrogate.expected = lambda v: v / (1 + 5 * ops.abs(v))


def over_time(step: Callable[[State], State], state: State) -> State:
    """The state after `STEPS` steps, by the active framework's own way of looping."""
    if keras_cg.backend() == "jax":
        import jax

        return jax.lax.scan(lambda state, _: (step(state), None), state, length=STEPS)[0]
    if keras_cg.backend() == "tensorflow":
        import tensorflow as tf

        return tuple(tf.while_loop(lambda *_: True, lambda *state: step(state), state, maximum_iterations=STEPS))
    for _ in range(STEPS):
        state = step(state)
    return state


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a program of JAX or TensorFlow, where the loop is one operation; as it is on torch and NumPy."""
    if keras_cg.backend() == "jax":
        import jax

        return jax.jit(function)
    if keras_cg.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    return function


def logits(weights: dict[str, Any], images: Any, spike: Spike) -> Any:
    """What the output neurons receive in each step, on average over time; images are rows of 64 pixels, 0 to 1."""
    current = ops.matmul(images, weights["hidden"])

    def step(state: State) -> State:
        potential, spikes, received = state
        potential = LEAK * potential + current - THRESHOLD * spikes  # who has just sent a spike is set back
        spikes = spike(potential - THRESHOLD)
        return potential, spikes, received + ops.matmul(spikes, weights["output"])

    nothing = ops.zeros_like(current)
    return over_time(step, (nothing, nothing, ops.matmul(nothing, weights["output"])))[2] / STEPS


def loss(weights: dict[str, Any], images: Any, labels: Any, spike: Spike) -> Any:
    """The mean cross entropy; `labels` are one-hot."""
    scores = logits(weights, images, spike)
    scores = scores - ops.max(scores, axis=1, keepdims=True)
    return ops.mean(ops.log(ops.sum(ops.exp(scores), axis=1)) - ops.sum(scores * labels, axis=1))


def initial_weights(hidden: int, seed: int = 0) -> dict[str, numpy.ndarray]:
    """The weights that every training starts from, on every backend."""
    random = numpy.random.default_rng(seed)
    shapes = {"hidden": (64, hidden), "output": (hidden, 10)}
    return {name: random.normal(0, shape[0] ** -0.5, shape).astype("float32") for name, shape in shapes.items()}


def train(spike: Spike, passes: int, hidden: int = 16) -> float:
    """Trains a network by gradient descent with momentum, and returns its accuracy on images it has not seen."""
    data = load_digits()
    images, digits = (data.data / 16).astype("float32"), data.target
    labels = numpy.eye(10, dtype="float32")[digits]
    seen = len(images) * 3 // 4
    weights: dict[str, Any] = {name: ops.asarray(array) for name, array in initial_weights(hidden).items()}
    velocity = {name: ops.zeros_like(weight) for name, weight in weights.items()}
    gradient_of = compiled(lambda weights, *batch: keras_cg.grad(loss)(weights, *batch, spike))
    random = numpy.random.default_rng(0)
    for _ in range(passes):
        for batch in random.permutation(seen)[: seen // BATCH * BATCH].reshape(-1, BATCH):
            gradient = gradient_of(weights, ops.asarray(images[batch]), ops.asarray(labels[batch]))
            velocity = {name: 0.9 * velocity[name] + gradient[name] for name in weights}
            weights = {name: weights[name] - RATE * velocity[name] for name in weights}
    guesses = numpy.asarray(logits(weights, ops.asarray(images[seen:]), spike)).argmax(1)
    return float((guesses == digits[seen:]).mean())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Trains a network of spiking neurons on handwritten digits.")
    parser.add_argument("--passes", type=int, default=10, help="passes over the training images (default: 10)")
    passes = parser.parse_args(arguments).passes
    print(f"backend: {keras_cg.backend()}")
    print(f"correct with the surrogate gradient:  {train(surrogate, passes):.1%}")
    print(f"correct with the step's own gradient: {train(step_function, passes):.1%}")


if __name__ == "__main__":
    main()
