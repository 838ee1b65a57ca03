"""What recipes refuse: each error names the recipe, the parameter, what came, and what to give."""

import re

import numpy as np
import pytest
from recipe_functions import X, found, heron, message, tensor

import keras_cg
from keras_cg import ops, recipes
from keras_cg.frontend import config

FUNCTION = "Give the function itself, not what it returns."
REAL = (
    "and this recipe takes real floating tensors. Convert it to a floating dtype; pass the real and"
    " the imaginary part of a complex tensor separately."
)
ONE_LIMIT = "clip_gradient takes exactly one of value=... (clips each element) and norm=... (clips the norm of all)."

# What the message begins with, and the call that raises it.
OF_A_TYPE = {
    f"straight_through expects a function, got an int. {FUNCTION}": lambda: recipes.straight_through(3),
    f"fixed_point expects a function, got a NoneType. {FUNCTION}": lambda: recipes.fixed_point(None),
    "invertible expects a function, got a NoneType.": lambda: recipes.invertible(np.sin, None),
    "from_jvp expects a function, got a float.": lambda: recipes.from_jvp(1.0),
    "custom_root expects a function, got a str.": lambda: recipes.custom_root(np.sin, np.sin, linear_solve="cg"),
    "custom_root(heron): x0 is 1.0, and": lambda: recipes.custom_root(heron, np.sin)(1.0, X),
    "custom_root(heron): there is no tensor in x0. Give a real floating tensor, or a pytree of such.": (
        lambda: recipes.custom_root(heron, np.sin)((), X)
    ),
    "fixed_point(heron): there is no tensor in z0. Give": lambda: recipes.fixed_point(heron)({}, X),
    "invertible(heron) applies its function once for each argument after the first, and there is none. Give the"
    " parameters of each block, None for a block without any.": lambda: recipes.invertible(heron, heron)(X),
    "invertible(heron): there is no floating tensor in x. Give one, or a pytree with one in it.": (
        lambda: recipes.invertible(heron, heron)(3, X)
    ),
    "gumbel_noise: uniform is None, and": lambda: recipes.gumbel_noise(None),
    "log_sum_exp: where is float64[3], and a mask is a boolean tensor of the active backend. Compare, such as x > 0.": (
        lambda: recipes.log_sum_exp(X, where=X)
    ),
    f"log1pexp: x is int64[3], {REAL}": lambda: recipes.log1pexp(np.arange(3)),
    "safe_sqrt: x is complex128[3], and": lambda: recipes.safe_sqrt(1j * X),
    "surrogate_spike: x is [1.0], and": lambda: recipes.surrogate_spike([1.0]),
    "quantize: x is None, and": lambda: recipes.quantize(None, 1.0),
    "clip_gradient: x is complex128[3], and": lambda: recipes.clip_gradient(1j * X, value=1),
    ONE_LIMIT: lambda: recipes.clip_gradient(X),
    ONE_LIMIT[:-1]: lambda: recipes.clip_gradient(X, value=1, norm=1),
    "fixed_point(heron): z0 is 1.0, and": lambda: recipes.fixed_point(heron)(1.0, X),
    "reverse_gradient: scale must be a number or a real floating tensor of the active backend, got a str.": (
        lambda: recipes.reverse_gradient(X, "2")
    ),
    "straight_through(<lambda>) was called without arguments. Give it a tensor": (
        lambda: recipes.straight_through(eval("lambda: 1.0"))()
    ),
}
OF_A_VALUE = {
    "invertible: tolerance=-1 is not a positive number.": lambda: recipes.invertible(heron, heron, tolerance=-1),
    "soft_round: alpha=-2 is not a number from 0 on.": lambda: recipes.soft_round(X, -2),
    "soft_round: alpha is float64[2], which does not broadcast to x, float64[3]. Each of its axes, counted": (
        lambda: recipes.soft_round(X, np.ones(2))
    ),
    "gumbel_softmax: noise is float64[1], and logits is float64[3]. Give one of the same shape: it is not"
    " broadcast, because equal numbers would stand where different ones should.": lambda: recipes.gumbel_softmax(
        X, X[:1]
    ),
    "gumbel_softmax: temperature=0.0 is not a positive, finite number.": lambda: recipes.gumbel_softmax(X, X, 0),
    "gumbel_softmax: axis=None is not a whole number: categories lie along one axis.": (
        lambda: recipes.gumbel_softmax(X, X, axis=None)
    ),
    "clip_gradient: norm=0.0 is not a positive number.": lambda: recipes.clip_gradient(X, norm=0),
    "clip_gradient: norm='float64[3]' is not a number or a scalar tensor": lambda: recipes.clip_gradient(X, norm=X),
    "safe_norm: axis=1 is not an axis of a tensor with 1, or a tuple of such.": lambda: recipes.safe_norm(X, 1),
    "surrogate_spike: there is no kind 'arctangent'. The kinds are: fast_sigmoid, arctan, triangle. Did you mean"
    " 'arctan'?": lambda: recipes.surrogate_spike(X, "arctangent"),
    "quantize: bits=1 is not a whole number from 1 (if signed, from 2) to 24.": lambda: recipes.quantize(X, 1.0, 1),
    "quantize: gradient_scale='paper' is not None, \"lsq\", a number or a floating tensor.": (
        lambda: recipes.quantize(X, 1.0, gradient_scale="paper")
    ),
    "quantize: step is float64[2], which does not broadcast to x": lambda: recipes.quantize(X, np.ones(2)),
    "quantize: gradient_scale is float64[3], which does not broadcast to step, float64[].": (
        lambda: recipes.quantize(X, np.array(1.0), gradient_scale=X)
    ),
    "scale_gradient: scale is float64[1,3], which does not broadcast to x, float64[3].": (
        lambda: keras_cg.grad(lambda y: ops.sum(recipes.scale_gradient(y, X[None])))(X)
    ),
    "clip_gradient: value is float64[3], which does not broadcast to x, float64[2].": (
        lambda: keras_cg.grad(lambda y: ops.sum(recipes.clip_gradient(y, value=X)))(np.ones(2))
    ),
    "fixed_point: steps=0 is not a whole number from 1 on.": lambda: recipes.fixed_point(heron, steps=0),
    "fixed_point: tolerance=0 is not a positive number.": lambda: recipes.fixed_point(heron, tolerance=0),
}


@pytest.mark.only("numpy")
@pytest.mark.parametrize(
    ("kind", "told", "call"),
    [(kind, *row) for kind, rows in ((TypeError, OF_A_TYPE), (ValueError, OF_A_VALUE)) for row in rows.items()],
    ids=[told[:40] for rows in (OF_A_TYPE, OF_A_VALUE) for told in rows],
)
def test_what_is_refused(backend, kind, told, call):
    assert message(call, kind).replace(", ", ",").startswith(told.replace(", ", ","))


# What must be a number from a range: the call with it, what the message calls it, and what it says of -1.
NUMBERS = {
    "clip_gradient: value": (lambda x, n: recipes.clip_gradient(x, value=n), "a positive number"),
    "clip_gradient: norm": (lambda x, n: recipes.clip_gradient(x, norm=n), "a positive number"),
    "safe_log: floor": (recipes.safe_log, "a positive number"),
    "quantize: step": (recipes.quantize, "a positive, finite number"),
    "surrogate_spike: slope": (lambda x, n: recipes.surrogate_spike(x, slope=n), "a positive, finite number"),
    "fixed_point: tolerance": (lambda x, n: recipes.fixed_point(heron, tolerance=n), "a positive number"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_python_and_numpy(backend, name):
    """Most backends hold a scalar of NumPy as a tensor; it is refused as the number of Python is."""
    (call, wanted), x = NUMBERS[name], tensor([0.3, -4.0])
    for kind in (float, np.float32, np.float64):
        assert f"{name.partition(': ')[2]}=-1.0 is not {wanted}" in message(lambda k=kind: call(x, k(-1.0)), ValueError)


def test_an_output_that_is_not_like_the_input(backend):
    x, line, summed = tensor(X), lambda x, a: x - a, lambda matvec, b: ops.sum(b)
    lines = message(lambda: recipes.straight_through(lambda x: x > 0)(x), keras_cg.GradientError).splitlines()
    assert lines[0].startswith("straight_through(")
    assert lines[0].endswith(": the output is not like the first argument, so upstream cannot be its gradient.")
    assert lines[1:] == [
        "    got: bool[3]",
        "    expected: float32[3]",
        "    usual cause: a function that reduces or broadcasts, or one that returns a comparison or integers.",
        "    remedy: return the structure and the shapes of the first argument, in a floating dtype.",
    ]
    for part, call in {
        "is not like the first argument": lambda: recipes.straight_through(ops.sum)(x),
        "not like the first argument": lambda: recipes.fixed_point(lambda z, a: ops.sum(z))(x, x),
        "): the output is not like the output of soft, so": lambda: recipes.straight_through(ops.sum, ops.tanh)(x),
        "): the output is not like the first": lambda: recipes.custom_root(ops.sum, lambda g, x0: x0)(x),
        "): the output is not like x0, so": lambda: recipes.custom_root(ops.tanh, lambda g, x0: ops.sum(x0))(x),
        "the linear_solve of custom_root(": lambda: keras_cg.grad(
            recipes.custom_root(line, lambda g, x0: 0 * x0, linear_solve=summed), 1
        )(x, x),
        ", of what its inverse gave: the output is not like what that got, so upstream": lambda: keras_cg.grad(
            recipes.invertible(lambda x, p: x, lambda y, p: y[:1])
        )(x, None),
    }.items():
        assert part in message(call, keras_cg.GradientError)


@pytest.mark.only("torch")
@pytest.mark.parametrize("name", [name for name in recipes.__all__ if name not in ("gumbel_noise", "from_numpy")])
def test_messages_name_the_recipe_that_was_called(backend, name):
    """Here for an array of another framework, which the recipe's inner function refuses."""
    x = np.ones(2)
    recipe = getattr(recipes, name)
    calls = {
        "clip_gradient": lambda: recipe(x, value=1.0),
        "custom_root": lambda: recipe(np.cos, lambda g, x0: x0)(x),
        "fixed_point": lambda: recipe(np.cos)(x),
        "from_autograd_function": lambda: recipe(type("f", (), dict.fromkeys(("forward", "backward"), np.cos)))(x),
        "from_jvp": lambda: recipe(np.cos)(x),
        "gumbel_softmax": lambda: recipe(x, x),
        "invertible": lambda: recipe(np.add, np.subtract)(x, 1.0),
        "quantize": lambda: recipe(x, 1.0),
        "recompute": lambda: recipe(np.cos)(x),
        "scale_gradient": lambda: recipe(x, 1.0),
        "soft_round": lambda: recipe(x, 1.0),
        "straight_through": lambda: recipe(np.cos)(x),
    }
    told = message(calls.get(name, lambda: recipe(x)), TypeError)
    expected = {"straight_through": "cos"}.get(name, name)
    assert re.match(rf"{expected}(\(\w+\))?: the argument \w+ is .*but the active backend is 'torch'", told, re.DOTALL)


def test_flags_are_true_or_false(backend):
    """A string such as "no" would count as true."""
    x = tensor([3.0, 4.0])
    calls = {
        "quantize: signed": lambda flag: recipes.quantize(x, 1.0, signed=flag),
        "gumbel_softmax: hard": lambda flag: recipes.gumbel_softmax(x, 0 * x, hard=flag),
        "safe_norm: keepdims": lambda flag: recipes.safe_norm(x, keepdims=flag),
        "log_sum_exp: keepdims": lambda flag: recipes.log_sum_exp(x, keepdims=flag),
    }
    for told, call in calls.items():
        for flag in ("no", None, 2, [True]):
            assert f"{told}={flag!r} is not True or False." in message(lambda c=call, f=flag: c(f), ValueError)
        for flag in (np.bool_(True), 1):
            np.testing.assert_array_equal(found(call(flag)), found(call(True)), strict=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_a_dtype_does_not_hold(backend, dtype):
    """They are 0 or infinite where they are used, and what they are multiplied by NaN."""
    with config.active.double_precision():
        x = tensor([0.0, 1.0], dtype)
        calls = {
            "slope": lambda value: recipes.surrogate_spike(x, "arctan", value),
            "step": lambda value: recipes.quantize(x, value),
        }
        for name, call in calls.items():
            for value in (1e-39, 1e39) if dtype == "float32" else (1e-320, 1e308 * 1.7):
                with pytest.raises(ValueError, match=rf"{name}=.* is not between .* and .* \({dtype}\)"):
                    call(value)
            call(1e-30)


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_the_scale_of_lsq_needs_a_known_size(tf):
    gradient = lambda x: keras_cg.grad(lambda s: recipes.quantize(x, s, gradient_scale="lsq"))(tf.constant(0.5))
    with pytest.raises(ValueError, match="quantize: gradient_scale='lsq' needs the number of elements of x, which is"):
        tf.function(gradient, input_signature=[tf.TensorSpec([None], tf.float32)])(tf.constant([1.0]))


@pytest.mark.only("tensorflow")
def test_tensors_of_unknown_rank(tf):
    def run(f, *arrays):
        specs = [tf.TensorSpec(None, tf.float32) for _ in arrays]
        return tf.function(f, input_signature=specs)(*(tf.constant(each, tf.float32) for each in arrays)).numpy()

    x = [[3.0, 4.0], [0.0, 0.0]]
    assert run(recipes.safe_norm, x) == 5
    np.testing.assert_allclose(run(lambda x: keras_cg.grad(recipes.safe_norm)(x), x), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(run(lambda x: keras_cg.grad(lambda x: recipes.scale_gradient(x, 7.0))(x), x), 7)
    step = tf.constant(0.5)
    slope = run(lambda x: keras_cg.grad(lambda s: ops.sum(recipes.quantize(x, s, 3)))(step), [[3.0, 0.3]])
    np.testing.assert_allclose(slope, 3 + 0.4, rtol=1e-6)
    for f in (
        lambda x: recipes.safe_norm(x, axis=-1),
        lambda x: keras_cg.grad(lambda y: recipes.clip_gradient(y, value=tf.ones(2)))(x),
        lambda x: recipes.quantize(x, tf.ones(2)),
    ):
        told = message(lambda f=f: run(f, x), ValueError)
        assert "is unknown until run time. Set its shape, such as with tf.ensure_shape(x, [None, None])." in told
    assert "is not a number or a scalar tensor" in message(
        lambda: run(lambda x: recipes.clip_gradient(x, norm=x), x), ValueError
    )
