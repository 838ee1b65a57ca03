"""The functions of `keras_cg.ops` on TensorFlow."""

from keras_cg.namespaces.tensorflow.functions import namespace

__all__ = ["namespace"]
