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
`recompute(fun, tensors)`
                      `fun(*tensors)`, a tuple of tensors, of which nothing but `tensors` is kept for the backward pass:
                      `fun` runs again there. What it closes over and somebody differentiates gets its gradient, too.
`straight(sites, args)`
                      the output of a call with `args`, all by position, as `attach` would give it, by a shorter way
                      for what most calls have in common: `keras_cg.sites` says what that is. NotImplemented, before
                      anything has run, for every other call.
`converted(fun)`      the user's function as the framework would have it where somebody else calls it: TensorFlow
                      rewrites Python's branches and loops into a graph's.
`compiled(fun)`       `fun`, of flat tensors, as the framework compiles it; None where it has no compiler.
`exported(fun, tensors)`
                      `fun`, of flat tensors like these, as it is where a program that the framework has exported is
                      loaded; None where it exports none. Its gradient is what the format carries of it.
`double_precision()`  a context in which tensors may have 64 bits.
`devices()`           the names of the devices it can use.
`cut(tensor)`         the same values, which nobody differentiates, in any mode.
`is_known(tensors)`   can `to_numpy` give their values now? Not so in a program that the framework only traces.
`host(call, tensors)` the results of a function of NumPy arrays, a tuple of tensors, also where the framework compiles
                      or batches; `keras_cg.engine.host` says what `call` is. Nobody differentiates it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

import numpy

from keras_cg.engine.held import Closure, Held
from keras_cg.engine.host import Host

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
    *("pulled", "gradient", "jvp", "jacobian", "recompute", "straight", "converted", "compiled", "exported"),
    *("double_precision", "devices", "cut", "is_known", "host"),
)


class Pullback(Protocol):
    """The user's rule, checked and flat: what a backend calls in the backward pass.

    Called with one cotangent per output (None for an integer output, zeros for an unused one) and with the captured
    `variables`, it gives `(gradients, variable_gradients)`, with None where there is none. Cotangents and gradients
    follow the convention of torch and TensorFlow for complex numbers: dL/dx + i dL/dy. What the rule says for a tensor
    whose place in `wanted` is False is not looked at; None wants all.
    """

    def __call__(
        self, cotangents: Sequence[Any], variables: Sequence[Any] = (), wanted: Sequence[bool] | None = None
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]: ...

    def takes_variables(self) -> bool:
        """Whether the rule asks for what the function captured."""

    def capture(self, names: Sequence[str]) -> None:
        """Is told what trainable values `fun` read besides its arguments, and raises if the rule cannot serve them."""

    def held(self) -> Held:
        """The tensors that the rule holds, and how to make this pullback around others."""


Tensors = tuple[Any, ...]


# What a run takes: tensors in, outputs and the rule for them out.
Runnable = Callable[..., tuple[Tensors, Pullback]]


class Function(Protocol):
    """The user's function, flat: what `attach` gets."""

    name: str

    def __call__(self, *tensors: Any) -> tuple[Tensors, Pullback]: ...

    def held(self, is_wanted: Callable[[Any], bool]) -> Held:
        """The tensors that the user's function closes over, and how to make this function around others."""

    def reached(self, passed: tuple[type, ...]) -> list[Any]:
        """The tensors that it may reach besides its arguments, but through what is of the types `passed`."""

    def anew(self) -> Function:
        """This function as it was before its first run, for a call that is made again."""


class OutputFunction(Protocol):
    """The same without a rule: what `recompute` gets. Every run but the first shows it what Keras keeps as it was."""

    name: str

    def __call__(self, *tensors: Any) -> Tensors: ...

    def once(self, *tensors: Any) -> Tensors:
        """The only run, where there will be no other."""

    def traced(self, *tensors: Any) -> Tensors:
        """A run that is traced; then there may be more outputs, which `recompute` gives behind the others."""

    def late(self, *tensors: Any) -> Tensors:
        """A run whose derivative may read a variable of Keras when it is asked for."""

    def reads(self) -> list[Any]:
        """The variables behind those of Keras that the first run read, and that it did not change."""

    def held(self, is_wanted: Callable[[Any], bool]) -> Held:
        """The tensors that the user's function closes over, and how to make this function around others."""


# What `vjp`, `jvp` and `jacobian` differentiate: `fun(*tensors) -> (outputs, aux)`.
PlainFunction = Callable[..., tuple[Tensors, Tensors]]


class Laid(NamedTuple):
    """The arguments of a call laid flat: their leaves, and their structure, None if that is a row of them.

    Structures that are equal may have the keys of a dict in another order, so each call has its own.
    """

    leaves: Sequence[Any]
    spec: Any


class Form(NamedTuple):
    """How the rules are called, and hold tensors, that one piece of code makes at a site.

    Attributes:
        closure: Where they hold tensors.
        is_each: Whether they get an upstream for each tensor of the output, rather than one for all of it.
        is_behind: Whether they get the arguments of the call before it, and it by name.
    """

    closure: Closure
    is_each: bool
    is_behind: bool


class Site(Protocol):
    """What `straight` gets for a call whose arguments are of one kind: `keras_cg.sites` says more."""

    fun: Callable[..., Any]
    places: Sequence[int]
    is_full: bool
    is_lone: bool
    blanks: Laid
    forms: dict[Any, Any]
    closure: Closure | None
    still: Closure | None

    def is_unscoped(self) -> bool: ...
    def is_capturing(self) -> bool: ...
    def arguments(self, laid: Laid, tensors: Sequence[Any]) -> Sequence[Any]: ...
    def blank(self, laid: Laid) -> Laid: ...
    def output(self, output: Any) -> tuple[Sequence[Any], Any]: ...
    def plain(self, pair: Any) -> Any: ...
    def form(self, rule: FunctionType, laid: Laid, spec: Any, is_other: bool = False) -> Form | None: ...
    def rest(self, spec: Any) -> Any: ...
    def seen(self, laid: Laid, rest: Any = None) -> Any: ...
    def under(self, rule: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...
    def read(self, laid: Laid, result: Any) -> Sequence[Any] | None: ...
    def collect(
        self, laid: Laid, likes: Sequence[Any], result: Any, wanted: Sequence[bool] | None
    ) -> tuple[Any, ...]: ...
    def pullback(
        self, laid: Laid, tensors: Sequence[Any], spec: Any, rule: FunctionType, likes: Sequence[Any]
    ) -> Pullback: ...


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
    def recompute(self, fun: OutputFunction, tensors: Sequence[Any]) -> Tensors: ...
    def straight(self, sites: Any, args: tuple[Any, ...]) -> Any: ...
    def converted(self, fun: Callable[..., Any]) -> Callable[..., Any]: ...
    def compiled(self, fun: Callable[..., Tensors]) -> Callable[..., Tensors] | None: ...
    def exported(self, fun: Callable[..., Tensors], tensors: Sequence[Any]) -> Callable[..., Tensors] | None: ...
    def double_precision(self) -> contextlib.AbstractContextManager[Any]: ...
    def devices(self) -> tuple[str, ...]: ...
    def cut(self, tensor: Any) -> Any: ...
    def is_known(self, tensors: Sequence[Any]) -> bool: ...
    def host(self, call: Host, tensors: Sequence[Any]) -> Tensors: ...
