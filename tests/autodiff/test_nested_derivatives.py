"""Derivatives of derivatives: `grad`, `vjp`, `jvp`, `jacobian` and `hessian` in each other, compiled, and under what
frameworks have.
"""

import numpy as np
import pytest
from wrong_rules import CUBE, X, captures, clipped, close, compiler, cube

from keras_cg import custom_gradient, grad, hessian, jacobian, jvp, vjp

V = np.array([1.0, 10.0, 100.0], np.float32)

# Each gives the derivative of a function of a number, and says of which order.
DERIVATIVES = {
    "grad": (lambda f: grad(f), 1),
    "vjp": (lambda f: lambda x: vjp(f, x)[1](1.0)[0], 1),
    "jvp": (lambda f: lambda x: jvp(f, (x,), (1.0,))[1], 1),
    "jacobian": (lambda f: jacobian(f), 1),
    "hessian": (lambda f: hessian(f), 2),
}
PAIRS = [(outer, inner) for outer in DERIVATIVES for inner in DERIVATIVES]
# Those that are compiled.
QUICK = [("grad", "jvp"), ("jvp", "grad"), ("vjp", "vjp"), ("jacobian", "jacobian")]


@pytest.mark.parametrize(("outer", "inner"), PAIRS, ids=map("-".join, PAIRS))
@pytest.mark.limit
def test_nested(backend, outer, inner):
    (one, first), (two, second) = DERIVATIVES[outer], DERIVATIVES[inner]
    if (backend, outer, inner) == ("torch", "jvp", "jvp"):
        with pytest.raises(NotImplementedError, match="forward mode inside forward mode"):
            one(two(cube))(3.0)
        return
    assert float(one(two(cube))(3.0)) == CUBE[first + second](3.0)


@pytest.mark.parametrize(("outer", "inner"), QUICK, ids=map("-".join, QUICK))
@pytest.mark.only("jax", "tensorflow")
def test_nested_and_compiled(backend, outer, inner, eager):
    (one, first), (two, second) = DERIVATIVES[outer], DERIVATIVES[inner]
    x = eager.tensor(np.float32(3.0))
    assert float(compiler(backend)(one(two(cube)))(x)) == CUBE[first + second](3.0)
    assert float(one(compiler(backend)(two(cube)))(x)) == CUBE[first + second](3.0)


@pytest.mark.parametrize("outer", DERIVATIVES)
def test_what_a_pullback_or_a_jvp_gives_is_differentiated_by_upstream_or_tangents(backend, outer):
    derivative, order = DERIVATIVES[outer]
    _, pullback = vjp(cube, 3.0)
    # 45 u, squared
    expected = {1: 2 * 45.0**2 * 2, 2: 2 * 45.0**2}[order]
    assert float(derivative(lambda u: pullback(u)[0] ** 2)(2.0)) == expected
    assert float(derivative(lambda u: vjp(cube, 3.0)[1](u)[0] ** 2)(2.0)) == expected
    along = derivative(lambda v: jvp(cube, (3.0,), (v,))[1] ** 2)
    if (backend, outer) == ("torch", "jvp"):
        with pytest.raises(NotImplementedError, match="forward mode inside forward mode"):
            along(2.0)
    else:
        assert float(along(2.0)) == expected


def test_outputs_are_differentiated_as_well(backend):
    def f(x):
        output, pullback = vjp(cube, x)
        (gradient,) = pullback(1.0)
        value, tangent = jvp(cube, (x,), (1.0,))
        return output + 10 * gradient + 100 * value + 1000 * tangent

    # 101 x**3 + 1010 * 5 x**2, by the rule
    assert float(grad(f)(3.0)) == 101 * 5 * 9 + 1010 * 10 * 3


@pytest.mark.only("jax", "torch", "tensorflow")
def test_values_captured_of_an_outer_level(backend):
    assert float(grad(lambda y: jvp(captures(y), (5.0,), (1.0,))[0])(2.0)) == 3.0
    assert float(grad(lambda y: vjp(captures(y), 5.0)[0])(2.0)) == 3.0
    assert float(grad(lambda y: jvp(captures(y), (5.0,), (1.0,))[1])(2.0)) == 0.0
    assert float(jvp(lambda y: vjp(captures(y), 5.0)[0], (2.0,), (1.0,))[1]) == 3.0


def test_differentiated_by_the_framework(eager):
    one = eager.tensor(np.ones(3, np.float32))
    for f in (lambda x: vjp(cube, x)[1](one)[0], lambda x: jvp(cube, (x,), (one,))[1], lambda x: jacobian(cube)(x)):
        eager.check(f, [X], [10 * X])
    eager.check(lambda u: vjp(cube, eager.tensor(X))[1](u)[0], [V], [5 * X**2])
    eager.check(lambda v: jvp(cube, (eager.tensor(X),), (v,))[1], [V], [5 * X**2])


# --- compiled, and under the frameworks' own transforms ------------------------------------------------------------


@pytest.mark.only("jax", "tensorflow")
def test_a_rule_that_is_not_linear_raises_through_compiled_functions(backend, eager):
    """TensorFlow's own forward mode would give the derivative at an upstream of ones there."""
    compiled = compiler(backend)(clipped)
    for _ in range(2):
        with pytest.raises(ValueError, match="forward mode needs a rule that is linear in upstream"):
            jvp(compiled, (eager.tensor(X),), (eager.tensor(V),))


@pytest.mark.only("torch")
@pytest.mark.parametrize("outer", ["grad", "vjp", "jacobian", "hessian"])
def test_inside_a_level_of_forward_ad(torch, outer):
    from torch.autograd import forward_ad

    derivative, order = DERIVATIVES[outer]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.tensor(3.0), torch.tensor(2.0))
        assert float(forward_ad.unpack_dual(derivative(cube)(dual)).tangent) == 2 * CUBE[order + 1](3.0)


@pytest.mark.only("torch")
@pytest.mark.limit
def test_inside_torch_compile(torch):
    """Of plain functions; a rule is refused, because torch (2.13) would drop it there."""

    def compiled(f):
        torch.compiler.reset()
        return torch.compile(f, backend="aot_eager", fullgraph=True)

    w, x = (torch.tensor(each, requires_grad=True) for each in ([2.0, 3.0], [1.0, 4.0]))
    found = compiled(lambda w, x: grad(lambda x: w * x**3)(x))(w, x)
    close(found, [6, 144])
    found.sum().backward()
    close(w.grad, [3, 48])
    close(x.grad, [12, 72])
    with pytest.raises(Exception, match=r"torch\.compile around a transform of torch\.func ignores custom gradients"):
        compiled(grad(cube))(x.detach())


# Dynamo (2.13) looks at `grad` of each tensor.
NO_LEAF = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@NO_LEAF
@pytest.mark.only("torch")
@pytest.mark.limit
@pytest.mark.parametrize("outer", ["grad", "jacobian"])
def test_where_torch_compile_gives_up(torch, outer):
    """It leaves the derivatives to Python then; compiled by itself, `cube` would have a second derivative of 0."""
    derivative, order = DERIVATIVES[outer]
    torch.compiler.reset()
    compiled = torch.compile(derivative(grad(cube)), backend="aot_eager")
    for requires_grad in (False, True):
        x = torch.tensor(3.0, requires_grad=requires_grad)
        assert float(compiled(x).detach()) == CUBE[order + 1](3.0)


@NO_LEAF
@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_pullback_where_torch_compile_gives_up(torch):
    """The rule runs in the pullback, and its own second derivative is asked for."""
    squared = custom_gradient(lambda x: (x, lambda upstream: upstream * cube(x)))
    torch.compiler.reset()
    compiled = torch.compile(grad(grad(grad(squared))), backend="aot_eager")
    assert float(compiled(torch.tensor(3.0))) == CUBE[2](3.0)


@pytest.mark.only("jax")
def test_jax_transforms(jax):
    close(jax.vmap(lambda x, v: jvp(cube, (x,), (v,))[1])(X, V), 5 * X**2 * V)
    loop = lambda x: jax.lax.scan(lambda carry, _: (cube(carry), None), x, None, length=2)[0]
    close(jvp(loop, (X,), (V,))[1], 5 * X**6 * 5 * X**2 * V)
    # By the rule, that of 25 c(x)**2 x**2 v is 25 (2 c 5 x**2 x**2 + c**2 2 x) v, with c = x**3.
    close(grad(lambda x: jvp(loop, (x,), (V,))[1])(X), 300 * X**7 * V)


@pytest.mark.only("jax")
def test_jax_programs_are_traced_once_for_both_modes(jax):
    runs = []
    compiled = jax.jit(lambda x: runs.append(1) or cube(x))
    for _ in range(2):
        close(jax.grad(lambda x: compiled(x).sum())(X), 5 * X**2)
        close(jvp(compiled, (X,), (V,))[1], 5 * X**2 * V)
        close(jax.jvp(compiled, (X,), (V,))[1], 5 * X**2 * V)
    assert len(runs) == 1


@pytest.mark.only("torch")
def test_torch_transforms(torch):
    x, v = torch.as_tensor(X), torch.as_tensor(V)
    _, pullback = vjp(cube, x)
    close(torch.func.vmap(lambda u: pullback(u)[0])(torch.eye(3)), np.diag(5 * X**2))
    close(torch.func.grad(lambda u: (pullback(u)[0] ** 2).sum())(v), 2 * (5 * X**2) ** 2 * V)
    inside = custom_gradient(lambda x: (grad(lambda y: y**3)(x), lambda upstream: 7 * upstream))
    close(torch.func.grad(lambda x: inside(x).sum())(x), np.full(3, 7.0))


@pytest.mark.only("torch")
def test_torch_graphs_are_kept_only_for_those_who_differentiate(torch):
    x, v = torch.as_tensor(X), torch.as_tensor(V)
    output, pullback = vjp(cube, x)
    assert not output.requires_grad and not pullback(v)[0].requires_grad
    assert pullback(v.clone().requires_grad_())[0].requires_grad
    with torch.no_grad():
        assert not pullback(v.clone().requires_grad_())[0].requires_grad
        np.testing.assert_allclose(pullback(v)[0], 5 * X**2 * V)
    assert not jvp(cube, (x,), (v,))[1].requires_grad
    assert not jacobian(cube)(x).requires_grad


@pytest.mark.only("tensorflow")
def test_tensorflow_functions_of_an_unknown_shape(tf):
    # Here and below without AutoGraph, which takes long to rewrite all that it finds.
    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])], autograph=False)
    def unknown(x, v):
        return vjp(cube, x)[1](v)[0], jvp(cube, (x,), (v,))[1], jacobian(cube)(x), vjp(cube, x)[1](None)[0]

    expected = (5 * X**2 * V, 5 * X**2 * V, np.diag(5 * X**2), 0 * X)
    for found, each in zip(unknown(tf.constant(X), tf.constant(V)), expected, strict=True):
        np.testing.assert_allclose(found, each)


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_tensorflow_has_no_jacobian_of_a_jacobian_under_xla(tf):
    """TensorFlow's loops (2.21) ask XLA for lists whose size it does not know."""
    twice = jacobian(jacobian(cube))
    with pytest.raises(tf.errors.InvalidArgumentError, match="XLA compilation requires a fixed tensor list size"):
        tf.function(twice, jit_compile=True, autograph=False)(tf.constant(X))


@pytest.mark.only("tensorflow")
@pytest.mark.limit
def test_tensorflow_a_rule_that_is_not_linear_gives_nan_in_a_graph(tf):
    program = tf.function(lambda x, v: jvp(clipped, (x,), (v,)), autograph=False)
    _, tangent = program(tf.constant(X), tf.constant(V))
    assert np.isnan(tangent).all()


@pytest.mark.only("tensorflow")
def test_tensorflow_slices_and_ragged_tensors(tf):
    x, v = tf.constant(X), tf.constant(V)
    gather = lambda x: tf.gather(x, [2, 2])
    np.testing.assert_allclose(vjp(gather, x)[1](v[:2])[0], [0, 0, 11])
    np.testing.assert_allclose(grad(gather)(x), [0, 0, 2])
    np.testing.assert_allclose(jvp(gather, (x,), (v,))[1], [100, 100])
    rows = tf.ragged.constant([[1.0, 2.0], [3.0]])
    doubled = lambda rows: rows * 2.0
    assert vjp(doubled, rows)[1](rows)[0].to_list() == [[2.0, 4.0], [6.0]]
    assert jvp(doubled, (rows,), (rows,))[1].to_list() == [[2.0, 4.0], [6.0]]
