"""The programs: what is true of each, and what is declared of both decorators.

A program gets the `Kit` of harness.py, which has the decorator, and returns arrays. Its truth is a closed form in
NumPy, or MUST_RAISE. Except where the signature itself is in question its rule is as Keras's documentation has it for
all backends, `grad(*args, upstream=None)`, so that a program shows one defect at a time; and it is wrong on purpose
(gradient 7), so that plain differentiation cannot pass for it.

No framework is imported here: the tests read this table without one.
"""

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from parity import ERROR, NO_GRADIENT, OTHERWISE, REFUSED, RIGHT, WRONG

X, Y = np.array([1.0, 2.0, 3.0], np.float32), np.array([0.5, -1.0, 2.0], np.float32)
E = np.exp(X.astype(float))
SEVEN, FIVE = np.full(3, 7.0), np.full(3, 5.0)
SIGMOID = E / (1 + E)
SEVEN_E = 7 * E
MUST_RAISE = None


class Case(NamedTuple):
    section: str
    title: str
    run: Callable[[Any], Any]
    # What it returns if right, and a pattern of what a clear error says, ours or the framework's own.
    truth: list[Any] | None
    refusal: str | None
    # What is declared, for each backend that it runs on.
    keras: dict[str, str]
    ours: dict[str, str]
    # Whether nothing is differentiated in it.
    forward: bool

    @property
    def wrong(self):
        """The outcome of this program if it is not right: a question asks for behaviour, and not for a number."""
        return OTHERWISE if self.title.endswith("?") else WRONG

    def is_right(self, found):
        if self.truth is MUST_RAISE or len(found) != len(self.truth):
            return False
        return all(
            each is not None
            and np.shape(each) == np.shape(truth)
            and np.allclose(np.asarray(each).astype(complex), truth, rtol=1e-5, atol=1e-6)
            for each, truth in zip(found, self.truth, strict=True)
        )


CASES: list[Case] = []


def section(heading):
    def case(title, truth, *, refusal=None, ours=None, forward=False, **keras):
        """Declares a program: `jax=RIGHT` says what it comes to with Keras's decorator on JAX."""
        default = REFUSED if truth is MUST_RAISE else RIGHT

        def declare(run):
            expected = dict.fromkeys(keras, default) | (ours or {})
            CASES.append(Case(heading, title, run, truth, refusal, keras, expected, forward))
            return run

        return declare

    return case


def only(args, upstream):
    """The upstream of a rule that is written for every backend, as Keras's documentation does it."""
    if upstream is None:
        (upstream,) = args
    return upstream


def seven(*args, upstream=None):
    return 7 * only(args, upstream)


def seven_five(*args, upstream=None):
    upstream = only(args, upstream)
    return 7 * upstream, 5 * upstream


# --- how the rule is written ---------------------------------------------------------------------------------------

case = section("How the rule is written")


@case(
    "`grad(*args, upstream=None)`, documented for every backend",
    [np.log1p(E), SIGMOID],
    jax=RIGHT,
    torch=RIGHT,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    ops = kit.ops

    @kit.custom_gradient
    def log1pexp(x):
        e = ops.exp(x)

        def grad(*args, upstream=None):
            if upstream is None:
                (upstream,) = args
            return ops.multiply(upstream, 1.0 - 1.0 / ops.add(1, e))

        return ops.log(1 + e), grad

    return kit.differentiate(log1pexp, X)


@case(
    "`grad(upstream)`, documented for JAX and TensorFlow",
    [2 * X, SEVEN],
    jax=RIGHT,
    torch=ERROR,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    return kit.differentiate(kit.custom_gradient(lambda x: (x * 2, lambda upstream: 7 * upstream)), X)


@case(
    "`grad(*args, upstream)`, documented for torch",
    [2 * X, 7 * X],
    jax=ERROR,
    torch=RIGHT,
    tensorflow=ERROR,
    numpy=NO_GRADIENT,
)
def _(kit):
    return kit.differentiate(kit.custom_gradient(lambda x: (x * 2, lambda *args, upstream: 7 * upstream * args[0])), X)


@case(
    "two arguments, their gradients in a tuple",
    [X * Y, SEVEN, FIVE],
    jax=RIGHT,
    torch=RIGHT,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    return kit.differentiate(kit.custom_gradient(lambda x, y: (x * y, seven_five)), X, Y)


@case(
    "two arguments, their gradients in a list",
    [X * Y, SEVEN, FIVE],
    jax=RIGHT,
    torch=ERROR,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    def grad(*args, upstream=None):
        return list(seven_five(*args, upstream=upstream))

    return kit.differentiate(kit.custom_gradient(lambda x, y: (x * y, grad)), X, Y)


@case(
    "None for an argument without a gradient",
    [X * Y, SEVEN],
    jax=RIGHT,
    torch=RIGHT,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    def grad(*args, upstream=None):
        return 7 * only(args, upstream), None

    f, y = kit.custom_gradient(lambda x, y: (x * y, grad)), kit.tensor(Y)
    return kit.differentiate(lambda x: f(x, y), X)


# --- outputs -------------------------------------------------------------------------------------------------------

case = section("Outputs")


@case(
    "two outputs, `grad(dy1, dy2)` as TensorFlow has it",
    [8 * X, np.full(3, 17.0)],
    jax=ERROR,
    torch=ERROR,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    f = kit.custom_gradient(lambda x: ((x * 2, x * 3), lambda first, second: 7 * first + 5 * second))
    return kit.differentiate(lambda x: f(x)[0] + 2 * f(x)[1], X)


@case(
    "two outputs, `grad(upstream)` as JAX has it",
    [8 * X, np.full(3, 17.0)],
    jax=RIGHT,
    torch=ERROR,
    tensorflow=ERROR,
    numpy=NO_GRADIENT,
)
def _(kit):
    f = kit.custom_gradient(lambda x: ((x * 2, x * 3), lambda upstream: 7 * upstream[0] + 5 * upstream[1]))
    return kit.differentiate(lambda x: f(x)[0] + 2 * f(x)[1], X)


def nested(kit, first, second, pack):
    """The gradient of a function with a nest as output, beside that of x itself."""

    def grad(*args, upstream=None):
        upstream = only(args, upstream)
        return 7 * upstream[first] + 5 * upstream[second]

    f = kit.custom_gradient(lambda x: (pack(x * 2, x * 3), grad))

    def total(x):
        y = f(x)
        return y[first] + 2 * y[second] + x

    return kit.differentiate(total, X)


@case("two outputs in a list", [9 * X, np.full(3, 18.0)], jax=RIGHT, torch=WRONG, tensorflow=ERROR, numpy=NO_GRADIENT)
def _(kit):
    return nested(kit, 0, 1, lambda *values: list(values))


@case("two outputs in a dict", [9 * X, np.full(3, 18.0)], jax=RIGHT, torch=WRONG, tensorflow=ERROR, numpy=NO_GRADIENT)
def _(kit):
    return nested(kit, "a", "b", lambda a, b: {"a": a, "b": b})


@case(
    "the argument itself as output: gradient reversal",
    [X, -SEVEN],
    jax=RIGHT,
    torch=RIGHT,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    return kit.differentiate(
        kit.custom_gradient(lambda x: (x, lambda *args, upstream=None: -7 * only(args, upstream))), X
    )


@case("straight through", [3 * X, np.full(3, 3.0)], jax=RIGHT, torch=RIGHT, tensorflow=RIGHT, numpy=NO_GRADIENT)
def _(kit):
    through = kit.custom_gradient(lambda x: (kit.ops.floor(x + 0.5), lambda *args, upstream=None: only(args, upstream)))
    return kit.differentiate(lambda x: 3 * through(x), X + np.float32(0.3))


# --- arguments -----------------------------------------------------------------------------------------------------

case = section("Arguments")


@case(
    "a list as argument",
    [X * Y + X + Y, SEVEN + 1, FIVE + 1],
    jax=RIGHT,
    torch=WRONG,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    def grad(*args, upstream=None):
        return (list(seven_five(*args, upstream=upstream)),)

    f = kit.custom_gradient(lambda pair: (pair[0] * pair[1], grad))
    return kit.differentiate(lambda x, y: f([x, y]) + x + y, X, Y)


@case(
    "a dict as argument",
    [X * Y + X + Y, SEVEN + 1, FIVE + 1],
    jax=RIGHT,
    torch=WRONG,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    def grad(*args, upstream=None):
        first, second = seven_five(*args, upstream=upstream)
        return ({"b": first, "a": second},)

    f = kit.custom_gradient(lambda params: (params["b"] * params["a"], grad))
    return kit.differentiate(lambda x, y: f({"b": x, "a": y}) + x + y, X, Y)


@case("an argument by keyword", [2 * X, SEVEN], jax=ERROR, torch=ERROR, tensorflow=WRONG, numpy=NO_GRADIENT)
def _(kit):
    f = kit.custom_gradient(lambda x: (x * 2, seven))
    return kit.differentiate(lambda x: f(x=x), X)


@case("an argument by keyword, in a graph", [2 * X, SEVEN], refusal="only when eager execution", tensorflow=REFUSED)
def _(kit):
    f = kit.custom_gradient(lambda x: (x * 2, seven))
    return kit.differentiate(lambda x: f(x=x), X, mode="function")


@case("a static argument by keyword", [3 * X, SEVEN], jax=ERROR, torch=ERROR, tensorflow=RIGHT, numpy=NO_GRADIENT)
def _(kit):
    f = kit.custom_gradient(lambda x, *, n=2: (x * n, seven))
    return kit.differentiate(lambda x: f(x, n=3), X)


@case("a number as argument", [3 * X, SEVEN], jax=RIGHT, torch=ERROR, tensorflow=RIGHT, numpy=NO_GRADIENT)
def _(kit):
    def grad(*args, upstream=None):
        return 7 * only(args, upstream), None

    f = kit.custom_gradient(lambda x, n: (x * n, grad))
    return kit.differentiate(lambda x: f(x, 3.0), X)


@case("a string as argument", [3 * X, SEVEN], jax=ERROR, torch=ERROR, tensorflow=RIGHT, numpy=NO_GRADIENT)
def _(kit):
    def grad(*args, upstream=None):
        return 7 * only(args, upstream), None

    f = kit.custom_gradient(lambda x, how: (x * 3 if how == "triple" else x, grad))
    return kit.differentiate(lambda x: f(x, "triple"), X)


@case("a method", [2 * X, SEVEN], jax=ERROR, torch=ERROR, tensorflow=RIGHT, numpy=NO_GRADIENT)
def _(kit):
    class Layer:
        factor = 2

        @kit.custom_gradient
        def call(self, x):
            return x * self.factor, seven

    return kit.differentiate(Layer().call, X)


@case("a function made anew at every call", [2 * X, SEVEN], jax=RIGHT, torch=RIGHT, tensorflow=RIGHT, numpy=NO_GRADIENT)
def _(kit):
    return kit.differentiate(lambda x: kit.custom_gradient(lambda x: (x * 2, seven))(x), X)


# --- orders --------------------------------------------------------------------------------------------------------

case = section("Higher orders")


def log1pexp(kit):
    def f(x):
        e = kit.ops.exp(x)
        return kit.ops.log(1 + e), lambda *args, upstream=None: only(args, upstream) * (1 - 1 / (1 + e))

    return kit.custom_gradient(f)


def second_of_square(x):
    """The second derivative of log(1 + exp(x))^2, with s for the sigmoid: 2 s^2 + 2 log(1 + exp(x)) s (1 - s)."""
    s = 1 / (1 + np.exp(-x))
    return 2 * s * s + 2 * np.log1p(np.exp(x)) * s * (1 - s)


@case(
    "the second derivative of `log1pexp(x)**2` at 0.5",
    [second_of_square(0.5)],
    jax=RIGHT,
    torch=WRONG,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    f = log1pexp(kit)
    return [kit.derivative(lambda x: f(x) ** 2, 0.5, 2)]


@case(
    "the third derivative of `log1pexp(x)**2` at 0", [0.75], jax=RIGHT, torch=WRONG, tensorflow=RIGHT, numpy=NO_GRADIENT
)
def _(kit):
    # f' is the sigmoid s, at 0 one half, and s' = s (1 - s) one quarter, s'' zero: 6 s s' + 2 f s'' is 3/4.
    f = log1pexp(kit)
    return [kit.derivative(lambda x: f(x) ** 2, 0.0, 3)]


@case(
    "the second derivative of `f(x)**2` at 2, f being `x * x` with the gradient 7x",
    [448.0],
    jax=WRONG,
    torch=RIGHT,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    # (f^2)' is 14 x f and, as f' is 7x, (f^2)'' is 14 f + 14 x * 7x = 112 x^2.
    f = kit.custom_gradient(lambda x: (x * x, lambda *args, upstream=None: 7 * only(args, upstream) * x))
    return [kit.derivative(lambda x: f(x) ** 2, 2.0, 2)]


@case(
    "the second derivative of 3x, whose rule calls `inner(x)`, 2x with the gradient 5",
    [5.0],
    jax=RIGHT,
    torch=RIGHT,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    inner = kit.custom_gradient(lambda x: (x * 2, lambda *args, upstream=None: 5 * only(args, upstream)))
    f = kit.custom_gradient(lambda x: (x * 3, lambda *args, upstream=None: only(args, upstream) * inner(x)))
    return [kit.derivative(f, 2.0, 2)]


# --- what a function captures --------------------------------------------------------------------------------------

case = section("What a function captures")
CAPTURED = r"reads 1 trainable value|must accept keyword argument 'variables'"


def closing_over(kit, w, rule=seven):
    return kit.custom_gradient(lambda x: (x * w, rule))


def with_variables(*args, upstream=None, variables=None):
    upstream = only(args, upstream)
    return (7 * upstream, [5 * upstream]) if variables else 7 * upstream


@case("a constant", [2 * X * X, SEVEN], jax=RIGHT, torch=RIGHT, tensorflow=RIGHT, numpy=NO_GRADIENT)
def _(kit):
    return kit.differentiate(closing_over(kit, kit.tensor(2 * X)), X)


@case(
    "a value that is being differentiated, in eager mode",
    MUST_RAISE,
    refusal=CAPTURED,
    jax=ERROR,
    torch=WRONG,
    tensorflow=WRONG,
    numpy=NO_GRADIENT,
)
def _(kit):
    return kit.differentiate(lambda w: closing_over(kit, w)(w), X)


@case("a value that is being differentiated, under jit", MUST_RAISE, refusal=CAPTURED, jax=ERROR)
def _(kit):
    return kit.differentiate(lambda w: closing_over(kit, w)(w), X, mode="jit(grad)")


@case(
    "a value that is being differentiated, in eager mode; the rule takes `variables`",
    [2 * X * X, SEVEN, FIVE],
    jax=ERROR,
)
def _(kit):
    return kit.differentiate(lambda x, w: closing_over(kit, w, with_variables)(x), X, 2 * X)


@case(
    "a value that is being differentiated, under jit; the rule takes `variables`", [2 * X * X, SEVEN, FIVE], jax=ERROR
)
def _(kit):
    return kit.differentiate(lambda x, w: closing_over(kit, w, with_variables)(x), X, 2 * X, mode="grad(jit)")


def weight(kit, trainable=True):
    if kit.backend == "torch":
        import torch

        return torch.nn.Parameter(torch.tensor(2 * X), requires_grad=trainable)
    import tensorflow as tf

    return tf.Variable(2 * X, trainable=trainable)


def weight_gradients(kit, f, w):
    """The gradients of `f(X)` for x and for a weight."""
    if kit.backend == "torch":
        x = kit.tensor(X).requires_grad_()
        f(x).sum().backward()
        return [x.grad, w.grad]
    import tensorflow as tf

    x = kit.tensor(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, [x, w])


@case("a weight, of which the rule knows nothing", MUST_RAISE, refusal=CAPTURED, torch=WRONG, tensorflow=REFUSED)
def _(kit):
    w = weight(kit)
    return weight_gradients(kit, closing_over(kit, w), w)


@case("a weight; the rule takes `variables`", [SEVEN, FIVE], torch=WRONG, tensorflow=RIGHT)
def _(kit):
    w = weight(kit)
    return weight_gradients(kit, closing_over(kit, w, with_variables), w)


@case("a frozen weight", [SEVEN], torch=RIGHT, tensorflow=RIGHT)
def _(kit):
    w = weight(kit, trainable=False)
    return weight_gradients(kit, closing_over(kit, w), w)[:1]


@case(
    "do sixteen weights come as `variables` in the order in which they were made and used?",
    [1.0],
    torch=OTHERWISE,
    tensorflow=OTHERWISE,
)
def _(kit):
    weights = [weight(kit) for _ in range(16)]
    handed = []

    def f(x):
        def grad(*args, upstream=None, variables=()):
            handed.extend(variables)
            gradient = 7 * only(args, upstream)
            return (gradient, [gradient for _ in variables]) if variables else gradient

        for each in weights:
            x = x * each
        return x, grad

    weight_gradients(kit, kit.custom_gradient(f), weights[0])
    return [float(list(map(id, handed)) == list(map(id, weights)))]


# --- rules and functions that are wrong ----------------------------------------------------------------------------

case = section("Mistakes")


@case(
    "a gradient of the wrong shape",
    MUST_RAISE,
    refusal=r"a gradient of the wrong shape for x|shapes",
    jax=REFUSED,
    torch=WRONG,
    tensorflow=WRONG,
    numpy=NO_GRADIENT,
)
def _(kit):
    wrong = np.full((2, 3), 7, np.float32)
    return kit.gradients(kit.custom_gradient(lambda x: (x * 2, lambda *args, upstream=None: kit.tensor(wrong))), X)


@case(
    '`{"b": ..., "a": ...}` for the arguments of `f(b, a)`',
    MUST_RAISE,
    refusal=r"gradients in the wrong structure|returned an incorrect number of gradients|same container",
    jax=REFUSED,
    torch=REFUSED,
    tensorflow=WRONG,
    numpy=NO_GRADIENT,
)
def _(kit):
    def grad(*args, upstream=None):
        first, second = seven_five(*args, upstream=upstream)
        return {"b": first, "a": second}

    return kit.gradients(kit.custom_gradient(lambda b, a: (b * a, grad)), X, Y)


@case(
    "one gradient for two arguments",
    MUST_RAISE,
    refusal=r"returned 1 gradient|incorrect number of gradients|expected to return 2 gradients|same container",
    jax=REFUSED,
    torch=REFUSED,
    tensorflow=REFUSED,
    numpy=NO_GRADIENT,
)
def _(kit):
    return kit.gradients(kit.custom_gradient(lambda x, y: (x * y, seven)), X, Y)


@case(
    "a complex gradient for a real argument",
    MUST_RAISE,
    refusal=r"a gradient of the wrong kind for x",
    jax=WRONG,
    torch=ERROR,
    tensorflow=WRONG,
    numpy=NO_GRADIENT,
)
def _(kit):
    wrong = np.full(3, 7 + 1j, np.complex64)
    return kit.gradients(kit.custom_gradient(lambda x: (x * 2, lambda *args, upstream=None: kit.tensor(wrong))), X)


def typed(kit, dtype):
    """A gradient of another type than its argument's, and whether it comes as float32."""
    other = np.full(3, 7, dtype)
    f = kit.custom_gradient(lambda x: (x * 2, lambda *args, upstream=None: kit.tensor(other)))
    (gradient,) = kit.gradients(f, X)
    return [gradient, float(gradient.dtype == np.float32)]


@case(
    "does an int32 gradient come as float32, as its argument is?",
    [SEVEN, 1.0],
    jax=OTHERWISE,
    torch=RIGHT,
    tensorflow=OTHERWISE,
    numpy=NO_GRADIENT,
)
def _(kit):
    return typed(kit, np.int32)


@case(
    "does a float16 gradient come as float32, as its argument is?",
    [SEVEN, 1.0],
    jax=OTHERWISE,
    torch=RIGHT,
    tensorflow=OTHERWISE,
    numpy=NO_GRADIENT,
)
def _(kit):
    return typed(kit, np.float16)


@case(
    "a function that returns no pair, but two rows",
    MUST_RAISE,
    refusal=r"must return a pair",
    forward=True,
    jax=WRONG,
    torch=WRONG,
    tensorflow=ERROR,
    numpy=WRONG,
)
def _(kit):
    return [kit.array(kit.custom_gradient(lambda x: x * 2)(kit.tensor(X[:2])))]


@case(
    "a function that returns no pair, but one number",
    MUST_RAISE,
    refusal=r"must return a pair",
    jax=ERROR,
    torch=WRONG,
    tensorflow=ERROR,
    numpy=NO_GRADIENT,
)
def _(kit):
    return [kit.derivative(kit.custom_gradient(lambda x: x * 2), 1.0, 1)]


@case(
    "a function that raises when it is called first",
    MUST_RAISE,
    refusal=r"\Amine\Z",
    forward=True,
    jax=REFUSED,
    torch=WRONG,
    tensorflow=REFUSED,
    numpy=REFUSED,
)
def _(kit):
    calls = []

    def f(x):
        calls.append(x)
        if len(calls) == 1:
            raise ValueError("mine")
        return x * 2, seven

    kit.custom_gradient(f)(kit.tensor(X))
    return []


@case(
    "how often does a failing function run?",
    [1.0],
    forward=True,
    jax=RIGHT,
    torch=OTHERWISE,
    tensorflow=RIGHT,
    numpy=RIGHT,
)
def _(kit):
    calls = []

    def f(x):
        calls.append(x)
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError):
        kit.custom_gradient(f)(kit.tensor(X))
    return [float(len(calls))]


# --- complex numbers -----------------------------------------------------------------------------------------------

case = section("Complex numbers")
Z, W = np.array([1 + 2j, 3 - 1j], np.complex64), np.array([2 - 1j, 1 + 1j], np.complex64)


@case(
    "dL/dx + i dL/dy, for upstream and for gradients",
    [7 * np.conj(W) * np.conj(Z)],
    jax=WRONG,
    torch=RIGHT,
    tensorflow=RIGHT,
    numpy=NO_GRADIENT,
)
def _(kit):
    # L is the real part of the sum of w f(z), so upstream is conj(w).
    w = kit.tensor(W)

    def squared(conj):
        return kit.custom_gradient(lambda z: (z * z, lambda *args, upstream=None: 7 * only(args, upstream) * conj(z)))

    if kit.backend == "torch":
        z = kit.tensor(Z).requires_grad_()
        (w * squared(lambda z: z.conj())(z)).real.sum().backward()
        return [z.grad]
    if kit.backend == "tensorflow":
        import tensorflow as tf

        z = kit.tensor(Z)
        with tf.GradientTape() as tape:
            tape.watch(z)
            loss = tf.reduce_sum(tf.math.real(w * squared(tf.math.conj)(z)))
        return [tape.gradient(loss, z)]
    if kit.backend == "jax":
        from jax import grad
    else:
        from autograd import grad
    # These two give the conjugate themselves.
    real, conj = (kit.ops.real, kit.ops.conj)
    return [np.conj(grad(lambda z: kit.ops.sum(real(w * squared(conj)(z))))(kit.tensor(Z)))]


# --- transforms ----------------------------------------------------------------------------------------------------


def doubled(kit):
    """2x with the gradient 7 exp(x), exp(x) being captured: plain differentiation gives 2.

    All its derivatives are 7 exp(x).
    """
    exp = __import__("tensorflow").exp if kit.backend == "tensorflow" else kit.ops.exp

    def f(x):
        e = exp(x)
        return x * 2, lambda *args, upstream=None: 7 * only(args, upstream) * e

    return kit.custom_gradient(f)


case = section("Transforms of JAX")


def jax_transform(title, transform, **declared):
    @case(title, [SEVEN_E], **declared)
    def _(kit):
        import jax

        return [transform(jax, doubled(kit), kit.tensor(X))]


jax_transform("jit of grad", lambda jax, f, x: jax.jit(jax.grad(lambda x: f(x).sum()))(x), jax=RIGHT)
jax_transform("grad of jit", lambda jax, f, x: jax.grad(jax.jit(lambda x: f(x).sum()))(x), jax=RIGHT)
jax_transform("vmap of grad", lambda jax, f, x: jax.vmap(jax.grad(f))(x), jax=RIGHT)
jax_transform("grad of vmap", lambda jax, f, x: jax.grad(lambda x: jax.vmap(f)(x).sum())(x), jax=RIGHT)
jax_transform("vmap of grad of grad", lambda jax, f, x: jax.vmap(jax.grad(jax.grad(f)))(x), jax=RIGHT)
jax_transform("jacrev", lambda jax, f, x: jax.numpy.diag(jax.jacrev(f)(x)), jax=RIGHT)
jax_transform(
    "grad of scan",
    lambda jax, f, x: jax.grad(lambda x: jax.lax.scan(lambda total, each: (total + f(each), None), 0.0, x)[0])(x),
    jax=RIGHT,
)
jax_transform("checkpoint", lambda jax, f, x: jax.grad(jax.checkpoint(lambda x: f(x).sum()))(x), jax=RIGHT)
jax_transform(
    "jvp",
    lambda jax, f, x: jax.jvp(f, (x,), (jax.numpy.ones(3),))[1],
    refusal="can't apply forward-mode autodiff",
    jax=REFUSED,
)


case = section("Transforms of torch")
NO_TRANSFORM = "override the setup_context staticmethod"


def torch_transform(title, transform, **declared):
    @case(title, [SEVEN_E], **declared)
    def _(kit):
        import torch

        torch.compiler.reset()
        return [transform(torch, doubled(kit), kit.tensor(X))]


def backward(f, x):
    x = x.clone().requires_grad_()
    f(x).sum().backward()
    return x.grad


def dual(torch, f, x):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones(3)))).tangent


def checkpoint(f, reentrant):
    from torch.utils.checkpoint import checkpoint

    return lambda x: checkpoint(f, x, use_reentrant=reentrant)


def export(torch, f, x):
    class Module(torch.nn.Module):
        def forward(self, x):
            return f(x)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the exported program has no gradient")
        return torch.export.export(Module(), (x,)).module()


torch_transform(
    "grad", lambda torch, f, x: torch.func.grad(lambda x: f(x).sum())(x), refusal=NO_TRANSFORM, torch=REFUSED
)
torch_transform(
    "vjp", lambda torch, f, x: torch.func.vjp(f, x)[1](torch.ones(3))[0], refusal=NO_TRANSFORM, torch=REFUSED
)
torch_transform("jacrev", lambda torch, f, x: torch.func.jacrev(f)(x).diag(), refusal=NO_TRANSFORM, torch=REFUSED)
torch_transform(
    "vmap of grad", lambda torch, f, x: torch.func.vmap(torch.func.grad(f))(x), refusal=NO_TRANSFORM, torch=REFUSED
)
torch_transform(
    "grad of grad",
    lambda torch, f, x: torch.func.vmap(torch.func.grad(torch.func.grad(f)))(x),
    refusal=NO_TRANSFORM,
    torch=REFUSED,
)
torch_transform(
    "hessian",
    lambda torch, f, x: torch.func.hessian(lambda x: f(x).sum())(x).diag(),
    refusal=NO_TRANSFORM,
    torch=REFUSED,
)
torch_transform(
    "backward through vmap", lambda torch, f, x: backward(torch.func.vmap(f), x), refusal=NO_TRANSFORM, torch=REFUSED
)
torch_transform(
    "jvp", lambda torch, f, x: torch.func.jvp(f, (x,), (torch.ones(3),))[1], refusal=NO_TRANSFORM, torch=REFUSED
)
torch_transform("jacfwd", lambda torch, f, x: torch.func.jacfwd(f)(x).diag(), refusal=NO_TRANSFORM, torch=REFUSED)
torch_transform(
    "jacfwd of jacfwd",
    lambda torch, f, x: torch.func.jacfwd(torch.func.jacfwd(lambda x: f(x).sum()))(x).diag(),
    refusal=f"{NO_TRANSFORM}|forward mode inside forward mode",
    ours={"torch": REFUSED},
    torch=REFUSED,
)
torch_transform("forward_ad", dual, refusal="must implement the jvp function", torch=REFUSED)
torch_transform("checkpoint", lambda torch, f, x: backward(checkpoint(f, False), x), torch=RIGHT)
torch_transform("reentrant checkpoint", lambda torch, f, x: backward(checkpoint(f, True), x), torch=RIGHT)
torch_transform(
    "compile, in one graph",
    lambda torch, f, x: backward(torch.compile(f, backend="aot_eager", fullgraph=True), x),
    torch=RIGHT,
)
torch_transform(
    "compile of grad",
    lambda torch, f, x: torch.compile(torch.func.grad(lambda x: f(x).sum()), backend="aot_eager")(x),
    torch=WRONG,
)
torch_transform(
    "compile of grad, in one graph",
    lambda torch, f, x: torch.compile(torch.func.grad(lambda x: f(x).sum()), backend="aot_eager", fullgraph=True)(x),
    refusal=r"torch\.compile around a transform of torch\.func ignores custom gradients",
    ours={"torch": REFUSED},
    torch=WRONG,
)
torch_transform(
    "export",
    lambda torch, f, x: backward(export(torch, f, x), x),
    refusal="does not require grad",
    ours={"torch": REFUSED},
    torch=WRONG,
)


@case("compile of a function of three arguments, none differentiated", [X * Y * 3], forward=True, torch=ERROR)
def _(kit):
    import torch

    torch.compiler.reset()
    f = kit.custom_gradient(lambda x, y, z: (x * y * z, lambda *args, upstream=None: (upstream, upstream, upstream)))
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    return [compiled(kit.tensor(X), kit.tensor(Y), torch.full((3,), 3.0))]


case = section("Transforms of TensorFlow")


def tensorflow_transform(title, transform, **declared):
    @case(title, [SEVEN_E], **declared)
    def _(kit):
        import tensorflow as tf

        return [transform(tf, doubled(kit), kit.tensor(X))]


def taped(tf, f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)


def accumulated(tf, f, x):
    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        y = f(x)
    return accumulator.jvp(y)


def forward_over_reverse(tf, f, x):
    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        gradient = taped(tf, f, x)
    return accumulator.jvp(gradient)


def jacobian(tf, f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tf.linalg.diag_part(tape.jacobian(y, x))


tensorflow_transform("function", lambda tf, f, x: taped(tf, tf.function(f), x), tensorflow=RIGHT)
tensorflow_transform(
    "function, compiled by XLA", lambda tf, f, x: taped(tf, tf.function(f, jit_compile=True), x), tensorflow=RIGHT
)
tensorflow_transform("jacobian", jacobian, tensorflow=RIGHT)
tensorflow_transform("map_fn", lambda tf, f, x: taped(tf, lambda x: tf.map_fn(f, x), x), tensorflow=RIGHT)
tensorflow_transform("recompute_grad", lambda tf, f, x: taped(tf, tf.recompute_grad(f), x), tensorflow=RIGHT)
tensorflow_transform("ForwardAccumulator", accumulated, tensorflow=WRONG)
tensorflow_transform(
    "ForwardAccumulator of a function", lambda tf, f, x: accumulated(tf, tf.function(f), x), tensorflow=RIGHT
)
tensorflow_transform("ForwardAccumulator over a tape", forward_over_reverse, tensorflow=RIGHT)
tensorflow_transform(
    "vectorized_map",
    lambda tf, f, x: taped(tf, lambda x: tf.vectorized_map(f, x), x),
    refusal=r"tf\.vectorized_map .* ignores custom gradients",
    ours={"tensorflow": REFUSED},
    tensorflow=WRONG,
)


# --- memory --------------------------------------------------------------------------------------------------------

case = section("Memory and changes in place, on torch")


def exponential(kit):
    def f(x):
        e = x.exp()
        return e, lambda *args, upstream=None: upstream * e

    return kit.custom_gradient(f)


@case("does an output that the rule captured die without the garbage collector?", [1.0], torch=OTHERWISE)
def _(kit):
    import gc
    import weakref

    f, x = exponential(kit), kit.tensor(X).requires_grad_()
    gc.collect()
    gc.disable()
    try:
        output = f(x)
        dead = weakref.ref(output)
        del output
        return [float(dead() is None)]
    finally:
        gc.enable()


@case("does what the rule captured die after backward, while the output lives?", [1.0], torch=OTHERWISE)
def _(kit):
    import gc
    import weakref

    captured = []

    def f(x):
        e = x.exp()
        captured.append(weakref.ref(e))
        return x * 2, lambda *args, upstream=None: upstream * e

    output = kit.custom_gradient(f)(kit.tensor(X).requires_grad_())
    gc.collect()
    gc.disable()
    try:
        output.sum().backward()
        return [float(captured[0]() is None)]
    finally:
        gc.enable()


@case("do saved_tensors_hooks see what the rule captured?", [1.0], torch=OTHERWISE)
def _(kit):
    import torch

    seen = []

    def pack(tensor):
        seen.append(tensor.detach().clone())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        doubled(kit)(kit.tensor(X).requires_grad_())
    return [float(any(torch.allclose(each, torch.tensor(E, dtype=each.dtype)) for each in seen))]


@case("a captured tensor is changed in place before backward", MUST_RAISE, refusal=r"in ?place", torch=WRONG)
def _(kit):
    import torch

    x = torch.zeros(3, requires_grad=True)
    output = exponential(kit)(x)
    with torch.no_grad():
        output.add_(10)
    output.sum().backward()
    return [x.grad]


# --- Keras ---------------------------------------------------------------------------------------------------------

case = section("Keras's own objects")


def layer(kit):
    class Layer(kit.keras.layers.Layer):
        def call(self, x):
            return kit.custom_gradient(lambda x: (x * 2, seven))(x)

    return Layer()


@case("a custom gradient inside a layer", [2 * X, SEVEN], jax=RIGHT, torch=RIGHT, tensorflow=RIGHT)
def _(kit):
    return kit.differentiate(layer(kit), X)


@case("the output of that layer", [2 * X], forward=True, jax=RIGHT, torch=RIGHT, tensorflow=RIGHT, numpy=RIGHT)
def _(kit):
    return [kit.array(layer(kit)(kit.tensor(X)))]


def quantised(kit):
    """A quantised layer; what it has for its rule is what `keras.ops.custom_gradient` is when it is called."""
    kit.keras.utils.set_random_seed(0)
    layer = kit.keras.layers.Dense(4)
    layer.build((None, 3))
    layer.quantize("int8")
    return layer


def patched(kit):
    from unittest import mock

    return mock.patch.object(kit.keras.ops, "custom_gradient", kit.custom_gradient)


@case(
    "the gradient of a quantised Dense layer less that of its dequantised kernel",
    [np.zeros((2, 3))],
    jax=RIGHT,
    torch=RIGHT,
    tensorflow=RIGHT,
)
def _(kit):
    layer = quantised(kit)
    with patched(kit):
        (gradient,) = kit.gradients(lambda x: layer(x), np.stack([X, Y]))
    numpy = kit.keras.ops.convert_to_numpy
    kernel = numpy(layer.kernel).astype(float) / numpy(layer.kernel_scale)
    return [gradient - np.ones((2, 4)) @ kernel.T]


@case(
    "the output of a quantised Dense layer less that with Keras's decorator",
    [np.zeros((2, 4))],
    forward=True,
    jax=RIGHT,
    torch=RIGHT,
    tensorflow=RIGHT,
    numpy=RIGHT,
)
def _(kit):
    layer = quantised(kit)
    truth = kit.keras.ops.convert_to_numpy(layer(np.stack([X, Y])))
    with patched(kit):
        return [kit.keras.ops.convert_to_numpy(layer(np.stack([X, Y]))) - truth]


def variable_argument(kit, mode):
    variable = kit.keras.Variable(Y)
    f = kit.custom_gradient(lambda x, w: (x * w, seven_five))
    return kit.differentiate(lambda x: f(x, variable), X, mode=mode)


@case(
    "a keras.Variable as argument, in eager mode",
    [X * Y, SEVEN],
    jax=RIGHT,
    torch=ERROR,
    tensorflow=ERROR,
    numpy=NO_GRADIENT,
)
def _(kit):
    return variable_argument(kit, "eager")


@case("a keras.Variable as argument, in a graph", [X * Y, SEVEN], tensorflow=RIGHT)
def _(kit):
    return variable_argument(kit, "function")


@case(
    "a symbolic argument: a functional model",
    [2 * X[None], SEVEN[None]],
    refusal=r"A KerasTensor cannot be used",
    jax=ERROR,
    torch=WRONG,
    tensorflow=REFUSED,
)
def _(kit):
    keras = kit.keras
    inputs = keras.Input((3,))
    model = keras.Model(inputs, kit.custom_gradient(lambda x: (x * 2, seven))(inputs))
    return kit.differentiate(lambda x: model(x), X[None])


@case("the same in a Lambda layer", [2 * X[None], SEVEN[None]], jax=RIGHT, torch=RIGHT, tensorflow=RIGHT)
def _(kit):
    keras = kit.keras
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Lambda(kit.custom_gradient(lambda x: (x * 2, seven)))(inputs))
    return kit.differentiate(lambda x: model(x), X[None])
