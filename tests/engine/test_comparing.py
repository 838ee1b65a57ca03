"""The rules of two runs: what a look at them finds, and what stands for itself. orders/ has the kinds of values."""

import functools
import sys

import numpy as np
import pytest
from stand_ins import Keeps, T, is_tensor

from keras_cg.engine import comparing, references
from keras_cg.engine.precision import is_repeated

pytestmark = pytest.mark.only("numpy")

X = np.array([1.0, 2.0, 3.0])


def test_globals_and_modules_are_not_entered(monkeypatch):
    monkeypatch.setitem(globals(), "kept_by_a_test", T())
    assert not [*references.reached([lambda u: kept_by_a_test, sys.modules[__name__]], is_tensor)]  # noqa: F821


def test_what_a_quick_look_shows():
    """Cells, defaults, arguments and the attributes of `self`, of functions in them, too; nothing inside of others.

    The functions are listed as well.
    """
    k, deep, kept = T(), [T()], Keeps(2.0)
    helper = lambda u: (u, k)
    assert references.near(lambda u, h=helper, *, d=deep: h) == [helper, deep, k]
    assert references.near(functools.partial(helper, k, b=deep)) == [helper, k, deep]
    assert references.near(kept.method) == [kept, 2.0, Keeps.method]
    assert references.near(kept) == [kept, 2.0]
    assert references.near(eval("lambda: 0")) == []


agreement = lambda pairs: [abs(one.value - two.value) <= 1e-9 for one, two in pairs]
compare = lambda first, other: comparing.difference([("", first)], [("", other)], is_tensor, agreement)
hold = lambda **kept: lambda u: (u, kept)


def test_a_name_that_the_rule_assigns_is_its_state():
    def rule():
        calls = 0

        def grad(u):
            nonlocal calls
            calls += 1
            return u

        return grad

    one, two = rule(), rule()
    one(1.0)
    assert compare(one, two) == (None, True, [])
    assert compare(one, one) == (None, False, [])


def test_what_both_share_is_not_entered():
    class Refuses(dict):
        def __iter__(self):
            raise AssertionError

    shared = Refuses(a=1)
    assert compare(hold(k=shared), hold(k=shared)).name is None


def test_a_tensor_in_a_difference():
    class Shaped(T):
        shape, dtype = (2, 3), "torch.float32"

    assert compare(hold(k=Shaped(1.0)), hold(k=Shaped(1.0 + 1e-12))) == (None, False, [])
    assert compare(hold(k=Shaped(1.0)), hold(k=Shaped(2.0))).name == "kept['k'] is another float32[2, 3]"


def test_answers_that_are_to_come_are_conditions():
    later = np.array(True)
    steps = [[("", hold(k=[T()]))] for _ in range(2)]
    assert comparing.difference(*steps, is_tensor, lambda pairs: [later]) == (None, False, [later])


# --- an outline in the place of the rule ------------------------------------------------------------------------------


def outlined(first, other, shared=(), inputs=()):
    """Compares with the outline of a rule."""
    steps, tensors, _ = comparing.outline([("", first)], is_tensor, shared, inputs, {})
    return comparing.difference(steps, [("", other)], is_tensor, agreement, [*inputs, *tensors])


def test_an_outline_lists_each_tensor_once_and_no_input():
    argument, tensor = T(1.0), T(2.0)
    rule = hold(k=[argument, tensor, tensor])
    assert comparing.outline([("", rule)], is_tensor, (), [argument], {})[1] == [tensor]
    assert outlined(rule, hold(k=[T(1.0), T(2.0), T(2.0)]), inputs=[argument]).name is None
    assert outlined(rule, hold(k=[T(5.0), T(2.0), T(2.0)]), inputs=[argument]).name is not None


def test_what_all_runs_share_stands_for_itself():
    shared = Keeps(T())
    steps, tensors, _ = comparing.outline([("", hold(k=shared))], is_tensor, [shared], (), {})
    assert tensors == []
    shared.s = T(5.0)
    assert comparing.difference(steps, [("", hold(k=shared))], is_tensor, agreement).name is None
    assert comparing.difference(steps, [("", hold(k=Keeps(T(7.0))))], is_tensor, agreement).name is not None


@pytest.mark.parametrize(
    ("other", "is_same"),
    [(X, True), (X * (1 + 1e-12), True), (X + 1e-3, False), (X[:2], False), (X.astype(np.float32), False)],
)
def test_arrays_but_for_rounding(other, is_same):
    assert is_repeated(other, X, 1e-9) is is_same
    assert is_repeated(np.array([np.inf, 1.0]), np.array([np.inf, 1.0]), 1e-9)
    assert not is_repeated(np.array([np.inf, 1.0]), np.array([1.0, np.inf]), 1e-9)
