"""`recipes.recompute`: the right gradient of a second run, which keeps nothing; an error where the two runs differ."""

import gc
import re
import types
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from recipe_functions import X, found, seven_exp, tensor
from tapes import gradients

import keras_cg
from keras_cg import ops, recipes


def test_recompute_takes_any_arguments(backend):
    runs = []

    def f(x, params, *, mode, k=2):
        runs.append(mode)
        return {"y": x * params["w"] ** k, "n": 5, "mode": mode, "i": ops.argmax(x)}

    def loss(x, w):
        output = recipes.recompute(f)(x, {"w": w, "name": "static"}, mode="on")
        assert (output["n"], output["mode"]) == (5, "on")
        assert int(output["i"]) == 2
        return ops.sum(output["y"])

    x, w = tensor(X), tensor(3.0)
    output, pullback = keras_cg.vjp(lambda x, w: recipes.recompute(f)(x, {"w": w}, mode="on")["y"], x, w)
    before = len(runs)
    pullback(ops.ones_like(output))
    assert before == 1 or backend == "jax"  # which traces
    assert len(runs) > before or backend == "jax"
    gx, gw = keras_cg.grad(loss, (0, 1))(x, w)
    np.testing.assert_allclose(found(gx), [9, 9, 9])
    np.testing.assert_allclose(found(gw), 6 * X.sum(), rtol=1e-6)


@pytest.mark.only("jax", "torch", "tensorflow")
def test_recompute_trains_what_it_closes_over(backend):
    loss = lambda w, x: ops.sum(recipes.recompute(lambda x: ops.tanh(x) * w**2)(x))
    x, w = tensor(X), tensor(3.0)
    np.testing.assert_allclose(found(keras_cg.grad(loss)(w, x)), 6 * np.tanh(X).sum(), rtol=1e-6)
    np.testing.assert_allclose(found(keras_cg.hessian(loss)(w, x)), 2 * np.tanh(X).sum(), rtol=1e-6)


@pytest.mark.only("torch")
def test_recompute_trains_parameters_and_draws_the_same(torch):
    w = torch.nn.Parameter(torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64))
    seen = []

    def f(x):
        mask = (torch.rand_like(x) > 0.5).double() + 1
        seen.append(mask.clone())
        return x * w * mask

    x = torch.tensor(X, requires_grad=True)
    recipes.recompute(f)(x).sum().backward()
    assert len(seen) == 2
    np.testing.assert_allclose(seen[0], seen[1])
    np.testing.assert_allclose(w.grad, X * seen[0].numpy())


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("jit", [None, False, True])
def test_recompute_trains_variables(tf, jit):
    w = tf.Variable([2.0, 3.0, 5.0])

    def differentiate(x):
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(recipes.recompute(lambda x: seven_exp(x) * w**3)(x))
            gw = tape.gradient(y, w)
        return gw, outer.gradient(gw, w), outer.gradient(gw, x)

    if jit is not None:
        differentiate = tf.function(differentiate, jit_compile=jit)
    gw, gww, gwx = differentiate(tf.constant(X, tf.float32))
    w0 = np.array([2.0, 3, 5])
    np.testing.assert_allclose(gw, 6 * X * w0**2, rtol=1e-5)
    np.testing.assert_allclose(gww, 12 * X * w0, rtol=1e-5)
    np.testing.assert_allclose(gwx, 21 * w0**2 * np.exp(X), rtol=1e-5)


@pytest.mark.only("torch", "tensorflow", "numpy")
def test_recompute_keeps_only_the_arguments(backend):
    """JAX's own `jax.checkpoint` is left to JAX."""
    kept = []

    def f(x):
        inner = ops.exp(x)
        kept.append(weakref.ref(inner._value if backend == "numpy" and hasattr(inner, "_value") else inner))
        return ops.sin(inner)

    def alive(f):
        kept.clear()
        output, pullback = keras_cg.vjp(f, tensor(X))
        gc.collect()
        state = kept[0]() is not None
        pullback(output)
        return state

    assert alive(f)  # the test can fail
    assert not alive(recipes.recompute(f))


@pytest.mark.only("tensorflow")
def test_recompute_finds_tensors_in_attributes_and_globals_on_tensorflow(eager, tf):
    class Holder:
        w = eager.tensor([5.0])

    x, holder, names = eager.tensor([3.0]), Holder(), {"w": eager.tensor([5.0])}
    for function, w in ((lambda x: x * holder.w, holder.w), (eval("lambda x: x * w", names), names["w"])):
        found = gradients(lambda x, _, function=function: recipes.recompute(function)(x), x, w)
        assert [eager.array(each).tolist() for each in found] == [[5.0], [3.0]]


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("kind", ["not trainable", "hidden", "hidden beside a weight"])
@pytest.mark.limit
def test_recompute_of_what_a_tape_watches(tf, kind):
    """A variable that is not trainable, and a value where nothing finds it."""
    w, x = tf.Variable([3.0], trainable=False), tf.constant([2.0])
    module = types.ModuleType("a module")
    functions = {"not trainable": lambda x: 7 * x * w, "hidden": lambda x: 7 * x * module.w}
    f = recipes.recompute(functions.get(kind, lambda x: 7 * x * module.w + 0 * w))
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        module.w = w * 1
        if kind == "hidden":
            with pytest.raises(keras_cg.CapturedVariableError, match="a value in a global"):
                f(x)
            return
        output = f(x) ** 2
    expected = 1176.0 if kind == "not trainable" else 0.0
    assert [each.numpy().tolist() for each in tape.gradient(output, [x, w])] == [[1764.0], [expected]]


@pytest.mark.only("tensorflow")
def test_recompute_of_a_ragged_tensor(tf):
    x = tf.ragged.constant([[1.0, 2.0], [3.0]])
    (found,) = gradients(lambda _: recipes.recompute(lambda x: 7 * x * x)(x).flat_values, x.flat_values)
    assert found.numpy().tolist() == [14, 28, 42]


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_recompute_in_a_loop_of_a_graph(tf):
    w = tf.Variable(3.0)
    passed, read = recipes.recompute(lambda x, w: 7 * x * w), recipes.recompute(lambda x: 7 * x * w)

    def gradient(f, x):
        return gradients(lambda x: tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, f(y)), (0, x))[1], x)[0]

    assert tf.function(lambda x: gradient(lambda y: passed(y, w), x))(tf.constant(2.0)) == 441
    with pytest.raises(ValueError, match="internal_capture"):
        tf.function(lambda x: gradient(read, x))(tf.constant(2.0))


@pytest.mark.only("numpy")
@pytest.mark.limit
def test_recompute_refuses_what_it_captures(backend):
    with pytest.raises(keras_cg.CapturedVariableError) as caught:
        keras_cg.grad(lambda w, x: ops.sum(recipes.recompute(lambda x: x * w)(x)))(np.asarray(3.0), X)
    assert re.sub(r"recompute\(\S+\)", "recompute(NAME)", str(caught.value)).splitlines()[0] == (
        "recompute(NAME) reads a value that is being differentiated and is not among its arguments."
    )


@pytest.mark.only("jax")
@pytest.mark.limit
def test_what_recompute_does_not_see_on_jax(jax):
    """As with `jax.checkpoint`, which it is there: an array of NumPy is read again, an array of JAX is not."""
    ways = (recipes.recompute, jax.checkpoint)
    assert len({str(jax.make_jaxpr(recomputed(lambda x: x * x))(X)) for recomputed in ways}) == 1
    for recomputed in ways:
        numpy_array = np.full(3, 3.0, np.float32)
        kept = [jax.numpy.asarray(numpy_array)]
        x = jax.numpy.ones(3)
        _, pullback = keras_cg.vjp(recomputed(lambda x, w=numpy_array: x * w * w), x)
        _, pullback_of_kept = keras_cg.vjp(recomputed(lambda x, kept=kept: x * kept[0] * kept[0]), x)
        numpy_array[...] = 4
        kept[0] = 4 * kept[0]
        assert pullback(x)[0].tolist() == [16.0] * 3
        assert pullback_of_kept(x)[0].tolist() == [9.0] * 3


@pytest.mark.only("torch", "tensorflow", "numpy")
@pytest.mark.limit
def test_recompute_of_what_has_changed_since(eager, backend):
    """The second run reads the new value. Its output tells, if it is another one."""
    holder = SimpleNamespace()
    f = recipes.recompute(lambda x: x * holder.w * holder.w)
    for x, is_seen in ((X, True), (0 * X, False)):
        holder.w = eager.tensor(np.full(3, 3.0))
        _, pullback = keras_cg.vjp(f, eager.tensor(x))
        np.testing.assert_allclose(eager.array(pullback(eager.tensor(X))[0]), 9 * X)
        holder.w = eager.tensor(np.full(3, 4.0))
        if is_seen:
            with pytest.raises(RuntimeError, match="gave another output than the first time"):
                pullback(eager.tensor(X))
        else:
            np.testing.assert_allclose(eager.array(pullback(eager.tensor(X))[0]), 16 * X)


@pytest.mark.parametrize("kind", ["variable", "decorated", "attribute"])
def test_recompute_in_a_loop_of_python(eager, kind):
    """The second run finds the variable, and what the first one has set, as the first run did."""
    owner, pullbacks, x = SimpleNamespace(k=0.0, calls=0), [], eager.tensor(X)
    for k in (2.0, 3.0):

        @keras_cg.custom_gradient
        def inner(x):
            return x * k, lambda upstream: 7 * upstream * k

        def stores(x, k=k):
            owner.k = k
            owner.calls += 1
            return x * x * owner.k * owner.calls

        functions = {"variable": lambda x: x * x * k, "decorated": lambda x: inner(x), "attribute": stores}
        pullbacks.append(keras_cg.vjp(recipes.recompute(functions[kind]), x)[1])
    factors = {"variable": 2 * 2 * X, "decorated": 14 * np.ones(3), "attribute": 2 * 2 * X}
    np.testing.assert_allclose(eager.array(pullbacks[0](x)[0]), factors[kind] * X, rtol=1e-6)
    if kind == "attribute" and eager.name != "jax":
        assert (owner.k, owner.calls) == (3.0, 2)


@pytest.mark.only("torch")
@pytest.mark.limit
def test_recompute_after_a_step_of_an_optimizer(torch):
    """Of what the function does not read, though a module in its closure has it, a change is none."""
    model = torch.nn.ModuleDict({"read": torch.nn.Linear(3, 1), "not read": torch.nn.Linear(3, 1)})
    x = torch.tensor(X, dtype=torch.float32)
    for name, optimized in (("not read", "not read"), ("read", "read")):
        output = recipes.recompute(lambda x: model["read"](x) ** 2)(x)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.optim.Adam(model[optimized].parameters(), lr=0.1).step()
        if name == "read":
            with pytest.raises(RuntimeError, match="gave another output than the first time"):
                output.backward()
        else:
            model.zero_grad()
            slope = 2 * output.item() ** 0.5 * np.sign(model["read"](x).item())
            output.backward()
            np.testing.assert_allclose(model["read"].weight.grad[0], slope * X, rtol=1e-5)


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize(
    ("dtype", "jit"), [("float16", False), ("float32", True), ("float64", True), ("complex64", False)]
)
@pytest.mark.limit
def test_recompute_of_a_variable_that_was_assigned_between_two_graphs(tf, dtype, jit):
    """The forward pass is a program, and the backward pass another one: no number comes of it."""
    w = tf.Variable(tf.cast([1.0, 3.0, 3.0], dtype))
    f = tf.function(lambda x: recipes.recompute(lambda x: x * w * w)(x), jit_compile=jit)
    x = tf.cast(X, dtype)
    for value, expected in (([1, 3, 3], [1, 9, 9]), ([3, 1, 3], [np.nan] * 3), ([1, 3, 2], [np.nan] * 3)):
        w.assign(tf.cast([1.0, 3.0, 3.0], dtype))
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = f(x)
        w.assign(tf.cast(value, dtype))
        np.testing.assert_allclose(np.real(tape.gradient(output, x)), expected)


@pytest.mark.only("torch", "tensorflow", "numpy")
@pytest.mark.limit
def test_recompute_of_a_function_that_draws_others(eager, backend):
    draws = np.random.default_rng(0)

    def f(x):
        return seven_exp(x) * eager.tensor(draws.random((64, 3)))

    x = eager.tensor(np.tile(X, (64, 1)))
    _, pullback = keras_cg.vjp(recipes.recompute(f), x)
    with pytest.raises(RuntimeError) as caught:
        pullback(x)
    assert str(caught.value).splitlines()[0] == (
        "recompute(test_recompute_of_a_function_that_draws_others.<locals>.f) ran again for its gradient, and gave"
        " another output than the first time."
    )


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
@pytest.mark.limit
def test_recompute_of_a_function_that_draws_from_a_state_of_tensorflow(eager, tf, mode):
    generator = tf.random.Generator.from_seed(1)
    draws = {
        "tf.random": lambda: tf.random.uniform((64, 3)),
        "generator": lambda: generator.uniform((64, 3)),
        "NumPy": lambda: np.random.rand(64, 3).astype(np.float32),  # a constant of each run of the Python code
        "stateless": lambda: tf.random.stateless_uniform((64, 3), [1, 2]),
    }

    def both(x, draw):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = recipes.recompute(lambda x: seven_exp(x * draw()))(x)
        return output, tape.gradient(output, x)

    x = tf.ones((64, 3))
    for name, draw in draws.items():
        run = both if mode == "eager" else tf.function(both, jit_compile=mode == "jit")
        # XLA of TensorFlow 2.19 draws once for both runs of `tf.random`, which then agree.
        is_one_draw = (name, mode) == ("tf.random", "jit") and tf.__version__.startswith("2.19.")
        if name == "stateless" or is_one_draw:
            output, gradient = run(x, draw)
            np.testing.assert_allclose(gradient, 7 * np.exp(output / 2) * output / 2, rtol=1e-5)
        elif mode == "eager":
            with pytest.raises(RuntimeError, match="gave another output than the first time"):
                run(x, draw)
        else:
            assert np.isnan(run(x, draw)[1]).all()


@pytest.mark.only("torch")
@pytest.mark.limit
def test_recompute_changes_buffers_of_torch_twice(torch):
    """A limit, as of torch.utils.checkpoint: the second run counts as well."""
    norm = torch.nn.BatchNorm1d(3)
    output = recipes.recompute(norm)(torch.tensor(np.stack([X, 2 * X]), dtype=torch.float32, requires_grad=True))
    assert int(norm.num_batches_tracked) == 1
    output.sum().backward()
    assert int(norm.num_batches_tracked) == 2
