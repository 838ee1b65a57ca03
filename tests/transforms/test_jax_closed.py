"""JAX: a function that can reach nothing but its arguments captures nothing, and JAX runs it by itself in a program."""

import contextvars
import functools
import math
import types

import numpy as np
import pytest

import keras_cg
from keras_cg import CapturedVariableError, custom_gradient, ops

pytestmark = pytest.mark.only("jax")

NUMBER, TEXT, PAIR = 7.0, "a text", (7.0, None)
LISTED, HELD, SET = [7.0], types.SimpleNamespace(w=7.0), {7.0}
ARRAY = np.array(7.0)
VARIABLE = contextvars.ContextVar("w", default=7.0)


class Holder:
    w = 7.0


def helper(x):
    return math.sqrt(NUMBER) * ops.exp(x)


def reads_a_list(x):
    return LISTED[0] * x


@custom_gradient
def decorated(x):
    return helper(x), lambda upstream: upstream


def importing(x):
    import sys

    return x * sys.modules[__name__].LISTED[0]


def storing(x):
    global NUMBER
    NUMBER = 7.0
    return x


def counting(x):
    counting.calls = 1
    return x


def with_attributes(x):
    return x


with_attributes.w = LISTED


def in_a_cell(value):
    return lambda x: (x, value)


def unbound():
    reader = lambda x: (x, later)
    if LISTED == []:
        later = 1
    return reader


CLOSED = {
    "number": lambda x: x * NUMBER * PAIR[0],
    "text": lambda x: x * len(TEXT),
    "helper": lambda x: helper(x),
    "decorated": lambda x: decorated(x),
    "package": lambda x: keras_cg.ops.exp(x),
    "builtin": lambda x: sum([abs(float(len(TEXT)))]) * x,
    "cell of a number": in_a_cell(2),
    "cell of a function": in_a_cell(helper),
    "default": lambda x, k=2: k * x,
    "inner function": lambda x: (lambda y: y * NUMBER)(x),
    "recursion": helper,
    "unbound": unbound(),
}
NOT_CLOSED = {
    "list": lambda x: x * LISTED[0],
    "object": lambda x: x * HELD.w,
    "set": lambda x: x * len(SET),
    "array of NumPy": lambda x: x * ARRAY,
    "module of NumPy": lambda x: x * np.pi,
    "context variable": lambda x: x * VARIABLE.get(),
    "class": lambda x: x * Holder.w,
    "helper that reads a list": lambda x: reads_a_list(x),
    "in an inner function": lambda x: (lambda y: y * LISTED[0])(x),
    "cell of a list": in_a_cell([2]),
    "cell of a helper": in_a_cell(reads_a_list),
    "cell of a tuple": in_a_cell((reads_a_list,)),
    "default": lambda x, k=LISTED: k[0] * x,
    "keyword default": lambda x, *, k=LISTED: k[0] * x,
    "partial": functools.partial(lambda k, x: x, LISTED),
    "import": importing,
    "global": storing,
    "attribute": counting,
    "attributes": with_attributes,
    "globals": lambda x: x * globals()["LISTED"][0],
    "eval": lambda x: x * eval("LISTED")[0],
    "method": Holder().__init__,
}


@pytest.mark.parametrize("name", [*CLOSED, *[f"not: {name}" for name in NOT_CLOSED]])
def test_what_is_closed(jax, name):
    from keras_cg.backends.jax.closed import is_closed

    function = CLOSED.get(name) or NOT_CLOSED[name.removeprefix("not: ")]
    assert is_closed(function) == (not name.startswith("not: "))


def test_arrays_of_jax_are_constants_and_tracers_are_not(jax):
    from keras_cg.backends.jax.closed import is_closed

    assert is_closed(in_a_cell(jax.numpy.ones(2)))
    seen = []
    jax.jit(lambda w: seen.append(is_closed(in_a_cell(w))))(1.0)
    assert seen == [False]


@pytest.mark.parametrize("how", ["jit of grad", "grad of jit"])
def test_what_a_static_argument_captures_is_refused(jax, how):
    f = custom_gradient(lambda x, g: (g["by"](x), lambda upstream: 7 * upstream))
    loss = lambda w: f(jax.numpy.float32(2.0), {"by": lambda x: x * w})
    with pytest.raises(CapturedVariableError):
        (jax.jit(jax.grad(loss)) if how == "jit of grad" else jax.grad(jax.jit(loss)))(3.0)


def test_static_arguments_and_containers_in_a_program(jax):
    """7 n exp, of a dict beside a number; the function is traced alone until it is differentiated."""

    @custom_gradient
    def f(p, n, *, scale):
        e = ops.exp(p["x"]) * scale
        return {"y": e}, lambda upstream: {"x": 7 * n * upstream["y"] * e}

    program = jax.jit(lambda x: f({"x": x}, 3, scale=2.0)["y"])
    x = jax.numpy.float32(0.5)
    first = jax.grad(program)
    assert "mul 21" not in str(jax.make_jaxpr(program)(x)) and "mul 21" in str(jax.make_jaxpr(first)(x))
    np.testing.assert_allclose([program(x), first(x), jax.grad(first)(x)], np.exp(0.5) * np.array([2, 42, 42]), 1e-6)


@pytest.mark.limit
def test_a_constant_output_of_a_program_has_the_batch(jax):
    f = custom_gradient(lambda x: ((x * 2, ops.ones(())), lambda upstream: 7 * upstream[0]))
    x = ops.asarray([1.0, 2.0])
    with pytest.raises(ValueError, match="out_axes"):
        jax.vmap(jax.jit(f), out_axes=(0, None))(x)
    program = jax.jit(jax.vmap(f, out_axes=(0, None)))
    np.testing.assert_allclose([*program(x)[0], program(x)[1]], [2, 4, 1])
    np.testing.assert_allclose(jax.vmap(jax.grad(lambda x: jax.jit(f)(x)[0]))(x), [7, 7])


@pytest.mark.parametrize("place", ["list", "global object"])
def test_what_is_not_closed_is_still_looked_for(jax, place):
    def loss(w, x):
        LISTED[0] = HELD.w = w
        read = {"list": lambda x: x * LISTED[0], "global object": lambda x: x * HELD.w}[place]
        return custom_gradient(lambda x: (read(x), lambda upstream: 7 * upstream))(x)

    try:
        for run in (jax.jit(jax.grad(loss, (0, 1))), jax.jit(jax.grad(jax.jit(loss), (0, 1)))):
            with pytest.raises(CapturedVariableError):
                run(2.0, 3.0)
    finally:
        LISTED[0] = HELD.w = 7.0
