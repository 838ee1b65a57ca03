"""NumPy: a rule's numbers hold under HIPS autograd's own means, in any order, for captured and complex values.

The conformance suite has each of its transforms, and the usual pairs; here is what it leaves out.
"""

import autograd
import autograd.builtins
import numpy as np
import pytest
import seven_exp
from complex_rules import COMPLEX, C, D, Z, differences
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
    "jacobian of jacobian": (lambda a: np.einsum("iii->i", a.jacobian(a.jacobian(f))(X)), 7 * E),
    "hessian": (lambda a: np.diag(a.hessian(square)(X)), CURVED),
    "make_hvp": (lambda a: a.make_hvp(square)(X)[0](ONE), CURVED),
    "hessian_tensor_product": (lambda a: a.hessian_tensor_product(square)(X, ONE), CURVED),
    "tensor_jacobian_product": (lambda a: a.tensor_jacobian_product(f)(X, ONE), 7 * E),
    # Reverse on reverse: it differentiates the rule by upstream.
    "make_jvp_reversemode": (lambda a: a.differential_operators.make_jvp_reversemode(f)(X)(ONE), 7 * E),
    "make_ggnvp": (lambda a: a.make_ggnvp(f)(X)(ONE), (7 * E) ** 2),
    "by upstream": (lambda a: a.grad(lambda u: np.e * ops.sum(a.make_vjp(f)(X)[0](u)))(X), np.e * 7 * E),
    "forwards by upstream": (lambda a: a.make_jvp(a.make_vjp(f)(X)[0])(X)(ONE)[1], 7 * E),
    "fourth order": (
        lambda a: a.elementwise_grad(a.elementwise_grad(a.elementwise_grad(a.elementwise_grad(f))))(X),
        7 * E,
    ),
    "third order of square": (
        lambda a: a.elementwise_grad(a.elementwise_grad(a.elementwise_grad(lambda x: f(x) ** 2)))(X),
        6 * (7 * E) ** 2 + 4 * X * 7 * E,
    ),
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


def test_check_grads_to_order_three(backend):
    from autograd.test_util import check_grads

    @custom_gradient
    def product(x, y):
        e = ops.exp(x)
        output = e * ops.sin(y)
        return output, lambda upstream: (upstream * output, upstream * e * ops.cos(y))

    @custom_gradient
    def pair(x):
        return (ops.sin(x), x**3), lambda first, second: first * ops.cos(x) + 3 * x**2 * second

    @custom_gradient
    def sine(x):
        return ops.sin(x), lambda upstream: upstream * cosine(x)

    @custom_gradient
    def cosine(x):
        return ops.cos(x), lambda upstream: -upstream * sine(x)

    y = np.array([0.3, -0.4, 2.0])
    for function, args in (
        (product, (X, y)),
        (lambda x: pair(x)[0] * pair(x)[1], (X,)),
        (sine, (X,)),
        (lambda x: product(sine(x), cosine(x)), (X,)),
    ):
        check_grads(function, modes=["rev"], order=3)(*args)
    with pytest.raises(AssertionError):
        check_grads(lambda x: f(x) ** 2, modes=["rev"], order=1)(X)


def test_a_rule_inside_a_rule_to_order_three(backend):
    inner = custom_gradient(lambda x: (x * 0 + 3, lambda upstream: 5 * upstream * ops.exp(x)))
    outer = custom_gradient(lambda x: (x * 2, lambda upstream: upstream * inner(x)))
    first = autograd.elementwise_grad(outer)
    np.testing.assert_allclose(first(X), 3 * ONE)
    np.testing.assert_allclose(autograd.elementwise_grad(first)(X), 5 * E)
    np.testing.assert_allclose(autograd.elementwise_grad(autograd.elementwise_grad(first))(X), 5 * E)


def test_mixed_partials(backend):
    @custom_gradient
    def g(x, y):
        return x * y, lambda upstream: (7 * upstream * x * y**2, 5 * upstream * x**3 * y)

    # Rules that belong to no function: the order of differentiation shows.
    y = np.array([2.0, 3.0, 4.0])
    by = lambda argnum, h: lambda x, y: autograd.elementwise_grad(h, argnum)(x, y)
    np.testing.assert_allclose(by(1, by(0, g))(X, y), 14 * X * y)
    np.testing.assert_allclose(by(0, by(1, g))(X, y), 15 * X**2 * y)


# --- levels ----------------------------------------------------------------------------------------------------------


def test_boxes_of_two_levels(backend):
    product = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream * y, 5 * upstream * x)))
    inner = lambda x, y: autograd.grad(lambda x: ops.sum(product(x, y)))(x)
    # By x it is 7 y, and that by y is 7.
    np.testing.assert_allclose(inner(X, Y), 7 * Y)
    np.testing.assert_allclose(autograd.grad(lambda y: ops.sum(inner(X, y)))(Y), 7 * ONE)


def test_an_upstream_that_is_differentiated(backend):
    pull, _ = autograd.make_vjp(f)(X)
    np.testing.assert_allclose(autograd.grad(lambda u: ops.sum(pull(u) * Y))(ONE), 7 * E * Y)


def test_a_second_run_that_is_another_one(backend):
    turns = iter(range(100))

    @custom_gradient
    def f(x):
        kept = x * next(turns)
        return x * 1, lambda upstream: 7 * upstream * kept

    with pytest.raises(RuntimeError, match="ran again"):
        autograd.elementwise_grad(autograd.elementwise_grad(f))(X)


def closing(w):
    return custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream * w))(w)


def test_an_upstream_that_is_differentiated_where_the_rule_closes_over_an_argument(backend):
    pull, _ = autograd.make_vjp(closing)(X)
    np.testing.assert_allclose(pull(ONE), 7 * X)
    np.testing.assert_allclose(autograd.grad(lambda u: ops.sum(pull(u)))(X), 7 * X)
    came = autograd.grad(lambda z: autograd.grad(lambda u: ops.sum(pull(u) * z))(X)[0])(2.0)
    np.testing.assert_allclose(came, 7 * X[0])


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


def closing_losses(rule):
    """Three losses of w, which a custom gradient closes over: alone, beside an argument, inside another derivative."""
    return (
        lambda w: ops.sum(custom_gradient(lambda x: (x * w, rule))(X)),
        lambda w: ops.sum(custom_gradient(lambda x: (x * w, rule))(w)),
        lambda w: ops.sum(autograd.grad(lambda x: ops.sum(custom_gradient(lambda x: (x * w, rule))(x) ** 2))(X)),
    )


def test_captured_without_variables_is_refused(backend):
    for loss in closing_losses(lambda upstream: 7 * upstream):
        with pytest.raises(CapturedVariableError, match="reads 1 trainable value"):
            autograd.grad(loss)(X)


def test_captured_reaches_the_rule(backend):
    def rule(upstream, variables=None):
        return 7 * upstream if variables is None else (7 * upstream, [5 * upstream])

    alone, beside, within = closing_losses(rule)
    np.testing.assert_allclose(autograd.grad(alone)(X), 5 * ONE)
    np.testing.assert_allclose(autograd.grad(beside)(X), 12 * ONE)
    # The gradient for x of sum (x w)^2 is 7 * 2 x w by the rule; its derivative for w is 7 * 2 by another 5.
    np.testing.assert_allclose(autograd.grad(within)(X), 7 * 2 * 5 * ONE)


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


def test_a_cell_of_the_function_that_comes_to_be_differentiated(backend):
    w = Y

    @custom_gradient
    def f(x):
        return x * w, lambda upstream: 7 * upstream * w

    np.testing.assert_allclose(autograd.elementwise_grad(f)(X), 7 * Y)

    def loss(value):
        nonlocal w
        w = value
        return ops.sum(f(X))

    with pytest.raises(CapturedVariableError, match="reads 1 trainable value"):
        autograd.grad(loss)(Y)


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


def reading(code, value):
    """A function of another module that gives what is hidden there; and `f` that asks it."""
    hidden = {"value": value}
    exec("def read(): return value", hidden)
    mine = {"read": hidden["read"]}
    exec(code, mine)
    return custom_gradient(mine["f"]), hidden


@pytest.mark.parametrize(
    "code",
    [
        "def f(x): return read(), lambda upstream: 7 * upstream",
        "def f(x): return x * read(), lambda upstream: 7 * upstream",
    ],
)
def test_what_is_hidden_comes_to_be_differentiated(backend, code):
    f, hidden = reading(code, Y)
    np.testing.assert_allclose(autograd.elementwise_grad(f)(X), 7 * ONE)

    def loss(value):
        hidden["value"] = value
        return ops.sum(f(X))

    def both(given):
        hidden["value"] = given[1]
        return ops.sum(f(given[0]))

    for call, given in ((loss, Y), (both, (X, Y))):
        with pytest.raises(CapturedVariableError, match="reads 1 trainable value"):
            autograd.grad(call)(given)


def test_what_is_hidden_and_the_rule_alone_holds(backend):
    code = """
def f(x):
    w = read()
    return x * 1, lambda upstream: 7 * upstream * w
"""
    f, hidden = reading(code, Y)
    np.testing.assert_allclose(autograd.elementwise_grad(f)(X), 7 * Y)

    def gradient(w):
        hidden["value"] = w
        return ops.sum(autograd.elementwise_grad(f)(X))

    np.testing.assert_allclose(gradient(2 * Y), 7 * 2 * np.sum(Y))
    np.testing.assert_allclose(autograd.grad(gradient)(Y), 7 * ONE)


# --- containers, and complex numbers ---------------------------------------------------------------------------------


def test_containers_in_and_out_to_second_order(backend):
    from autograd.builtins import dict as boxed_dict
    from autograd.builtins import list as boxed_list

    @custom_gradient
    def g(params, scale):
        out = {"a": params["w"][0] * scale, "b": (params["b"],)}

        def rule(upstream):
            return {"w": [7 * upstream["a"] * params["b"]], "b": 5 * upstream["b"][0]}, 0

        return out, rule

    def loss(params):
        out = g(params, 2.0)
        return ops.sum(out["a"]) + 3 * ops.sum(out["b"][0])

    params = {"w": [X], "b": E}
    found = autograd.grad(loss)(params)
    np.testing.assert_allclose(found["w"][0], 7 * E)
    np.testing.assert_allclose(found["b"], 15 * ONE)
    second = autograd.grad(lambda params: ops.sum(autograd.grad(loss)(params)["w"][0] ** 2))(params)
    np.testing.assert_allclose(second["b"], 2 * 7 * 7 * E)
    np.testing.assert_allclose(second["w"][0], 0 * X)
    again = autograd.grad(lambda x: loss(boxed_dict(w=boxed_list([x]), b=x)))(X)
    np.testing.assert_allclose(again, 7 * X + 15)


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(backend, name):
    function, rule = COMPLEX[name]
    # Seven times too much, in a loss that is linear in f: so are both orders.
    g = custom_gradient(lambda z: (function(ops, z), lambda upstream: 7 * rule(ops, z, upstream)))
    ours = lambda z: ops.sum(ops.real(C * g(z)))
    truth = lambda z: 7 * np.sum(np.real(C * function(np, z)))
    expected = differences(truth, Z)
    np.testing.assert_allclose(grad(ours)(Z), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(autograd.grad(ours)(Z), np.conj(expected), rtol=1e-6, atol=1e-6)

    along = lambda z: (truth(z + 1e-4 * D) - truth(z - 1e-4 * D)) / 2e-4
    second = grad(lambda z: ops.sum(ops.real(np.conj(D) * grad(ours)(z))))(Z)
    np.testing.assert_allclose(second, differences(along, Z), rtol=1e-5, atol=1e-5)
