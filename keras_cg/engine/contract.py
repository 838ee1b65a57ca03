"""What a backend is: the names that it defines, stated here and nowhere else.

A backend is a module that teaches `keras_cg` one framework. It sees flat tuples of tensors only: nests, keywords,
conventions and messages are settled before it is asked. Below, `fun(*tensors) -> (outputs, pullback)`.

`namespace`           the framework's NumPy-style module, which `keras_cg.ops` hands out; in it the functions of the
                      array API standard, as far as the framework has the means (`keras_cg.engine.standard`).
`tensors`             the classes of its tensors, so that other backends can tell a stranger's.
`is_tensor(value)`    can the framework hold `value` as a tensor? Numbers are not tensors.
`asarray(value)`      `value`, a tensor or a number, as the framework's own tensor.
`to_numpy(tensor)`    its values as a NumPy array, cut from every gradient.
`shape(tensor)`       a tuple, with None for what is unknown until run time; None for an unknown rank.
`dtype(tensor)`       the dtype's plain name: "float32", "complex64", "int32", "bool".
`cast(value, dtype)`  the tensor `value` in the dtype of that plain name.
`children(value)`     `(children, rebuild)` if `value` is a container that the framework's own tree utility knows, else
                      None; `rebuild(list)` makes it again.
`is_recording()`      does anybody differentiate, batch or trace at the moment? If not, a function is called as it is,
                      and `attach` is not asked.
`attach(fun, tensors)`
                      `fun(*tensors)[0]`, a tuple of tensors whose gradient is what `pullback` says, a `Pullback`.
                      `fun` may be called again, on values that somebody differentiates.
`vjp(fun, tensors)`   `(outputs, pullback, aux)` of `fun(*tensors) -> (outputs, aux)`, by the framework's own engine;
                      `pullback(cotangents)` gives one gradient per tensor, zeros where unused, as often as it is
                      called. All of it can be differentiated, with respect to the cotangents, too.

That is all a backend must define. The rest it may define where its framework does better than `derived`:

`pulled(fun, tensors, cotangents)`
                      `(outputs, gradients, aux)` for such a `fun`, of one run: what `vjp` and its pullback give. For a
                      framework that takes the cotangents together with the function, so that a pullback runs it again.
`gradient(fun, tensors)`
                      `(outputs, gradients, aux)` for such a `fun` of one output, which is summed.
`jvp(fun, tensors, tangents)`
                      `(outputs, output_tangents, aux)` for such a `fun`: the derivative along `tangents`, zeros for an
                      output that does not depend on them. It raises where a rule is not linear in upstream.
`jacobian(fun, tensors)`
                      `(outputs, rows, aux)` for such a `fun` of real tensors: `rows[i][j]` has the shape of output i
                      followed by that of tensor j.
`is_plain(value)`     does a quick look tell that `value` is a tensor that `asarray` would return unchanged? Calls of
                      such tensors take the ordinary path.
`converted(fun)`      the user's function as the framework would have it where somebody else calls it: TensorFlow
                      rewrites Python's branches and loops into a graph's.
`compiled(fun)`       `fun`, of flat tensors, as the framework compiles it; None where it has no compiler.
`exported(fun, tensors)`
                      `fun`, of flat tensors like these, as it is where a program that the framework has exported is
                      loaded; None where it exports none. Its gradient is what the format carries of it.
`double_precision()`  a context in which tensors may have 64 bits.
`devices()`           the names of the devices it can use.
`stop_gradient(tensor)`
                      the same values, which nobody differentiates, in any mode.
`is_known(tensors)`   can `to_numpy` give their values now? Not so in a program that the framework only traces.
`is_compiling()`      does a compiler trace Python code at the moment? It records what a rule reads at once.
`agreement(pairs)`    of each pair of tensors, whether they are equal but for the rounding of sums in another order:
                      True or False, or a boolean tensor where no value can be looked at yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy

REQUIRED = (
    "namespace",
    "tensors",
    "is_tensor",
    "asarray",
    "to_numpy",
    "shape",
    "dtype",
    "cast",
    "children",
    "is_recording",
    "attach",
    "vjp",
)

# Those that `derived` has for a backend that does not define them.
OPTIONAL = (
    *("pulled", "gradient", "jvp", "jacobian", "is_plain", "converted", "compiled", "exported"),
    *("double_precision", "devices", "stop_gradient", "is_known", "is_compiling", "agreement"),
)


class Pullback(Protocol):
    """The user's rule, checked and flat: what a backend calls in the backward pass.

    Called with one cotangent per output (None for an integer output, zeros for an unused one) and with the captured
    `variables`, it gives `(gradients, variable_gradients)`, with None where there is none. Cotangents and gradients
    follow the convention of torch and TensorFlow for complex numbers: dL/dx + i dL/dy. What the rule says for a tensor
    whose place in `needs_grad` is False is not looked at; None needs all.
    """

    def __call__(
        self, cotangents: Sequence[Any], variables: Sequence[Any] = (), needs_grad: Sequence[bool] | None = None
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]: ...

    def takes_variables(self) -> bool:
        """Whether the rule asks for what the function captured."""

    def capture(self, names: Sequence[str]) -> None:
        """Is told what trainable values `fun` read besides its arguments, and raises if the rule cannot serve them."""

    def check(self, other: Pullback) -> list[Any]:
        """Compares with the pullback of another run, and raises RuntimeError if it is another one.

        Gives the boolean tensors of `agreement` that must all hold.
        """

    def reached(self) -> list[Any]:
        """The tensors that the rule can reach."""

    def holds_anything(self) -> bool:
        """Whether the rule can hold a tensor of the run."""

    def outline(self, inputs: Sequence[Any]) -> tuple[list[Any], Any]:
        """The tensors of the rule, and what has to be equal in that of another run, for a rule that is not kept."""

    def check_outline(self, inputs: Sequence[Any], tensors: Sequence[Any], facts: Any) -> None:
        """`check`, where of the first run there is only what `outline` gave."""


Tensors = tuple[Any, ...]


# What a run takes: tensors in, outputs and the rule for them out.
Runnable = Callable[..., tuple[Tensors, Pullback]]


class Function(Protocol):
    """The user's function, flat: what `attach` gets."""

    name: str
    # The user's function itself.
    user: Callable[..., Any]
    # Whether its arguments are plain tensors by position, as `is_plain` has it.
    is_ordinary: bool

    def __call__(self, *tensors: Any) -> tuple[Tensors, Pullback]: ...

    def captures(self, is_wanted: Callable[[Any], bool]) -> Iterable[Any]:
        """What the user's function can reach besides its arguments, of the wanted kind."""


class OrdinaryFunction(Function, Protocol):
    """A function that is called with plain tensors by position."""

    def returned(self, tensors: Sequence[Any], pair: Any) -> tuple[Tensors, Pullback]:
        """What the first run gives, if `user(*tensors)` has returned `pair`."""


# What `vjp`, `jvp` and `jacobian` differentiate: `fun(*tensors) -> (outputs, aux)`.
PlainFunction = Callable[..., tuple[Tensors, Tensors]]


class Backend(Protocol):
    """The names of a backend, as the module's docstring says what each one means."""

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
    def is_recording(self) -> bool: ...
    def attach(self, fun: Function, tensors: Sequence[Any]) -> Tensors: ...
    def vjp(
        self, fun: PlainFunction, tensors: Sequence[Any]
    ) -> tuple[Tensors, Callable[[Sequence[Any]], Tensors], Tensors]: ...
    def pulled(
        self, fun: PlainFunction, tensors: Sequence[Any], cotangents: Sequence[Any]
    ) -> tuple[Tensors, Tensors, Tensors]: ...
    def gradient(self, fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, Tensors, Tensors]: ...
    def jvp(
        self, fun: PlainFunction, tensors: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Tensors, Tensors, Tensors]: ...
    def jacobian(self, fun: PlainFunction, tensors: Sequence[Any]) -> tuple[Tensors, tuple[Tensors, ...], Tensors]: ...
    def is_plain(self, value: Any) -> bool: ...
    def converted(self, fun: Callable[..., Any]) -> Callable[..., Any]: ...
    def compiled(self, fun: Callable[..., Tensors]) -> Callable[..., Tensors] | None: ...
    def exported(self, fun: Callable[..., Tensors], tensors: Sequence[Any]) -> Callable[..., Tensors] | None: ...
    def double_precision(self) -> contextlib.AbstractContextManager[Any]: ...
    def devices(self) -> tuple[str, ...]: ...
    def stop_gradient(self, tensor: Any) -> Any: ...
    def is_known(self, tensors: Sequence[Any]) -> bool: ...
    def is_compiling(self) -> bool: ...
    def agreement(self, pairs: Sequence[tuple[Any, Any]]) -> Sequence[Any]: ...
