"""Every function of `keras_cg.ops` on every backend, by its closed form: values, first and second derivatives."""

import functools
import importlib
import math
import pathlib
import re

import numpy as np
import pytest
from ops_cases import check, plain, tensor
from ops_table import ELEMENTWISE, FUNCTIONS, VALUES, X

import keras_cg
from keras_cg import grad, ops
from keras_cg.frontend import config
from keras_cg.namespaces import table


@pytest.fixture
def doubles(backend):
    with config.active.double_precision():
        yield


def weights(shape):
    """Different numbers, so that no two elements of a result can change places."""
    return 1.5 + np.cos(np.arange(math.prod(shape))).reshape(shape)


def total(xp, function, x):
    """A scalar to which every element of what a function gives contributes differently."""
    output = function(xp, x)
    return xp.sum(output * xp.asarray(weights(tuple(output.shape)), dtype=output.dtype))


def slope(f, x, direction=None):
    """The gradient of a polynomial by central differences, or the product of its Hessian; exact up to degree three."""
    step = 2.0**-8
    sides = [(1, step), (-1, -step)]
    if direction is None:
        return sum(
            sign * np.reshape([f(x + move * each.reshape(x.shape)) for each in np.eye(x.size)], x.shape)
            for sign, move in sides
        ) / (2 * step)
    return sum(sign * slope(f, x + move * direction) for sign, move in sides) / (2 * step)


def expected(label, order):
    f = functools.partial(total, np, FUNCTIONS[label])
    if order < 2:
        return (f, functools.partial(slope, f))[order](X)
    return slope(f, X, DIRECTION)


DIRECTION = weights(X.shape)


def test_the_tables_have_every_function():
    names = {label.partition(" ")[0].rstrip(",") for label in (*ELEMENTWISE, *FUNCTIONS, *VALUES)}
    beyond = {"erf", "relu", "sigmoid", "log_softmax", "softmax"}  # test_ops_beyond.py
    assert names | beyond | {"result_type"} == {*table.FUNCTIONS} and not names & beyond


def computed(*functions):
    """Calls functions of a tensor; on JAX in one program, because it compiles each operation of them otherwise."""
    call = lambda x: [function(x) for function in functions]
    return importlib.import_module("jax").jit(call) if config.backend() == "jax" else call


@pytest.mark.only("numpy")
def test_the_page_lists_every_function():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "ops.md").read_text("utf-8")
    for heading, lines in table.SECTIONS.items():
        shown = [re.sub(r", [/*](?=[,)])", "", line) for line in lines]
        assert f"| {heading} | {', '.join(f'`{line}`' for line in shown)} |" in page


@pytest.mark.parametrize("label", ELEMENTWISE)
def test_an_elementwise_function(backend, label, doubles):
    points, call, first, second = ELEMENTWISE[label]
    function = functools.partial(call, ops)
    found = computed(function, grad(function), grad(grad(function)))(tensor(points))
    for order, (each, due) in enumerate(zip(found, (functools.partial(call, np), first, second), strict=True)):
        np.testing.assert_allclose(plain(each), due(points), rtol=1e-12, atol=1e-14, err_msg=f"order {order}")


@pytest.mark.parametrize("label", FUNCTIONS)
def test_a_function(backend, label, doubles):
    function, direction = FUNCTIONS[label], tensor(DIRECTION)
    f = functools.partial(total, ops, function)
    along = lambda x: ops.sum(grad(f)(x) * direction)
    found, gradient, product = computed(functools.partial(function, ops), grad(f), grad(along))(tensor(X))
    due = np.asarray(function(np, X))
    assert config.active.dtype(found) == due.dtype
    check(found, due, rtol=1e-12)
    check(gradient, expected(label, 1), rtol=1e-10)
    np.testing.assert_allclose(plain(product), expected(label, 2), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("label", VALUES)
def test_a_function_without_a_gradient(backend, label, doubles):
    np.testing.assert_array_equal(plain(VALUES[label](ops)), VALUES[label](np))


def test_the_constants_and_dtypes(backend, doubles):
    assert (ops.e, ops.pi, ops.inf, ops.newaxis) == (np.e, np.pi, np.inf, None)
    assert np.isnan(ops.nan)
    for name in table.DTYPES:
        for dtype in (name, getattr(ops, name)):
            made = [ops.zeros(2, dtype), ops.full(2, 1, dtype=dtype), ops.eye(2, dtype=dtype), ops.asarray([1], dtype)]
            made += [ops.zeros_like(made[0], dtype=dtype), ops.astype(ops.ones(2), dtype)]
            assert {config.active.dtype(each) for each in made} == {name}
            assert config.active.dtype(ops.zeros(1, dtype=ops.result_type(dtype))) == name


# In compiled code, and in batches: one program has all functions, because compiling takes longest.
COMPILED = {
    "jax": ["jit(grad)"],
    "numpy": ["eager"],
    "tensorflow": ["eager", "function", "jit_compile"],
    "torch": ["eager"],
}
CALLS = [(label == "acosh", call) for label, (_, call, *_) in ELEMENTWISE.items()]


def check_compiled(frame, compiled=lambda f: f):
    # XLA takes long for each of these, which are TensorFlow's own operations.
    left_out = "linalg." if frame.mode == "jit_compile" else "-"
    names = [name for name in FUNCTIONS if not name.startswith(left_out)]
    f = lambda *xs: ops.stack([total(ops, FUNCTIONS[name], x) for name, x in zip(names, xs, strict=True)])
    g = lambda x: ops.stack([ops.sum(call(ops, x + shift)) for shift, call in CALLS])
    output, gradients = frame.differentiate(compiled(f), *[X.astype("float32")] * len(names))
    for place, name in enumerate(names):
        np.testing.assert_allclose(output[place], expected(name, 0), rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(gradients[place], expected(name, 1), rtol=1e-4, atol=1e-4, err_msg=name)
    output, (gradient,) = frame.differentiate(compiled(g), X.astype("float32"))
    np.testing.assert_allclose(output, [np.sum(call(np, X + shift)) for shift, call in CALLS], rtol=1e-5, atol=1e-6)
    due = sum(slopes[0](X + (label == "acosh")) for label, (_, _, *slopes) in ELEMENTWISE.items())
    np.testing.assert_allclose(gradient, due, rtol=1e-4)


def test_in_compiled_code(eager):
    for mode in COMPILED[eager.name]:
        check_compiled(type(eager)(eager.name, mode))
    if eager.name == "torch":
        import torch

        # What Dynamo traces is ours, what a compiler makes of it is not, and takes long.
        check_compiled(eager, functools.partial(torch.compile, backend="eager", fullgraph=True))


@pytest.mark.only("torch", "tensorflow")  # on JAX they are JAX's own
def test_in_a_batch(backend):
    native = importlib.import_module(f"frameworks.{backend}")
    f = lambda x: ops.stack(
        [total(ops, function, x) for function in FUNCTIONS.values()]
        + [ops.sum(call(ops, x + shift)) for shift, call in CALLS]
    )
    batch = np.stack([X, X[::-1], X / 2 + 0.15625])
    output = native.array(native.batched(f, native.tensor(batch)))
    for found, x in zip(output, batch, strict=True):
        due = [total(np, function, x) for function in FUNCTIONS.values()]
        np.testing.assert_allclose(found, due + [np.sum(call(np, x + shift)) for shift, call in CALLS], rtol=1e-6)


@pytest.mark.only("jax", "torch", "tensorflow")
@pytest.mark.parametrize("label", ELEMENTWISE)
def test_bfloat16(backend, label):
    active = config.active
    points, call, first, _ = ELEMENTWISE[label]
    half = active.cast(tensor(points[-2:], "float32"), "bfloat16")
    exact = plain(active.cast(half, "float32")).astype(float)
    ((value, gradient),) = computed(keras_cg.value_and_grad(functools.partial(call, ops)))(half)
    if label not in ("imag", "real"):
        assert (active.dtype(value), active.dtype(gradient)) == ("bfloat16", "bfloat16")
    np.testing.assert_allclose(plain(active.cast(value, "float32")), call(np, exact), rtol=2**-6, atol=2**-8)
    np.testing.assert_allclose(plain(active.cast(gradient, "float32")), first(exact), rtol=2**-5, atol=2**-8)
