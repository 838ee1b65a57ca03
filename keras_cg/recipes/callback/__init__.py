"""Functions that compute outside of the framework, on arrays of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from keras_cg import config
from keras_cg.call import function_name
from keras_cg.decorator import CustomGradient, custom_gradient
from keras_cg.engine import precision
from keras_cg.pytree import describe
from keras_cg.recipes import frameworks, messages, tensors
from keras_cg.recipes.callback import host
from keras_cg.recipes.callback.host import Host, Kind
from keras_cg.recipes.tensors import Pair


def from_numpy(
    function: Callable[..., Any],
    vjp: Callable[..., Any] | None,
    *,
    result: Callable[..., Any] | None = None,
) -> CustomGradient[..., Any]:
    """A function of NumPy arrays with a gradient of its own: SciPy, Numba, a library in C.

    As `custom_gradient`, but `function` and `vjp` get NumPy arrays, and return such. On every backend it can be
    differentiated, compiled and batched: compiled programs call back to Python, and batches one element after another.

        y = function(x, ...),    (dL/dx, ...) = vjp(x, ..., dL/dy)

    - `function` and `vjp` get copies on the processor, which they may change, and keep nothing between calls. What is
      bfloat16, they get as float32.
    - Results have the shapes and dtypes that `result` says, for a program must know them before: others are an error.
    - Exceptions pass through; out of a compiled program as the framework's own, with the text inside.
    - A second derivative needs a rule for the rule: `vjp` that itself is made by `from_numpy`, or is decorated with
      `custom_gradient` and gets tensors. Without one it raises.

    Source: the wrapped function's own; the callbacks are `jax.pure_callback`, `tf.numpy_function`, and an operator of
    `torch.library`.

    Args:
        function: It gets the arguments, each an array, and returns an array, or several.
        vjp: It gets the arguments, and one upstream for each floating result. It returns a gradient for each argument,
            of its shape and dtype, or None; that of a single argument may come without a tuple. None where nobody
            differentiates: the gradient raises.
        result: What `function` returns: it gets for each argument its kind, which has `shape` and `dtype` ("float32"),
            and returns such a kind, or a pair `(shape, dtype)`; a list of them for several results. None for a
            result like the first argument.

    Returns:
        A function of tensors of the active backend, and of numbers, which get no gradient and have the dtype of the
        first floating tensor. It returns a tensor, or a tuple of them.

    Raises:
        TypeError: `function`, `vjp` or `result` cannot be called. When the result is called: an argument is neither a
            tensor nor a number, or given by keyword; `result` said something else.
        ValueError: When the result is called, or differentiated: what came is not what was promised.
        GradientError: In the backward pass: the derivative has no gradient, or the count of gradients is another.

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
    for given in (function, *(each for each in (vjp, result) if each is not None)):
        if not callable(given):
            raise messages.not_a_function("from_numpy", given)
    name = f"from_numpy({function_name(getattr(function, 'func', function))})"
    forwards = _Function(name, function, result)
    backwards = None if vjp is None or isinstance(vjp, CustomGradient) else _Gradient(name, vjp)

    @custom_gradient
    @tensors.named_like(function)
    def wrapped(*args: Any, **kwargs: Any) -> Pair:
        if kwargs:
            raise messages.by_keyword(name, next(iter(kwargs)))
        given = _tensors(name, args)

        def grad(*upstream: Any) -> list[Any]:
            if vjp is None:
                raise messages.no_gradient(name)
            arrived = [each for each in upstream if each is not None]
            if backwards is None:
                gradients = _gradients(name, vjp(*given, *arrived), len(given))
            else:
                gradients = _underivable(backwards, len(given), *given, *arrived)
            pairs = zip(args, gradients, strict=True)
            return [gradient if tensors.is_floating(arg) else None for arg, gradient in pairs]

        return forwards.call(given, len(given)), grad

    return wrapped


@custom_gradient
def _underivable(function: _Gradient, count: int, *given: Any) -> Pair:
    """The gradients that a function of NumPy arrays gives, which nobody can differentiate."""

    def grad(*upstream: Any) -> None:
        raise messages.no_derivative(function.of)

    return function.call(given, count), grad


def _tensors(name: str, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments as tensors."""
    backend = config.active
    dtypes = [backend.dtype(arg) for arg in args if tensors.is_floating(arg)]
    given = []
    for place, arg in enumerate(args):
        if backend.is_tensor(arg):
            given.append(backend.asarray(arg))
        elif type(arg) in (int, float, complex):
            number = backend.asarray(arg)
            is_real = dtypes and isinstance(arg, float)
            given.append(backend.cast(number, dtypes[0]) if is_real else number)
        else:
            raise messages.not_an_array(name, place, arg)
    if not given:
        raise messages.no_arrays(name)
    return tuple(given)


def _gradients(name: str, gradients: Any, count: int) -> Sequence[Any]:
    """What a vjp returned, one for each argument."""
    several = gradients if isinstance(gradients, (tuple, list)) else (gradients,)
    if len(several) != count:
        raise messages.not_one_gradient_each(name, len(several), count)
    return several


class _Function:
    """A function of NumPy arrays, and what it promises of its results."""

    def __init__(self, name: str, function: Callable[..., Any], result: Callable[..., Any] | None):
        self.name, self.function, self.result = name, function, result
        self.key = host.register(self)

    def promised(self, kinds: Sequence[Kind], count: int) -> tuple[list[Kind | None], bool]:
        """The kinds of the results, None for what is not looked at; and whether there is one that stands alone."""
        said = kinds[0] if self.result is None else self.result(*kinds)
        is_lone = not isinstance(said, list)
        return [_kind(self.name, each) for each in ([said] if is_lone else said)], is_lone

    def returned(self, value: Any, is_lone: bool, count: int) -> Sequence[Any]:
        """What it returned, one value for each result."""
        several = (value,) if is_lone else value
        if not isinstance(several, (tuple, list)) or len(several) != count:
            raise messages.not_so_many(self.name, value, count)
        return several

    def call(self, given: Sequence[Any], count: int) -> Any:
        """The results of tensors, in the structure that is promised."""
        backend = config.active
        promised, is_lone = self.promised([Kind(backend.shape(each), backend.dtype(each)) for each in given], count)
        # NumPy has no bfloat16.
        wide = [tensors.wide(each) if backend.dtype(each) == "bfloat16" else each for each in given]
        found = iter(frameworks.this.callback.call(Host(self.key, count), wide))
        results = [None if kind is None else tensors.cast(next(found), kind.dtype) for kind in promised]
        return results[0] if is_lone else tuple(results)

    def results(self, kinds: Sequence[Kind], count: int) -> list[Kind]:
        promised, _ = self.promised(kinds, count)
        return [_wide(kind) for kind in promised if kind is not None]

    def run(self, arrays: Sequence[numpy.ndarray], count: int) -> list[numpy.ndarray]:
        # Copies, for the memory of what comes is the framework's, and libraries in C want it in one piece.
        given = [numpy.array(array, order="C") for array in arrays]
        promised, is_lone = self.promised([Kind(array.shape, array.dtype.name) for array in given], count)
        values = self.returned(self.function(*given), is_lone, len(promised))
        pairs = zip(values, promised, strict=True)
        return [self.checked(value, _wide(kind)) for value, kind in pairs if kind is not None]

    def checked(self, value: Any, kind: Kind) -> numpy.ndarray:
        """A result as an array of its own, if it is what was promised."""
        is_number = isinstance(value, (int, float, complex)) and not isinstance(value, numpy.generic)
        if is_number:  # which has no dtype of its own
            value = numpy.array(value, kind.dtype)
        array = numpy.array(value, order="C")
        if array.dtype.name != kind.dtype or array.shape != tuple(kind.shape or ()):
            came = "a number" if is_number else describe(array.dtype.name, array.shape)
            raise messages.not_as_promised(self.name, came, describe(kind.dtype, kind.shape))
        return array


class _Gradient(_Function):
    """The vjp of such a function, which promises gradients like the arguments."""

    def __init__(self, name: str, vjp: Callable[..., Any]):
        super().__init__(f"the vjp of {name}", vjp, None)
        self.of = name

    def promised(self, kinds: Sequence[Kind], count: int) -> tuple[list[Kind | None], bool]:
        return [kind if precision.is_differentiable(kind.dtype) else None for kind in kinds[:count]], False

    def returned(self, value: Any, is_lone: bool, count: int) -> Sequence[Any]:
        return _gradients(self.of, value, count)

    def checked(self, value: Any, kind: Kind) -> numpy.ndarray:
        return super().checked(numpy.zeros(kind.shape, kind.dtype) if value is None else value, kind)


def _kind(name: str, said: Any) -> Kind | None:
    """What `result` said of one result."""
    if said is None:
        return None
    if not isinstance(said, tuple) or len(said) != 2:
        raise messages.not_a_kind(name, said)
    shape, dtype = said
    if shape is not None and not isinstance(shape, (tuple, list)):
        raise messages.not_a_kind(name, said)
    return Kind(None if shape is None else tuple(shape), dtype if isinstance(dtype, str) else numpy.dtype(dtype).name)


def _wide(kind: Kind) -> Kind:
    """A kind as NumPy has it."""
    return Kind(kind.shape, "float32" if kind.dtype == "bfloat16" else kind.dtype)
