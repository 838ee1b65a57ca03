"""`keras_cg.ops`: the active backend's namespace, and the examples of Keras's documentation, verbatim."""

import numpy as np
import pytest

import keras_cg
from keras_cg import grad, ops

pytestmark = pytest.mark.together

NAMESPACES = {
    "jax": "jax.numpy",
    "torch": "array_api_compat.torch",
    "tensorflow": "tensorflow.experimental.numpy",
    "numpy": "autograd.numpy",
}


def test_it_is_the_frameworks_own(backend):
    import importlib

    if backend == "tensorflow":
        import tensorflow as tf

        namespace = tf.experimental.numpy
    else:
        namespace = importlib.import_module(NAMESPACES[backend])
    for name in ("exp", "sum", "matmul", "where", "reshape"):
        assert getattr(ops, name) is getattr(namespace, name)
    assert ops.custom_gradient is keras_cg.custom_gradient
    assert {"exp", "custom_gradient"} <= set(dir(ops))


@pytest.mark.side_by_side
def test_it_is_looked_up_at_every_access(backends):
    found = []
    for name in backends:
        with keras_cg.use_backend(name):
            found.append(ops.exp)
    assert len({id(each) for each in found}) == len(backends)


def test_a_name_that_it_lacks(backend):
    with pytest.raises(AttributeError) as caught:
        _ = ops.no_such_function
    assert f"while the backend is {backend!r}, and it has no 'no_such_function'" in str(caught.value)
    assert not hasattr(ops, "__wrapped__")


# The three examples in the docstring of keras.ops.custom_gradient.


def backend_agnostic():
    @ops.custom_gradient
    def log1pexp(x):
        e = ops.exp(x)

        def grad(*args, upstream=None):
            if upstream is None:
                (upstream,) = args
            return ops.multiply(upstream, 1.0 - 1.0 / ops.add(1, e))

        return ops.log(1 + e), grad

    return log1pexp


def jax_and_tensorflow_specific():
    @ops.custom_gradient
    def log1pexp(x):
        e = ops.exp(x)

        def grad(upstream):
            return ops.multiply(upstream, 1.0 - 1.0 / ops.add(1, e))

        return ops.log(1 + e), grad

    return log1pexp


def torch_specific():
    @ops.custom_gradient
    def log1pexp(x):
        e = ops.exp(x)

        def grad(*args, upstream):
            return ops.multiply(upstream, 1.0 - 1.0 / ops.add(1, e))

        return ops.log(1 + e), grad

    return log1pexp


# The overflow, and the NaN that plain differentiation makes of it, are the point of the example.
@pytest.mark.inductor
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("example", [backend_agnostic, jax_and_tensorflow_specific, torch_specific])
def test_the_examples_of_keras(frame, example):
    log1pexp = example()
    x = np.array([-2.0, 0.5, 100.0], np.float32)
    output, (gx,) = frame.differentiate(lambda x: log1pexp(x), x)
    np.testing.assert_allclose(output[:2], np.log1p(np.exp(x[:2])), rtol=1e-5)
    np.testing.assert_allclose(gx, 1 / (1 + np.exp(-x.astype(float))), rtol=1e-5)
    # Plain differentiation is NaN at 100: the gradient above is the rule's.
    (plain,) = frame.gradients(lambda x: ops.log(1 + ops.exp(x)), x)
    assert np.isnan(plain[2])


def test_the_second_derivative_of_the_example(backend):
    sigmoid = 1 / (1 + np.exp(-0.5))
    for example in (backend_agnostic, jax_and_tensorflow_specific, torch_specific):
        assert float(grad(grad(example()))(0.5)) == pytest.approx(sigmoid * (1 - sigmoid), rel=1e-5)
