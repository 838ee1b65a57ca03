"""Checks a custom gradient: against finite differences, for consistency, and between backends.

Needs SciPy: `pip install "keras-cg[testing]"`.
"""

from keras_cg.testing import messages

try:
    import scipy.differentiate  # noqa: F401 - SciPy has it since 1.15
except ImportError as error:
    raise messages.missing_scipy() from error

from keras_cg.testing.checker import agreement, assert_gradients, check_gradients
from keras_cg.testing.report import Finding, Report

__all__ = ["Finding", "Report", "agreement", "assert_gradients", "check_gradients"]
