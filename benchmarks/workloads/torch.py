"""The workloads in PyTorch."""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import keras
import numpy
import torch

import keras_cg
from benchmarks.measure import ALONE, BY_HAND, KERAS, NATIVE, OURS, PLAIN, Program
from benchmarks.networks import ACTIVATIONS, SLOPE, WEIGHTS
from benchmarks.tasks import Function, both, flat, mapped

CLOCK = time.thread_time
CHAIN = 1000
TRACED = ("Dynamo and AOT, aot_eager", 100, 5)


def setup() -> None:
    torch.set_num_threads(1)


def tensor(array: Any) -> Any:
    return torch.tensor(array)


def array(tensor: Any) -> numpy.ndarray:
    return tensor.detach().numpy()


def wait(nest: Any) -> Any:
    return nest


# --- the contestants -------------------------------------------------------------------------------------------------


def _for_keras(function: Function) -> Function:
    # Keras calls a rule in this form alone on torch (3.15).
    def for_keras(*args: Any) -> Any:
        output, rule = function(*args)
        return output, lambda *args, upstream: rule(upstream)

    return for_keras


def _contestants(
    function: Function, by_hand: Function, plain: Function, keras_function: Function | None = None
) -> dict[str, Function | str]:
    return {
        OURS: keras_cg.custom_gradient(function),
        KERAS: keras.ops.custom_gradient(keras_function or _for_keras(function)),
        NATIVE: "torch has none",
        BY_HAND: by_hand,
        PLAIN: plain,
        ALONE: function,
    }


class _Log1pexp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        e = torch.exp(x)
        ctx.save_for_backward(e)
        return torch.log(1 + e)

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        (e,) = ctx.saved_tensors
        return upstream * (1 - 1 / (1 + e))


def log1pexp() -> dict[str, Function | str]:
    def function(x: Any) -> Any:
        e = torch.exp(x)

        def grad(*args: Any, upstream: Any = None) -> Any:
            (upstream,) = args if upstream is None else (upstream,)
            return upstream * (1 - 1 / (1 + e))

        return torch.log(1 + e), grad

    def plain(x: Any) -> Any:
        return torch.log(1 + torch.exp(x))

    return _contestants(function, _Log1pexp.apply, plain, function)


def log1pexp_twice() -> dict[str, Function | str]:
    class ByHand(torch.autograd.Function):
        # What forward computed hangs on nothing, so it keeps the argument and computes again.
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return torch.log(1 + torch.exp(x))

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            (x,) = ctx.saved_tensors
            return upstream * (1 - 1 / (1 + torch.exp(x)))

    return {**log1pexp(), BY_HAND: ByHand.apply}


def pair() -> dict[str, Function | str]:
    def function(x: Any, nest: Any) -> Any:
        e = torch.exp(nest["y"])

        def grad(upstream: Any) -> Any:
            u, v = upstream["u"], upstream["v"]
            return u * e + v * 2 * x, {"y": (u * x + v) * e}

        return {"u": x * e, "v": x * x + e}, grad

    def plain(x: Any, nest: Any) -> Any:
        e = torch.exp(nest["y"])
        return {"u": x * e, "v": x * x + e}

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            e = torch.exp(y)
            ctx.save_for_backward(x, e)
            return x * e, x * x + e

        @staticmethod
        def backward(ctx: Any, u: Any, v: Any) -> Any:
            x, e = ctx.saved_tensors
            return u * e + v * 2 * x, (u * x + v) * e

    def by_hand(x: Any, nest: Any) -> Any:
        u, v = ByHand.apply(x, nest["y"])
        return {"u": u, "v": v}

    return _contestants(function, by_hand, plain)


def leaves() -> dict[str, Function | str]:
    def plain(nest: Any) -> Any:
        return {key: [3 * each for each in part] for key, part in nest.items()}

    def function(nest: Any) -> Any:
        return plain(nest), plain

    class FlatRule(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> Any:
            return tuple(3 * each for each in tensors)

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            return tuple(3 * each for each in upstream)

    def by_hand(nest: Any) -> Any:
        return FlatRule.apply(*[each for part in nest.values() for each in part])

    return _contestants(function, by_hand, plain)


def straight_through() -> dict[str, Function | str]:
    def nearest(x: Any) -> Any:
        return torch.floor(x + 0.5)

    def function(x: Any) -> Any:
        return nearest(x), lambda upstream: upstream

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return nearest(x)

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            return upstream

    return _contestants(function, ByHand.apply, lambda x: x + (nearest(x) - x).detach())


def spike() -> dict[str, Function | str]:
    def surrogate(v: Any) -> Any:
        # Its derivative is that of the rule.
        return v / (1 + SLOPE * torch.abs(v))

    def heaviside(v: Any) -> Any:
        return (v > 0).to(v.dtype)

    def function(v: Any) -> Any:
        return heaviside(v), lambda upstream: upstream / (1 + SLOPE * torch.abs(v)) ** 2

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, v: Any) -> Any:
            ctx.save_for_backward(v)
            return heaviside(v)

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            (v,) = ctx.saved_tensors
            return upstream / (1 + SLOPE * torch.abs(v)) ** 2

    return _contestants(function, ByHand.apply, lambda v: surrogate(v) + (heaviside(v) - surrogate(v)).detach())


def learned_step() -> dict[str, Any]:
    return both(_learned_step(*WEIGHTS), _learned_step(*ACTIVATIONS))


def _learned_step(low: int, high: int) -> dict[str, Function | str]:
    def forward(v: Any, step: Any) -> Any:
        scaled = v / step
        return scaled, torch.round(torch.clamp(scaled, low, high))

    def backward(scaled: Any, rounded: Any, upstream: Any) -> Any:
        inside = (scaled > low) & (scaled < high)
        of_step = upstream * (rounded - scaled * inside)
        return upstream * inside, of_step.sum() * (1 / math.sqrt(scaled.numel() * high))

    def function(v: Any, step: Any) -> Any:
        scaled, rounded = forward(v, step)
        return rounded * step, lambda upstream: backward(scaled, rounded, upstream)

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, v: Any, step: Any) -> Any:
            scaled, rounded = forward(v, step)
            ctx.save_for_backward(scaled, rounded)
            return rounded * step

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            return backward(*ctx.saved_tensors, upstream)

    def plain(v: Any, step: Any) -> Any:
        scale = 1 / math.sqrt(v.numel() * high)
        step = step * scale + (step - step * scale).detach()
        clipped = torch.clamp(v / step, low, high)
        return (clipped + (torch.round(clipped) - clipped).detach()) * step

    return _contestants(function, ByHand.apply, plain)


# --- how else a rule is written, and called ---------------------------------------------------------------------------


def upstream_alone() -> dict[str, Function | str]:
    def function(x: Any) -> Any:
        e = torch.exp(x)
        return torch.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))

    return _two(function, _Log1pexp.apply)


def with_variables() -> dict[str, Function | str]:
    def function(x: Any) -> Any:
        e = torch.exp(x)

        def grad(*args: Any, upstream: Any = None, variables: Any = None) -> Any:
            return upstream * (1 - 1 / (1 + e))

        return torch.log(1 + e), grad

    return _two(function, _Log1pexp.apply)


def two_arguments() -> dict[str, Function | str]:
    def function(x: Any, y: Any) -> Any:
        e = torch.exp(x)

        def grad(x: Any, y: Any, upstream: Any) -> Any:
            return upstream * (1 - 1 / (1 + e)), upstream

        return torch.log(1 + e) + y, grad

    class ByHand(_Log1pexp):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return _Log1pexp.forward(ctx, x) + y

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            return _Log1pexp.backward(ctx, upstream), upstream

    return _two(function, ByHand.apply)


def static_argument() -> dict[str, Function | str]:
    def function(x: Any, scale: float = 2.0) -> Any:
        e = torch.exp(x)
        return torch.log(1 + e) * scale, lambda upstream: upstream * (1 - 1 / (1 + e)) * scale

    class ByHand(_Log1pexp):
        @staticmethod
        def forward(ctx: Any, x: Any, scale: float) -> Any:
            ctx.scale = scale
            return _Log1pexp.forward(ctx, x) * scale

        @staticmethod
        def backward(ctx: Any, upstream: Any) -> Any:
            return _Log1pexp.backward(ctx, upstream) * ctx.scale, None

    return _two(function, lambda x, scale=2.0: ByHand.apply(x, scale))


def dict_argument() -> dict[str, Function | str]:
    def function(nest: Any) -> Any:
        e = torch.exp(nest["x"])
        return torch.log(1 + e), lambda upstream: {"x": upstream * (1 - 1 / (1 + e))}

    return _two(function, lambda nest: _Log1pexp.apply(nest["x"]))


def method() -> dict[str, Function | str]:
    class Layer:
        @keras_cg.custom_gradient
        def ours(self, x: Any) -> Any:
            e = torch.exp(x)
            return torch.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))

        def by_hand(self, x: Any) -> Any:
            return _Log1pexp.apply(x)

    layer = Layer()
    return {OURS: lambda x: layer.ours(x), BY_HAND: lambda x: layer.by_hand(x)}


def under_no_grad() -> dict[str, Function | str]:
    def function(x: Any) -> Any:
        e = torch.exp(x)

        @torch.no_grad()
        def grad(upstream: Any) -> Any:
            return upstream * (1 - 1 / (1 + e))

        return torch.log(1 + e), grad

    class ByHand(_Log1pexp):
        @staticmethod
        @torch.no_grad()
        def backward(ctx: Any, upstream: Any) -> Any:
            return _Log1pexp.backward(ctx, upstream)

    return _two(function, ByHand.apply)


def _two(function: Function, by_hand: Function) -> dict[str, Function | str]:
    return {OURS: keras_cg.custom_gradient(function), BY_HAND: by_hand}


# --- what is done with them ------------------------------------------------------------------------------------------


def _of_constants(function: Function, arguments: Any) -> Program:
    return lambda: function(*arguments)


def _in_no_grad(function: Function, arguments: Any) -> Program:
    arguments = _trainable(arguments)

    @torch.no_grad()
    def call() -> Any:
        return function(*arguments)

    return call


calls = {"call of constants": _of_constants, "call in no_grad": _in_no_grad}


def _trainable(arguments: Any) -> Any:
    return mapped(lambda each: each.clone().requires_grad_(), arguments)


def vjp(function: Function, arguments: Any) -> Program:
    arguments = _trainable(arguments)
    tensors = flat(arguments)
    upstream = [torch.ones_like(each) for each in flat(function(*arguments))]

    def start() -> Any:
        outputs = flat(function(*arguments))
        return outputs, lambda: torch.autograd.grad(outputs, tensors, upstream)

    return start


def gradient(function: Function, arguments: Any) -> Program:
    arguments = _trainable(arguments)
    tensors = flat(arguments)
    return lambda: torch.autograd.grad(function(*arguments).sum(), tensors)


def second_order(function: Function, arguments: Any) -> Program:
    (x,) = _trainable(arguments)

    def both() -> Any:
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)

    return both


def _compiled(function: Function, arguments: Any, backend: str) -> Program:
    torch.compiler.reset()
    start = vjp(torch.compile(function, backend=backend, fullgraph=True), arguments)

    def both() -> Any:
        outputs, backward = start()
        return outputs, backward()

    return both


compilers = {
    "aot_eager": functools.partial(_compiled, backend="aot_eager"),
    "inductor": functools.partial(_compiled, backend="inductor"),
}


def trace(function: Function, arguments: Any) -> Program:
    arguments = _trainable(arguments)

    def again() -> Any:
        torch.compiler.reset()
        output = torch.compile(function, backend="aot_eager", fullgraph=True)(*arguments)
        return torch.autograd.grad(output.sum(), flat(arguments))

    return again


def held(function: Function, arguments: Any) -> int | None:
    start = vjp(function, arguments)
    storages = {}

    def pack(tensor: Any) -> Any:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = start()
    del kept
    return sum(storages.values())
