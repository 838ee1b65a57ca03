"""What frameworks do to a function beyond a gradient: right, or refused in so many words.

The rule gives 7 exp(x), where exp(x) is captured from the function and plain differentiation gives 2: so first and
higher derivatives are all 7 exp(x), and a rule that was dropped, or a captured value taken for a constant, shows.
"""

import pkgutil

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient, ops

X = np.array([-1.0, 0.5, 1.0], np.float32)
SEVEN_EXP = 7 * np.exp(X.astype(float))


@custom_gradient
def f(x):
    e = ops.exp(x)
    return x * 2, lambda upstream: 7 * upstream * e


@custom_gradient
def clip(x):
    return x * 2, lambda upstream: ops.clip(upstream, -1.0, 1.0)


def total(x):
    return ops.sum(f(x))


def check(found, expected=SEVEN_EXP):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5)


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


# --- torch ---------------------------------------------------------------------------------------------------------

TORCH = {
    "grad": lambda t, x: t.func.grad(total)(x),
    "vjp": lambda t, x: t.func.vjp(f, x)[1](t.ones(3))[0],
    "grad of grad": lambda t, x: t.func.grad(lambda x: t.func.grad(total)(x).sum())(x),
    "grad of grad of grad": lambda t, x: t.func.grad(
        lambda x: t.func.grad(lambda x: t.func.grad(total)(x).sum())(x).sum()
    )(x),
    "vmap of grad": lambda t, x: t.func.vmap(t.func.grad(f))(x),
    "grad of vmap": lambda t, x: t.func.grad(lambda x: t.func.vmap(f)(x).sum())(x),
    "jacrev": lambda t, x: t.func.jacrev(f)(x).diag(),
    "jacfwd": lambda t, x: t.func.jacfwd(f)(x).diag(),
    "jvp": lambda t, x: t.func.jvp(f, (x,), (t.ones(3),))[1],
    "vmap of jvp": lambda t, x: t.func.vmap(lambda x: t.func.jvp(f, (x,), (t.ones(()),))[1])(x),
    "grad of jvp": lambda t, x: t.func.grad(lambda x: t.func.jvp(f, (x,), (t.ones(3),))[1].sum())(x),
    "hessian": lambda t, x: t.func.hessian(total)(x).diag(),
    "jacrev of jacfwd": lambda t, x: t.func.jacrev(t.func.jacfwd(total))(x).diag(),
    "vmap of hessian": lambda t, x: t.func.vmap(t.func.hessian(f))(x),
    "functional hessian": lambda t, x: t.autograd.functional.hessian(total, x).diag(),
    "backward through vmap": lambda t, x: backward(t, x, lambda x: t.func.vmap(f)(x)),
    "forward_ad": lambda t, x: dual(t, x),
    "checkpoint": lambda t, x: backward(
        t, x, lambda x: __import__("torch.utils.checkpoint").utils.checkpoint.checkpoint(f, x, use_reentrant=False)
    ),
    "reentrant checkpoint": lambda t, x: backward(
        t, x, lambda x: __import__("torch.utils.checkpoint").utils.checkpoint.checkpoint(f, x, use_reentrant=True)
    ),
    "save_on_cpu": lambda t, x: hooked(t, x),
}


def backward(torch, x, function):
    x = x.clone().requires_grad_()
    function(x).sum().backward()
    return x.grad


def dual(torch, x):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones(3)))).tangent


def hooked(torch, x):
    with torch.autograd.graph.save_on_cpu():
        return backward(torch, x, f)


@pytest.mark.only("torch")
@pytest.mark.parametrize("transform", TORCH)
def test_torch(eager, backend, transform):
    import torch

    check(TORCH[transform](torch, eager.tensor(X)))


@pytest.mark.only("torch")
def test_torch_orders_and_checks(eager, backend):
    import torch
    from torch.autograd.gradcheck import GradcheckError

    x = eager.tensor(X).requires_grad_()
    found = f(x)
    for _ in range(4):
        (found,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        check(found.detach())

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
def test_torch_runs_again_under_the_same_autocast(eager, backend):
    import torch

    seen = []

    @custom_gradient
    def product(x):
        y = x @ x
        seen.append(y.dtype)
        return y, lambda upstream: upstream * 7 * y.float()

    x = torch.eye(3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = product(x)
    (first,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
    torch.autograd.grad(first.sum(), x)
    assert seen == [torch.bfloat16, torch.bfloat16]


@pytest.mark.only("torch")
def test_torch_without_gradients(eager, backend):
    import torch

    x = eager.tensor(X).requires_grad_()
    with torch.no_grad():
        assert not f(x).requires_grad
    with torch.inference_mode():
        assert not f(x).requires_grad
    assert f(x).requires_grad


@pytest.mark.only("torch")
@pytest.mark.limit
def test_torch_refuses_forward_inside_forward(eager, backend):
    import torch

    with pytest.raises(NotImplementedError, match="forward mode inside forward mode ignores custom gradients"):
        torch.func.jacfwd(torch.func.jacfwd(total))(eager.tensor(X))


@pytest.mark.only("torch")
@pytest.mark.limit
def test_torch_compile_of_transforms(eager, backend):
    """An error: torch (2.13) drops the rule, or the derivative of what it compiled."""
    import torch

    x, torch_func = eager.tensor(X), torch.func
    transforms = {
        "grad": (lambda: torch_func.grad(total), lambda: x),
        "vjp": (lambda: lambda x: torch_func.vjp(f, x)[1](torch.ones(3))[0], lambda: x),
        "jacrev": (lambda: lambda x: torch_func.jacrev(f)(x).sum(0), lambda: x),
        "grad of vmap": (lambda: torch_func.grad(lambda x: torch_func.vmap(f)(x).sum()), lambda: x),
        "vmap of grad": (lambda: torch_func.vmap(torch_func.grad(f)), lambda: x),
        "grad of grad": (lambda: torch_func.grad(lambda x: torch_func.grad(total)(x).sum()), lambda: x),
        "jvp": (lambda: lambda x: torch_func.jvp(f, (x,), (torch.ones(3),))[1], lambda: x),
        "a leaf": (lambda: torch_func.grad(total), lambda: x.clone().requires_grad_()),
    }
    for transform, given in transforms.values():
        torch.compiler.reset()
        compiled = torch.compile(transform(), backend="aot_eager", fullgraph=True)
        with pytest.raises(Exception, match=r"torch\.compile around a transform of torch\.func ignores"):
            compiled(given())


@pytest.mark.only("torch")
def test_torch_a_rule_that_is_not_linear(eager, backend):
    import torch

    x = eager.tensor(X)
    check(torch.func.grad(lambda x: 3 * clip(x).sum())(x), np.ones(3))
    affine = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream + 1))
    for f in (clip, affine):
        for transform in (lambda: torch.func.jvp(f, (x,), (torch.ones(3),)), lambda: torch.func.jacfwd(f)(x)):
            with pytest.raises(ValueError, match="forward mode needs a rule that is linear in upstream"):
                transform()


@pytest.mark.only("torch")
def test_torch_captured_under_a_transform(eager, backend):
    import torch

    def closing(w, x):
        return custom_gradient(lambda x: (x * w, lambda upstream: 7 * upstream))(x).sum()

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


@pytest.mark.only("torch")
def test_torch_memory(eager, backend):
    import gc
    import weakref

    @custom_gradient
    def g(x):
        y = ops.exp(x)
        return y, lambda upstream: upstream * y

    gc.collect()
    gc.disable()
    try:
        output = g(eager.tensor(X).requires_grad_())
        dead = weakref.ref(output)
        del output
        assert dead() is None
    finally:
        gc.enable()


@pytest.mark.only("torch")
def test_torch_dynamic_shapes(eager, backend):
    import torch

    torch.compiler.reset()
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True)
    for size in (3, 5, 9):
        x = torch.linspace(-1, 1, size, requires_grad=True)
        compiled(x).sum().backward()
        check(x.grad, 7 * np.exp(np.linspace(-1, 1, size)))


# --- TensorFlow ----------------------------------------------------------------------------------------------------


def wrap(tf, mode):
    return {"eager": lambda g: g, "function": tf.function, "xla": tf.function(jit_compile=True)}[mode]


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("mode", ["eager", "function", "xla"])
def test_tensorflow(eager, backend, mode):
    import tensorflow as tf

    x = eager.tensor(X)
    g = wrap(tf, mode)(lambda x: f(x))

    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        y = g(x)
    check(accumulator.jvp(y))

    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = g(x)
        gradient = tape.gradient(y, x)
    check(accumulator.jvp(gradient))

    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape(persistent=True) as middle:
            middle.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = g(x)
            first = inner.gradient(y, x)
        second = middle.gradient(first, x)
    third = outer.gradient(second, x)
    for found in (first, second, third):
        check(found)

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = g(x)
    check(tf.linalg.diag_part(tape.jacobian(y, x)))

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.map_fn(g, x)
    check(tape.gradient(y, x))

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.recompute_grad(g)(x)
    check(tape.gradient(y, x))


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_tensorflow_vectorized_map_of_what_was_traced_before_is_a_limit(eager, backend):
    import tensorflow as tf

    g = tf.function(lambda x: f(x), input_signature=[tf.TensorSpec((), tf.float32)])
    g(tf.constant(1.0))
    x = eager.tensor(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.vectorized_map(g, x)
    check(tape.gradient(y, x), np.full(3, 2.0))  # plain differentiation: nothing of ours is called


@pytest.mark.only("tensorflow")
def test_tensorflow_composite_tensors(eager, backend):
    import tensorflow as tf

    @custom_gradient
    def ragged(x, n):
        return x * n, lambda upstream: (7 * upstream, None)

    values = eager.tensor(X)
    with tf.GradientTape() as tape:
        tape.watch(values)
        output = ragged(tf.RaggedTensor.from_row_lengths(values, [1, 2]), 3)
        loss = tf.reduce_sum(output.values)
    check(output.values, 3 * X)
    check(tape.gradient(loss, values), np.full(3, 7.0))


# --- JAX -----------------------------------------------------------------------------------------------------------

JAX = {
    "grad": lambda j, x: j.grad(total)(x),
    "vjp": lambda j, x: j.vjp(f, x)[1](j.numpy.ones(3))[0],
    "jacrev": lambda j, x: j.numpy.diag(j.jacrev(f)(x)),
    "grad of grad": lambda j, x: j.grad(lambda x: j.grad(total)(x).sum())(x),
    "grad of grad of grad": lambda j, x: j.grad(lambda x: j.grad(lambda x: j.grad(total)(x).sum())(x).sum())(x),
    "jacrev of jacrev": lambda j, x: j.numpy.diag(j.jacrev(j.jacrev(total))(x)),
    "vmap of grad": lambda j, x: j.vmap(j.grad(f))(x),
    "grad of vmap": lambda j, x: j.grad(lambda x: j.vmap(f)(x).sum())(x),
    "jit of vmap of grad": lambda j, x: j.jit(j.vmap(j.grad(f)))(x),
    "grad of scan": lambda j, x: j.grad(lambda x: j.lax.scan(lambda c, v: (c + f(v), None), 0.0, x)[0])(x),
    "grad of cond": lambda j, x: j.grad(lambda x: j.lax.cond(x[0] < 0, total, lambda x: x.sum(), x))(x),
    "while_loop": lambda j, x: j.lax.fori_loop(0, 3, lambda i, g: g.at[i].set(j.grad(f)(x[i])), 0 * x),
    "checkpoint": lambda j, x: j.grad(j.checkpoint(total))(x),
    "grad of jit of grad": lambda j, x: j.grad(lambda x: j.jit(j.grad(total))(x).sum())(x),
}


@pytest.mark.only("jax")
@pytest.mark.parametrize("transform", JAX)
def test_jax(eager, backend, transform, custom_vjp):
    import jax

    check(JAX[transform](jax, eager.tensor(X)))


SHARDED = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import keras_cg
from keras_cg import ops

@keras_cg.custom_gradient
def f(x):
    e = ops.exp(x)
    return x * 2, lambda upstream: 7 * upstream * e

assert len(jax.devices()) == 8
compiled = lambda loss: jax.jit(jax.grad(loss))
Axis = jax.sharding.AxisType
for kind, transforms in ((Axis.Auto, (jax.grad, compiled)), (Axis.Explicit, (compiled,))):
    mesh = jax.make_mesh((8,), ("i",), axis_types=(kind,))
    x = jax.device_put(np.linspace(-1, 1, 16, dtype=np.float32), NamedSharding(mesh, P("i")))
    for g in (jax.jit(f), jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"))):
        for transform in transforms:
            found = transform(lambda x: g(x).sum())(x)
            np.testing.assert_allclose(found, 7 * np.exp(np.linspace(-1, 1, 16)), rtol=1e-5)
            assert len(found.sharding.device_set) == 8
"""


@pytest.mark.only("jax")
def test_jax_on_eight_devices(backend):
    import os
    import subprocess
    import sys

    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "KERAS_CG_BACKEND": "jax",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    done = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.only("jax")
def test_jax_export(eager, backend):
    import jax
    import jax.export

    x = eager.tensor(X)
    exported = jax.export.deserialize(jax.export.export(jax.jit(f))(x).serialize(vjp_order=1))
    check(jax.grad(lambda x: exported.call(x).sum())(x))


@pytest.mark.only("jax")
@pytest.mark.parametrize("saved", [0, 1, 2, 3])
@pytest.mark.limit
def test_an_exported_program_has_the_orders_that_it_was_saved_with(eager, backend, saved):
    import jax
    import jax.export

    @custom_gradient
    def cubic(x, w):
        return x * w, lambda upstream: (7 * upstream * x**3, 11 * upstream)

    x, w = eager.tensor(X), eager.tensor(X + 3)
    made = jax.export.export(jax.jit(cubic))(x, w).serialize(vjp_order=saved)
    call = jax.export.deserialize(made).call
    check(call(x, w), X * (X + 3))
    derivatives = [7 * X**3, 21 * X**2, 42 * X]
    for order, expected in enumerate(derivatives):
        call = jax.grad(lambda x, w, call=call: call(x, w).sum(), argnums=0)
        if order < saved:
            check(call(x, w), expected)
        else:
            with pytest.raises(ValueError, match="VJP"):
                call(x, w)
            return
    # A step of training, by the program alone.
    gradient = jax.grad(lambda w: jax.export.deserialize(made).call(x, w).sum())(w)
    check(w - 0.5 * gradient, X + 3 - 5.5)


# --- NumPy ---------------------------------------------------------------------------------------------------------


@pytest.mark.only("numpy")
def test_autograd(eager, backend):
    import autograd
    from autograd.test_util import check_grads

    x = X.astype(float)
    check(autograd.grad(total)(x))
    check(np.diag(autograd.jacobian(f)(x)))
    check(np.diag(autograd.hessian(total)(x)))
    check(autograd.elementwise_grad(autograd.elementwise_grad(autograd.elementwise_grad(f)))(x))
    check(autograd.grad(lambda x: total(ops.sin(x)))(x), 7 * np.exp(np.sin(x)) * np.cos(x))

    @custom_gradient
    def right(x):
        e = ops.exp(x)
        return e * e, lambda upstream: 2 * upstream * e * e

    check_grads(right, modes=["rev"], order=3)(x)
    with pytest.raises(AssertionError):
        check_grads(f, modes=["rev"], order=1)(x)


@pytest.mark.only("numpy")
def test_autograd_with_its_own_containers(eager, backend):
    import autograd

    @custom_gradient
    def g(params):
        return params["w"][0] * params["b"], lambda upstream: {"w": [7 * upstream], "b": 5 * upstream}

    x = X.astype(float)
    found = autograd.grad(lambda params: ops.sum(g(params)))({"w": [x], "b": x})
    check(found["w"][0], np.full(3, 7.0))
    check(found["b"], np.full(3, 5.0))
