"""mlx, eagerly and compiled from either side: how the tests of keras_cg reach it."""

import mlx.core as mx
import numpy as np

# The dtypes that mlx takes in the place of NumPy's default ones.
DEFAULTS = {"float64": "float32", "int64": "int32", "complex128": "complex64", "uint64": "uint32"}
MODES = ("eager", "compile(grad)", "grad(compile)")


def tensor(array):
    array = np.asarray(array)
    return mx.array(array, mx.bool_ if array.dtype == bool else getattr(mx, str(array.dtype)))


def array(tensor):
    return np.array(tensor)


def differentiate(f, arrays, mode):
    tensors = [*map(tensor, arrays)]
    places = [place for place, each in enumerate(tensors) if mx.issubdtype(each.dtype, mx.inexact)]
    inner = mx.compile(f) if mode == "grad(compile)" else f

    def run(*primals):
        known = dict(enumerate(tensors)) | dict(zip(places, primals, strict=True))
        return inner(*known.values())

    def both(*primals):
        outputs = []

        def total(*primals):
            outputs.append(run(*primals))
            return [mx.sum(outputs[0])]

        # Of a sum, whose derivative in mlx is that of its real part.
        return outputs, mx.vjp(total, list(primals), [mx.array(1.0)])[1]

    primals = [tensors[place] for place in places]
    if not primals:
        return array(inner(*tensors)), [None] * len(tensors)
    (output, *_), gradients = (mx.compile(both) if mode == "compile(grad)" else both)(*primals)
    known = dict(zip(places, map(array, gradients), strict=True))
    return array(output), [known.get(place) for place in range(len(tensors))]


def vjp(f, x, way):
    return f(x), lambda upstream: mx.vjp(f, [x], [upstream])[1][0]


def gradient(f, way):
    summed = mx.grad(lambda x: mx.sum(f(x)))
    return mx.compile(summed) if way == "transformed" else summed


def batched(f, x):
    return mx.vmap(f)(x)
