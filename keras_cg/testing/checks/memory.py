"""Is everything given back when nobody holds it any more?"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from keras_cg.testing.inspection import Inspection
from keras_cg.testing.report import Finding


def memory(at: Inspection) -> Iterator[Finding]:
    """Whether everything is given back when nobody holds it any more."""
    check = "memory"
    collects = gc.isenabled()
    gc.disable()
    try:
        held = _held(at)
        alive = [what for what, each in held if each() is not None]
        if alive:  # for it takes long
            gc.collect()
        lost = [what for what, each in held if each() is not None]
    finally:
        if collects:
            gc.enable()
    if lost:
        reason = f"{_listed(lost)} still there after the call; does the function store what it is given?"
        yield at.finding(check, "failed", reason=reason)
    elif alive:
        reason = f"{_listed(alive)} freed by the garbage collector alone; is there a reference cycle?"
        yield at.finding(check, "failed", reason=reason)
    else:
        yield at.finding(check, "passed")


def _held(at: Inspection) -> list[tuple[str, weakref.ref[Any]]]:
    """References to the tensors of one run, forwards and backwards, of which nobody holds one."""
    seen: list[weakref.ref[Any]] = []
    flat, floating = at.subject.watched(seen).bound(at.points)
    outputs, pullback, _ = at.backend.vjp(flat, floating)
    gradients = pullback(at.subject.cast(at.upstream, outputs))
    # TensorFlow's tape (2.21) never gives up a gradient that it gave to two arguments.
    times = Counter(map(id, gradients))
    once = [each for each in gradients if times[id(each)] == 1]
    named = {"an argument": floating, "an output": outputs, "a gradient": once}
    found = [
        (what, weakref.ref(each))
        for what, tensors in named.items()
        for each in tensors
        if type(each).__weakrefoffset__  # a number of NumPy's is only a value
    ]
    return [*(("an argument", each) for each in seen), *found]


def _listed(names: Sequence[str]) -> str:
    found = list(dict.fromkeys(names))
    return f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'}"
