"""Checks a custom gradient: against central differences, against itself, and between backends."""

from keras_cg.testing.report import Finding, Report

__all__ = ["Finding", "Report"]
