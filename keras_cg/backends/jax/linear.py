"""Is a program linear in what it is given? Then its transpose is the forward derivative of what it is the rule of.

JAX transposes a program without asking: it would drop a constant that is added, so that this must be known before. It
is proved from the program, operation by operation. One that is not in the tables counts as not linear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy
from jax.extend import linear_util
from jax.extend.core import Literal
from jax.interpreters.partial_eval import trace_to_jaxpr_dynamic

from keras_cg.backends.jax.names import DebugInfo
from keras_cg.backends.jax.tensors import is_floating
from keras_cg.engine import messages


def program(fun: Callable[..., Sequence[Any]], avals: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """What `fun` does with values of such types, as a jaxpr, and what it closes over."""
    # Not make_jaxpr, which is a jit around this: for a small function JAX (0.10) takes three times as long for that.
    wrapped = linear_util.wrap_init(fun, debug_info=_DESCRIPTION)
    jaxpr, _, consts = trace_to_jaxpr_dynamic(wrapped, [*avals])
    return jaxpr, consts


# What JAX's own messages say of what is traced here; its arguments have no names.
_DESCRIPTION = DebugInfo("keras_cg.custom_gradient", "with a gradient of its own", None, None)


def split_invars(jaxpr: Any, count: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """The variables of a jaxpr that stand for what it closes over, and those of its `count` inputs."""
    # JAX (0.12) has the former among the latter, in front; earlier ones (0.10) have them apart.
    variables = [*jaxpr.constvars, *jaxpr.invars]
    start = len(variables) - count
    return variables[:start], variables[start:]


def transposed(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """What the transpose of a linear map from values of such types gives for `given`.

    Raises:
        ValueError: The program of `fun` does not show that it is linear, or JAX has no transpose of it.
    """
    jaxpr, consts = program(fun, avals)
    for kind in _kinds(jaxpr, [LINEAR] * len(avals)):
        if kind not in (ZERO, LINEAR):
            raise messages.not_linear("a rule that gives a constant" if kind == CONSTANT else kind)
    try:
        return [*jax.linear_transpose(lambda *inputs: jax.core.eval_jaxpr(jaxpr, consts, *inputs), *avals)([*given])]
    except Exception as error:
        # JAX raises what comes: of a scan over upstream, JAX (0.9) says that a value is of a wrong type.
        raise messages.not_linear("a program that JAX does not transpose") from error


# --- the proof -----------------------------------------------------------------------------------

# What a value can be: always zero, the same for all inputs, linear in the inputs; or neither, for the reason that an
# obstacle names.
ZERO, CONSTANT, LINEAR = "zero", "constant", "linear"


class _Obstacle(str):
    """What upstream passes through that is not known to be linear, as a message says it."""

    __slots__ = ()


# Linear in all operands together, and in one of them. An index or a condition is no operand.
_SUMS = frozenset(
    "add add_any all_gather all_gather_invariant all_to_all broadcast_in_dim complex concatenate conj"  # noqa: SIM905 - as a list it would fill a screen
    " convert_element_type copy copy_p cumsum device_put dynamic_slice dynamic_update_slice expand_dims fft gather"
    " imag layout_constraint neg pad pbroadcast ppermute psum psum_invariant pvary real"
    " reduce_scatter reduce_sum reduce_window_sum reshape reshard rev scatter scatter-add scatter-sub select_n"
    " sharding_constraint slice split squeeze stack sub tile transpose unstack".split()
)
_PRODUCTS = frozenset(["conv_general_dilated", "dot_general", "mul", "ragged_dot_general"])

# Linear in the operands that stand here alone.
_QUOTIENTS = {
    "custom_linear_solve": lambda equation, operands: operands[sum(equation.params["const_lengths"]) :],
    "div": lambda equation, operands: operands[:1],
    # Not in the factors: what is not multiplied would be added.
    "scatter-mul": lambda equation, operands: operands[:1],
    "triangular_solve": lambda equation, operands: operands[1:],
    "tridiagonal_solve": lambda equation, operands: operands[3:],
}

# What only calls a program; and which parameter has that.
_CALLS = {
    "call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "jit": "jaxpr",
    "remat2": "jaxpr",
    "shard_map": "jaxpr",
}


def _kinds(jaxpr: Any, inputs: Sequence[str]) -> list[str]:
    """What each output of a program is, if the inputs are of such kinds."""
    # JAX (0.10) has some programs with what they close over around them.
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    kinds: dict[Any, str] = dict(zip(split_invars(jaxpr, len(inputs))[1], inputs, strict=True))

    def kind_of(operand: Any) -> str:
        if isinstance(operand, Literal):
            return CONSTANT if numpy.any(operand.val) else ZERO
        kind = kinds.get(operand, CONSTANT)
        # What has no elements has none that is not zero.
        return ZERO if kind == CONSTANT and 0 in getattr(operand.aval, "shape", ()) else kind

    for equation in jaxpr.eqns:
        kinds.update(zip(equation.outvars, _results(equation, [*map(kind_of, equation.invars)]), strict=True))
    return [*map(kind_of, jaxpr.outvars)]


def _results(equation: Any, operands: list[str]) -> list[str]:
    """What the results of one operation are."""
    name, params = equation.primitive.name, equation.params
    if name in _CALLS:
        return _kinds(params[_CALLS[name]], operands)
    if name == "cond" and operands[0] in (ZERO, CONSTANT):
        branches = [_kinds(branch, operands[1:]) for branch in params["branches"]]
        return [_joined(name, *kinds) for kinds in zip(*branches, strict=True)]
    if name == "scan":
        return _scanned(equation, operands)
    return [_kind(equation, operands)] * len(equation.outvars)


def _kind(equation: Any, operands: list[str]) -> str:
    """What each result of an operation is that runs no program."""
    name = equation.primitive.name
    if name in _SUMS and set(operands) == {ZERO}:
        return ZERO
    if set(operands) <= {ZERO, CONSTANT}:
        return ZERO if name in _PRODUCTS and ZERO in operands else CONSTANT
    for operand in operands:
        if isinstance(operand, _Obstacle):
            return operand
    obstacle = _Obstacle(f"`{name}`, which is not known to be linear")
    if _is_more(name, equation.params) or not all(is_floating(result.aval) for result in equation.outvars):
        return obstacle
    numbers = [kind for kind, operand in zip(operands, equation.invars, strict=True) if is_floating(operand.aval)]
    if name in _SUMS:
        return _joined(name, *numbers)
    if name in _PRODUCTS:
        return LINEAR if numbers.count(LINEAR) == 1 else _Obstacle(f"`{name}` with itself")
    if name in _QUOTIENTS:
        upper = _QUOTIENTS[name](equation, operands)
        is_linear = set(upper) <= {ZERO, LINEAR} and numbers.count(LINEAR) == upper.count(LINEAR)
        return LINEAR if is_linear else obstacle
    return obstacle


def _is_more(name: str, params: dict[str, Any]) -> bool:
    """Whether an operation of the tables does more than its name says."""
    if name == "gather":
        # What is gathered from outside of an array is a constant, which is added to a linear map.
        return bool(params["fill_value"])
    if name == "scatter":
        # `x.at[i].apply(g)` is a scatter that has g in it.
        return params["update_jaxpr"] is not None
    # Eight bits and fewer clip.
    return name == "convert_element_type" and params["new_dtype"].itemsize < 2


def _scanned(equation: Any, operands: list[str]) -> list[str]:
    """What the results of a scan are: what it carries is of one kind in all rounds."""
    body = getattr(equation.params["jaxpr"], "jaxpr", equation.params["jaxpr"])
    inner = split_invars(body, len(operands))[1]
    # What is carried has the same rank inside and outside; what is scanned has an axis less inside. (JAX 0.12 says it
    # in other words than 0.10.)
    carried = sum(_rank(out) == _rank(result) for out, result in zip(body.outvars, equation.outvars, strict=True))
    scanned = sum(_rank(variable) != _rank(operand) for variable, operand in zip(inner, equation.invars, strict=True))
    stop = len(operands) - scanned
    start = stop - carried
    while True:
        results = _kinds(body, operands)
        joined = [_joined("scan", before, after) for before, after in zip(operands[start:stop], results, strict=False)]
        if joined == operands[start:stop]:
            return [*joined, *results[carried:]]
        operands = [*operands[:start], *joined, *operands[stop:]]


def _rank(operand: Any) -> int:
    return len(getattr(operand.aval, "shape", ()))


def _joined(name: str, *kinds: str) -> str:
    """What is of one of some kinds, or the sum of all of them."""
    for kind in kinds:
        if isinstance(kind, _Obstacle):
            return kind
    found = set(kinds) - {ZERO}
    if len(found) > 1:
        return _Obstacle(f"`{name}` together with a constant")
    return found.pop() if found else ZERO
