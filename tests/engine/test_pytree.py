"""Values that are flattened without optree come out as it would have them."""

import numpy as np
import optree
import pytest

from keras_cg.frontend import containers, pytree

pytestmark = pytest.mark.only("numpy")

X = np.array([1.0, 2.0])


def flatten(value):
    return pytree.flatten(value, lambda leaf: isinstance(leaf, np.ndarray), lambda leaf: None)


@pytest.mark.parametrize(
    "value", [X, (X,), (X, X), (X, 2.0, None, "a"), ()], ids=["leaf", "one", "two", "static", "no"]
)
def test_short_cuts_agree_with_optree(value):
    tree = flatten(value)
    leaves, spec = optree.tree_flatten(value, none_is_leaf=True, namespace="keras_cg")
    assert not isinstance(tree, containers.Nest)
    assert all(a is b for a, b in zip(tree.leaves, leaves, strict=True))
    assert containers.treespec_of(tree) == spec
    assert tree.paths() == [each.codify("") for each in optree.treespec_accessors(spec)]
    assert tree.unflatten(range(len(leaves))) == optree.tree_unflatten(spec, range(len(leaves)))


@pytest.mark.parametrize("value", [[X], (X, [X]), (X, {"a": X}), {"a": X}, None, 2.0], ids=str)
def test_other_values_are_left_to_optree(value):
    assert isinstance(flatten(value), containers.Nest)


def test_filling_some_leaves_keeps_the_others():
    assert flatten((X, 2.0, "a")).fill([0, 2], [1, 3]) == (1, 2.0, 3)
    assert flatten((X, 2.0)).fill([0, 1], [1, 3]) == (1, 3)
    assert flatten(X).fill([], []) is X
