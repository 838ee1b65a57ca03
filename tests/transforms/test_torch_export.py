"""What leaves Python on torch: exported and traced programs have the output, and no gradient through our functions."""

import contextlib
import gc
import importlib
import io
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from leaving import NO_GRADIENT, X, Z, exp, same

import keras_cg
from keras_cg import custom_gradient, ops

pytestmark = [
    pytest.mark.only("torch"),
    # torch (2.13) about itself: when it decomposes any program, and what it will not keep for ever.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.[a-z_]*. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.[a-z_]*. is deprecated:FutureWarning"),
]

C = np.array([1.0, -2.0, 0.5], np.float32)
# What does nothing in a program.
IDLE = {"alias", "detach", "detach_", "clone"}


def tensor(array, **options):
    import torch

    return torch.tensor(array, **options)


@custom_gradient
def viewed(x):
    return (x * 2).reshape(-1), lambda upstream: 7 * upstream.reshape(x.shape)


@custom_gradient
def part(x):
    return x[1:], lambda upstream: 7 * upstream


@custom_gradient
def nest(d, factor=1):
    e = exp(d["a"])
    outputs = {"b": e * factor, "i": e.argmax(), "u": d["a"] + 1}
    return outputs, lambda upstream: {"a": 7 * upstream["b"] + upstream["u"]}


@custom_gradient
def switched(x):
    import torch

    with torch.enable_grad():
        y = x * 2
    return y, lambda upstream: 7 * upstream


@custom_gradient
def dropped(x):
    import torch

    return torch.nn.functional.dropout(x, 0.5, False), lambda upstream: 7 * upstream


@custom_gradient
def untouched(x):
    return x.to(x.dtype).contiguous(), lambda upstream: 7 * upstream


@custom_gradient
def multiplied(x):
    return x @ x.T, lambda upstream: 7 * (upstream @ x)


@custom_gradient
def half(x):
    return x.half(), lambda upstream: 7 * upstream


FUNCTIONS = {
    "exp": exp,
    "same": same,
    "viewed": viewed,
    "part": part,
    "nest": lambda x: nest({"a": x}, factor=3)["b"],
    "switched": switched,
    "dropped": dropped,
    "untouched": untouched,
    "multiplied": multiplied,
    "half": lambda x: half(x).float(),
}


def model(function):
    """A model with a weight before the function, and another way around it."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(tensor(C))

        def forward(self, x):
            hidden = x * self.w
            return function(hidden).sum() + 3 * hidden.sum()

    return Model()


def frozen(module):
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    return module.eval()


def export(module, *args, is_on=True, **options):
    """The exported program; and that one warning came."""
    import torch

    with pytest.warns(UserWarning, match=NO_GRADIENT) as caught, torch.set_grad_enabled(is_on):
        program = torch.export.export(module, args, **options)
    # Others are torch's own, and of files that an export before left open.
    assert len([each for each in caught if NO_GRADIENT in str(each.message)]) == 1
    return program


def operations(program):
    return [str(node.target).split(".")[1] for node in program.graph.nodes if "aten." in str(node.target)]


def gradients(module, array, *others):
    """The output, and its gradients with respect to the argument and to others."""
    import torch

    x = tensor(array, requires_grad=True)
    output = module(x)
    found = torch.autograd.grad(output.sum(), [x, *others], allow_unused=True)
    return output.detach().numpy(), *[None if each is None else each.numpy() for each in found]


def check_around(module, function, array=Z):
    """The output of `model(function)`, and the gradients of the way around the function alone."""
    import torch

    (w,) = module.parameters()
    output, gx, gw = gradients(module, array, w)
    with torch.no_grad():
        expected = function(tensor(array) * w).sum() + 3 * (tensor(array) * w).sum()
    np.testing.assert_allclose(output, expected.numpy(), rtol=1e-5)
    np.testing.assert_allclose(gx, np.broadcast_to(3 * C, array.shape), rtol=1e-5)
    np.testing.assert_allclose(gw, 3 * array.sum(0), rtol=1e-5)


# --- torch.export --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
@pytest.mark.parametrize("is_on", [True, False], ids=["grad", "no_grad"])
@pytest.mark.limit
def test_an_exported_program(backend, strict, is_on):
    import torch

    batch = {"x": {0: torch.export.Dim("batch", min=2)}}
    program = export(model(exp), tensor(X), is_on=is_on, strict=strict, dynamic_shapes=batch)
    check_around(program.module(), exp)
    decomposed = program.run_decompositions()
    assert [each for each in operations(decomposed) if each not in IDLE] == [
        "mul",
        "exp",
        "mul",
        "sum",
        "sum",
        "mul",
        "add",
    ]
    np.testing.assert_allclose(decomposed.module()(tensor(Z)).detach(), model(exp)(tensor(Z)).detach(), rtol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("is_on", [True, False], ids=["grad", "no_grad"])
def test_what_functions_return(backend, name, is_on):
    function = FUNCTIONS[name]
    program = export(model(function), tensor(X), is_on=is_on)
    check_around(program.module(), function, X)


@pytest.mark.parametrize("name", ["viewed", "nest", "switched", "same"])
def test_what_functions_return_to_dynamo(backend, name):
    function = FUNCTIONS[name]
    for is_on in (True, False):
        program = export(model(function), tensor(X), is_on=is_on, strict=True)
        check_around(program.module(), function, X)


@pytest.mark.parametrize("is_on", [True, False], ids=["grad", "no_grad"])
def test_a_frozen_model(backend, is_on):
    program = export(frozen(model(exp)), tensor(X), is_on=is_on)
    module = program.module()
    output, gx = gradients(module, X)
    np.testing.assert_allclose(output, (2 * np.exp(X * C)).sum() + 3 * (X * C).sum(), rtol=1e-5)
    np.testing.assert_allclose(gx, np.broadcast_to(3 * C, X.shape), rtol=1e-6)


def test_nothing_to_differentiate_is_an_error(backend):
    """Without a way around the function, torch itself says that there is no gradient."""
    import torch

    class Model(torch.nn.Module):
        def forward(self, x):
            return exp(x)

    output = export(Model(), tensor(X), is_on=False).module()(tensor(X, requires_grad=True))
    with pytest.raises(RuntimeError, match="does not require grad"):
        output.sum().backward()


def captured(x, w):
    """A function that reads a weight; and one that gives out what is not its own, and is used elsewhere."""
    hidden = x * w

    @custom_gradient
    def scaled(y):
        return y * w, lambda upstream, variables=None: (7 * upstream, [9 * upstream.sum(0)])

    @custom_gradient
    def other(y):
        return hidden, lambda upstream, variables=None: (7 * upstream, [9 * upstream])

    return scaled(x).sum() + other(x).sum() + 3 * hidden.sum()


@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
@pytest.mark.parametrize("is_on", [True, False], ids=["grad", "no_grad"])
def test_captured_weights(backend, strict, is_on):
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(tensor(C))

        def forward(self, x):
            return captured(x, self.w)

    module = export(Model(), tensor(X), is_on=is_on, strict=strict).module()
    output, gx, gw = gradients(module, X, *module.parameters())
    np.testing.assert_allclose(output, 5 * (X * C).sum(), rtol=1e-5)
    np.testing.assert_allclose(gx, np.broadcast_to(3 * C, X.shape), rtol=1e-6)
    np.testing.assert_allclose(gw, 3 * X.sum(0), rtol=1e-6)


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_a_model_that_switches_gradients(backend, outer, inner):
    """torch keeps a region of a model only where its mode is not that in which the export began."""
    import torch

    def regional(x):
        with torch.set_grad_enabled(inner):
            return exp(x)

    # Twice, since the first call shows how things stand.
    module = export(model(lambda x: regional(x) + exp(x)), tensor(X), is_on=outer).module()
    check_around(module, lambda x: 2 * exp(x), X)


def test_batch_norm_and_dropout(backend):
    """A function that changes buffers; in both modes, and once more after the other."""
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
    layer = custom_gradient(lambda x: (layers(x), lambda upstream, variables=None: (7 * upstream, [None, None])))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            return layer(x)

    for is_training in (False, True, False):
        module = export(Model().train(is_training), tensor(X)).module()
        output = module(tensor(X, requires_grad=True))
        assert not output.requires_grad
    np.testing.assert_allclose(output, layers(tensor(X)).detach(), rtol=1e-5)


@pytest.mark.limit
def test_one_warning_for_each_export(backend):
    """However many functions there are, and however often each is called."""
    import torch

    module = model(lambda x: exp(same(exp(x))) + exp(x) + nest({"a": x})["b"])
    for _ in range(2):
        with pytest.warns(UserWarning, match=NO_GRADIENT) as caught:
            torch.export.export(module, (tensor(X),))
        (warning,) = caught
        assert str(warning.message).splitlines() == [
            "the exported program has no gradient through exp, nor through other functions with a custom gradient.",
            "    usual cause: torch keeps no rule in what it exports, and would silently give the gradient of plain"
            " differentiation.",
            "    remedy: train before exporting, or keep the rule by torch.compile.",
        ]


def test_a_branch(backend):
    """torch traces the two sides by themselves, more than once; the same warning may come again."""
    import torch

    def branch(x):
        return torch.cond(x.sum() > 0, lambda x: exp(x), lambda x: x * 3, (x,))

    for is_on in (True, False):
        with pytest.warns(UserWarning, match=NO_GRADIENT), torch.set_grad_enabled(is_on):
            program = torch.export.export(model(branch), (tensor(X),))
        check_around(program.module(), exp, X)


# torch (2.13) leaves a file of its own open.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_other_ways_to_export(backend):
    import torch

    module = model(exp)
    for is_on in (True, False):
        with pytest.warns(UserWarning, match=NO_GRADIENT), torch.set_grad_enabled(is_on):
            draft = torch.export.draft_export(module, (tensor(X),))
        check_around(draft.module(), exp, X)
    check_around(torch.export.unflatten(export(module, tensor(X))), exp, X)
    gc.collect()  # of that file, while the warning is ignored


def test_exported_and_mapped(backend):
    import torch

    def rows(x):
        return torch.func.vmap(lambda row: exp(row).sum())(x)

    for strict in (False, True):
        check_around(export(model(rows), tensor(X), strict=strict).module(), rows, X)


LOADED = """
import sys, torch
program = torch.export.load(sys.argv[1])
x = torch.tensor({x}, requires_grad=True)
module = program.module()
output = module(x)
output.backward()
print(output.item(), x.grad.tolist(), program.run_decompositions().module()(x).item(), "keras_cg" in sys.modules)
"""


def test_loaded_without_this_package(backend, tmp_path):
    """Saved under no_grad, and trained on in a process that knows nothing of it."""
    import torch

    path = tmp_path / "program.pt2"
    torch.export.save(export(model(exp), tensor(X), is_on=False), path)
    program = LOADED.format(x=X.tolist())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    expected = (2 * np.exp(X * C)).sum() + 3 * (X * C).sum()
    output, rest = done.stdout.split(" ", 1)
    assert float(output) == pytest.approx(expected)
    assert rest.startswith(str(np.broadcast_to(3 * C, X.shape).tolist()))
    assert float(rest.split()[-2]) == pytest.approx(expected)
    assert rest.split()[-1] == "False"


@pytest.mark.limit
def test_torch_forgets_a_detach_when_it_decomposes(backend):
    """A limit: in a decomposed program, plain gradients come through what was cut, a user's own detach included."""
    import torch

    plain = model(lambda x: (x.detach() * 2).exp())
    programs = [torch.export.export(plain, (tensor(X),)), export(model(exp), tensor(X))]
    for program in programs:
        _, gx = gradients(program.module(), X)
        np.testing.assert_allclose(gx, np.broadcast_to(3 * C, X.shape), rtol=1e-6)
        _, gx = gradients(program.run_decompositions().module(), X)
        assert not np.allclose(gx, np.broadcast_to(3 * C, X.shape))


DIFFERENTIATING = {
    "grad": lambda torch, x: torch.func.grad(lambda x: exp(x).sum())(x),
    "jvp": lambda torch, x: torch.func.jvp(exp, (x,), (x,))[1],
    "autograd.grad": lambda torch, x: torch.autograd.grad((exp(x) + x).sum(), x)[0],
}


@pytest.mark.parametrize("way", DIFFERENTIATING)
@pytest.mark.filterwarnings("ignore:the exported program has no gradient")
@pytest.mark.limit
def test_a_gradient_inside_is_refused(backend, way):
    """Its numbers would be those of plain differentiation."""
    import torch

    with pytest.raises(NotImplementedError, match="exporting a derivative ignores custom gradients") as raised:
        torch.export.export(model(lambda x: DIFFERENTIATING[way](torch, x)), (tensor(X),))
    assert "would silently give those of plain differentiation." in str(raised.value)
    assert str(raised.value).endswith("remedy: leave what differentiates out of what is exported.")


def test_a_plain_gradient_inside_is_exported(backend):
    """What a function differentiates by itself, without a rule of ours in it."""
    slope = custom_gradient(lambda x: (keras_cg.grad(lambda y: ops.sum(y**3))(x), lambda upstream: 7 * upstream))
    check_around(export(model(slope), tensor(X)).module(), lambda x: 3 * x**2, X)


@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
def test_a_method(backend, strict):
    """One of the model, with a keyword, that reads a weight."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(tensor(C))

        @custom_gradient
        def scaled(self, x, *, factor=2):
            return x * self.w * factor, lambda upstream, variables=None: (7 * upstream, [9 * upstream.sum(0)])

        def forward(self, x):
            return self.scaled(x, factor=5).sum() + 3 * (x * self.w).sum()

    with pytest.warns(UserWarning, match=rf"{NO_GRADIENT} .*Model\.scaled"):
        module = torch.export.export(Model(), (tensor(X),), strict=strict).module()
    output, gx, gw = gradients(module, X, *module.parameters())
    np.testing.assert_allclose(output, 8 * (X * C).sum(), rtol=1e-5)
    np.testing.assert_allclose(gx, np.broadcast_to(3 * C, X.shape), rtol=1e-6)
    np.testing.assert_allclose(gw, 3 * X.sum(0), rtol=1e-6)
    with pytest.warns(UserWarning, match=rf"{NO_GRADIENT} .*Model\.scaled"):
        traced = torch.jit.trace(Model(), (tensor(X),))
    _, gx = gradients(traced, Z)
    np.testing.assert_allclose(gx, np.broadcast_to(3 * C, Z.shape), rtol=1e-6)


def test_a_step_beside_an_export(backend):
    """torch says of every thread that it exports, while one of them does; the others keep the rule."""
    found = []

    def step():
        x = tensor(X, requires_grad=True)
        with keras_cg.use_backend("torch"):
            exp(x).sum().backward()
        found.append(x.grad.numpy())

    def beside(x):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        return exp(x)

    for _ in range(3):
        export(model(beside), tensor(X))
    assert len(found) == 3
    for gradient in found:
        np.testing.assert_allclose(gradient, 7 * np.exp(X), rtol=1e-5)


# --- make_fx, and what is made of it -------------------------------------------------------------------------------


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True], ids=["dispatched", "pre_dispatch"])
def test_make_fx(backend, tracing_mode, pre_dispatch):
    """A gradient that is taken inside is that of the rule; there is none through what was traced without one."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    def make(function, x):
        return make_fx(function, tracing_mode=tracing_mode, pre_dispatch=pre_dispatch)(x)

    def gradient(x):
        return torch.autograd.grad(exp(x).sum(), x)[0]

    # More than once, since a call is short from the third time on.
    for _ in range(3):
        graph = make(gradient, tensor(X, requires_grad=True))
        np.testing.assert_allclose(graph(tensor(X + 1)), 7 * np.exp(X + 1), rtol=1e-5)
        for is_on, requires in [(True, False), (True, True), (False, True)]:
            with torch.set_grad_enabled(is_on), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=NO_GRADIENT)
                graph = make(lambda x: exp(x) + exp(x), tensor(X, requires_grad=requires))
            output = graph(tensor(X + 1, requires_grad=True))
            np.testing.assert_allclose(output, 4 * np.exp(X + 1), rtol=1e-5)
            assert not output.requires_grad
    with pytest.warns(UserWarning, match=f"{NO_GRADIENT} exp") as caught:
        make(lambda x: exp(x) + same(x), tensor(X))
    assert len(caught) == 1


def test_make_fx_of_a_second_derivative(backend):
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    def second(x):
        (first,) = torch.autograd.grad(exp(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    graph = make_fx(second)(tensor(X, requires_grad=True))
    np.testing.assert_allclose(graph(tensor(X)), 7 * np.exp(X), rtol=1e-5)


def test_aot_export_module(backend):
    import torch
    from torch._functorch.aot_autograd import aot_export_module

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(tensor(C))

        def forward(self, x):
            return (exp(x * self.w).sum(),)

    joint, _ = aot_export_module(Loss(), (tensor(X),), trace_joint=True, output_loss_index=0)
    loss, gw = joint(tensor(C), tensor(X))
    np.testing.assert_allclose(loss, 2 * np.exp(X * C).sum(), rtol=1e-5)
    np.testing.assert_allclose(gw, (7 * np.exp(X * C) * X).sum(0), rtol=1e-5)
    with pytest.warns(UserWarning, match=NO_GRADIENT):
        forward, _ = aot_export_module(Loss(), (tensor(X),), trace_joint=False)
    (loss,) = forward(tensor(C, requires_grad=True), tensor(X))
    np.testing.assert_allclose(loss, 2 * np.exp(X * C).sum(), rtol=1e-5)
    assert not loss.requires_grad


@pytest.mark.limit
def test_a_weight_under_aot_module(backend):
    """One in a closure or an attribute gets its gradient, if the rule takes it."""
    import torch
    from functorch.compile import aot_module, make_boxed_func

    class Model(torch.nn.Module):
        def __init__(self, is_held, is_taken):
            super().__init__()
            self.is_held, self.is_taken = is_held, is_taken
            self.w = torch.nn.Parameter(tensor(C))

        def forward(self, x):
            weight = self.w if self.is_held else None

            def taking(upstream, variables=None):
                return 7 * upstream, [9 * upstream.sum(0)]

            rule = taking if self.is_taken else lambda upstream: 7 * upstream
            return custom_gradient(lambda x: (x * (self.w if weight is None else weight), rule))(x)

    def run(*options):
        module = Model(*options)
        return gradients(aot_module(module, lambda graph, _: make_boxed_func(graph)), X, module.w)

    for is_held in (True, False):
        _, gx, gw = run(is_held, True)
        np.testing.assert_allclose(gx, np.full(X.shape, 7.0))
        np.testing.assert_allclose(gw, np.full(3, 18.0))
    for options in [(True, False), (False, False)]:
        with pytest.raises(keras_cg.CapturedVariableError):
            run(*options)


def test_fake_tensors(backend):
    """What estimates memory or shapes runs a step on tensors without numbers."""
    import torch
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(2, 3, requires_grad=True)
        exp(x).sum().backward()
        viewed(x).sum().backward()
        assert x.grad.shape == (2, 3)


# --- torch.jit.trace -----------------------------------------------------------------------------------------------


def traced_model(function):
    """A model of two weights, with `function(module, hidden)` in it."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(tensor(C))
            self.v = torch.nn.Parameter(tensor(C) + 1)

        def forward(self, x):
            return function(self, x * self.w) + x * self.v

    return Model()


@custom_gradient
def several(x, y, power=2):
    e = ops.exp(x)
    outputs = e * y, {"i": x.argmax(), "m": ops.max(x, axis=0)}
    return outputs, lambda upstream: (7 * upstream[0] * e + upstream[1]["m"], (power * upstream[0]).sum(0))


def of_several(module, hidden):
    first, more = several(hidden, module.v, power=5)
    return first + more["m"]


def with_a_weight(module, hidden):
    """Captured weights, one of them twice."""

    @custom_gradient
    def scaled(x):
        def grad(upstream, variables=None):
            return 7 * upstream, [upstream.sum(0) * (9 + place) for place, _ in enumerate(variables)]

        return module.w * x * module.v * module.w, grad

    return scaled(hidden)


def with_an_intermediate(module, hidden):
    """Captured values that the model computes, one of them differentiated."""
    moved, constant = hidden * module.v, hidden.detach() * 3

    @custom_gradient
    def scaled(x):
        return moved * x * constant, lambda upstream, variables=None: (7 * upstream * moved, [9 * upstream * constant])

    return scaled(hidden)


TRACED = {
    "exp": lambda module, hidden: exp(hidden),
    "same": lambda module, hidden: same(hidden),
    "viewed": lambda module, hidden: viewed(hidden).reshape(hidden.shape),
    "twice": lambda module, hidden: exp(same(hidden) / 4) + exp(hidden / 4),
    "nest": lambda module, hidden: nest({"a": hidden}, factor=3)["b"],
    "by keyword": lambda module, hidden: several(x=hidden, y=module.v)[0],
    "several": of_several,
    "with a weight": with_a_weight,
    "with an intermediate": with_an_intermediate,
}


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.limit
def test_a_traced_module_has_no_gradient_through_it(backend, name):
    """For other data as well; the gradient is that of `x v` beside the function, with v = C + 1."""
    import torch

    module = traced_model(TRACED[name])
    with pytest.warns(UserWarning, match=NO_GRADIENT):
        traced = torch.jit.trace(module, (tensor(X),))
    for array in (Z, X + 1):
        output, gx, gw, gv = gradients(traced, array, module.w, module.v)
        np.testing.assert_allclose(output, module(tensor(array)).detach(), rtol=1e-5)
        np.testing.assert_allclose(gx, np.broadcast_to(C + 1, array.shape), rtol=1e-6)
        np.testing.assert_allclose(gv, array.sum(0), rtol=1e-6)
        assert gw is None or not gw.any()


def test_a_traced_function(backend):
    """What is traced is a function, whose example requires a gradient."""
    import torch

    with pytest.warns(UserWarning, match=NO_GRADIENT):
        traced = torch.jit.trace(lambda x: exp(x) * 2 + x * 5, (tensor(X, requires_grad=True),))
    output, gx = gradients(traced, Z)
    np.testing.assert_allclose(output, 4 * np.exp(Z) + 5 * Z, rtol=1e-5)
    np.testing.assert_allclose(gx, np.full(Z.shape, 5.0))


@contextlib.contextmanager
def told():
    """That one warning comes."""
    with pytest.warns(UserWarning, match=f"{NO_GRADIENT} exp") as caught:
        yield
    # torch traces twice, to compare.
    (message,) = {str(each.message) for each in caught if NO_GRADIENT in str(each.message)}
    assert message.endswith("    remedy: train before exporting, or keep the rule by torch.compile.")


@pytest.mark.parametrize("way", ["frozen", "no_grad"])
@pytest.mark.limit
def test_traced_without_a_gradient(backend, way):
    """A program of torch's own operations, which is saved, and has no gradient there: never the plain one."""
    import torch

    module = model(lambda x: exp(x) + exp(x))
    with told(), torch.set_grad_enabled(way != "no_grad"):
        traced = torch.jit.trace(frozen(module) if way == "frozen" else module.eval(), (tensor(X),))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    expected = 4 * np.exp(Z * C).sum() + 3 * (Z * C).sum()
    for each in (traced, loaded):
        for _ in range(3):
            output, gx = gradients(each, Z)
        np.testing.assert_allclose(output, expected, rtol=1e-5)
        np.testing.assert_allclose(gx, np.broadcast_to(3 * C, Z.shape), rtol=1e-6)
    np.testing.assert_allclose(torch.jit.freeze(traced)(tensor(Z)), expected, rtol=1e-5)


@pytest.mark.limit
def test_torch_forgets_a_detach_when_it_freezes(backend):
    """A limit: the plain gradient comes through what was cut, a user's own detach included."""
    import torch

    def plain(x):
        return (x.detach() * 2).exp()

    for function in (plain, exp):
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=NO_GRADIENT)
            traced = torch.jit.trace(model(function).eval(), (tensor(X),))
        _, gx = gradients(traced, X)
        np.testing.assert_allclose(gx, np.broadcast_to(3 * C, X.shape), rtol=1e-6)
        _, gx = gradients(torch.jit.freeze(traced), X)
        assert not np.allclose(gx, np.broadcast_to(3 * C, X.shape))


@pytest.mark.parametrize("way", ["transform", "gradient", "forward"])
@pytest.mark.limit
def test_a_traced_gradient_is_refused(backend, way):
    import torch
    from torch.autograd import forward_ad

    def forward(x):
        with forward_ad.dual_level():
            return exp(forward_ad.make_dual(x, x)) * 1

    programs = {
        "transform": lambda x: torch.func.grad(lambda x: exp(x).sum())(x),
        "gradient": lambda x: torch.autograd.grad(exp(x).sum(), x)[0],
        "forward": forward,
    }
    # torch's own derivative warns of what it does with shapes.
    warnings.simplefilter("ignore", torch.jit.TracerWarning)
    # torch itself says of the gradient that the output has none.
    refused = {"gradient": (RuntimeError, "does not require grad")}
    kind, message = refused.get(way, (NotImplementedError, "exporting a derivative ignores custom gradients"))
    warnings.filterwarnings("ignore", message=NO_GRADIENT)
    with pytest.raises(kind, match=message):
        torch.jit.trace(programs[way], (tensor(X, requires_grad=way != "forward"),))


# --- names of torch that are not public ----------------------------------------------------------------------------

MISSING = {
    "exported": [("torch.fx.experimental.proxy_tensor", "get_proxy_mode")],
}


@pytest.mark.parametrize(
    ("file", "module", "name"), [(file, *each) for file, names in MISSING.items() for each in names]
)
def test_a_name_that_is_gone(backend, monkeypatch, file, module, name):
    monkeypatch.delattr(importlib.import_module(module), name)
    # Anew, and not in the place of what others have imported.
    spec = importlib.util.find_spec(f"keras_cg.backends.torch.{file}")
    with pytest.raises((ImportError, AttributeError), match=name):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
