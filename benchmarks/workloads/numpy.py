"""The workloads in NumPy, differentiated by HIPS autograd."""

from __future__ import annotations

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

from benchmarks import contestants
from benchmarks.measure import Program
from benchmarks.networks import ACTIVATIONS, WEIGHTS
from benchmarks.tasks import Function, both, flat

CLOCK = time.thread_time
CHAIN = 1000
TRACED = ("", 0, 0)


def setup() -> None:
    vars(contestants.f).update(
        exp=anp.exp,
        log=anp.log,
        abs=anp.abs,
        floor=anp.floor,
        clip=anp.clip,
        nearest=lambda x: anp.floor(x + 0.5),
        size=lambda x: x.size,
        sum=anp.sum,
        number=lambda condition, like: condition.astype(numpy.float32),
        stop=getval,
    )


def tensor(array: Any) -> Any:
    return numpy.asarray(array)


def array(tensor: Any) -> numpy.ndarray:
    return numpy.asarray(tensor)


def wait(nest: Any) -> Any:
    return nest


# --- the contestants -------------------------------------------------------------------------------------------------


def _contestants(function: Function, by_hand: Function, plain: Function) -> dict[str, Function | str]:
    return contestants.named(function, by_hand, plain, "warns that it has no gradient", "autograd has none")


def log1pexp() -> dict[str, Function | str]:
    def function(x: Any) -> Any:
        y = anp.log(1 + anp.exp(x))

        def grad(*args: Any, upstream: Any = None) -> Any:
            (upstream,) = args if upstream is None else (upstream,)
            # 1 - 1 / (1 + exp(x)), of the output: so the hand-written rule has it, which autograd gives nothing else.
            return upstream * (1 - anp.exp(-y))

        return y, grad

    @primitive
    def by_hand(x: Any) -> Any:
        return numpy.log(1 + numpy.exp(x))

    defvjp(by_hand, lambda ans, x: lambda upstream: upstream * (1 - anp.exp(-ans)))
    return _contestants(function, by_hand, contestants.log1pexp()[1])


def log1pexp_twice() -> dict[str, Function | str]:
    return log1pexp()


def pair() -> dict[str, Function | str]:
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

    function, plain = contestants.pair()
    return _contestants(function, by_hand, plain)


def leaves() -> dict[str, Function | str]:
    @primitive
    def flat_rule(*tensors: Any) -> Any:
        return boxed_tuple([3 * each for each in tensors])

    defvjp_argnums(flat_rule, lambda argnums, ans, args, kwargs: lambda upstream: [3 * each for each in upstream])

    def by_hand(nest: Any) -> Any:
        return list(flat_rule(*[each for part in nest.values() for each in part]))

    plain = contestants.threefold
    return _contestants(lambda nest: (plain(nest), plain), by_hand, plain)


def straight_through() -> dict[str, Function | str]:
    function, _, plain = contestants.straight_through()

    @primitive
    def by_hand(x: Any) -> Any:
        return numpy.floor(x + 0.5)

    defvjp(by_hand, lambda ans, x: lambda upstream: upstream)
    return _contestants(function, by_hand, plain)


def spike() -> dict[str, Function | str]:
    function, heaviside, plain, slope = contestants.spike()
    by_hand = primitive(heaviside)
    defvjp(by_hand, lambda ans, v: lambda upstream: slope(v, upstream))
    return _contestants(function, by_hand, plain)


def learned_step() -> dict[str, Any]:
    return both(_learned_step(*WEIGHTS), _learned_step(*ACTIVATIONS))


def _learned_step(low: int, high: int) -> dict[str, Function | str]:
    function, forward, backward, plain = contestants.learned_step(low, high)

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
