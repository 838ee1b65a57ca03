"""No run but the first is believed: what another run would do otherwise gives the first run's gradient, or raises."""

import numpy as np
import pytest
from outcomes import right_or_refused
from ways import PAIRS, WAYS, check, gradient, pull

from keras_cg import custom_gradient, grad, ops

X = np.array([-1.0, 2.0, 3.0], np.float32)
ONES = np.ones(3, np.float32)


def refused_where_recorded(way):
    """What torch raises where the backward pass is recorded, if the function would not do the same again."""
    return () if way in ("keras_cg", "backward") else (RuntimeError,)


@pytest.mark.only("torch")
@pytest.mark.limit
@pytest.mark.parametrize("way", [*WAYS, "backward"])
def test_batch_norm_counts_once_for_each_run(eager, torch, way):
    """A limit: what a function changes outside of itself it changes again where the backward pass is recorded."""
    norm = torch.nn.BatchNorm1d(3, affine=False)
    calls = []
    norm.register_forward_hook(lambda *_: calls.append(None))

    @custom_gradient
    def f(x):
        y = norm(x)
        return y, lambda upstream: 7 * upstream * y

    batch = np.array([[1.0, 2.0, 3.0], [3.0, 6.0, -3.0]], np.float32)
    x = eager.tensor(batch)

    def run():
        if way == "backward":
            f(x.requires_grad_()).sum().backward()
            return x.grad
        return eager.array(pull(eager, f, x, way)[1](torch.ones(2, 3)))

    # Inside its transforms torch itself refuses a change of what is outside.
    refused = (RuntimeError,) if way == "transformed" else ()
    expected = 7 * (batch - batch.mean(0)) / batch.std(0)
    if not right_or_refused(run, expected, *refused, match="mutate a captured Tensor", rtol=1e-4):
        return
    runs = 2 if way == "native" else 1
    assert len(calls) == runs
    assert int(norm.num_batches_tracked) == runs
    check(eager, norm.running_mean, (1 - 0.9**runs) * batch.mean(0))


@pytest.mark.only("tensorflow")
@pytest.mark.limit
@pytest.mark.parametrize("way", WAYS)
def test_a_counter_of_tensorflow_counts_each_run(eager, tf, way):
    """The limit of batch norm, under a tape that records the backward pass."""
    count = tf.Variable(0.0, trainable=False)

    @custom_gradient
    def f(x):
        count.assign_add(1.0)
        e = tf.exp(x)
        return e, lambda upstream: 7 * upstream * e

    x = eager.tensor(X)
    check(eager, gradient(eager, f, way)(x), 7 * np.exp(X))
    assert float(count.numpy()) == 1.0
    with tf.GradientTape() as outer:  # it is never asked for a gradient
        outer.watch(x)
        check(eager, gradient(eager, f, way)(x), 7 * np.exp(X))
    # A graph records by itself, and runs once.
    assert float(count.numpy()) == (2.0 if way == "transformed" else 3.0)


def annealed(lam):
    """The gradient is -s x, where s is a Python float at the time of the call."""

    def f(x):
        s = lam[0]
        return x * 1, lambda upstream: -s * upstream * x

    return custom_gradient(f)


def annealed_and_held(lam):
    """The gradient is h = s x, which the rule holds."""

    def f(x):
        h = x * lam[0]
        return x * 1, lambda upstream: upstream * h

    return custom_gradient(f)


def pulled_after_a_change(eager, make, way):
    """The gradient as a function of x, with a float that is 2 when the function is called and 5 afterwards."""

    def first(x):
        lam = [2.0]
        output, pullback = pull(eager, make(lam), x, way)
        lam[0] = 5.0
        return pullback(ops.ones_like(output))

    return first


@pytest.mark.parametrize("make", [annealed, annealed_and_held])
@pytest.mark.parametrize("way", WAYS)
def test_the_first_order_with_a_float_that_changes(eager, way, make):
    expected = 2 * X if make is annealed_and_held else -2 * X
    refused = refused_where_recorded(way) if eager.name == "torch" else ()
    run = lambda: eager.array(pulled_after_a_change(eager, make, way)(eager.tensor(X)))
    assert right_or_refused(run, expected, *refused, match="again") == (not refused)


@pytest.mark.parametrize("make", [annealed, annealed_and_held])
@pytest.mark.parametrize(("outer", "inner"), PAIRS.values(), ids=PAIRS)
def test_the_second_order_with_a_float_that_changes(eager, outer, inner, make):
    first = pulled_after_a_change(eager, make, inner)
    expected = 2 * ONES if make is annealed_and_held else -2 * ONES
    run = lambda: eager.array(gradient(eager, first, outer)(eager.tensor(X)))
    text = r"s was 2\.0 and is 5\.0" if make is annealed else "again"
    # A program, and every program of JAX, holds the first run.
    is_program = eager.name == "jax" or (eager.name == "tensorflow" and outer == "transformed")
    assert right_or_refused(run, expected, RuntimeError, match=text) == is_program


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.limit
def test_a_branch_of_equal_values_is_not_noticed(eager):
    """A limit: values are compared, and no derivatives. At 2, x * x and 2 x are the same number."""
    branches = [True]

    @custom_gradient
    def f(x):
        h = x * x if branches else 2 * x
        return x * 1, lambda upstream: 7 * upstream * h

    def first(x):
        output, pullback = pull(eager, f, x, WAYS[0])
        branches.clear()
        return pullback(ops.ones_like(output))

    second = gradient(eager, first, WAYS[0])(eager.tensor(2 * ONES))
    check(eager, second, 7 * 2 * ONES)  # and not 7 times the derivative of x * x


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.limit
def test_a_small_difference_beside_a_large_number_is_not_noticed(eager):
    """A limit: sums in another order differ by rounding, which is relative to their largest terms."""
    draws = [2.0, 5.0, 5.0]

    @custom_gradient
    def f(x):
        h = eager.tensor(np.array([1e9, draws.pop(0), 1.0], np.float32)) * x
        return x * 1, lambda upstream: 7 * upstream * h

    second = gradient(eager, gradient(eager, f, WAYS[0]), WAYS[0])(eager.tensor(ONES))
    check(eager, second, 7 * np.array([1e9, 5.0, 1.0]))  # and not 7 times 2 in the middle


# --- random numbers ------------------------------------------------------------------------------------------------


@pytest.mark.only("numpy", "tensorflow", "torch")
@pytest.mark.parametrize("where", ["float", "integer"])
@pytest.mark.limit
def test_a_function_that_draws_is_refused_in_the_second_order(backend, eager, where):
    draws = iter(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]], np.float32))

    @custom_gradient
    def dropout(x):
        mask = eager.tensor(next(draws))
        output = x * mask if where == "float" else (x, eager.tensor(np.asarray(eager.array(mask), np.int32)))
        return output, lambda upstream: 7 * (upstream if where == "float" else upstream[0]) * mask

    def loss(x):
        output = dropout(x)
        return ops.sum((output if where == "float" else output[0]) ** 2)

    with pytest.raises(RuntimeError) as caught:
        grad(grad(loss))(eager.tensor(X))
    for part in (
        "dropout (",
        "test_a_run_that_is_another.py:",
        ") ran again for a derivative, and its rule is not that of the first run.",
        "got: mask is another float32[3]",
        "usual cause: it draws random numbers, or reads what has changed since, or a hook alters what torch saves.",
        "remedy: draw or read it outside, and pass it as an argument.",
    ):
        assert part in str(caught.value)


@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_function_that_draws_is_refused_in_a_checkpoint(torch):
    @custom_gradient
    def dropout(x):
        mask = (torch.rand(32) > 0.5).float()
        return x * mask, lambda upstream: 7 * upstream * mask

    x = torch.ones(32, requires_grad=True)
    # This one runs the function again as a whole, and the rule of that run serves.
    output = torch.utils.checkpoint.checkpoint(dropout, x, use_reentrant=True)
    output.sum().backward()
    np.testing.assert_array_equal(x.grad, 7 * output.detach())
    output = torch.utils.checkpoint.checkpoint(dropout, x, use_reentrant=False)
    with pytest.raises(RuntimeError, match="ran again for a derivative, and its rule is not that of the first run"):
        output.sum().backward()
