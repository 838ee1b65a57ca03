"""torch's modes: no_grad, inference mode, processes that share the work, and the first call of all in each of them."""

import functools
import threading

import numpy as np
import programs
import pytest

import keras_cg
from keras_cg import custom_gradient

pytestmark = pytest.mark.only("torch")

X = np.array([-1.0, 0.5, 1.0], np.float32)


run = functools.partial(programs.run, KERAS_CG_BACKEND="torch")


INFERENCE = {
    "grad": (lambda f, x: keras_cg.grad(f)(x), lambda d: d[1]),
    "vjp": (lambda f, x: keras_cg.vjp(f, x)[1](3 * x.new_ones(3))[0], lambda d: 3 * d[1]),
    "jvp": (lambda f, x: keras_cg.jvp(f, (x,), (3 * x.new_ones(3),))[1], lambda d: 3 * d[1]),
    "jacobian": (lambda f, x: keras_cg.jacobian(f)(x), lambda d: np.diag(d[1])),
    "grad of grad": (lambda f, x: keras_cg.grad(keras_cg.grad(f))(x), lambda d: d[2]),
}


@pytest.mark.parametrize("mode", ["inference_mode", "no_grad"])
@pytest.mark.parametrize(("differentiate", "expected"), INFERENCE.values(), ids=INFERENCE)
def test_derivatives_inside_inference_mode(torch, differentiate, expected, mode):
    @custom_gradient
    def seven(x):
        e = torch.exp(x)
        return 2 * x, lambda upstream: 7 * upstream * e

    outside = torch.tensor(X)
    e = np.exp(X)
    with getattr(torch, mode)():
        for x in (outside, torch.tensor(X)):
            np.testing.assert_allclose(differentiate(torch.exp, x), expected([e, e, e]), rtol=1e-6)
            np.testing.assert_allclose(differentiate(seven, x), expected([2 * X, 7 * e, 7 * e]), rtol=1e-6)
        assert torch.is_inference_mode_enabled() == (mode == "inference_mode") and not torch.is_grad_enabled()
        assert not differentiate(torch.exp, outside).requires_grad


def test_a_pullback_goes_in_and_out_of_inference_mode(torch):
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
def test_a_captured_inference_tensor_is_refused_by_torch(torch):
    with torch.inference_mode():
        w = torch.tensor(X)
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            keras_cg.grad(lambda x: x * w)(torch.tensor(X))


def test_the_first_call_of_all_in_every_mode_of_torch(backend):
    """The backend is imported by it, and no compiler unless it is inside of one; here in processes that torch is in."""
    run("""
        import multiprocessing, sys, torch, keras_cg

        @keras_cg.custom_gradient
        def f(x, n=2, *, k={"b": 1}):
            return x * n, lambda upstream: 7 * upstream

        def twice(x, between):
            y = f(x, 3)
            between()
            return y * f(x)

        def gradient(run):
            x = torch.tensor([2.0], requires_grad=True)
            run(x).sum().backward()
            return x.grad.item()

        compiled = lambda **options: torch.compile(twice, backend="aot_eager", **options)
        ones = torch.ones(3)
        FIRST = {
            "eager": lambda: (gradient(lambda x: twice(x, int)), "torch._dynamo" in sys.modules) == (70, False),
            "no_grad": lambda: torch.no_grad()(f)(ones).tolist() == [2.0] * 3,
            "inference_mode": lambda: torch.inference_mode()(f)(ones).tolist() == [2.0] * 3,
            "func.grad": lambda: torch.func.grad(lambda x: f(x).sum())(ones).tolist() == [7.0] * 3,
            "func.vmap": lambda: torch.func.vmap(f)(ones).tolist() == [2.0] * 3,
            "compile": lambda: gradient(lambda x: compiled(fullgraph=True)(x, int)) == 70,
            "compile in two": lambda: gradient(lambda x: compiled()(x, torch._dynamo.graph_break)) == 70,
        }

        def first(name):
            assert FIRST[name](), name

        assert "keras_cg.backends.torch" not in sys.modules
        for name in FIRST:
            if name == "no_grad":
                import torch._dynamo  # takes longest, and is torch's own
            child = multiprocessing.get_context("fork").Process(target=first, args=(name,))
            child.start()
            child.join()
            assert child.exitcode == 0, name
    """)


def test_the_same_parameters_in_two_processes(backend, tmp_path):
    """DistributedDataParallel and fully_shard: the mean of what the two, with upstreams of 1 and 2, contribute."""
    script = """
        import sys
        import numpy as np, torch, torch.distributed as dist, torch.multiprocessing as mp
        from torch.distributed.fsdp import fully_shard
        from torch.nn.parallel import DistributedDataParallel
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
            np.testing.assert_allclose(parameter_gradient(w), 5 * 1.5 * np.exp(np.linspace(-1, 1, 4)), rtol=1e-6)

        def work(rank, store):
            dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
            for make in (Passed, Captured):
                check(rank, DistributedDataParallel(make()), lambda w: w.grad)
                sharded = make()
                fully_shard(sharded, mesh=dist.init_device_mesh("cpu", (2,)))
                check(rank, sharded, lambda w: w.grad.full_tensor())
            dist.barrier()  # neither leaves while the other still receives
            dist.destroy_process_group()

        # By fork, because another import of torch takes longer than all the rest.
        mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
    """
    run(script, str(tmp_path / "store"))


@pytest.mark.limit
def test_an_argument_loses_the_attributes_that_were_set(eager, backend):
    """A limit: the function gets the argument cut from the graph, which is another object of Python."""
    x = eager.tensor(X).requires_grad_()
    x.name_of_mine = "x"
    f = custom_gradient(lambda x: (x * (1 if hasattr(x, "name_of_mine") else 2), lambda upstream: 7 * upstream))
    np.testing.assert_allclose(f(x).detach(), 2 * X)


# --- other threads, gradients that the function switches on -------------------------------------------


@pytest.mark.parametrize("is_export", [False, True])
def test_another_thread_may_compile_or_export(torch, is_export):
    """torch says of every thread that it compiles or exports, while one of them does; the others keep the rule."""

    class Own(torch.Tensor):
        pass

    inside, done, results = threading.Event(), threading.Event(), []

    def paused(*_):
        inside.set()
        done.wait(60)

    class Waiting(torch.nn.Module):
        def forward(self, x):
            paused()
            return x + 1

    def late():
        x, ys = torch.ones(1, requires_grad=True), []
        for k in (2.0, 5.0):
            f = custom_gradient(lambda x: (x * 1.0, lambda upstream: upstream * k * x * x))
            ys.append(f(x))
        (first,) = torch.autograd.grad(sum(ys).sum(), x)
        cubed = custom_gradient(lambda x: (x**3, lambda upstream: 7 * upstream * x**2))
        (gradient,) = torch.autograd.grad(cubed(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.sum(), x)
        own = torch.ones(1).as_subclass(Own).requires_grad_()
        cubed(own).sum().backward()
        return first.item(), second.item(), own.grad.item()

    def occupy():
        if is_export:
            results.append(torch.export.export(Waiting(), (torch.ones(2),), strict=False))
        else:
            results.append(torch.compile(lambda x: x + 1, backend=lambda g, _: paused() or g.forward)(torch.ones(2)))

    thread = threading.Thread(target=occupy)
    thread.start()
    try:
        assert inside.wait(60)
        beside = late()
    finally:
        done.set()
        thread.join()
    assert results
    assert beside == late() == (7.0, 14.0, 7.0)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_an_output_under_no_grad_is_a_constant(torch, mode):
    w = torch.nn.Parameter(torch.tensor(2.0))

    @custom_gradient
    def f(x, power=2, is_captured=False):
        with torch.inference_mode(False), torch.enable_grad():
            return (x * w if is_captured else x**power), lambda upstream: 7 * upstream

    def scaled(x, *args):
        with torch.no_grad() if mode == "no_grad" else torch.inference_mode():
            y = f(x, *args)
        return y.clone() * x

    for args, expected in (((), 9.0), ((2, True), 6.0), ((1,), 3.0)):
        x = torch.tensor(3.0, requires_grad=True)
        scaled(x, *args).backward()
        assert x.grad.item() == expected
        assert w.grad is None
        if mode == "no_grad":
            assert torch.func.grad(scaled)(torch.tensor(3.0), *args).item() == expected
            assert torch.func.grad(torch.func.grad(scaled))(torch.tensor(3.0), *args).item() == 0


def test_a_leaf_that_the_function_makes_is_not_captured(torch):
    outside = torch.tensor([3.0, 3.0], requires_grad=True)
    others = [torch.tensor([3.0, 3.0], requires_grad=True) for _ in range(4)]

    def squared(x, factor):
        z = x.detach().requires_grad_()
        y = z * z * factor()
        return y, lambda upstream: 7 * torch.autograd.grad(y, z, upstream, retain_graph=True)[0]

    x = torch.tensor([2.0, 2.0], requires_grad=True)
    custom_gradient(lambda x: squared(x, lambda: 1.0))(x).sum().backward()
    assert x.grad.tolist() == [28, 28]
    for factor in (lambda: outside, lambda: outside.requires_grad_(), others.pop):
        with pytest.raises(keras_cg.CapturedVariableError, match=r"[12] trainable value"):
            custom_gradient(lambda x, factor=factor: squared(x, factor))(x)


@pytest.mark.limit
@pytest.mark.parametrize("count", [10, 150_000])
def test_a_rule_beside_a_large_list_under_vmap(torch, count):
    """What hides near is found, and what hides deeper is refused; no cost depends on the list."""
    entries, x = list(map(str, range(count))), torch.tensor([1.0, 1.0], requires_grad=True)

    def batched(a, state):
        state["d"] = {"a": a}
        f = custom_gradient(lambda x: (x * 1.0, lambda u: u * 7 * state["d"]["a"] + 0 * len(entries)))
        return f(x)

    a = torch.tensor([1.0, 2.0])
    torch.func.vmap(lambda a: batched(a, {}))(a).sum().backward()
    assert x.grad.tolist() == [21.0, 21.0]
    large = dict.fromkeys(range(100))
    with pytest.raises(RuntimeError, match="inside another object"):
        torch.func.vmap(lambda a: batched(a, large))(a).sum().backward()
