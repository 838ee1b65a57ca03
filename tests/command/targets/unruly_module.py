"""A module of which one function kills its process, one leaves it, and the others are right."""

import faulthandler
import os
import signal
import sys

import keras_cg


@keras_cg.custom_gradient
def first(x):
    return x**2, lambda upstream: upstream * 2 * x


@keras_cg.custom_gradient
def second(x):
    faulthandler.disable()
    sys.stderr.write("last words")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGABRT)
    return x, lambda upstream: upstream


@keras_cg.custom_gradient
def third(x):
    sys.exit("leaving")


@keras_cg.custom_gradient
def fourth(x):
    return x**3, lambda upstream: upstream * 3 * x**2


first.example_args = second.example_args = third.example_args = fourth.example_args = {"x": "rng.uniform(1, 2, 3)"}
