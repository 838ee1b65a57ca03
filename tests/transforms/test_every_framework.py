"""What frameworks do to a function beyond a gradient: right, or refused in so many words.

The conformance suite has each transform by itself; here is what it leaves out. The rule gives 7 exp(x), where exp(x) is
captured from the function and plain differentiation gives 2: so first and higher derivatives are all 7 exp(x), and a
rule that was dropped, or a captured value taken for a constant, shows.
"""

import pkgutil

import numpy as np
import pytest
from seven_exp import X, check, f, total
from tapes import gradients

import keras_cg
from keras_cg import custom_gradient, ops


def test_a_rule_that_calls_its_own_function(backend):
    # Wrong on purpose: f is the identity, and its derivative is 7 f. That of g is 7 h, and that of h is 7 g.
    f = custom_gradient(lambda x: (x * 1, lambda upstream: upstream * (4 * f(x) + 3 * f(x))))
    g = custom_gradient(lambda x: (x * 1, lambda upstream: upstream * 7 * h(x)))
    h = custom_gradient(lambda x: (x * 1, lambda upstream: upstream * 7 * g(x)))
    compiled = {"jax": "jax.jit", "tensorflow": "tensorflow.function"}.get(backend)
    for function in (f, g):
        check(keras_cg.jvp(function, (2.0,), (3.0,))[1], 3 * 2 * 7)
        check(keras_cg.jvp(keras_cg.grad(function), (2.0,), (3.0,))[1], 3 * 2 * 7**2)
        for order in (1, 2, 3):
            function = keras_cg.grad(function)
            check(function(2.0), 2 * 7.0**order)
            if compiled:
                check(pkgutil.resolve_name(compiled)(function)(2.0), 2 * 7.0**order)


# --- torch -----------------------------------------------------------------------------------------------------------


@pytest.mark.only("torch")
def test_torch_gradcheck(torch):
    from torch.autograd.gradcheck import GradcheckError

    @custom_gradient
    def right(x):
        e = ops.exp(x)
        return e * e, lambda upstream: 2 * upstream * e * e

    x = torch.linspace(-1, 1, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(right, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(right, x)
    with pytest.raises(GradcheckError):
        torch.autograd.gradcheck(f, x)


@pytest.mark.only("torch")
@pytest.mark.limit
def test_torch_refuses_to_linearize(backend, torch):
    with pytest.raises(NotImplementedError, match=r"torch.func.linearize makes, ignores custom gradients"):
        torch.func.linearize(custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream)), torch.ones(3))


@pytest.mark.only("torch")
@pytest.mark.limit
def test_torch_compile_of_transforms(eager, torch):
    """An error: torch (2.13) drops the rule, or the derivative of what it compiled."""
    x, torch_func = eager.tensor(X), torch.func
    transforms = {
        "vjp": (lambda: lambda x: torch_func.vjp(f, x)[1](torch.ones(3))[0], lambda: x),
        "vmap of grad": (lambda: torch_func.vmap(torch_func.grad(f)), lambda: x),
        "jvp": (lambda: lambda x: torch_func.jvp(f, (x,), (torch.ones(3),))[1], lambda: x),
        "a leaf": (lambda: torch_func.grad(total), lambda: x.clone().requires_grad_()),
    }
    for transform, given in transforms.values():
        torch.compiler.reset()
        compiled = torch.compile(transform(), backend="aot_eager", fullgraph=True)
        with pytest.raises(Exception, match=r"torch\.compile around a transform of torch\.func ignores"):
            compiled(given())


@pytest.mark.only("torch")
def test_torch_captured_under_a_transform(eager, torch):
    closing = lambda w, x: custom_gradient(lambda x: (x * w, lambda upstream: 7 * upstream))(x).sum()
    x = eager.tensor(X)
    check(torch.func.grad(closing, argnums=1)(x, x), np.full(3, 7.0))
    check(torch.func.vmap(torch.func.grad(closing, argnums=1))(x, x), np.full(3, 7.0))
    for transform in (
        lambda: torch.func.grad(closing)(x, x),
        lambda: torch.func.grad(closing, argnums=(0, 1))(x, x),
        lambda: torch.func.vmap(torch.func.grad(closing))(x, x),
        lambda: torch.func.jvp(lambda w: closing(w, x), (x,), (x,)),
        lambda: torch.func.grad(lambda w: torch.func.grad(closing, argnums=1)(w, x).sum())(x),
    ):
        with pytest.raises(TypeError, match="trainable value"):
            transform()


# --- TensorFlow ------------------------------------------------------------------------------------------------------


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_tensorflow_vectorized_map_of_what_was_traced_before_is_a_limit(eager, tf):
    g = tf.function(lambda x: f(x), input_signature=[tf.TensorSpec((), tf.float32)])
    g(tf.constant(1.0))
    found = gradients(lambda x: tf.vectorized_map(g, x), eager.tensor(X))[0]
    check(found, np.full(3, 2.0))  # plain differentiation: nothing of ours is called
