"""`custom_gradient`: gives a function a gradient of its own, in an object that behaves as the function does."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from keras_cg import call, config, errors, keras_interop, keras_scope
from keras_cg.pytree import SINGLE

__all__ = ["CustomGradient", "custom_gradient"]

P = ParamSpec("P")
Q = ParamSpec("Q")
Output = TypeVar("Output")
Owner = TypeVar("Owner")


class _Signature:
    """The signature of the function, because `inspect.getfullargspec` does not look at `__wrapped__`."""

    def __get__(self, instance: CustomGradient[Any, Any] | None, owner: type) -> inspect.Signature | None:
        if instance is None:
            return None
        # Saved, because JAX asks whenever it differentiates the function.
        if instance._signature is None:
            instance._signature = inspect.signature(instance.__wrapped__)
        return instance._signature


class CustomGradient(Generic[P, Output]):
    """A function with a gradient of its own, which `custom_gradient` returns.

    It takes the function's arguments and returns its `output`. It has the function's name, docstring and signature, and
    binds as a method.
    """

    __wrapped__: Callable[P, tuple[Output, Callable[..., Any]]]
    __signature__ = _Signature()
    # AutoGraph of TensorFlow (2.21) does not rewrite an object with this attribute. Without it, AutoGraph would rewrite
    # each function of this package, and tracing would take ten times as long. The user's function is `converted` by
    # itself. The name is not public, so a test sees that it has this effect.
    autograph_info__ = None
    # The user may set these: arguments on which `keras-cg check` tries the function, and its expected gradient.
    example_args: Any
    expected: Any

    def __init__(self, fun: Callable[P, tuple[Output, Callable[..., Any]]]):
        # Dynamo of torch 2.11 could not trace the update of an empty `__dict__`.
        updated = functools.WRAPPER_UPDATES if getattr(fun, "__dict__", None) else ()
        functools.update_wrapper(self, fun, updated=updated)
        # Read here, because torch.compile (2.13) misreads the name of a function while it traces.
        self._name = call.function_name(fun)
        self._signature: inspect.Signature | None = None

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Output:
        """Calls the function on the active backend and returns its output."""
        try:
            backend = config.active
            is_ordinary = bool(args) and not kwargs and all(map(backend.is_plain, args))
            if is_ordinary and not backend.is_recording():
                # Nothing is differentiated, so there is nothing to attach the rule to.
                pair: Any = self.__wrapped__(*args, **kwargs)
                if type(pair) is tuple and len(pair) == 2 and backend.is_plain(pair[0]) and callable(pair[1]):
                    return pair[0]  # type: ignore[no-any-return]
                return call.output_of(backend, self._name, pair)  # type: ignore[no-any-return]
            if is_ordinary and keras_scope.is_unscoped():
                function = call.Call(backend, self._name, self.__wrapped__, len(args))
                results = backend.attach(function, args)
                return results[0] if function.output is SINGLE else function.finish(results)  # type: ignore[no-any-return]
            return call.call(self, self._name, backend, args, kwargs)  # type: ignore[no-any-return]
        except Exception as error:
            errors.hide_frames(error)
            raise

    def frozen_by(self, freeze: Callable[[Any], Any]) -> CustomGradient[P, Output]:
        """Copies the function and what it reads now: `engine.freezing` calls this for one in a rule's closure."""
        fun = freeze(self.__wrapped__)
        return self if fun is self.__wrapped__ else self._of(fun)

    def _of(self, fun: Any) -> Any:
        """Decorates `fun` under the name of this function, because torch.compile (2.13) misreads it while it traces."""
        other: CustomGradient[..., Any] = CustomGradient(fun)
        other._name = self._name
        return other

    @overload
    def __get__(self, instance: None, owner: type) -> CustomGradient[P, Output]: ...
    @overload
    def __get__(
        self: CustomGradient[Concatenate[Owner, Q], Output], instance: Owner, owner: type[Owner] | None = None
    ) -> CustomGradient[Q, Output]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else self._of(self.__wrapped__.__get__(instance, owner))

    def __repr__(self) -> str:
        return f"<custom_gradient {self._name}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # By name, as Python pickles functions: what a module defines can be pickled.
        owner = getattr(self.__wrapped__, "__self__", None)
        if owner is not None:
            return getattr, (owner, self.__wrapped__.__name__)
        return self.__wrapped__.__qualname__

    def get_config(self) -> dict[str, Any]:
        """Returns what Keras saves of the function, in a model or a layer that uses it."""
        return keras_interop.operation().to_config(self)  # type: ignore[no-any-return]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CustomGradient[..., Any]:
        """Returns the function that `get_config` described."""
        return keras_interop.operation().of_config(config)  # type: ignore[no-any-return]

    def __tf_tracing_type__(self, context: Any) -> Any:
        """Returns the type of an argument of a `tf.function`: this object itself, and not the function it wraps."""
        # By its name, because no backend is imported before it is asked for, and here TensorFlow itself asks.
        return importlib.import_module("keras_cg.backends.tensorflow.tracing").Itself(self)

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

    It is called as `keras.ops.custom_gradient` is, but it means one thing: the rule that the function returns is the
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
    - Gradients come as a bare tensor, a flat tuple or list, or the same nest as the arguments. Their count, structure,
      shape and kind are checked; nothing is broadcast or summed.
    - The backend is the active one when the function is called: see `keras_cg.backend`.
    - For complex numbers, upstream and gradients are dL/dx + i dL/dy on every backend.

    Args:
        fun: A function or method that returns `(output, grad)`; None to use it as `@custom_gradient()`.

    Returns:
        A function with the arguments of `fun` that returns `output` and has the gradient `grad`.

    Raises:
        TypeError: `fun` cannot be called. When the result is called: `fun` returned no pair `(output, grad)`, an
            argument belongs to another framework, or no calling convention fits the rule.
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
