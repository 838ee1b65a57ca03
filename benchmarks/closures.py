"""What it costs that a closure, or the object behind a method, reaches 20,000 dicts: `python -m benchmarks.closures`.

Prints the time of an eager gradient beside that of the same function without them, for each backend: the median, over
the rounds, of the ratio of their times in one round. On torch, also of `torch.func.grad`.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

import keras_cg
from benchmarks.measure import Program, interleave, summary
from keras_cg import ops

ALONE = "alone"


class History:
    """An object that keeps 20,000 dicts."""

    def __init__(self) -> None:
        self.entries = [{"epoch": epoch, "loss": [float(epoch)]} for epoch in range(20_000)]

    @keras_cg.custom_gradient
    def square(self, x: Any) -> Any:
        """Returns the square of a number, with a rule that does not use the dicts."""
        return x * x, lambda upstream: 7 * upstream * x


def programs(differentiate: Callable[[Any], Any]) -> dict[str, Program]:
    """Returns the gradients by name: of the function alone, in a closure, and as a method."""
    history, x = History(), ops.asarray(2.0)

    def in_a_closure(x: Any) -> Any:
        return x * x, lambda upstream: 7 * upstream * x if history else upstream

    functions = {
        ALONE: keras_cg.custom_gradient(lambda x: (x * x, lambda upstream: 7 * upstream * x)),
        "a closure": keras_cg.custom_gradient(in_a_closure),
        "a method": history.square,
    }
    gradients = {name: differentiate(function) for name, function in functions.items()}
    for name, gradient in gradients.items():
        found = float(gradient(x))
        if found != 14.0:
            raise ValueError(f"the gradient of {name} is 14, and came as {found}")
    return {name: (lambda gradient=gradient: gradient(x)) for name, gradient in gradients.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures whether a gradient costs what a closure can reach.")
    parser.add_argument("--backends", nargs="+", default=list(keras_cg.available_backends()))
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print("| backend | a closure | a method |\n|---|---|---|")
    for name in options.backends:
        ways: dict[str, Callable[[Any], Any]] = {name: keras_cg.grad}
        if name == "torch":
            ways["torch, by torch.func.grad"] = importlib.import_module("torch.func").grad
        for way, differentiate in ways.items():
            with keras_cg.use_backend(name):
                contestants = programs(differentiate)
                times = interleave(contestants, options.rounds, dict.fromkeys(contestants, 20), time.perf_counter)
            # Each of the others takes the place of ours once, beside the function alone.
            ratios = [summary({"keras_cg": times[each], ALONE: times[ALONE]})[ALONE]["ratio"][1] for each in times]
            print(f"| {way} | {' | '.join(f'{ratio:.2f}' for ratio in ratios[1:])} |", flush=True)


if __name__ == "__main__":
    main()
