"""A rule with a parameter `needs_input_grad` is told which gradients are asked for, beside every convention."""

import functools
import inspect

import numpy as np
import pytest

import keras_cg
from keras_cg import GradientError, custom_gradient, ops, recipes

X, W = np.array([1.0, 2.0], np.float32), np.array([3.0, 5.0], np.float32)


# How a rule is told.
RULES = {
    "one": lambda gradients: lambda upstream, needs_input_grad: gradients(upstream, needs_input_grad),
    "keyword": lambda gradients: lambda upstream, *, needs_input_grad=None: gradients(upstream, needs_input_grad),
    "one by one": lambda gradients: lambda *dys, needs_input_grad: gradients(dys[0], needs_input_grad),
    "of Keras": lambda gradients: (
        lambda *args, upstream=None, needs_input_grad=None: gradients(upstream, needs_input_grad)
    ),
    "spelled out": lambda gradients: lambda x, w, upstream, needs_input_grad: gradients(upstream, needs_input_grad),
    "the first": lambda gradients: lambda needs_input_grad, upstream: gradients(upstream, needs_input_grad),
    "the first of all": (
        lambda gradients: lambda needs_input_grad, x, w, upstream: gradients(upstream, needs_input_grad)
    ),
    "the first of Keras's": (
        lambda gradients: lambda needs_input_grad, *args, upstream: gradients(upstream, needs_input_grad)
    ),
    "the first, one by one": lambda gradients: lambda needs_input_grad, *dys: gradients(dys[0], needs_input_grad),
    "between": lambda gradients: lambda x, needs_input_grad, w, upstream: gradients(upstream, needs_input_grad),
    "with variables": lambda gradients: (
        lambda upstream, variables=None, needs_input_grad=None: gradients(upstream, needs_input_grad)
    ),
}


def product(make=RULES["one"]):
    """x w, with the wrong factors 7 and 11, and what each call of the rule was told."""
    told = []

    def gradients(upstream, needs, x, w):
        told.append(needs)
        return 7 * upstream * w if needs[0] else None, 11 * upstream * x if needs[1] else None

    return custom_gradient(lambda x, w, k=1.0: (x * w, make(functools.partial(gradients, x=x, w=w)))), told


def telling():
    """x w, with the wrong factors 7 and 11, and what each run of the function was told."""
    told = []

    @custom_gradient
    def f(x, w, k=1.0, *, needs_input_grad):
        told.append(needs_input_grad)

        def grad(upstream):
            return 7 * upstream * w if needs_input_grad[0] else None, 11 * upstream * x if needs_input_grad[1] else None

        return x * w * k, grad

    return f, told


@pytest.mark.parametrize("name", [*RULES, "the function"])
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_what_is_asked_for(eager, argnums, name):
    f, told = product(RULES[name]) if name in RULES else telling()
    found = keras_cg.grad(lambda *args: ops.sum(f(*args)), argnums)(eager.tensor(X), eager.tensor(W))
    places = argnums if isinstance(argnums, tuple) else (argnums,)
    for place, gradient in zip(places, found if isinstance(argnums, tuple) else (found,), strict=True):
        np.testing.assert_allclose(eager.array(gradient), (7 * W, 11 * X)[place], rtol=1e-6)
    assert set(told) == {(0 in places, 1 in places)}
    assert name not in RULES or len(told) == 1


def test_in_every_mode(frame):
    """A program that cannot tell asks for all; a compiled rule may write nothing down."""

    @custom_gradient
    def f(x, w):
        def grad(upstream, needs_input_grad):
            wanted = needs_input_grad == (True, True)
            return (7 * upstream * w, 11 * upstream * x) if wanted else (None, None)

        return x * w, grad

    _, gradients = frame.differentiate(f, X, W)
    np.testing.assert_allclose(gradients[0], 7 * W, rtol=1e-6)
    np.testing.assert_allclose(gradients[1], 11 * X, rtol=1e-6)


@pytest.mark.only("jax", "torch", "tensorflow")
def test_after_the_variables_and_before_upstream(backend):
    x, w = ops.asarray(X), ops.asarray(W)

    def loss(w):
        def f(x):
            def grad(variables, needs_input_grad, upstream):
                assert needs_input_grad == (False,)
                return None, [7 * upstream * x]

            return x * w, grad

        return ops.sum(custom_gradient(f)(x))

    np.testing.assert_allclose(np.asarray(keras_cg.grad(loss)(w)), 7 * X)


@pytest.mark.parametrize("make", [product, telling])
def test_the_second_order(eager, make):
    """Of 7 w for x, the derivative by w is 7: the rule is asked for it again, and a function told the same again."""
    f, told = make()
    first = keras_cg.grad(lambda x, w: ops.sum(f(x, w)))
    second = keras_cg.grad(lambda w: ops.sum(first(eager.tensor(X), w)))(eager.tensor(W))
    np.testing.assert_allclose(eager.array(second), [7.0, 7.0], rtol=1e-6)
    assert all(needs[0] for needs in told)
    assert make is product or set(told) == {(True, True)}


def test_integers_and_static_arguments(eager):
    """There is one answer for each tensor argument, in the order in which gradients are returned."""
    told = []

    def f(nest, k, n):
        def grad(upstream, needs_input_grad):
            told.append(needs_input_grad)
            return {"a": 7 * upstream, "b": None}, None

        return nest["a"] * k, grad

    n = eager.tensor(np.array([1, 2], np.int32))
    a, b = eager.tensor(X), eager.tensor(W)
    gradient = keras_cg.grad(lambda a: ops.sum(custom_gradient(f)({"a": a, "b": b}, 2.0, n)))(a)
    np.testing.assert_allclose(eager.array(gradient), [7.0, 7.0])
    assert told == [(True, False, False)]


# --- the function itself -------------------------------------------------------------------------------------------


def test_a_function_is_told_in_every_mode(frame):
    """A program that cannot tell asks for all. AutoGraph of TensorFlow rewrites the branch on a value."""

    @custom_gradient
    def f(x, w, *, needs_input_grad=(False, False)):
        y = x * w
        if frame.name == "tensorflow" and ops.sum(x) < 0:
            y = x
        wanted = needs_input_grad == (True, True)
        return y, lambda upstream: (7 * upstream * w, 11 * upstream * x) if wanted else (0 * x, 0 * w)

    _, gradients = frame.differentiate(f, X, W)
    np.testing.assert_allclose(gradients[0], 7 * W, rtol=1e-6)
    np.testing.assert_allclose(gradients[1], 11 * X, rtol=1e-6)


def test_a_function_without_a_gradient_is_told_so(eager):
    f, told = telling()
    np.testing.assert_allclose(eager.array(f(eager.tensor(X), w=eager.tensor(W), k=2.0)), 2 * X * W)
    assert told == [(False, False)]


def test_a_method_and_the_rule_are_told(eager):
    told = []

    class Layer:
        scale = 2.0

        @custom_gradient
        def call(self, nest, n, *, needs_input_grad):
            told.append(needs_input_grad)

            def grad(nest, n, upstream, needs_input_grad):
                told.append(needs_input_grad)
                return {"a": 7 * upstream, "b": None}, None

            return nest["a"] * self.scale, grad

    n = eager.tensor(np.array([1, 2], np.int32))
    a, b = eager.tensor(X), eager.tensor(W)
    gradient = keras_cg.grad(lambda a: ops.sum(Layer().call({"a": a, "b": b}, n)))(a)
    np.testing.assert_allclose(eager.array(gradient), [7.0, 7.0])
    assert told == [(True, False, False)] * 2


@pytest.mark.only("numpy")
def test_what_a_function_is_told_is_no_argument(backend):
    f, _ = telling()
    assert str(inspect.signature(f)) == "(x, w, k=1.0)"
    assert inspect.getfullargspec(f).kwonlyargs == []
    assert "needs_input_grad" in inspect.signature(f.__wrapped__).parameters
    wrapped = functools.wraps(f.__wrapped__)(lambda *args, **kwargs: f.__wrapped__(*args, **kwargs))
    for other in (wrapped, functools.partial(f.__wrapped__)):
        assert custom_gradient(other)(X, W) == pytest.approx(X * W)
    with pytest.raises(TypeError) as caught:
        f(X, W, needs_input_grad=(True, True))
    assert str(caught.value).splitlines()[0] == (
        "telling.<locals>.f got an argument needs_input_grad, which its decorator gives it."
    )
    # By position, or with *args before it, it is an argument as any other.
    plain = custom_gradient(lambda x, needs_input_grad: (x * needs_input_grad, lambda upstream: (7 * upstream, None)))
    assert plain(X, 3.0) == pytest.approx(3 * X)


def test_a_function_around_a_decorated_one_is_not_told(eager):
    f, told = telling()
    around = custom_gradient(functools.wraps(f)(lambda *args: (f(*args), lambda upstream: (13 * upstream, None))))
    gradient = keras_cg.grad(lambda x: ops.sum(around(x, eager.tensor(W))))(eager.tensor(X))
    np.testing.assert_allclose(eager.array(gradient), [13, 13])
    assert all(len(each) == 2 for each in told)


@pytest.mark.only("torch")
def test_a_function_that_is_decorated_while_a_program_is_traced_is_told(torch):
    """The default of the parameter, which torch.compile could not read, is not asked for, nor is a gradient for it."""

    def loss(x, w):
        def f(x, w, *, needs_input_grad):
            told = needs_input_grad
            return x * w, lambda upstream: (7 * upstream * w if told[0] else None, 11 * upstream if told[1] else None)

        return custom_gradient(f)(x, w).sum()

    x, w = torch.tensor(X, requires_grad=True), torch.tensor(W)
    torch.compile(loss, backend="aot_eager", fullgraph=True)(x, w).backward()
    assert x.grad.tolist() == [21, 35]


@pytest.mark.only("torch")
def test_a_function_is_told_by_each_engine(torch):
    f, told = telling()
    x, w = torch.tensor(X), torch.tensor(W)
    assert torch.func.grad(lambda x: f(x, w).sum())(x).tolist() == [21, 35]
    assert torch.func.jvp(lambda w: f(x, w), (w,), (torch.ones(2),))[1].tolist() == [11, 22]
    assert set(told) == {(True, False), (False, True)}
    with torch.no_grad():
        f(x.requires_grad_(), w)
    assert told[-1] == (False, False)


# --- recipes whose rules have work for each of their arguments ---------------------------------------------------


def test_an_invertible_chain_asks_for_the_gradients_that_it_needs(eager):
    """The rule of each block is asked for the gradient of its input, and for those of the parameters that need one."""
    inner, told = product()
    chain = recipes.invertible(lambda x, w: inner(x, w), lambda y, w: y / w)
    x, first, second = map(eager.tensor, (X, W, 2 * W))
    gradient = keras_cg.grad(lambda w: ops.sum(chain(x, first, w)))(second)
    # 11 times the input of the second block.
    np.testing.assert_allclose(eager.array(gradient), 11 * X * W, rtol=1e-6)
    assert set(told) == {(True, False), (True, True)}


def test_a_root_asks_for_the_gradients_that_it_needs(eager):
    """Of x - (a b), with 7 b and 11 a as the gradients of the product: the derivative of the root by a is 7 b."""
    inner, told = product()
    root = recipes.custom_root(lambda x, a, b: x - inner(a, b), lambda f, x0: x0 - f(x0))
    zero, a, b = map(eager.tensor, (np.zeros_like(X), X, W))
    gradient = keras_cg.grad(lambda a: ops.sum(root(zero, a, b)))(a)
    np.testing.assert_allclose(eager.array(gradient), 7 * W, rtol=1e-6)
    assert set(told) == {(True, False)}


def test_a_quantiser_sums_nothing_for_a_step_that_is_not_learned(eager, monkeypatch):
    x, step = eager.tensor(np.array([-9.0, -0.6, 0.3, 9.0], np.float32)), eager.tensor(np.float32(0.5))
    quantized = lambda x, step: ops.sum(recipes.quantize(x, step, bits=3))
    # Of the levels beyond the range -4 and 3, and of what rounding adds in between: -1 + 1.2, 1 - 0.6.
    gradient = keras_cg.grad(quantized, 1)(x, step)
    np.testing.assert_allclose(eager.array(gradient), -4 + 0.2 + 0.4 + 3, rtol=1e-5)
    monkeypatch.setattr("keras_cg.ops.sum_to", None)
    np.testing.assert_allclose(eager.array(keras_cg.grad(quantized)(x, step)), [0, 1, 1, 0])
    with pytest.raises(TypeError):
        keras_cg.grad(quantized, 1)(x, step)


# --- what native torch tells instead -----------------------------------------------------------------------------


@pytest.mark.only("torch")
@pytest.mark.limit
def test_asking_an_argument_of_the_function(torch):
    """A warning, once for each function; a rule that takes the arguments may ask."""

    @custom_gradient
    def asks(x, w):
        def grad(upstream):
            return 7 * upstream * w if x.requires_grad else torch.zeros(2), None if w is x else 11 * upstream * x

        return x * w, grad

    @custom_gradient
    def may_ask(x, w):
        def grad(x, w, upstream):
            return 7 * upstream * w if x.requires_grad else None, 11 * upstream * x if w.requires_grad else None

        return x * w, grad

    x, w = torch.tensor(X, requires_grad=True), torch.tensor(W)
    with pytest.warns(UserWarning, match="requires_grad") as warned:
        found = [torch.autograd.grad(asks(x, w).sum(), x)[0].tolist() for _ in range(2)]
    assert found == [[0, 0], [0, 0]]
    name = "test_asking_an_argument_of_the_function.<locals>.asks"
    assert [str(each.message).splitlines() for each in warned] == [
        [
            f"{name} reads x.requires_grad, which says nothing: the function gets its arguments detached.",
            "    usual cause: a rule that leaves out a gradient that is not needed.",
            "    remedy: give the rule a parameter `needs_input_grad`, or let it take the arguments, which are the"
            " caller's own.",
        ]
    ]
    assert torch.autograd.grad(may_ask(x, w).sum(), x)[0].tolist() == [21, 35]


@pytest.mark.only("torch")
def test_a_rule_that_differentiates_a_module_by_its_arguments(torch):
    """By the arguments that it takes, as in a Function of torch; what it closes over is detached, which is said."""
    module = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(2.0)

    def pair(takes):
        def f(x, *weights):
            def gradients(weights, upstream):
                with torch.enable_grad():
                    local = x.detach().requires_grad_()
                    return [7 * each for each in torch.autograd.grad(module(local), (local, *weights), upstream)]

            with torch.no_grad():
                output = module(x)
            if takes:
                return output, lambda *args, upstream: gradients(args[1:], upstream)
            return output, lambda upstream: gradients(weights, upstream)

        return custom_gradient(f)

    x = torch.tensor([[3.0]], requires_grad=True)
    pair(takes=True)(x, *module.parameters()).backward()
    assert (x.grad.item(), module.weight.grad.item()) == (14, 21)
    with pytest.raises(keras_cg.GradientError) as caught:
        pair(takes=False)(x, *module.parameters()).backward()
    name = "test_a_rule_that_differentiates_a_module_by_its_arguments.<locals>.pair.<locals>.f"
    assert str(caught.value).splitlines()[0] == (
        f"the rule of {name} differentiates with respect to an argument of the function, which is detached there."
    )


@pytest.mark.only("torch")
@pytest.mark.parametrize("variables", [False, True])
def test_an_argument_that_the_function_also_reads_through_its_module(torch, variables):
    module = torch.nn.Linear(1, 1, bias=False)

    def f(x, weight, *, run):
        grad = lambda upstream: (5 * upstream, 7 * torch.ones_like(weight))
        return run(x, weight), (lambda upstream, variables=None: grad(upstream)) if variables else grad

    def without(x, weight):
        with torch.no_grad():
            return module(x)

    f, x = custom_gradient(f), torch.ones(1, 1, requires_grad=True)
    for run in (without, lambda x, weight: torch.func.functional_call(module, {"weight": weight}, x)):
        module.zero_grad()
        f(x, module.weight, run=run).backward()
        assert module.weight.grad.item() == 7
    with pytest.raises(keras_cg.CapturedVariableError) as caught:
        f(x, module.weight, run=lambda x, weight: module(x))
    name = "test_an_argument_that_the_function_also_reads_through_its_module.<locals>.f"
    assert str(caught.value).splitlines()[0] == (
        f"{name} reads its tensor argument 2 in another way, too, which the gradient of that argument may leave out."
    )


def test_a_boolean_for_each_argument_is_refused(eager):
    """Numbers have none: a rule that counts them would leave out a gradient that is asked for."""

    @custom_gradient
    def f(alpha, x, w, b):
        def grad(upstream, needs_input_grad):
            needed = (*needs_input_grad, False)
            gradients = 7 * alpha * upstream * w, 11 * alpha * upstream * x, 13 * upstream
            return None, *[each if needed[place] else None for place, each in enumerate(gradients, 1)]

        return alpha * x * w + b, grad

    x, b = eager.tensor(X), eager.tensor(2 * X)
    message = "returned no gradient for w, which is asked for, and has a place for each static argument"
    with pytest.raises(GradientError, match=message):
        eager.gradients(lambda w: f(2.0, x, w, b), X)


def test_booleans_of_a_dict_in_another_order_are_refused(eager, backend):
    def f(p):
        def grad(upstream, needs_input_grad):
            return {"b": 7 * upstream * p["a"], "a": 11 * upstream * p["b"]}

        return p["b"] * p["a"], grad

    decorated = custom_gradient(f)
    other = eager.tensor(2 * X)
    both = eager.gradients(lambda b, a: decorated({"b": b, "a": a}), X, 2 * X)
    np.testing.assert_allclose(both, [14 * X, 11 * X])
    np.testing.assert_allclose(eager.gradients(lambda b: decorated({"a": other, "b": b}), X)[0], 14 * X)
    with pytest.raises(TypeError, match="is about a dict whose keys were not inserted in sorted order"):
        eager.gradients(lambda b: decorated({"b": b, "a": other}), X)
