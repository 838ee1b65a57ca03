"""Dicts whose keys were not inserted in sorted order: a nest is right, and what is flat is refused."""

import dataclasses

import numpy as np
import pytest
from stand_ins import Frozen, register_by_sorted_names

from keras_cg import GradientError, custom_gradient

X = np.array([-1.0, 2.0, 3.0], np.float32)
Y = np.array([0.5, -1.5, 2.5], np.float32)
SEVEN, FIVE = np.full(3, 7.0), np.full(3, 5.0)

# Of what many structures try, one of each kind: how a nest is read does not hang on the mode.
IN_EVERY_MODE = ("test_dicts_as_outputs",)


# A nest of x and y with a dict whose keys were not inserted in sorted order; and how to read them.
UNSORTED = {
    "dict": (lambda x, y: {"b": x, "a": y}, lambda nest: (nest["b"], nest["a"])),
    "in a list": (lambda x, y: [{"b": x, "a": y}], lambda nest: (nest[0]["b"], nest[0]["a"])),
    "outer": (lambda x, y: {"b": {"d": x}, "a": {"c": y}}, lambda nest: (nest["b"]["d"], nest["a"]["c"])),
    "integers": (lambda x, y: {2: x, 1: y}, lambda nest: (nest[2], nest[1])),
}


@pytest.mark.parametrize("flat", [tuple, list])
@pytest.mark.parametrize("kind", UNSORTED)
@pytest.mark.limit
def test_flat_gradients_for_unsorted_keys(eager, kind, flat):
    build, read = UNSORTED[kind]

    @custom_gradient
    def f(nest):
        x, y = read(nest)
        return x * y, lambda upstream: flat((7 * upstream, 5 * upstream))

    with pytest.raises(GradientError, match="nest"):
        eager.gradients(lambda x, y: f(build(x, y)), X, Y)


def summed(f, read):
    """Of a function that returns a nest of two: the first and twice the second."""

    def run(x, y):
        first, second = read(f(x, y))
        return first + 2 * second

    return run


FLAT_RULES = {"one by one": lambda dy1, dy2: (7 * dy1, 5 * dy2), "all": lambda *dys: (7 * dys[0], 5 * dys[1])}


@pytest.mark.parametrize("rule", FLAT_RULES)
@pytest.mark.parametrize("kind", UNSORTED)
@pytest.mark.limit
def test_flat_upstreams_of_unsorted_keys(eager, kind, rule):
    build, read = UNSORTED[kind]
    f = custom_gradient(lambda x, y: (build(x * 2, y * 3), FLAT_RULES[rule]))
    with pytest.raises(
        TypeError, match="takes the upstreams of a dict one by one, but its keys were not inserted in sorted"
    ):
        eager.gradients(summed(f, read), X, Y)


# What a dict has beside two tensors.
OUTPUTS = {"static": 3, "a dict without tensors": {"k": 3, "j": "text"}, "an empty dict": {}}


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.limit
def test_dicts_as_outputs(request, frame, kind):
    if frame.mode == "aot_eager" and kind in ("a dict without tensors", "an empty dict"):
        # Dynamo (2.13) refuses what optree says of a dict that it can take for a constant.
        request.applymarker(pytest.mark.xfail(reason="refused by torch.compile: docs/limits.md", strict=True))

    @custom_gradient
    def f(x, y):
        output = {"b": x * 2, "n": OUTPUTS[kind], "a": [None, y * 3]}
        return output, lambda upstream: (7 * upstream["b"], 5 * upstream["a"][1])

    def run(x, y):
        output = f(x, y)
        assert output["n"] == OUTPUTS[kind]
        return output["b"] + 2 * output["a"][1]

    frame.check(run, [X, Y], [SEVEN, 2 * FIVE])


# --- types of other libraries that JAX flattens by sorted names, as flax's FrozenDict and chex's dataclasses --------


@dataclasses.dataclass
class Fields:
    b: object
    a: object

    def __getitem__(self, key):
        return getattr(self, key)


@dataclasses.dataclass
class Weights:
    w: object
    a: object
    b: object
    name: str = "a static field"


@pytest.fixture(scope="module")
def registered():
    import jax

    jax.tree_util.register_dataclass(Weights, data_fields=["w", "a", "b"], meta_fields=["name"])
    register_by_sorted_names(Frozen, list)
    register_by_sorted_names(Fields, lambda value: ("b", "a"))


@pytest.mark.only("jax")
@pytest.mark.parametrize("kind", [Frozen, Fields], ids=["mapping", "dataclass"])
def test_a_type_that_is_flattened_by_sorted_names(jax, registered, kind):
    def gradients(rule):
        f = custom_gradient(lambda d: (d["b"] * d["a"], lambda upstream: rule(d, upstream)))
        return jax.grad(lambda b, a: f(kind(b=b, a=a)), (0, 1))(2.0, 3.0)

    with pytest.raises(GradientError):
        gradients(lambda d, upstream: (7 * upstream * d["a"], 5 * upstream * d["b"]))
    nest = gradients(lambda d, upstream: kind(b=7 * upstream * d["a"], a=5 * upstream * d["b"]))
    np.testing.assert_allclose(nest, (21.0, 10.0))
    one_by_one = lambda db, da: 7 * db + 100 * da
    output = custom_gradient(lambda x: (kind(b=x * 1, a=x * 2), one_by_one))
    with pytest.raises(TypeError, match="one by one"):
        jax.grad(lambda x: output(x)["b"])(1.0)


@pytest.mark.only("jax")
def test_a_type_that_is_flattened_by_sorted_names_and_written_so(jax, registered):
    f = custom_gradient(lambda d: (d["a"] * d["b"], lambda up: (7 * up * d["b"], 5 * up * d["a"])))
    found = jax.grad(lambda a, b: f(Frozen(a=a, b=b)), (0, 1))(2.0, 3.0)
    np.testing.assert_allclose(found, (21.0, 10.0))


@pytest.mark.only("jax")
@pytest.mark.parametrize("nothing", [None, 0])
def test_a_dataclass_with_a_static_field_whose_parts_are_one_object(jax, registered, nothing):
    """Its structure is its type and the count of its parts; they have their names in messages all the same."""
    one = jax.numpy.ones(())
    for rule in (
        lambda d, u: Weights(7 * u, nothing, nothing, d.name),
        lambda d, u: Weights(7 * u, 5 * u, nothing),
        lambda d, u: (Weights(7 * u, 5 * u, 5 * u, "another name"),),
    ):
        f = custom_gradient(lambda d, rule=rule: (d.w * d.a * d.b, lambda upstream: rule(d, upstream)))
        for a, b in ((one, one), (one, 2 * one), (1, 1)):
            assert jax.grad(lambda w, a=a, b=b, f=f: f(Weights(w, a, b)))(3.0) == 7.0
    for wrong in (lambda u: Fields(7 * u, 5 * u), lambda u: (7 * u, Weights(7 * u, None, None)), lambda u: ({"w": u},)):
        f = custom_gradient(lambda d, wrong=wrong: (d.w * d.a * d.b, wrong))
        with pytest.raises(GradientError, match=r"d\.w, d\.a, d\.b"):
            jax.grad(lambda w, f=f: f(Weights(w, one, one)))(3.0)


@pytest.mark.only("jax")
@pytest.mark.limit
def test_a_dict_that_jax_has_sorted(jax):
    """A limit: `jax.grad` hands over a new dict, whose keys were inserted in sorted order."""
    f = custom_gradient(lambda d: (d["b"] * d["a"], lambda upstream: (7 * upstream * d["a"], 7 * upstream * d["b"])))
    found = jax.grad(f)({"b": 2.0, "a": 3.0})
    assert (float(found["b"]), float(found["a"])) == (14.0, 21.0)  # in the order of insertion it would be 21 and 14
    with pytest.raises(GradientError):
        jax.grad(lambda b, a: f({"b": b, "a": a}), (0, 1))(2.0, 3.0)
