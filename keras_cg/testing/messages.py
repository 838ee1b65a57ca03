"""The messages of the checker for inputs that it cannot check."""

from __future__ import annotations

import functools

from keras_cg.errors import article, report, type_name


def missing_scipy() -> ImportError:
    """The checker was imported, but SciPy is missing or too old."""
    kind = functools.partial(ImportError, name="scipy.differentiate")
    headline = "keras_cg.testing needs SciPy 1.15 or later, for finite differences."
    return report(kind, headline, remedy='pip install "keras-cg[testing]".')


def nothing_to_check(function: str) -> ValueError:
    """No argument can be differentiated."""
    return ValueError(
        f"check_gradients({function}): none of the arguments is an array of floating or complex numbers."
        " Python's own numbers are static, as in a call of the function: write numpy.asarray(2.0) for 2.0."
    )


def not_dense(function: str, argument: str, value: object) -> TypeError:
    """NumPy cannot represent a tensor."""
    return TypeError(
        f"check_gradients({function}): {argument} is {article(type_name(value))}, which has no values for NumPy."
        " Pass a dense tensor, or check a function that builds the sparse or ragged one from a dense one."
    )


def bad_option(function: str, option: str, value: object, choices: str) -> ValueError:
    """An option of the checker has an invalid value."""
    return ValueError(f"check_gradients({function}): {option}={value!r} is not {choices}.")


def wrong_expected(function: str, came: str, expected: str) -> ValueError:
    """The output of `expected` has another shape than the output of the function."""
    headline = f"check_gradients({function}): the outputs of `expected` and of the function have different shapes."
    remedy = (
        "pass as `expected` a function with the same arguments and an output of the same shape, whose derivative the"
        " rule should be; or a rule, with a parameter called `upstream`."
    )
    return report(ValueError, headline, function=function, got=came, expected=expected, remedy=remedy)


def wrong_value(function: str, came: str, expected: str) -> ValueError:
    """The output of `value` has another shape than the output of the function."""
    headline = f"check_gradients({function}): the outputs of `value` and of the function have different shapes."
    remedy = (
        "pass as `value` a function with the same arguments that returns the right output. It must return tensors of"
        " the backend; convert NumPy's arrays by keras_cg.ops.asarray."
    )
    return report(ValueError, headline, function=function, got=came, expected=expected, remedy=remedy)
