"""TensorFlow, eagerly, in a graph and compiled by XLA."""

import tensorflow as tf

MODES = ("eager", "function", "jit_compile")


def tensor(array):
    return tf.constant(array)


def array(tensor):
    return tensor.numpy()


def differentiate(f, arrays, mode):
    tensors = [tf.constant(array) for array in arrays]
    if mode != "eager":
        f = tf.function(f, jit_compile=mode == "jit_compile")
    with tf.GradientTape() as tape:
        tape.watch([each for each in tensors if each.dtype.is_floating or each.dtype.is_complex])
        output = f(*tensors)
        loss = tf.reduce_sum(output)
    gradients = tape.gradient(loss, tensors)
    return array(output), [None if each is None else array(each) for each in gradients]


def batched(f, x):
    return tf.vectorized_map(f, x)


def vjp(f, x, way):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        output = f(x)
    return output, lambda upstream: tape.gradient(output, x, upstream)


def gradient(f, way):
    def taped(x):
        output, pullback = vjp(f, x, way)
        return pullback(tf.ones_like(output))

    return tf.function(taped) if way == "transformed" else taped
