"""A backend with the required names alone, on an engine that fits on a page."""

import sys

import numpy as np

from keras_cg.engine import linear, messages
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

own = sys.modules[__name__]
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
    inputs = [*map(stop_gradient, tensors)]
    outputs, pullback = fun(*inputs)
    # What an output was computed from and is no constant was captured: the arguments were cut.
    captured = [tensor for tensor in fun.captures(is_moving) if tensor in computed_from(outputs)]
    if captured or is_hanging(outputs, inputs):
        pullback.capture(["(a value that is being differentiated)"])
        if len(captured) != 1:
            raise messages.unserved_variables("toy", fun=fun)
    parents = [*tensors, *captured]

    def pull(upstreams):
        cotangents = [
            up if output.value.dtype.kind == "f" else None for up, output in zip(upstreams, outputs, strict=True)
        ]
        # This engine records always, so the gradient may always be differentiated: the function runs again.
        _, again = fun(*tensors)
        pullback.check(again, lambda each: [*each(linear.irregular(own, cotangents), captured)[0]])
        gradients, others = again(cotangents, captured)
        return [*gradients, *others][: len(parents)]

    return engine.operation([output.value for output in outputs], parents, pull)


def is_moving(value):
    return is_tensor(value) and bool(value.parents)


def is_hanging(outputs, inputs):
    """Whether something that was computed before the run takes part."""
    return any(tensor.parents and tensor.number < inputs[0].number for tensor in computed_from(outputs))


def stop_gradient(tensor):
    return Tensor(tensor.value)


def computed_from(outputs):
    waiting, seen = [*outputs], set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.parents
    return seen


def vjp(fun, tensors):
    assert all([tensor.value.dtype.kind == "f" for tensor in tensors])
    # Tensors of its own, so that the gradient is that of this run alone, and an outer one goes on.
    roots = [Tensor(tensor.value, [tensor], lambda g: [g]) for tensor in tensors]
    outputs, aux = fun(*roots)
    return outputs, lambda cotangents: engine.gradients(outputs, cotangents, roots), aux
