"""`custom_gradient`: gives a function a gradient of its own, in an object that behaves as the function does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, overload

from keras_cg import user_code
from keras_cg.bridge import keras_interop
from keras_cg.engine.functions import Decorated
from keras_cg.engine.ground import ground_of
from keras_cg.frontend import call, config, messages, pickling, signature, tracebacks
from keras_cg.frontend.run import Call
from keras_cg.frontend.tree import SINGLE

__all__ = ["CustomGradient", "custom_gradient"]

P = ParamSpec("P")
Q = ParamSpec("Q")
Output = TypeVar("Output")
Owner = TypeVar("Owner")


class _Signature:
    """Lets `inspect.getfullargspec` see the signature, because it ignores `__wrapped__`."""

    def __get__(self, instance: CustomGradient[Any, Any] | None, owner: type) -> inspect.Signature | None:
        if instance is None:
            return None
        found = inspect.signature(instance.__wrapped__)
        if instance.is_told:
            parameters = [each for name, each in found.parameters.items() if name != signature.NEEDS]
            found = found.replace(parameters=parameters)
        # Found there from now on, because JAX asks whenever it differentiates the function.
        instance.__dict__["__signature__"] = found
        return found


class CustomGradient(Decorated, Generic[P, Output]):
    """A function with a gradient of its own, which `custom_gradient` returns.

    Call it like the function: it returns the output. It has the function's name, docstring and signature, and binds as
    a method.

    Attributes:
        __wrapped__: The undecorated function, which returns `(output, grad)`.
        example_args: Set by you: the arguments for `keras-cg check`, as a tuple or as a dict of their names. Each is a
            value, or text such as `"rng.normal(size=(4, 3))"` for a `float[4, 3]` of random numbers.
        expected: Set by you: the reference for the gradient, if it differs from the derivative on purpose. Either a
            function whose derivative is meant, or a rule with a parameter `upstream`.
        value: Set by you: a function of the same arguments that returns the right output.

    See Also:
        `keras_cg.testing.check_gradients`, which has the last two as arguments.

    Example:
        >>> import keras_cg
        >>> from keras_cg import ops
        >>> @keras_cg.custom_gradient
        ... def straight_through(x):
        ...     return ops.round(x), lambda upstream: upstream
        >>> straight_through.example_args = {"x": "rng.normal(size=(4, 3))"}
        >>> straight_through.expected = lambda x: x
        >>> straight_through.value = ops.round
        >>> straight_through
        <custom_gradient straight_through>
        >>> output, rule = straight_through.__wrapped__(1.7)
        >>> float(output), rule(5.0)
        (2.0, 5.0)
    """

    __wrapped__: Callable[P, tuple[Output, Callable[..., Any]]]
    __signature__ = _Signature()
    # AutoGraph of TensorFlow (2.21) does not rewrite an object with this attribute. Without it, AutoGraph would rewrite
    # each function of this package, and tracing would take ten times as long. The user's function is `converted` by
    # itself. The name is not public, so a test sees that it has this effect.
    autograph_info__ = None
    example_args: Any
    expected: Any
    value: Any
    # For pickle: the call of a recipe that returned the function, and the function that was bound as this method.
    _origin: Any = None
    _unbound: Any = None

    def __init__(self, fun: Callable[P, tuple[Output, Callable[..., Any]]]):
        # Dynamo of torch 2.11 could not trace the update of an empty `__dict__`.
        updated = functools.WRAPPER_UPDATES if getattr(fun, "__dict__", None) else ()
        functools.update_wrapper(self, fun, updated=updated)
        # Read here, because torch.compile (2.13) misreads the name of a function while it traces.
        self._name = call.function_name(fun)
        self.is_told = signature.asks(fun)
        # Dynamo of torch (2.13) does not trace what is asked here; what it traces has no need of the answer.
        self.ground = None if user_code.is_traced_by_dynamo() else ground_of(fun)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Output:
        """Calls the function on the active backend and returns its output."""
        try:
            backend = config.active
            plain, ordinary = backend.plain, () if kwargs or self.is_told else args
            # In plain loops here and on the whole way, because on few numbers a call costs little more than its frames.
            for arg in ordinary:
                if type(arg) not in plain and not backend.is_plain(arg):
                    ordinary = ()
                    break
            if ordinary:
                engine = backend.is_recording()
                if not engine:
                    # Nothing is differentiated, so there is nothing to attach the rule to.
                    pair: Any = self.__wrapped__(*args)  # type: ignore[call-arg]
                    if type(pair) is tuple and len(pair) == 2 and callable(pair[1]):
                        output = pair[0]
                        if type(output) in plain or backend.is_plain(output):
                            return backend.constant(output)  # type: ignore[no-any-return]
                    return call.output_of(backend, self._name, self.__wrapped__, pair)  # type: ignore[no-any-return]
                function = Call(backend, self._name, self.__wrapped__, len(args))
                function.engine, function.ground = engine, self.ground
                results = backend.attach(function, args)
                is_alone = function.output is SINGLE and function.state is None
                return results[0] if is_alone else function.finish(results)  # type: ignore[no-any-return]
            return call.call(self, self._name, backend, args, kwargs)  # type: ignore[no-any-return]
        except Exception as error:
            tracebacks.hide_frames(error)
            raise

    @overload
    def __get__(self, instance: None, owner: type) -> CustomGradient[P, Output]: ...
    @overload
    def __get__(
        self: CustomGradient[Concatenate[Owner, Q], Output], instance: Owner, owner: type[Owner] | None = None
    ) -> CustomGradient[Q, Output]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        # With what this one has, which is what it would read from the method: each look-up binds a method again.
        bound = object.__new__(CustomGradient)
        bound.__dict__.update(self.__dict__, __wrapped__=self.__wrapped__.__get__(instance, owner), _unbound=self)
        bound.__dict__.pop("__signature__", None)
        bound.ground = None
        return bound

    def __eq__(self, other: object) -> bool:
        # Each look-up binds the method again. Two of them are equal, as two bound methods of Python are.
        if self is other or not isinstance(other, CustomGradient):
            return self is other
        return isinstance(self.__wrapped__, MethodType) and bool(self.__wrapped__ == other.__wrapped__)

    def __hash__(self) -> int:
        return hash(self.__wrapped__) if isinstance(self.__wrapped__, MethodType) else object.__hash__(self)

    def __repr__(self) -> str:
        return f"<custom_gradient {self._name}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # By name, as Python pickles functions: what a module defines can be pickled. A copy of a method has the copy of
        # its object.
        owner = getattr(self.__wrapped__, "__self__", None)
        if owner is None:
            return pickling.reduced(self, getattr(self.__wrapped__, "__qualname__", self._name), self._origin)
        if getattr(owner, self.__wrapped__.__name__, None) == self:
            return getattr, (owner, self.__wrapped__.__name__)
        is_bound = self._unbound is not None
        return (CustomGradient.__get__, (self._unbound, owner)) if is_bound else (custom_gradient, (self.__wrapped__,))

    def get_config(self) -> dict[str, Any]:
        """Returns what Keras saves of the function, in a model or a layer that uses it."""
        return keras_interop.operation().to_config(self)  # type: ignore[no-any-return]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CustomGradient[..., Any]:
        """Returns the function that `get_config` described."""
        return keras_interop.operation().of_config(config)  # type: ignore[no-any-return]

    def __tf_tracing_type__(self, context: Any) -> NoReturn:
        """Refuses to be an argument of a `tf.function`: TensorFlow (2.21) would call `__wrapped__` without its rule."""
        raise messages.argument_of_tf_function(self._name)


@overload
def custom_gradient(fun: Callable[P, tuple[Output, Callable[..., Any]]]) -> CustomGradient[P, Output]: ...
@overload
def custom_gradient(
    fun: None = None,
) -> Callable[[Callable[P, tuple[Output, Callable[..., Any]]]], CustomGradient[P, Output]]: ...
def custom_gradient(fun: Any = None) -> Any:
    """Gives a function a gradient of its own, the same on every backend.

    It mirrors `keras.ops.custom_gradient`, with the same meaning on JAX, PyTorch, TensorFlow and NumPy: the rule that
    the function returns is used as the gradient, or an error is raised.

    ```python
    @custom_gradient
    def f(x, y):                # any pytrees of tensors, numbers, strings, ...; keywords and defaults too
        output = ...            # any pytree; the rule may use each value that is computed here
        def grad(upstream):     # the gradient of the loss with respect to the output, in its structure
            return gx, gy       # one gradient for each tensor argument; None for no gradient
        return output, grad
    ```

    - The rule may be written as `grad(upstream)`, `grad(dy1, dy2)`, `grad(*dys)`, `grad(*args, upstream=None)` or
      `grad(x, y, upstream)`, each also with `variables`: the captured values, whose gradients it returns as well;
      and with `needs_input_grad`: for each tensor argument, whether its gradient is asked for.
      With `output`, it gets the output as the caller has it, for a second derivative through the rule itself.
    - A keyword-only parameter `needs_input_grad` of the function gets the same, and is no argument of a call.
    - The rule returns one tensor, a flat tuple or list, or the same pytree as the arguments. The count, the structure,
      the shapes and the dtypes are checked. Nothing is broadcast or summed.
    - The backend is the one that is active when the function is called: see `keras_cg.backend`.
    - For complex numbers, upstream and gradients are dL/dx + i dL/dy on every backend.

    Args:
        fun: A function or method that returns `(output, grad)`. For an argument `inexact[*n]`, `grad` returns an
            `inexact[*n]`. None to use it as `@custom_gradient()`.

    Returns:
        A `CustomGradient`: a function with the arguments of `fun` that returns `output` and has the gradient `grad`.

    Raises:
        TypeError: `fun` cannot be called. When the result is called: `fun` did not return a pair `(output, grad)`, an
            argument belongs to another framework, or no calling convention fits the rule.
        CapturedVariableError: `fun` reads a trainable value that is not an argument, and the rule has no parameter
            `variables`, or the backend is NumPy.
        GradientError: The rule returned something that cannot be the gradient of the arguments.

    See Also:
        `keras_cg.testing.check_gradients`, which checks a rule. `keras_cg.recipes.straight_through`, and the other
        recipes, which are ready-made.

    Example:
        Rounding with a straight-through gradient. Autodiff of `ops.round` gives 0:

        >>> import keras_cg
        >>> from keras_cg import ops
        >>> @keras_cg.custom_gradient
        ... def round_st(x):
        ...     def grad(upstream):
        ...         return upstream
        ...     return ops.round(x), grad
        >>> float(round_st(1.7)), float(keras_cg.grad(lambda x: round_st(x) ** 2)(1.7))
        (2.0, 4.0)
    """
    if fun is None:
        return custom_gradient
    if isinstance(fun, (staticmethod, classmethod)):
        return type(fun)(custom_gradient(fun.__func__))
    if not callable(fun) or isinstance(fun, type):
        raise messages.not_callable(fun)
    return CustomGradient(fun)
