"""Forward mode comes from the rule itself: the transpose of a linear one, on every backend; any other is refused."""

import numpy as np
import pytest

from keras_cg import custom_gradient, jvp, ops

X = np.array([-1.0, 2.0, 3.0], np.float32)
ONES = np.ones(3, np.float32)


def clipping(limit):
    return lambda upstream: ops.clip(2 * upstream, -limit, limit)


NOT_LINEAR = {
    **{f"clip at {limit:g}": clipping(limit) for limit in (0.5, 1e6)},
    "affine": lambda upstream: upstream + 1,
    "not transposed by JAX": lambda upstream: ops.where(upstream > 1, 1.0, upstream),
    "relu": lambda upstream: ops.maximum(upstream, 0 * upstream),
    "norm": lambda upstream: upstream / (1 + ops.sum(upstream * upstream)),
}
NOT_LINEAR_TEXT = "linear in upstream"


def with_rule(rule):
    return custom_gradient(lambda x: (x * 2, rule))


def forward_modes(eager):
    """Every forward mode of the framework that serves a decorated function, as `mode(f, x, t)`."""
    modes = {"keras_cg": lambda f, x, t: jvp(f, (x,), (t,))[1]}
    if eager.name == "torch":
        import torch
        from torch.autograd import forward_ad

        def dual(f, x, t):
            with forward_ad.dual_level():
                return forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))).tangent

        modes |= {"func": lambda f, x, t: torch.func.jvp(f, (x,), (t,))[1], "forward_ad": dual}
        modes["vmap"] = lambda f, x, t: torch.func.jvp(lambda x: torch.func.vmap(f)(x[None])[0], (x,), (t,))[1]
    if eager.name == "tensorflow":
        import tensorflow as tf

        def accumulated(f, x, t):
            with tf.autodiff.ForwardAccumulator(x, t) as accumulator:
                y = f(x)
            return accumulator.jvp(y)

        modes["accumulator"] = accumulated
    return modes


WIDTHS = [("float32", "bfloat16"), ("float64", "float16"), ("float64", "float32"), ("float16", "float64")]


def test_a_rule_whose_upstream_has_another_width(eager):
    """The gradient of a cast: it is as exact as upstream."""
    missing = {"jax": "float64", "numpy": "bfloat16"}.get(eager.name)
    for kind, other in [pair for pair in WIDTHS if missing not in pair]:
        f = custom_gradient(
            lambda x, kind=kind, other=other: (ops.astype(x, other), lambda upstream: 7 * ops.astype(upstream, kind))
        )
        x, t = (ops.astype(eager.tensor(array), kind) for array in (X, np.array([0.3, 0.7, -1.1], np.float32)))
        for mode in forward_modes(eager).values():
            tangent = eager.array(ops.astype(mode(f, x, t), "float32"))
            np.testing.assert_allclose(tangent, [2.1, 4.9, -7.7], rtol=1e-2, err_msg=f"{kind} {other}")


@pytest.mark.parametrize("rule", NOT_LINEAR)
@pytest.mark.limit
def test_a_rule_that_is_not_linear(eager, rule):
    """NumPy and TensorFlow try the whole function, and not each rule, and name it so."""
    f, x = with_rule(NOT_LINEAR[rule]), eager.tensor(X)
    for size in (1.0, 100.0):
        for name, mode in forward_modes(eager).items():
            with pytest.raises(ValueError, match=NOT_LINEAR_TEXT) as caught:
                mode(f, x, eager.tensor(size * ONES))
            whole = f.__qualname__ if eager.name in ("jax", "torch") else f"jvp({f.__qualname__})"
            told = f", and {whole} has one that is not."
            assert name != "keras_cg" or (caught.value.function == whole and told in str(caught.value))
