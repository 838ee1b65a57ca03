"""Wrong rules: each gets the same error, word for word, on every backend and in every mode, and leaves nothing behind.

Word for word but for the type of a tensor, which is TENSOR here.
"""

import fractions
import importlib
import textwrap
from typing import NamedTuple

import faults
import numpy as np
import pytest

import keras_cg
from keras_cg import CapturedVariableError, GradientError, custom_gradient, ops

X = np.array([1.0, 2.0, 3.0], np.float32)
Y = np.array([0.5, -1.0, 2.0], np.float32)

# One fault for each message, as the modes differ in how an error comes out, and not in what it says.
IN_EVERY_MODE = (
    "test_planted_fault[return forgotten]",
    "test_planted_fault[three]",
    "test_planted_fault[cut off]",
    "test_planted_fault[a number for an array]",
    "test_planted_fault[swapped dict entries]",
    "test_planted_fault[one level too deep]",
    "test_planted_fault[a key misspelled]",
    "test_planted_fault[complex for real]",
    "test_planted_fault[a string]",
    "test_planted_fault[no upstream]",
    "test_planted_fault[one too many]",
    "test_planted_fault[too many for two outputs]",
    "test_planted_fault[no rule]",
    "test_planted_fault[outputs not in a tuple]",
    "test_planted_fault[None for the rule]",
)

# What each framework calls a tensor: eagerly, and in its tracers.
TENSORS = {
    "numpy": ("numpy.ndarray",),
    "jax": ("jaxlib._jax.ArrayImpl", "jax._src.interpreters.partial_eval.DynamicJaxprTracer"),
    "torch": ("torch.Tensor",),
    "tensorflow": (
        "tensorflow.python.framework.ops.EagerTensor",
        "tensorflow.python.framework.ops.SymbolicTensor",
    ),
}


class Fault(NamedTuple):
    """A wrong function of (x, y), or of one dict of them, and what is said to it."""

    function: object
    error: type
    text: str
    nested: bool = False


def wrong_rule(rule, text, nested=False):
    def function(x, y):
        return ops.sum(x) * ops.sum(y) + x, rule

    return Fault(function, GradientError, text, nested)


def count(came):
    return f"""\
the rule of culprit returned {came}.
    expected: 2, one for each tensor argument: x, y
    usual cause: a gradient was forgotten, or one was returned for something that is no argument.
    remedy: return one gradient per argument, in order; None where there is none."""


def shape(
    argument, came, expected="float32[3]", cause="a gradient that was summed or cut, or gradients in the wrong order."
):
    return f"""\
the rule of culprit returned a gradient of the wrong shape for {argument}.
    got: {came}
    expected: {expected}
    usual cause: {cause}
    remedy: sum over the broadcast axes or reshape; nothing is broadcast or summed for you."""


def structure(came, expected="(x, y)"):
    return f"""\
the rule of culprit returned gradients in the wrong structure.
    got: {came}
    expected: {expected}
    usual cause: keys or levels that differ from those of the arguments.
    remedy: return the same nest as the arguments, or a flat list with one gradient per leaf."""


def kind(argument, came):
    return f"""\
the rule of culprit returned a gradient of the wrong kind for {argument}.
    got: {came}
    expected: float32[3]
    usual cause: a complex intermediate, or an integer or boolean mask that was never multiplied with upstream.
    remedy: return the real part, or cast the gradient to the argument's dtype."""


def no_tensor(argument, came):
    return f"""\
the rule of culprit returned no tensor for {argument}.
    got: {came}
    expected: float32[3]
    usual cause: a value of another library, or a value that is no gradient at all.
    remedy: return a tensor of the active backend, or None for no gradient."""


def two_ways(came, expected):
    return f"""\
the rule of culprit returned gradients that fit its arguments in two ways.
    got: {came}
    expected: {expected}
    usual cause: None or 0 for a whole nest, in a result that is also a flat list with one part per leaf.
    remedy: return the same nest as the arguments, with None at each leaf that has no gradient."""


def convention(came, outputs="1 output leaf"):
    return f"""\
culprit: no calling convention fits the signature of its rule.
    got: <lambda>({came}), for a call with 2 positional arguments and {outputs}
    expected one of:
    grad(upstream)               one upstream, with the output's structure
    grad(dy1, dy2, ...)          one upstream per output leaf
    grad(*dys)                   one upstream per output leaf
    grad(*args, upstream)        the function's positional arguments, then upstream=
    grad(x, y, upstream=None)    the same, spelled out
    any of them with `variables` also variables=[...], when the function captured any"""


def no_pair(came):
    return f"""\
culprit must return a pair (output, grad).
    got: {came}
    usual cause: `return output` without the rule, or several outputs that are not in a tuple.
    remedy: return (output, grad), and ((output1, output2), grad) for several outputs."""


def no_rule(came):
    return f"""\
culprit must return a pair (output, grad) whose second part is a function.
    got: {came} in the place of grad
    usual cause: the rule was called (`grad(...)`) instead of returned, or the pair is two outputs.
    remedy: return (output, grad), and ((output1, output2), grad) for several outputs."""


PARAMS = "(params['b'], params['w'])"

FAULTS = {
    # Too few and too many.
    "one bare": wrong_rule(lambda g: 7 * g, count("1 gradient")),
    "one in a tuple": wrong_rule(lambda g: (7 * g,), count("1 gradient")),
    "return forgotten": wrong_rule(lambda g: None, count("1 gradient")),
    "an empty tuple": wrong_rule(lambda g: (), count("0 gradients")),
    "three": wrong_rule(lambda g: (g, g, g), count("3 gradients")),
    # Shapes.
    "summed": wrong_rule(lambda g: (ops.sum(g), g), shape("x", "float32[]")),
    "cut off": wrong_rule(lambda g: (g, g[:2]), shape("y", "float32[2]")),
    "an axis too many": wrong_rule(
        lambda g: (g, g[None]), shape("y", "float32[1, 3]", cause="y was broadcast, and a sum over axis 0 is missing.")
    ),
    "a number for an array": wrong_rule(lambda g: (g, 7.0), shape("y", "float[]")),
    "swapped dict entries": wrong_rule(lambda g: {"w": g[:2], "b": g}, shape("params['w']", "float32[2]"), nested=True),
    # Structures.
    "a dict for two arguments": wrong_rule(lambda g: {"x": g, "y": g}, structure("{'x': *, 'y': *}")),
    "a level too deep": wrong_rule(lambda g: ((g, g),), structure("((*, *))")),
    "one level too deep": wrong_rule(lambda g: (g, [g]), structure("(*, [*])")),
    "a key misspelled": wrong_rule(lambda g: {"w": g, "v": g}, structure("{'v': *, 'w': *}", PARAMS), nested=True),
    "a key missing": wrong_rule(lambda g: {"w": g}, structure("{'w': *}", PARAMS), nested=True),
    # Kinds.
    "complex for real": wrong_rule(lambda g: (g, 7j), kind("y", "complex[]")),
    "a string": wrong_rule(lambda g: ("7", g), no_tensor("x", "a str")),
    "a fraction": wrong_rule(lambda g: (g, fractions.Fraction(7)), no_tensor("y", "a fractions.Fraction")),
    "a function": wrong_rule(lambda g: (abs, g), no_tensor("x", "a builtin_function_or_method")),
    "a bare string": wrong_rule(lambda g: "7", no_tensor("x, y", "a str").replace("float32[3]", "(x, y)")),
    # Signatures.
    "no upstream": wrong_rule(lambda: (7, 5), convention(""))._replace(error=TypeError),
    "one too many": wrong_rule(lambda dy1, dy2: (7, 5), convention("dy1, dy2"))._replace(error=TypeError),
    "an argument too many": wrong_rule(lambda x, y, z, upstream: (7, 5), convention("x, y, z, upstream"))._replace(
        error=TypeError
    ),
    "too many for two outputs": Fault(
        lambda x, y: ((x, y), lambda dy1, dy2, dy3: (7, 5)), TypeError, convention("dy1, dy2, dy3", "2 output leaves")
    ),
    # What is no pair of output and rule.
    "no rule": Fault(lambda x, y: x * y, TypeError, no_pair("a TENSOR")),
    "no return": Fault(lambda x, y: None, TypeError, no_pair("a NoneType")),
    "outputs not in a tuple": Fault(
        lambda x, y: (x, y, abs), TypeError, no_pair("a tuple of 3: (TENSOR, TENSOR, builtin_function_or_method)")
    ),
    "None for the rule": Fault(lambda x, y: (x, None), TypeError, no_rule("a NoneType")),
    "two outputs": Fault(lambda x, y: (x, y), TypeError, no_rule("a TENSOR")),
}

# torch.compile (2.13) cannot read defaults, so that this rule is called with one upstream to see; it stops at the call.
STOPPED_BY_TORCH = {"one too many": "failed to bind arguments when attempting to inline"}


def test_there_are_as_many_as_were_asked_for():
    assert len(FAULTS) >= 25


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault(frame, name):
    fault = FAULTS[name]
    is_planted = [True]

    def right(x, y):
        return x * y, lambda g: {"b": 5 * g, "w": 7 * g} if fault.nested else (7 * g, 5 * g)

    def culprit(x, y):
        return fault.function(x, y) if is_planted else right(x, y)

    def of_params(params):
        return culprit(params["w"], params["b"])

    function = of_params if fault.nested else culprit
    function.__qualname__ = "culprit"
    decorated = custom_gradient(function)

    def run(x, y):
        output = decorated({"b": y, "w": x}) if fault.nested else decorated(x, y)
        return output[0] if isinstance(output, tuple) else output

    for _ in range(2):
        is_planted[:] = [True]
        with pytest.raises(Exception) as caught:
            frame.gradients(lambda x, y: run(x, y), X, Y)
        text = str(caught.value)
        for each in TENSORS[frame.name]:
            text = text.replace(each, "TENSOR")
        if frame.mode == "aot_eager":
            # torch.compile wraps what it stopped at into an error of its own, which shows ours.
            assert STOPPED_BY_TORCH.get(name, f"{fault.error.__name__}({fault.text!r})") in text
        else:
            assert type(caught.value) is fault.error
            # What stops a trace, TensorFlow (2.21) shows below the lines that led there.
            below = textwrap.indent(f"{fault.error.__name__}: {fault.text}\n", "    ")
            assert text == fault.text or (frame.mode in ("function", "jit_compile") and text.endswith(below))
        is_planted.clear()
        output, (gx, gy) = frame.differentiate(lambda x, y: run(x, y), X, Y)
        np.testing.assert_array_equal(output, X * Y)
        np.testing.assert_array_equal(gx, np.full(3, 7.0))
        np.testing.assert_array_equal(gy, np.full(3, 5.0))


def no_variables(came):
    return f"""\
the rule of culprit was called with variables=[...] and must return (grads, variable_grads).
    got: {came}
    expected: a pair whose second part is a list of 1 gradient
    usual cause: only the gradients of the arguments were returned.
    remedy: return (grads, [one gradient for each of `variables`])."""


# Of a captured w, which NumPy serves to no rule.
VARIABLE_FAULTS = {
    "no pair": (lambda g, variables: 7 * g, no_variables("a TENSOR")),
    "three": (lambda g, variables: (7 * g, g, g), no_variables("a tuple")),
    "none": (lambda g, variables: (7 * g, []), no_variables("0 of them")),
    "two": (lambda g, variables: (7 * g, [g, g]), no_variables("2 of them")),
    "no list": (lambda g, variables: (7 * g, None), no_variables("NoneType")),
    "cut off": (lambda g, variables: (7 * g, [g[:2]]), shape("variables[0]", "float32[2]")),
    "a string": (lambda g, variables: (7 * g, ["5"]), no_tensor("variables[0]", "a str")),
    "of the argument": (lambda g, variables: ((7 * g, g), [5 * g]), count("2 gradients").replace("2, one", "1, one")),
}


def differentiate_both(backend, f):
    """The gradients of `f(x, w)` for x and for w, which f is to close over."""
    if backend == "jax":
        jax = importlib.import_module("jax")
        return jax.grad(lambda x, w: f(x, w).sum(), (0, 1))(X, Y)
    if backend == "torch":
        torch = importlib.import_module("torch")
        x, w = torch.tensor(X, requires_grad=True), torch.nn.Parameter(torch.tensor(Y))
        return torch.autograd.grad(f(x, w).sum(), (x, w))
    tf = importlib.import_module("tensorflow")
    x, w = tf.constant(X), tf.Variable(Y)
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = f(x, w)
    return tape.gradient(output, (x, w))


@pytest.mark.only("jax", "torch", "tensorflow")
@pytest.mark.parametrize("name", VARIABLE_FAULTS)
def test_planted_fault_with_variables(backend, name):
    rule, expected = VARIABLE_FAULTS[name]
    is_planted = [True]

    def run(x, w):
        def culprit(x):
            return x * w, lambda g, variables=None: rule(g, variables) if is_planted else (7 * g, [5 * g])

        culprit.__qualname__ = "culprit"
        return custom_gradient(culprit)(x)

    for _ in range(2):
        is_planted[:] = [True]
        with pytest.raises(GradientError) as caught:
            differentiate_both(backend, run)
        text = str(caught.value)
        for each in TENSORS[backend]:
            text = text.replace(each, "TENSOR")
        assert text == expected.replace(": x, y", ": x")
        is_planted.clear()
        gx, gw = differentiate_both(backend, run)
        np.testing.assert_array_equal(np.asarray(gx), np.full(3, 7.0))
        np.testing.assert_array_equal(np.asarray(gw), np.full(3, 5.0))


@pytest.mark.only("jax", "torch", "tensorflow")
def test_planted_fault_of_a_rule_that_knows_no_variables(backend):
    def run(x, w):
        def culprit(x):
            return x * w, lambda g: 7 * g

        culprit.__qualname__ = "culprit"
        return custom_gradient(culprit)(x)

    with pytest.raises(CapturedVariableError) as caught:
        differentiate_both(backend, run)
    first, *rest = str(caught.value).splitlines()
    # Each framework has a name of its own for what was captured.
    assert first.startswith("culprit reads 1 trainable value that is not among its arguments: ")
    assert rest == [
        "    what would happen: the rule says nothing about them, so they would silently get no gradient.",
        "    remedy, one of three: pass them as arguments; give the rule a `variables` parameter and return"
        " (grads, variable_grads); or stop their gradient inside the function.",
    ]


@pytest.mark.side_by_side
def test_planted_foreign_gradients(backends):
    """A gradient that belongs to another framework, for every two of those in the run."""
    made = {name: importlib.import_module(f"frameworks.{name}").tensor(X) for name in backends}
    for name in backends:
        native = importlib.import_module(f"frameworks.{name}")
        for other in backends:
            if other == name or (other == "numpy" and name in ("jax", "tensorflow")):
                continue  # those two take arrays of NumPy as their own

            def culprit(x, y):
                return x * y, lambda g: (g, made[other])

            culprit.__qualname__ = "culprit"
            with keras_cg.use_backend(name), pytest.raises(GradientError) as caught:
                native.differentiate(custom_gradient(culprit), [X, Y], "eager")
            text = str(caught.value)
            for each in TENSORS[other]:
                text = text.replace(each, "TENSOR")
            assert text == no_tensor("y", "a TENSOR")


@pytest.mark.once
def test_what_the_tests_of_a_compiled_mode_are_tried_with_can_still_be_planted():
    for module, _, old, new in faults.FAULTS:
        faults.changed(module, old, new)
    assert len({what for _, what, _, _ in faults.FAULTS}) == len(faults.FAULTS)
