"""The messages of the engine, the backends and the functions of `keras_cg.ops`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from keras_cg.errors import (
    CapturedVariableError,
    GradientError,
    did_you_mean,
    lines,
    locate,
    message,
    report,
    type_name,
)


def missing_backend(name: str, source: str, module: str | None, requirement: str) -> ImportError:
    """The framework behind a known backend is not installed."""
    headline = f"the backend {name!r} (from {source}) needs {module or name!r}, which is not installed."
    choose = "or choose another backend with keras_cg.set_backend() or KERAS_CG_BACKEND."
    kind = functools.partial(ImportError, name=module)
    return report(kind, headline, remedy=f'pip install "{requirement}", {choose}')


def broken_backend(name: str, source: str, error: Exception, requirement: str, version: str | None) -> ImportError:
    """The framework is installed but does not start; `version` is its version, if that is known."""
    release = f" with {name} {version}" if version else ""
    headline = f"the backend {name!r} (from {source}) is installed but does not start{release}:"
    reinstall = f'reinstall it with pip install --force-reinstall "{requirement}".'
    remedy = f"check that its framework can be imported by itself; {reinstall}"
    kind = functools.partial(ImportError, name=name)
    return report(kind, lines(headline, f"    {type_name(error)}: {error}"), remedy=remedy)


def incomplete_backend(name: str, missing: Iterable[str]) -> ImportError:
    """A backend module does not define all required names."""
    contract = "a backend defines every name listed in keras_cg.engine.contract.REQUIRED."
    headline = f"the backend {name!r} lacks {', '.join(missing)}; {contract}"
    remedy = "update the package of the backend, or define the names if it is yours."
    return report(functools.partial(ImportError, name=name), headline, remedy=remedy)


NO_CLOSURE = "a value in a global, or in what the function calls: captured values are only found in closures."


def argument_also_captured(
    function: str, captured: Sequence[Any], tensors: Sequence[Any]
) -> CapturedVariableError | None:
    """One of the captured values is an argument, too; None if none is."""
    identities = {*map(id, captured)}
    places = [place for place, tensor in enumerate(tensors, 1) if id(tensor) in identities]
    return _argument_also_captured(function, places[0]) if places else None


def unserved_variables(backend: str, cause: str = "a closure over it.", fun: Any = None) -> CapturedVariableError:
    """The rule of `fun`, a function or what has its name, takes `variables`, and the backend cannot find them."""
    name = "a function with a custom gradient" if fun is None else fun.name
    error = lost_capture(name, cause, f"the backend {backend!r} cannot give it to the rule as one of `variables`")
    return locate(error, getattr(fun, "user", None), what="function")


def rule_dropped(where: str, remedy: str, function: str | None = None) -> NotImplementedError:
    """The framework would silently ignore the rule."""
    such = "" if function is None else f" (here that of {function})"
    headline = f"{where} ignores custom gradients{such}, and would silently give those of plain differentiation."
    return report(NotImplementedError, headline, function=function, remedy=f"{remedy}.")


no_gradient_exported = message(
    UserWarning,
    "the exported program has no gradient through {0}, nor through other functions with a custom gradient.",
    cause="torch keeps no rule in what it exports, and would silently give the gradient of plain differentiation.",
    remedy="train before exporting, or keep the rule by torch.compile.",
)
changed_argument = message(
    RuntimeError,
    "{0} changed one of its arguments in place, so the gradient would be silently wrong.",
    remedy="work on a copy: `x = x.clone()`.",
)
changed_since_call = message(
    RuntimeError,
    "a tensor that the rule of {0} needs was modified by an inplace operation since the call.",
    cause="an argument, an output or a tensor that the rule closes over was changed in place before the backward pass.",
    remedy="change a copy, or change it after the backward pass.",
)
captured_argument = message(
    CapturedVariableError,
    "{0} reads its tensor argument {1} in another way, too, which the gradient of that argument may leave out.",
    cause="the weights are arguments, and the function calls the module that owns them.",
    remedy="compute with the argument, as by torch.func.functional_call; or, if the rule gives the whole gradient, run"
    " the module under torch.no_grad(), and let the rule take what it computed by a parameter `output`.",
)
_argument_also_captured = message(
    CapturedVariableError,
    "{0} reads its tensor argument {1} in another way, too, which the gradient of that argument may leave out.",
    cause="a function inside, such as the body of a loop, closes over what is passed as an argument.",
    remedy="compute with the argument; or, if the rule gives the whole gradient, stop that of the other value with"
    " keras_cg.ops.stop_gradient.",
)
constant_in_second_order = message(
    UserWarning,
    "the second derivative of {0} leaves out {1}, which its rule reads.",
    cause="it was computed from an argument under torch.no_grad(), so torch does not differentiate it.",
    remedy="if it is the output, let the rule take that by a parameter `output`; if a constant is meant, call detach()"
    " on it.",
)
callback_differentiated = message(
    NotImplementedError,
    "{0} runs a callback, such as jax.pure_callback, which JAX does not differentiate.",
    cause="a second derivative through what the callback computed, because the rule reads it.",
    remedy="let the rule take the output by a parameter `output`, or compute it from the arguments in the rule.",
)
detached_argument = message(
    GradientError,
    "the rule of {0} differentiates with respect to an argument of the function, which is detached there.",
    cause="torch.autograd.grad in the rule, with respect to an argument that it closes over.",
    remedy="let the rule take the arguments, `def grad(*args, upstream=None)`: these are the caller's own tensors.",
)
hidden_in_rule = message(
    RuntimeError,
    "the rule of {0} reads {1}, which belongs to a transform of torch.func, from inside another object.",
    cause="a container or an attribute that the rule reads and that holds a value of the transform.",
    remedy="bind it to a local variable outside of the rule, or pass it as an argument.",
)
no_memory = message(
    RuntimeError,
    "{0}: a tensor of a transform of torch.func has no memory that NumPy could read.",
    cause="a call of NumPy, SciPy or C in the function or its rule, such as on x.detach().numpy().",
    remedy="wrap that call in keras_cg.recipes.from_numpy, which works under every transform.",
)
recomputed_otherwise = message(
    RuntimeError,
    "{0} ran again for its gradient, and gave another output than the first time.",
    cause="random numbers of another library, or something in an attribute or a global that was changed.",
    remedy="draw random numbers by keras.random, or outside; pass what changes as an argument.",
)
tape_not_recording = message(
    NotImplementedError,
    "TensorFlow's tapes record nothing here, and all derivatives in {0} would silently be zero.",
    cause="a rule that differentiates (keras_cg.grad, recipes.recompute) under a tf.autodiff.ForwardAccumulator.",
    remedy="use keras_cg.jvp instead, or call a tf.function that was defined outside of the accumulator.",
)
no_forward_mode = message(
    ValueError,
    "forward mode is not possible: {0} calls a jax.custom_vjp, which has none.",
    cause="a function of another library, whose gradient is a jax.custom_vjp's.",
    remedy="differentiate in reverse mode, or give it a rule with keras_cg.custom_gradient.",
)


# Other names of the frameworks, which are not close enough to their names here for `did_you_mean`.
_ALIASES = {"pytorch": "torch", "tf": "tensorflow", "np": "numpy", "jnp": "jax", "autograd": "numpy"}


def unknown_backend(name: object, source: str, names: Sequence[str]) -> ValueError:
    """No backend has that name."""
    message = f"unknown backend {name!r} (from {source}). The backends are: {', '.join(names)}."
    text = str(name).strip().lower()
    return ValueError(message + did_you_mean(_ALIASES.get(text, text), names))


def name_of(fun: Callable[..., Any]) -> str:
    """Returns what a message calls a function that may have no name, such as a partial."""
    return getattr(fun, "__name__", "a function")


# What the message of `not_linear` begins with.
NOT_LINEAR = "forward mode needs a rule that is linear in upstream"


def not_linear(function: str, obstacle: str | None = None) -> ValueError:
    """Forward mode needs the transpose of a rule that is not linear; a program may show the `obstacle`."""
    headline = f"{NOT_LINEAR}, and {function} has one that is not."
    got, cause = None, "a rule that clips or normalises upstream"
    if obstacle is not None:
        got = f"upstream goes through {obstacle}."
        cause += ", or a linear rule with an operation that is not known to be linear"
    remedy = "differentiate in reverse mode, or write a rule that is linear in upstream."
    return report(ValueError, headline, function=function, got=got, cause=f"{cause}.", remedy=remedy)


def wrong_shape_at_run_time(function: str, place: int, where: str | None) -> str:
    """Returns the message of a program that finds the wrong shape of a gradient of the rule at `where` when it runs."""
    what = f"the rule of {function} returned a gradient of the wrong shape for its tensor argument {place + 1}."
    return what if where is None else f"{what} rule: {where}"


lost_count = message(
    RuntimeError,
    "the gradient of {0} cannot be differentiated now, because autograd has lost count of its levels.",
    cause="another thread differentiates at the same time: autograd counts the levels of all threads together.",
    remedy="let one thread at a time differentiate a gradient, or choose another backend.",
)


def lost_capture(who: str, cause: str, consequence: str) -> CapturedVariableError:
    """A captured value would silently get no gradient."""
    headline = f"{who} reads a value that is being differentiated and is not among its arguments."
    consequence = f"{consequence}, and it would silently get no gradient."
    remedy = "pass it as an argument, or stop its gradient in the function with keras_cg.ops.stop_gradient."
    return report(CapturedVariableError, headline, function=who, cause=cause, consequence=consequence, remedy=remedy)
