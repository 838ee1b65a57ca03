"""make_fx and torch.jit.trace: a gradient inside is that of the rule; through what was traced without one is none."""

import io
import warnings

import numpy as np
import pytest
from leaving import NO_GRADIENT, C, X, Z, exp, gradients, model, same, tensor

import keras_cg
from keras_cg import custom_gradient, ops

pytestmark = [
    pytest.mark.only("torch"),
    # What torch (2.13) will not keep for ever.
    pytest.mark.filterwarnings("ignore:.torch.jit.[a-z_]*. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.[a-z_]*. is deprecated:FutureWarning"),
]


# --- make_fx, and what is made of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("pre_dispatch", [False, True], ids=["dispatched", "pre_dispatch"])
def test_make_fx(torch, tracing_mode, pre_dispatch):
    from torch.fx.experimental.proxy_tensor import make_fx

    # With a table, because without one torch 2.14 rewrites `detach`: see the next test.
    make = lambda function, x: make_fx(function, {}, tracing_mode, pre_dispatch=pre_dispatch)(x)
    graph = make(lambda x: torch.autograd.grad(exp(x).sum(), x)[0], tensor(X, requires_grad=True))
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


@pytest.mark.limit
def test_make_fx_that_rewrites_detach(torch):
    """The program has the gradient of plain differentiation; torch 2.14 does this where it gets no table."""
    from torch.fx.experimental.proxy_tensor import make_fx

    make = make_fx(lambda x: 2 * exp(x), {torch.ops.aten.detach.default: torch.ops.aten.alias.default})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=NO_GRADIENT)
        with pytest.raises(NotImplementedError, match=r"(?s)make_fx.*that of exp.*pre_dispatch=True"):
            make(tensor(X))
    # A trace of tensors that require a gradient may differentiate inside, where the rule serves.
    x = tensor(X, requires_grad=True)
    (gradient,) = torch.autograd.grad(make(x)(x).sum(), x)
    np.testing.assert_allclose(gradient, 4 * np.exp(X), rtol=1e-6)


@pytest.mark.limit
def test_a_weight_under_aot_module(torch):
    """One in a closure or an attribute gets its gradient, if the rule takes it."""
    from functorch.compile import aot_module, make_boxed_func

    class Model(torch.nn.Module):
        def __init__(self, is_held, is_taken):
            super().__init__()
            self.is_held, self.is_taken = is_held, is_taken
            self.w = torch.nn.Parameter(tensor(C))

        def forward(self, x):
            weight = self.w if self.is_held else None
            taking = lambda upstream, variables=None: (7 * upstream, [9 * upstream.sum(0)])
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


def test_fake_tensors(torch):
    """What estimates memory or shapes runs a step on tensors without numbers."""
    from torch._subclasses import FakeTensorMode

    viewed = custom_gradient(lambda x: ((x * 2).reshape(-1), lambda upstream: 7 * upstream.reshape(x.shape)))
    with FakeTensorMode():
        x = torch.ones(2, 3, requires_grad=True)
        exp(x).sum().backward()
        viewed(x).sum().backward()
        assert x.grad.shape == (2, 3)


# --- torch.jit.trace -------------------------------------------------------------------------------------------------


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
    "several": of_several,
    "with a weight": with_a_weight,
    "with an intermediate": with_an_intermediate,
}


@pytest.mark.parametrize("name", TRACED)
@pytest.mark.limit
def test_a_traced_module_has_no_gradient_through_it(torch, name):
    """For other data as well; the gradient is that of `x v` beside the function, with v = C + 1."""
    module = traced_model(TRACED[name])
    with pytest.warns(UserWarning, match=NO_GRADIENT):
        traced = torch.jit.trace(module, (tensor(X),))
    for array in (Z, X + 1):
        output, gx, gw, gv = gradients(traced, array, module.w, module.v)
        np.testing.assert_allclose(output, module(tensor(array)).detach(), rtol=1e-5)
        np.testing.assert_allclose(gx, np.broadcast_to(C + 1, array.shape), rtol=1e-6)
        np.testing.assert_allclose(gv, array.sum(0), rtol=1e-6)
        assert gw is None or not gw.any()


@pytest.mark.parametrize("way", ["frozen", "no_grad"])
@pytest.mark.limit
def test_traced_without_a_gradient(torch, way):
    """A program of torch's own operations, which is saved, and has no gradient there: never the plain one."""
    module = model(lambda x: exp(x) + exp(x)).requires_grad_(way != "frozen").eval()
    with pytest.warns(UserWarning, match=f"{NO_GRADIENT} exp") as caught, torch.set_grad_enabled(way != "no_grad"):
        traced = torch.jit.trace(module, (tensor(X),))
    # torch traces twice, to compare.
    (message,) = {str(each.message) for each in caught if NO_GRADIENT in str(each.message)}
    assert message.endswith("    remedy: train before exporting, or keep the rule by torch.compile.")
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    expected = 4 * np.exp(Z * C).sum() + 3 * (Z * C).sum()
    for each in (traced, torch.jit.load(file)):
        for _ in range(3):
            output, gx = gradients(each, Z)
        np.testing.assert_allclose(output, expected, rtol=1e-5)
        np.testing.assert_allclose(gx, np.broadcast_to(3 * C, Z.shape), rtol=1e-6)
    np.testing.assert_allclose(torch.jit.freeze(traced)(tensor(Z)), expected, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.limit
def test_torch_forgets_a_detach_when_it_freezes(torch):
    """A limit: the plain gradient comes through what was cut, a user's own detach included."""

    plain = lambda x: (x.detach() * 2).exp()
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
def test_a_traced_gradient_is_refused(torch, way):
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
