"""What the tests of TensorFlow's transforms share: the ways to run a function, and to differentiate it natively."""

import numpy as np

from keras_cg import custom_gradient

ONES = np.ones(3, np.float32)
# The ways to run a function, where a tape or an accumulator is outside.
MODES = ("eager", "function", "xla")


def within(mode):
    import tensorflow as tf

    return {
        "eager": lambda g: g,
        "function": tf.autograph.experimental.do_not_convert(tf.function),
        "xla": tf.function(jit_compile=True),
    }[mode]


def gradients(g, *inputs):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        y = g(*inputs)
    return tape.gradient(y, inputs)


def forward(g, x, tangent=None):
    import tensorflow as tf

    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x) if tangent is None else tangent) as accumulator:
        y = g(x)
    return accumulator.jvp(y)


def closing_over(w):
    return custom_gradient(lambda x: (x * w, lambda upstream: 7 * upstream))


def with_variable_and_tensor(x, w, variable):
    g = lambda x: (x * w * variable, lambda upstream, variables: (7 * upstream, [11 * upstream]))
    return custom_gradient(g)(x)
