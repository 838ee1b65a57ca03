"""What a rule holds, wherever it holds it, has its derivative: the second order is right on every backend."""

import operator
import queue
import types
import weakref

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient, ops

pytestmark = pytest.mark.together

X = np.array([-1.3, 0.4, 0.8], np.float32)


class Holder:
    pass


def in_a_list(e):
    values = [e]
    return lambda upstream: 7 * upstream * values[0] * values[0]


def in_a_dict(e):
    values = {"e": e}
    return lambda upstream: 7 * upstream * values["e"] * values["e"]


def in_a_list_in_a_dict(e):
    values = {3: [e]}
    return lambda upstream: 7 * upstream * next(iter(values.values()))[0] ** 2


def in_a_list_of_an_object(e):
    holder = Holder()
    holder.values = [e]
    return lambda upstream: 7 * upstream * holder.values[0] ** 2


def in_an_object_that_knows_itself(e):
    holder = Holder()
    holder.e, holder.itself = e, holder
    return lambda upstream: 7 * upstream * holder.itself.e * holder.e


def in_a_function_that_calls_itself(e):
    def power(upstream, n):
        return upstream if n == 0 else power(upstream, n - 1) * e

    return lambda upstream: 7 * power(upstream, 2)


def in_functions_that_call_each_other(e):
    def start(upstream):
        return further(upstream, 1)

    def further(upstream, n):
        return 7 * upstream * e * e if n == 0 else finish(upstream)

    def finish(upstream):
        return further(upstream, 0)

    return start


# What C has made tells nobody but the collector of garbage what it holds.


def in_a_method_caller(e):
    times = operator.methodcaller("__mul__", e)
    return lambda upstream: 7 * times(times(upstream))


def in_a_slice(e):
    values = slice(e, None)
    return lambda upstream: 7 * upstream * values.start * values.start


def in_a_cell(e):
    values = types.CellType(e)
    return lambda upstream: 7 * upstream * values.cell_contents * values.cell_contents


def in_a_queue(e):
    values = queue.SimpleQueue()
    values.put(e)

    def rule(upstream):
        value = values.get()
        values.put(value)
        return 7 * upstream * value * value

    return rule


def behind_a_weak_reference(e):
    holder = Holder()
    holder.e = e
    ALIVE.append(holder)
    values = weakref.ref(holder)
    return lambda upstream: 7 * upstream * values().e * values().e


def in_a_dict_of_weak_references(e):
    holder = Holder()
    holder.e = e
    ALIVE.append(holder)
    values = weakref.WeakValueDictionary(e=holder)
    return lambda upstream: 7 * upstream * values["e"].e * values["e"].e


ALIVE = []
HOLDERS = (
    in_a_list,
    in_a_dict,
    in_a_list_in_a_dict,
    in_a_list_of_an_object,
    in_an_object_that_knows_itself,
    in_a_function_that_calls_itself,
    in_functions_that_call_each_other,
    in_a_method_caller,
    in_a_slice,
    in_a_cell,
    in_a_queue,
    behind_a_weak_reference,
    in_a_dict_of_weak_references,
)


@pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)
def test_the_second_order_of_what_is_held(eager, hold):
    """With e = exp(x), the rule says 7 e^2 for twice x, whose derivative is 14 e^2."""

    @custom_gradient
    def f(x):
        return x * 2, hold(ops.exp(x))

    x = eager.tensor(X)
    np.testing.assert_allclose(eager.array(keras_cg.grad(f)(x)), 7 * np.exp(2 * X), rtol=1e-5)
    second = keras_cg.grad(keras_cg.grad(f))(x)
    np.testing.assert_allclose(eager.array(second), 14 * np.exp(2 * X), rtol=1e-5)


HELD = None


def test_the_second_order_of_what_is_held_by_a_global(eager):
    @custom_gradient
    def f(x):
        global HELD
        HELD = ops.exp(x)
        return x * 2, lambda upstream: 7 * upstream * HELD * HELD

    second = keras_cg.grad(keras_cg.grad(f))(eager.tensor(X))
    np.testing.assert_allclose(eager.array(second), 14 * np.exp(2 * X), rtol=1e-5)
