"""Tensors of torch, and the state that torch is in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy
import torch
import torch.fx
import torch.utils._pytree as pytree
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters, temporarily_clear_interpreter_stack
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from keras_cg.backends import owner
from keras_cg.engine import defaults, linear, messages, precision
from keras_cg.engine.contract import Pullback
from keras_cg.engine.precision import is_repeated
from keras_cg.user_code import constant_result

tensors = (torch.Tensor,)
this_backend: Any = sys.modules[__package__]


# It asks every framework that is imported.
constant_result(owner)

# None of these names is public (torch 2.13). Without one of them, this import fails, and with it the backend.
# Does a transform of torch.func run? torch itself chooses by this how a Function is applied.
transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
# How Dynamo treats the frames of a code object.
_set_strategy: Any = torch._C._dynamo.eval_frame.set_code_exec_strategy
_SKIP: Any = torch._C._dynamo.eval_frame._FrameAction.SKIP
_SKIPPED: Any = torch._C._dynamo.eval_frame._FrameExecStrategy(_SKIP, _SKIP)
# The open level of forward mode, or -1. A number that changes, so it is read through the module.
forward_ad._current_level  # noqa: B018
# Does torch.jit.trace run? How many modes see every operation, as those of make_fx do? The mode that make_fx has before
# dispatch shows in a key only, and has a mode for functions of torch with it, of which it takes less time to ask.
is_tracing: Callable[[], bool] = torch._C._is_tracing
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
function_modes: Callable[[], int] = torch._C._len_torch_function_stack
is_included: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_included
PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
# The number of the next node of the graph; the hooks for saved tensors; does the running backward pass keep the graph?
sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks
keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph
# Is autocast on for any kind of device?
is_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
# Removes the wrapper of a transform that is over; `apply` of a Function begins with it.
unwrap_if_dead: Callable[[torch.Tensor], torch.Tensor] = functorch.unwrap_if_dead
# The other files of this folder use these.
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
    torch.Tensor._is_view,
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
    # Under a transform every operation returns a wrapped tensor, which has no memory that NumPy could read.
    with temporarily_clear_interpreter_stack():
        tensor = _whole(tensor).cpu().resolve_conj().resolve_neg().to_dense()
        # NumPy has no bfloat16.
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # type: ignore[no-any-return]


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Removes the wrappers of all transforms; the axes of batches come first, the outermost in front."""
    axes = []
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            axes.append(functorch.maybe_get_bdim(tensor))
        tensor = functorch.get_unwrapped(tensor)
    # After the loop, because a wrapped tensor belongs to a level that does not run here.
    for place, axis in enumerate(reversed(axes)):
        tensor = tensor.movedim(place + axis, place)
    return tensor


def shape(tensor: Any) -> tuple[int | None, ...]:
    return tensor.shape  # type: ignore[no-any-return]


# A table, because every call asks for some.
_dtypes = {kind: str(kind).removeprefix("torch.") for kind in vars(torch).values() if isinstance(kind, torch.dtype)}


def dtype(tensor: Any) -> str:
    return _dtypes[tensor.dtype]


def cast(value: Any, dtype: str) -> Any:
    return value.to(getattr(torch, dtype))


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    # torch's own tree utility has no public name (2.13).
    if pytree.tree_is_leaf(value):
        return None
    # tree_flatten asks `is_leaf` of `value` first and then of its parts: no, and then always yes. A comparison with
    # `value` would keep `value` alive, because tree_flatten (2.13) has a reference cycle around `is_leaf`.
    answers = iter((False,))
    parts, spec = pytree.tree_flatten(value, is_leaf=lambda part: next(answers, True))
    return parts, lambda parts: pytree.tree_unflatten(parts, spec)


def is_alive(tensor: torch.Tensor) -> bool:
    """Whether each level that a tensor belongs to is open; a new one has the number of one that is over."""
    vmaps = [
        each.level() for each in retrieve_all_functorch_interpreters() if each.key() == functorch.TransformType.Vmap
    ]
    while functorch.is_functorch_wrapped_tensor(tensor):
        is_batched = functorch.is_batchedtensor(tensor)
        if functorch.maybe_get_level(tensor) not in vmaps if is_batched else unwrap_if_dead(tensor) is not tensor:
            return False
        tensor = functorch.get_unwrapped(tensor)
    return True


def is_compiling() -> bool:
    """Whether this thread traces for torch.compile or torch.export; `torch.compiler.is_compiling` is of the process."""
    return is_dynamo_compiling() or (torch.compiler.is_compiling() and is_captured())


# What `is_recording` answers: nothing is recorded; autograd alone does that; or anything else is at work, too, which
# records or changes what operations do.
NOTHING, AUTOGRAD, OTHERS = range(3)


def is_recording() -> int:
    """Returns which engine of torch is at work."""
    # First the question that Dynamo can trace.
    if (
        is_dynamo_compiling()
        or is_tracing()
        or transforms_active()
        or dispatch_modes() > 0
        or forward_ad._current_level >= 0
        or (function_modes() > 0 and is_included(PRE_DISPATCH))
    ):
        return OTHERS
    if not torch.is_grad_enabled():
        return NOTHING
    return OTHERS if is_autocast() or hooks(False) is not None else AUTOGRAD


def uncompiled(fun: Any) -> Any:
    """Lets torch.compile trace `fun` as a part of other functions, and never by itself.

    After a graph break, torch (2.13) compiles each new frame by itself. It fails in some of this package, and it loses
    the order of a dict in a treespec of optree.
    """
    _set_strategy(fun.__code__, _SKIPPED)
    return fun


plain = frozenset({torch.Tensor, torch.nn.Parameter})


def is_plain(value: object) -> bool:
    return type(value) in plain


def is_captured() -> bool:
    """Whether operations may be recorded, as make_fx does and all that builds on it."""
    return dispatch_modes() > 0 or is_included(PRE_DISPATCH)


def is_forward_open() -> bool:
    """Whether a level of forward mode is open."""
    return forward_ad._current_level >= 0


def constant(tensor: torch.Tensor) -> torch.Tensor:
    """Returns an output where gradients are off; a function may switch them on inside."""
    return tensor.detach() if tensor.requires_grad else tensor


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a placeholder in a trace, without values."""
    return isinstance(tensor, (FakeTensor, FunctionalTensor))


def is_floating(tensor: torch.Tensor) -> bool:
    """Whether a tensor can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def storage_of(tensor: torch.Tensor) -> int:
    """Returns the address of a tensor's storage, or 0 if it has none, as a fake tensor or a wrapper of others."""
    if type(tensor) not in plain and (tensor.layout is not torch.strided or is_fake(tensor)):
        return 0
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def integers(tensors: Any) -> list[torch.Tensor]:
    """Returns the tensors that can have no gradient."""
    return [tensor for tensor in tensors if not is_floating(tensor)]


def saveable(tensors: Any) -> list[torch.Tensor]:
    """Copies inference tensors, which autograd cannot save; outside of inference mode, the copy is no such tensor."""
    return [tensor.clone() if tensor.is_inference() else tensor for tensor in tensors]


class _Values:
    """The values that an inference tensor has now: it does not count its changes."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor.clone()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Values) and torch.equal(self.tensor, other.tensor)

    __hash__ = None  # type: ignore[assignment]


def version(tensor: torch.Tensor) -> Any:
    """Returns what is another one if the tensor was changed in place since."""
    try:
        return tensor._version
    except RuntimeError:
        return _Values(tensor)


def versions(tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Returns the version of each tensor."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [*map(version, tensors)]


def edges(tensors: Sequence[torch.Tensor], ends: Collection[Any] = ()) -> Iterator[tuple[Any, int, Any]]:
    """Yields each edge of the graph of `tensors`: a node, the number of its output, and the node that uses this.

    The user of an output of the graph is None. No edge is followed beyond those in `ends`, pairs of node and number.
    """
    stack: list[tuple[Any, int, Any]] = [(each.grad_fn, each.output_nr, None) for each in tensors]
    seen = {None}
    while stack:
        node, number, user = stack.pop()
        if node is not None:
            yield node, number, user
        if node not in seen and (node, number) not in ends:
            seen.add(node)
            stack += [(before, place, node) for before, place in node.next_functions]


def leaves(outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the leaves of autograd's graph that outputs depend on."""
    found = [output for output in outputs if output.is_leaf and output.requires_grad]
    return found + [node.variable for node, _, _ in edges(outputs) if hasattr(node, "variable")]


def autocasts(tensors: Sequence[torch.Tensor], is_on: bool = True) -> list[tuple[str, torch.dtype, bool]]:
    """Returns the arguments of `torch.autocast` that bring the present state back, or that switch autocast off."""
    kinds = filter(torch.amp.is_autocast_available, {"cpu", *[tensor.device.type for tensor in tensors]})
    return [(kind, torch.get_autocast_dtype(kind), is_on and torch.is_autocast_enabled(kind)) for kind in kinds]


@uncompiled
def agreement(pairs: Sequence[tuple[Any, Any]]) -> list[bool | None]:
    if not transforms_active() and not is_captured():
        for one, two in pairs:
            if not (is_plain(one) and is_plain(two) and one.is_cpu and two.is_cpu and one.dtype == two.dtype):
                break
            if one.is_nested or not (one.layout is two.layout is torch.strided and torch.equal(one, two)):
                break
        else:
            return [True] * len(pairs)
    if is_captured():
        # An operation of torch would be recorded. A placeholder has no values to compare.
        tolerances = [precision.of(dtype(one)).repeated for one, _ in pairs]
        compared = zip(pairs, tolerances, strict=True)
        return [is_fake(one) or is_repeated(to_numpy(two), to_numpy(one), each) for (one, two), each in compared]
    # Values can only be read outside of every transform.
    with torch.no_grad(), temporarily_clear_interpreter_stack():
        answers = [_agree_if_possible(one, two) for one, two in pairs]
        # Only now, because `bool` waits for an accelerator.
        return [answer if answer is None else bool(answer) for answer in answers]


def _agree_if_possible(one: torch.Tensor, two: torch.Tensor) -> bool | torch.Tensor | None:
    """Whether two tensors are equal up to rounding; None if torch cannot compare them, such as masked ones."""
    try:
        return _agree(_whole(one), _whole(two))
    except (NotImplementedError, RuntimeError, TypeError):
        return None


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """Takes a tensor out of all transforms; of a DTensor, returns the part of this process, and sends nothing."""
    tensor = _unwrapped(tensor).detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _agree(one: torch.Tensor, two: torch.Tensor) -> bool | torch.Tensor:
    """Whether two tensors are equal up to rounding; on an accelerator, a boolean tensor there."""
    if one.layout is two.layout is torch.jagged:
        # The shapes of two nested tensors are equal only if both have the same tensor of offsets.
        return _agree(one.values(), two.values()) & _agree(one.offsets(), two.offsets())  # type: ignore[attr-defined]
    if one.shape != two.shape or one.dtype != two.dtype or one.device != two.device:
        return False
    if one is two or is_fake(one) or one.is_meta:
        return True
    if one.layout is not torch.strided:
        one, two = one.to_dense(), two.to_dense()
    if one.is_cpu and torch.equal(one, two):
        return True
    return defaults.is_repeated_later(this_backend, two, one)  # type: ignore[no-any-return]


def describe(tensor: torch.Tensor) -> str:
    """Returns the name of a captured tensor in a message."""
    return f"{type(tensor).__name__} of {dtype(tensor)}{list(tensor.shape)}"


def probe(
    cotangents: Sequence[Any],
    variables: Sequence[Any],
    needs_grad: Sequence[bool] | None,
    run: Pullback,
    outputs: Sequence[Any] | None = None,
) -> list[Any]:
    """Returns the gradients of a run along new upstreams in the place of `cotangents`, which have no batch."""
    plain = [
        each if each is None else torch.zeros(each.shape, dtype=each.dtype, device=each.device) for each in cotangents
    ]
    gradients, others = run.pull(linear.irregular(this_backend, plain), variables, needs_grad, None, outputs)
    return [*gradients, *others]
