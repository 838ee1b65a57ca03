"""Random cases: any nest, dtype, shape, way to call, convention of the rule and form of what it returns.

Every rule is wrong on purpose and has a closed form: a leaf x of the arguments gets `total * (factor + x)`, with a
factor of its own and `total` the sum of all upstreams, each with weights of its own. All numbers are small and whole,
so that NumPy says exactly what must come, in any dtype.
"""

import collections
import contextlib
import dataclasses
import importlib

import numpy as np
import optree
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

import keras_cg
from keras_cg import custom_gradient, ops

# Compiling costs seconds where running costs milliseconds.
EXAMPLES = {"eager": 500, "jit(grad)": 30, "grad(jit)": 30, "function": 30, "jit_compile": 10, "aot_eager": 1}
TOGETHER = 100


# --- nests: leaves are whatever is no container, in the order in which gradients count ----------------------------

Point = collections.namedtuple("Point", "a b")


@dataclasses.dataclass(frozen=True)
class Pair:
    a: object
    b: object = dataclasses.field(kw_only=True)


NODES = {"none_is_leaf": True, "namespace": "any_arguments"}
flatten_pair = lambda pair: ((pair.a, pair.b), None, ("a", "b"))
optree.register_pytree_node(
    Pair,
    flatten_pair,
    lambda _, parts: Pair(parts[0], b=parts[1]),
    namespace="any_arguments",
    path_entry_type=optree.DataclassEntry,
)


def parts(nest):
    """The children of a container, and None for a leaf."""
    return None if optree.tree_is_leaf(nest, **NODES) else optree.tree_flatten_one_level(nest, **NODES)[0]


def fill(nest, leaf):
    """The same nest with `leaf(each)` for each of its leaves."""
    return optree.tree_map(leaf, nest, **NODES)


def leaves(nest):
    return optree.tree_leaves(nest, **NODES)


def is_sorted(nest):
    """Whether no dict in a nest had its keys inserted in another order than that in which its leaves come."""
    if type(nest) is dict and list(nest) != sorted(nest):
        return False
    return all(is_sorted(each) for each in parts(nest) or ())


def paths(nest, root):
    """Each leaf with the expression that reads it: `root["a"][0]`."""
    accessors, found, _ = optree.tree_flatten_with_accessor(nest, **NODES)
    return [(leaf, accessor.codify(root)) for leaf, accessor in zip(found, accessors, strict=True)]


def write(nest, leaf):
    """The expression that makes a nest, `leaf(each)` being that of a leaf."""
    inside = ", ".join(write(each, leaf) for each in parts(nest) or ())
    if isinstance(nest, dict):
        inside = ", ".join(f"{key!r}: {write(each, leaf)}" for key, each in nest.items())
        return f"OrderedDict({{{inside}}})" if isinstance(nest, collections.OrderedDict) else f"{{{inside}}}"
    if isinstance(nest, Point):
        return f"Point({inside})"
    if isinstance(nest, Pair):
        return f"Pair({write(nest.a, leaf)}, b={write(nest.b, leaf)})"
    if isinstance(nest, (tuple, list)):
        return f"[{inside}]" if isinstance(nest, list) else f"({inside}{',' * (len(nest) == 1)})"
    return leaf(nest)


# --- a case --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Slot:
    """A leaf of the arguments that is a tensor: which array, and the factor in its gradient."""

    number: int
    array: int
    factor: int


@dataclasses.dataclass(frozen=True)
class Output:
    """A leaf of the output that is a tensor: what is done to which argument, and whether the loss uses it."""

    number: int
    source: Slot
    operation: str
    used: bool


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A named parameter, and how its argument comes: by position, by keyword, or not at all."""

    name: str
    kind: str
    nest: object
    default: object
    passed: str


@dataclasses.dataclass(frozen=True)
class Case:
    dtypes: list
    shapes: list
    # Arrays that are constants to the framework: it differentiates the others.
    constant: list
    parameters: list
    rest: list
    more: dict
    keywords: list
    output: object
    convention: tuple
    returned: object
    wide: bool

    def array(self, number):
        count = int(np.prod(self.shapes[number]))
        numbers = (np.arange(count) * 3 + number) % 5 - 2
        if self.dtypes[number].startswith("complex"):
            numbers = numbers + 1j * ((np.arange(count) + number) % 3 - 1)
        # NumPy has no bfloat16.
        dtype = self.dtypes[number].replace("bfloat16", "float32")
        return numbers.astype(dtype).reshape(self.shapes[number])

    def is_differentiable(self, number):
        return "float" in self.dtypes[number] or "complex" in self.dtypes[number]

    def of_kind(self, kind):
        return [each for each in self.parameters if each.kind == kind]

    def positional(self):
        return [each for each in self.parameters if each.kind != "keyword-only"]

    def arguments(self):
        """The nests of the arguments given, in the order of the signature."""
        named = [each.nest for each in self.positional() if each.passed != "default"]
        only = [each.nest for each in self.of_kind("keyword-only") if each.passed != "default"]
        return [*named, *self.rest, *only, *self.more.values()]

    def complete(self):
        """The same with those left at their defaults."""
        named = [each.nest if each.passed != "default" else each.default for each in self.positional()]
        only = [each.nest if each.passed != "default" else each.default for each in self.of_kind("keyword-only")]
        return [*named, *self.rest, *only, *self.more.values()]

    def to_the_rule(self):
        """The positional arguments, as the rule gets them."""
        named = self.positional()
        while named and named[-1].passed == "default":
            named.pop()
        return [*(each.default if each.passed == "default" else each.nest for each in named), *self.rest]


OPERATIONS = {
    "itself": lambda ops, x: x,
    "twice": lambda ops, x: x * 2,
    "flat": lambda ops, x: ops.reshape(x, (-1,)),
    "sum": lambda ops, x: ops.sum(x),
}
STATIC = (None, 0, 3, -2.5, True, "text", abs, object())
DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128", "int32", "bool")
SHAPES = ((), (1,), (3,), (2, 2), (0,), (2, 0))


@st.composite
def nests(draw, leaf, depth=2):
    kind = draw(st.sampled_from(["leaf", "leaf", "leaf", "tuple", "list", "dict", "ordered", "Point", "Pair"]))
    if kind == "leaf" or not depth:
        return draw(leaf)
    inside = nests(leaf, depth - 1)
    if kind in ("Point", "Pair"):
        a, b = draw(inside), draw(inside)
        return Point(a, b) if kind == "Point" else Pair(a, b=b)
    children = [draw(inside) for _ in range(draw(st.integers(0, 3)))]
    if kind in ("tuple", "list"):
        return {"tuple": tuple, "list": list}[kind](children)
    keys = draw(st.permutations(draw(st.sampled_from(["abc", (1, 2, 3)]))))[: len(children)]
    return {"dict": dict, "ordered": collections.OrderedDict}[kind](zip(keys, children, strict=True))


@st.composite
def cases(draw, dtypes=DTYPES):
    pick = lambda *choices: draw(st.sampled_from(choices))
    count = pick(1, 2, 3)
    # There must be something to differentiate, hence the first of them.
    kinds = [pick(*dtypes[:2]), *(pick(*dtypes) for _ in range(count - 1))]
    constant = [False, *(pick(False, False, True) for _ in range(count - 1))]
    slots = []

    def slot(array):
        slots.append(Slot(len(slots), array, pick(-1, 1, 2)))
        return slots[-1]

    tensor = st.integers(0, count - 1).map(slot)
    argument = nests(tensor | tensor | st.sampled_from(STATIC))

    # The signature, and how it is called.
    parameters = []
    rest = []
    for index, kind in enumerate(sorted(pick("a", "b", "c") for _ in range(pick(1, 2, 3, 4)))):
        kind = {"a": "positional-only", "b": "positional or keyword", "c": "keyword-only"}[kind]
        before = [each for each in parameters if each.kind != "keyword-only"]
        ways = {
            "positional-only": ["position", "default"],
            "positional or keyword": ["position", "keyword", "default"],
            "keyword-only": ["keyword", "default"],
        }[kind]
        if any(each.passed != "position" for each in before) and "position" in ways:
            ways.remove("position")
        passed = pick(*ways)
        must = kind != "keyword-only" and any(each.default is not Parameter for each in before)
        has_default = passed == "default" or must or pick(False, False, True)
        default = draw(nests(st.sampled_from(STATIC), 1)) if has_default else Parameter
        nest = None if passed == "default" else draw(argument)
        parameters.append(Parameter(f"x{index}", kind, nest, default, passed))
    if all(each.passed == "position" for each in parameters if each.kind != "keyword-only") and pick(False, True):
        rest = [draw(argument) for _ in range(pick(0, 1, 2))]
    more = {name: draw(argument) for name in pick((), (), ("u",), ("v", "u"))}
    given = {slot for nest in [*rest, *more.values(), *(each.nest for each in parameters)] for slot in leaves(nest)}
    if not any(isinstance(each, Slot) and each.array == 0 for each in given):
        more["w"] = slot(0)
    keywords = draw(st.permutations([each.name for each in parameters if each.passed == "keyword"] + list(more)))
    more = {name: more[name] for name in keywords if name in more}

    # The output.
    made = []

    def output(args):
        source, operation, used = args
        if "bool" in kinds[source.array] or "int" in kinds[source.array]:
            operation = {"sum": "itself", "twice": "itself"}.get(operation, operation)
        made.append(Output(len(made), source, operation, used))
        return made[-1]

    leaf = st.tuples(st.sampled_from(slots), st.sampled_from(list(OPERATIONS)), st.sampled_from([True, True, False]))
    result = draw(nests(leaf.map(output) | st.sampled_from(STATIC[:-1]), 2))
    if not any(isinstance(each, Output) for each in leaves(result)):
        result = draw(leaf.map(output))
    shapes = [pick(*SHAPES) for _ in range(count)]
    case = Case(kinds, shapes, constant, parameters, rest, more, keywords, result, (), None, pick(False, True))
    return dataclasses.replace(case, convention=draw(conventions(case)), returned=draw(returned(case)))


@st.composite
def conventions(draw, case):
    """The parameters of the rule, and how it reads the arguments and the upstreams, one or all in one."""
    count = len(leaves(case.output))
    found = [
        ("upstream", None, "upstream"),
        ("g", None, "g"),
        ("dy=None", None, "dy"),
        ("*args, upstream", [f"args[{index}]" for index in range(len(case.to_the_rule()))], "upstream"),
        ("*args, upstream=None", [f"args[{index}]" for index in range(len(case.to_the_rule()))], "upstream"),
    ]
    # Upstreams of a dict whose keys are not sorted come all in one alone.
    if is_sorted(case.output):
        found.append(("*dys", None, [f"dys[{index}]" for index in range(count)]))
    if is_sorted(case.output) and count > 1:
        names = [f"dy{index}" for index in range(count)]
        found.append((", ".join(names), None, names))
    lengths = {len(case.to_the_rule())} | ({len(case.positional())} if not case.rest else set())
    for length in sorted(lengths - {0}):
        names = [f"a{index}" for index in range(length)]
        found += [(f"{', '.join(names)}, upstream{default}", names, "upstream") for default in ("", "=None")]
    parameters, arguments, upstreams = draw(st.sampled_from(found))
    more = draw(
        st.sampled_from(["", "", ", **more", ", variables=None" if "*" in parameters else ", *, variables=None"])
    )
    return parameters + more, arguments, upstreams


@st.composite
def returned(draw, case):
    """What the rule returns, with a slot where its gradient stands."""
    pick = lambda *choices: draw(st.sampled_from(choices))

    def at(leaf):
        if not isinstance(leaf, Slot):
            return pick(None, 0, "ignored")
        if not case.is_differentiable(leaf.array):
            return pick(None, 0, "ignored", leaf)
        return pick(leaf, leaf, leaf, leaf, None, 0)

    def gradients(nest):
        filled = fill(nest, at)
        if not any(isinstance(leaf, Slot) for leaf in leaves(filled)) and parts(filled) and pick(False, True):
            return pick(None, 0)
        if isinstance(filled, list) and pick(False, True):
            return tuple(filled)
        if isinstance(filled, dict):
            return pick(dict, collections.OrderedDict)(reversed(filled.items()))
        return filled

    given, complete = case.arguments(), case.complete()
    holds = lambda nest: any(isinstance(leaf, Slot) for leaf in leaves(nest))
    # So do gradients for such a dict.
    flat = ("tensors", "leaves", "complete leaves") if all(map(is_sorted, complete)) else ()
    form = pick(*flat, "nests", "nests with tensors", "complete nests")
    value = {
        "tensors": lambda: [at(leaf) for leaf in leaves(given) if isinstance(leaf, Slot)],
        "leaves": lambda: [at(leaf) for leaf in leaves(given)],
        "complete leaves": lambda: [at(leaf) for leaf in leaves(complete)],
        "nests": lambda: [gradients(nest) for nest in given],
        "nests with tensors": lambda: [gradients(nest) for nest in given if holds(nest)],
        "complete nests": lambda: [gradients(nest) for nest in complete],
    }[form]()
    if len(value) == 1 and pick(False, True):
        return value[0]
    return pick(tuple, list)(value)


# --- the case in a framework ---------------------------------------------------------------------------------------


def caster(name):
    """How a framework casts a tensor to another dtype."""
    framework = importlib.import_module(name)
    if name == "tensorflow":
        return framework.cast
    if name == "torch":
        return lambda tensor, dtype: tensor.to(getattr(framework, dtype))
    return lambda tensor, dtype: tensor.astype(dtype)


def ramp(case, output):
    """The weights of one output's upstream in the total."""
    shape = OPERATIONS[output.operation](np, case.array(output.source.array)).shape
    return (output.number + 1.0) * (1 + np.arange(np.prod(shape)).reshape(shape) % 3)


def loss_weight(case, output):
    """The upstream of one output."""
    values = OPERATIONS[output.operation](np, case.array(output.source.array))
    weights = np.resize([1.0, -2.0, 2.0], values.shape) * output.used
    return weights + 1j * np.resize([-1.0, 1.0], values.shape) * output.used if np.iscomplexobj(values) else weights


def index_of(leaf):
    return next(index for index, each in enumerate(STATIC) if each is leaf)


def source(case):
    """The function of a case, as a user would write it."""
    lines = [f"def f({signature(case)}):"]
    given = [(each.nest if each.passed != "default" else each.default, each.name) for each in case.parameters]
    given += [(nest, f"rest[{index}]") for index, nest in enumerate(case.rest)]
    given += [(nest, f"more[{name!r}]") for name, nest in case.more.items()]
    for nest, root in given:
        for leaf, path in paths(nest, root):
            assign = (
                f"t{leaf.number} = {path}"
                if isinstance(leaf, Slot)
                else f"assert same({path}, {f'static[{index_of(leaf)}]'})"
            )
            lines.append(f"    {assign}")
    tensors, made = {}, {}
    for leaf in leaves(case.output):
        if isinstance(leaf, Output):
            # Twice the same operation on the same leaf is one tensor returned twice.
            name = made.setdefault((leaf.source, leaf.operation), f"y{leaf.number}")
            tensors[leaf.number] = name
            if name == f"y{leaf.number}":
                lines.append(f"    {name} = {leaf.operation}(ops, t{leaf.source.number})")

    parameters, arguments, upstreams = case.convention
    lines.append(f"    def grad({parameters}):")
    named = {slot.number: f"t{slot.number}" for nest, _ in given for slot in leaves(nest) if isinstance(slot, Slot)}
    nests = case.to_the_rule() if len(arguments or ()) == len(case.to_the_rule()) else case.complete()
    for nest, root in zip(nests, arguments or ()):  # noqa: B905 - of all arguments, the positional ones come first
        for leaf, path in paths(nest, root):
            if isinstance(leaf, Slot):
                named[leaf.number] = path
            else:
                lines.append(f"        assert same({path}, {f'static[{index_of(leaf)}]'})")
    lines.append("        total = zero, zero")
    found = (
        paths(case.output, upstreams)
        if isinstance(upstreams, str)
        else zip(leaves(case.output), upstreams, strict=True)
    )
    for leaf, path in found:
        if isinstance(leaf, Output) and case.is_differentiable(leaf.source.array):
            lines.append(f"        total = add(total, {path}, {tensors[leaf.number]}, {leaf.number})")
        else:
            lines.append(f"        assert {path} is None")

    def gradient(leaf):
        if not isinstance(leaf, Slot):
            return repr(leaf)
        return f"gradient(total, {named[leaf.number]}, {leaf.factor}, {case.dtypes[leaf.array]!r})"

    lines.append(f"        return {write(case.returned, gradient)}")
    output = write(
        case.output, lambda leaf: tensors[leaf.number] if isinstance(leaf, Output) else f"static[{index_of(leaf)}]"
    )
    return "\n".join([*lines, f"    return {output}, grad"])


def build(case, tensor, cast):
    """The decorated function of a case; `tensor` makes a constant of the framework."""
    wide = lambda value: cast(value, "float64")
    ramps = {leaf.number: tensor(ramp(case, leaf)) for leaf in leaves(case.output) if isinstance(leaf, Output)}

    def same(came, given):
        return came is given or came == given

    def add(total, dy, output, number):
        real, imaginary = total
        assert dy.shape == output.shape and dy.dtype == output.dtype
        if "complex" in str(dy.dtype):
            imaginary = imaginary + ops.sum(wide(ops.imag(dy)) * ramps[number])
            dy = ops.real(dy)
        return real + ops.sum(wide(dy) * ramps[number]), imaginary

    def gradient(total, x, factor, dtype):
        real, imaginary = total
        if "complex" not in dtype:
            result = (real + 2 * imaginary) * (factor + wide(x))
            return result if case.wide or "float" not in dtype else cast(result, dtype)
        a, b = factor + wide(ops.real(x)), wide(ops.imag(x))
        result = cast(real * a - imaginary * b, "complex128") + 1j * cast(real * b + imaginary * a, "complex128")
        return result if case.wide else cast(result, dtype)

    names = {
        **OPERATIONS,
        **{each.__name__: each for each in (same, add, gradient, Point, Pair, collections.OrderedDict)},
        "ops": ops,
        "zero": tensor(np.zeros(())),
        "static": STATIC,
        "defaults": {each.name: each.default for each in case.parameters},
    }
    exec(source(case), names)
    return custom_gradient(names["f"])


def signature(case):
    def show(each):
        return each.name if each.default is Parameter else f"{each.name}=defaults['{each.name}']"

    only = case.of_kind("positional-only")
    return ", ".join(
        [*map(show, only)]
        + ["/"] * bool(only)
        + [*map(show, case.of_kind("positional or keyword")), "*rest"]
        + [*map(show, case.of_kind("keyword-only")), "**more"]
    )


def call(case):
    """The call of the function `f` on `tensors`, one for each array."""
    put = lambda nest: write(
        nest, lambda leaf: f"tensors[{leaf.array}]" if isinstance(leaf, Slot) else f"static[{index_of(leaf)}]"
    )
    nest = {each.name: each.nest for each in case.parameters} | case.more
    by_position = [each.nest for each in case.parameters if each.passed == "position"]
    given = [*map(put, [*by_position, *case.rest]), *(f"{name}={put(nest[name])}" for name in case.keywords)]
    return f"f({', '.join(given)})"


# --- the truth, by NumPy alone -------------------------------------------------------------------------------------


def true_outputs(case):
    return [
        OPERATIONS[leaf.operation](np, case.array(leaf.source.array)) if isinstance(leaf, Output) else leaf
        for leaf in leaves(case.output)
    ]


def true_loss(case):
    """What the loss sums up: every output times its weights."""
    pairs = zip(leaves(case.output), true_outputs(case), strict=True)
    found = [loss_weight(case, leaf).conj() * value for leaf, value in pairs if isinstance(leaf, Output)]
    return np.concatenate([np.real(each).ravel().astype(float) for each in found])


def true_gradients(case):
    """One array for each of the case's, with zeros where the rule gives no gradient."""
    found = [np.zeros(shape, complex) for shape in case.shapes]
    used = [
        leaf for leaf in leaves(case.output) if isinstance(leaf, Output) and case.is_differentiable(leaf.source.array)
    ]
    total = sum(np.sum(ramp(case, leaf) * loss_weight(case, leaf)) for leaf in used)
    for slot in leaves(case.returned):
        if isinstance(slot, Slot) and case.is_differentiable(slot.array):
            x = case.array(slot.array)
            of_real = np.real(total) + 2 * np.imag(total)
            found[slot.array] += (total if np.iscomplexobj(x) else of_real) * (slot.factor + x)
    return found


# --- the tests -----------------------------------------------------------------------------------------------------


def run(name, mode, case):
    """`(loss, gradients)` by the framework's own engine."""
    native = importlib.import_module(f"frameworks.{name}")
    arrays = [case.array(number) for number in range(len(case.shapes))]
    # autograd takes no integers.
    free = [
        number
        for number in range(len(arrays))
        if not case.constant[number] and (name != "numpy" or case.is_differentiable(number))
    ]
    weights = {
        leaf: [native.tensor(np.array(part(loss_weight(case, leaf)))) for part in (np.real, np.imag)]
        for leaf in leaves(case.output)
        if isinstance(leaf, Output)
    }
    constants = [native.tensor(array) for array in arrays]
    cast = caster(name)
    wide = lambda value: cast(value, "float64")
    scope = {"f": build(case, native.tensor, cast), "static": STATIC, "Point": Point, "Pair": Pair}
    scope["OrderedDict"] = collections.OrderedDict
    call_it = eval(f"lambda tensors: {call(case)}", scope)
    outputs = paths(case.output, "output")
    read = eval(f"lambda output: [{', '.join(path for _, path in outputs)}]")

    def narrow(tensor, number):
        return cast(tensor, "bfloat16") if case.dtypes[number] == "bfloat16" else tensor

    def evaluate(*given):
        tensors = [*constants]
        for number, tensor in zip(free, given, strict=True):
            tensors[number] = tensor
        output = call_it([narrow(tensor, number) for number, tensor in enumerate(tensors)])
        found = []
        for (leaf, _), value in zip(outputs, read(output), strict=True):
            if not isinstance(leaf, Output):
                assert value is leaf or value == leaf
                continue
            real, imaginary = weights[leaf]
            if "complex" in case.dtypes[leaf.source.array]:
                found.append(wide(ops.real(value)) * real + wide(ops.imag(value)) * imaginary)
            else:
                found.append(wide(value) * real)
        # What no output depends on gets zeros everywhere.
        differentiated = [each for number, each in zip(free, given, strict=True) if case.is_differentiable(number)]
        found += [0 * wide(ops.real(each)) for each in differentiated]
        return ops.concatenate([ops.reshape(each, (-1,)) for each in found])

    loss, gradients = native.differentiate(evaluate, [arrays[number] for number in free], mode)
    return loss, dict(zip(free, gradients, strict=True))


def check(name, mode, case):
    """Asserts what a case must give; whether it did not say in two ways what its rule meant."""
    note(f"{source(case)}\n{call(case)}")
    with keras_cg.use_backend(name), float64(name):
        try:
            loss, gradients = run(name, mode, case)
        except Exception as error:
            # None for a nest can make a result ambiguous, and that alone may be refused.
            if "fit its arguments in two ways" in str(error) and any(
                leaf in (None, 0) for leaf in leaves(case.returned)
            ):
                return False
            raise
        expected = true_loss(case)
        np.testing.assert_array_equal(loss[: len(expected)], expected)
        for number, truth in enumerate(true_gradients(case)):
            if number in gradients and case.is_differentiable(number):
                # JAX and autograd give the conjugate.
                truth = truth.conj() if name in ("jax", "numpy") else truth
                assert gradients[number].dtype == case.array(number).dtype
                np.testing.assert_array_equal(gradients[number], truth)
        return True


def float64(name):
    """JAX has no float64 unless it is told to."""
    return importlib.import_module("jax").enable_x64(True) if name == "jax" else contextlib.nullcontext()


def has_dict_without_tensors(nest):
    if type(nest) is dict and not any(isinstance(leaf, (Slot, Output)) for leaf in leaves(nest)):
        return True
    return any(map(has_dict_without_tensors, parts(nest) or ()))


def traces(case):
    """Whether torch.compile can take the containers of a case: see docs/limits.md."""
    return not any(map(has_dict_without_tensors, [*case.complete(), case.output, case.returned]))


def for_all(examples, dtypes, wanted=lambda case: True):
    """Runs a check on that many cases, the same ones in every run."""

    def decorate(check):
        settings(
            max_examples=examples,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
        )(given(cases(dtypes).filter(wanted))(check))()

    return decorate


def dtypes_of(*names):
    return tuple(dtype for dtype in DTYPES if dtype != "bfloat16" or "numpy" not in names)


@pytest.mark.filterwarnings("ignore:the rule of .* returned no gradient")
def test_random_cases(frame):
    understood = []
    # What frameworks make of shapes and dtypes that they have not seen yet takes JAX and TensorFlow long.
    examples = 150 if frame.mode == "eager" and frame.name in ("jax", "tensorflow") else EXAMPLES[frame.mode]

    wanted = traces if frame.mode == "aot_eager" else lambda case: True

    @for_all(examples, dtypes_of(frame.name), wanted)
    def _(case):
        understood.append(check(frame.name, frame.mode, case))

    assert sum(understood) >= 0.95 * examples


@pytest.mark.side_by_side
@pytest.mark.filterwarnings("ignore:the rule of .* returned no gradient")
def test_random_cases_on_every_backend_in_one_process(backends):
    @for_all(TOGETHER, dtypes_of(*backends))
    def _(case):
        assert len({check(name, "eager", case) for name in backends}) == 1
