"""NumPy: a rule's numbers hold under HIPS autograd's own means, in any order, also for captured values.

The conformance suite has each of its transforms, and the usual pairs; here is what it leaves out.
"""

import autograd
import autograd.builtins
import numpy as np
import pytest
import seven_exp
from seven_exp import f, square, total

from keras_cg import CapturedVariableError, custom_gradient, grad, jvp, ops

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


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators(backend, operator):
    call, expected = OPERATORS[operator]
    np.testing.assert_allclose(call(autograd), expected, rtol=1e-12)


@pytest.mark.limit
def test_forward_mode_is_refused(backend):
    for function in (f, autograd.grad(square)):
        with pytest.raises(NotImplementedError, match="JVP of custom_gradient wrt argnums"):
            autograd.make_jvp(function)(X)(ONE)


# --- levels ----------------------------------------------------------------------------------------------------------


@pytest.mark.limit
def test_a_method_of_an_array_in_a_rule_has_no_second_order(backend):
    """A limit: autograd does not see through it, which holds an array and not a box."""

    def f(x):
        times = ops.exp(x).__mul__
        return x * 2, lambda upstream: times(7 * upstream)

    g = custom_gradient(f)
    np.testing.assert_allclose(grad(g)(X), 7 * E)
    with pytest.raises(RuntimeError, match=r"ran again for a derivative, .* is not that of the first run"):
        grad(grad(g))(X)


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


def test_captured_in_the_order_of_first_use_to_second_order(backend):
    def loss(v, w, unused):
        @custom_gradient
        def f(x):
            ops.sum(unused)
            moved = x * w

            def grad(upstream, variables):
                first, second = variables
                return 7 * upstream, [5 * upstream * first**2, 3 * upstream * second**2]

            return moved + v, grad

        return ops.sum(f(X))

    gradient = autograd.grad(lambda given: loss(*given))
    gv, gw, gu = gradient((X, 2 * X, 3 * X))
    np.testing.assert_allclose(gw, 5 * (2 * X) ** 2)
    np.testing.assert_allclose(gv, 3 * X**2)
    np.testing.assert_allclose(gu, 0 * X)
    second = autograd.grad(lambda given: ops.sum(gradient(given)[1]))((X, 2 * X, 3 * X))
    np.testing.assert_allclose(second[1], 2 * 5 * 2 * X)


class Holder:
    @custom_gradient
    def call(self, x):
        return x * self.w, lambda upstream, variables=None: (7 * upstream, [5 * upstream])


class Slotted:
    __slots__ = ("w",)
    call = Holder.call


@pytest.mark.parametrize("kind", [Holder, Slotted])
def test_captured_in_an_attribute(backend, kind):
    def loss(w):
        holder = kind()
        holder.w = w
        return ops.sum(holder.call(X))

    np.testing.assert_allclose(autograd.grad(loss)(X), 5 * ONE)


def test_what_autograd_cannot_differentiate_is_a_constant(backend):
    from autograd.tracer import getval

    frozen = lambda w: ops.sum(custom_gradient(lambda x: (x * getval(w), lambda upstream: 7 * upstream))(w))
    np.testing.assert_allclose(autograd.grad(frozen)(X), 7 * ONE)


def test_a_captured_value_that_is_an_output_itself(backend):
    """Both values get their gradient, the one that no operation uses first."""

    def loss(v, w):
        def rule(first, second, variables):
            return 7 * second, [5 * first, 3 * second][: len(variables)]

        first, second = custom_gradient(lambda x: ((w, x * v), rule))(X)
        return ops.sum(first) + 2 * ops.sum(second)

    gv, gw = autograd.grad(lambda given: loss(*given))((X, 2 * X))
    np.testing.assert_allclose(gw, 5 * ONE)
    np.testing.assert_allclose(gv, 6 * ONE)


HIDDEN = {}


def test_captured_values_whose_order_does_not_show_are_refused(backend):
    def loss(v, w):
        HIDDEN["product"] = w * 2

        def f(x):
            assert v is not w
            return HIDDEN["product"] * v * x, lambda upstream, variables: (7 * upstream, [upstream for _ in variables])

        return ops.sum(custom_gradient(f)(X))

    with pytest.raises(CapturedVariableError, match="captured values are only found in closures"):
        autograd.grad(lambda given: loss(*given))((X, 2 * X))


GLOBAL = Y


@pytest.mark.limit
def test_a_global_that_comes_to_be_differentiated(backend, monkeypatch):
    f = custom_gradient(lambda x: (x * GLOBAL, lambda upstream, variables=None: 7 * upstream))
    np.testing.assert_allclose(autograd.elementwise_grad(f)(X), 7 * ONE)

    def loss(value):
        monkeypatch.setitem(globals(), "GLOBAL", value)
        return ops.sum(f(X))

    with pytest.raises(CapturedVariableError, match="captured values are only found in closures"):
        autograd.grad(loss)(Y)


# --- containers ------------------------------------------------------------------------------------------------------


def test_containers_of_autograd(backend):
    from autograd.builtins import dict as boxed_dict
    from autograd.builtins import list as boxed_list

    @custom_gradient
    def g(params, scale):
        out = {"a": params["w"][0] * scale, "b": (params["b"],)}

        def rule(upstream):
            return {"w": [7 * upstream["a"] * params["b"]], "b": 5 * upstream["b"][0]}, 0

        return out, rule

    def loss(x):
        out = g(boxed_dict(w=boxed_list([x]), b=x), 2.0)
        return ops.sum(out["a"]) + 3 * ops.sum(out["b"][0])

    np.testing.assert_allclose(autograd.grad(loss)(X), 7 * X + 15)
