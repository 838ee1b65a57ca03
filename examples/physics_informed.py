"""Solves a differential equation by a network that is trained on the equation alone, on any backend.

The temperature T of a rod, which is 100 cm long, heated along it by q and kept at 0 at both ends, is where -T'' = q.
The network is put into the equation, and trained until it holds at 64 points: a physics-informed network (M. Raissi
et al., Journal of Computational Physics 378, 2019). For q = (pi/100)^2 sin(pi x / 100), T is sin(pi x / 100).

The loss has second derivatives of the activation log(1 + exp(x)), and its gradient has third ones. Differentiated
plainly they are NaN at 100 in float32. Here they follow from two rules: the derivative of log(1 + exp(x)) is `sigmoid`,
and that of `sigmoid` is written with `sigmoid` itself, so that a derivative of any order comes from a rule.

    KERAS_CG_BACKEND=jax python examples/physics_informed.py --output physics_informed.png
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

import keras_cg
from keras_cg import ops

LENGTH, POINTS, RATE = 100.0, 64, 0.01

Activation = Callable[[Any], Any]


def plain(x: Any) -> Any:
    """log(1 + exp(x)), differentiated by the framework."""
    return ops.log(1 + ops.exp(x))


def without_overflow(x: Any) -> Any:
    """log(1 + exp(x)) once more; its value is right everywhere."""
    return ops.maximum(x, ops.zeros_like(x)) + ops.log1p(ops.exp(-ops.abs(x)))


@keras_cg.custom_gradient
def sigmoid(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """1 / (1 + exp(-x)), with a rule for its gradient."""

    def grad(upstream: Any) -> Any:
        return upstream * sigmoid(x) * sigmoid(-x)

    return ops.exp(-without_overflow(-x)), grad


@keras_cg.custom_gradient
def log1pexp(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """log(1 + exp(x)), with a rule for its gradient."""

    def grad(upstream: Any) -> Any:
        return upstream * sigmoid(x)

    return without_overflow(x), grad


# For `keras-cg check examples/physics_informed.py`.
sigmoid.example_args = {"x": "rng.normal(size=(4, 3))"}
log1pexp.example_args = {"x": "rng.normal(size=(4, 3))"}


def temperature(weights: dict[str, Any], x: Any, activation: Activation) -> Any:
    """The network at each of the points `x`, less the straight line that makes it 0 at both ends."""

    def network(x: Any) -> Any:
        return ops.matmul(activation(x[:, None] * weights["slope"] + weights["shift"]), weights["output"])

    ends = network(ops.asarray(numpy.array([0.0, LENGTH], "float32")))
    return network(x) - ends[0] * (1 - x / LENGTH) - ends[1] * (x / LENGTH)


def second_derivative(weights: dict[str, Any], x: Any, activation: Activation) -> Any:
    """T'' at each of the points: the temperature of a point hangs on that point alone."""
    first = keras_cg.grad(lambda x: temperature(weights, x, activation))
    return keras_cg.grad(first)(x)


def loss(weights: dict[str, Any], x: Any, activation: Activation) -> Any:
    """The mean square of how far the equation is from holding, in units of the heating in the middle of the rod."""
    unit = (numpy.pi / LENGTH) ** 2
    return ops.mean((second_derivative(weights, x, activation) / unit + ops.sin(x * (numpy.pi / LENGTH))) ** 2)


def initial_weights(hidden: int = 24) -> dict[str, numpy.ndarray]:
    """Units that bend one after another along the rod, over about the distance to the next; the outputs are 0."""
    slope = numpy.where(numpy.arange(hidden) % 2, 1.0, -1.0)
    centre = numpy.linspace(-5, LENGTH + 5, hidden)
    weights = {"slope": slope, "shift": -slope * centre, "output": numpy.zeros(hidden)}
    return {name: array.astype("float32") for name, array in weights.items()}


def points(number: int) -> Any:
    """Points inside of the rod."""
    return ops.asarray(((numpy.arange(number) + 0.5) * (LENGTH / number)).astype("float32"))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a program of JAX or TensorFlow; as it is on torch and NumPy."""
    if keras_cg.backend() == "jax":
        import jax

        return jax.jit(function)
    if keras_cg.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function)
    return function


def train(activation: Activation, steps: int) -> numpy.ndarray:
    """Trains a network with Adam; returns its temperature at the points, of which the exact one is 0 to 1."""
    x = points(POINTS)
    weights: dict[str, Any] = {name: ops.asarray(array) for name, array in initial_weights().items()}
    mean = {name: ops.zeros_like(weight) for name, weight in weights.items()}
    square = dict(mean)
    gradient_of = compiled(lambda weights: keras_cg.grad(loss)(weights, x, activation))
    for step in range(1, steps + 1):
        for name, arriving in gradient_of(weights).items():
            mean[name] = 0.9 * mean[name] + 0.1 * arriving
            square[name] = 0.99 * square[name] + 0.01 * arriving**2
            spread = (square[name] / (1 - 0.99**step)) ** 0.5 + 1e-8
            weights[name] = weights[name] - RATE / (1 - 0.9**step) * mean[name] / spread
    return numpy.asarray(temperature(weights, x, activation))


def exact() -> numpy.ndarray:
    """The exact temperature at the points."""
    return numpy.sin(numpy.asarray(points(POINTS)) * (numpy.pi / LENGTH))


def error(found: numpy.ndarray) -> float:
    """The greatest error of a temperature."""
    return float(numpy.abs(found - exact()).max())


def draw(found: numpy.ndarray, path: Path) -> None:
    """The temperature along the rod, that of the network and the exact one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(points(POINTS), exact(), color="0.6", linewidth=4, label="exact")
    axes.plot(points(POINTS), found, "o", color="tab:blue", markersize=4, label="network, with the rules")
    axes.set(xlabel="place along the rod in cm", ylabel="temperature")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Solves a differential equation by a network.")
    parser.add_argument("--steps", type=int, default=300, help="steps of the training (default: 300)")
    parser.add_argument("--output", type=Path, help="the PNG of the temperature (default: none)")
    options = parser.parse_args(arguments)
    found = train(log1pexp, options.steps)
    print(f"backend: {keras_cg.backend()}")
    print(f"greatest error of T, with the rules: {error(found):.4f}")
    if options.output:
        draw(found, options.output)
    # The overflow is the point of this example; NumPy alone would warn of it.
    with numpy.errstate(over="ignore", invalid="ignore"):
        print(f"greatest error of T, plain:          {error(train(plain, 1))}")


if __name__ == "__main__":
    main()
