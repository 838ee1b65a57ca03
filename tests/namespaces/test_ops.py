"""`keras_cg.ops`: what it has, takes and differentiates."""

import functools
import importlib
import math
import sys

import array_api_strict
import numpy as np
import pytest
from standard import everyday

import keras_cg
from keras_cg import grad, ops
from keras_cg.frontend import config
from keras_cg.namespaces import standard

NAMESPACES = {
    "jax": "jax.numpy",
    "torch": "array_api_compat.torch",
    "tensorflow": "tensorflow.experimental.numpy",
    "numpy": "autograd.numpy",
}
# What the framework's own namespace has as the standard has it, or beside it.
OWN = {
    "jax": ("exp", "sum", "where", "einsum", "maximum"),
    "torch": ("einsum", "tanh_", "outer"),
    "tensorflow": ("max", "einsum", "isclose"),
    "numpy": ("exp", "add", "matmul", "einsum", "maximum"),
}


@pytest.mark.together
def test_it_is_the_frameworks_own(backend):
    if backend == "tensorflow":
        import tensorflow as tf

        namespace = tf.experimental.numpy
    else:
        namespace = importlib.import_module(NAMESPACES[backend])
    for name in OWN[backend]:
        assert getattr(ops, name) is getattr(namespace, name)
    assert ops.custom_gradient is keras_cg.custom_gradient
    assert {"exp", "custom_gradient", "stop_gradient", "linalg"} <= set(dir(ops))


@pytest.mark.side_by_side
def test_it_is_looked_up_at_every_access(backends):
    found = []
    for name in backends:
        with keras_cg.use_backend(name):
            found.append(ops.exp)
    assert len({id(each) for each in found}) == len(backends)


@pytest.mark.together
def test_a_name_that_it_lacks(backend):
    with pytest.raises(AttributeError) as caught:
        _ = ops.permute_dimz
    headline, cause, remedy = str(caught.value).splitlines()
    assert headline == (
        f"keras_cg.ops has no 'permute_dimz' while the backend is {backend!r}. Did you mean 'permute_dims'?"
    )
    assert cause == "    usual cause: a typo."
    assert remedy == (
        "    remedy: use a function of the array API standard, which every backend has;"
        " dir(keras_cg.ops) lists all names."
    )
    assert not hasattr(ops, "__wrapped__")


@pytest.mark.only("numpy", "torch", "tensorflow")
@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_a_cumulative_function_needs_an_axis(backend, name):
    with pytest.raises(ValueError, match=f"`{name}`.* need an axis for a tensor with 2 dimensions"):
        getattr(ops, name)(ops.ones((2, 3)))


@pytest.mark.only("numpy")
@pytest.mark.limit
def test_what_a_framework_has_no_means_for(backend):
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(NotImplementedError) as caught:
        grad(lambda x: ops.linalg.qr(x).R)(x)
    headline, cause, remedy = str(caught.value).splitlines()
    assert headline == "keras_cg.ops: `linalg.qr` has no gradient on the backend 'numpy'."
    assert cause == "    usual cause: the framework has no such function, or its function has no gradient."
    assert remedy == "    remedy: use `linalg.cholesky` of the matrix times its transpose, or `linalg.svd`."
    for fun in (lambda x: ops.linalg.svd(x[:1]).U, lambda x: ops.nextafter(x, x)):
        with pytest.raises(NotImplementedError, match="on the backend 'numpy'"):
            grad(fun)(x)


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_what_a_graph_must_know(tf):
    for function in (lambda x: ops.unstack(x)[0], ops.cumulative_prod):
        traced = tf.function(function, input_signature=[tf.TensorSpec([None])])
        with pytest.raises(NotImplementedError, match="needs an axis whose size is known on the backend 'tensorflow'"):
            traced(tf.ones(3))


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_xla_has_no_determinants(tf):
    for function in (ops.linalg.det, lambda x: ops.linalg.slogdet(x).logabsdet):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Determinant"):
            tf.function(function, jit_compile=True)(tf.eye(2))


@pytest.mark.only("tensorflow")
def test_autograph_leaves_them_as_they_are(tf, monkeypatch):
    from keras_cg.namespaces.tensorflow import elementwise

    files = []

    def note(x):
        files.append(sys._getframe(1).f_code.co_filename)
        return x

    monkeypatch.setattr(elementwise, "tensor", note)
    tf.function(lambda x: elementwise.ceil(elementwise.sign(x)))(tf.constant([1.5]))
    assert files == [elementwise.__file__] * 2


# --- what is taken, and what dtype comes ---------------------------------------------------------

NUMBERS = {"acosh": 1.5, "real": 1j, "imag": 1j}


def test_numbers_are_taken_for_tensors(backend):
    functions = [line.partition("(")[0] for line in standard.SECTIONS["Elementwise"]]
    reductions = ("sum", "prod", "max", "min", "mean", "std", "var", "all", "any", "count_nonzero")
    for name in (*functions, *reductions, "ones_like", "astype"):
        kind = 1 if name.startswith("bitwise") else True if name.startswith("logical") else 0.5
        number = NUMBERS.get(name, kind)
        count = 2 if f"{name}(x1" in standard.FUNCTIONS[name] else 1
        more = ["float32"] if name == "astype" else []
        taken = getattr(ops, name)(*[number] * count, *more)
        made = getattr(ops, name)(*[ops.asarray(number)] * count, *more)
        np.testing.assert_array_equal(*map(config.active.to_numpy, map(config.active.asarray, (taken, made))), name)


@pytest.mark.parametrize("name", ["float32", "int32", "complex64", "bool", "uint8"])
def test_dtypes_by_name_and_as_objects(backend, name):
    x = ops.ones((2, 3), dtype="float32")
    for dtype in (name, getattr(ops, name)):
        made = [ops.zeros((2,), dtype=dtype), ops.zeros((2,), dtype), ops.full((2,), 1, dtype=dtype)]
        made += [ops.eye(2, dtype=dtype), ops.zeros_like(x, dtype=dtype), ops.asarray([1, 0], dtype=dtype)]
        made.append(ops.astype(x, dtype))
        assert {config.active.dtype(each) for each in made} == {name}
        assert ops.isdtype(dtype, name) and ops.can_cast(dtype, name) and not ops.isdtype(dtype, "float64")


def test_what_numpy_takes_by_position(backend):
    x = ops.reshape(ops.arange(6, dtype="float32"), (2, 3))
    calls = {
        "sum": (x, 0),
        "max": (x, 1),
        "mean": (x, 0),
        "stack": ([x, x], -1),
        "flip": (x, 0),
        "sort": (x, 0),
        "roll": (x, 1, 1),
        "repeat": (x, 2, 1),
        "take": (x, ops.asarray([1, 0]), 1),
        "expand_dims": (x, 0),
        "tril": (x, 1),
        "reshape": (x, -1),
        "tile": (x, 2),
        "ones": (3, "float32"),
    }
    for name, args in calls.items():
        arrays = [config.active.to_numpy(arg) if config.active.is_tensor(arg) else arg for arg in args]
        arrays[0] = list(map(config.active.to_numpy, args[0])) if isinstance(args[0], list) else arrays[0]
        due = getattr(np, name)(*arrays)
        np.testing.assert_array_equal(config.active.to_numpy(getattr(ops, name)(*args)), due, name)


def test_the_traps(backend):
    """What docs/ops.md warns of."""
    x, i = ops.asarray([1.0, -2.0], dtype="float32"), ops.asarray([1, 2], dtype="int32")
    dtype = config.active.dtype
    wide = {"jax": "float32", "torch": "float32"}.get(backend, "float64")
    assert dtype(ops.asarray([1.0])) == dtype(ops.ones(3)) == wide
    assert dtype(ops.arange(3)) == ("int32" if backend == "jax" else "int64")
    assert dtype(ops.add(i, x)) == wide
    is_boolean = backend == "tensorflow"
    assert dtype(x * (x > 0)) == dtype((x > 0) * x) == ("bool" if is_boolean else "float32")
    for kept in (ops.where(x > 0, x, 0), ops.multiply(x, x > 0)):
        np.testing.assert_array_equal(config.active.to_numpy(kept), np.array([1, 0], np.float32))
        assert dtype(kept) == "float32"
    if backend == "tensorflow":
        with pytest.raises(Exception, match="expected to be a"):
            _ = x + i
    if backend == "torch":
        with pytest.raises(RuntimeError, match="mean"):
            ops.mean(i)


# --- gradients -----------------------------------------------------------------------------------

X = np.array([[0.25, 0.7, 0.4], [0.55, 0.35, 0.75]], np.float32)


def slope(function, x, step=1e-5):
    """The gradient of what array-api-strict computes, by differences."""
    sides = []
    for sign in (1, -1):
        moved = x + sign * step * np.eye(x.size).reshape((-1, *x.shape))
        sides.append(
            [float(everyday.total(array_api_strict, function, array_api_strict.asarray(each))) for each in moved]
        )
    return np.subtract(*sides).reshape(x.shape) / (2 * step)


# JAX has each operation compiled, too, in eager mode, which takes longer than one program.
COMPILED = {
    "jax": ["jit(grad)"],
    "numpy": ["eager"],
    "tensorflow": ["eager", "function", "jit_compile"],
    "torch": ["eager"],
}


# One program has all of them, each of an array of its own, because compiling takes longest.
def test_the_gradient_of_everyday_functions(eager):
    for mode in COMPILED[eager.name]:
        check_everyday(type(eager)(eager.name, mode))
    if eager.name == "torch":
        import torch

        # What Dynamo traces is ours, what a compiler makes of it is not, and takes long.
        check_everyday(eager, functools.partial(torch.compile, backend="eager", fullgraph=True))


def check_everyday(frame, compiled=lambda f: f):
    missing = everyday.NOT_COMPILED.get((frame.name, frame.mode), ())
    long = everyday.LONG.get((frame.name, frame.mode), ())
    names = [name for name in everyday.FUNCTIONS if not name.startswith((*missing, *long))]
    functions = [everyday.FUNCTIONS[name] for name in names]
    f = lambda *xs: ops.stack([everyday.total(ops, function, x) for function, x in zip(functions, xs, strict=True)])
    output, gradients = frame.differentiate(compiled(f), *[X] * len(functions))
    for place, (name, function) in enumerate(zip(names, functions, strict=True)):
        due = float(everyday.total(array_api_strict, function, array_api_strict.asarray(X.astype(float))))
        np.testing.assert_allclose(output[place], due, rtol=2e-4, err_msg=name)
        expected = slope(function, X.astype(float))
        np.testing.assert_allclose(gradients[place], expected, rtol=2e-3, atol=2e-3, err_msg=name)
    for name in missing:
        with pytest.raises(Exception, match="Detected unsupported operations"):
            frame.differentiate(lambda x: everyday.total(ops, everyday.FUNCTIONS[name], x), X)


@pytest.mark.only("torch", "tensorflow")  # on JAX they are JAX's own
def test_everyday_functions_in_a_batch(backend):
    native = importlib.import_module(f"frameworks.{backend}")
    functions = everyday.FUNCTIONS.values()
    f = lambda x: ops.stack([everyday.total(ops, function, x) for function in functions])
    batch = np.stack([X, X[::-1], X / 2 + 0.1])
    output = native.array(native.batched(f, native.tensor(batch)))
    for place, row in enumerate(map(array_api_strict.asarray, batch.astype(float))):
        due = [float(everyday.total(array_api_strict, function, row)) for function in functions]
        np.testing.assert_allclose(output[place], due, rtol=5e-4)


# At 0.5, or where they are defined, and their derivatives there.
ELEMENTWISE = {
    "acos": (0.5, -((3 / 4) ** -0.5)),
    "acosh": (2.0, 3**-0.5),
    "asin": (0.5, (3 / 4) ** -0.5),
    "asinh": (0.5, 1.25**-0.5),
    "atan": (0.5, 0.8),
    "atanh": (0.5, 4 / 3),
    "cos": (0.5, -math.sin(0.5)),
    "cosh": (0.5, math.sinh(0.5)),
    "exp": (0.5, math.exp(0.5)),
    "expm1": (0.5, math.exp(0.5)),
    "log": (0.5, 2.0),
    "log10": (0.5, 2 / math.log(10)),
    "log1p": (0.5, 2 / 3),
    "log2": (0.5, 2 / math.log(2)),
    "sin": (0.5, math.cos(0.5)),
    "sinh": (0.5, math.cosh(0.5)),
    "sqrt": (0.25, 1.0),
    "tan": (0.5, math.cos(0.5) ** -2),
    "tanh": (0.5, math.cosh(0.5) ** -2),
}


@pytest.mark.only("jax", "torch", "tensorflow")
def test_bfloat16(backend):
    active = config.active
    for name, (x, slope) in ELEMENTWISE.items():
        half = active.cast(active.asarray(np.float32(x)), "bfloat16")
        function = getattr(ops, name)
        value, gradient = keras_cg.value_and_grad(function)(half)
        assert (active.dtype(value), active.dtype(gradient)) == ("bfloat16", "bfloat16"), name
        expected = getattr(array_api_strict, name)(array_api_strict.asarray(x))
        np.testing.assert_allclose(active.to_numpy(value), float(expected), rtol=2**-7, err_msg=name)  # two steps
        np.testing.assert_allclose(active.to_numpy(gradient), slope, rtol=2**-6, err_msg=name)
    half, single = (active.cast(active.asarray(np.float32(0.5)), dtype) for dtype in ("bfloat16", "float32"))
    for other, dtype in ((half, "bfloat16"), (single, "float32")):
        added = ops.logaddexp(half, other)
        assert active.dtype(added) == dtype
        np.testing.assert_allclose(active.to_numpy(added), 0.5 + math.log(2), rtol=2**-7)


def test_stop_gradient(frame):
    f = lambda x: x * x * ops.stop_gradient(x) + ops.stop_gradient(2.0) * x
    frame.check(f, [[2.0, 3.0]], [[2 * 4 + 2, 2 * 9 + 2]], [12, 33])


def test_an_argument_stopped_inside_of_the_function_is_a_constant_of_its_rule(backend):
    @keras_cg.custom_gradient
    def f(x, y):
        stopped = ops.stop_gradient(y)
        return x * y, lambda upstream: (7 * upstream * stopped, upstream * x)

    second = keras_cg.jacobian(grad(f, argnums=(0, 1)), argnums=(0, 1))(2.0, 3.0)
    assert [[float(each) for each in row] for row in second] == [[0, 0], [1, 0]]


@pytest.mark.together
def test_stop_gradient_in_second_order(backend):
    cut = keras_cg.custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream * x * ops.stop_gradient(x)))
    assert float(grad(grad(cut))(3.0)) == 21
    assert float(grad(grad(lambda x: x**3 * ops.stop_gradient(x)))(3.0)) == 54
    assert float(grad(lambda x: ops.stop_gradient(x * x))(3.0)) == 0
    assert float(grad(lambda x: ops.stop_gradient(cut(x)) * x)(3.0)) == 9
