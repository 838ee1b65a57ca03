"""A rule finds the variables and attributes as its run left them; another run finds them as the first one did.

Each case makes two calls, the second after a name was bound again, and differentiates the first. Rules are wrong on
purpose, so that plain autodiff gives other numbers.
"""

import collections
import contextlib
import functools
import gc
import itertools
import sys
import threading
import types
import weakref

import numpy as np
import pytest

from keras_cg import custom_gradient, grad, recipes, vjp
from keras_cg.engine.reach import kind_of, kinds, members
from keras_cg.engine.world import note

REFUSED = "ran again for a derivative, and its rule is not that of the first run"


def gradient_of_the_first(eager, calls, repeat=1):
    """The gradient of the first of several calls, at 1, after the others were made."""
    one = eager.tensor(np.float32(1.0))
    pullbacks = [vjp(call, one)[1] for call in calls]
    return [float(eager.array(pullbacks[0](one)[0])) for _ in range(repeat)]


# --- variables -------------------------------------------------------------------------------------------------------


class Nothing(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class Holder:
    def __init__(self, fun):
        self.fun = fun

    def __call__(self, upstream):
        return self.fun(upstream)


def with_descriptor(k):
    class Descriptor:
        def __get__(self, owner, kind=None):
            return 7 * k()

    class Rule:
        slope = Descriptor()

        def __call__(self, upstream):
            return upstream * self.slope

    return Rule()


def by_generator(scale):
    def slopes():
        while True:
            yield scale(1.0)

    made = slopes()
    return lambda upstream: upstream * next(made)


def with_base(scale):
    class Base:
        def __call__(self, upstream):
            return scale(upstream)

    return type("Rule", (Base,), {"__module__": __name__})()


def with_meta(scale):
    class Meta(type):
        def slope(cls, upstream):
            return scale(upstream)

    kind = Meta("Rule", (), {"__module__": __name__})
    return lambda upstream: kind.slope(upstream)


def by_dispatch(scale):
    dispatched = functools.singledispatch(lambda value: None)
    dispatched.register(float)(lambda value: scale(value))
    return lambda upstream: upstream * dispatched(1.0)


# How the rule reaches the function `scale`, which the run defines and which reads the variable of the loop.
READS = {
    "itself": lambda scale: lambda upstream: scale(upstream),
    "list": lambda scale: (lambda kept: lambda upstream: kept[0](upstream))([scale]),
    "dict": lambda scale: (lambda kept: lambda upstream: kept["a"](upstream))({"a": scale}),
    "deque": lambda scale: (lambda kept: lambda upstream: kept[0](upstream))(collections.deque([scale])),
    "set": lambda scale: (lambda kept: lambda upstream: next(iter(kept))(upstream))({scale}),
    "proxy": lambda scale: (lambda kept: lambda upstream: kept["a"](upstream))(types.MappingProxyType({"a": scale})),
    "factory": lambda scale: (lambda kept: lambda upstream: upstream * kept["a"])(
        collections.defaultdict(lambda: scale(1.0))
    ),
    "object": lambda scale: Holder(scale),
    "object in an object": lambda scale: Holder(Holder(scale)),
    "base of a class of the run": with_base,
    "class of a class of the run": with_meta,
    "object in a cell": lambda scale: (lambda kept: lambda upstream: kept(upstream))(Holder(scale)),
    "partial in an object": lambda scale: Holder(functools.partial(lambda _, upstream: scale(upstream), 0)),
    "keyword of a partial": lambda scale: functools.partial(lambda upstream, scale: scale(upstream), scale=scale),
    "argument of a partial": lambda scale: functools.partial(lambda scale, upstream: scale(upstream), scale),
    "default": lambda scale: lambda upstream, scale=scale: scale(upstream),
    "keyword default": lambda scale: lambda upstream, *, scale=scale: scale(upstream),
    "wrapper": lambda scale: functools.wraps(scale)(lambda upstream: scale(upstream)),
    "context of NumPy": lambda scale: np.errstate(all="ignore")(scale),
    "context": lambda scale: Nothing()(scale),
    "cache": lambda scale: (lambda cached: lambda upstream: upstream * cached(1.0))(functools.lru_cache(scale)),
    "generator": by_generator,
    "dispatch": by_dispatch,
    "descriptor of a class of the run": lambda scale: with_descriptor(lambda: scale(1.0) / 7),
}


@pytest.mark.parametrize("name", READS)
def test_a_variable_that_is_bound_again(eager, name):
    calls = []
    for k in (2.0, 3.0):
        calls.append(custom_gradient(lambda x: (x * 1, READS[name](lambda upstream: 7 * upstream * k))))
        one = eager.tensor(np.float32(1.0))
        if k == 2.0:
            pullback = vjp(calls[0], one)[1]
    assert [float(eager.array(pullback(one)[0])) for _ in range(2)] == [14.0, 14.0]
    assert k == 3.0


# What the walk does not enter: a frame of a generator, and C.
HIDDEN = ("generator", "dispatch")


@pytest.mark.parametrize("name", [name for name in READS if name not in HIDDEN])
def test_a_variable_that_only_the_rule_leads_to(eager, name):
    """The rule is made outside, and the function has no other way to the variable."""
    one, pullbacks = eager.tensor(np.float32(1.0)), []
    for k in (2.0, 3.0):
        rule = READS[name](lambda upstream: 7 * upstream * k)
        pullbacks.append(vjp(custom_gradient(lambda x, rule=rule: (x * 1, rule)), one)[1])
    assert [float(eager.array(pullback(one)[0])) for pullback in pullbacks] == [14.0, 21.0]


class Layer:
    """What a run knows of such a class it keeps, because it exists longer."""

    @custom_gradient
    def read(self, x):
        return x * 1, lambda upstream: upstream * self.slope()

    @custom_gradient
    def bind(self, x):
        self.slope = self.slopes[0]
        return x * 1, lambda upstream: upstream * self.slope()


class Annotated:
    """A module of torch has tables of its own, and annotates them."""

    slope: object
    read = Layer.read

    def __init__(self):
        self._parameters, self._buffers, self._modules = {}, {}, {}


def from_a_base(slope):
    base = type("from_a_base.<locals>.Base", (), {"slope": lambda self: slope()})
    return type("Layer", (base,), {"read": Layer.read})


def layer_of(kind, slope):
    made = from_a_base(slope) if kind == "base" else Annotated if kind == "annotated" else Layer
    made.__module__ = __name__
    layer = made()
    if kind == "bind":
        layer.slopes = [slope]
    elif kind != "base":
        layer.slope = slope
    return layer


@pytest.mark.parametrize("kind", ["read", "bind", "base", "annotated"])
def test_a_variable_that_the_object_of_a_method_leads_to(eager, kind):
    one, pullbacks = eager.tensor(np.float32(1.0)), []
    for k in (2.0, 3.0):
        layer = layer_of(kind, lambda: 7 * k)
        method = layer.bind if kind == "bind" else layer.read
        vjp(method, one)  # so that the class is known
        if kind == "bind":
            del layer.slope
        pullbacks.append(vjp(method, one)[1])
    assert [float(eager.array(pullback(one)[0])) for pullback in pullbacks] == [14.0, 21.0]


@pytest.mark.only("numpy")
def test_what_costs_nothing(backend):
    """Variables of the run itself, whose frame is over, are no part of its world; a long container is data."""

    def f(x):
        scale = 7.0
        helper = lambda upstream: upstream * scale
        return x * 1, lambda upstream: helper(upstream)

    assert note(None, f(1.0)[1], f)[0] is None
    pieces = [lambda upstream: 7 * upstream] * 20_000
    assert not members(pieces, kind_of(pieces), True) and members(pieces[:9], kind_of(pieces), True)


def from_a_global(x):
    return x * 1, SHARED["rule"]


def by_a_default(x):
    return x * 1, lambda upstream, rule=SHARED["rule"]: rule(upstream)


class Asked:
    """A function that notes what it is asked for, by itself and as a method of a number."""

    def __init__(self):
        self.names = []

    def __getattr__(self, name):
        self.names.append(name)
        raise AttributeError(name)

    def __call__(self, *args):
        return args[-1] * 1, lambda upstream: 7 * upstream


@pytest.mark.parametrize("is_method", [False, True])
def test_an_object_is_not_asked_for_its_code(eager, is_method):
    owner = Asked()
    fun = custom_gradient(types.MethodType(owner, 1) if is_method else owner)
    for _ in range(3):
        owner.names.clear()
        assert gradient_of_the_first(eager, [fun]) == [7.0]
        # AutoGraph of TensorFlow asks.
        assert is_method or eager.name == "tensorflow" or "__code__" not in owner.names


@pytest.mark.parametrize("fun", [from_a_global, by_a_default])
def test_a_variable_of_a_rule_that_a_global_leads_to(eager, fun):
    one, pullbacks = eager.tensor(np.float32(1.0)), []
    for k in (2.0, 3.0):
        SHARED["rule"] = lambda upstream: 7 * upstream * k
        pullbacks.append(vjp(custom_gradient(fun), one)[1])
    assert float(eager.array(pullbacks[0](one)[0])) == 14.0


def from_elsewhere(kind):
    """The function, whose code reads no variable, with what it gets from a loop."""
    plain = custom_gradient(lambda x, scale: (x * 1, lambda upstream: scale(upstream)))
    table = {}
    looked_up = custom_gradient(lambda x: (x * 1, table["rule"]))
    generated = (lambda upstream: 7 * upstream * k for k in (2.0, 3.0))
    drawn = custom_gradient(lambda x: (x * 1, next(generated)))
    for k in (2.0, 3.0):
        scale = lambda upstream: 7 * upstream * k
        table["rule"] = scale
        yield {
            "static argument": lambda x: plain(x, scale),
            "keyword": lambda x: plain(x, scale=scale),
            "partial": custom_gradient(
                functools.partial(lambda scale, x: (x * 1, lambda upstream: scale(upstream)), scale)
            ),
            "table": looked_up,
            "generator expression": drawn,
        }[kind]


@pytest.mark.parametrize("kind", ["static argument", "keyword", "partial", "table", "generator expression"])
def test_a_variable_of_a_function_from_elsewhere(eager, kind):
    one = eager.tensor(np.float32(1.0))
    pullbacks = [vjp(call, one)[1] for call in from_elsewhere(kind)]
    assert float(eager.array(pullbacks[0](one)[0])) == 14.0
    assert float(eager.array(pullbacks[1](one)[0])) == 21.0


def test_a_variable_that_is_deleted_and_one_that_is_bound_later(eager):
    one = eager.tensor(np.float32(1.0))
    k = 2.0
    pullback = vjp(custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * k)), one)[1]  # noqa: F821
    del k
    assert float(eager.array(pullback(one)[0])) == 14.0
    with pytest.raises(NameError):
        k  # noqa: B018, F821

    pullback = vjp(custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * later)), one)[1]
    later = 3.0
    assert float(eager.array(pullback(one)[0])) == 21.0


def test_a_variable_that_the_function_itself_assigns_is_that_of_the_run(eager):
    """A variable that a function of the run assigns is state."""
    count, calls = 0, 0

    @custom_gradient
    def f(x):
        nonlocal count
        count += 1

        def rule(upstream):
            nonlocal calls
            calls += 1
            return 7 * upstream * count * calls

        return x * count, rule

    assert gradient_of_the_first(eager, [f, f], 2) == [7.0, 14.0]
    assert count == 2


def test_a_variable_that_a_method_assigns_is_that_of_the_run(eager):
    """The rule leads to the method, too, by the class of `self`."""
    k = 0.0

    class Local:
        seven = 7

        @custom_gradient
        def f(self, x, value):
            nonlocal k
            k = value
            return x * 1, lambda upstream: (self.seven * upstream * k, None)

    owner = Local()
    assert gradient_of_the_first(eager, [lambda x: owner.f(x, 2.0), lambda x: owner.f(x, 3.0)]) == [14.0]
    assert k == 3.0


def test_a_variable_that_the_function_itself_assigns_in_the_second_order(eager):
    count = 0

    @custom_gradient
    def f(x):
        nonlocal count
        count += 1
        return x * x * count, lambda upstream: 7 * upstream * x * count

    second = grad(lambda x: grad(lambda x: f(x) + f(x))(x) * 1)
    assert float(eager.array(second(eager.tensor(np.float32(1.0))))) == 21.0
    if eager.name != "jax":
        assert count == 2


def test_a_variable_that_another_function_assigns_is_state(eager):
    count = 0.0

    def tick():
        nonlocal count
        count += 1.0

    @custom_gradient
    def f(x):
        tick()
        return x * 1, lambda upstream: 7 * upstream * count

    def rule(upstream):
        return 7 * upstream * count

    @custom_gradient
    def with_a_rule_from_outside(x):
        tick()
        return x * 1, rule

    assert gradient_of_the_first(eager, [f, f]) == [14.0]
    assert gradient_of_the_first(eager, [with_a_rule_from_outside, f]) == [28.0]


def test_a_variable_that_only_the_rule_assigns_is_state(eager):
    """The function reads it, and does not lead to the rule."""
    count = 0.0

    def rule(upstream):
        nonlocal count
        count += 1.0
        return 7 * upstream * count

    @custom_gradient
    def f(x):
        return x + 0.0 * count, SHARED["rule"]

    SHARED["rule"], one = rule, eager.tensor(np.float32(1.0))
    pullbacks = [vjp(f, one)[1] for _ in range(2)]
    assert [float(eager.array(pullback(one)[0])) for pullback in pullbacks] == [7.0, 14.0]


def test_recipes_that_hold_a_function_of_a_loop(eager):
    one, pullbacks = eager.tensor(np.float32(4.0)), []
    for k in (1.0, 2.0):
        root = recipes.custom_root(lambda x, a: k * x - a, lambda g, start, k=k: start + 4.0 / k)
        pullbacks.append(vjp(lambda a, root=root: root(a * 0, a), one)[1])
    found = [float(eager.array(pullback(eager.tensor(np.float32(1.0)))[0])) for pullback in pullbacks]
    np.testing.assert_allclose(found, [1.0, 0.5], rtol=1e-6)


# --- a function that is called again and again -----------------------------------------------------------------------


def binds(fun, name="k"):
    """Binds a variable of a function."""
    cell = dict(zip(fun.__code__.co_freevars, fun.__closure__, strict=True))[name]
    return functools.partial(setattr, cell, "cell_contents")


def the_number(k):
    f = lambda x: (x * x * k, lambda upstream: 7 * upstream * x * k)
    return f, binds(f)


def a_helper(k):
    scale = lambda value: value * k
    f = lambda x: (scale(x * x), lambda upstream: scale(7 * upstream * x))
    bind = binds(f, "scale")
    return f, lambda k: bind(lambda value: value * k)


def the_number_of_a_helper(k):
    scale = lambda value: value * k
    return lambda x: (scale(x * x), lambda upstream: scale(7 * upstream * x)), binds(scale)


def the_number_of_a_helper_of_the_rule(k):
    """The run defines the helper, which is another function in each run."""

    def f(x):
        scale = lambda value: value * k
        return x * x * k, lambda upstream: scale(7 * upstream * x)

    return f, binds(f)


def a_number_that_is_deleted(k):
    def f(x):
        try:
            found = k
        except NameError:
            found = 3.0
        return x * x * found, lambda upstream: 7 * upstream * x * found

    def change(value):
        nonlocal k
        k = value
        if value != 2.0:
            del k

    return f, change


def the_number_of_a_generator(k):
    def f(x):
        def slopes():
            while True:
                yield k

        made = slopes()
        return x * x * k, lambda upstream: 7 * upstream * x * next(made)

    return f, binds(f)


def a_helper_from_a_table(k):
    """The function does not name it, and gives it to the rule."""
    scale, low = lambda value: value * k, -1.0

    def f(x):
        helper = SHARED["scale"]
        return helper(x * x) + 0 * low, lambda upstream: helper(7 * upstream * x)

    SHARED["scale"] = scale
    return f, binds(scale)


CHANGED = (
    the_number,
    a_helper,
    the_number_of_a_helper,
    the_number_of_a_helper_of_the_rule,
    a_number_that_is_deleted,
    the_number_of_a_generator,
    a_helper_from_a_table,
)


@pytest.mark.parametrize("make", CHANGED, ids=lambda make: make.__name__)
def test_what_changes_between_the_calls_of_one_function(eager, make):
    """Each call has its own rule, also where those before found all as it was; and another run finds what it found."""
    fun, change = make(2.0)
    f, x = custom_gradient(fun), eager.tensor(np.float32(1.0))

    def calls(x):
        total = 0.0 * x
        for k in (2.0, 2.0, 2.0, 3.0, 3.0, 2.0):
            change(k)
            total = total + f(x)
        change(5.0)
        return total

    assert float(eager.array(grad(calls)(x))) == 7 * 14.0
    change(2.0)
    assert float(eager.array(grad(lambda x: grad(calls)(x) * 1)(x))) == 7 * 14.0


@pytest.mark.parametrize("kind", ["variable", "helper", "attribute"])
def test_what_a_run_changes_by_a_function_that_does_not_show_it(eager, kind):
    """The code that binds the name again is behind a global, where no walk goes."""
    k = 1.0

    def scale(value):
        return value * getattr(SHARED["scale"], "k", k)

    def variable(value):
        nonlocal k
        k = value

    def helper(value):
        nonlocal scale
        scale = lambda other: other * value

    def attribute(value):
        scale.k = value

    SHARED["scale"], SHARED["change"] = scale, {"variable": variable, "helper": helper, "attribute": attribute}[kind]

    @custom_gradient
    def f(x):
        SHARED["change"](SHARED["k"])
        return scale(x), lambda upstream: scale(7 * upstream)

    one, pullbacks = eager.tensor(np.float32(1.0)), []
    for SHARED["k"] in (1.0, 1.0, 2.0, 3.0, 3.0):
        if kind == "helper":
            f(one)
        pullbacks.append(vjp(f, one)[1])
    assert [float(eager.array(pullback(one)[0])) for pullback in pullbacks] == [7.0, 7.0, 14.0, 21.0, 21.0]


@pytest.mark.only("numpy", "torch")
def test_a_function_that_is_called_often_keeps_no_tensor(eager):
    kept, ones = 2.0, eager.tensor(np.ones(2, np.float32))
    f = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * kept))
    for _ in range(3):
        np.testing.assert_array_equal(eager.array(vjp(f, ones)[1](ones)[0]), [14.0, 14.0])
    kept = eager.tensor(np.full(2, 3.0, np.float32))
    seen = weakref.ref(kept)
    np.testing.assert_array_equal(eager.array(vjp(f, ones)[1](ones)[0]), [21.0, 21.0])
    kept = 2.0
    gc.collect()
    assert seen() is None


def rule_of_the_loop(x):
    return x * x, SHARED["rule"]


def rule_by_a_function(x):
    return x * x, SHARED["make"](x)


@pytest.mark.parametrize("kind", ["a rule", "an object", "another rule each time", "by a function", "behind a helper"])
def test_the_second_order_of_a_rule_from_elsewhere(eager, kind):
    """Another run finds what the rule of the first one read, although no name in the function leads there."""
    x, k = eager.tensor(np.float32(1.0)), 2.0

    def rule(x, upstream):
        return 7 * upstream * x * k

    def scale(value):
        return value * k

    def behind_a_helper(x):
        helper = SHARED["helper"]()
        return helper(x * x), lambda upstream: helper(7 * upstream * x)

    SHARED["rule"] = Rule(rule) if kind == "an object" else rule
    SHARED["make"], SHARED["helper"] = (lambda x: lambda upstream: 7 * upstream * x * k), lambda: scale
    f = custom_gradient(
        {"by a function": rule_by_a_function, "behind a helper": behind_a_helper}.get(kind, rule_of_the_loop)
    )

    def total(x):
        nonlocal k
        found = 0.0 * x
        for k in (2.0, 3.0):
            if kind == "another rule each time":
                SHARED["rule"] = lambda x, upstream: 7 * upstream * x * k
            found = found + f(x)
        return found

    assert float(eager.array(grad(total)(x))) == 35.0
    assert float(eager.array(grad(lambda x: grad(total)(x) * 1)(x))) == 35.0
    assert k == 3.0


def helper_of_the_first(k):
    """Each function of the factory uses the helper that the first one has defined."""

    def f(x):
        shared = SHARED["kept"].setdefault("slope", lambda: k)
        return x * 1, lambda upstream: 7 * upstream * x * shared()

    return f


def rule_of_the_first(k):
    return lambda x: (x * 1, SHARED["kept"].setdefault("rule", lambda upstream: 7 * upstream * k))


def helper_behind_a_helper(k):
    def f(x):
        shared = SHARED["kept"].setdefault("slope", lambda: k)
        scale = lambda upstream: 7 * upstream * x * shared()
        return x * 1, lambda upstream: scale(upstream)

    return f


@pytest.mark.parametrize("make", [helper_of_the_first, rule_of_the_first, helper_behind_a_helper])
def test_a_function_that_another_one_of_the_factory_has_defined(eager, make):
    """Its code is that of a function of this run, and its variables are others."""
    SHARED["kept"], one = {}, eager.tensor(np.float32(1.0))
    fun = make(2.0)
    change, second = binds(fun), custom_gradient(make(3.0))
    assert float(eager.array(grad(custom_gradient(fun))(one))) == 14.0
    _, pullback = vjp(second, one)
    change(100.0)
    assert float(eager.array(pullback(one)[0])) == 14.0
    if make is not rule_of_the_first:

        def later(x):
            change(2.0)
            _, pullback = vjp(second, x)
            change(100.0)
            return pullback(one)[0]

        assert float(eager.array(grad(later)(one))) == 14.0


class Rule:
    def __init__(self, fun):
        self.fun = fun

    def __call__(self, x, upstream):
        return self.fun(x, upstream)


def test_a_variable_that_a_hidden_function_assigns_in_the_second_order(eager):
    """It is not known what another run should find: the rules differ."""
    x, count = eager.tensor(np.float32(1.0)), 0.0

    def tick():
        nonlocal count
        count += 1.0

    def make(x):
        return lambda upstream: 7 * upstream * x * count

    SHARED["tick"], SHARED["make"] = tick, make

    @custom_gradient
    def f(x):
        SHARED["tick"]()
        return x * x, SHARED["make"](x)

    assert float(eager.array(grad(f)(x))) == 7.0 * count
    second = grad(lambda x: grad(f)(x) * 1)
    if eager.name == "jax":  # which runs the function once
        assert float(eager.array(second(x))) == 7.0 * count
    else:
        with pytest.raises(RuntimeError, match=REFUSED):
            second(x)


# --- attributes ------------------------------------------------------------------------------------------------------


class Stores:
    """Each call stores `k`, which the rule reads from the object in its own way."""

    def store(self, k):
        self.k = k

    def read(self):
        return self.k

    def __call__(self, upstream):
        return 7 * upstream * self.read()

    def back(self, upstream):
        return self(upstream), None

    def rule(self):
        return self.back

    @custom_gradient
    def f(self, x, k):
        self.store(k)
        return x * 1, self.rule()


class ByClosure(Stores):
    def rule(self):
        return lambda upstream: (7 * upstream * self.k, None)


class ByCall(Stores):
    def rule(self):
        return lambda upstream: (self(upstream), None)


class ByPartial(Stores):
    def rule(self):
        return functools.partial(type(self).back, self)


class ByDefault(Stores):
    def rule(self):
        return lambda upstream, this=self: (7 * upstream * this.k, None)


class ByItsClass(Stores):
    def store(self, k):
        type(self).k = k


class ByGetattr(Stores):
    def store(self, k):
        self.values = {"k": k}

    def __getattr__(self, name):
        return self.__dict__["values"][name]


class Slotted(Stores):
    __slots__ = ("k",)


class ByContents(Stores):
    def store(self, k):
        self.k = [k, types.SimpleNamespace(k=k)]

    def read(self):
        return self.k[1].k


class ByAnotherDict(Stores):
    def store(self, k):
        self.__dict__ = {"k": k}


class WithSubclassOfDict(Stores):
    def __init__(self):
        self.__dict__ = type("Attributes", (dict,), {})()


class InAPart(Stores):
    def __init__(self):
        self.part = types.SimpleNamespace()

    def store(self, k):
        self.part.k = k

    def read(self):
        return self.part.k


class OfMeta(type):
    def __setattr__(cls, name, value):
        type.__setattr__(cls, name, value + 1)

    def __delattr__(cls, name):
        raise AttributeError(name)


class ByItsMeta(Stores, metaclass=OfMeta):
    def store(self, k):
        type(self).k = k - 1


class Frozen(Stores):
    def __setattr__(self, name, value):
        raise AttributeError(name)

    __delattr__ = __getattr__ = lambda self, name: self.__setattr__(name, None)

    def store(self, k):
        object.__setattr__(self, "k", k)


FACTORS = (2.0, 2.0, 3.0)
STORES = (
    *(Stores, ByClosure, ByCall, ByPartial, ByDefault, ByItsClass, ByGetattr, Slotted, ByContents),
    *(ByAnotherDict, WithSubclassOfDict, InAPart, ByItsMeta, Frozen),
)


@pytest.mark.parametrize("kind", STORES, ids=lambda kind: kind.__name__)
def test_an_attribute_that_the_run_has_set(eager, kind):
    owner = kind()
    calls = [lambda x, k=k: owner.f(x, k) for k in (2.0, 3.0)]
    assert gradient_of_the_first(eager, calls, 2) == [14.0, 14.0]
    assert owner.read() == 3.0


# Their code sets no attribute of the object: nothing shows if the same object is set again.
BY_OTHER_MEANS = (ByItsClass, Frozen)


@pytest.mark.parametrize(
    "kind", [kind for kind in STORES if kind not in BY_OTHER_MEANS], ids=lambda kind: kind.__name__
)
def test_an_attribute_that_the_run_has_set_to_the_same_object_again(eager, kind):
    owner, one = kind(), eager.tensor(np.float32(1.0))
    pullbacks = [vjp(lambda x, k=k: owner.f(x, k), one)[1] for k in FACTORS]
    assert [float(eager.array(pullback(one)[0])) for pullback in pullbacks] == [14.0, 14.0, 21.0]


@pytest.mark.limit
@pytest.mark.parametrize("place", ["attribute", "deleted again", "variable"])
def test_a_flag_that_had_this_value_before_the_first_run(eager, place):
    """A limit: nothing shows that the first two runs have set the attribute."""
    flag, owner, one = True, types.SimpleNamespace(flag=True), eager.tensor(np.float32(1.0))
    reads = {
        "attribute": lambda: owner.flag,
        "deleted again": lambda: getattr(owner, "new", True),
        "variable": lambda: flag,
    }[place]

    def fun(x, value):
        nonlocal flag
        owner.flag = owner.new = flag = value
        if value:
            del owner.new
        return x * 1, lambda upstream: ((7 if reads() else 3) * upstream, None)

    # A code of its own, because what a run of a code has set counts from then on.
    fun.__code__ = fun.__code__.replace()
    f = custom_gradient(fun)

    pullbacks = [vjp(lambda x, value=value: f(x, value), one)[1] for value in (True, True, False)]
    found = [float(eager.array(pullback(one)[0])) for pullback in pullbacks]
    assert found == ([7.0, 7.0, 3.0] if place == "variable" else [3.0, 3.0, 3.0])


class Part:
    k = 0.0

    @custom_gradient
    def f(self, x):
        type(self).k = SHARED["k"]
        return x * 1, lambda upstream: 7 * upstream * self.k


def test_the_attributes_of_classes_at_hand(eager):
    """In a variable, by a default, and of a method."""

    class Local:
        k = 0.0

        @classmethod
        @custom_gradient
        def of_a_class(cls, x):
            cls.k = SHARED["k"]
            return x * 1, lambda upstream: 7 * upstream * cls.k

    @custom_gradient
    def in_a_variable(x, kind, other=Part):
        Local.k = other.k = SHARED["k"]
        return x * 1, lambda upstream: (7 * upstream * (Local.k + other.k) / 2, None)

    # What was found out about `float`, which is met first, says nothing about another class.
    kinds.clear()
    one = eager.tensor(np.float32(1.0))
    for f in (lambda x: in_a_variable(x, float), Local.of_a_class, Part().f):
        pullbacks = []
        for k in (2.0, 3.0):
            SHARED["k"] = k
            pullbacks.append(vjp(f, one)[1])
        assert [float(eager.array(pullback(one)[0])) for pullback in pullbacks] == [14.0, 21.0]


class WithParts:
    """A method that reads nothing but `self` finds what stands in its attributes."""

    def __init__(self, scale):
        self.scale, self.part = scale, Part()

    @custom_gradient
    def f(self, x):
        self.part.k = self.scale(1.0)
        return x * 1, lambda upstream: 7 * self.scale(upstream) * self.part.k


def test_what_is_in_the_attributes_of_self(eager):
    one, pullbacks, owner = eager.tensor(np.float32(1.0)), [], None
    for k in (2.0, 3.0):
        owner = owner or WithParts(lambda upstream: upstream * k)
        pullbacks.append(vjp(owner.f, one)[1])
    assert [float(eager.array(pullback(one)[0])) for pullback in pullbacks] == [28.0, 63.0]


def sets_what_is_not_at_hand(place):
    """A function that sets `k`, and whose rule reads it, at a place that is not looked at."""
    One = type("One", (), {"k": 0.0})
    owner = One()
    owner.part = types.SimpleNamespace(part=One())
    classes = {k: type("Of", (One,), {"k": k}) for k in (2.0, 3.0)}

    @custom_gradient
    def f(x, k):
        if place == "a class":
            owner.__class__ = classes[k]
        else:
            owner.part.part.k = k
        return x * 1, lambda upstream: (7 * upstream * (owner if place == "a class" else owner.part.part).k, None)

    return f


@pytest.mark.limit
@pytest.mark.parametrize("place", ["a class", "behind two others"])
def test_attributes_that_are_not_looked_at(eager, place):
    """A limit: the class of an object, and an object behind two others."""
    f = sets_what_is_not_at_hand(place)
    assert gradient_of_the_first(eager, [functools.partial(lambda k, x: f(x, k), k) for k in (2.0, 3.0)]) == [21.0]


@pytest.mark.limit
@pytest.mark.parametrize("kind", [threading.local, collections.UserDict, weakref.proxy])
def test_attributes_of_objects_of_pythons_classes(eager, kind):
    """A limit: only classes that are neither Python's nor a framework's have attributes that count."""
    target = Part()
    owner = kind(target) if kind is weakref.proxy else kind()

    @custom_gradient
    def f(x, k):
        owner.k = k
        return x * 1, lambda upstream: (7 * upstream * owner.k, None)

    assert gradient_of_the_first(eager, [lambda x: f(x, 2.0), lambda x: f(x, 3.0)]) == [21.0]


@pytest.mark.only("torch")
@pytest.mark.limit
def test_attributes_of_a_module_of_torch(torch):
    """A limit: of a class of the framework, parameters and buffers count."""
    owner = torch.nn.Linear(1, 1)

    @custom_gradient
    def f(x, k):
        owner.k = k
        return x * 1, lambda upstream: (7 * upstream * owner.k, None)

    x = torch.ones((), requires_grad=True)
    y, _ = f(x, 2.0), f(x, 3.0)
    assert torch.autograd.grad(y, x)[0].item() == 21.0


@pytest.mark.limit
@pytest.mark.parametrize("place", ["list in a list", "list in an object"])
def test_functions_that_are_not_looked_at(eager, place):
    """A limit: a function in a container that is in another one, or in an object."""
    pullbacks, one = [], eager.tensor(np.float32(1.0))
    for k in (2.0, 3.0):
        scale = lambda upstream: 7 * upstream * k
        kept = [[scale]] if place == "list in a list" else types.SimpleNamespace(scales=[scale])
        first = lambda kept: (kept[0] if type(kept) is list else kept.scales)[0]
        rule = lambda upstream, kept=kept, first=first: first(kept)(upstream)
        pullbacks.append(vjp(custom_gradient(lambda x, rule=rule: (x * 1, rule)), one)[1])
    assert float(eager.array(pullbacks[0](one)[0])) == 21.0


def with_a_default(x, k, kept=types.SimpleNamespace()):  # noqa: B008 - that is the case
    kept.k = k
    return x * 1, lambda upstream: (7 * upstream * kept.k, None)


def by_a_default_alone(x, kept=types.SimpleNamespace()):  # noqa: B008 - that is the case
    kept.k = SHARED["k"]
    return x * 1, lambda upstream: 7 * upstream * kept.k


def test_the_attributes_of_a_default(eager):
    f, one, pullbacks = custom_gradient(by_a_default_alone), eager.tensor(np.float32(1.0)), []
    for k in (2.0, 3.0):
        SHARED["k"] = k
        pullbacks.append(vjp(f, one)[1])
    assert float(eager.array(pullbacks[0](one)[0])) == 14.0


def test_the_attributes_of_other_objects_at_hand(eager):
    """In a cell, as a static argument, and of a callable object."""

    class Callable:
        def __call__(self, x, k=2.0):
            self.k = k
            return x * 1, lambda upstream: 7 * upstream * self.k

    kept, owner = types.SimpleNamespace(k=0.0), Callable()
    f, by_default = custom_gradient(owner), custom_gradient(with_a_default)

    @custom_gradient
    def in_a_cell(x, k):
        kept.k = k
        return x * 1, lambda upstream: 7 * upstream * kept.k

    @custom_gradient
    def as_argument(x, holder, k):
        holder.k = k
        return x * 1, lambda upstream: 7 * upstream * holder.k

    holder = Holder(None)
    keyword = lambda x, k: f(x, k=k)
    for call in (in_a_cell, lambda x, k: as_argument(x, holder, k), keyword, by_default):
        calls = [functools.partial(lambda call, k, x: call(x, k), call, k) for k in (2.0, 3.0)]
        assert gradient_of_the_first(eager, calls) == [14.0]
    assert (kept.k, holder.k, owner.k) == (3.0, 3.0, 3.0)


def test_the_attributes_of_functions_at_hand(eager):
    """Of the function itself, of the decorated one, and of a partial."""

    def plain(x, k):
        plain.k = k
        return x * 1, lambda upstream: (7 * upstream * plain.k, None)

    @custom_gradient
    def decorated(x, k):
        decorated.k = k
        return x * 1, lambda upstream: (7 * upstream * decorated.k, None)

    kept = functools.partial(float)

    @custom_gradient
    def of_a_partial(x, k):
        kept.k = k
        return x * 1, lambda upstream: (7 * upstream * kept.k, None)

    def store(k):
        store.k = k

    store.k = 0.0

    @custom_gradient
    def by_a_helper(x, k):
        store(k)
        return x * 1, lambda upstream: (7 * upstream * store.k, None)

    for f in (custom_gradient(plain), decorated, of_a_partial, by_a_helper):
        calls = [functools.partial(lambda f, k, x: f(x, k), f, k) for k in (2.0, 3.0)]
        assert gradient_of_the_first(eager, calls, 2) == [14.0, 14.0]
    assert (plain.k, decorated.k, kept.k) == (3.0, 3.0, 3.0)


# --- another run -----------------------------------------------------------------------------------------------------


class Keeps:
    """An object that keeps its argument for the rule, counts, and sums up: the gradient is 7 x n."""

    calls = 0

    def __init__(self, total):
        self.total = total

    @custom_gradient
    def __call__(self, x):
        self.x = x
        self.calls += 1
        self.total = self.total + 1.0
        return x * x * self.total, lambda upstream: 7 * upstream * self.x * self.calls


def test_the_second_order_of_an_object_that_keeps_values(eager):
    x = eager.tensor(np.float32(2.0))
    owner = Keeps(0.0)
    second = grad(lambda x: grad(owner)(x) * 1)
    assert float(eager.array(second(x))) == 7.0
    if eager.name != "jax":  # which runs the function as often as it traces it
        assert (owner.calls, owner.total) == (1, 1.0)
    assert float(eager.array(second(x))) == 7.0 * owner.calls


# How a method gets a number from its object, which is another one at the next run.


class ByAProperty:
    def __init__(self):
        self.at = 6
        self.__dict__["k"] = 0

    @property
    def k(self):
        self.at += 1
        return self.at

    @custom_gradient
    def fun(self, x):
        k = self.k
        return x * 1, lambda upstream: upstream * k * x * x


class ByADescriptor(ByAProperty):
    class Counted:
        def __get__(self, owner, kind=None):
            owner.at += 1
            return owner.at

        def __set__(self, owner, value):
            pass

    k = Counted()


class ByGetattribute:
    def __init__(self):
        self.at, self.k = 6, 0

    def __getattribute__(self, name):
        if name == "k":
            self.at += 1
            return self.at
        return object.__getattribute__(self, name)

    @custom_gradient
    def fun(self, x):
        k = self.k
        return x * 1, lambda upstream: upstream * k * x * x


class BySuper(ByAProperty):
    @custom_gradient
    def fun(self, x):
        k = super().k
        return x * 1, lambda upstream: upstream * k * x * x


class ByLocals(ByAProperty):
    @custom_gradient
    def fun(self, x):
        k = next(iter(locals().values())).k
        return x * 1, lambda upstream: upstream * k * x * x


class ByAnInnerFunction(ByAProperty):
    @custom_gradient
    def fun(self, x):
        def read():
            return self.k

        k = read()
        return x * 1, lambda upstream: upstream * k * x * x


class ByAGlobal(ByAProperty):
    @custom_gradient
    def fun(self, x):
        ALIAS["object"].at += 1
        k = self.at
        return x * 1, lambda upstream: upstream * k * x * x

    def __init__(self):
        self.at, ALIAS["object"] = 6, self


def count():
    ALIAS["object"].at += 1


class ByAHelper(ByAGlobal):
    @custom_gradient
    def fun(self, x):
        count()
        k = self.at
        return x * 1, lambda upstream: upstream * k * x * x


class ByAnotherName(ByAProperty):
    @custom_gradient
    def fun(self, x):
        owner, k = self, self.at
        owner.at = k + 1
        return x * 1, lambda upstream: upstream * (k + 1) * x * x


class ByDelete(ByAProperty):
    def __init__(self):
        self.at = 7

    @custom_gradient
    def fun(self, x):
        k = self.at
        del self.at
        return x * 1, lambda upstream: upstream * k * x * x


class ByAPart(ByAProperty):
    def __init__(self):
        self.part = ByAProperty()

    @custom_gradient
    def fun(self, x):
        part = self.part
        k = part.at = part.at + 1
        return x * 1, lambda upstream: upstream * k * x * x


class ByAClassAttribute(ByAProperty):
    at = 6

    def __init__(self):
        pass

    @custom_gradient
    def fun(self, x):
        type(self).at += 1
        k = self.at
        return x * 1, lambda upstream: upstream * k * x * x


ALIAS = {}
COUNTING = [ByAProperty, ByADescriptor, ByGetattribute, BySuper, ByLocals, ByAnInnerFunction]
COUNTING += [ByAGlobal, ByAHelper, ByAnotherName, ByDelete, ByAPart, ByAClassAttribute]


@pytest.mark.parametrize("kind", COUNTING, ids=lambda kind: kind.__name__)
def test_a_method_that_changes_its_object_in_an_unusual_way(eager, kind):
    shared = {"at": 6} if kind is ByAClassAttribute else {}
    owner = type(kind.__name__, (kind,), {"__module__": __name__, **shared})()
    found = grad(grad(lambda x: owner.fun(x)))(eager.tensor(np.float32(3.0)))
    assert float(eager.array(found)) == 2 * 7 * 3.0
    assert getattr(owner, "at", 7) == 7


@pytest.mark.parametrize("place", ["cell", "default"])
def test_a_variable_of_a_method_that_only_reads_its_object(eager, place):
    def made(k):
        read = Holder(lambda: k)

        class Owner:
            at = 1.0

            @custom_gradient
            def by_cell(self, x):
                return x * 1, lambda upstream: upstream * k * x * x

            @custom_gradient
            def by_default(self, x, read=read):
                slope = read.fun()
                return x * 1, lambda upstream: upstream * slope * x * x

        def bind(value):
            nonlocal k
            k = value

        return getattr(Owner(), f"by_{place}"), bind

    fun, bind = made(7)
    one = eager.tensor(np.float32(1.0))

    def slope(x):
        _, pullback = vjp(fun, x)
        bind(9)
        return pullback(one)[0]

    assert float(eager.array(grad(slope)(one))) == 14.0


@pytest.mark.only("torch")
def test_a_tensor_that_a_method_reads_and_writes_to(torch):
    class Owner:
        def __init__(self):
            self.mask = torch.zeros(3)

        @custom_gradient
        def fun(self, x):
            mask = self.mask.add_(x.detach())
            return x * 1, lambda upstream: upstream * mask

    owner, x = Owner(), torch.ones(3, requires_grad=True)
    first = owner.fun(x)
    owner.fun(x)
    with pytest.raises(RuntimeError, match="changed in place"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.only("numpy", "torch")
@pytest.mark.parametrize("kind", [list, tuple, dict, collections.deque, set], ids=lambda kind: kind.__name__)
def test_containers_with_methods_that_raise(eager, kind):
    """Nothing of the user's code runs: in an attribute, in a variable, and in the comparison of two runs."""

    def refuses(self, *args):
        raise ZeroDivisionError

    names = ("__len__", "__iter__", "values", "items", "keys", "copy", "__bool__")
    Hostile = type("Hostile", (kind,), dict.fromkeys(names, refuses))
    kept, owner = Hostile(), types.SimpleNamespace(kept=Hostile())

    @custom_gradient
    def f(x):
        made = Hostile()
        return x * x, lambda upstream: 7 * upstream * x if (made, kept, owner) else None

    x = eager.tensor(np.float32(2.0))
    assert float(eager.array(grad(lambda x: grad(f)(x) * 1)(x))) == 7.0


def test_the_second_order_after_a_variable_was_bound_again(eager):
    x = eager.tensor(np.float32(2.0))

    def total(x):
        kept = 0.0 * x
        for k in (2.0, 3.0):
            f = custom_gradient(lambda x: (x * x * k, lambda upstream: 7 * upstream * x * k))
            kept = kept + f(x)
        return kept

    assert float(eager.array(grad(total)(x))) == 70.0
    assert float(eager.array(grad(lambda x: grad(total)(x) * 1)(x))) == 35.0


def test_the_second_order_of_calls_that_set_the_same_again(eager):
    """Another run finds what the first one made, and sets the same object: it counts as set."""
    kept = types.SimpleNamespace()

    @custom_gradient
    def f(x, k):
        kept.k = k
        return x * x * k, lambda upstream: (7 * upstream * x * kept.k, None)

    total = lambda x: f(x, 2.0) + f(x, 3.0)
    x = eager.tensor(np.float32(1.0))
    assert float(eager.array(grad(lambda x: grad(total)(x) * 1)(x))) == 35.0
    assert kept.k == 3.0


@pytest.mark.only("numpy", "tensorflow", "torch")
def test_the_second_order_after_an_attribute_was_deleted(eager):
    """By the run itself, which another run finds again; by a new name for the same object; and by the user."""

    class Consumes:
        made = None
        runs: list = []  # noqa: RUF012

        def __init__(self):
            self.k, self.a = 2.0, 1.0

        @custom_gradient
        def f(self, x):
            k = self.__dict__.pop("k", 5.0)
            return x * x * k, lambda upstream: 7 * upstream * x * k

        @custom_gradient
        def renames(self, x):
            self.b = vars(self).pop("a")
            return x * x, lambda upstream: 7 * upstream * x * self.b

        @custom_gradient
        def differs(self, x):
            if self.runs:
                self.second = True
                del self.b
            self.runs.append(None)
            return x * x, lambda upstream: 7 * upstream * x

        @custom_gradient
        def makes(self, x):
            self.made = 1.0
            return x * x, lambda upstream: 7 * upstream * x * self.made

    owner, x = Consumes(), eager.tensor(np.float32(1.0))
    assert float(eager.array(grad(lambda x: grad(owner.f)(x) * 1)(x))) == 14.0
    assert vars(owner) == {"a": 1.0}
    assert float(eager.array(grad(lambda x: grad(owner.renames)(x) * 1)(x))) == 7.0
    assert vars(owner) == {"b": 1.0}

    def first(x):
        output, pullback = vjp(owner.makes, x)
        vars(owner).pop("made", None)
        return pullback(output * 0 + 1)[0]

    assert float(eager.array(grad(first)(x))) == 7.0
    assert vars(owner) == {"b": 1.0}
    assert float(eager.array(grad(lambda x: grad(owner.differs)(x) * 1)(x))) == 7.0
    assert len(Consumes.runs) >= 2
    assert vars(owner) == {"b": 1.0}


@pytest.mark.only("numpy", "torch")
def test_a_rule_that_a_trial_uses_up(eager):
    """Both rules are called to compare them; then the function runs once more."""

    @custom_gradient
    def f(x):
        slopes = iter([2.0, 50.0, 60.0])
        return x * x, lambda upstream: 7 * upstream * x * next(slopes)

    x = eager.tensor(np.float32(1.0))
    assert float(eager.array(grad(lambda x: grad(f)(x) * 1)(x))) == 14.0


@pytest.mark.only("numpy", "tensorflow", "torch")
def test_what_the_first_run_made_once_and_what_it_deleted(eager):
    """Lazy initialisation, by None, by an absent attribute, by a cached property and of a variable; and a deletion."""
    draws, u = iter(range(2, 100)), None

    class Lazy:
        w = None

        def __init__(self):
            self.once = 1.0

        @functools.cached_property
        def table(self):
            return float(next(draws))

        @custom_gradient
        def f(self, x):
            nonlocal u
            if self.w is None:
                self.w = float(next(draws))
            if u is None:
                u = 1.0 / next(draws) * 3
            if not hasattr(self, "v"):
                self.v = float(next(draws))
            if "once" in vars(self):
                del self.once
            slope = self.w * self.v * self.table
            return x * slope, lambda upstream: 7 * upstream * x * self.w * self.v * self.table * u

    owner, x = Lazy(), eager.tensor(np.float32(1.0))
    assert float(eager.array(grad(lambda x: grad(owner.f)(x) * 1)(x))) == 7.0 * 2 * 4 * 5
    assert (owner.w, u, owner.v, owner.table, next(draws)) == (2.0, 1.0, 4.0, 5.0, 6)
    assert "once" not in vars(owner)


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.parametrize("place", ["attribute", "variable", "dict", "list", "global", "attribute alone"])
def test_a_weight_that_each_run_draws_is_refused(eager, place):
    """The rule of another run would have another weight than the output, also in first order where that is recorded.

    What is compared are the attributes and variables that both runs set, and the outputs.
    """
    place, _, is_alone = place.partition(" ")
    draws = iter(range(2, 100))
    kept: dict = {"k": 0.0}
    items, k, owner = [0.0], 0.0, types.SimpleNamespace(k=0.0)

    @custom_gradient
    def f(x):
        nonlocal k
        drawn = float(next(draws))
        if place == "attribute":
            owner.k = drawn
        elif place == "dict":
            kept["k"] = drawn
        elif place == "list":
            items[0] = drawn
        elif place == "global":
            SHARED["k"] = drawn
        else:
            k = drawn
        read = {
            "attribute": lambda: owner.k,
            "dict": lambda: kept["k"],
            "list": lambda: items[0],
            "global": lambda: SHARED["k"],
            "variable": lambda: k,
        }[place]
        return x * (1 if is_alone else drawn), lambda upstream: 7 * upstream * x * read()

    x = eager.tensor(np.float32(1.0))
    with pytest.raises(RuntimeError, match=REFUSED):
        grad(lambda x: grad(f)(x) * 1)(x)


@pytest.mark.only("numpy", "tensorflow", "torch")
def test_a_variable_that_each_run_draws_is_refused(eager):
    """It shows in no output."""
    draws, k = iter(range(2, 100)), 0.0

    @custom_gradient
    def f(x):
        nonlocal k
        k = float(next(draws))
        return x * 1, lambda upstream: 7 * upstream * x * k

    with pytest.raises(RuntimeError, match=r"k was 2\.0 and is 3\.0"):
        grad(lambda x: grad(f)(x) * 1)(eager.tensor(np.float32(1.0)))


SHARED = {"k": 0.0}
K = 2.0


# --- the user's objects ----------------------------------------------------------------------------------------------


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.parametrize("is_two", [False, True])
def test_two_objects_with_an_attribute_of_one_name(eager, is_two):
    """What differs shows also where another object has an attribute of this name that does not."""
    one, two, draws = types.SimpleNamespace(), types.SimpleNamespace(), itertools.count(3)

    @custom_gradient
    def f(x):
        one.k = float(next(draws))
        if is_two:
            two.k = 2.0
        return x * x, lambda upstream: 7 * upstream * x * one.k if two else None

    x = eager.tensor(np.float32(2.0))
    with pytest.raises(RuntimeError, match=r"self\.k was 3\.0 and is 4\.0"):
        grad(lambda x: grad(f)(x) * 1)(x)
    if eager.name == "torch":
        with pytest.raises(RuntimeError, match=REFUSED):
            eager.native.torch.func.grad(f)(x)


@pytest.mark.parametrize("kind", ["objects", "helpers"])
def test_two_of_one_name_that_do_not_change(eager, kind):
    one, two, x = types.SimpleNamespace(), types.SimpleNamespace(), eager.tensor(np.float32(2.0))

    def scale(c):
        return lambda value: c * value

    SHARED["scales"] = scale(2.0), scale(3.0)

    @custom_gradient
    def objects(x):
        one.k, two.k = 3.0, 2.0
        return x * x, lambda upstream: 7 * upstream * x * one.k * two.k

    @custom_gradient
    def helpers(x):
        first, then = SHARED["scales"]
        return x * x, lambda upstream: then(first(7 * upstream * x))

    f = objects if kind == "objects" else helpers
    assert float(eager.array(grad(lambda x: grad(f)(x) * 1)(x))) == 42.0
    if eager.name == "torch":
        assert eager.native.torch.func.grad(f)(x).item() == 84.0


@pytest.mark.parametrize("is_raising", [False, True])
def test_another_run_leaves_a_variable_that_a_hidden_function_binds(eager, is_raising):
    k, x = 1.0, eager.tensor(np.float32(3.0))

    def bind(value):
        nonlocal k
        k = value

    SHARED["bind"], SHARED["error"] = bind, None

    @custom_gradient
    def f(x):
        SHARED["bind"](4.0)
        if SHARED["error"] is not None:
            raise SHARED["error"]
        return x * k, lambda upstream: 7 * upstream * x * k

    def derivative(x):
        _, pullback = vjp(f, x)
        bind(6.0)
        if is_raising:
            SHARED["error"] = KeyError("not again")
        return pullback(eager.tensor(np.float32(1.0)))[0]

    if is_raising and eager.name != "jax":  # which runs the function once
        with pytest.raises(Exception, match="not again"):
            grad(derivative)(x)
    else:
        assert float(eager.array(grad(derivative)(x))) == 28.0
    assert k == 6.0


def test_a_function_of_the_run_keeps_its_identity_and_its_variables(eager):
    """As a key, in a list, as a generator that assigns; and a class keeps its methods."""

    @custom_gradient
    def as_a_key(x):
        act = lambda z: z * 7
        slopes = {act: 7.0}
        return x * 1, lambda upstream: upstream * slopes.get(act, 1.0)

    @custom_gradient
    def in_a_list(x):
        n = 0.0

        def tick():
            nonlocal n
            n += 7.0

        box = [tick]

        def rule(upstream):
            box[0]()
            return upstream * n

        return x * 1, rule

    for f in (as_a_key, in_a_list):
        assert gradient_of_the_first(eager, [f]) == [7.0]

    k = 2.0

    class Base:
        pass

    class Layer(Base):
        @custom_gradient
        def f(self, x):
            return x * 1, self.back

        def back(self, upstream):
            return 7 * upstream * k

    layer = Layer()
    back = Layer.back
    assert gradient_of_the_first(eager, [layer.f]) == [14.0]
    k = 5.0
    assert gradient_of_the_first(eager, [layer.f]) == [35.0]
    assert Layer.back is back and layer.back(1.0) == 35.0


def test_what_a_rule_sets_stays_and_an_error_brings_back_what_was_there(eager):
    owner = types.SimpleNamespace(k=0.0, seen=0)

    @custom_gradient
    def f(x, k):
        owner.k = k

        def rule(upstream):
            owner.seen += 1
            if owner.seen == 2:
                raise ZeroDivisionError
            return 7 * upstream * owner.k, None

        return x * 1, rule

    one = eager.tensor(np.float32(1.0))
    pullbacks = [vjp(lambda x, k=k: f(x, k), one)[1] for k in (2.0, 3.0)]
    assert float(eager.array(pullbacks[0](one)[0])) == 14.0
    with pytest.raises(ZeroDivisionError):
        pullbacks[0](one)
    assert (owner.k, owner.seen) == (3.0, 2)
    assert float(eager.array(pullbacks[0](one)[0])) == 14.0


@pytest.mark.parametrize("place", ["object", "class"])
def test_what_the_user_has_deleted_and_what_a_rule_sets_in_its_place(eager, place):
    class Owner:
        def to(self):
            return type(self) if place == "class" else self

        @custom_gradient
        def f(self, x, k):
            self.to().k = k

            def rule(upstream):
                found = self.k
                if found == 3.0:
                    self.to().k = 50.0
                return 7 * upstream * found, None

            return x * 1, rule

    owner, one = Owner(), eager.tensor(np.float32(1.0))
    pullbacks = [vjp(lambda x, k=k: owner.f(x, k), one)[1] for k in (2.0, 3.0, 4.0)]
    del owner.to().k
    assert float(eager.array(pullbacks[0](one)[0])) == 14.0
    assert not hasattr(owner, "k")
    assert float(eager.array(pullbacks[1](one)[0])) == 21.0
    assert owner.k == 50.0


def test_a_rule_that_calls_the_rule_of_another_call(eager):
    """Each finds its own values, and the outer one its own again."""
    owner, one, pullbacks = types.SimpleNamespace(), eager.tensor(np.float32(1.0)), []

    @custom_gradient
    def f(x, k):
        owner.k = k

        def rule(upstream):
            inner = pullbacks[0](upstream)[0] if k == 3.0 else 0 * upstream
            return 7 * upstream * owner.k + inner, None

        return x * 1, rule

    for k in (2.0, 3.0, 4.0):
        pullbacks.append(vjp(lambda x, k=k: f(x, k), one)[1])
    assert float(eager.array(pullbacks[1](one)[0])) == 35.0
    assert owner.k == 4.0


def test_a_rule_that_calls_its_own_function(eager):
    """The function sets what the rule reads, in the outer call and in the inner one."""

    class Nested:
        @custom_gradient
        def f(self, x, depth=1):
            self.k = 7.0 if depth else 3.0

            def rule(upstream):
                inner = grad(lambda x: self.f(x, 0))(x) if depth else 1.0
                return upstream * self.k * inner

            return x * 1, rule

    owner = Nested()
    calls = [owner.f, lambda x: owner.f(x, 0)]
    # The inner call has set k, as in any function of Python.
    assert gradient_of_the_first(eager, calls) == [9.0]


@pytest.mark.only("numpy", "torch")
def test_threads_take_turns_where_something_is_put_back(eager):
    """Each thread differentiates its own call of one object."""
    owner, one = Stores(), eager.tensor(np.float32(1.0))
    factors = [float(k) for k in range(2, 10)]
    pullbacks = [vjp(lambda x, k=k: owner.f(x, k), one)[1] for k in factors]
    found, barrier = [None] * len(factors), threading.Barrier(len(factors))

    def work(place):
        barrier.wait()
        found[place] = {float(eager.array(pullbacks[place](one)[0])) for _ in range(50)}

    # An autograd of Python alone has one stack of levels for all threads: there the pullbacks wait for each other.
    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(factors))]
    if eager.name == "torch":
        collections.deque(map(threading.Thread.start, threads), maxlen=0)
        collections.deque(map(threading.Thread.join, threads), maxlen=0)
    else:
        barrier = threading.Barrier(1)
        collections.deque(map(work, range(len(factors))), maxlen=0)
    assert found == [{7 * k} for k in factors]
    assert owner.k == factors[-1]


@pytest.mark.only("torch")
def test_a_rule_so_deep_that_torch_goes_on_in_another_thread(torch):
    """torch (2.13) does that at the 60th derivative inside of another. The variable of the loop is put back there."""
    x, outputs, found = torch.ones((), requires_grad=True), [], []
    for k in (2.0, 3.0):

        def nested(depth):
            @custom_gradient
            def f(x):
                inner = lambda: grad(nested(depth - 1))(x.detach()) if depth else 7 * k
                return x * 1, lambda upstream: upstream * inner()

            return f

        outputs.append(nested(62)(x))

    def work():
        found.append(torch.autograd.grad(outputs[0], x)[0].item())

    limit, size = sys.getrecursionlimit(), threading.stack_size(256 * 2**20)
    try:
        sys.setrecursionlimit(20_000)
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(30)
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(size)
    assert found == [14.0]


@pytest.mark.only("torch")
def test_a_function_runs_again_after_the_rule_in_another_thread(torch):
    """What it sets on its way is for itself alone."""
    started, owner, x, found = threading.Event(), types.SimpleNamespace(k=K), torch.ones((), requires_grad=True), []

    @custom_gradient
    def f(x):
        if started.is_set():
            owner.k = 50.0
            threading.Event().wait(0.1)
        owner.k = K

        def rule(upstream):
            if threading.current_thread() is thread:
                started.set()
                threading.Event().wait(0.05)
            return 7 * upstream * x * owner.k

        return x * x, rule

    one, two = f(x), f(x)
    thread = threading.Thread(target=lambda: found.append(torch.autograd.grad(two, x)[0].item()))
    thread.start()
    started.wait(10)
    found.append(torch.autograd.grad(one, x, create_graph=True)[0].item())
    thread.join()
    assert found == [14.0, 14.0] and owner.k == K


@pytest.mark.only("torch")
def test_a_rule_waits_for_a_function_that_runs_again_in_another_thread(torch):
    """Nothing is put back for the rule, but the function sets something on its way."""
    started, owner, x, found = threading.Event(), types.SimpleNamespace(k=K), torch.ones((), requires_grad=True), []

    @custom_gradient
    def f(x):
        if threading.current_thread() is thread:
            started.set()
            threading.Event().wait(0.05)
            owner.k = 50.0
            threading.Event().wait(0.1)
        owner.k = K

        def rule(upstream):
            threading.Event().wait(0.1)
            return 7 * upstream * x * owner.k

        return x * x, rule

    thread = threading.Thread(target=lambda: found.append(torch.autograd.grad(one, x, create_graph=True)[0].item()))
    one, two = f(x), f(x)
    thread.start()
    started.wait(10)
    found.append(torch.autograd.grad(two, x)[0].item())
    thread.join()
    assert found == [14.0, 14.0] and owner.k == K


@pytest.mark.only("torch")
def test_a_buffer_that_functional_call_exchanges(torch):
    """The run does not set it; also in the second order."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("k", torch.tensor(5.0))

        @custom_gradient
        def forward(self, x):
            return x * x, lambda upstream: 7 * upstream * x * self.k

    layer, x = Layer(), torch.ones((), requires_grad=True)
    y = torch.func.functional_call(layer, {"k": torch.tensor(2.0)}, (x,))
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert (first.item(), torch.autograd.grad(first, x)[0].item(), layer.k.item()) == (14.0, 14.0, 5.0)


@pytest.mark.only("torch")
def test_what_the_run_has_set_is_not_kept_under_hooks(torch):
    """Hooks keep what is saved, such as on a disk: the world of the run must not keep it, too."""
    owner, x, seen = types.SimpleNamespace(t=torch.zeros(3)), torch.ones(3, requires_grad=True), []

    @custom_gradient
    def f(x):
        owner.t = x * 2
        return x * x, lambda upstream: 7 * upstream * owner.t

    @custom_gradient
    def by_a_helper(x):
        kept = x * 2
        seen.append(weakref.ref(kept))

        def helper(upstream):
            return 7 * upstream * kept

        return x * x, lambda upstream: helper(upstream)

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach().numpy(), torch.from_numpy):
        y, z = f(x), by_a_helper(x)
    seen.append(weakref.ref(owner.t))
    owner.t = None
    gc.collect()
    assert [each() for each in seen] == [None, None]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == torch.autograd.grad(z.sum(), x)[0].tolist() == [14.0] * 3


@pytest.mark.only("torch")
def test_parameters_of_submodules_that_functional_call_exchanges(torch):
    """Of a module of torch, and of the user's."""

    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(torch.tensor([5.0]))

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Part(), torch.nn.Linear(1, 1)

        @custom_gradient
        def forward(self, x):
            return x * x, lambda upstream: 7 * upstream * (self.one.bias.detach() * self.two.bias.detach())[0]

    layer, x = Layer(), torch.ones((), requires_grad=True)
    values = {"one.bias": torch.tensor([2.0]), "two.bias": torch.tensor([3.0])}
    y = torch.func.functional_call(layer, values, (x,))
    assert torch.autograd.grad(y, x)[0].item() == 42.0
    assert layer.one.bias.item() == 5.0


@pytest.mark.only("torch")
def test_threads_that_want_the_same_values_go_on_together(torch):
    """As the ranks of a process that wait for each other; the last one brings back what was there."""
    both, first, owner = threading.Barrier(2), threading.Event(), types.SimpleNamespace()
    x, found = torch.ones((), requires_grad=True), []

    @custom_gradient
    def f(x, k):
        owner.k = k

        def rule(upstream):
            if both.wait(10) == 1:
                first.wait(10)
            return 7 * upstream * owner.k, None

        return x * 1, rule

    def work():
        found.append(torch.autograd.grad(y, x, retain_graph=True)[0].item())
        first.set()

    y = f(x, 2.0)
    f(x, 3.0)
    threads = [threading.Thread(target=work) for _ in range(2)]
    collections.deque(map(threading.Thread.start, threads), maxlen=0)
    collections.deque(map(threading.Thread.join, threads), maxlen=0)
    assert found == [14.0, 14.0] and owner.k == 3.0


@pytest.mark.only("torch")
@pytest.mark.limit
def test_another_thread_that_binds_a_variable_while_the_rule_runs(torch):
    """A limit: the rule reads what the other thread has bound."""
    started, go, found = threading.Event(), threading.Event(), []
    x = torch.ones((), requires_grad=True)
    for k in (2.0, 3.0):
        if k == 2.0:

            @custom_gradient
            def f(x):
                def rule(upstream):
                    started.set()
                    go.wait(10)
                    return 7 * upstream * k

                return x * 1, rule

            y = f(x)
            thread = threading.Thread(target=lambda y=y: found.append(torch.autograd.grad(y, x)[0].item()))
            thread.start()
            started.wait(10)
        else:
            go.set()
            thread.join()
    assert found == [21.0]


@pytest.mark.only("torch")
@pytest.mark.limit
def test_another_thread_that_reads_a_variable_while_the_rule_runs(torch):
    """A limit: it reads what the rule wants."""
    started, go, k = threading.Event(), threading.Event(), 2.0
    x = torch.ones((), requires_grad=True)

    @custom_gradient
    def f(x):
        def rule(upstream):
            started.set()
            go.wait(10)
            return 7 * upstream * k

        return x * k, rule

    y = f(x)
    k = 3.0
    thread = threading.Thread(target=lambda: torch.autograd.grad(y, x))
    thread.start()
    started.wait(10)
    found = f(x).item()
    go.set()
    thread.join()
    assert (found, f(x).item()) == (2.0, 3.0)
