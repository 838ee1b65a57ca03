"""`keras_cg.testing`: several backends, and the odd one out."""

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient
from keras_cg.testing import agreement, arrays, check_gradients

V = np.array([0.7, -1.2, 0.4], np.float32)

# A check that stops after the first order costs little.
QUICK = {"order": 1, "modes": ("reverse",), "compiled": False}


@pytest.mark.side_by_side
def test_agreement(backends):
    report = check_gradients(custom_gradient(lambda x: (x**2, lambda u: 2 * u * x)), V, backends=backends, **QUICK)
    assert report, report
    assert report.backends == tuple(backends)
    rows = [each for each in report.findings if each.check == "agreement"]
    assert [each.backend for each in rows] == (list(backends) if len(backends) > 1 else [])
    assert list(report.evidence) == list(backends)


@pytest.mark.side_by_side
def test_the_odd_one_out(backends):
    """On every backend a function gives something else there, as a bug of one framework would."""
    for odd in backends:
        by_output = lambda x, odd=odd: x * (2 if keras_cg.backend() == odd else 1)

        @custom_gradient
        def by_gradient(x, odd=odd):
            return x * 1, lambda upstream: upstream * (2 if keras_cg.backend() == odd else 1)

        for f, what in ((by_output, "output"), (by_gradient, "gradient of x")):
            report = check_gradients(f, V, backends=backends, **QUICK)
            rows = {each.backend: each for each in report.findings if each.check == "agreement"}
            failed = [name for name, each in rows.items() if each.status == "failed"]
            assert len(failed) == (len(backends) > 1)
            if len(backends) < 3:  # of two, nobody knows which is odd
                continue
            assert {name for name, each in rows.items() if each.status == "failed"} == {odd}
            assert rows[odd].reason == f"the {what} differs from that of other backends"
            right = V if what == "output" else arrays.random(np.random.default_rng(0), arrays.wide(V))
            place = int(np.argmax(abs(right)))
            assert rows[odd].where == f"[{place}]"
            assert float(rows[odd].came) == pytest.approx(2 * right[place], rel=1e-5)
            assert float(rows[odd].expected) == pytest.approx(right[place], rel=1e-5)
            assert rows[odd].error == pytest.approx(1)


def evidence(output, gradient, epsilon=2.0**-52):
    return {"epsilon": [np.asarray(epsilon)], "output": [np.asarray(output)], "gradient of x": [np.asarray(gradient)]}


def test_agreement_of_given_numbers():
    right, near = evidence([1.0, 2.0], [3.0, 4.0]), evidence([1.0, 2.0], [3.0, 4.0 + 1e-7])
    assert agreement({}) == agreement({"jax": right}) == agreement({"jax": right, "torch": {}}) == []
    assert [each.status for each in agreement({"jax": right, "torch": near})] == ["passed", "passed"]
    wrong = evidence([1.0, 2.0], [3.0, 4.1])
    findings = agreement({"torch": wrong, "jax": right, "numpy": near, "tensorflow": {}})
    assert [(each.backend, each.status) for each in findings] == [
        ("torch", "failed"),
        ("jax", "passed"),
        ("numpy", "passed"),
    ]
    assert findings[0].reason == "the gradient of x differs from that of other backends"
    assert (findings[0].where, findings[0].came, findings[0].expected) == ("[1]", "4.1", "4")
    assert findings[0].tolerance == 2e-6 and findings[0].error == pytest.approx(0.1 / 4)
    # The coarser of two precisions decides.
    coarse = evidence([1.0, 2.0], [3.0, 4.001], 2.0**-23)
    assert [each.status for each in agreement({"jax": right, "torch": coarse})] == ["passed", "passed"]
    other = evidence([1.0, 2.0, 3.0], [3.0, 4.0])
    shapes = agreement({"jax": right, "numpy": near, "torch": other})
    assert shapes[2].status == "failed" and shapes[2].reason == "the shape of the output differs between backends"
