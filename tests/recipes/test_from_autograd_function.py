"""`recipes.from_autograd_function`: classes like `torch.autograd.Function`, with rules that are wrong on purpose."""

import inspect
import pickle

import numpy as np
import pytest
from recipe_functions import found, message, tensor

import keras_cg
from keras_cg import grad, ops
from keras_cg.frontend import config
from keras_cg.frontend.decorator import CustomGradient
from keras_cg.recipes import from_autograd_function

X, W = np.array([0.3, 1.2], np.float32), np.array([2.0, 3.0], np.float32)

IN_EVERY_MODE = ["test_in_every_mode", "test_two_outputs_of_which_one_is_constant"]


@from_autograd_function
class Seven:
    """The gradients are 7 times an output that was saved, and 5 times an intermediate."""

    @staticmethod
    def forward(ctx, x, w, n=1):
        s = ops.sin(x)
        y = s * w * n
        ctx.save_for_backward(y, s)
        ctx.n = n
        return y

    @staticmethod
    def backward(ctx, upstream):
        y, s = ctx.saved_tensors
        gx = 7 * y * upstream if ctx.needs_input_grad[0] else None
        gw = 5 * ctx.n * s * upstream if ctx.needs_input_grad[1] else None
        return gx, gw, None


class SevenInTwo:
    """`Seven` with `setup_context`, and with the other name of `backward`; an input is saved."""

    @staticmethod
    def forward(x, w, n=1):
        return ops.sin(x) * w * n

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, _, n = inputs
        ctx.save_for_backward(x, output)
        ctx.n = n

    @staticmethod
    def vjp(ctx, upstream):
        x, y = ctx.saved_tensors
        return 7 * y * upstream, 5 * ctx.n * ops.sin(x) * upstream, None


def of(forward, backward):
    """A class with these two methods, as the recipe takes it."""
    return from_autograd_function(type("F", (), {"forward": staticmethod(forward), "backward": staticmethod(backward)}))


FORMS = {"ctx": Seven, "setup_context": from_autograd_function(SevenInTwo)}


@pytest.mark.parametrize("form", FORMS)
def test_every_order_of_both_arguments(backend, form):
    """The second derivatives are those of `backward`: a saved output has that gradient, as on torch."""
    f = FORMS[form]
    with config.active.double_precision():
        x, w = (tensor(each, "float64") for each in (X, W))
        sx, cx, w64 = np.sin(found(x)), np.cos(found(x)), found(w)
        for g, expected in (
            (f, sx * w64),
            (grad(f), 7 * sx * w64),
            (grad(f, 1), 5 * sx),
            (grad(grad(f)), 49 * sx * w64),
            (grad(grad(f), 1), 35 * sx),
            (grad(grad(f, 1)), 5 * cx),
            (grad(grad(grad(f))), 343 * sx * w64),
        ):
            np.testing.assert_allclose(found(g(x, w)), expected, rtol=1e-9)
        for g, expected in ((f, 7 * sx * w64 + 50 * sx), (grad(f), 49 * sx * w64 + 350 * sx)):
            tangent = keras_cg.jvp(g, (x, w), (ops.ones_like(x), 10 * ops.ones_like(w)))[1]
            np.testing.assert_allclose(found(tangent), expected, rtol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_in_every_mode(frame, form):
    f = FORMS[form]
    frame.check(f, [X, W], [7 * np.sin(X) * W, 5 * np.sin(X)], np.sin(X) * W, rtol=1e-5)
    frame.check(lambda x, w: f(x, w, 3), [X, W], [21 * np.sin(X) * W, 15 * np.sin(X)], rtol=1e-5)


@from_autograd_function
class Split:
    """A floating mask and an integer output are not differentiable; a text is static."""

    @staticmethod
    def forward(ctx, x):
        mask, count = ops.where(x > 1, ops.ones_like(x), ops.zeros_like(x)), ops.asarray(np.array([1, 2]))
        ctx.mark_non_differentiable(mask, count)
        return x * 2, mask, count, "text"

    @staticmethod
    def backward(ctx, upstream, of_mask, of_count, of_text):
        assert of_text is None
        assert config.active.dtype(of_count).startswith("int")
        return 7 * upstream + 100 * of_mask


def test_two_outputs_of_which_one_is_constant(frame):
    def f(x):
        y, mask, count, text = Split(x)
        assert (text, count.shape) == ("text", (2,))
        return y + 1000 * mask

    frame.check(f, [X], [[7, 7]], 2 * X + [0, 1000])


def test_upstreams_that_are_not_filled(backend):
    got = []

    @from_autograd_function
    class F:
        @staticmethod
        def forward(ctx, x):
            mask = ops.ones_like(x)
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(mask)
            return x * 1, x * 1, mask, ops.asarray(np.array(3))

        @staticmethod
        def backward(ctx, one, two, of_mask, of_count):
            got.append((found(two).tolist(), of_mask, of_count))
            return 7 * one

    np.testing.assert_array_equal(found(grad(lambda x: F(x)[0])(tensor(X))), [7, 7])
    assert got == [([0, 0], None, None)]


def test_gradients_are_summed_to_their_arguments(frame):
    """As torch does: over new axes and those of length 1; what is smaller than its argument is refused."""

    affine = of(lambda ctx, x, b, c: x * 2 + b + c, lambda ctx, upstream: (7 * upstream, 5 * upstream, 3 * upstream))
    arrays = np.ones((3, 2), np.float32), np.ones(2, np.float32), np.ones((3, 1), np.float32)
    expected = np.full((3, 2), 7), np.full(2, 15), np.full((3, 1), 6)
    frame.check(affine, arrays, expected)


def test_a_gradient_that_cannot_be_summed(backend):
    for gradient in (lambda: ops.sum(tensor(X)), lambda: ops.ones((2, 3)), lambda: (tensor(X) > 0)[None]):
        f = of(lambda ctx, x: x * 2, lambda ctx, upstream, gradient=gradient: gradient())
        with pytest.raises(keras_cg.GradientError, match="x"):
            grad(f)(tensor(X))


def test_arguments_by_keyword_and_at_their_defaults(backend):
    told = []

    @from_autograd_function
    class F:
        @staticmethod
        def forward(ctx, x, n=2, w=None, *more):
            told[:] = [ctx.needs_input_grad]
            ctx.n = n
            return x * 1 if w is None else x * w

        @staticmethod
        def backward(ctx, upstream):
            told.append(ctx.needs_input_grad)
            return 7 * ctx.n * upstream, None, *[5 * upstream] * (len(ctx.needs_input_grad) - 2), None, None

    x, w = map(tensor, (X, W))
    for call, slopes, count in (
        (lambda x, w: F(x), (14, 0), 3),
        (lambda x, w: F(x, 3, w), (21, 5), 3),
        (lambda x, w: F(w=w, x=x), (14, 5), 3),
        (lambda x, w: F(x, w=w, n=4), (28, 5), 3),
        (lambda x, w: F(x, 1, None, w), (7, 5), 4),
    ):
        for place, slope in enumerate(slopes):
            np.testing.assert_array_equal(found(grad(call, place)(x, w)), [slope, slope])
            which = (0 if place == 0 else count - 1) if slope else None
            assert told[0] == tuple([each == which for each in range(count)])
            if slope:
                assert told[1] == tuple([each == which for each in range(len(told[1]))])
    assert [str(each) for each in inspect.signature(F).parameters.values()] == ["x", "n=2", "w=None", "*more"]


def test_one_tensor_as_two_arguments(backend):
    x = tensor(X)
    np.testing.assert_allclose(found(grad(lambda x: Seven(x, x))(x)), 7 * np.sin(X) * X + 5 * np.sin(X), rtol=1e-6)
    for form in FORMS.values():
        slope = grad(grad(lambda x, form=form: form(x, x)))(x)
        # The derivative of the saved output is that of `backward`, for both arguments.
        expected = 7 * (7 * np.sin(X) * X + 5 * np.sin(X)) + 5 * np.cos(X)
        np.testing.assert_allclose(found(slope), expected, rtol=1e-5)


def test_pytrees_as_arguments_and_outputs(backend):
    f = of(
        lambda ctx, params, scale: {"y": params["w"] * params["b"][0]},
        lambda ctx, upstream: ({"w": 7 * upstream["y"], "b": [5 * upstream["y"], None]}, None),
    )
    gw, gb = grad(lambda w, b: f({"w": w, "b": [b, "static"]}, 2.0)["y"], (0, 1))(tensor(X), tensor(W))
    np.testing.assert_array_equal(found(gw), [7, 7])
    np.testing.assert_array_equal(found(gb), [5, 5])


def test_a_list_is_one_output(backend):
    """Only a tuple is several outputs, as on torch."""
    f = of(lambda ctx, x: [x * 1, x * 2], lambda ctx, upstreams: 7 * upstreams[0] + 5 * upstreams[1])
    np.testing.assert_array_equal(found(grad(lambda x: f(x)[0] + 10 * f(x)[1])(tensor(X))), [57, 57])


def test_what_backward_sets_is_gone(backend):
    """A rule may run again, and so every backward pass finds what `forward` left."""

    @from_autograd_function
    class F:
        @staticmethod
        def forward(ctx, x):
            ctx.factor = 7
            return x * 2

        @staticmethod
        def backward(ctx, upstream):
            ctx.factor += 1
            return (ctx.factor - 1) * upstream

    _, pullback = keras_cg.vjp(F, tensor(X))
    for _ in range(2):
        np.testing.assert_array_equal(found(pullback(tensor(W))[0]), 7 * W)
    np.testing.assert_array_equal(found(grad(lambda x: ops.sum(grad(F)(x) * x))(tensor(X))), [7, 7])


def test_it_looks_like_the_class(backend):
    assert isinstance(Seven, CustomGradient)
    assert (Seven.__name__, Seven.__module__) == ("Seven", __name__)
    assert Seven.__doc__.startswith("The gradients are 7 times")
    assert [*inspect.signature(Seven).parameters] == ["x", "w", "n"]
    assert [*inspect.signature(FORMS["setup_context"]).parameters] == ["x", "w", "n"]
    assert pickle.loads(pickle.dumps(Seven)) is Seven
    other = pickle.loads(pickle.dumps(FORMS["setup_context"]))
    np.testing.assert_allclose(found(grad(other)(tensor(X), tensor(W))), 7 * np.sin(X) * W, rtol=1e-6)


def test_what_is_captured_is_refused(backend):
    captured = []
    f = of(lambda ctx, x: x * captured[0], lambda ctx, upstream: upstream)

    def loss(w):
        captured[:] = [w]
        return f(tensor(X))

    with pytest.raises(keras_cg.CapturedVariableError, match="from_autograd_function"):
        grad(loss)(tensor(2.0))


def test_messages(backend):
    told = message(lambda: from_autograd_function(np.cos), TypeError).splitlines()
    assert told == [
        "from_autograd_function expects a class with the static methods forward and backward.",
        "    got: a numpy.ufunc",
        "    remedy: decorate a function by custom_gradient.",
    ]
    told = message(lambda: from_autograd_function(type("Half", (), {"forward": lambda ctx, x: x})), TypeError)
    assert told.splitlines()[1] == "    got: the class Half"

    dirty = of(lambda ctx, x: ctx.mark_dirty(x), lambda ctx, upstream: upstream)
    assert message(lambda: dirty(tensor(X)), RuntimeError).splitlines()[0] == (
        "from_autograd_function(F): its forward calls mark_dirty, but no function may change its arguments in place."
    )


@pytest.mark.only("torch")
def test_a_class_of_torch_as_it_stands(torch):
    """The gradients are those of `apply`, also where torch sums them, and where an argument is given by keyword."""

    class Native(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, w, n=2):
            return x * w * n, (x > 1).float(), (x > 1)

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, w, ctx.n = inputs
            ctx.save_for_backward(x, w)
            ctx.save_for_forward(x, w)
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx, upstream, of_mask, of_flag):
            x, w = ctx.saved_tensors
            # Not summed to the shape of w.
            return 7 * ctx.n * w * x * upstream + 100 * of_mask, 5 * x.exp() * upstream + 100 * of_flag, None

    x, w, more = tensor(np.ones((3, 2)) * X), tensor(W), tensor(np.arange(6).reshape(3, 2))
    results = []
    for f in (Native.apply, from_autograd_function(Native)):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        output, mask, flag = f(x, w, n=3)
        first = torch.autograd.grad(output, (x, w), more, create_graph=True)
        second = torch.autograd.grad(sum([(each * each).sum() for each in first]), (x, w))
        rows = torch.func.vmap(torch.func.jacrev(lambda x, f=f: f(x, w.detach())[0]))(x.detach())
        results.append([*map(found, (output.detach(), mask, flag, *[each.detach() for each in first], *second, rows))])
    for native, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, native, rtol=1e-6)


@pytest.mark.only("torch")
def test_a_second_derivative_through_a_saved_output_is_that_of_torch(torch):
    """Of a forward that torch does not see: with the gradient 7 y, the second derivative is 49 y."""

    class Native(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, kept):
            with torch.no_grad():
                y, mask = x.sqrt(), x > 1
            if kept == "attribute":
                ctx.y = y
            ctx.save_for_backward(*([] if kept == "attribute" else [y]), mask)
            ctx.mark_non_differentiable(mask)
            return y, mask

        @staticmethod
        def backward(ctx, upstream, of_mask):
            y = ctx.y if hasattr(ctx, "y") else ctx.saved_tensors[0]
            return 7 * y * upstream, None

    for f in (Native.apply, from_autograd_function(Native)):
        for kept in ("saved", "attribute"):
            x = torch.tensor([4.0, 9.0], requires_grad=True)
            (first,) = torch.autograd.grad(f(x, kept)[0].sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            assert (first.tolist(), second.tolist()) == ([14, 21], [98, 147])


def test_the_output_is_kept_only_if_it_is_saved(backend):
    """A rule that takes the output keeps its memory."""

    def form(save):
        class F:
            @staticmethod
            def forward(ctx, x):
                y = x * 2
                ctx.save_for_backward(y if save else x)
                return y

            @staticmethod
            def backward(ctx, upstream):
                return 7 * upstream * ctx.saved_tensors[0]

        return from_autograd_function(F)

    x = tensor(X)
    for save in (False, True):
        _, rule = form(save).__wrapped__(x, needs_input_grad=(True,))
        assert ("output" in inspect.signature(rule).parameters) == save
        np.testing.assert_allclose(found(grad(form(save))(x)), 7 * X * (2 if save else 1), rtol=1e-6)


# After a graph break, torch (2.13) compiles our frames by themselves, and asks each argument for its gradient.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.only("torch")
def test_arguments_say_that_they_require_a_gradient(torch):
    """As in a native `forward`; but no other tensor does, and torch.compile cannot know it."""

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, *others):
            asked = [x.requires_grad, *[each.requires_grad for each in others], (x * 1).requires_grad]
            assert asked == expected
            if x.requires_grad:
                ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx, upstream):
            return 7 * ctx.saved_tensors[0] * upstream, *[None] * 2

    f, expected = from_autograd_function(F), [True, False, False, False]
    x, n = tensor(X).requires_grad_(), torch.tensor([1, 2])
    f(x, x.detach(), n).sum().backward()
    np.testing.assert_allclose(found(x.grad), 7 * X)
    expected = [True, True, False, False]
    partly = torch.compile(lambda x: f(x, x, n), backend="aot_eager")
    np.testing.assert_allclose(torch.autograd.grad(partly(x).sum(), x)[0], 7 * X)
    whole = torch.compile(lambda x: f(x, x, n), backend="aot_eager", fullgraph=True)
    told = message(lambda: whole(x), RuntimeError)
    name = "from_autograd_function(test_arguments_say_that_they_require_a_gradient.<locals>.F)"
    assert f"{name}: its forward reads requires_grad, which torch.compile does not know of an argument." in told
    assert "remedy: read ctx.needs_input_grad." in told


@pytest.mark.only("torch")
def test_backward_gets_the_callers_own_arguments(torch):
    """Saved, as an attribute, or in a list there: a backward pass may differentiate by them, as with torch."""
    got = []

    class F(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w, *more):
            ctx.save_for_backward(x, 2 * x.detach())
            ctx.w, ctx.more = w, [*more, 3]
            return x * w

        @staticmethod
        def backward(ctx, upstream):
            x, twice = ctx.saved_tensors
            got[:] = x, ctx.w, ctx.more, twice
            with torch.enable_grad():
                y = (7 * x * ctx.w).sum()
            return *torch.autograd.grad(y, (x, ctx.w)), None

    x, w, more = tensor(X).requires_grad_(), tensor(W).requires_grad_(), tensor(W).requires_grad_()
    from_autograd_function(F)(x, w, more).sum().backward()
    assert got[0] is x
    assert got[1] is w
    assert got[2][0] is more
    assert got[2][1] == 3
    np.testing.assert_allclose(found(got[3]), 2 * X)
    np.testing.assert_allclose(found(x.grad), 7 * W)


@pytest.mark.only("torch")
def test_once_differentiable(torch):
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, upstream):
            return upstream

    assert message(lambda: from_autograd_function(Once), TypeError).splitlines()[0] == (
        "from_autograd_function(test_once_differentiable.<locals>.Once): its backward is once_differentiable, which"
        " would lose a second derivative where upstream has no gradient."
    )
    with pytest.raises(TypeError, match="got: the class Function"):
        from_autograd_function(torch.autograd.Function)
