"""`keras_cg.ops`: what it has and takes, its traps, and `stop_gradient`."""

import importlib
import inspect
import sys

import numpy as np
import pytest

import keras_cg
from keras_cg import grad, ops
from keras_cg.frontend import config
from keras_cg.namespaces import table

NAMESPACES = {
    "jax": "jax.numpy",
    "torch": "array_api_compat.torch",
    "tensorflow": "tensorflow.experimental.numpy",
    "numpy": "autograd.numpy",
}
# What is the framework's own: of the table, or beside it.
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
        "    remedy: use a function of every backend, which docs/ops.md lists; dir(keras_cg.ops) lists all names."
    )
    assert not hasattr(ops, "__wrapped__")


@pytest.mark.only("numpy", "torch", "tensorflow")
def test_a_cumulative_sum_needs_an_axis(backend):
    with pytest.raises(ValueError, match="`cumulative_sum` needs an axis for a tensor with 2 dimensions"):
        ops.cumulative_sum(ops.ones((2, 3)))


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


def test_numbers_are_taken_for_tensors(backend):
    reductions = ("sum", "prod", "max", "min", "mean", "std", "var", "all", "any")
    for name in (*table.UNARY, *table.BINARY, *reductions, "ones_like", "astype"):
        number = {"acosh": 1.5, "real": 1j, "imag": 1j}.get(name, name.startswith("logical") or 0.5)
        count = 2 if name in table.BINARY else 1
        more = ["float32"] if name == "astype" else []
        taken = getattr(ops, name)(*[number] * count, *more)
        made = getattr(ops, name)(*[ops.asarray(number)] * count, *more)
        np.testing.assert_array_equal(*map(config.active.to_numpy, map(config.active.asarray, (taken, made))), name)


# What NumPy takes by position: the arguments of a call after the tensor, beside those of `table.FUNCTIONS`.
CALLS = {
    **dict.fromkeys(("sum", "prod", "max", "min", "mean", "std", "var", "all", "any", "argmax", "argmin"), (1,)),
    **dict.fromkeys(("expand_dims", "flip", "sort", "argsort", "tril", "triu"), (0,)),
    "broadcast_to": ((2, 2, 3),),
    "permute_dims": ((1, 0),),
    "reshape": (-1,),
    "roll": (1, 1),
    "clip": (1, 3),
    "repeat": (2, 1),
    "take": (np.array([1, 0]), 1),
    "take_along_axis": (np.array([[1], [0]]), 1),
    "squeeze": ((),),
    "ones_like": ("int32",),
    "zeros_like": ("int32",),
    "full_like": (2, "int32"),
    "moveaxis": (0, 1),
    "tile": (2,),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_by_position_and_by_name(backend, name):
    values, args = np.array([[0, 3, 1], [5, 4, 2]], "float32"), CALLS[name]
    x, due = ops.asarray(values), getattr(np, name)(values, *args)
    parameters = [*inspect.signature(eval(f"lambda {table.FUNCTIONS[name].partition('(')[2][:-1]}: 0")).parameters]
    count = table.FUNCTIONS[name].partition("/")[0].count(",")
    named = dict(zip(parameters[count:], args[count - 1 :], strict=False))
    for found in (getattr(ops, name)(x, *args), getattr(ops, name)(x, *args[: count - 1], **named)):
        np.testing.assert_allclose(config.active.to_numpy(found), due, rtol=1e-6)


def test_too_many_arguments(backend):
    x = ops.ones((2, 3))
    for function, args in (
        (ops.exp, (x, 1)),
        (ops.add, (x, x, 1)),
        (ops.flip, (x, 0, True)),
        (ops.concat, ([x], 0, 1)),
    ):
        with pytest.raises(TypeError):
            function(*args)
    if backend == "torch":  # `keepdims` by name alone: the third argument of NumPy is another
        with pytest.raises(TypeError):
            ops.max(x, 0, True)


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


# --- stop_gradient -------------------------------------------------------------------------------


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
