"""Functions of complex numbers with their rules, and the differences that they are compared with."""

import numpy as np

Z = np.array([0.3 + 0.4j, -1.0 + 0.2j, 0.5 - 2.0j])
C = np.array([1.0 - 2.0j, 0.5 + 1.0j, -0.3 + 0.7j])
D = np.array([0.2 + 0.5j, 1.0 - 0.4j, -0.6 + 0.1j])

# The function, and the rule in the convention of torch and TensorFlow: u conj(df/dz) + conj(u) df/dconj(z).
COMPLEX = {
    "holomorphic": (lambda n, z: z * n.exp(z), lambda n, z, u: u * n.conj((1 + z) * n.exp(z))),
    "conj": (lambda n, z: n.conj(z) * z**2, lambda n, z, u: u * n.conj(2 * z * n.conj(z)) + n.conj(u) * z**2),
    "abs": (lambda n, z: n.abs(z), lambda n, z, u: u * z / n.abs(z)),
    "real": (lambda n, z: n.real(z) ** 3, lambda n, z, u: u * 3 * n.real(z) ** 2 * (1 + 0j)),
    "fft": (lambda n, z: n.fft.fft(z) ** 2, lambda n, z, u: 3 * n.fft.ifft(u * n.conj(2 * n.fft.fft(z)))),
}


def differences(loss, z, h=1e-4):
    """dL/dx + i dL/dy by central differences."""
    steps = np.eye(len(z)) * h
    real = np.array([loss(z + step) - loss(z - step) for step in steps])
    imaginary = np.array([loss(z + 1j * step) - loss(z - 1j * step) for step in steps])
    return (real + 1j * imaginary) / (2 * h)
