"""One call of a decorated function: flatten and partition the arguments, attach the rule, build the output.

`call` does this for any arguments. `CustomGradient.__call__` leaves out the pytrees where all arguments are plain
tensors by position. A backend gets a `Call`, from tensors to tensors, and asks its runs for gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_cg import user_code
from keras_cg.bridge import keras_interop
from keras_cg.engine.contract import Backend
from keras_cg.frontend import arguments, messages, pytree, signature
from keras_cg.frontend.function import checked_pair, output_label
from keras_cg.frontend.gradients import needs_input_grad
from keras_cg.frontend.run import Call
from keras_cg.frontend.tree import Tree


def call(decorated: Any, name: str, backend: Backend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a decorated function with any arguments."""
    fun = decorated.__wrapped__
    if decorated.is_told and signature.NEEDS in kwargs:
        raise messages.told_by_the_decorator(name)
    kwargs = signature.in_order(fun, kwargs) if len(kwargs) > 1 else kwargs
    keywords, values = tuple(kwargs), (*args, *kwargs.values())
    found = pytree.split(backend, values)
    if found is not None:
        tree, tensors = found
    else:
        tree = pytree.flatten(values, backend)
        if keras_interop.is_symbolic(tree.leaves):
            labels = arguments.labels(fun, len(args), keywords, tree)
            leaves = dict(zip(labels, tree.leaves, strict=True))
            return keras_interop.operation().apply(decorated, args, kwargs, leaves)

        def label(tree: Tree, place: int) -> str:
            return f"the argument {arguments.labels(fun, len(args), keywords, tree)[place]}"

        tensors = pytree.partition(backend, name, tree, label)
    function = Call(backend, name, fun, len(args)).of(keywords, tree)
    if empty := tree.without_tensors():
        function.whole = {place: values[place] for place in empty}
    function.engine, function.ground = backend.is_recording(), decorated.ground
    if decorated.is_told:
        # The same answer in every run, so that no rule differs by it.
        needed = backend.needs_grad(tensors) if function.engine else [False] * len(tensors)
        function.extras = {signature.NEEDS: needs_input_grad(function, needed)}
    if function.engine:
        return function.finish(backend.attach(function, tensors))
    # Nothing is differentiated, so there is nothing to attach the rule to.
    args, kwargs = function.bind(tuple(tensors))
    return output_of(backend, name, fun, fun(*args, **kwargs))


def output_of(backend: Backend, name: str, fun: Callable[..., Any], pair: Any) -> Any:
    """Returns the output of `fun`, which returned `pair`, where nothing is differentiated."""
    output, _ = checked_pair(name, fun, pair)
    tree = pytree.flatten(output, backend)
    return tree.combine([*map(backend.constant, pytree.partition(backend, name, tree, output_label))])


def function_name(fun: Callable[..., Any]) -> str:
    """Returns the name of a function in messages."""
    name = getattr(fun, "__qualname__", None) or getattr(fun, "__name__", None) or type(fun).__name__
    if user_code.is_traced_by_dynamo():
        return name  # no text to Dynamo of torch (2.13)
    # AutoGraph of TensorFlow (2.21) puts this before the name of a function inside one that it rewrote.
    return name.removeprefix("outer_factory.<locals>.inner_factory.<locals>.tf__")
