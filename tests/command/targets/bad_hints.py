"""Functions with hints that cannot be read."""

import keras_cg


def identity(x):
    return x, lambda upstream: upstream


a_number, too_many, numbered, misspelt = (keras_cg.custom_gradient(identity) for _ in range(4))
a_number.example_args = 3
too_many.example_args = ("rng.normal(size=3)", 2)
numbered.example_args = {1: "rng.normal(size=3)"}
misspelt.example_args = {"x": "norml:3"}
