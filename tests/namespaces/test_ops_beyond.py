"""`sigmoid`, `softmax` and others of `keras_cg.ops` by closed forms; `sum_to`; names that a framework has elsewhere."""

import functools
import importlib
import math

import numpy as np
import pytest
from ops_cases import TENSORFLOW, plain, tensor

import keras_cg
from keras_cg import grad, ops
from keras_cg.frontend import config

INF = math.inf
X = np.array([-INF, -1e4, -40, -1.5, 0, 0.75, 25, 1e4, INF])


def logistic(x):
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


bell = lambda x: 2 / math.sqrt(math.pi) * np.exp(-(np.clip(x, -30, 30) ** 2))
bend = lambda x: logistic(x) * logistic(-x)


# Each with its first and second derivative.
ELEMENTWISE = {
    "sigmoid": (logistic, bend, lambda x: bend(x) * (logistic(-x) - logistic(x))),
    "relu": (lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0), np.zeros_like),
    "erf": (np.vectorize(math.erf), bell, lambda x: -2 * np.clip(x, -30, 30) * bell(x)),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_function_and_its_derivatives(backend, name):
    function = getattr(ops, name)
    with config.active.double_precision():
        for order, expected in enumerate(ELEMENTWISE[name]):
            found = plain(function(tensor(X)))
            # Frameworks compute 1 - y, with the rounding of 1; to `erf` the smallest derivatives matter as well.
            allowed = 0 if name == "erf" else 1e-15
            np.testing.assert_allclose(found, expected(X), rtol=1e-12, atol=allowed, err_msg=f"order {order}")
            assert np.isnan(plain(getattr(ops, name)(tensor([math.nan])))).all()
            function = grad(function)
        if name != "relu":
            assert np.isnan(plain(grad(getattr(ops, name))(tensor([math.nan])))).all()


ROWS = np.array([[1e4, 0.5, -INF], [0.25, -1.5, -1e4], [1e4, 2.0, 1.0]])
WEIGHTS = np.array([[1.0, -2.0, 3.0], [0.5, 2.0, 1.0], [-1.0, 1.0, 0.5]])


def reference(name, axis):
    """The function, and the gradient and the product of the Hessian with `WEIGHTS` of its weighted sum."""
    e = np.exp(ROWS - ROWS.max(axis, keepdims=True))
    p = e / e.sum(axis, keepdims=True)
    total = np.log(e.sum(axis, keepdims=True)) + ROWS.max(axis, keepdims=True)

    def slope(w):  # the derivative of the sum of `p w`, a product with the derivative of p
        return p * (w - (p * w).sum(axis, keepdims=True))

    curved = slope(WEIGHTS)
    mean = (p * WEIGHTS).sum(axis, keepdims=True)
    if name == "softmax":
        return p, curved, curved * (WEIGHTS - mean) - p * (curved * WEIGHTS).sum(axis, keepdims=True)
    weight = WEIGHTS.sum(axis, keepdims=True)
    return ROWS - total, WEIGHTS - p * weight, -weight * curved


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_a_function_along_an_axis_and_its_derivatives(backend, name, axis):
    function = functools.partial(getattr(ops, name), axis=axis)
    with config.active.double_precision():
        rows, weights = tensor(ROWS), tensor(WEIGHTS)

        def gradient(x):
            return keras_cg.vjp(function, x)[1](weights)[0]

        _, pullback = keras_cg.vjp(gradient, rows)
        found = function(rows), gradient(rows), pullback(weights)[0]
        for order, (came, expected) in enumerate(zip(found, reference(name, axis), strict=True)):
            np.testing.assert_allclose(plain(came), expected, rtol=1e-12, atol=1e-15, err_msg=f"order {order}")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy
def test_where_nothing_is_defined(backend):
    """Infinity minus infinity, as in each framework, and as the docstrings say."""
    for row in ([INF, 0.0], [-INF, -INF]):
        x = tensor(row)
        assert np.isnan([plain(ops.softmax(x)), plain(ops.log_softmax(x))]).all()


FUNCTIONS = ["erf", "relu", "sigmoid", "log_softmax", "softmax"]


def weighted(name, x, weights):
    return ops.sum(getattr(ops, name)(x) * weights)


def test_in_every_mode(frame):
    def of_all(*xs):
        weights = frame.tensor(WEIGHTS.astype("float32"))
        return sum(weighted(name, x, weights) for name, x in zip(FUNCTIONS, xs, strict=True))

    for name, found in zip(FUNCTIONS, frame.gradients(of_all, *[ROWS.astype("float32")] * len(FUNCTIONS)), strict=True):
        expected = WEIGHTS * ELEMENTWISE[name][1](ROWS) if name in ELEMENTWISE else reference(name, -1)[1]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.only("torch", "tensorflow")  # on JAX they are JAX's own
def test_in_a_batch(backend):
    each = lambda x: ops.stack([weighted(name, x, x) for name in FUNCTIONS])
    rows = tensor(ROWS[:, :2])
    found = importlib.import_module(f"frameworks.{backend}").batched(each, rows)
    np.testing.assert_allclose(plain(found), [plain(each(row)) for row in rows], rtol=1e-5)


@pytest.mark.only("numpy")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_forward_mode_of_autograd(backend, name):
    push = importlib.import_module("autograd").make_jvp(getattr(ops, name))
    np.testing.assert_allclose(push(X)(np.full(X.shape, 2.0))[1], 2 * ELEMENTWISE[name][1](X), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "uint8"])
def test_dtypes(backend, dtype):
    if (backend, dtype) == ("numpy", "bfloat16"):
        return  # NumPy has none
    x = config.active.cast(tensor([1.0, 0.0, 2.0], "float32"), dtype)
    # A softmax rounds three times, each time by half the step of its dtype: exp, sum and division.
    tolerance = {"float16": 2**-10, "bfloat16": 2**-7}.get(dtype, 2**-22) * 3 / 2
    for name in FUNCTIONS:
        found = getattr(ops, name)(x)
        is_kept = name == "relu" or "float" in dtype
        assert config.active.dtype(found) == (dtype if is_kept else config.active.dtype(ops.asarray(1.0))), name
        expected = plain(getattr(ops, name)(tensor([1.0, 0.0, 2.0])))
        np.testing.assert_allclose(plain(config.active.cast(found, "float32")), expected, rtol=tolerance, err_msg=name)
    assert [round(float(getattr(ops, name)(2)), 3) for name in FUNCTIONS[:3]] == [0.995, 2, 0.881]


# --- sum_to --------------------------------------------------------------------------------------

WHOLE = np.arange(24.0).reshape(2, 3, 4) - 7


@pytest.mark.parametrize("shape", [(), (4,), (1, 4), (3, 1), (2, 3, 4), (2, 1, 1), (1, 1, 1)])
def test_sum_to(backend, shape):
    found = plain(ops.sum_to(tensor(WHOLE), tensor(np.zeros(shape))))
    aligned = (1,) * (3 - len(shape)) + shape
    axes = tuple(axis for axis in range(3) if aligned[axis] == 1)
    np.testing.assert_array_equal(found, WHOLE.sum(axes, keepdims=True).reshape(shape))
    assert plain(ops.sum_to(tensor(WHOLE), 2)) == WHOLE.sum() and plain(ops.sum_to(3.0, like=1.0)) == 3


def test_sum_to_in_a_rule(frame):
    """A rule that is wrong on purpose, for arguments that are broadcast in either direction."""

    @keras_cg.custom_gradient
    def seven(x, w):
        return x * w, lambda upstream: (ops.sum_to(7 * upstream * w, x), ops.sum_to(5 * upstream * x, like=w))

    x, w = np.array([[1.0], [2.0]], np.float32), np.array([3.0, 4.0, 5.0], np.float32)
    frame.check(seven, [x, w], [[[84], [84]], [15, 15, 15]])
    if frame.mode == "eager":
        second = grad(lambda x: ops.sum(grad(seven, 1)(x, frame.tensor(w)) ** 2))(frame.tensor(x))
        np.testing.assert_allclose(frame.array(second), np.full((2, 1), 3 * 2 * 5 * 15))


def test_what_cannot_be_summed(backend):
    for shape in ((3,), (2, 3, 4, 1), (2, 3, 3), (0,)):
        with pytest.raises(ValueError, match="sum_to") as caught:
            ops.sum_to(tensor(WHOLE, "float32"), tensor(np.zeros(shape), "float32"))
    assert str(caught.value).splitlines() == [
        "keras_cg.ops: `sum_to` cannot sum the gradient to the shape of like.",
        "    got: float32[2, 3, 4]",
        "    expected: float32[0]",
        "    usual cause: an argument that was not broadcast to that shape, or arguments in the wrong order.",
        "    remedy: pass the gradient first. Each axis of like, from the last on, has the same length or 1.",
    ]
    for args, argument in (((WHOLE.shape, 1.0), "gradient"), ((1.0, WHOLE.shape), "like")):
        with pytest.raises(TypeError) as caught:
            ops.sum_to(*args)
        assert str(caught.value).splitlines()[0] == (
            f"keras_cg.ops: {argument} of `sum_to` is a tuple, and not a tensor or a number."
        )


@TENSORFLOW
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("specs", [([None, 3], [None, 3]), ([None, None], [None]), (None, None), ([2, 3], [None, 1])])
def test_sum_to_unknown_sizes(tf, specs, jit):
    signature = [tf.TensorSpec(spec, tf.float32) for spec in specs]
    summed = tf.function(ops.sum_to, input_signature=signature, jit_compile=jit)
    for shape in ((2, 3), (1, 3), (3,), (2, 1), ()):
        if signature[1].shape.is_compatible_with(shape):
            found = summed(tf.ones((2, 3)), tf.zeros(shape)).numpy()
            np.testing.assert_array_equal(found, np.full(shape, 6 / math.prod(shape)))
    if specs == (None, None):
        for gradient, like in (((2, 3), (3, 2)), ((1, 1), (2, 3)), ((2, 3), (2,)), ((3,), (1, 3, 1))):
            with pytest.raises(tf.errors.InvalidArgumentError):
                summed(tf.ones(gradient), tf.zeros(like))


# --- names ---------------------------------------------------------------------------------------


ELSEWHERE = {
    "jax": {"gelu": "jax.nn.gelu", "det": "jax.numpy.linalg.det"},
    "torch": {"elu": "torch.nn.functional.elu", "hfft": "torch.fft.hfft"},
    "tensorflow": {
        "betainc": "tf.math.betainc",
        "fft": "tf.signal.fft",
        "det": "tf.linalg.det",
        "cumulative_prod": "tf.math.cumprod",
        "unique_values": "tf.unique",
        "searchsorted": "tf.searchsorted",
        "bitwise_invert": "tf.bitwise.invert",
    },
    "numpy": {"betainc": "autograd.scipy.special.betainc", "det": "autograd.numpy.linalg.det"},
}


def test_a_name_that_the_framework_has_elsewhere(backend):
    for name, place in ELSEWHERE[backend].items():
        with pytest.raises(AttributeError) as caught:
            getattr(ops, name)
        assert str(caught.value).splitlines()[0] == (
            f"keras_cg.ops has no '{name}'. The backend is '{backend}', whose framework has it: {place}."
        )
        function = importlib.import_module({"tf": "tensorflow"}.get(place.partition(".")[0], place.partition(".")[0]))
        for step in place.split(".")[1:]:
            function = getattr(function, step)
        assert callable(function)
    with pytest.raises(AttributeError, match=r"Did you mean 'softmax'\?"):
        getattr(ops, "soft_max")  # noqa: B009
    with pytest.raises(AttributeError, match=r"has no 'softplus', which is a recipe: keras_cg\.recipes\.log1pexp\."):
        getattr(ops, "softplus")  # noqa: B009


@pytest.mark.only("jax", "tensorflow", "numpy")  # torch has one of its own
def test_a_function_that_is_in_linalg(backend):
    with pytest.raises(AttributeError, match=r"Did you mean 'linalg.solve'\?"):
        getattr(ops, "solve")  # noqa: B009 - JAX has it in jax.scipy, and every backend in `linalg`
