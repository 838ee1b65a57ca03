"""The derivatives that autograd computes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy
from autograd import make_vjp
from autograd.builtins import tuple as boxed_tuple

from keras_cg.backends.numpy.tensors import conjugate
from keras_cg.engine.contract import Map, PlainFunction, Tensors


def vjp(fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Map, Tensors]:
    aux: list[Tensors] = []

    def run(tensors: Any) -> Any:
        outputs, others = fun(*tensors)
        # This level of differentiation ends here; an outer level goes on.
        aux.append(tuple(each._value if getattr(each, "_trace", None) == tensors._trace else each for each in others))
        return boxed_tuple(outputs)

    with warnings.catch_warnings():
        # An argument that the output does not depend on gets zeros, as on every backend.
        warnings.filterwarnings("ignore", "Output seems independent of input")
        back, outputs = make_vjp(run)(tuple(map(_copied, tensors)))

    def pullback(cotangents: Sequence[Any]) -> Tensors:
        gradients = back(boxed_tuple(tuple(conjugate(each) for each in cotangents)))
        return tuple(conjugate(each) for each in gradients)

    return tuple(map(_copied, outputs)), pullback, tuple(map(_copied, aux[0]))


def _copied(tensor: Any) -> Any:
    # autograd saves arrays for the pullback. Without a copy, a change in place outside would change the gradient.
    return tensor.copy() if isinstance(tensor, numpy.ndarray) else tensor
