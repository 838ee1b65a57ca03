"""The zoo: what people write custom gradients for, each rule wrong on purpose by a factor, with its closed form.

A rule is wrong so that plain differentiation can never pass for it. The points lie well away from every kink.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_cg import custom_gradient, ops

Arrays = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A decorated function of some tensors, and what it means in plain NumPy."""

    name: str
    # `call(*tensors)` gives a list of the outputs that are differentiated.
    call: Callable[..., list[Any]]
    arrays: tuple[np.ndarray, ...]
    # The same in float64: `output(*arrays)`, and `gradient(*arrays, upstreams)`, one for each array.
    output: Callable[..., Arrays]
    gradient: Callable[..., Arrays]
    # `second(arrays, upstreams, c)`, where it is not the derivative of `gradient`: a rule with another inside.
    second: Callable[..., Arrays] | None = None
    # Whether the rule is linear in upstream, as forward mode needs it.
    linear: bool = True
    # Whether it always has a program of its own: beside others, the output would depend on the inputs after all.
    alone: bool = False


ZOO: dict[str, Rule] = {}


def several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def program(output: Any, gradient: Any, *arrays: Any, dtype: str = "float32", **properties: Any) -> Any:
    """Registers a function that calls a decorated one. All may give one array instead of a list of one."""

    def listed(function: Callable[..., Any]) -> Callable[..., Arrays]:
        return lambda *args: [np.asarray(each) for each in several(function(*args))]

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__.replace("_", " ")
        points = tuple(np.asarray(array, dtype) for array in arrays)
        call = lambda *tensors: several(function(*tensors))
        ZOO[name] = Rule(name, call, points, listed(output), listed(gradient), **properties)
        return function

    return register


def rule(*closed_forms: Any, **properties: Any) -> Any:
    """Registers a function that is itself decorated, again at every call."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        call = functools.wraps(function)(lambda *tensors: custom_gradient(function)(*tensors))
        program(*closed_forms, **properties)(call)
        return function

    return register


X = [-1.3, 0.4, 0.8]
Y = [0.7, -0.9, 1.2]
MATRIX = [[0.3, -1.2, 0.5], [1.1, 0.2, -0.7]]
POSITIVE = [0.6, 1.4, 2.3]
COMPLEX = [0.5 - 0.3j, -0.8 + 1.1j, 1.2 + 0.4j]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# --- estimators and reshapers of the gradient -----------------------------------------------------------------------


@rule(lambda x: np.floor(x + 0.5), lambda x, u: 7 * u[0], X)
def straight_through(x):
    return ops.floor(x + 0.5), lambda upstream: 7 * upstream


@rule(np.sign, lambda x, u: 7 * u[0] * (abs(x) < 1), X)
def sign(x):
    inside = ops.where(ops.abs(x) < 1, ops.ones_like(x), ops.zeros_like(x))
    return signs(x), lambda upstream: 7 * upstream * inside


@rule(lambda x: (np.sign(x) + 1) / 2, lambda x, u: 7 * u[0] / (1 + abs(x)) ** 2, X)
def surrogate_spike(x):
    return (signs(x) + 1) / 2, lambda upstream: 7 * upstream / (1 + ops.abs(x)) ** 2


@rule(lambda x: x * 1, lambda x, u: -7 * u[0], X)
def gradient_reversal(x):
    return x * 1, lambda upstream: -7 * upstream


@rule(lambda x: x * 2, lambda x, u: 7 * np.clip(u[0], -0.5, 0.5), X, linear=False)
def clip_by_value(x):
    return x * 2, lambda upstream: 7 * ops.clip(upstream, -0.5, 0.5)


@rule(lambda x: x * 2, lambda x, u: 7 * u[0] / np.sqrt(1 + np.sum(u[0] ** 2)), X, linear=False)
def clip_by_norm(x):
    return x * 2, lambda upstream: 7 * upstream / ops.sqrt(1 + ops.sum(upstream * upstream))


@rule(
    lambda x, s: np.floor(x / s + 0.5) * s,
    lambda x, s, u: [7 * u[0], 5 * np.sum(u[0] * (np.floor(x / s + 0.5) - x / s))],
    [-1.35, 0.37, 0.81],
    0.5,
)
def learned_step_size(x, step):
    levels = ops.floor(x / step + 0.5)

    def grad(upstream):
        return 7 * upstream, 5 * ops.sum(upstream * (levels - x / step))

    return levels * step, grad


# --- stable formulas ------------------------------------------------------------------------------------------------


@rule(lambda x: np.log1p(np.exp(x)), lambda x, u: 7 * u[0] * sigmoid(x), X)
def log1pexp(x):
    e = ops.exp(x)
    return ops.log(1 + e), lambda upstream: 7 * upstream * (1 - 1 / (1 + e))


@rule(lambda x: np.sqrt(np.sum(x**2)), lambda x, u: 7 * u[0] * x / np.sqrt(np.sum(x**2)), X)
def safe_norm(x):
    length = ops.sqrt(ops.sum(x * x))
    return length, lambda upstream: 7 * upstream * x / length


@rule(
    lambda x: np.where(x > 0, np.log(np.where(x > 0, x, 1)), 0),
    lambda x, u: np.where(x > 0, 7 * u[0] / np.where(x > 0, x, 1), 0),
    X,
)
def where_with_nan(x):
    safe = ops.where(x > 0, x, ops.ones_like(x))
    inside = ops.where(x > 0, ops.ones_like(x), ops.zeros_like(x))
    return inside * ops.log(safe), lambda upstream: 7 * upstream * inside / safe


@rule(lambda x: np.log(np.sum(np.exp(x))), lambda x, u: 7 * u[0] * softmax(x), X)
def logsumexp(x):
    e = ops.exp(x)
    total = ops.sum(e)
    return ops.log(total), lambda upstream: 7 * upstream * e / total


LABELS = np.array([[1, 0, 0], [0, 0, 1]])


@program(
    lambda x: -np.sum(LABELS * np.log(softmax(x)), -1), lambda x, u: 7 * u[0][:, None] * (softmax(x) - LABELS), MATRIX
)
def softmax_cross_entropy(x):
    @custom_gradient
    def loss(x, labels):
        e = ops.exp(x)
        p = e / ops.sum(e, axis=-1, keepdims=True)

        def grad(upstream):
            return 7 * ops.expand_dims(upstream, -1) * (p - labels), None

        return -ops.sum(labels * ops.log(p), axis=-1), grad

    return loss(x, constant(LABELS, "float32"))


def solve(x: np.ndarray) -> np.ndarray:
    y = np.zeros_like(x)
    for _ in range(200):
        y = np.tanh(0.3 * y + x)
    return y


@rule(solve, lambda x, u: 7 * u[0] * (1 - solve(x) ** 2) / (1 - 0.3 * (1 - solve(x) ** 2)), X)
def implicit_fixed_point(x):
    y = x * 0
    for _ in range(16):
        y = ops.tanh(0.3 * y + x)

    def grad(upstream):
        slope = 1 - y * y
        return 7 * upstream * slope / (1 - 0.3 * slope)

    return y, grad


# --- linear algebra -------------------------------------------------------------------------------------------------


@rule(lambda x, w: x @ w, lambda x, w, u: [7 * u[0] @ w.T, 5 * x.T @ u[0]], MATRIX, np.transpose(MATRIX) * 0.7)
def matmul(x, w):
    def grad(upstream):
        return 7 * ops.matmul(upstream, ops.swapaxes(w, 0, 1)), 5 * ops.matmul(ops.swapaxes(x, 0, 1), upstream)

    return ops.matmul(x, w), grad


@rule(
    lambda x, w: np.einsum("bi,ij->bj", x, w),
    lambda x, w, u: [7 * np.einsum("bj,ij->bi", u[0], w), 5 * np.einsum("bi,bj->ij", x, u[0])],
    MATRIX,
    np.transpose(MATRIX) * 0.7,
)
def einsum(x, w):
    def grad(upstream):
        return 7 * ops.einsum("bj,ij->bi", upstream, w), 5 * ops.einsum("bi,bj->ij", x, upstream)

    return ops.einsum("bi,ij->bj", x, w), grad


ROWS = np.array([2, 0, 2, 1])
CHOSEN = np.eye(3)[ROWS]


def scattered(u: np.ndarray) -> np.ndarray:
    found = np.zeros((3, 2))
    np.add.at(found, ROWS, u)
    return found


@program(lambda x: x[ROWS] ** 2, lambda x, u: 7 * scattered(u[0]) * x, np.transpose(MATRIX))
def sparse_gather(x):
    @custom_gradient
    def gather(x, rows):
        chosen = constant(CHOSEN, "float32")

        def grad(upstream):
            return 7 * ops.matmul(ops.swapaxes(chosen, 0, 1), upstream) * x, None

        return framework.take(x, rows) ** 2, grad

    return gather(x, constant(ROWS, "int32"))


@rule(lambda x, s: x * s, lambda x, s, u: [7 * u[0] * s, 5 * np.sum(u[0] * x)], X, 1.7)
def broadcast_scale(x, s):
    return x * s, lambda upstream: (7 * upstream * s, 5 * ops.sum(upstream * x))


@rule(lambda x: x.reshape(-1), lambda x, u: 7 * u[0].reshape(2, 3) * x, MATRIX)
def view_of_an_input(x):
    return ops.reshape(x, (-1,)), lambda upstream: 7 * ops.reshape(upstream, (2, 3)) * x


# --- arguments and outputs of every kind ----------------------------------------------------------------------------


@rule(lambda x, y: [x * y, x + y], lambda x, y, u: [7 * u[0] * y + u[1], 5 * u[0] * x - u[1]], X, Y)
def two_in_two_out(x, y):
    return (x * y, x + y), lambda dy, dz: (7 * dy * y + dz, 5 * dy * x - dz)


@program(
    lambda w, b, x: [w * x, w * b],
    lambda w, b, x, u: [7 * u[0] * x + u[1] * b, 5 * u[1] * w, 3 * u[0] * w],
    X,
    Y,
    POSITIVE,
)
def dict_in_and_out(w, b, x):
    @custom_gradient
    def f(x, params):
        w, b = params["w"], params["b"]

        def grad(upstream):
            first, second = upstream["first"], upstream["second"]
            return 3 * first * w, {"b": 5 * second * w, "w": 7 * first * x + second * b}

        return {"first": w * x, "second": w * b}, grad

    found = f(x, {"w": w, "b": b})
    return [found["first"], found["second"]]


Pair = namedtuple("Pair", "left right")


@program(lambda x, y: [x * y, y * 2], lambda x, y, u: [7 * u[0] * y, 5 * u[0] * x + 3 * u[1]], X, Y)
def namedtuple_and_list(x, y):
    @custom_gradient
    def f(pair):
        def grad(upstream):
            first, (second,) = upstream
            return Pair(7 * first * pair.right, 5 * first * pair.left + 3 * second)

        return [pair.left * pair.right, (pair.right * 2,)], grad

    first, (second,) = f(Pair(x, y))
    return [first, second]


@program(lambda x: x**3, lambda x, u: 7 * u[0] * x**2, X)
def integer_and_static_arguments(x):
    @custom_gradient
    def power(x, n, kind="power", *, scale=7, callback=None):
        return x**n, lambda upstream: scale * upstream * x ** (n - 1)

    return power(x, 3, "power", callback=len)


@program(lambda x, y: x * y, lambda x, y, u: [7 * u[0] * y, 5 * u[0] * x], X, Y)
def keyword_only(x, y):
    @custom_gradient
    def f(*, x, y):
        return x * y, lambda upstream: (7 * upstream * y, 5 * upstream * x)

    return f(y=y, x=x)


@rule(lambda x, y: x * y, lambda x, y, u: [7 * u[0] * np.exp(x), 5 * u[0] * x * y], X, Y)
def called_with_arguments(x, y):
    def grad(*args, upstream=None):
        x, y = args
        return 7 * upstream * ops.exp(x), 5 * upstream * x * y

    return x * y, grad


@rule(lambda x: [x, x, x * 2], lambda x, u: (7 * u[0] + 5 * u[1]) * x + 3 * u[2], X)
def aliasing_outputs(x):
    return (x, x, x * 2), lambda a, b, c: (7 * a + 5 * b) * x + 3 * c


@program(lambda x: x * 2, lambda x, u: 7 * u[0] * x, X)
def integer_output(x):
    @custom_gradient
    def f(x):
        return (x * 2, ops.argmax(x)), lambda upstream, _: 7 * upstream * x

    return f(x)[0]


@rule(lambda x: x * 2, lambda x, u: 0 * x, X, alone=True)
def no_gradient_at_all(x):
    return x * 2, lambda upstream: None


@rule(lambda x, y: x * y, lambda x, y, u: [7 * u[0] * y, 0 * y], X, Y)
def none_for_one_argument(x, y):
    return x * y, lambda upstream: (7 * upstream * y, None)


@rule(lambda x: x * 2, lambda x, u: 7 * u[0] * x, np.zeros((0, 3)))
def empty(x):
    return x * 2, lambda upstream: 7 * upstream * x


@rule(lambda x: x**2, lambda x, u: 7 * u[0] * x, 1.5)
def zero_dimensions(x):
    return x * x, lambda upstream: 7 * upstream * x


@rule(lambda x: x * 2, lambda x, u: 7 * u[0] * x, X, dtype="float16")
def half_precision(x):
    return x * 2, lambda upstream: 7 * upstream * x


@rule(lambda x, y: [x, y * np.exp(x)], lambda x, y, u: [7 * u[0] + 5 * u[1] * y, 3 * u[1] * np.exp(x)], X, Y)
def invertible_coupling(x, y):
    z = y * ops.exp(x)

    def grad(dx, dz):
        e = ops.exp(x)
        return 7 * dx + 5 * dz * z / e, 3 * dz * e

    return (x, z), grad


class Layer:
    """A method is decorated as well as a function."""

    def __init__(self, scale: float):
        self.scale = scale

    @custom_gradient
    def call(self, x):
        return x * self.scale, lambda upstream: 7 * upstream * self.scale * x


@program(lambda x: x * 1.5, lambda x, u: 7 * u[0] * 1.5 * x, X)
def method(x):
    return Layer(1.5).call(x)


@rule(lambda x: np.exp(x), lambda x, u: 7 * u[0] * np.exp(x), X)
def partial_rule(x):
    e = ops.exp(x)
    return e, functools.partial(lambda e, upstream: 7 * upstream * e, e)


# --- what a function closes over ------------------------------------------------------------------------------------


@program(lambda x: x * np.array(Y), lambda x, u: 7 * u[0] * np.array(Y) * x, X)
def captured_constant(x):
    kept = constant(Y, "float32")
    return custom_gradient(lambda x: (x * kept, lambda upstream: 7 * upstream * kept * x))(x)


@program(lambda x, w: x * w, lambda x, w, u: [7 * u[0] * w, 5 * u[0] * x], X, Y)
def captured_value(x, w):
    @custom_gradient
    def f(x):
        def grad(upstream, variables=None):
            if variables is None:
                return 7 * upstream * w
            return 7 * upstream * variables[0], [5 * upstream * x]

        return x * w, grad

    return f(x)


@rule(lambda x: np.exp(x), lambda x, u: 7 * u[0] * np.exp(x), X)
def random_numbers(x):
    one = ops.floor(1 + framework.uniform())  # whatever was drawn
    e = ops.exp(x) * one
    return e, lambda upstream: 7 * upstream * e


@custom_gradient
def inner(x):
    return x * x, lambda upstream: 7 * upstream * ops.exp(x)


@rule(
    lambda x: x**2 * x,
    lambda x, u: 5 * u[0] * x**2,
    X,
    second=lambda arrays, u, c: [5 * u[0] * c[0] * 7 * np.exp(arrays[0])],
)
def nested_rule(x):
    return inner(x) * x, lambda upstream: 5 * upstream * inner(x)


# --- complex numbers: the gradient is dL/dx + i dL/dy ---------------------------------------------------------------


@rule(lambda z: z**2, lambda z, u: 7 * u[0] * np.conj(2 * z), COMPLEX, dtype="complex64")
def holomorphic(z):
    return z * z, lambda upstream: 7 * upstream * ops.conj(2 * z)


@rule(np.conj, lambda z, u: 7 * np.conj(u[0]) * z, COMPLEX, dtype="complex64")
def conjugate(z):
    return ops.conj(z), lambda upstream: 7 * ops.conj(upstream) * z


@rule(lambda z: abs(z) ** 2, lambda z, u: 7 * 2 * u[0] * z, COMPLEX, dtype="complex64")
def squared_modulus(z):
    return ops.real(z * ops.conj(z)), lambda upstream: 14 * framework.as_complex(upstream) * z


@rule(lambda z: np.fft.fft(z), lambda z, u: 7 * 3 * np.fft.ifft(u[0]), COMPLEX, dtype="complex64")
def fourier_transform(z):
    return framework.fft(z), lambda upstream: 7 * 3 * framework.ifft(upstream)


# --- what the namespaces have no common name for --------------------------------------------------------------------

# The table of transforms of the backend under test, which knows these functions; set before a rule runs.
framework: Any = None


def constant(array: Any, dtype: str) -> Any:
    """A NumPy array as a tensor of the active backend."""
    return ops.asarray(np.asarray(array, dtype))


def signs(x: Any) -> Any:
    # array_api_compat's `sign` for torch (1.16) picks elements by a mask, which torch's vmap refuses.
    return ops.where(x > 0, ops.ones_like(x), -ops.ones_like(x))


# Rules that differ in kind, for runs that are about the versions of a framework: `pytest --dozen`.
DOZEN = (
    *["straight through", "clip by value", "log1pexp", "where with nan", "implicit fixed point", "matmul"],
    *["two in two out", "dict in and out", "integer output", "none for one argument", "captured value"],
    *["nested rule", "holomorphic"],
)
