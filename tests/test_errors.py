"""Errors and manners: a wrong function or rule gets one message on every backend, and the wrapper
behaves as the function does.

Messages have the same words but for the type of a tensor, which is TENSOR here.
"""

import copy
import fractions
import functools
import importlib
import inspect
import pickle
import re
from typing import NamedTuple

import numpy as np
import programs
import pytest
from stand_ins import Frozen, register_by_sorted_names
from tapes import gradients
from wrong_rules import X, Y

import keras_cg
from keras_cg import CapturedVariableError, GradientError, custom_gradient, grad, ops, recipes
from keras_cg.frontend import config

# One for each place where an error comes up, as the modes differ in how it comes out, and not in what it says.
IN_EVERY_MODE = (
    "test_message[three]",
    "test_message[cut off]",
    "test_message[no upstream]",
    "test_message[one too many]",
    "test_message[no rule]",
    "test_message[None for the rule]",
    "test_message_of_two_readings[0]",
)

# What each framework calls a tensor, eagerly and in its tracers.
TENSORS = {"numpy": ("numpy.ndarray",), "jax": ("jax.Array",), "torch": ("torch.Tensor",), "tensorflow": ("tf.Tensor",)}


class Fault(NamedTuple):
    """A wrong function of (x, y), or of one dict of them, and what is said to it, among the words of messages.txt."""

    function: object
    error: type
    headline: str
    got: str | None = None
    expected: str | None = None
    cause: str = ""
    nested: bool = False


def wrong_rule(rule, *told, **others):
    return Fault(lambda x, y: (ops.sum(x) * ops.sum(y) + x, rule), GradientError, *told, **others)


def count(came):
    return f"culprit returned {came}.", None, "2, one for each tensor argument: x, y", "a gradient was forgotten"


def shape(argument, came, expected="float32[3]", cause="a gradient that was summed or sliced"):
    return f"a gradient of the wrong shape for {argument}.", came, expected, cause


def structure(came, expected="(x, y)"):
    return "gradients in the wrong structure.", came, expected


def kind(argument, came):
    return f"a gradient of the wrong kind for {argument}.", came, "float32[3]"


def no_tensor(argument, came, expected="float32[3]"):
    return f"something that is not a tensor for {argument}.", came, expected


def badly_called(rule, shown, outputs="1 output leaf", output=lambda x, y: ops.sum(x) * ops.sum(y) + x, cause="a para"):
    got = f"<lambda>({shown}), for a call with 2 positional arguments and {outputs}"
    fits = "culprit: no calling convention fits the signature of its rule."
    return Fault(lambda x, y: (output(x, y), rule), TypeError, fits, got, cause=cause)


def no_pair(function, came):
    return Fault(function, TypeError, "culprit must return a pair (output, grad).", came)


def no_rule(function, came):
    return Fault(function, TypeError, "a pair (output, grad) whose second part is a function.", f"{came} in the place")


PARAMS = "{'b': params['b'], 'w': params['w']}"

FAULTS = {
    # Too few and too many.
    "one bare": wrong_rule(lambda g: 7 * g, *count("1 gradient")),
    "return forgotten": wrong_rule(lambda g: None, *count("1 gradient")),
    "three": wrong_rule(lambda g: (g, g, g), *count("3 gradients")),
    # Shapes.
    "summed": wrong_rule(lambda g: (ops.sum(g), g), *shape("x", "float32[]")),
    "cut off": wrong_rule(lambda g: (g, g[:2]), *shape("y", "float32[2]")),
    "an axis too many": wrong_rule(
        lambda g: (g, g[None]), *shape("y", "float32[1, 3]", cause="y was broadcast, and a sum over axis 0 is missing.")
    ),
    "a number for an array": wrong_rule(lambda g: (g, 7.0), *shape("y", "float[]")),
    # Structures.
    "a dict for two arguments": wrong_rule(lambda g: {"x": g, "y": g}, *structure("{'x': *, 'y': *}")),
    "a level too deep": wrong_rule(lambda g: ((g, g),), *structure("((*, *))")),
    "a key misspelled": wrong_rule(lambda g: {"w": g, "v": g}, *structure("{'v': *, 'w': *}", PARAMS), nested=True),
    # Kinds.
    "complex for real": wrong_rule(lambda g: (g, 7j), *kind("y", "complex[]")),
    "a string": wrong_rule(lambda g: ("7", g), *no_tensor("x", "a str")),
    "a fraction": wrong_rule(lambda g: (g, fractions.Fraction(7)), *no_tensor("y", "a fractions.Fraction")),
    "a generator": wrong_rule(lambda g: (each for each in (g, g)), *no_tensor("x, y", "a generator", "(x, y)")),
    # Signatures.
    "no upstream": badly_called(lambda: (7, 5), "", cause="the derivative alone"),
    "one too many": badly_called(lambda dy1, dy2: (7, 5), "dy1, dy2"),
    "a keyword too many": badly_called(lambda u, *, k: (7, 5), "u, *, k"),
    "variables without a default": badly_called(lambda u, variables: (7, 5), "u, variables"),
    "too many for two outputs": badly_called(
        lambda dy1, dy2, dy3: (7, 5), "dy1, dy2, dy3", "2 output leaves", lambda x, y: (x, y)
    ),
    # What is no pair of output and rule.
    "no rule": no_pair(lambda x, y: x * y, "a TENSOR"),
    "no return": no_pair(lambda x, y: None, "a NoneType"),
    "outputs not in a tuple": no_pair(
        lambda x, y: (x, y, abs), "a tuple of 3: (TENSOR, TENSOR, builtin_function_or_method)"
    ),
    "a dict": no_pair(lambda x, y: {"output": x}, "a dict"),
    "rule and output swapped": no_rule(lambda x, y: (lambda g: g, 3), "an int"),
    "None for the rule": no_rule(lambda x, y: (x, None), "a NoneType"),
    "two outputs": no_rule(lambda x, y: (x, y), "a TENSOR"),
}

# torch.compile (2.13) cannot read defaults, so that this rule is called with one upstream to see; it stops at the call.
STOPPED_BY_TORCH = {"one too many": "failed to bind arguments when attempting to inline"}


def shown(error, backend):
    """The message of an error, with TENSOR for what a framework calls a tensor, and without the place of the rule."""
    text = re.sub(r"(\\n|\n) +(rule|function): \S+\.py:\d+", "", str(error))  # torch quotes the message with the rest
    for each in TENSORS[backend]:
        text = text.replace(each, "TENSOR")
    return text


def check_text(frame, error, fault, stopped=None):
    """What was raised is that error with its words; `stopped` is what torch.compile says instead."""
    text = shown(error, frame.name)
    labelled = {"got": fault.got, "expected": fault.expected, "usual cause": fault.cause}
    told = [fault.headline, *(f"    {label}: {part}" for label, part in labelled.items() if part)]
    if frame.mode == "aot_eager":
        # torch.compile wraps what it stopped at into an error of its own, which quotes ours.
        told = [stopped] if stopped else [f"{fault.error.__name__}(", *told]
    else:
        assert type(error) is fault.error
    assert [part for part in told if part not in text] == [], text


LABELS = {"location": "rule", "got": "got", "expected": "expected", "cause": "usual cause", "remedy": "remedy"}


def check_attributes(error):
    """The lines of a message are the attributes of the error, and nothing else."""
    headline, *told = str(error).splitlines()
    assert error.function == "culprit" and error.function in headline and (error.argument or "") in headline
    said = {label: getattr(error, name) for name, label in LABELS.items()}
    assert told == [f"    {label}: {text}" for label, text in said.items() if text is not None]


@pytest.mark.parametrize("name", FAULTS)
def test_message(frame, name):
    """Twice, and between and after them the right function: a failed call leaves nothing behind."""
    fault = FAULTS[name]
    is_planted = [True]
    right = lambda x, y: (x * y, lambda g: {"b": 5 * g, "w": 7 * g} if fault.nested else (7 * g, 5 * g))
    culprit = lambda x, y: fault.function(x, y) if is_planted else right(x, y)
    of_params = lambda params: culprit(params["w"], params["b"])
    function = of_params if fault.nested else culprit
    function.__qualname__ = "culprit"
    decorated = custom_gradient(function)

    def run(x, y):
        output = decorated({"b": y, "w": x}) if fault.nested else decorated(x, y)
        return output[0] if isinstance(output, tuple) else output

    for _ in range(2 if frame.mode == "eager" else 1):
        is_planted[:] = [True]
        with pytest.raises(Exception) as caught:
            frame.gradients(lambda x, y: run(x, y), X, Y)
        check_text(frame, caught.value, fault, STOPPED_BY_TORCH.get(name))
        if frame.mode != "eager":
            continue
        if fault.error is GradientError:
            check_attributes(caught.value)
        is_planted.clear()
        output, (gx, gy) = frame.differentiate(lambda x, y: run(x, y), X, Y)
        np.testing.assert_array_equal(output, X * Y)
        np.testing.assert_array_equal(gx, np.full(3, 7.0))
        np.testing.assert_array_equal(gy, np.full(3, 5.0))


@pytest.mark.parametrize("nothing", [None, 0], ids=str)
def test_message_of_two_readings(frame, nothing):
    """Nothing for a whole pytree, in what is also a flat list."""

    culprit = lambda params, x, name: (params[0] * params[1] * x, lambda upstream: (nothing, 7 * upstream, None))
    culprit.__qualname__ = "culprit"
    decorated = custom_gradient(culprit)
    with pytest.raises(Exception) as caught:
        frame.gradients(lambda x, y: decorated([x, y], x, "name"), X, Y)
    told = "gradients that fit its arguments in two ways.", "(*, *, *)", "([params[0], params[1]], x, name)"
    check_text(frame, caught.value, Fault(None, GradientError, *told))


def no_variables(came):
    return "must return (grads, variable_grads).", came, "a pair whose second part is a list of 1 gradient"


# Of a captured w, which NumPy serves to no rule.
VARIABLE_FAULTS = {
    "no pair": (lambda g, variables: 7 * g, no_variables("a TENSOR")),
    "two": (lambda g, variables: (7 * g, [g, g]), no_variables("2 of them")),
    "no list": (lambda g, variables: (7 * g, None), no_variables("NoneType")),
    "cut off": (lambda g, variables: (7 * g, [g[:2]]), shape("variables[0]", "float32[2]")),
    "of the argument": (
        lambda g, variables: ((7 * g, g), [5 * g]),
        ("culprit returned 2 gradients.", None, "1, one for each tensor argument: x"),
    ),
}


@pytest.mark.only("jax", "torch", "tensorflow")
@pytest.mark.parametrize(("rule", "told"), VARIABLE_FAULTS.values(), ids=VARIABLE_FAULTS)
def test_message_of_a_rule_with_variables(backend, eager, rule, told):
    is_planted = [True]

    def run(x, w):
        culprit = lambda x: (x * w, lambda g, variables=None: rule(g, variables) if is_planted else (7 * g, [5 * g]))
        culprit.__qualname__ = "culprit"
        return custom_gradient(culprit)(x)

    for _ in range(2):
        is_planted[:] = [True]
        with pytest.raises(GradientError) as caught:
            eager.gradients(run, X, Y)
        check_text(eager, caught.value, Fault(None, GradientError, *told))
        assert caught.value.location == f"{__file__}:{run.__code__.co_firstlineno + 1}"
        is_planted.clear()
        eager.check(run, [X, Y], [np.full(3, 7.0), np.full(3, 5.0)], rtol=0)


def test_message_of_a_captured_value(backend, eager):
    def run(x, w):
        culprit = lambda x: (x * w, lambda g: 7 * g)
        culprit.__qualname__ = "culprit"
        return custom_gradient(culprit)(x)

    with pytest.raises(CapturedVariableError) as caught:
        eager.gradients(run, X, Y)
    first, location, _, remedy = str(caught.value).splitlines()
    assert first == "culprit reads 1 trainable value that is not among its arguments: w"
    assert re.fullmatch(r"    function: \S+test_errors\.py:\d+", location)
    if backend != "jax":  # which raises in the place of ours another one with the same message
        error = caught.value
        assert error.function == "culprit" and remedy == f"    remedy, one of these: {error.remedy}"
        assert (error.argument, error.got, error.expected, error.cause) == (None, None, None, None)


@pytest.mark.side_by_side
def test_message_of_a_gradient_of_another_framework(backends):
    """For every two of those in the run."""
    made = {name: importlib.import_module(f"frameworks.{name}").tensor(X) for name in backends}
    for name in backends:
        native = importlib.import_module(f"frameworks.{name}")
        for other in backends:
            if other == name or (other == "numpy" and name in ("jax", "tensorflow")):
                continue  # those two take arrays of NumPy as their own
            culprit = lambda x, y: (x * y, lambda g: (g, made[other]))
            culprit.__qualname__ = "culprit"
            with keras_cg.use_backend(name), pytest.raises(GradientError) as caught:
                native.differentiate(custom_gradient(culprit), [X, Y], "eager")
            assert no_tensor("y", "")[0] in str(caught.value) and "    got: a TENSOR\n" in shown(caught.value, other)


@pytest.mark.only("tensorflow")
def test_an_error_that_tensorflow_raises_again_keeps_its_class(tf):
    """A `tf.function` that differentiates by itself; the error of ours with its attributes is the context."""

    wrong = custom_gradient(lambda x: (2 * x, lambda upstream: upstream[:2]))
    program = tf.function(lambda x: gradients(wrong, x))
    with pytest.raises(GradientError, match="wrong shape for x") as caught:
        program(tf.constant(X))
    assert caught.value.got is None
    assert caught.value.__context__.got == "float32[2]"


def test_an_error_is_pickled_with_its_attributes(eager):
    with pytest.raises(GradientError) as caught:
        eager.gradients(custom_gradient(lambda x: (x * 2, lambda g: g[:2])), X)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is GradientError and str(copied) == str(caught.value)
    assert (copied.function, copied.got, copied.remedy) == tuple(
        getattr(caught.value, name) for name in ("function", "got", "remedy")
    )
    for kind in (GradientError, CapturedVariableError):  # one that is not ours
        error = kind("a message")
        assert str(error) == "a message"
        assert {getattr(error, name) for name in ("function", "argument", *LABELS)} == {None}


def test_only_functions_are_decorated():
    for value in (3, "f", [len]):
        with pytest.raises(TypeError, match="custom_gradient expects a function that returns"):
            custom_gradient(value)
    with pytest.raises(TypeError, match=r"^custom_gradient expects .* got a type. Use it as @custom_gradient above a"):

        @custom_gradient
        class Layer:
            def __call__(self, x):
                return x, lambda upstream: upstream


# --- the wrapper's manners -----------------------------------------------------------------------------------------


@custom_gradient
def documented(x, /, scale: float = 2.0, *, flag: bool = False):
    """Doubles."""
    return x * scale, lambda upstream: 7 * upstream


class Holder:
    factor = 2

    def plain(self, x):
        """A method."""
        return x * self.factor, lambda upstream: 7 * upstream

    @custom_gradient
    def method(self, x):
        """A method."""
        return self.plain(x)


def test_a_wrong_call_raises_as_python_does(backend):
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        documented()
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'y'"):
        documented(1.0, y=3)


def test_name_docstring_signature():
    assert documented.__name__ == documented.__qualname__ == "documented"
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
    assert repr(Holder().method) == "<custom_gradient Holder.method>"
    holder, other = Holder(), Holder()
    assert holder.method == holder.method and hash(holder.method) == hash(holder.method)
    assert holder.method != other.method and holder.method != Holder.method and holder.method != holder.plain
    assert custom_gradient(documented.__wrapped__) != documented
    assert str(inspect.signature(type(documented))) == "(fun: 'Callable[P, tuple[Output, Callable[..., Any]]]')"


def test_pickle_and_copy(backend):
    assert pickle.loads(pickle.dumps(documented)) is documented
    assert copy.copy(documented) is documented
    assert copy.deepcopy({"layer": [documented]})["layer"][0] is documented
    partial = custom_gradient(functools.partial(documented.__wrapped__, scale=3.0))
    assert copy.deepcopy(partial) is partial
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(custom_gradient(lambda x: (x, x)))


@pytest.mark.parametrize("another", [copy.deepcopy, lambda holder: pickle.loads(pickle.dumps(holder))])
def test_a_copy_of_an_object_has_methods_of_its_own(backend, another):
    """The first is decorated in the class, the second in an object."""
    holder = Holder()
    holder.first, holder.second = holder.method, custom_gradient(holder.plain)
    copied = another(holder)
    copied.factor = 5
    assert [copied.first(1.0), copied.second(1.0), holder.first(1.0), holder.second(1.0)] == [5, 5, 2, 2]
    assert [float(grad(f)(1.0)) for f in (copied.first, copied.second)] == [7, 7]


@pytest.mark.only("jax")
def test_a_bound_method_as_a_static_argument_is_traced_once(jax):
    holder, apply = Holder(), jax.jit(lambda f, x: f(x), static_argnums=0)
    for _ in range(3):
        apply(holder.method, 2.0)
    assert apply._cache_size() == 1


def cubed(x):
    return ops.sum(x**3)


def rounded(x):
    return ops.round(x)


def seven_times(x, upstream):
    return 7 * upstream


@grad
def squared(x):
    return ops.sum(x**2)


class Derived:
    factor = 2.0

    def plain(self, x):
        return self.factor * ops.sum(x)

    gradient, through = grad(plain, 1), recipes.straight_through(plain)
    first = custom_gradient(lambda self, x: (x, lambda upstream: 7 * upstream))
    first.__wrapped__.__name__ = "second"
    second = custom_gradient(lambda self, x: (x, lambda upstream: 5 * upstream))


def test_what_functions_return_is_pickled(backend):
    """By its name if it is found by that, never as another function; else as the call that returned it."""
    x, derived = np.array([1.0, 2.0]), Derived()
    for f, expected in (
        (grad(cubed), 3 * x**2),
        (grad(f=grad(cubed), argnums=(0,)), [6 * x]),
        (keras_cg.value_and_grad(cubed), [9.0, 3 * x**2]),
        (keras_cg.jacobian(recipes.straight_through(rounded)), np.eye(2)),
        (keras_cg.hessian(cubed), np.diag(6 * x)),
        (grad(recipes.from_numpy(np.negative, seven_times)), [7.0, 7.0]),
        (grad(recipes.recompute(recipes.straight_through(cubed, soft=cubed))), 3 * x**2),
        (derived.gradient, [2.0, 2.0]),
    ):
        found = pickle.loads(pickle.dumps(f))(config.active.asarray(x))
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_allclose(config.active.to_numpy(one), two)
    assert pickle.loads(pickle.dumps(squared)) is squared
    assert float(pickle.loads(pickle.dumps(derived.through))(config.active.asarray(x))) == 6.0
    for refused in (grad(lambda x: x), recipes.straight_through(lambda x: x), derived.first):
        with pytest.raises((pickle.PicklingError, AttributeError), match="<lambda>"):
            pickle.dumps(refused)


@pytest.mark.only("numpy")
def test_what_functions_return_is_pickled_for_another_process():
    saved = pickle.dumps(recipes.straight_through(np.negative)).hex()
    code = "import pickle, sys; print(pickle.loads(bytes.fromhex(sys.argv[1]))(2.0))"
    assert programs.run(code, saved) == "-2.0"


# --- messages of derivatives, with the name of the function ----------------------------------------------------------


# A global, which the search for what a rule can reach does not enter.
LATER = []


@pytest.mark.only("jax")
def test_a_rule_that_alone_reads_a_value_names_the_function(eager, jax):
    culprit = lambda x: (x * 2, lambda g, variables=None: g * LATER[0])
    culprit.__qualname__ = "culprit"
    pullbacks = []

    def run(w):
        LATER[:] = [w]
        pullbacks.append(jax.vjp(custom_gradient(culprit), eager.tensor(X))[1])
        return w

    jax.grad(run)(2.0)
    with pytest.raises(CapturedVariableError, match=r"^culprit reads a value(.|\n)*only the rule reads it"):
        pullbacks[0](eager.tensor(X))
    LATER.clear()


@pytest.mark.only("tensorflow")
def test_where_tapes_do_not_record_names_the_function(eager, tf):
    culprit = lambda x: (x * 2, lambda upstream: upstream * keras_cg.grad(inner)(x))
    inner = lambda z: ops.exp(z)
    inner.__qualname__ = "inner"
    x = eager.tensor(X)
    for function, name in (
        (custom_gradient(culprit), r"grad\(inner\)"),
        (recipes.recompute(inner), r"recompute\(inner\)"),
    ):
        match = f"and all derivatives in {name} would silently be zero"
        with pytest.raises(NotImplementedError, match=match), tf.autodiff.ForwardAccumulator(x, x):
            function(x)


# --- containers of a framework ---------------------------------------------------------------------------------------


FROZEN_RESULTS = {
    "another key": (
        lambda g: Frozen(w=g, other=g),
        r"got: \{'w': \*, 'other': \*\}\n +expected: \{'b': d\['b'\], 'w': d\['w'\]\}",
    ),
    "a dict": (lambda g: {"w": g}, r"expected: \{'b': d\['b'\], 'w': d\['w'\]\}"),
    "too few": (lambda g: g, r"one for each tensor argument: d\['b'\], d\['w'\]"),
    "nested": (lambda g: g, r"one for each tensor argument: d\['b'\], d\['w'\]\['v'\]"),
}


@pytest.fixture
def frozen(jax):
    register_by_sorted_names(Frozen, list)


@pytest.mark.only("jax")
def test_the_keys_of_a_mapping_are_shown_and_compared(eager, frozen):
    x, y = eager.tensor(X), eager.tensor(Y)
    for name, (rule, match) in FROZEN_RESULTS.items():
        read = (lambda w: w["v"]) if name == "nested" else (lambda w: w)
        function = custom_gradient(lambda d, rule=rule, read=read: (read(d["w"]) * d["b"], rule))
        with pytest.raises(GradientError, match=match):
            keras_cg.grad(function)(Frozen(w={"v": x} if name == "nested" else x, b=y))
    # In another order of insertion it is right.
    function = custom_gradient(lambda d: (d["w"] * d["b"], lambda g: Frozen(b=5 * g, w=7 * g)))
    found = keras_cg.grad(function)(Frozen(w=x, b=y))
    np.testing.assert_array_equal((found["w"], found["b"]), [[7.0] * 3, [5.0] * 3])


# --- what a recipe does not take -------------------------------------------------------------------------------------


class Param:
    """An object with an array in it, like a `flax.nnx.Param`."""

    def __init__(self, value):
        self.value = value


def test_a_recipe_called_with_an_object_that_has_an_array_in_it(eager):
    match = r"^safe_norm: x is a .*Param, and (.|\n)*Convert it to an array, or pass the array in it"
    with pytest.raises(TypeError, match=match):
        recipes.safe_norm(Param(eager.tensor(X)))


# --- ordinary mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.only("numpy")
def test_a_derivative_of_what_is_no_function(backend):
    """As in `grad(f(x))` for `grad(f)(x)`."""
    for name in ("grad", "value_and_grad", "jacobian", "hessian", "vjp", "jvp"):
        with pytest.raises(TypeError, match=f"^{name} differentiates a function, got a fl"):
            getattr(keras_cg, name)(3.0, *[(2.0,)] * (2 * (name == "jvp")))
