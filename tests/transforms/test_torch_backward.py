"""torch's fast path for ordinary calls, and what leaves it: before and after the function ran, and in the backward."""

import contextlib
import functools
import sys
import threading
import types
import weakref

import numpy as np
import pytest

import keras_cg
from keras_cg import CapturedVariableError, GradientError, custom_gradient, ops

pytestmark = pytest.mark.only("torch")

X, Y = [-1.0, 0.5, 2.0], [3.0, -2.0, 0.25]
factor = 7.0


def tensor(array, **options):
    import torch

    return torch.tensor(array, **{"requires_grad": True, **options})


def gradients(output, *tensors):
    import torch

    outputs = output if isinstance(output, tuple) else (output,)
    return [each.numpy() for each in torch.autograd.grad(sum(part.sum() for part in outputs), tensors)]


def with_exp(make):
    """A decorated function of one tensor whose rule `make` makes of exp(x)."""
    return custom_gradient(lambda x: (x * 2, make(ops.exp(x))))


def default_of_a_number(e):
    def rule(upstream, times=7.0):
        return times * upstream * e

    return rule


def keyword_only(e):
    def rule(upstream, *, times=7.0):
        return times * upstream * e

    return rule


def helper(e):
    return factor * e


RULES = {
    "closure": lambda e: lambda upstream: 7 * upstream * e,
    "nothing": lambda e: lambda upstream: upstream * 7,
    "namespace": lambda e: lambda upstream: ops.where(e > 0, 7 * upstream * e, 0),
    "helper of the module": lambda e: lambda upstream: upstream * helper(e),
    "tuple": lambda e: lambda upstream: (7 * upstream * e,),
    "leaves": lambda e: lambda *dys: 7 * dys[0] * e,
    "default": default_of_a_number,
    "keyword only": keyword_only,
    "as Keras has it": lambda e: lambda *args, upstream=None: 7 * upstream * e,
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_of_each_form(backend, name):
    f = with_exp(RULES[name])
    x = tensor(X)
    expected = np.full(3, 7.0) if name == "nothing" else 7 * np.exp(X)
    for _ in range(3):
        np.testing.assert_allclose(gradients(f(x), x)[0], expected, rtol=1e-6)


def test_arguments_in_nests(backend):
    import torch

    @custom_gradient
    def f(x, nest):
        e = torch.exp(nest["y"])
        return {"u": x * e, "v": x + e}, lambda upstream: (7 * upstream["u"] * e, {"y": 3 * upstream["v"] * x})

    x, y = tensor(X), tensor(Y)

    output = f(x, {"y": y})
    found = gradients((output["u"], output["v"]), x, y)
    np.testing.assert_allclose(found[0], 7 * np.exp(Y), rtol=1e-6)
    np.testing.assert_allclose(found[1], 3 * np.array(X), rtol=1e-6)


def test_a_dict_in_another_order(backend):
    f = custom_gradient(
        lambda nest: (next(iter(nest.values())) * 1, lambda upstream: {"a": 7 * upstream, "b": 3 * upstream})
    )
    x, y = tensor(X), tensor(Y)
    for _ in range(3):
        first, other = f({"a": x, "b": y}), f({"b": y, "a": x})
        np.testing.assert_allclose(first.detach().numpy(), X)
        np.testing.assert_allclose(other.detach().numpy(), Y)
        assert [float(each[0]) for each in gradients(other, x, y)] == [7.0, 3.0]


def test_numbers_among_the_arguments(backend):
    f = custom_gradient(lambda x, times: (x * times, lambda upstream: 7 * times * upstream))
    x = tensor(X)
    for times in (2.0, 3.0, 4, True):
        assert gradients(f(x, times), x)[0][0] == 7 * times


def test_a_parameter(backend):
    import torch

    f = with_exp(RULES["closure"])
    x = torch.nn.Parameter(torch.tensor(X))
    np.testing.assert_allclose(gradients(f(x), x)[0], 7 * np.exp(X), rtol=1e-6)


def test_second_and_third_order(backend):
    import torch

    f = with_exp(RULES["closure"])
    for _ in range(3):
        x = tensor(X, dtype=torch.float64)
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
        e = np.exp(X)
        np.testing.assert_allclose(first.detach(), 7 * e, rtol=1e-12)
        np.testing.assert_allclose(second.detach(), 2 * 49 * e**2, rtol=1e-12)
        np.testing.assert_allclose(third, 4 * 49 * e**2, rtol=1e-12)


class Box:
    kept = None


def test_what_the_rule_reaches_by_something_else(backend, monkeypatch):
    import builtins
    import types

    import torch

    store = types.ModuleType("store_of_a_test")
    store.kept, store.box, store.inner = {}, Box(), types.ModuleType("inner")
    monkeypatch.setitem(sys.modules, "store_of_a_test", store)
    monkeypatch.setattr(builtins, "kept_by_a_test", None, raising=False)
    scope = {"store": store, "Box": Box, "torch": torch}
    ways = [
        ("store.kept['e'] = {}", "store.kept['e']"),
        ("store.box.e = {}", "store.box.e"),
        ("store.inner.e = {}", "store.inner.e"),
        ("Box.kept = {}", "Box.kept"),
        ("globals()['there'] = {}", "globals()['there']"),
        ("import builtins; builtins.kept_by_a_test = {}", "kept_by_a_test"),
        ("import store_of_a_test; store_of_a_test.e = {}", "__import__('store_of_a_test').e"),
        ("import store_of_a_test as s; s.kept[1] = {}", "(lambda: __import__('store_of_a_test'))().kept[1]"),
    ]
    for put, get in ways:
        exec(
            f"def f(x):\n    {put.format('x * x')}\n    return x**3, lambda upstream: upstream * 7 * {get}",
            scope,
        )
        f = custom_gradient(scope["f"])
        for _ in range(3):
            x = tensor([3.0])
            (first,) = torch.autograd.grad(f(x) ** 2, x, create_graph=True)
            (second,) = torch.autograd.grad(first, x)
            # Of 14 x⁵: the rule gives 7 x² upstream, and upstream is 2 x³, whose derivative the rule gives as 14 x².
            assert (first.item(), second.item()) == (3402, 10206), put


def helped(x, i):
    if i > 0:
        given_a_tensor.there = x * x

    def rule(upstream):
        own = given_a_tensor
        return upstream * 7 * (own.there if i > 0 else x * x)

    return x**3, rule


def given_a_tensor():
    return 1.0


def test_a_helper_that_is_given_a_tensor_later(backend, monkeypatch):
    import torch

    f = custom_gradient(helped)
    monkeypatch.setattr(given_a_tensor, "there", None, raising=False)
    del given_a_tensor.there
    for i in (0, 0, 0, 1, 1, 0):
        x = tensor([3.0])
        (first,) = torch.autograd.grad(f(x, i) ** 2, x, create_graph=True)
        (second,) = torch.autograd.grad(first, x)
        assert (first.item(), second.item()) == (3402, 10206), i


def around_helpers(backward):
    """A decorated function in whose cells there is another one, as a factory makes it; its gradient is 7 x²."""

    def forward(x):
        return x**3

    def function(x):
        e = x * x

        def rule(upstream):
            return upstream * backward(e)

        return forward(x), rule

    def bind(other):
        nonlocal backward
        backward = other

    return custom_gradient(function), bind


def second_order(f, *args):
    """The gradient of the square at 3, and the gradient of that."""
    import torch

    x = tensor([3.0])
    (first,) = torch.autograd.grad(f(x, *args) ** 2, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    return first.item(), second.item()


def times(number):
    return lambda e: number * e


def counting_down(e):
    def down(count):
        return 7 * e if count == 0 else down(count - 1)

    return down(3)


def test_helpers_in_cells(backend):
    f, bind = around_helpers(times(7))
    x = tensor([3.0])
    assert gradients(f(x), x)[0] == [63]
    assert second_order(f) == (3402, 10206)
    # By another function, that is there now.
    bind(times(-1))
    for _ in range(3):
        assert gradients(f(x), x)[0] == [-9]
        # Of 2 x³ (-x²), where the rule gives -x² for the derivative of x³.
        assert second_order(f) == (-486, -162)


def test_helpers_that_call_each_other(backend):
    def odd(count, e):
        return even(count - 1, e)

    def even(count, e):
        return 7 * e if count == 0 else odd(count - 1, e)

    f, _ = around_helpers(lambda e: even(4, e))
    g, _ = around_helpers(counting_down)
    for _ in range(3):
        assert second_order(f) == second_order(g) == (3402, 10206)


def test_a_helper_in_a_cell_that_holds_a_tensor(backend):
    """The second order would lack a part without it."""

    def function(x):
        e = x * x

        def helper():
            return 7 * e

        return x**3, lambda upstream: upstream * helper()

    f = custom_gradient(function)
    for _ in range(3):
        assert second_order(f) == (3402, 10206)


def test_a_helper_in_a_cell_that_is_given_a_tensor_later(backend):
    number = 7.0

    def reads():
        return number

    def bind(other):
        nonlocal number
        number = other

    def function(x, is_there):
        if is_there:
            bind(x * x)
        return x**3, lambda upstream: upstream * 7 * (reads() if is_there else x * x)

    f = custom_gradient(function)
    for is_there in (False, False, False, True, True, False):
        assert second_order(f, is_there) == (3402, 10206), is_there


def test_a_module_in_a_cell(backend):
    module = types.ModuleType("kept_in_a_cell")

    def function(x, is_there):
        if is_there:
            module.there = x * x
        return x**3, lambda upstream: upstream * module.factor * (module.there if is_there else x * x)

    f, module.factor = custom_gradient(function), 7.0
    for is_there in (False, False, False, True, True, False):
        assert second_order(f, is_there) == (3402, 10206), is_there
    del module.there
    x = tensor([3.0])
    assert gradients(f(x, False), x)[0] == [63]
    module.factor = -1.0
    assert gradients(f(x, False), x)[0] == [-9]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks a non-leaf for it
def test_a_compiled_output_that_is_the_argument_is_not_changed_in_place(backend):
    import torch

    f = custom_gradient(lambda x: (x, lambda upstream: 7 * upstream))
    x = tensor(X)
    doubled = torch.compile(lambda z: f(z) * 2, backend="aot_eager", fullgraph=True)
    assert gradients(doubled(x * 1), x)[0][0] == 14
    changed = torch.compile(lambda z: f(z).mul_(3), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="view"):
        changed(x * 1)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.limit
def test_a_compiled_output_that_is_a_part_of_the_argument_loses_its_gradient_in_place(backend):
    """A limit: Dynamo (2.13) does not tell what shares memory with what."""
    import torch

    f = custom_gradient(lambda x: (x[1:], lambda upstream: 7 * ops.ones(3)))
    changed = torch.compile(lambda z: f(z).mul_(3), backend="aot_eager", fullgraph=True)
    assert not changed(tensor(X) * 1).requires_grad
    copied = torch.compile(lambda z: f(z).clone().mul_(3), backend="aot_eager", fullgraph=True)
    x = tensor(X)
    assert gradients(copied(x * 1), x)[0][0] == 7


def test_what_is_kept_in_a_context_variable(backend):
    import contextvars

    import torch

    kept = contextvars.ContextVar("kept")

    def f(x):
        kept.set(x * x)
        return x**3, lambda upstream: upstream * 7 * kept.get()

    g = custom_gradient(f)
    x = tensor([3.0])
    (first,) = torch.autograd.grad(g(x) ** 2, x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (3402, 10206)


def test_the_backend_of_a_rule_that_imports(backend):
    x = tensor(X)

    def f(x):
        def rule(upstream):
            import keras_cg as imported

            return upstream * (7 if imported.backend() == "torch" else 1)

        return x * 1, rule

    g = custom_gradient(f)
    for _ in range(3):
        output = g(x)
        with keras_cg.use_backend("numpy"):
            assert gradients(output, x)[0][0] == 7


def test_a_dict_with_tensors_for_keys_is_not_kept(backend):
    import gc
    import weakref

    f = custom_gradient(
        lambda nest: (next(iter(nest.values())) * 1, lambda upstream: dict.fromkeys(nest, 7 * upstream))
    )
    key, x = tensor(X), tensor(X)
    for _ in range(3):
        assert gradients(f({key: x}), x)[0][0] == 7
    gone = weakref.ref(key)
    del key
    gc.collect()
    assert gone() is None


def test_a_gradient_that_is_a_view_of_its_argument(backend):
    f = custom_gradient(lambda x: (x * 1, lambda *args, upstream=None: args[0].view(3)))
    for _ in range(3):
        x = tensor(X)
        f(x).sum().backward()
        x.grad.zero_()
        np.testing.assert_array_equal(x.detach(), X)


# --- left, wherever it must be ----------------------------------------------------------------------------------------


def test_a_rule_that_is_another_from_call_to_call(backend):
    rules = [
        lambda upstream: 7 * upstream,
        lambda *args, upstream: 3 * upstream,
        functools.partial(lambda times, upstream: times * upstream, 5),
        lambda *dys: 2 * dys[0],
        None,
    ]
    f = custom_gradient(lambda x: (x * 1, rules[0]))
    x = tensor(X)
    for _ in range(3):
        for expected in (7, 3, 5, 2):
            assert gradients(f(x), x)[0][0] == expected
            rules.append(rules.pop(0))
        with pytest.raises(TypeError, match="rule"):
            f(x)
        rules.append(rules.pop(0))


def test_a_rule_of_the_same_code_that_holds_something_else(backend):
    held = [7.0]

    def f(x):
        kept = held[0]
        return x * 1, lambda upstream: upstream * (1.0 if kept is None else kept)

    g, x = custom_gradient(f), tensor(X)
    for _ in range(3):
        for value, expected in ((7.0, 7), (None, 1), (tensor([5.0] * 3, requires_grad=False), 5), (3, 3)):
            held[0] = value
            assert gradients(g(x), x)[0][0] == expected


def test_a_cell_that_is_bound_again_after_the_call(backend):
    def f(x):
        e = x * 7

        def rule(upstream):
            return upstream * e

        output = x * 1
        e = x * 3
        return output, rule

    g, x = custom_gradient(f), tensor(X)
    for _ in range(3):
        np.testing.assert_allclose(gradients(g(x), x)[0], 3 * np.array(X))


def test_a_global_that_becomes_a_tensor(backend, monkeypatch):
    import torch

    scope = {"factor": 7.0}
    exec("f = lambda x: (x * 1, lambda upstream: upstream * factor)", scope)
    f, x = custom_gradient(scope["f"]), tensor(X)
    for value in (7.0, 3.0, torch.tensor(5.0), 7.0):
        scope["factor"] = value
        for _ in range(3):
            assert gradients(f(x), x)[0][0] == float(value)


def test_code_with_other_globals_and_other_defaults(backend):
    import types

    def rule(upstream, times=7.0):
        return upstream * times

    made = [
        rule,
        types.FunctionType(rule.__code__, globals(), None, (3.0,)),
        types.FunctionType(rule.__code__, {"__builtins__": {}}, None, (5.0,)),
    ]
    f, x = custom_gradient(lambda x: (x * 1, made[0])), tensor(X)
    for _ in range(4):
        for expected in (7, 3, 5):
            assert gradients(f(x), x)[0][0] == expected
            made.append(made.pop(0))


def test_other_dtypes_and_shapes(backend):
    import torch

    f = with_exp(RULES["closure"])
    for _ in range(3):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            x = tensor(X, dtype=dtype)
            (gradient,) = torch.autograd.grad(f(x).sum(), x)
            assert gradient.dtype is dtype
            np.testing.assert_allclose(gradient.double(), 7 * np.exp(X), rtol=2e-2 if dtype is torch.bfloat16 else 1e-6)
        x = tensor([X, Y])
        assert gradients(f(x), x)[0].shape == (2, 3)


def test_a_gradient_that_is_none_is_refused_each_time(backend):
    f = custom_gradient(lambda x: (x * 1, lambda upstream: upstream.sum()))
    cast = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream.double()))
    nothing = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream, None)))
    x, y = tensor(X), tensor(Y)
    for _ in range(4):
        with pytest.raises(GradientError, match="shape"):
            gradients(f(x), x)
        assert gradients(cast(x), x)[0].dtype == np.float32
        nothing(x, y).sum().backward()
        assert y.grad is None


def test_subclasses_keywords_and_inference(backend):
    import torch

    class Own(torch.Tensor):
        pass

    f = with_exp(RULES["closure"])
    x = tensor(X)
    other = tensor(X, requires_grad=False).as_subclass(Own).requires_grad_()
    np.testing.assert_allclose(gradients(f(other), other)[0], 7 * np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(gradients(f(x=x), x)[0], 7 * np.exp(X), rtol=1e-6)
    with torch.inference_mode():
        constant = torch.tensor(X)
    np.testing.assert_allclose(f(constant), 2 * np.array(X))
    with torch.inference_mode():
        np.testing.assert_allclose(f(constant), 2 * np.array(X))


def test_outputs_that_are_no_floating_tensor(backend):
    import torch

    f = custom_gradient(lambda x: ((x * 1, (x > 0).int()), lambda upstream: 7 * upstream[0]))
    x = tensor(X)
    for _ in range(3):
        output, positive = f(x)
        assert positive.dtype is torch.int32
        assert gradients(output, x)[0][0] == 7


def test_an_output_that_shares_memory_with_its_argument(backend):
    f = custom_gradient(lambda x: (x[1:], lambda upstream: ops.ones(3) * 7))
    for _ in range(3):
        x = tensor(X)
        assert gradients(f(x), x)[0][0] == 7
        y = x * 1
        output = f(y)
        assert output._base is y and output.data_ptr() == y[1:].data_ptr()
        y.mul_(2)
        with pytest.raises(RuntimeError, match="has been modified inplace"):
            output.sum().backward()


def test_what_changes_in_place(backend):
    def careless(x):
        x.mul_(2)
        return x * 1, lambda upstream: 7 * upstream

    f, g = custom_gradient(careless), with_exp(RULES["as Keras has it"])
    for _ in range(3):
        with pytest.raises(RuntimeError, match="in place"):
            f(tensor(X) * 1)
        x = tensor(X) * 1
        output = custom_gradient(lambda x: (x * 2, lambda upstream: upstream * x))(x)
        x.mul_(3)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()
        x = tensor(X)
        np.testing.assert_allclose(gradients(g(x), x)[0], 7 * np.exp(X), rtol=1e-6)


def test_a_parameter_that_the_function_captures(backend):
    import torch

    p = torch.nn.Parameter(torch.tensor(2.0))
    trained = [False]
    f = custom_gradient(lambda x: (x * (p if trained[0] else 2.0), lambda upstream: 7 * upstream))
    for arguments in ({}, {"requires_grad": False}):
        x = tensor(X, **arguments)
        for _ in range(3):
            trained[0] = False
            f(x)
            trained[0] = True
            with pytest.raises(CapturedVariableError):
                f(x)


def test_random_numbers_of_the_first_run_are_those_of_the_rule(backend):
    """In higher orders the function would draw others, and raises."""
    import torch

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


def test_the_backend_of_the_call_is_that_of_its_rule(backend):
    f = with_exp(RULES["namespace"])
    x = tensor(X)
    for _ in range(3):
        output = f(x)
        with keras_cg.use_backend("numpy"):
            np.testing.assert_allclose(gradients(output, x)[0], 7 * np.exp(X), rtol=1e-6)


def test_a_method_and_an_object(backend):
    class Layer:
        times = 7

        @custom_gradient
        def method(self, x):
            return x * 1, lambda upstream: self.times * upstream

    layer, x = Layer(), tensor(X)
    for times in (7, 3, 5):
        layer.times = times
        for _ in range(3):
            assert gradients(layer.method(x), x)[0][0] == times


def test_many_threads(backend):
    f = with_exp(RULES["closure"])
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


def test_tensors_without_numbers(backend):
    """Those of the device "meta"."""
    import torch

    f = custom_gradient(lambda x: (x.exp(), lambda upstream: 7 * upstream))
    x = torch.empty(3, device="meta", requires_grad=True)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(f(x).sum(), x)
        assert (gradient.device.type, gradient.shape) == ("meta", (3,))


def test_a_subclass_without_memory(backend):
    import torch
    from torch.testing._internal.two_tensor import TwoTensor

    f = custom_gradient(lambda x: (x.exp(), lambda upstream: 7 * upstream * x))
    x = TwoTensor(torch.tensor(X), torch.tensor(Y)).requires_grad_()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(f(x).sum(), x)
        np.testing.assert_allclose((gradient.a.numpy(), gradient.b.numpy()), 7 * np.array([X, Y]))


def test_an_inference_tensor_beside_one_that_is_differentiated(backend):
    import torch

    with torch.inference_mode():
        constant = torch.tensor(Y)
    f = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream, None)))
    x = tensor(X)
    np.testing.assert_allclose(gradients(f(x, constant), x)[0], [7, 7, 7])


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_backward_pass_that_frees_the_graph_frees_what_the_rule_holds(backend, is_recorded):
    import torch

    exponentials = []

    @custom_gradient
    def f(x):
        e = torch.exp(x)
        exponentials.append(weakref.ref(e))
        return e * 2, lambda upstream: 7 * upstream * e

    x = tensor(X)
    y = f(x).sum()
    torch.autograd.grad(y, x, retain_graph=True)
    assert exponentials[0]() is not None
    (gradient,) = torch.autograd.grad(y, x, retain_graph=False, create_graph=is_recorded)
    np.testing.assert_allclose(gradient.detach(), 7 * np.exp(X), rtol=1e-6)
    assert exponentials[0]() is None


@pytest.mark.parametrize("has_hooks", [False, True])
def test_what_only_the_rule_reads_is_differentiated_outside(backend, has_hooks):
    import torch

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
