"""`keras_cg.grad` and `value_and_grad`, against closed forms."""

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient, grad, ops, value_and_grad

X = np.array([1.0, 2.0, 3.0], np.float32)


@custom_gradient
def seven(x):
    return x * 2, lambda upstream: 7 * upstream


@custom_gradient
def cube(x):
    """x cubed with the gradient 5 x**2, whose own derivative is 10 x and the next one 10."""
    return x**3, lambda upstream: 5 * upstream * x**2


@custom_gradient
def through_intermediate(x):
    e = ops.exp(x)
    return e, lambda upstream: 2 * upstream * e


@pytest.fixture
def tensor(eager):
    return eager.tensor


@pytest.fixture
def array(eager):
    return eager.array


def test_gradient(tensor, array):
    np.testing.assert_allclose(array(grad(lambda x: ops.sum(x * x))(tensor(X))), 2 * X)
    np.testing.assert_allclose(array(grad(lambda x: ops.sum(seven(x)))(tensor(X))), np.full(3, 7.0))


def test_the_output_is_summed(tensor, array):
    np.testing.assert_allclose(array(grad(lambda x: x * x)(tensor(X))), 2 * X)


def test_a_python_number(array):
    assert float(grad(lambda x: x * x)(3.0)) == 6.0


def test_argnums(tensor, array):
    def f(x, y):
        return x * y * y

    assert float(grad(f, argnums=1)(2.0, 3.0)) == 12.0
    assert float(grad(f, argnums=-1)(2.0, 3.0)) == 12.0
    first, second = grad(f, argnums=(0, 1))(2.0, 3.0)
    assert (float(first), float(second)) == (9.0, 12.0)
    second, first = grad(f, argnums=(1, 0))(2.0, 3.0)
    assert (float(first), float(second)) == (9.0, 12.0)


def test_keywords_pass(tensor):
    assert float(grad(lambda x, *, k: k * x * x)(3.0, k=2)) == 12.0


def test_nests(tensor, array):
    params = {"w": [tensor(X), None], "b": tensor(np.float32(1.0)), "name": "static"}
    found = grad(lambda p: ops.sum(p["w"][0] * p["b"]))(params)
    np.testing.assert_allclose(array(found["w"][0]), np.ones(3))
    np.testing.assert_allclose(array(found["b"]), 6.0)
    assert found["w"][1] is None and found["name"] is None


def test_unused_arguments_get_zeros(tensor, array):
    first, second = grad(lambda x, y: ops.sum(x), argnums=(0, 1))(tensor(X), tensor(X))
    np.testing.assert_allclose(array(first), np.ones(3))
    np.testing.assert_allclose(array(second), np.zeros(3))
    np.testing.assert_allclose(array(grad(lambda x: ops.sum(tensor(X)))(tensor(X))), np.zeros(3))


def test_value_and_grad(tensor, array):
    value, found = value_and_grad(lambda x: x * x)(tensor(X))
    np.testing.assert_allclose(array(value), X * X)
    np.testing.assert_allclose(array(found), 2 * X)


def test_aux(tensor, array):
    def f(x):
        return ops.sum(x * x), {"doubled": x * 2, "name": "static", "n": 3}

    (value, aux), found = value_and_grad(f, has_aux=True)(tensor(X))
    assert float(value) == 14.0
    np.testing.assert_allclose(np.asarray(aux["doubled"]), 2 * X)
    assert aux["name"] == "static" and aux["n"] == 3
    np.testing.assert_allclose(array(found), 2 * X)
    found, aux = grad(f, has_aux=True)(tensor(X))
    np.testing.assert_allclose(np.asarray(aux["doubled"]), 2 * X)
    np.testing.assert_allclose(array(found), 2 * X)


def test_what_comes_out_is_plain(tensor):
    # Not a box, a tracer or a tensor that drags a graph along.
    value, found = value_and_grad(lambda x: ops.sum(seven(x)))(tensor(X))
    np.testing.assert_allclose(np.asarray(value), 12.0)
    np.testing.assert_allclose(np.asarray(found), np.full(3, 7.0))


def test_a_gradient_whose_rule_reads_what_it_captured_comes_out_plain(backend, tensor):
    def loss(w, x):
        def rule(upstream, variables=None):
            return (7 * upstream * w, [5 * upstream * x]) if variables else 7 * upstream * w

        return keras_cg.custom_gradient(lambda x: (x * w, rule))(x)

    gw, gx = grad(loss, (0, 1))(2.0, 3.0)
    assert backend != "torch" or not (gw.requires_grad or gx.requires_grad)
    assert (float(gw), float(gx)) == (15.0, 14.0)
    assert float(grad(lambda w: grad(loss, 1)(w, 3.0))(2.0)) == 7.0


def test_the_function_runs_once(tensor):
    runs = []

    @custom_gradient
    def f(x):
        runs.append("f")

        def rule(upstream):
            runs.append("rule")
            return 7 * upstream

        return x * 2, rule

    value_and_grad(lambda x: ops.sum(f(x)))(tensor(X))
    assert runs == ["f", "rule"]


# --- nested --------------------------------------------------------------------------------------------------------


def test_nested():
    f = cube
    assert float(grad(f)(2.0)) == 20.0
    assert float(grad(grad(f))(2.0)) == 20.0
    assert float(grad(grad(grad(f)))(2.0)) == 10.0
    assert float(grad(grad(grad(grad(f))))(2.0)) == 0.0


def test_nested_through_a_captured_intermediate():
    e = np.exp(0.5)
    assert float(grad(through_intermediate)(0.5)) == pytest.approx(2 * e, rel=1e-6)
    # The derivative of 2 e**x, where e**x is what the function computed with the derivative exp has.
    assert float(grad(grad(through_intermediate))(0.5)) == pytest.approx(2 * e, rel=1e-6)
    assert float(grad(grad(grad(through_intermediate)))(0.5)) == pytest.approx(2 * e, rel=1e-6)


def test_nested_composite():
    @custom_gradient
    def log1pexp(x):
        e = ops.exp(x)
        return ops.log(1 + e), lambda upstream: upstream * (1 - 1 / (1 + e))

    # d2/dx2 log(1+e^x)^2 at 0.5, with s the sigmoid and l the softplus: 2 s^2 + 2 l s (1 - s)
    s, soft = 1 / (1 + np.exp(-0.5)), np.log1p(np.exp(0.5))
    expected = 2 * s**2 + 2 * soft * s * (1 - s)
    assert expected == pytest.approx(1.2327, abs=1e-4)
    assert float(grad(grad(lambda x: log1pexp(x) ** 2))(0.5)) == pytest.approx(expected, rel=1e-5)


def test_mixed_partials():
    @custom_gradient
    def f(x, y):
        return x * y, lambda upstream: (upstream * x * y * y, upstream * 3)

    assert float(grad(grad(f, 0), 1)(2.0, 5.0)) == 20.0
    assert float(grad(grad(f, 0), 0)(2.0, 5.0)) == 25.0
    assert float(grad(grad(f, 1), 0)(2.0, 5.0)) == 0.0


def test_value_of_an_outer_level(tensor):
    def inner(x, y):
        (value, aux), found = value_and_grad(lambda x: (x * x * y, x * y), has_aux=True)(x)
        return value + 10 * aux + 100 * found

    # x x y + 10 x y + 200 x y
    assert float(grad(inner)(3.0, 2.0)) == 2 * 3 * 2 + 20 + 400
    assert float(grad(inner, 1)(3.0, 2.0)) == 9 + 30 + 600


def test_complex(tensor, array):
    z = np.array([1 + 2j, -1 + 0.5j], np.complex64)
    np.testing.assert_allclose(array(grad(lambda z: ops.real(z * ops.conj(z)))(tensor(z))), 2 * z)
    # Re(z^2) = x^2 - y^2, so dL/dx + i dL/dy = 2x - 2iy
    np.testing.assert_allclose(array(grad(lambda z: ops.real(z * z))(tensor(z))), 2 * np.conj(z))


def test_a_complex_rule_means_the_same_everywhere(tensor, array):
    @custom_gradient
    def f(z):
        return z * z, lambda upstream: (3 + 1j) * upstream

    z = np.array([1 + 2j, -1 + 0.5j], np.complex64)
    # Upstream of w in Im(w) is dL/du + i dL/dv = i.
    np.testing.assert_allclose(array(grad(lambda z: ops.imag(f(z)))(tensor(z))), np.full(2, (3 + 1j) * 1j))
    np.testing.assert_allclose(array(grad(lambda z: ops.real(f(z)))(tensor(z))), np.full(2, 3 + 1j))


# --- with the frameworks' own means --------------------------------------------------------------------------------


def test_the_gradient_is_differentiated_by_the_framework(eager):
    _, (gx,) = eager.differentiate(lambda x: grad(lambda x: cube(x))(x), X)
    np.testing.assert_allclose(gx, 10 * X)


def test_a_captured_value_is_differentiated_by_the_framework(eager):
    _, (gx, gy) = eager.differentiate(lambda x, y: grad(lambda x: x * x * y)(x), X, 2 * X)
    np.testing.assert_allclose(gx, 2 * 2 * X)
    np.testing.assert_allclose(gy, 2 * X)


# --- bad input -----------------------------------------------------------------------------------------------------


def test_integers_are_refused(tensor):
    def f(x):
        return x

    for bad, shown in ((3, "an int"), (True, "a bool"), (tensor(np.array([1, 2])), "int64[2]")):
        with pytest.raises(TypeError) as caught:
            grad(f)(bad)
        text = str(caught.value).replace("int32", "int64")
        assert "grad(test_integers_are_refused.<locals>.f): argument 0 is " + shown in text
        assert "only floating or complex tensors have a gradient" in text
    with pytest.raises(TypeError, match=r"argument 1\['w'\]\[0\] is an int"):
        grad(lambda x, p: x, argnums=1)(1.0, {"w": [1]})


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


def test_a_list_of_whole_numbers_is_a_pytree(backend):
    with pytest.raises(TypeError, match=r"argument 0\[0\] is an int, and only floating") as caught:
        grad(lambda x: x)([1, 2, 4])
    assert "argument 0 is a list, which is a pytree of 3 scalars and no tensor" in caught.value.__notes__[0]


@pytest.mark.parametrize("argnums", [2, -3, (0, 2), "x", (), 1.5, None], ids=str)
def test_argnums_that_name_no_argument(backend, argnums):
    with pytest.raises(TypeError, match=r"does not fit a call with 2 positional arguments"):
        grad(lambda x, y: x, argnums=argnums)(1.0, 2.0)


def test_outputs_that_cannot_be_differentiated(tensor):
    z = tensor(np.array([1 + 2j], np.complex64))
    for f, at, shown in (
        (lambda x: (x, x), 1.0, "got a tuple"),
        (lambda x: "text", 1.0, "got a str"),
        (lambda x: 3.0, 1.0, "got a float"),
        (lambda x: ops.argmax(tensor(X)), 1.0, "got int"),
        (lambda z: z, z, "got complex64[1]"),
    ):
        with pytest.raises(TypeError, match="must return one real floating tensor") as caught:
            grad(f)(at)
        assert shown in str(caught.value)
        assert "has_aux=True" in str(caught.value)


def test_no_aux(backend):
    with pytest.raises(TypeError, match=r"with has_aux=True the function must return a pair \(output, aux\)"):
        keras_cg.grad(lambda x: x, has_aux=True)(1.0)


def test_nothing_to_differentiate(backend):
    with pytest.raises(TypeError, match="no floating or complex tensor among the arguments") as caught:
        keras_cg.grad(lambda p: 1.0)({"name": "static"})
    assert "integers, booleans and strings have no gradient" in str(caught.value)


def test_messages_say_which_function_was_called(backend):
    def f(x):
        return x

    with pytest.raises(TypeError, match=r"^grad\(.*f\): argument 0 is an int"):
        grad(f)(3)
    with pytest.raises(TypeError, match=r"^value_and_grad\(.*f\): argument 0 is an int"):
        value_and_grad(f)(3)
