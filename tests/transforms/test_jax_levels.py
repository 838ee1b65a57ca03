"""JAX's levels: what an outer one traces, what a function stops, what a vmap does not reach; functions of one code."""

import numpy as np
import pytest
from outcomes import right_or_refused

from keras_cg import CapturedVariableError, custom_gradient, ops

pytestmark = pytest.mark.only("jax")


def served(upstream, variables=None):
    """7 for the argument and 11 for each captured value."""
    return (7.0 * upstream, [11.0 * upstream] * len(variables)) if variables else 7.0 * upstream


@pytest.mark.parametrize("is_captured", [False, True])
def test_a_function_that_looks_at_values_beside_an_outer_level(jax, is_captured):
    """It cannot be traced; what it captures of an outer level is refused, and what it does not is right."""

    def loss(x, w):
        f = lambda x: ((w * x if is_captured else 2.0 * x) if x > 0 else -x, served)
        value, slope = jax.value_and_grad(custom_gradient(f))(x)
        return value + 0 * slope + (0 if is_captured else 11.0 * w)

    right_or_refused(lambda: np.stack(jax.grad(loss, argnums=(0, 1))(2.0, 3.0)), [7.0, 11.0], CapturedVariableError)
    assert float(jax.grad(lambda x: loss(x, 3.0))(2.0)) == 7.0


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("how", ["plain", "jit", "checkpoint", "cond", "fori_loop", "an unused output"])
def test_a_gradient_that_is_stopped_inside_of_a_program(jax, how, is_compiled):
    """It is the way out that CapturedVariableError names. Of f(x) w with f(x) = 2 w, the derivative by w is 6 then."""
    lax, stop = jax.lax, ops.stop_gradient
    function = {
        "plain": lambda x, w: x * stop(w),
        "jit": jax.jit(lambda x, w: x * stop(w)),
        "checkpoint": jax.checkpoint(lambda x, w: x * stop(w)),
        "cond": lambda x, w: lax.cond(x > 0, lambda x: x * stop(w), lambda x: x, x),
        "fori_loop": lambda x, w: lax.fori_loop(0, 1, lambda i, c: c * stop(w), x),
        "an unused output": lambda x, w: jax.jit(lambda x, w: (x * stop(w), w * w))(x, w)[0],
    }[how]

    def loss(w, x, function=function):
        return custom_gradient(lambda x: (function(x, w), lambda upstream: 7 * upstream))(x) * w

    differentiate = jax.grad(loss)
    differentiate = jax.jit(differentiate) if is_compiled else differentiate
    assert float(differentiate(3.0, 2.0)) == 6.0
    with pytest.raises(CapturedVariableError):
        jax.grad(lambda w: loss(w, 2.0, lambda x, w: jax.jit(lambda x, w: x * w)(x, w)))(3.0)


def test_an_output_without_the_batch_stays_without_it(jax):
    f = custom_gradient(lambda x, n: ((2 * x, n + 1, x * 0 + n), lambda upstream: (7 * upstream[0], None)))
    x, n = jax.numpy.arange(3.0), jax.numpy.int32(2)
    for wrap in (lambda g: g, jax.jit):
        mapped = wrap(jax.vmap(f, in_axes=(0, None), out_axes=(0, None, 0)))
        assert mapped(x, n)[1].shape == ()
        np.testing.assert_allclose(jax.grad(lambda x, g=mapped: g(x, n)[0].sum())(x), [7.0] * 3)


def shared(jax, rule):
    """A function of the batched x and of c, whose second output is 2 c: its batch, which leaves that output alone."""
    f = custom_gradient(lambda x, c: ((x * c, 2 * c), lambda upstream: rule(*upstream, x, c)))
    return jax.vmap(f, in_axes=(0, None), out_axes=(0, None))


@pytest.mark.parametrize("wrap", [lambda j, g: g, lambda j, g: j.jit(g), lambda j, g: j.checkpoint(g)])
def test_a_floating_output_without_the_batch(jax, wrap):
    """Its cotangent counts once, and not once for each element of the batch, as with `jax.custom_jvp`."""
    x, c = jax.numpy.arange(4.0), jax.numpy.float32(3)
    f = wrap(jax, shared(jax, lambda one, two, x, c: (7 * one * c, 5 * one * x + 11 * two)))
    assert [each.shape for each in f(x, c)] == [(4,), ()]
    loss = lambda x, c: f(x, c)[0].sum() + f(x, c)[1]
    for differentiate in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1)))):
        gx, gc = differentiate(x, c)
        np.testing.assert_allclose(gx, [21.0] * 4)
        assert float(gc) == 5 * 6 + 11
    assert float(jax.grad(lambda c: f(x, c)[1])(c)) == 11
    np.testing.assert_allclose(jax.grad(lambda x: f(x, c)[0].sum())(x), [21.0] * 4)
    one, two = jax.jvp(f, (x, c), (x + 1, c))[1]
    np.testing.assert_allclose(one, 21 * (x + 1) + 15 * x)
    assert (two.shape, float(two)) == ((), 33)
    # A batch of batches; and the derivative of 7 c by c, for each of four elements.
    rows = jax.vmap(f, in_axes=(0, None), out_axes=(0, None))
    assert [each.shape for each in rows(x[None] * jax.numpy.ones((2, 1)), c)] == [(2, 4), ()]
    assert float(jax.grad(lambda c: rows(x[None] * jax.numpy.ones((2, 1)), c)[1])(c)) == 11
    assert float(jax.grad(lambda c: jax.grad(loss)(x, c).sum())(c)) == 28


def test_an_output_whose_rule_mixes_it_with_the_batch_has_the_batch(jax):
    x, c = jax.numpy.arange(4.0), jax.numpy.float32(3)
    for rule in (
        lambda one, two, x, c: (7 * one * c, 5 * one * x + 11 * two * x),
        lambda one, two, x, c: (7 * one * c + two, 5 * one * x),
        lambda one, two, x, c: (7 * one * c, jax.numpy.clip(5 * one * x + 11 * two, -1, 1)),
    ):
        f = shared(jax, rule)
        with pytest.raises(ValueError, match="out_axes"):
            jax.jit(f)(x, c)


def test_a_condition_on_an_output_without_the_batch_stays_one(jax):
    def run(x, c):
        f = custom_gradient(lambda x, c: ((x * c, 2 * c), lambda dy, ds: (7 * dy * c, 5 * dy * x + 11 * ds)))
        y, s = f(x, c)
        return jax.lax.cond(s > 0, lambda y: 2 * y, lambda y: jax.numpy.sin(y), y)

    x, c = jax.numpy.arange(4.0), jax.numpy.float32(3)
    program = str(jax.make_jaxpr(jax.vmap(run, (0, None)))(x, c))
    assert "cond[" in program and "select_n" not in program


def made(inside, w):
    @custom_gradient
    def f(x):
        def rule(upstream, variables=None):
            gradient = 7 * upstream * (inside(x) if inside else x)
            return (gradient, [3 * upstream * x for _ in variables]) if variables else gradient

        return x * w, rule

    return f


@pytest.mark.parametrize("how", ["eager", "jit of grad", "grad of jit"])
def test_two_functions_of_one_code_are_two(jax, how):
    """The rule of one calls the other: its gradient is 7 x w, of which the derivative by w is 7 · 3 x by that rule."""

    slope = lambda x, w: jax.grad(made(made(None, w), w))(x)
    differentiate = {
        "eager": jax.grad(slope, 1),
        "jit of grad": jax.jit(jax.grad(slope, 1)),
        "grad of jit": jax.grad(jax.jit(slope), 1),
    }[how]
    right_or_refused(lambda: float(differentiate(2.0, 5.0)), 42.0, CapturedVariableError)
