"""The TensorFlow backend: a recorded operation for tapes and accumulators, and an overridden gradient in graphs.

Both are what `tf.custom_gradient` makes of a rule, no more. It is not called itself, for it looks at a rule's signature
anew in every call, which costs a third of an eager gradient (TensorFlow 2.21). And to graphs it adds nodes, and hides
from the rule who differentiates: a tape, which knows for what, or the graph, which does not.
"""

from keras_cg.backends.tensorflow.attach import attach
from keras_cg.backends.tensorflow.derivatives import compiled, converted, devices, jacobian, jvp, recompute, vjp
from keras_cg.backends.tensorflow.tensors import (
    asarray,
    cast,
    children,
    dtype,
    is_recording,
    is_tensor,
    namespace,
    shape,
    tensors,
    to_numpy,
)

# In the order of `keras_cg.engine.contract`.
__all__ = [  # noqa: RUF022
    "namespace",
    "tensors",
    "is_tensor",
    "asarray",
    "to_numpy",
    "shape",
    "dtype",
    "cast",
    "children",
    "is_recording",
    "attach",
    "vjp",
    "jvp",
    "jacobian",
    "recompute",
    "converted",
    "compiled",
    "devices",
]
