"""JAX: both modes in every order and composition, mapped, looped, recomputed, sharded and exported."""

import jax
import jax.export
import jax.numpy as jnp
from frameworks.jax import CUSTOM_VJPS, array, custom_vjp, mesh, tensor  # noqa: F401 - the suite's
from jax.sharding import PartitionSpec

from conformance.transforms.derivatives import Derivatives


def take(x, rows):
    return jnp.take(x, rows, axis=0)


def uniform():
    return jax.random.uniform(jax.random.key(0))


def as_complex(x):
    return x + 0j


fft, ifft = jnp.fft.fft, jnp.fft.ifft


def gradient(loss):
    """As a function of the arguments, in the convention dL/dx + i dL/dy."""

    def call(*tensors):
        return [jnp.conj(each) for each in jax.grad(lambda tensors: loss(*tensors))(list(tensors))]

    return call


of = Derivatives(jnp, gradient)
loss, second, third, composite = of.loss, of.second, of.third, of.composite


def vjp(p):
    return [jnp.conj(each) for each in jax.vjp(p.f, *p.tensors)[1]([jnp.conj(each) for each in p.weights])]


def jacrev(p):
    """Every row of the Jacobian, weighted."""
    rows = jax.jacrev(lambda tensors: p.f(*tensors))(p.tensors)
    return [
        jnp.conj(sum(jnp.tensordot(w, row[index], w.ndim) for w, row in zip(p.weights, rows, strict=True)))
        for index in range(len(p.tensors))
    ]


def scanned(p):
    def call(*batch):
        return jax.lax.scan(lambda total, tensors: (total + loss(p)(*tensors), None), 0.0, list(batch))[0]

    return gradient(call)(*p.batch)


def along_last_axis(p):
    """The gradient of a program that maps along the last axis."""
    batch = [jnp.moveaxis(each, 0, -1) for each in p.batch]
    found = gradient(of.of_batch(p, jax.jit(jax.vmap(jax.jit(p.f), in_axes=-1))))(*batch)
    return [jnp.moveaxis(each, -1, 0) for each in found]


def in_cond(p):
    return gradient(
        lambda *tensors: jax.lax.cond(True, loss(p), lambda *_: jnp.zeros((), p.weights[0].real.dtype), *tensors)
    )(*p.tensors)


def in_loop(p):
    """The gradient taken inside a loop that counts at run time."""
    zeros = [0 * each for each in p.tensors]
    return jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda _, found: gradient(loss(p))(*p.tensors), zeros))(2)


def on_mesh(p):
    parts = [PartitionSpec() for _ in p.tensors]
    return jax.shard_map(p.f, mesh=mesh(), in_specs=tuple(parts), out_specs=[PartitionSpec() for _ in p.weights])


def pushed(p, f=None):
    """The derivative of the outputs along c, as a function of the arguments."""
    return lambda *tensors: jax.jvp(f or p.f, tensors, tuple(p.c))[1]


def linearized(p):
    return lambda *tensors: jax.linearize(p.f, *tensors)[1](*p.c)


def pushed_of_batch(p):
    """Of a mapped derivative, along c and along 2 c, the first."""
    batch = [jnp.stack([c, 2 * c]) for c in p.c]
    return [each[0] for each in jax.vmap(lambda *c: jax.jvp(p.f, tuple(p.tensors), c)[1])(*batch)]


def jacfwd(p):
    """Every column of the Jacobian, weighted."""
    columns = jax.jacfwd(lambda tensors: p.f(*tensors))(p.tensors)
    return [
        sum(jnp.tensordot(w, column[index], w.ndim) for w, column in zip(p.weights, columns, strict=True))
        for index in range(len(p.tensors))
    ]


def looping(p):
    """The outputs of a loop that counts at run time, of one round."""

    def call(*tensors):
        zeros = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), jax.eval_shape(p.f, *tensors))
        return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, p.f(*tensors)), (0, zeros))[1]

    return call


def in_scan(p):
    """The outputs of a scan of one round."""
    return lambda *tensors: jax.lax.scan(lambda carry, _: (carry, p.f(*tensors)), 0.0, None, length=1)[1]


def of_one_round(pushed):
    return lambda *tensors: [each[0] for each in pushed(*tensors)]


def mixed(p):
    """The gradient of the derivative along c."""
    return gradient(lambda *tensors: jax.jvp(loss(p), tensors, tuple(p.c))[1])


def along(p, f=None):
    return lambda *tensors: jax.jvp(gradient(loss(p, f)), tensors, tuple(p.c))[1]


def exported(p):
    made = jax.export.export(jax.jit(p.f))(*p.tensors)
    return gradient(loss(p, jax.export.deserialize(made.serialize(vjp_order=1)).call))(*p.tensors)


def with_custom_vjp3(p):
    with custom_vjp("custom_vjp3"):
        return jax.jit(gradient(loss(p)))(*p.tensors)


def second_with_custom_vjp3(p):
    with custom_vjp("custom_vjp3"):
        return second(p)(*p.tensors)


TRANSFORMS = {
    "call": ("value", lambda p: p.f(*p.tensors)),
    "jit": ("value", lambda p: jax.jit(p.f)(*p.tensors)),
    "grad": ("first", lambda p: gradient(loss(p))(*p.tensors)),
    "vjp": ("first", vjp),
    "jacrev": ("rows", jacrev),
    "jit of grad": ("first", lambda p: jax.jit(gradient(loss(p)))(*p.tensors)),
    "grad of jit": ("first", lambda p: gradient(loss(p, jax.jit(p.f)))(*p.tensors)),
    "grad of checkpoint": ("first", lambda p: gradient(loss(p, jax.checkpoint(p.f)))(*p.tensors)),
    "grad of checkpoint of jit": ("first", lambda p: gradient(loss(p, jax.checkpoint(jax.jit(p.f))))(*p.tensors)),
    "grad of cond": ("first", in_cond),
    "fori_loop of grad": ("first", in_loop),
    "grad of shard_map": ("first", lambda p: gradient(loss(p, on_mesh(p)))(*p.tensors)),
    "grad of export": ("first", exported),
    "jit of grad, custom_vjp3": ("first", with_custom_vjp3),
    "vmap of grad": ("batched", lambda p: jax.vmap(gradient(loss(p)))(*p.batch)),
    "jit of vmap of grad": ("batched", lambda p: jax.jit(jax.vmap(gradient(loss(p))))(*p.batch)),
    "grad of vmap": ("batched", lambda p: gradient(of.of_batch(p, jax.vmap(p.f)))(*p.batch)),
    "grad of jit of vmap along the last axis": ("batched", along_last_axis),
    "grad of scan": ("batched", scanned),
    "grad of grad": ("second", lambda p: second(p)(*p.tensors)),
    "jit of grad of grad": ("second", lambda p: jax.jit(second(p))(*p.tensors)),
    "grad of grad of jit": ("second", lambda p: second(p, jax.jit(p.f))(*p.tensors)),
    "grad of grad of checkpoint": ("second", lambda p: second(p, jax.checkpoint(p.f))(*p.tensors)),
    "grad of grad, custom_vjp3": ("second", second_with_custom_vjp3),
    "grad of grad of composite": ("composite", lambda p: composite(p)(*p.tensors)),
    "jit of grad of grad of composite": ("composite", lambda p: jax.jit(composite(p))(*p.tensors)),
    "jit of third derivative": ("third", lambda p: jax.jit(third(p))(*p.tensors)),
    "jvp": ("tangent", lambda p: pushed(p)(*p.tensors)),
    "jit of jvp": ("tangent", lambda p: jax.jit(pushed(p))(*p.tensors)),
    "jvp of jit": ("tangent", lambda p: pushed(p, jax.jit(p.f))(*p.tensors)),
    "vmap of jvp": ("tangent", pushed_of_batch),
    "linearize": ("tangent", lambda p: linearized(p)(*p.tensors)),
    "jit of linearize": ("tangent", lambda p: jax.jit(linearized(p))(*p.tensors)),
    "jacfwd": ("rows", jacfwd),
    "jvp of checkpoint": ("tangent", lambda p: pushed(p, jax.checkpoint(p.f))(*p.tensors)),
    "jvp of cond": ("tangent", lambda p: pushed(p, lambda *args: jax.lax.cond(True, p.f, p.f, *args))(*p.tensors)),
    "jvp of scan": ("tangent", lambda p: of_one_round(pushed(p, in_scan(p)))(*p.tensors)),
    "jvp of while_loop": ("tangent", lambda p: pushed(p, looping(p))(*p.tensors)),
    "jvp of shard_map": ("tangent", lambda p: pushed(p, on_mesh(p))(*p.tensors)),
    "jvp of grad": ("along", lambda p: along(p)(*p.tensors)),
    "jit of jvp of grad": ("along", lambda p: jax.jit(along(p))(*p.tensors)),
    "jvp of grad of jit": ("along", lambda p: along(p, jax.jit(p.f))(*p.tensors)),
    "grad of jvp": ("second", lambda p: mixed(p)(*p.tensors)),
    "jit of grad of jvp": ("second", lambda p: jax.jit(mixed(p))(*p.tensors)),
}

# Under each of these, one program has all rules at once: of what compiles, what is quicker so.
AT_ONCE = (
    *("jit of grad", "grad of jit", "grad of checkpoint of jit", "grad of cond", "fori_loop of grad"),
    *("grad of export", "jit of grad, custom_vjp3", "jit of vmap of grad", "grad of jit of vmap along the last axis"),
    *("grad of scan", "jit of grad of grad"),
    *("grad of grad of jit", "jit of grad of grad of composite", "jit of third derivative", "jit of jvp"),
    *("jvp of jit", "jit of linearize", "jvp of checkpoint", "jvp of cond", "jvp of scan", "jvp of while_loop"),
    *("jit of jvp of grad", "jvp of grad of jit", "jit of grad of jvp"),
)

if "custom_vjp3" not in CUSTOM_VJPS:
    del TRANSFORMS["jit of grad, custom_vjp3"], TRANSFORMS["grad of grad, custom_vjp3"]
    AT_ONCE = tuple(each for each in AT_ONCE if each in TRANSFORMS)
