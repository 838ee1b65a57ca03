"""TensorFlow: tapes, graphs, XLA, forward accumulators, loops and recomputation."""

import tensorflow as tf
from frameworks.tensorflow import array, tensor  # noqa: F401 - the suite's

from conformance.transforms.derivatives import Derivatives


def take(x, rows):
    return tf.gather(x, rows)


def uniform():
    return tf.random.uniform(())


def as_complex(x):
    return tf.cast(x, tf.complex64)


fft, ifft = tf.signal.fft, tf.signal.ifft


def taped(loss, **options):
    """The gradient as a function of the arguments."""

    def call(*tensors):
        tensors = [tf.identity(each) for each in tensors]
        with tf.GradientTape(**options) as tape:
            tape.watch(tensors)
            value = loss(*tensors)
        return tape.gradient(value, tensors, unconnected_gradients="zero")

    return call


class OfFloats(Derivatives):
    def inner(self, a, b):
        products = (tf.math.real(tf.math.conj(left) * right) for left, right in zip(a, b, strict=True))
        return sum(tf.cast(tf.reduce_sum(each), tf.float32) for each in products)


of = OfFloats(tf.math, taped)
loss, second, third, composite = of.loss, of.second, of.third, of.composite


def graph(f):
    return tf.function(lambda *tensors: f(*tensors))


def xla(f):
    return tf.function(lambda *tensors: f(*tensors), jit_compile=True)


def unknown_shapes(p):
    signature = [tf.TensorSpec([None] * len(each.shape), each.dtype) for each in p.tensors]
    return tf.function(lambda *tensors: p.f(*tensors), input_signature=signature)


def in_graph(p):
    """tf.gradients, which only graphs have."""

    def call(*tensors):
        tensors = [tf.identity(each) for each in tensors]
        return tf.gradients(loss(p)(*tensors), tensors, unconnected_gradients="zero")

    return graph(call)(*p.tensors)


def jacobian(p):
    """Every row of the Jacobian, weighted."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(p.tensors)
        outputs = p.f(*p.tensors)
    found = []
    for x in p.tensors:
        rows = [tape.jacobian(output, x, unconnected_gradients="zero") for output in outputs]
        pairs = zip(p.weights, rows, strict=True)
        found.append(sum(tf.tensordot(tf.cast(w, row.dtype), row, w.shape.rank) for w, row in pairs))
    return found


def forward(p, f=None):
    with tf.autodiff.ForwardAccumulator(p.tensors, p.c) as accumulator:
        outputs = (f or p.f)(*p.tensors)
    return accumulator.jvp(outputs, unconnected_gradients="zero")


def forward_over_reverse(p, f=None):
    with tf.autodiff.ForwardAccumulator(p.tensors, p.c) as accumulator:
        first = taped(loss(p, f))(*p.tensors)
    return accumulator.jvp(first, unconnected_gradients="zero")


def batched(p, many):
    def call(*batch):
        return tf.reduce_sum(many(lambda tensors: loss(p)(*tensors), list(batch)))

    return taped(call)(*p.batch)


def mapped(function, batch):
    return tf.map_fn(function, batch, fn_output_signature=tf.float32)


def in_while_loop(p):
    """The sum over the two points, by a loop that counts at run time."""

    def call(*batch):
        return tf.while_loop(
            lambda index, _: index < 2,
            lambda index, total: (index + 1, total + loss(p)(*(each[index] for each in batch))),
            (0, 0.0),
        )[1]

    return taped(call)(*p.batch)


def in_cond(p):
    def call(*tensors):
        return tf.cond(tf.reduce_all(tf.constant([True])), lambda: loss(p)(*tensors), lambda: 0.0)

    return graph(taped(call))(*p.tensors)


def recomputed(p):
    return taped(loss(p, tf.recompute_grad(p.f)))(*p.tensors)


TRANSFORMS = {
    "call": ("value", lambda p: p.f(*p.tensors)),
    "function": ("value", lambda p: graph(p.f)(*p.tensors)),
    "jit_compile": ("value", lambda p: xla(p.f)(*p.tensors)),
    "tape": ("first", lambda p: taped(loss(p))(*p.tensors)),
    "persistent tape": ("first", lambda p: taped(loss(p), persistent=True)(*p.tensors)),
    "tape.jacobian": ("rows", jacobian),
    "tape of function": ("first", lambda p: taped(loss(p, graph(p.f)))(*p.tensors)),
    "tape of function, unknown shapes": ("first", lambda p: taped(loss(p, unknown_shapes(p)))(*p.tensors)),
    "tape of jit_compile": ("first", lambda p: taped(loss(p, xla(p.f)))(*p.tensors)),
    "function of tape": ("first", lambda p: graph(taped(loss(p)))(*p.tensors)),
    "jit_compile of tape": ("first", lambda p: xla(taped(loss(p)))(*p.tensors)),
    "tf.gradients": ("first", in_graph),
    "tape of cond": ("first", in_cond),
    "recompute_grad": ("first", recomputed),
    "tape of map_fn": ("batched", lambda p: batched(p, mapped)),
    "tape of while_loop": ("batched", in_while_loop),
    "function of tape of while_loop": ("batched", lambda p: graph(lambda: in_while_loop(p))()),
    "tape of vectorized_map": ("batched", lambda p: batched(p, tf.vectorized_map)),
    "tape of tape": ("second", lambda p: second(p)(*p.tensors)),
    "tape of tape of function": ("second", lambda p: second(p, graph(p.f))(*p.tensors)),
    "function of tape of tape": ("second", lambda p: graph(second(p))(*p.tensors)),
    "jit_compile of tape of tape": ("second", lambda p: xla(second(p))(*p.tensors)),
    "tape of tape of composite": ("composite", lambda p: composite(p)(*p.tensors)),
    "function of tape of tape of composite": ("composite", lambda p: graph(composite(p))(*p.tensors)),
    "three tapes": ("third", lambda p: third(p)(*p.tensors)),
    "function of three tapes": ("third", lambda p: graph(third(p))(*p.tensors)),
    "ForwardAccumulator": ("tangent", forward),
    "ForwardAccumulator of function": ("tangent", lambda p: forward(p, graph(p.f))),
    "function of ForwardAccumulator": ("tangent", lambda p: graph(lambda: forward(p))()),
    "ForwardAccumulator of tape": ("along", forward_over_reverse),
    "ForwardAccumulator of tape of function": ("along", lambda p: forward_over_reverse(p, graph(p.f))),
}

# Under each of these, one program has all rules at once: of what compiles, what is quicker so.
AT_ONCE = (
    *("function", "jit_compile", "tape of function", "tape of function, unknown shapes", "tape of jit_compile"),
    *("function of tape", "jit_compile of tape", "tf.gradients", "tape of cond", "function of tape of while_loop"),
    *("tape of tape of function", "function of tape of tape", "jit_compile of tape of tape"),
    *("function of tape of tape of composite", "function of three tapes", "ForwardAccumulator of function"),
)
