"""Times of programs that take turns, and where the time goes.

Each round runs every contestant once, in turn, so that a machine that slows down slows all of them. What is told of a
pair is the median, over the rounds, of the ratio of their times in one round, with the quartiles.

Where one thread does all the work, the clock is `time.thread_time`, the processor's time of that thread: other programs
do not lengthen it. That holds for eager calls on NumPy, TensorFlow and torch, and for tracing: thread and process took
the same time. Compiled programs, and JAX in eager mode, compute in threads of XLA or TensorFlow. Their clock is
`time.perf_counter`.
"""

from __future__ import annotations

import ast
import cProfile
import gc
import inspect
import math
import pkgutil
import statistics
import textwrap
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras_cg

OURS = "keras_cg"
KERAS = "keras.ops"
NATIVE = "native decorator"
BY_HAND = "hand-written"
PLAIN = "plain autodiff"
ALONE = "f alone"

Program = Callable[[], Any]
Clock = Callable[[], float]
# What a contestant runs, or words that say why it does not.
Contestants = Mapping[str, Program | str]

# How long a turn takes at least, so that the clock and the loop around the call do not count.
TURN = 0.004
# A line of figures that would take longer than this has fewer rounds, though not fewer than these; it tells how many.
LONGEST = 15.0
FEWEST = 5
# So many frames are told one by one.
DEAREST = 15


# --- time ------------------------------------------------------------------------------------------------------------


def interleave(
    programs: Mapping[str, Program], rounds: int, calls: Mapping[str, int], clock: Clock
) -> dict[str, list[float]]:
    """The seconds of a call of every program in every round: A B C, A B C, ..., each as often as `calls` says."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    gc.collect()
    gc.freeze()  # what there was before the rounds is no garbage of theirs
    gc.disable()
    try:
        for _ in range(rounds):
            for name, program in programs.items():
                turns = range(calls[name])
                started = clock()
                for _ in turns:
                    program()
                times[name].append((clock() - started) / calls[name])
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return times


def quartiles(values: Sequence[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3


def summary(times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, list[float]]]:
    """Quartiles of each contestant's times, and of our ratio and our difference to it, round by round."""
    found = {name: {"time": quartiles(each)} for name, each in times.items()}
    for name, each in times.items():
        if OURS in times and name != OURS:
            pairs = list(zip(times[OURS], each, strict=True))
            found[name]["ratio"] = quartiles([ours / theirs for ours, theirs in pairs])
            found[name]["difference"] = quartiles([ours - theirs for ours, theirs in pairs])
    return found


def compare(contestants: Contestants, rounds: int, clock: Clock) -> dict[str, Any]:
    """One line of figures: the contestants that run, timed, and the words of those that do not."""
    programs = {name: each for name, each in contestants.items() if not isinstance(each, str)}
    seconds = {name: _seconds(program) for name, program in programs.items()}
    calls = {name: max(1, math.ceil(TURN / each)) for name, each in seconds.items()}
    round_takes = sum(calls[name] * each for name, each in seconds.items())
    rounds = max(FEWEST, min(rounds, int(LONGEST / round_takes))) if programs else 0
    times = summary(interleave(programs, rounds, calls, clock))
    told = {name: {"says": each} if isinstance(each, str) else times[name] for name, each in contestants.items()}
    return {"rounds": rounds, "contestants": told}


def _seconds(program: Program) -> float:
    """About how long a program takes, when it is warm."""
    for _ in range(2):
        started = time.perf_counter()
        program()
        seconds = time.perf_counter() - started
        if seconds > 1:
            break
    return seconds


# --- where the time goes ---------------------------------------------------------------------------------------------


def profile(program: Program, seconds: float, package: str) -> dict[str, Any]:
    """The frames of Python that a call enters, and the shares of the time that is their own, by cProfile.

    What is written in C counts for the frame that calls it. `packages` are `(name, frames in a call, share)`; `frames`
    those of one package that cost most, and `others` `(functions, frames in a call, share)` of what is left of it.
    """
    # The first calls compile, fill caches and make plans.
    started = time.perf_counter()
    for _ in range(20):
        program()
        if time.perf_counter() - started > seconds:
            break
    profiler = cProfile.Profile(builtins=False)
    calls, started = 0, time.perf_counter()
    while not calls or time.perf_counter() - started < seconds:
        profiler.enable()
        program()
        profiler.disable()
        calls += 1
    # `disable`, and what is not of Python, are words instead of code.
    entries = [each for each in profiler.getstats() if not isinstance(each.code, str)]
    total = sum(each.inlinetime for each in entries)
    packages: dict[str, list[float]] = {}
    frames = []
    for each in entries:
        count, share = each.callcount / calls, each.inlinetime / total
        module = _module(each.code.co_filename)
        found = packages.setdefault(module.partition(".")[0], [0.0, 0.0])
        found[0] += count
        found[1] += share
        if module.startswith(f"{package}."):
            function = f"{module}:{each.code.co_qualname}"
            frames.append({"function": function, "count": count, "share": share, "doc": documented(module, each.code)})
    ordered = sorted(packages.items(), key=lambda item: -item[1][1])
    frames.sort(key=lambda frame: -frame["share"])
    rest = frames[DEAREST:]
    return {
        "packages": [(name, *found) for name, found in ordered],
        "frames": frames[:DEAREST],
        "others": (len(rest), *(sum(frame[key] for frame in rest) for key in ("count", "share"))),
    }


def _module(file: str) -> str:
    """`package.module`, wherever the package is installed, or words."""
    path = Path(file).with_suffix("")
    installed = [folder for folder in path.parents if folder.name == "site-packages"]
    for folder in (*installed, Path(keras_cg.__file__).parents[1], Path(__file__).parents[1]):
        if path.is_relative_to(folder):
            return ".".join(path.relative_to(folder).parts).removesuffix(".__init__")
    return "standard library and generated code"


def documented(module: str, code: types.CodeType) -> str:
    """The first line of a function's docstring; without one that of its class, or which function it is a part of."""
    outer, _, name = code.co_qualname.rpartition(".")
    doc = None
    # A comprehension and a lambda have none, and the lines that they are on need not be whole.
    if not name.startswith("<"):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(code))).body
        assert isinstance(definition, (ast.FunctionDef, ast.ClassDef))
        doc = ast.get_docstring(definition)
    if doc is None and "<locals>" in outer:
        return f"A part of `{outer.partition('.<locals>')[0]}`."
    if doc is None and outer:
        doc = inspect.getdoc(pkgutil.resolve_name(f"{module}:{outer}"))
    return (doc or "").partition("\n")[0]
