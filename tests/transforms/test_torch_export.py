"""torch.export: the exported program has the output, and no gradient through our functions, which a warning says."""

import io

import numpy as np
import pytest
from leaving import NO_GRADIENT, C, X, Z, exp, gradients, model, same, tensor

import keras_cg
from keras_cg import custom_gradient, ops

pytestmark = [
    pytest.mark.only("torch"),
    # torch (2.13) about itself, when it decomposes any program.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]

# What does nothing in a program.
IDLE = {"alias", "detach", "detach_", "clone"}


GRAD = pytest.mark.parametrize("is_on", [True, False], ids=["grad", "no_grad"])
STRICT = pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])


@custom_gradient
def nest(d, factor=1):
    e = exp(d["a"])
    outputs = {"b": e * factor, "i": e.argmax(), "u": d["a"] + 1}
    return outputs, lambda upstream: {"a": 7 * upstream["b"] + upstream["u"]}


def seven(function):
    return custom_gradient(lambda x: (function(x), lambda upstream: 7 * upstream))


FUNCTIONS = {
    "exp": exp,
    "same": same,
    "viewed": custom_gradient(lambda x: ((x * 2).reshape(-1), lambda upstream: 7 * upstream.reshape(x.shape))),
    "part": seven(lambda x: x[1:]),
    "nest": lambda x: nest({"a": x}, factor=3)["b"],
    "untouched": seven(lambda x: x.to(x.dtype).contiguous()),
}


# With Dynamo, which strict means, as well.
IN_DYNAMO = ("viewed", "nest", "same")
CALLS = [*((name, False) for name in FUNCTIONS), *((name, True) for name in IN_DYNAMO)]


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


# --- what comes out --------------------------------------------------------------------------------------------------


@STRICT
@GRAD
@pytest.mark.limit
def test_an_exported_program(torch, strict, is_on):
    batch = {"x": {0: torch.export.Dim("batch", min=2)}}
    program = export(model(exp), tensor(X), is_on=is_on, strict=strict, dynamic_shapes=batch)
    check_around(program.module(), exp)
    decomposed = program.run_decompositions()
    expected = ["mul", "exp", "mul", "sum", "sum", "mul", "add"]
    assert [each for each in operations(decomposed) if each not in IDLE] == expected
    np.testing.assert_allclose(decomposed.module()(tensor(Z)).detach(), model(exp)(tensor(Z)).detach(), rtol=1e-5)


@GRAD
@pytest.mark.parametrize(("name", "strict"), CALLS)
def test_what_functions_return(backend, name, strict, is_on):
    function = FUNCTIONS[name]
    check_around(export(model(function), tensor(X), is_on=is_on, strict=strict).module(), function, X)


@GRAD
def test_a_frozen_model(backend, is_on):
    frozen = model(exp).requires_grad_(False).eval()
    output, gx = gradients(export(frozen, tensor(X), is_on=is_on).module(), X)
    np.testing.assert_allclose(output, (2 * np.exp(X * C)).sum() + 3 * (X * C).sum(), rtol=1e-5)
    np.testing.assert_allclose(gx, np.broadcast_to(3 * C, X.shape), rtol=1e-6)


@STRICT
@GRAD
def test_captured_weights(torch, strict, is_on):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(tensor(C))

        @custom_gradient
        def scaled(self, x, *, factor=2):
            return x * self.w * factor, lambda upstream, variables=None: (7 * upstream, [9 * upstream.sum(0)])

        def forward(self, x):
            hidden = x * self.w
            # It gives out what is not its own, and is used elsewhere.
            other = custom_gradient(lambda y: (hidden, lambda upstream, variables=None: (7 * upstream, [9 * upstream])))
            return other(x).sum() + self.scaled(x, factor=5).sum() + 3 * hidden.sum()

    module = export(Model(), tensor(X), is_on=is_on, strict=strict).module()
    output, gx, gw = gradients(module, X, *module.parameters())
    np.testing.assert_allclose(output, 9 * (X * C).sum(), rtol=1e-5)
    np.testing.assert_allclose(gx, np.broadcast_to(3 * C, X.shape), rtol=1e-6)
    np.testing.assert_allclose(gw, 3 * X.sum(0), rtol=1e-6)


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_a_model_that_switches_gradients(torch, outer, inner):
    """torch keeps a region of a model only where its mode is not that in which the export began."""

    def regional(x):
        with torch.set_grad_enabled(inner):
            return exp(x)

    # Twice, since the first call shows how things stand.
    module = export(model(lambda x: regional(x) + exp(x)), tensor(X), is_on=outer).module()
    check_around(module, lambda x: 2 * exp(x), X)


def test_saved_and_loaded(torch):
    """Saved under no_grad, and trained on."""
    file = io.BytesIO()
    torch.export.save(export(model(exp), tensor(X), is_on=False), file)
    file.seek(0)
    check_around(torch.export.load(file).module(), exp, X)


@pytest.mark.thorough
@pytest.mark.limit
def test_torch_forgets_a_detach_when_it_decomposes(torch):
    """A limit: in a decomposed program, plain gradients come through what was cut, a user's own detach included."""
    plain = model(lambda x: (x.detach() * 2).exp())
    programs = [torch.export.export(plain, (tensor(X),)), export(model(exp), tensor(X))]
    for program in programs:
        _, gx = gradients(program.module(), X)
        np.testing.assert_allclose(gx, np.broadcast_to(3 * C, X.shape), rtol=1e-6)
        _, gx = gradients(program.run_decompositions().module(), X)
        assert not np.allclose(gx, np.broadcast_to(3 * C, X.shape))


# --- what is said, and what is refused -------------------------------------------------------------------------------


@pytest.mark.limit
def test_one_warning_for_each_export(torch):
    """However many functions there are, and however often each is called."""
    module = model(lambda x: exp(same(exp(x))) + exp(x) + nest({"a": x})["b"])
    for _ in range(2):
        with pytest.warns(UserWarning, match=NO_GRADIENT) as caught:
            torch.export.export(module, (tensor(X),))
        (warning,) = caught
        assert str(warning.message).splitlines()[0] == (
            "the exported program has no gradient through exp, nor through other functions with a custom gradient."
        )


DIFFERENTIATING = {
    "grad": lambda torch, x: torch.func.grad(lambda x: exp(x).sum())(x),
    "jvp": lambda torch, x: torch.func.jvp(exp, (x,), (x,))[1],
    "autograd.grad": lambda torch, x: torch.autograd.grad((exp(x) + x).sum(), x)[0],
}


@pytest.mark.parametrize("way", DIFFERENTIATING)
@pytest.mark.filterwarnings("ignore:the exported program has no gradient")
@pytest.mark.limit
def test_a_gradient_inside_is_refused(torch, way):
    """Its numbers would be those of plain differentiation."""
    with pytest.raises(NotImplementedError, match="exporting a derivative ignores custom gradients") as raised:
        torch.export.export(model(lambda x: DIFFERENTIATING[way](torch, x)), (tensor(X),))
    assert "would silently give those of plain differentiation." in str(raised.value)
    assert str(raised.value).endswith("remedy: leave what differentiates out of what is exported.")


def test_a_plain_gradient_inside_is_exported(backend):
    """What a function differentiates by itself, without a rule of ours in it."""
    slope = custom_gradient(lambda x: (keras_cg.grad(lambda y: ops.sum(y**3))(x), lambda upstream: 7 * upstream))
    check_around(export(model(slope), tensor(X)).module(), lambda x: 3 * x**2, X)
