"""Memory on TensorFlow: a tape holds what the rule uses and no more, and a call that no tape asks for costs nothing."""

import gc
import sys
import weakref

import numpy as np
import pytest
from seven_exp import E as EXP
from seven_exp import X, f
from seven_exp import check as close
from tapes import gradients

from keras_cg import custom_gradient

pytestmark = pytest.mark.only("tensorflow")


def test_an_output_is_freed_without_the_collector(eager, tf, without_collector):
    @custom_gradient
    def g(x):
        y = tf.exp(x)
        return y, lambda upstream: 7 * upstream * y

    x = eager.tensor(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = g(x)
    close(tape.gradient(y, x), 7 * EXP)
    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        z = g(x)
    dead = [weakref.ref(each) for each in (y, z, tape, accumulator)]
    del y, z, tape, accumulator
    assert [each() for each in dead] == [None] * 4


def test_between_forward_and_backward_only_what_the_rule_uses_is_held(eager, tf, without_collector):
    made = []

    @custom_gradient
    def g(x):
        e = tf.exp(x)
        found = [e, e + 1, tf.math.log(e + 1)]
        made.extend(map(weakref.ref, found))
        return found[2], lambda upstream: 7 * upstream * e

    x = eager.tensor(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(g(x))
    assert [each() is not None for each in made] == [True, False, False]
    close(tape.gradient(y, x), 7 * EXP)
    del tape
    assert made[0]() is None


def test_a_call_that_no_tape_asks_for_is_only_the_function(eager, tf):
    seen = []

    @custom_gradient
    def g(x):
        seen.append(x)
        y = x * 2
        seen.append(y)
        return y, lambda upstream: 7 * upstream

    x, other = eager.tensor(X), eager.tensor(X)
    with tf.GradientTape() as tape, tf.autodiff.ForwardAccumulator(other, tf.ones(3)):
        tape.watch(other)
        y = g(x)
    assert seen[0] is x
    assert seen[1] is y


def test_a_flat_call_takes_few_frames_of_the_backend(eager, tf):
    """The parts of an argument are found once, and passed on."""
    x, frames = eager.tensor(X), []

    def count(frame, event, _):
        name = frame.f_code.co_name
        is_own = "tensorflow" in frame.f_code.co_filename.partition("keras_cg/backends/")[2]
        frames.extend([name] if event == "call" and is_own and name != "<listcomp>" else [])

    def counted(call):
        frames.clear()
        sys.setprofile(count)
        try:
            result = call()
        finally:
            sys.setprofile(None)
        return result, len(frames)

    for _ in range(2):  # the first call reads the rule's code
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, forward = counted(lambda: f(x))
        gradient, backward = counted(lambda tape=tape, y=y: tape.gradient(y, x))
    close(gradient, 7 * EXP)
    assert 0 < forward <= 18
    assert 0 < backward <= 5


def test_many_eager_calls_leave_nothing(eager, tf, without_collector):
    variable, x = tf.Variable(2 * X), eager.tensor(X)
    captures = custom_gradient(lambda x: (x * variable, lambda u, variables: (7 * u, [11 * u])))

    def calls(number):
        for _ in range(number):
            gradients(lambda x, _: f(x) + captures(x), x, variable)

    calls(50)
    before = len(gc.get_objects())
    calls(300)
    assert len(gc.get_objects()) - before < 100


def test_a_trace_keeps_no_more_than_the_native_decorator(eager, tf):
    def rule(x):
        e = tf.exp(x)
        return x * 2, lambda upstream: 7 * upstream * e

    kinds = (tf.Graph, tf.Operation, tf.Tensor)

    def growth(decorate, traces=4):
        """How many graphs, operations and tensors so many traces leave, when everything of them is dropped."""

        def trace():
            function = tf.function(lambda x: decorate(rule)(x), autograph=False)
            close(gradients(function, eager.tensor(X))[0], 7 * EXP)

        trace()
        gc.collect()
        before = [sum(isinstance(each, kind) for each in gc.get_objects()) for kind in kinds]
        for _ in range(traces):
            trace()
        gc.collect()
        after = [sum(isinstance(each, kind) for each in gc.get_objects()) for kind in kinds]
        return np.subtract(after, before)

    ours, native = growth(custom_gradient), growth(tf.custom_gradient)
    assert native[0] == 4  # the graph of each
    assert (ours <= native).all()
