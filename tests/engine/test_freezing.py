"""A rule as it was at its run: the names that `freeze` copies, what stays itself, and what a `Watch` notices."""

import enum
import functools
import textwrap
import types
import weakref

import numpy as np
import pytest
from stand_ins import Keeps, T

from keras_cg.engine import freezing
from keras_cg.engine.functions import Decorated

pytestmark = pytest.mark.only("numpy")

X = np.array([1.0, 2.0, 3.0])


class Around(Decorated):
    """A decorated function, as the engine sees it."""

    def __init__(self, fun):
        self.__wrapped__ = fun

    def of(self, fun):
        return Around(fun)

    def __call__(self, *args):
        return self.__wrapped__(*args)


def freeze(function):
    """The frozen rule that a function returns, and its watch."""
    return freezing.freeze(function(), function)[:2]


def frozen(rule):
    """The copy of a rule from elsewhere."""
    return freeze(lambda: rule)[0]


def apply(h, u):
    return h(u)


def wrapper(grad):
    return lambda *args: grad(*args)


CLASS = """
class Rule:
    def __call__(self, u):
        return self.times(u)

    def times(self, u):
        return 7 * u * k

"""

# The bodies of a function, in which a loop binds k: the gradient is 7 k.
LOOPED = {
    "cell": "return lambda u: 7 * u * k",
    "default": "return lambda u, h=lambda u: u * k: 7 * h(u)",
    "keyword default": "return lambda u, *, h=lambda u: u * k: 7 * h(u)",
    "function in a cell": "times = lambda u: u * k\nreturn lambda u: 7 * times(u)",
    "partial": "return functools.partial(lambda h, u: 7 * h(u), lambda u: u * k)",
    "argument of a partial of another function": "return functools.partial(apply, lambda u: 7 * u * k)",
    "keyword of a partial": "return functools.partial(apply, h=lambda u: 7 * u * k)",
    "wrapper of another function": "return wrapper(wrapper(lambda u: 7 * u * k))",
    "functools.wraps": "grad = lambda u: 7 * u * k\nreturn functools.wraps(grad)(lambda *args: grad(*args))",
    "errstate of NumPy": "return np.errstate(all='ignore')(lambda u: 7 * u * k)",
    "decorated function": "inner = Around(lambda u: u * k)\nreturn lambda u: 7 * inner(u)",
    "decorated rule": "return Around(lambda u: 7 * u * k)",
    "class": CLASS + "return Rule()",
    "method": CLASS + "return Rule().times",
    "object in a cell": CLASS + "rule = Rule()\nreturn lambda u: rule.times(u)",
    "class in a cell": CLASS + "return lambda u: Rule()(u)",
    "static method and property": CLASS.replace(
        "    def",
        "    @staticmethod\n    def once(u):\n        return 7 * u * k / k\n\n"
        "    @property\n    def k(self):\n        return k\n\n    def",
        1,
    )
    + "rule = Rule()\nreturn lambda u: rule.once(u) * rule.k",
}


def looped(body):
    """The rules of a function with that body, which a loop calls for k = 2 and 3, with their watches."""
    text = "def outer():\n  rules = []\n  for k in (2.0, 3.0):\n    def f():\n" + textwrap.indent(body, " " * 6)
    scope = {
        "functools": functools,
        "np": np,
        "apply": apply,
        "wrapper": wrapper,
        "other_wrapper": other_wrapper,
        "Around": Around,
        "freeze": freeze,
    }
    exec(compile(f"{text}\n    rules.append(freeze(f))\n  return rules", "loop.py", "exec"), scope)
    return scope["outer"]()


def other_wrapper(grad):
    return lambda u: grad(u)


def test_a_wrapper_around_a_wrapper_of_the_run():
    """Neither the run nor the scope of the rule has defined the inner one: it leads to what the run has defined."""
    rules = looped("return other_wrapper(wrapper(lambda u: 7 * u * k))")
    assert [rule(1.0) for rule, _ in rules] == [14.0, 21.0]


def scoped():
    k = 2.0

    def helper(u):
        return u * k

    def change(value):
        nonlocal k
        k = value

    return (lambda u: 7 * helper(u)), change


def test_a_function_of_the_scope_of_the_rule_is_copied():
    rule, change = scoped()
    copy, watch, _ = freezing.freeze(rule, looped)
    change(3.0)
    assert (rule(1.0), copy(1.0), watch) == (21.0, 14.0, None)


def called(rule, name):
    return rule(u=1.0) if name == "keyword of a partial" else rule(1.0)


@pytest.mark.parametrize("name", LOOPED)
def test_a_name_of_a_loop(name):
    """Every function that the run defines keeps the value of its own turn, wherever it is."""
    assert [called(rule, name) for rule, _ in looped(LOOPED[name])] == [14.0, 21.0]


def test_a_class_of_the_run_keeps_its_identity():
    (rule, _), _ = looped(CLASS + "rule = Rule()\nreturn lambda u: (isinstance(rule, Rule), type(rule) is Rule)")
    assert rule(1.0) == (True, True)


def test_functions_of_autograph_are_those_of_the_run():
    """It compiles them once more, so the constants of the function's code do not have them."""
    code = (
        "def outer_factory():\n def inner_factory(k):\n  def tf__f():\n   def grad(u): return u * k\n   return grad\n"
    )
    scope = {}
    exec(code + "  def change(): nonlocal k; k = 5.0\n  return tf__f, change\n return inner_factory", scope)
    rewritten, change = scope["outer_factory"]()(2.0)

    def f():
        return wrapper(rewritten())

    rule, _ = freeze(f)
    change()
    assert rule(1.0) == 2.0


def test_functions_that_call_each_other_share_what_they_share():
    k = 2.0

    def f():
        def even(n):
            return k if n == 0 else odd(n - 1)

        def odd(n):
            return -k if n == 0 else even(n - 1)

        return lambda u: u * even(4) + odd(3)

    rule, _ = freeze(f)
    k = 5.0
    assert rule(1.0) == 4.0


def assigned():
    calls = 0

    def grad(u):
        nonlocal calls
        calls += 1
        return calls

    return grad, lambda: calls


def assigned_by_a_helper():
    calls = 0

    def note():
        nonlocal calls
        calls += 1

    return lambda u: (note(), calls)[1], lambda: calls


@pytest.mark.parametrize("make", [assigned, assigned_by_a_helper])
def test_a_name_that_is_assigned_stays_shared(make):
    grad, calls = make()
    rule = frozen(grad)
    assert [rule(1.0), rule(1.0), calls()] == [1, 2, 2]


def test_defaults_and_attributes_come_along():
    k = 2.0

    def grad(u, factor=3.0, *, other=5.0):
        return k * u * factor * other * grad.scale

    grad.scale = 7.0
    rule = frozen(grad)
    k = 11.0
    assert rule(1.0) == 210.0
    assert (rule.__name__, rule.__defaults__, rule.__kwdefaults__) == ("grad", (3.0,), {"other": 5.0})
    grad.scale = 14.0  # an attribute is state, and no name
    assert rule(1.0) == 420.0


class Mode(enum.Enum):
    SEVEN = 7

    def rule(self, u):
        return 7 * u if self is Mode.SEVEN else u


def test_objects_containers_and_functions_from_elsewhere_stay_themselves():
    kept, entries, outer = Keeps(2.0), [1], {}

    def helper(u):
        helper.calls += 1
        return u

    helper.calls = 0
    for value in (kept.method, kept, Mode.SEVEN.rule, entries.append, float, Keeps, np.sin, X.__mul__):
        assert frozen(value) is value or frozen(value) == value
    rule = frozen(lambda u: (kept, entries, outer, apply, helper(u)))
    assert all(map(lambda a, b: a is b, rule(1.0), (kept, entries, outer, apply)))
    assert helper.calls == 1 and frozen(Mode.SEVEN.rule)(1.0) == 7.0


def test_a_rule_without_cells_is_left_as_it_is():
    grad = eval("lambda u: u")
    assert frozen(grad) is grad


def test_a_frozen_rule_keeps_neither_what_it_held_nor_an_object_behind_it_alive(without_collector):
    kept = T()
    rule = frozen((lambda kept: lambda u: kept)(kept))
    dead = weakref.ref(kept)
    del kept, rule
    assert dead() is None
    owner = Owner(7.0)
    rule, watch, _ = freezing.freeze(owner.rule, owner.rule)
    facts, dead = watch.epochs(), weakref.ref(owner)
    del owner, rule, watch
    assert dead() is None and facts


# --- what is watched -------------------------------------------------------------------------------------------------


class Owner:
    __slots__ = ("__dict__", "__weakref__", "s")

    def __init__(self, k):
        self.k = self.s = k

    def rule(self, u):
        return u * self.k

    def behind(self, u):
        return self.rule(u) * self.slot

    @property
    def slot(self):
        return self.s

    def by_text(self, u):
        return u * getattr(self, "k")  # noqa: B009 - that is the case

    wrapped = functools.wraps(rule)(lambda *args, rule=rule: rule(*args))

    def __call__(self, u):
        return super().__getattribute__("rule")(u) if u is None else u * self.k


class Heir(Owner):
    def rule(self, u):
        return super().rule(u)


class Module:
    """Keeps its values where a module of torch has them."""

    def __init__(self, k):
        self._parameters = {"k": k}

    def __getattr__(self, name):
        return self._parameters[name]

    rule = Owner.rule


def through_self(self):
    return lambda u: u * self.k


WATCHED = {
    "method": (lambda: Owner(2.0), lambda owner: owner.rule, "k"),
    "method that it calls": (lambda: Owner(2.0), lambda owner: owner.behind, "k"),
    "slot behind a property": (lambda: Owner(2.0), lambda owner: owner.behind, "s"),
    "method of a base": (lambda: Heir(2.0), lambda owner: owner.rule, "k"),
    "callable object": (lambda: Owner(2.0), lambda owner: owner, "k"),
    "partial": (lambda: Owner(2.0), lambda owner: functools.partial(owner.rule), "k"),
    "cell called self": (lambda: Owner(2.0), through_self, "k"),
    "method in a cell": (lambda: Owner(2.0), lambda owner: (lambda rule: lambda u: rule(u))(owner.rule), "k"),
    "name in a text": (lambda: Owner(2.0), lambda owner: owner.by_text, "k"),
    "wrapped method": (lambda: Owner(2.0), lambda owner: owner.wrapped, "k"),
    "table of a module": (lambda: Module(2.0), lambda owner: owner.rule, "k"),
}


@pytest.mark.parametrize(("make", "rule_of", "attribute"), WATCHED.values(), ids=WATCHED)
def test_an_attribute_that_is_set_again(make, rule_of, attribute):
    owner = make()
    _, watch = freeze(lambda: rule_of(owner))
    assert watch.changed() is None
    table = getattr(owner, "_parameters", None)
    if table is None:
        # An equal number is as good, and other names do not count. Python keeps one object for equal constants.
        owner.other = setattr(owner, attribute, float("2"))
        assert watch.changed() is None
        setattr(owner, attribute, 3.0)
    else:
        table[attribute] = 3.0
    assert watch.changed() == attribute
    assert (attribute, 2.0) in watch.values({})
    assert watch.values(watch.epochs()) == []


def test_what_the_rule_itself_sets_is_its_state():
    class Average:
        mean = 1.0

        def __init__(self):
            self.mean = 1.0

        def update(self, u):
            setattr(self, "mean", self.mean / 2 + u)  # noqa: B010 - that is the case

        def rule(self, u):
            self.update(u)
            return self.mean

    owner = Average()
    watches = [freeze(lambda: owner.rule)[1] for _ in range(3)]
    for watch in watches:
        assert watch.changed() is None
        owner.rule(1.0)
        watch.settle()
    assert watches[0].values(watches[2].epochs()) == []


def test_an_attribute_that_the_function_sets_beside_the_rule():
    """The second call of the object sets it, and so does the rule of that call: the first one is refused."""

    class Both:
        def call(self, x):
            self.x = x
            return self.rule

        def rule(self, u):
            self.x = self.x * 1
            return u * self.x

    owner = Both()
    first, second = [freeze(lambda x=x: owner.call(x))[1] for x in (X, 10 * X)]
    assert second.changed() is None
    owner.rule(1.0)
    second.settle()
    assert (first.changed(), second.changed()) == ("x", None)


def test_an_attribute_that_is_first_set_after_the_call():
    class Late:
        k = 2.0

        def rule(self, u):
            return u * self.k

    owner = Late()
    _, watch = freeze(lambda: owner.rule)
    owner.k = 5.0
    assert watch.changed() == "k"


def test_a_name_of_an_outer_function_that_is_bound_again():
    k = 2.0

    def helper(u):
        return u * k

    def f():
        return lambda u: helper(u)

    _, watch = freeze(f)
    assert watch.changed() is None
    k = 5.0
    assert watch.changed() == "k"


def test_a_function_that_a_framework_has_wrapped_is_watched():
    """It cannot be made again of a copy."""
    for k in (2.0, 5.0):

        def f():
            return functools.lru_cache(lambda u: u * k)

        if k == 2.0:
            _, watch = freeze(f)
            assert watch.changed() is None
    assert watch.changed() == "k"


def test_most_rules_are_not_watched():
    kept, entries = T(), [1]
    assert freeze(lambda: lambda u: (kept, entries, u))[1] is None
    assert freeze(lambda: types.SimpleNamespace(rule=1).__repr__)[1] is None
