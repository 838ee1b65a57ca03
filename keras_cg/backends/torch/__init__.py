"""The torch backend, on `torch.autograd.Function`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import array_api_compat.torch as namespace
import numpy
import torch
import torch.utils._pytree as pytree
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters, temporarily_pop_interpreter_stack
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint, get_device_states, set_device_states

from keras_cg import closure, errors
from keras_cg.backends import Function, PlainFunction, Pullback, owner

__all__ = [
    "asarray",
    "attach",
    "cast",
    "children",
    "compiled",
    "converted",
    "devices",
    "double_precision",
    "dtype",
    "is_recording",
    "is_tensor",
    "jacobian",
    "jvp",
    "namespace",
    "recompute",
    "shape",
    "tensors",
    "to_numpy",
    "vjp",
]

tensors = (torch.Tensor,)

# What torch.compile need not trace, and could not: it asks every framework that is imported.
torch.compiler.assume_constant_result(owner)  # type: ignore[no-untyped-call]


def is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def asarray(value: Any) -> Any:
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def to_numpy(tensor: Any) -> numpy.ndarray:
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().to_dense()
    # NumPy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # type: ignore[no-any-return]


def shape(tensor: Any) -> tuple[int | None, ...]:
    return tensor.shape  # type: ignore[no-any-return]


# Looked up, because every call asks for some.
_dtypes = {each: str(each).removeprefix("torch.") for each in vars(torch).values() if isinstance(each, torch.dtype)}


def dtype(tensor: Any) -> str:
    return _dtypes[tensor.dtype]


def cast(value: Any, dtype: str) -> Any:
    return value.to(getattr(torch, dtype))


def children(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    # One level of a type registered with torch's own tree utility, which has no public name (torch 2.13).
    if pytree.tree_is_leaf(value):
        return None
    # All but the first are leaves. Comparing with `value` would keep it: tree_flatten makes a cycle (torch 2.13).
    answers = iter((False,))
    parts, spec = pytree.tree_flatten(value, is_leaf=lambda part: next(answers, True))
    return parts, lambda parts: pytree.tree_unflatten(parts, spec)


def converted(fun: Callable[..., Any]) -> Callable[..., Any]:
    return fun


def is_recording() -> bool:
    return torch.is_grad_enabled() or torch.compiler.is_compiling() or _transforms_active() or _is_forward_open()


def attach(fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]:
    if torch.compiler.is_compiling():
        return _attach_compiling(fun, tensors) if torch.is_grad_enabled() else fun(*tensors)[0]
    if _transforms_active() or _is_forward_open():
        if not torch.is_grad_enabled() and not _is_forward(tensors):
            return _not_dual(*fun(*tensors))
        if _transforms_active() or any(map(_is_dual, tensors)):
            return _attach_transformed(fun, _saveable(tensors))
    if not torch.is_grad_enabled():
        return fun(*tensors)[0]
    # `fun` runs once, here, on values cut from the graph, and a Function further down carries the result. So an output
    # that somebody differentiates all the same hangs on something that `fun` captured. Not in a function of its own:
    # where torch.compile (2.13) gives up, it would begin again with that, and not know that it compiles.
    is_wanted = any([tensor.requires_grad for tensor in tensors])
    inputs = [tensor.detach() for tensor in tensors] if is_wanted else tensors
    random, start = _random_states(tensors), _sequence_number()
    outputs, pullback = _run(fun, inputs)
    if _is_forward_open():
        _not_dual(outputs, pullback)
    variables: list[torch.Tensor] = []
    if any([output.requires_grad for output in outputs]):
        variables = _captured(fun, outputs, start, pullback)
        pullback.capture([_describe(variable) for variable in variables])
    elif not is_wanted:
        return outputs
    again = _Replay(fun, tensors, random)
    kept = _Kept(again, pullback, inputs, len(variables))
    return _apply(_Attach, kept, outputs, *_saveable(tensors), *variables)


def _run(fun: Function, inputs: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], Pullback]:
    versions = _versions(inputs)
    outputs, pullback = fun(*inputs)
    if versions != _versions(inputs):
        raise errors.changed_in_place(
            "the function changed one of its arguments in place", "work on a copy: `x = x.clone()`"
        )
    return outputs, pullback


def _not_dual(outputs: tuple[Any, ...], pullback: Pullback) -> tuple[Any, ...]:
    if any(map(_is_dual, outputs)):
        pullback.capture(["(a value that forward mode differentiates)"])
        raise errors.unserved_variables("torch", "in forward mode")
    return outputs


def _attach_transformed(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The same under the transforms of torch.func and in forward mode, where a tensor belongs to its level.

    What `fun` closes over is made an argument, because every level runs it again on tensors of its own.
    """
    if _forward_levels() > 1:
        raise errors.rule_dropped(
            "forward mode inside forward mode", "take one of the two derivatives in reverse, as torch.func.hessian does"
        )
    held, rebuild = closure.take_apart(fun, (), _is_transformed, children)
    given = len(tensors)

    def around(*tensors: torch.Tensor) -> tuple[tuple[Any, ...], Pullback]:
        return rebuild(tensors[given:])[0](*tensors[:given])  # type: ignore[no-any-return]

    again = _Replay(around, tensors, _random_states(tensors))
    cut = [each.detach() for each in (*tensors, *held)]
    outputs, pullback = _run(around, cut)
    if any(map(_is_differentiated, outputs)):
        pullback.capture(["(a value that a transform of torch.func differentiates)"])
        raise errors.unserved_variables("torch", "under a transform of torch.func")
    variables: list[int] = []
    if any(map(_is_differentiated, held)):
        with _Uses(held) as uses:
            probed = again(*cut[:given], *held)[0]
        variables = uses.places if any(map(_is_differentiated, probed)) else []
        pullback.capture([_describe(held[place]) for place in variables])
    return _apply(_Transformed, _Plan(again, given, variables, len(outputs)), *outputs, *tensors, *held)


@dataclasses.dataclass
class _Plan:
    """What `_Transformed` needs besides tensors. Not a tuple: torch's vmap would look into it."""

    fun: Function
    given: int
    # Which of the tensors that `fun` closes over get a gradient.
    variables: Sequence[int]
    count: int


class _Uses(TorchFunctionMode):
    """Notices which of some tensors the derivative of something hangs on, in the order of their first use."""

    def __init__(self, tensors: Sequence[torch.Tensor]):
        super().__init__()
        self.known = {id(each): place for place, each in enumerate(tensors) if _is_differentiated(each)}
        self.places: list[int] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        found = [self.known[id(each)] for each in pytree.tree_leaves((args, kwargs)) if id(each) in self.known]
        made = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
        if found and any(map(_is_differentiated, made)):
            self.places += [place for place in dict.fromkeys(found) if place not in self.places]
        return result


def _attach_compiling(fun: Function, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The same while torch.compile traces, which has no graph to walk and guards against changes in place by itself."""
    # Where torch (2.13) would go on with plain differentiation and say nothing: pytorch#193279.
    if torch.compiler.is_exporting():
        raise errors.rule_dropped(
            "torch.export", "export it under torch.no_grad() for inference, or export after torch.compile's AOT stage"
        )
    if _transforms_active():
        raise errors.rule_dropped(
            "torch.compile around a transform of torch.func",
            "compile the function inside and differentiate it by backward() or torch.autograd.grad()",
        )
    # In plain loops here and in `_Compiling`, because torch.compile (2.13) traces a comprehension as a call of its own.
    inputs = []
    is_wanted = False
    for tensor in tensors:
        is_wanted = is_wanted or tensor.requires_grad
        inputs.append(tensor.detach())
    outputs, pullback = fun(*inputs)
    for output in outputs:
        if output.requires_grad:
            pullback.capture(["(a tensor that torch.compile does not name)"])
            raise errors.unserved_variables("torch", "under torch.compile")
    if not is_wanted:
        return outputs
    # torch.compile (2.13) refuses a Function that gets one tensor twice.
    distinct: list[torch.Tensor] = []
    for tensor in (*outputs, *tensors):
        other = tensor
        for each in distinct:
            if each is tensor:
                other = tensor.view_as(tensor)
        distinct.append(other)
    return _Compiling.apply(pullback, len(outputs), *distinct)  # type: ignore[no-any-return, no-untyped-call]


# Whether a transform of torch.func is running; torch (2.13) has no public name for it, and uses this one itself to
# choose between the two ways to apply a Function. If it is gone, importing this file fails, and with it the backend.
_transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
# Likewise, for the number that the next node of the graph will get; the documentation of the profiler describes it.
_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
# Likewise, for the level of forward mode that is open, -1 outside of any; torch's own unpack_dual begins with it.
# Read through the module, since it is a number that changes.
forward_ad._current_level  # noqa: B018


def _is_forward_open() -> bool:
    return forward_ad._current_level >= 0


# Likewise, for looking through the wrappers that the transforms put around tensors.
_functorch: Any = torch._C._functorch


def _random_states(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Any]:
    """The state of the generators that `fun` may draw from: the CPU's, and those of the tensors' devices."""
    elsewhere = [tensor for tensor in tensors if not tensor.is_cpu]
    return torch.default_generator.get_state(), get_device_states(*elsewhere) if elsewhere else ([], [])


class _Replay:
    """`fun` as it ran the first time: with the same random numbers and under the same autocast."""

    def __init__(self, fun: Function, tensors: Sequence[torch.Tensor], random: Any):
        self.fun = fun
        self.random, self.devices = random
        kinds = {"cpu", *(tensor.device.type for tensor in tensors if not tensor.is_cpu)}
        self.autocast = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds]

    def __call__(self, *tensors: torch.Tensor) -> tuple[tuple[Any, ...], Pullback]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(self.devices[0]))
            torch.set_rng_state(self.random)
            set_device_states(*self.devices)
            for kind, kept, enabled in self.autocast:
                stack.enter_context(torch.autocast(kind, kept, enabled))
            return self.fun(*tensors)


def _apply(function: type[torch.autograd.Function], *args: Any) -> tuple[Any, ...]:
    apply: Callable[..., tuple[Any, ...]] = function.apply
    return apply(*args)


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How often tensors were changed in place; the name is torch's own, and its documentation uses it."""
    return [0 if each.is_inference() else each._version for each in tensors]


def _saveable(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    # autograd saves no inference tensor; a copy made outside of inference mode is none.
    return [each.clone() if each.is_inference() else each for each in tensors]


def _outside_inference() -> contextlib.AbstractContextManager[Any]:
    """Leaves inference mode, in which autograd records nothing, not even under enable_grad."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()


def _is_dual(tensor: torch.Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _is_pushed(tensor: torch.Tensor) -> bool:
    """Whether forward mode moves `tensor`, at the innermost of the running transforms or at an outer one."""
    if _is_dual(tensor):
        return True
    levels = [each.level() for each in retrieve_all_functorch_interpreters()] if _transforms_active() else []
    if not levels or _functorch.maybe_get_level(tensor) >= levels[-1]:
        return False
    # A tensor is asked at the level where forward mode runs; inside of it the answer is always no (torch 2.13).
    with temporarily_pop_interpreter_stack():
        return _is_pushed(tensor)


def _is_transformed(value: object) -> bool:
    """Whether a tensor belongs to a level of some transform, or is differentiated without one."""
    return isinstance(value, torch.Tensor) and (
        _functorch.is_functorch_wrapped_tensor(value) or _is_differentiated(value)
    )


def _is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether any level of differentiation, forward or reverse, tracks `tensor`."""
    # A batched tensor cannot be asked; what it wraps can.
    while _functorch.is_batchedtensor(tensor) or not (tensor.requires_grad or _is_pushed(tensor)):
        if not _functorch.is_functorch_wrapped_tensor(tensor):
            return False
        tensor = _functorch.get_unwrapped(tensor)
    return True


def _captured(fun: Function, outputs: Sequence[torch.Tensor], start: int, pullback: Pullback) -> list[torch.Tensor]:
    """The tensors that `fun` captured and `outputs` hang on, in the order in which they were first used.

    Nodes are numbered as they are made; those from `start` on were made by `fun`.
    """
    held = closure.take_apart(fun, (), _is_computed, children)[0]
    known = {(each.grad_fn, each.output_nr): each for each in held}
    used: dict[torch.Tensor, int] = {}
    for each in outputs:
        if each.is_leaf and each.requires_grad:
            used[each] = 0
    stack = [(each.grad_fn, each.output_nr, start) for each in outputs if each.grad_fn is not None]
    seen = set()
    while stack:
        node, number, user = stack.pop()
        tensor = known.get((node, number), getattr(node, "variable", None))
        if tensor is not None:
            used[tensor] = min(user, used.get(tensor, user))
        elif node._sequence_nr() < start:
            # Computed before, from what is trainable, and held where it is not to be found.
            pullback.capture(["(a tensor computed from trainable ones)"])
            raise errors.unserved_variables("torch", "(where it is not in a closure)")
        elif node not in seen:
            seen.add(node)
            stack += [(each, index, node._sequence_nr()) for each, index in node.next_functions if each is not None]
    return sorted(used, key=used.__getitem__)


def _is_computed(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _nodes(outputs: Sequence[torch.Tensor]) -> Iterator[Any]:
    """Every node of the graph that `outputs` hang on, once."""
    stack = [each.grad_fn for each in outputs if each.grad_fn is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)


def _describe(variable: torch.Tensor) -> str:
    return f"{type(variable).__name__} of {dtype(variable)}{list(variable.shape)}"


def _is_floating(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _integers(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [each for each in tensors if not _is_floating(each)]


def _aliases(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """`outputs` as other objects, since the rule may hold one, and it would then hold itself through its node.

    One that shares its memory with an input becomes a view of it in autograd's eyes as well, so that changing either in
    place is noticed.
    """
    sharing = {_storage(each): each for each in inputs}
    found = []
    for output in outputs:
        storage = _storage(output)
        each = sharing.get(storage) if storage else None
        if each is not None and output.dtype == each.dtype and output.is_conj() == each.is_conj():
            found.append(each.as_strided(output.size(), output.stride(), output.storage_offset()))
        else:
            found.append(output.detach())
    return tuple(found)


def _storage(tensor: torch.Tensor) -> int:
    """Where a tensor's memory begins; 0 if it has none of its own."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


class _Kept:
    """What `_Attach` keeps of one call, besides the saved tensors."""

    def __init__(self, fun: Function, pullback: Pullback, inputs: Sequence[torch.Tensor], variables: int):
        self.fun = fun
        self.given = len(inputs)
        self.variables = variables
        tensors, self.rebuild = pullback.take_apart()
        # Those that the rule holds and that are no inputs.
        self.held: list[torch.Tensor] = []
        # Each tensor of the rule: its place among the saved ones, or itself, where autograd saves no inference tensor.
        self.sources: list[int | torch.Tensor] = []
        places = {id(each): place for place, each in enumerate(inputs)}
        for each in tensors:
            if each.is_inference():
                self.sources.append(each)
                continue
            if id(each) not in places:
                places[id(each)] = self.given + len(self.held)
                self.held.append(each)
            self.sources.append(places[id(each)])
        self.uses_inputs = any([isinstance(each, int) and each < self.given for each in self.sources])
        # Whether a first order looks at what is saved. What only a higher one needs may have changed meanwhile.
        self.needs_saved = variables > 0 or any([isinstance(each, int) for each in self.sources])

    def pullback(self, saved: Sequence[torch.Tensor]) -> Pullback:
        """The pullback around tensors that were saved."""
        # The rule saw inputs cut from the graph.
        cut = [each.detach() for each in saved[: self.given]] if self.uses_inputs else ()
        known = (*cut, *saved[len(cut) :])
        return self.rebuild([known[each] if isinstance(each, int) else each for each in self.sources])


class _Attach(torch.autograd.Function):
    """Outputs that were computed already, with the rule as their gradient."""

    @staticmethod
    def forward(ctx: Any, kept: _Kept, outputs: Sequence[torch.Tensor], *tensors: torch.Tensor) -> Any:
        ctx.kept = kept
        given = tensors[: kept.given]
        ctx.save_for_backward(*given, *kept.held, *tensors[kept.given :])
        kept.held = []
        outputs = _aliases(outputs, given)
        if integers := _integers(outputs):
            ctx.mark_non_differentiable(*integers)
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        kept: _Kept = ctx.kept
        again = torch.is_grad_enabled()  # somebody differentiates this gradient, so the rule must hang on the inputs
        saved = ctx.saved_tensors if again or kept.needs_saved else ()  # once: a checkpoint recomputes them only once
        pullback = kept.fun(*saved[: kept.given])[1] if again else kept.pullback(saved)
        gradients, others = pullback(cotangents, saved[len(saved) - kept.variables :] if kept.variables else ())
        return (None, None, *gradients, *others)


class _Compiling(torch.autograd.Function):
    """The same under torch.compile, which frees what it does not need by itself."""

    @staticmethod
    def forward(ctx: Any, pullback: Pullback, count: int, *tensors: torch.Tensor) -> Any:
        ctx.pullback, ctx.count = pullback, count
        outputs = []
        integers = []
        for tensor in tensors[:count]:
            output = tensor.detach()
            outputs.append(output)
            if not (output.is_floating_point() or output.is_complex()):
                integers.append(output)
        if integers:
            ctx.mark_non_differentiable(*integers)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        return (None, None, *[None] * ctx.count, *ctx.pullback(cotangents)[0])


class _Transformed(torch.autograd.Function):
    """The same under the transforms of torch.func and in forward mode.

    What a rule captured of a run under a transform is dead afterwards, so the backward pass always runs `fun` again.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(plan: _Plan, *tensors: torch.Tensor) -> Any:
        # Not view_as: the tangent of a second output that is a view would be lost in forward mode (torch 2.13).
        return tuple(output.detach() for output in tensors[: plan.count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.plan, *tensors = inputs
        ctx.save_for_backward(*tensors[ctx.plan.count :])
        ctx.save_for_forward(*tensors[ctx.plan.count :])
        ctx.mark_non_differentiable(*_integers(output))

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        inputs = ctx.saved_tensors
        gradients = _gradients(ctx.plan, inputs, ctx.plan.fun(*inputs)[1], cotangents)
        return (None, *[None] * ctx.plan.count, *gradients)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor) -> Any:
        """The transpose of the rule, which is a linear map: the vjp of `cotangents -> gradients`."""
        inputs = ctx.saved_tensors
        outputs, pullback = ctx.plan.fun(*inputs)
        floating = [_is_floating(each) for each in outputs]
        places = [place for place, each in enumerate(inputs) if _is_floating(each)]

        def pull(*cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
            arriving = iter(cotangents)
            gradients = _gradients(ctx.plan, inputs, pullback, [next(arriving) if real else None for real in floating])
            return tuple(
                torch.zeros_like(inputs[place]) if gradients[place] is None else gradients[place] for place in places
            )

        moved = tangents[ctx.plan.count :]
        given = tuple(torch.zeros_like(inputs[place]) if moved[place] is None else moved[place] for place in places)
        points = [
            [torch.full_like(each, fill) for each, real in zip(outputs, floating, strict=True) if real]
            for fill in (0, 3)
        ]
        at_zero, elsewhere = (torch.func.vjp(pull, *point) for point in points)
        found = at_zero[1](given)
        # That of a linear rule is the same wherever the rule is transposed, and the rule gives zero for zero.
        same = [_is_close(a, b) for a, b in zip(found, elsewhere[1](given), strict=True)]
        nothing = [(each == 0) | each.isnan() for each in at_zero[0]]
        if not all(map(_holds, (*same, *nothing))):
            raise errors.not_linear()
        derivatives = iter(found)
        return tuple(next(derivatives) if real else None for real in floating)


def _gradients(plan: _Plan, inputs: Sequence[Any], pullback: Pullback, cotangents: Sequence[Any]) -> list[Any]:
    """One gradient for each argument, then for each tensor that the function closes over."""
    places = [plan.given + place for place in plan.variables]
    gradients, others = pullback(cotangents, [inputs[place] for place in places])
    found = [*gradients, *[None] * (len(inputs) - plan.given)]
    for place, gradient in zip(places, others, strict=True):
        found[place] = gradient
    return found


def _is_close(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    # Not isclose, which vmap (2.13) does slowly, with a warning.
    return ((a - b).abs() <= 1e-8 + 1e-3 * b.abs()) | (a == b) | (a.isnan() & b.isnan())


def _holds(condition: torch.Tensor) -> bool:
    """Whether a condition holds everywhere, in the batches of a vmap too, which lets nobody look at a value."""
    while _functorch.is_functorch_wrapped_tensor(condition):
        condition = _functorch.get_unwrapped(condition)
    return bool(condition.all())


def _is_forward(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether forward mode is at work, which no_grad does not stop."""
    return any(map(_is_dual, tensors)) or (_transforms_active() and _forward_levels() > 0)


def _forward_levels() -> int:
    """How many forward-mode transforms are running, one inside the other."""
    return sum(each.key() == TransformType.Jvp for each in retrieve_all_functorch_interpreters())


def vjp(
    fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], tuple[Any, ...]], tuple[Any, ...]]:
    if torch.compiler.is_compiling() or _transforms_active():
        # There no tensor can be made a leaf; torch.func's own vjp nests.
        outputs, pull, aux = torch.func.vjp(fun, *tensors, has_aux=True)  # type: ignore[misc]
        return outputs, lambda cotangents: pull(tuple(cotangents)), aux
    outer = torch.is_grad_enabled()
    with _outside_inference(), torch.enable_grad():
        # Fresh leaves, or aliases that keep hanging on what somebody outside differentiates.
        inputs: list[Any] = [
            each.view_as(each) if outer and each.requires_grad else each.detach().requires_grad_()
            for each in _saveable(tensors)
        ]
        outputs, aux = fun(*inputs)
    for each in inputs:
        if each.is_leaf:
            # Nobody else can differentiate with respect to this leaf, neither below nor in an outer call.
            each.is_spent = True
    further = outer and _is_wanted_outside((*outputs, *aux))

    def pullback(cotangents: Sequence[Any]) -> tuple[Any, ...]:
        used = [(out, cotangent) for out, cotangent in zip(outputs, cotangents, strict=True) if out.requires_grad]
        if not used:
            return tuple(torch.zeros_like(each) for each in inputs)
        create_graph = further or (torch.is_grad_enabled() and any(each.requires_grad for each in cotangents))
        with _outside_inference():
            return _differentiate([out for out, _ in used], inputs, _saveable([each for _, each in used]), create_graph)

    if further:
        return outputs, pullback, aux
    return tuple(each.detach() for each in outputs), pullback, tuple(each.detach() for each in aux)


def _differentiate(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    create_graph: bool,
) -> tuple[torch.Tensor, ...]:
    differentiate = functools.partial(
        torch.autograd.grad,
        outputs,
        inputs,
        cotangents,
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    try:
        return differentiate(retain_graph=True)
    except RuntimeError as error:
        if "donated buffers" not in str(error):
            raise
        # What torch.compile (2.13) made may use the memory of what it saved for something else, and then serves
        # once; torch refuses the next call.
        return differentiate(retain_graph=False)


def _is_wanted_outside(outputs: Sequence[torch.Tensor]) -> bool:
    """Whether `outputs` hang on a leaf of somebody else, so that their gradient may be differentiated.

    Keeping a graph of every gradient would cost a second run of each function in it, and memory.
    """
    leaves = [each for each in outputs if each.is_leaf and each.requires_grad]
    found = (getattr(node, "variable", None) for node in _nodes(outputs))
    return any(leaf is not None and not hasattr(leaf, "is_spent") for leaf in (*leaves, *found))


def jvp(
    fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    outputs, moved, aux = torch.func.jvp(fun, tuple(tensors), tuple(tangents), has_aux=True)  # type: ignore[misc]
    return outputs, moved, aux


def jacobian(
    fun: PlainFunction, tensors: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], ...], tuple[Any, ...]]:
    outputs, pullback, aux = vjp(fun, tensors)
    zeros = [torch.zeros_like(each) for each in outputs]

    def rows(place: int, output: torch.Tensor) -> Iterator[torch.Tensor]:
        count = output.numel()
        basis = torch.eye(count, dtype=output.dtype, device=output.device).reshape((count, *output.shape))
        pulled = [pullback([*zeros[:place], each, *zeros[place + 1 :]]) for each in basis]
        for index, tensor in enumerate(tensors):
            parts = [each[index] for each in pulled]
            found = torch.stack(parts) if parts else tensor.new_zeros(0)
            yield found.reshape((*output.shape, *tensor.shape))

    return outputs, tuple(tuple(rows(place, output)) for place, output in enumerate(outputs)), aux


def recompute(fun: Callable[..., tuple[Any, ...]], tensors: Sequence[Any]) -> tuple[Any, ...]:
    # torch.func has no hooks for saved tensors (2.13), and so it keeps them. Under torch.compile `fun` would have to be
    # without side effects, and the partitioner decides by itself what to keep.
    if torch.compiler.is_compiling() or _transforms_active() or any(map(_is_dual, tensors)):
        return fun(*tensors)
    return checkpoint(fun, *tensors, use_reentrant=False)  # type: ignore[no-any-return]


def compiled(fun: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]] | None:
    # Traced and differentiated ahead of time, as always; what inductor makes of it afterwards takes long.
    return torch.compile(fun, fullgraph=True, backend="aot_eager")


def double_precision() -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext()


def devices() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return ("cpu",)
    return ("cpu", *(f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())))
