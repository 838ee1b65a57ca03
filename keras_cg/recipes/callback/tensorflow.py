"""Functions of NumPy arrays on TensorFlow: called at once, or by an operation of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_cg.backends.tensorflow.composite import dense
from keras_cg.backends.tensorflow.tensors import dtype, shape
from keras_cg.recipes.callback.host import Host, Kind


def call(host: Host, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Calls a function of NumPy arrays at once, or adds an operation to the graph."""
    function, count = host.function(), host.arguments
    values = [tf.convert_to_tensor(dense(tensor)) for tensor in tensors]
    if tf.executing_eagerly():
        # Not by an operation, because an exception would lose its type there.
        return tuple(map(tf.convert_to_tensor, function.run([value.numpy() for value in values], count)))
    promised = function.results([Kind(shape(value), dtype(value)) for value in values], count)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def run(*arrays: Any) -> Any:
        return function.run(arrays, count)

    # Stateless, because TensorFlow runs a stateful operation even if its results are unused.
    results = tf.numpy_function(run, values, [tf.as_dtype(kind.dtype) for kind in promised], stateful=False)
    for result, kind in zip(results, promised, strict=True):
        result.set_shape(kind.shape)  # which the operation does not know
    return tuple(results)
