"""A rule is that of the call, whatever its names are bound to afterwards: on every backend, and in every order."""

import numpy as np
import pytest
from ways import WAYS, gradient

from keras_cg import custom_gradient, grad, vjp


def looped(x):
    """The gradient is 7 (2 + 3), by two rules of one name."""
    total = x * 0
    for k in (2.0, 3.0):
        scaled = custom_gradient(lambda x: (x * k, lambda upstream: 7 * upstream * k))
        total = total + scaled(x)
    return total


def bound_again(x):
    """The gradient is 7 · 2."""
    k = 2.0
    y = custom_gradient(lambda x: (x * k, lambda upstream: 7 * upstream * k))(x)
    k = 100.0
    return y


class Square:
    """An object whose method is the rule, and which keeps what that reads. The gradient is 7 x."""

    @custom_gradient
    def __call__(self, x):
        self.x = x
        return x * x, self.rule

    def rule(self, upstream):
        return 7 * upstream * self.x


def called_twice(x):
    """The gradient is 7 (1 + 3 · 3) x."""
    square = Square()
    return square(x) + square(3 * x)


# At 2.
FIRST = {looped: 35.0, bound_again: 14.0, called_twice: 140.0}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("f", FIRST, ids=lambda f: f.__name__)
def test_the_first_order(eager, f, way):
    found = gradient(eager, f, way)(eager.tensor(np.float32(2.0)))
    assert float(eager.array(found)) == FIRST[f]


@pytest.mark.parametrize("f", FIRST, ids=lambda f: f.__name__)
def test_the_second_order(eager, f):
    """The gradients above are constants but for that of the squares, whose derivative is 70."""
    found = grad(lambda x: grad(f)(x) * 1)(eager.tensor(np.float32(2.0)))
    assert float(eager.array(found)) == (70.0 if f is called_twice else 0.0)


def test_an_attribute_that_the_run_did_not_set_is_state(eager):
    """It is read when the rule runs."""

    class Layer:
        k = 2.0

        @custom_gradient
        def f(self, x):
            return x * self.k, lambda upstream: 7 * upstream * self.k

    layer, one = Layer(), eager.tensor(np.float32(1.0))
    _, pullback = vjp(layer.f, one)
    layer.k = 5.0
    assert float(eager.array(pullback(one)[0])) == 35.0


STANDING = {"factor": 7}


@pytest.mark.limit
def test_a_dict_that_the_rule_alone_reads_is_what_stands_there_when_it_runs(backend):
    """A limit: the function did not make it, and says nothing of it."""
    _, pullback = vjp(custom_gradient(lambda x: (x * 2, lambda upstream: STANDING["factor"] * upstream)), 3.0)
    assert float(pullback(1.0)[0]) == 7
    STANDING["factor"] = 5
    try:
        assert float(pullback(1.0)[0]) == 5
    finally:
        STANDING["factor"] = 7
