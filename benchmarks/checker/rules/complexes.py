"""Complex numbers; a gradient is dL/dx + i dL/dy on every backend."""

import numpy as np

from benchmarks.checker.rules import rule, signed
from keras_cg import ops
from keras_cg.frontend import config


def made_complex(real, imaginary):
    """A complex tensor of two real ones."""
    wide = "complex128" if config.active.dtype(real) == "float64" else "complex64"
    return config.active.cast(real, wide) + 1j * config.active.cast(imaginary, wide)


def conj(x):
    return ops.conj(x)


@rule(lambda z: z**3 - z, lambda z, u: u * np.conj(3 * z**2 - 1), signed(4, dtype="complex64"))
def complex_cubic(z):
    return z * z * z - z, lambda u: u * conj(3 * z * z - 1)


@rule(lambda z: np.abs(z) ** 2, lambda z, u: 2 * u * z, signed(2, 3, dtype="complex128"))
def power_of_a_wave(z):
    x, y = ops.real(z), ops.imag(z)
    return x * x + y * y, lambda u: 2 * made_complex(u * x, u * y)


@rule(lambda a: np.exp(1j * a), lambda a, u: np.real(np.conj(u) * 1j * np.exp(1j * a)), signed(5))
def on_the_circle(a):
    return made_complex(ops.cos(a), ops.sin(a)), lambda u: ops.cos(a) * ops.imag(u) - ops.sin(a) * ops.real(u)


@rule(
    lambda z, w: np.conj(z) * w,
    lambda z, w, u: [np.conj(u) * w, u * z],
    signed(4, dtype="complex64"),
    signed(4, dtype="complex64"),
)
def correlation(z, w):
    return conj(z) * w, lambda u: (conj(u) * w, u * z)


@rule(lambda z: 1 / z, lambda z, u: -u / np.conj(z) ** 2, signed(3, 2, dtype="complex128"))
def complex_reciprocal(z):
    y = 1 / z
    return y, lambda u: -u * conj(y * y)


@rule(
    lambda a, z: a @ z,
    lambda a, z, u: [np.outer(u, np.conj(z)), np.conj(a).T @ u],
    signed(3, 4, dtype="complex64"),
    signed(4, dtype="complex64"),
)
def complex_product(a, z):
    def gradient(u):
        return ops.expand_dims(u, axis=1) * ops.expand_dims(conj(z), axis=0), ops.matmul(
            ops.matrix_transpose(conj(a)), u
        )

    return ops.matmul(a, z), gradient


@rule(lambda z: np.fft.fft(z), lambda z, u: 6 * np.fft.ifft(u), signed(6, dtype="complex128"))
def spectrum(z):
    waves = ops.asarray(np.fft.fft(np.eye(6)), dtype=config.active.dtype(z))
    return ops.matmul(waves, z), lambda u: ops.matmul(conj(waves), u)
