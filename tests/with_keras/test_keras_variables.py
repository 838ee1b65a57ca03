"""Keras's variables, as arguments of decorated functions and captured: they get what the rule says, or an error.

The rules are wrong on purpose, by a factor of 7, so that plain differentiation cannot pass.
"""

import dataclasses
import re

import numpy as np
import pytest
from wrong_rules import compiler

import keras_cg
from with_keras.training import (
    RATE,
    SLOPE,
    UPSTREAM,
    W,
    X,
    after,
    close,
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


# --- captured --------------------------------------------------------------------------------------------------------


def captured(rule):
    """A layer whose function reads its variables by itself."""

    def call(self, x):
        reads = keras_cg.custom_gradient(lambda x: (x * self.w * self.c, rule(x)))
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
    text = r"(?s)reads 1 trainable value that is not among its arguments: (\S+).*the rule a `variables` parameter"
    with pytest.raises(Exception, match=text) as caught:
        fit([layer], mode=mode)
    if mode == "eager":
        assert re.search(text, str(caught.value))[1] == "self.w"


@trains
@each_mode
@dynamo_warns
def test_a_frozen_captured_variable_is_a_constant(keras, mode):
    reads = keras_cg.custom_gradient(lambda x: (x * layer.c, lambda upstream: 7 * upstream * layer.c))
    layer = scale(lambda self, x: reads(x * self.w))
    fit([layer], mode=mode)
    close(layer.w, W - 2 * RATE * 7 * SLOPE)
    close(layer.c, [1, 1])


def test_a_rule_reads_the_values_of_the_scope_of_its_call(keras, eager):
    frozen = keras.Variable(2.0, trainable=False)
    reads = keras_cg.custom_gradient(lambda x: (x * frozen, lambda upstream: 7 * upstream * frozen))

    def call(x):
        with keras.StatelessScope([(frozen, keras.ops.convert_to_tensor(5.0))]):
            return reads(x)

    output, (gradient,) = eager.differentiate(call, np.float32(3))
    assert (float(output), float(gradient)) == (15, 7 * 5)
    close(frozen, 2)


@pytest.mark.parametrize("is_jit", [False, True])
def test_a_rule_reads_what_its_function_wrote_in_a_scope(keras, backend, is_jit):
    counter = keras.Variable(2.0, trainable=False)

    @keras_cg.custom_gradient
    def counts(x):
        counter.assign(counter + 1)
        return x * counter, lambda upstream: 7 * upstream * counter

    def call(x):
        with keras.StatelessScope([(counter, keras.ops.convert_to_tensor(5.0))]):
            return counts(x) + 10 * counts(x)

    gradient = keras_cg.grad(call)
    if is_jit and backend in ("jax", "tensorflow"):
        gradient = compiler(backend)(gradient)
    close(gradient(np.float32(3)), 7 * (6 + 10 * 7))
    close(counter, 2)


def test_a_rule_that_changes_a_variable_after_the_scope_of_its_call(keras):
    counter = keras.Variable(2.0, trainable=False)

    @keras_cg.custom_gradient
    def counts(x):
        def grad(upstream):
            counter.assign(counter + 1)
            return 7 * upstream

        return x * 1, grad

    def call(x):
        with keras.StatelessScope():
            return counts(x)

    with pytest.raises(RuntimeError, match=r"(?s)rule of .*counts changes a variable of Keras.*assign.*close over"):
        keras_cg.grad(call)(np.float32(3))
    close(counter, 2)


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


@pytest.mark.only("jax")
@pytest.mark.parametrize("does", ["adds a loss to a layer", "creates a variable"])
def test_what_would_get_lost_where_a_function_is_traced(keras, backend, does):
    """JAX traces even the first run of a function that closes over what is differentiated."""
    layer = keras.layers.Dense(3, activity_regularizer="l2" if does == "adds a loss to a layer" else None)
    if does == "adds a loss to a layer":
        layer.build((2, 3))

    def loss(w, x):
        def rule(upstream, variables=()):
            return 7 * upstream, [0] * len(variables)

        return keras_cg.ops.sum(keras_cg.custom_gradient(lambda x: (layer(x) * w, rule))(x))

    with pytest.raises(RuntimeError, match=rf"{does} of Keras.* whenever it runs, and needs to run again"):
        keras_cg.grad(loss)(np.float32(2), np.ones((2, 3), np.float32))


@pytest.mark.only("numpy")
def test_a_rule_that_closes_over_a_pullback(keras, backend):
    """Another run is in a scope of Keras, so the function inside takes the road of pytrees there."""
    cubed = keras_cg.custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * x**3))

    @keras_cg.custom_gradient
    def kept(x):
        _, pullback = keras_cg.vjp(cubed, x)
        return x * 1, lambda upstream: pullback(upstream)[0]

    x = np.array([1.0, 2.0])
    loss = lambda f: lambda x: keras_cg.ops.sum(f(x))
    close(keras_cg.grad(loss(keras_cg.grad(loss(kept))))(x), 21 * x**2)
