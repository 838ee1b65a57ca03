"""JAX, eagerly and compiled from either side."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

MODES = ("eager", "jit(grad)", "grad(jit)")


@contextlib.contextmanager
def custom_vjp(name):
    """One of them in use."""
    if name == "custom_vjp3":
        jax.config.update("jax_custom_vjp3", True)
    try:
        yield
    finally:
        if name == "custom_vjp3":
            jax.config.update("jax_custom_vjp3", False)


def compiles_the_rewrite():
    """Whether the rewrite of custom_vjp compiles inside a custom_jvp: JAX 0.8 has none, and that of 0.9 does not."""
    if not hasattr(jax.config, "jax_custom_vjp3"):
        return False
    with custom_vjp("custom_vjp3"):
        function = jax.custom_vjp(lambda x: 2 * x)
        function.defvjp(lambda x: (2 * x, None), lambda _, upstream: (2 * upstream,))
        around = jax.custom_jvp(function)
        around.defjvp(lambda primals, tangents: (function(*primals), 2 * tangents[0]))
        try:
            jax.jit(around)(1.0)
        except NotImplementedError:
            return False
    return True


# JAX's custom_vjp, and its rewrite, which not every release has.
CUSTOM_VJPS = ("", "custom_vjp3") if compiles_the_rewrite() else ("",)


def tensor(array):
    return jnp.asarray(array)


def array(tensor):
    return np.asarray(tensor)


def differentiate(f, arrays, mode):
    inner = jax.jit(f) if mode == "grad(jit)" else f

    def loss(*arrays):
        output = inner(*arrays)
        return jnp.sum(output), output

    both = jax.value_and_grad(loss, argnums=tuple(range(len(arrays))), has_aux=True, allow_int=True)
    if mode == "jit(grad)":
        both = jax.jit(both)
    (_, output), gradients = both(*map(jnp.asarray, arrays))
    gradients = [None if each.dtype == jax.dtypes.float0 else np.asarray(each) for each in gradients]
    return np.asarray(output), gradients


def vjp(f, x, way):
    output, pullback = jax.vjp(f, x)
    return output, lambda upstream: pullback(upstream)[0]


def gradient(f, way):
    summed = jax.grad(lambda x: jnp.sum(f(x)))
    return jax.jit(summed) if way == "transformed" else summed


def mesh():
    """One device; the kind of axis is named, as releases differ in which they take by themselves."""
    return jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))


@functools.cache
def shard_map_makes_zeros():
    """Whether an eager shard_map makes zeros of the `None` of a custom_vjp: JAX 0.12 does, 0.10 does not."""
    function = jax.custom_vjp(lambda x: x)
    function.defvjp(lambda x: (x, None), lambda _, upstream: (None,))
    sharded = jax.shard_map(function, mesh=mesh(), in_specs=PartitionSpec(), out_specs=PartitionSpec())
    try:
        return jax.grad(sharded)(1.0) == 0
    except ValueError:  # of something that has nothing to do with it
        return False
