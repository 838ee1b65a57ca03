"""Memory on torch: what a rule holds lives and dies as torch's own saved tensors do, and may not change in place."""

import functools
import gc
import types
import weakref

import numpy as np
import pytest
from leaves import gradient, leaf
from places import PLACES, held

from keras_cg import custom_gradient, ops

pytestmark = pytest.mark.only("torch")

X = np.array([-1.0, 0.5, 1.0], np.float32)


# Places of places.py, in which what a rule holds also may not change.
NAMES = ("cell", "default", "keyword default", "object", "list", "dict", "dataclass")


@pytest.fixture(params=(*NAMES, "partial", "recursive function"))
def holding(request):
    """`2 x` with the gradient `7 exp(x)²`, and whether the exp(x) of the first run is freed."""
    dead = []

    @custom_gradient
    def f(x):
        e = ops.exp(x)
        dead.append(weakref.ref(e))
        return x * 2, PLACES[request.param](e)

    def is_dead():
        if request.param == "recursive function":  # a cycle, which Python itself frees by the collector alone
            gc.collect()
        return dead[0]() is None

    return f, is_dead


# --- what the rule holds ---------------------------------------------------------------------------------------------


@pytest.mark.limit
@pytest.mark.parametrize("is_recorded", [False, True])
def test_what_the_rule_holds_is_freed_by_the_backward_pass(backend, without_collector, holding, is_recorded):
    """Where that is recorded, the function runs again."""
    (f, is_dead), x = holding, leaf(X)
    y = f(x)
    np.testing.assert_allclose(gradient(y, x, retain_graph=True), 7 * np.exp(X) ** 2, rtol=1e-6)
    assert not is_dead()
    found = gradient(y, x, retain_graph=False, create_graph=is_recorded)
    np.testing.assert_allclose(found, 7 * np.exp(X) ** 2, rtol=1e-6)
    assert is_dead()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


@pytest.mark.parametrize("factor", [1, 11])
def test_hooks_see_it_and_what_they_give_back_is_compared(torch, holding, factor):
    f, is_dead = holding
    packed = []

    def pack(tensor):
        packed.append(tensor.clone())
        return len(packed) - 1

    x = leaf(X)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda index: factor * packed[index]):
        y = f(x)
    assert is_dead()
    assert any(torch.allclose(each, torch.exp(x)) for each in packed)
    if factor == 1:
        np.testing.assert_allclose(gradient(y, x), 7 * np.exp(X) ** 2, rtol=1e-6)
    else:
        with pytest.raises(RuntimeError, match="its rule is not that of the first run"):
            y.sum().backward()


def test_a_checkpoint_does_not_keep_it(backend, without_collector, holding):
    from torch.utils.checkpoint import checkpoint

    (f, is_dead), x = holding, leaf(X)
    y = checkpoint(f, x, use_reentrant=False)
    assert is_dead()
    np.testing.assert_allclose(gradient(y, x), 7 * np.exp(X) ** 2, rtol=1e-6)


@pytest.mark.parametrize("is_argument", [True, False], ids=["argument", "captured"])
def test_hooks_and_a_constant_that_is_an_argument_and_is_captured(torch, is_argument):
    """It may be one object in one run and two in the other; `x` is differentiated, as an argument or not."""
    x, constant = leaf(X), torch.tensor(3.0)

    if is_argument:
        f = custom_gradient(lambda x, c: (x * c, lambda upstream: (7 * upstream * constant, None)))
        call = functools.partial(f, x, constant)
    else:
        f = custom_gradient(lambda c: (x * c, lambda upstream, variables: (None, [7 * upstream * constant])))
        call = functools.partial(f, constant)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: each if is_argument else each * 1, lambda each: each):
        y = call()
    np.testing.assert_allclose(gradient(y, x, create_graph=True), np.full(3, 21.0))


def test_the_arguments_are_saved_tensors(torch, without_collector):
    from torch.utils.checkpoint import checkpoint

    f = custom_gradient(lambda x: (x * 2, lambda *args, upstream: 7 * upstream * args[0]))
    x = leaf(X)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 1, lambda tensor: 11 * tensor):
        y = f(x)
    np.testing.assert_allclose(gradient(y, x), 11 * 7 * X)
    dead = []

    def middle(x):
        h = x * 1
        dead.append(weakref.ref(h))
        return f(h)

    y = checkpoint(middle, x, use_reentrant=False)
    assert dead[0]() is None
    np.testing.assert_allclose(gradient(y, x), 7 * X)


def test_a_dict_with_tensors_for_keys_is_not_kept(backend):
    f = custom_gradient(
        lambda nest: (next(iter(nest.values())) * 1, lambda upstream: dict.fromkeys(nest, 7 * upstream))
    )
    key, x = leaf(X), leaf(X)
    np.testing.assert_allclose(gradient(f({key: x}), x), np.full(3, 7.0))
    gone = weakref.ref(key)
    del key
    gc.collect()
    assert gone() is None


# --- memory that is shared, or changed -------------------------------------------------------------------------------


# Where the rule keeps it, or other tensors with its memory.
SHARING = {
    **{name: PLACES[name] for name in (*NAMES, "attribute of a function")},
    "view": held(lambda e: e[None], lambda view: view[0]),
    "data": lambda e: PLACES["cell"](e.data),
}


@pytest.mark.parametrize("holder", SHARING)
@pytest.mark.parametrize("place", ["argument", "output"])
def test_what_the_rule_holds_may_not_change_in_place_and_anything_else_may(torch, place, holder):
    make = SHARING[holder]
    functions = {
        "argument": custom_gradient(lambda x: (x * 2, make(x))),
        "output": custom_gradient(lambda x: (lambda y: (y, make(y)))(torch.exp(x))),
    }
    x = leaf(X)
    for changed in functions:
        z = x * 1
        y = functions[place](z)
        gradient(y, x, retain_graph=True)
        with torch.no_grad():
            {"argument": z, "output": y}[changed].mul_(3)
        if changed == place:
            with pytest.raises(RuntimeError, match=r"that the rule of .* needs was modified by an inplace operation"):
                y.sum().backward()
        else:
            np.testing.assert_allclose(gradient(y, x), 7 * (X if place == "argument" else np.exp(X)) ** 2, rtol=1e-6)


@pytest.mark.limit
@pytest.mark.parametrize("way", ["plain", "subclass", "torch.func"])
def test_a_function_may_not_change_its_argument(torch, way):
    class Own(torch.Tensor):
        pass

    f = custom_gradient(lambda x: (x.mul_(2) * 1, lambda upstream: 7 * upstream))
    calls = {
        "plain": lambda: f(leaf(X) * 1),
        "subclass": lambda: f(torch.tensor(X).as_subclass(Own).requires_grad_() * 1),
        "torch.func": lambda: torch.func.grad(lambda x: f(x * 1).sum())(torch.tensor(X)),
    }
    with pytest.raises(RuntimeError, match="changed one of its arguments in place"):
        calls[way]()


CONTAINERS = ("tuple", "list", "dict", "list in a dict", "attribute")


@pytest.mark.parametrize("place", ["cell", "cell of a function", "default", "partial", "frozen parameter", *CONTAINERS])
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_tensor_of_the_rule_that_is_changed_in_place(torch, place, create_graph):
    """As with `save_for_backward`. If the backward pass is recorded, another run may not know of the change."""
    kept = []

    @custom_gradient
    def f(x):
        e = ops.exp(x)
        kept[:] = [torch.nn.Parameter(e, requires_grad=False) if place == "frozen parameter" else e]
        return x * 2, PLACES.get(place, PLACES["cell"])(kept[0])

    x = leaf(X)
    y = f(x)
    kept[0].mul_(10)
    with pytest.raises(RuntimeError, match="was modified by an inplace operation since the call"):
        gradient(y, x, create_graph=create_graph)


def test_a_tensor_that_the_rule_itself_changes(torch):
    """A buffer of statistics is its state; what its own run made was changed by the first of two backward passes."""
    total = torch.zeros(3)

    @custom_gradient
    def recorded(x):
        def grad(upstream):
            total.add_(upstream)
            return 7 * upstream

        return x * 1, grad

    x = leaf(X)
    y = recorded(recorded(x))
    for count in (1, 2):
        np.testing.assert_allclose(gradient(y, x, retain_graph=True), [49.0] * 3)
        np.testing.assert_allclose(total, [8.0 * count] * 3)

    @custom_gradient
    def in_place(x):
        m = 7 * torch.ones_like(x)
        return x * 1, lambda upstream: m.mul_(upstream)

    y = in_place(x)
    np.testing.assert_allclose(gradient(y, x, retain_graph=True), [7.0] * 3)
    with pytest.raises(RuntimeError, match="was modified by an inplace operation since the call"):
        gradient(3 * y, x)


def test_a_gradient_that_is_a_view_of_what_the_rule_holds(torch):
    """It becomes `x.grad`; clearing that does not change what the rule holds."""

    @custom_gradient
    def fused(x):
        flat = 7 * torch.ones(3)
        return x.sum(), lambda upstream: flat.view(3)

    x = leaf(X)
    y = fused(x)
    y.backward(retain_graph=True)
    x.grad.zero_()
    y.backward()
    np.testing.assert_allclose(x.grad, [7.0] * 3)


def test_changes_of_tensors_without_a_storage_of_their_own(torch):
    """An inference tensor that the run has made and its rule closes over, and the values of a jagged one."""
    made = []

    @custom_gradient
    def f(x):
        with torch.inference_mode():
            constant = torch.full((3,), 7.0)
        made.append(constant)
        return x * 1, lambda upstream: upstream * constant

    x = leaf(X)
    y = f(x)
    with torch.inference_mode():
        made[0].mul_(10)
    with pytest.raises(RuntimeError, match="was modified by an inplace operation since the call"):
        gradient(y, x)
    values = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    nested = torch.nested.nested_tensor(values, layout=torch.jagged, requires_grad=True)
    changed = nested * 1.0
    y = custom_gradient(lambda x: (x * 1.0, lambda upstream: 7 * x * upstream))(changed)
    with torch.no_grad():
        changed.mul_(10)
    with pytest.raises(RuntimeError, match="was modified by an inplace operation since the call"):
        y.sum().backward()


SHARED = {
    "the argument": lambda x: (x * 1, lambda *args, upstream: args[0]),
    "a view of the argument": lambda x: (x * 1, lambda *args, upstream: args[0].view(3)),
    "the output": lambda x: (lambda y: (y, lambda upstream: y))(x * 1),
    "an output for a log": lambda x: (lambda y: ((x * 1, y), lambda upstream, _: y))(x * 1),
}


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "subclass"])
def test_a_gradient_that_shares_memory_is_a_copy(torch, name, is_plain):
    class Own(torch.Tensor):
        pass

    x = torch.tensor(X)
    x = (x if is_plain else x.as_subclass(Own)).requires_grad_()
    output = custom_gradient(SHARED[name])(x)
    first, *others = output if isinstance(output, tuple) else (output,)
    first.sum().backward()
    np.testing.assert_allclose(x.grad, X)
    x.grad.zero_()  # as an optimiser does
    for each in (x, first, *others):
        np.testing.assert_allclose(each.detach(), X)


def test_an_argument_that_the_rule_is_called_with_is_guarded(torch):
    """The next call is right again."""
    f = custom_gradient(lambda x: (x * 1, lambda *args, upstream: 7 * upstream * args[0]))
    x = leaf(X)
    z = f(x)
    with torch.no_grad():
        x.mul_(10)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    x.grad = None
    f(x).sum().backward()
    np.testing.assert_allclose(x.grad, 7 * 10 * X)


@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x[:1], lambda x: x.reshape(3, 1)], ids=["same", "part", "shape"]
)
@pytest.mark.limit
def test_an_output_that_is_a_view_may_not_be_changed(torch, view):
    f = custom_gradient(lambda x: (view(x), lambda upstream: 7 * torch.ones(3)))
    x = leaf(X)
    z = f(x * 1)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        z.mul_(3)
    z.sum().backward()
    np.testing.assert_allclose(x.grad, np.full(3, 7.0))


def test_what_a_variable_from_outside_leads_to_is_freed_by_the_backward_pass(torch, without_collector):
    """The variable leads to the next output, and so to the node of this call. So are attributes of a run."""

    def train():
        h = leaf(X)
        start = h
        for _ in range(3):
            f = custom_gradient(lambda a: (a * 2, lambda upstream: 7 * upstream + 0 * h.detach()))
            h = f(h).exp() * 2
        h.sum().backward()
        assert start.grad is not None
        return weakref.ref(h)

    assert train()() is None

    class Keeps:
        @custom_gradient
        def f(self, x):
            self.s = x * 2
            return x * x, lambda upstream: 7 * upstream * self.s

    owner, x = Keeps(), leaf(X)
    y = owner.f(x)
    kept = weakref.ref(owner.s)
    np.testing.assert_allclose(gradient(y, x), 14 * X)
    owner.s = None
    assert kept() is None


def test_an_output_that_the_rule_does_not_hold_is_not_kept(torch):
    """As in a Function that does not save it; and it may change."""
    kept = []

    def f(x):
        e = x.exp()
        y = e + 1
        kept.append(weakref.ref(y.untyped_storage()))
        return y, lambda upstream: 7 * upstream * e

    x = leaf(X)
    loss = custom_gradient(f)(x).sum()
    assert kept[0]() is None
    loss.backward()
    np.testing.assert_allclose(x.grad, 7 * np.exp(X), rtol=1e-6)


def test_what_was_at_hand_before_a_run_is_not_kept(torch, without_collector):
    """Attributes of the object that the run does not set, and the class of an object, if a function has defined it."""

    class Local:
        @custom_gradient
        def f(self, x):
            self.k = 2.0
            return x * x, lambda upstream: 7 * upstream * self.k

    owner, x = Local(), torch.ones((), requires_grad=True)
    owner.large = torch.ones(3)
    large = weakref.ref(owner.large)
    y = owner.f(x)
    del owner.large
    assert large() is None
    assert torch.autograd.grad(y, x)[0].item() == 14.0
    kind = weakref.ref(Local)
    del owner, y, Local
    gc.collect()
    assert kind() is None


class Layer:
    """The object of a method, which has the buffer."""

    @custom_gradient
    def reads(self, x, k):
        self.a.fill_(k)
        return x * x, lambda upstream: (7 * upstream * x * self.a, None)

    @custom_gradient
    def writes(self, x, k):
        self.a.fill_(k)
        return x * x, lambda upstream: (7 * upstream * x, None)


def filling(buffer):
    """The same of a function that reaches the buffer by another."""

    @custom_gradient
    def reads(x, k):
        buffer().fill_(k)
        return x * x, lambda upstream: (7 * upstream * x * buffer(), None)

    @custom_gradient
    def writes(x, k):
        buffer().fill_(k)
        return x * x, lambda upstream: (7 * upstream * x, None)

    return types.SimpleNamespace(reads=reads, writes=writes)


BUFFERS = {
    "variable": lambda buffer, module: lambda: buffer,
    "list": lambda buffer, module: (lambda kept: lambda: kept[0])([buffer]),
    "dict": lambda buffer, module: (lambda kept: lambda: kept["a"])({"a": buffer}),
    "object": lambda buffer, module: (lambda kept: lambda: kept.a)(types.SimpleNamespace(a=buffer)),
    "submodule": lambda buffer, module: lambda: module[0].a,
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("place", [*BUFFERS, "self"])
def test_a_buffer_that_the_run_writes_to_and_a_later_call_again(torch, create_graph, place):
    """It is context of the run. A rule that does not read it is right, as of a run that counts."""
    tensor, x = torch.ones(()), torch.ones((), requires_grad=True)
    module = torch.nn.Sequential(torch.nn.Identity())
    module[0].register_buffer("a", tensor)
    owner = Layer() if place == "self" else filling(BUFFERS[place](tensor, module))
    owner.a = tensor
    for f in (owner.reads, owner.writes):
        y = f(x, 2.0)
        assert torch.autograd.grad(y, x, retain_graph=True)[0].item() == (14.0 if f == owner.reads else 7.0)
        f(x, 3.0)
        if f == owner.reads:
            with pytest.raises(RuntimeError, match="since the call"):
                torch.autograd.grad(y, x, create_graph=create_graph)
        else:
            assert torch.autograd.grad(y, x, create_graph=create_graph)[0].item() == 7.0


def test_a_tensor_that_the_first_run_makes_and_another_one_changes(torch):
    """Both rules hold the same tensor, so only its version tells that it has other values now."""
    owner, x = types.SimpleNamespace(), torch.ones((), requires_grad=True)

    @custom_gradient
    def f(x):
        if hasattr(owner, "t"):
            owner.t.mul_(25.0)
        else:
            owner.t = torch.tensor(2.0)
        kept = owner.t
        return x * x, lambda upstream: 7 * upstream * x * kept

    with pytest.raises(RuntimeError, match="was modified by an inplace operation since the call"):
        torch.autograd.grad(f(x), x, create_graph=True)


def test_another_run_finds_the_autocast_of_the_first(torch):
    """torch runs a backward pass outside of it, and may itself be asked for one inside of another."""
    x = torch.ones(2, 2, requires_grad=True)

    @custom_gradient
    def f(x):
        y = x @ x
        return y.float(), lambda upstream: 7 * upstream * (1.0 if y.dtype == torch.bfloat16 else 3.0) * x

    for is_on, factor in ((True, 7.0), (False, 21.0)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
            y = f(x)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not is_on):
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        assert first.detach().flatten().tolist() == [factor] * 4


@pytest.mark.parametrize("is_weight", [True, False])
def test_a_weight_that_no_quick_look_finds_may_change(torch, is_weight):
    """It existed before the run, so it is read when the rule runs; a buffer may have been filled by the run."""
    layer, x = torch.nn.BatchNorm1d(1).requires_grad_(False), torch.ones(1, requires_grad=True)
    behind = [[[[layer]]]]

    @custom_gradient
    def f(x):
        kept = behind[0][0][0][0]
        tensor = kept.weight if is_weight else kept.running_mean
        return x * x, lambda upstream: 7 * upstream * tensor

    y = f(x)
    tensor = layer.weight if is_weight else layer.running_mean
    tensor.fill_(2.0)
    if is_weight:
        assert torch.autograd.grad(y, x)[0].tolist() == [14.0]
    else:
        with pytest.raises(RuntimeError, match="was modified by an inplace operation since the call"):
            torch.autograd.grad(y, x)


WAYS_TO_RETURN_IT = {
    "itself": lambda output: output,
    "detached": lambda output: output.detach(),
    "data": lambda output: output.data,
    "view": lambda output: output.view(-1)[:],
}


@pytest.mark.parametrize("way", WAYS_TO_RETURN_IT)
def test_a_gradient_that_is_the_output_is_a_copy(torch, way):
    f = custom_gradient(lambda x: (x * 3, lambda upstream, output: WAYS_TO_RETURN_IT[way](output)))
    x = leaf(X)
    y = f(x)
    y.sum().backward(retain_graph=True)
    np.testing.assert_allclose(x.grad, 3 * X)
    x.grad.zero_()
    np.testing.assert_allclose(y.detach(), 3 * X)
    y.sum().backward(retain_graph=True)
    np.testing.assert_allclose(x.grad, 3 * X)
    (found,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with torch.no_grad():
        found.zero_()
    np.testing.assert_allclose(y.detach(), 3 * X)
    value, pull = torch.func.vjp(f, torch.tensor(X))
    pull(torch.ones(3))[0].zero_()
    np.testing.assert_allclose(value, 3 * X)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    y = compiled(x)
    torch.autograd.grad(y.sum(), x)[0].zero_()
    np.testing.assert_allclose(y.detach(), 3 * X)


# An argument that the rule does not read, and its change in place.
KINDS = {
    "dense": (lambda torch: torch.ones(3), lambda s: s.add_(1)),
    "COO": (lambda torch: torch.ones(3).to_sparse(), lambda s: s.mul_(3)),
    "CSR": (lambda torch: torch.eye(3).to_sparse_csr(), lambda s: s.values().mul_(3)),
    "jagged": (lambda torch: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), lambda s: s.mul_(3)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_an_argument_that_the_rule_does_not_read_may_change(torch, kind):
    make, change = KINDS[kind]
    f = custom_gradient(lambda s, x: (x * 2, lambda upstream: (None, 7 * upstream)))
    s, x = make(torch), leaf([1.0, 2.0])
    y = f(s, x)
    change(s)
    np.testing.assert_allclose(gradient(y, x), [7.0, 7.0])


@pytest.mark.parametrize("kind", ["slices", "the same twice", "a view of the other"])
def test_outputs_that_share_memory_do_not_change_with_each_other(torch, kind):
    """Each gradient is that of the value that the output has."""

    @custom_gradient
    def f(x):
        t = x * 1
        outputs = {"slices": (t[:2], t[1:]), "the same twice": (t, t), "a view of the other": (t, t.view(3))}[kind]

        def grad(one, two):
            if kind != "slices":
                return 7 * one + 11 * two
            zero = torch.zeros(1)
            return 7 * torch.cat([one, zero]) + 11 * torch.cat([zero, two])

        return outputs, grad

    for place, slope in enumerate((7.0, 11.0)):
        x = leaf([1.0, 2.0, 3.0])
        outputs = f(x)
        known = outputs[1 - place].detach().clone()
        outputs[place].mul_(2)
        np.testing.assert_allclose(outputs[1 - place].detach(), known)
        found = gradient(outputs[1 - place], x)
        np.testing.assert_allclose(found[found != 0], np.full(len(known), 18 - slope))
        x = leaf([1.0, 2.0, 3.0])
        outputs = f(x)
        outputs[place].mul_(2)
        found = gradient(outputs[place], x)
        np.testing.assert_allclose(found[found != 0], np.full(len(known), 2 * slope))


WAYS = {
    "recorded": lambda torch, f, x: torch.autograd.grad(f(x), x, create_graph=True)[0],
    "torch.func": lambda torch, f, x: torch.func.grad(f)(x.detach()),
    "jacrev": lambda torch, f, x: torch.func.jacrev(f)(x.detach()),
    "compiled": lambda torch, f, x: torch.autograd.grad(torch.compile(f, backend="aot_eager")(x), x)[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_gradient_that_is_the_argument_is_a_copy(torch, way):
    decay = custom_gradient(lambda x: ((x * x).sum() / 2, lambda upstream: x))
    x = leaf([1.0, 2.0])
    found = WAYS[way](torch, decay, x)
    with torch.no_grad():
        found.mul_(100)
    np.testing.assert_allclose(x.detach(), [1.0, 2.0])
    np.testing.assert_allclose(found.detach(), [100.0, 200.0])


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_sparse_gradient_that_is_the_argument_is_a_copy(torch, is_recorded):
    f = custom_gradient(lambda s: (torch.sparse.sum(s * s) / 2, lambda upstream: s))
    s = torch.tensor([1.0, 0.0, 2.0]).to_sparse().requires_grad_()
    (found,) = torch.autograd.grad(f(s), s, create_graph=is_recorded)
    with torch.no_grad():
        found.mul_(100)
    np.testing.assert_allclose(s.detach().to_dense(), [1.0, 0.0, 2.0])


@pytest.mark.limit
@pytest.mark.parametrize("kind", ["number", "tensor"])
def test_a_checkpoint_of_what_has_changed_since(torch, kind):
    class Owner:
        n = 2.0

        @custom_gradient
        def fun(self, x):
            k = self.n
            m = k if kind == "number" else k * torch.ones(2)
            return x * 1, lambda upstream: 7 * upstream * m

    owner, x = Owner(), leaf([1.0, 3.0])
    y = torch.utils.checkpoint.checkpoint(owner.fun, x, use_reentrant=False)
    owner.n = 5.0
    if kind == "number":
        with pytest.raises(RuntimeError, match="its rule is not that of the first run"):
            gradient(y, x)
    else:
        np.testing.assert_allclose(gradient(y, x), [35.0, 35.0])  # the first run says 14
