"""`from_autograd_function` on torch: the arguments say that they require a gradient, as in a native `forward`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from keras_cg.backends.torch.tensors import is_compiling
from keras_cg.recipes import tensors

_ASKED: Any = torch.Tensor.requires_grad
_ASKED = _ASKED.__get__


class _RequiresGrad(TorchFunctionMode):
    """Answers True where one of some arguments is asked for `requires_grad`: the function gets them detached."""

    def __init__(self, inputs: Sequence[Any]):
        super().__init__()
        self.inputs = {id(each) for each in inputs if tensors.is_floating(each)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _ASKED and id(args[0]) in self.inputs:
            return True
        return func(*args, **(kwargs or {}))


def forward(function: Callable[..., Any], *args: Any, inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Calls a static method of the class; `inputs` are the arguments that are differentiated."""
    if is_compiling():
        return function(*args, **kwargs)
    with _RequiresGrad(inputs):
        return function(*args, **kwargs)
