"""torch: the backward pass of an ordinary call, and of every call that is not so ordinary."""

import contextlib
import contextvars
import functools
import sys
import threading
import types

import numpy as np
import pytest

import keras_cg
from keras_cg import CapturedVariableError, custom_gradient, ops

pytestmark = pytest.mark.only("torch")

X, Y = [-1.0, 0.5, 2.0], [3.0, -2.0, 0.25]


def tensor(array, **options):
    import torch

    return torch.tensor(array, **{"requires_grad": True, **options})


def gradients(output, *tensors):
    import torch

    outputs = output if isinstance(output, tuple) else (output,)
    return [each.numpy() for each in torch.autograd.grad(sum(part.sum() for part in outputs), tensors)]


@custom_gradient
def f(x):
    e = ops.exp(x)
    return x * 2, lambda upstream: 7 * upstream * e


# --- tensors of every kind -------------------------------------------------------------------------------------------


def test_a_dict_in_another_order(backend):
    f = custom_gradient(
        lambda nest: (next(iter(nest.values())) * 1, lambda upstream: {"a": 7 * upstream, "b": 3 * upstream})
    )
    x, y = tensor(X), tensor(Y)
    for nest, expected in (({"a": x, "b": y}, X), ({"b": y, "a": x}, Y)):
        output = f(nest)
        np.testing.assert_allclose(output.detach(), expected)
        assert [float(each[0]) for each in gradients(output, x, y)] == [7.0, 3.0]


def test_tensors_without_numbers(torch):
    """Those of the device "meta"."""
    f = custom_gradient(lambda x: (x.exp(), lambda upstream: 7 * upstream))
    x = torch.empty(3, device="meta", requires_grad=True)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(f(x).sum(), x)
        assert (gradient.device.type, gradient.shape) == ("meta", (3,))


def test_a_subclass_without_memory(torch):
    from torch.testing._internal.two_tensor import TwoTensor

    f = custom_gradient(lambda x: (x.exp(), lambda upstream: 7 * upstream * x))
    x = TwoTensor(torch.tensor(X), torch.tensor(Y)).requires_grad_()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(f(x).sum(), x)
        np.testing.assert_allclose((gradient.a.numpy(), gradient.b.numpy()), 7 * np.array([X, Y]))


def test_subclasses_and_inference_tensors(torch):
    class Own(torch.Tensor):
        pass

    own = tensor(X, requires_grad=False).as_subclass(Own).requires_grad_()
    np.testing.assert_allclose(gradients(f(own), own)[0], 7 * np.exp(X), rtol=1e-6)
    with torch.inference_mode():
        constant = torch.tensor(Y)
        np.testing.assert_allclose(f(constant), 2 * np.array(Y))
    np.testing.assert_allclose(f(constant), 2 * np.array(Y))
    beside, x = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream, None))), tensor(X)
    np.testing.assert_allclose(gradients(beside(x, constant), x)[0], [7, 7, 7])


def test_sparse_tensors(torch):
    f = custom_gradient(lambda x: (torch.sparse.sum(x), lambda upstream: 7 * upstream * x))
    x = torch.tensor(X).to_sparse().requires_grad_()
    (gradient,) = torch.autograd.grad(f(x), x)
    np.testing.assert_allclose(gradient.to_dense(), 7 * np.array(X))


def test_outputs_that_are_no_floating_tensor(torch):
    f = custom_gradient(lambda x: ((x * 1, (x > 0).int()), lambda upstream: 7 * upstream[0]))
    output, positive = f(x := tensor(X))
    assert positive.dtype is torch.int32 and not positive.requires_grad
    assert gradients(output, x)[0][0] == 7


def test_a_wider_gradient_is_cast_and_none_is_none(backend):
    cast = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream.double()))
    nothing = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream, None)))
    x, y = tensor(X), tensor(Y)
    assert gradients(cast(x), x)[0].dtype == np.float32
    nothing(x, y).sum().backward()
    assert y.grad is None


# --- what a rule reads -----------------------------------------------------------------------------------------------


class Box:
    kept = None


# Where a function puts a tensor, and its rule finds it: nothing of the rule refers to it.
REACHED = {
    "a dict of a module": ("store.kept['e'] = {}", "store.kept['e']"),
    "a module in a module": ("store.inner.e = {}", "store.inner.e"),
    "a global class": ("Box.kept = {}", "Box.kept"),
    "a global": ("globals()['there'] = {}", "globals()['there']"),
    "a builtin": ("import builtins; builtins.kept_by_a_test = {}", "kept_by_a_test"),
    "an imported module": ("import store_of_a_test; store_of_a_test.e = {}", "__import__('store_of_a_test').e"),
    "a context variable": ("variable.set({})", "variable.get()"),
}


@pytest.mark.parametrize("place", REACHED)
def test_what_the_rule_reaches_by_something_else(backend, place, monkeypatch):
    import builtins

    import torch

    store = types.ModuleType("store_of_a_test")
    store.kept, store.inner = {}, types.ModuleType("inner")
    monkeypatch.setitem(sys.modules, "store_of_a_test", store)
    monkeypatch.setattr(builtins, "kept_by_a_test", None, raising=False)
    scope = {"store": store, "Box": Box, "variable": contextvars.ContextVar("kept")}
    put, get = REACHED[place]
    exec(f"def f(x):\n    {put.format('x * x')}\n    return x**3, lambda upstream: upstream * 7 * {get}", scope)
    f, x = custom_gradient(scope["f"]), tensor([3.0])
    (first,) = torch.autograd.grad(f(x) ** 2, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    # Of 14 x⁵: the rule gives 7 x² upstream, and upstream is 2 x³, whose derivative the rule gives as 14 x².
    assert (first.item(), second.item()) == (3402, 10206)


@pytest.mark.parametrize("has_hooks", [False, True])
def test_what_only_the_rule_reads_is_differentiated_outside(torch, has_hooks):
    slope = torch.nn.Parameter(torch.tensor(3.0))
    f = custom_gradient(lambda x: (x.sign(), lambda upstream: 7 * upstream * slope))
    with torch.autograd.graph.save_on_cpu() if has_hooks else contextlib.nullcontext():
        (gradient,) = keras_cg.grad(lambda x: f(x).sum(), (0,))(tensor(X))
    np.testing.assert_allclose(gradient.detach(), [21, 21, 21])
    np.testing.assert_allclose(gradients(gradient, slope)[0], 21)


@pytest.mark.parametrize("way", ["generator", "nonlocal", "shared"])
def test_a_variable_that_other_code_binds_after_the_call(backend, way):
    """The rule is not copied where no other code has its cells; here other code has them."""
    bind = []

    def generator(x):
        k = 7.0
        yield x * 2, lambda upstream: k * upstream
        k = 3.0
        yield

    def nonlocal_(x):
        k = 7.0

        def again():
            nonlocal k
            k = 3.0

        bind.append(again)
        return x * 2, lambda upstream: k * upstream

    def factory():
        k = 7.0

        def again():
            nonlocal k
            k = 3.0

        def rule(upstream):
            return k * upstream

        bind.append(again)
        return lambda x: (x * 2, rule)

    def started(x):
        running = generator(x)
        bind.append(lambda: next(running))
        return next(running)

    f = custom_gradient({"generator": started, "nonlocal": nonlocal_, "shared": factory()}[way])
    x = tensor(X)
    y = f(x)
    for each in bind:
        each()
    np.testing.assert_allclose(gradients(y, x)[0], [7, 7, 7])


def test_a_cell_that_is_bound_again_before_the_call_ends(backend):
    def f(x):
        e = x * 7

        def rule(upstream):
            return upstream * e

        output = x * 1
        e = x * 3
        return output, rule

    x = tensor(X)
    np.testing.assert_allclose(gradients(custom_gradient(f)(x), x)[0], 3 * np.array(X))


def test_a_parameter_that_the_function_captures(torch):
    p = torch.nn.Parameter(torch.tensor(2.0))
    trained = [False]
    f = custom_gradient(lambda x: (x * (p if trained[0] else 2.0), lambda upstream: 7 * upstream))
    for options in ({}, {"requires_grad": False}):
        x = tensor(X, **options)
        trained[0] = False
        f(x)
        trained[0] = True
        with pytest.raises(CapturedVariableError):
            f(x)


def test_random_numbers_of_the_first_run_are_those_of_the_rule(torch):
    """In higher orders the function would draw others, and raises."""

    @custom_gradient
    def f(x):
        e = x * torch.rand(3)
        return x * 1, lambda upstream: 7 * upstream * e * e

    torch.manual_seed(5)
    mask = torch.rand(3)
    torch.manual_seed(5)
    x = tensor(X)
    np.testing.assert_allclose(gradients(f(x), x)[0], (7 * mask**2).numpy() * np.array(X) ** 2, rtol=1e-6)
    with pytest.raises(RuntimeError, match="its rule is not that of the first run"):
        torch.autograd.grad(f(x).sum(), x, create_graph=True)


def test_a_rule_that_is_another_from_call_to_call(backend):
    rules = {
        7: lambda upstream: 7 * upstream,
        3: lambda *args, upstream: 3 * upstream,
        5: functools.partial(lambda times, upstream: times * upstream, 5),
        2: lambda *dys: 2 * dys[0],
    }
    chosen = []
    f = custom_gradient(lambda x: (x * 1, rules.get(chosen[-1])))
    x = tensor(X)
    for expected in (*rules, *rules):
        chosen.append(expected)
        assert gradients(f(x), x)[0][0] == expected
    chosen.append(None)
    with pytest.raises(TypeError, match="rule"):
        f(x)


def test_the_backend_of_the_call_is_that_of_its_rule(backend):
    def f(x):
        def rule(upstream):
            import keras_cg as imported

            return ops.where(x < 9, 7 * upstream, 0) if imported.backend() == "torch" else upstream

        return x * 1, rule

    x = tensor(X)
    output = custom_gradient(f)(x)
    with keras_cg.use_backend("numpy"):
        np.testing.assert_allclose(gradients(output, x)[0], [7, 7, 7])


def test_many_threads(backend):
    wrong = []

    def run(seed):
        import torch

        x = torch.tensor(np.random.default_rng(seed).normal(size=seed % 4 + 1), requires_grad=True)
        for _ in range(50):
            with keras_cg.use_backend("torch"):
                found = gradients(f(x), x)[0]
            if not np.allclose(found, 7 * np.exp(x.detach().numpy())):
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
