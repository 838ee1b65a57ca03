"""A backend with the required names alone, on an engine that fits on a page."""

import sys

import numpy as np

from keras_cg import errors
from keras_cg.engine.again import Run
from toy import engine
from toy.engine import Tensor

__all__ = [
    "asarray",
    "attach",
    "cast",
    "children",
    "dtype",
    "is_recording",
    "is_tensor",
    "namespace",
    "shape",
    "tensors",
    "to_numpy",
    "vjp",
]

namespace = engine.ops
tensors = (Tensor,)


def is_tensor(value):
    return isinstance(value, Tensor)


def asarray(value):
    return value if isinstance(value, Tensor) else Tensor(np.asarray(value))


def to_numpy(tensor):
    return tensor.value


def shape(tensor):
    return tensor.value.shape


def dtype(tensor):
    return str(tensor.value.dtype)


def cast(value, dtype):
    return engine.ops.astype(value, dtype)


def children(value):
    return None


def is_recording():
    return True


def attach(fun, tensors):
    # What `fun` closes over and somebody differentiates was computed from something. It is made an argument.
    taken = fun.held(lambda value: is_tensor(value) and value.parents).movable()
    count, parents = len(tensors), [*tensors, *taken.tensors]

    def around(*values):
        return taken.build(values[count:])(*values[:count])

    inputs = [*map(cut, parents)]
    outputs, pullback = around(*inputs)
    used = computed_from(outputs)
    variables = [place for place in range(count, len(inputs)) if inputs[place] in used]
    is_found = all([node.number >= inputs[0].number or not node.parents for node in used])
    if variables or not is_found:
        pullback.capture(["(a value that is being differentiated)"])
    if not is_found:
        raise errors.unserved_variables("toy")
    run = Run(sys.modules[__name__], around, inputs, pullback)

    def pull(upstreams):
        cotangents = [
            up if output.value.dtype.kind == "f" else None for up, output in zip(upstreams, outputs, strict=True)
        ]
        pullback = run.differentiated(replay, cut, parents, run.held)
        gradients, others = pullback(cotangents, [parents[place] for place in variables])
        known = {**dict(enumerate(gradients)), **dict(zip(variables, others, strict=True))}
        return [known.get(place) for place in range(len(parents))]

    return engine.operation([output.value for output in outputs], parents, pull)


def cut(tensor):
    return Tensor(tensor.value)


def computed_from(outputs):
    waiting, seen = [*outputs], set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.parents
    return seen


def replay(again, values, inputs):
    places = [place for place, tensor in enumerate(inputs) if tensor.value.dtype.kind == "f"]

    def pull(upstreams):
        def run(*moved):
            values = dict(enumerate(inputs)) | dict(zip(places, moved, strict=True))
            return tuple(again(*values.values())), ()

        _, pullback, _ = vjp(run, [inputs[place] for place in places])
        gradients = dict(zip(places, pullback(upstreams), strict=True))
        return [*map(gradients.get, range(len(inputs))), *upstreams]

    return engine.operation([value.value for value in values], [*inputs, *values], pull)


def vjp(fun, tensors):
    assert all([tensor.value.dtype.kind == "f" for tensor in tensors])
    # Tensors of its own, so that the gradient is that of this run alone, and an outer one goes on.
    roots = [Tensor(tensor.value, [tensor], lambda g: [g]) for tensor in tensors]
    outputs, aux = fun(*roots)
    return outputs, lambda cotangents: engine.gradients(outputs, cotangents, roots), aux
