"""The array API standard on NumPy."""

from keras_cg.namespaces.numpy.functions import namespace

__all__ = ["namespace"]
