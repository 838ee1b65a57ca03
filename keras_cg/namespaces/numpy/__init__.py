"""The functions of `keras_cg.ops` on NumPy."""

from keras_cg.namespaces.numpy.functions import namespace

__all__ = ["namespace"]
