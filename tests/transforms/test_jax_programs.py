"""What JAX compiles and keeps: the operations, and the bytes, of the rule written by hand for `jax.custom_vjp`.

Forwards, of its transpose written by hand for `jax.custom_jvp`.
"""

import collections
import gc
import re

import numpy as np
import pytest

from keras_cg import custom_gradient, ops

pytestmark = pytest.mark.only("jax")

X = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
Y = np.linspace(0.5, 2.0, 6, dtype=np.float32).reshape(2, 3)


def pairs(jax):
    """The functions of this file, each by `custom_gradient` and by hand: {name: (ours, by hand)}."""
    n = jax.numpy

    @custom_gradient
    def softplus(x):
        e = n.exp(x)
        return n.log(1 + e), lambda upstream: 7 * upstream * (1 - 1 / (1 + e))

    # By hand, the output that is differentiated again keeps its rule, too.
    kept = jax.custom_vjp(lambda output, e, x: output)
    kept.defvjp(
        lambda output, e, x: (kept(output, e, x), e),
        lambda e, upstream: (None, None, 7 * upstream * (1 - 1 / (1 + e))),
    )

    def softplus_forward(x):
        e = n.exp(x)
        return kept(n.log(1 + e), e, x), e

    softplus_by_hand = jax.custom_vjp(lambda x: softplus_forward(x)[0])
    softplus_by_hand.defvjp(softplus_forward, lambda e, upstream: (7 * upstream * (1 - 1 / (1 + e)),))

    softplus_forwards = jax.custom_jvp(lambda x: n.log(1 + n.exp(x)))

    @softplus_forwards.defjvp
    def tangent(primals, tangents):
        e = n.exp(primals[0])
        return n.log(1 + e), 7 * (tangents[0] * (1 - 1 / (1 + e)))

    def nested_forward(params, x):
        sine, cosine = n.sin(params["w"] * x), n.cos(params["w"] * x)
        return {"y": sine + params["b"], "z": (x * x, n.argmax(x))}, (cosine, params["w"], x)

    def nested_backward(kept, upstream):
        cosine, w, x = kept
        inner = upstream["y"] * cosine
        return {"w": 7 * inner * x, "b": 5 * upstream["y"]}, inner * w + 3 * upstream["z"][0] * x

    @custom_gradient
    def nested(params, x):
        output, kept = nested_forward(params, x)
        return output, lambda upstream: nested_backward(kept, upstream)

    nested_by_hand = jax.custom_vjp(lambda params, x: nested_forward(params, x)[0])
    nested_by_hand.defvjp(nested_forward, nested_backward)

    @custom_gradient
    def matrix(x, y):
        product = x @ y.T
        return product, lambda upstream: (7 * upstream @ y, upstream.T @ x)

    matrix_by_hand = jax.custom_vjp(lambda x, y: x @ y.T)
    matrix_by_hand.defvjp(
        lambda x, y: (x @ y.T, (x, y)), lambda kept, upstream: (7 * upstream @ kept[1], upstream.T @ kept[0])
    )
    return {
        "softplus": (softplus, softplus_by_hand),
        "softplus, forwards": (softplus, softplus_forwards),
        "nested": (nested, nested_by_hand),
        "matrix": (matrix, matrix_by_hand),
    }


def both_outputs(g, x, y):
    output = g({"w": x, "b": y}, x)
    return output["y"].sum() + output["z"][0].sum()


# What is compiled, of two arrays: {what it is: (which function, the program with it)}.
PROGRAMS = {
    "forward": ("softplus", lambda j, g: lambda x, y: g(x)),
    "forward of a nest": ("nested", lambda j, g: lambda x, y: g({"w": x, "b": y}, x)),
    "grad": ("softplus", lambda j, g: j.grad(lambda x, y: g(x).sum())),
    "grad of jit": ("softplus", lambda j, g: j.grad(j.jit(lambda x, y: g(x).sum()))),
    "value and grad": ("softplus", lambda j, g: j.value_and_grad(lambda x, y: g(x).sum())),
    "grad of a nest": ("nested", lambda j, g: j.grad(lambda x, y: both_outputs(g, x, y), (0, 1))),
    "grad of one output": ("nested", lambda j, g: j.grad(lambda x, y: g({"w": x, "b": y}, x)["y"].sum())),
    "grad of two arguments": ("matrix", lambda j, g: j.grad(lambda x, y: g(x, y).sum(), (0, 1))),
    "grad of one of two arguments": ("matrix", lambda j, g: j.grad(lambda x, y: g(x, y).sum())),
    "grad of a chain": ("softplus", lambda j, g: j.grad(lambda x, y: g(g(g(g(x)))).sum())),
    "beside a call without a gradient": (
        "softplus",
        lambda j, g: j.grad(lambda x, y: (g(x) * g(y) + j.lax.stop_gradient(g(3 * x))).sum()),
    ),
    "a call alone without a gradient": ("softplus", lambda j, g: j.grad(lambda x, y: (x * g(y)).sum())),
    "vmap of grad": ("softplus", lambda j, g: lambda x, y: j.vmap(j.grad(lambda x: g(x).sum()))(x)),
    "vmap of grad, one of two": (
        "matrix",
        lambda j, g: lambda x, y: j.vmap(j.grad(lambda x, y: g(x[None], y).sum()), (0, None))(x, y),
    ),
    "grad of vmap": ("softplus", lambda j, g: j.grad(lambda x, y: j.vmap(g)(x).sum())),
    "scan of grad": (
        "softplus",
        lambda j, g: lambda x, y: j.lax.scan(lambda c, v: (c + j.grad(lambda v: g(v).sum())(v), None), x[0], y)[0],
    ),
    "grad of scan": (
        "softplus",
        lambda j, g: j.grad(lambda x, y: j.lax.scan(lambda c, v: (g(c) * v, None), x[0], y)[0].sum()),
    ),
    "grad of checkpoint": ("softplus", lambda j, g: j.grad(j.checkpoint(lambda x, y: g(g(x)).sum()))),
    "jvp": ("softplus, forwards", lambda j, g: lambda x, y: j.jvp(g, (x,), (y,))),
    "jvp of jit": ("softplus, forwards", lambda j, g: lambda x, y: j.jvp(j.jit(g), (x,), (y,))),
    "linearize": ("softplus, forwards", lambda j, g: lambda x, y: j.linearize(g, x)[1](y)),
    "jacfwd": ("softplus, forwards", lambda j, g: lambda x, y: j.jacfwd(g)(x)),
    "vmap of jvp": ("softplus, forwards", lambda j, g: j.vmap(lambda x, y: j.jvp(g, (x,), (y,)))),
    "jvp of a chain": ("softplus, forwards", lambda j, g: lambda x, y: j.jvp(lambda x: g(g(g(x))), (x,), (y,))),
    "jvp of scan": (
        "softplus, forwards",
        lambda j, g: lambda x, y: j.jvp(lambda x: j.lax.scan(lambda c, v: (g(c), None), x[0], y)[0], (x,), (y,)),
    ),
    "second order": (
        "softplus",
        lambda j, g: j.grad(lambda x, y: (j.grad(lambda x: (g(x) ** 2).sum())(x) * y).sum()),
    ),
    "second order of a chain": (
        "softplus",
        lambda j, g: j.grad(lambda x, y: (j.grad(lambda x: (g(g(x)) ** 2).sum())(x) * y).sum()),
    ),
}


def operations(jax, function, *args):
    """How often each operation is in a program, as JAX writes it and as XLA has optimised it."""
    lowered = jax.jit(function).lower(*args)
    written = re.findall(r"stablehlo\.\w+|func\.func|call @", lowered.as_text())
    optimised = re.findall(r"= \S+ ([a-z][a-z0-9-]*)\(", lowered.compile().as_text())
    assert written
    assert optimised
    return collections.Counter(written), collections.Counter(optimised)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_operations_of_the_rule_written_by_hand(eager, backend, name):
    import jax

    x, y = eager.tensor(X), eager.tensor(Y)
    which, program = PROGRAMS[name]
    (ours, ours_optimised), (native, native_optimised) = (
        operations(jax, program(jax, g), x, y) for g in pairs(jax)[which]
    )
    assert ours == native
    assert ours_optimised == native_optimised
    ours, native = (jax.jit(program(jax, g))(x, y) for g in pairs(jax)[which])
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(native), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["grad", "grad of a chain", "vmap of grad", "grad of scan", "second order"])
def test_an_operation_too_many_is_noticed(eager, backend, name):
    import jax

    def extra(x):
        e = jax.numpy.exp(x)
        # No different numbers, and not simplified either.
        return jax.numpy.log(1 + e), lambda upstream: jax.numpy.copysign(7 * upstream * (1 - 1 / (1 + e)), upstream)

    x, y = eager.tensor(X), eager.tensor(Y)
    _, program = PROGRAMS[name]
    _, native = pairs(jax)["softplus"]
    for ours, theirs in zip(
        operations(jax, program(jax, custom_gradient(extra)), x, y),
        operations(jax, program(jax, native), x, y),
        strict=True,
    ):
        assert ours - theirs


# --- what is kept between forward and backward ---------------------------------------------------------------------


def kept(jax, function, *args):
    """The bytes that are alive for the sake of the backward pass."""
    gc.collect()
    before = {id(each) for each in jax.live_arrays()}
    pull = jax.vjp(function, *args)[1]
    gc.collect()
    found = sum(each.nbytes for each in jax.live_arrays() if id(each) not in before)
    del pull
    return found


def kept_by_a_program(jax, function, *args):
    return sum(each.nbytes for each in jax.tree.leaves(jax.jit(lambda *args: jax.vjp(function, *args)[1])(*args)))


def stopped(x):
    import jax

    return jax.lax.stop_gradient(x)


CALLS = {
    "softplus": lambda g: lambda x, y: g(x),
    "nested": lambda g: lambda x, y: g({"w": x, "b": y}, x)["y"],
    "matrix": lambda g: g,
    "chain": lambda g: lambda x, y: g(g(g(g(x)))),
    "one argument": lambda g: lambda x, y: g(x, stopped(y)),
}


@pytest.mark.parametrize("measure", [kept, kept_by_a_program])
@pytest.mark.parametrize("name", CALLS)
def test_the_bytes_that_are_kept_are_those_of_the_rule_written_by_hand(eager, backend, name, measure):
    import jax

    x, y = eager.tensor(X), eager.tensor(Y)
    which = {"chain": "softplus", "one argument": "matrix"}.get(name, name)
    ours, native = (measure(jax, CALLS[name](g), x, y) for g in pairs(jax)[which])
    assert ours == native
    if name == "chain":
        assert native == 4 * X.nbytes


def test_a_program_keeps_nothing_that_the_rule_only_has_at_hand(eager, backend):
    import jax

    @custom_gradient
    def g(x):
        unused, used = ops.exp(x), ops.sin(x)
        return ops.cos(x), lambda upstream: (upstream * used * unused.shape[0], unused)[0]

    assert kept_by_a_program(jax, g, eager.tensor(X)) == X.nbytes


# --- whether anybody looks -----------------------------------------------------------------------------------------


# Of a function, which each time is another one, and of an array.
RECORDING = {
    "grad": lambda j, look, x: j.grad(lambda x: look(x).sum())(x),
    "grad of something else": lambda j, look, x: j.grad(lambda y: (look(x) * y).sum())(x),
    "jit": lambda j, look, x: j.jit(look)(x),
    "jit of something else": lambda j, look, x: j.jit(lambda y: look(x))(x),
    "vmap": lambda j, look, x: j.vmap(look)(x),
    "hessian": lambda j, look, x: j.hessian(lambda x: look(x).sum())(x),
    "jvp": lambda j, look, x: j.jvp(look, (x,), (x,)),
    "linearize": lambda j, look, x: j.linearize(look, x),
    "checkpoint": lambda j, look, x: j.checkpoint(look)(x),
    "make_jaxpr": lambda j, look, x: j.make_jaxpr(look)(x),
    "eval_shape": lambda j, look, x: j.eval_shape(look, x),
    "map": lambda j, look, x: j.lax.map(look, x),
    "cond": lambda j, look, x: j.lax.cond(True, look, lambda x: x, x),
    "grad without jit": lambda j, look, x: without_jit(j, lambda: j.grad(j.jit(lambda x: look(x).sum()))(x)),
    "vmap without jit": lambda j, look, x: without_jit(j, lambda: j.vmap(j.jit(look))(x)),
    "compile time": lambda j, look, x: j.jit(lambda y: at_compile_time(j, lambda: look(x)))(x),
}

NOT_RECORDING = {
    "call": lambda j, look, x: look(x),
    "jit without jit": lambda j, look, x: without_jit(j, lambda: j.jit(look)(x)),
    "forward of a rule": lambda j, look, x: forward_of_a_rule(j, look)(x),
    "contexts": lambda j, look, x: in_contexts(j, lambda: look(x)),
}


def without_jit(jax, run):
    with jax.disable_jit():
        return run()


def at_compile_time(jax, run):
    with jax.ensure_compile_time_eval():
        return run()


def in_contexts(jax, run):
    with jax.make_user_context(None)(1), jax.enable_x64(True), jax.default_device(jax.devices()[0]):
        return run()


def forward_of_a_rule(jax, look):
    f = jax.custom_vjp(lambda x: x.sum())
    f.defvjp(lambda x: (look(x).sum(), x), lambda x, upstream: (upstream * look(x),))
    return jax.grad(f)


@pytest.mark.parametrize("name", [*RECORDING, *NOT_RECORDING])
def test_is_recording(eager, backend, name):
    import jax

    from keras_cg.backends import jax as module

    seen, x = [], eager.tensor(X)

    def look(value):
        seen.append(module.is_recording())
        return value

    (RECORDING | NOT_RECORDING)[name](jax, look, x)
    assert set(seen) == {name in RECORDING}
    assert not module.is_recording()


def test_is_recording_in_a_thread(eager, backend):
    import threading

    import jax

    from keras_cg.backends import jax as module

    seen = []

    def in_a_thread(value):
        thread = threading.Thread(target=lambda: seen.append(module.is_recording()))
        thread.start()
        thread.join()
        seen.append(module.is_recording())
        return value

    jax.jit(in_a_thread)(eager.tensor(X))
    assert seen == [False, True]


def test_a_gradient_with_respect_to_a_constant_of_a_program(eager, backend):
    import jax

    f = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
    x = eager.tensor(X)
    np.testing.assert_array_equal(jax.jit(lambda: jax.grad(lambda x: f(x).sum())(x))(), 7)
    found = jax.jit(jax.vmap(lambda y: y * jax.grad(lambda x: f(x).sum())(x)))(eager.tensor(np.ones(2, np.float32)))
    np.testing.assert_array_equal(found, np.full((2, 2, 3), 7))


def test_at_compile_time(eager, backend):
    import jax

    f = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
    x, found = eager.tensor(X[0]), []

    def run(value):
        with jax.ensure_compile_time_eval():
            found.extend(
                (f(x), jax.vmap(jax.grad(f))(x), jax.vmap(jax.grad(lambda x: jax.grad(lambda x: f(x) ** 2)(x)))(x))
            )
        return value

    jax.jit(run)(x)
    # Not traced: these are numbers already. Of 2 f(x) f'(x), with f' = 7 however often it is differentiated: 98.
    for each, expected in zip(found, (2 * X[0], np.full(3, 7), np.full(3, 98)), strict=True):
        assert not isinstance(each, jax.core.Tracer)
        np.testing.assert_allclose(each, expected)
