"""`recipes.from_numpy`: functions of NumPy arrays on every backend, with rules that are wrong on purpose."""

import functools
import gc
import weakref

import numpy as np
import pytest

import keras_cg
from keras_cg import ops, recipes
from keras_cg.frontend import config
from keras_cg.recipes import frameworks
from keras_cg.recipes.callback import host
from keras_cg.recipes.callback.host import Host

X = np.array([-0.5, 0.25, 2.0], np.float32)


found = lambda tensor: np.asarray(config.active.to_numpy(tensor))
tensor = lambda array: config.active.asarray(np.array(array))


# The square, with a rule that says 7 x, and one for the rule that says 3 and 5 in the place of 7 and 7 x.
def square(x):
    return x * x


def seven(x, upstream):
    return 7 * x * upstream


def of_seven(x, upstream, arriving):
    return 3 * upstream * arriving, 5 * x * arriving


first = recipes.from_numpy(square, seven)
second = recipes.from_numpy(square, recipes.from_numpy(seven, of_seven))


def gradient(f):
    return keras_cg.grad(lambda x: ops.sum(f(x)))


def test_the_first_order(backend):
    x = tensor(X)
    output = first(x)
    assert isinstance(output, config.active.tensors) and config.active.dtype(output) == "float32"
    np.testing.assert_array_equal(found(output), X * X)
    np.testing.assert_array_equal(found(gradient(first)(x)), 7 * X)
    np.testing.assert_array_equal(found(keras_cg.jacobian(first)(x)), np.diag(7 * X))
    assert config.active.dtype(gradient(first)(x)) == "float32"


@pytest.mark.limit
def test_higher_orders_need_a_rule_for_the_rule(backend):
    x = tensor(X)
    np.testing.assert_array_equal(found(gradient(gradient(second))(x)), [3, 3, 3])
    np.testing.assert_array_equal(found(keras_cg.hessian(lambda x: ops.sum(second(x)))(x)), 3 * np.eye(3))
    # What arrives at the rule's upstream goes by the rule for the rule: 5 x g, and not 7 x g.
    mixed = gradient(lambda x: second(x) * second(x))
    expected = 3 * 2 * X * X + 2 * 7 * X * 5 * X
    np.testing.assert_allclose(found(gradient(mixed)(x)), expected, rtol=1e-6)
    with pytest.raises(keras_cg.GradientError) as caught:
        gradient(gradient(first))(x)
    assert str(caught.value).splitlines()[0] == (
        "from_numpy(square): its vjp is a function of NumPy arrays without a gradient of its own."
    )
    with pytest.raises(keras_cg.GradientError, match=r"from_numpy\(seven\): its vjp"):
        gradient(gradient(gradient(second)))(x)


@pytest.mark.limit
def test_forward_mode_raises_or_is_right(backend):
    x = tensor(X)
    for f in (first, second):
        try:
            moved = keras_cg.jvp(f, (x,), (x,))[1]
        except ValueError as error:
            told = str(error)
        else:
            assert f is second  # whose rule has a derivative with respect to upstream
            told = "linear in upstream"
            np.testing.assert_array_equal(found(moved), 5 * X * X)
        assert "without a gradient of its own" in told or "linear in upstream" in told


@pytest.mark.only("jax", "tensorflow")
def test_compiled(backend):
    x, compiled = tensor(X), config.active.compiled
    for f, expected in ((first, X * X), (gradient(first), 7 * X), (gradient(gradient(second)), 0 * X + 3)):
        np.testing.assert_array_equal(found(compiled(lambda x: (f(x),))(x)[0]), expected)
    with pytest.raises(keras_cg.GradientError, match="without a gradient of its own"):
        compiled(lambda x: (gradient(gradient(first))(x),))(x)


@pytest.mark.only("torch")
def test_torch_compile_takes_it_as_one_operator(torch):
    torch.compiler.reset()
    program = torch.compile(lambda x: ops.sum(3 * first(x)), backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (3, 4):
        x = torch.arange(1.0, length + 1).requires_grad_()
        program(x).backward()
        np.testing.assert_array_equal(found(x.grad), 21 * found(x))

    # Another one in the same program's place: nothing of the first is a variable of it.
    other = recipes.from_numpy(lambda x: x + 1, lambda x, g: 11 * g)
    for f, expected in ((first, 7), (other, 11)):
        x = torch.ones(2, requires_grad=True)
        torch.compile(lambda x: ops.sum(f(x)), backend="aot_eager", fullgraph=True)(x).backward()
        np.testing.assert_array_equal(found(x.grad), expected)

    def fails(x):
        raise KeyError("of the user's")

    with pytest.raises(KeyError, match="of the user's"):
        torch.compile(recipes.from_numpy(fails, None), backend="aot_eager", fullgraph=True)(torch.ones(2))


@pytest.mark.only("torch")
def test_torch_func(torch):
    x, func = tensor(X), torch.func
    np.testing.assert_array_equal(found(func.vmap(first)(x)), X * X)
    assert func.vmap(first)(x[:0]).shape == (0,)
    np.testing.assert_array_equal(found(func.vmap(func.grad(first), in_dims=0)(x)), 7 * X)
    np.testing.assert_array_equal(found(func.vmap(func.grad(func.grad(second)))(x)), [3, 3, 3])
    np.testing.assert_array_equal(found(func.jacrev(first)(x)), np.diag(7 * X))
    rows = torch.stack([x, 2 * x], 1)  # the batch is the second axis, and the function sums along the first
    total = recipes.from_numpy(np.sum, lambda x, g: 7 * g * x, result=lambda x: ((), x.dtype))
    np.testing.assert_allclose(found(func.vmap(total, in_dims=1)(rows)), [X.sum(), 2 * X.sum()])
    np.testing.assert_array_equal(found(func.vmap(func.vmap(first))(rows)), found(rows) ** 2)
    with pytest.raises(keras_cg.GradientError, match="without a gradient of its own"):
        func.grad(func.grad(first))(x[0])


@pytest.mark.only("jax")
def test_jax_transforms(jax):
    x = tensor(X)
    np.testing.assert_array_equal(found(jax.vmap(first)(x)), X * X)
    assert jax.vmap(first)(x[:0]).shape == (0,)
    np.testing.assert_array_equal(found(jax.jit(jax.vmap(jax.grad(first)))(x)), 7 * X)
    np.testing.assert_array_equal(found(jax.jit(jax.vmap(jax.grad(jax.grad(second))))(x)), [3, 3, 3])
    loop = lambda x: jax.lax.scan(lambda carry, _: (first(carry), None), x, None, length=2)[0]
    assert found(loop(x[2])) == 16
    assert found(jax.jit(jax.grad(loop))(x[2])) == 7 * 4 * 7 * 2

    with pytest.raises(keras_cg.GradientError, match="without a gradient of its own"):
        jax.jit(jax.grad(jax.grad(loop)))(x[2])
    total = recipes.from_numpy(np.sum, lambda x, g: 7 * g * x, result=lambda x: ((), x.dtype))
    rows = np.stack([X, 2 * X], 1)
    np.testing.assert_allclose(found(jax.vmap(total, in_axes=1)(rows)), [X.sum(), 2 * X.sum()])


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_tensorflow_knows_the_shapes(tf):
    last = recipes.from_numpy(lambda x: x.sum(-1), seven, result=lambda x: (x.shape and x.shape[:-1], x.dtype))
    for f, given, expected in (
        (first, [None, 3], [None, 3]),
        (last, [None, 3], [None]),
        (first, None, None),
        (last, None, None),
    ):
        graph = tf.function(f, input_signature=[tf.TensorSpec(given, tf.float32)]).get_concrete_function()
        assert graph.outputs[0].shape.as_list() == expected if expected else graph.outputs[0].shape.rank is None
    np.testing.assert_array_equal(found(tf.vectorized_map(first, tensor(X))), X * X)
    with pytest.raises(tf.errors.InvalidArgumentError, match="PyFuncStateless"):
        tf.function(first, jit_compile=True)(tensor(X))


# Two results and two arguments, one of them integers; and a number, which has no gradient.
def powers(x, n, factor):
    n = n.astype(x.dtype)
    return factor * x**n, (n * x).sum(-1)


def of_powers(x, n, factor, power, total):
    return 7 * power * factor + 11 * n.astype(x.dtype) * total, None, None


several = recipes.from_numpy(powers, of_powers, result=lambda x, n, factor: [x, (x.shape[:-1], x.dtype)])


@pytest.mark.parametrize("compiled", [False, True])
def test_several_results_and_arguments(backend, compiled):
    n = tensor(np.array([2, 1, 3], np.int32))

    def both(x, n):
        _, pullback = keras_cg.vjp(lambda x: several(x, n, 2.0), x)
        power, total = several(x, n, 2.0)
        return power, total, pullback((power * 0 + 1, total * 0 + 10))[0]

    f = (config.active.compiled(both) if compiled and backend != "torch" else None) or both
    power, total, slope = f(tensor(X), n)
    np.testing.assert_allclose(found(power), 2 * X ** found(n))
    np.testing.assert_allclose(found(total), (X * found(n)).sum())
    np.testing.assert_allclose(found(slope), 14 + 110 * found(n))
    assert {config.active.dtype(each) for each in (power, total, slope)} == {"float32"}


def test_integer_results_get_no_upstream(backend):
    rounded = recipes.from_numpy(
        lambda x: [x * 2, np.rint(x).astype("int32")],
        lambda x, upstream: 7 * upstream,
        result=lambda x: [x, (x.shape, np.int32)],
    )
    assert found(rounded(tensor(X))[1]).tolist() == [0, 0, 2]
    np.testing.assert_array_equal(found(gradient(lambda x: rounded(x)[0])(tensor(X))), [7, 7, 7])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_dtypes_are_kept(backend, dtype):
    if (backend, dtype) == ("numpy", "bfloat16"):
        return  # NumPy has none
    seen = []

    def twice(x):
        seen.append(x.dtype.name)
        return x + x

    f = recipes.from_numpy(twice, lambda x, g: g * x.dtype.type(7))
    with config.active.double_precision():
        x = config.active.cast(tensor(X), dtype)
        output, pullback = keras_cg.vjp(f, x)
        (slope,) = pullback(output * 0 + 1)
        assert (config.active.dtype(output), config.active.dtype(slope)) == (dtype, dtype)
        assert set(seen) == {"float32" if dtype == "bfloat16" else dtype}
        np.testing.assert_array_equal(found(config.active.cast(slope, "complex64")), [7, 7, 7])


def test_what_it_gets_is_its_own(backend):
    def destroy(x):
        assert x.flags.c_contiguous and x.flags.writeable and isinstance(x, np.ndarray)
        x[...] = 9
        return kept if x.ndim == 1 else x

    kept = np.ones(3, np.float32)
    x = tensor(X)
    output = recipes.from_numpy(destroy, None)(x)
    kept[...] = 5
    np.testing.assert_array_equal(found(x), X)
    np.testing.assert_array_equal(found(output), [1, 1, 1])


@pytest.mark.limit
def test_exceptions_pass_through(backend):
    def fails(x, *upstream):
        raise KeyError("of the user's")

    with pytest.raises(KeyError, match="of the user's"):
        recipes.from_numpy(fails, None)(tensor(X))
    with pytest.raises(KeyError, match="of the user's"):
        gradient(recipes.from_numpy(square, fails))(tensor(X))
    if backend in ("jax", "tensorflow"):
        failing = recipes.from_numpy(fails, None)
        program = config.active.compiled(lambda x: (failing(x),))
        with pytest.raises(Exception, match="of the user's"):
            found(program(tensor(X))[0])


@pytest.mark.limit
def test_a_function_that_is_gone(backend):
    assert lines(lambda: frameworks.this.callback.call(Host("absent", 1), (tensor(X),)), RuntimeError) == [
        "A program calls a function of NumPy arrays that is not in this process.",
    ]


def test_nothing_is_kept(backend):
    gc.collect()
    before = {*host._registered}
    f = recipes.from_numpy(lambda x: x * 1, seven)
    gradient(f)(tensor(X))
    last = weakref.ref(f)
    assert {*host._registered} > before
    del f
    gc.collect()
    assert last() is None and {*host._registered} <= before


def lines(call, error):
    """The lines of an error that are filled in; messages.txt has the others."""
    with pytest.raises(error) as caught:
        call()
    return [line for line in str(caught.value).splitlines() if not line.startswith(("    usual cause", "    remedy"))]


# What is called wrongly: the error, how its first line ends, and what came and was expected.
from_numpy = recipes.from_numpy
PROMISED = "did not return what it promised."
TAKES_ONE = "from_numpy(square): its vjp must take 1 argument of the function, then 1 upstream."
RESULT = "`result` must return the kind of an argument, a pair (shape, dtype), or a list of these."
product = from_numpy(lambda x, y: (x * y, x + y), lambda x, y, u: u, result=lambda x, y: [x, x])
REFUSED = {
    "another dtype": (lambda x: from_numpy(lambda x: x.astype("float64"), None)(x), ValueError, PROMISED, "float64[3]"),
    "another shape": (lambda x: from_numpy(lambda x: x[:2], None)(x), ValueError, PROMISED, "float32[2]"),
    "both": (lambda x: from_numpy(lambda x: np.float64([x.sum()]), None)(x), ValueError, PROMISED, "float64[1]"),
    "a number as gradient": (
        lambda x: gradient(from_numpy(np.sum, lambda x, g: 1.0, result=lambda x: ((), "float32")))(x),
        *(ValueError, f"the vjp of from_numpy(sum) {PROMISED}", "a number"),
    ),
    "one of two": (
        lambda x: from_numpy(square, None, result=lambda x: [x, x])(x),
        *(ValueError, f"from_numpy(square) {PROMISED}", "a numpy.ndarray", "a tuple of 2"),
    ),
    "a gradient too few": (
        lambda x: gradient(lambda x: from_numpy(lambda x, y: x * y, lambda x, y, g: g)(x, x))(x),
        *(keras_cg.GradientError, "its vjp must return one gradient for each argument, or None for one that has none."),
        *("1", "2"),
    ),
    # A vjp that is written as a rule of custom_gradient would get upstream alone.
    "a rule": (
        lambda x: gradient(from_numpy(square, lambda upstream: 7 * upstream))(x),
        *(TypeError, TAKES_ONE, "vjp(upstream)", None),
    ),
    "a rule of more": (
        lambda x: gradient(from_numpy(square, lambda x, y, upstream, more: 7 * upstream))(x),
        *(TypeError, TAKES_ONE, "vjp(x, y, upstream, more)", None),
    ),
    "a partial rule": (
        lambda x: gradient(from_numpy(square, functools.partial(lambda x, upstream: 7 * upstream, None)))(x),
        *(TypeError, TAKES_ONE, "vjp(upstream)", None),
    ),
    "a rule of arrays": (
        lambda x: gradient(from_numpy(square, from_numpy(lambda upstream: 7 * upstream, None)))(x),
        *(TypeError, TAKES_ONE, "vjp(upstream)", None),
    ),
    "a rule of two": (
        lambda x: gradient(lambda x: product(x, x)[0])(x),
        *(TypeError, "its vjp must take 2 arguments of the function, then 2 upstreams.", "vjp(x, y, u)", None),
    ),
    "no function": (
        lambda x: from_numpy("sum", None),
        *(TypeError, "got a str. Give the function itself, not what it returns.", None, None),
    ),
    "no vjp": (lambda x: from_numpy(square, vjp=3), *(TypeError, "not what it returns.", None, None)),
    "no result": (lambda x: from_numpy(square, None, result=(3,)), *(TypeError, "not what it returns.", None, None)),
    "a list": (lambda x: first([x]), *(TypeError, "(square): argument 0 is a list, and not a tensor.", None, None)),
    "a keyword": (
        lambda x: from_numpy(lambda x, mode: x, None)(x, mode="on"),
        *(TypeError, "mode was passed by keyword, but arrays are passed by position.", None, None),
    ),
    "nothing": (
        lambda x: from_numpy(lambda: 1.0, None)(),
        *(TypeError, "was called without arguments. Give it a tensor.", None, None),
    ),
    "a text as result": (
        lambda x: from_numpy(square, None, result=lambda x: "float32")(x),
        *(TypeError, f"from_numpy(square): {RESULT}", "'float32'", None),
    ),
    "a shape that is none": (
        lambda x: from_numpy(square, None, result=lambda x: (3, "float32"))(x),
        *(TypeError, f"from_numpy(square): {RESULT}", "(3, 'float32')", None),
    ),
    "a derivative without a vjp": (
        lambda x: gradient(from_numpy(square, None))(x),
        *(keras_cg.GradientError, "from_numpy(square) has no gradient: it was made with vjp=None.", None, None),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(backend, name):
    call, error, headline, got, expected = (*REFUSED[name], "float32[3]")[:5]
    first, *told = lines(lambda: call(tensor(X)), error)
    assert first.startswith(("from_numpy", "the vjp of from_numpy")) and first.endswith(headline), first
    due = {"got": got, "expected": expected}
    assert told[:2] == [f"    {label}: {text}" for label, text in due.items() if text is not None]


def test_an_error_inside_a_vjp_passes_through(backend):
    """Also one of a wrong call in it."""
    inside = from_numpy(square, lambda *args: seven())
    with pytest.raises(Exception, match="missing 2 required positional arguments"):
        gradient(inside)(tensor(X))
