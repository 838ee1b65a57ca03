"""What rounds: lower precision inside, large and tiny numbers, and where rounding leaves nothing to compare."""

import numpy as np

from benchmarks.checker.rules import positive, rule, signed, softmax, softmax_gradient
from keras_cg import ops
from keras_cg.frontend import config


def cast(x, dtype):
    return config.active.cast(x, dtype)


def kind(x):
    return config.active.dtype(x)


def root_mean_square(inner):
    def flat(x, g):
        wide = cast(x, inner)
        scale = 1 / ops.sqrt(ops.mean(wide * wide, axis=-1, keepdims=True) + 1e-2)
        y = cast(wide * scale, kind(x))
        scale = cast(scale, kind(x))

        def gradient(u):
            back = u * g
            return scale * (back - y * ops.mean(back * y, axis=-1, keepdims=True)), ops.sum(u * y, axis=0)

        return g * y, gradient

    return flat


def rms_gradient(x, g, u):
    scale = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-2)
    y = x * scale
    return [scale * (u * g - y * (u * g * y).mean(-1, keepdims=True)), (u * y).sum(0)]


for named, inner in (("single", "float32"), ("half", "float16")):
    rule(
        lambda x, g: g * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-2),
        rms_gradient,
        signed(3, 4, dtype="float64" if inner == "float32" else "float32"),
        positive(4, dtype="float64" if inner == "float32" else "float32"),
        name=f"root mean square with {named} statistics",
        inner=inner,
    )(root_mean_square(inner))


@rule(np.tanh, lambda x, u: u / np.cosh(x) ** 2, signed(5), inner="float16")
def tanh_in_half_precision(x):
    y = cast(ops.tanh(cast(x, "float16")), kind(x))
    return y, lambda u: u * (1 - y * y)


@rule(softmax, softmax_gradient, signed(2, 4, dtype="float64"), inner="float32")
def softmax_in_single_precision(x):
    wide = cast(x, "float32")
    e = ops.exp(wide)
    p = cast(e / ops.sum(e, axis=-1, keepdims=True), kind(x))
    return p, lambda u: p * (u - ops.sum(u * p, axis=-1, keepdims=True))


@rule(lambda x: x / (1 + x**2), lambda x, u: u * (1 - x**2) / (1 + x**2) ** 2, signed(4, dtype="float16"))
def half_precision_arguments(x):
    below = 1 + x * x
    return x / below, lambda u: u * (1 - x * x) / (below * below)


@rule(lambda x: 1e8 * x**2, lambda x, u: 2e8 * u * x, signed(4))
def large_outputs(x):
    return 1e8 * x * x, lambda u: 2e8 * u * x


@rule(lambda x: 1e-8 * x**3, lambda x, u: 3e-8 * u * x**2, signed(2, 3))
def tiny_outputs(x):
    return 1e-8 * x * x * x, lambda u: 3e-8 * u * x * x


@rule(np.log, lambda x, u: u / x, lambda draw: 10.0 ** draw.uniform(-6, 6, 6))
def many_magnitudes(x):
    return ops.log(x), lambda u: u / x


@rule(lambda x: (1e6 + x) ** 2 - 1e12, lambda x, u: 2 * u * (1e6 + x), signed(3, dtype="float64"), is_rounded=True)
def difference_of_large_numbers(x):
    far = 1e6 + x
    return far * far - 1e12, lambda u: 2 * u * far


@rule(lambda x: softmax(30 * x), lambda x, u: 30 * softmax_gradient(30 * x, u), signed(2, 4), is_rounded=True)
def sharp_softmax(x):
    top = ops.stop_gradient(ops.max(x, axis=-1, keepdims=True))
    e = ops.exp(30 * (x - top))
    p = e / ops.sum(e, axis=-1, keepdims=True)
    return p, lambda u: 30 * p * (u - ops.sum(u * p, axis=-1, keepdims=True))


@rule(lambda x: np.sin(1e6 * x), lambda x, u: 1e6 * u * np.cos(1e6 * x), signed(3, dtype="float64"), is_rounded=True)
def fast_wave(x):
    return ops.sin(1e6 * x), lambda u: 1e6 * u * ops.cos(1e6 * x)


@rule(
    np.tanh,
    lambda x, u: u / np.cosh(x) ** 2,
    lambda draw: draw.choice([-1.0, 1.0], 4) * draw.uniform(8, 30, 4),
    is_rounded=True,
)
def saturated(x):
    e = ops.exp(-2 * ops.abs(x))
    y = ops.sign(x) * (1 - e) / (1 + e)
    return y, lambda u: u * 4 * e / ((1 + e) * (1 + e))
