"""`custom_gradient`: makes a function into one with a gradient of its own, and gives it the manners of a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from keras_cg import call, config, errors, keras_scope

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
        # What has no attributes of its own has none to update: Dynamo of torch 2.11 could not trace that.
        updated = functools.WRAPPER_UPDATES if getattr(fun, "__dict__", None) else ()
        functools.update_wrapper(self, fun, updated=updated)
        # Read here, because torch.compile (2.13) misreads the name of a function while it traces.
        self._name = call.function_name(fun)
        self._signature: inspect.Signature | None = None

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Output:
        """Calls the function on the active backend and returns its output."""
        backend = config.active
        is_ordinary = bool(args) and not kwargs
        for arg in args:
            if not backend.is_plain(arg):
                is_ordinary = False
                break
        if not is_ordinary:
            return call.call(self, self._name, backend, args, kwargs)  # type: ignore[no-any-return]
        if not backend.is_recording():
            # Nothing is differentiated, so there is nothing to attach the rule to.
            pair: Any = self.__wrapped__(*args, **kwargs)
            if type(pair) is tuple and len(pair) == 2 and backend.is_plain(pair[0]) and callable(pair[1]):
                return pair[0]  # type: ignore[no-any-return]
            return call.output_of(backend, self._name, pair)  # type: ignore[no-any-return]
        if not keras_scope.is_unscoped():
            return call.call(self, self._name, backend, args, kwargs)  # type: ignore[no-any-return]
        function = call.PlainCall(backend, self._name, self.__wrapped__, len(args))
        results = backend.attach(function, args)
        return results[0] if function.is_single else function.finish(results)  # type: ignore[no-any-return]

    def frozen_by(self, freeze: Callable[[Any], Any]) -> CustomGradient[P, Output]:
        """A copy around what the function reads now: `engine.freezing` calls this for one in a rule's closure."""
        fun = freeze(self.__wrapped__)
        if fun is self.__wrapped__:
            return self
        other: CustomGradient[P, Output] = CustomGradient(fun)
        other._name = self._name
        return other

    @overload
    def __get__(self, instance: None, owner: type) -> CustomGradient[P, Output]: ...
    @overload
    def __get__(
        self: CustomGradient[Concatenate[Owner, Q], Output], instance: Owner, owner: type[Owner] | None = None
    ) -> CustomGradient[Q, Output]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        bound = CustomGradient(self.__wrapped__.__get__(instance, owner))
        # That of the function: where this is traced, `bound` has read what is no name.
        bound._name = self._name
        return bound

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
        from keras_cg.backends.tensorflow import tracing

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
