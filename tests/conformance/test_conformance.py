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
        for rule in (zoo.DOZEN if metafunc.config.getoption("dozen") else zoo.ZOO)
    ]
    if "case" in metafunc.fixturenames:
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


def differences(framework, case, found, expected):
    """What came in the places where it is not what was expected."""
    tolerance = TOLERANCE[str(case.dtype)]
    assert len(found) == len(expected)
    wrong = []
    for each, right in zip(found, expected, strict=True):
        came = framework.array(each)
        assert came.shape == right.shape
        wrong += came[~np.isclose(came, right, rtol=tolerance, atol=tolerance)].tolist()
    return np.array(wrong)


def test_rule_under_transform(case, record_outcome):
    backend, transform, rule = case
    framework = transforms(backend)
    kind, run = framework.TRANSFORMS[transform]
    zoo.framework = framework
    refusal = exceptions.find(backend, transform, rule)
    with keras_cg.use_backend(backend):
        if refusal is not None and refusal.match not in (exceptions.NAN, exceptions.LIMIT):
            with pytest.raises(Exception, match=refusal.match):
                run(problem(framework, rule))
            record_outcome("clear error", refusal.reason)
            return
        found = run(problem(framework, rule))
        wrong = differences(framework, truth.case(rule), found, truth.expected(rule, kind))
    if refusal is None:
        assert not wrong.size, f"{wrong} should be among {truth.expected(rule, kind)}"
        record_outcome("pass", "")
    else:
        assert wrong.size and np.isnan(wrong).all() == (refusal.match == exceptions.NAN)
        record_outcome("NaN" if refusal.match == exceptions.NAN else "limit", refusal.reason)


def test_the_table_of_exceptions_is_used(request):
    """Every line of the table is about something that exists."""
    names = request.config.getoption("backends").split(",")
    for each in exceptions.TABLE:
        if (each.backend in names or names == [""]) and not each.is_over():
            found = [
                (transform, rule)
                for transform in transforms(each.backend).TRANSFORMS
                for rule in zoo.ZOO
                if exceptions.find(each.backend, transform, rule) is each
            ]
            assert found, each


def test_the_truth():
    """The differences of the closed forms against derivatives that were taken by hand."""
    log1pexp = truth.case("log1pexp")
    (x,), (w,), (c,), (d,) = log1pexp.arrays, log1pexp.weights, log1pexp.c, log1pexp.d
    s = 1 / (1 + np.exp(-x))
    np.testing.assert_allclose(log1pexp.first()[0], 7 * w * s)
    np.testing.assert_allclose(log1pexp.second()[0], 7 * w * c * s * (1 - s), rtol=1e-6)
    np.testing.assert_allclose(log1pexp.third()[0], 7 * w * c * d * s * (1 - s) * (1 - 2 * s), rtol=1e-5)
    np.testing.assert_allclose(log1pexp.along()[0], 7 * w * c * s * (1 - s), rtol=1e-6)
    np.testing.assert_allclose(log1pexp.tangent()[0], 7 * c * s)
    y = np.log1p(np.exp(x))
    composite = 14 * w * c * y * s * (1 - s) + 7 * (14 * w * c * s) * s
    np.testing.assert_allclose(log1pexp.composite()[0], composite, rtol=1e-6)
    holomorphic = truth.case("holomorphic")
    (z,), (w,), (c,) = holomorphic.arrays, holomorphic.weights, holomorphic.c
    np.testing.assert_allclose(holomorphic.first()[0], 14 * w * np.conj(z))
    np.testing.assert_allclose(holomorphic.second()[0], 14 * np.conj(c) * w, rtol=1e-6)
    np.testing.assert_allclose(holomorphic.tangent()[0], 14 * z * c, rtol=1e-6)
