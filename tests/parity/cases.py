"""The programs: what is true of each, or what an error says.

A program gets the `Kit` of harness.py, which has the decorator, and returns arrays. Its truth is a closed form in
NumPy, or MUST_RAISE. Except where the signature itself is in question its rule is as Keras's documentation has it for
all backends, `grad(*args, upstream=None)`, so that a program shows one defect at a time; and it is wrong on purpose
(gradient 7), so that plain differentiation cannot pass for it.

No framework is imported here: the tests read this table without one.
"""

import contextlib
import gc
import importlib
import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from parity import OTHERWISE, REFUSED, RIGHT, WRONG

X, Y = np.array([1.0, 2.0, 3.0], np.float32), np.array([0.5, -1.0, 2.0], np.float32)
E = np.exp(X.astype(float))
SEVEN, FIVE = np.full(3, 7.0), np.full(3, 5.0)
MUST_RAISE = None
# The backends on which Keras trains, and those whose weights a function may capture.
TRAINED, WEIGHTS = "jax torch tensorflow", "torch tensorflow"


class Case(NamedTuple):
    section: str
    title: str
    run: Callable[[Any], Any]
    # What it returns if right, and a pattern of what a clear error says, ours or the framework's own.
    truth: list[Any] | None
    refusal: str | None
    backends: tuple[str, ...]
    # What must come of it with our decorator.
    due: str
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


def section(heading, *backends):
    def case(title, truth, run=None, *, on="jax torch tensorflow numpy", refusal=None, due=None, forward=False):
        """Declares a program of some backends, or decorates one; it is `due` to be right, or refused as a mistake."""
        if run is None:
            return lambda run: case(title, truth, run, on=on, refusal=refusal, due=due, forward=forward)
        due = due or (REFUSED if truth is MUST_RAISE else RIGHT)
        CASES.append(Case(heading, title, run, truth, refusal, backends or tuple(on.split()), due, forward))
        return run

    return case


def rule(gradients):
    """A rule that is written for every backend, as Keras's documentation does it: `gradients(upstream)`."""

    def grad(*args, upstream=None):
        if upstream is None:
            (upstream,) = args
        return gradients(upstream)

    return grad


seven, seven_five = rule(lambda upstream: 7 * upstream), rule(lambda upstream: (7 * upstream, 5 * upstream))
seven_none = rule(lambda upstream: (7 * upstream, None))


# --- how the rule is written ---------------------------------------------------------------------------------------

case = section("How the rule is written")


@case("`grad(*args, upstream=None)`, documented for every backend", [np.log1p(E), E / (1 + E)])
def _(kit):
    ops = kit.ops

    def log1pexp(x):
        e = ops.exp(x)

        def grad(*args, upstream=None):
            if upstream is None:
                (upstream,) = args
            return ops.multiply(upstream, 1.0 - 1.0 / ops.add(1, e))

        return ops.log(1 + e), grad

    return kit.decorated(log1pexp, X)


case("`grad(upstream)`, documented for JAX and TensorFlow", [2 * X, SEVEN])(
    lambda kit: kit.decorated(lambda x: (x * 2, lambda upstream: 7 * upstream), X)
)
case("`grad(*args, upstream)`, documented for torch", [2 * X, 7 * X])(
    lambda kit: kit.decorated(lambda x: (x * 2, lambda *args, upstream: 7 * upstream * args[0]), X)
)
case("two arguments, their gradients in a tuple", [X * Y, SEVEN, FIVE])(
    lambda kit: kit.decorated(lambda x, y: (x * y, seven_five), X, Y)
)
case("two arguments, their gradients in a list", [X * Y, SEVEN, FIVE])(
    lambda kit: kit.decorated(lambda x, y: (x * y, rule(lambda upstream: [7 * upstream, 5 * upstream])), X, Y)
)
case("None for an argument without a gradient", [X * Y, SEVEN])(
    lambda kit: kit.decorated(lambda x, y: (x * y, seven_none), X, call=lambda f, x: f(x, kit.tensor(Y)))
)


# --- outputs -------------------------------------------------------------------------------------------------------

case = section("Outputs")


def nested(kit, first, second, pack, grad, factor=0):
    """The gradient of a function with a nest as output, beside that of x itself."""

    def total(f, x):
        y = f(x)
        return y[first] + 2 * y[second] + factor * x

    return kit.decorated(lambda x: (pack(x * 2, x * 3), grad), X, call=total)


case("two outputs, `grad(dy1, dy2)` as TensorFlow has it", [8 * X, np.full(3, 17.0)])(
    lambda kit: nested(kit, 0, 1, lambda *values: values, lambda first, second: 7 * first + 5 * second)
)
case("two outputs, `grad(upstream)` as JAX has it", [8 * X, np.full(3, 17.0)])(
    lambda kit: nested(kit, 0, 1, lambda *values: values, lambda upstream: 7 * upstream[0] + 5 * upstream[1])
)
case("two outputs in a list", [9 * X, np.full(3, 18.0)])(
    lambda kit: nested(kit, 0, 1, lambda *values: [*values], rule(lambda dys: 7 * dys[0] + 5 * dys[1]), 1)
)
case("two outputs in a dict", [9 * X, np.full(3, 18.0)])(
    lambda kit: nested(kit, "a", "b", lambda a, b: {"a": a, "b": b}, rule(lambda dys: 7 * dys["a"] + 5 * dys["b"]), 1)
)
case("the argument itself as output: gradient reversal", [X, -SEVEN])(
    lambda kit: kit.decorated(lambda x: (x, rule(lambda upstream: -7 * upstream)), X)
)


@case("straight through", [3 * X, np.full(3, 3.0)])
def _(kit):
    rounded = lambda x: (kit.ops.floor(x + 0.5), rule(lambda upstream: upstream))
    return kit.decorated(rounded, X + np.float32(0.3), call=lambda f, x: 3 * f(x))


# --- arguments -----------------------------------------------------------------------------------------------------

case = section("Arguments")


@case("a list as argument", [X * Y + X + Y, SEVEN + 1, FIVE + 1])
def _(kit):
    f = kit.custom_gradient(lambda pair: (pair[0] * pair[1], rule(lambda upstream: ([7 * upstream, 5 * upstream],))))
    return kit.differentiate(lambda x, y: f([x, y]) + x + y, X, Y)


@case("a dict as argument", [X * Y + X + Y, SEVEN + 1, FIVE + 1])
def _(kit):
    grad = rule(lambda upstream: ({"b": 7 * upstream, "a": 5 * upstream},))
    f = kit.custom_gradient(lambda params: (params["b"] * params["a"], grad))
    return kit.differentiate(lambda x, y: f({"b": x, "a": y}) + x + y, X, Y)


case("an argument by keyword", [2 * X, SEVEN])(
    lambda kit: kit.decorated(lambda x: (x * 2, seven), X, call=lambda f, x: f(x=x))
)
case("an argument by keyword, in a graph", [2 * X, SEVEN], on="tensorflow", refusal="only when eager execution")(
    lambda kit: kit.decorated(lambda x: (x * 2, seven), X, mode="function", call=lambda f, x: f(x=x))
)
case("a static argument by keyword", [3 * X, SEVEN])(
    lambda kit: kit.decorated(lambda x, *, n=2: (x * n, seven), X, call=lambda f, x: f(x, n=3))
)
case("a number as argument", [3 * X, SEVEN])(
    lambda kit: kit.decorated(lambda x, n: (x * n, seven_none), X, call=lambda f, x: f(x, 3.0))
)


@case("a string as argument", [3 * X, SEVEN])
def _(kit):
    f = kit.custom_gradient(lambda x, how: (x * 3 if how == "triple" else x, seven_none))
    return kit.differentiate(lambda x: f(x, "triple"), X)


@case("a method", [2 * X, SEVEN])
def _(kit):
    class Layer:
        factor = 2

        @kit.custom_gradient
        def call(self, x):
            return x * self.factor, seven

    return kit.differentiate(Layer().call, X)


case("a function decorated at every call", [2 * X, SEVEN])(
    lambda kit: kit.differentiate(lambda x: kit.custom_gradient(lambda x: (x * 2, seven))(x), X)
)


# --- orders --------------------------------------------------------------------------------------------------------

case = section("Higher orders")


def second_of_square(x):
    """The second derivative of log(1 + exp(x))^2, with s for the sigmoid: 2 s^2 + 2 log(1 + exp(x)) s (1 - s)."""
    s = 1 / (1 + np.exp(-x))
    return 2 * s * s + 2 * np.log1p(np.exp(x)) * s * (1 - s)


def of_square(kit, x, order):
    def log1pexp(x):
        e = kit.ops.exp(x)
        return kit.ops.log(1 + e), rule(lambda upstream: upstream * (1 - 1 / (1 + e)))

    f = kit.custom_gradient(log1pexp)
    return [kit.derivative(lambda x: f(x) ** 2, x, order)]


case("the second derivative of `log1pexp(x)**2` at 0.5", [second_of_square(0.5)])(lambda kit: of_square(kit, 0.5, 2))


@case("the third derivative of `log1pexp(x)**2` at 0", [0.75])
def _(kit):
    # f' is the sigmoid s, at 0 one half, and s' = s (1 - s) one quarter, s'' zero: 6 s s' + 2 f s'' is 3/4.
    return of_square(kit, 0.0, 3)


@case("the second derivative of `f(x)**2` at 2, f being `x * x` with the gradient 7x", [448.0])
def _(kit):
    # (f^2)' is 14 x f and, as f' is 7x, (f^2)'' is 14 f + 14 x * 7x = 112 x^2.
    f = kit.custom_gradient(lambda x: (x * x, rule(lambda upstream: 7 * upstream * x)))
    return [kit.derivative(lambda x: f(x) ** 2, 2.0, 2)]


@case("the second derivative of 3x, whose rule calls `inner(x)`, 2x with the gradient 5", [5.0])
def _(kit):
    inner = kit.custom_gradient(lambda x: (x * 2, rule(lambda upstream: 5 * upstream)))
    f = kit.custom_gradient(lambda x: (x * 3, rule(lambda upstream: upstream * inner(x))))
    return [kit.derivative(f, 2.0, 2)]


# --- what a function captures --------------------------------------------------------------------------------------

case = section("What a function captures")
CAPTURED = r"reads 1 trainable value|in another way, too, which|must accept keyword argument 'variables'"


def closing_over(kit, w, grad=seven):
    return kit.custom_gradient(lambda x: (x * w, grad))


def with_variables(*args, upstream=None, variables=None):
    if upstream is None:
        (upstream,) = args
    return (7 * upstream, [5 * upstream]) if variables else 7 * upstream


def captured_value(kit, mode):
    return kit.differentiate(lambda w: closing_over(kit, w)(w), X, mode=mode)


def handed_value(kit, mode):
    return kit.differentiate(lambda x, w: closing_over(kit, w, with_variables)(x), X, 2 * X, mode=mode)


case("a constant", [2 * X * X, SEVEN])(lambda kit: kit.differentiate(closing_over(kit, kit.tensor(2 * X)), X))


BEING = "a value that is being differentiated"
case(f"{BEING}, in eager mode", MUST_RAISE, lambda kit: captured_value(kit, "eager"), refusal=CAPTURED)
case(f"{BEING}, under jit", MUST_RAISE, lambda kit: captured_value(kit, "jit(grad)"), on="jax", refusal=CAPTURED)
for how, mode in {"in eager mode": "eager", "under jit": "grad(jit)"}.items():
    handed = [2 * X * X, SEVEN, FIVE]
    case(
        f"{BEING}, {how}; the rule takes `variables`", handed, lambda kit, mode=mode: handed_value(kit, mode), on="jax"
    )


def weight(kit, trainable=True):
    if kit.backend == "torch":
        import torch

        return torch.nn.Parameter(torch.tensor(2 * X), requires_grad=trainable)
    import tensorflow as tf

    return tf.Variable(2 * X, trainable=trainable)


def weight_gradients(kit, f, w):
    """The gradients of `f(X)` for x and for a weight."""
    x = kit.tensor(X)
    if kit.backend == "torch":
        x.requires_grad_()
        f(x).sum().backward()
        return [x.grad, w.grad]
    import tensorflow as tf

    return taped(tf, f, x, [x, w])


def taped(tf, f, x, sources=None):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x if sources is None else sources)


@case("a weight, of which the rule knows nothing", MUST_RAISE, on=WEIGHTS, refusal=CAPTURED)
def _(kit):
    w = weight(kit)
    return weight_gradients(kit, closing_over(kit, w), w)


@case("a weight; the rule takes `variables`", [SEVEN, FIVE], on=WEIGHTS)
def _(kit):
    w = weight(kit)
    return weight_gradients(kit, closing_over(kit, w, with_variables), w)


@case("a frozen weight", [SEVEN], on=WEIGHTS)
def _(kit):
    w = weight(kit, trainable=False)
    return weight_gradients(kit, closing_over(kit, w), w)[:1]


@case("do sixteen weights come as `variables` in the order in which they were made and used?", [1.0], on=WEIGHTS)
def _(kit):
    weights = [weight(kit) for _ in range(16)]
    handed = []

    def f(x):
        def grad(*args, upstream=None, variables=()):
            handed.extend(variables)
            gradient = seven(*args, upstream=upstream)
            return (gradient, [gradient for _ in variables]) if variables else gradient

        for each in weights:
            x = x * each
        return x, grad

    weight_gradients(kit, kit.custom_gradient(f), weights[0])
    return [float(list(map(id, handed)) == list(map(id, weights)))]


# --- rules and functions that are wrong ----------------------------------------------------------------------------

case = section("Mistakes")


def returning(kit, gradient):
    """What comes of a gradient, whatever arrives."""
    return kit.decorated(lambda x: (x * 2, rule(lambda upstream: kit.tensor(gradient))), X)[1:]


case("a gradient of the wrong shape", MUST_RAISE, refusal=r"a gradient of the wrong shape for x|shapes")(
    lambda kit: returning(kit, np.full((2, 3), 7, np.float32))
)


SEVERAL = "incorrect number of gradients|same container"


@case(
    *('`{"b": ..., "a": ...}` for the arguments of `f(b, a)`', MUST_RAISE),
    refusal=f"gradients in the wrong structure|{SEVERAL}",
)
def _(kit):
    return kit.decorated(lambda b, a: (b * a, rule(lambda upstream: {"b": 7 * upstream, "a": 5 * upstream})), X, Y)[1:]


@case(
    *("one gradient for two arguments", MUST_RAISE),
    refusal=f"returned 1 gradient|expected to return 2 gradients|{SEVERAL}",
)
def _(kit):
    return kit.decorated(lambda x, y: (x * y, seven), X, Y)[1:]


case("a complex gradient for a real argument", MUST_RAISE, refusal=r"a gradient of the wrong kind for x")(
    lambda kit: returning(kit, np.full(3, 7 + 1j, np.complex64))
)


def typed(kit, dtype):
    """A gradient of another type than its argument's, and whether it comes as float32."""
    (gradient,) = returning(kit, np.full(3, 7, dtype))
    return [gradient, float(gradient.dtype == np.float32)]


TYPED = "does {} gradient come as float32, as its argument is?"
case(TYPED.format("an int32"), [SEVEN, 1.0], lambda kit: typed(kit, np.int32))
case(TYPED.format("a float16"), [SEVEN, 1.0], lambda kit: typed(kit, np.float16))


case("a function that returns no pair, but two rows", MUST_RAISE, refusal="must return a pair", forward=True)(
    lambda kit: [kit.array(kit.custom_gradient(lambda x: x * 2)(kit.tensor(X[:2])))]
)
case("a function that returns no pair, but one number", MUST_RAISE, refusal=r"must return a pair")(
    lambda kit: [kit.derivative(kit.custom_gradient(lambda x: x * 2), 1.0, 1)]
)


@case("a function that raises when it is called first", MUST_RAISE, refusal=r"\Amine\Z", forward=True)
def _(kit):
    calls = []

    def f(x):
        calls.append(x)
        if len(calls) == 1:
            raise ValueError("mine")
        return x * 2, seven

    kit.custom_gradient(f)(kit.tensor(X))
    return []


@case("how often does a failing function run?", [1.0], forward=True)
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


@case("dL/dx + i dL/dy, for upstream and for gradients", [7 * np.conj(W) * np.conj(Z)])
def _(kit):
    # L is the real part of the sum of w f(z), so upstream is conj(w).
    z, w = kit.tensor(Z), kit.tensor(W)

    def squared(conj):
        return kit.custom_gradient(lambda z: (z * z, rule(lambda upstream: 7 * upstream * conj(z))))

    if kit.backend == "torch":
        z.requires_grad_()
        (w * squared(lambda z: z.conj())(z)).real.sum().backward()
        return [z.grad]
    if kit.backend == "tensorflow":
        import tensorflow as tf

        return [taped(tf, lambda z: tf.reduce_sum(tf.math.real(w * squared(tf.math.conj)(z))), z)]
    if kit.backend == "jax":
        from jax import grad
    else:
        from autograd import grad
    # These two give the conjugate themselves.
    return [np.conj(grad(lambda z: kit.ops.sum(kit.ops.real(w * squared(kit.ops.conj)(z))))(z))]


# --- transforms ----------------------------------------------------------------------------------------------------


def doubled(kit):
    """2x with the gradient 7 exp(x), exp(x) being captured; all its derivatives are 7 exp(x)."""
    exp = __import__("tensorflow").exp if kit.backend == "tensorflow" else kit.ops.exp

    def f(x):
        e = exp(x)
        return x * 2, rule(lambda upstream: 7 * upstream * e)

    return kit.custom_gradient(f)


def transforms(framework, heading, backend):
    """The section of a framework, which declares `run(framework, f, x)` by a title."""
    case = section(heading, backend)

    def transform(title, run, **options):
        def program(kit):
            native = importlib.import_module(framework)
            if framework == "torch":
                native.compiler.reset()
            return [run(native, doubled(kit), kit.tensor(X))]

        case(title, [7 * E], program, **options)

    return case, transform


_, transform = transforms("jax", "Transforms of JAX", "jax")
transform("jit of grad", lambda jax, f, x: jax.jit(jax.grad(lambda x: f(x).sum()))(x))
transform("grad of jit", lambda jax, f, x: jax.grad(jax.jit(lambda x: f(x).sum()))(x))
transform("vmap of grad", lambda jax, f, x: jax.vmap(jax.grad(f))(x))
transform("grad of vmap", lambda jax, f, x: jax.grad(lambda x: jax.vmap(f)(x).sum())(x))
transform("vmap of grad of grad", lambda jax, f, x: jax.vmap(jax.grad(jax.grad(f)))(x))
transform("jacrev", lambda jax, f, x: jax.numpy.diag(jax.jacrev(f)(x)))
SCANNED = lambda jax, f, x: jax.lax.scan(lambda total, each: (total + f(each), None), 0.0, x)[0]
transform("grad of scan", lambda jax, f, x: jax.grad(lambda x: SCANNED(jax, f, x))(x))
transform("checkpoint", lambda jax, f, x: jax.grad(jax.checkpoint(lambda x: f(x).sum()))(x))
PUSHED = lambda jax, f, x: jax.jvp(f, (x,), (jax.numpy.ones(3),))[1]
transform("jvp", PUSHED, refusal="can't apply forward-mode autodiff")


case, transform = transforms("torch", "Transforms of torch", "torch")
NO_TRANSFORM = "override the setup_context staticmethod"


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


def compiled_gradient(torch, f, x, **options):
    return torch.compile(torch.func.grad(lambda x: f(x).sum()), backend="aot_eager", **options)(x)


def exported(torch, f, x):
    class Module(torch.nn.Module):
        def forward(self, x):
            return f(x)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the exported program has no gradient")
        return backward(torch.export.export(Module(), (x,)).module(), x)


for title, run in {
    "grad": lambda func, f, x, ones: func.grad(lambda x: f(x).sum())(x),
    "vjp": lambda func, f, x, ones: func.vjp(f, x)[1](ones)[0],
    "jacrev": lambda func, f, x, ones: func.jacrev(f)(x).diag(),
    "vmap of grad": lambda func, f, x, ones: func.vmap(func.grad(f))(x),
    "grad of grad": lambda func, f, x, ones: func.vmap(func.grad(func.grad(f)))(x),
    "hessian": lambda func, f, x, ones: func.hessian(lambda x: f(x).sum())(x).diag(),
    "backward through vmap": lambda func, f, x, ones: backward(func.vmap(f), x),
    "jvp": lambda func, f, x, ones: func.jvp(f, (x,), (ones,))[1],
    "jacfwd": lambda func, f, x, ones: func.jacfwd(f)(x).diag(),
}.items():
    functional = lambda torch, f, x, run=run: run(torch.func, f, x, torch.ones(3))
    transform(title, functional, refusal=NO_TRANSFORM)
transform(
    "jacfwd of jacfwd",
    lambda torch, f, x: torch.func.jacfwd(torch.func.jacfwd(lambda x: f(x).sum()))(x).diag(),
    refusal=f"{NO_TRANSFORM}|forward mode inside forward mode",
    due=REFUSED,
)
transform("forward_ad", dual, refusal="must implement the jvp function")
transform("checkpoint", lambda torch, f, x: backward(checkpoint(f, False), x))
transform("reentrant checkpoint", lambda torch, f, x: backward(checkpoint(f, True), x))
IN_ONE = lambda torch, f, x: backward(torch.compile(f, backend="aot_eager", fullgraph=True), x)
transform("compile, in one graph", IN_ONE)
transform("compile of grad", compiled_gradient)
transform(
    "compile of grad, in one graph",
    lambda torch, f, x: compiled_gradient(torch, f, x, fullgraph=True),
    refusal=r"torch\.compile around a transform of torch\.func ignores custom gradients",
    due=REFUSED,
)
transform("export", exported, refusal="does not require grad", due=REFUSED)


@case("compile of a function of three arguments, none differentiated", [X * Y * 3], forward=True)
def _(kit):
    import torch

    torch.compiler.reset()
    f = kit.custom_gradient(lambda x, y, z: (x * y * z, lambda *args, upstream=None: (upstream, upstream, upstream)))
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    return [compiled(kit.tensor(X), kit.tensor(Y), torch.full((3,), 3.0))]


_, transform = transforms("tensorflow", "Transforms of TensorFlow", "tensorflow")


def accumulated(tf, f, x):
    with tf.autodiff.ForwardAccumulator(x, tf.ones(3)) as accumulator:
        y = f(x)
    return accumulator.jvp(y)


def jacobian(tf, f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tf.linalg.diag_part(tape.jacobian(y, x))


transform("function", lambda tf, f, x: taped(tf, tf.function(f), x))
transform("function, compiled by XLA", lambda tf, f, x: taped(tf, tf.function(f, jit_compile=True), x))
transform("jacobian", jacobian)
transform("map_fn", lambda tf, f, x: taped(tf, lambda x: tf.map_fn(f, x), x))
transform("recompute_grad", lambda tf, f, x: taped(tf, tf.recompute_grad(f), x))
transform("ForwardAccumulator", accumulated)
transform("ForwardAccumulator of a function", lambda tf, f, x: accumulated(tf, tf.function(f), x))
transform("ForwardAccumulator over a tape", lambda tf, f, x: accumulated(tf, lambda x: taped(tf, f, x), x))
VECTORIZED = lambda tf, f, x: taped(tf, lambda x: tf.vectorized_map(f, x), x)
transform("vectorized_map", VECTORIZED, refusal=r"tf\.vectorized_map .* ignores custom gradients", due=REFUSED)


# --- memory --------------------------------------------------------------------------------------------------------

case = section("Memory and changes in place, on torch", "torch")


def exponential(x):
    e = x.exp()
    return e, lambda *args, upstream=None: upstream * e


@contextlib.contextmanager
def without_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@case("does an output that the rule captured die without the garbage collector?", [1.0])
def _(kit):
    with without_collector():
        output = kit.custom_gradient(exponential)(kit.tensor(X).requires_grad_())
        dead = weakref.ref(output)
        del output
        return [float(dead() is None)]


@case("does what the rule captured die after backward, while the output lives?", [1.0])
def _(kit):
    captured = []

    def f(x):
        e = x.exp()
        captured.append(weakref.ref(e))
        return x * 2, lambda *args, upstream=None: upstream * e

    output = kit.custom_gradient(f)(kit.tensor(X).requires_grad_())
    with without_collector():
        output.sum().backward()
        return [float(captured[0]() is None)]


@case("do saved_tensors_hooks see what the rule captured?", [1.0])
def _(kit):
    import torch

    seen = []

    def pack(tensor):
        seen.append(tensor.detach().clone())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        doubled(kit)(kit.tensor(X).requires_grad_())
    return [float(any(torch.allclose(each, torch.tensor(E, dtype=each.dtype)) for each in seen))]


@case("a captured tensor is changed in place before backward", MUST_RAISE, refusal=r"in ?place")
def _(kit):
    import torch

    x = torch.zeros(3, requires_grad=True)
    output = kit.custom_gradient(exponential)(x)
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


case("a custom gradient inside a layer", [2 * X, SEVEN], lambda kit: kit.differentiate(layer(kit), X), on=TRAINED)
OUTPUT = lambda kit: [kit.array(layer(kit)(kit.tensor(X)))]
case("the output of that layer", [2 * X], OUTPUT, forward=True)


def quantised(kit):
    """A quantised layer; what it has for its rule is what `keras.ops.custom_gradient` is when it is called."""
    kit.keras.utils.set_random_seed(0)
    layer = kit.keras.layers.Dense(4)
    layer.build((None, 3))
    layer.quantize("int8")
    return layer, kit.keras.ops.convert_to_numpy


def patched(kit):
    return mock.patch.object(kit.keras.ops, "custom_gradient", kit.custom_gradient)


@case("the gradient of a quantised Dense layer less that of its dequantised kernel", [np.zeros((2, 3))], on=TRAINED)
def _(kit):
    layer, numpy = quantised(kit)
    with patched(kit):
        _, gradient = kit.differentiate(lambda x: layer(x), np.stack([X, Y]))
    kernel = numpy(layer.kernel).astype(float) / numpy(layer.kernel_scale)
    return [gradient - np.ones((2, 4)) @ kernel.T]


LESS = "the output of a quantised Dense layer less that with Keras's decorator"


@case(LESS, [np.zeros((2, 4))], forward=True)
def _(kit):
    layer, numpy = quantised(kit)
    truth = numpy(layer(np.stack([X, Y])))
    with patched(kit):
        return [numpy(layer(np.stack([X, Y]))) - truth]


def variable_argument(kit, mode):
    variable = kit.keras.Variable(Y)
    f = kit.custom_gradient(lambda x, w: (x * w, seven_five))
    return kit.differentiate(lambda x: f(x, variable), X, mode=mode)


VARIABLE, ITS = "a keras.Variable as argument", [X * Y, SEVEN]
case(f"{VARIABLE}, in eager mode", ITS, lambda kit: variable_argument(kit, "eager"))
case(f"{VARIABLE}, in a graph", ITS, lambda kit: variable_argument(kit, "function"), on="tensorflow")


def model_of(kit, wrap):
    inputs = kit.keras.Input((3,))
    model = kit.keras.Model(inputs, wrap(kit.custom_gradient(lambda x: (x * 2, seven)))(inputs))
    return kit.differentiate(lambda x: model(x), X[None])


SYMBOLIC, OF_ROWS = "a symbolic argument: a functional model", [2 * X[None], SEVEN[None]]
case(SYMBOLIC, OF_ROWS, lambda kit: model_of(kit, lambda f: f), refusal="A KerasTensor cannot be used", on=TRAINED)
case(
    "the same in a Lambda layer", OF_ROWS, lambda kit: model_of(kit, kit.keras.layers.Lambda), on="jax torch tensorflow"
)
