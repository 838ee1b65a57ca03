"""The networks that are trained, and in float64 what their losses and gradients must be, written out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy

from benchmarks.tasks import Arrays, Function, Workload
from examples import digits

# A neuron spikes above this potential, which is then taken off, and forgets a tenth of what it has in each time step.
THRESHOLD, LEAK, STEPS = 1.0, 0.9, 100
# How fast the surrogate gradient of a spike, 1 / (1 + SLOPE |v|)², falls with the distance from the threshold.
SLOPE = 10.0
# Three bits: the levels that weights are rounded to, and those of activations.
WEIGHTS, ACTIVATIONS = (-4, 3), (0, 7)
# A comparison or a rounding is the same in float32 and in float64 where a number is further than this from the edge, as
# all are with the weights of these seeds.
MARGIN = 5e-5
SPIKING_SEED, QUANTISED_SEED = 7, 59

Weights = dict[str, numpy.ndarray]


def _normal(seed: int, **shapes: tuple[int, int]) -> Weights:
    """Normal weights, a sum over which is about as large as one of its terms."""
    rng = numpy.random.default_rng(seed)
    return {
        name: (rng.standard_normal(shape) / math.sqrt(shape[0])).astype(numpy.float32) for name, shape in shapes.items()
    }


# --- the network of examples/digits.py -------------------------------------------------------------------------------


def digits_network() -> Workload:
    """The loss of the network of examples/digits.py on its first 128 images, and the gradient of the weights."""
    data = digits.load()
    images, labels = data.images[: digits.BATCH], data.labels[: digits.BATCH]
    weights = digits.initial_weights(0)

    def around(function: Function, tensor: Callable[[Any], Any]) -> Function:
        batch = tensor(images), tensor(labels)
        return lambda weights: digits.loss(weights, *batch, function)

    loss, gradients = _digits(weights, images.astype(float), labels.astype(float))
    return Workload("the digits network", "straight_through", (weights,), [loss], gradients, around)


def _digits(weights: dict[str, Any], images: Any, labels: Any) -> tuple[Any, Arrays]:
    """Its loss and its gradient."""

    def two_bits(x: Any, low: float, high: float) -> Any:
        step = (high - low) / 3
        return low + step * numpy.floor((numpy.clip(x, low, high) - low) / step + 0.5)

    first, last = (two_bits(weights[name].astype(float), -3, 3) for name in ("hidden", "output"))
    hidden = images @ first / 64 + 1 / 128
    active = two_bits(hidden, 0, 3)
    scores = active @ last / 16
    scores = scores - scores.max(1, keepdims=True)
    shares = numpy.exp(scores) / numpy.exp(scores).sum(1, keepdims=True)
    loss = numpy.mean(numpy.log(numpy.exp(scores).sum(1)) - (scores * labels).sum(1))
    upstream = (shares - labels) / len(images) / 16
    arriving = (upstream @ last.T) * ((hidden > 0) & (hidden < 3)) / 64
    return loss, [images.T @ arriving, active.T @ upstream]


# --- a spiking network -----------------------------------------------------------------------------------------------


def spiking_network() -> Workload:
    """Leaky integrate-and-fire neurons that feed each other for 100 time steps; each step calls the spike function.

    A digit's pixels are spike trains, the brighter the denser. The output is the squared error of each class.
    """
    data = digits.load()
    labels = data.labels[:16]
    draws = numpy.random.default_rng(0).random((STEPS, 16, 64))
    trains = (draws < data.images[:16] / data.images.max()).astype(numpy.float32)
    weights = _normal(SPIKING_SEED, input=(64, 64), output=(64, 10), recurrent=(64, 64))

    def around(spike: Function, tensor: Callable[[Any], Any]) -> Function:
        steps, wanted = [tensor(each) for each in trains], tensor(labels)

        def errors(weights: dict[str, Any]) -> Any:
            potential = steps[0] @ weights["input"]
            spikes = total = spike(potential - THRESHOLD)
            for step in steps[1:]:
                arriving = step @ weights["input"] + spikes @ weights["recurrent"]
                potential = LEAK * potential - THRESHOLD * spikes + arriving
                spikes = spike(potential - THRESHOLD)
                total = total + spikes
            return (total / STEPS @ weights["output"] - wanted) ** 2

        return errors

    errors, gradients, distances = _spiking(weights, trains, labels)
    assert numpy.abs(distances).min() > MARGIN
    return Workload("a spiking network, 100 time steps", "spike", (weights,), [errors], gradients, around)


def _spiking(weights: Weights, trains: numpy.ndarray, labels: numpy.ndarray) -> tuple[Any, Arrays, numpy.ndarray]:
    """Its errors, the gradient of their sum by sorted names, and how far all potentials are from the threshold."""
    first, last, recurrent = (weights[name].astype(float) for name in ("input", "output", "recurrent"))
    steps = trains.astype(float)
    potentials, spikes = numpy.zeros((2, STEPS, *steps.shape[1:2], first.shape[1]))
    for now, step in enumerate(steps):
        potentials[now] = step @ first
        if now:
            potentials[now] += LEAK * potentials[now - 1] - THRESHOLD * spikes[now - 1] + spikes[now - 1] @ recurrent
        spikes[now] = potentials[now] > THRESHOLD
    rates = spikes.sum(0) / STEPS
    difference = rates @ last - labels
    of_rates, of_potential = 2 * difference @ last.T / STEPS, numpy.zeros_like(rates)
    of_first, of_recurrent = numpy.zeros_like(first), numpy.zeros_like(recurrent)
    for now in reversed(range(STEPS)):
        of_spikes = of_rates + of_potential @ recurrent.T - THRESHOLD * of_potential
        surrogate = 1 / (1 + SLOPE * numpy.abs(potentials[now] - THRESHOLD)) ** 2
        of_potential = of_spikes * surrogate + LEAK * of_potential
        of_first += steps[now].T @ of_potential
        if now:
            of_recurrent += spikes[now - 1].T @ of_potential
    gradients = [of_first, rates.T @ (2 * difference), of_recurrent]
    return difference**2, gradients, potentials - THRESHOLD


# --- a network with learned step sizes -------------------------------------------------------------------------------

LAYERS = ("a", "b", "c")


def quantised_network() -> Workload:
    """Three layers whose weights and inputs are rounded to three bits with steps that are learned (Esser et al., 2020).

    The step is an argument of the decorated function. The output is the squared error of each class. Without biases the
    sums of products of a few levels would often be 0, which is an edge of the activations.
    """
    data = digits.load()
    images, labels = data.images[:128] / numpy.float32(16), data.labels[:128]
    weights = _quantised_weights(QUANTISED_SEED, images)

    def around(functions: tuple[Function, Function], tensor: Callable[[Any], Any]) -> Function:
        of_weights, of_activations = functions
        batch, wanted = tensor(images), tensor(labels)

        def errors(weights: dict[str, Any]) -> Any:
            x = batch
            for layer in LAYERS:
                x = of_activations(x, weights[f"{layer} step in"])
                x = x @ of_weights(weights[layer], weights[f"{layer} step"]) + weights[f"{layer} bias"]
            return (x - wanted) ** 2

        return errors

    errors, gradients, distances = _quantised(weights, images, labels)
    assert min(each.min() for each in distances) > MARGIN
    return Workload("a network with learned steps", "learned_step", (weights,), [errors], gradients, around)


def _quantised_weights(seed: int, images: numpy.ndarray) -> Weights:
    """The weights, with steps as the paper starts them: 2 mean |v| / sqrt(highest level)."""
    found = _normal(seed, a=(64, 64), b=(64, 64), c=(64, 10))
    biases = _normal(seed + 1, a=(100, 64), b=(100, 64), c=(100, 10))
    x = images.astype(float)
    for layer in LAYERS:
        for name, values, levels in (("step in", x, ACTIVATIONS), ("step", found[layer], WEIGHTS)):
            step = 2 * numpy.mean(numpy.abs(values)) / math.sqrt(levels[1])
            found[f"{layer} {name}"] = numpy.asarray(step, numpy.float32)
        found[f"{layer} bias"] = biases[layer][0]
        x = _rounded(x, found[f"{layer} step in"], ACTIVATIONS)[0] @ found[layer] + found[f"{layer} bias"]
    return found


def _rounded(v: Any, step: Any, levels: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """`v` on the grid, its derivatives with respect to `v` and to the step, and how far each is from the next edge.

    A pixel that is 0 is on an edge, and as exactly in float32.
    """
    scaled = v.astype(float) / float(step)
    inside = (scaled > levels[0]) & (scaled < levels[1])
    nearest = numpy.floor(numpy.clip(scaled, *levels) + 0.5)
    scale = 1 / math.sqrt(v.size * levels[1])
    edges = numpy.abs(scaled - numpy.floor(scaled) - 0.5)
    ends = numpy.minimum(numpy.abs(scaled - levels[0]), numpy.abs(scaled - levels[1]))
    edges = numpy.where(v == 0, numpy.inf, numpy.minimum(edges, ends))
    return nearest * float(step), inside, (nearest - inside * scaled) * scale, edges


def _quantised(weights: Weights, images: numpy.ndarray, labels: numpy.ndarray) -> tuple[Any, Arrays, list[Any]]:
    """Its errors, the gradient of their sum by sorted names, and how far the numbers are from the next edge."""
    x, kept, edges = images.astype(float), {}, []
    for layer in LAYERS:
        rounded_x = _rounded(x, weights[f"{layer} step in"], ACTIVATIONS)
        rounded_w = _rounded(weights[layer], weights[f"{layer} step"], WEIGHTS)
        kept[layer] = rounded_x, rounded_w
        edges += [rounded_x[-1], rounded_w[-1]]
        x = rounded_x[0] @ rounded_w[0] + weights[f"{layer} bias"]
    errors, upstream, gradients = (x - labels) ** 2, 2 * (x - labels), {}
    for layer in reversed(LAYERS):
        (x, x_inside, of_x_step, _), (w, w_inside, of_w_step, _) = kept[layer]
        of_x, of_w = upstream @ w.T, x.T @ upstream
        gradients[layer] = of_w * w_inside
        gradients[f"{layer} bias"] = upstream.sum(0)
        gradients[f"{layer} step"] = numpy.sum(of_w * of_w_step)
        gradients[f"{layer} step in"] = numpy.sum(of_x * of_x_step)
        upstream = of_x * x_inside
    return errors, [gradients[name] for name in sorted(gradients)], edges
