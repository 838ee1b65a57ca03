"""torch.func and forward mode: the rule is the derivative at every level, captured values included, or it raises."""

import functools

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient

pytestmark = pytest.mark.only("torch")

X = np.array([-1.0, 0.5, 1.0], np.float32)


# --- what a function closes over -------------------------------------------------------------------------------------


def weighted(x, v, w):
    """`x w v` with the gradient 7 for x, 5 w for w and 3 v for v, which are closed over; w is used first."""

    @custom_gradient
    def f(x):
        def grad(upstream, variables):
            first, second = variables
            return 7 * upstream, [5 * upstream * first, 3 * upstream * second]

        return x * w * v, grad

    return f(x).sum()


def test_captured_values_reach_the_rule_in_the_order_of_first_use(eager, torch):
    x, v, w = (eager.tensor(k * X) for k in (1, 2, 3))
    grad = torch.func.grad(weighted, argnums=(0, 1, 2))
    leaves = [each.clone().requires_grad_() for each in (x, v, w)]
    computed = torch.autograd.grad(weighted(leaves[0], leaves[1] * 1, leaves[2] * 1), leaves)
    around = torch.func.grad(lambda *args: torch.func.vmap(weighted)(*args).sum(), argnums=(0, 1, 2))
    for gx, gv, gw in (grad(x, v, w), torch.func.vmap(grad)(x, v, w), around(x, v, w), computed):
        np.testing.assert_allclose(gx, np.full(3, 7.0))
        np.testing.assert_allclose(gv, 3 * 2 * X)
        np.testing.assert_allclose(gw, 5 * 3 * X)


def test_a_captured_constant_of_a_batch_is_no_variable(eager, torch):
    x, w = eager.tensor(X), eager.tensor(3 * X)

    def loss(w, c):
        f = custom_gradient(lambda x: (x * w * c, lambda upstream, variables: (7 * upstream, [5 * upstream * x])))
        return f(x).sum()

    slope = functools.partial(torch.func.grad(loss), w)
    np.testing.assert_allclose(torch.func.vmap(slope)(x), np.broadcast_to(5 * X, (3, 3)))


def test_batches_along_any_axes(eager, torch):
    """Another run has its batches along other axes than the first one."""
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 24

    @custom_gradient
    def f(x):
        e = torch.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e

    gradient = torch.func.grad(lambda x: f(x).sum())
    found = torch.func.vmap(torch.func.vmap(gradient, in_dims=1), in_dims=2)(eager.tensor(x))
    np.testing.assert_allclose(found, 7 * np.exp(x).transpose(2, 1, 0), rtol=1e-6)


def test_captured_values_in_second_order_and_forward_mode(eager, torch):
    def loss(x, w):
        @custom_gradient
        def f(x):
            e = w * 1  # by the rule, of whichever level w is when the function runs again
            return x * w, lambda upstream, variables: (7 * upstream, [5 * upstream * e * x])

        return f(x).sum()

    x, w = eager.tensor(X), eager.tensor(3 * X)
    grad = torch.func.grad(loss, argnums=1)
    around = torch.func.grad(lambda w: torch.func.vmap(loss)(x, w).sum())
    for first in (grad(x, w), around(w)):
        np.testing.assert_allclose(first, 5 * 3 * X * X, rtol=1e-6)
    for argument, expected in ((0, 5 * 3 * X), (1, 5 * X)):
        second = torch.func.grad(lambda *args: grad(*args).sum(), argnums=argument)(x, w)
        np.testing.assert_allclose(second, expected, rtol=1e-6)
    _, tangent = torch.func.jvp(lambda w: grad(x, w), (w,), (torch.ones(3),))
    np.testing.assert_allclose(tangent, 5 * X, rtol=1e-6)
    _, tangent = torch.func.jvp(lambda w: loss(x, w), (w,), (torch.ones(3),))
    np.testing.assert_allclose(tangent, np.sum(5 * 3 * X * X), rtol=1e-6)


def product(x, w):
    """`x w` with the gradient 7 for x and 5 for w, which is closed over."""

    f = custom_gradient(lambda x: (x * w, lambda upstream, variables: (7 * upstream, [5 * upstream * x])))
    return f(x)


def test_a_value_computed_from_what_is_trainable(eager, torch):
    from torch.utils.checkpoint import checkpoint

    x = eager.tensor(X)
    w = eager.tensor(2 * X).requires_grad_()
    expected = 5 * X * 2 * (2 * X)
    (found,) = torch.autograd.grad(product(x, w * w).sum(), w)
    np.testing.assert_allclose(found, expected)
    (found,) = torch.autograd.grad(checkpoint(lambda w: product(x, w * w), w, use_reentrant=False).sum(), w)
    np.testing.assert_allclose(found, expected)
    # As argument and captured: 7 of the argument, 5 x for its square.
    (found,) = torch.autograd.grad(product(w, w * w).sum(), w)
    np.testing.assert_allclose(found, 7 + 5 * 2 * X * 2 * (2 * X))


class Holder:
    def __init__(self, w):
        self.w = w

    @custom_gradient
    def call(self, x):
        return x * self.w, lambda upstream, variables=None: (7 * upstream, [5 * upstream])


class Slot(Holder):
    __slots__ = ("w",)


@pytest.mark.parametrize("kind", [Holder, Slot])
def test_a_captured_value_in_an_attribute(eager, torch, kind):
    x, w = eager.tensor(X), eager.tensor(2 * X)
    np.testing.assert_allclose(torch.func.grad(lambda w: kind(w).call(x).sum())(w), np.full(3, 5.0))
    w.requires_grad_()
    kind(w * w).call(x).sum().backward()
    np.testing.assert_allclose(w.grad, 5 * 2 * 2 * X)


# A global, which nothing is searched for.
kept = []


@pytest.mark.limit
def test_a_computed_value_that_cannot_be_found_is_refused(eager, backend):
    w = eager.tensor(X).requires_grad_()
    kept[:] = [w * w]
    f = custom_gradient(lambda x: (x * kept[0], lambda upstream, variables: (7 * upstream, [5 * upstream])))
    with pytest.raises(TypeError, match=r"captured values are only found in closures"):
        f(eager.tensor(X))


@pytest.mark.limit
@pytest.mark.parametrize("place", ["function", "rule"])
def test_a_captured_value_for_the_rule_alone_is_a_variable_beside_another(eager, torch, place):
    def scaled(z, w):
        @custom_gradient
        def f(x):
            kept = 7 * z if place == "function" else None

            return x * w, lambda upstream, variables: (upstream * (7 * z if kept is None else kept), [5 * upstream])

        return f(eager.tensor(X)).sum()

    z, w = (torch.tensor(k * X, requires_grad=True) for k in (1, 2))
    np.testing.assert_allclose(torch.autograd.grad(scaled(z, w), w)[0], np.full(3, 5.0))
    derivative = torch.func.grad(scaled, argnums=(0, 1))
    if place == "function":
        with pytest.raises(ValueError, match="a list of 2 gradients"):
            derivative(z, w)
    else:
        np.testing.assert_allclose(derivative(z, w)[1].detach(), np.full(3, 5.0))


def test_a_frozen_value_is_not_among_them(eager, torch):
    x, v, w = eager.tensor(X), eager.tensor(2 * X), eager.tensor(3 * X)

    def loss(w, x, u):
        @custom_gradient
        def f(x):
            return x * v * w + 0 * u.detach(), lambda upstream, variables: (
                7 * upstream,
                [5 * upstream] * len(variables),
            )

        return f(x).sum()

    gw, gx, gu = torch.func.grad(loss, argnums=(0, 1, 2))(w, x, x)
    np.testing.assert_allclose(gw, np.full(3, 5.0))
    np.testing.assert_allclose(gu, np.zeros(3))
    np.testing.assert_allclose(gx, np.full(3, 7.0))


def test_one_constant_for_two_arguments_beside_a_captured_parameter(torch):
    weight, x = torch.nn.Parameter(torch.tensor([0.5, 1.0])), torch.tensor([3.0, 5.0])

    @custom_gradient
    def f(a, b):
        return a * b * weight, lambda upstream, variables: ((None, None), [11 * upstream * a for _ in variables])

    f(x, x).sum().backward()
    np.testing.assert_allclose(weight.grad, [33, 55])


# --- transforms that the function calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", ["vmap", "jacrev", "jacfwd", "decorated"])
def test_a_transform_inside_the_function(torch, inner):
    """It opens a level of its own, whose tensors the function has not captured."""
    twice = custom_gradient(lambda x: (2 * x, lambda upstream: 2 * upstream))

    def doubled(x):
        if inner in ("vmap", "decorated"):
            return torch.func.vmap(twice if inner == "decorated" else lambda each: 2 * each)(x)
        return getattr(torch.func, inner)(lambda y: x * y * y)(torch.ones_like(x)).sum(0)

    def scaled(x, w):
        @custom_gradient
        def f(x):
            y = doubled(x * w)

            def rule(upstream, variables=None):
                return (7 * upstream * y, [3 * upstream * y]) if variables else 7 * upstream * y

            return y * 1, rule

        return f(x)

    x, w = torch.tensor(X), torch.tensor(5 * X)
    for place, factor in ((0, 7), (1, 3)):
        for jacobian in (torch.func.jacrev, torch.func.jacfwd):
            torch.testing.assert_close(jacobian(scaled, place)(x, w), torch.diag(factor * 10 * x * x))
            batched = torch.func.vmap(jacobian(scaled, place), (None, 0))(x, w[None])
            torch.testing.assert_close(batched[0], torch.diag(factor * 10 * x * x))
        hessian = torch.func.hessian(lambda x, w: scaled(x, w).sum(), place)(x, w)
        torch.testing.assert_close(hessian, torch.diag(factor * 2 * (w if place == 0 else x)))


def test_a_captured_value_of_a_function_inside_another(torch):
    """In a run for forward mode, torch puts the level aside to which the captured value belongs."""

    def inner(c):
        return custom_gradient(lambda x: (c * x, lambda upstream, variables: (7 * upstream * c, [0 * upstream])))(c)

    def outer(c):
        rule = lambda upstream, variables: (None, [upstream * inner(c)])
        return custom_gradient(lambda x: (x * inner(c), rule))(torch.ones(()))

    # c² has the derivative 7 c
    torch.testing.assert_close(torch.func.hessian(outer)(torch.tensor(3.0)), torch.tensor(21.0))


@pytest.mark.limit
def test_a_transform_inside_the_function_gets_a_captured_value(torch):
    def scaled(x, w):
        f = custom_gradient(lambda x: (torch.func.vmap(torch.mul)(x, w), lambda upstream, variables=None: 7 * upstream))
        return f(x).sum()

    with pytest.raises(TypeError, match=r"by a transform of torch\.func that the function calls"):
        torch.func.grad(scaled, 1)(torch.tensor(X), torch.tensor(X))


# --- a rule that runs when its level is over -------------------------------------------------------------------------


def sevenfold(x, z):
    """`x` with the gradient 7 z."""

    f = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * z))
    return f(x)


@pytest.mark.parametrize("in_dims", [(0, 0), (None, 0)], ids=["each", "one"])
def test_what_only_the_rule_reads_around_vmap(torch, in_dims):
    mixed, x, z = torch.arange(9.0).reshape(3, 3), torch.tensor(X), torch.tensor(2 * X)
    x = x if in_dims[0] == 0 else x[0]
    loss = lambda x: mixed @ torch.func.vmap(sevenfold, in_dims)(x, z)
    expected = 7 * mixed * z if in_dims[0] == 0 else (7 * mixed * z).sum(1)
    tracked = x.clone().requires_grad_()
    (batched,) = torch.autograd.grad(loss(tracked), tracked, torch.eye(3), is_grads_batched=True)
    output = loss(tracked)
    mapped = torch.func.vmap(lambda upstream: torch.autograd.grad(output, tracked, upstream)[0])(torch.eye(3))
    for result in (torch.func.jacrev(loss)(x), torch.func.jacfwd(loss)(x), batched, mapped):
        torch.testing.assert_close(result, expected)


def test_what_only_the_rule_reads_beside_the_arguments_of_a_hessian(torch):
    hessian = torch.func.hessian(lambda z, x: (sevenfold(x, z) ** 2).sum(), argnums=1)
    torch.testing.assert_close(hessian(torch.tensor(X), torch.tensor(X)), torch.diag(torch.tensor(2 * 49 * X * X)))


def test_an_output_without_the_batch_of_the_arguments(torch):
    """torch (2.13) sums the cotangent over the batch, in a hand-written `Function` too."""
    kept = custom_gradient(lambda x, y: (y * 1, lambda upstream: (7 * upstream * x, None)))
    mixed, x = torch.arange(9.0).reshape(3, 3), torch.tensor(X)
    loss = lambda x: mixed @ torch.func.vmap(kept, in_dims=(0, None))(x, torch.tensor(2.0))
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(jacobian(loss)(x), 7 * mixed * x)


# --- forward mode ----------------------------------------------------------------------------------------------------


@pytest.mark.limit
def test_forward_mode_of_a_batched_rule_that_calls_its_own_function(eager, torch):
    f = custom_gradient(lambda x: (x * 1, lambda upstream: upstream * 7 * f(x)))
    x, v = eager.tensor(X), torch.ones(3)
    np.testing.assert_allclose(torch.func.vmap(torch.func.jacfwd(f))(x), 7 * X)
    with pytest.raises(RecursionError):
        torch.func.jvp(torch.func.vmap(f), (x,), (v,))


@pytest.mark.parametrize("is_on", [True, False], ids=["grad", "no_grad"])
def test_a_captured_value_in_forward_mode_alone_is_refused_or_a_variable(eager, torch, is_on):
    from torch.autograd import forward_ad

    x, w = eager.tensor(X), eager.tensor(2 * X)
    with torch.set_grad_enabled(is_on), forward_ad.dual_level():
        dual = forward_ad.make_dual(w, torch.ones(3))
        for is_differentiated in (False, True):
            f = custom_gradient(lambda x: (x * dual, lambda upstream: 7 * upstream))
            with pytest.raises(TypeError, match="reads 1 trainable value"):
                f(x.clone().requires_grad_(is_differentiated))
        served = custom_gradient(lambda x: (x * dual, lambda upstream, variables: (None, [7 * upstream * dual])))
        np.testing.assert_allclose(forward_ad.unpack_dual(served(x)).tangent, 7 * 2 * X)


def test_no_grad_does_not_stop_forward_mode(eager, torch):
    from torch.autograd import forward_ad

    f = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
    x = eager.tensor(X)
    without = torch.no_grad()(f)
    np.testing.assert_allclose(torch.func.jvp(without, (x,), (torch.ones(3),))[1], np.full(3, 7.0))
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(3))
        np.testing.assert_allclose(forward_ad.unpack_dual(f(dual)).tangent, np.full(3, 7.0))
    with torch.inference_mode():
        np.testing.assert_allclose(torch.func.jvp(f, (x,), (torch.ones(3),))[1], np.full(3, 7.0))


def test_forward_mode_where_an_integer_output_comes_first(eager, torch):
    f = custom_gradient(lambda x: ((x.argmax(), x * 2), lambda _, dy: 7 * dy))
    _, tangent = torch.func.jvp(lambda x: f(x)[1], (eager.tensor(X),), (torch.ones(3),))
    np.testing.assert_allclose(tangent, np.full(3, 7.0))


def squared(x):
    """`x²` with the gradient 7 x² in place of 2 x, whose derivative is 14 x."""
    h = x * x
    return h, lambda upstream: 7 * upstream * h


def test_forward_mode_of_a_gradient_with_a_graph(eager, torch):
    from torch.autograd import forward_ad

    f = custom_gradient(squared)
    x = eager.tensor(X).double()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.requires_grad_(), torch.ones_like(x))
        (gradient,) = torch.autograd.grad(f(dual).sum(), dual, create_graph=True)
        found = forward_ad.unpack_dual(gradient)
    np.testing.assert_allclose(found.primal.detach(), 7 * X**2, rtol=1e-6)
    np.testing.assert_allclose(found.tangent.detach(), 14 * X, rtol=1e-6)


@pytest.mark.limit
@pytest.mark.parametrize("where", ["function", "rule"])
def test_numpy_in_a_function(eager, torch, where):
    """It leaves torch, which no level allows; outside of them it may."""
    outside = lambda x: torch.from_numpy(np.exp(x.detach().numpy()))
    inside = torch.exp

    def exponential(x):
        y = (outside if where == "function" else inside)(x)
        return y, lambda upstream: 7 * (inside if where == "function" else outside)(upstream) * y

    f, x = custom_gradient(exponential), eager.tensor(X)
    np.testing.assert_allclose(keras_cg.grad(lambda x: f(x).sum())(x), 7 * np.e * np.exp(X), rtol=1e-6)
    loss = lambda x: f(x).sum()
    programs = [torch.func.grad(loss), lambda x: torch.func.vmap(torch.func.grad(loss))(x[None]), torch.func.jacrev(f)]
    if where == "function":
        programs += [lambda x: torch.func.vmap(f)(x), lambda x: torch.func.jvp(f, (x,), (x,))]
    for program in programs:
        with pytest.raises(RuntimeError) as caught:
            program(x)
        assert str(caught.value).splitlines()[0] == (
            "test_numpy_in_a_function.<locals>.exponential: a tensor of a transform of torch.func has no memory that"
            " NumPy could read."
        )


HESSIANS = {
    "in a loop": {},
    "vectorized": {"vectorize": True},
    "forward mode": {"vectorize": True, "outer_jacobian_strategy": "forward-mode"},
}


@pytest.mark.parametrize("name", HESSIANS)
def test_a_hessian_of_torch_autograd_functional(eager, torch, name):
    f = custom_gradient(squared)
    found = torch.autograd.functional.hessian(lambda x: f(x).sum(), eager.tensor(X), **HESSIANS[name])
    np.testing.assert_allclose(found.detach(), np.diag(14 * X), rtol=1e-6)


@pytest.mark.parametrize("left", ["grad", "grad of grad", "vmap"])
def test_an_object_that_holds_a_tensor_of_a_transform_that_is_over(eager, torch, left):
    class Owner:
        part = None

        @custom_gradient
        def fun(self, x):
            k = 7 if self.part is None else 11
            return x * x, lambda upstream: upstream * k * x

    owner, one = Owner(), torch.tensor(3.0)

    def leave(x):
        owner.part = x * 1
        return x * 1

    made = {"grad": torch.func.grad, "grad of grad": lambda fun: torch.func.grad(torch.func.grad(fun))}
    made.get(left, lambda fun: lambda x: torch.func.vmap(fun)(x[None]))(leave)(one)
    assert float(torch.func.grad(owner.fun)(one)) == 33.0
    assert float(torch.func.grad(torch.func.grad(owner.fun))(one)) == 11.0
    assert torch.func.vmap(torch.func.grad(owner.fun))(one[None]).tolist() == [33.0]
    assert float(torch.func.jvp(owner.fun, (one,), (one,))[1]) == 99.0
