"""How many frames of this package one flat call enters: on few numbers, they are most of what a call costs."""

import sys

import numpy as np
from leaves import gradient, leaf

from keras_cg import custom_gradient

# Forward, and backward.
BUDGETS = {"jax": (30, 9), "numpy": (16, 10), "tensorflow": (30, 8), "torch": (12, 5)}


def frames(run):
    """What `run` returns, and the functions of this package that it enters; comprehensions are none."""
    found = []

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and "/keras_cg/" in code.co_filename and "/tests/" not in code.co_filename:
            found.extend([] if code.co_name.startswith("<") else [code.co_name])

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = run()
    finally:
        sys.setprofile(before)
    return result, found


def test_a_flat_call_with_its_gradient(eager, backend):
    @custom_gradient
    def f(x):
        e = x + x
        return e * x, lambda upstream: 7 * upstream * e

    x = leaf(np.ones(3, np.float32)) if backend == "torch" else eager.tensor(np.ones(3, np.float32))
    for _ in range(3):  # the first calls read the code
        if backend == "torch":  # `vjp` of the tests records the backward pass
            y, forward = frames(lambda: f(x))
            found, backward = frames(lambda y=y: gradient(y, x))
        else:
            (_, pull), forward = frames(lambda: eager.native.vjp(f, x, "native"))
            found, backward = frames(lambda pull=pull: eager.array(pull(x)))
    np.testing.assert_allclose(found, np.full(3, 14.0))
    most_forward, most_backward = BUDGETS[backend]
    assert len(forward) <= most_forward, forward
    assert len(backward) <= most_backward, backward
