"""Runs the programs of a backend with one of the two decorators: `python -m parity.harness jax keras_cg`.

All in one process, because it takes seconds to start one; what goes wrong in a program stays there.
"""

import functools
import importlib
import json
import re
import sys
import warnings

import numpy as np

from parity import ERROR, KERAS, NO_GRADIENT, REFUSED, RIGHT
from parity.cases import CASES

# What the line begins with that the parent reads.
MARK = "FOUND "


class Kit:
    """What a program is written with. Only the decorator differs between the two runs."""

    def __init__(self, backend, decorator):
        import keras

        import keras_cg

        assert keras.backend.backend() == keras_cg.backend() == backend
        self.backend, self.keras = backend, keras
        self.custom_gradient = keras.ops.custom_gradient if decorator == KERAS else keras_cg.custom_gradient
        # On NumPy Keras's operations are NumPy's own, which nothing differentiates.
        self.ops = keras_cg.ops if backend == "numpy" else keras.ops
        self.native = importlib.import_module(f"frameworks.{backend}")
        self.tensor, self.array = self.native.tensor, self.native.array

    def differentiate(self, f, *arrays, mode="eager"):
        """`[output, *gradients]` of the sum of the output, by the framework's own engine."""
        output, gradients = self.native.differentiate(f, arrays, mode)
        return [output, *gradients]

    def decorated(self, f, *arrays, call=None, mode="eager"):
        """The same of a function that is decorated for it, and called by `call(f, *arrays)`."""
        f = self.custom_gradient(f)
        return self.differentiate(f if call is None else functools.partial(call, f), *arrays, mode=mode)

    def derivative(self, f, x, order):
        """A derivative of a function of one number, by the framework's own engine."""
        for _ in range(order):
            f = self.native.gradient(f, "native")
        return self.array(f(self.tensor(np.float32(x))))


def show(value):
    """An array, or None, in one line and to four digits."""
    if value is None:
        return "None"
    text = np.array2string(np.asarray(value), separator=", ", formatter={"all": "{:.4g}".format})
    return " ".join(text.split())


def outcome(case, kit):
    """`(outcome, what came)` of one program."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = case.run(kit)
        except Exception as error:
            came = f"{type(error).__name__}: {error}"
            result = REFUSED if case.refusal is not None and re.search(case.refusal, str(error)) else ERROR
        else:
            came = ", ".join(map(show, found))
            result = RIGHT if case.is_right(found) else case.wrong
    warned = any("No gradient computation or modification takes place" in str(each.message) for each in caught)
    return (NO_GRADIENT if warned and not case.forward else result), came


def main(backend, decorator):
    kit = Kit(backend, decorator)
    found = {case.title: outcome(case, kit) for case in CASES if backend in case.backends}
    print(MARK + json.dumps(found))  # noqa: T201 - read by the parent


if __name__ == "__main__":
    main(*sys.argv[1:])
