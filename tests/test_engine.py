"""The engine by itself: what is held, one run and another, is it linear, how exact is a dtype. No framework runs."""

import collections
import copy
import dataclasses
import functools
import gc
import types
import weakref

import numpy as np
import pytest

from keras_cg import backends
from keras_cg.engine import again, derived, held, linear, precision, settled

pytestmark = pytest.mark.once

# --- held -------------------------------------------------------------------------------------------------------------


class T:
    """Stands in for a tensor."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return self.name


def is_tensor(value):
    return isinstance(value, T)


def no_children(value):
    return None


def find(function, *arguments, made_by=None):
    return held.find(function, arguments, is_tensor, no_children, made_by)


Pair = collections.namedtuple("Pair", "one two")


@dataclasses.dataclass
class Fields:
    one: T
    two: object


class Plain:
    def __init__(self, **attributes):
        vars(self).update(attributes)

    def both(self):
        return [self.one, self.two]


class Slots:
    __slots__ = ("one", "two")

    def __init__(self, one, two):
        self.one, self.two = one, two


class Single:
    __slots__ = "only"

    def __init__(self, only, unused):
        self.only = only


class Private:
    __slots__ = ("__one", "unassigned")

    def __init__(self, one, unused):
        self.__one = one


class Inherited(Slots):
    __slots__ = ("__weakref__", "three")


class Mixed(Slots):
    """Slots, and a dict as well."""


class Careful(Plain):
    """Keeps what it holds by a `__setattr__` of its own, as modules do."""

    def __setattr__(self, name, value):
        raise AttributeError(name)


class Lazy(Plain):
    def __getattr__(self, name):
        raise AttributeError(name)


class Made(Plain):
    def __new__(cls, **attributes):
        return object.__new__(cls)


def helper(*values):
    """A function of the same module, which names a global itself."""
    return list(other_helper(values))


def other_helper(values):
    return values if values else helper(None)


def in_a_helper(a, b):
    def inner():
        return b

    return lambda: [a, inner()]


def in_defaults(a, b):
    def rule(x=a, *, y=b):
        return [x, y]

    return rule


def in_a_function_with_attributes(a, b):
    def rule():
        return [a, b]

    rule.mark = "kept"
    return rule


def beside_a_cell_without_value(a, b):
    def rule():
        return [a, b] if b else later

    if not a:
        later = None
    return rule


def in_a_function_that_calls_itself(a, b):
    def count(n):
        return n if n == 0 else count(n - 1)

    return lambda: [a, b] if count(2) == 0 else None


def in_a_decorated_function(a, b):
    return lambda: helper(a, b)


def in_a_list(a, b):
    values = [a, [b, 3, "text"]]
    return lambda: [values[0], values[1][0]]


def in_a_dict(a, b):
    values = {"b": b, "a": a, "n": 3}
    return lambda: [values["a"], values["b"]]


def in_a_tuple(a, b):
    values = (a, "text", Pair(b, 5))
    return lambda: [values[0], values[2].one]


def in_a_dataclass(a, b):
    values = Fields(a, {"b": b})
    return lambda: [values.one, values.two["b"]]


def in_an_object(a, b):
    values = Plain(one=a, two=b, three="text")
    return lambda: [values.one, values.two] if values.three == "text" else None


def in_an_object_in_an_object(a, b):
    values = Plain(inner=Plain(one=a), two=b)
    return lambda: [values.inner.one, values.two]


def in_a_list_in_an_object(a, b):
    values = Plain(all=[a, b])
    return lambda: values.all


def in_a_namespace(a, b):
    values = types.SimpleNamespace(one=a, two=b)
    return lambda: [values.one, values.two]


def in_a_list_of_a_function_inside(a, b):
    def inner():
        values = [a, b]
        return lambda: list(values)

    return inner()


# `make(a, b)` gives a rule that gives `[a, b]`, found wherever it holds them, and moved.
WHOLE = {
    "closure": lambda a, b: lambda: [a, b],
    "closure beside numbers": lambda a, b, n=3, kind=float: lambda: [a, b] if n == 3 and kind is float else None,
    "helper": in_a_helper,
    "defaults": in_defaults,
    "attributes of a function": in_a_function_with_attributes,
    "a cell without value": beside_a_cell_without_value,
    "a function that calls itself": in_a_function_that_calls_itself,
    "functions of the module": in_a_decorated_function,
    "list": in_a_list,
    "list of a function inside": in_a_list_of_a_function_inside,
    "dict": in_a_dict,
    "tuple": in_a_tuple,
    "dataclass": in_a_dataclass,
    "object": in_an_object,
    "object in an object": in_an_object_in_an_object,
    "namespace": in_a_namespace,
    "method": lambda a, b: Plain(one=a, two=b).both,
    "partial": lambda a, b: functools.partial(lambda x, y, z: [x, y] if z == 1 else None, a, z=1, y=b),
    "callable object": lambda a, b: functools.partial(Plain.both, Plain(one=a, two=b)),
    "slots without a tensor": lambda a, b: (lambda s: lambda: [a, b] if s.one == 1 else None)(Slots(1, 2)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_found_and_moved(name):
    make = WHOLE[name]
    a, b, c, d = map(T, "abcd")
    rule = make(a, b)
    taken = find(rule, made_by=make)
    assert set(taken.tensors) == {a, b} and len(taken.tensors) == 2
    assert taken.is_whole and not taken.is_hiding and not taken.stuck
    others = {a: c, b: d}
    made, arguments = taken.build([others[tensor] for tensor in taken.tensors])
    assert made() == [c, d] and arguments == ()
    assert rule() == [a, b]
    assert taken.build(taken.tensors)[0]() == [a, b]


def in_a_set(a, b):
    values = {a}
    return lambda: [*values, b]


def in_a_deque(a, b):
    values = collections.deque([a])
    return lambda: [values[0], b]


def behind_a_built_in_method(a, b):
    get = {"a": a}.get
    return lambda: [get("a"), b]


def behind_a_wrapper(a, b):
    def inner():
        return a

    @functools.wraps(inner)
    def outer():
        return outer.__wrapped__()

    return lambda: [outer(), b]


def behind_a_cache(a, b):
    @functools.lru_cache
    def get():
        return a

    return lambda: [get(), b]


def assigned_by_the_rule(a, b):
    count = 0

    def rule():
        nonlocal count
        count += 1
        return [a, b]

    return rule


def assigned_by_a_helper(a, b):
    def rule():
        def assign():
            nonlocal a
            a = a

        assign()
        return [a, b]

    return rule


def written_by_the_rule(a, b):
    values = Plain(one=a)

    def rule():
        values.one, kept = None, values.one
        values.one = kept
        return [kept, b]

    return rule


def in_a_list_of_a_global(a, b):
    KEPT[:] = [a]
    return lambda: [KEPT[0], b]


def in_a_global_that_is_assigned(a, b):
    global ASSIGNED
    ASSIGNED = a
    return lambda: [ASSIGNED, b]


def in_a_global_of_a_helper(a, b):
    KEPT[:] = [a]
    return lambda: [first_kept(), b]


def in_a_global_of_a_function_inside(a, b):
    KEPT[:] = [a]
    return lambda: [(lambda: KEPT[0])(), b]


def first_kept():
    return KEPT[0]


KEPT = []
ASSIGNED = None

# Found, too, but at least `a` stays where it is.
STUCK = {
    "list in an object": in_a_list_in_an_object,
    "set": in_a_set,
    "deque": in_a_deque,
    "built-in method": behind_a_built_in_method,
    "wrapper": behind_a_wrapper,
    "cache": behind_a_cache,
    "assigned by the rule": assigned_by_the_rule,
    "assigned by a function in it": assigned_by_a_helper,
    "written by the rule": written_by_the_rule,
    "list of a global": in_a_list_of_a_global,
    "global that is assigned": in_a_global_that_is_assigned,
    "global of a helper": in_a_global_of_a_helper,
    "global of a function inside": in_a_global_of_a_function_inside,
}


@pytest.mark.parametrize("name", STUCK)
def test_what_is_found_and_stays(name):
    make = STUCK[name]
    a, b, c, d = map(T, "abcd")
    rule = make(a, b)
    taken = find(rule, made_by=make)
    assert set(taken.tensors) == {a, b}
    assert taken.tensors.index(a) in taken.stuck and not taken.is_whole
    others = {a: c, b: d}
    assert taken.build([others[tensor] for tensor in taken.tensors])[0]()[0] is a
    rest = taken.movable()
    assert a not in rest.tensors and rest.is_hiding and not rest.is_whole
    made = rest.build([others[tensor] for tensor in rest.tensors])[0]
    assert made() == [a, d if rest.tensors else b]


def in_an_iterator(a, b):
    values = iter([a])
    return lambda: values


def in_a_generator(a, b):
    values = (value for value in [a])
    return lambda: values


def in_slots(one, two, kind=Slots):
    values = kind(one, two)
    return lambda: values


# Not found, and said so.
HIDING = {
    "slots": in_slots,
    "slots in slots": lambda a, b: in_slots(1, Slots({"a": [a]}, 2)),
    "slots and a dict": lambda a, b: in_slots(a, 2, Mixed),
    "a single slot": lambda a, b: in_slots(a, 2, Single),
    "private slots": lambda a, b: in_slots(a, 2, Private),
    "inherited slots": lambda a, b: in_slots(a, 2, Inherited),
    "own setattr": lambda a, b: in_slots(a, 2, lambda one, two: Careful(one=one)),
    "own getattr": lambda a, b: in_slots(a, 2, lambda one, two: Lazy(one=one)),
    "own new": lambda a, b: in_slots(a, 2, lambda one, two: Made(one=one)),
    "iterator": in_an_iterator,
    "generator": in_a_generator,
    "more than anybody looks through": lambda a, b: in_slots(1, [[] for _ in range(300)]),
}


@pytest.mark.parametrize("name", HIDING)
def test_what_may_hide_a_tensor(name):
    make = HIDING[name]
    taken = find(make(T("a"), T("b")), made_by=make)
    assert taken.is_hiding and not taken.is_whole and not taken.stuck
    assert taken.movable().is_hiding


EMPTY = [
    Slots(1, [2]),
    Inherited(1, 2),
    Private(1, 2),
    Careful(one=1),
    Lazy(one={}),
    len,
    np.float32(1),
    range(3),
    slice(1),
    ...,
    T,
    np.dtype(float),
]


@pytest.mark.parametrize("value", EMPTY)
def test_what_hides_nothing(value):
    taken = find(lambda: value)
    assert taken.is_whole and taken.tensors == []


def calls_itself(a, b):
    def rule(n):
        return [a] if n == 0 else [*rule(n - 1), b]

    return rule


def call_each_other(a, b):
    def rule(n):
        return [a] if n == 0 else other(n)

    def other(n):
        return [*rule(n - 1), b]

    return rule


def knows_itself(a, b):
    values = Plain(one=a)
    values.itself = values
    return lambda n: [values.itself.one, *[b] * n]


@pytest.mark.parametrize("make", [calls_itself, call_each_other, knows_itself])
def test_what_is_met_again_inside_itself_is_not_whole(make):
    """It cannot be made anew by a walk from the outside in."""
    a, b = T("a"), T("b")
    taken = find(make(a, b), made_by=make)
    assert not taken.is_whole and taken.is_hiding
    assert taken.build(taken.tensors)[0](1) == [a, b]


def test_lists_made_elsewhere_stay():
    """They may be meant to change, and may be older than the run; dicts and lists in arguments are the run's own."""
    a, elsewhere = T("a"), [T("b")]

    def make(a):
        own = [a]
        return lambda: [own[0], elsewhere[0]]

    taken = find(make(a), made_by=make)
    assert [taken.tensors[place] for place in taken.stuck] == elsewhere
    made = taken.build([T("c")] * 2)[0]
    assert made()[1] is elsewhere[0] and made()[0] is not a
    fields = Fields(a, 3)
    assert find(lambda: fields).build([T("d")])[0]().one.name == "d"
    unknown = find(make(a))
    assert len(unknown.stuck) == 2
    before = [T("x")]
    assert find(len, a, before).is_whole


def test_globals_stay():
    """A run may have assigned one, by a helper of which nothing is known."""
    scope = {"constant": T("constant")}
    rule = eval("lambda: constant", scope)
    taken = find(rule)
    assert taken.tensors == [scope["constant"]] and set(taken.stuck) == {0} and not taken.is_whole
    assert taken.build([T("other")])[0]() is scope["constant"]


def test_functions_of_libraries_are_not_opened():
    stranger = eval("lambda: kept[0]", {"kept": [T("a")], "__name__": "torch.nn.functional"})
    rule = eval("lambda: stranger()", {"stranger": stranger})
    assert find(rule).tensors == []
    friend = eval("lambda: kept[0]", {"kept": [T("a")], "__name__": "helpers"})
    assert len(find(eval("lambda: friend()", {"friend": friend})).stuck) == 1
    stranger.__globals__["neighbour"] = stranger
    assert len(find(eval("lambda: neighbour()", stranger.__globals__)).stuck) == 1


def test_one_thing_stays_one_thing():
    def make(a, b):
        shared, thing = [a], Plain(one=b)
        first, second = (lambda: (shared, thing)), (lambda: (shared, thing))
        return lambda: (first(), second())

    made = find(make(T("a"), T("b")), made_by=make).build([T("c"), T("d")])[0]
    (one, thing), (two, same) = made()
    assert one is two and thing is same and one[0].name == "c" and thing.one.name == "d"


def test_one_tensor_in_two_places_is_found_once():
    a, c = T("a"), T("c")
    taken = find(lambda x=a: [x, a], a, [a])
    assert taken.tensors == [a]
    made, arguments = taken.build([c])
    assert made() == [c, c] and arguments == (c, [c])


def test_arguments_are_made_anew():
    a, b, c, d = map(T, "abcd")
    kept = {"a": a, "n": 3}
    taken = find(len, kept, "text", (b,))
    made, arguments = taken.build([c, d])
    assert made is len and arguments == ({"a": c, "n": 3}, "text", (d,))
    assert kept == {"a": a, "n": 3}


def test_a_function_that_is_made_anew_keeps_its_name_and_attributes():
    a = T("a")

    def rule(x=a, *, n=3):
        return x, n

    rule.mark = "kept"
    made = find(rule).build([T("b")])[0]
    assert made is not rule and made.__name__ == "rule" and made.mark == "kept"
    assert made()[0].name == "b" and made(n=5)[1] == 5 and made()[1] == 3


def test_a_function_of_which_only_that_is_peculiar_is_made_anew_as_well():
    a, b = T("a"), T("b")

    def with_a_keyword(*, x=a):
        return [x, a]

    def with_an_attribute():
        return a

    with_an_attribute.mark = 3
    assert find(with_a_keyword).build([b])[0]() == [b, b]
    made = find(with_an_attribute).build([b])[0]
    assert made() is b and made.mark == 3


def test_what_makes_it_anew_holds_no_tensor():
    for make in WHOLE.values():
        tensors = list(map(T, "ab"))
        watched = [weakref.ref(tensor) for tensor in tensors]
        build = find(make(*tensors), made_by=make).build
        del tensors
        gc.collect()
        assert [reference() for reference in watched] == [None, None], make
        del build


def test_movable_without_anything_stuck():
    a, b, c, d = map(T, "abcd")
    rest = find(lambda: [a, b]).movable()
    assert rest.is_whole and rest.build([c, d])[0]() == [c, d]


def test_an_array_is_a_tensor_where_arrays_are():
    """An atom elsewhere, it is one on NumPy, in whatever holds it."""
    x = np.ones(3)

    def make(x):
        more, values = {"x": x * 2}, [x]
        return lambda: (more["x"], values[0])

    numpy = backends.load("numpy", "a test")
    taken = held.find(make(x), (), numpy.is_tensor, numpy.children, make)
    assert [tensor.tolist() for tensor in taken.tensors] == [[2, 2, 2], [1, 1, 1]] and taken.is_whole
    assert taken.build([3, 5])[0]() == (3, 5)
    scope = {"x": x, "numpy": np}
    assert held.find(eval("lambda: x", scope), (), numpy.is_tensor, numpy.children).tensors == [x]
    elsewhere = [x]
    assert not held.find(lambda: elsewhere, (), numpy.is_tensor, numpy.children).is_whole


# --- again ------------------------------------------------------------------------------------------------------------


class Fun:
    """A function as the frontend hands it to a backend: `compute(*inputs)` gives `(outputs, rule)`."""

    name = "f"

    def __init__(self, compute):
        self.compute, self.runs = compute, 0

    def __call__(self, *tensors):
        self.runs += 1
        outputs, rule = self.compute(*tensors)
        return outputs, Pull(rule, self.compute)


class Pull:
    def __init__(self, rule, made_by):
        self.rule, self.made_by, self.names = rule, made_by, None

    def __call__(self, cotangents, variables=(), wanted=None):
        result = self.rule(*cotangents, *variables)
        return result[: len(result) - len(variables)], result[len(result) - len(variables) :]

    def held(self):
        numpy = backends.load("numpy", "a test")
        taken = held.find(self.rule, (), numpy.is_tensor, numpy.children, self.made_by)
        return taken._replace(build=lambda tensors: Pull(taken.build(tensors)[0], self.made_by))

    def takes_variables(self):
        return "variables"

    def capture(self, names):
        self.names = names


def started(compute, *inputs):
    """`(fun, run)` after the first run."""
    fun = Fun(compute)
    _, pullback = fun(*inputs)
    return fun, again.Run(backends.load("numpy", "a test"), fun, inputs, pullback)


class Replayed:
    """Notes what it is asked; what it gives is told apart by being negative."""

    def __init__(self):
        self.calls = []

    def __call__(self, again, values, inputs):
        self.calls.append((again, list(values), list(inputs)))
        return [-value for value in values]


def cut(tensor):
    return tensor + 100


X = np.array([1.0, 2.0, 3.0])


def held_rule(x):
    y, places = x * 10, np.array([2, 1, 0])
    return (x * 2,), lambda upstream: (upstream * y + x[places],)


def test_a_run_keeps_apart_what_the_rule_holds():
    fun, run = started(held_rule, X)
    assert run.uses_inputs and run.is_whole
    assert [tensor.tolist() for tensor in run.held] == [[2, 1, 0], [10, 20, 30]]
    gradients, others = run.pullback([X + 1], [np.array([0, 0, 0]), X])([2.0])
    assert gradients[0].tolist() == (2 * X + 2).tolist() and others == ()
    assert fun.runs == 1
    assert not started(lambda x: ((x,), lambda upstream: (upstream * 2,)), X)[1].uses_inputs
    assert not started(lambda x: ((x,), (lambda y: lambda upstream: (upstream * y,))(x * 1)), X)[1].uses_inputs


def test_a_tensor_that_the_rule_holds_twice_is_kept_once():
    def compute(x):
        y = x * 2
        return (y,), lambda upstream, again=y: (upstream * y * again * x,)

    run = started(compute, X)[1]
    assert len(run.held) == 1
    assert run.pullback([2.0], [3.0])([5.0])[0] == (90.0,)


def test_the_first_order_never_runs_the_function_again():
    fun, run = started(held_rule, X)
    replay = Replayed()
    pullback = run.differentiated(replay, cut, [X], run.held)
    gradients, _ = pullback([2.0])
    # The places are integers, which hang on nothing.
    ((another, values, inputs),) = replay.calls
    assert [value.tolist() for value in values] == [[10, 20, 30]] and inputs[0] is X
    assert gradients[0].tolist() == (-20 * X + X[::-1]).tolist()
    assert fun.runs == 1
    assert [value.tolist() for value in another(X)] == [[10, 20, 30]]
    assert fun.runs == 2


def test_nothing_is_replayed_where_nothing_floating_is_held():
    for compute in (
        lambda x: ((x,), lambda upstream: (upstream * x,)),
        lambda x: ((x,), (lambda n: lambda upstream: (upstream * n,))(np.array([1, 2, 3]))),
    ):
        fun, run = started(compute, X)
        replay = Replayed()
        run.differentiated(replay, cut, [X], run.held)([1.0])
        assert replay.calls == [] and fun.runs == 1


def test_what_is_held_is_not_changed():
    _, run = started(held_rule, X)
    kept = list(run.held)
    run.differentiated(Replayed(), cut, [X], kept)
    assert [tensor.tolist() for tensor in kept] == [[2, 1, 0], [10, 20, 30]]


def changing(*states):
    """A function whose rule holds what the states say, run by run."""
    runs = iter(states)

    def compute(x):
        kept = copy.deepcopy(next(runs))  # no input
        if not isinstance(kept, tuple):
            return (x,), lambda upstream: (upstream * kept,)
        one, two = kept
        return (x,), lambda upstream: (upstream * one * two,)

    return compute


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (X, X * 2),
        (X, X * (1 + 1e-12)),
        (X.astype("float32"), X.astype("float32") * np.float32(1 + 1e-4)),
        (X.astype("float32"), X),
        (X, X[:1]),
        (np.ones(3), np.ones(1)),
        (X, (X, X * 3)),
        ((X, np.array([1, 2])), (X, np.array([1, 3]))),
        ((X, np.array([True])), (X, np.array([False]))),
        ((X, np.array([10**15])), (X, np.array([10**15 + 1]))),
        (X, np.array([1.0, np.nan, 3])),
        (np.array([np.inf]), np.array([-np.inf])),
        (X + 1j, X + 2j),
        (np.zeros(3), np.array([0, 0, 1e-300])),
    ],
)
def test_another_run_that_held_something_else(first, second):
    fun, run = started(changing(first, second), X)
    replay = Replayed()
    run.differentiated(replay, cut, [X], run.held)
    with pytest.raises(RuntimeError, match="another output"):
        replay.calls[0][0](X)
    assert fun.runs == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (X, X * (1 + 1e-15)),
        (X.astype("float32"), X.astype("float32") * np.float32(1 + 1e-6)),
        (X.astype("float16"), X.astype("float16") * np.float16(1.01)),
        (np.array([1e10, 1.0]), np.array([1e10, 1.0 + 1e-6])),
        (np.array([1.0, np.nan, np.inf]), np.array([1.0, np.nan, np.inf])),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (X + 1j, X + 1j),
    ],
)
def test_another_run_that_held_the_same_but_for_rounding(first, second):
    _, run = started(changing(first, second), X)
    replay = Replayed()
    run.differentiated(replay, cut, [X], run.held)
    assert np.array_equal(replay.calls[0][0](X)[0], second, equal_nan=True)


def test_another_run_is_compared_with_what_a_framework_saved():
    _, run = started(changing(X, X * 2), X)
    replay = Replayed()
    run.differentiated(replay, cut, [X], [X + 7])
    (another, _, _) = replay.calls[0]
    assert another.first[0].tolist() == (X + 7).tolist()
    assert another.against([X * 2], [X])[0].tolist() == (X * 2).tolist()


def test_nothing_and_something_are_not_the_same():
    _, run = started(held_rule, X)
    run.compare([None, X], [None, X])
    for others, first in (([None], [X]), ([X], [None]), ([X], [X, X]), ([X, X], [X])):
        with pytest.raises(RuntimeError):
            run.compare(others, first)


def hiding(factor):
    """The rule holds x, and something that cannot be found."""

    def compute(x, n):
        y = iter([x * next(factor)] * 9)
        return (x, x + 1), lambda one, two, *variables: (one * next(y) + x, None, *[v * 5 for v in variables])

    return compute


def test_where_the_rule_may_hold_more_its_gradients_are_replayed():
    fun, run = started(hiding(iter([3, 3])), X, np.array(4))
    replay = Replayed()
    pullback = run.differentiated(replay, cut, [X, np.array(4)], run.held)
    gradients, others = pullback([np.array(2.0), None])
    ((another, values, inputs),) = replay.calls
    # Those of the first run, of values that nobody differentiates: of x + 100 and the upstream 102.
    assert values[0].tolist() == (102 * 3 * X + X + 100).tolist() and len(values) == 1
    assert gradients[0].tolist() == (-values[0]).tolist() and gradients[1] is None and others == ()
    assert [np.asarray(tensor).tolist() for tensor in inputs] == [X.tolist(), 4, 2.0]
    assert fun.runs == 1
    assert pullback.takes_variables() == "variables"
    pullback.capture(["w"])
    assert pullback.first.names == ["w"]
    assert not pullback.held().is_whole
    # A second run on the same, and the gradients of its rule.
    with pytest.raises(RuntimeError, match="another output"):
        another(X, np.array(4), np.array(2.0))
    assert fun.runs == 2
    assert len(another.first) == 1


def test_gradients_that_are_replayed_are_those_of_another_run():
    def same(tensor):
        return tensor

    fun, run = started(hiding(iter([3, 3])), X, np.array(4))
    replay = Replayed()
    run.differentiated(replay, same, [X, np.array(4)], run.held)([np.array(2.0), None], [np.array(7.0)])
    ((another, values, inputs),) = replay.calls
    assert [value.tolist() for value in values] == [(7 * X).tolist(), 35.0]
    assert [np.asarray(tensor).tolist() for tensor in inputs] == [X.tolist(), 4, 2.0, 7.0]
    again_values = another(X, np.array(4), np.array(2.0), np.array(7.0))
    assert [value.tolist() for value in again_values] == [(7 * X).tolist(), 35.0]
    assert fun.runs == 2


@pytest.mark.parametrize(("upstream", "variable"), [(3.0, 7.0), (2.0, 8.0)])
def test_gradients_that_are_replayed_at_another_place(upstream, variable):
    """Another run gets the upstream and the variables that it is called with."""
    _, run = started(hiding(iter([3, 3])), X, np.array(4))
    replay = Replayed()
    run.differentiated(replay, lambda tensor: tensor, [X, np.array(4)], run.held)([2.0, None], [7.0])
    with pytest.raises(RuntimeError, match="another output"):
        replay.calls[0][0](X, np.array(4), upstream, variable)


def test_the_first_run_gets_variables_that_nobody_differentiates():
    _, run = started(hiding(iter([3])), X, np.array(4))
    pullback = run.differentiated(Replayed(), cut, [X, np.array(4)], run.held)
    _, others = pullback([np.array(2.0), None], [np.array(7.0)])
    assert [other.tolist() for other in others] == [-5 * 107.0]


def test_gradients_that_are_replayed_and_are_others():
    def same(tensor):
        return tensor

    _, run = started(hiding(iter([3, 4])), X, np.array(4))
    replay = Replayed()
    run.differentiated(replay, same, [X, np.array(4)], run.held)([np.array(2.0), None])
    with pytest.raises(RuntimeError, match="another output"):
        replay.calls[0][0](X, np.array(4), np.array(2.0))


# --- linear -----------------------------------------------------------------------------------------------------------


def is_linear(pull, *cotangents):
    numpy = backends.load("numpy", "a test")
    conditions = linear.conditions(numpy, lambda given: pull(*given), cotangents)
    return all(bool(condition) for condition in conditions)


def ones(dtype="float64", shape=(3,)):
    return np.ones(shape, dtype)


MATRIX = np.array([[0.3, -1.2, 0.5], [1.1, 0.2, -0.7], [2.0, 0.0, 1e-9]])

LINEAR = {
    "scale": (lambda u: [7 * u], ones()),
    "matrix": (lambda u: [MATRIX @ u], ones()),
    "zero": (lambda u: [0 * u], ones()),
    "sum": (lambda u: [np.sum(u)], ones()),
    "gradients of other shapes": (lambda u: [u[:0], np.outer(u, u[::-1] * 0), u[1:]], ones()),
    "two cotangents": (lambda u, v: [3 * u - v[::-1], v[0] - u[0]], ones(), ones()),
    "number": (lambda u: [3 * u], np.array(1.0)),
    "empty": (lambda u: [3 * u + 1], ones(shape=(0, 3))),
    "overflow": (lambda u: [np.float32(1e30) * u], ones("float32")),
    "overflow of half precision": (lambda u: [np.float16(1e4) * u], ones("float16")),
    "underflow": (lambda u: [np.float32(1e-30) * u], ones("float32")),
    "difference of what underflows": (lambda u: [np.float32(1e-32) * u - np.float32(9e-33) * u], ones("float32")),
    "division by zero": (lambda u: [u / np.array([0.0, 1.0, 2.0])], ones()),
    "complex": (lambda z: [(2 - 3j) * z], ones("complex128")),
    "complex to real": (lambda z: [np.real(z), np.conj(z)], ones("complex64")),
    "loses digits": (lambda u: [((u * 1e3 + u) - u * 1e3).astype("float32")], ones("float32")),
    "quantised weights": (lambda u: [(MATRIX.astype("float16") @ u)], ones("float16")),
}


@pytest.mark.parametrize("name", LINEAR)
def test_what_is_linear(name):
    pull, *cotangents = LINEAR[name]
    assert is_linear(pull, *cotangents)


def largest_alone(u):
    """Odd, and homogeneous for every scale."""
    return [u * (abs(u) == np.max(abs(u)))]


def clip(limit):
    return lambda u: [np.clip(2 * u, -limit, limit)]


CURVED = {
    "constant": (lambda u: [7 * u + 1], ones()),
    "constant at zero": (lambda u: [np.where(u == 0, 1, u)], ones()),
    "small constant": (lambda u: [7 * u + 1e-3], ones("float32")),
    "absolute value": (lambda u: [abs(u)], ones()),
    "absolute value of a number": (lambda u: [abs(u)], np.array(1.0)),
    "positive part": (lambda u: [np.maximum(u, 0)], ones()),
    "positive part of a number": (lambda u: [np.maximum(u, 0)], np.array(1.0)),
    "negative part of a number": (lambda u: [np.minimum(u, 0)], np.array(1.0)),
    "square": (lambda u: [u * u], ones()),
    "cube": (lambda u: [u**3], ones()),
    "norm": (lambda u: [u / np.sqrt(1 + np.sum(u**2))], ones()),
    "unit": (lambda u: [u / (np.sqrt(np.sum(u**2)) + 1e-300)], ones()),
    "tanh": (lambda u: [1e4 * np.tanh(u / 1e4)], ones()),
    "dead zone": (lambda u: [np.where(abs(u) < 1e-9, 0, u)], ones()),
    "dead zone of half precision": (lambda u: [np.where(abs(u) < 0.01, 0, u)], ones("float16")),
    "largest alone": (largest_alone, ones()),
    "neighbour's sign": (lambda u: [abs(u) * np.sign(u[::-1])], ones(shape=(4,))),
    "product": (lambda u, v: [u * v], ones(), ones()),
    "second gradient": (lambda u: [7 * u, abs(u)], ones()),
    "complex gate": (lambda z: [np.where(np.real(z) > 0, z, 0)], ones("complex128")),
    "length of the imaginary part": (lambda z: [np.real(z) + abs(np.imag(z))], ones("complex128")),
    "complex length": (lambda z: [abs(z)], ones("complex64")),
    "infinite from a hundred on": (lambda u: [np.where(abs(u) > 100, np.nan, abs(u))], ones()),
    "steps": (lambda u: [np.round(u)], ones()),
    "a part in ten thousand": (lambda u: [u + 1e-4 * abs(u)], ones()),
    "two per cent of a float32": (lambda u: [u + 0.02 * abs(u)], ones("float32")),
    "5% of curvature": (lambda u: [u + 0.05 * abs(u)], ones()),
    "third element only": (lambda u: [np.stack([u[0], u[1], abs(u[2])])], ones()),
    "matrix": (lambda u: [u * np.sign(u[:, :1])], ones(shape=(2, 3))),
    **{f"clip at {limit:g}": (clip(limit), ones()) for limit in 10.0 ** np.arange(-9, 13)},
    "clip a small float32": (clip(1e-9), ones("float32", ())),
    "clip a large float32": (clip(1e11), ones("float32", ())),
    "clip a small float16": (clip(1e-2), ones("float16", ())),
    "clip a large float16": (clip(1e4), ones("float16", ())),
    "clip a large float16 beside a float64": (lambda u, v: [np.clip(u, -1e4, 1e4), v], ones("float16"), ones()),
}


@pytest.mark.parametrize("name", CURVED)
def test_what_is_not_linear(name):
    pull, *cotangents = CURVED[name]
    assert not is_linear(pull, *cotangents)


def test_what_is_tried():
    """Zero; the direction at scales of either sign; the further direction by itself and taken away."""
    numpy = backends.load("numpy", "a test")
    tried = []
    linear.conditions(numpy, lambda given: [tried.append(given[0]) or given[0]], [np.ones(3)])
    one, two = tried[0], tried[1]
    assert one[0] > 0 and min(one) < 0 < max(one) and min(abs(one)) > 0.1 and abs(np.dot(one, two)) < 0.99 * 3
    assert not np.allclose(one / two, (one / two)[0])
    np.testing.assert_allclose(tried[2], one - 2 * two)
    scales = [float(given[0] / one[0]) for given in tried[3:]]
    assert scales == [0.0, *(sign * 2.0**power for power in (80, 40, -40, -80) for sign in (1, -1))]


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_table_is_that_of_the_dtypes(dtype):
    info, known = np.finfo(dtype), precision.of(dtype)
    assert known.epsilon == float(info.eps)
    assert known.smallest == float(info.tiny)
    assert 2.0**known.reach < float(info.max) ** 0.98 and 2.0**-known.reach >= float(info.tiny)
    assert known.epsilon < known.repeated < known.linear <= 0.1


def test_the_precision_of_other_dtypes():
    assert precision.of("complex64") == precision.of("float32")
    assert precision.of("complex128") == precision.of("float64") == precision.of("int32")
    half = precision.of("bfloat16")
    assert (half.epsilon, half.smallest) == (2.0**-7, 2.0**-126)
    assert (half.reach, half.repeated, half.linear) == (40, 0.05, 0.1)


# --- what is only traced ----------------------------------------------------------------------------------------------


@pytest.fixture
def traced(monkeypatch):
    """The NumPy backend, as if no value could be looked at."""
    backend = backends.load("numpy", "a test")
    monkeypatch.setattr(backend, "is_known", lambda tensors: False)
    return backend


def test_what_holds_only_if_conditions_do():
    backend = backends.load("numpy", "a test")
    assert settled.settled(backend, [X], [], ZeroDivisionError)[0] is X
    assert settled.settled(backend, [X], [np.bool_(True)], ZeroDivisionError)[0] is X
    with pytest.raises(ZeroDivisionError):
        settled.settled(backend, [X], [np.bool_(True), np.array([True, False])], ZeroDivisionError)


def test_what_holds_only_if_conditions_do_in_a_program(traced):
    half = X.astype(np.float16)
    for conditions, expected in (
        ([np.array([True, True])], X),
        ([np.bool_(True), np.array([True, False])], X * np.nan),
    ):
        found = settled.settled(traced, [X, half], conditions, ZeroDivisionError)
        np.testing.assert_array_equal(found[0], expected)
        assert found[1].dtype == np.float16 and np.isnan(found[1]).all() == np.isnan(expected).all()


def test_another_run_in_a_program(traced):
    _, run = started(held_rule, X)
    nan, places = np.array([np.nan, 1.0, np.inf]), np.array([2, 0])
    assert run.compare([X, None, places, nan], [X * (1 + 1e-15), None, places, nan])[0].tolist() == X.tolist()
    assert np.isnan(run.compare([X, places], [X + 1e-3, places])[0]).all()
    assert np.isnan(run.compare([X, places], [X, places + 1])[0]).all()
    for others, first in (([None], [X]), ([X, X], [X]), ([X], [X.astype(np.float32)]), ([X], [X[:1]])):
        with pytest.raises(RuntimeError, match="another output"):
            run.compare(others, first)


def test_a_sample_in_a_program(traced):
    long = np.arange(1000.0)
    sample = again.Sample(traced, [long, X])
    (same, close), (other, _) = sample.compare("f", [long, X]), sample.compare("f", [long + 1, X])
    assert same.all() and close.all() and not other.all()


def test_a_pullback_of_runs(monkeypatch):
    """A framework that is told the cotangents beforehand: each pullback is another run, and is compared."""
    backend = backends.load("numpy", "a test")
    factor = [2.0]
    runs = []

    def fun(x):
        runs.append("f")
        return (x * factor[0],), ("aux",)

    pulled = lambda fun, tensors, cotangents: (*[fun(*tensors)[0]], (7 * cotangents[0],), ())
    monkeypatch.setattr(backend, "pulled", pulled)
    outputs, pullback, aux = derived.vjp_of_runs(backend, fun, [X])
    assert outputs[0].tolist() == (2 * X).tolist() and aux == ("aux",)
    assert pullback([X])[0].tolist() == (7 * X).tolist() == pullback([X])[0].tolist()
    assert len(runs) == 3
    factor[0] = 3.0
    with pytest.raises(RuntimeError, match="ran again for its gradient"):
        pullback([X])


def test_another_run_as_a_function_of_what_is_floating():
    places = np.array([2, 0, 1])
    another = again.Again([X], lambda first, inputs: [first[0] + inputs[0], inputs[1]])
    found, tensors, run = another.moving(backends.load("numpy", "a test"), [X * 2], [X, places])
    assert found == [0] and tensors[0] is X
    (total, others), aux = run(X * 10)
    assert total.tolist() == (12 * X).tolist() and others is places and aux == ()


def test_the_packages_of_a_backend_from_elsewhere(monkeypatch):
    """Nobody keeps tensors in their modules: a rule that names one holds what is in its cells alone."""
    module = types.ModuleType("framework_elsewhere")
    module.scale = object()
    tensor = T("a")
    rule = lambda upstream: (module.scale, tensor)
    monkeypatch.setattr(held, "_FRAMEWORKS", set(held._FRAMEWORKS))
    monkeypatch.setattr(held, "_LIBRARIES", set(held._LIBRARIES))
    assert held.Closure.of(rule, is_tensor) is None
    held.trust("framework_elsewhere", "backend_elsewhere")
    assert held.Closure.of(rule, is_tensor) is not None
