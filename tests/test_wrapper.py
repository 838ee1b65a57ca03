"""CONTRACT 9: the pair, exceptions, and the manners of the wrapper."""

import copy
import inspect
import pickle
import threading

import numpy as np
import pytest

import keras_cg
from keras_cg import custom_gradient

X = np.array([1.0, 2.0, 3.0], np.float32)


@custom_gradient
def documented(x, /, scale: float = 2.0, *, flag: bool = False):
    """Doubles."""
    return x * scale, lambda upstream: 7 * upstream


class Holder:
    @custom_gradient
    def method(self, x):
        """A method."""
        return x * 2, lambda upstream: 7 * upstream


# --- what the function must return ---------------------------------------------------------------------------------


def refuse(frame, pair, *parts):
    @custom_gradient
    def culprit(x):
        return pair(x)

    with pytest.raises(Exception) as caught:
        frame.gradients(lambda x: culprit(x), X)
    text = str(caught.value)
    if frame.mode != "aot_eager":
        assert type(caught.value) is TypeError
    for part in ("culprit must return a pair (output, grad)", "usual cause: ", "remedy: return (output, grad)", *parts):
        assert part in text


@pytest.mark.parametrize(
    ("pair", "got"),
    [
        (lambda x: None, "got: a NoneType"),
        (lambda x: (x,), "got: a tuple of 1: ("),
        (lambda x: (x, x, lambda g: g), "got: a tuple of 3: ("),
        (lambda x: lambda g: g, "got: a function"),
        (lambda x: {"output": x}, "got: a dict"),
        (lambda x: "ab", "got: a str"),
    ],
    ids=["None", "single", "triple", "function", "dict", "string"],
)
def test_no_pair(frame, pair, got):
    refuse(frame, pair, got)


def test_a_bare_tensor(frame):
    refuse(frame, lambda x: x * 2, "got: a")


@pytest.mark.parametrize(
    ("pair", "got"),
    [
        (lambda x: (x, None), "got: a NoneType in the place of grad"),
        (lambda x: (x, "text"), "got: a str in the place of grad"),
        (lambda x: (lambda g: g, 3), "got: an int in the place of grad"),
    ],
    ids=["None", "string", "swapped"],
)
def test_the_second_part_is_no_function(frame, pair, got):
    refuse(frame, pair, "whose second part is a function", got)


def test_outputs_in_the_place_of_the_rule(frame):
    refuse(frame, lambda x: (x, x * 2), "whose second part is a function", "((output1, output2), grad)")


def test_a_plain_call_refuses_as_well(backend):
    with pytest.raises(TypeError, match="must return a pair"):
        custom_gradient(lambda x: x)(3.0)


@pytest.mark.parametrize("value", [3, "f", [len]], ids=str)
def test_only_functions_are_decorated(value):
    with pytest.raises(TypeError, match="custom_gradient expects a function that returns"):
        custom_gradient(value)


# --- exceptions pass through, once ---------------------------------------------------------------------------------


class Custom(Exception):
    pass


def test_an_exception_of_the_function(eager):
    raised = []

    @custom_gradient
    def f(x):
        raised.append(Custom("mine"))
        raise raised[-1]

    with pytest.raises(Custom) as caught:
        eager.gradients(f, X)
    assert len(raised) == 1 and caught.value is raised[0]


@pytest.mark.parametrize("kind", [Custom, TypeError, ValueError, AttributeError, KeyError])
def test_an_exception_of_the_rule(eager, kind):
    raised = []

    @custom_gradient
    def f(x):
        def grad(upstream):
            raised.append(kind("mine"))
            raise raised[-1]

        return x * 2, grad

    with pytest.raises(kind, match="mine") as caught:
        eager.gradients(f, X)
    assert len(raised) == 1
    assert eager.name == "tensorflow" or caught.value is raised[0]


def test_a_wrong_call_raises_as_python_does(backend):
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        documented()
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'y'"):
        documented(1.0, y=3)


# --- manners -------------------------------------------------------------------------------------------------------


def test_name_docstring_signature():
    assert documented.__name__ == "documented"
    assert documented.__qualname__ == "documented"
    assert documented.__module__ == __name__
    assert documented.__doc__ == "Doubles."
    assert str(inspect.signature(documented)) == "(x, /, scale: float = 2.0, *, flag: bool = False)"
    # Keras's Lambda layer reads signatures in this way (3.15).
    assert inspect.getfullargspec(documented).args == ["x", "scale"]
    assert inspect.isfunction(documented.__wrapped__)
    assert repr(documented) == "<custom_gradient documented>"
    assert callable(documented)


def test_binding():
    assert Holder.method.__doc__ == Holder().method.__doc__ == "A method."
    assert str(inspect.signature(Holder().method)) == "(x)"
    assert str(inspect.signature(Holder.method)) == "(self, x)"
    assert inspect.getfullargspec(Holder().method).args == ["x"]
    assert str(inspect.signature(type(documented))) == "(fun: 'Callable[P, tuple[Output, Callable[..., Any]]]')"


def test_pickle_and_copy(backend):
    assert pickle.loads(pickle.dumps(documented)) is documented
    assert copy.copy(documented) is documented
    assert copy.deepcopy(documented) is documented
    assert copy.deepcopy({"layer": [documented]})["layer"][0] is documented
    assert pickle.loads(pickle.dumps(Holder().method))(2.0) == 4.0
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(custom_gradient(lambda x: (x, x)))


def test_threads(eager, backend):
    failures = []

    def work():
        try:
            with keras_cg.use_backend(backend):
                for _ in range(20):
                    (gx,) = eager.gradients(documented, X)
                    np.testing.assert_array_equal(gx, np.full(3, 7.0))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
