"""torch.compile: the rule serves, and the programs are those of the hand-written rule."""

import collections
import functools

import numpy as np
import pytest
from leaves import gradients, leaf

import keras_cg
from keras_cg import custom_gradient, ops

pytestmark = pytest.mark.only("torch")
# Dynamo (2.13) reads the gradient of a tensor that is no leaf.
reads_gradients = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


def recorded(torch, f, *tensors):
    """The operations of the forward and of the backward program of `f`, and the sizes of what each is given.

    They are what inductor generates code for. The backward program gets the saved tensors. The
    cotangents are left out.
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


def function(torch, forward, backward):
    """A hand-written Function: `forward(*inputs) -> outputs, saved`, `backward(*saved, *cotangents) -> gradients`."""

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


def pair(torch, forward, backward):
    """A function by our decorator, and the hand-written one."""

    @custom_gradient
    def ours(x):
        outputs, saved = forward(x)
        return outputs, lambda *cotangents: backward(*saved, *cotangents)

    return ours, function(torch, forward, backward)


def log1pexp(torch):
    def forward(x):
        e = torch.exp(x)
        return (torch.log(1 + e),), (e,)

    return pair(torch, forward, lambda e, upstream: upstream * (1 - 1 / (1 + e)))


def nest_of_two(torch):
    def forward(x, y):
        s = torch.sigmoid(x)
        return (s * y, x + y), (s, y)

    backward = lambda s, y, up, down: (up * y * s * (1 - s) + down, up * s + down)

    @custom_gradient
    def ours(params):
        (up, down), saved = forward(params["x"], params["y"])
        grad = lambda upstream: dict(zip("xy", backward(*saved, upstream["up"], upstream["down"]), strict=True))
        return {"up": up, "down": down}, grad

    def nested(x, y):
        outputs = ours({"x": x, "y": y})
        return outputs["up"], outputs["down"]

    return nested, function(torch, forward, backward)


def integer_output(torch):
    def forward(x):
        values, indices = torch.sort(x)
        return (values, indices), (indices,)

    return pair(torch, forward, lambda indices, up, _: torch.zeros_like(up).scatter(-1, indices, up))


def captured_output(torch):
    def forward(x):
        y = torch.linalg.inv(x)
        return (y,), (y,)

    return pair(torch, forward, lambda y, upstream: -y.mT @ upstream @ y.mT)


CASES = (log1pexp, nest_of_two, integer_output, captured_output)


def inputs(torch, *wanted):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand((4, 4), generator=generator).requires_grad_(each) for each in wanted]


@pytest.mark.parametrize(
    ("case", "wanted"),
    [(case, None) for case in CASES] + [(nest_of_two, each) for each in ((True, False), (False, True), (False, False))],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_programs_are_those_of_the_hand_written_rule(torch, case, wanted):
    """Also where an input needs no gradient."""
    ours, native = case(torch)
    tensors = inputs(torch, *(wanted or [True] * (1 + (case is nest_of_two))))
    assert recorded(torch, ours, *tensors) == recorded(torch, native, *tensors)


# --- what a compiled function returns, and what differentiates it ---------------------------------------------------


X = [-1.0, 0.5, 2.0]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo asks a non-leaf for it
def test_a_compiled_output_that_is_the_argument_is_not_changed_in_place(torch):
    f = custom_gradient(lambda x: (x, lambda upstream: 7 * upstream))
    x = leaf(X)
    doubled = torch.compile(lambda z: f(z) * 2, backend="aot_eager", fullgraph=True)
    assert gradients(doubled(x * 1), x)[0][0] == 14
    changed = torch.compile(lambda z: f(z).mul_(3), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="view"):
        changed(x * 1)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.limit
def test_a_compiled_output_that_is_a_part_of_the_argument_loses_its_gradient_in_place(torch):
    """A limit: Dynamo (2.13) does not tell what shares memory with what."""
    f = custom_gradient(lambda x: (x[1:], lambda upstream: 7 * ops.ones(3)))
    changed = torch.compile(lambda z: f(z).mul_(3), backend="aot_eager", fullgraph=True)
    assert not changed(leaf(X) * 1).requires_grad
    copied = torch.compile(lambda z: f(z).clone().mul_(3), backend="aot_eager", fullgraph=True)
    x = leaf(X)
    assert gradients(copied(x * 1), x)[0][0] == 7


@pytest.mark.limit
@pytest.mark.parametrize("place", ["argument", "output"])
def test_a_change_in_place_inside_a_compiled_program_is_not_noticed(torch, place):
    """A limit: the backward program of torch (2.13) reads the new values. So does that of a hand-written `Function`."""

    def doubled(x):
        y = x * 2
        return (y,), (x, y)

    rule = lambda x, y, upstream: 7 * upstream * x * y

    @custom_gradient
    def ours(x):
        outputs, saved = doubled(x)
        return outputs, lambda upstream: rule(*saved, *upstream)

    def changed(f, x):
        x = x * 1
        (y,) = f(x)
        {"argument": x, "output": y}[place].mul_(3)
        return y * 1

    for f in (ours, function(torch, doubled, rule)):
        torch.compiler.reset()
        x = leaf(X)
        output = torch.compile(changed, backend="aot_eager", fullgraph=True)(f, x)
        right = 14 * np.array(X) ** 2 * (3 if place == "output" else 1)
        np.testing.assert_allclose(gradients(output, x)[0], 3 * right)


@pytest.mark.limit
def test_what_torch_compile_made_can_be_differentiated_once(torch):
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
def test_what_torch_compile_made_has_no_second_derivative(torch):
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


# --- what Dynamo cannot trace ---------------------------------------------------------------------------------------


@pytest.mark.limit
def test_a_decorated_forward_of_the_module_that_is_compiled(torch):
    """A limit: Dynamo (2.13) calls it by its name, which is that of the decorated one."""

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
def test_what_dynamo_cannot_trace(torch):
    """Dynamo (2.13) meets objects of which it does not know where they come from; what helps is beside it."""

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


def test_the_mark_of_a_constant_is_that_of_torch(torch):
    """`constant_result` sets it without the import of torch's compiler."""
    from keras_cg.user_code import constant_result

    ours, theirs = eval("lambda: 0"), eval("lambda: 0")
    constant_result(ours)
    torch.compiler.assume_constant_result(theirs)
    assert vars(ours) == vars(theirs) != {}


@reads_gradients
def test_a_function_that_breaks_the_graph(torch):
    """Its run and its rule are left to Python: torch (2.13) would lose the order of the dict."""

    @custom_gradient
    def f(tree, scale=1.0):
        keras_cg.backend()  # Dynamo cannot trace it

        def grad(*args, upstream=None):
            keras_cg.backend()  # Dynamo cannot trace it
            return {"b": 5 * upstream["y"], "a": 7 * upstream["y"]}

        return {"y": tree["a"] * tree["b"] * scale, "name": "f"}, grad

    step = lambda a, b: torch.sin(f({"b": b, "a": a}, scale=1.0)["y"])
    a, b = (torch.tensor(value, requires_grad=True) for value in (2.0, 3.0))
    torch.compile(step, backend="aot_eager")(a, b).backward()
    np.testing.assert_allclose([a.grad, b.grad], [7 * np.cos(6), 5 * np.cos(6)], rtol=1e-6)


@custom_gradient
def product(x, w):
    middle = ops.sin(x)

    return x * w, lambda upstream: (7 * upstream * w * middle, 5 * upstream * x)


@reads_gradients
def test_a_tensor_of_the_rule_that_is_changed_in_place_after_a_program(torch):
    @custom_gradient
    def exponential(x):
        y = ops.exp(x)
        return y, lambda upstream: 7 * upstream * y

    for f, changed in ((product, "x"), (product, "w"), (exponential, "output")):
        leaves = [torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(1 + (f is product))]
        values = [leaf * 1 for leaf in leaves]
        output = torch.compile(lambda *values, f=f: f(*values), backend="aot_eager", fullgraph=True)(*values)
        with torch.no_grad():
            {"x": values[0], "w": values[-1], "output": output}[changed].mul_(10)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_autograd(torch, is_compiled, dynamic):
    """Several steps of other values and sizes; the program of the backward pass must not keep those of the first."""
    import torch._dynamo.compiled_autograd as compiled_autograd

    torch.compiler.reset()
    f = torch.compile(lambda x, w: product(x, w) * 1, backend="aot_eager", fullgraph=True) if is_compiled else product
    for step, size in enumerate((3, 3, 5)):
        values = np.arange(size) * 0.25 + step, np.arange(size) * 0.5 - 1
        x, w = (torch.tensor(value, requires_grad=True) for value in values)
        with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True, dynamic=dynamic)):
            (2 * f(x, w)).sum().backward()
        np.testing.assert_allclose(x.grad, 14 * values[1] * np.sin(values[0]))
        np.testing.assert_allclose(w.grad, 10 * values[0])


@reads_gradients
@pytest.mark.limit
def test_compiled_autograd_does_not_see_an_output_that_was_changed_in_place(torch):
    import torch._dynamo.compiled_autograd as compiled_autograd

    @custom_gradient
    def exponential(x):
        y = ops.exp(x)
        return y, lambda upstream: 7 * upstream * y

    x = torch.zeros(2, requires_grad=True)
    output = exponential(x * 1)
    with torch.no_grad():
        output.mul_(10)
    with compiled_autograd._enable(torch.compile(backend="aot_eager")):
        output.sum().backward()
    assert x.grad.tolist() == [70, 70]
