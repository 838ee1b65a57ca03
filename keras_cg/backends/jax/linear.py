"""Proves that a rule is linear in its cotangents, and transposes it: the transpose is the forward derivative.

JAX transposes any program and drops a constant that is added in it, so linearity must be proved first. The proof goes
through the program operation by operation. An operation that is not in the tables counts as not linear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
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
    """Returns the jaxpr of `fun` for values of such types, and its constants."""
    # Not make_jaxpr, which is a jit of this: for a small function it takes three times as long (JAX 0.10).
    wrapped = linear_util.wrap_init(fun, debug_info=_DESCRIPTION)
    jaxpr, _, consts = trace_to_jaxpr_dynamic(wrapped, [*avals])
    return jaxpr, consts


# What JAX's own messages call the traced function; its arguments have no names.
_DESCRIPTION = DebugInfo("keras_cg.custom_gradient", "with a gradient of its own", None, None)


def split_invars(jaxpr: Any, count: int) -> tuple[Sequence[Any], Sequence[Any]]:
    """Returns the variables of a jaxpr for its constants, and those for its `count` inputs."""
    # In JAX 0.12 the constants are the first of the `invars`; in 0.10 they are `constvars`.
    variables = [*jaxpr.constvars, *jaxpr.invars]
    start = len(variables) - count
    return variables[:start], variables[start:]


def without_tangents(jaxpr: Any, count: int) -> Callable[..., list[Any]]:
    """Returns what evaluates a jaxpr, each operation once, so that its first `count` results have no derivative.

    What computes these alone then needs none, as a callback has none, and no transpose, as a while loop has none.
    """
    needed, before, after = _variables(jaxpr.outvars[count:]), [], []
    for equation in reversed(jaxpr.eqns):
        if needed.isdisjoint(equation.outvars):
            after.append(equation)
        else:
            before.append(equation)
            needed |= _variables(equation.invars)
    read = _variables(jaxpr.outvars[:count]).union(*[_variables(equation.invars) for equation in after])
    both = [each for equation in before for each in equation.outvars if each in read]
    first = jaxpr.replace(eqns=before[::-1], outvars=[*jaxpr.outvars[count:], *both])
    rest = jaxpr.replace(eqns=after[::-1], invars=[*jaxpr.invars, *both], outvars=jaxpr.outvars[:count])

    def evaluate(consts: Sequence[Any], *args: Any) -> list[Any]:
        results = jax.core.eval_jaxpr(first, consts, *args)
        stop = len(jaxpr.outvars) - count
        inputs = jax.lax.stop_gradient([[*consts], [*args, *results[stop:]]])
        return [*jax.core.eval_jaxpr(rest, inputs[0], *inputs[1]), *results[:stop]]

    return evaluate


def _variables(operands: Sequence[Any]) -> set[Any]:
    return {each for each in operands if not isinstance(each, Literal)}


# The primitive around the outputs of a function with a rule, and the function whose rule counts for nothing now.
OUTPUT = "keras_cg_output"
_plain: ContextVar[str | None] = ContextVar("plain", default=None)


def is_plain(rule: Any) -> bool:
    """Whether the function of a rule is linear if what it computes is."""
    return bool(rule.name == _plain.get())


def transposed_plainly(
    name: str, fun: Callable[..., Any], avals: Sequence[Any], cotangents: Sequence[Any]
) -> list[Any]:
    """Applies the transpose of a linear map that may call the function `name`, whose derivative it is.

    The transpose of a linear map is that of what it computes. The rule of that function would ask for it again.
    """
    token = _plain.set(name)
    try:
        return transposed(name, fun, avals, cotangents)
    finally:
        _plain.reset(token)


def transposed(name: str, fun: Callable[..., Any], avals: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Applies the transpose of a linear map from values of such types, the rule of the function `name`.

    Raises:
        ValueError: The program of `fun` does not show that it is linear, or JAX has no transpose of it.
    """
    jaxpr, consts = program(fun, avals)
    for kind in _kinds(jaxpr, [LINEAR] * len(avals)):
        if kind not in (ZERO, LINEAR):
            raise messages.not_linear(name, "a rule that gives a constant" if kind == CONSTANT else kind)
    try:
        return [
            *jax.linear_transpose(lambda *inputs: jax.core.eval_jaxpr(jaxpr, consts, *inputs), *avals)([*cotangents])
        ]
    except RecursionError:
        raise
    except Exception as error:
        # There is no one type of error: for a scan over upstream, JAX (0.9) says that a value has a wrong type.
        raise messages.not_linear(name, "a program that JAX does not transpose") from error


# --- the proof -----------------------------------------------------------------------------------

# A value is always zero, the same for all inputs, or linear in the inputs. Any other kind is an obstacle: the operation
# that makes the value not linear, in the words of the message.
_KINDS = ZERO, CONSTANT, LINEAR = "zero", "constant", "linear"

# Linear in all operands together, and in each factor alone. An index or a condition is no operand.
_SUMS = frozenset(
    "add add_any all_gather all_gather_invariant all_to_all broadcast_in_dim complex concatenate conj"  # noqa: SIM905 - as a list it would fill a screen
    " convert_element_type copy copy_p cumsum device_put dynamic_slice dynamic_update_slice expand_dims fft gather"
    " imag layout_constraint neg pad pbroadcast ppermute psum psum_invariant pvary real"
    " reduce_scatter reduce_sum reduce_window_sum reshape reshard rev scatter scatter-add scatter-sub select_n"
    " sharding_constraint slice split squeeze stack sub tile transpose unstack".split()
)
_PRODUCTS = frozenset(["conv_general_dilated", "dot_general", "mul", "ragged_dot_general"])

# Linear in these of their operands.
_LINEAR_IN_SOME = {
    "custom_linear_solve": lambda equation, operands: operands[sum(equation.params["const_lengths"]) :],
    "div": lambda equation, operands: operands[:1],
    # Not in the factors: the elements that get no factor are constants, which a transpose drops.
    "scatter-mul": lambda equation, operands: operands[:1],
    "triangular_solve": lambda equation, operands: operands[1:],
    "tridiagonal_solve": lambda equation, operands: operands[3:],
}

# Operations that call a program.
_CALLS = frozenset(["call", "checkpoint", "closed_call", "custom_jvp_call", "jit", "remat2", "shard_map"])


def _kinds(jaxpr: Any, inputs: Sequence[str]) -> list[str]:
    """Returns the kind of each output of a program, for inputs of such kinds."""
    # Some parameters are a ClosedJaxpr (JAX 0.10), which has the jaxpr as an attribute.
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    kinds: dict[Any, str] = dict(zip(split_invars(jaxpr, len(inputs))[1], inputs, strict=True))

    def kind_of(operand: Any) -> str:
        if isinstance(operand, Literal):
            return CONSTANT if numpy.any(operand.val) else ZERO
        kind = kinds.get(operand, CONSTANT)
        is_empty = 0 in getattr(operand.aval, "shape", ())
        return ZERO if kind == CONSTANT and is_empty else kind

    for equation in jaxpr.eqns:
        kinds.update(zip(equation.outvars, _results(equation, [*map(kind_of, equation.invars)]), strict=True))
    return [*map(kind_of, jaxpr.outvars)]


def _results(equation: Any, operands: list[str]) -> list[str]:
    """Returns the kinds of the results of one operation."""
    name, params = equation.primitive.name, equation.params
    if name == OUTPUT and is_plain(params["rule"]):
        return operands[: params["count"]]
    if name in _CALLS:
        return _kinds(params["call_jaxpr" if "call_jaxpr" in params else "jaxpr"], operands)
    if name == "cond" and operands[0] in (ZERO, CONSTANT):
        branches = [_kinds(branch, operands[1:]) for branch in params["branches"]]
        return [_joined(name, *kinds) for kinds in zip(*branches, strict=True)]
    if name == "scan":
        return _scanned(equation, operands)
    if getattr(params.get("prim"), "name", name) == "linear_solve" and not {*operands} <= {ZERO, CONSTANT}:
        # That of lineax, and what equinox makes of a batch of it (`vprim`). Its transpose refuses an operator that
        # depends on upstream, so only the vector does. Its other results, such as the number of steps, are not linear.
        kind = _joined(name, *[kind for kind in operands if kind != CONSTANT])
        return [kind if is_floating(out.aval) else f"a count of `{name}`" for out in equation.outvars]
    return [_kind(equation, operands)] * len(equation.outvars)


def _kind(equation: Any, operands: list[str]) -> str:
    """Returns the kind of all results of an operation that runs no program."""
    name = equation.primitive.name
    if set(operands) <= {ZERO, CONSTANT}:
        is_zero = set(operands) == {ZERO} if name in _SUMS else name in _PRODUCTS and ZERO in operands
        return ZERO if is_zero else CONSTANT
    obstacles = [kind for kind in operands if kind not in _KINDS]
    obstacle = obstacles[0] if obstacles else f"`{name}`, which is not known to be linear"
    are_floating = all(is_floating(out.aval) for out in equation.outvars)
    if obstacles or not are_floating or _has_nonlinear_options(name, equation.params):
        return obstacle
    numbers = [kind for kind, operand in zip(operands, equation.invars, strict=True) if is_floating(operand.aval)]
    if name in _SUMS:
        return _joined(name, *numbers)
    if name in _PRODUCTS:
        return LINEAR if numbers.count(LINEAR) == 1 else f"`{name}` with itself"
    upper = _LINEAR_IN_SOME[name](equation, operands) if name in _LINEAR_IN_SOME else ()
    is_linear = set(upper) <= {ZERO, LINEAR} and numbers.count(LINEAR) == upper.count(LINEAR)
    return LINEAR if is_linear else obstacle


def _has_nonlinear_options(name: str, params: dict[str, Any]) -> bool:
    """Whether the parameters make an operation of the tables not linear."""
    if name == "gather":
        # An index outside of the array gathers this constant, which a transpose drops.
        return bool(params["fill_value"])
    if name == "scatter":
        # `x.at[i].apply(g)` is a scatter that applies g.
        return params["update_jaxpr"] is not None
    # A conversion to eight bits or fewer clips.
    return name == "convert_element_type" and params["new_dtype"].itemsize < 2


def shared(jaxpr: Any, count: int, values: Sequence[bool], results: dict[int, bool]) -> list[bool]:
    """Returns for each of `count` inputs whether the linear map from it to `results` is the same for a whole batch.

    The program is a rule, whose constants are `values`. True marks the constants that have the batch, and the results
    whose argument has it. A program that is not linear in all inputs together mixes them.
    """
    if not {*_kinds(jaxpr, [LINEAR] * count)} <= {ZERO, LINEAR}:
        return [False] * count
    consts, inputs = split_invars(jaxpr, count)
    # Whether a variable has the batch, and whether the map to it has it, for each input that it depends on.
    known: dict[Any, tuple[bool, dict[int, bool]]] = {
        const: (has, {}) for const, has in zip(consts, values, strict=True)
    } | {variable: (False, {place: False}) for place, variable in enumerate(inputs)}
    for equation in jaxpr.eqns:
        operands = [known.get(each, (False, {})) for each in equation.invars if not isinstance(each, Literal)]
        factor = any([has for has, maps in operands if not maps])
        maps: dict[int, bool] = {}
        for _, others in operands:
            for place, has in others.items():
                maps[place] = maps.get(place, factor) or has
        known |= dict.fromkeys(equation.outvars, (factor, maps))
    batched: set[int] = set()
    for place, has in results.items():
        out = jaxpr.outvars[place]
        _, maps = (False, {}) if isinstance(out, Literal) else known.get(out, (False, {}))
        batched |= {each for each, has_map in maps.items() if has or has_map}
    return [place not in batched for place in range(count)]


def _scanned(equation: Any, operands: list[str]) -> list[str]:
    """Returns the kinds of the results of a scan, whose carry has the same kind in all rounds."""
    body = getattr(equation.params["jaxpr"], "jaxpr", equation.params["jaxpr"])
    inner = split_invars(body, len(operands))[1]
    # A carry has the same rank inside and outside; a scanned array has an axis less inside. The parameters that say
    # how many of each there are have other names in JAX 0.12 than in 0.10.
    carries = sum(_rank(out) == _rank(result) for out, result in zip(body.outvars, equation.outvars, strict=True))
    scanned = sum(_rank(variable) != _rank(operand) for variable, operand in zip(inner, equation.invars, strict=True))
    stop = len(operands) - scanned
    start = stop - carries
    while True:
        results = _kinds(body, operands)
        joined = [_joined("scan", before, after) for before, after in zip(operands[start:stop], results, strict=False)]
        if joined == operands[start:stop]:
            return [*joined, *results[carries:]]
        operands[start:stop] = joined


def _rank(operand: Any) -> int:
    return len(getattr(operand.aval, "shape", ()))


def _joined(name: str, *kinds: str) -> str:
    """Returns the kind of a sum of values of some kinds, or of a value that may have any of them."""
    found = {*kinds} - {ZERO}
    obstacles = [kind for kind in kinds if kind not in _KINDS]
    if len(found) > 1:
        obstacles.append(f"`{name}` together with a constant")
    return obstacles[0] if obstacles else found.pop() if found else ZERO
