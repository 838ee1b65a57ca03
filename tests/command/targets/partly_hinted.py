"""Functions of which only one says how it may be called."""

from planted import doubled  # noqa: F401 - is defined elsewhere

import keras_cg


@keras_cg.custom_gradient
def checked(x):
    return x * 2.0, lambda upstream: 2.0 * upstream


checked.example_args = {"x": "rng.normal(size=3)"}


@keras_cg.custom_gradient
def forgotten(x):
    return x * 2.0, lambda upstream: 7.0 * upstream


class Layer:
    @keras_cg.custom_gradient
    def call(self, x):
        return x * 2.0, lambda upstream: 7.0 * upstream
