"""Functions whose gradient is written as a forward derivative."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from keras_cg import ops
from keras_cg.autodiff import vjp
from keras_cg.engine import linear, precision
from keras_cg.frontend import config, pytree, readings, signature
from keras_cg.frontend.call import function_name
from keras_cg.frontend.pickling import picklable
from keras_cg.frontend.tree import Tree
from keras_cg.recipes import frameworks, messages, tensors
from keras_cg.recipes.tensors import Pair


@picklable
def from_jvp(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function whose gradient is the transpose of a forward derivative, which `f` returns with its output.

    It is `jax.custom_jvp` on every backend: `f` returns `(output, jvp)` instead of `(output, grad)`.

        y = f(x),    dy = J dx = jvp(dx),    dL/dx = J^T dL/dy

    - The backward pass transposes `jvp`, at tangents of zero. Forward mode transposes that again. It has the right
      result, and calls `jvp` many times on torch, TensorFlow and NumPy.
    - Derivatives of any order are those of what `jvp` computes. It may use each value that `f` computed.
    - `jvp` must be linear in its tangents. On JAX its program shows that, in most cases. Elsewhere each backward pass
      also calls `jvp` along two other tangents. If it is not linear, an error is raised; in a program that is traced
      (`jax.jit`, `tf.function`, `torch.compile`), the gradient is NaN.

    Source: Radul, Paszke, Frostig, Johnson & Maclaurin 2023, You only linearize once: tangents transpose to gradients,
    https://arxiv.org/abs/2204.10923

    Args:
        f: A function of any arguments that returns `(output, jvp)`. `jvp(*tangents)` gets one tangent for each
            positional parameter of `f`, and by name those of keyword-only arguments that have a floating tensor. A
            tangent is a pytree like its argument: an `inexact[...]` for each tensor, of its shape and dtype, and None
            at integers, booleans and static leaves, such as a Python number, the `self` of a method, or an argument
            that is left at its default. `jvp` returns a pytree like the output: an `inexact[...]` for each tensor, or
            None for zeros.

    Returns:
        A function with the arguments of `f` that returns `output`.

    Raises:
        TypeError: `f` cannot be called. When the result is called: `f` did not return `(output, jvp)`.
        GradientError: In the backward pass: the tangents that `jvp` returned differ from the output in structure,
            shapes or kind.
        ValueError: In the backward pass: `jvp` is not linear.
        CapturedVariableError: When the result is called: `f` closes over a value that is being differentiated.

    See Also:
        `keras_cg.custom_gradient`, which takes the transpose itself and needs no trial. `keras_cg.jvp`, forward mode.

    Example:
        >>> import keras_cg
        >>> from keras_cg import ops, recipes
        >>> @recipes.from_jvp
        ... def power(x, n):
        ...     def jvp(dx, dn):
        ...         return n * x ** (n - 1) * dx
        ...     return x**n, jvp
        >>> float(keras_cg.grad(power)(2.0, 3)), float(keras_cg.grad(keras_cg.grad(power))(2.0, 3))
        (12.0, 12.0)
    """
    if not callable(f):
        raise messages.not_a_function("from_jvp", f)
    name = f"from_jvp({function_name(f)})"

    @tensors.recipe(name)
    @tensors.named_like(f)
    def function(*args: Any, **kwargs: Any) -> Pair:
        pair = f(*args, **kwargs)
        if not (isinstance(pair, tuple) and len(pair) == 2 and callable(pair[1])):
            raise messages.not_a_jvp(name, pair)
        output, jvp = pair
        count, keywords, values = len(args), tuple(kwargs), (*args, *kwargs.values())
        # Arguments without a tensor get no gradient. The `self` of a method is none of the call's arguments.
        has_tensor = [any(map(config.active.is_tensor, tensors.leaves(value))) for value in values]
        tree = pytree.flatten(values, config.active.is_tensor, config.active.children)
        tree.places = [place for place, leaf in enumerate(tree.leaves) if tensors.is_floating(leaf)]

        def push(tangents: Sequence[Any], shell: Tree) -> list[Any]:
            """Returns the tangents of the floating tensors in the output."""
            positional, named = _placed(f, tree.blank(tangents), count, keywords)
            return _fit(name, jvp(*positional, **named), shell)

        def grad(upstream: Any) -> Any:
            shell = pytree.flatten(upstream, config.active.is_tensor, config.active.children)
            shell.places = [place for place, leaf in enumerate(shell.leaves) if tensors.is_floating(leaf)]
            floating = [shell.leaves[place] for place in shell.places]
            if _identity(f) in _pulling.functions:
                # `jvp` calls `f` along its tangents. The transpose of a linear map is that of what it computes.
                plain = functools.partial(_plain, f, tree, count, keywords, shell.places)
                found = _under((), vjp, plain, *[tree.leaves[place] for place in tree.places])[1](tuple(floating))
            else:
                zeros = [ops.zeros_like(tree.leaves[place]) for place in tree.places]
                found = _transposed(name, f, lambda *tangents: push(tangents, shell), zeros, floating)
            return tuple(itertools.compress(tree.blank(found), has_tensor))

        return output, grad

    return function


class _Pulling(threading.local):
    """The functions whose `jvp` a pullback goes through now; no context variable, which torch.compile cannot trace."""

    functions: tuple[Any, ...] = ()


_pulling = _Pulling()


def _under(functions: tuple[Any, ...], pull: Callable[..., Any], *args: Any) -> Any:
    """Calls `pull` while `functions` are those whose `jvp` it goes through."""
    before = _pulling.functions
    _pulling.functions = functions
    try:
        return pull(*args)
    finally:
        _pulling.functions = before


def _identity(f: Any) -> tuple[Any, Any]:
    """Returns what two functions have in common if they are the same, maybe made again: the code and the object."""
    return getattr(f, "__code__", f), id(getattr(f, "__self__", None))


def _plain(
    f: Callable[..., Any], tree: Tree, count: int, keywords: Sequence[str], places: Sequence[int], *leaves: Any
) -> tuple[Any, ...]:
    """Returns the floating tensors in the output of `f`, at these places, as a function of those in its arguments."""
    values = tree.fill(tree.places, leaves)
    output, _ = f(*values[:count], **dict(zip(keywords, values[count:], strict=True)))
    found = pytree.flatten(output, config.active.is_tensor, config.active.children).leaves
    return tuple(found[place] for place in places)


def _placed(
    f: Callable[..., Any], tangents: Sequence[Any], count: int, keywords: Sequence[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the tangents of a call as `jvp` gets them: by position, and by name those of keyword-only arguments."""
    named = dict(zip(keywords, tangents[count:], strict=True))
    others = [named.pop(name, None) for name, _ in signature.unbound(f, count, named)]
    has_tensor = {name: any(leaf is not None for leaf in tensors.leaves(each)) for name, each in named.items()}
    return [*tangents[:count], *others], {name: each for name, each in named.items() if has_tensor[name]}


def _fit(name: str, moved: Any, shell: Tree) -> list[Any]:
    """Returns what `jvp` returned for each floating tensor of the output; `shell` has tensors like these."""
    backend = config.active
    aligned = readings.aligned(moved, shell, backend, functools.partial(messages.wrong_tangents, name))
    fitted = []
    for place in shell.places:
        like, tangent = shell.leaves[place], aligned[place]
        if tangent is None or (isinstance(tangent, (int, float)) and tangent == 0):
            fitted.append(ops.zeros_like(like))
            continue
        is_complex = backend.dtype(like).startswith("complex")
        if not (tensors.is_floating(tangent) if is_complex else tensors.is_real(tangent)) or not pytree.compatible(
            backend.shape(tangent), backend.shape(like)
        ):
            raise messages.wrong_tangents(name, tensors.described(tangent), tensors.described(like))
        fitted.append(tensors.as_like(tangent, like))
    return fitted


def _transposed(
    name: str, f: Any, push: Callable[..., Sequence[Any]], zeros: Sequence[Any], upstream: Sequence[Any]
) -> Sequence[Any]:
    """Applies the transpose of a map, or raises if it is not linear; where no value is known yet, the result is NaN.

    Args:
        name: The name of the function for messages.
        f: The function, which the map may call.
        push: Maps tangents of the inputs to tangents of the outputs.
        zeros: Tangents of zero.
        upstream: What the transpose is applied to.
    """
    proved = frameworks.this.forward.transposed(name, push, zeros, upstream)
    if proved is not None:
        return proved  # type: ignore[no-any-return]
    _, pull = vjp(lambda *tangents: tuple(push(*tangents)), *zeros)

    def pullback(upstream: tuple[Any, ...]) -> Sequence[Any]:
        return _under((*_pulling.functions, _identity(f)), pull, upstream)  # type: ignore[no-any-return]

    gradients = pullback(tuple(upstream))
    holds = _is_linear(push, pullback, zeros, upstream)
    known = _known(holds)
    if known is None:
        return [each * tensors.as_like(ops.where(holds, 1.0, math.nan), each) for each in gradients]
    if not known:
        raise messages.not_linear(name)
    return gradients


def _is_linear(
    push: Callable[..., Sequence[Any]],
    pullback: Callable[[Any], Sequence[Any]],
    zeros: Sequence[Any],
    upstream: Sequence[Any],
) -> Any:
    """Whether `push` is linear, as far as trying can tell, where `pullback` is the transpose of its derivative at 0.

    A linear map maps a multiple to the same multiple, for a power of two without rounding. This is tried for a huge and
    negative one. It is its own derivative, so that has the same inner products. Values that are not finite are skipped,
    because a linear map overflows, too.
    """
    backend = config.active
    kinds = [backend.dtype(each) for each in (*zeros, *upstream)]
    scale = -(2.0 ** min([precision.of(kind).reach for kind in kinds]))
    along, across = (linear.irregular(backend, each) for each in (zeros, upstream))
    # NumPy warns of overflow. Dynamo (torch 2.13) traces no context of NumPy.
    with contextlib.nullcontext() if backend.is_compiling() else numpy.errstate(all="ignore"):
        first = push(*along)
        multiples = push(*[scale * each for each in along])
        kind = "float64" if {"float64", "complex128"} & {*kinds} else "float32"
        product, size = _inner(across, first, kind)
        other, other_size = _inner(pullback(tuple(across)), along, kind)
        difference = ops.abs(product - other)
        # Not exact, because large terms may cancel inside.
        is_adjoint = ~ops.isfinite(difference) | (difference <= 0.02 * (size + other_size))
        pairs = zip(multiples, first, strict=True)
        return ops.all(ops.stack([is_adjoint, *[_is_close(came, scale * each, kinds) for came, each in pairs]]))


def _is_close(came: Any, expected: Any, kinds: Sequence[str]) -> Any:
    """Whether two tensors are equal up to the rounding of these dtypes."""
    came, expected = tensors.wide(came), tensors.wide(expected)
    difference, size = ops.abs(came - expected), ops.abs(expected)
    size = ops.where(ops.isfinite(size), size, ops.zeros_like(size))
    # With a zero, because `max` refuses an empty tensor, and a size may be unknown.
    one_more = ops.reshape(ops.zeros_like(ops.sum(size)), (1,))
    largest = ops.max(ops.concat([ops.reshape(size, (-1,)), one_more]))
    # The numbers of engine.precision. With dynamic shapes, Dynamo (torch 2.13) makes variables of floats that are not
    # written here, and fails if two rules have the same.
    names = " ".join(kinds)
    allowed = (0.1 if "float16" in names else 1e-3 if "float32" in names or "complex64" in names else 1e-6) * largest
    allowed = allowed + 1e-24  # XLA makes smaller numbers 0 in some operations only
    return ops.all(~ops.isfinite(difference) | (difference <= allowed))


def _inner(ones: Sequence[Any], others: Sequence[Any], kind: str) -> tuple[Any, Any]:
    """Returns the inner product of some tensors with others in a dtype, and the sum of the sizes of its terms."""
    terms = []
    for one, other in zip(ones, others, strict=True):
        is_complex = config.active.dtype(one).startswith("complex")
        product = ops.real(ops.conj(one) * other) if is_complex else tensors.wide(one) * tensors.wide(other)
        terms.append(tensors.cast(product, kind))
    return sum([ops.sum(each) for each in terms]), sum([ops.sum(ops.abs(each)) for each in terms])


def _known(condition: Any) -> bool | None:
    """Returns whether a condition holds; None in a program that is traced, where no value is known."""
    backend = config.active
    if backend.is_compiling() or not backend.is_known([condition]):
        return None
    try:
        return bool(backend.to_numpy(condition).all())
    except TypeError:  # of JAX's tracers
        return None
