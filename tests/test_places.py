"""Wherever a rule keeps what it holds, its derivative is there. A rule that is another one in each run is refused."""

import dataclasses
import functools
import sys
import types

import numpy as np
import pytest

from keras_cg import custom_gradient, grad, vjp

# Each gives the rule upstream (2 h + x), with h = x ** 2 kept in a place of its own.


def method(x):
    h = x**2

    class C:
        def get(self):
            return h

    c = C()
    return lambda u: u * (2 * c.get() + x)


def callable_object(x):
    h = x**2

    class R:
        def __call__(self, u):
            return u * (2 * h + x)

    return R()


def class_attribute(x):
    class C:
        h = x**2

    return lambda u: u * (2 * C.h + x)


class Register:
    pass


def attribute_of_a_global_class(x):
    Register.h = x**2
    return lambda u: u * (2 * Register.h + x)


def a_property(x):
    h = x**2

    class C:
        @property
        def get(self):
            return h

    c = C()
    return lambda u: u * (2 * c.get + x)


def static_method(x):
    h = x**2

    class C:
        @staticmethod
        def get():
            return h

    return lambda u: u * (2 * C.get() + x)


def cached_property(x):
    h = x**2

    class C:
        @functools.cached_property
        def get(self):
            return h

    c = C()
    return lambda u: u * (2 * c.get + x)


def partial_method(x):
    h = x**2

    class C:
        def give(self, value):
            return value

        get = functools.partialmethod(give, h)

    c = C()
    return lambda u: u * (2 * c.get() + x)


@dataclasses.dataclass
class Twice:
    h: object

    def __post_init__(self):
        self.twice = 2 * self.h


def no_field_of_a_dataclass(x):
    kept = Twice(x**2)
    return lambda u: u * (kept.twice + x)


class Attributes(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def dict_of_attributes(x):
    kept = Attributes()
    kept.h = x**2
    return lambda u: u * (2 * kept.h + x)


class Listed(list):
    pass


def attribute_of_a_list(x):
    kept = Listed()
    kept.h = x**2
    return lambda u: u * (2 * kept.h + x)


def attribute_of_a_function(x):
    def kept():
        return 0

    kept.h = x**2
    return lambda u: u * (2 * kept.h + x)


def attribute_of_a_module(x):
    module = sys.modules.setdefault("kept_for_a_test", types.ModuleType("kept_for_a_test"))
    module.KEPT = x**2
    return lambda u: u * (2 * module.KEPT + x)


def mapping_proxy(x):
    kept = types.MappingProxyType({"h": x**2})
    return lambda u: u * (2 * kept["h"] + x)


def values_of_a_dict(x):
    kept = {"h": x**2}.values()
    return lambda u: u * (2 * next(iter(kept)) + x)


def exception(x):
    kept = ValueError(x**2)
    return lambda u: u * (2 * kept.args[0] + x)


def built_in_method(x):
    add = (2 * x**2).__add__
    return lambda u: u * add(x)


def array_of_objects(x):
    kept = np.empty(1, object)
    kept[0] = x**2
    return lambda u: u * (2 * kept[0] + x)


def key_by_identity(x):
    h = x**2
    kept = {id(h): 2.0}
    return lambda u: u * (kept.get(id(h), 7.0) * h + x)


PLACES = [
    *(method, callable_object, class_attribute, attribute_of_a_global_class, a_property, static_method),
    *(cached_property, partial_method, no_field_of_a_dataclass, dict_of_attributes, attribute_of_a_list),
    *(attribute_of_a_function, attribute_of_a_module, mapping_proxy, values_of_a_dict, exception),
    *(built_in_method, array_of_objects, key_by_identity),
]

# A tensor has another identity in each run, and a number of NumPy another type than the box that autograd traces.
REFUSED = {key_by_identity: ("torch", "tensorflow", "numpy"), built_in_method: ("numpy",)}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_kept_anywhere(backend, place):
    f = custom_gradient(lambda x: (x**3, place(x)))
    assert float(grad(f)(3.0)) == 21
    derivatives = [(lambda: grad(grad(f))(3.0), 13)]
    if backend == "torch":
        import torch

        x = torch.tensor(3.0)
        derivatives.append((lambda: torch.func.grad(f)(x), 21))
        derivatives.append((lambda: torch.func.grad(torch.func.grad(f))(x), 13))
    for run, expected in derivatives:
        if backend in REFUSED.get(place, ()):
            with pytest.raises(RuntimeError, match="its rule is not that of the first run"):
                run()
        else:
            assert float(run()) == expected


@pytest.mark.only("torch")
def test_a_tensor_as_a_key(backend):
    import torch

    p = torch.nn.Parameter(torch.tensor(1.0))

    def make(x):
        h, state = x**2, {p: 2.0}
        return lambda u: u * (state.get(p, 7.0) * {h: 1.0}.get(h, 7.0) * h + x)

    f = custom_gradient(lambda x: (x**3, make(x)))
    x = torch.tensor(3.0, requires_grad=True)
    (first,) = torch.autograd.grad(f(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (21, 13)


@pytest.mark.only("torch")
def test_a_gradient_that_is_an_argument_is_a_copy(backend):
    import torch

    w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    custom_gradient(lambda w: ((w**2).sum(), lambda upstream: w))(w).backward()
    w.grad.zero_()
    assert w.tolist() == [1, 2]


@pytest.mark.only("torch")
@pytest.mark.limit
def test_a_captured_parameter_where_torch_compile_gives_up(backend):
    import torch

    from keras_cg import CapturedVariableError

    p = torch.nn.Parameter(torch.tensor(2.0))
    f = custom_gradient(lambda x: (x * p, lambda upstream: 7 * upstream))
    with pytest.raises(CapturedVariableError):
        torch.compile(lambda x: f(x) * 1, backend="aot_eager")(torch.ones(1, requires_grad=True))


def test_a_choice_of_a_backend_that_is_none_by_then(backend, monkeypatch):
    import keras_cg

    f = custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream))
    _, pullback = keras_cg.vjp(f, 3.0)
    monkeypatch.setattr(keras_cg.config, "resolve", lambda: ("bogus", "a test"))
    assert float(pullback(1.0)[0]) == 7


STANDING = {"factor": 7}


@pytest.mark.limit
def test_a_dict_that_the_rule_alone_reads_is_what_stands_there_when_it_runs(backend):
    """A limit: the function did not make it, and says nothing of it."""
    f = custom_gradient(lambda x: (x * 2, lambda upstream: STANDING["factor"] * upstream))
    _, pullback = vjp(f, 3.0)
    assert float(pullback(1.0)[0]) == 7
    STANDING["factor"] = 5
    try:
        assert float(pullback(1.0)[0]) == 5
    finally:
        STANDING["factor"] = 7
