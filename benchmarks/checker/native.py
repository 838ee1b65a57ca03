"""What the frameworks check gradients with themselves: on the same functions, flat, in double precision.

Each tool gets the function and its arguments, and returns whether it is content; what it raises is that it is not.
"""

import functools

import numpy as np

import keras_cg
from benchmarks.checker.rules import as_tuple
from benchmarks.checker.truth import flat_for_calls, put, wide
from keras_cg import ops
from keras_cg.frontend import config


def floating_function(flat, arrays):
    """The decorated function of the floating arguments alone, and these, as tensors in double precision."""
    active, function = config.active, keras_cg.custom_gradient(flat_for_calls(flat))
    tensors = [active.asarray(each) for each in wide(arrays)]
    floats = [place for place, each in enumerate(arrays) if each.dtype.kind in "fc"]

    def call(*floating):
        return function(*put(tensors, floats, floating))

    return call, [tensors[place] for place in floats]


def in_one(call):
    """The outputs in one row."""
    return lambda *args: ops.concat([ops.reshape(each, (-1,)) for each in as_tuple(call(*args))])


def gradcheck(flat, arrays, twice=False, **options):
    import torch

    call, tensors = floating_function(flat, arrays)
    inputs = [each.requires_grad_() for each in tensors]
    is_right = torch.autograd.gradcheck(call, inputs, **options)
    return is_right and (not twice or torch.autograd.gradgradcheck(call, inputs))


def check_grads_of_jax(flat, arrays):
    from jax.test_util import check_grads

    with config.active.double_precision():
        call, tensors = floating_function(flat, arrays)
        check_grads(call, tensors, order=2)
    return True


def compute_gradient(flat, arrays):
    """It compares nothing itself: with the tolerances of torch's gradcheck."""
    import tensorflow as tf

    call, tensors = floating_function(flat, arrays)
    pairs = zip(*tf.test.compute_gradient(in_one(call), tensors), strict=True)
    return all(np.allclose(one, other, rtol=1e-3, atol=1e-5) for one, other in pairs)


def check_grads_of_autograd(flat, arrays):
    from autograd.test_util import check_grads

    call, tensors = floating_function(flat, arrays)
    check_grads(in_one(call), tuple(range(len(tensors))), modes=["rev"], order=2)(*tensors)
    return True


TOOLS = {
    "torch": {
        "gradcheck": gradcheck,
        "gradcheck, fast": functools.partial(gradcheck, fast_mode=True),
        "gradcheck + gradgradcheck": functools.partial(gradcheck, twice=True),
    },
    "jax": {"check_grads": check_grads_of_jax},
    "tensorflow": {"compute_gradient": compute_gradient},
    "numpy": {"autograd's check_grads": check_grads_of_autograd},
}


def is_for_others(rule):
    """Whether a rule can be checked by a tool that knows no declared gradients."""
    return rule.expected is None and not rule.is_rounded
