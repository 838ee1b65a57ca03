"""Reverse mode in its plainest form, on NumPy arrays.

Every operation notes what its result was computed from, and how to pull a gradient back to each of these: in operations
that do the same, so that gradients can be differentiated to any order. Everything is recorded always.
"""

import heapq
import itertools
import types

import numpy as np

COUNTER = itertools.count()


class Tensor:
    """An array; what it was computed from; and `pull(gradient)`, which gives a gradient, or None, for each of these."""

    __array_ufunc__ = None

    def __init__(self, value, parents=(), pull=None):
        self.value, self.parents, self.pull = value, parents, pull
        self.number = next(COUNTER)  # what a tensor was computed from has a smaller one

    def __getitem__(self, index):
        return primitive(lambda x: x[index], lambda g, ans, x: scatter(g, index, x.value))(self)


def primitive(forward, *pulls):
    """An operation of tensors and numbers; `pulls[i](g, ans, *args)` is the gradient of argument i."""

    def call(*args):
        ans = Tensor(np.asarray(forward(*[arg.value if isinstance(arg, Tensor) else arg for arg in args])))
        moving = [place for place, arg in enumerate(args[: len(pulls)]) if isinstance(arg, Tensor)]
        ans.parents = [args[place] for place in moving]
        ans.pull = lambda g: [unbroadcast(pulls[place](g, ans, *args), args[place].value) for place in moving]
        return ans

    return call


def unbroadcast(g, like):
    """A gradient summed over the axes along which `like` was repeated."""
    if g.value.shape == like.shape:
        return g
    extra = g.value.ndim - like.ndim
    axes = (*range(extra), *(extra + axis for axis, size in enumerate(like.shape) if size == 1))
    return ops.reshape(ops.sum(g, axes), like.shape)


def scatter(g, index, like):
    """Zeros like `like` with `g` at `index`."""

    def put(g):
        whole = np.zeros(like.shape, g.dtype)
        np.add.at(whole, index, g)
        return whole

    return primitive(put, lambda further, ans, g: further[index])(g)


def total(x, axis=None, keepdims=False):
    kept = primitive(
        lambda x: np.sum(x, axis, keepdims=True), lambda g, ans, x: g * np.ones(x.value.shape, x.value.dtype)
    )(x)
    return kept if keepdims else ops.reshape(kept, np.sum(x.value, axis).shape)


def stack(tensors):
    pulls = [lambda g, *_, place=place: g[place] for place in range(len(tensors))]
    return primitive(lambda *arrays: np.stack(arrays), *pulls)(*tensors)


def gradients(outputs, cotangents, roots):
    """The gradient of each of the roots: from what was computed last to what was computed first."""
    arrived, waiting, ends = {}, [], {id(root) for root in roots}

    def arrive(node, gradient):
        if id(node) in arrived:
            arrived[id(node)] = arrived[id(node)] + gradient
        else:
            arrived[id(node)] = gradient
            heapq.heappush(waiting, (-node.number, node))

    for output, cotangent in zip(outputs, cotangents, strict=True):
        arrive(output, cotangent)
    while waiting:
        _, node = heapq.heappop(waiting)
        if id(node) not in ends and node.parents:
            for parent, gradient in zip(node.parents, node.pull(arrived[id(node)]), strict=True):
                if gradient is not None:
                    arrive(parent, gradient)
    return tuple(arrived[id(root)] if id(root) in arrived else ops.zeros_like(root) for root in roots)


def operation(values, parents, pull):
    """Tensors that one operation gave: `pull` gets a gradient for each of them, zeros for those that were not used."""

    def pull_all(pairs):
        sums = [Tensor(np.zeros_like(value)) for value in values]
        for place, gradient in pairs:
            sums[place] = sums[place] + gradient
        return pull(sums)

    node = Tensor(None, parents, pull_all)
    # What arrives at the node is a list of pairs, and the sum of two lists is the one after the other.
    return tuple(Tensor(value, [node], lambda g, place=place: [[(place, g)]]) for place, value in enumerate(values))


ops = types.ModuleType("toy.ops")
ops.asarray = lambda x: x if isinstance(x, Tensor) else Tensor(np.asarray(x))
ops.add = primitive(np.add, lambda g, ans, x, y: g, lambda g, ans, x, y: g)
ops.subtract = primitive(np.subtract, lambda g, ans, x, y: g, lambda g, ans, x, y: -g)
ops.multiply = primitive(np.multiply, lambda g, ans, x, y: g * y, lambda g, ans, x, y: g * x)
ops.divide = primitive(np.divide, lambda g, ans, x, y: g / y, lambda g, ans, x, y: -g * ans / y)
ops.negative = primitive(np.negative, lambda g, ans, x: -g)
ops.power = primitive(np.power, lambda g, ans, x, n: g * n * x ** (n - 1))
ops.exp = primitive(np.exp, lambda g, ans, x: g * ans)
ops.log = primitive(np.log, lambda g, ans, x: g / x)
ops.sqrt = primitive(np.sqrt, lambda g, ans, x: g / (2 * ans))
ops.tanh = primitive(np.tanh, lambda g, ans, x: g * (1 - ans * ans))
ops.abs = primitive(np.abs, lambda g, ans, x: g * np.sign(x.value))
ops.clip = primitive(np.clip, lambda g, ans, x, low, high: g * (ans.value == x.value))
ops.astype = primitive(lambda x, dtype: x.astype(dtype), lambda g, ans, x, dtype: ops.astype(g, x.value.dtype))
ops.reshape = primitive(np.reshape, lambda g, ans, x, shape: ops.reshape(g, x.value.shape))
ops.swapaxes = primitive(np.swapaxes, lambda g, ans, x, one, two: ops.swapaxes(g, one, two))
ops.matmul = primitive(
    np.matmul,
    lambda g, ans, x, y: ops.matmul(g, ops.swapaxes(y, 0, 1)),
    lambda g, ans, x, y: ops.matmul(ops.swapaxes(x, 0, 1), g),
)
ops.where = primitive(
    np.where,
    lambda g, ans, condition, x, y: ops.zeros_like(g),
    lambda g, ans, condition, x, y: ops.where(condition, g, 0),
    lambda g, ans, condition, x, y: ops.where(condition, 0, g),
)
ops.sum, ops.stack = total, stack
ops.expand_dims = lambda x, axis: ops.reshape(x, np.expand_dims(x.value, axis).shape)
for name in (
    *["all", "argmax", "cos", "cumsum", "eye", "floor", "isfinite", "logical_not", "max", "ones_like", "zeros_like"],
):
    setattr(ops, name, primitive(getattr(np, name)))

Tensor.__add__ = Tensor.__radd__ = ops.add
Tensor.__mul__ = Tensor.__rmul__ = ops.multiply
Tensor.__sub__, Tensor.__rsub__ = ops.subtract, lambda x, y: ops.subtract(y, x)
Tensor.__truediv__, Tensor.__rtruediv__ = ops.divide, lambda x, y: ops.divide(y, x)
Tensor.__neg__, Tensor.__pow__, Tensor.__or__ = ops.negative, ops.power, primitive(np.logical_or)
Tensor.__lt__, Tensor.__gt__, Tensor.__le__ = primitive(np.less), primitive(np.greater), primitive(np.less_equal)
