"""Why a call enters a frame of ours.

A function's docstring says it, in its first line, or the comment in `engine/contract.py` on a backend's name.
"""

from __future__ import annotations

import inspect
import re

from keras_cg.engine import contract

# By `module:function`, where there is no docstring, or it does not say why; a test looks whether they are still there.
WHY = {
    "keras_cg.backends.jax.attach:_backward": "Gives the rule the cotangents of JAX.",
    "keras_cg.backends.jax.attach:_run": "Runs the function, and makes residuals of its rule.",
    "keras_cg.backends.jax.rule_primitives:_tie_jvp": "The gradient, recorded: it can be differentiated again.",
    "keras_cg.backends.numpy.attach:_vjps": "Tells autograd what the backward pass of its primitive is.",
    "keras_cg.engine.references:_of_function": "What a function of a rule holds, for the comparison of two runs.",
    "keras_cg.namespaces.jax:clip": "`ops.clip`, with bounds of any size.",
    "keras_cg.namespaces.numpy.functions:clip": "`ops.clip`, with bounds of any size.",
    "keras_cg.namespaces.numpy.functions:where": "`ops.where`: autograd has its gradient wrong where it broadcasts.",
    "keras_cg.backends.numpy.tensors:conjugate": "autograd's gradient of a complex number is the conjugate of ours.",
    "keras_cg.backends.numpy.tensors:innermost": "autograd boxes what it differentiates: the array inside.",
    "keras_cg.namespaces.torch.arguments:_converted": "`ops` takes NumPy's arrays and numbers on torch.",
    "keras_cg.namespaces.tensorflow.elementwise:clip": "`ops.clip`, with bounds of any size.",
    "keras_cg.backends.torch.attach:Attached.backward": "Calls the rule, if nothing that it reads was changed.",
    "keras_cg.backends.torch.attach:Attached.forward": "Saves the arguments; the output gets its node.",
    "keras_cg.frontend.decorator:CustomGradient.__call__": "The decorated function itself: it asks which backend runs.",
    "keras_cg.frontend.signature:_defaults": "Reads the defaults of the parameters of a rule.",
    "keras_cg.ops:__getattr__": "The workload computes with `keras_cg.ops`, with every contestant.",
}


def _contract() -> dict[str, str]:
    """The first sentence on each name that a backend defines."""
    found = {}
    source = inspect.getsource(contract.Backend)
    for comment, name in re.findall(r"((?:^    # .*\n)+)    (?:def )?(\w+)", source, re.MULTILINE):
        text = " ".join(line.removeprefix("    # ") for line in comment.splitlines())
        found[name] = re.split(r"[.?:;]\s|[.?:;]$", text)[0]
    return found


CONTRACT = _contract()


def why(function: str, doc: str) -> str:
    """The reason for a frame of `module:function`, whose docstring begins with `doc`."""
    module, _, name = function.partition(":")
    of_a_backend = CONTRACT.get(name, "") if module.startswith("keras_cg.backends.") else ""
    return WHY.get(function) or doc or of_a_backend
