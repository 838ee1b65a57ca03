"""The one table of what is not right: where, what comes instead, and for what reason.

It is strict: what stands here and works fails the run.
"""

import dataclasses
import fnmatch
import functools
import importlib
import importlib.metadata
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Refusal:
    backend: str
    # Patterns of fnmatch, with `|` between several.
    transforms: str
    rules: str
    # What the error says, a regular expression. Or NAN: NaN comes where no value can be looked at in time. Or LIMIT:
    # a wrong number comes, which nothing of ours can notice; docs/silent.md must say so.
    match: str
    reason: str
    # Whether the installed release can do it after all, found out by trying.
    is_over: Callable[[], bool] = lambda: False


def jax_makes_zeros() -> bool:
    return importlib.import_module("frameworks.jax").shard_map_makes_zeros()


NAN, LIMIT = "(NaN)", "(limit)"

COMPLEX = "holomorphic|conjugate|fourier transform"
CLIPS = "clip by *"

TABLE = [
    # --- JAX
    Refusal(
        "jax", "jacrev", COMPLEX, "jacrev requires real-valued outputs", "JAX: jacrev of complex outputs (jax#603)"
    ),
    Refusal(
        *("jax", "jacfwd", COMPLEX + "|squared modulus"),
        "jacfwd requires real-valued inputs",
        "JAX: jacfwd by complex arguments; jvp takes them",
    ),
    Refusal(
        *("jax", "grad of shard_map", "no gradient at all|none for one argument"),
        "lowering_platforms|the expected cotangent type",  # as JAX 0.10 says it, and 0.8
        "JAX (0.10): no zeros for a `None` of a custom_vjp in an eager shard_map; under jit they are made",
        is_over=jax_makes_zeros,
    ),
    Refusal(
        # A jit that differentiates again leaves out the forward derivative that is not needed, and is right.
        *("jax", "jvp*|jit of jvp|vmap of jvp|*linearize|jacfwd|grad of jvp", CLIPS),
        "forward mode needs a rule that is linear in upstream",
        "a rule that is not linear in upstream has no transpose, which is its forward derivative",
    ),
    # --- torch
    Refusal(
        *("torch", "compile, *|checkpoint of compile", "captured value"),
        r"a closure over it, inside torch\.compile",
        "torch.compile traces a Function without the tensors that it closes over (pytorch#118394)",
    ),
    Refusal(
        *("torch", "compile of func.grad", "*"),
        r"torch\.compile around a transform of torch\.func ignores custom gradients",
        "torch.compile drops the rule of a Function inside a transform of torch.func (pytorch#193279)",
    ),
    Refusal(
        *("torch", "func.jacrev", "random numbers"),
        "called random operation while in randomness error mode",
        "torch.func runs the function again at each level, here in a vmap for which jacrev allows no random numbers",
    ),
    Refusal(
        *("torch", "export", "*"),
        "does not require grad",
        "exported: the output, and no gradient; torch.export drops the rule of a Function (pytorch#193279)",
    ),
    Refusal(
        *("torch", "func.jac*", f"{COMPLEX}|squared modulus"),
        "Expected all inputs to be real",
        "torch: jacrev and jacfwd of complex numbers (pytorch#94397)",
    ),
    Refusal(
        *("torch", "func.jacfwd|func.jvp|forward_ad|func.jvp of func.grad", CLIPS),
        "forward mode needs a rule that is linear in upstream",
        "no transpose: the rule is not linear in upstream",
    ),
    # --- TensorFlow
    Refusal(
        *("tensorflow", "tape of vectorized_map", "*"),
        "ignores custom gradients|reads a value that is being differentiated",
        "TensorFlow: vectorized_map rebuilds the operations without their custom gradients",
    ),
    Refusal(
        *("tensorflow", "ForwardAccumulator|ForwardAccumulator of tape", CLIPS),
        "forward mode needs a rule that is linear in upstream",
        "no transpose: the rule is not linear in upstream",
    ),
    Refusal(
        *("tensorflow", "function of ForwardAccumulator", CLIPS),
        NAN,
        "no transpose: the rule is not linear in upstream, and in a graph no value can be looked at",
    ),
    Refusal(
        *("tensorflow", "ForwardAccumulator of function", CLIPS),
        LIMIT,
        "the rule is not linear, and TensorFlow transposes the traced function by itself, at an upstream of ones",
    ),
    Refusal(
        *("tensorflow", "tape of tape of function|ForwardAccumulator of tape of function", "captured value"),
        LIMIT,
        "as below, and TensorFlow's loops do not bear a NaN that hangs on the inputs, so that its derivative is 0",
    ),
    Refusal(
        *(
            "tensorflow",
            "tape of function*|tape of jit_compile|tf.gradients|ForwardAccumulator of function",
            "captured value",
        ),
        NAN,
        "TensorFlow: nothing tells, while a graph is built, which of the tensors it closes over will be differentiated",
    ),
    Refusal(
        *("tensorflow", "function of *|jit_compile of *|tape of cond", "captured value"),
        "reads a value that is being differentiated",
        "TensorFlow: in a graph, tf.custom_gradient serves variables, not tensors",
    ),
    # --- NumPy
    Refusal(
        *("numpy", "*grad*|make_vjp|jacobian|third derivative", "captured value"),
        "reads a value that is being differentiated",
        "autograd has no means to give a captured value its gradient",
    ),
    Refusal(
        *("numpy", "jacobian", COMPLEX),
        "cannot reshape array",
        "autograd: jacobian of complex outputs (HIPS/autograd#379)",
    ),
    Refusal("numpy", "jacobian", "empty", "need at least one array to stack", "autograd: jacobian of an empty output"),
]


def find(backend: str, transform: str, rule: str) -> Refusal | None:
    for each in (*TABLE, *elsewhere(backend)):
        is_meant = each.backend == backend and _matches(each.transforms, transform) and _matches(each.rules, rule)
        if is_meant and not each.is_over():
            return each
    return None


@functools.cache
def elsewhere(backend: str) -> list[Refusal]:
    """Those of a backend that lives elsewhere: its table of transforms has them as `REFUSALS`."""
    points = importlib.metadata.entry_points(group="keras_cg.transforms", name=backend)
    return [Refusal(backend, *refusal) for point in points for refusal in getattr(point.load(), "REFUSALS", ())]


def _matches(patterns: str, name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split("|"))
