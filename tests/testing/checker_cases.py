"""Functions that the tests of the checker share."""

import numpy as np

from keras_cg import custom_gradient
from keras_cg.frontend import config
from keras_cg.testing import arrays

V = np.array([0.7, -1.2, 0.4], np.float32)
WIDE = np.array([0.7, -1.2, 0.4])
W = np.array([[0.5, -1.1, 0.2], [0.9, 0.4, -0.7], [-0.3, 0.8, 1.2]], np.float32)
X = np.array([[0.7, -1.2, 0.4], [1.1, 0.3, -0.8], [-0.5, 0.9, 1.4], [0.6, -0.2, 1.3]], np.float32)

# A check that stops after the first order costs little.
QUICK = {"order": 1, "modes": ("reverse",), "compiled": False}
EAGER = {"compiled": False}


def derived(f, slope):
    return custom_gradient(lambda x: (f(x), lambda upstream: upstream * slope(x)))


def square(rule):
    """x**2 with a rule of x and upstream."""
    return custom_gradient(lambda x: (x**2, lambda upstream: rule(x, upstream)))


def cast(x, dtype):
    return config.active.cast(x, dtype)


def upstream_for(output, seed=0):
    return arrays.random(np.random.default_rng(seed), arrays.wide(output))


def first(report, check="first order"):
    """The first finding of a check on the only backend."""
    return report.cell(report.backends[0], check)[0]


def found(report, *statuses):
    """The diagnoses of what has one of these statuses, by check and argument."""
    return {(each.check, each.argument): each.diagnosis for each in report.findings if each.status in statuses}


def findings(report, *statuses):
    return [each for each in report.findings if each.status in statuses]


def assert_passed(report, *skipped):
    assert report, report
    assert {each.check for each in report.findings if each.status == "skipped"} <= {*skipped}


def assert_finding(finding, **expected):
    """Compares what a finding says; of a text that ends with an ellipsis, the beginning."""
    for name, wanted in expected.items():
        came = getattr(finding, name)
        is_right = (
            came.startswith(wanted[:-3]) if isinstance(wanted, str) and wanted.endswith("...") else came == wanted
        )
        assert is_right, f"{name}: {came!r}, not {wanted!r}"
