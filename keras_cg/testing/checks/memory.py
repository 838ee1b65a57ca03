"""Checks that reference counting frees the tensors of a call."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from keras_cg.testing.inspection import Inspection
from keras_cg.testing.report import Finding
from keras_cg.testing.subject import watched


def memory(at: Inspection) -> Iterator[Finding]:
    """Checks that the tensors of a call are freed once the call is over, without the garbage collector."""
    check = "memory"
    collects = gc.isenabled()
    gc.disable()
    try:
        references = _references(at)
        alive = [what for what, each in references if each() is not None]
        if alive:  # because a collection takes long
            gc.collect()
        lost = [what for what, each in references if each() is not None]
    finally:
        if collects:
            gc.enable()
    if lost:
        reason = f"{_listed(lost)} still alive after the call; does the function store its tensors?"
        yield at.finding(check, "failed", reason=reason)
    elif alive:
        reason = f"{_listed(alive)} freed by the garbage collector only; is there a reference cycle?"
        yield at.finding(check, "failed", reason=reason)
    else:
        yield at.finding(check, "passed")


def _references(at: Inspection) -> list[tuple[str, weakref.ref[Any]]]:
    """Returns weak references to the tensors of one forward and backward pass, none of which is still in use."""
    seen: list[weakref.ref[Any]] = []
    subject = copy.copy(at.subject)
    subject.f = watched(subject.f, seen)
    flat, floating = subject.bound(at.points)
    outputs, pullback, _ = at.backend.vjp(flat, floating)
    gradients = pullback(at.subject.cast(at.upstream, outputs))
    # TensorFlow's tape (2.21) never frees a gradient that it returned for two arguments.
    times = Counter(map(id, gradients))
    once = [each for each in gradients if times[id(each)] == 1]
    named = {"an argument": floating, "an output": outputs, "a gradient": once}
    found = [
        (what, weakref.ref(each))
        for what, tensors in named.items()
        for each in tensors
        if type(each).__weakrefoffset__  # a NumPy scalar has no weak references
    ]
    return [*(("an argument", each) for each in seen), *found]


def _listed(names: Sequence[str]) -> str:
    found = list(dict.fromkeys(names))
    return f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'}"
