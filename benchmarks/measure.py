"""Times of programs that take turns, and where the time goes.

Each round runs every contestant once, in turn, so that a machine that slows down slows all of them. What is told of a
pair is the median, over the rounds, of the ratio of their times in one round, with the quartiles.
"""

from __future__ import annotations

import cProfile
import gc
import math
import pstats
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

OURS = "keras_cg"
KERAS = "keras.ops"
NATIVE = "native decorator"
BY_HAND = "hand-written"
PLAIN = "plain autodiff"
ALONE = "f alone"

Program = Callable[[], Any]
# What a contestant runs, or words that say why it does not.
Contestants = Mapping[str, Program | str]

# How long a turn takes at least, so that the clock and the loop around the call do not count.
TURN = 0.004
# A line of figures that would take longer than this has fewer rounds, though not fewer than these; it tells how many.
LONGEST = 20.0
FEWEST = 5


# --- time ------------------------------------------------------------------------------------------------------------


def interleave(programs: Mapping[str, Program], rounds: int, calls: Mapping[str, int]) -> dict[str, list[float]]:
    """The seconds of a call of every program in every round: A B C, A B C, ..., each as often as `calls` says."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    gc.collect()
    gc.freeze()  # what there was before the rounds is no garbage of theirs
    gc.disable()
    try:
        for _ in range(rounds):
            for name, program in programs.items():
                turns = range(calls[name])
                started = time.perf_counter()
                for _ in turns:
                    program()
                times[name].append((time.perf_counter() - started) / calls[name])
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


def compare(contestants: Contestants, rounds: int) -> dict[str, Any]:
    """One line of figures: the contestants that run, timed, and the words of those that do not."""
    programs = {name: each for name, each in contestants.items() if not isinstance(each, str)}
    seconds = {name: _seconds(program) for name, program in programs.items()}
    calls = {name: max(1, math.ceil(TURN / each)) for name, each in seconds.items()}
    round_takes = sum(calls[name] * each for name, each in seconds.items())
    rounds = max(FEWEST, min(rounds, int(LONGEST / round_takes))) if programs else 0
    times = summary(interleave(programs, rounds, calls))
    told = {name: {"says": each} if isinstance(each, str) else times[name] for name, each in contestants.items()}
    return {"rounds": rounds, "calls": calls, "contestants": told}


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


def profile(program: Program, seconds: float, top: int) -> dict[str, Any]:
    """The packages and the functions that most of the time is spent in, by cProfile: `(name, share)` by own time."""
    profiler = cProfile.Profile()
    program()
    calls, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        profiler.enable()
        program()
        profiler.disable()
        calls += 1
    functions: dict[str, float] = {}
    packages: dict[str, float] = {}
    for place, (_, _, own, _, _) in pstats.Stats(profiler).stats.items():
        name = _name(*place)
        package = name.partition("/")[0] if "/" in name else "built-in and standard library"
        functions[name] = functions.get(name, 0.0) + own
        packages[package] = packages.get(package, 0.0) + own
    return {"calls": calls, "packages": _shares(packages, 4), "functions": _shares(functions, top)}


def _shares(times: Mapping[str, float], top: int) -> list[tuple[str, float]]:
    total = sum(times.values())
    ordered = sorted(times.items(), key=lambda each: -each[1])
    return [(name, round(seconds / total, 4)) for name, seconds in ordered[:top]]


def _name(file: str, line: int, function: str) -> str:
    """A function as `package/module.py: function`, wherever the package is installed."""
    if file == "~":
        return re.sub(r" at 0x[0-9a-f]+", "", function).strip("<>")
    parts = Path(file).parts
    for folder in ("site-packages", "keras_cg", "benchmarks"):
        if folder in parts:
            place = len(parts) - 1 - parts[::-1].index(folder)
            return f"{'/'.join(parts[place + (folder == 'site-packages') :])}: {function}"
    return f"{Path(file).name}: {function}"
