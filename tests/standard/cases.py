"""How each function of the standard is called: for every one a strategy of calls, `(args, kwargs)` with NumPy arrays.

Every call of a list has other dtypes, or other arguments; hypothesis draws the numbers. The shapes are few, because JAX
compiles each function again for each.
"""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_cg.namespaces import standard

# `f` float32, `i` int32, `u` uint8, `c` complex64, `b` bool.
KINDS = {"f": np.float32, "i": np.int32, "u": np.uint8, "c": np.complex64, "b": np.bool_, "s": np.int8}
# What rounding, comparing and powers have special rules for.
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.0], np.float32)


def elements(kind, low, high):
    if kind == "b":
        return st.booleans()
    if kind in "ius":
        return st.integers(max(int(low), 0) if kind == "u" else int(low), int(high))
    numbers = st.integers(round(low * 16), round(high * 16)).map(lambda number: number / 16)
    return numbers if kind == "f" else st.builds(complex, numbers, numbers)


def array(kind="f", shape=(2, 3), low=-4, high=4):
    return hnp.arrays(KINDS[kind], shape, elements=elements(kind, low, high), fill=st.nothing())


def distinct(kind="f", shape=(2, 3)):
    """No two elements are equal, so that there is one answer to what is the largest."""
    size = int(np.prod(shape))
    return st.permutations(range(size)).map(lambda order: np.array(order, KINDS[kind]).reshape(shape))


def regular(kind="f", shape=(2, 3, 3)):
    """Matrices that are far from singular."""
    return array(kind, shape, -1, 1).map(lambda x: (x + 4 * np.eye(shape[-1])).astype(x.dtype))


def hermitian(kind="f", shape=(3, 3)):
    """Hermitian, positive, with eigenvalues that are far from each other."""
    far = np.diag([3.0, 9.0, 27.0])
    return array(kind, shape, -1, 1).map(lambda x: ((x + x.conj().swapaxes(-1, -2)) / 2 + far).astype(x.dtype))


def call(*args, **kwargs):
    """A call with arguments of which some are strategies."""
    args = [arg if isinstance(arg, st.SearchStrategy) else st.just(arg) for arg in args]
    return st.tuples(st.tuples(*args), st.just(kwargs))


def unary(kinds, low=-4, high=4):
    # Of the shape of SPECIAL, so that JAX compiles it once for both.
    floats = [call(SPECIAL), call(array("f", (7,), low, high))] if "f" in kinds else []
    return [*floats, *[call(array(kind, (2, 3), low, high)) for kind in kinds if kind != "f"]]


def binary(kinds, number=None, low=-4, high=4, special=True):
    """With arrays that are broadcast, with a Python number on either side, and with dtypes that are promoted."""
    for kind in kinds:
        shape = (7, 1) if kind == "f" else (2, 1)
        yield call(array(kind, shape, low, high), array(kind, (7,), low, high))
        if number is not None and kind == kinds[0]:
            yield call(array(kind, (7,), low, high), number)
            yield call(number, array(kind, (7,), low, high))
    if special and "f" in kinds:
        yield call(SPECIAL[:, None], SPECIAL)
    if "i" in kinds and "u" in kinds:
        yield call(array("s", (2, 3), max(low, 0), high), array("i", (2, 3), max(low, 0), high))


def reduction(kinds, values=array, **options):
    for kind in kinds:
        yield call(values(kind), axis=-2, keepdims=True, **options)
        if kind == kinds[0]:
            yield call(values(kind), **options)
            yield call(values(kind), axis=1, **options)
            yield call(values(kind, (2, 3, 2)), axis=(0, 2), **options)


def cumulative(kinds):
    for kind in kinds:
        yield call(array(kind), axis=0, include_initial=True)
        if kind == kinds[0]:
            yield call(array(kind, (4,)))
            yield call(array(kind), axis=1)
    yield call(array("i"), axis=-1, dtype="float32")


def creation(*args, **kwargs):
    yield call(*args, **kwargs)
    for dtype in ("float32", "int32", "complex64"):
        yield call(*args, dtype=dtype, **kwargs)


ELEMENTWISE = {
    **{name: unary("fc") for name in ("conj", "cos", "sin", "exp", "sqrt", "sinh", "cosh")},
    **{name: unary("fc", -1.5, 1.5) for name in ("tan", "tanh", "asinh", "expm1", "atan")},
    **{name: unary("f") + unary("c", 1 / 16, 4) for name in ("log", "log10", "log2", "log1p", "acosh")},
    **{name: unary("f") + unary("c", 1 / 16, 1 / 2) for name in ("acos", "asin", "atanh")},
    **{name: unary("f") + unary("c", 1 / 16, 4) for name in ("reciprocal",)},
    **{name: unary("fiu") for name in ("ceil", "floor", "trunc")},
    **{name: unary("fic") for name in ("abs", "negative", "positive", "square", "sign", "round")},
    **{name: unary("fic") for name in ("isfinite", "isinf", "isnan")},
    **{name: unary("c") for name in ("real", "imag")},
    "signbit": unary("f"),
    "logical_not": unary("b"),
    "bitwise_invert": unary("biu"),
    **{name: list(binary("fiuc", 2, special=False)) for name in ("add", "multiply", "subtract")},
    **{name: list(binary("fiucb", 2)) for name in ("equal", "not_equal")},
    **{name: list(binary("fiu", 2)) for name in ("greater", "greater_equal", "less", "less_equal")},
    **{name: list(binary("fiu", 2)) for name in ("maximum", "minimum")},
    **{name: list(binary("f", 2.0)) for name in ("atan2", "copysign", "hypot", "logaddexp")},
    "nextafter": list(binary("f", 2.0, special=False)),
    "divide": list(binary("f", 2.0)) + list(binary("c", 2.0, 1 / 16, 4, False)),
    **{name: list(binary("fiu", 2, 1, 4, False)) + list(binary("f", 2)) for name in ("floor_divide", "remainder")},
    "pow": [*binary("fiu", 2, 1, 4, False), *binary("c", 2.0, 1, 2, False), *binary("f", 2.0)],
    **{name: list(binary("b", True)) for name in ("logical_and", "logical_or", "logical_xor")},
    **{name: list(binary("iub", 2)) for name in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{name: list(binary("iu", 2, 0, 4)) for name in ("bitwise_left_shift", "bitwise_right_shift")},
    "clip": [
        *[call(array(kind), -1 if kind != "u" else 1, 2) for kind in "fiu"],
        *[call(SPECIAL, min=0.5), call(SPECIAL, -1.0, 1.0), call(array("f"), max=0.5), call(array("f"))],
        call(array("f"), array("f", (3,), -2, -1), array("f", (3,), 1, 2)),
        call(array("f"), -1.0, array("f", (3,), 1, 2)),
    ],
}

CREATION = {
    "arange": [call(4), call(1, 7, 2), call(3, step=0.5), call(1.0, 2.0, 0.25), call(3, dtype="float32"), call(0)],
    "asarray": [call([1.0, 2.0]), call([[1, 2], [3, 4]]), call(True), call(2j), call([1, 2], dtype="float32")]
    + [call(array(kind)) for kind in "fic"]
    + [call(array("f"), copy=True), call(array("f"), dtype="int32")],
    "empty": list(creation((2, 3))),
    "empty_like": [call(array("f")), call(array("i")), call(array("f"), dtype="int32")],
    "eye": [*creation(3), call(2, 3, k=1), call(3, 2, k=-1, dtype="float32")],
    "from_dlpack": [call(array("f")), call(array("i"))],
    "full": [*creation((2, 3), 2), call((2,), 1.5), call((), True), call((2,), 1j), call(3, 2.0)],
    "full_like": [call(array("f"), 2), call(array("i"), 2), call(array("f"), 2, dtype="int32"), call(array("f"), True)],
    "linspace": [call(0, 1, 5), call(0.0, 2.0, num=4, endpoint=False), call(0, 1, 3, dtype="float32"), call(1, 3, 1)],
    "meshgrid": [
        *[call(array("f", (2,)), array("f", (3,))), call(array("f", (2,)), array("f", (3,)), indexing="ij")],
        *[call(array("f", (2,))), call(array("i", (2,)), array("i", (3,)), array("i", (2,)))],
    ],
    **{name: [*creation((2, 3)), call(3), call(())] for name in ("ones", "zeros")},
    **{
        name: [call(array("f")), call(array("i")), call(array("f"), dtype="int32")]
        for name in ("ones_like", "zeros_like")
    },
    **{
        name: [call(array("f", (3, 3))), call(array("i", (2, 3, 3)), k=1), call(array("c"), k=-1)]
        for name in ("tril", "triu")
    },
}

DATA_TYPES = {
    "astype": [
        *[call(array("f"), "int32"), call(array("i"), "float32"), call(array("b"), "float32")],
        *[call(array("f"), "complex64", copy=False), call(array("f"), "float32"), call(array("f"), "bool")],
    ],
    "can_cast": [
        *[call("float32", "complex64"), call("float32", "int32"), call("int8", "int16"), call("uint8", "int8")],
        *[call(array("f"), "float64"), call("int32", "bool")],
    ],
    "finfo": [call("float32"), call("complex64"), call(array("f")), call("float64")],
    "iinfo": [call("int32"), call("uint8"), call(array("i"))],
    "isdtype": [call("float32", kind) for kind in ("real floating", "numeric", "integral", "float32", ("bool", "int8"))]
    + [call("uint8", "unsigned integer"), call("int8", "signed integer"), call("bool", "bool")]
    + [call("complex64", ("integral", "complex floating"))],
    "result_type": [
        *[call("float32", "complex64"), call(array("f"), "float32"), call("int8", "int16"), call("uint8", "int8")],
        *[call(array("f"), 1.0), call(array("i"), 2, array("i")), call(array("f"), 1j), call(2, "float32")],
    ],
}

MANIPULATION = {
    "broadcast_arrays": [
        call(array("f"), array("f", (3,))),
        call(array("i", (2, 1)), array("f", (3,)), array("f", ())),
    ],
    "broadcast_to": [call(array("f", (3,)), (2, 3)), call(array("i", (2, 1)), shape=(4, 2, 3))],
    "concat": [call(st.tuples(array(kind), array(kind))) for kind in "fic"]
    + [call(st.lists(array("f"), min_size=2, max_size=2), axis=-1)]
    + [call(st.tuples(array("f"), array("f", (3,))), axis=None)],
    "expand_dims": [call(array("f"), axis=0), call(array("f"), axis=-1), call(array("i"), axis=1)],
    "flip": [call(array("f")), call(array("f"), axis=1), call(array("i"), axis=(0, 1)), call(array("f", ()))],
    "moveaxis": [call(array("f", (2, 3, 2)), 0, -1), call(array("i", (2, 3, 2)), (0, 1), (1, 2))],
    "permute_dims": [call(array("f"), (1, 0)), call(array("i", (2, 3, 2)), axes=(2, 0, 1))],
    "repeat": [
        *[call(array("f"), 2), call(array("f"), 2, axis=1), call(array("i", (3,)), array("i", (3,), 0, 2))],
        call(array("f"), array("i", (2,), 0, 2), axis=0),
    ],
    "reshape": [call(array("f"), (3, 2)), call(array("i"), shape=(-1,)), call(array("f"), (6,), copy=True)],
    "roll": [call(array("f"), 1), call(array("f"), 1, axis=1), call(array("i"), shift=(1, 2), axis=(0, 1))],
    "squeeze": [call(array("f", (1, 3, 1)), 0), call(array("i", (1, 3, 1)), axis=(0, -1))],
    "stack": [call(st.tuples(array(kind), array(kind))) for kind in "fi"]
    + [call(st.tuples(array("f"), array("f")), axis=-1)],
    "tile": [call(array("f"), (2,)), call(array("i"), (1, 2)), call(array("f"), (2, 1, 1))],
    "unstack": [call(array("f")), call(array("i"), axis=1)],
}

SEARCHING = {
    **{
        name: [call(distinct(kind)) for kind in "fi"]
        + [call(distinct("f"), axis=1), call(distinct("i"), axis=0, keepdims=True), call(distinct("f"), keepdims=True)]
        for name in ("argmax", "argmin")
    },
    "count_nonzero": list(reduction("fib")),
    "nonzero": [call(array(kind)) for kind in "fib"],
    "searchsorted": [
        call(array("f", (5,)).map(np.sort), array("f", (2, 3))),
        call(array("f", (5,)).map(np.sort), array("f", (3,)), side="right"),
        call(array("i", (5,)).map(np.sort), array("i", (3,)), side="left"),
    ],
    "take": [
        call(array("f", (4,)), array("i", (3,), 0, 3)),
        call(array("f"), array("i", (4,), 0, 2), axis=1),
        call(array("i"), array("i", (2,), -2, 1), axis=0),
    ],
    "take_along_axis": [
        call(array("f"), array("i", (2, 2), 0, 2)),
        call(array("i"), array("i", (1, 3), -2, 1), axis=0),
    ],
    "where": [call(array("b"), array(kind), array(kind)) for kind in "fic"]
    + [
        call(array("b"), array("f", (3,)), 0.0),
        call(array("b"), 1, array("f")),
        call(array("b", ()), array("f"), array("f")),
    ]
    + [call(array("b"), array("f"), array("c"))],
}

SETS = {
    **{
        name: [call(distinct(kind)) for kind in "fi"]
        + [call(distinct("f"), axis=0), call(distinct("f"), descending=True), call(array("i"), stable=True)]
        + [call(array("f"), axis=0, descending=True, stable=True)]
        for name in ("argsort", "sort")
    },
    **{f"unique_{name}": [call(array("i")), call(array("f", (4,)))] for name in ("all", "counts", "inverse", "values")},
}

STATISTICS = {
    **{name: list(reduction("bfi")) for name in ("all", "any")},
    **{name: list(reduction("fi")) for name in ("max", "min")},
    "mean": list(reduction("fc")),
    **{name: [*reduction("fiuc"), *reduction("fi", dtype="float32")] for name in ("prod", "sum")},
    **{
        name: [*reduction("f"), *reduction("f", correction=1), *reduction("f", correction=0.5)]
        for name in ("std", "var")
    },
    "cumulative_prod": list(cumulative("fiuc")),
    "cumulative_sum": list(cumulative("fiuc")),
    "diff": [
        call(array("f")),
        call(array("i"), axis=0),
        call(array("f"), n=2),
        call(array("f"), n=0),
        st.tuples(
            st.tuples(array("f")), st.fixed_dictionaries({"prepend": array("f", (2, 1)), "append": array("f", (2, 1))})
        ),
    ],
}


MATMUL = [
    *[call(array(kind, (3,), -2, 2), array(kind, (3,), -2, 2)) for kind in "fic"],
    *[call(array(kind, (2, 3), -2, 2), array(kind, (3, 2), -2, 2)) for kind in "fic"],
    *[call(array("f", (2, 2, 3)), array("f", (3, 2))), call(array("f", (3,)), array("f", (2, 3, 2)))],
]
TRANSPOSE = [call(array("f")), call(array("i", (2, 3, 2)))]
TENSORDOT = [
    call(array("f", (2, 3, 2)), array("f", (3, 2, 4))),
    call(array("f"), array("f", (3, 2)), axes=1),
    *[call(array("f"), array("f"), axes=((0, 1), (0, 1))), call(array("i", (2,)), array("i", (3,)), axes=0)],
    call(array("c"), array("c", (3, 2)), axes=((1,), (0,))),
]
VECDOT = [call(array(kind), array(kind)) for kind in "fic"] + [
    *[call(array("f"), array("f", (3,))), call(array("f", (3, 2)), array("f", (3, 2)), axis=-2)]
]
AXES = (None, 1, (0, 1))

LINALG = {
    "matmul": MATMUL,
    "matrix_transpose": TRANSPOSE,
    "tensordot": TENSORDOT,
    "vecdot": VECDOT,
    "linalg.cholesky": [call(hermitian(kind)) for kind in "fc"] + [call(hermitian(kind), upper=True) for kind in "fc"],
    "linalg.cross": [call(array(kind), array(kind)) for kind in "fi"]
    + [call(array("f", (3, 2)), array("f", (3, 2)), axis=-2)],
    "linalg.det": [call(regular("f")), call(regular("c", (3, 3)))],
    "linalg.diagonal": [call(array("f")), call(array("i", (2, 3, 3)), offset=1), call(array("f", (3, 3)), offset=-1)],
    "linalg.eigh": [call(hermitian("f")), call(hermitian("c"))],
    "linalg.eigvalsh": [call(hermitian("f")), call(hermitian("c"))],
    "linalg.inv": [call(regular("f")), call(regular("c", (3, 3)))],
    "linalg.matmul": MATMUL,
    "linalg.matrix_norm": [
        call(array("f"), ord=order) for order in ("fro", "nuc", 1, -1, 2, -2, float("inf"), -float("inf"))
    ]
    + [
        call(array("f", (2, 2, 3)), keepdims=True),
        call(array("c")),
        call(array("f", (2, 2, 3)), ord="nuc", keepdims=True),
    ],
    "linalg.matrix_power": [call(regular("f"), power) for power in (-2, 0, 1, 3)],
    "linalg.matrix_rank": [
        call(regular("f")),
        call(array("f", (1, 3)).map(lambda x: np.concatenate([x, x]))),
        call(regular("f", (3, 3)), rtol=0.001),
    ],
    "linalg.matrix_transpose": TRANSPOSE,
    "linalg.outer": [call(array(kind, (2,)), array(kind, (3,))) for kind in "fic"],
    "linalg.pinv": [
        *[call(regular("f")), call(regular("f", (3, 3)).map(lambda x: x[:2])), call(regular("c", (3, 3)), rtol=1e-4)]
    ],
    "linalg.qr": [
        call(regular("f")),
        call(regular("f", (3, 3)).map(lambda x: x[:, :2]), mode="complete"),
        call(regular("c", (3, 3))),
    ],
    "linalg.slogdet": [call(regular("f")), call(regular("c", (3, 3)))],
    "linalg.solve": [
        *[call(regular("f"), array("f", (3,))), call(regular("f"), array("f", (2, 3, 2)))],
        *[call(regular("f", (3, 3)), array("f", (3, 2))), call(regular("c", (3, 3)), array("c", (3,)))],
        call(regular("f"), array("f", (3, 2))),
    ],
    "linalg.svd": [
        call(hermitian("f").map(lambda x: x[:2]), full_matrices=False),
        call(hermitian("f").map(lambda x: x[:2])),
        call(hermitian("c")),
    ],
    "linalg.svdvals": [call(regular("f")), call(array("c"))],
    "linalg.tensordot": TENSORDOT,
    "linalg.trace": [call(array(kind, (2, 3, 3))) for kind in "fiu"]
    + [call(array("f"), offset=1), call(array("i"), dtype="float32")],
    "linalg.vecdot": VECDOT,
    "linalg.vector_norm": [call(array("f"), axis=axis) for axis in AXES]
    + [
        call(array("f"), axis=1, keepdims=True, ord=order)
        for order in (0, 1, 2, 3, -1, 0.5, float("inf"), -float("inf"))
    ]
    + [call(array("c"), axis=0), call(array("f"), keepdims=True)],
}

FFT = {
    **{
        f"fft.{name}": [
            *[call(array(kind, (2, 4)), **options) for options in ({}, {"n": 3}, {"n": 6, "axis": 0})],
            *[call(array(kind, (2, 4)), norm=norm) for norm in ("ortho", "forward")],
        ]
        for kind, names in {"c": ("fft", "ifft", "irfft", "hfft"), "f": ("rfft", "ihfft")}.items()
        for name in names
    },
    **{
        f"fft.{name}": [
            call(array(kind, (2, 4, 4))),
            call(array(kind, (2, 4, 4)), s=(3, 5), axes=(0, 2)),
            call(array(kind, (2, 4)), axes=(1,), norm="ortho"),
        ]
        for name, kind in (("fftn", "c"), ("ifftn", "c"), ("rfftn", "f"), ("irfftn", "c"))
    },
    **{f"fft.{name}": [call(4), call(5, d=0.5), call(4, dtype="float32")] for name in ("fftfreq", "rfftfreq")},
    **{
        f"fft.{name}": [call(array("f", (2, 5))), call(array("c", (2, 4)), axes=1)]
        for name in ("fftshift", "ifftshift")
    },
}

CASES = ELEMENTWISE | CREATION | DATA_TYPES | MANIPULATION | SEARCHING | SETS | STATISTICS | LINALG | FFT
assert CASES.keys() == standard.FUNCTIONS.keys()
