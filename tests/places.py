"""Where a rule may keep a tensor: each place makes the rule 7 u e² of e."""

import dataclasses
import functools
import operator
import queue
import sys
import types
import weakref

import numpy as np


class Kept:
    """An object that is a rule, has one as its method, or has attributes."""

    def __init__(self, e=None):
        self.e = e

    def __call__(self, upstream):
        return 7 * upstream * self.e * self.e

    def method(self, upstream):
        return self(upstream)


class Slots:
    __slots__ = ("e",)

    def __init__(self, e):
        self.e = e

    def __call__(self, upstream):
        return 7 * upstream * self.e * self.e


@dataclasses.dataclass
class Twice:
    e: object

    def __post_init__(self):
        self.no_field = self.e


def held(make, read):
    """A rule that keeps `make(e)`, and reads e from that."""

    def place(e):
        kept = make(e)
        return lambda upstream: 7 * upstream * read(kept) * read(kept)

    return place


def with_attribute(kept, value):
    kept.e = value
    return kept


def function_with(e):
    return with_attribute(lambda: 0, e)


def module_with(e):
    name = "a_module_of_a_test"
    return with_attribute(sys.modules.setdefault(name, types.ModuleType(name)), e)


def class_with(**members):
    return lambda e: type("Made", (), {name: member(e) for name, member in members.items()})


def array_of(e):
    kept = np.empty(1, object)
    kept[0] = e
    return kept


def queue_of(e):
    kept = queue.SimpleQueue()
    kept.put(e)
    return kept


def taken(kept):
    e = kept.get()
    kept.put(e)
    return e


def alive(e):
    ALIVE.append(Kept(e))
    return ALIVE[-1]


ALIVE = []


def nested(e):
    times = lambda upstream: 7 * upstream * e * e
    return lambda upstream: times(upstream)


def recursive(e):
    power = lambda upstream, n: upstream if n == 0 else power(upstream, n - 1) * e
    return lambda upstream: 7 * power(upstream, 2)


def in_a_global(e):
    global GLOBAL
    GLOBAL = e
    return lambda upstream: 7 * upstream * GLOBAL * GLOBAL


def list_in_a_global(e):
    GLOBALS[:] = [e]
    return lambda upstream: 7 * upstream * GLOBALS[0] * GLOBALS[0]


GLOBALS = []
attribute = operator.attrgetter("e")
first = operator.itemgetter(0)

PLACES = {
    "cell": lambda e: lambda upstream: 7 * upstream * e * e,
    "cell of a function": nested,
    "recursive function": recursive,
    "default": lambda e: lambda upstream, e=e: 7 * upstream * e * e,
    "keyword default": lambda e: lambda upstream, *, e=e: 7 * upstream * e * e,
    "partial": lambda e: functools.partial(lambda e, upstream: 7 * upstream * e * e, e),
    "keyword of a partial": lambda e: functools.partial(lambda upstream, e: 7 * upstream * e * e, e=e),
    "object": Kept,
    "bound method": lambda e: Kept(e).method,
    "slots": Slots,
    "global": in_a_global,
    "list in globals": list_in_a_global,
    "attribute": held(lambda e: types.SimpleNamespace(e=e), attribute),
    "attribute of a global class": held(lambda e: with_attribute(Twice, e), attribute),
    "attribute of a function": held(function_with, attribute),
    "attribute of a module": held(module_with, attribute),
    "class": held(class_with(e=lambda e: e), attribute),
    "method": held(class_with(get=lambda e: lambda self: e), lambda kept: kept().get()),
    "static method": held(class_with(get=lambda e: staticmethod(lambda: e)), lambda kept: kept.get()),
    "property": held(class_with(e=lambda e: property(lambda self: e)), lambda kept: kept().e),
    "dataclass": held(Twice, attribute),
    "no field of a dataclass": held(Twice, lambda kept: kept.no_field),
    "list": held(lambda e: [e], first),
    "tuple": held(lambda e: (e,), first),
    "dict": held(lambda e: {"e": e}, lambda kept: kept["e"]),
    "list in a dict": held(lambda e: {3: [e]}, lambda kept: next(iter(kept.values()))[0]),
    "list of an object": held(lambda e: Kept([e]), lambda kept: kept.e[0]),
    "mapping proxy": held(lambda e: types.MappingProxyType({"e": e}), lambda kept: kept["e"]),
    "values of a dict": held(lambda e: {"e": e}.values(), lambda kept: next(iter(kept))),
    "exception": held(ValueError, lambda kept: kept.args[0]),
    "array of objects": held(array_of, first),
    "key by identity": held(lambda e: (e, {id(e): 1.0}), lambda kept: kept[0] * kept[1].get(id(kept[0]), 7.0)),
    # An object written in C shows what it holds only to the garbage collector.
    "method caller": lambda e: (lambda times: lambda upstream: 7 * times(times(upstream)))(
        operator.methodcaller("__mul__", e)
    ),
    "built-in method": held(lambda e: e.__mul__, lambda kept: kept(1.0)),
    "slice": held(lambda e: slice(e, None), lambda kept: kept.start),
    "cell by itself": held(types.CellType, lambda kept: kept.cell_contents),
    "queue": held(queue_of, taken),
    "weak reference": held(lambda e: weakref.ref(alive(e)), lambda kept: kept().e),
    "dict of weak references": held(lambda e: weakref.WeakValueDictionary(e=alive(e)), lambda kept: kept["e"].e),
}
