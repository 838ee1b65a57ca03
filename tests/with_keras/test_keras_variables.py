"""Keras's variables, as arguments of decorated functions and captured: they get what the rule says, or an error.

The rules are wrong on purpose, by a factor of 7, so that plain differentiation cannot pass.
"""

import dataclasses
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import keras_cg
from with_keras.training import (
    RATE,
    SLOPE,
    UPSTREAM,
    W,
    X,
    Y,
    after,
    close,
    constant,
    dynamo_warns,
    each_mode,
    fit,
    plain,
    scale,
    trains,
)


@trains
@dynamo_warns
@each_mode
def test_a_variable_as_argument_trains(keras, times, mode):
    layer = scale(lambda self, x: times(x, self.w))
    fit([layer], mode=mode)
    close(layer.w, after(2))


@pytest.mark.thorough
@pytest.mark.only("torch")
@dynamo_warns
def test_a_variable_as_argument_trains_where_torch_compiles_all_of_a_step(keras, times, monkeypatch):
    layer = scale(lambda self, x: times(x, self.w))
    fit([layer], mode="jit", whole=monkeypatch)
    close(layer.w, after(2))


@dataclasses.dataclass
class Parts:
    w: object
    others: list


@trains
def test_variables_in_nests_train_but_for_the_frozen(keras):
    ops = keras.ops

    @keras_cg.custom_gradient
    def affine(x, parts, *, more):
        w, (c,), b = parts["box"].w, parts["box"].others, more["b"]

        def grad(upstream):
            slope = 7 * ops.sum(upstream * x, axis=0) * w
            return upstream, {"box": Parts(slope, [slope]), "text": None}, {"b": ops.sum(upstream, axis=0) * 7}

        return x * w * c + b, grad

    layer = scale(lambda self, x: affine(x, {"box": Parts(self.w, [self.c]), "text": "abc"}, more={"b": layer.b}))
    layer.b = layer.add_weight(shape=(2,), initializer="zeros")
    fit([layer])
    close(layer.w, after(2))
    close(layer.b, -2 * RATE * 7 * UPSTREAM.sum(0))
    close(layer.c, [1, 1])


@trains
@pytest.mark.parametrize(("half", "is_global"), [("float16", True), ("bfloat16", False)])
def test_a_variable_under_mixed_precision_trains(keras, times, half, is_global):
    seen = []

    def call(self, x):
        output = times(x, self.w)
        seen.append(keras.backend.standardize_dtype(output.dtype))
        return output

    policy = f"mixed_{half}"
    if is_global:
        keras.config.set_dtype_policy(policy)
    layer = scale(call, **({} if is_global else {"dtype": policy}))
    # The scale that Keras starts with overflows here, and the step would be skipped.
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), initial_scale=64)
    fit([layer], optimizer=scaled if is_global else None, auto_scale_loss=False)
    assert set(seen) == {half}
    assert layer.w.dtype == "float32"
    close(layer.w, after(2), rtol=1e-2)


@trains
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_a_stateless_scope(keras, eager, times, policy):
    layer = scale(lambda self, x: times(x, self.w), dtype=policy)
    layer.build(X.shape)
    upstream = keras.ops.convert_to_tensor(UPSTREAM, layer.compute_dtype)

    def call(w, x):
        with keras.StatelessScope(state_mapping=[(layer.w, w)]):
            return layer(x) * upstream

    output, (gw, gx) = eager.differentiate(call, (3 * W).astype("float32"), X.astype("float32"))
    # The gradient of a variable has its dtype, whatever the layer computes in.
    assert (output.dtype, gw.dtype) == (layer.compute_dtype, "float32")
    rtol = 1e-5 if policy == "float32" else 1e-2
    np.testing.assert_allclose(output, X * 3 * W * UPSTREAM, rtol=rtol)
    np.testing.assert_allclose(gw, 7 * SLOPE * 3 * W, rtol=rtol)
    np.testing.assert_allclose(gx, 7 * UPSTREAM, rtol=rtol)
    close(layer.w, W)


def test_a_variable_given_to_keras_cg_grad(keras, times):
    w = keras.Variable(W.astype("float32"))
    x = keras.ops.convert_to_tensor(X.astype("float32"))
    close(keras_cg.grad(lambda w: keras.ops.sum(times(x, w)))(w), 7 * X.sum(0) * W)


@trains
def test_a_penalty_on_the_gradient(keras):
    ops = keras.ops

    @keras_cg.custom_gradient
    def squares(x, w):
        def grad(upstream):
            return 7 * upstream * w * x, 7 * ops.sum(upstream * x, axis=0) * w

        return x**2 * w, grad

    layer = scale(lambda self, x: squares(x, self.w))
    layer.build(X.shape)
    x, y, w, c = (ops.convert_to_tensor(np.asarray(each), "float32") for each in (X, UPSTREAM, W, [1, 1]))

    def loss(w):
        output = lambda x: layer.stateless_call([w], [c], x)[0]
        slope = keras_cg.grad(lambda x: ops.sum(output(x)))(x)
        return ops.sum(y * output(x)) + ops.sum(slope**2)

    # The penalty is the sum of (7 w x)^2, as the rule computed it.
    close(keras_cg.grad(loss)(w), 7 * SLOPE * W + 98 * W * (X**2).sum(0))


# --- captured --------------------------------------------------------------------------------------------------------


def captured(rule):
    """A layer whose function reads its variables by itself."""

    def call(self, x):
        @keras_cg.custom_gradient
        def reads(x):
            return x * self.w * self.c, rule(x)

        return reads(x)

    return scale(call)


def serving(x):
    from keras import ops

    def grad(upstream, *, variables=None):
        if variables is None:
            return 7 * upstream
        return 7 * upstream, [7 * ops.cast(ops.sum(upstream * x, axis=0), v.dtype) * v for v in variables]

    return grad


@trains
@dynamo_warns
@pytest.mark.parametrize(("mode", "policy"), [("eager", "float32"), ("default", "mixed_bfloat16"), ("jit", "float32")])
def test_a_captured_variable_trains(keras, mode, policy):
    keras.config.set_dtype_policy(policy)
    layer = captured(serving)
    fit([layer], mode=mode)
    close(layer.w, after(2), rtol=1e-5 if policy == "float32" else 2e-2)
    close(layer.c, [1, 1])


@trains
@dynamo_warns
@each_mode
def test_a_captured_variable_that_the_rule_does_not_serve(keras, mode):
    layer = captured(lambda x: lambda upstream: 7 * upstream)
    with pytest.raises(
        Exception, match=r"(?s)reads 1 trainable value that is not among.*the rule a `variables` parameter"
    ):
        fit([layer], mode=mode)


@trains
@pytest.mark.parametrize("mode", ["default", "jit"])
@dynamo_warns
def test_a_frozen_captured_variable_is_a_constant(keras, mode):
    @keras_cg.custom_gradient
    def reads(x):
        return x * layer.c, lambda upstream: 7 * upstream

    layer = scale(lambda self, x: reads(x * self.w))
    fit([layer], mode=mode)
    close(layer.w, W - 2 * RATE * 7 * SLOPE)
    close(layer.c, [1, 1])


@pytest.mark.limit
def test_a_variable_that_is_assigned_before_the_backward_pass(backend, keras):
    """A rule reads what the variable holds when it runs; a copy that the function made, it reads as it was."""
    temperature = keras.Variable(2.0, trainable=False)

    @keras_cg.custom_gradient
    def reads(x):
        return x * temperature.value, lambda upstream: 7 * upstream * temperature.value

    @keras_cg.custom_gradient
    def copies(x):
        value = temperature + 0
        return x * value, lambda upstream: 7 * upstream * value

    for f, expected in ((reads, 7 * 100), (copies, 7 * 2)):

        def loss(x, f=f):
            temperature.assign(2.0)
            y = f(x)
            temperature.assign(100.0)
            return y

        value, gradient = keras_cg.value_and_grad(loss)(np.float32(3))
        assert (float(value), float(gradient)) == (6, expected)


@trains
@pytest.mark.parametrize("rule", [serving, lambda x: lambda upstream: 7 * upstream], ids=["serving", "not serving"])
@pytest.mark.limit
def test_a_captured_variable_that_is_frozen_later(keras, backend, rule):
    first, layer = plain(), captured(rule)
    layer.build((None, 2))
    layer.trainable = False
    if backend == "tensorflow" and rule is not serving:
        # Its own variable stays trainable, and every tape watches it.
        with pytest.raises(keras_cg.CapturedVariableError, match="reads 1 trainable value"):
            fit([first, layer])
        return
    fit([first, layer])
    close(first.w, W - 2 * RATE * 7 * SLOPE)
    close(layer.w, W)


TRANSFORMS = {
    "grad": lambda jax, h, at: jax.grad(h, at),
    "jit(grad)": lambda jax, h, at: jax.jit(jax.grad(h, at)),
    "grad(jit)": lambda jax, h, at: jax.grad(jax.jit(h), at),
}


@pytest.mark.only("jax")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_captured_variable_in_a_transform_of_jax(keras, transform):
    import jax

    variable, frozen = keras.Variable([3.0, 4.0]), keras.Variable([5.0, 6.0], trainable=False)
    x = np.array([1.0, 2.0], np.float32)

    def gradients(rule, at):
        function = keras_cg.custom_gradient(lambda x: (x * variable * frozen, rule))

        def loss(value, x):
            with keras.StatelessScope(state_mapping=[(variable, value)]):
                return function(x).sum()

        return TRANSFORMS[transform](jax, loss, at)(variable.value, x)

    of_variable, of_x = gradients(
        lambda upstream, variables=None: (7 * upstream, [5 * upstream * x for _ in variables]), (0, 1)
    )
    close(of_variable, 5 * x)
    close(of_x, [7.0, 7.0])
    with pytest.raises(keras_cg.CapturedVariableError, match="reads 1 trainable value"):
        gradients(lambda upstream: 7 * upstream, 0)
    close(gradients(lambda upstream: 7 * upstream, 1), [7.0, 7.0])


# --- several devices -------------------------------------------------------------------------------------------------


DEVICES = 8

KERNEL = np.linspace(-1, 1, 16).reshape(2, 8)


def distributed():
    """Trains a kernel of 8 columns that is spread over the devices; in a process of its own, as JAX needs it."""
    import jax
    import keras

    distribution = keras.distribution
    devices = distribution.list_devices()
    assert len(devices) == DEVICES
    layout = distribution.LayoutMap(distribution.DeviceMesh((2, 4), ["batch", "model"], devices))
    layout[".*kernel"] = (None, "model")
    distribution.set_distribution(
        distribution.ModelParallel(layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False)
    )
    ops = keras.ops

    @keras_cg.custom_gradient
    def matmul(x, kernel):
        def grad(upstream, *, variables=None):
            pulled = ops.matmul(upstream, ops.transpose(kernel)), 7 * ops.matmul(ops.transpose(x), upstream)
            return pulled if variables is None else (pulled, [ops.sum(upstream, axis=0) for _ in variables])

        return ops.matmul(x, kernel) + layer.bias, grad

    class Matmul(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(2, 8), initializer=constant(KERNEL), name="kernel")
            self.bias = self.add_weight(shape=(8,), initializer="zeros", name="bias")

        def call(self, x):
            return matmul(x, self.kernel)

    layer = Matmul()
    x, y = np.tile(X, (2, 1)), np.tile(Y, (2, 4))
    fit([layer], x=x, y=y)
    upstream = y / y.size
    close(layer.kernel, KERNEL - 2 * RATE * 7 * x.T @ upstream)
    close(layer.bias, -2 * RATE * upstream.sum(0))
    sharding = layer.kernel.value.sharding
    assert isinstance(layer.kernel.value, jax.Array)
    assert len(sharding.device_set) == DEVICES and sharding.shard_shape((2, 8)) == (2, 2)


@pytest.mark.only("jax")
def test_variables_on_several_devices(backend):
    flags = f"--xla_force_host_platform_device_count={DEVICES}"
    here = str(pathlib.Path(__file__).parents[1])
    environment = {**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    code = "import with_keras.test_keras_variables as here; here.distributed()"
    done = subprocess.run([sys.executable, "-c", code], cwd=here, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
