"""Checks a custom gradient: against differences, against itself, and between backends.

Needs SciPy: `pip install "keras-cg[testing]"`.
"""

from keras_cg.testing.checker import agreement, assert_gradients, check_gradients
from keras_cg.testing.report import Finding, Report

__all__ = ["Finding", "Report", "agreement", "assert_gradients", "check_gradients"]
