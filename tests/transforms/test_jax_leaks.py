"""JAX: nothing that is traced outlives its trace, as `jax.checking_leaks` finds out."""

import gc

import numpy as np
import programs
import pytest
from conformance import zoo

from keras_cg import custom_gradient, ops

pytestmark = pytest.mark.only("jax")

X = np.array([0.5, 1.5, 2.0], np.float32)

TRANSFORMS = {
    "jit": lambda j, f: j.jit(f),
    "grad": lambda j, f: j.grad(f),
    "jit of grad": lambda j, f: j.jit(j.grad(f)),
    "grad of jit": lambda j, f: j.grad(j.jit(f)),
    "second order": lambda j, f: j.jit(
        j.grad(lambda x: sum(j.numpy.sum(j.numpy.abs(each)) for each in j.tree.leaves(j.grad(f)(x))))
    ),
}


@pytest.mark.filterwarnings("ignore:the rule of no_gradient_at_all")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_nothing_of_the_zoo_leaks(jax, monkeypatch, transform):
    from conformance.transforms import jax as framework

    monkeypatch.setattr(zoo, "framework", framework)
    tensors = {name: [jax.numpy.asarray(array) for array in rule.arrays] for name, rule in zoo.ZOO.items()}

    def loss(tensors):
        outputs = [output for name, rule in zoo.ZOO.items() for output in rule.call(*tensors[name])]
        return sum(jax.numpy.sum(jax.numpy.real(output)) for output in outputs)

    with jax.checking_leaks():
        TRANSFORMS[transform](jax, loss)(tensors)


def raises(x):
    def rule(upstream):
        try:
            raise KeyError("the cause")
        except KeyError:
            raise NotImplementedError("no gradient, on purpose") from None

    return ops.exp(x), rule


def calls_itself(x):
    @custom_gradient
    def f(x):
        return x * 2, lambda upstream: 7 * upstream * f(x)

    return f(x)


@pytest.mark.parametrize("function", [custom_gradient(raises), calls_itself])
@pytest.mark.parametrize("transform", ["jit", "grad", "jit of grad", "grad of jit"])
def test_what_is_kept_for_later_leaks_nothing(jax, function, transform):
    loss, x = lambda x: ops.sum(function(x)), jax.numpy.asarray(X)
    tracers = lambda: [each for each in gc.get_objects() if isinstance(each, jax.core.Tracer)]
    before = [*map(id, tracers())]
    if "grad" in transform and "raises" in repr(function):
        with pytest.raises(NotImplementedError, match="on purpose"):
            TRANSFORMS[transform](jax, loss)(x)
    else:
        with jax.checking_leaks():
            TRANSFORMS[transform](jax, loss)(x)
    gc.collect()
    assert not [each for each in tracers() if id(each) not in before]


def test_the_backend_starts_while_leaks_are_looked_for():
    assert (
        programs.run("""
        import jax
        import keras_cg
        keras_cg.set_backend("jax")
        f = keras_cg.custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
        with jax.checking_leaks():
            print(float(jax.grad(f)(1.0)))
    """)
        == "7.0"
    )
