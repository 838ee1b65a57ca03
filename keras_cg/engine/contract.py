"""A backend is a module that teaches `keras_cg` one framework: `Backend` lists the names that it defines.

A backend sees flat tuples of tensors. Pytrees, keywords, conventions and messages are handled before it is called.
`fun(*tensors)` returns `(outputs, pullback)` for `attach`, and `(outputs, aux)` everywhere else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy

Tensors = tuple[Any, ...]

# Opens a container that only the framework's own tree utility knows: its children, and how to build it again.
Children = Callable[[Any], tuple[list[Any], Callable[[list[Any]], Any]] | None]

# Leaves for certain. Asking the framework's tree utility about them would only cost time.
LEAVES = (type(None), bool, int, float, complex, str, bytes, type, numpy.generic, numpy.ndarray)

# A function that `vjp`, `jvp` and `jacobian` differentiate: `fun(*tensors) -> (outputs, aux)`, maybe named.
PlainFunction = Callable[..., tuple[Tensors, Tensors]]

# A pullback or a pushforward, from tensors to tensors.
Map = Callable[[Sequence[Any]], Tensors]


class Pullback(Protocol):
    """The user's rule, flat and checked: a backend calls it in the backward pass.

    `cotangents` has one tensor per output: zeros for an unused output, None for an output of integers. `variables` are
    the captured values. The result is `(gradients, variable_gradients)`, with None for no gradient. Where `needs_grad`
    is False, the gradient is not checked; without `needs_grad`, all are needed. `arguments` are the caller's own
    tensors, for a rule that is called with the function's arguments; without them it gets those of the run. For complex
    numbers, cotangents and gradients are dL/dx + i dL/dy, the convention of torch and TensorFlow.
    """

    def __call__(
        self,
        cotangents: Sequence[Any],
        variables: Sequence[Any] = (),
        needs_grad: Sequence[bool] | None = None,
        arguments: Sequence[Any] | None = None,
    ) -> tuple[Tensors, Tensors]: ...

    # Whether it was called by a probe: a rule may use up what its run made, and another run makes it again.
    is_used_up: bool

    def takes_arguments(self) -> bool:
        """Whether the rule is called with the function's arguments."""

    def location(self) -> str | None:
        """Returns the file and line of the rule, if they are known."""

    def takes_variables(self) -> bool:
        """Whether the rule has a parameter for captured values."""

    def capture(self, names: Sequence[str], values: Sequence[Any] = ()) -> None:
        """Raises CapturedVariableError if `fun` captured something and the rule takes no `variables`.

        `names` describe what it captured; in the place of a description of one of `values` stands the user's name.
        """

    def check(self, other: Pullback, probe: Probe) -> list[Any]:
        """Compares with the pullback of another run, and raises RuntimeError if they differ.

        Call it before the gradient that is recorded, where the framework may record: if what the rules hold is no data,
        both are called by `probe`. Returns the boolean tensors of `agreement` that must all hold.
        """

    def closed_over(self) -> list[Any]:
        """Lists what a quick look at the rule shows: its cells, defaults and partial arguments, and `vars(self)`."""

    def reached(self) -> list[Any]:
        """Finds the tensors that the rule can reach. This may take long."""

    def outline(self, inputs: Sequence[Any], probe: Probe) -> tuple[list[Any], Any]:
        """Returns the tensors of the rule and its other facts, for a backend that must not keep the rule."""

    def check_outline(self, inputs: Sequence[Any], tensors: Sequence[Any], facts: Any, probe: Probe) -> None:
        """Compares like `check`, with the outline of the first run."""


# Returns the gradients of a pullback along upstreams that are the same at each call: fresh copies from
# `linear.irregular`, in the structure that the pullback expects, with the captured values.
Probe = Callable[[Pullback], Sequence[Any]]


class Function(Protocol):
    """The user's function, flat, as `attach` gets it."""

    name: str
    # The user's function itself.
    user: Callable[..., Any]
    # Whether its arguments are plain tensors in any pytree.
    is_plain: bool

    @property
    def is_ordinary(self) -> bool:
        """Whether its arguments are plain tensors by position, as `is_plain` says."""

    def __call__(self, *tensors: Any) -> tuple[Tensors, Pullback]:
        """Runs the function: returns its outputs, and the rule for them."""

    def start(self, *tensors: Any) -> tuple[Tensors, Any]:
        """Runs the function: returns its outputs, and what `pullback` needs."""

    def pullback(self, started: Any) -> Pullback:
        """Returns the rule of a run, before anything else runs."""

    def closed_over(self) -> list[Any]:
        """Lists what a quick look at the user's function shows: cells, defaults, partial arguments, `vars(self)`."""

    def refuse_changes(self) -> None:
        """Lets no run change a variable of Keras, where even the first run is traced and no program is being built."""

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """Finds the wanted values that the user's function can reach, without its arguments. This may take long."""

    def names(self, values: Sequence[Any], described: Sequence[str]) -> list[str]:
        """Returns the user's name for each captured value, such as `self.w`; without one, what `described`."""


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
