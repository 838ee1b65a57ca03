"""The rule under the transforms of torch.func and in forward mode, where a tensor belongs to a level."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

# The stack of the running transforms has no public name (torch 2.13). If one of these is gone, importing this file
# fails, and with it the backend.
from torch._C import _functorch as functorch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters, temporarily_pop_interpreter_stack
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from keras_cg import errors
from keras_cg.backends import torch as own
from keras_cg.backends.torch.replayed import Replay, apply, replay, run, surroundings
from keras_cg.backends.torch.tensors import describe, integers, is_floating, transforms_active
from keras_cg.engine import linear
from keras_cg.engine.again import Run
from keras_cg.engine.contract import Function, Pullback


def attach(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """As `attach.attach`; what `fun` closes over is made an argument, since every level has tensors of its own.

    `fun` runs once, on values cut from every level. If something that it closes over is differentiated, it runs on that
    as it is, so that the outputs tell whether they hang on it.
    """
    if _forward_levels() > 1:
        raise errors.rule_dropped(
            "forward mode inside forward mode", "take one of the two derivatives in reverse, as torch.func.hessian does"
        )
    taken = fun.held(_is_transformed).movable()
    count = len(tensors)

    def around(*values: torch.Tensor) -> tuple[tuple[Any, ...], Pullback]:
        return taken.build(values[count:])(*values[:count])  # type: ignore[no-any-return]

    again = Replay(around, surroundings(tensors))
    inputs = [*(tensor.detach() for tensor in tensors), *taken.tensors]
    with _Uses(taken.tensors) as uses:
        outputs, pullback = run(around, inputs)
    variables: list[int] = []
    if any(map(is_differentiated, outputs)):
        variables = uses.places(taken.tensors)
        if not variables or uses.is_foreign:
            pullback.capture(["(a value that a transform of torch.func differentiates)"])
            raise errors.unserved_variables("torch", "under a transform of torch.func")
        pullback.capture([describe(taken.tensors[place]) for place in variables])
    kept = Run(own, again, inputs, pullback)
    held, kept.held = [tensor.detach() for tensor in kept.held], []
    likes = [(output.shape, output.dtype, output.device) for output in outputs]
    plan = _Plan(kept, count, variables, len(outputs), len(held), likes)
    cut = [output.detach() for output in outputs]
    return apply(_Transformed, plan, *cut, *held, *tensors, *taken.tensors)


@dataclasses.dataclass
class _Plan:
    """What `_Transformed` needs besides tensors. Not a tuple: torch's vmap would look into it."""

    kept: Run
    given: int
    # Which of the tensors that the function closes over get a gradient.
    variables: Sequence[int]
    outputs: int
    held: int
    # Shape, dtype and device of each output.
    likes: Sequence[tuple[torch.Size, torch.dtype, torch.device]]


class _Uses(TorchFunctionMode):
    """Notices which of some tensors the derivative of something hangs on, in the order of their first use."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        super().__init__()
        self.known = {id(tensor): tensor for tensor in tensors if is_differentiated(tensor)}
        self.used: dict[int, None] = {}
        # What was computed meanwhile; kept, so that nothing else takes over an identity.
        self.made: dict[int, torch.Tensor] = {}
        self.is_foreign = False

    def places(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Where those that were used stand among `tensors`."""
        order = [id(tensor) for tensor in tensors]
        return [order.index(used) for used in self.used]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [value for value in pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]
        if any(map(is_differentiated, made)):
            given = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
            self.used |= dict.fromkeys(id(value) for value in given if id(value) in self.known)
            strangers = [value for value in given if id(value) not in self.known and id(value) not in self.made]
            self.is_foreign = self.is_foreign or any(map(is_differentiated, strangers))
            self.made |= {id(value): value for value in made}
        return result


class _Transformed(torch.autograd.Function):
    """Outputs that were computed already, with the rule as their gradient in both modes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(plan: _Plan, *tensors: torch.Tensor) -> Any:
        # Not view_as: the tangent of a second output that is a view would be lost in forward mode (torch 2.13).
        return tuple(output.detach() for output in tensors[: plan.outputs])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.plan, *tensors = inputs
        ctx.save_for_backward(*tensors[ctx.plan.outputs :])
        ctx.save_for_forward(*tensors[ctx.plan.outputs :])
        ctx.mark_non_differentiable(*integers(output))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        plan: _Plan = ctx.plan
        held, inputs = _saved(ctx)
        arriving = list(map(functorch.unwrap_if_dead, cotangents))
        wanted = ctx.needs_input_grad[len(ctx.needs_input_grad) - len(inputs) :][: plan.given]
        gradients = _gradients(plan, inputs, _pullback(plan, held, inputs), arriving, wanted)
        return (None, *[None] * (plan.outputs + plan.held), *gradients)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor) -> Any:
        """The transpose of the rule, which is a linear map."""
        plan: _Plan = ctx.plan
        # Without their own tangents, which no rule passes on: one that calls its own function would run without end.
        held, inputs = map(_unmoved, _saved(ctx))
        return _pushed(plan, inputs, _pullback(plan, held, inputs), tangents[plan.outputs + plan.held :])


def _saved(ctx: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What the rule held, and the inputs; without the wrappers of a level that is over.

    A rule that opens a level of its own gives it the same number, and torch (2.13) would take a dead wrapper for one of
    it.
    """
    saved = [functorch.unwrap_if_dead(tensor) for tensor in ctx.saved_tensors]
    return saved[: ctx.plan.held], saved[ctx.plan.held :]


def _unmoved(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors without what forward mode moves them by at the innermost level.

    As they are in a vmap, which (torch 2.13) does not take them apart.
    """
    levels = retrieve_all_functorch_interpreters() if transforms_active() else []
    if levels and levels[-1].key() == TransformType.Vmap:
        return tensors
    return [forward_ad.unpack_dual(tensor).primal for tensor in tensors]  # type: ignore[no-untyped-call]


def _pullback(plan: _Plan, held: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Pullback:
    stuck = plan.kept.stuck
    if stuck is None or any(map(functorch.is_functorch_wrapped_tensor, stuck)):
        # What stays in the rule may be wrapped by a level that is over, and then be taken for another tensor.
        return plan.kept.another(inputs, held)[0]
    if torch.is_grad_enabled():
        return plan.kept.differentiated(replay, torch.Tensor.detach, inputs, held)
    return plan.kept.pullback(inputs, held)


def _gradients(
    plan: _Plan,
    inputs: Sequence[Any],
    pullback: Pullback,
    cotangents: Sequence[Any],
    wanted: Sequence[bool] | None = None,
) -> list[Any]:
    """One gradient for each argument, then for each tensor that the function closes over."""
    places = [plan.given + place for place in plan.variables]
    gradients, others = pullback(cotangents, [inputs[place] for place in places], wanted)
    collected = [*gradients, *[None] * (len(inputs) - plan.given)]
    for place, gradient in zip(places, others, strict=True):
        collected[place] = gradient
    return collected


def _pushed(
    plan: _Plan, inputs: Sequence[torch.Tensor], pullback: Pullback, tangents: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor | None, ...]:
    """The tangents of the outputs: the vjp of `cotangents -> gradients`, if that is linear."""
    kinds = [
        (shape, dtype, device) for shape, dtype, device in plan.likes if dtype.is_floating_point or dtype.is_complex
    ]
    zeros = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in kinds]
    places = [place for place, tensor in enumerate(inputs) if is_floating(tensor)]

    def pull(*cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arriving = iter(cotangents)
        all_of_them = [
            next(arriving) if dtype.is_floating_point or dtype.is_complex else None for _, dtype, _ in plan.likes
        ]
        gradients = _gradients(plan, inputs, pullback, all_of_them)
        return tuple(
            torch.zeros_like(inputs[place]) if gradients[place] is None else gradients[place] for place in places
        )

    def pulled(cotangents: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return pull(*cotangents)

    def pushed(tangents: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return push(tuple(tangents))  # type: ignore[no-any-return]

    push = torch.func.vjp(pull, *zeros)[1]
    backend: Any = own
    conditions = linear.conditions(backend, pulled, zeros)
    conditions += linear.transposes(backend, pulled, pushed, zeros, [inputs[place] for place in places])
    if not all(map(_holds, conditions)):
        raise errors.not_linear()
    pairs = [(inputs[place], tangents[place]) for place in places]
    given = [torch.zeros_like(tensor) if tangent is None else tangent for tensor, tangent in pairs]
    moved = iter(pushed(given))
    return tuple(next(moved) if dtype.is_floating_point or dtype.is_complex else None for _, dtype, _ in plan.likes)


def _holds(condition: torch.Tensor) -> bool:
    """Whether a condition holds everywhere, in the batches of a vmap too, which lets nobody look at a value."""
    return bool(own.to_numpy(condition).all())


def is_forward(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether forward mode is at work, which no_grad does not stop."""
    return any(map(is_dual, tensors)) or (transforms_active() and _forward_levels() > 0)


def _forward_levels() -> int:
    """How many forward-mode transforms are running, one inside the other."""
    return sum(level.key() == TransformType.Jvp for level in retrieve_all_functorch_interpreters())


def is_dual(tensor: torch.Tensor) -> bool:
    """Whether forward mode moves a tensor at the innermost level."""
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _is_pushed(tensor: torch.Tensor) -> bool:
    """Whether forward mode moves `tensor`, at the innermost of the running transforms or at an outer one."""
    if is_dual(tensor):
        return True
    levels = [level.level() for level in retrieve_all_functorch_interpreters()] if transforms_active() else []
    if not levels or functorch.maybe_get_level(tensor) >= levels[-1]:
        return False
    # A tensor is asked at the level where forward mode runs; inside of it the answer is always no (torch 2.13).
    with temporarily_pop_interpreter_stack():
        return _is_pushed(tensor)


def _is_transformed(value: object) -> bool:
    """Whether a tensor belongs to a level of some transform, or is differentiated without one."""
    return isinstance(value, torch.Tensor) and (
        functorch.is_functorch_wrapped_tensor(value) or is_differentiated(value)
    )


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether any level of differentiation, forward or reverse, tracks `tensor`."""
    # A batched tensor cannot be asked; what it wraps can.
    while functorch.is_batchedtensor(tensor) or not (tensor.requires_grad or _is_pushed(tensor)):
        if not functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = functorch.get_unwrapped(tensor)
    return True
