"""What `grad`, `vjp`, `jvp`, `jacobian` and `hessian` cannot differentiate, or are given amiss, an error names."""

import numpy as np
import pytest
from wrong_rules import X, Y, captures, close, seven

import keras_cg
from keras_cg import custom_gradient, grad, hessian, jacobian, jvp, ops, value_and_grad, vjp

Z = np.array([1 + 2j, -1 + 0.5j], np.complex64)


@pytest.fixture
def tensor(eager):
    return eager.tensor


def facts(call):
    """The lines of a ValueError: the headline, what came, what was expected."""
    with pytest.raises(ValueError) as caught:
        call()
    first, came, expected, cause, remedy = str(caught.value).splitlines()
    assert cause.startswith("    usual cause: ") and remedy.startswith("    remedy: give ")
    return first, came.removeprefix("    got: "), expected.removeprefix("    expected: ")


# --- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("differentiate", [grad, value_and_grad, jacobian, hessian], ids=lambda each: each.__name__)
def test_only_floating_tensors_have_a_gradient(tensor, differentiate):
    def f(x, p=None):
        return x

    for bad, shown in ((3, "an int"), (True, "a bool"), (tensor(np.array([1, 2], np.int32)), r"int32\[2\]")):
        match = rf"^{differentiate.__name__}\(.*f\): argument 0 is {shown}, and only floating or complex tensors"
        with pytest.raises(TypeError, match=match):
            differentiate(f)(bad)
    with pytest.raises(TypeError, match=r"argument 1\['w'\]\[0\] is an int"):
        differentiate(f, argnums=1)(1.0, {"w": [1]})


@pytest.mark.parametrize("argnums", [2, -3, (0, 2), "x", (), 1.5, None, (0, 0), (0, -2)], ids=str)
def test_argnums_that_do_not_name_different_arguments(backend, argnums):
    for differentiate in (grad, jacobian):
        match = rf"^{differentiate.__name__}\(.*\): argnums=.* does not fit a call with 2 positional arguments"
        with pytest.raises(TypeError, match=match):
            differentiate(lambda x, y: x, argnums)(1.0, 2.0)


def test_a_list_of_numbers_is_a_pytree(backend):
    """Said where the function fails at it, and nowhere else."""
    hint = "f): argument 0 is a list, which is a pytree of {} scalars and no tensor. For one tensor, pass an array."

    def f(x, *more):
        return x.missing + 1

    for numbers, count in (([1.0, 2.0, 4.0], 3), ([[1.0, 2.0], (3.0, 4.0)], 4)):
        with pytest.raises(AttributeError) as caught:
            grad(f)(numbers)
        assert hint.format(count) in caught.value.__notes__[0]
    for args in ((1.0,), (1.0, [1.0, 2.0]), ([1.0, {"w": 2.0}],)):
        with pytest.raises(AttributeError) as caught:
            grad(f)(*args)
        assert "pytree" not in "".join(getattr(caught.value, "__notes__", ())), args
    assert [float(part) for part in grad(lambda x: x[0] * x[1])([2.0, 5.0])] == [5.0, 2.0]
    with pytest.raises(TypeError, match=r"argument 0\[0\] is an int, and only floating") as caught:
        grad(lambda x: x)([1, 2, 4])
    assert "argument 0 is a list, which is a pytree of 3 scalars and no tensor" in caught.value.__notes__[0]


DIFFERENTIATE = {
    "grad": lambda f, x: grad(f)(x),
    "vjp": vjp,
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "jacobian": lambda f, x: jacobian(f)(x),
    "hessian": lambda f, x: hessian(f)(x),
}


@pytest.mark.parametrize("name", DIFFERENTIATE)
def test_nothing_to_differentiate(backend, name):
    with pytest.raises(TypeError, match="no floating or complex tensor among the arguments") as caught:
        DIFFERENTIATE[name](lambda p: 1.0, {"name": "static"})
    assert str(caught.value).startswith(f"{name}(")
    assert "integers, booleans and strings have no gradient" in str(caught.value)


# --- outputs -------------------------------------------------------------------------------------------------------


def test_grad_and_hessian_need_one_real_output(tensor):
    z = tensor(np.array([1 + 2j], np.complex64))
    for f, at, shown in (
        (lambda x: (x, x), 1.0, "got a tuple"),
        (lambda x: "text", 1.0, "got a str"),
        (lambda x: 3.0, 1.0, "got a float"),
        (lambda x: ops.argmax(tensor(X)), 1.0, "got int"),
        (lambda z: z, z, "got complex64[1]"),
    ):
        with pytest.raises(TypeError, match=r"^grad\(.*must return one real floating tensor") as caught:
            grad(f)(at)
        assert shown in str(caught.value) and "has_aux=True" in str(caught.value)
    with pytest.raises(TypeError, match=r"^hessian\(.*must return one real floating tensor, got a tuple"):
        hessian(lambda x: (x, x))(3.0)
    with pytest.raises(TypeError, match=r"with has_aux=True the function must return a pair \(output, aux\)"):
        grad(lambda x: x, has_aux=True)(1.0)


@pytest.mark.parametrize("name", ["vjp", "jvp", "jacobian"])
def test_no_floating_output(tensor, name):
    for f, shown in ((lambda x: None, "a NoneType"), (lambda x: {"i": 3}, "a dict"), (lambda x: ops.argmax(x), "int")):
        with pytest.raises(TypeError, match="must return at least one floating or complex tensor") as caught:
            DIFFERENTIATE[name](f, tensor(X))
        assert f"got {shown}" in str(caught.value)
        assert "from a forgotten `return`, or from a comparison or an index" in str(caught.value)


@pytest.mark.limit
def test_jacobians_of_complex_numbers_are_refused(tensor):
    f = lambda x: {"x": x, "y": tensor(Z)}
    for what, call in {
        "jacobian(%): argument 0['z']": lambda: jacobian(lambda p: p["z"])({"z": tensor(Z)}),
        "hessian(%): argument 0": lambda: hessian(lambda z: ops.real(z))(tensor(Z)),
        "jacobian(%): the output['y']": lambda: jacobian(f)(tensor(X)),
    }.items():
        with pytest.raises(TypeError, match="one complex matrix cannot hold the derivative") as caught:
            call()
        text, (first, last) = str(caught.value), what.split("%")
        assert text.startswith(first) and f"{last} is complex64[2]" in text
        assert "not holomorphic. Use keras_cg.vjp or keras_cg.jvp, or give real and imaginary parts" in text


@pytest.mark.limit
@pytest.mark.parametrize("name", ["vjp", "jvp", "jacobian"])
def test_captured_values_are_refused(tensor, name):
    """With `variables`, the rule serves them: of z * x it gives 7 upstream for z, which is x, and 3 for x."""

    f = lambda x: custom_gradient(lambda z: (z * x, lambda upstream: 7 * upstream))(x * 1)
    with pytest.raises(keras_cg.CapturedVariableError):
        DIFFERENTIATE[name](f, tensor(X))
    if keras_cg.backend() == "numpy":
        return
    found = DIFFERENTIATE[name](lambda x: captures(x)(x * 1), tensor(X))
    found = {"vjp": lambda: found[1](tensor(Y))[0], "jvp": lambda: found[1], "jacobian": lambda: found}[name]()
    close(found, {"vjp": 10 * Y, "jvp": 10 * X, "jacobian": 10 * np.eye(3)}[name])


# --- upstreams and tangents ----------------------------------------------------------------------------------------


def test_an_upstream_or_a_tangent_that_does_not_fit(tensor):
    _, pullback = vjp(lambda x: {"y": (seven(x),)}, tensor(X))
    for bad, shown in (
        (tensor(Y[:2]), "float32[2]"),
        (tensor(np.array([1j, 2j, 3j], np.complex64)), "complex64[3]"),
        (tensor(np.array([1, 2, 3], np.int32)), "int32[3]"),
        (Y[:2].astype(float), "[2]"),
        (Y.astype(np.int32), "int32[3]"),
        (Y > 0, "bool[3]"),
        (np.float64(2), "[]"),
        (1.0, "a float"),
        ("text", "a str"),
        (True, "a bool"),
    ):
        first, came, expected = facts(lambda: pullback({"y": (bad,)}))
        assert first.startswith("vjp(") and first.endswith("upstream['y'][0] does not fit the output.")
        assert shown in came and expected == "float32[3]"
        first, came, expected = facts(lambda: jvp(lambda p: p["w"], ({"w": tensor(X)},), ({"w": bad},)))
        assert first.startswith("jvp(") and first.endswith("tangents[0]['w'] does not fit primals.")
        assert shown in came and expected == "float32[3]"
    first, came, _ = facts(lambda: vjp(seven, 2.0)[1](True))
    assert first.endswith("upstream does not fit the output.") and came == "a bool"


def test_an_upstream_or_tangents_of_another_structure(tensor):
    _, pullback = vjp(lambda x: {"y": seven(x), "n": 3}, tensor(X))
    for bad, shown in (
        (tensor(Y), "*"),
        ({"y": tensor(Y)}, "{'y': *}"),
        ({"y": [tensor(Y)], "n": 3}, "{'n': *, 'y': [*]}"),
    ):
        first, *others = facts(lambda: pullback(bad))
        assert first.startswith("vjp(") and first.endswith("upstream has another structure than the output.")
        assert others == [shown, "{'n': *, 'y': *}"]
    first, *others = facts(lambda: jvp(lambda x: x, (tensor(X),), (tensor(Y), tensor(Y))))
    assert first.endswith("tangents has another structure than primals.") and others == ["(*, *)", "(*)"]
    for name, given in (("primals", (tensor(X), (tensor(Y),))), ("tangents", ((tensor(X),), tensor(Y)))):
        match = rf"^jvp\(seven\): {name} must be a tuple with one part for each argument, got a"
        with pytest.raises(TypeError, match=match) as caught:
            jvp(seven, *given)
        assert "For one argument write jvp(f, (x,), (tangent,))" in str(caught.value)


# --- forward mode needs a rule that is linear in upstream ------------------------------------------------------------


def test_a_rule_that_closes_over_a_pullback(tensor):
    """Its graph or tape is another one in each run, so the gradients decide."""

    cubed = custom_gradient(lambda x: (x * 1, lambda upstream: 7 * upstream * x**3))

    @custom_gradient
    def kept(x):
        _, pullback = vjp(cubed, x)
        return x * 1, lambda upstream: pullback(upstream)[0]

    called = custom_gradient(lambda x: (x * 1, lambda upstream: vjp(cubed, x)[1](upstream)[0]))
    for f in (kept, called):
        close(grad(f)(tensor(X)), 7 * X**3)
        close(grad(grad(f))(tensor(X)), 21 * X**2)


@pytest.mark.only("jax")
@pytest.mark.limit
def test_jax_functions_with_a_rule_of_their_own_have_no_forward_mode(jax):
    @jax.custom_vjp
    def theirs(x):
        return x * 2

    theirs.defvjp(lambda x: (x * 2, None), lambda _, upstream: (9 * upstream,))
    close(vjp(theirs, X)[1](Y)[0], 9 * Y)
    match = r"^forward mode is not possible: jvp\(.*theirs\) calls a jax\.custom_vjp, which has none\."
    with pytest.raises(ValueError, match=match) as caught:
        jvp(theirs, (X,), (Y,))
    assert isinstance(caught.value.__cause__, TypeError)


def test_errors_of_the_function_pass_forwards(backend):
    def f(x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine"):
        jvp(f, (1.0,), (1.0,))
