"""Functions whose gradient is written as a forward derivative."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from keras_cg import ops
from keras_cg.autodiff import vjp
from keras_cg.engine import linear
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
      also calls `jvp` along a few other tangents. If it is not linear, an error is raised; in a program that is traced
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
        tree = pytree.flatten(values, config.active)
        tree.places = [place for place, leaf in enumerate(tree.leaves) if tensors.is_floating(leaf)]

        def push(tangents: Sequence[Any], shell: Tree) -> list[Any]:
            """Returns the tangents of the floating tensors in the output."""
            positional, named = _placed(f, tree.blank(tangents), count, keywords)
            return _fit(name, jvp(*positional, **named), shell)

        def grad(upstream: Any) -> Any:
            shell = pytree.flatten(upstream, config.active)
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
    found = pytree.flatten(output, config.active).leaves
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

    def pullback(upstream: Sequence[Any]) -> Sequence[Any]:
        return _under((*_pulling.functions, _identity(f)), pull, tuple(upstream))  # type: ignore[no-any-return]

    conditions = linear.multiplies(config.active, lambda each: push(*each), zeros)
    conditions += linear.transposes(config.active, lambda each: push(*each), pullback, zeros, upstream)
    return linear.check_or_nan(
        config.active, pullback(upstream), conditions, functools.partial(messages.not_linear, name)
    )
