"""The workloads in NumPy, differentiated by HIPS autograd."""

from __future__ import annotations

import math
import time
import tracemalloc
from typing import Any

import autograd
import autograd.numpy as anp
import numpy
from autograd.builtins import tuple as boxed_tuple
from autograd.core import make_vjp
from autograd.extend import defvjp, defvjp_argnums, primitive
from autograd.tracer import getval

import keras_cg
from benchmarks.measure import ALONE, BY_HAND, KERAS, NATIVE, OURS, PLAIN, Program
from benchmarks.networks import ACTIVATIONS, SLOPE, WEIGHTS
from benchmarks.tasks import Function, both, flat

CLOCK = time.thread_time
CHAIN = 1000
TRACED = ("", 0, 0)


def setup() -> None:
    pass


def tensor(array: Any) -> Any:
    return numpy.asarray(array)


def array(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(tensor)


def wait(nest: Any) -> Any:
    return nest


# --- the contestants -------------------------------------------------------------------------------------------------


def _contestants(function: Function, by_hand: Function, plain: Function) -> dict[str, Function | str]:
    return {
        OURS: keras_cg.custom_gradient(function),
        KERAS: "warns that it has no gradient",
        NATIVE: "autograd has none",
        BY_HAND: by_hand,
        PLAIN: plain,
        ALONE: function,
    }


def log1pexp() -> dict[str, Function | str]:
    def function(x: Any) -> Any:
        y = anp.log(1 + anp.exp(x))

        def grad(*args: Any, upstream: Any = None) -> Any:
            (upstream,) = args if upstream is None else (upstream,)
            # 1 - 1 / (1 + exp(x)), of the output: so the hand-written rule has it, which autograd gives nothing else.
            return upstream * (1 - anp.exp(-y))

        return y, grad

    def plain(x: Any) -> Any:
        return anp.log(1 + anp.exp(x))

    @primitive
    def by_hand(x: Any) -> Any:
        return numpy.log(1 + numpy.exp(x))

    defvjp(by_hand, lambda ans, x: lambda upstream: upstream * (1 - anp.exp(-ans)))
    return _contestants(function, by_hand, plain)


def log1pexp_twice() -> dict[str, Function | str]:
    return log1pexp()


def pair() -> dict[str, Function | str]:
    def function(x: Any, nest: Any) -> Any:
        e = anp.exp(nest["y"])

        def grad(upstream: Any) -> Any:
            u, v = upstream["u"], upstream["v"]
            return u * e + v * 2 * x, {"y": (u * x + v) * e}

        return {"u": x * e, "v": x * x + e}, grad

    def plain(x: Any, nest: Any) -> Any:
        e = anp.exp(nest["y"])
        return {"u": x * e, "v": x * x + e}

    @primitive
    def flat_rule(x: Any, y: Any) -> Any:
        e = numpy.exp(y)
        return boxed_tuple((x * e, x * x + e))

    def backward(argnums: Any, ans: Any, args: Any, kwargs: Any) -> Function:
        x, y = args
        e = anp.exp(y)
        return lambda upstream: (upstream[0] * e + upstream[1] * 2 * x, (upstream[0] * x + upstream[1]) * e)

    defvjp_argnums(flat_rule, backward)

    def by_hand(x: Any, nest: Any) -> Any:
        u, v = flat_rule(x, nest["y"])
        return {"u": u, "v": v}

    return _contestants(function, by_hand, plain)


def leaves() -> dict[str, Function | str]:
    def plain(nest: Any) -> Any:
        return {key: [3 * each for each in part] for key, part in nest.items()}

    def function(nest: Any) -> Any:
        return plain(nest), plain

    @primitive
    def flat_rule(*tensors: Any) -> Any:
        return boxed_tuple([3 * each for each in tensors])

    defvjp_argnums(flat_rule, lambda argnums, ans, args, kwargs: lambda upstream: [3 * each for each in upstream])

    def by_hand(nest: Any) -> Any:
        return list(flat_rule(*[each for part in nest.values() for each in part]))

    return _contestants(function, by_hand, plain)


def straight_through() -> dict[str, Function | str]:
    def nearest(x: Any) -> Any:
        return anp.floor(x + 0.5)

    def function(x: Any) -> Any:
        return nearest(x), lambda upstream: upstream

    @primitive
    def by_hand(x: Any) -> Any:
        return numpy.floor(x + 0.5)

    defvjp(by_hand, lambda ans, x: lambda upstream: upstream)
    return _contestants(function, by_hand, lambda x: x + nearest(getval(x)) - getval(x))


def spike() -> dict[str, Function | str]:
    def surrogate(v: Any) -> Any:
        # Its derivative is that of the rule.
        return v / (1 + SLOPE * anp.abs(v))

    def heaviside(v: Any) -> Any:
        return (v > 0).astype(numpy.float32)

    def function(v: Any) -> Any:
        return heaviside(v), lambda upstream: upstream / (1 + SLOPE * anp.abs(v)) ** 2

    by_hand = primitive(heaviside)
    defvjp(by_hand, lambda ans, v: lambda upstream: upstream / (1 + SLOPE * anp.abs(v)) ** 2)

    def plain(v: Any) -> Any:
        return surrogate(v) + (heaviside(getval(v)) - surrogate(getval(v)))

    return _contestants(function, by_hand, plain)


def learned_step() -> dict[str, Any]:
    return both(_learned_step(*WEIGHTS), _learned_step(*ACTIVATIONS))


def _learned_step(low: int, high: int) -> dict[str, Function | str]:
    def forward(v: Any, step: Any) -> Any:
        scaled = v / step
        return scaled, anp.floor(anp.clip(scaled, low, high) + 0.5)

    def backward(scaled: Any, rounded: Any, upstream: Any) -> Any:
        inside = (scaled > low) & (scaled < high)
        of_step = upstream * (rounded - scaled * inside)
        return upstream * inside, anp.sum(of_step) * (1 / math.sqrt(scaled.size * high))

    def function(v: Any, step: Any) -> Any:
        scaled, rounded = forward(v, step)
        return rounded * step, lambda upstream: backward(scaled, rounded, upstream)

    @primitive
    def by_hand(v: Any, step: Any) -> Any:
        return numpy.floor(numpy.clip(v / step, low, high) + 0.5) * step

    def pullback(argnums: Any, ans: Any, args: Any, kwargs: Any) -> Function:
        kept = forward(*args)

        def both(upstream: Any) -> Any:
            gradients = backward(*kept, upstream)
            return [gradients[place] for place in argnums]

        return both

    defvjp_argnums(by_hand, pullback)

    def plain(v: Any, step: Any) -> Any:
        scale = 1 / math.sqrt(v.size * high)
        step = step * scale + getval(step - step * scale)
        clipped = anp.clip(v / step, low, high)
        return (clipped + (anp.floor(getval(clipped) + 0.5) - getval(clipped))) * step

    return _contestants(function, by_hand, plain)


# --- what is done with them ------------------------------------------------------------------------------------------

calls = {"call of plain arrays": lambda function, arguments: lambda: function(*arguments)}


def vjp(function: Function, arguments: Any) -> Program:
    upstream = tuple(numpy.ones_like(each) for each in flat(function(*arguments)))

    def start() -> Any:
        # autograd differentiates one array or one container of its own.
        pullback, outputs = make_vjp(lambda arguments: boxed_tuple(flat(function(*arguments))), arguments)
        return outputs, lambda: pullback(upstream)

    return start


def gradient(function: Function, arguments: Any) -> Program:
    both = autograd.grad(lambda *arguments: anp.sum(function(*arguments)), tuple(range(len(arguments))))
    return lambda: both(*arguments)


def second_order(function: Function, arguments: Any) -> Program:
    first = autograd.grad(lambda x: anp.sum(function(x)))
    both = autograd.grad(lambda x: anp.sum(first(x)))
    return lambda: both(*arguments)


compilers: dict[str, Any] = {}


def trace(function: Function, arguments: Any) -> Program:
    raise NotImplementedError


def held(function: Function, arguments: Any) -> int | None:
    start = vjp(function, arguments)
    tracemalloc.start()
    kept = start()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return after
