"""What runs later for a call runs under the backend of that call: its rule, and the function when it runs again."""

import contextvars
import threading

import numpy as np
import pytest
from ways import WAYS, check, gradient, pull

import keras_cg
from keras_cg import custom_gradient, grad, ops, use_backend

X = np.array([-1.0, 2.0, 3.0], np.float32)
Y = np.array([0.5, -1.5, 2.5], np.float32)


def plainly(run):
    """In a context without a choice of a backend: NumPy by default."""
    return contextvars.Context().run(run)


def in_a_thread(run):
    results = []

    def target():
        try:
            results.append((run(), None))
        except BaseException as error:
            results.append((None, error))

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    ((result, error),) = results
    if error is not None:
        raise error
    return result


def under_another(run):
    with use_backend("torch" if keras_cg.backend() == "numpy" else "numpy"):
        return run()


PLACES = {"outside": plainly, "in a thread": in_a_thread, "under another": under_another}


def with_ops(x):
    return ops.exp(x), lambda upstream: 7 * upstream * ops.exp(x)


def with_a_held_value(x):
    e = ops.exp(x)
    return x * 2, lambda upstream: 7 * upstream * (ops.zeros_like(e) + e)


with_a_gradient_inside = lambda x: (x * 2, lambda upstream: 7 * upstream * grad(ops.exp)(x))
with_a_decorated_function_inside = lambda x: (x * 2, lambda upstream: upstream * custom_gradient(with_ops)(x) * 7)


# Each has the gradient 7 exp(x), and so has each further derivative, but for that of a rule in the rule: 49 exp(x).
RULES = {
    "ops": (with_ops, 7),
    "held": (with_a_held_value, 7),
    "grad": (with_a_gradient_inside, 7),
    "decorated": (with_a_decorated_function_inside, 49),
}


@pytest.fixture
def nothing_chosen(clean_environment, backend, eager):
    """The frame of a backend that is active for the test alone; and nothing else chooses one."""
    return eager


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("place", PLACES)
def test_backward_elsewhere(nothing_chosen, place, rule, way):
    eager = nothing_chosen
    # What is asked of keras_cg.vjp runs under the call's backend, and so does its pullback.
    output, pullback = pull(eager, custom_gradient(RULES[rule][0]), eager.tensor(X), way)
    upstream = eager.tensor(Y)
    assert output.shape == (3,)
    check(eager, PLACES[place](lambda: pullback(upstream)), 7 * Y * np.exp(X))


@pytest.mark.parametrize("way", ["native", "transformed"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("place", PLACES)
def test_the_second_order_elsewhere(nothing_chosen, place, rule, way):
    eager = nothing_chosen
    name = eager.name
    f = custom_gradient(RULES[rule][0])

    def called(x):
        with use_backend(name):
            return f(x)

    first = gradient(eager, called, way)
    second = gradient(eager, first, way)
    x = eager.tensor(X)
    check(eager, PLACES[place](lambda: first(x)), 7 * np.exp(X))
    check(eager, PLACES[place](lambda: second(x)), RULES[rule][1] * np.exp(X))


@pytest.mark.only("tensorflow")
def test_a_tape_that_outlives_the_backend(nothing_chosen, tf):
    eager, x = nothing_chosen, nothing_chosen.tensor(X)

    def program():
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                with use_backend("tensorflow"):
                    y = custom_gradient(with_a_held_value)(x)
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    for found in plainly(program):
        check(eager, found, 7 * np.exp(X))


def test_a_choice_of_a_backend_that_is_none_by_then(backend, monkeypatch):
    import keras_cg

    _, pullback = keras_cg.vjp(custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream)), 3.0)
    monkeypatch.setattr(keras_cg.frontend.config, "resolve", lambda: ("bogus", "a test"))
    assert float(pullback(1.0)[0]) == 7
