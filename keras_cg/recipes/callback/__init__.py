"""`from_numpy`: functions that compute outside of the framework, on NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from keras_cg.engine import precision
from keras_cg.errors import article, type_name
from keras_cg.frontend import config, signature
from keras_cg.frontend.call import function_name
from keras_cg.frontend.decorator import CustomGradient
from keras_cg.frontend.pickling import picklable
from keras_cg.frontend.pytree import describe
from keras_cg.recipes import frameworks, messages, tensors
from keras_cg.recipes.callback import host
from keras_cg.recipes.callback.host import Host, Kind
from keras_cg.recipes.tensors import Pair


@picklable
def from_numpy(
    function: Callable[..., Any],
    vjp: Callable[..., Any] | None,
    *,
    result: Callable[..., Any] | None = None,
) -> CustomGradient[..., Any]:
    """Turns a function of NumPy arrays, such as of SciPy, Numba or a C library, into a function of tensors.

    It is `custom_gradient` for a `function` and a `vjp` that get and return NumPy arrays. On every backend the result
    can be differentiated, compiled and batched. Compiled programs call back to Python, and a batch is one call for each
    element.

        y = function(x, ...),    dL/dx = vjp(x, ..., dL/dy)

    - `function` and `vjp` get copies in the processor's memory, which they may change. Nothing is saved between calls.
      A bfloat16 tensor arrives as float32.
    - A program must know shapes and dtypes before it runs. So a result with another shape or dtype than `result`
      returns is an error.
    - Exceptions pass through. From a compiled program they are the framework's own, with the text inside.
    - A second derivative needs a rule for the rule: a `vjp` that itself is a `from_numpy`, or is decorated with
      `custom_gradient` and gets tensors. Without one the second derivative raises.

    Source: the wrapped function's own; the callbacks are `jax.pure_callback`, `tf.numpy_function`, and an operator of
    `torch.library`.

    Args:
        function: A function that gets each argument as an array, and returns an array, or several.
        vjp: A function that gets each argument, then one upstream for each floating result. It returns a gradient for
            each argument, of its shape and dtype, or None. The gradient of a single argument needs no tuple. If `vjp`
            is None, differentiating raises.
        result: A function that returns the specs of the results. It gets a spec for each argument, with `shape` and
            `dtype` ("float32"). It returns a spec or a pair `(shape, dtype)`, or a list of them for several results.
            None for one result like the first argument.

    Returns:
        A function of `any[...]` of the active backend, and of numbers. Numbers get no gradient and have the dtype of
        the first floating tensor. It returns a tensor, or a tuple of tensors.

    Raises:
        TypeError: `function`, `vjp` or `result` cannot be called. When the result is called: an argument is neither a
            tensor nor a number, or was passed by keyword; `result` did not return specs. In the backward pass: `vjp`
            does not take the arguments and the upstreams.
        ValueError: When the result is called, or differentiated: a shape or dtype is not the one that was promised.
        GradientError: In the backward pass: there is no `vjp`, or none for the `vjp`, or the count of gradients differs
            from the count of arguments.

    See Also:
        `keras_cg.custom_gradient`, for functions of tensors. `keras_cg.recipes.custom_root`, for a solver.

    Example:
        The error function of SciPy, with two derivatives:

        >>> import numpy as np
        >>> import keras_cg
        >>> from scipy import special
        >>> from keras_cg import recipes
        >>> slope = lambda x: 2 / np.sqrt(np.pi) * np.exp(-(x**2))
        >>> rule = recipes.from_numpy(
        ...     lambda x, g: g * slope(x),
        ...     lambda x, g, gg: (-2 * x * slope(x) * g * gg, slope(x) * gg),
        ... )
        >>> erf = recipes.from_numpy(special.erf, rule)
        >>> round(keras_cg.grad(erf)(np.array(0.5)).item(), 6)
        0.878783
        >>> round(keras_cg.grad(keras_cg.grad(erf))(np.array(0.5)).item(), 6)
        -0.878783
    """
    for fun in (function, *(fun for fun in (vjp, result) if fun is not None)):
        if not callable(fun):
            raise messages.not_a_function("from_numpy", fun)
    name = f"from_numpy({function_name(getattr(function, 'func', function))})"
    forward = _Function(name, function, result)
    backward = None if vjp is None else _Backward(name, vjp)

    @tensors.recipe(name)
    @tensors.named_like(function)
    def wrapped(*args: Any, **kwargs: Any) -> Pair:
        if kwargs:
            raise messages.by_keyword(name, next(iter(kwargs)))
        arguments = _tensors(name, args)

        def grad(*upstream: Any) -> list[Any]:
            if backward is None:
                raise messages.no_gradient(name)
            gradients = backward(arguments, [each for each in upstream if each is not None])
            pairs = zip(args, gradients, strict=True)
            return [gradient if tensors.is_floating(arg) else None for arg, gradient in pairs]

        return forward.call(arguments, len(arguments)), grad

    return wrapped


class _Backward:
    """The vjp of a function of NumPy arrays, from tensors to tensors."""

    def __init__(self, name: str, vjp: Callable[..., Any]):
        self.name, self.vjp = name, vjp
        self.arrays = None if isinstance(vjp, CustomGradient) else _Gradient(name, vjp)
        # Read here, because torch.compile (2.13) cannot read the signature of every function while it traces.
        self.parameters = parameters = signature.parameters(vjp)
        self.least, self.most = 0, sys.maxsize
        if parameters is not None:
            self.least = len(parameters.positional) - len(parameters.defaults())
            self.most = sys.maxsize if parameters.varargs else len(parameters.positional)

    def __call__(self, arguments: Sequence[Any], upstreams: Sequence[Any]) -> Sequence[Any]:
        count = len(arguments)
        if self.parameters is not None and not self.least <= count + len(upstreams) <= self.most:
            raise messages.vjp_of_other_arguments(self.name, self.parameters.show("vjp"), count, len(upstreams))
        if self.arrays is None:
            return _gradients(self.name, self.vjp(*arguments, *upstreams), count)
        return _once_differentiable(self.arrays, count, *arguments, *upstreams)  # type: ignore[no-any-return]


@tensors.recipe("from_numpy")
def _once_differentiable(function: _Gradient, count: int, *values: Any) -> Pair:
    """The gradients that a function of NumPy arrays returns, which have no derivative."""

    def grad(*upstream: Any) -> None:
        raise messages.no_derivative(function.of)

    return function.call(values, count), grad


def _tensors(name: str, args: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the arguments as tensors; a float has the dtype of the first floating tensor."""
    if not args:
        raise messages.no_arguments(name)
    backend = config.active
    dtypes = [backend.dtype(arg) for arg in args if tensors.is_floating(arg)]
    values = []
    for place, arg in enumerate(args):
        if backend.is_tensor(arg):
            values.append(backend.asarray(arg))
            continue
        number = tensors.plain(arg)
        if type(number) not in (int, float, complex):
            raise messages.not_an_array(name, place, article(type_name(arg)))
        value = backend.asarray(number)
        values.append(backend.cast(value, dtypes[0]) if dtypes and isinstance(number, float) else value)
    return tuple(values)


def _gradients(name: str, gradients: Any, count: int) -> Sequence[Any]:
    """Returns what a vjp returned as one gradient for each argument."""
    several = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
    if len(several) != count:
        raise messages.not_one_gradient_each(name, len(several), count)
    return several


class _Function:
    """A function of NumPy arrays, and the kinds of its results."""

    def __init__(self, name: str, function: Callable[..., Any], result: Callable[..., Any] | None):
        self.name, self.function, self.result = name, function, result
        self.key = host.register(self)

    def promised(self, kinds: Sequence[Kind], count: int) -> tuple[list[Kind | None], bool]:
        """Returns the kinds of the results, None for an ignored one; and whether the only one comes without a tuple."""
        said = kinds[0] if self.result is None else self.result(*kinds)
        is_lone = not isinstance(said, list)
        return [_kind(self.name, each) for each in ([said] if is_lone else said)], is_lone

    def split(self, value: Any, is_lone: bool, count: int) -> Sequence[Any]:
        """Returns the function's return value as one value for each result."""
        several = (value,) if is_lone else value
        if not isinstance(several, (tuple, list)) or len(several) != count:
            raise messages.not_so_many(self.name, value, count)
        return several

    def call(self, values: Sequence[Any], count: int) -> Any:
        """Calls the function on tensors: the first `count` are arguments, the others upstreams."""
        backend = config.active
        promised, is_lone = self.promised([Kind(backend.shape(each), backend.dtype(each)) for each in values], count)
        # NumPy has no bfloat16.
        wide = [tensors.wide(each) if backend.dtype(each) == "bfloat16" else each for each in values]
        outputs = iter(frameworks.this.callback.call(Host(self.key, count), wide))
        results = [None if kind is None else tensors.cast(next(outputs), kind.dtype) for kind in promised]
        return results[0] if is_lone else tuple(results)

    def results(self, kinds: Sequence[Kind], count: int) -> list[Kind]:
        """Returns the kinds of the results for arrays of these kinds: `count` arguments, then upstreams."""
        promised, _ = self.promised(kinds, count)
        return [_wide(kind) for kind in promised if kind is not None]

    def run(self, arrays: Sequence[numpy.ndarray], count: int) -> list[numpy.ndarray]:
        """Runs the function; raises a ValueError if a result has another kind than promised."""
        # Copies, because the arrays are the framework's own memory, and libraries in C want contiguous arrays.
        copies = [numpy.array(array, order="C") for array in arrays]
        promised, is_lone = self.promised([Kind(array.shape, array.dtype.name) for array in copies], count)
        values = self.split(self.function(*copies), is_lone, len(promised))
        pairs = zip(values, promised, strict=True)
        return [self.checked(value, _wide(kind)) for value, kind in pairs if kind is not None]

    def checked(self, value: Any, kind: Kind) -> numpy.ndarray:
        """Returns a result as a copy, if it has the kind that was promised."""
        is_number = isinstance(value, (int, float, complex)) and not isinstance(value, numpy.generic)
        # A number has no dtype.
        array = numpy.array(value, kind.dtype if is_number else None, order="C")
        if array.dtype.name != kind.dtype or array.shape != tuple(kind.shape or ()):
            came = "a number" if is_number else describe(array.dtype.name, array.shape)
            raise messages.not_as_promised(self.name, came, describe(kind.dtype, kind.shape))
        return array


class _Gradient(_Function):
    """The vjp of a function of NumPy arrays, whose results have the kinds of the arguments."""

    def __init__(self, name: str, vjp: Callable[..., Any]):
        super().__init__(f"the vjp of {name}", vjp, None)
        self.of = name

    def promised(self, kinds: Sequence[Kind], count: int) -> tuple[list[Kind | None], bool]:
        return [kind if precision.is_differentiable(kind.dtype) else None for kind in kinds[:count]], False

    def split(self, value: Any, is_lone: bool, count: int) -> Sequence[Any]:
        return _gradients(self.of, value, count)

    def checked(self, value: Any, kind: Kind) -> numpy.ndarray:
        return super().checked(numpy.zeros(kind.shape, kind.dtype) if value is None else value, kind)


def _kind(name: str, said: Any) -> Kind | None:
    """Checks the kind of one result, as `result` returned it."""
    if said is None:
        return None
    if not isinstance(said, tuple) or len(said) != 2:
        raise messages.not_a_kind(name, said)
    shape, dtype = said
    if shape is not None and not isinstance(shape, (tuple, list)):
        raise messages.not_a_kind(name, said)
    return Kind(None if shape is None else tuple(shape), dtype if isinstance(dtype, str) else numpy.dtype(dtype).name)


def _wide(kind: Kind) -> Kind:
    """Returns the kind of the array that NumPy has for a tensor, because NumPy has no bfloat16."""
    return Kind(kind.shape, "float32" if kind.dtype == "bfloat16" else kind.dtype)
