"""Arguments and outputs of every kind, and every way to decorate. The rules are wrong on purpose."""

import dataclasses
import importlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from wrong_rules import X, Y, seven

from keras_cg import GradientError, custom_gradient, ops, use_backend, vjp

SEVEN = np.full(3, 7.0)

# One use, nest and shape of each kind; and what a compiler may take apart otherwise than eager code: what aliases.
IN_EVERY_MODE = (
    "test_every_way_to_decorate_obeys_the_rule[method]",
    "test_every_way_to_decorate_obeys_the_rule[inside static]",
    "test_every_way_to_decorate_obeys_the_rule[class]",
    "test_every_way_to_decorate_obeys_the_rule[decorated at every call]",
    "test_a_method_gives_its_rule_the_arguments_without_self",
    "test_a_dataclass_or_a_type_registered_with_the_frameworks_own_tree_utility",
    "test_no_tensor_argument",
    "test_a_function_without_output_adds_no_gradient",
    "test_numpy_scalars_are_numbers[np.int64(2)]",
)


# --- how it is used ------------------------------------------------------------------------------------------------


class Holder:
    factor = 2

    @custom_gradient
    def method(self, x):
        return x * self.factor, lambda upstream: 7 * upstream

    @custom_gradient
    def method_with_arguments(self, x, y):
        return x * y, lambda *args, upstream: (7 * upstream * args[1], 5 * upstream * args[0])

    @classmethod
    @custom_gradient
    def klass(cls, x):
        return x * cls.factor, lambda upstream: 7 * upstream

    static = staticmethod(custom_gradient(seven.__wrapped__))
    inside_static = custom_gradient(staticmethod(seven.__wrapped__))
    inside_klass = custom_gradient(classmethod(klass.__func__.__wrapped__))


USES = {
    "bare": seven,
    "called": custom_gradient()(seven.__wrapped__),
    "method": Holder().method,
    "unbound": lambda x: Holder.method(Holder(), x),
    "static": Holder.static,
    "static of an instance": Holder().static,
    "inside static": Holder.inside_static,
    "class": lambda x: Holder.klass(x),
    "class, bound before": Holder.klass,
    "inside class, bound before": Holder.inside_klass,
    "lambda": custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream)),
    "decorated at every call": lambda x: custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))(x),
}


@pytest.mark.parametrize("use", USES)
def test_every_way_to_decorate_obeys_the_rule(frame, use):
    f = USES[use]
    if use == "class" and frame.mode == "aot_eager":
        # torch.compile (2.13) cannot follow a class method to a descriptor; bound outside of what it compiles, it can.
        with pytest.raises(Exception, match="SourcelessBuilder"):
            frame.gradients(lambda x: f(x), X)
        return
    frame.check(lambda x: f(x), [X], [SEVEN], 2 * X)


def test_a_method_gives_its_rule_the_arguments_without_self(frame):
    holder = Holder()
    frame.check(lambda x, y: holder.method_with_arguments(x, y), [X, Y], [7 * Y, 5 * X])


# --- nests ---------------------------------------------------------------------------------------------------------


@pytest.mark.together
@pytest.mark.parametrize("is_registered", [True, False])
def test_a_dataclass_or_a_type_registered_with_the_frameworks_own_tree_utility(frame, is_registered):
    Box = registered_class(frame.name) if is_registered else plain_class()

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
    Box = plain_class() if backend == "numpy" else registered_class(backend)
    f = custom_gradient(lambda p: (p[0].a * p[0].b, lambda upstream: [Box(7 * upstream, tensor([1.0, 2.0, 3.0]))]))
    one = tensor([1.0, 2.0])
    with pytest.raises(GradientError, match=r"wrong shape for p\[0\]\.b\.") as caught:
        vjp(f, [Box(one, one * 2)])[1](one)
    assert caught.value.argument == "p[0].b"


def plain_class():
    return dataclasses.make_dataclass("Box", ["a", "b"])


def registered_class(backend):
    """As each framework documents it; autograd has no tree utility, and what optree knows serves there."""
    Box = plain_class()
    if backend == "tensorflow":
        Box.__tf_flatten__ = lambda self: ((), (self.a, self.b))
        Box.__tf_unflatten__ = classmethod(lambda cls, _, parts: cls(*parts))
        return Box
    register = {"jax": "jax.tree_util", "torch": "torch.utils._pytree", "numpy": "optree"}[backend]
    options = {"namespace": "keras_cg"} if backend == "numpy" else {}
    parts = list if backend == "torch" else tuple
    build = (lambda parts, _: Box(*parts)) if backend == "torch" else (lambda _, parts: Box(*parts))
    register = importlib.import_module(register).register_pytree_node
    register(Box, lambda box: (parts([box.a, box.b]), None), build, **options)
    return Box


@pytest.mark.only("jax")
def test_upstream_has_the_structure_of_a_container_without_tensors(jax):
    """As a module of equinox, all of whose fields are static, beside a tensor; as an argument, it needs no gradient."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Named:
        name: str = dataclasses.field(metadata={"static": True})

    seen = []

    @custom_gradient
    def f(x, named):
        def rule(upstream):
            seen.append(upstream)
            return 7 * upstream[0], None

        return (x * 2, Named(named.name + "!")), rule

    for run in (lambda g: g, jax.jit):
        output, pull = jax.vjp(lambda x, run=run: run(f)(x, Named("a")), X)
        (gradient,) = pull((SEVEN / 7, Named("a!")))
        np.testing.assert_allclose(gradient, SEVEN)
        assert jax.tree.structure(seen.pop()) == jax.tree.structure(output)
        assert output[1] == Named("a!")


@pytest.mark.only("torch")
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_any_number_of_arguments_that_need_no_gradient(torch, count):
    """torch.compile drops the context of a Function for certain counts."""

    @custom_gradient
    def f(*xs):
        return sum(xs[1:], xs[0]), lambda upstream: tuple((7 + i) * upstream for i in range(len(xs)))

    compiled = torch.compile(lambda *xs: f(*xs), backend="aot_eager", fullgraph=True)
    np.testing.assert_allclose(compiled(*[torch.tensor(X)] * count), X * count)


def test_no_tensor_argument(frame):
    f = custom_gradient(lambda n: (n * 2, lambda upstream: None))
    assert f(3) == 6
    frame.check(lambda x: x * f(3), [X], [np.full(3, 6.0)], 6 * X)


# --- outputs -------------------------------------------------------------------------------------------------------


def test_a_container_without_a_tensor_is_the_callers_own(eager):
    """As in Python, what the function adds to a list or a dict is there afterwards."""
    seen = []

    @custom_gradient
    def f(holder, x, options=None, *, table):
        holder.append(1.0)
        table["k"] = options
        seen.append((holder, table))
        return x * 2, lambda upstream: 7 * upstream

    holder, table = [], {"other": ("a", 2)}
    np.testing.assert_allclose(eager.gradients(lambda x: f(holder, x, table=table), X)[0], SEVEN)
    f(holder, eager.tensor(X), [1], table=table)
    assert all(each[0] is holder and each[1] is table for each in seen)
    assert len(holder) == len(seen) >= 2 and table["k"] == [1]


def test_a_function_without_output_adds_no_gradient(frame):
    decorated = custom_gradient(lambda x: ((), lambda upstream: 7 * x))
    frame.check(lambda x: x * 2 if decorated(x) == () else x, [X], [np.full(3, 2.0)], 2 * X)


# --- tensors of another framework ----------------------------------------------------------------------------------


def foreign(backend, backends):
    """A tensor that the backend does not take, its class, and its owner: JAX and TensorFlow take those of NumPy."""
    if backend == "torch":
        return np.ones(3), "numpy.ndarray", "numpy"
    other = next((name for name in ("torch", "jax", "tensorflow") if name in backends and name != backend), None)
    if other is None:
        pytest.skip("this environment has one framework alone")
    tensor = importlib.import_module(f"frameworks.{other}").tensor(X)
    return tensor, {"torch": "torch.Tensor", "jax": "jax.Array", "tensorflow": "tf.Tensor"}[other], other


@pytest.mark.side_by_side
def test_a_foreign_tensor_is_refused(eager, backend, backends):
    tensor, shown, owner = foreign(backend, backends)
    with pytest.raises(TypeError, match=r"the argument params\['w'\]\[0\] is") as caught:
        custom_gradient(lambda x, params: (x, lambda g: (g, g)))(eager.tensor(X), {"w": [tensor]})
    for part in (shown, owner, f"backend is {backend!r}", "keras_cg.use_backend()", "set_backend", "KERAS_CG_BACKEND"):
        assert part in str(caught.value)
    with pytest.raises(TypeError, match=r"the output\['y'\] is") as caught:
        custom_gradient(lambda x: ({"y": tensor}, lambda g: g))(eager.tensor(X))
    assert shown in str(caught.value)
    inside = custom_gradient(lambda x: (x, lambda g: g))
    _, pullback = vjp(custom_gradient(lambda x: (x, lambda g: g * inside(tensor))), eager.tensor(X))
    running = "comes from: the call of a decorated function that is running"
    with use_backend("numpy" if backend != "numpy" else owner), pytest.raises(TypeError, match=running):
        pullback(eager.tensor(X))


@pytest.mark.only("jax", "tensorflow", "numpy")
def test_an_output_of_numpy_where_it_is_taken(eager, backend):
    decorated = custom_gradient(lambda x: (np.ones(3, np.float32), lambda upstream: 7 * upstream))
    eager.check(decorated, [X], [SEVEN], np.ones(3))


@pytest.mark.parametrize("scalar", [np.float32(2), np.int64(2), np.bool_(True)], ids=repr)
def test_numpy_scalars_are_numbers(frame, scalar):
    decorated = custom_gradient(lambda x, s: (x * 2, lambda upstream: (7 * upstream, None)))
    frame.check(lambda x: decorated(x, scalar), [X], [SEVEN])


@pytest.mark.only("jax", "tensorflow", "torch")
@pytest.mark.limit
def test_a_variable_of_keras_on_numpy(backend, monkeypatch):
    """JAX and TensorFlow take NumPy's arrays for their own, but not from a Keras that runs on NumPy."""

    class Variable:
        value = np.ones(3, np.float32)

    keras = SimpleNamespace(Variable=Variable, backend=SimpleNamespace(backend=lambda: "numpy"))
    monkeypatch.setitem(sys.modules, "keras", keras)
    decorated = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
    match = f"Keras runs on 'numpy', but the active backend of keras_cg is '{backend}'"
    with pytest.raises(TypeError, match=match):
        decorated({"w": Variable()})
