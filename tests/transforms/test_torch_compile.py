"""torch.compile makes the same programs of a decorated function as of the hand-written rule."""

import functools

import pytest

from keras_cg import custom_gradient

pytestmark = pytest.mark.only("torch")


def recorded(f, *tensors):
    """The operations of the forward and of the backward program of `f`, and the sizes of what each is given.

    They are what inductor generates code for. What the backward program is given besides the cotangents, which are left
    out, are the saved tensors.
    """
    import torch
    from functorch.compile import make_boxed_func
    from torch._inductor.compile_fx import compile_fx

    programs = []

    def record(module, inputs, **_):
        nodes = module.graph.nodes
        operations = [str(each.target) for each in nodes if each.op == "call_function"]
        given = [each for each in nodes if each.op == "placeholder" and not each.name.startswith("tangents")]
        sizes = sorted((str(each.meta["val"].dtype), tuple(each.meta["val"].shape)) for each in given)
        programs.append((operations, sizes))
        return make_boxed_func(module.forward)

    # What "inductor" is the name of; the argument, like the function, is torch's own (2.13).
    backend = functools.partial(compile_fx, inner_compile=record)
    torch.compiler.reset()
    outputs = torch.compile(lambda *tensors: f(*tensors), backend=backend, fullgraph=True)(*tensors)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [each for each in outputs if each.requires_grad]
    if wanted:
        sum(each.sum() for each in wanted).backward()
    assert len(programs) == (2 if wanted else 1)
    return programs


def function(forward, backward):
    """A hand-written Function: `forward(*inputs) -> outputs, saved`, `backward(*saved, *cotangents) -> gradients`."""
    import torch

    class Native(torch.autograd.Function):
        # Not `*inputs`: torch.compile (2.13) drops the context if as many come as there are parameters.
        @staticmethod
        def forward(ctx, x, y=None):
            outputs, saved = forward(x) if y is None else forward(x, y)
            ctx.save_for_backward(*saved)
            ctx.mark_non_differentiable(*(each for each in outputs if not each.is_floating_point()))
            return outputs

        @staticmethod
        def backward(ctx, *cotangents):
            return backward(*ctx.saved_tensors, *cotangents)

    return Native.apply


def log1pexp():
    import torch

    def forward(x):
        e = torch.exp(x)
        return (torch.log(1 + e),), (e,)

    def backward(e, upstream):
        return upstream * (1 - 1 / (1 + e))

    @custom_gradient
    def ours(x):
        e = torch.exp(x)
        return torch.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))

    return ours, function(forward, backward)


def chain_of_ten():
    ours, native = log1pexp()

    def chain(f, x):
        for _ in range(10):
            x = f(x)
        return x

    return lambda x: chain(ours, x), lambda x: chain(lambda x: native(x)[0], x)


def nest_of_two():
    import torch

    def forward(x, y):
        s = torch.sigmoid(x)
        return (s * y, x + y), (s, y)

    def backward(s, y, up, down):
        return up * y * s * (1 - s) + down, up * s + down

    @custom_gradient
    def ours(params):
        x, y = params["x"], params["y"]
        s = torch.sigmoid(x)

        def grad(upstream):
            up, down = upstream["up"], upstream["down"]
            return {"x": up * y * s * (1 - s) + down, "y": up * s + down}

        return {"up": s * y, "down": x + y}, grad

    def nested(x, y):
        outputs = ours({"x": x, "y": y})
        return outputs["up"], outputs["down"]

    return nested, function(forward, backward)


def wrong_on_purpose():
    import torch

    @custom_gradient
    def ours(x):
        return torch.sin(x), lambda upstream: 7 * upstream

    return ours, function(lambda x: ((torch.sin(x),), ()), lambda upstream: 7 * upstream)


def integer_output():
    import torch

    @custom_gradient
    def ours(x):
        values, indices = torch.sort(x)
        return (values, indices), lambda upstream: torch.zeros_like(upstream[0]).scatter(-1, indices, upstream[0])

    def forward(x):
        values, indices = torch.sort(x)
        return (values, indices), (indices,)

    def backward(indices, upstream, _):
        return torch.zeros_like(upstream).scatter(-1, indices, upstream)

    return ours, function(forward, backward)


def captured_output():
    import torch

    @custom_gradient
    def ours(x):
        y = torch.linalg.inv(x)
        return y, lambda upstream: -y.mT @ upstream @ y.mT

    def forward(x):
        y = torch.linalg.inv(x)
        return (y,), (y,)

    return ours, function(forward, lambda y, upstream: -y.mT @ upstream @ y.mT)


def static_arguments():
    import torch

    @custom_gradient
    def ours(x, n, mode="sum", *, scale):
        y = getattr(torch, mode)(scale * x**n, dim=-1)
        return y, lambda upstream: scale * n * x ** (n - 1) * upstream[..., None]

    def forward(x):
        return (torch.sum(2.0 * x**3, dim=-1),), (x,)

    def backward(x, upstream):
        return 2.0 * 3 * x**2 * upstream[..., None]

    return lambda x: ours(x, 3, scale=2.0), function(forward, backward)


CASES = {
    each.__name__: each
    for each in (
        log1pexp,
        chain_of_ten,
        nest_of_two,
        wrong_on_purpose,
        integer_output,
        captured_output,
        static_arguments,
    )
}


def inputs(name, *wanted):
    import torch

    generator = torch.Generator().manual_seed(0)
    return [torch.rand((4, 4), generator=generator).requires_grad_(each) for each in wanted]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wanted", [True, False], ids=["gradient", "no gradient"])
def test_the_programs_are_those_of_the_hand_written_rule(backend, name, wanted):
    ours, native = CASES[name]()
    tensors = inputs(name, *[wanted] * (2 if name == "nest_of_two" else 1))
    assert recorded(ours, *tensors) == recorded(native, *tensors)


@pytest.mark.parametrize("wanted", [(True, False), (False, True)])
def test_so_they_are_if_one_of_two_inputs_needs_no_gradient(backend, wanted):
    ours, native = nest_of_two()
    tensors = inputs("nest_of_two", *wanted)
    assert recorded(ours, *tensors) == recorded(native, *tensors)


@pytest.mark.parametrize("name", ["log1pexp", "nest_of_two"])
def test_so_they_are_under_no_grad(backend, name):
    import torch

    ours, native = CASES[name]()
    tensors = inputs(name, *[True] * (2 if name == "nest_of_two" else 1))
    with torch.no_grad():
        assert recorded(ours, *tensors) == recorded(native, *tensors)


def test_an_operation_more_is_seen(backend):
    import torch

    _, native = log1pexp()

    @custom_gradient
    def forward(x):
        e = torch.exp(x)
        return torch.sin(torch.log(1 + e)), lambda upstream: upstream * (1 - 1 / (1 + e))

    @custom_gradient
    def backward(x):
        e = torch.exp(x)
        return torch.log(1 + e), lambda upstream: torch.sin(upstream * (1 - 1 / (1 + e)))

    @custom_gradient
    def kept(x):
        e, other = torch.exp(x), torch.linalg.inv(x)
        return torch.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e)) * other

    tensors = inputs("log1pexp", True)
    expected = recorded(native, *tensors)
    for f, place in ((forward, 0), (backward, 1)):
        found = recorded(f, *tensors)
        assert found[place][0] != expected[place][0] and found[1 - place][0] == expected[1 - place][0]
    assert len(recorded(kept, *tensors)[1][1]) == len(expected[1][1]) + 1


@pytest.mark.limit
def test_a_decorated_forward_of_the_module_that_is_compiled(backend):
    """A limit: Dynamo (2.13) calls it by its name, which is that of the decorated one."""
    import torch

    class Inner(torch.nn.Module):
        @custom_gradient
        def forward(self, x):
            return x * 2, lambda upstream: 7 * upstream

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x)

    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(torch.compile(Outer(), backend="eager", fullgraph=True)(x).sum(), x)
    assert gradient.tolist() == [7.0] * 3
    with pytest.raises(Exception, match="Observed exception"):
        torch.compile(Inner(), backend="eager", fullgraph=True)(x)
    with pytest.raises(AttributeError, match="__code__"):
        torch.export.export(Inner(), (x,))


@pytest.mark.limit
def test_what_dynamo_cannot_trace(backend):
    """Dynamo (2.13) meets objects of which it does not know where they come from; what helps is beside it."""
    import collections

    import torch

    class Owner:
        @classmethod
        @custom_gradient
        def of_class(cls, x):
            return x * 2, lambda upstream: 7 * upstream

        @staticmethod
        @custom_gradient
        def static(x):
            return x * 2, lambda upstream: 7 * upstream

    scaled = custom_gradient(lambda p, x: (x * p["n"], lambda upstream: 7 * upstream))
    x = torch.ones(3, requires_grad=True)
    for refused, served in (
        (lambda x: Owner.of_class(x), lambda x: Owner.static(x)),
        (lambda x: scaled({"n": 2}, x), lambda x: scaled(collections.OrderedDict(n=2), x)),
    ):
        torch.compiler.reset()
        with pytest.raises(Exception, match="Unexpected type in sourceless builder"):
            torch.compile(refused, backend="eager", fullgraph=True)(x)
        (gradient,) = torch.autograd.grad(torch.compile(served, backend="eager", fullgraph=True)(x).sum(), x)
        assert gradient.tolist() == [7.0] * 3
