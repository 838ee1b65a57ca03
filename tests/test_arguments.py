"""CONTRACT 4: arguments and outputs of every kind. The rules are wrong on purpose."""

import collections
import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from keras_cg import GradientError, custom_gradient, ops, vjp

X = np.array([1.0, 2.0, 3.0], np.float32)
Y = np.array([0.5, -1.0, 2.0], np.float32)
SEVEN = np.full(3, 7.0)

# One use, nest and shape of each kind; and what a compiler may take apart otherwise than eager code: what aliases.
IN_EVERY_MODE = (
    "test_uses[method]",
    "test_uses[inside static]",
    "test_uses[class]",
    "test_uses[anew at every call]",
    "test_a_method_gives_its_rule_the_arguments_without_self",
    "test_nests_in_and_out[deep]",
    "test_nests_in_and_out[dataclasses]",
    "test_a_type_registered_with_the_frameworks_own_tree_utility",
    "test_static_leaves_ride_along",
    "test_keywords_obey_the_rule",
    "test_an_argument_that_needs_no_gradient",
    "test_an_integer_argument",
    "test_any_number_of_arguments[gradient-3]",
    "test_no_tensor_argument",
    "test_an_input_returned",
    "test_inputs_returned_in_another_order",
    "test_one_tensor_returned_twice",
    "test_one_tensor_passed_twice",
    "test_a_view_of_an_input",
    "test_the_rule_captures_the_output",
    "test_no_output",
    "test_shapes[()]",
    "test_shapes[(0, 3)]",
    "test_dtypes[float16]",
    "test_dtypes[complex64]",
    "test_bfloat16",
    "test_numpy_scalars_are_numbers[np.int64(2)]",
)

Point = collections.namedtuple("Point", "a b")


@dataclasses.dataclass(frozen=True)
class Layer:
    weight: object
    units: int = 3
    name: str = dataclasses.field(default="layer", kw_only=True)


@custom_gradient
def seven(x):
    return x * 2, lambda upstream: 7 * upstream


# --- how it is used ------------------------------------------------------------------------------------------------


@custom_gradient()
def called(x):
    return x * 2, lambda upstream: 7 * upstream


class Holder:
    factor = 2

    @custom_gradient
    def method(self, x):
        return x * self.factor, lambda upstream: 7 * upstream

    @custom_gradient
    def method_with_arguments(self, x, y):
        return x * y, lambda *args, upstream: (7 * upstream * args[1], 5 * upstream * args[0])

    @staticmethod
    @custom_gradient
    def static(x):
        return x * 2, lambda upstream: 7 * upstream

    @custom_gradient
    @staticmethod
    def inside_static(x):
        return x * 2, lambda upstream: 7 * upstream

    @classmethod
    @custom_gradient
    def klass(cls, x):
        return x * cls.factor, lambda upstream: 7 * upstream

    @custom_gradient
    @classmethod
    def inside_klass(cls, x):
        return x * cls.factor, lambda upstream: 7 * upstream


def anew(x):
    return custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))(x)


USES = {
    "bare": seven,
    "called": called,
    "method": Holder().method,
    "static": Holder.static,
    "static of an instance": Holder().static,
    "inside static": Holder.inside_static,
    "class": lambda x: Holder.klass(x),
    "class, bound before": Holder.klass,
    "inside class, bound before": Holder.inside_klass,
    "lambda": custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream)),
    "unbound": lambda x: Holder.method(Holder(), x),
    "anew at every call": anew,
}


@pytest.mark.parametrize("use", USES)
def test_uses(frame, use):
    f = USES[use]
    if use == "class" and frame.mode == "aot_eager":
        # torch.compile (2.13) cannot follow a class method to a descriptor; bound outside of what it compiles, it can.
        with pytest.raises(Exception, match="SourcelessBuilder"):
            frame.gradients(lambda x: f(x), X)
        return
    output, (gx,) = frame.differentiate(lambda x: f(x), X)
    np.testing.assert_allclose(output, 2 * X)
    np.testing.assert_allclose(gx, SEVEN)


def test_a_method_gives_its_rule_the_arguments_without_self(frame):
    holder = Holder()
    gx, gy = frame.gradients(lambda x, y: holder.method_with_arguments(x, y), X, Y)
    np.testing.assert_allclose(gx, 7 * Y)
    np.testing.assert_allclose(gy, 5 * X)


def test_the_function_runs_once(eager):
    runs = []

    @custom_gradient
    def f(x):
        runs.append("f")

        def grad(upstream):
            runs.append("rule")
            return 7 * upstream

        return x * 2, grad

    f(eager.tensor(X))
    assert runs == ["f"]
    runs.clear()
    (gx,) = eager.gradients(lambda x: f(x) if not runs else x * 0, X)
    np.testing.assert_allclose(gx, SEVEN)
    assert runs == ["f", "rule"]


# --- nests ---------------------------------------------------------------------------------------------------------

NESTS = {
    "list": lambda x, y: [x, y],
    "tuple": lambda x, y: (x, y),
    "dict": lambda x, y: {"b": y, "a": x},
    "namedtuple": lambda x, y: Point(x, y),
    "deep": lambda x, y: {"p": [Point(x, None), ("static", y)], "n": 3},
    "dataclasses": lambda x, y: [Layer(x, name="first"), Layer([y], units=4)],
}
LEAVES = {
    "list": lambda nest: nest,
    "tuple": lambda nest: nest,
    "dict": lambda nest: (nest["a"], nest["b"]),
    "namedtuple": lambda nest: (nest.a, nest.b),
    "deep": lambda nest: (nest["p"][0].a, nest["p"][1][1]),
    "dataclasses": lambda nest: (nest[0].weight, nest[1].weight[0]),
}


@pytest.mark.together
@pytest.mark.parametrize("kind", NESTS)
def test_nests_in_and_out(frame, kind):
    build, parts = NESTS[kind], LEAVES[kind]

    @custom_gradient
    def f(nest):
        x, y = parts(nest)

        def grad(upstream):
            gx, gy = parts(upstream)
            return build(7 * gx, 5 * gy)

        return build(x * 2, y * 3), grad

    def run(x, y):
        given = build(x, y)
        output = f(given)
        if kind == "deep":
            assert output["n"] == 3 and output["p"][1][0] == "static" and output["p"][0].b is None
        if kind == "dataclasses":
            assert output[0].name == "first" and output[1].units == 4 and isinstance(output[0], Layer)
        first, second = parts(output)
        return first + 2 * second

    output, (gx, gy) = frame.differentiate(run, X, Y)
    np.testing.assert_allclose(output, 2 * X + 6 * Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, np.full(3, 10.0))


@pytest.mark.together
def test_a_type_registered_with_the_frameworks_own_tree_utility(frame):
    Box = REGISTER[frame.name]()

    @custom_gradient
    def f(box):
        assert type(box) is Box
        return Box(box.a * 2, box.b * 3), lambda upstream: Box(7 * upstream.a, 5 * upstream.b)

    def run(x, y):
        output = f(Box(x, y))
        assert type(output) is Box
        return output.a + output.b

    output, (gx, gy) = frame.differentiate(run, X, Y)
    np.testing.assert_allclose(output, 2 * X + 3 * Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, np.full(3, 5.0))


def test_a_registered_dataclass_is_named_by_its_fields(backend):
    """Also where the framework's own tree utility has it in another order, and keeps something else with it."""
    tensor = ops.asarray
    Box = plain_class() if backend == "numpy" else REGISTER[backend]()
    f = custom_gradient(lambda p: (p[0].a * p[0].b, lambda upstream: [Box(7 * upstream, tensor([1.0, 2.0, 3.0]))]))
    one = tensor([1.0, 2.0])
    with pytest.raises(GradientError, match=r"wrong shape for p\[0\]\.b\.") as caught:
        vjp(f, [Box(one, one * 2)])[1](one)
    assert caught.value.argument == "p[0].b"


def plain_class():
    return dataclasses.make_dataclass("Box", ["a", "b"])


def jax_box():
    import jax

    Box = plain_class()
    jax.tree_util.register_pytree_node(Box, lambda box: ((box.a, box.b), None), lambda _, parts: Box(*parts))
    return Box


def torch_box():
    import torch.utils._pytree as pytree

    Box = plain_class()
    pytree.register_pytree_node(Box, lambda box: ([box.a, box.b], None), lambda parts, _: Box(*parts))
    return Box


def tensorflow_box():
    Box = plain_class()
    Box.__tf_flatten__ = lambda self: ((), (self.a, self.b))
    Box.__tf_unflatten__ = classmethod(lambda cls, _, parts: cls(*parts))
    return Box


def numpy_box():
    # autograd has no tree utility of its own; what optree knows serves there.
    import optree

    Box = plain_class()
    optree.register_pytree_node(
        Box, lambda box: ((box.a, box.b), None), lambda _, parts: Box(*parts), namespace="keras_cg"
    )
    return Box


REGISTER = {"jax": jax_box, "torch": torch_box, "tensorflow": tensorflow_box, "numpy": numpy_box}


def test_static_leaves_ride_along(frame):
    sentinel = object()

    @custom_gradient
    def f(x, name, fn, *, flag=None, other):
        assert name == "name" and flag is None and other is sentinel
        return (fn(x), name, sentinel, None), lambda upstream: 7 * upstream[0]

    def run(x):
        output, name, same, nothing = f(x, "name", lambda v: v * 2, other=sentinel)
        assert name == "name" and same is sentinel and nothing is None
        return output

    output, (gx,) = frame.differentiate(run, X)
    np.testing.assert_allclose(output, 2 * X)
    np.testing.assert_allclose(gx, SEVEN)


def test_keywords_obey_the_rule(frame):
    @custom_gradient
    def f(x, *, y):
        return x * y, lambda upstream: (7 * upstream, 5 * upstream)

    gx, gy = frame.gradients(lambda x, y: f(x=x, y=y), X, Y)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, np.full(3, 5.0))


def test_an_argument_that_needs_no_gradient(frame):
    constant = frame.tensor(Y)

    @custom_gradient
    def f(x, y):
        return x * y, lambda upstream: (7 * upstream, 5 * upstream)

    output, (gx,) = frame.differentiate(lambda x: f(x, constant), X)
    np.testing.assert_allclose(output, X * Y)
    np.testing.assert_allclose(gx, SEVEN)


@pytest.mark.inductor
def test_an_integer_argument(frame):
    @custom_gradient
    def f(x, indices):
        return ops.take(x, indices), lambda upstream: (ops.zeros_like(x) + 7, None)

    indices = frame.tensor(np.array([0, 2]))
    output, (gx,) = frame.differentiate(lambda x: f(x, indices), X)
    np.testing.assert_allclose(output, X[[0, 2]])
    np.testing.assert_allclose(gx, SEVEN)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("needed", [False, True], ids=["no gradient", "gradient"])
def test_any_number_of_arguments(frame, count, needed):
    # torch.compile drops the context of a Function for certain counts when no gradient is needed.
    @custom_gradient
    def f(*xs):
        return sum(xs[1:], xs[0]), lambda upstream: tuple((7 + i) * upstream for i in range(len(xs)))

    if not needed and frame.name == "torch":
        import torch

        tensors = [frame.tensor(X)] * count
        run = f if frame.mode == "eager" else torch.compile(lambda *xs: f(*xs), backend=frame.mode, fullgraph=True)
        np.testing.assert_allclose(frame.array(run(*tensors)), X * count)
    else:
        output, gradients = frame.differentiate(lambda *xs: f(*xs), *[X] * count)
        np.testing.assert_allclose(output, X * count)
        for number, gradient in enumerate(gradients):
            np.testing.assert_allclose(gradient, np.full(3, 7.0 + number))


def test_no_tensor_argument(frame):
    @custom_gradient
    def f(n):
        return n * 2, lambda upstream: None

    assert f(3) == 6
    output, (gx,) = frame.differentiate(lambda x: x * f(3), X)
    np.testing.assert_allclose(output, 6 * X)
    np.testing.assert_allclose(gx, np.full(3, 6.0))


# --- outputs -------------------------------------------------------------------------------------------------------


@pytest.mark.inductor
def test_an_input_returned(frame):
    decorated = custom_gradient(lambda x: (x, lambda upstream: 7 * upstream))
    output, (gx,) = frame.differentiate(lambda x: decorated(x) * 2, X)
    np.testing.assert_allclose(output, 2 * X)
    np.testing.assert_allclose(gx, np.full(3, 14.0))


@pytest.mark.inductor
def test_inputs_returned_in_another_order(frame):
    decorated = custom_gradient(lambda x, y: ((y, x), lambda upstream: (7 * upstream[0], 5 * upstream[1])))

    def run(x, y):
        first, second = decorated(x, y)
        return first + 2 * second

    output, (gx, gy) = frame.differentiate(run, X, Y)
    np.testing.assert_allclose(output, Y + 2 * X)
    np.testing.assert_allclose(gx, SEVEN)
    np.testing.assert_allclose(gy, np.full(3, 10.0))


@pytest.mark.inductor
def test_one_tensor_returned_twice(frame):
    @custom_gradient
    def f(x):
        y = x * 2
        return (y, y), lambda upstream: 7 * upstream[0] + 11 * upstream[1]

    def run(x):
        first, second = f(x)
        return first + 2 * second

    output, (gx,) = frame.differentiate(run, X)
    np.testing.assert_allclose(output, 6 * X)
    np.testing.assert_allclose(gx, np.full(3, 7 + 22.0))


@pytest.mark.inductor
def test_one_tensor_passed_twice(frame):
    decorated = custom_gradient(lambda x, y: (x * y, lambda upstream: (7 * upstream, 5 * upstream)))
    output, (gx,) = frame.differentiate(lambda x: decorated(x, x), X)
    np.testing.assert_allclose(output, X * X)
    np.testing.assert_allclose(gx, np.full(3, 12.0))


@pytest.mark.inductor
def test_a_view_of_an_input(frame):
    decorated = custom_gradient(lambda x: (ops.reshape(x, (3, 1)), lambda upstream: 7 * ops.reshape(upstream, (3,))))
    output, (gx,) = frame.differentiate(lambda x: decorated(x), X)
    np.testing.assert_allclose(output, X[:, None])
    np.testing.assert_allclose(gx, SEVEN)


def test_the_rule_captures_the_output(frame):
    @custom_gradient
    def f(x):
        y = ops.exp(x)
        return y, lambda upstream: 7 * upstream * y

    (gx,) = frame.gradients(lambda x: f(x), X)
    np.testing.assert_allclose(gx, 7 * np.exp(X.astype(float)), rtol=1e-5)


def test_no_output(frame):
    decorated = custom_gradient(lambda x: ((), lambda upstream: 7 * x))
    output, (gx,) = frame.differentiate(lambda x: x * 2 if decorated(x) == () else x, X)
    np.testing.assert_allclose(output, 2 * X)
    np.testing.assert_allclose(gx, np.full(3, 2.0))


# --- dtypes and shapes ---------------------------------------------------------------------------------------------


@pytest.mark.inductor
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 3)], ids=str)
def test_shapes(frame, shape):
    array = np.linspace(1, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    output, (gx,) = frame.differentiate(lambda x: seven(x), array)
    assert output.shape == gx.shape == shape
    np.testing.assert_allclose(output, 2 * array)
    np.testing.assert_allclose(gx, np.full(shape, 7.0))


@pytest.mark.inductor
@pytest.mark.parametrize("dtype", ["float16", "float64", "complex64", "complex128"])
def test_dtypes(frame, dtype):
    if frame.name == "jax" and dtype in ("float64", "complex128"):
        import jax

        with jax.enable_x64(True):
            check_dtype(frame, dtype)
    else:
        check_dtype(frame, dtype)


def check_dtype(frame, dtype):
    array = X.astype(dtype)
    if dtype.startswith("complex"):
        # The loss is the sum of the real parts: upstream is 1, on every backend.
        decorated = custom_gradient(lambda x: (x * 2, lambda upstream: (7 + 3j) * upstream))
        output, (gx,) = frame.differentiate(lambda x: ops.real(decorated(x)), array)
        expected = np.full(3, 7 + 3j) if frame.name in ("torch", "tensorflow") else np.full(3, 7 - 3j)
        assert output.dtype.kind == "f"
        np.testing.assert_allclose(gx, expected)
    else:
        output, (gx,) = frame.differentiate(lambda x: seven(x), array)
        assert output.dtype == gx.dtype == dtype
        np.testing.assert_allclose(output, 2 * X)
        np.testing.assert_allclose(gx, SEVEN)


@pytest.mark.inductor
def test_bfloat16(frame):
    if frame.name == "numpy":
        return  # NumPy has no bfloat16
    output, (gx,) = frame.differentiate(lambda x: to_float32(frame, seven(to_bfloat16(frame, x))), X)
    np.testing.assert_allclose(output, 2 * X)
    np.testing.assert_allclose(gx, SEVEN)


def to_bfloat16(frame, x):
    if frame.name == "torch":
        return x.bfloat16()
    return x.astype("bfloat16") if frame.name == "jax" else __import__("tensorflow").cast(x, "bfloat16")


def to_float32(frame, x):
    if frame.name == "torch":
        assert str(x.dtype) == "torch.bfloat16"
        return x.float()
    return x.astype("float32") if frame.name == "jax" else __import__("tensorflow").cast(x, "float32")


# --- tensors of another framework ----------------------------------------------------------------------------------


class TestForeign:
    """NumPy arrays are at home in JAX and TensorFlow; torch takes none, and NumPy takes nobody's tensor."""

    def foreign(self, backend, backends):
        if backend == "torch":
            return np.ones(3), "numpy.ndarray", "numpy"
        other = next((name for name in ("torch", "jax", "tensorflow") if name in backends and name != backend), None)
        if other is None:
            return None
        import importlib

        tensor = importlib.import_module(f"frameworks.{other}").tensor(X)
        return tensor, {"torch": "torch.Tensor", "jax": "jax.Array", "tensorflow": "tf.Tensor"}[other], other

    @pytest.mark.side_by_side
    def test_argument(self, eager, backend, backends):
        found = self.foreign(backend, backends)
        if found is None:
            return  # this environment has one framework alone
        tensor, shown, owner = found
        with pytest.raises(TypeError) as caught:
            custom_gradient(lambda x, params: (x, lambda g: (g, g)))(eager.tensor(X), {"w": [tensor]})
        for part in (
            "the argument params['w'][0] is",
            shown,
            f"backend is {backend!r}",
            "keras_cg.use_backend()",
            owner,
        ):
            assert part in str(caught.value)
        for part in ("usual cause: ", "remedy: ", "set_backend", "KERAS_CG_BACKEND"):
            assert part in str(caught.value)

    @pytest.mark.side_by_side
    def test_output(self, eager, backend, backends):
        found = self.foreign(backend, backends)
        if found is None:
            return
        tensor, shown, _ = found
        with pytest.raises(TypeError) as caught:
            custom_gradient(lambda x: ({"y": tensor}, lambda g: g))(eager.tensor(X))
        assert "the output['y'] is" in str(caught.value) and shown in str(caught.value)

    def test_numpy_output_where_it_is_taken(self, eager, backend):
        if backend == "torch":
            return
        decorated = custom_gradient(lambda x: (np.ones(3, np.float32), lambda upstream: 7 * upstream))
        output, (gx,) = eager.differentiate(decorated, X)
        np.testing.assert_allclose(output, np.ones(3))
        np.testing.assert_allclose(gx, SEVEN)

    @pytest.mark.parametrize("scalar", [np.float32(2), np.int64(2), np.bool_(True)], ids=repr)
    def test_numpy_scalars_are_numbers(self, frame, scalar):
        decorated = custom_gradient(lambda x, s: (x * 2, lambda upstream: (7 * upstream, None)))
        (gx,) = frame.gradients(lambda x: decorated(x, scalar), X)
        np.testing.assert_allclose(gx, SEVEN)

    @pytest.mark.only("jax", "tensorflow", "torch")
    @pytest.mark.limit
    def test_a_variable_of_keras_on_numpy(self, backend, monkeypatch):
        """JAX and TensorFlow take NumPy's arrays for their own, but not from a Keras that runs on NumPy."""

        class Variable:
            value = np.ones(3, np.float32)

        keras = SimpleNamespace(Variable=Variable, backend=SimpleNamespace(backend=lambda: "numpy"))
        monkeypatch.setitem(sys.modules, "keras", keras)
        decorated = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
        with pytest.raises(
            TypeError, match=f"Keras runs on 'numpy', but the active backend of keras_cg is '{backend}'"
        ):
            decorated({"w": Variable()})
