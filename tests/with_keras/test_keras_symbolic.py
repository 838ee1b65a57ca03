"""A decorated function in Keras's functional API: shapes, the rule, saving, loading, cloning, and what is refused."""

import dataclasses
import doctest
import functools
import importlib
import re
import types

import keras
import numpy as np
import pytest

import keras_cg
import keras_cg.keras
from keras_cg import custom_gradient
from with_keras.training import array

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


@keras.saving.register_keras_serializable(package="tests")
@custom_gradient
def wrong_on_purpose(x, factor=2.0, *, shift=0):
    return x * factor + shift, lambda upstream: 7 * upstream


@custom_gradient
def unregistered(x):
    return x * 1.0, lambda upstream: 7 * upstream


@keras.saving.register_keras_serializable(package="tests")
@custom_gradient
def two_in_two_out(pair, label="sum"):
    a, b = pair["a"], pair["b"]

    def grad(upstream):
        return 7 * upstream[label] + 5 * upstream["places"][0], 5 * upstream[label]

    return {label: a + b, "places": (a - b, keras.ops.argmax(b, axis=-1))}, grad


def saved(model, tmp_path, **options):
    model.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras", **options)


def cloned(model, tmp_path):
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return clone


def rebuilt(model, tmp_path):
    return keras.Model.from_config(model.get_config())


def gradient(eager, model, x=X):
    """What the framework's own engine gives for the sum of the outputs; NumPy's cannot see through Keras's layers."""
    return eager.gradients(lambda x: keras.ops.sum(model(x)), np.asarray(x, np.float32))[0]


def refused(*parts):
    """A TypeError that says all of this, and what to do."""
    everything = "".join(f"(?=.*{re.escape(part)})" for part in (*parts, "remedy: "))
    return pytest.raises(TypeError, match=f"(?s)^{everything}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int32"])
def test_shape_and_dtype(backend, dtype):
    output = wrong_on_purpose(keras.Input([3], dtype=dtype), 2)
    assert isinstance(output, keras.KerasTensor)
    assert (output.shape, output.dtype) == ((None, 3), dtype)


def test_a_nest_of_inputs_and_outputs(eager, backend):
    inputs = {"a": keras.Input([3], name="a"), "b": keras.Input([3], name="b")}
    outputs = two_in_two_out(inputs, label="total")
    assert set(outputs) == {"total", "places"}
    assert [each.shape for each in (outputs["total"], *outputs["places"])] == [(None, 3), (None, 3), (None,)]
    assert outputs["places"][1].dtype.startswith("int")
    found = keras.Model(inputs, outputs)({"a": X.astype("float32"), "b": 2 * X.astype("float32")})
    np.testing.assert_allclose(array(found["total"]), 3 * X)
    np.testing.assert_allclose(array(found["places"][0]), -X)
    np.testing.assert_array_equal(array(found["places"][1]), np.argmax(X, axis=-1))
    if backend != "numpy":
        model = keras.Model(inputs, outputs["total"] + 2 * outputs["places"][0])
        f = lambda a, b: keras.ops.sum(model({"a": a, "b": b}))
        ga, gb = eager.gradients(f, X.astype("float32"), X.astype("float32"))
        np.testing.assert_allclose(ga, np.full(X.shape, 7.0 + 5 * 2))
        np.testing.assert_allclose(gb, np.full(X.shape, 5.0))


@pytest.mark.parametrize(
    "copy", [lambda model, path: model, cloned, saved, rebuilt], ids=["built", "cloned", "saved", "rebuilt"]
)
def test_the_model_computes_the_same_and_obeys_the_rule(eager, backend, copy, tmp_path):
    inputs = keras.Input([3])
    model = copy(keras.Model(inputs, wrong_on_purpose(wrong_on_purpose(inputs, 3.0), shift=1)), tmp_path)
    np.testing.assert_allclose(array(model(X.astype("float32"))), 6 * X + 1)
    if backend != "numpy":
        np.testing.assert_allclose(gradient(eager, model), np.full(X.shape, 49.0))


def test_custom_objects(backend, tmp_path):
    inputs = keras.Input([3])
    model = keras.Model(inputs, unregistered(inputs))
    loaded = saved(model, tmp_path, custom_objects={"unregistered": unregistered})
    np.testing.assert_allclose(array(loaded(X.astype("float32"))), X)
    with refused("could not find the decorated function 'unregistered'", "custom_objects={'unregistered': ...}"):
        keras.saving.load_model(tmp_path / "model.keras")


class Owner:
    @custom_gradient
    def method(self, x):
        return x * 1, lambda upstream: 7 * upstream


NAMELESS = {
    "lambda": custom_gradient(lambda x: (x, lambda upstream: upstream)),
    "partial": custom_gradient(functools.partial(wrong_on_purpose.__wrapped__, factor=3.0)),
    "method": Owner().method,
}


@pytest.mark.parametrize("name", NAMELESS)
@pytest.mark.limit
def test_what_has_no_name_clones_but_is_not_saved(backend, tmp_path, name):
    inputs = keras.Input([3])
    model = keras.Model(inputs, NAMELESS[name](inputs))
    np.testing.assert_allclose(array(cloned(model, tmp_path)(X.astype("float32"))), array(model(X.astype("float32"))))
    with refused("cannot be saved: Keras finds a function again by its name, and this one has none."):
        model.save(tmp_path / "model.keras")


def test_static_arguments_stay_what_they_are(backend):
    """Not traced with the placeholders, in containers either."""

    @custom_gradient
    def selected(parts, function, rows, shape=None, *, kind=None):
        output = function(parts["x"])[:, rows] * sum(range(parts["n"]))
        return keras.ops.reshape(output, shape), lambda upstream: upstream

    inputs = keras.Input([3])
    output = selected({"x": inputs, "n": 3}, keras.ops.relu, slice(1, 2), (-1, 1, 1), kind=np.float32)
    assert output.shape == (None, 1, 1)
    found = array(keras.Model(inputs, output)(X.astype("float32")))
    np.testing.assert_allclose(found, 3 * np.maximum(X[:, 1:2], 0)[:, None])


# --- what is refused -----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Hidden:
    tensor: object


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
@pytest.mark.limit
def test_a_placeholder_where_keras_does_not_look(backend, beside):
    @custom_gradient
    def culprit(hidden, x=None):
        return hidden.tensor * 1, lambda upstream: 7 * upstream

    with refused(
        "culprit: the argument hidden.tensor is a KerasTensor, which holds no numbers, in a place where Keras"
    ):
        culprit(Hidden(keras.Input([3])), *([keras.Input([3])] if beside else []))


def test_a_placeholder_as_output(backend):
    inputs = keras.Input([3])

    @custom_gradient
    def culprit(x):
        return inputs, lambda upstream: 7 * upstream

    with pytest.raises(TypeError, match="culprit: the output is a KerasTensor, which holds no numbers"):
        culprit(keras.ops.ones(3))


@pytest.mark.limit
def test_a_variable_beside_a_placeholder(backend):
    @custom_gradient
    def culprit(x, params):
        return x * params["w"], lambda upstream: (7 * upstream, None)

    with refused("culprit: the argument params['w'] is the Keras variable 'weight', and an argument is a KerasTensor"):
        culprit(keras.Input([3]), {"w": keras.Variable(np.ones(3), name="weight")})


# On NumPy Keras infers a shape from what lies in fresh memory, which may be anything.
@pytest.mark.filterwarnings("ignore:.* encountered in matmul:RuntimeWarning")
@pytest.mark.limit
def test_a_weight_that_another_layer_owns(backend):
    """A limit: a tied weight is refused as any other, though the model has it; a layer around the function takes it."""
    embedding = keras.layers.Embedding(5, 3)
    tokens = keras.Input([2], dtype="int32")
    hidden = embedding(tokens)

    @custom_gradient
    def logits(x, table):
        return keras.ops.matmul(x, keras.ops.transpose(table)), lambda upstream: (7 * keras.ops.ones_like(x), None)

    with pytest.raises(TypeError, match=r"logits: the argument table is the Keras variable 'embedding.*/embeddings'"):
        logits(hidden, embedding.embeddings)

    class Tied(keras.layers.Layer):
        def __init__(self, embedding):
            super().__init__()
            self.embedding = embedding

        def call(self, x):
            return logits(x, self.embedding.embeddings)

    assert keras.Model(tokens, Tied(embedding)(hidden)).output_shape == (None, 2, 5)


def test_a_variable_that_is_read_beside_a_placeholder(backend):
    weight, frozen = keras.Variable(np.ones(3), name="weight"), keras.Variable(np.ones(3), trainable=False)

    @custom_gradient
    def constant(x):
        return x * frozen, lambda upstream: 7 * upstream

    assert constant(keras.Input([3])).shape == (None, 3)

    @custom_gradient
    def culprit(x):
        return x * weight, lambda upstream, variables=None: (7 * upstream, [upstream for _ in variables])

    with refused("culprit: what it reads as weight is the Keras variable 'weight', and an argument"):
        culprit(keras.Input([3]))
    np.testing.assert_allclose(array(culprit(keras.ops.ones(3))), np.ones(3))


def reaching(way, trainable=True):
    """A function that reads a weight by other ways than its name, and the weight."""
    weight = keras.Variable(np.ones(3, np.float32), trainable=trainable, name="weight")
    holder = types.SimpleNamespace(weights={"w": [weight]})
    if way == "a layer":
        layer = keras.layers.Dense(3, use_bias=False, name="weight", trainable=trainable)
        layer.build((None, 3))
        return layer, layer.kernel
    found = {
        "an attribute": lambda x: x * holder.weights["w"][0],
        "a value": lambda x, held=holder: x * held.weights["w"][0].value,
    }
    return found[way], weight


WAYS = ("an attribute", "a value", "a layer")


@pytest.mark.parametrize("has_variables", [False, True], ids=["", "variables"])
@pytest.mark.parametrize("way", WAYS)
def test_a_variable_that_is_reached_beside_a_placeholder(backend, way, has_variables):
    function, weight = reaching(way)

    @custom_gradient
    def culprit(x):
        serving = lambda upstream, variables=None: (7 * upstream, [7 * keras.ops.ones_like(v) for v in variables])
        return function(x), serving if has_variables else lambda upstream: 7 * upstream

    with refused(f"culprit: what it reads is the Keras variable {weight.path!r}, and an argument is a KerasTensor"):
        culprit(keras.Input([3]))


@pytest.mark.parametrize("way", WAYS[:-1])  # Keras makes a layer's weights before it freezes them
def test_a_frozen_variable_that_is_reached_beside_a_placeholder(backend, way):
    function, _ = reaching(way, trainable=False)
    assert custom_gradient(lambda x: (function(x), lambda upstream: 7 * upstream))(keras.Input([3])).shape == (None, 3)


def test_what_a_function_changes_beside_a_placeholder_stays(backend):
    """Seeds and counters are no weights; the run that asks for the shape changes none."""
    seeds, count = keras.random.SeedGenerator(1), keras.Variable(0.0, trainable=False)

    @custom_gradient
    def noisy(x):
        count.assign_add(1.0)
        return x + keras.random.normal([3], seed=seeds) * count, lambda upstream: 7 * upstream

    before = array(seeds.state)
    assert noisy(keras.Input([3])).shape == (None, 3)
    np.testing.assert_array_equal(array(seeds.state), before)
    assert array(count.value) == 0


@pytest.mark.limit
def test_two_functions_of_one_name_are_not_saved(backend, tmp_path):
    def make(factor):
        @keras.saving.register_keras_serializable(package="tests")
        @custom_gradient
        def same(x):
            return x * 1, lambda upstream: factor * upstream

        return same

    first, second = make(7), make(5)
    inputs = keras.Input([3])
    keras.Model(inputs, second(inputs)).save(tmp_path / "model.keras")
    with refused("same> cannot be saved: Keras knows another object as 'tests>same', and would load that"):
        keras.Model(inputs, first(inputs)).save(tmp_path / "model.keras")


@pytest.mark.only("jax", "tensorflow", "torch")
@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("keras.KerasTensor", lambda: keras.Input([3])),
        ("keras.Variable", lambda: keras.Variable(np.ones(3))),
        ("", lambda: keras.ops.ones(3)),
    ],
    ids=["placeholder", "variable", "tensor"],
)
@pytest.mark.limit
def test_keras_on_another_backend(backend, monkeypatch, kind, make):
    """Keras runs on the backend under test, and keras_cg is told to use another one."""
    monkeypatch.setenv("KERAS_BACKEND", backend)

    @custom_gradient
    def culprit(x):
        return x * 1, lambda upstream: 7 * upstream

    with (
        keras_cg.use_backend("numpy"),
        refused(
            "culprit: the argument x is a",
            kind,
            f"and Keras runs on {backend!r}, but the active backend of keras_cg is 'numpy'.",
            "the backend of keras_cg comes from: keras_cg.use_backend()",
            "the backend of Keras comes from: the environment variable KERAS_BACKEND",
            f"KERAS_CG_BACKEND={backend}.",
        ),
    ):
        culprit(make())


def test_where_keras_got_its_backend_from(backend, monkeypatch):
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    assert keras_cg.bridge.keras_interop.choice() == (backend, "Keras's file keras.json, or its default")


@pytest.mark.parametrize("module", ["installation", "operation"])
def test_the_docstrings_run(backend, module):
    tested = doctest.testmod(importlib.import_module(f"keras_cg.keras.{module}"))
    assert tested.attempted and not tested.failed
