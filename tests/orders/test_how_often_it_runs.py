"""How often a decorated function runs: once for the first order, and once more for each order that is recorded.

On torch, a backward pass with `create_graph` is recorded, and so is every level of torch.func.
"""

import numpy as np
import pytest
from outcomes import right_or_refused
from places import PLACES
from tapes import forward, gradients
from ways import WAYS, gradient

from keras_cg import CapturedVariableError, custom_gradient, grad, jacobian, ops, vjp

X = np.array([0.25, 0.5, 1.0], np.float32)
E = np.exp(X)


def counted(place="cell"):
    """`(f, runs)`: a function whose gradient is 7 exp(x), and so is each further derivative; and a list of its runs."""
    runs = []

    @custom_gradient
    def f(x):
        runs.append("f")
        return x * 2, PLACES[place](ops.exp(x / 2))

    return f, runs


def recorded(eager, way):
    """How many of the backward passes of a way are recorded, whether or not anybody asks for a second order."""
    return int(eager.name == "torch" and way != "keras_cg")


def check(eager, found, expected=7 * E):
    np.testing.assert_allclose(eager.array(found), expected, rtol=1e-5)


# --- the first order -----------------------------------------------------------------------------------------------


def test_a_plain_call(eager):
    f, runs = counted()
    check(eager, f(eager.tensor(X)), 2 * X)
    assert len(runs) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_pullback_that_is_called_twice(eager, way):
    f, runs = counted()
    x, upstream = eager.tensor(X), eager.tensor(np.ones(3, np.float32))
    if way == "keras_cg":
        _, pullback = vjp(f, x)
        first, second = pullback(upstream)[0], pullback(2 * upstream)[0]
    else:
        _, pullback = eager.native.vjp(f, x, way)
        first, second = pullback(upstream), pullback(2 * upstream)
    check(eager, first)
    check(eager, second, 14 * E)
    assert len(runs) == 1 + 2 * recorded(eager, way)


def test_jacobian(eager):
    f, runs = counted()
    check(eager, jacobian(f)(eager.tensor(X)), np.diag(7 * E))
    assert len(runs) == 1


def test_the_first_order_inside_another_derivative(eager):
    """The outer derivative is that of something else: nothing asks for the second order of `f`."""
    f, runs = counted()

    def outer(x, k):
        _, pullback = vjp(f, x)
        return ops.sum(pullback(ops.ones_like(x))[0]) * k

    found = grad(outer, argnums=1)(eager.tensor(X), eager.tensor(np.float32(2.0)))
    check(eager, found, np.sum(7 * E))
    assert len(runs) == 1


def backward_twice(torch, f, x):
    x.requires_grad_()
    y = f(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad / 2


def backward(torch, f, x, **options):
    x.requires_grad_()
    f(x).sum().backward(**options)
    return x.grad.detach()


# The backward passes that keep no graph; all others below run the function again.
UNRECORDED = ("backward", "backward twice", "functional.jacobian", "is_grads_batched")
TORCH = {
    "backward": backward,
    "backward twice": backward_twice,
    "backward(create_graph)": lambda torch, f, x: torch.autograd.grad(
        f(x.requires_grad_()).sum(), x, create_graph=True
    )[0].detach(),
    "func.grad": lambda torch, f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "vmap of keras_cg.grad": lambda torch, f, x: torch.func.vmap(grad(f))(x),
    "jacrev": lambda torch, f, x: torch.func.jacrev(f)(x).diagonal(),
    "functional.jacobian": lambda torch, f, x: torch.autograd.functional.jacobian(f, x).diagonal(),
    "is_grads_batched": lambda torch, f, x: torch.autograd.grad(
        f(x.requires_grad_()), x, torch.eye(3), is_grads_batched=True
    )[0].diagonal(),
}


@pytest.mark.only("torch")
@pytest.mark.parametrize("transform", TORCH)
@pytest.mark.limit
def test_torch_runs_it_again_only_if_the_backward_pass_is_recorded(eager, torch, transform):
    """A limit: a tensor that the rule keeps belongs to a level of torch.func, which is over by then."""
    f, runs = counted()
    check(eager, TORCH[transform](torch, f, eager.tensor(X)))
    assert len(runs) == (1 if transform in UNRECORDED else 2)


def taped(tf, f, x, read):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = f(x)
    return read(tape, y, x)


TENSORFLOW = {
    "persistent tape": lambda tf, f, x: taped(
        tf, f, x, lambda tape, y, x: (tape.gradient(y, x) + tape.gradient(y, x)) / 2
    ),
    "jacobian in a loop": lambda tf, f, x: tf.linalg.diag_part(
        taped(tf, f, x, lambda tape, y, x: tape.jacobian(y, x, experimental_use_pfor=False))
    ),
    "tape around a tf.function": lambda tf, f, x: gradients(tf.function(f), x)[0],
    "forward": lambda tf, f, x: forward(f, x),
    "forward twice": lambda tf, f, x: forward(lambda x: forward(f, x), x),
    "first over forward": lambda tf, f, x: gradients(lambda x: forward(f, x), x)[0],
}


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize("transform", TENSORFLOW)
def test_tensorflow_runs_it_once_for_each_order(eager, tf, transform):
    f, runs = counted()
    check(eager, TENSORFLOW[transform](tf, f, eager.tensor(X)))
    assert len(runs) == (2 if transform in ("forward twice", "first over forward") else 1)


# --- something captured that is differentiated ----------------------------------------------------------------------


def captures(w):
    """As `counted`, of `x w`, with the gradient 7 for x and 5 x for w, which is closed over."""
    runs = []

    @custom_gradient
    def f(x):
        runs.append("f")

        return x * w, lambda upstream, variables=None: (7 * upstream, [5 * upstream * x]) if variables else 7 * upstream

    return f, runs


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("role", ["captured", "captured and argument"])
def test_a_captured_value_is_differentiated(eager, way, role):
    runs = []

    def loss(w):
        f, ran = captures(w)
        runs.append(ran)
        return f(eager.tensor(X) if role == "captured" else w * 1)

    run = lambda: eager.array(gradient(eager, loss, way)(eager.tensor(X)))
    # In a graph TensorFlow does not hand a tensor that is closed over to the rule, nor does autograd anywhere.
    is_refused = eager.name == "numpy" or (eager.name, way) == ("tensorflow", "transformed")
    refused = (CapturedVariableError,) if is_refused else ()
    if right_or_refused(run, 5 * X if role == "captured" else 7 + 5 * X, *refused):
        # JAX traces the function twice, to know which variables the rule gets.
        assert [len(ran) for ran in runs] == [2 if eager.name == "jax" else 1 + recorded(eager, way)]


# --- higher orders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", ["cell", "object"])
def test_order_k_runs_at_most_k_times(eager, way, place):
    f, runs = counted(place)
    derivative = f
    for order in (1, 2, 3):
        derivative = gradient(eager, derivative, way)
        runs.clear()
        check(eager, derivative(eager.tensor(X)))
        assert len(runs) <= order + recorded(eager, way)
