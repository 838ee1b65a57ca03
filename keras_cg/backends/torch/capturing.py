"""The tensors that a function captured and that are differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from keras_cg.backends.torch import transforms
from keras_cg.backends.torch.tensors import describe, edges, leaves, storage_of
from keras_cg.engine import messages
from keras_cg.engine.contract import Function, Pullback


def check(fun: Function, tensors: Sequence[Any], variables: Sequence[torch.Tensor], pullback: Pullback) -> None:
    """Raises CapturedVariableError if the rule has no gradient for what the function captured."""
    for place, tensor in enumerate(tensors):
        if any([tensor is variable for variable in variables]):
            raise messages.captured_argument(fun.name, str(place + 1))
    pullback.capture([describe(variable) for variable in variables], variables)


def captured(
    fun: Function, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], start: int, pullback: Pullback
) -> list[torch.Tensor]:
    """Returns the tensors that `fun` captured and `outputs` depend on, in the order of their first use.

    These are leaves of autograd's graph, and tensors in closures. A node with a number below `start` was there before.
    """
    reached = list(fun.captures(lambda value: isinstance(value, torch.Tensor) and value.requires_grad))
    known = {(tensor.grad_fn, tensor.output_nr): tensor for tensor in reached if tensor.grad_fn is not None}
    used: dict[torch.Tensor, int] = {output: 0 for output in outputs if output.is_leaf and output.requires_grad}
    for node, number, user in edges(outputs, known):
        tensor = known.get((node, number), getattr(node, "variable", None))
        if tensor is not None:
            order = start if user is None else user._sequence_nr()
            used[tensor] = min(order, used.get(tensor, order))
        elif node._sequence_nr() < start or not any([before is not None for before, _ in node.next_functions]):
            # The run captured a computed tensor that `captures` does not find. Or the node is a leaf of aot_module.
            pullback.capture(["(a tensor computed from trainable ones)"])
            raise messages.unserved_variables("torch", messages.NO_CLOSURE, fun)
    outside = {id(tensor) for tensor in reached}
    unknown = {id(leaf): leaf for leaf in used if leaf.is_leaf and id(leaf) not in outside}
    if any([not isinstance(leaf, torch.nn.Parameter) for leaf in unknown.values()]):
        # A function that differentiates inside makes leaves that nothing outside can know. Another run shows which.
        with _Origins(inputs) as origins:
            again = leaves(fun.start(*inputs)[0])
        captured = {id(leaf) for leaf in again if id(leaf) not in origins.results}
        if captured <= set(map(id, used)):
            used = {each: order for each, order in used.items() if id(each) not in unknown or id(each) in captured}
    return sorted(used, key=used.__getitem__)


class _Origins(TorchFunctionMode):
    """Notes the tensors that a run makes: operations return them, and none had them as an operand before."""

    def __init__(self, arguments: Sequence[Any]):
        super().__init__()
        # The dicts keep the tensors alive, so that no identity is used twice.
        self.others: dict[int, Any] = {id(tensor): tensor for tensor in arguments}
        self.results: dict[int, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note(self.others, self.results, (args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._note(self.results, self.others, result)
        return result

    def _note(self, known: dict[int, Any], others: dict[int, Any], nest: Any) -> None:
        known.update((id(each), each) for each in transforms.tensors_in(nest) if id(each) not in others)


def is_in_module(fun: Function, tensor: torch.Tensor) -> bool:
    """Whether a tensor is a weight of a module that `fun` can reach: it existed before the run.

    A buffer may have been filled by the run.
    """
    modules = fun.captures(lambda value: isinstance(value, torch.nn.Module))
    return any([tensor is each for module in modules for each in module.parameters()])


class Unread(TorchFunctionMode):
    """Refuses operations on tensors that were written to since the run of the rule that works in this context."""

    def __init__(self, touched: Sequence[torch.Tensor], name: str):
        super().__init__()
        self.touched, self.name = {id(tensor) for tensor in touched}, name
        self.storages = {storage_of(tensor) for tensor in touched} - {0}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A property such as `shape` reads no value.
        if func.__name__ != "__get__":
            for each in transforms.tensors_in((args, kwargs)):
                if id(each) in self.touched or storage_of(each) in self.storages:
                    raise messages.changed_since_call(self.name)
        return func(*args, **(kwargs or {}))
