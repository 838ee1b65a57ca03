"""Functions that do to their process what no function should, and one that only talks."""

import ctypes
import os
import signal
import sys
import time

import keras_cg

print("printed at import")  # noqa: T201


@keras_cg.custom_gradient
def talks(x):
    print('{"event": "done"}', flush=True)  # noqa: T201
    os.write(1, b'{"event": "done"}\n')
    sys.stderr.write("x" * 200_000 + "\n")
    return x**2, lambda upstream: upstream * 2 * x


@keras_cg.custom_gradient
def crashes(x):
    """A segmentation fault in the rule."""
    return x**2, lambda upstream: ctypes.string_at(0)


@keras_cg.custom_gradient
def killed(x):
    """What the kernel does to a process that takes too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return x, lambda upstream: upstream


@keras_cg.custom_gradient
def exits(x):
    os._exit(3)
    return x, lambda upstream: upstream


@keras_cg.custom_gradient
def leaves(x):
    sys.exit("leaving")
    return x, lambda upstream: upstream


@keras_cg.custom_gradient
def hungry(x):
    bytearray(1 << 60)
    return x, lambda upstream: upstream


@keras_cg.custom_gradient
def crashes_on_numpy(x):
    if keras_cg.backend() == "numpy":
        ctypes.string_at(0)
    return x**2, lambda upstream: upstream * 2 * x


@keras_cg.custom_gradient
def reads(x):
    return x**2 + len(sys.stdin.read()), lambda upstream: upstream * 2 * x


seen = []


@keras_cg.custom_gradient
def slow(x):
    """Takes long when it runs for the first time."""
    if not seen:
        seen.append(x)
        time.sleep(2.5)
    return x**2, lambda upstream: upstream * 2 * x
