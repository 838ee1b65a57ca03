"""A run of a function on torch; and another one, as the first was, for the derivative of what its rule held."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from keras_cg import errors
from keras_cg.backends.torch import derivatives
from keras_cg.backends.torch.tensors import is_forward_open, transforms_active
from keras_cg.engine.again import Again
from keras_cg.engine.contract import Pullback

# The number that the next node of the graph will get; the documentation of the profiler describes it, but it has no
# public name (torch 2.13). If it is gone, importing this file fails, and with it the backend.
sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


def run(fun: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[tuple[Any, ...], Pullback]:
    """A run of a function, which must not change its inputs in place."""
    before = versions(inputs)
    outputs, pullback = fun(*inputs)
    if before != versions(inputs):
        raise changed()
    return outputs, pullback


def changed() -> RuntimeError:
    """The error for a function that changes what it is given."""
    return errors.changed_in_place(
        "the function changed one of its arguments in place", "work on a copy: `x = x.clone()`"
    )


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """How often tensors were changed in place; the name is torch's own, and its documentation uses it."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


# What a run of a function sees of torch besides its arguments: the random numbers of the CPU and of other devices, and
# for each kind of device the dtype of autocast, None where that is off. No numbers, if it draws none.
Surroundings = tuple[
    torch.Tensor | None, Sequence[tuple[torch.device, torch.Tensor]], Sequence[tuple[str, torch.dtype | None]]
]

_half, _is_half = torch.get_autocast_dtype, torch.is_autocast_enabled
# Those of a run on the CPU that draws nothing and sees no autocast.
USUAL: Surroundings = None, (), (("cpu", None),)


def surroundings(tensors: Sequence[torch.Tensor], is_drawing: bool = True) -> Surroundings:
    """Those of a run that begins; of the devices those that the tensors are on."""
    for tensor in tensors:
        if not tensor.is_cpu:
            # Tensors on the device "meta" have neither numbers nor autocast.
            kinds = {"cpu", *filter(torch.amp.is_autocast_available, [tensor.device.type for tensor in tensors])}
            autocast = [(kind, _half(kind) if _is_half(kind) else None) for kind in kinds]
            if not is_drawing:
                return None, (), autocast
            # Not by what torch.utils.checkpoint has for this, which knows no random numbers of Metal (2.13).
            devices = dict.fromkeys([each.device for each in tensors if each.device.type not in ("cpu", "meta")])
            states = [(device, torch.get_device_module(device).get_rng_state(device)) for device in devices]
            return torch.default_generator.get_state(), states, autocast
    random = torch.default_generator.get_state() if is_drawing else None
    return random, (), (("cpu", _half("cpu")),) if _is_half("cpu") else USUAL[2]


def surrounded(surroundings: Surroundings) -> contextlib.AbstractContextManager[None]:
    """Lets a run see them again."""
    random, devices, autocast = surroundings
    others = [(kind, half) for kind, half in autocast if half != (_half(kind) if _is_half(kind) else None)]
    return _surrounded(random, devices, others) if others or random is not None else contextlib.nullcontext()


@contextlib.contextmanager
def _surrounded(
    random: torch.Tensor | None,
    devices: Sequence[tuple[torch.device, torch.Tensor]],
    autocast: Sequence[tuple[str, torch.dtype | None]],
) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for kind, half in autocast:
            stack.enter_context(torch.autocast(kind, half, enabled=half is not None))
        if random is not None:
            stack.enter_context(torch.random.fork_rng([]))
            torch.set_rng_state(random)
            for device, state in devices:
                module = torch.get_device_module(device)
                stack.callback(module.set_rng_state, module.get_rng_state(device), device)
                module.set_rng_state(state, device)
        yield


# Attributes of tensors, and builtins, that are no operations and draw nothing.
_QUIET = frozenset(
    (
        *("T", "device", "dtype", "imag", "mT", "ndim", "real", "shape"),
        *("bfloat16", "complex128", "complex64", "double", "float16", "float32", "float64", "half", "int32", "int64"),
        *("bool", "complex", "enumerate", "float", "int", "isinstance", "len", "list", "range", "tuple", "zip"),
        *("inf", "nan", "pi"),
    )
)


@functools.lru_cache(maxsize=4096)
def may_draw(names: tuple[str, ...]) -> bool:
    """Whether a function may draw random numbers that asks for globals and attributes of these names alone.

    torch tags its operations that do. What is none of its operations, and is not known otherwise, may.
    """
    for name in names:
        if name in _QUIET:
            continue
        operation = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
        # That of attention draws only if it is told to, and has no tag (2.13).
        if operation is None or "attention" in name or "dropout" in name:
            return True
        tags = [tag for overload in operation.overloads() for tag in getattr(operation, overload).tags]
        if torch.Tag.nondeterministic_seeded in tags:
            return True
    return False


class Replay:
    """A function as it ran the first time: with the same random numbers and under the same autocast."""

    def __init__(self, fun: Callable[..., Any], surroundings: Surroundings):
        self.fun, self.surroundings = fun, surroundings

    def __call__(self, *tensors: torch.Tensor) -> tuple[tuple[Any, ...], Pullback]:
        with surrounded(self.surroundings):
            return self.fun(*tensors)  # type: ignore[no-any-return]


def replay(again: Again, values: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """`values`, which hang on `inputs` by the derivative of `again`, and on what they hung on before."""
    function = _ReplayedInside if transforms_active() or is_forward_open() else _Replayed
    return apply(function, again, len(values), len(again.first), *values, *again.first, *inputs)


class _Replayed(torch.autograd.Function):
    """The values that a rule held, whose derivative is that of another run.

    What the first run held is saved, rather than kept by `again`: only so is it there for the transforms of torch.func.
    """

    @staticmethod
    def forward(ctx: Any, again: Again, count: int, first: int, *given: torch.Tensor) -> Any:
        ctx.again, ctx.count, ctx.first = again, count, first
        ctx.save_for_backward(*given[count:])
        return tuple([value.detach() for value in given[:count]])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        first, inputs = ctx.saved_tensors[: ctx.first], ctx.saved_tensors[ctx.first :]
        places = [
            place for place, tensor in enumerate(inputs) if ctx.needs_input_grad[3 + ctx.count + ctx.first + place]
        ]

        def run(*moved: torch.Tensor) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            values = dict(enumerate(inputs)) | dict(zip(places, moved, strict=True))
            return tuple(ctx.again.against(first, [*values.values()])), ()

        gradients: dict[int, Any] = {}
        if places:
            _, pullback, _ = derivatives.vjp(run, [inputs[place] for place in places])
            gradients = dict(zip(places, pullback(cotangents), strict=True))
        return (None, None, None, *cotangents, *[None] * ctx.first, *map(gradients.get, range(len(inputs))))


class _ReplayedInside(_Replayed):
    """The same inside a transform of torch.func, which wants it in two parts; that takes ten times as long (2.13)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(again: Again, count: int, first: int, *given: torch.Tensor) -> Any:  # type: ignore[override]
        return tuple(value.detach() for value in given[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.again, ctx.count, ctx.first, *given = inputs
        ctx.save_for_backward(*given[ctx.count :])
        ctx.save_for_forward(*given[ctx.count :])

    @staticmethod
    def jvp(ctx: Any, _: None, __: None, ___: None, *tangents: torch.Tensor) -> Any:
        first, inputs = ctx.saved_tensors[: ctx.first], ctx.saved_tensors[ctx.first :]
        moving = tangents[ctx.count + ctx.first :]
        places = [place for place, tangent in enumerate(moving) if tangent is not None]

        def run(*moved: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values = dict(enumerate(inputs)) | dict(zip(places, moved, strict=True))
            return tuple(ctx.again.against(first, [*values.values()]))

        at, along = (tuple(tensors[place] for place in places) for tensors in (inputs, moving))
        _, pushed = torch.func.jvp(run, at, along)  # type: ignore[misc]
        return tuple(
            moved if tangent is None else moved + tangent for moved, tangent in zip(pushed, tangents, strict=False)
        )


def apply(function: type[torch.autograd.Function], *args: Any) -> tuple[Any, ...]:
    """What a Function returns."""
    call: Callable[..., tuple[Any, ...]] = function.apply
    return call(*args)
