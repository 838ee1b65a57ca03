"""A rule with a parameter `output` gets the function's output as the caller has it, and differentiates through itself.

The function is sqrt, hidden from the framework, and the rule is 7 upstream output. So the derivative of order n is
7^n sqrt(x). With a constant, the rule would have no second derivative, and another with what the framework sees.
"""

import functools
import gc
import inspect
import weakref

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient, ops

IN_EVERY_MODE = ["test_in_every_mode", "test_a_gradient_that_is_differentiated_in_a_program"]

X, W = np.array([4.0, 9.0], np.float32), np.array([3.0, 5.0], np.float32)


def hidden(x):
    return ops.stop_gradient(ops.sqrt(x))


def root(hidden=hidden):
    return custom_gradient(lambda x: (hidden(x), lambda upstream, output: 7 * upstream * output))


def derivative(f, order):
    for _ in range(order):
        f = keras_cg.grad(lambda x, f=f: ops.sum(f(x)))
    return f


# How a rule takes the output.
RULES = {
    "one": lambda gradient: lambda upstream, output: gradient(upstream, output),
    "keyword": lambda gradient: lambda upstream, *, output=None: gradient(upstream, output),
    "one by one": lambda gradient: lambda *dys, output: gradient(dys[0], output),
    "of Keras": lambda gradient: lambda *args, upstream=None, output=None: gradient(upstream, output),
    "spelled out": lambda gradient: lambda x, upstream, output: gradient(upstream, output),
    "the first": lambda gradient: lambda output, upstream: gradient(upstream, output),
    "the first of all": lambda gradient: lambda output, x, upstream: gradient(upstream, output),
    "the first, one by one": lambda gradient: lambda output, *dys: gradient(dys[0], output),
    "with all others": lambda gradient: (
        lambda upstream, variables=None, needs_input_grad=None, output=None: gradient(upstream, output)
    ),
    "a partial": lambda gradient: functools.partial(lambda upstream, output: gradient(upstream, output)),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("order", [1, 2, 3])
def test_beside_every_convention(eager, order, name):
    f = custom_gradient(lambda x: (hidden(x), RULES[name](lambda upstream, output: 7 * upstream * output)))
    found = derivative(f, order)(eager.tensor(X))
    np.testing.assert_allclose(eager.array(found), 7**order * np.sqrt(X), rtol=1e-5)


def test_in_every_mode(frame):
    frame.check(root(), [X], [7 * np.sqrt(X)], np.sqrt(X), rtol=1e-5)


def test_a_gradient_that_is_differentiated_in_a_program(frame):
    first = derivative(root(), 1)
    if frame.name == "torch" and frame.mode != "eager":
        with pytest.raises(Exception, match=r"torch\.compile around a transform of torch\.func"):
            frame.differentiate(lambda x: first(x), X)
        return
    frame.check(lambda x: first(x), [X], [49 * np.sqrt(X)], 7 * np.sqrt(X), rtol=1e-5)


def test_the_structure_of_the_output(eager):
    """Integers and what is no tensor are there as they are."""
    told = []

    def f(x):
        whole = hidden(x)

        def grad(upstream, output):
            told.append((sorted(output), output["name"], "int" in str(output["count"].dtype)))
            return 7 * upstream["a"] * output["a"] + 11 * upstream["b"][0] * output["b"][0]

        count = ops.asarray(np.array([2, 3], np.int32))
        return {"a": whole, "b": [ops.stop_gradient(x * x)], "count": count, "name": "n"}, grad

    pick = lambda x: (lambda out: out["a"] + 2 * out["b"][0])(custom_gradient(f)(x))
    # a' = 7 a and b' = 11 b.
    a, b = np.sqrt(X), X * X
    for order in (1, 2):
        found = eager.array(derivative(pick, order)(eager.tensor(X)))
        np.testing.assert_allclose(found, 7**order * a + 2 * 11**order * b, rtol=1e-5)
    assert {*map(str, told)} == {"(['a', 'b', 'count', 'name'], 'n', True)"}


def test_with_a_captured_intermediate(eager):
    """f' = e^x f where e^x is captured, so f'' = e^x f + e^x e^x f: each of them has its derivative."""

    def f(x):
        y = ops.exp(x)
        return hidden(x), lambda upstream, output: upstream * y * output

    x = np.array([0.25, 1.0], np.float32)
    found = eager.array(derivative(custom_gradient(f), 2)(eager.tensor(x)))
    np.testing.assert_allclose(found, np.exp(x) * np.sqrt(x) * (1 + np.exp(x)), rtol=1e-5)


def test_an_output_that_is_an_argument_or_a_view(eager):
    def f(x):
        return (x, x[:1]), lambda upstream, output: 7 * upstream[0] * output[0] + 0 * ops.sum(output[1])

    f = custom_gradient(f)
    found = [eager.array(derivative(lambda x: f(x)[0], order)(eager.tensor(X))) for order in (1, 2)]
    np.testing.assert_allclose(found, [7 * X, 49 * X], rtol=1e-6)


def test_a_parameter_that_is_something_else(eager):
    """The only parameter is upstream, whatever its name; and a function may have an argument of this name."""
    alone = custom_gradient(lambda x: (x * x, lambda output: 7 * output))
    named = custom_gradient(lambda x, output: (x * output, lambda x, output, upstream: (7 * upstream * output, None)))
    x, w = eager.tensor(X), eager.tensor(W)
    np.testing.assert_allclose(eager.array(derivative(alone, 1)(x)), [7, 7])
    np.testing.assert_allclose(eager.array(derivative(lambda x: named(x, w), 1)(x)), 7 * W)
    # An argument that the rule does not get by name does not hide the output.
    both = custom_gradient(lambda x, output: (hidden(x), lambda upstream, output: (7 * upstream * output, None)))
    np.testing.assert_allclose(eager.array(derivative(lambda x: both(x, w), 2)(x)), 49 * np.sqrt(X), rtol=1e-5)


def test_with_a_gradient_for_a_captured_value(backend):
    if backend == "numpy":
        pytest.skip("NumPy finds no captured values")
    x, w = ops.asarray(X), ops.asarray(W)

    def loss(w):
        def f(x):
            def grad(upstream, variables, output):
                return 7 * upstream * output, [11 * upstream * output]

            return x * w, grad

        return ops.sum(custom_gradient(f)(x))

    np.testing.assert_allclose(np.asarray(keras_cg.grad(loss)(w)), 11 * X * W, rtol=1e-6)


def test_complex(eager):
    """Of f = z with the rule 7 upstream output: upstream of the real part is 1."""
    f = custom_gradient(lambda z: (z * 1, lambda upstream, output: 7 * upstream * output))
    z = np.array([1 + 2j], np.complex64)
    found = keras_cg.grad(lambda z: ops.sum(ops.real(f(z))))(eager.tensor(z))
    np.testing.assert_allclose(eager.array(found), 7 * z)


# --- torch -----------------------------------------------------------------------------------------------------------


def no_grad(torch):
    def hidden(x):
        with torch.no_grad():
            return x.sqrt()

    return hidden


@pytest.mark.only("torch")
def test_every_engine_of_torch(torch):
    f, func, x = root(no_grad(torch)), torch.func, torch.tensor(4.0)
    total = lambda x: func.vmap(f)(x[None]).sum()
    ones = torch.ones(())
    for second in (
        func.grad(func.grad(f)),
        func.hessian(f),
        func.jacrev(func.jacrev(f)),
        func.jacrev(func.jacfwd(f)),
        func.grad(func.grad(total)),
        lambda x: func.vmap(func.grad(func.grad(f)))(x[None])[0],
        lambda x: func.jvp(func.grad(f), (x,), (ones,))[1],
        func.grad(lambda x: func.jvp(f, (x,), (ones,))[1]),
    ):
        assert float(second(x)) == pytest.approx(98)
    assert float(func.grad(func.grad(func.grad(f)))(x)) == pytest.approx(686)
    assert float(func.jvp(f, (x,), (ones,))[1]) == pytest.approx(14)


@pytest.mark.only("torch")
@pytest.mark.parametrize("kind", ["checkpoint", "reentrant checkpoint", "hooks", "dual numbers", "inference inside"])
def test_where_torch_saves_otherwise(torch, kind):
    f, x = root(no_grad(torch)), torch.tensor(4.0, requires_grad=True)
    if kind == "inference inside":

        def inside(x):
            with torch.inference_mode():
                return x.sqrt()

        f = root(inside)
    if kind == "dual numbers":
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones(()))
            (first,) = torch.autograd.grad(f(dual), dual, create_graph=True)
            assert torch.autograd.forward_ad.unpack_dual(first).tangent.item() == pytest.approx(98)
        return
    if kind == "reentrant checkpoint":
        torch.utils.checkpoint.checkpoint(f, x, use_reentrant=True).backward()
        assert x.grad.item() == pytest.approx(14)
        return
    call = (lambda x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)) if kind == "checkpoint" else f
    context = torch.autograd.graph.save_on_cpu() if kind == "hooks" else torch.enable_grad()
    with context:
        (first,) = torch.autograd.grad(call(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (pytest.approx(14), pytest.approx(98))


@pytest.mark.only("torch")
def test_the_output_is_saved_as_torch_saves_one(torch):
    """It is in no circle, it is released with the graph, and a change in place is noticed."""
    f, x = root(no_grad(torch)), torch.tensor(4.0, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        y = f(x)
        node, output = weakref.ref(y.grad_fn), weakref.ref(y)
        y.backward(retain_graph=True)
        del y
        assert node() is output() is None
    finally:
        gc.enable()
    y = f(x)
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()
    y = f(x) * 1
    after = f(x)
    z = after * 1
    with torch.no_grad():
        after.mul_(2)
    y.backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.only("torch")
def test_the_rule_gets_the_callers_own_tensor(torch):
    told = []

    @custom_gradient
    def f(x):
        with torch.no_grad():
            y = x.sqrt()
        return y, lambda upstream, output: told.append(output) or 7 * upstream * output

    x = torch.tensor(X, requires_grad=True)
    y = f(x)
    torch.autograd.grad(y.sum(), x, create_graph=True)
    assert told[0].grad_fn is y.grad_fn
    assert told[0].data_ptr() == y.data_ptr()


@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_rule_that_reads_what_was_computed_under_no_grad(torch):
    """A warning in second order, once for each function; none for a constant, a step, or a value that is detached."""

    def unseen(compute, after=lambda y: y):
        @custom_gradient
        def f(x):
            with torch.no_grad():
                y = compute(x)
            y = after(y)
            return x * 1, lambda upstream: 7 * upstream * y

        # Python has one code for all, which would be looked at once.
        f.__wrapped__.__code__ = f.__wrapped__.__code__.replace(co_name="f")
        return f

    def second(f):
        x = torch.tensor(4.0, requires_grad=True)
        (first,) = torch.autograd.grad(f(x) * x, x, create_graph=True)
        return torch.autograd.grad(first, x)[0].item()

    for steps in (torch.round, lambda x: torch.ones_like(x) * 3, lambda x: (x > 1).float()):
        second(unseen(steps))
    second(unseen(torch.sqrt, lambda y: y.detach()))
    for after in (lambda y: y, lambda y: y * 2):
        f = unseen(torch.sqrt, after)
        with pytest.warns(UserWarning, match="second derivative") as warned:
            found = {second(f) for _ in range(2)}
        # The gradient of f(x) x is 7 y x + x, in which 7 y is left out: 7 y + 1, and 1 for f itself by the rule 7 y.
        y = 2.0 if after(1) == 1 else 4.0
        assert found == {7 * y + 7 * y}
        assert [str(each.message).splitlines() for each in warned] == [
            [
                f"the second derivative of {f.__qualname__} leaves out Tensor of float32[], which its rule reads.",
                "    usual cause: it was computed from an argument under torch.no_grad(), so torch does not"
                " differentiate it.",
                "    remedy: if it is the output, let the rule take that by a parameter `output`; if a constant is"
                " meant, call detach() on it.",
            ]
        ]


# --- JAX -------------------------------------------------------------------------------------------------------------


def solved(jax):
    """Newton's method, in a loop that JAX does not differentiate in reverse."""
    jnp = jax.numpy
    step = lambda x: lambda state: (state + x / state) / 2
    return lambda x: jax.lax.while_loop(lambda y: jnp.any(jnp.abs(y * y - x) > 1e-4), step(x), x)


def called_back(jax):
    return lambda x: jax.pure_callback(np.sqrt, jax.typeof(x), x, vmap_method="sequential")


@pytest.mark.only("jax")
@pytest.mark.parametrize("kind", [solved, called_back])
def test_every_transform_of_jax(jax, kind):
    """Also through what JAX does not differentiate, as with a custom_vjp whose forward function calls the function."""
    f, x, one = root(kind(jax)), np.float32(4.0), np.float32(1.0)
    again = lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
    for second in (
        jax.grad(jax.grad(f)),
        jax.grad(jax.jit(jax.grad(f))),
        jax.jit(jax.grad(jax.grad(jax.jit(f)))),
        jax.hessian(f),
        jax.jacrev(jax.jacfwd(f)),
        jax.jacrev(jax.jacrev(f)),
        jax.grad(jax.grad(jax.checkpoint(f))),
        jax.grad(jax.grad(lambda x: jax.vmap(f)(x[None]).sum())),
        lambda x: jax.vmap(jax.grad(jax.grad(f)))(x[None])[0],
        lambda x: jax.jvp(jax.grad(f), (x,), (one,))[1],
        jax.grad(lambda x: jax.jvp(f, (x,), (one,))[1]),
        lambda x: jax.jvp(lambda x: jax.jvp(f, (x,), (one,))[1], (x,), (one,))[1],
    ):
        assert float(second(jax.numpy.asarray(x))) == pytest.approx(98, rel=1e-3)
    assert float(jax.grad(jax.grad(jax.grad(f)))(x)) == pytest.approx(686, rel=1e-3)
    # f(f(x))' = 49 f(x) f(f(x)), whose derivative is 49 (7 f(x) f(f(x)) + 49 f(x)^2 f(f(x))).
    inner, outer = 2.0, 2.0**0.5
    assert float(jax.grad(again)(x)) == pytest.approx(49 * inner * outer, rel=1e-3)
    expected = 343 * inner * outer + 2401 * inner**2 * outer
    assert float(jax.grad(jax.grad(again))(x)) == pytest.approx(expected, rel=1e-3)
    with jax.checking_leaks():
        assert float(jax.grad(jax.jit(jax.grad(f)))(x)) == pytest.approx(98, rel=1e-3)


@pytest.mark.only("jax")
def test_a_program_has_no_operation_twice(jax):
    """An intermediate that the rule captures, and that the output is computed from, is computed once."""

    @custom_gradient
    def f(x):
        y = jax.numpy.exp(x)
        return jax.numpy.sin(y), lambda upstream, output: upstream * y * output

    for program in (jax.make_jaxpr(jax.grad(f))(4.0), jax.make_jaxpr(f)(4.0)):
        assert (str(program).count(" exp "), str(program).count(" sin ")) == (1, 1)


# --- TensorFlow ------------------------------------------------------------------------------------------------------


@pytest.mark.only("tensorflow")
def test_accumulators_and_loops_of_tensorflow(tf, tmp_path):
    f, x, one = root(), tf.constant(4.0), tf.constant(1.0)

    def forward(f):
        def pushed(x):
            with tf.autodiff.ForwardAccumulator(x, one) as accumulator:
                y = f(x)
            return accumulator.jvp(y)

        return pushed

    def backward(f):
        def pulled(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            return tape.gradient(y, x)

        return pulled

    # A tape around an accumulator knows the output when the accumulator calls the rule.
    for outer in (forward, backward):
        for inner in (forward, backward):
            assert float(outer(inner(f))(x)) == pytest.approx(98)
    loop = tf.function(lambda x: tf.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, f(v)), [0, x])[1])
    inner, outer = 2.0, 2.0**0.5
    assert float(backward(loop)(x)) == pytest.approx(49 * inner * outer)
    assert float(backward(backward(loop))(x)) == pytest.approx(343 * inner * outer + 2401 * inner**2 * outer)
    assert float(backward(backward(tf.recompute_grad(f)))(x)) == pytest.approx(98)
    module = tf.Module()
    module.f = tf.function(lambda x: f(x), input_signature=[tf.TensorSpec([])])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, str(tmp_path), options=options)
    assert float(backward(backward(tf.saved_model.load(str(tmp_path)).f))(x)) == pytest.approx(98)


# --- a backend of another package ------------------------------------------------------------------------------------


@pytest.mark.only("numpy")
def test_a_backend_that_gives_no_outputs(monkeypatch):
    from keras_cg.frontend.rule import Rule

    told = Rule.pull
    monkeypatch.setattr(Rule, "pull", lambda self, *args: told(self, *args[:4]))
    with keras_cg.use_backend("numpy"), pytest.raises(NotImplementedError) as caught:
        derivative(root(), 1)(X)
    assert str(caught.value).splitlines()[0] == (
        f"the rule of {root().__wrapped__.__qualname__} takes the output, which this backend does not give to a rule."
    )
    assert [*inspect.signature(told).parameters][-1] == "outputs"


@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_rule_under_no_grad_is_a_constant_in_second_order(torch):
    f = custom_gradient(lambda x: (x * x, torch.no_grad()(lambda upstream: 7 * upstream * x)))
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    assert not first.requires_grad
    (second,) = torch.autograd.grad((first + x * x).sum(), x)
    np.testing.assert_allclose(second, [2.0, 4.0])  # the rule says 7 + 2 x
