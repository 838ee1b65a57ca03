"""torch: a rule may differentiate itself, under every transform; torch.fx is refused where it would drop the rule."""

import importlib

import numpy as np
import pytest
from ways import check, gradient

import keras_cg
from keras_cg import custom_gradient, grad, jacobian, jvp, vjp

pytestmark = pytest.mark.only("torch")

X = np.array([-1.0, 2.0, 3.0], np.float32)
Y = np.array([0.5, -1.5, 2.5], np.float32)
SEVEN = np.full(3, 7.0)


# Each gives 3 x^2 upstream.
INSIDE = {
    "grad": lambda x, upstream: upstream * grad(lambda y: y**3)(x),
    "vjp": lambda x, upstream: vjp(lambda y: y**3, x)[1](upstream)[0],
    "jacobian": lambda x, upstream: jacobian(lambda y: y**3)(x) @ upstream,
    "value_and_grad": lambda x, upstream: upstream * keras_cg.value_and_grad(lambda y: y**3)(x)[1],
}
# What torch.func makes of g = 3 x^2 (s is its sum), with the tangent t, and what it should be.
OUTER = {
    "vmap": (lambda func, g, x, t: func.vmap(g)(x), lambda x, t: 3 * x**2),
    "grad": (lambda func, g, x, t: func.grad(lambda x: g(x).sum())(x), lambda x, t: 6 * x),
    "jvp": (lambda func, g, x, t: func.jvp(g, (x,), (t,))[1], lambda x, t: 6 * x * t),
    "vmap of grad": (lambda func, g, x, t: func.vmap(func.grad(lambda x: g(x).sum()))(x), lambda x, t: 6 * x),
    "vmap of jvp": (
        lambda func, g, x, t: func.vmap(lambda x, t: func.jvp(g, (x,), (t,))[1])(x, t),
        lambda x, t: 6 * x * t,
    ),
    "grad of vmap": (lambda func, g, x, t: func.grad(lambda x: func.vmap(g)(x).sum())(x), lambda x, t: 6 * x),
    "jvp of vmap": (lambda func, g, x, t: func.jvp(func.vmap(g), (x,), (t,))[1], lambda x, t: 6 * x * t),
    "grad of grad": (
        lambda func, g, x, t: func.grad(lambda x: func.grad(lambda x: g(x).sum())(x).sum())(x),
        lambda x, t: 6 + 0 * x,
    ),
    "jvp of grad": (lambda func, g, x, t: func.jvp(func.grad(lambda x: g(x).sum()), (x,), (t,))[1], lambda x, t: 6 * t),
    "grad of jvp": (lambda func, g, x, t: func.grad(lambda x: func.jvp(g, (x,), (t,))[1].sum())(x), lambda x, t: 6 * t),
    "vmap of vmap": (lambda func, g, x, t: func.vmap(func.vmap(g))(x[None])[0], lambda x, t: 3 * x**2),
}


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("way", ["keras_cg", "transformed"])
def test_torch_derivatives_inside_a_rule(eager, torch, way, inside, outer):
    f = custom_gradient(lambda x: (x * 1, lambda upstream: INSIDE[inside](x, upstream)))
    # A Jacobian is a matrix, and `@` needs a vector, where nothing takes the first axis away.
    flat = inside == "jacobian" and "vmap" not in outer
    x, t = (X, Y) if flat else (np.stack([X, Y]), np.stack([Y, X]))
    transform, expected = OUTER[outer]
    found = transform(torch.func, gradient(eager, f, way), eager.tensor(x), eager.tensor(t))
    check(eager, found, expected(x, t))


# Functions whose gradient is zero, by way of a forward derivative that does not hang on x.
ZEROS = {
    "ours": lambda torch, x: jvp(lambda y: y * 2, (x,), (torch.ones(3),))[1],
    "other output": lambda torch, x: jvp(lambda y, w: {"a": y * w, "b": w * 2}, (x, x), (torch.ones(3), None))[1]["b"],
}
DERIVATIVES = {
    "grad": lambda torch, f, x: grad(f)(x),
    "vjp": lambda torch, f, x: vjp(f, x)[1](torch.ones(3))[0],
    "value_and_grad": lambda torch, f, x: keras_cg.value_and_grad(f)(x)[1],
    "jacobian": lambda torch, f, x: jacobian(f)(x),
    "jvp": lambda torch, f, x: jvp(lambda x: x * 2 + x.detach(), (x,), (torch.zeros(3),))[1],
}


@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_torch_zeros_are_tensors_like_any_other(eager, torch, derivative):
    for function in ZEROS.values():
        found = DERIVATIVES[derivative](torch, lambda x, function=function: function(torch, x), eager.tensor(X))
        assert not torch._is_zerotensor(found)
        np.testing.assert_array_equal(found.numpy(), np.zeros(found.shape))
        found += 1
        np.testing.assert_array_equal(found, np.ones(found.shape))


# --- torch.fx ------------------------------------------------------------------------------------------------------

# torch.fx.wrap wants to be called at the top of a module.
WRAPPED = """
import torch
import keras_cg


@keras_cg.custom_gradient
def double(x):
    return x * 2, lambda upstream: 7 * upstream


torch.fx.wrap("double")


def model(x):
    return double(x) + 1
"""


@pytest.mark.limit
def test_symbolic_trace_is_refused(backend, torch):
    f = custom_gradient(lambda x: ((x["a"] if isinstance(x, dict) else x) * 2, lambda upstream: 7 * upstream))
    for target in (lambda x: f(x) + 1, lambda x: f({"a": x}), lambda x: f(x=x)):
        with pytest.raises(Exception, match=r"torch\.fx\.wrap"):
            torch.fx.symbolic_trace(target)


def test_a_wrapped_function_is_traced(eager, torch, tmp_path, monkeypatch):
    (tmp_path / "wrapped_for_fx.py").write_text(WRAPPED)
    monkeypatch.syspath_prepend(tmp_path)
    eager.check(torch.fx.symbolic_trace(importlib.import_module("wrapped_for_fx").model), [X], [SEVEN])
