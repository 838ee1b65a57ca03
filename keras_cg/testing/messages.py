"""What the checker says where it cannot check."""

from __future__ import annotations

import functools

from keras_cg.errors import article, report, type_name


def missing_scipy() -> ImportError:
    """The checker was imported where SciPy is missing or old."""
    kind = functools.partial(ImportError, name="scipy.differentiate")
    headline = "keras_cg.testing needs SciPy 1.15 or later, for derivatives by differences."
    return report(kind, headline, remedy='pip install "keras-cg[testing]".')


def nothing_to_check(function: str) -> ValueError:
    """No argument can be differentiated."""
    return ValueError(
        f"check_gradients({function}): none of the arguments is an array of floating or complex numbers."
        " Python's own numbers are static, as in a call of the function: write numpy.asarray(2.0) for 2.0."
    )


def not_dense(function: str, argument: str, value: object) -> TypeError:
    """A tensor that NumPy cannot hold."""
    return TypeError(
        f"check_gradients({function}): {argument} is {article(type_name(value))}, which has no values for NumPy."
        " Give a dense tensor, or check a function that makes the other kind from one."
    )


def bad_option(function: str, option: str, value: object, choices: str) -> ValueError:
    """An option of the checker has no such value."""
    return ValueError(f"check_gradients({function}): {option}={value!r} is not {choices}.")


def wrong_expected(function: str, came: str, expected: str) -> ValueError:
    """What the function is compared with has another output."""
    headline = f"check_gradients({function}): the output of `expected` is not like that of the function."
    remedy = (
        "`expected` is a function with the same arguments and an output of the same shape, whose derivative the rule"
        " should be; or a rule, with a parameter called `upstream`."
    )
    return report(ValueError, headline, function=function, got=came, expected=expected, remedy=remedy)


def wrong_value(function: str, came: str, expected: str) -> ValueError:
    """What the output is compared with has another shape."""
    headline = f"check_gradients({function}): the output of `value` is not like that of the function."
    remedy = (
        "`value` is a function with the same arguments, whose output is what the function's should be. It returns"
        " tensors of the backend; for NumPy's arrays: keras_cg.ops.asarray."
    )
    return report(ValueError, headline, function=function, got=came, expected=expected, remedy=remedy)
