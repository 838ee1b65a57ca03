"""The workloads: their arguments, and the closed form of what must come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy

Function = Callable[..., Any]
Arrays = list[numpy.ndarray]


class Workload(NamedTuple):
    """A program on every backend, and the closed form of what comes out."""

    title: str
    # The name in a backend's file that has the contestants.
    contestants: str
    # Nests of NumPy's arrays.
    arguments: tuple[Any, ...]
    outputs: Arrays
    gradients: Arrays
    # From what a contestant has, mostly a function, and what makes tensors, to the function that is differentiated.
    around: Callable[[Any, Callable[[Any], Any]], Function] = lambda function, tensor: function


def flat(nest: Any) -> list[Any]:
    """The leaves of a nest of tuples, lists and dicts, the keys sorted."""
    return list(_leaves(nest))


def _leaves(nest: Any) -> Iterator[Any]:
    if isinstance(nest, dict):
        for key in sorted(nest):
            yield from _leaves(nest[key])
    elif isinstance(nest, (tuple, list)):
        for each in nest:
            yield from _leaves(each)
    else:
        yield nest


def mapped(function: Function, nest: Any) -> Any:
    """A nest with `function` of each leaf."""
    if isinstance(nest, dict):
        return {key: mapped(function, each) for key, each in nest.items()}
    if isinstance(nest, (tuple, list)):
        return type(nest)(mapped(function, each) for each in nest)
    return function(nest)


def points(size: int) -> numpy.ndarray:
    """What the functions are computed on."""
    return numpy.linspace(-1, 1, size, dtype=numpy.float32)


def numbers(size: int) -> str:
    """`1,000 numbers`."""
    return f"{size:,} numbers"


def log1pexp(size: int) -> Workload:
    """log(1 + exp(x)), its rule with what forward computed."""
    x = points(size).astype(float)
    title = f"log1pexp, {numbers(size)}"
    return Workload(title, "log1pexp", (points(size),), [numpy.log1p(numpy.exp(x))], [1 / (1 + numpy.exp(-x))])


def idioms() -> list[Workload]:
    """log1pexp(x), and what is like it, as rules are written that are not Keras's `grad(*args, upstream=None)`.

    A backend's file that lacks the contestants of one does not measure it.
    """
    x = points(8).astype(float)
    output, gradient = numpy.log1p(numpy.exp(x)), 1 / (1 + numpy.exp(-x))

    def of_x(title: str, contestants: str, scale: float = 1.0, around: Any = lambda function, tensor: function) -> Any:
        return Workload(title, contestants, (points(8),), [scale * output], [scale * gradient], around)

    both, nest = (points(8), points(8)), ({"x": points(8)},)
    return [
        of_x("a rule grad(upstream)", "upstream_alone"),
        of_x("a rule with variables=None", "with_variables"),
        Workload("a rule grad(x, y, upstream)", "two_arguments", both, [output + x], [gradient, numpy.ones(8)]),
        of_x("a static argument by position", "static_argument", 2.0, lambda function, _: lambda x: function(x, 2.0)),
        of_x(
            "a static argument by keyword", "static_argument", 2.0, lambda function, _: lambda x: function(x, scale=2)
        ),
        of_x("a static argument by default", "static_argument", 2.0),
        Workload("a dict as argument", "dict_argument", nest, [output], [gradient]),
        of_x("a method", "method"),
        of_x("a rule under no_grad", "under_no_grad"),
    ]


def log1pexp_twice() -> Workload:
    """The second derivative of its square; the outputs are the first."""
    x = points(8).astype(float)
    y, sigmoid = numpy.log1p(numpy.exp(x)), 1 / (1 + numpy.exp(-x))
    return Workload(
        "second order of log1pexp(x)², 8 numbers",
        "log1pexp_twice",
        (points(8),),
        [2 * y * sigmoid],
        [2 * sigmoid**2 + 2 * y * sigmoid * (1 - sigmoid)],
        lambda function, tensor: lambda x: function(x) ** 2,
    )


def pair() -> Workload:
    """Two tensors in, one of them in a dict, and two out: {"u": x exp(y), "v": x² + exp(y)}."""
    x, y = points(8).astype(float), points(8).astype(float)[::-1] / 2
    e = numpy.exp(y)
    arguments = (points(8), {"y": numpy.ascontiguousarray(points(8)[::-1] / 2)})
    return Workload("two in two out in a nest", "pair", arguments, [x * e, x * x + e], [e + 2 * x, (x + 1) * e])


def leaves(count: int) -> Workload:
    """Three times every tensor of a nest: a dict of lists."""
    each = max(1, count // 10)
    nest = {f"part {place}": [points(8) for _ in range(each)] for place in range(count // each)}
    expected = [3 * points(8).astype(float)] * count
    return Workload(f"a nest of {count:,} leaves", "leaves", (nest,), expected, [numpy.full(8, 3.0)] * count)


def chain(calls: int, size: int = 8) -> Workload:
    """log1pexp of log1pexp of ...: after n calls log(exp(x) + n)."""
    x = points(size).astype(float)

    def around(function: Function, tensor: Callable[[Any], Any]) -> Function:
        def repeated(x: Any) -> Any:
            for _ in range(calls):
                x = function(x)
            return x

        return repeated

    e = numpy.exp(x)
    title = f"a chain of {calls:,} calls, {numbers(size)}"
    return Workload(title, "log1pexp", (points(size),), [numpy.log(e + calls)], [e / (e + calls)], around)


def both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two functions for each contestant, in place of one."""
    return {name: each if isinstance(each, str) else (each, other[name]) for name, each in one.items()}


def is_right(found: Any, expected: Arrays, array: Function) -> bool:
    """Whether numbers are those of the closed form, as float32 has them."""
    arrays = [array(each) for each in flat(found)]
    return len(arrays) == len(expected) and all(
        numpy.shape(each) == numpy.shape(wanted)
        and bool(numpy.max(numpy.abs(each - wanted)) <= 1e-3 * numpy.max(numpy.abs(wanted)))
        for each, wanted in zip(arrays, expected, strict=True)
    )
