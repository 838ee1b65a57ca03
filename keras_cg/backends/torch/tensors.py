"""What a tensor is to torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
import torch.fx
import torch.utils._pytree as pytree
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

from keras_cg.backends import owner
from keras_cg.engine import messages, precision
from keras_cg.engine.rule import is_repeated

tensors = (torch.Tensor,)

# What torch.compile need not trace, and could not: it asks every framework that is imported.
torch.compiler.assume_constant_result(owner)  # type: ignore[no-untyped-call]

# Whether a transform of torch.func is running; torch (2.13) has no public name for it, and uses this one itself to
# choose between the two ways to apply a Function. If it is gone, importing this file fails, and with it the backend.
transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
# Likewise, for what Dynamo looks at new frames with, None outside of torch.compile. Where it gave up, and what follows
# runs as it is, it would compile one function of this package after the other.
dynamo_callback: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback
# Likewise, for the level of forward mode that is open, -1 outside of any; torch's own unpack_dual begins with it.
# Read through the module, since it is a number that changes.
forward_ad._current_level  # noqa: B018
# Likewise, for whether torch.jit.trace runs, and how many modes see every operation, as those of make_fx do; but one
# that make_fx has for operations before they are dispatched shows in a key only.
is_tracing: Callable[[], bool] = torch._C._is_tracing
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
is_included: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_included
PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
# Likewise, for the number that the next node of the graph will get, whether hooks for saved tensors are set, and
# whether the backward pass that runs keeps the graph.
sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph
# Likewise, for whether autocast is on for any kind of device.
is_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
# Likewise, for what a transform wrapped and is over; `apply` of a Function begins with it.
unwrap_if_dead: Callable[[torch.Tensor], torch.Tensor] = functorch.unwrap_if_dead
# Likewise, for looking through the wrappers that the transforms put around tensors, for types registered with torch's
# tree utility, for tensors, and for the graph that autograd records.
NEEDED = (
    functorch.TransformType.Jvp,
    functorch.get_unwrapped,
    functorch.is_batchedtensor,
    functorch.is_functorch_wrapped_tensor,
    functorch.is_gradtrackingtensor,
    functorch.maybe_get_bdim,
    functorch.maybe_get_level,
    pytree.tree_flatten,
    pytree.tree_is_leaf,
    pytree.tree_leaves,
    pytree.tree_map,
    pytree.tree_unflatten,
    torch.Tensor._is_zerotensor,
    torch.Tensor._version,
    torch.autograd.graph.Node._sequence_nr,
    torch._C._functions.AccumulateGrad.variable,  # type: ignore[attr-defined]
)


def is_tensor(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, torch.fx.Proxy):
        raise messages.rule_dropped(
            "torch.fx.symbolic_trace",
            "keep the call as one step of the graph: put it into a function of a module, and call torch.fx.wrap with"
            " that function's name there",
        )
    return False


def asarray(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def to_numpy(tensor: Any) -> numpy.ndarray:
    if functorch.is_functorch_wrapped_tensor(tensor):
        # Under a transform every operation gives a wrapped tensor again, which has no memory for NumPy to look at.
        with temporarily_clear_interpreter_stack():
            return to_numpy(_unwrapped(tensor))
    if hasattr(tensor, "to_local"):
        # A DTensor: each process has a part, and compares that, because the whole would have to be sent. A function of
        # NumPy arrays never comes here: torch refuses to run an operator on a DTensor that it knows no sharding of.
        tensor = tensor.to_local()
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().to_dense()
    # NumPy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # type: ignore[no-any-return]


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """What the transforms wrapped, with the axes of batches in front, the outermost first."""
    axes = []
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            axes.append(functorch.maybe_get_bdim(tensor))
        tensor = functorch.get_unwrapped(tensor)
    # Not on the way, because a tensor that is still wrapped belongs to a level that does not run here.
    for place, axis in enumerate(reversed(axes)):
        tensor = tensor.movedim(place + axis, place)
    return tensor


def shape(tensor: Any) -> tuple[int | None, ...]:
    return tensor.shape  # type: ignore[no-any-return]


# Looked up, because every call asks for some.
_dtypes = {kind: str(kind).removeprefix("torch.") for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def dtype(tensor: Any) -> str:
    return _dtypes[tensor.dtype]


def cast(value: Any, dtype: str) -> Any:
    return value.to(getattr(torch, dtype))


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    # One level of a type registered with torch's own tree utility, which has no public name (torch 2.13).
    if pytree.tree_is_leaf(value):
        return None
    # tree_flatten asks of `value` first and then of its parts, so that all but the first answer are yes. A comparison
    # with `value` instead would keep it alive: tree_flatten makes a cycle of what it is given (torch 2.13).
    answers = iter((False,))
    parts, spec = pytree.tree_flatten(value, is_leaf=lambda part: next(answers, True))
    return parts, lambda parts: pytree.tree_unflatten(parts, spec)


is_compiling = torch.compiler.is_compiling


def is_recording() -> bool:
    # In one expression, because every call asks.
    return (
        torch.is_grad_enabled()
        or torch.compiler.is_compiling()
        or transforms_active()
        or forward_ad._current_level >= 0
        or is_tracing()
        or dispatch_modes() > 0
        or is_included(PRE_DISPATCH)
    )


def is_plain(value: object) -> bool:
    return type(value) is torch.Tensor or type(value) is torch.nn.Parameter


def is_captured() -> bool:
    """Whether somebody may be writing down what is computed, as make_fx does and what is made of it."""
    return dispatch_modes() > 0 or is_included(PRE_DISPATCH)


def is_forward_open() -> bool:
    """Whether a level of forward mode is open, whatever moves in it."""
    return forward_ad._current_level >= 0


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for one in a trace, and has no numbers."""
    return isinstance(tensor, (FakeTensor, FunctionalTensor))


def is_floating(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a gradient, if somebody asks for it."""
    return tensor.is_floating_point() or tensor.is_complex()


def integers(tensors: Any) -> list[torch.Tensor]:
    """Those that have none."""
    return [tensor for tensor in tensors if not is_floating(tensor)]


def saveable(tensors: Any) -> list[torch.Tensor]:
    """Tensors that autograd saves: no inference tensors, of which a copy made outside of inference mode is none."""
    return [tensor.clone() if tensor.is_inference() else tensor for tensor in tensors]


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How often tensors were changed in place; the name is torch's own, and its documentation uses it."""
    counts = []
    for tensor in tensors:
        try:
            counts.append(tensor._version)
        except RuntimeError:  # a tensor of inference mode does not count
            counts.append(0)
    return counts


def autocasts(tensors: Sequence[torch.Tensor], is_kept: bool = True) -> list[tuple[str, torch.dtype, bool]]:
    """Returns the arguments of `torch.autocast` that bring the present state back, or that switch autocast off."""
    kinds = filter(torch.amp.is_autocast_available, {"cpu", *[tensor.device.type for tensor in tensors]})
    return [(kind, torch.get_autocast_dtype(kind), is_kept and torch.is_autocast_enabled(kind)) for kind in kinds]


def agreement(pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
    if transforms_active() or is_captured() or not all([_is_equal(one, two) for one, two in pairs]):
        return _agreement(pairs)  # type: ignore[no-any-return]
    return [True] * len(pairs)


def _is_equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether two ordinary tensors have the same values; what is not so simple is left to `_agree`."""
    if not (is_plain(one) and is_plain(two) and one.is_cpu and two.is_cpu and one.dtype == two.dtype):
        return False
    return one.layout is two.layout is torch.strided and torch.equal(one, two)


# Where torch.compile (2.13) gave up, it compiles each new frame by itself, and fails in this one.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _agreement(pairs: Sequence[tuple[Any, Any]]) -> list[bool]:
    if is_captured():
        # Whatever is computed here would be written down. A tensor without values stands for what it will be.
        return [is_fake(one) or _is_repeated(one, two) for one, two in pairs]
    # Outside of every transform, where values can be looked at.
    with torch.no_grad(), temporarily_clear_interpreter_stack():
        answers = [_agree(_whole(one), _whole(two)) for one, two in pairs]
        # Those of other devices arrive together.
        waiting = [answer for answer in answers if isinstance(answer, torch.Tensor)]
        arrived = iter(torch.stack([answer.cpu() for answer in waiting]).tolist() if len(waiting) > 1 else waiting)
        return [bool(next(arrived)) if isinstance(answer, torch.Tensor) else answer for answer in answers]


def _is_repeated(one: torch.Tensor, two: torch.Tensor) -> bool:
    return is_repeated(to_numpy(two), to_numpy(one), precision.of(dtype(one)).repeated)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor out of all transforms; of a DTensor the part that this process has."""
    tensor = _unwrapped(tensor).detach()
    local: Callable[[], torch.Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def _agree(one: torch.Tensor, two: torch.Tensor) -> bool | torch.Tensor:
    """Whether two tensors are equal but for rounding; on other devices than the processor an answer that is to come."""
    if one.shape != two.shape or one.dtype != two.dtype or one.device != two.device:
        return False
    if one is two or is_fake(one) or one.is_meta:
        return True
    if one.layout is not torch.strided:
        one, two = one.to_dense(), two.to_dense()
    if one.is_cpu and torch.equal(one, two):
        return True
    if not is_floating(one):
        return (one == two).all()
    tolerance = precision.of(dtype(one)).repeated
    if one.dtype.itemsize < 4:
        one, two = one.float(), two.float()
    size = one.abs().nan_to_num(0.0, 0.0, 0.0)
    largest = size.max() if size.numel() else 0.0
    return (((two - one).abs() <= tolerance * largest) | (one == two) | (one.isnan() & two.isnan())).all()


def describe(tensor: torch.Tensor) -> str:
    """What a message calls a captured tensor."""
    return f"{type(tensor).__name__} of {dtype(tensor)}{list(tensor.shape)}"
