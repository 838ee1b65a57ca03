"""The kinds of faults: each makes a wrong rule of any right one that it fits.

A fault is planted in the gradient of the last argument that has one, unless its kind is about upstream or about
several arguments. What it changes is a matter of `truth.py`.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.checker.rules import as_tuple
from benchmarks.checker.truth import wide
from keras_cg import ops
from keras_cg.frontend import config

KINDS: dict[str, "Kind"] = {}

NOT_LINEAR = r"clips or normalises upstream"
HISTORY = r"earlier calls|called again|draws random"
PLACES = r"only in|in only|another order"
CUT = r"detached intermediate"
DOMAIN = r"only where|in only|only in|a factor of 1\.1|no gradient for"
ORDER = rf"transposed|{PLACES}"
LOSES = r"precision|digits|rounds"


class Kind(NamedTuple):
    """One kind of fault.

    `plant` makes a wrong flat rule of a right one. `fits` says of which: it gets the rule and its arrays. `said` is
    what a diagnosis, or a reason, says that names it. `shows` is where to look for a difference: in the "gradient", for
    any upstream and any call; in the "second order"; in "forward mode"; in the "compiled" program; or in the "dtype"
    of the arguments. `found` has the statuses of a report that has found it.
    """

    name: str
    plant: Callable[..., Any]
    fits: Callable[..., bool]
    said: str
    shows: str
    found: tuple[str, ...]


def kind(name, said, fits=lambda rule, arrays: True, shows="gradient", found=("failed", "raised")):
    def register(plant):
        assert name not in KINDS, name
        KINDS[name] = Kind(name, plant, fits, said, shows, found)
        return plant

    return register


# --- how faults are planted -------------------------------------------------------------------------------------------


def in_gradients(change):
    """A wrong rule: `change(gradients, arguments)` in the place of the list of all gradients."""

    def plant(flat):
        def wrong(*args):
            outputs, gradient = flat(*args)
            return outputs, lambda *upstreams: tuple(change(list(as_tuple(gradient(*upstreams))), args))

        return wrong

    return plant


def in_gradient(change):
    """A wrong rule: `change(gradient, argument)` in the place of the last gradient that there is."""

    def change_last(found, args):
        place = max(place for place, gradient in enumerate(found) if gradient is not None)
        found[place] = change(found[place], args[place])
        return found

    return in_gradients(change_last)


def in_upstreams(change):
    """A wrong rule: `change(*upstreams)` in the place of all upstreams."""

    def plant(flat):
        def wrong(*args):
            outputs, gradient = flat(*args)
            return outputs, lambda *upstreams: as_tuple(gradient(*change(*upstreams)))

        return wrong

    return plant


def in_upstream(change):
    """A wrong rule: `change(upstream)` in the place of each upstream."""
    return in_upstreams(lambda *upstreams: map(change, upstreams))


def in_arguments(change):
    """A wrong rule: the gradient at other arguments, the output at the right ones."""

    def plant(flat):
        def wrong(*args):
            return flat(*args)[0], lambda *upstreams: as_tuple(flat(*map(change, args))[1](*upstreams))

        return wrong

    return plant


def at_others(choose):
    """A wrong rule: the gradient at the arguments that `choose` finds when the function is called."""

    def plant(flat):
        def wrong(*args):
            outputs, others = flat(*args)[0], choose(args)
            return outputs, lambda *upstreams: as_tuple(flat(*others)[1](*upstreams))

        return wrong

    return plant


def scaled(factor, gradients):
    return [None if each is None else factor * each for each in gradients]


def is_floating(x):
    return np.dtype(config.active.dtype(x)).kind in "fc"


def floating(arrays):
    return [each for each in arrays if each.dtype.kind in "fc"]


def has_size(count):
    return lambda rule, arrays: floating(arrays)[-1].size >= count


def has_rows(rule, arrays):
    found = floating(arrays)[-1]
    return found.ndim > 0 and found.shape[0] > 1 and found.size > 0


def is_real(rule, arrays):
    return all(each.dtype.kind != "c" for each in floating(arrays))


def has_complex(rule, arrays):
    return floating(arrays)[-1].dtype.kind == "c"


def has_real_outputs(rule, arrays):
    return not any(map(np.iscomplexobj, as_tuple(rule.output(*arrays))))


def fraction(x):
    """A mask, written once for all backends: an array of the shape and dtype of a tensor."""
    active = config.active
    return lambda mask: active.cast(active.asarray(np.asarray(mask, np.float64)), active.dtype(x))


def places(x, mask):
    shape = tuple(config.active.shape(x))
    return fraction(x)(mask(np.arange(int(np.prod(shape))).reshape(shape), shape))


# --- the value --------------------------------------------------------------------------------------------------------

for name, factor, said in (
    ("sign", -1, r"-1: a wrong sign"),
    ("half of it", 0.5, r"a factor of 1/2"),
    ("twice", 2, r"a factor of 2"),
    ("five per cent too much", 1.05, r"a factor of 1\.05"),
    ("off by 1e-3", 1.001, rf"a factor of 1\.001|{LOSES}"),
    ("off by 1e-5", 1 + 1e-5, rf"a factor of 1\.00001|{LOSES}"),
):
    kind(name, said)(in_gradient(lambda g, x, factor=factor: factor * g))

kind("no gradient for an argument", "no gradient for")(in_gradient(lambda g, x: 0 * g))


kind("a mean for a sum", r"one over the batch size|one over the number of elements|a factor of 1/2", has_rows)(
    in_gradient(lambda g, x: g / config.active.shape(x)[0])
)
kind("a sum for a mean", r"the batch size|the number of elements|a factor of 2", has_rows)(
    in_gradient(lambda g, x: g * config.active.shape(x)[0])
)
kind("a constant added", "does not depend on upstream")(in_gradient(lambda g, x: g + 0.1))
kind("weight decay added", "does not depend on upstream")(in_gradient(lambda g, x: g + 0.01 * x))
kind("rounded to thousandths", rf"staircase|steps|{LOSES}", is_real)(
    in_gradient(lambda g, x: ops.round(g * 1000) / 1000)
)


def transposed(g, x):
    shape = tuple(config.active.shape(g))
    return ops.reshape(ops.permute_dims(g, tuple(range(len(shape)))[::-1]), shape)


kind("transposed", ORDER, lambda rule, arrays: floating(arrays)[-1].ndim >= 2)(in_gradient(transposed))
kind("elements reversed", ORDER, lambda rule, arrays: floating(arrays)[-1].ndim >= 1)(
    in_gradient(lambda g, x: ops.flip(g, axis=-1))
)
kind("shifted by one", ORDER, has_rows)(in_gradient(lambda g, x: ops.roll(g, 1, axis=0)))
kind("averaged over the batch", rf"averaged|mean|{PLACES}", has_rows)(
    in_gradient(lambda g, x: 0 * g + ops.mean(g, axis=0, keepdims=True))
)
kind("another shape", r"shape|axis|axes")(in_gradient(lambda g, x: ops.expand_dims(g, axis=0)))
kind("a broadcast not summed", "sum over axis")(in_gradient(lambda g, x: ops.stack([g, g], axis=0)))


def swapped(found, args):
    one, other = [place for place, g in enumerate(found) if g is not None][-2:]
    found[one], found[other] = found[other], found[one]
    return found


kind(
    "two arguments swapped",
    "swapped",
    lambda rule, arrays: len({(e.shape, e.dtype) for e in floating(arrays)[-2:]}) == 1 < len(floating(arrays)),
)(in_gradients(swapped))


# --- some elements ----------------------------------------------------------------------------------------------------


kind("one element wrong", PLACES, has_size(2))(
    in_gradient(lambda g, x: g * (1 + 0.5 * places(x, lambda index, shape: index == index.size - 1)))
)
kind("one row missing", PLACES, has_rows)(
    in_gradient(lambda g, x: g * places(x, lambda index, shape: index >= index.size // shape[0]))
)
kind("every other element wrong", PLACES, has_size(3))(
    in_gradient(lambda g, x: g * (1 + 0.2 * places(x, lambda index, shape: index % 2 == 1)))
)
kind("wrong for negative inputs", DOMAIN, is_real)(in_gradient(lambda g, x: ops.where(x < 0, 1.1 * g, g)))


def edge(g, x):
    """As if it were clipped where the argument is largest."""
    size = ops.stop_gradient(ops.abs(x))
    return ops.where(size >= ops.max(size) * 0.999, 0 * g, g)


kind("wrong at the edge of the domain", DOMAIN, has_size(2))(in_gradient(edge))
kind("a dead zone around zero", DOMAIN, has_size(2))(
    in_gradient(lambda g, x: ops.where(ops.stop_gradient(ops.abs(x)) < 0.6, 0 * g, g))
)


# --- upstream ---------------------------------------------------------------------------------------------------------

kind("upstream ignored", "upstream forgotten")(in_upstream(lambda u: ops.ones_like(u)))
kind("upstream squared", "upstream used twice")(in_upstream(lambda u: u * u))
kind("size of upstream", "sign of upstream", has_real_outputs)(in_upstream(lambda u: ops.abs(u)))
kind("negative upstream dropped", rf"negative upstream|{NOT_LINEAR}", has_real_outputs)(
    in_upstream(lambda u: ops.where(u > 0, u, 0 * u))
)
kind("upstream squashed", NOT_LINEAR, has_real_outputs)(in_upstream(lambda u: ops.tanh(u)))


def times(u, factor):
    """A tensor by a real one, also where a framework does not multiply complex numbers with real ones."""
    return u * config.active.cast(factor, config.active.dtype(u))


def capped(limit):
    def change(u):
        size = ops.abs(u)
        return times(u, limit / ops.where(size > limit, size, limit * ops.ones_like(size)))

    return in_upstream(change)


kind("clipped at 1", NOT_LINEAR)(capped(1.0))
kind("clipped at 1,000", NOT_LINEAR)(capped(1e3))
kind("wrong for upstream above 1e8", NOT_LINEAR)(capped(1e8))
kind("nothing for upstream below 1e-8", NOT_LINEAR)(in_upstream(lambda u: ops.where(ops.abs(u) < 1e-8, 0 * u, u)))


kind("upstream normalised", NOT_LINEAR)(
    in_upstream(lambda u: times(u, 1 / (1e-3 + ops.sqrt(ops.sum(ops.abs(u) * ops.abs(u))))))
)


def wide_upstream(rule, arrays):
    outputs = as_tuple(rule.output(*wide(arrays)))
    return any(np.ndim(each) and np.shape(each)[0] > 1 for each in outputs)


def rolled(u):
    return ops.roll(u, 1, axis=0) if len(tuple(config.active.shape(u))) else u


def averaged(u):
    return 0 * u + ops.mean(u, axis=0, keepdims=True) if len(tuple(config.active.shape(u))) else u


kind("upstream of the next row", ORDER, wide_upstream)(in_upstream(rolled))
kind("upstream averaged over the batch", rf"averaged|mean|{PLACES}", wide_upstream)(in_upstream(averaged))


kind(
    "one output forgotten",
    rf"is forgotten|no gradient for|{PLACES}",
    lambda rule, arrays: len(as_tuple(rule.output(*wide(arrays)))) > 1,
)(in_upstreams(lambda *upstreams: (*upstreams[:-1], 0 * upstreams[-1])))
kind("a missing conjugate", "missing conjugate", has_complex)(in_gradient(lambda g, x: ops.conj(g)))
kind("the real part alone", r"part of the gradient is missing|conjugate", has_complex)(
    in_gradient(lambda g, x: (g + ops.conj(g)) / 2)
)


# --- history ----------------------------------------------------------------------------------------------------------


@kind("frozen at the first call", HISTORY)
def frozen(flat):
    cache = {}
    return at_others(lambda args: cache.setdefault("args", args))(flat)


@kind("the arguments of the call before", HISTORY)
def stale(flat):
    cache = {}

    def choose(args):
        before, cache["args"] = cache.get("args", args), args
        return before

    return at_others(choose)(flat)


@kind("counts its calls", HISTORY)
def counts(flat):
    calls = []

    def change(found, args):
        calls.append(None)
        return scaled(1 + 0.01 * min(len(calls) - 1, 10), found)

    return in_gradients(change)(flat)


@kind("mixed with the gradient before", HISTORY)
def momentum(flat):
    kept = {}

    def change(found, args):
        before, kept["found"] = kept.get("found", found), found
        return [None if g is None else 0.5 * g + 0.5 * b for g, b in zip(found, before, strict=True)]

    return in_gradients(change)(flat)


@kind("random", HISTORY)
def noisy(flat):
    draw = np.random.default_rng(1)
    return in_gradient(lambda g, x: g * float(1 + 0.01 * draw.normal()))(flat)


# --- precision --------------------------------------------------------------------------------------------------------


def through(dtype):
    def change(x):
        return config.active.cast(config.active.cast(x, dtype), config.active.dtype(x)) if is_floating(x) else x

    return change


def is_wide(rule, arrays):
    return is_real(rule, arrays) and all(each.dtype != np.float16 for each in floating(arrays))


kind("computed in half precision", LOSES, is_wide)(in_gradient(lambda g, x: through("float16")(g)))
kind("arguments saved in half precision", LOSES, is_wide)(in_arguments(through("float16")))


kind(
    "overflows in single precision",
    "right in double precision",
    lambda rule, arrays: any(each.dtype == np.float32 for each in arrays) and rule.inner == "float64",
    shows="dtype",
    # exp(100) is a number in double precision alone.
)(in_gradient(lambda g, x: g * ops.exp(100 + 0 * x) / ops.exp(100 + 0 * x)))


# --- higher orders, forward mode, compiled ----------------------------------------------------------------------------


def cut(x):
    # A tensor of its own: on NumPy `stop_gradient` may be the argument itself, which the rule then holds.
    return ops.stop_gradient(1 * x) if is_floating(x) else x


kind("detached", CUT, shows="second order")(in_arguments(cut))


def cut_last(args):
    place = max(place for place, each in enumerate(args) if is_floating(each))
    return [cut(each) if index == place else each for index, each in enumerate(args)]


kind("detached in one argument", CUT, lambda rule, arrays: len(floating(arrays)) > 1, shows="second order")(
    at_others(cut_last)
)
kind("half detached", CUT, shows="second order")(in_gradient(lambda g, x: 0.5 * g + 0.5 * ops.stop_gradient(g)))
kind("second order twice", CUT, shows="second order")(in_gradient(lambda g, x: 2 * g - ops.stop_gradient(g)))
kind("something more in second order", CUT, shows="second order")(
    in_gradient(lambda g, x: g + 0.3 * (x - ops.stop_gradient(x)))
)
kind("upstream detached", r"\bcut\b|detach|stop_gradient", shows="forward mode")(
    in_upstream(lambda u: ops.stop_gradient(u))
)


def compiling():
    """The active framework's answer to whether a compiler traces, as a function of a tensor."""
    name = config.backend()
    if name == "jax":
        import jax

        def is_traced(x):
            try:
                float(ops.sum(ops.abs(x)))
            except jax.errors.ConcretizationTypeError:
                return True
            return False

        return is_traced
    if name == "torch":
        import torch

        is_compiling = torch.compiler.is_compiling
        return lambda x: is_compiling()
    if name == "tensorflow":
        import tensorflow as tf

        return lambda x: not tf.executing_eagerly()
    return lambda x: False


@kind("wrong when compiled", "compiled gradient differs|gradient of the exported program differs", shows="compiled")
def when_compiled(flat):
    is_traced = compiling()

    def wrong(*args):
        outputs, gradient = flat(*args)
        factor = 1.1 if is_traced(args[0]) else 1.0
        return outputs, lambda *upstreams: tuple(scaled(factor, as_tuple(gradient(*upstreams))))

    return wrong


# Of a function that is another one each time there is no gradient to be wrong: undecided is the answer.
@kind("a function that counts its calls", HISTORY, found=("failed", "raised", "undecided"))
def impure(flat):
    calls = []

    def wrong(*args):
        outputs, gradient = flat(*args)
        calls.append(None)
        factor = 1 + 0.01 * len(calls)
        outputs = tuple(factor * each for each in outputs) if isinstance(outputs, tuple) else factor * outputs
        return outputs, gradient

    return wrong


def is_named(kind, said):
    """Whether a diagnosis names the kind."""
    return bool(kind.said) and re.search(kind.said, said) is not None
