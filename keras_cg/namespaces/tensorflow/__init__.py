"""The array API standard on TensorFlow."""

from keras_cg.namespaces.tensorflow.functions import namespace

__all__ = ["namespace"]
