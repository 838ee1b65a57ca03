"""What stands in for tensors and rules where the engine is tried without a framework, and for types of libraries."""

import collections.abc
import contextlib


class T:
    """Stands in for a tensor."""

    def __init__(self, value=0.0):
        self.value = value


def is_tensor(value):
    return isinstance(value, T)


class Keeps:
    def __init__(self, s):
        self.s = s

    def __call__(self, u):
        return self.s * u

    def method(self, u):
        return self.twice(u)

    def twice(self, u):
        return 2 * self.s * u


class Slotted:
    __slots__ = ("s",)

    def __init__(self, s):
        self.s = s

    def __call__(self, u):
        return self.s * u

    method = __call__


class Frozen(collections.abc.Mapping):
    """A mapping like the `FrozenDict` of flax: JAX sorts its keys, and a nested dict comes out as another object."""

    def __init__(self, **parts):
        self.parts = parts

    def __getitem__(self, key):
        part = self.parts[key]
        return Frozen(**part) if isinstance(part, dict) else part

    def __iter__(self):
        return iter(self.parts)

    def __len__(self):
        return len(self.parts)


def register_by_sorted_names(kind, names):
    """Registers a type with JAX as flax and chex do; it keeps the order of its names."""
    import jax

    flatten = lambda value: ([value[name] for name in sorted(names(value))], tuple(names(value)))

    def unflatten(names, children):
        found = dict(zip(sorted(names), children, strict=True))
        return kind(**{name: found[name] for name in names})

    with contextlib.suppress(ValueError):  # registered by another test
        jax.tree_util.register_pytree_node(kind, flatten, unflatten)
