"""The array API standard on torch."""

from keras_cg.namespaces.torch.functions import namespace

__all__ = ["namespace"]
