"""The one table of what is refused: where, with what message, and for what reason.

It is strict: what stands here and works fails the run.
"""

import dataclasses
import fnmatch


@dataclasses.dataclass(frozen=True)
class Refusal:
    backend: str
    # Patterns of fnmatch, with `|` between several.
    transforms: str
    rules: str
    # What the error says, a regular expression.
    match: str
    reason: str


COMPLEX = "holomorphic|conjugate|fourier transform"
CLIPS = "clip by *"

TABLE = [
    # --- JAX
    Refusal(
        "jax", "jacrev", COMPLEX, "jacrev requires real-valued outputs", "JAX: jacrev of complex outputs (jax#603)"
    ),
    Refusal(
        "jax",
        "grad of shard_map",
        "no gradient at all|none for one argument",
        "lowering_platforms",
        "JAX (0.10): no zeros for a `None` of a custom_vjp in an eager shard_map; under jit they are made",
    ),
    Refusal(
        "jax",
        "jvp",
        "*",
        r"can't apply forward-mode autodiff \(jvp\) to a custom_vjp",
        "JAX: custom_vjp has no forward mode (jax#3996)",
    ),
    Refusal(
        "jax",
        "jvp of grad",
        f"{CLIPS}|nested rule",
        r"can't apply forward-mode autodiff \(jvp\) to a custom_vjp",
        "JAX: custom_vjp has no forward mode (jax#16049); the transpose serves where the rule is linear in upstream",
    ),
    # --- torch
    Refusal(
        "torch",
        "compile, *|checkpoint of compile",
        "captured value",
        r"under torch\.compile cannot hand it to the rule",
        "torch.compile traces a Function without the tensors that it closes over (pytorch#118394)",
    ),
    Refusal(
        "torch",
        "compile of func.grad",
        "*",
        r"torch\.compile around a transform of torch\.func ignores custom gradients",
        "torch.compile drops the rule of a Function inside a transform of torch.func (pytorch#193279)",
    ),
    Refusal(
        "torch",
        "export",
        "*",
        r"torch\.export ignores custom gradients",
        "torch.export drops the rule of a Function (pytorch#193279)",
    ),
    Refusal(
        "torch",
        "func.jac*",
        f"{COMPLEX}|squared modulus",
        "Expected all inputs to be real",
        "torch: jacrev and jacfwd of complex numbers (pytorch#94397)",
    ),
    Refusal(
        "torch",
        "func.jacrev",
        "random numbers",
        "random operation while in randomness error mode",
        "torch: jacrev has no `randomness` (pytorch#116429), and a rule that is differentiated again draws again",
    ),
    Refusal(
        "torch",
        "func.jacfwd|func.jvp|forward_ad|func.jvp of func.grad",
        CLIPS,
        "forward mode needs a rule that is linear in upstream",
        "no transpose: the rule is not linear in upstream",
    ),
    # --- NumPy
    Refusal(
        "numpy",
        "jacobian",
        COMPLEX,
        "cannot reshape array",
        "autograd: jacobian of complex outputs (HIPS/autograd#379)",
    ),
    Refusal("numpy", "jacobian", "empty", "need at least one array to stack", "autograd: jacobian of an empty output"),
]


def find(backend: str, transform: str, rule: str) -> Refusal | None:
    for each in TABLE:
        if each.backend == backend and _matches(each.transforms, transform) and _matches(each.rules, rule):
            return each
    return None


def _matches(patterns: str, name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split("|"))
