"""What a backend is, and how one is found, loaded and verified.

A backend is one module that teaches `keras_cg` one framework. The modules of this folder are the
built-in ones, under their own names; a backend that lives elsewhere registers an entry point of the
group `keras_cg.backends` whose name is the backend's and whose value is the module. Nothing is
imported before it is asked for: the folder is listed, never loaded.

A backend defines these names, in this order, and sees flat tuples of tensors only (nests, keywords,
conventions and messages are settled in the frontend). With `fun(*tensors) -> (outputs, pullback)`:

`namespace`           the framework's NumPy-style module, which `keras_cg.ops` hands out.
`tensors`             the classes of its tensors, so that other backends can tell a stranger's.
`is_tensor(value)`    can the framework hold `value` as a tensor? Numbers are not tensors.
`asarray(value)`      `value`, a tensor or a number, as the framework's own tensor.
`to_numpy(tensor)`    its values as a NumPy array, cut from every gradient.
`shape(tensor)`       a tuple, with None for what is unknown until run time; None for an unknown rank.
`dtype(tensor)`       the dtype's plain name: "float32", "complex64", "int32", "bool".
`cast(value, dtype)`  the tensor `value` in the dtype of that plain name.
`children(value)`     `(children, rebuild)` if `value` is a container that the framework's own tree
                      utility knows, else None; `rebuild(list)` makes it again.
`converted(fun)`      the user's function as the framework would have it where somebody else calls it: TensorFlow
                      rewrites Python's branches and loops into a graph's.
`is_recording()`      does anybody differentiate, batch or trace at the moment? If not, a function is called as it is,
                      and `attach` is not asked.
`attach(fun, tensors)`
                      `fun(*tensors)[0]`, a tuple of tensors whose gradient is what `pullback` says.
                      `pullback(cotangents, variables=())` takes one cotangent per output (None for an
                      integer output, zeros for an unused one) and gives `(gradients, variable_gradients)`,
                      with None where there is none. Cotangents and gradients follow the convention of
                      torch and TensorFlow for complex numbers: dL/dx + i dL/dy. `pullback.capture(names)`
                      is told what trainable values `fun` read besides `tensors`, and raises if the rule
                      cannot serve them; `pullback.takes_variables()` asks beforehand.
                      `pullback.take_apart()` gives `(tensors, rebuild)`: the tensors that the rule holds, and
                      the pullback around others, for a framework that keeps them in a way of its own.
                      `fun` may be called again, on values that somebody differentiates.
`vjp(fun, tensors)`   `(outputs, pullback, aux)` of `fun(*tensors) -> (outputs, aux)`, by the framework's
                      own engine; `pullback(cotangents)` gives one gradient per tensor, zeros where unused, as often
                      as it is called. All of it can be differentiated, with respect to the cotangents, too.
`jvp(fun, tensors, tangents)`
                      `(outputs, output_tangents, aux)` for such a `fun`: the derivative along `tangents`, zeros for
                      an output that does not depend on them. It raises where a rule is not linear in upstream.
`jacobian(fun, tensors)`
                      `(outputs, rows, aux)` for such a `fun` of real tensors: `rows[i][j]` has the shape of output i
                      followed by that of tensor j.
`recompute(fun, tensors)`
                      `fun(*tensors)`, a tuple of tensors, of which nothing but `tensors` is kept for the backward pass:
                      `fun` runs again there. What it closes over and somebody differentiates gets its gradient, too.

The checker (`keras_cg.testing`) and the command line also ask for these:

`compiled(fun)`       `fun`, of flat tensors, as the framework compiles it; None where it has no compiler.
`double_precision()`  a context in which tensors may have 64 bits.
`devices()`           the names of the devices it can use.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy

from keras_cg import errors

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "keras_cg.backends"

CONTRACT = (
    "namespace",
    "tensors",
    "is_tensor",
    "asarray",
    "to_numpy",
    "shape",
    "dtype",
    "cast",
    "children",
    "converted",
    "is_recording",
    "attach",
    "vjp",
    "jvp",
    "jacobian",
    "recompute",
    "compiled",
    "double_precision",
    "devices",
)


class Pullback(Protocol):
    """The user's rule, checked and flat: what a backend calls in the backward pass."""

    def __call__(
        self, cotangents: Sequence[Any], variables: Sequence[Any] = ()
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]: ...

    def takes_variables(self) -> bool: ...
    def capture(self, names: Sequence[str]) -> None: ...
    def take_apart(self) -> tuple[list[Any], Callable[[Sequence[Any]], Pullback]]: ...


Function = Callable[..., tuple[tuple[Any, ...], Pullback]]

# What `vjp`, `jvp` and `jacobian` differentiate: `fun(*tensors) -> (outputs, aux)`.
PlainFunction = Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]


class Backend(Protocol):
    """The names a backend module defines; the module docstring says what each one means."""

    __name__: str
    namespace: ModuleType
    tensors: tuple[type, ...]

    def is_tensor(self, value: object) -> bool: ...
    def asarray(self, value: Any) -> Any: ...
    def to_numpy(self, tensor: Any) -> numpy.ndarray: ...
    def shape(self, tensor: Any) -> tuple[int | None, ...] | None: ...
    def dtype(self, tensor: Any) -> str: ...
    def cast(self, value: Any, dtype: str) -> Any: ...
    def children(self, value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None: ...
    def converted(self, fun: Callable[..., Any]) -> Callable[..., Any]: ...
    def is_recording(self) -> bool: ...
    def attach(self, fun: Function, tensors: Sequence[Any]) -> tuple[Any, ...]: ...
    def vjp(
        self, fun: PlainFunction, tensors: Sequence[Any]
    ) -> tuple[tuple[Any, ...], Callable[[Sequence[Any]], tuple[Any, ...]], tuple[Any, ...]]: ...
    def jvp(
        self, fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]: ...
    def jacobian(
        self, fun: PlainFunction, tensors: Sequence[Any]
    ) -> tuple[tuple[Any, ...], tuple[tuple[Any, ...], ...], tuple[Any, ...]]: ...
    def recompute(self, fun: Callable[..., tuple[Any, ...]], tensors: Sequence[Any]) -> tuple[Any, ...]: ...
    def compiled(self, fun: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]] | None: ...
    def double_precision(self) -> contextlib.AbstractContextManager[Any]: ...
    def devices(self) -> tuple[str, ...]: ...


_loaded: dict[str, Backend] = {}


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    # Imported when needed: it takes as long as the rest of this package.
    import importlib.metadata

    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


@functools.cache
def _built_in() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


@functools.cache
def names() -> tuple[str, ...]:
    """Every backend's name: the modules of this folder, then the entry points."""
    built_in = _built_in()
    return (*built_in, *sorted(set(_entry_points()) - set(built_in)))


def _framework(name: str) -> str:
    """The module whose presence says that a backend can run: a built-in one is called as its framework."""
    return name if name in _built_in() else _entry_points()[name].module.partition(".")[0]


def installed() -> tuple[str, ...]:
    """The backends whose framework can be found here, without importing any."""
    return tuple(name for name in names() if importlib.util.find_spec(_framework(name)) is not None)


def load(name: str, source: str) -> Backend:
    """The module of the backend `name`, imported if this is its first use.

    Args:
        name: The backend's name.
        source: Where the choice came from, for the error messages.

    Raises:
        ValueError: No backend has that name.
        ImportError: Its framework is not installed, does not start, or the module is incomplete.
    """
    if name in _loaded:
        return _loaded[name]
    if name not in _built_in() and name not in names():
        raise errors.unknown_backend(name, source, names())
    module = f"{__name__}.{name}" if name in _built_in() else _entry_points()[name].module
    try:
        backend = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise errors.missing_backend(name, source, error.name) from error
    except Exception as error:
        raise errors.broken_backend(name, source, error) from error
    missing = [attribute for attribute in CONTRACT if not hasattr(backend, attribute)]
    if missing:
        raise errors.incomplete_backend(name, missing)
    _loaded[name] = backend
    return _loaded[name]


def owner(kind: type) -> str | None:
    """The backend whose tensors are of the class `kind`, among those whose framework is imported already.

    It takes the class and not the value, so that torch.compile can take the answer for a constant.
    """
    for name in names():
        if _framework(name) in sys.modules and issubclass(kind, load(name, "sys.modules").tensors):
            return name
    return None
