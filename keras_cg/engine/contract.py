"""A backend is a module that teaches `keras_cg` one framework: `Backend` lists the names that it defines.

A backend sees flat tuples of tensors. Pytrees, keywords, conventions and messages are handled before it is called.
`fun(*tensors)` returns `(outputs, pullback)` for `attach`, and `(outputs, aux)` everywhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy

Tensors = tuple[Any, ...]

# Leaves for certain. Asking the framework's tree utility about them would only cost time.
LEAVES = (type(None), bool, int, float, complex, str, bytes, type, numpy.generic, numpy.ndarray)

# A function that `vjp`, `jvp` and `jacobian` differentiate: `fun(*tensors) -> (outputs, aux)`, maybe named.
PlainFunction = Callable[..., tuple[Tensors, Tensors]]

# A pullback or a pushforward, from tensors to tensors.
Map = Callable[[Sequence[Any]], Tensors]


# The user's function, flat, as `attach` gets it, is a `frontend.run.Call`, which may be the first run itself. Another
# run, with the rule that a backend calls in the backward pass, is a `frontend.run.Pullback`. What a backend may ask
# stands in the docstrings of `Run` and `Rule`.
Function = Any
Pullback = Any


class Backend(Protocol):
    """The names of a backend: the required ones, and from `gradient` on those with a default in `engine.defaults`."""

    __name__: str
    # The framework's NumPy-style module, which is `keras_cg.ops` (see `keras_cg.namespaces`).
    namespace: ModuleType
    # The classes of its tensors, by which other backends recognise them.
    tensors: tuple[type, ...]

    # Whether the framework can hold `value` as a tensor. Numbers are no tensors.
    def is_tensor(self, value: object) -> bool: ...
    # Converts a tensor or a number to the framework's own tensor.
    def asarray(self, value: Any) -> Any: ...
    # Returns the values as a NumPy array, without gradient.
    def to_numpy(self, tensor: Any) -> numpy.ndarray: ...
    # Returns a tuple, with None for a size that is unknown until run time; None for an unknown rank.
    def shape(self, tensor: Any) -> tuple[int | None, ...] | None: ...
    # Returns the plain name of the dtype: "float32", "complex64", "int32", "bool".
    def dtype(self, tensor: Any) -> str: ...
    # Converts a tensor to the dtype of that plain name.
    def cast(self, value: Any, dtype: str) -> Any: ...
    # Returns `(children, rebuild)` for a container that only the framework's own tree utility knows, else None.
    # `rebuild(list)` builds the container from other children.
    def children(self, value: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None: ...
    # Whether anything is differentiated, batched or traced now. If not, `attach` is not called; what is true is there
    # as `fun.engine`.
    def is_recording(self) -> Any: ...
    # Runs `fun` and returns its outputs. Their gradient is what `pullback` returns, see `Pullback`. Higher orders may
    # run `fun` again, on values that are differentiated.
    def attach(self, fun: Function, tensors: Sequence[Any]) -> Tensors: ...
    # Returns `(outputs, pullback, aux)` by the framework's own differentiation. `pullback` may be called several times,
    # and gives each tensor a gradient, zeros for an unused one. Everything can be differentiated again, by the
    # cotangents, too.
    def vjp(self, fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Map, Tensors]: ...

    # Returns `(outputs, gradients, aux)` for the sum of the only output.
    def gradient(self, fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Tensors, Tensors]: ...
    # Returns `(outputs, output_tangents, aux)`: the derivative along `tangents`, with zeros for an output that does not
    # depend on them. Raises ValueError if a rule is not linear in upstream.
    def jvp(
        self, fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Tensors, Tensors, Tensors]: ...
    # Returns `(outputs, rows, aux)` for real tensors: `rows[i][j]` has the shape of output i and then that of tensor j.
    def jacobian(self, fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, tuple[Tensors, ...], Tensors]: ...
    # Whether a quick look shows that `asarray` returns `value` unchanged: for the fast path.
    def is_plain(self, value: Any) -> bool: ...

    # The classes of which every object is plain.
    plain: frozenset[type]
    # Returns what has the dtype and the shape of each of some plain tensors, and may be kept. None if the tensors
    # themselves may: JAX finds a leak in a tensor that outlives its trace.
    types: Callable[[Sequence[Any]], Sequence[Any]] | None
    # Converts the user's function before it is traced: TensorFlow rewrites branches and loops. None if it stays.
    converted: Callable[[Callable[..., Any]], Callable[..., Any]] | None

    # Compiles a function of tensors; None if the framework has no compiler.
    def compiled(self, fun: Callable[..., Tensors]) -> Callable[..., Tensors] | None: ...
    # Returns a function of such tensors after the framework has exported and loaded it, with the gradient that the
    # format carries; None if the framework exports nothing.
    def exported(self, fun: Callable[..., Tensors], tensors: Sequence[Any]) -> Callable[..., Tensors] | None: ...
    # Returns a context in which tensors may have 64 bits.
    def double_precision(self) -> contextlib.AbstractContextManager[Any]: ...
    # Returns the names of the usable devices.
    def devices(self) -> tuple[str, ...]: ...
    # Returns which of some tensors are differentiated; True where the framework cannot tell.
    def needs_grad(self, tensors: Sequence[Any]) -> Sequence[bool]: ...
    # Returns an output where nothing is recorded: a function may have switched recording on inside.
    def constant(self, tensor: Any) -> Any: ...
    # Returns the same values without derivatives, in forward and reverse mode.
    def stop_gradient(self, tensor: Any) -> Any: ...
    # Whether `to_numpy` can return their values now. In a program that is traced it cannot.
    def is_known(self, tensors: Sequence[Any]) -> bool: ...
    # Whether a compiler traces Python code now, and so records immediately what a rule reads.
    def is_compiling(self) -> bool: ...
    # Compares the tensors of each pair up to the rounding of sums in another order. Returns True or False for each
    # pair, or a boolean tensor if the values are not known yet; None if the framework cannot compare them.
    def agreement(self, pairs: Sequence[tuple[Any, Any]]) -> Sequence[Any]: ...


_NAMES = [name for name in vars(Backend) if not name.startswith("_")]
_DEFAULTS = _NAMES.index("gradient")
# Attributes with a default that is no function.
_OTHERS = ["plain", "types", "converted"]
REQUIRED = [name for name in Backend.__annotations__ if name[:1] != "_" and name not in _OTHERS] + _NAMES[:_DEFAULTS]
OPTIONAL = [*_OTHERS, *_NAMES[_DEFAULTS:]]
