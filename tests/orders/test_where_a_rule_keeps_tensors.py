"""What a rule holds in the slots of an object, in a global or in a list has its derivatives, of every order."""

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient, grad, ops

X = np.array([0.5, 1.0])
E = np.exp(X)


class Slots:
    """The rule 7 u e s, and 5 times the sum of u e for a captured value."""

    __slots__ = ("e", "s")

    def __init__(self, e, s):
        self.e, self.s = e, s

    def __call__(self, upstream, variables=None):
        gradient = 7 * upstream * self.e * self.s
        return (gradient, [5 * ops.sum(upstream * self.e)]) if variables else gradient


def hidden(s):
    return custom_gradient(lambda x: (x * 2, Slots(ops.exp(x), s)))


def captured(w, x):
    return ops.sum(custom_gradient(lambda x: (x * w, Slots(ops.exp(x) * w, 1.0)))(x))


def held(w, x):
    """The same in a closure."""

    @custom_gradient
    def f(x):
        h = ops.exp(x) * w

        def rule(upstream, variables=None):
            return (7 * upstream * h, [5 * ops.sum(upstream * h)]) if variables else 7 * upstream * h

        return x * w, rule

    return ops.sum(f(x))


def only_read(w, x):
    """The output does not hang on w; the gradient does."""

    @custom_gradient
    def f(x):
        h = ops.exp(x) * w
        return x * 1, lambda upstream: 7 * upstream * h

    return ops.sum(f(x))


def total(f, argnums=0):
    """The sum of a gradient."""
    return lambda *args: ops.sum(grad(f, argnums)(*args))


CASES = {
    "first": (lambda x, s: grad(hidden(3.0))(x), 21 * E),
    "second": (lambda x, s: grad(grad(hidden(3.0)))(x), 21 * E),
    "third": (lambda x, s: grad(grad(grad(hidden(3.0))))(x), 21 * E),
    "slope": (lambda x, s: grad(lambda s: total(hidden(s))(x))(s), 7 * E.sum()),
    "slope of the second": (lambda x, s: grad(lambda s: total(total(hidden(s)))(x))(s), 7 * E.sum()),
    "mixed": (lambda x, s: grad(lambda s: total(lambda x: grad(hidden(s))(x) * x)(x))(s), (7 * E * X + 7 * E).sum()),
    "forward": (lambda x, s: keras_cg.jvp(hidden(3.0), (x,), (x,))[1], 21 * E * X),
    "forward of the gradient": (lambda x, s: keras_cg.jvp(grad(hidden(3.0)), (x,), (x,))[1], 21 * E * X),
    **{
        f"{f.__name__}, {name}": (lambda x, s, f=f, take=take: take(f, s, x), expected)
        for f in (captured, held)
        for name, take, expected in [
            ("w", lambda f, w, x: grad(f)(w, x), 2 * 5 * E.sum()),
            ("x", lambda f, w, x: grad(f, 1)(w, x), 2 * 7 * E),
            ("w w", lambda f, w, x: grad(grad(f))(w, x), 5 * E.sum()),
            ("w x", lambda f, w, x: grad(lambda x: grad(f)(w, x))(x), 2 * 5 * E),
            ("x w", lambda f, w, x: grad(lambda w: total(f, 1)(w, x))(w), 7 * E.sum()),
            ("x x", lambda f, w, x: grad(lambda x: total(f, 1)(w, x))(x), 2 * 7 * E),
        ]
    },
    "read, x w": (lambda x, s: grad(lambda w: total(only_read, 1)(w, x))(s), 7 * E.sum()),
    "read, x x": (lambda x, s: grad(lambda x: total(only_read, 1)(s, x))(x), 2 * 7 * E),
    "read, x x w": (lambda x, s: grad(lambda w: total(lambda x: total(only_read, 1)(w, x))(x))(s), 7 * E.sum()),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_hidden(eager, backend, name):
    take, expected = CASES[name]
    s = 3.0 if name.startswith(("slope", "mixed")) else 2.0
    tensors = [eager.tensor(np.asarray(array, np.float32)) for array in (X, s)]
    np.testing.assert_allclose(eager.array(take(*tensors)), expected, rtol=1e-4)


def assign(h):
    global ASSIGNED
    ASSIGNED = h


def test_a_global_that_a_helper_assigns(eager, backend):
    @custom_gradient
    def f(x):
        assign(ops.exp(x))
        return x * 2, lambda upstream: 7 * upstream * ASSIGNED

    for order in (grad(f), grad(grad(f)), grad(grad(grad(f)))):
        np.testing.assert_allclose(eager.array(order(eager.tensor(X))), 7 * E, rtol=1e-6)


@pytest.mark.only("torch")
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("forward")])
def test_what_is_hidden_under_a_transform(eager, backend, name, monkeypatch):
    import torch

    def transformed(f, argnums=0):
        return torch.func.grad(lambda *args: f(*args).sum(), argnums)

    monkeypatch.setitem(globals(), "grad", transformed)
    take, expected = CASES[name]
    s = 3.0 if name.startswith(("slope", "mixed")) else 2.0
    tensors = [eager.tensor(np.asarray(array, np.float32)) for array in (X, s)]
    np.testing.assert_allclose(eager.array(take(*tensors)), expected, rtol=1e-4)


@pytest.mark.only("torch")
def test_a_list_of_elsewhere_under_vmap(eager, backend):
    """The rule reduces what it holds: a batch taken for one example would give another number, of the right shape."""
    import torch

    @custom_gradient
    def f(x):
        rule = (lambda kept: lambda upstream: 7 * upstream * kept[0].sum())([torch.exp(x)])
        return x * 2, rule

    batch = torch.stack([torch.tensor(X), torch.tensor(2 * X)])
    came = torch.func.grad(lambda batch: torch.func.vmap(f)(batch).sum())(batch)
    np.testing.assert_allclose(came, 7 * np.exp([X, 2 * X]).sum(1, keepdims=True) * np.ones((2, 2)))


@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_function_with_a_hidden_tensor_runs_twice_under_a_transform(eager, backend):
    """A limit: a tensor that the rule holds belongs to a level of torch.func, which is over by then."""
    import torch

    runs = []

    @custom_gradient
    def f(x):
        runs.append(x)
        return x * 2, Slots(ops.exp(x), 3.0)

    x = eager.tensor(np.asarray(X, np.float32))
    np.testing.assert_allclose(torch.func.grad(lambda x: f(x).sum())(x), 21 * E, rtol=1e-5)
    assert len(runs) == 2
    np.testing.assert_allclose(eager.gradients(lambda x: f(x).sum(), np.asarray(X, np.float32))[0], 21 * E, rtol=1e-5)
    assert len(runs) == 3
