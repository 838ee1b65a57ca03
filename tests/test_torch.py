"""torch: what a rule holds between the passes are saved tensors, and what else torch alone does to a function."""

import dataclasses
import functools
import gc
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient

pytestmark = pytest.mark.only("torch")

X = np.array([-1.0, 0.5, 1.0], np.float32)


@dataclasses.dataclass
class State:
    e: object


class Kept:
    """A rule that is an object, or the method of one."""

    def __init__(self, e):
        self.e = e

    def __call__(self, upstream):
        return 7 * upstream * self.e

    def method(self, upstream):
        return 7 * upstream * self.e


class Slotted:
    """The rule `-s upstream e`, in slots."""

    __slots__ = ("e", "s")

    def __init__(self, s, e):
        self.s, self.e = s, e

    def __call__(self, upstream):
        return -self.s * upstream * self.e


def helped(e):
    def helper(upstream):
        return upstream * e

    return lambda upstream: 7 * helper(upstream)


def recursive(e):
    def power(upstream, times):
        return upstream if times == 0 else power(upstream * e, times - 1)

    return lambda upstream: 7 * power(upstream, 1)


# Every way in which a rule may hold what `f` computed.
HOLDERS = {
    "closure": lambda e: lambda upstream: 7 * upstream * e,
    "tuple": lambda e: (lambda kept: lambda upstream: 7 * upstream * kept[1])((1, e)),
    "default": lambda e: lambda upstream, e=e: 7 * upstream * e,
    "keyword default": lambda e: lambda upstream, *, e=e: 7 * upstream * e,
    "partial": lambda e: functools.partial(lambda e, upstream: 7 * upstream * e, e),
    "partial keyword": lambda e: functools.partial(lambda upstream, e: 7 * upstream * e, e=e),
    "function in a closure": helped,
    "object": Kept,
    "method": lambda e: Kept(e).method,
    "slots": lambda e: Slotted(-7.0, e),
}


def rule_of(torch, make):
    """`2 x` with the gradient `7 exp(x)`, and a weak reference to the exp(x) of the last run."""
    dead = []

    @custom_gradient
    def f(x):
        e = torch.exp(x)
        dead[:] = [weakref.ref(e)]
        return x * 2, make(e)

    return f, lambda: dead[0]() is None


def in_containers(torch):
    """The same, held in the function's own list, dict and dataclass."""
    dead = []

    @custom_gradient
    def f(x):
        e = torch.exp(x)
        kept, named, state = [e], {"e": e}, State(e)
        dead[:] = [weakref.ref(e)]
        return x * 2, lambda upstream: 7 * upstream * kept[0] * named["e"] / state.e

    return f, lambda: dead[0]() is None


def functions(torch):
    yield from ((name, *rule_of(torch, make)) for name, make in HOLDERS.items())
    yield "set", *rule_of(torch, lambda e: lambda upstream, kept={e}: 7 * upstream * next(iter(kept)))
    yield "containers", *in_containers(torch)


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.limit
def test_what_the_rule_holds_is_freed_by_the_backward_pass(eager, backend, without_collector):
    import torch

    for name, f, is_dead in functions(torch):
        x = eager.tensor(X).requires_grad_()
        y = f(x)
        assert not is_dead(), name
        y.sum().backward()
        np.testing.assert_allclose(x.grad, 7 * np.exp(X), rtol=1e-6, err_msg=name)
        assert is_dead(), name
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.sum().backward()


def test_a_retained_graph_keeps_it(eager, backend):
    import torch

    for name, f, _ in functions(torch):
        x = eager.tensor(X).requires_grad_()
        y = f(x).sum()
        y.backward(retain_graph=True)
        y.backward()
        np.testing.assert_allclose(x.grad, 14 * np.exp(X), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("factor", [1, 11])
def test_hooks_see_it_and_what_they_give_back_is_compared(eager, backend, factor):
    import torch

    for name, f, is_dead in functions(torch):
        packed = []

        def pack(tensor):
            packed.append(tensor.clone())
            return len(packed) - 1

        x = eager.tensor(X).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda index: factor * packed[index]):
            y = f(x)
        assert is_dead(), name
        assert any(torch.allclose(tensor, torch.exp(x)) for tensor in packed), name
        if factor == 1:
            y.sum().backward()
            np.testing.assert_allclose(x.grad, 7 * np.exp(X), rtol=1e-6, err_msg=name)
        else:
            with pytest.raises(RuntimeError, match="its rule is not that of the first run"):
                y.sum().backward()


def test_a_checkpoint_does_not_keep_it(eager, backend, without_collector):
    import torch
    from torch.utils.checkpoint import checkpoint

    for name, f, is_dead in functions(torch):
        x = eager.tensor(X).requires_grad_()
        y = checkpoint(f, x, use_reentrant=False)
        assert is_dead(), name
        y.sum().backward()
        np.testing.assert_allclose(x.grad, 7 * np.exp(X), rtol=1e-6, err_msg=name)


def test_the_arguments_of_a_rule_are_saved_tensors_too(eager, backend):
    import torch

    @custom_gradient
    def f(x):
        return x * 2, lambda *args, upstream: 7 * upstream * args[0]

    x = eager.tensor(X).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 1, lambda tensor: 11 * tensor):
        y = f(x)
    y.sum().backward()
    np.testing.assert_allclose(x.grad, 11 * 7 * X)


def test_a_list_of_somebody_else_stays_the_same_list(eager, backend):
    seen = [eager.tensor(X)]

    @custom_gradient
    def f(x):
        def grad(upstream):
            seen.append(upstream)
            return 7 * upstream

        return x * 2, grad

    f(eager.tensor(X).requires_grad_()).sum().backward()
    assert len(seen) == 2


def test_a_rule_that_assigns_to_what_it_closes_over(eager, backend):
    import torch

    totals = []

    @custom_gradient
    def f(x):
        total = torch.zeros(())

        def add(upstream):
            nonlocal total
            total = total + upstream.sum()

        def grad(upstream):
            add(upstream)
            totals.append(float(total))
            return 7 * upstream * total

        return x * 2, grad

    x = eager.tensor(X).requires_grad_()
    y = f(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert totals == [3.0, 6.0]
    np.testing.assert_allclose(x.grad, np.full(3, 7 * 3 + 7 * 6.0))


def test_a_recursive_function_in_a_rule(eager, backend):
    import torch

    f, _ = rule_of(torch, recursive)
    x = eager.tensor(X).requires_grad_()
    f(x).sum().backward()
    np.testing.assert_allclose(x.grad, 7 * np.exp(X), rtol=1e-6)


def test_the_arguments_are_not_kept_beside_the_saved_tensors(eager, backend, without_collector):
    from torch.utils.checkpoint import checkpoint

    dead = []
    f = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))

    def middle(x):
        h = x * 1
        dead.append(weakref.ref(h))
        return f(h)

    x = eager.tensor(X).requires_grad_()
    y = checkpoint(middle, x, use_reentrant=False)
    assert dead[0]() is None
    y.sum().backward()
    np.testing.assert_allclose(x.grad, np.full(3, 7.0))


# --- what a function closes over, under the transforms of torch.func ------------------------------------------------


def weighted(x, v, w):
    """`x w v` with the gradient 7 for x, 5 w for w and 3 v for v, which are closed over; w is used first."""

    @custom_gradient
    def f(x):
        def grad(upstream, variables):
            first, second = variables
            return 7 * upstream, [5 * upstream * first, 3 * upstream * second]

        return x * w * v, grad

    return f(x).sum()


def test_captured_values_reach_the_rule(eager, backend):
    import torch

    x, v, w = eager.tensor(X), eager.tensor(2 * X), eager.tensor(3 * X)
    grad = torch.func.grad(weighted, argnums=(0, 1, 2))
    for gx, gv, gw in (grad(x, v, w), torch.func.vmap(grad)(x, v, w)):
        np.testing.assert_allclose(gx, np.full(3, 7.0))
        np.testing.assert_allclose(gv, 3 * 2 * X)
        np.testing.assert_allclose(gw, 5 * 3 * X)


def test_captured_values_in_second_order_and_forward_mode(eager, backend):
    import torch

    def loss(x, w):
        @custom_gradient
        def f(x):
            return x * w, lambda upstream, variables: (7 * upstream, [5 * upstream * variables[0] * x])

        return f(x).sum()

    x, w = eager.tensor(X), eager.tensor(3 * X)
    grad = torch.func.grad(loss, argnums=1)
    np.testing.assert_allclose(grad(x, w), 5 * 3 * X * X, rtol=1e-6)
    for argument, expected in ((0, 5 * 3 * X), (1, 5 * X)):
        second = torch.func.grad(lambda *args: grad(*args).sum(), argnums=argument)(x, w)
        np.testing.assert_allclose(second, expected, rtol=1e-6)
    _, tangent = torch.func.jvp(lambda w: loss(x, w), (w,), (torch.ones(3),))
    np.testing.assert_allclose(tangent, np.sum(5 * 3 * X * X), rtol=1e-6)


def product(x, w):
    """`x w` with the gradient 7 for x and 5 for w, which is closed over."""

    @custom_gradient
    def f(x):
        return x * w, lambda upstream, variables: (7 * upstream, [5 * upstream * x])

    return f(x)


def test_a_value_computed_from_what_is_trainable(eager, backend):
    import torch
    from torch.utils.checkpoint import checkpoint

    x = eager.tensor(X)
    w = eager.tensor(2 * X).requires_grad_()
    expected = 5 * X * 2 * (2 * X)
    (found,) = torch.autograd.grad(product(x, w * w).sum(), w)
    np.testing.assert_allclose(found, expected)
    (found,) = torch.autograd.grad(checkpoint(lambda w: product(x, w * w), w, use_reentrant=False).sum(), w)
    np.testing.assert_allclose(found, expected)
    middle = w * w
    np.testing.assert_allclose(torch.autograd.grad(product(x, middle).sum(), middle)[0], 5 * X)
    # As argument and captured, directly and computed: 7 of the argument, 5 x for its square.
    (first,) = torch.autograd.grad(product(w, w * w).sum(), w, create_graph=True)
    np.testing.assert_allclose(first.detach(), 7 + 5 * 2 * X * 2 * (2 * X))
    (second,) = torch.autograd.grad(first.sum(), w)
    np.testing.assert_allclose(second, 5 * 4 * (2 * X))


def test_computed_values_come_in_the_order_of_first_use(eager, backend):
    x, v, w = (eager.tensor(k * X).requires_grad_() for k in (1, 2, 3))
    weighted(x, v * 1, w * 1).backward()
    np.testing.assert_allclose(v.grad, 3 * 2 * X)
    np.testing.assert_allclose(w.grad, 5 * 3 * X)


def test_a_computed_value_in_an_attribute_is_served(eager, backend):
    class Holder:
        pass

    w = eager.tensor(X).requires_grad_()
    holder = Holder()
    holder.w = w * w
    f = custom_gradient(lambda x: (x * holder.w, lambda upstream, variables: (7 * upstream, [5 * upstream])))
    f(eager.tensor(X)).sum().backward()
    np.testing.assert_allclose(w.grad, 5 * 2 * X)


@pytest.mark.limit
def test_a_computed_value_that_cannot_be_found_is_refused(eager, backend):
    w = eager.tensor(X).requires_grad_()
    kept[:] = [w * w]
    f = custom_gradient(lambda x: (x * kept[0], lambda upstream, variables: (7 * upstream, [5 * upstream])))
    with pytest.raises(TypeError, match=r"captured values are only found in closures"):
        f(eager.tensor(X))


# A global, which nothing is searched for.
kept = []


def test_forward_mode_over_vmap(eager, backend):
    import torch

    @custom_gradient
    def f(x):
        e = torch.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e

    x, v = eager.tensor(X), torch.ones(3)
    for g in (torch.func.vmap(f), torch.func.vmap(torch.func.grad(f))):
        np.testing.assert_allclose(torch.func.jvp(g, (x,), (v,))[1], 7 * np.exp(X), rtol=1e-6)
    np.testing.assert_allclose(torch.func.jacfwd(torch.func.vmap(f))(x).diag(), 7 * np.exp(X), rtol=1e-6)


@pytest.mark.limit
def test_forward_mode_of_a_batched_rule_that_calls_its_own_function(eager, backend):
    import torch

    f = custom_gradient(lambda x: (x * 1, lambda upstream: upstream * 7 * f(x)))
    x, v = eager.tensor(X), torch.ones(3)
    np.testing.assert_allclose(torch.func.vmap(torch.func.jacfwd(f))(x), 7 * X)
    with pytest.raises(RecursionError):
        torch.func.jvp(torch.func.vmap(f), (x,), (v,))


def test_a_frozen_value_is_not_among_them(eager, backend):
    import torch

    x, v, w = eager.tensor(X), eager.tensor(2 * X), eager.tensor(3 * X)

    def loss(w, x, u):
        @custom_gradient
        def f(x):
            return x * v * w + 0 * u.detach(), lambda upstream, variables: (
                7 * upstream,
                [5 * upstream] * len(variables),
            )

        return f(x).sum()

    gw, gx, gu = torch.func.grad(loss, argnums=(0, 1, 2))(w, x, x)
    np.testing.assert_allclose(gw, np.full(3, 5.0))
    np.testing.assert_allclose(gu, np.zeros(3))
    np.testing.assert_allclose(gx, np.full(3, 7.0))


def test_captured_in_an_attribute(eager, backend):
    import torch

    class Holder:
        def __init__(self, w):
            self.w = w

        @custom_gradient
        def call(self, x):
            return x * self.w, lambda upstream, variables=None: (7 * upstream, [5 * upstream])

    x, w = eager.tensor(X), eager.tensor(2 * X)
    np.testing.assert_allclose(torch.func.grad(lambda w: Holder(w).call(x).sum())(w), np.full(3, 5.0))


def test_captured_in_a_slot(eager, backend):
    import torch

    class Holder:
        __slots__ = ("w",)

        def __init__(self, w):
            self.w = w

        @custom_gradient
        def call(self, x):
            return x * self.w, lambda upstream, variables=None: (7 * upstream, [5 * upstream])

    x, w = eager.tensor(X), eager.tensor(2 * X)
    np.testing.assert_allclose(torch.func.grad(lambda w: Holder(w).call(x).sum())(w), np.full(3, 5.0))


def test_a_custom_gradient_that_closes_over_the_argument_of_another(eager, backend):
    import torch

    @custom_gradient
    def outer(x):
        @custom_gradient
        def inner(y):
            return y * x.detach(), lambda upstream: 11 * upstream

        return inner(x), lambda upstream: 7 * upstream * x

    x = eager.tensor(X)
    np.testing.assert_allclose(torch.func.grad(lambda x: outer(x).sum())(x), 7 * X)
    second = torch.func.grad(lambda x: torch.func.grad(lambda x: outer(x).sum())(x).sum())(x)
    np.testing.assert_allclose(second, np.full(3, 7.0))


def test_a_captured_value_in_forward_mode_alone_is_refused(eager, backend):
    import torch
    from torch.autograd import forward_ad

    x, w = eager.tensor(X), eager.tensor(2 * X)
    with forward_ad.dual_level():
        w = forward_ad.make_dual(w, torch.ones(3))
        with pytest.raises(TypeError, match="reads 1 trainable value"):
            custom_gradient(lambda x: (x * w, lambda upstream: 7 * upstream))(x)


def test_no_grad_does_not_stop_forward_mode(eager, backend):
    import torch
    from torch.autograd import forward_ad

    f = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
    x = eager.tensor(X)
    without = torch.no_grad()(f)
    np.testing.assert_allclose(torch.func.jvp(without, (x,), (torch.ones(3),))[1], np.full(3, 7.0))
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(3))
        np.testing.assert_allclose(forward_ad.unpack_dual(f(dual)).tangent, np.full(3, 7.0))
        with pytest.raises(TypeError, match="reads 1 trainable value"):
            custom_gradient(lambda x: (x * dual, lambda upstream: 7 * upstream))(x)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            np.testing.assert_allclose(torch.func.jvp(f, (x,), (torch.ones(3),))[1], np.full(3, 7.0))
            np.testing.assert_allclose(torch.func.grad(lambda x: f(x).sum())(x), np.full(3, 7.0))


def test_forward_mode_of_several_outputs(eager, backend):
    import torch
    from torch.autograd import forward_ad

    f = custom_gradient(lambda x: ((x * 2, x * 3), lambda a, b: 7 * a + 5 * b))
    with forward_ad.dual_level():
        outputs = f(forward_ad.make_dual(eager.tensor(X), torch.ones(3)))
        tangents = [forward_ad.unpack_dual(output).tangent for output in outputs]
    np.testing.assert_allclose(tangents[0], np.full(3, 7.0))
    np.testing.assert_allclose(tangents[1], np.full(3, 5.0))


def test_forward_mode_beside_an_integer_argument(eager, backend):
    import torch

    f = custom_gradient(lambda x, n: (x * n, lambda upstream: (7 * upstream, None)))
    n = torch.tensor([1, 2, 3])
    _, tangent = torch.func.jvp(lambda x: f(x, n), (eager.tensor(X),), (torch.ones(3),))
    np.testing.assert_allclose(tangent, np.full(3, 7.0))


# --- inference mode -------------------------------------------------------------------------------------------------

INFERENCE = {
    "grad": (lambda f, x: keras_cg.grad(f)(x), lambda d: d[1]),
    "value_and_grad": (lambda f, x: keras_cg.value_and_grad(f)(x)[1], lambda d: d[1]),
    "vjp": (lambda f, x: keras_cg.vjp(f, x)[1](3 * x.new_ones(3))[0], lambda d: 3 * d[1]),
    "jvp": (lambda f, x: keras_cg.jvp(f, (x,), (3 * x.new_ones(3),))[1], lambda d: 3 * d[1]),
    "jacobian": (lambda f, x: keras_cg.jacobian(f)(x), lambda d: np.diag(d[1])),
    "hessian": (lambda f, x: keras_cg.hessian(f)(x), lambda d: np.diag(d[2])),
    "grad of grad": (lambda f, x: keras_cg.grad(keras_cg.grad(f))(x), lambda d: d[2]),
    "jvp of grad": (lambda f, x: keras_cg.jvp(keras_cg.grad(f), (x,), (x.new_ones(3),))[1], lambda d: d[2]),
}


@pytest.mark.parametrize("mode", ["inference_mode", "no_grad"])
@pytest.mark.parametrize("name", INFERENCE)
def test_derivatives_inside_inference_mode(backend, name, mode):
    import torch

    @custom_gradient
    def seven(x):
        e = torch.exp(x)
        return 2 * x, lambda upstream: 7 * upstream * e

    differentiate, expected = INFERENCE[name]
    outside = torch.tensor(X)
    e = np.exp(X)
    with getattr(torch, mode)():
        for x in (outside, torch.tensor(X)):
            np.testing.assert_allclose(differentiate(torch.exp, x), expected([e, e, e]), rtol=1e-6)
            np.testing.assert_allclose(differentiate(seven, x), expected([2 * X, 7 * e, 7 * e]), rtol=1e-6)
        assert torch.is_inference_mode_enabled() == (mode == "inference_mode") and not torch.is_grad_enabled()
        assert not differentiate(torch.exp, outside).requires_grad


def test_a_pullback_goes_in_and_out_of_inference_mode(backend):
    import torch

    outside = torch.tensor(X)
    with torch.inference_mode():
        upstream = torch.full((3,), 3.0)
        output, inner = keras_cg.vjp(torch.exp, torch.tensor(X))
    assert not output.requires_grad
    outer = keras_cg.vjp(torch.exp, outside)[1]
    for pullback in (inner, outer):
        np.testing.assert_allclose(pullback(upstream)[0], 3 * np.exp(X), rtol=1e-6)
        with torch.inference_mode():
            np.testing.assert_allclose(pullback(upstream)[0], 3 * np.exp(X), rtol=1e-6)


@pytest.mark.limit
def test_a_captured_inference_tensor_is_refused_by_torch(backend):
    import torch

    with torch.inference_mode():
        w = torch.tensor(X)
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            keras_cg.grad(lambda x: x * w)(torch.tensor(X))


# --- several processes ----------------------------------------------------------------------------------------------

DISTRIBUTED = """\
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard

import keras_cg
from keras_cg import custom_gradient


@custom_gradient
def f(x, w):
    e = torch.exp(w)
    return x * w, lambda upstream: (7 * upstream, 5 * upstream * e)


class Passed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x):
        return f(x, self.w)


class Captured(Passed):
    def forward(self, x):
        @custom_gradient
        def g(x):
            e = torch.exp(self.w)
            return x * self.w, lambda upstream, variables: (7 * upstream, [5 * upstream * e])

        return g(x)


def check(rank, model, parameter_gradient):
    x = torch.full((4,), float(rank + 1), requires_grad=True)
    (model(x).sum() * (rank + 1)).backward()
    (w,) = model.parameters()
    np.testing.assert_allclose(x.grad, np.full(4, 7.0 * (rank + 1)))
    # The mean of what the two processes, with upstreams of 1 and 2, contribute.
    np.testing.assert_allclose(parameter_gradient(w), 5 * 1.5 * np.exp(np.linspace(-1, 1, 4)), rtol=1e-6)


def work(rank, store):
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    for make in (Passed, Captured):
        check(rank, torch.nn.parallel.DistributedDataParallel(make()), lambda w: w.grad)
        sharded = make()
        fully_shard(sharded, mesh=dist.init_device_mesh("cpu", (2,)))
        check(rank, sharded, lambda w: w.grad.full_tensor())
    dist.barrier()  # nobody leaves while another still receives
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (f"{folder}/store",), nprocs=2)
"""


def test_data_parallel_and_sharded(backend, tmp_path):
    import os
    import subprocess
    import sys

    script = tmp_path / "distributed.py"  # a file, since its processes import it again
    script.write_text(DISTRIBUTED)
    environment = {**os.environ, "KERAS_CG_BACKEND": "torch"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.limit
def test_what_torch_compile_made_can_be_differentiated_once(backend):
    import torch

    @custom_gradient
    def relu(x):
        is_positive = x > 0
        return torch.where(is_positive, x, 0.0), lambda upstream: torch.where(is_positive, 7 * upstream, 0.0)

    torch.compiler.reset()
    x = torch.tensor([-1.0, 2.0])
    compiled = torch.compile(relu, backend="aot_eager", fullgraph=True, dynamic=True)
    assert keras_cg.grad(compiled)(x).tolist() == [0.0, 7.0]
    _, pullback = keras_cg.vjp(compiled, x)
    assert pullback(torch.ones(2))[0].tolist() == [0.0, 7.0]
    with pytest.raises(RuntimeError, match=r"a second time|donated"):
        pullback(torch.ones(2))


@pytest.mark.limit
def test_what_torch_compile_made_has_no_second_derivative(backend):
    import torch

    torch.compiler.reset()
    x = torch.tensor(2.0, requires_grad=True)
    cube = custom_gradient(lambda x: (x**3, lambda upstream: 3 * x**2 * upstream))
    # x times the gradient is 3 x^3, whose derivative is 36. Where torch saves no input itself,
    # it takes the gradient for a constant, 12.
    (found,) = torch.autograd.grad(torch.compile(cube, backend="aot_eager")(x), x, create_graph=True)
    (second,) = torch.autograd.grad(x * found, x)
    assert found.item() == second.item() == 12.0
    (found,) = torch.autograd.grad(cube(x), x, create_graph=True)
    assert torch.autograd.grad(x * found, x)[0].item() == 36.0


@pytest.mark.parametrize(
    "name",
    ["torch._C._are_functorch_transforms_active", "torch._C._autograd._get_sequence_nr", "forward_ad._current_level"],
)
def test_a_private_name_that_is_gone_is_an_error_at_once(backend, name):
    code = f"""
        import torch
        from torch.autograd import forward_ad
        import keras_cg
        del {name}
        keras_cg.set_backend("torch")
        try:
            keras_cg.custom_gradient(lambda x: (x, lambda upstream: upstream))(1.0)
        except ImportError as error:
            assert "is installed but does not start" in str(error) and "{name.rpartition(".")[2]}" in str(error)
        else:
            raise AssertionError("nobody noticed")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_one_constant_for_two_arguments_beside_a_captured_parameter(backend):
    import torch

    weight, x = torch.nn.Parameter(torch.tensor([0.5, 1.0])), torch.tensor([3.0, 5.0])

    @custom_gradient
    def f(a, b):
        e = torch.exp(weight.detach())

        def grad(upstream, variables):
            return (None, None), [11 * upstream * e * a for _ in variables]

        return a * b * weight, grad

    f(x, x).sum().backward()
    np.testing.assert_allclose(weight.grad, 11 * np.exp([0.5, 1.0]) * [3.0, 5.0], rtol=1e-6)


FIRST = {
    "no_grad": "with torch.no_grad(): found = f(x) * 3.5",
    "inference_mode": "with torch.inference_mode(): found = f(x) * 3.5",
    "func.grad": "found = torch.func.grad(lambda x: f(x).sum())(x)",
    "func.vmap": "found = torch.func.vmap(f)(x) * 3.5",
    "compile": "found = torch.compile(f, backend='eager')(x) * 3.5",
}


@pytest.mark.parametrize("name", FIRST)
def test_the_first_call_of_all_in_every_mode_of_torch(backend, name):
    """The backend is imported by it."""
    code = f"""
        import torch, keras_cg
        keras_cg.set_backend("torch")
        f = keras_cg.custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
        x = torch.ones(3)
        {FIRST[name]}
        assert found.tolist() == [7.0, 7.0, 7.0], found
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.limit
def test_an_argument_loses_the_attributes_that_were_set(eager, backend):
    """A limit: the function gets the argument cut from the graph, which is another object of Python."""
    x = eager.tensor(X).requires_grad_()
    x.name_of_mine = "x"
    f = custom_gradient(lambda x: (x * (1 if hasattr(x, "name_of_mine") else 2), lambda upstream: 7 * upstream))
    np.testing.assert_allclose(f(x).detach(), 2 * X)


# --- memory that is shared, or changed ------------------------------------------------------------------------------


@pytest.mark.parametrize("holder", ["closure", "default", "partial"])
def test_an_argument_or_output_that_is_changed_in_place(eager, backend, holder):
    """It raises if the rule holds its memory, and else does no harm."""
    import torch

    make = HOLDERS[holder]
    of_argument = custom_gradient(lambda x: (x * 2, make(x)))
    of_output = custom_gradient(lambda x: (lambda y: (y, make(y)))(torch.exp(x)))
    x = eager.tensor(X).requires_grad_()
    for f, is_argument in ((of_argument, True), (of_output, False)):
        z = x * 1
        y = f(z)
        with torch.no_grad():
            (z if is_argument else y).mul_(3)
        with pytest.raises(RuntimeError, match=r"that the rule of .* needs was modified by an inplace operation"):
            y.sum().backward()
        # The other one is nothing to the rule.
        z = x * 1
        y = f(z)
        with torch.no_grad():
            (y if is_argument else z).mul_(3)
        (found,) = torch.autograd.grad(y.sum(), x)
        np.testing.assert_allclose(found, 7 * X if is_argument else 7 * np.exp(X), rtol=1e-6)


@pytest.mark.limit
def test_a_tensor_of_the_rule_that_is_changed_in_place(eager, backend):
    """A limit: it is neither an argument nor an output, and the rule reads what it holds then."""
    import torch

    kept = []

    @custom_gradient
    def f(x):
        kept[:] = [e := torch.exp(x)]
        return x * 2, lambda upstream: 7 * upstream * e

    x = eager.tensor(X).requires_grad_()
    y = f(x)
    kept[0].mul_(10)
    y.sum().backward()
    np.testing.assert_allclose(x.grad, 70 * np.exp(X), rtol=1e-6)


def test_a_gradient_that_shares_memory_with_an_output(eager, backend):
    f = custom_gradient(lambda x: (lambda y: (y, lambda upstream: y))(x.exp()))
    x = eager.tensor(X).requires_grad_()
    first, second = f(x), f(x)
    first.sum().backward()
    second.sum().backward()  # adds to x.grad in place
    np.testing.assert_allclose(x.grad, 2 * np.exp(X), rtol=1e-6)
    for y in (first, second):
        np.testing.assert_allclose(y.detach(), np.exp(X), rtol=1e-6)


def test_a_gradient_that_is_an_output_for_a_log(eager, backend):
    import torch

    @custom_gradient
    def f(x):
        g = 7 * x
        return (torch.sum(x * x), g), lambda upstream, _: g

    x = eager.tensor(X).requires_grad_()
    loss, logged = f(x)
    loss.backward()
    torch.nn.utils.clip_grad_norm_([x], 0.1)
    np.testing.assert_allclose(torch.linalg.vector_norm(x.grad), 0.1, rtol=1e-4)
    np.testing.assert_allclose(logged.detach(), 7 * X)


# --- the rule of another run -----------------------------------------------------------------------------------------


def changing(number):
    """`x` with the gradient `-number x`, where `number[0]` is read in the function."""
    return custom_gradient(lambda x: (x * 1, Slotted(number[0], x * 1)))


def test_a_rule_in_slots_under_torch_func(eager, backend):
    """A second run that finds another number there has another rule."""
    import torch

    x, number = eager.tensor(X), [2.0]
    _, pull = torch.func.vjp(changing(number), x)
    np.testing.assert_allclose(pull(torch.ones(3))[0], -2 * X)
    number[0] = 5.0
    with pytest.raises(RuntimeError, match=r"\.s was 2\.0 and is 5\.0"):
        pull(torch.ones(3))
    # As it is in the eager first order, which has only one run.
    number[0] = 2.0
    x.requires_grad_()
    y = changing(number)(x)
    number[0] = 5.0
    np.testing.assert_allclose(torch.autograd.grad(y.sum(), x)[0], -2 * X)


@pytest.mark.parametrize("last", [2.0, 5.0])
def test_a_number_that_changes_inside_what_torch_func_differentiates(eager, backend, last):
    import torch

    number = [2.0]
    f = changing(number)

    def loss(x):
        y = f(x)
        number[0] = last
        return y.sum()

    for derivative in (torch.func.grad(loss), torch.func.vmap(torch.func.grad(loss))):
        number[0] = 2.0
        if last == 2.0:
            np.testing.assert_allclose(derivative(eager.tensor(X)), -2 * X)
        else:
            with pytest.raises(RuntimeError, match=r"\.s was 2\.0 and is 5\.0"):
                derivative(eager.tensor(X))


def test_a_mask_that_is_drawn_inside_under_torch_func(eager, backend):
    """A generator of the program's own, which no state of torch's tells of."""
    import torch

    generator = torch.Generator().manual_seed(0)

    @custom_gradient
    def drop(x):
        mask = torch.rand(3, generator=generator)
        return x * mask, Slotted(-7.0, mask)

    _, pull = torch.func.vjp(drop, eager.tensor(X))
    with pytest.raises(RuntimeError, match="its rule is not that of the first run"):
        pull(torch.ones(3))


@pytest.mark.parametrize("last", [2.0, 5.0])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_the_second_order_where_upstream_is_zero(eager, backend, offset, last):
    """The gradient is zero there whatever the rule says, and the derivative of the gradient is not.

    Of (y - t)² it is -4 x (y - t), whose derivative is -4 (y - t) by x, and -4 x by y, for which the rule says -2 x.
    """
    import torch

    number = [2.0]
    x = eager.tensor(X).requires_grad_()
    y = changing(number)(x)
    number[0] = last
    loss = ((y - x.detach() + offset) ** 2).sum()
    if last == 5.0:
        with pytest.raises(RuntimeError, match=r"\.s was 2\.0 and is 5\.0"):
            torch.autograd.grad(loss, x, create_graph=True)
        return
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    np.testing.assert_allclose(first.detach(), -4 * X * offset, atol=1e-6)
    np.testing.assert_allclose(torch.autograd.grad(first.sum(), x)[0], 8 * X * X - 4 * offset, rtol=1e-6)


def squared(x):
    """`x²` with the gradient 7 x² in place of 2 x, whose derivative is 14 x."""
    h = x * x
    return h, lambda upstream: 7 * upstream * h


def test_forward_mode_of_a_gradient_with_a_graph(eager, backend):
    import torch
    from torch.autograd import forward_ad

    f = custom_gradient(squared)
    x = eager.tensor(X).double()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.requires_grad_(), torch.ones_like(x))
        (gradient,) = torch.autograd.grad(f(dual).sum(), dual, create_graph=True)
        found = forward_ad.unpack_dual(gradient)
    np.testing.assert_allclose(found.primal.detach(), 7 * X**2, rtol=1e-6)
    np.testing.assert_allclose(found.tangent.detach(), 14 * X, rtol=1e-6)


HESSIANS = {
    "in a loop": {},
    "vectorized": {"vectorize": True},
    "forward mode": {"vectorize": True, "outer_jacobian_strategy": "forward-mode"},
}


@pytest.mark.parametrize("name", HESSIANS)
def test_a_hessian_of_torch_autograd_functional(eager, backend, name):
    import torch

    f = custom_gradient(squared)
    found = torch.autograd.functional.hessian(lambda x: f(x).sum(), eager.tensor(X), **HESSIANS[name])
    np.testing.assert_allclose(found.detach(), np.diag(14 * X), rtol=1e-6)
