"""The functions of `keras_cg.ops` on torch."""

from keras_cg.namespaces.torch.functions import namespace

__all__ = ["namespace"]
