"""What a rule does across eight devices of JAX: gradients keep their sharding, and nothing is gathered for them."""

import pytest

PROGRAM = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import functools, re
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import keras_cg

COLLECTIVES = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter|collective-broadcast"
X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
W = np.linspace(1, 2, 32, dtype=np.float32).reshape(8, 4)
E = np.exp(X.astype(float))


def collectives(function, *args):
    text = jax.jit(function).lower(*args).compile().as_text()
    return sorted(re.findall(rf" ({COLLECTIVES})(?:-start)?\\(", text))


# Wrong on purpose: the gradients are 7 exp(x) and 5 exp(x), where x * w has w and x.
@keras_cg.custom_gradient
def ours(x, w):
    e = jnp.exp(x)
    return x * w, lambda upstream: (7 * upstream * e, 5 * upstream * e)


@jax.custom_vjp
def by_hand(x, w):
    return x * w

by_hand.defvjp(lambda x, w: (x * w, jnp.exp(x)), lambda e, upstream: (7 * upstream * e, 5 * upstream * e))


def captured(x, w):
    @keras_cg.custom_gradient
    def f(x):
        e = jnp.exp(x)
        return x * w, lambda upstream, variables: (7 * upstream * e, [5 * upstream * e])
    return f(x)


def gradient(f):
    return jax.grad(lambda x, w: f(x, w).sum(), argnums=(0, 1))


for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind, kind))
    with jax.set_mesh(mesh):
        for spec in (P("a", "b"), P("a"), P(None, "b"), P(("a", "b")), P()):
            sharding = NamedSharding(mesh, spec)
            x, w = jax.device_put(X, sharding), jax.device_put(W, sharding)
            for f in (ours, captured):
                for transform in (lambda g: g, jax.jit):
                    # An eager gradient shows what a function closes over only when it runs.
                    for found, due in zip(transform(gradient(f))(x, w), (7 * E, 5 * E)):
                        np.testing.assert_allclose(found, due, rtol=1e-5)
                        assert found.sharding.is_equivalent_to(sharding, 2), (kind, spec, f, found.sharding)
                assert collectives(gradient(f), x, w) == collectives(gradient(by_hand), x, w) == [], (kind, spec, f)
            # Forwards, and in second order, where the derivative of what the rule holds is plain: 7 exp(x) again.
            tangent = jax.jit(lambda x, w: jax.jvp(lambda x: ours(x, w), (x,), (jnp.ones_like(x),))[1])
            again = jax.jit(jax.grad(lambda x, w: gradient(ours)(x, w)[0].sum()))
            for g in (tangent, again):
                np.testing.assert_allclose(g(x, w), 7 * E, rtol=1e-5)
                assert g(x, w).sharding.is_equivalent_to(sharding, 2)
                assert collectives(g, x, w) == []

        # Data parallel: one sum over the devices for the gradient of the whole weight, as by hand.
        x = jax.device_put(X, NamedSharding(mesh, P(("a", "b"))))
        w = jax.device_put(W[:1], NamedSharding(mesh, P()))
        places = {"out_sharding": P(("a", "b"))} if kind is AxisType.Explicit else {}
        spread = lambda f: jax.grad(lambda w, x: f(x, jnp.broadcast_to(w, x.shape, **places)).sum())
        np.testing.assert_allclose(jax.jit(spread(ours))(w, x), 5 * E.sum(0, keepdims=True), rtol=1e-5)
        assert collectives(spread(ours), w, x) == collectives(spread(by_hand), w, x) == ["all-reduce"]

mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
sharding = NamedSharding(mesh, P("a"))
x = jax.device_put(X, sharding)


# A collective in the rule, and one in the function whose value the rule holds.
@keras_cg.custom_gradient
def with_collectives(x):
    total = jax.lax.psum(jnp.exp(x).sum(), "a")
    return x / total, lambda upstream: 7 * jax.lax.psum(upstream.sum(), "a") * total + 0 * upstream

inside = jax.shard_map(with_collectives, mesh=mesh, in_specs=P("a"), out_specs=P("a"))
for transform in (lambda g: g, jax.jit):
    found = transform(jax.grad(lambda x: (inside(x) * 2).sum()))(x)
    np.testing.assert_allclose(found, np.full((8, 4), 7 * 64 * E.sum()), rtol=1e-5)
    assert found.sharding.is_equivalent_to(sharding, 2)

@jax.custom_vjp
def with_collectives_by_hand(x):
    return x / jax.lax.psum(jnp.exp(x).sum(), "a")

def forward(x):
    total = jax.lax.psum(jnp.exp(x).sum(), "a")
    return x / total, total

def backward(total, upstream):
    return (7 * jax.lax.psum(upstream.sum(), "a") * total + 0 * upstream,)

with_collectives_by_hand.defvjp(forward, backward)
by_hand = jax.shard_map(with_collectives_by_hand, mesh=mesh, in_specs=P("a"), out_specs=P("a"))
counted = [collectives(jax.grad(lambda x: (f(x) * x).sum()), x) for f in (inside, by_hand)]
assert counted[0] == counted[1] and set(counted[0]) == {"all-reduce"}, counted


# A rule that raises, raises: nothing waits for the other devices.
@keras_cg.custom_gradient
def wrong(x):
    return x * 2, lambda upstream: upstream[:, :1]

for wrap in (lambda f: f, lambda f: jax.shard_map(f, mesh=mesh, in_specs=P("a"), out_specs=P("a"))):
    try:
        jax.jit(jax.grad(lambda x: wrap(wrong)(x).sum()))(x)
    except keras_cg.GradientError as error:
        assert str(error).startswith("the rule of wrong returned a gradient of the wrong shape for x.")
    else:
        raise AssertionError("no error")

# What NumPy returns for a part is that device's, and does not pass for the same on all.
tripled = keras_cg.recipes.from_numpy(lambda x: 3 * x, lambda x, upstream: 7 * upstream)
for wrap in (lambda run: run, jax.jit):
    part = jax.shard_map(tripled, mesh=mesh, in_specs=P("a"), out_specs=P("a"))
    np.testing.assert_allclose(wrap(part)(x), 3 * np.asarray(x))
    np.testing.assert_allclose(wrap(jax.grad(lambda x: part(x).sum()))(x), 7)
    try:
        wrap(jax.shard_map(tripled, mesh=mesh, in_specs=P("a"), out_specs=P()))(x)
    except ValueError as error:
        assert "which require replication" in str(error), error
    else:
        raise AssertionError("no error")
print("all")
"""


@pytest.mark.only("jax")
def test_rules_on_eight_devices(processes):
    done = processes.run(processes.program(PROGRAM))
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr[-3000:]
