"""JAX: a rule's numbers hold in every composition of its transforms, in any order, and on several devices.

The conformance suite has each transform, and the usual pairs; here is what it leaves out.
"""

import numpy as np
import programs
import pytest
from seven_exp import CURVED, SEVEN_EXP, E, X, check, f, total

from keras_cg import custom_gradient, ops

pytestmark = pytest.mark.only("jax")

W = np.array([2.0, 3.0, 4.0], np.float32)
T = np.array([0.25, -1.0, 2.0], np.float32)


def along(j, function):
    """The derivative of a function along T, as a function."""
    return lambda x: j.jvp(function, (x,), (j.numpy.asarray(T),))[1]


scan = lambda j, function, x: j.lax.scan(lambda carry, v: (carry + function(v), None), 0.0, x)[0]
scanned = lambda j: lambda x: scan(j, lambda v: f(v) ** 2, x)
diagonal = lambda j, rows: j.numpy.einsum({2: "ii->i", 3: "iii->i"}[rows.ndim], rows)


REVERSE = {
    "jit of vmap of hessian": (lambda j, x: j.jit(j.vmap(j.hessian(lambda x: f(x) ** 2)))(x), CURVED),
    "jacrev of jacrev of jit of scan": (lambda j, x: diagonal(j, j.jacrev(j.jacrev(j.jit(scanned(j))))(x)), CURVED),
    "jit of hessian of checkpoint of scan": (
        lambda j, x: diagonal(j, j.jit(j.hessian(j.checkpoint(scanned(j))))(x)),
        CURVED,
    ),
    "vmap without and with an axis": (
        lambda j, x: j.vmap(lambda a, b: j.grad(lambda b: f(b) * a)(b), (None, 0))(2.0, x),
        2 * SEVEN_EXP,
    ),
    "grad of switch": (lambda j, x: j.grad(lambda x: j.lax.switch(1, [ops.sum, total], x))(x), SEVEN_EXP),
    "vmap of sequential_vmap of grad": (
        lambda j, x: j.vmap(j.custom_batching.sequential_vmap(j.grad(f)))(x),
        SEVEN_EXP,
    ),
}
FORWARD = {
    "transpose of linearize": (lambda j, x: j.linear_transpose(j.linearize(f, x)[1], x)(T)[0], SEVEN_EXP * T),
    "jit of jacfwd of jacfwd of scan": (lambda j, x: diagonal(j, j.jit(j.jacfwd(j.jacfwd(scanned(j))))(x)), CURVED),
    # The second round starts from 2x.
    "jvp of fori_loop": (
        lambda j, x: j.jit(lambda n: along(j, lambda x: j.lax.fori_loop(0, n, lambda i, c: f(c), x))(x))(2),
        7 * np.exp(2 * X.astype(float)) * SEVEN_EXP * T,
    ),
    "jacfwd of associative_scan": (
        lambda j, x: j.jacfwd(lambda x: j.lax.associative_scan(j.numpy.add, f(x)))(x),
        np.tril(np.broadcast_to(SEVEN_EXP, (3, 3))),
    ),
}


@pytest.mark.parametrize("name", [*REVERSE, *FORWARD])
def test_compositions(eager, jax, name):
    import jax.custom_batching

    call, expected = (REVERSE | FORWARD)[name]
    check(call(jax, eager.tensor(X)), expected)


def test_compositions_under_either_custom_vjp(eager, jax, custom_vjp):
    x = eager.tensor(X)
    for name in ("jit of vmap of hessian", "jacrev of jacrev of jit of scan", "grad of switch"):
        call, expected = REVERSE[name]
        check(call(jax, x), expected)
    clip = custom_gradient(lambda x: (x * 2, lambda upstream: ops.clip(upstream, -1.0, 1.0)))
    with pytest.raises(ValueError, match="forward mode needs a rule that is linear in upstream"):
        jax.hessian(lambda x: ops.sum(clip(x)))(x)


def test_forward_mode_of_a_rule_that_calls_another_under_either_custom_vjp(eager, jax, custom_vjp):
    g = custom_gradient(lambda x: (x**3, lambda upstream: 7 * upstream * f(x)))
    x = eager.tensor(X)
    for transform in (jax.jit, jax.vmap, lambda function: function):
        check(along(jax, transform(g))(x), 14 * X * T)


# --- axes of vmap, and devices ---------------------------------------------------------------------------------------


def test_collectives_under_vmap(eager, jax):
    @custom_gradient
    def g(x):
        e = ops.exp(x)
        mean = jax.lax.psum(x, "batch")
        return x * 2 + mean, lambda upstream: 7 * upstream * jax.lax.psum(e, "batch")

    x = eager.tensor(X)
    check(jax.vmap(g, axis_name="batch")(x), 2 * X + X.sum())
    check(jax.vmap(jax.grad(g), axis_name="batch")(x), np.full(3, 7 * E.sum()))
    check(jax.jit(jax.grad(lambda x: jax.vmap(g, axis_name="batch")(x).sum()))(x), np.full(3, 7 * E.sum()))


@pytest.mark.parametrize("axes", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("inner", ["jit", "checkpoint"])
def test_a_program_under_vmap_along_any_axis(eager, jax, axes, inner):
    x, weights = np.outer(W, T), np.outer(T, X)
    there = lambda array, axis: array.T if axis else array

    def loss(x, program):
        rows = program(jax.vmap(getattr(jax, inner)(f), *axes))(x)
        return (eager.tensor(there(weights, axes[1])) * rows).sum()

    for program in (lambda function: function, jax.jit):
        found = jax.grad(loss)(eager.tensor(there(x, axes[0])), program)
        check(found, there(weights * 7 * np.exp(x), axes[0]))


@pytest.mark.parametrize("has_axis", ["the argument", "what the rule reads"])
def test_a_program_whose_outputs_have_no_axis_under_vmap(eager, jax, has_axis):
    @custom_gradient
    def g(x):
        where = jax.lax.axis_index("i") + 1.0
        return ops.ones(3), lambda upstream: 7 * upstream * where

    x, weights = np.outer(W, T), np.outer(T, X)
    scaled = 7 * weights * np.array([[1], [2], [3]])
    if has_axis == "the argument":
        mapped = lambda x: jax.vmap(jax.jit(g), axis_name="i")(x)
    else:
        mapped = lambda x: jax.vmap(lambda _: jax.jit(g)(x), axis_name="i")(np.zeros(3))
        x, scaled = x[0], scaled.sum(0)
    for program in (lambda function: function, jax.jit):
        found = jax.grad(lambda x: (eager.tensor(weights) * program(mapped)(x)).sum())(eager.tensor(x))
        check(found, scaled)


SHARDED = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import keras_cg
from keras_cg import ops

assert len(jax.devices()) == 8
Axis = jax.sharding.AxisType
mesh = jax.make_mesh((8,), ("i",), axis_types=(Axis.Auto,))
x = np.linspace(-1, 1, 16, dtype=np.float32)
inside = lambda function, mesh=mesh: jax.shard_map(function, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
plain = lambda function: function
close = lambda found, expected: np.testing.assert_allclose(found, expected, rtol=1e-5)

@keras_cg.custom_gradient
def summed(x):
    e = ops.exp(x)
    return x * 2, lambda upstream: 7 * upstream * jax.lax.psum(ops.sum(e), "i")

for transform in (plain, jax.jit):
    close(transform(jax.grad(lambda x: inside(summed)(x).sum()))(x), np.full(16, 7 * np.exp(x.astype(float)).sum()))

@keras_cg.custom_gradient
def f(x):
    e = ops.exp(x)
    return x * 2, lambda upstream: 7 * upstream * e

close(jax.pmap(jax.grad(lambda x: f(x)))(x[:8]), 7 * np.exp(x[:8].astype(float)))

for kind, transform in ((Axis.Auto, plain), (Axis.Auto, jax.jit), (Axis.Explicit, jax.jit)):
    spread = jax.make_mesh((8,), ("i",), axis_types=(kind,))
    there = jax.device_put(x, NamedSharding(spread, P("i")))
    for g in (jax.jit(f), inside(f, spread)):
        found = transform(jax.grad(lambda x: g(x).sum()))(there)
        close(found, 7 * np.exp(x.astype(float)))
        assert len(found.sharding.device_set) == 8

# Linear rules that are diagonal, and so their own transposes, and hold a program for several devices.
for rule in (lambda x: lambda u: inside(lambda v: 7 * v)(u), lambda x: lambda u: 7 * u * inside(jax.numpy.exp)(x)):
    k = keras_cg.custom_gradient(lambda x: (x * 2, rule(x)))
    close(jax.jvp(k, (x,), (x,))[1], rule(x)(x))
    close(np.diag(jax.jit(jax.jacfwd(k))(x)), rule(x)(np.ones(16, np.float32)))
"""


def test_on_eight_devices(backend):
    devices = "--xla_force_host_platform_device_count=8"
    programs.run(SHARDED, JAX_PLATFORMS="cpu", KERAS_CG_BACKEND="jax", XLA_FLAGS=devices)


@pytest.mark.parametrize("compiled", [False, True])
def test_orders_under_vmap_with_an_argument_and_outputs_that_have_no_axis(eager, jax, compiled):
    @custom_gradient
    def g(x, y):
        e = ops.exp(x)
        return (x * y, 3 * y), lambda up: (7 * up[0] * e * y, 5 * up[0] * x + 11 * up[1])

    x, y = eager.tensor(X), eager.tensor(W)[0]

    def loss(x, y):
        product, triple = g(x, y)
        return product**2 + triple**2

    along = lambda y: jax.vmap(loss, (0, None))(x, y).sum()
    second = jax.jacfwd if compiled else jax.jacrev

    def whole(x, y):
        first = jax.grad(loss, (0, 1))
        return (
            jax.vmap(first, (0, None))(x, y),
            jax.vmap(second(first, (0, 1)), (0, None))(x, y),
            jax.grad(along)(y),
            second(jax.grad(along))(y),
        )

    (gx, gy), ((xx, xy), (yx, yy)), slope, curve = (jax.jit(whole) if compiled else whole)(x, y)
    check(gx, 14 * X * 2 * E * 2)
    check(gy, 10 * X * X * 2 + 22 * 6)
    check(slope, np.sum(10 * X * X * 2 + 22 * 6))
    # Of gx = 14 P E y and gy = 10 P x + 22 T, where P' is 7 E y and 5 x, and T' is 11.
    check(xx, 14 * 2 * E * (7 * E * 2) + 14 * 2 * X * E * 2)
    check(xy, 14 * 2 * E * 5 * X + 14 * 2 * X * E)
    check(yx, 10 * X * 7 * E * 2 + 10 * 2 * X)
    check(yy, 10 * X * 5 * X + 22 * 11)
    check(curve, np.sum(10 * X * 5 * X + 22 * 11))


def test_a_rule_that_is_not_linear_under_vmap_with_an_argument_that_has_no_axis(eager, jax):
    g = custom_gradient(lambda x, y: (x * y, lambda up: (7 * ops.clip(up, -1.0, 1.0), 5 * x * ops.clip(up, -9e9, 9e9))))
    x, y = eager.tensor(X), eager.tensor(W)[0]
    along = lambda y: (jax.vmap(g, (0, None))(x, y) ** 2).sum()
    # Of the sum of 10 P x, with P' = 5 x.
    check(jax.grad(along)(y), np.sum(10 * 2 * X * X))
    check(jax.jit(jax.grad(jax.grad(along)))(y), np.sum(10 * X * 5 * X))


# --- state -----------------------------------------------------------------------------------------------------------


@pytest.mark.limit
def test_mutable_references_in_a_program(eager, jax):
    if not hasattr(jax, "new_ref"):
        pytest.skip("this JAX has no references")
    count = jax.new_ref(jax.numpy.zeros(()))

    @custom_gradient
    def counted(x):
        count[...] += 1
        return x * 2, lambda upstream: 7 * upstream

    weighed = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream * count[...]))
    for runs, transform in enumerate((jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))), 1):
        assert float(transform(counted)(3.0)) == 7
        assert float(count[...]) == runs
    with pytest.raises(NotImplementedError, match="No state discharge rule"):
        jax.jit(counted)(3.0)
    count[...] = 3.0
    assert float(jax.grad(weighed)(3.0)) == 21
    with pytest.raises(ValueError, match="mutable array reference"):
        jax.jit(jax.grad(weighed))(3.0)


def test_a_reference_as_an_argument_is_no_tensor(eager, jax):
    """What traces a reference has the class of what traces an array."""
    arrays = []
    jax.make_jaxpr(lambda x: arrays.append(isinstance(jax.new_ref(x), jax.Array)))(1.0)
    if arrays == [True]:
        pytest.skip("this JAX (0.8) calls what traces a reference an array")
    doubled = custom_gradient(lambda x, reference: (x * 2, lambda upstream: (7 * upstream, None)))
    gradient = jax.grad(lambda x: doubled(x, jax.new_ref(x)))
    assert float(gradient(3.0)) == 7
    assert jax.vmap(gradient)(jax.numpy.ones(2)).tolist() == [7, 7]


@pytest.mark.limit
def test_what_a_rule_reads_when_it_runs(jax):
    """JAX 0.8 does not say whether a pullback is what is asked for: there the rule runs in the forward pass."""
    state = {"k": 3.0}
    rule = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * state["k"]))
    _, pullback = jax.vjp(rule, 1.0)
    state["k"] = 5.0
    assert float(pullback(1.0)[0]) == (21 if jax.__version_info__ < (0, 9) else 35)
