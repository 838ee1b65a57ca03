"""How the conformance suite has all rules in one program: what is wrong with one of them is told of that one alone."""

import dataclasses

import pytest

from conformance import test_conformance as suite
from conformance import zoo
from conformance.transforms import numpy as framework

matmul = zoo.ZOO["matmul"].call


def raises(*tensors):
    raise RuntimeError("not today")


FAULTS = {
    "raises": raises,
    "wrong": lambda x, w: [2 * each for each in matmul(x, w)],
    "NaN": lambda x, w: [float("nan") * each for each in matmul(x, w)],
    "another shape": lambda x, w: [each[0] for each in matmul(x, w)],
    "one too few": lambda x, w: [],
    "one too many": lambda x, w: 2 * matmul(x, w),
}


@pytest.fixture
def shared(monkeypatch):
    """A transform under which one program has all rules."""
    monkeypatch.setattr(framework, "AT_ONCE", ("grad",))
    suite.all_results.cache_clear()
    yield "numpy", "grad"
    suite.all_results.cache_clear()


def plant(monkeypatch, rule, call):
    monkeypatch.setitem(zoo.ZOO, rule, dataclasses.replace(zoo.ZOO[rule], call=call))


@pytest.mark.only("numpy")
def test_without_a_fault_the_program_of_all_serves_everybody(backend, shared, monkeypatch):
    served = [name for name in zoo.ZOO if suite.is_right_among_all(*shared, name)]
    assert served == [name for name, rule in zoo.ZOO.items() if not rule.alone]
    monkeypatch.setattr(suite, "results", raises)
    assert all(suite.outcome(*shared, name) == ("pass", "") for name in served)


@pytest.mark.only("numpy")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_of_its_rule_alone(backend, shared, fault, monkeypatch):
    plant(monkeypatch, "matmul", FAULTS[fault])
    assert [name for name in zoo.ZOO if not suite.is_fine(*shared, name)] == ["matmul"]
    suite.test_what_is_right_alone_is_right_in_the_program_of_all(shared)


@pytest.mark.only("numpy")
def test_rules_that_disturb_each_other_are_told(backend, shared, monkeypatch):
    before = []

    def disturbs(x):
        before.append(x)
        return reversal(x)

    def is_disturbed(x, w):
        factor = 1 + len(before)
        before.clear()
        return [factor * each for each in matmul(x, w)]

    reversal = zoo.ZOO["gradient reversal"].call
    plant(monkeypatch, "gradient reversal", disturbs)
    plant(monkeypatch, "matmul", is_disturbed)
    with pytest.raises(AssertionError, match=r"\['matmul'\]"):
        suite.test_what_is_right_alone_is_right_in_the_program_of_all(shared)
