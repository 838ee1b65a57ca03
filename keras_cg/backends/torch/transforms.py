"""The rule under the transforms of torch.func and in forward mode, where a tensor belongs to a level.

Each level runs the function again, on its own tensors, and compares its rule with the rule of the first run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
import torch.utils._pytree as pytree

# The stack of the running transforms has no public name (torch 2.13). Without these names, this import fails.
from torch._C import _functorch as functorch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters, temporarily_pop_interpreter_stack
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from keras_cg.backends.torch.tensors import (
    describe,
    integers,
    is_alive,
    is_captured,
    is_floating,
    probe,
    storage_of,
    this_backend,
    transforms_active,
    unwrap_if_dead,
    versions,
)
from keras_cg.engine import linear, messages
from keras_cg.engine.contract import Function

Tensors = Sequence[torch.Tensor]


def with_transforms(fun: Function, tensors: Tensors) -> tuple[torch.Tensor, ...]:
    """Runs `fun` on detached tensors, notes which tensors of a level it captures, and attaches the rule."""
    if _forward_levels() > 1:
        remedy = "take one of the two derivatives in reverse, as torch.func.hessian does"
        raise messages.rule_dropped("forward mode inside forward mode", remedy, fun.name)
    inputs = [tensor.detach() for tensor in tensors]
    before = versions(inputs)
    with _Operands(fun.name, inputs) as operands:
        outputs, pullback = fun(*inputs)
    if versions(inputs) != before:
        raise messages.changed_argument(fun.name)
    captured = [*operands.captured.values()]
    if operands.entered:
        # Another run would give that transform the tensor of this level, and not that of its own.
        pullback.capture([describe(tensor) for tensor in captured], captured)
        cause = "a closure over it, by a transform of torch.func that the function calls."
        raise messages.unserved_variables("torch", cause, fun)
    variables: list[int] = []
    if any(map(is_differentiated, outputs)):
        variables = [place for place, tensor in enumerate(captured) if id(tensor) in operands.used]
        used = [captured[place] for place in variables]
        pullback.capture([*map(describe, used)], used)
    known = operands.known.keys() | operands.captured.keys()
    # What only the rule reads would be a dead wrapper where it runs after its level is over.
    wrapped = _wrapped_near([*fun.closed_over(), *pullback.closed_over()])
    captured += [each for each in wrapped if id(each) not in known and is_alive(each)]
    extras = {"outputs": outputs} if pullback.takes_output else {}
    probed = functools.partial(probe, outputs, [captured[place] for place in variables], None, **extras)
    first, saved = pullback.outline(inputs, probed), len(outputs) if extras else 0
    call = _SavedCall(fun, first, captured, variables, outputs, saved)
    results = [output.detach() for output in _batched(outputs, (*tensors, *captured))]
    return _Transformed.apply(call, *results, *tensors, *captured)  # type: ignore[no-any-return, no-untyped-call]


def _wrapped_near(parts: list[Any]) -> list[torch.Tensor]:
    """Finds the tensors of a level among `parts`, and in small containers and objects there.

    The search is short, because it runs at every call. The backward pass refuses a tensor that it does not find.
    """
    waiting = {id(part): part for part in parts}
    for part in (queue := list(waiting.values())):
        children: Any = part if isinstance(part, (dict, list, tuple)) else getattr(part, "__dict__", ())
        if len(queue) < 200 and len(children) <= 20 and not isinstance(part, (torch.Tensor, type, ModuleType)):
            children = children.values() if hasattr(children, "values") else children
            others = {id(child): child for child in children if id(child) not in waiting}
            waiting |= others
            queue += others.values()
    return [part for part in queue if isinstance(part, torch.Tensor) and functorch.is_functorch_wrapped_tensor(part)]


def _batched(outputs: Tensors, tensors: Tensors) -> Tensors:
    """Gives each output the batches of `tensors`: where it has none, torch (2.13) sums the cotangent over the batch."""
    batches = set().union(*map(_batches, tensors))
    others = []
    for output in outputs:
        if is_floating(output) and not batches <= _batches(output):
            for tensor in tensors:
                output = torch.where(torch.ones_like(tensor, dtype=torch.bool).all(), output, output)
        others.append(output)
    return others


def _batches(tensor: torch.Tensor) -> set[int]:
    """Returns the levels of the vmaps that a tensor has an axis of."""
    levels = set()
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            levels.add(functorch.maybe_get_level(tensor))
        tensor = functorch.get_unwrapped(tensor)
    return levels


class _SavedCall:
    """The state of a call under a transform, without its saved tensors.

    Attributes:
        first: The outline of the rule of the first run.
        captured: The tensors of a level that the function read and that are no arguments.
        variables: The places among these of the tensors that its outputs depend on.
        specs: Shape, dtype and device of each output.
        outputs: How many outputs are saved, which is all or none: for a rule that takes them.
    """

    def __init__(
        self, fun: Function, first: Any, captured: Tensors, variables: Sequence[int], outputs: Tensors, saved: int
    ):
        self.fun, self.first, self.captured, self.variables, self.outputs = fun, first, captured, variables, saved
        self.specs = [(output.shape, output.dtype, output.device) for output in outputs]

    def gradients(
        self, saved: Tensors, cotangents: Sequence[Any], needs_grad: Sequence[bool] | None = None
    ) -> list[Any]:
        """Runs the function again, on the tensors of a level; returns a gradient for each argument and capture."""
        stop = len(saved) - self.outputs
        count = stop - len(self.captured)
        captured, extras = saved[count:stop], {"outputs": saved[stop:]} if self.outputs else {}
        known = [*saved, *[each for each in cotangents if each is not None]]
        with (
            _Operands(self.fun.name, known) as operands,
            _Instead(self.captured, captured) if captured else contextlib.nullcontext(),
        ):
            _, pullback = self.fun(*saved[:count])
            variables = [captured[place] for place in self.variables]
            probed = functools.partial(probe, cotangents, variables, None, **extras)
            pullback.check_outline(saved[:count], *self.first, probed)
            if pullback.is_used_up:
                _, pullback = self.fun(*saved[:count])
            gradients, others = pullback(cotangents, variables, needs_grad, **extras)
        # A gradient belongs to the caller, and this may be an argument or an output itself.
        own = {*map(id, saved), *map(id, gradients if self.outputs else ())} - {id(None)}
        gradients = [each.clone() if id(each) in own else each for each in gradients]
        for hidden in filter(_is_batched_or_dead, operands.captured.values()):
            raise messages.hidden_in_rule(self.fun.name, describe(hidden))
        by_place = dict(zip(self.variables, others, strict=True))
        return [*gradients, *map(by_place.get, range(len(captured)))]


class _Transformed(torch.autograd.Function):
    """Returns outputs that were computed before, with the rule as their derivative in both modes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: _SavedCall, *tensors: torch.Tensor) -> Any:
        # Not view_as: the tangent of a second output that is a view would be lost in forward mode (torch 2.13).
        return tuple([output.detach() for output in tensors[: len(call.specs)]])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.call, *tensors = inputs
        ctx.level = max([functorch.maybe_get_level(each) for each in tensors], default=-2)
        ctx.save_for_backward(*tensors[len(output) :], *output[: ctx.call.outputs])
        ctx.save_for_forward(*tensors[len(output) :], *output[: ctx.call.outputs])
        ctx.mark_non_differentiable(*integers(output))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        call: _SavedCall = ctx.call
        start = 1 + len(call.specs)
        saved = _below(_alive(ctx.saved_tensors), ctx.level)
        needs_grad = ctx.needs_input_grad[start : len(ctx.needs_input_grad) - len(call.captured)]
        return (*[None] * start, *call.gradients(saved, _alive(cotangents), needs_grad))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor) -> Any:
        """The transpose of the rule, which is a linear map."""
        call: _SavedCall = ctx.call
        # With their own tangents, a rule that calls its own function would run without end.
        return _pushforward(call, _primals(_alive(ctx.saved_tensors)), tangents[len(call.specs) :])


def _is_batched_or_dead(tensor: torch.Tensor) -> bool:
    """Whether a tensor belongs to a vmap, perhaps another one than when it was made, or to a level that is over."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor) or unwrap_if_dead(tensor) is not tensor:
            return True
        tensor = functorch.get_unwrapped(tensor)
    return False


def _alive(tensors: Tensors) -> list[torch.Tensor]:
    """Removes the wrappers of a level that is over.

    A rule may open a level, which gets the same number; torch (2.13) would take a dead wrapper for one of that level.
    """
    return list(map(unwrap_if_dead, tensors))


def _below(tensors: list[torch.Tensor], level: int) -> list[torch.Tensor]:
    """Takes tensors out of the level whose backward pass runs: only outer levels differentiate the gradient.

    The code of a function need not be differentiable, so it runs on tracked tensors only where an outer level asks.
    """
    others = []
    for tensor in tensors:
        if functorch.is_gradtrackingtensor(tensor) and functorch.maybe_get_level(tensor) == level:
            tensor = functorch.get_unwrapped(tensor)
        others.append(tensor if torch.is_grad_enabled() else tensor.detach())
    return others


def _primals(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Removes the tangents of the innermost level. In a vmap, torch (2.13) cannot unpack any."""
    levels = retrieve_all_functorch_interpreters() if transforms_active() else []
    if levels and levels[-1].key() == TransformType.Vmap:
        return tensors
    return [forward_ad.unpack_dual(tensor).primal for tensor in tensors]  # type: ignore[no-untyped-call]


def _pushforward(
    call: _SavedCall, saved: Tensors, tangents: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """Returns the tangents of the outputs: the vjp of `cotangents -> gradients`, if that map is linear."""
    if is_captured():  # whether the rule is linear shows in values only
        raise messages.rule_dropped(
            "a trace of forward mode, such as torch.func.linearize makes,", "call torch.func.jvp", call.fun.name
        )
    is_real = [dtype.is_floating_point or dtype.is_complex for _, dtype, _ in call.specs]
    specs = [spec for spec, is_needed in zip(call.specs, is_real, strict=True) if is_needed]
    zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in specs]
    places = [place for place, tensor in enumerate(saved[: len(saved) - call.outputs]) if is_floating(tensor)]
    primals = [saved[place] for place in places]

    def pull(cotangents: Tensors) -> tuple[torch.Tensor, ...]:
        remaining = iter(cotangents)
        gradients = call.gradients(saved, [next(remaining) if is_needed else None for is_needed in is_real])
        chosen = [gradients[place] for place in places]
        pairs = zip(primals, chosen, strict=True)
        return tuple([torch.zeros_like(primal) if each is None else each for primal, each in pairs])

    def push(tangents: Tensors) -> tuple[torch.Tensor, ...]:
        return transpose(tuple(tangents))  # type: ignore[no-any-return]

    transpose = torch.func.vjp(lambda *cotangents: pull(cotangents), *zeros)[1]
    conditions = linear.conditions(this_backend, pull, zeros)
    conditions += linear.transposes(this_backend, pull, push, zeros, primals)
    # Through NumPy, because no transform lets Python look at a value.
    if not all([this_backend.to_numpy(condition).all() for condition in conditions]):
        raise messages.not_linear(call.fun.name)
    known = [tangents[place] for place in places]
    pairs = zip(primals, known, strict=True)
    pushed = iter(push([torch.zeros_like(primal) if each is None else each for primal, each in pairs]))
    return tuple([next(pushed) if is_needed else None for is_needed in is_real])


# --- captured tensors ------------------------------------------------------------------------------------------------


class _Operands(TorchFunctionMode):
    """Notes the tensors of a level that a function captured: they are no arguments, and no operation returned them.

    Attributes:
        captured: These tensors, by identity.
        used: The identities of those that some derivative depends on, in the order of their first use.
        entered: Whether a transform that the function calls got one of them.
    """

    def __init__(self, name: str, arguments: Tensors):
        super().__init__()
        self.name = name
        # The dict keeps the tensors alive, so that no identity and no address is used twice.
        self.known = {id(tensor): tensor for tensor in arguments}
        self.captured: dict[int, torch.Tensor] = {}
        self.used: dict[int, None] = {}
        self.entered = False
        self.level = _innermost_level()
        # Where the memory of results begins. A transform inside the function returns other tensors with this memory.
        self.storages: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operands = tensors_in((args, kwargs))
        strangers = [each for each in operands if self._is_stranger(self._outside(each))]
        self.entered |= any([self._is_inside(each) for each in strangers])
        self.captured.update((id(each), each) for each in strangers)
        try:
            result = func(*args, **(kwargs or {}))
        except RuntimeError as error:
            # As torch (2.13) says of the memory of a tensor of a level.
            if "data pointer of Tensor that doesn't have storage" not in str(error):
                raise
            raise messages.no_memory(self.name) from error
        results = [*map(self._outside, tensors_in(result))]
        self.known.update((id(each), each) for each in results if id(each) not in self.captured)
        self.storages.update({*map(_memory, results)} - {*map(_memory, operands)} - {0})
        if strangers and any(map(is_differentiated, results)):
            self.used.update((id(each), None) for each in strangers if is_differentiated(each))
        return result

    def _is_stranger(self, tensor: torch.Tensor) -> bool:
        return id(tensor) not in self.known and _is_transformed(tensor) and _memory(tensor) not in self.storages

    def _is_inside(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor belongs to a level that the function opened, and not to one that torch put aside."""
        return (
            functorch.is_functorch_wrapped_tensor(tensor)
            and self.level < functorch.maybe_get_level(tensor) <= _innermost_level()
        )

    def _outside(self, tensor: torch.Tensor) -> torch.Tensor:
        """Removes the wrappers of levels that the function opened, and of those that are over."""
        while self._is_inside(tensor) or unwrap_if_dead(tensor) is not tensor:
            tensor = functorch.get_unwrapped(tensor)
        return tensor


def _memory(tensor: torch.Tensor) -> int:
    """Returns the address of the storage inside of all wrappers, or 0."""
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return storage_of(tensor)


class _Instead(TorchFunctionMode):
    """Replaces captured tensors by others, of another level, wherever an operation gets them."""

    def __init__(self, captured: Tensors, others: Tensors):
        super().__init__()
        self.others = {id(one): two for one, two in zip(captured, others, strict=True)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def other(value: Any) -> Any:
            return self.others.get(id(value), value) if isinstance(value, torch.Tensor) else value

        args, kwargs = pytree.tree_map(other, (args, kwargs or {}))
        return func(*args, **kwargs)


def tensors_in(nest: Any) -> list[torch.Tensor]:
    return [value for value in pytree.tree_leaves(nest) if isinstance(value, torch.Tensor)]


# --- levels ----------------------------------------------------------------------------------------------------------


def is_forward(tensors: Tensors) -> bool:
    """Whether forward mode differentiates, which no_grad does not stop."""
    return any(map(is_dual, tensors)) or (transforms_active() and _forward_levels() > 0)


def _forward_levels() -> int:
    """Counts the forward-mode transforms that are running."""
    return sum(level.key() == TransformType.Jvp for level in retrieve_all_functorch_interpreters())


def _innermost_level() -> int:
    return retrieve_all_functorch_interpreters()[-1].level() if transforms_active() else 0


def is_dual(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a tangent at the innermost level."""
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _is_pushed(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a tangent at the innermost of the running transforms or at an outer one."""
    if is_dual(tensor):
        return True
    levels = [level.level() for level in retrieve_all_functorch_interpreters()] if transforms_active() else []
    if not levels or functorch.maybe_get_level(tensor) >= levels[-1]:
        return False
    # torch (2.13) finds a tangent only at its own level, and inside of that says that there is none.
    with temporarily_pop_interpreter_stack():
        return _is_pushed(tensor)


def _is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a tensor belongs to a level of some transform, or is differentiated without one."""
    return functorch.is_functorch_wrapped_tensor(tensor) or is_differentiated(tensor)


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether any level of differentiation, forward or reverse, tracks `tensor`."""
    # A batched tensor cannot be asked; what it wraps can.
    while functorch.is_batchedtensor(tensor) or not (tensor.requires_grad or _is_pushed(tensor)):
        if not functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = functorch.get_unwrapped(tensor)
    return True
