"""Classes of the form of `torch.autograd.Function`, as decorated functions on every backend."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_cg import ops
from keras_cg.engine import precision
from keras_cg.engine.functions import facts, innermost
from keras_cg.frontend import config, signature
from keras_cg.frontend.decorator import CustomGradient
from keras_cg.frontend.pickling import picklable
from keras_cg.recipes import frameworks, messages, tensors
from keras_cg.recipes.tensors import Pair

# Where torch defines the methods that a subclass of its `Function` inherits, and `once_differentiable`.
_TORCH = "torch.autograd.function"


@picklable
def from_autograd_function(cls: type) -> CustomGradient[..., Any]:
    """Returns a decorated function from a class that is written as a `torch.autograd.Function`.

    On torch the class may stay as it is, a subclass of `torch.autograd.Function`: the result replaces its `apply`. On
    the other backends it is a plain class with the same static methods, written with `keras_cg.ops`.

        y = forward(ctx, x),    dL/dx = backward(ctx, dL/dy)

    `forward` and `backward` take and return what they do on torch. So does `setup_context(ctx, inputs, output)`, beside
    a `forward` without `ctx`.

    - `ctx` has `save_for_backward`, `saved_tensors`, `needs_input_grad`, `mark_non_differentiable`,
      `set_materialize_grads`, and the attributes that the class sets. What `backward` sets on it is gone afterwards. On
      torch, the arguments of `forward` say by `requires_grad` what `needs_input_grad` says.
    - As on torch, a gradient is summed to the shape of its argument. The upstream of an output that is not used, marked
      as not differentiable, or no floating tensor is zeros. After `set_materialize_grads(False)` it is None for the
      last two.
    - A second derivative is that of `backward`, where a saved output has the gradient `backward`, as on torch. A saved
      intermediate has the gradient of what computed it. torch differs: to it that is a constant.
    - `vmap`, `jvp` and `generate_vmap_rule` are not used, because batches and forward mode come from `backward`.

    Source: PyTorch, Extending torch.autograd, https://docs.pytorch.org/docs/stable/notes/extending.html

    Args:
        cls: A class with the static methods `forward` and `backward` (or `vjp`), and perhaps `setup_context`.

    Returns:
        A `CustomGradient` with the arguments of `forward`, but for `ctx`: each is any pytree of `any[...]` and other
        objects.

    Raises:
        TypeError: `cls` is no class with these methods, or its `backward` is `once_differentiable`.
        RuntimeError: When the result is called: the class calls `ctx.mark_dirty`; or `forward` reads `requires_grad`
            while `torch.compile` traces.
        GradientError: In the backward pass: `backward` returned something that cannot be the gradient of the arguments.
        CapturedVariableError: When the result is called: `forward` reads a trainable value that is no argument.

    See Also:
        `keras_cg.custom_gradient`, which needs no `ctx`.

    Example:
        >>> import keras_cg
        >>> from keras_cg import ops, recipes
        >>> @recipes.from_autograd_function
        ... class Power:
        ...     @staticmethod
        ...     def forward(ctx, x, n):
        ...         ctx.save_for_backward(x)
        ...         ctx.n = n
        ...         return x**n
        ...     @staticmethod
        ...     def backward(ctx, upstream):
        ...         (x,) = ctx.saved_tensors
        ...         return ctx.n * x ** (ctx.n - 1) * upstream, None
        >>> float(Power(2.0, 3)), float(keras_cg.grad(Power)(2.0, 3))
        (8.0, 12.0)
    """
    forward, backward = _own(cls, "forward"), _own(cls, "vjp") or _own(cls, "backward")
    if forward is None or backward is None:
        raise messages.not_an_autograd_function("from_autograd_function", cls)
    name, setup = f"from_autograd_function({cls.__qualname__})", _own(cls, "setup_context")
    if getattr(backward, "__globals__", {}).get("__name__") == _TORCH:
        raise messages.once_differentiable(name)
    asks = any(map(_asks, (forward, setup)))
    # With the arguments of a call.
    entry = functools.partial(forward, None) if setup is None else forward

    def function(*args: Any, needs_input_grad: Sequence[bool], **kwargs: Any) -> Pair:
        if asks and config.active.is_compiling():
            raise messages.asks_while_compiling(name)
        inputs = (*args, *[kwargs.get(name, default) for name, default in signature.unbound(entry, len(args), kwargs)])
        names = [name for name, _ in signature.unbound(entry, 0, ())] if kwargs else []
        # Where the arguments of the call stand by position. torch has no keyword-only ones.
        places = [*range(len(args)), *[names.index(name) for name in kwargs if name in names]]

        def needs(args: Sequence[Any], told: Sequence[bool]) -> tuple[bool, ...]:
            needed = map(any, tensors.needed(told, *[args[place] for place in places]))
            known = dict(zip(places, needed, strict=True))
            return tuple([known.get(place, False) for place in range(len(args))])

        ctx = Context(name, needs(inputs, needs_input_grad))
        asking = [each for each, is_needed in zip(inputs, ctx.needs_input_grad, strict=True) if is_needed]
        call = functools.partial(frameworks.this.autograd_function.forward, inputs=asking)
        if setup is None:
            output = call(forward, ctx, *args, **kwargs)
        else:
            output = call(forward, *args, **kwargs)
            call(setup, ctx, inputs, output)
        is_single = not isinstance(output, tuple)
        outputs = (output,) if is_single else output
        constants = ctx.constants(outputs)
        saves_output = ctx.release(inputs, outputs)

        def pulled(args: Sequence[Any], upstream: Any, told: Sequence[bool], outputs: Sequence[Any] = ()) -> Any:
            upstreams = [*((upstream,) if is_single else upstream)]
            for place, constant in constants.items():
                upstreams[place] = constant if constant is None else ops.zeros_like(constant)
            return _summed(backward(ctx.told(args, outputs, needs(args, told)), *upstreams), args)

        def grad(*args: Any, upstream: Any, needs_input_grad: Any) -> Any:
            return pulled(args, upstream, needs_input_grad)

        def grad_with_output(*args: Any, upstream: Any, needs_input_grad: Any, output: Any) -> Any:
            return pulled(args, upstream, needs_input_grad, (output,) if is_single else output)

        # A rule that takes the output keeps its memory.
        return output, grad_with_output if saves_output else grad

    function.__module__, function.__name__, function.__doc__ = cls.__module__, cls.__name__, cls.__doc__
    function.__qualname__ = cls.__qualname__
    function.__signature__ = inspect.signature(entry)  # type: ignore[attr-defined]
    return tensors.recipe(name)(function)


def _own(cls: Any, name: str) -> Any:
    """Returns a static method of a class; None if it has none, or the one that torch's base class has."""
    method = getattr(cls, name, None) if isinstance(cls, type) else None
    return None if getattr(method, "__module__", None) == _TORCH else method


def _asks(method: Any) -> bool:
    """Whether a static method asks something for `requires_grad`."""
    function = innermost(method)
    return function is not None and bool(facts(function.__code__).asks)


class Context:
    """The `ctx` of one run, with the attributes that the class sets on it."""

    def __init__(self, name: str, needs_input_grad: Sequence[bool]):
        self._name = name
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self._constants: tuple[Any, ...] = ()
        self._is_filled = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps tensors for `saved_tensors`."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Saves nothing, because forward mode comes from `backward`."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Gives some outputs an upstream of zeros."""
        self._constants = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Says whether an output without a gradient has zeros or None as its upstream."""
        self._is_filled = value

    def mark_dirty(self, *tensors: Any) -> None:
        """Refuses a function that changes its arguments in place."""
        raise messages.marked_dirty(self._name)

    def constants(self, outputs: Sequence[Any]) -> dict[int, Any]:
        """Returns the outputs that have no gradient, each by its place; None for each if they get no upstream."""
        backend, marked = config.active, [*map(id, self._constants)]
        return {
            place: each if self._is_filled else None
            for place, each in enumerate(outputs)
            if id(each) in marked or (backend.is_tensor(each) and not precision.is_differentiable(backend.dtype(each)))
        }

    def release(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> bool:
        """Forgets the arguments and outputs that are kept here: `backward` gets those of the caller instead.

        Returns whether an output was kept.
        """
        places = {**_places(outputs, is_output=True), **_places(inputs, is_output=False)}
        found: list[Place] = []

        def released(value: Any) -> Any:
            place = places.get(id(value))
            if place is None:
                return value
            found.append(place)
            return place

        self.__dict__.update({name: _mapped(released, value) for name, value in vars(self).items()})
        return any([place.is_output for place in found])

    def told(self, args: Sequence[Any], outputs: Sequence[Any], needs_input_grad: Sequence[bool]) -> Context:
        """Returns a copy for one backward pass, with the arguments, the outputs, and which gradients are needed."""

        def filled(value: Any) -> Any:
            return (outputs if value.is_output else args)[value.number] if isinstance(value, Place) else value

        other = Context(self._name, ())
        other.__dict__.update({name: _mapped(filled, value) for name, value in vars(self).items()})
        other.needs_input_grad = needs_input_grad
        return other


class Place(NamedTuple):
    """An argument or an output of the call, in what a `Context` keeps."""

    number: int
    is_output: bool


def _places(values: Sequence[Any], is_output: bool) -> dict[int, Place | None]:
    """Returns the place of each tensor among some values, by identity."""
    places: dict[int, Place | None] = {}
    for index, each in enumerate(values):
        if config.active.is_tensor(each):
            # None for a tensor that is there twice, because these may be two tensors in another run.
            places[id(each)] = None if id(each) in places else Place(index, is_output)
    return places


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Maps a function over an attribute, or over the parts of one that is a list or a tuple."""
    return type(value)(map(function, value)) if type(value) in (list, tuple) else function(value)


def _summed(gradients: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """Returns what `backward` returned as a gradient for each argument, in the shape of the argument where possible."""
    results: list[Any] = [*gradients] if isinstance(gradients, (tuple, list)) else [gradients]
    while len(results) > len(args) and results[-1] is None:
        results.pop()
    for place, (gradient, argument) in enumerate(zip(results, args, strict=False)):
        if tensors.is_floating(gradient) and tensors.is_floating(argument):
            try:
                results[place] = ops.sum_to(gradient, argument)
            except ValueError:
                # The decorator refuses its shape, and names the argument.
                continue
    return tuple(results)
