"""JAX: rules that call their own function, or the next one of their kind, are traced to the depth that is asked for."""

import math

import numpy as np
import pytest

from keras_cg import CapturedVariableError, custom_gradient

pytestmark = pytest.mark.only("jax")

# More runs than any transform needs; a trace without end would take them.
LIMIT = 100


class WithoutEnd(BaseException):
    """No Exception, which a rule may raise."""


class Runs(list):
    def note(self, what):
        self.append(what)
        if len(self) > LIMIT:
            raise WithoutEnd


def derivative_of_a_factory(runs):
    """7^n exp(x), whose rule gives the next function of the factory."""
    import jax.numpy as n

    def make(order):
        @custom_gradient
        def f(x):
            runs.note(order)
            return 7.0**order * n.exp(x), lambda upstream: upstream * make(order + 1)(x)

        return f

    return make(0)


def derivative_of_an_object(runs):
    import jax.numpy as n

    class Scaled:
        def __init__(self, order):
            self.order = order

        @custom_gradient
        def __call__(self, x):
            runs.note(self.order)
            return 7.0**self.order * n.exp(x), lambda upstream: upstream * Scaled(self.order + 1)(x)

    return Scaled(0)


def decorated_at_each_call(runs):
    import jax.numpy as n

    def f(x, order=0):
        @custom_gradient
        def scaled(x):
            runs.note(order)
            return 7.0**order * n.exp(x), lambda upstream: upstream * f(x, order + 1)

        return scaled(x)

    return f


def two_that_call_each_other(runs):
    import jax.numpy as n

    def make(order, other):
        @custom_gradient
        def f(x):
            runs.note(order)
            return 7.0**order * n.exp(x), lambda upstream: upstream * other(order + 1)(x)

        return f

    first = lambda order: make(order, second)
    second = lambda order: make(order, first)
    return first(0)


def branching(runs):
    """As the Bessel functions: the rule of one calls two. The derivatives of 7^n exp(x) again, as a mean of two."""
    import jax.numpy as n

    def make(order):
        @custom_gradient
        def f(x):
            runs.note(order)
            return 7.0**order * n.exp(x), lambda upstream: upstream * (make(order)(x) * 7 + make(order + 1)(x)) / 2

        return f

    return make(0)


def itself(runs):
    import jax.numpy as n

    @custom_gradient
    def f(x):
        runs.note(0)
        return n.exp(x), lambda upstream: 7 * upstream * f(x)

    return f


FUNCTIONS = [
    *(derivative_of_a_factory, derivative_of_an_object, decorated_at_each_call, two_that_call_each_other, branching),
    itself,
]

# Each transform, the order of the derivative that it takes, and the runs that it may take: 2^n where a rule calls two.
TRANSFORMS = {
    "jit": (lambda j, f: j.jit(f), 0, 3),
    "grad": (lambda j, f: j.grad(f), 1, 3),
    "jit of grad": (lambda j, f: j.jit(j.grad(f)), 1, 3),
    "grad of jit": (lambda j, f: j.grad(j.jit(f)), 1, 3),
    "vmap of grad": (lambda j, f: lambda x: j.vmap(j.grad(f))(x[None])[0], 1, 3),
    "grad of scan": (lambda j, f: j.grad(lambda x: j.lax.scan(lambda c, _: (f(c), None), x, None, 1)[0]), 1, 3),
    "grad of checkpoint": (lambda j, f: j.grad(j.checkpoint(f)), 1, 3),
    "jvp": (lambda j, f: lambda x: j.jvp(f, (x,), (1.0,))[1], 1, 7),
    "grad of grad": (lambda j, f: j.grad(j.grad(f)), 2, 9),
    "jit of grad of grad": (lambda j, f: j.jit(j.grad(j.grad(f))), 2, 9),
    "hessian": (lambda j, f: j.hessian(f), 2, 9),
    "third order": (lambda j, f: j.jit(j.grad(j.grad(j.grad(f)))), 3, 33),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_rule_that_calls_the_next_function(jax, function, transform):
    differentiate, order, allowed = TRANSFORMS[transform]
    runs = Runs()
    found = differentiate(jax, function(runs))(jax.numpy.float32(0.5))
    np.testing.assert_allclose(found, 7.0**order * math.exp(0.5), rtol=1e-5)
    assert len(runs) <= allowed


@pytest.mark.limit
def test_a_late_function_that_captures_something(jax):
    """Its value is right; a derivative is right or refused."""

    def loss(w, x):
        def make(order):
            @custom_gradient
            def f(x):
                def grad(upstream, variables=()):
                    gradient = 7 * upstream * make(order + 1)(x)
                    return (gradient, [5 * upstream * x for _ in variables]) if variables else gradient

                return x * w + order, grad

            return f

        return make(0)(x)

    first = jax.grad(loss, (0, 1))
    for run in (first, jax.jit(first)):
        assert [*map(float, run(3.0, 2.0))] == [10, 49]
    for of in (0, 1):
        second = jax.grad(lambda w, x, of=of: first(w, x)[of], (0, 1))
        for run in (second, jax.jit(second)):
            try:
                found = [*map(float, run(3.0, 2.0))]
            except (CapturedVariableError, jax.errors.UnexpectedTracerError):
                continue
            # Of 5 x; of 7 (x w + 1), by the rules of the second function.
            assert found == [[0, 5], [70, 7 * 7 * 8]][of]


def test_a_recursion_that_never_ends_says_so(jax):
    def endless(x):
        return endless(x)

    f = custom_gradient(lambda x: (x * 1, endless))
    with pytest.raises(RecursionError):
        jax.jit(jax.grad(f))(1.0)
