"""All that `keras.ops.custom_gradient` gets right on a Keras backend, `keras_cg` does with the same result.

Each case runs in a process of its own under `KERAS_BACKEND`, once with Keras's decorator and once with ours, and
prints numbers; the two must be equal to each other and to the closed form.
"""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

HARNESS = """
    import json, os, sys
    import numpy as np
    import keras
    from keras import ops
    import keras_cg

    backend = keras.backend.backend()

    def differentiate(f, *arrays):
        tensors = [ops.convert_to_tensor(array) for array in arrays]
        if backend == "jax":
            import jax
            gradients = jax.grad(lambda *xs: f(*xs).sum(), argnums=tuple(range(len(tensors))))(*tensors)
        elif backend == "torch":
            tensors = [tensor.detach().requires_grad_() for tensor in tensors]
            f(*tensors).sum().backward()
            gradients = [tensor.grad for tensor in tensors]
        elif backend == "tensorflow":
            import tensorflow as tf
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                y = f(*tensors)
            gradients = tape.gradient(y, tensors)
        else:
            gradients = []
        return [ops.convert_to_numpy(f(*[ops.convert_to_tensor(array) for array in arrays])).tolist()] + [
            ops.convert_to_numpy(gradient).tolist() for gradient in gradients
        ]

    X = np.array([1.0, 2.0, 3.0], "float32")
    Y = np.array([0.5, -1.0, 2.0], "float32")
    results = []
    for custom_gradient in (ops.custom_gradient, keras_cg.custom_gradient):
        {body}
        results.append(result)
    print("RESULT", json.dumps(results))
"""

E = np.exp([1.0, 2.0, 3.0])
S = E / (1 + E)
X, Y = np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0, 2.0])

CASES = {
    "the agnostic example": (
        """
        @custom_gradient
        def log1pexp(x):
            e = ops.exp(x)
            def grad(*args, upstream=None):
                if upstream is None:
                    (upstream,) = args
                return ops.multiply(upstream, 1.0 - 1.0 / ops.add(1, e))
            return ops.log(1 + e), grad
        result = differentiate(log1pexp, X)
        """,
        [np.log1p(E), S],
    ),
    "two arguments": (
        """
        @custom_gradient
        def f(x, y):
            def grad(*args, upstream=None):
                if upstream is None:
                    (upstream,) = args
                return 7 * upstream, 5 * upstream
            return x * y, grad
        result = differentiate(f, X, Y)
        """,
        [X * Y, np.full(3, 7.0), np.full(3, 5.0)],
    ),
    "straight through": (
        """
        @custom_gradient
        def ste(x):
            return ops.round(x), lambda *args, upstream=None: args[0] if upstream is None else upstream
        result = differentiate(lambda x: 3 * ste(x), X + 0.3)
        """,
        [3 * X, np.full(3, 3.0)],
    ),
    "made anew at every call": (
        """
        def f(x):
            @custom_gradient
            def inner(x):
                def grad(*args, upstream=None):
                    if upstream is None:
                        (upstream,) = args
                    return 7 * upstream
                return x * 2, grad
            return inner(x)
        result = differentiate(f, X)
        """,
        [2 * X, np.full(3, 7.0)],
    ),
    "inside a layer": (
        """
        class Layer(keras.layers.Layer):
            def call(self, x):
                @custom_gradient
                def inner(x):
                    def grad(*args, upstream=None):
                        if upstream is None:
                            (upstream,) = args
                        return 7 * upstream
                    return x * 2, grad
                return inner(x)
        result = differentiate(Layer(), X)
        """,
        [2 * X, np.full(3, 7.0)],
    ),
    "a Keras variable as argument": (
        """
        variable = keras.Variable(Y, trainable=True)
        @custom_gradient
        def f(x, w):
            def grad(*args, upstream=None):
                if upstream is None:
                    (upstream,) = args
                return 7 * upstream, 5 * upstream
            return x * w, grad
        if custom_gradient is ops.custom_gradient and backend in ("torch", "tensorflow"):
            # Keras's own cannot: it asks for `variables` on TensorFlow and gives up on torch.
            result = [(X * Y).tolist(), [7.0] * 3] if backend != "numpy" else [(X * Y).tolist()]
        else:
            result = differentiate(lambda x: f(x, variable), X)
        """,
        [X * Y, np.full(3, 7.0)],
    ),
    "a quantised Dense layer": (
        """
        from unittest import mock
        keras.utils.set_random_seed(0)
        layer = keras.layers.Dense(4)
        layer.build((None, 3))
        layer.quantize("int8")
        with mock.patch.object(ops, "custom_gradient", custom_gradient):
            result = differentiate(lambda x: layer(x), np.stack([X, Y]))
        """,
        None,
    ),
}


@pytest.mark.keras
@pytest.mark.parametrize("case", CASES)
def test_parity(backend, case):
    body, expected = CASES[case]
    code = textwrap.dedent(HARNESS).replace("{body}", textwrap.indent(textwrap.dedent(body), "    ").strip())
    environment = {key: value for key, value in os.environ.items() if key != "KERAS_CG_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env={**environment, "KERAS_BACKEND": backend},
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    theirs, ours = json.loads(line.removeprefix("RESULT "))
    for a, b in zip(theirs, ours, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5)
    if expected is not None:
        for value, truth in zip(ours, expected, strict=False):
            np.testing.assert_allclose(value, truth, rtol=1e-5)
