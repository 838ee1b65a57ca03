"""Every rule under every transform: what comes out is the truth, or what the table of exceptions says."""

import importlib
import importlib.metadata
from types import SimpleNamespace

import numpy as np
import pytest

import keras_cg
from conformance import exceptions, truth, zoo

# How far a result may lie off, by the precision that the framework computes in. A factor that a rule is wrong by, a
# term that is missing in a derivative, are thousands of times as large.
TOLERANCE = {"float32": 2e-4, "complex64": 2e-4, "float16": 1e-2}


def transforms(backend):
    """The module that says what a framework does to a function."""
    for point in importlib.metadata.entry_points(group="keras_cg.transforms", name=backend):
        return point.load()
    return importlib.import_module(f"conformance.transforms.{backend}")


def pytest_generate_tests(metafunc):
    names = metafunc.config.getoption("backends").split(",")
    cases = [
        (backend, transform, rule)
        for backend in (names if names != [""] else keras_cg.available_backends())
        for transform in transforms(backend).TRANSFORMS
        for rule in zoo.ZOO
    ]
    metafunc.parametrize("case", cases, ids=["-".join(case) for case in cases])


def problem(framework, name):
    case = truth.case(name)

    def tensors(arrays):
        return [framework.tensor(case.narrow(array)) for array in arrays]

    return SimpleNamespace(
        f=zoo.ZOO[name].call,
        tensors=tensors(case.arrays),
        weights=tensors(case.weights),
        c=tensors(case.c),
        d=tensors(case.d),
        batch=tensors(np.stack(each) for each in zip(*case.batch(), strict=True)),
    )


def test_rule_under_transform(case, record_outcome):
    backend, transform, rule = case
    framework = transforms(backend)
    kind, run = framework.TRANSFORMS[transform]
    zoo.framework = framework
    refusal = exceptions.find(backend, transform, rule)
    with keras_cg.use_backend(backend):
        if refusal is not None:
            with pytest.raises(Exception, match=refusal.match):
                run(problem(framework, rule))
            record_outcome(refusal.reason)
            return
        found = run(problem(framework, rule))
    expected = truth.expected(rule, kind)
    assert len(found) == len(expected)
    tolerance = TOLERANCE[str(truth.case(rule).dtype)]
    for came, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(framework.array(came), right, rtol=tolerance, atol=tolerance)
    record_outcome("pass")
