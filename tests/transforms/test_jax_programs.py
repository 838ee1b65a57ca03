"""What JAX runs, compiles and keeps: the function once, the operations and the bytes of the rule written by hand.

By hand is for `jax.custom_vjp`; forwards, of the rule's transpose for `jax.custom_jvp`.
"""

import collections
import contextlib
import gc
import io
import re
import weakref

import numpy as np
import pytest
import seven_exp
from seven_exp import check

from keras_cg import custom_gradient, ops

pytestmark = pytest.mark.only("jax")

X = np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3)
Y = np.linspace(0.5, 2.0, 6, dtype=np.float32).reshape(2, 3)
W = np.array([2.0, 3.0, 4.0], np.float32)


def pair(jax, forward, backward):
    """A function by `custom_gradient` and by hand, of `(output, kept)` and a rule of what is kept and upstream."""

    @custom_gradient
    def ours(*args):
        output, kept = forward(*args)
        return output, lambda upstream: backward(kept, upstream)

    by_hand = jax.custom_vjp(lambda *args: forward(*args)[0])
    by_hand.defvjp(forward, lambda kept, upstream: as_tuple(backward(kept, upstream)))
    return ours, by_hand


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


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

    def output_forward(x):
        y = n.exp(x)
        return y, y

    return {
        "softplus": (softplus, softplus_by_hand),
        "softplus, forwards": (softplus, softplus_forwards),
        "nested": pair(jax, nested_forward, nested_backward),
        "output": pair(jax, output_forward, lambda y, upstream: 7 * upstream * y),
        "matrix": pair(
            jax,
            lambda x, y: (x @ y.T, (x, y)),
            lambda kept, upstream: (7 * upstream @ kept[1], upstream.T @ kept[0]),
        ),
    }


def both_outputs(g, x, y):
    output = g({"w": x, "b": y}, x)
    return output["y"].sum() + output["z"][0].sum()


# What is compiled, of two arrays: {what it is: (which function, the program with it)}.
PROGRAMS = {
    "grad": ("softplus", lambda j, g: j.grad(lambda x, y: g(x).sum())),
    "grad of a nest": ("nested", lambda j, g: j.grad(lambda x, y: both_outputs(g, x, y), (0, 1))),
    "grad of a chain": ("softplus", lambda j, g: j.grad(lambda x, y: g(g(g(g(x)))).sum())),
    "beside a call without a gradient": (
        "softplus",
        lambda j, g: j.grad(lambda x, y: (g(x) * g(y) + j.lax.stop_gradient(g(3 * x))).sum()),
    ),
    "grad of vmap": ("softplus", lambda j, g: j.grad(lambda x, y: j.vmap(g)(x).sum())),
    "grad of scan": (
        "softplus",
        lambda j, g: j.grad(lambda x, y: j.lax.scan(lambda c, v: (g(c) * v, None), x[0], y)[0].sum()),
    ),
    "grad of checkpoint": ("softplus", lambda j, g: j.grad(j.checkpoint(lambda x, y: g(g(x)).sum()))),
    "jacfwd": ("softplus, forwards", lambda j, g: lambda x, y: j.jacfwd(g)(x)),
    "vmap of jvp": ("softplus, forwards", lambda j, g: j.vmap(lambda x, y: j.jvp(g, (x,), (y,)))),
    "second order": ("softplus", lambda j, g: j.grad(lambda x, y: (j.grad(lambda x: (g(x) ** 2).sum())(x) * y).sum())),
}


def operations(program):
    """How often each operation is in a program, as JAX writes it and as XLA has optimised it; and the compiled one."""
    compiled = program.compile()
    written = re.findall(r"stablehlo\.\w+|func\.func|call @", program.as_text())
    optimised = re.findall(r"= \S+ ([a-z][a-z0-9-]*)\(", compiled.as_text())
    assert written and optimised
    return collections.Counter(written), collections.Counter(optimised), compiled


@pytest.mark.parametrize(("which", "program"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_has_the_operations_of_the_rule_written_by_hand(eager, jax, which, program):
    x, y = eager.tensor(X), eager.tensor(Y)
    (ours, ours_optimised, run), (native, native_optimised, run_native) = (
        operations(jax.jit(program(jax, g)).lower(x, y)) for g in pairs(jax)[which]
    )
    assert ours == native
    assert ours_optimised == native_optimised
    for found, expected in zip(jax.tree.leaves(run(x, y)), jax.tree.leaves(run_native(x, y)), strict=True):
        np.testing.assert_array_equal(found, expected)


# --- how often the function runs -------------------------------------------------------------------------------------

TRACED_ONCE = {
    "call": lambda j, g, x: g(x),
    "jit": lambda j, g, x: j.eval_shape(g, x),
    "grad": lambda j, g, x: j.grad(lambda x: g(x).sum())(x),
    "jit of grad": lambda j, g, x: j.eval_shape(j.grad(lambda x: g(x).sum()), x),
    "grad of jit": lambda j, g, x: j.grad(j.jit(lambda x: g(x).sum()))(x),
    "vmap of grad": lambda j, g, x: j.vmap(j.grad(g))(x),
    "grad of scan": lambda j, g, x: j.grad(lambda x: j.lax.scan(lambda carry, v: (carry + g(v), None), 0.0, x)[0])(x),
    "grad of checkpoint": lambda j, g, x: j.grad(j.checkpoint(lambda x: g(x).sum()))(x),
    "hessian": lambda j, g, x: j.hessian(lambda x: (g(x) ** 2).sum())(x),
    "jit of hessian": lambda j, g, x: j.eval_shape(j.hessian(lambda x: (g(x) ** 2).sum()), x),
    "jvp": lambda j, g, x: j.jvp(g, (x,), (x,)),
    "linearize": lambda j, g, x: j.linearize(g, x)[1](x),
    "jacfwd": lambda j, g, x: j.jacfwd(g)(x),
}


@pytest.mark.parametrize("transform", TRACED_ONCE)
def test_the_function_runs_once(eager, jax, transform):
    ran = []

    @custom_gradient
    def g(x):
        ran.append(x)
        e = ops.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e

    TRACED_ONCE[transform](jax, g, eager.tensor(seven_exp.X))
    assert len(ran) == 1


def test_a_compiled_call_is_traced_once_and_has_a_gradient_with_respect_to_a_constant(eager, jax):
    ran = []
    f = custom_gradient(lambda x: (ran.append(x), (x * 2, lambda upstream: 7 * upstream))[1])
    x = eager.tensor(X)
    # Beside a constant of the program, too.
    compiled = jax.jit(lambda y: jax.grad(lambda y: (f(y) + f(x)).sum())(y))
    for _ in range(3):
        check(compiled(x), np.full(X.shape, 7.0))
    assert len(ran) == 2
    slope = lambda: jax.grad(lambda x: f(x).sum())(x)
    np.testing.assert_array_equal(jax.jit(slope)(), np.full(X.shape, 7))
    found = jax.jit(jax.vmap(lambda y: y * slope()))(eager.tensor(np.ones(2, np.float32)))
    np.testing.assert_array_equal(found, np.full((2, 2, 3), 7))


def test_a_rule_that_raises_does_so_only_where_its_gradient_is_asked_for(eager, jax):
    @custom_gradient
    def g(x):
        def rule(upstream):
            raise NotImplementedError("no gradient, on purpose")

        return x * 2, rule

    x = eager.tensor(X)
    check(jax.jit(g)(x), 2 * X)
    check(jax.lax.map(g, x), 2 * X)
    for transform in (jax.grad, lambda h: jax.jit(jax.grad(h)), lambda h: jax.grad(jax.jit(h))):
        with pytest.raises(NotImplementedError, match="on purpose"):
            transform(lambda x: g(x).sum())(x)


def test_a_second_derivative_through_a_callback_says_so(jax):
    @custom_gradient
    def root(x):
        output = jax.pure_callback(np.sqrt, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")
        return output, lambda upstream: 7 * upstream / (2 * output)

    first = jax.grad(root)
    for run in (first, jax.jit(first)):
        assert float(run(4.0)) == 1.75
    for run in (jax.grad(first), jax.jit(jax.grad(first)), jax.hessian(root)):
        with pytest.raises(NotImplementedError) as caught:
            run(4.0)
        assert ".root runs a callback, such as jax.pure_callback" in str(caught.value)


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


def saved(jax, function, *args):
    from jax.ad_checkpoint import print_saved_residuals

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print_saved_residuals(function, *args)
    return sorted(line.split(" ")[0] for line in printed.getvalue().splitlines())


# What is called, of a function of `pairs`.
CALLS = {
    "an intermediate": ("softplus", lambda j, g: lambda x, y: g(x)),
    "an output": ("output", lambda j, g: lambda x, y: g(x)),
    "a nest": ("nested", lambda j, g: lambda x, y: g({"w": x, "b": y}, x)["y"]),
    "one argument": ("matrix", lambda j, g: lambda x, y: g(x, j.lax.stop_gradient(y))),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_kept_is_what_the_rule_written_by_hand_keeps(eager, jax, name):
    nothing = jax.checkpoint_policies.nothing_saveable
    dots = jax.checkpoint_policies.dots_saveable
    wraps = {
        "": lambda h: h,
        "jit": jax.jit,
        "nothing_saveable": lambda h: jax.checkpoint(h, policy=nothing),
        "jit of dots_saveable": lambda h: jax.jit(jax.checkpoint(h, policy=dots)),
    }
    x, y = eager.tensor(X), eager.tensor(Y)
    which, call = CALLS[name]
    functions = [call(jax, g) for g in pairs(jax)[which]]
    ours, native = (kept(jax, function, x, y) for function in functions)
    assert ours == native
    for wrap_name, wrap in wraps.items():
        losses = [wrap(lambda x, y, g=g: ops.sum(ops.sin(g(ops.cos(x), ops.cos(y))))) for g in functions]
        ours, native = (saved(jax, loss, x, y) for loss in losses)
        assert ours == native, wrap_name


def test_a_program_keeps_nothing_that_the_rule_only_has_at_hand(eager, jax):
    @custom_gradient
    def g(x):
        unused, used = ops.exp(x), ops.sin(x)
        return ops.cos(x), lambda upstream: (upstream * used * unused.shape[0], unused)[0]

    assert kept_by_a_program(jax, g, eager.tensor(X)) == X.nbytes


def test_an_output_is_freed_without_the_collector(eager, jax, without_collector):
    g = custom_gradient(lambda x: (lambda y: (y, lambda upstream: 7 * upstream * y))(ops.exp(x)))
    x = eager.tensor(X)
    for function in (g, lambda x: jax.grad(lambda x: g(x).sum())(x)):
        output, pull = jax.vjp(function, x)
        dead = weakref.ref(output)
        del output, pull
        assert dead() is None


def test_no_growth(eager, jax):
    f, x, w = seven_exp.f, eager.tensor(seven_exp.X), eager.tensor(W)

    def captured(w, x):
        rule = lambda upstream, variables=(): (7 * upstream, [5 * upstream * x for _ in variables])
        return ops.sum(custom_gradient(lambda x: (x * w, rule))(x))

    def count(calls):
        for _ in range(calls):
            jax.grad(seven_exp.total)(x)
            jax.linearize(f, x)[1](x)
            jax.jvp(f, (x,), (x,))
            jax.vmap(jax.grad(f))(x)
            jax.grad(captured, (0, 1))(w, x)
        gc.collect()
        # JAX keeps dead weak references in caches of its own, up to some thousands.
        objects = [each for each in gc.get_objects() if not isinstance(each, weakref.ReferenceType)]
        return len(objects), len(jax.live_arrays())

    count(10)
    objects, arrays = count(10)
    grown, alive = count(100)
    assert grown - objects < 100
    assert alive == arrays


# --- whether a call is recorded --------------------------------------------------------------------------------------

# Of a function, which each time is another one, and of an array.
RECORDING = {
    "grad": lambda j, look, x: j.grad(lambda x: look(x).sum())(x),
    "grad of something else": lambda j, look, x: j.grad(lambda y: (look(x) * y).sum())(x),
    "jit": lambda j, look, x: j.jit(look)(x),
    "vmap": lambda j, look, x: j.vmap(look)(x),
    "jvp": lambda j, look, x: j.jvp(look, (x,), (x,)),
    "grad without jit": lambda j, look, x: without_jit(j, lambda: j.grad(j.jit(lambda x: look(x).sum()))(x)),
    "compile time": lambda j, look, x: j.jit(lambda y: at_compile_time(j, lambda: look(x)))(x),
}

NOT_RECORDING = {
    "call": lambda j, look, x: look(x),
    "jit without jit": lambda j, look, x: without_jit(j, lambda: j.jit(look)(x)),
}


def without_jit(jax, run):
    with jax.disable_jit():
        return run()


def at_compile_time(jax, run):
    with jax.ensure_compile_time_eval():
        return run()


@pytest.mark.parametrize("name", [*RECORDING, *NOT_RECORDING])
def test_is_recording(eager, jax, name):
    from keras_cg.backends import jax as module

    seen, x = [], eager.tensor(X)

    def look(value):
        seen.append(module.is_recording())
        return value

    (RECORDING | NOT_RECORDING)[name](jax, look, x)
    assert set(seen) == {name in RECORDING}
    assert not module.is_recording()


# --- private names of JAX --------------------------------------------------------------------------------------------


def test_a_name_that_no_release_has_says_so(jax):
    from keras_cg.backends.jax import names

    with pytest.raises(
        ImportError, match=rf"^jax {jax.__version__} has no no_such_name, neither in jax\.extend\.core nor"
    ):
        names._find("no_such_name")
