"""NumPy: a rule's numbers hold under HIPS autograd's own means, in any order; captured values are refused.

The conformance suite has each of its transforms, and the usual pairs; here is what it leaves out.
"""

import itertools

import autograd
import autograd.builtins
import numpy as np
import pytest
import seven_exp
from seven_exp import f, square, total

from keras_cg import CapturedVariableError, custom_gradient, grad, jvp, ops, vjp

pytestmark = pytest.mark.only("numpy")

X = seven_exp.X.astype(float)
Y = np.array([3.0, -2.0, 0.5])
E, CURVED = seven_exp.E, seven_exp.CURVED
ONE = np.ones(3)


@pytest.fixture(autouse=True)
def fresh_trace(monkeypatch):
    # autograd (1.9) does not count back where an exception ended a trace.
    monkeypatch.setattr(autograd.tracer.trace_stack, "top", -1)


OPERATORS = {
    "elementwise_grad": (lambda a: a.elementwise_grad(f)(X), 7 * E),
    "value_and_grad": (lambda a: a.value_and_grad(total)(X)[1], 7 * E),
    "hessian": (lambda a: np.diag(a.hessian(square)(X)), CURVED),
    "make_hvp": (lambda a: a.make_hvp(square)(X)[0](ONE), CURVED),
    # Reverse on reverse: it differentiates the rule by upstream.
    "make_jvp_reversemode": (lambda a: a.differential_operators.make_jvp_reversemode(f)(X)(ONE), 7 * E),
    "make_ggnvp": (lambda a: a.make_ggnvp(f)(X)(ONE), (7 * E) ** 2),
    "by upstream": (lambda a: a.grad(lambda u: np.e * ops.sum(a.make_vjp(f)(X)[0](u)))(X), np.e * 7 * E),
}


@pytest.mark.parametrize(("call", "expected"), OPERATORS.values(), ids=OPERATORS)
def test_operators(backend, call, expected):
    np.testing.assert_allclose(call(autograd), expected, rtol=1e-12)


@pytest.mark.limit
def test_forward_mode_is_refused(backend):
    for function in (f, autograd.grad(square)):
        with pytest.raises(NotImplementedError, match="JVP of custom_gradient wrt argnums"):
            autograd.make_jvp(function)(X)(ONE)


# --- levels ----------------------------------------------------------------------------------------------------------


def test_a_method_of_an_array_in_a_rule(backend):
    """In one run it is a method of an array and in another one of a box, so the gradients decide."""

    def f(x):
        times = ops.exp(x).__mul__
        return x * 2, lambda upstream: times(7 * upstream)

    g = custom_gradient(f)
    np.testing.assert_allclose(grad(g)(X), 7 * E)
    np.testing.assert_allclose(grad(grad(g))(X), 7 * E)


def test_forward_mode_of_a_rule_that_cuts_upstream_is_refused(backend):
    """The rule is linear in upstream; autograd's derivative of it is another map."""
    from autograd.tracer import getval

    cut = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * getval(upstream)))
    np.testing.assert_allclose(grad(cut)(X), 7 * ONE)
    turned = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream + np.roll(getval(upstream), 1)))
    for function in (cut, turned):
        with pytest.raises(ValueError, match="linear in upstream"):
            jvp(function, (X,), (ONE,))


# --- what is captured ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_arguments_of_three_levels_in_any_order(backend, order):
    """A pullback is called after its level is over, while another one differentiates what the rule reads."""
    product = custom_gradient(lambda a, b, c: (a * b * c, lambda u: (7 * u * b * c, 7 * u * a * c, 7 * u * a * b)))

    def f(*values):
        return product(*[values[place] for place in order])

    def inner(y, z):
        return autograd.make_vjp(lambda x: f(x, y, z))(2.0)[0](1.0)

    found = autograd.grad(lambda z: autograd.grad(lambda y: inner(y, z))(3.0))(5.0)
    # 7 y z by y is 7 z, and by z it is 7.
    assert found == 7.0


HOLDER = {"w": Y}


@pytest.mark.limit
@pytest.mark.parametrize("where", ["cell", "list", "global", "the output itself"])
@pytest.mark.parametrize("takes", [True, False])
def test_captured_values_are_refused(backend, where, takes, monkeypatch):
    """With `variables`, too; the same function is right while the value is a constant."""
    rule = (lambda upstream, variables=None: 7 * upstream) if takes else lambda upstream: 7 * upstream

    def loss(w):
        kept = [w]
        monkeypatch.setitem(HOLDER, "w", w)
        bodies = {"cell": lambda x: x * w, "list": lambda x: x * kept[0], "global": lambda x: x * HOLDER["w"]}
        return ops.sum(custom_gradient(lambda x: (bodies.get(where, lambda x: w)(x), rule))(X * w))

    remedies = "these: pass it as an argument; give the rule a `variables`"
    for derivative in (autograd.grad(loss), grad(loss), lambda w: jvp(loss, (w,), (ONE,))):
        match = "'numpy' cannot give it to the rule as one of `variables`" if takes else remedies
        with pytest.raises(CapturedVariableError, match=match):
            derivative(Y)
    np.testing.assert_allclose(grad(lambda x: loss(Y) + ops.sum(custom_gradient(lambda x: (x * Y, rule))(x)))(X), 7)


def read_by_the_rule(inside):
    """Of w and x: the sum of x, with the gradient 7 w e for x, maybe by a derivative inside the rule."""

    def loss(w, x):
        def f(x):
            kept = [[ops.exp(x) * w]]
            slope = (lambda: grad(lambda v: kept[0][0] * v)(ONE)) if inside else lambda: kept[0][0]
            return x * 1, lambda upstream: 7 * upstream * slope()

        return ops.sum(custom_gradient(f)(x))

    return loss


@pytest.mark.limit
@pytest.mark.parametrize("inside", [False, True])
def test_what_only_the_rule_reads_of_its_own_level(backend, inside):
    """Right in reverse mode, in every order; where the level has another meaning by then, it is right or refused."""
    loss, w = read_by_the_rule(inside), 2 * X
    both = lambda w, x: grad(loss, (0, 1))(w, x)
    for gradients in (both(w, X), autograd.grad(lambda given: loss(*given))((w, X))):
        assert [type(each) for each in gradients] == [np.ndarray, np.ndarray]
        np.testing.assert_allclose(gradients, [0 * X, 7 * w * E])
    for order in (grad, lambda f, argnums: autograd.grad(lambda given: f(*given))):
        second = order(lambda w, x: ops.sum(both(w, x)[1]), (0, 1))
        found = second(w, X) if order is grad else second((w, X))
        np.testing.assert_allclose(found, [7 * E, 7 * w * E])
    np.testing.assert_allclose(grad(lambda w: ops.sum(grad(lambda x: loss(w, x))(X)))(w), 7 * E)
    np.testing.assert_allclose(jvp(lambda x: loss(w, x), (X,), (ONE,))[1], np.sum(7 * w * E))
    np.testing.assert_allclose(jvp(lambda w: grad(lambda x: loss(w, x))(X), (w,), (ONE,))[1], 7 * E)
    _, pullback = vjp(loss, w, X)
    np.testing.assert_allclose(pullback(1.0)[1], 7 * w * E)
    late = {
        "forward": lambda: jvp(loss, (w, X), (ONE, ONE)),
        "by upstream": lambda: grad(lambda upstream: ops.sum(pullback(upstream)[1]))(1.0),
        "beside another": lambda: grad(lambda factor: factor * ops.sum(pullback(1.0)[1]))(1.0),
    }
    for run in late.values():
        with pytest.raises(CapturedVariableError, match="differentiated together with an argument"):
            run()


def test_what_autograd_cannot_differentiate_is_a_constant(backend):
    from autograd.tracer import getval

    frozen = lambda w: ops.sum(custom_gradient(lambda x: (x * getval(w), lambda upstream: 7 * upstream))(w))
    np.testing.assert_allclose(autograd.grad(frozen)(X), 7 * ONE)


# --- containers ------------------------------------------------------------------------------------------------------


def test_containers_of_autograd(backend):
    from autograd.builtins import dict as boxed_dict
    from autograd.builtins import list as boxed_list

    @custom_gradient
    def g(params, scale):
        out = {"a": params["w"][0] * scale, "b": (params["b"],)}

        return out, lambda upstream: ({"w": [7 * upstream["a"] * params["b"]], "b": 5 * upstream["b"][0]}, 0)

    def loss(x):
        out = g(boxed_dict(w=boxed_list([x]), b=x), 2.0)
        return ops.sum(out["a"]) + 3 * ops.sum(out["b"][0])

    np.testing.assert_allclose(autograd.grad(loss)(X), 7 * X + 15)


def test_an_upstream_that_is_a_number_of_python():
    f = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
    pullback, _ = autograd.make_vjp(f)(3.0)
    assert float(pullback(2.0)) == 14.0


@pytest.mark.limit
def test_another_thread_that_ends_a_level(backend):
    """autograd counts the levels of all threads together, so that the inner one gets the number of the outer one."""

    def outer(x):
        autograd.tracer.trace_stack.top -= 1
        try:
            return grad(total)(x)[0]
        finally:
            autograd.tracer.trace_stack.top += 1

    with pytest.raises(RuntimeError, match="cannot be differentiated now, because autograd has lost count"):
        grad(outer)(X)
