"""Every rule under every transform: what comes out is the truth, or what the table of exceptions says."""

import functools
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


def at_once(backend):
    """The transforms under which one program has all rules; a table from elsewhere need not name any."""
    return getattr(transforms(backend), "AT_ONCE", ())


def pytest_generate_tests(metafunc):
    names = metafunc.config.getoption("backends").split(",")
    backends = names if names != [""] else keras_cg.available_backends()
    rules = zoo.DOZEN if metafunc.config.getoption("dozen") else zoo.ZOO
    if "case" in metafunc.fixturenames:
        cases = [(name, each, rule) for name in backends for each in transforms(name).TRANSFORMS for rule in rules]
        metafunc.parametrize("case", cases, ids=["-".join(case) for case in cases])
    if "shared" in metafunc.fixturenames:
        shared = [(name, each) for name in backends for each in at_once(name)]
        metafunc.parametrize("shared", shared, ids=[f"{name}-{each}-all rules" for name, each in shared])


# --- some rules in one program --------------------------------------------------------------------------------------


def problem(framework, names):
    """What a transform is given: a function that calls some rules, each with arguments of its own."""
    cases = [truth.case(name) for name in names]

    def f(*tensors):
        outputs, rest = [], list(tensors)
        for name, case in zip(names, cases, strict=True):
            count = len(case.arrays)
            found = zoo.ZOO[name].call(*rest[:count])
            assert len(found) == len(case.outputs)  # else the next rule's would be taken for them
            outputs += found
            rest = rest[count:]
        return outputs

    def tensors(arrays_of):
        return [framework.tensor(case.narrow(array)) for case in cases for array in arrays_of(case)]

    return SimpleNamespace(
        f=f,
        tensors=tensors(lambda case: case.arrays),
        weights=tensors(lambda case: case.weights),
        c=tensors(lambda case: case.c),
        d=tensors(lambda case: case.d),
        batch=tensors(lambda case: [np.stack(each) for each in zip(*case.batch(), strict=True)]),
    )


def results(backend, transform, names):
    """What a transform gives for some rules in one program, by their names."""
    framework = transforms(backend)
    kind, run = framework.TRANSFORMS[transform]
    zoo.framework = framework
    with keras_cg.use_backend(backend):
        found = list(run(problem(framework, names)))
    parts = {}
    for name in names:
        count = len(truth.expected(name, kind))
        parts[name], found = found[:count], found[count:]
    assert not found
    return parts


def sharing(backend, transform):
    """The rules that are right and may share a program."""
    return [
        name for name, rule in zoo.ZOO.items() if not rule.alone and exceptions.find(backend, transform, name) is None
    ]


@functools.cache
def all_results(backend, transform):
    """Those of all rules that share one program; none if there is no such program."""
    try:
        return results(backend, transform, sharing(backend, transform))
    except Exception:  # of any of them: each by itself will tell
        return {}


def differences(backend, transform, rule, found):
    """What came in the places where it is not what was expected."""
    framework, case = transforms(backend), truth.case(rule)
    expected = truth.expected(rule, framework.TRANSFORMS[transform][0])
    tolerance = TOLERANCE[str(case.dtype)]
    assert len(found) == len(expected)
    wrong = []
    for each, right in zip(found, expected, strict=True):
        came = framework.array(each)
        assert came.shape == right.shape
        wrong += came[~np.isclose(came, right, rtol=tolerance, atol=tolerance)].tolist()
    return np.array(wrong)


def is_right_among_all(backend, transform, rule):
    """Whether the program of all rules has given what is expected of this one."""
    found = all_results(backend, transform).get(rule)
    try:
        return found is not None and not differences(backend, transform, rule, found).size
    except Exception:  # not even of that shape
        return False


def outcome(backend, transform, rule):
    """What came, and the reason if that is not a pass; an exception if it is neither the truth nor in the table."""
    refusal = exceptions.find(backend, transform, rule)
    if refusal is not None and refusal.match not in (exceptions.NAN, exceptions.LIMIT):
        with pytest.raises(Exception, match=refusal.match):
            results(backend, transform, [rule])
        return "clear error", refusal.reason
    if transform in at_once(backend) and is_right_among_all(backend, transform, rule):
        return "pass", ""
    wrong = differences(backend, transform, rule, results(backend, transform, [rule])[rule])
    if refusal is None:
        kind, _ = transforms(backend).TRANSFORMS[transform]
        assert not wrong.size, f"{wrong} should be among {truth.expected(rule, kind)}"
        return "pass", ""
    assert wrong.size and np.isnan(wrong).all() == (refusal.match == exceptions.NAN)
    return "NaN" if refusal.match == exceptions.NAN else "limit", refusal.reason


def is_fine(*case):
    try:
        outcome(*case)
    except (Exception, pytest.fail.Exception):
        return False
    return True


@pytest.mark.limit
@pytest.mark.filterwarnings("ignore:the rule of .* returned no gradient")
def test_rule_under_transform(case, record_outcome):
    record_outcome(*outcome(*case))


def test_what_is_right_alone_is_right_in_the_program_of_all(shared):
    """Rules must not disturb each other. Without a program in common, the suite would only be slow."""
    # A rule that also fails alone has a test that says so.
    assert [name for name in sharing(*shared) if not is_right_among_all(*shared, name) and is_fine(*shared, name)] == []


def test_the_table_of_exceptions_is_used(request):
    """Every line of the table is about something that exists."""
    names = request.config.getoption("backends").split(",")
    for each in (*exceptions.TABLE, *(line for name in names for line in exceptions.elsewhere(name))):
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
