"""A function of the active backend, compared with that of array-api-strict, the standard's reference implementation."""

import warnings
import zlib

import array_api_strict
import frameworks
import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from keras_cg import ops
from keras_cg.frontend import config
from keras_cg.namespaces import standard
from standard.cases import CASES

array_api_strict.set_array_api_strict_flags(api_version=standard.VERSION)
DTYPES = {name: getattr(array_api_strict, name) for name in standard.DTYPES}
# The dtypes that a framework takes in the place of the standard's default ones.
DEFAULTS = {
    "jax": {"float64": "float32", "int64": "int32", "complex128": "complex64", "uint64": "uint32"},
    "torch": {"float64": "float32", "complex128": "complex64"},
}
# A backend that lives elsewhere has them, and the page, in the file that `frameworks.native` finds.
SAME, DEFAULT, REFUSED, DIFFERS = "same", "default dtype", "refused", "differs"
FEW = settings(max_examples=3, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def function(namespace, name):
    for part in name.split("."):
        namespace = getattr(namespace, part)
    return namespace


def mapped(do, value):
    """`value` with `do` on every array in it."""
    if isinstance(value, (tuple, list)):
        return type(value)([mapped(do, part) for part in value])
    return do(value) if isinstance(value, np.ndarray) else value


def named(value):
    """The dtypes in `value` as array-api-strict has them, which takes no names."""
    if isinstance(value, str):
        return DTYPES.get(value, value)
    return tuple(map(named, value)) if isinstance(value, tuple) else value


def reference(name, args, kwargs):
    args = [named(mapped(array_api_strict.asarray, arg)) for arg in args]
    kwargs = {key: named(mapped(array_api_strict.asarray, value)) for key, value in kwargs.items()}
    with np.errstate(all="ignore"):
        return function(array_api_strict, name)(*args, **kwargs)


def ours(name, args, kwargs):
    as_tensor = lambda value: config.active.asarray(value)
    args = [mapped(as_tensor, arg) for arg in args]
    kwargs = {key: mapped(as_tensor, value) for key, value in kwargs.items()}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        return function(ops, name)(*args, **kwargs)


def parts(value, like):
    """What is compared of a result: leaves, and what they are called."""
    if isinstance(value, (tuple, list)):
        names = [*getattr(like, "_fields", range(len(value)))]
        # What torch calls its results, it lists nowhere.
        is_named = all(getattr(value, each, None) is not None for each in names if isinstance(each, str))
        return names if is_named else type(value), list(value)
    if type(like).__name__ in ("finfo_object", "iinfo_object"):
        fields = ["bits", "max", "min", *(["eps", "smallest_normal"] if hasattr(like, "eps") else [])]
        return fields, [float(getattr(value, field)) for field in fields]
    return [""], [value]


def plain(value):
    """An array as NumPy's and its dtype's name; a dtype by its name."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value, type(value).__name__
    if isinstance(value, np.generic) and value.ndim == 0 and value.dtype == bool:
        return np.asarray(value), "bool"
    if isinstance(value, array_api_strict._array_object.Array):
        return np.asarray(value._array), str(value._array.dtype)
    if config.active.is_tensor(value):
        return config.active.to_numpy(value), config.active.dtype(value)
    return dtype_name(value), "dtype"


def dtype_name(dtype):
    """The name of a dtype, of whatever framework."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    return name.removeprefix("torch.").removeprefix("array_api_strict.").rstrip("_")


# What is compared in the place of a result that is not the only right one.
INSTEAD = {
    "linalg.eigh": lambda w, v: [w, (v * w[..., None, :]) @ np.conj(np.swapaxes(v, -1, -2))],
    "linalg.qr": lambda q, r: [np.abs(q[..., : r.shape[-1]]), np.abs(r), q @ r],
    "linalg.svd": lambda u, s, v: [s, np.abs(u), np.abs(v[..., : s.shape[-1], :])],
    "empty": lambda x: [np.zeros_like(x)],
    "empty_like": lambda x: [np.zeros_like(x)],
}


def differences(backend, name, args, kwargs):
    """What differs in one call: nothing, DEFAULT, or a sentence."""
    expected = reference(name, args, kwargs)
    try:
        result = ours(name, args, kwargs)
    except NotImplementedError as error:
        if f"`{name}`" in str(error) and repr(backend) in str(error):
            return REFUSED
        return f"raises {type(error).__name__}: {error}"
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    (names, values), (due_names, due) = parts(result, expected), parts(expected, expected)
    if names != due_names:
        return f"gives the parts {names} for {due_names}"
    values, due = [plain(value) for value in values], [plain(value) for value in due]
    dtypes, due_dtypes = [kind for _, kind in values], [kind for _, kind in due]
    default = [defaults(backend).get(kind, kind) for kind in due_dtypes]
    if dtypes not in (due_dtypes, default):
        return f"gives {dtypes} for {due_dtypes}"
    values, due = [value for value, _ in values], [value for value, _ in due]
    if name in INSTEAD:
        values, due = INSTEAD[name](*values), INSTEAD[name](*due)
    for value, right in zip(values, due, strict=True):
        if not equal(value, right) and not (isinstance(right, str) and value == defaults(backend).get(right)):
            return f"gives {value!r} for {right!r}"
    return None if dtypes == due_dtypes and all(map(equal, values, due)) else DEFAULT


def equal(value, right):
    if isinstance(right, (str, type(None))):
        return value == right
    if np.shape(value) != np.shape(right):
        return False
    if np.asarray(right).dtype.kind in "fc":
        scale = np.max(np.abs(np.asarray(right)[np.isfinite(right)]), initial=0)
        return bool(np.allclose(value, right, rtol=1e-4, atol=1e-5 * max(1, scale), equal_nan=True))
    return bool(np.array_equal(value, right))


def defaults(backend):
    """The dtypes that a framework takes in the place of the standard's."""
    return DEFAULTS[backend] if backend in DEFAULTS else getattr(frameworks.native(backend), "DEFAULTS", {})


def named_default(parameter):
    return parameter.kind is not parameter.POSITIONAL_ONLY and parameter.default is not parameter.empty


def compare(backend, name):
    """`(outcome, what differs)` of a function of the active backend."""
    found = {}

    @FEW
    @seed(zlib.crc32(name.encode()))
    @given(st.tuples(*CASES[name]))
    def collect(calls):
        # Once more with every default of the standard given by its name.
        first, options = calls[0]
        given = standard.parameters(standard.FUNCTIONS[name])[len(first) :]
        optional = {each.name: each.default for each in given if named_default(each)}
        for place, (args, kwargs) in enumerate((*calls, (first, {**optional, **options}))):
            found.setdefault(differences(backend, name, args, kwargs), (place, args, kwargs))

    collect()
    found.pop(None, None)
    if not found:
        return SAME, {}
    if found.keys() == {DEFAULT}:
        return DEFAULT, {}
    if found.keys() <= {DEFAULT, REFUSED}:
        return REFUSED, {}
    found.pop(DEFAULT, None)
    return DIFFERS, found
