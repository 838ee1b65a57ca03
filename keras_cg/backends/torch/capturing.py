"""The tensors that a function captured and that are differentiated."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from keras_cg.backends.torch import transforms
from keras_cg.backends.torch.tensors import describe, edges, leaves, storage_of
from keras_cg.engine import messages
from keras_cg.engine.contract import Function
from keras_cg.engine.functions import innermost


def check(fun: Function, tensors: Sequence[Any], variables: Sequence[torch.Tensor]) -> None:
    """Raises CapturedVariableError if the rule has no gradient for what the function captured."""
    for place, tensor in enumerate(tensors):
        if any([tensor is variable for variable in variables]):
            raise messages.captured_argument(fun.name, str(place + 1))
    fun.capture([describe(variable) for variable in variables], variables)


def captured(
    fun: Function, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], start: int
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
            fun.capture(["(a tensor computed from trainable ones)"])
            raise messages.unserved_variables("torch", messages.NO_CLOSURE, fun)
    outside = {id(tensor) for tensor in reached}
    unknown = {id(leaf): leaf for leaf in used if leaf.is_leaf and id(leaf) not in outside}
    if any([not isinstance(leaf, torch.nn.Parameter) for leaf in unknown.values()]):
        # A function that differentiates inside makes leaves that nothing outside can know. Another run shows which.
        with _Origins(inputs) as origins:
            again = leaves(fun.alone(*inputs))
        captured = {id(leaf) for leaf in again if id(leaf) not in origins.results}
        if captured <= set(map(id, used)):
            used = {each: order for each, order in used.items() if id(each) not in unknown or id(each) in captured}
    return sorted(used, key=used.__getitem__)


def explain(error: RuntimeError, fun: Function) -> None:
    """Raises with our words if torch refused to differentiate a captured value: the arguments are detached."""
    if "functions with out=... arguments don't support automatic differentiation" in str(error):
        raise messages.unserved_variables("torch", "a captured value in an operation with `out=`.", fun) from error


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


# The codes, by identity, of functions whose rule is known to read, or not, what was computed under `no_grad`.
_looked_at: dict[int, Any] = {}
# Their derivative is zero, so it makes no difference whether torch records it; and a user stops a gradient by `detach`.
_STEPS = ("__get__", "ceil", "detach", "floor", "heaviside", "ones_like", "round", "sign", "trunc", "zeros_like")


def run_again(call: Any, fun: Any, inputs: Sequence[torch.Tensor]) -> Any:
    """Runs `fun`, that of a call, on arguments that are differentiated; returns the pullback.

    Warns once for each function if its rule reads what it computed from the arguments under `torch.no_grad()`: the
    second derivative leaves that out.
    """
    code = getattr(innermost(call.user), "__code__", None)
    if id(code) in _looked_at or not any([tensor.requires_grad for tensor in inputs]):
        return fun(*inputs)[1]
    _looked_at[id(code)] = code
    with _Unrecorded() as mode:
        _, pullback = fun(*inputs)
    found = [each for each in pullback.residuals if id(each) in mode.results]
    if found:
        warnings.warn(messages.constant_in_second_order(call.name, describe(found[0])), stacklevel=2)
    return pullback


def _is_constant(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not value.requires_grad


class _Unrecorded(TorchFunctionMode):
    """Notes what is computed under `no_grad` from what is differentiated, and what is computed from that."""

    def __init__(self) -> None:
        super().__init__()
        # The dict keeps the tensors alive, so that no identity is used twice.
        self.results: dict[int, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.__name__ not in _STEPS:
            operands = transforms.tensors_in((args, kwargs))
            is_off = not torch.is_grad_enabled()
            if any([id(each) in self.results or (is_off and each.requires_grad) for each in operands]):
                self.results.update((id(each), each) for each in transforms.tensors_in(result) if _is_constant(each))
        return result


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
