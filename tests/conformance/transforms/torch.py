"""torch: autograd, torch.func, forward mode, checkpoints, hooks and torch.compile."""

import contextlib
import warnings

import numpy as np
import torch
from frameworks.torch import array, tensor  # noqa: F401 - the suite's
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from conformance.transforms.derivatives import Derivatives


def take(x, rows):
    return torch.index_select(x, 0, rows)


def uniform():
    return torch.rand(())


def as_complex(x):
    return x + 0j


fft, ifft = torch.fft.fft, torch.fft.ifft


def leaves(tensors):
    return [each.clone().requires_grad_() for each in tensors]


def zeros(gradients, tensors):
    return [torch.zeros_like(x) if each is None else each for each, x in zip(gradients, tensors, strict=True)]


def grad(value, tensors, create_graph=False):
    """By torch.autograd, with zeros for what does not depend on the arguments."""
    if not value.requires_grad:
        return [torch.zeros_like(each) for each in tensors]
    return zeros(torch.autograd.grad(value, tensors, create_graph=create_graph, allow_unused=True), tensors)


def backward(p, f=None):
    tensors = leaves(p.tensors)
    value = loss(p, f)(*tensors)
    if value.requires_grad:
        value.backward()
    return zeros([each.grad for each in tensors], tensors)


def repeated(p, loss, *directions):
    """The gradient of the inner product of a direction and the gradient, and so on."""
    tensors = leaves(p.tensors)
    value = loss(*tensors)
    for each in directions:
        value = inner(each, grad(value, tensors, create_graph=True))
    return grad(value, tensors)


def functional(loss):
    """The gradient by torch.func, as a function of the arguments."""
    return lambda *tensors: torch.func.grad(lambda tensors: loss(*tensors))(list(tensors))


of = Derivatives(torch, functional)
loss, inner = of.loss, of.inner


def weighted_rows(p, rows):
    found = []
    for index, x in enumerate(p.tensors):
        parts = [torch.tensordot(w, row[index], w.dim()) for w, row in zip(p.weights, rows, strict=True)]
        found.append(sum(parts).reshape(x.shape))
    return found


@contextlib.contextmanager
def ignoring(message):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message)
        yield


# torch (2.13) maps conjugation slowly, and says so.
quietly = ignoring("There is a performance drop")


def mapped(function, batch, axis=0):
    return torch.func.vmap(function, in_dims=axis, randomness="different")(*batch)


def of_vmap(p):
    return of.of_batch(p, lambda *batch: mapped(p.f, batch))


@quietly
def func_vmap_of_grad(p):
    return mapped(functional(loss(p)), p.batch)


@quietly
def grad_of_vmap(p):
    return functional(of_vmap(p))(*p.batch)


@quietly
def along_last_axis(p):
    """The gradient of a map along the last axis."""
    batch = [each.movedim(0, -1) for each in p.batch]
    found = functional(of.of_batch(p, lambda *batch: mapped(p.f, batch, -1)))(*batch)
    return [each.movedim(-1, 0) for each in found]


@quietly
def backward_through_vmap(p):
    batch = leaves(p.batch)
    return grad(of_vmap(p)(*batch), batch)


def dual(p):
    with forward_ad.dual_level():
        outputs = p.f(*(forward_ad.make_dual(each, c) for each, c in zip(p.tensors, p.c, strict=True)))
        tangents = [forward_ad.unpack_dual(each).tangent for each in outputs]
    return zeros(tangents, p.weights)


def hooked(p, hooks):
    with hooks:
        tensors = leaves(p.tensors)
        value = loss(p)(*tensors)
    return grad(value, tensors)


def compiled(p, mode, **options):
    torch.compiler.reset()
    return torch.compile(p.f, backend=mode, fullgraph=True, **options)


def compiled_gradient(p):
    torch.compiler.reset()
    return torch.compile(functional(loss(p)), backend="aot_eager", fullgraph=True)(*p.tensors)


def exported(p):
    """The output; and the error of torch, since there is no gradient."""

    class Module(torch.nn.Module):
        def forward(self, *tensors):
            return p.f(*tensors)

    with ignoring("the exported program has no gradient"):
        program = torch.export.export(Module(), tuple(p.tensors)).module()
    for one, other in zip(program(*p.tensors), p.f(*p.tensors), strict=True):
        np.testing.assert_allclose(array(one), array(other), rtol=1e-6)
    return torch.autograd.grad(loss(p, program)(*leaves(p.tensors)), p.tensors)


def checkpointed(p, f=None):
    return lambda *tensors: checkpoint(f or p.f, *tensors, use_reentrant=False)


def reentrant(p):
    # torch warns of what it is asked to do: a function without anything to differentiate.
    with ignoring("None of the inputs have requires_grad=True"):
        return backward(p, lambda *tensors: checkpoint(lambda *x: tuple(p.f(*x)), *tensors, use_reentrant=True))


TRANSFORMS = {
    "call": ("value", lambda p: p.f(*p.tensors)),
    "no_grad": ("value", lambda p: torch.no_grad()(p.f)(*leaves(p.tensors))),
    "inference_mode": ("value", lambda p: torch.inference_mode()(p.f)(*leaves(p.tensors))),
    "compile, aot_eager": ("first", lambda p: backward(p, compiled(p, "aot_eager"))),
    "compile, inductor": ("first", lambda p: backward(p, compiled(p, "inductor"))),
    "compile, dynamic": ("first", lambda p: backward(p, compiled(p, "aot_eager", dynamic=True))),
    "compile of a call": ("value", lambda p: compiled(p, "aot_eager")(*p.tensors)),
    "backward": ("first", backward),
    "checkpoint": ("first", lambda p: backward(p, checkpointed(p))),
    "reentrant checkpoint": ("first", reentrant),
    "checkpoint of compile": ("first", lambda p: backward(p, checkpointed(p, compiled(p, "aot_eager")))),
    "save_on_cpu": ("first", lambda p: hooked(p, torch.autograd.graph.save_on_cpu())),
    "saved_tensors_hooks": (
        "first",
        lambda p: hooked(
            p, torch.autograd.graph.saved_tensors_hooks(lambda x: x.resolve_conj().numpy(), torch.as_tensor)
        ),
    ),
    "create_graph": ("second", lambda p: repeated(p, loss(p), p.c)),
    "create_graph of checkpoint": ("second", lambda p: repeated(p, loss(p, checkpointed(p)), p.c)),
    "create_graph of composite": ("composite", lambda p: repeated(p, of.squared(p), p.c)),
    "create_graph twice": ("third", lambda p: repeated(p, loss(p), p.c, p.d)),
    "functional.vjp": (
        "first",
        lambda p: torch.autograd.functional.vjp(lambda *x: tuple(p.f(*x)), tuple(p.tensors), tuple(p.weights))[1],
    ),
    "functional.vhp": ("second", lambda p: torch.autograd.functional.vhp(loss(p), tuple(p.tensors), tuple(p.c))[1]),
    "func.grad": ("first", lambda p: functional(loss(p))(*p.tensors)),
    "func.vjp": ("first", lambda p: torch.func.vjp(p.f, *p.tensors)[1](p.weights)),
    "func.jacrev": (
        "rows",
        lambda p: weighted_rows(p, torch.func.jacrev(p.f, argnums=tuple(range(len(p.tensors))))(*p.tensors)),
    ),
    "func.jacfwd": (
        "rows",
        lambda p: weighted_rows(
            p, torch.func.jacfwd(p.f, argnums=tuple(range(len(p.tensors))), randomness="different")(*p.tensors)
        ),
    ),
    "func.vmap of func.grad": ("batched", func_vmap_of_grad),
    "func.grad of func.vmap": ("batched", grad_of_vmap),
    "func.grad of func.vmap along the last axis": ("batched", along_last_axis),
    "backward through func.vmap": ("batched", backward_through_vmap),
    "func.grad of func.grad": ("second", lambda p: of.second(p)(*p.tensors)),
    "func.grad three times": ("third", lambda p: of.third(p)(*p.tensors)),
    "func.jvp": ("tangent", lambda p: torch.func.jvp(p.f, tuple(p.tensors), tuple(p.c))[1]),
    "forward_ad": ("tangent", dual),
    "func.jvp of func.grad": ("along", lambda p: torch.func.jvp(functional(loss(p)), tuple(p.tensors), tuple(p.c))[1]),
    "compile of func.grad": ("first", compiled_gradient),
    "export": ("first", exported),
}

# Under each of these, one program has all rules at once: of what compiles, what is quicker so.
AT_ONCE = ("compile, aot_eager", "compile, inductor", "compile, dynamic", "compile of a call", "checkpoint of compile")
