"""The messages of the checker for inputs that it cannot check."""

from __future__ import annotations

import functools

from keras_cg.errors import article, message, report, type_name


def missing_scipy() -> ImportError:
    """The checker was imported, but SciPy is missing or too old."""
    kind = functools.partial(ImportError, name="scipy.differentiate")
    headline = "keras_cg.testing needs SciPy 1.15 or later, for finite differences."
    return report(kind, headline, remedy='pip install "keras-cg[testing]".')


nothing_to_check = message(
    ValueError,
    "check_gradients({0}): none of the arguments is an array of floating or complex numbers. Python's own numbers are"
    " static, as in a call of the function: write numpy.asarray(2.0) for 2.0.",
)


def not_dense(function: str, argument: str, value: object) -> TypeError:
    """NumPy cannot represent a tensor."""
    return TypeError(
        f"check_gradients({function}): {argument} is {article(type_name(value))}, which has no values for NumPy."
        " Pass a dense tensor, or check a function that builds the sparse or ragged one from a dense one."
    )


bad_option = message(ValueError, "check_gradients({0}): {1}={2!r} is not {3}.")
_OTHER_SHAPES = "check_gradients({0}): the outputs of `%s` and of the function have different shapes."
wrong_expected = message(
    ValueError,
    _OTHER_SHAPES % "expected",
    got="{1}",
    expected="{2}",
    remedy="pass as `expected` a function with the same arguments and an output of the same shape, whose derivative the"
    " rule should be; or a rule, with a parameter called `upstream`.",
)
wrong_value = message(
    ValueError,
    _OTHER_SHAPES % "value",
    got="{1}",
    expected="{2}",
    remedy="pass as `value` a function with the same arguments that returns the right output. It must return tensors of"
    " the backend; convert NumPy's arrays by keras_cg.ops.asarray.",
)
