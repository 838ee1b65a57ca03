"""`custom_gradient`: wraps a function, binds its arguments, splits their leaves, asks the backend."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import numpy

from keras_cg import backends, config, errors, nest, signature
from keras_cg.backends import Backend
from keras_cg.nest import Nest
from keras_cg.rule import Call, Pullback
from keras_cg.state import State

__all__ = ["CustomGradient", "custom_gradient"]

P = ParamSpec("P")
Q = ParamSpec("Q")
Output = TypeVar("Output")
Owner = TypeVar("Owner")


class _Signature:
    """The signature of the function, for `inspect.getfullargspec`, which does not look at `__wrapped__`."""

    def __get__(self, instance: CustomGradient[Any, Any] | None, owner: type) -> inspect.Signature | None:
        if instance is None:
            return None
        # Kept, since JAX asks whenever it differentiates the function.
        if instance._signature is None:
            instance._signature = inspect.signature(instance.__wrapped__)
        return instance._signature


class CustomGradient(Generic[P, Output]):
    """A function with a gradient of its own: what `custom_gradient` makes of one.

    It is called as the function is and returns the function's `output`. It keeps the function's name,
    docstring and signature, has it as `__wrapped__`, and binds as a method.
    """

    __wrapped__: Callable[P, tuple[Output, Callable[..., Any]]]
    __signature__ = _Signature()
    # AutoGraph of TensorFlow (2.21) calls what has this attribute as it is. Else it would rewrite each function of this
    # package on the way to the user's, and tracing would take ten times as long; the user's is `converted` by itself.
    # The name is not public, so a test sees that it has this effect.
    autograph_info__ = None
    # What `keras-cg check` tries it on, and what its gradient is meant to be, if somebody says so.
    example_args: Any
    expected: Any

    def __init__(self, fun: Callable[P, tuple[Output, Callable[..., Any]]]):
        functools.update_wrapper(self, fun)
        # Read here, because torch.compile (2.13) misreads the name of a function while it traces.
        self._name = function_name(fun)
        self._signature: inspect.Signature | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Output:
        """Calls the function on the active backend and returns its output."""
        backend = config.active
        if kwargs or backend.is_recording() or not all(map(backend.is_tensor, args)):
            return call(self, backend, args, kwargs)  # type: ignore[no-any-return]
        # Nobody differentiates it, so that there is nothing to attach the rule to.
        fun: Callable[..., Any] = self.__wrapped__
        output, _ = _pair(self._name, fun(*map(backend.asarray, args)))
        if backend.is_tensor(output):
            return backend.asarray(output)  # type: ignore[no-any-return]
        outputs, found = lay_output(backend, self._name, output)
        filled: Output = outputs.fill(found, [backend.asarray(outputs.leaves[place]) for place in found])
        return filled

    @overload
    def __get__(self, instance: None, owner: type) -> CustomGradient[P, Output]: ...
    @overload
    def __get__(
        self: CustomGradient[Concatenate[Owner, Q], Output], instance: Owner, owner: type[Owner] | None = None
    ) -> CustomGradient[Q, Output]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return CustomGradient(self.__wrapped__.__get__(instance, owner))

    def __repr__(self) -> str:
        return f"<custom_gradient {self._name}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # As a function: by name if it is to be found there, so that pickling works for what a module defines.
        owner = getattr(self.__wrapped__, "__self__", None)
        if owner is not None:
            return getattr, (owner, self.__wrapped__.__name__)
        return self.__wrapped__.__qualname__

    def get_config(self) -> dict[str, Any]:
        """What Keras saves of the function, in a model or a layer that uses it."""
        from keras_cg.keras import operation

        return operation.to_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CustomGradient[..., Any]:
        """The function that `get_config` described."""
        from keras_cg.keras import operation

        return operation.of_config(config)

    def __tf_tracing_type__(self, context: Any) -> Any:
        """What TensorFlow takes it for where it is an argument of a `tf.function`: itself, and not what it wraps."""
        from keras_cg import tracing

        return tracing.Itself(self)

    def __copy__(self) -> CustomGradient[P, Output]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> CustomGradient[P, Output]:
        return self


@overload
def custom_gradient(fun: Callable[P, tuple[Output, Callable[..., Any]]]) -> CustomGradient[P, Output]: ...
@overload
def custom_gradient(
    fun: None = None,
) -> Callable[[Callable[P, tuple[Output, Callable[..., Any]]]], CustomGradient[P, Output]]: ...
def custom_gradient(fun: Any = None) -> Any:
    """Gives a function a gradient of its own, the same on every backend.

    As `keras.ops.custom_gradient`, but it means one thing: the rule that the function returns is the
    gradient on JAX, PyTorch, TensorFlow and NumPy, or an error says what is wrong.

    ```python
    @custom_gradient
    def f(x, y):            # any nest of tensors, numbers, strings, ...; keywords and defaults too
        output = ...        # any nest again; whatever is computed here may be used in the rule
        def grad(upstream):     # the gradient arriving at the output, with the output's structure
            return gx, gy       # one gradient per tensor argument; None where there is none
        return output, grad
    ```

    - The rule may be written as `grad(upstream)`, `grad(dy1, dy2)`, `grad(*dys)`,
      `grad(*args, upstream=None)` or `grad(x, y, upstream)`, each also with `variables`.
    - Gradients come as a bare tensor, a flat tuple or list, or the same nest as the arguments. Their count,
      structure, shape and kind are checked; nothing is broadcast or summed.
    - The backend is the active one when the function is called: see `keras_cg.backend`.
    - For complex numbers, upstream and gradients are dL/dx + i dL/dy on every backend.

    Args:
        fun: A function `fun(*args, **kwargs)` that returns `(output, grad)`. A method, static or class
            method serves too. None to use it as `@custom_gradient()`.

    Returns:
        A function with the arguments of `fun` that returns `output` and has the gradient `grad`.

    Raises:
        TypeError: `fun` cannot be called. When the result is called: `fun` returned no pair
            `(output, grad)`, an argument belongs to another framework, or no calling convention fits the rule.
        CapturedVariableError: `fun` reads a trainable value that is no argument, and the rule takes no `variables`.
        GradientError: The rule returned something that is not the gradient of the arguments.

    Example:
        The gradient of log(1 + exp(x)), which plain differentiation gets as NaN for large x:

        >>> import keras_cg
        >>> from keras_cg import ops
        >>> @keras_cg.custom_gradient
        ... def log1pexp(x):
        ...     e = ops.exp(x)
        ...     def grad(upstream):
        ...         return upstream * (1 - 1 / (1 + e))
        ...     return ops.log(1 + e), grad
        >>> float(keras_cg.grad(log1pexp)(100.0))
        1.0
    """
    if fun is None:
        return custom_gradient
    if isinstance(fun, (staticmethod, classmethod)):
        return type(fun)(custom_gradient(fun.__func__))
    if not callable(fun):
        raise errors.not_callable(fun)
    return CustomGradient(fun)


def function_name(fun: Callable[..., Any]) -> str:
    """What messages call a function."""
    return getattr(fun, "__qualname__", None) or getattr(fun, "__name__", None) or type(fun).__name__


def unwrap(leaf: Any) -> Any:
    """The value of a Keras variable; any other leaf as it is."""
    variables = getattr(sys.modules.get("keras"), "Variable", ())
    return leaf.value if isinstance(leaf, variables) else leaf


def _is_symbolic(leaves: Sequence[Any]) -> bool:
    """Whether there is a placeholder among them, as Keras's functional API passes around."""
    symbolic = getattr(sys.modules.get("keras"), "KerasTensor", None)
    return symbolic is not None and any(isinstance(leaf, symbolic) for leaf in leaves)


def split(backend: Backend, name: str, laid: Nest, label: Callable[[int], str]) -> Sequence[int]:
    """Which leaves of a nest are tensors of the active backend; their Keras variables are unwrapped in place.

    Raises:
        TypeError: A leaf is a tensor of another framework, or a placeholder of Keras.
    """
    places = []
    is_tensor, variables = backend.is_tensor, getattr(sys.modules.get("keras"), "Variable", ())
    for place, given in enumerate(laid.leaves):
        if is_tensor(given) and not isinstance(given, variables):
            places.append(place)
        elif not isinstance(given, (type(None), bool, int, float, str, FunctionType)):
            leaf = laid.leaves[place] = unwrap(given)
            if leaf is not given and is_tensor(leaf) and isinstance(leaf, backend.tensors):
                places.append(place)
            elif not isinstance(leaf, complex) and not _is_numpy_scalar(leaf):
                if _is_symbolic([leaf]):
                    raise errors.symbolic_tensor(name, label(place))
                owner = backends.owner(type(leaf))
                if owner is not None and backends.load(owner, owner).is_tensor(leaf):
                    raise _foreign(name, label(place), given, owner)
    return places


def _foreign(name: str, role: str, leaf: Any, owner: str) -> TypeError:
    keras = config.keras()
    if keras and keras[0] == owner:
        return errors.keras_elsewhere(name, role, leaf, *config.resolve(), *keras)
    return errors.foreign_tensor(name, role, leaf, *config.resolve(), owner)


def _is_numpy_scalar(leaf: Any) -> bool:
    # To torch.compile (2.13) a scalar of NumPy is an array without dimensions.
    return isinstance(leaf, numpy.generic) or (isinstance(leaf, numpy.ndarray) and leaf.ndim == 0)


def call(function: CustomGradient[..., Any], backend: Backend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a decorated function: the whole way in, to the backend, and back."""
    name, fun = function._name, function.__wrapped__
    if kwargs:
        kwargs = _in_order(fun, kwargs)
    arguments = nest.flatten((*args, *kwargs.values()), backend.is_tensor, backend.children)
    count, keywords = len(args), tuple(kwargs)
    given = Call(backend, name, fun, count, keywords, arguments)
    if _is_symbolic(arguments.leaves):
        return _operation(function, args, kwargs, given)
    # Below, `flat` outlives this call, and must not keep the arguments.
    places = split(backend, name, arguments, lambda place: f"the argument {given.labels()[place]}")
    tensors = [backend.asarray(arguments.leaves[place]) for place in places]
    for place in places:
        # The backend has them; here they would live as long as the pullback.
        arguments.leaves[place] = None
    finished: list[tuple[Nest, Sequence[int]]] = []
    state = State(name)

    def flat(*tensors: Any) -> tuple[tuple[Any, ...], Pullback]:
        positional, named = arguments.fill(places, tensors), {}
        if keywords:
            positional, named = positional[:count], dict(zip(keywords, positional[count:], strict=True))
        # Without a context if it can be, in which torch.compile (2.13) could not break its graph.
        if state.is_idle():
            pair, changed = backend.converted(fun)(*positional, **named), ()
        else:
            with state:
                pair = backend.converted(fun)(*positional, **named)
            changed = state.changes()
        output, rule = _pair(name, pair)
        outputs, found = lay_output(backend, name, output)
        results = [backend.asarray(outputs.leaves[place]) for place in found]
        for place in found:
            outputs.leaves[place] = None
        finished.append((outputs, found))
        if named:
            positional = (*positional, *_positional(fun, count, named))
        likes = [(backend.dtype(tensor), backend.shape(tensor)) for tensor in tensors]
        return (*results, *changed), Pullback(given, rule, positional, len(positional), places, likes, outputs, found)

    results = backend.attach(flat, tensors)
    outputs, found = finished[0]
    state.settle(results[len(found) :])
    return outputs.fill(found, results[: len(found)])


def lay_output(backend: Backend, name: str, output: Any) -> tuple[Nest, Sequence[int]]:
    """What the function returned, laid flat, and which of the leaves are tensors."""
    outputs = nest.flatten(output, backend.is_tensor, backend.children)
    return outputs, split(backend, name, outputs, lambda place: f"the output{outputs.paths()[place]}")


def _operation(function: CustomGradient[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], given: Call) -> Any:
    """A call as an operation of Keras's functional API."""
    from keras_cg.keras import operation

    return operation.apply(function, args, kwargs, dict(zip(given.labels(), given.nest.leaves, strict=True)))


def _pair(name: str, pair: Any) -> tuple[Any, Callable[..., Any]]:
    """`(output, grad)`, as the function must return it."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise errors.not_a_pair(name, pair)
    output, rule = pair
    if not callable(rule):
        raise errors.rule_not_callable(name, rule)
    return output, rule


def _in_order(fun: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments in the order of the signature, those that it does not name last."""
    found = signature.parameters(fun)
    if found is None:
        return kwargs
    known = {name: kwargs[name] for name in found.names() if name in kwargs}
    return known | {name: value for name, value in kwargs.items() if name not in known}


def _positional(fun: Callable[..., Any], count: int, given: dict[str, Any]) -> Sequence[Any]:
    """Arguments given by keyword to positional parameters, with the defaults of those between them."""
    found = signature.parameters(fun)
    if found is None:
        return ()
    names = found.positional[count:]
    while names and names[-1] not in given:
        names = names[:-1]
    if all(name in given for name in names):
        return [given[name] for name in names]
    defaults = found.positional_defaults()
    return [given[name] if name in given else defaults[name] for name in names]
