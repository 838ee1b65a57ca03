"""Measures one backend and writes the figures as JSON: `python -m benchmarks.worker torch 30 figures.json`.

A backend has a process of its own, so that no framework disturbs another; Keras runs on the same backend there. With a
fourth argument only those lines of figures are measured that have it in their `workload: measure`.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

import keras_cg
from benchmarks import measure, networks, tasks
from benchmarks.measure import ALONE, BY_HAND, OURS, Clock, Program
from benchmarks.tasks import Function, Workload
from keras_cg import ops

TRAINING = "one training step"
BOTH_WAYS = "forward and backward, upstream given"
# The curves take their turns this often: they have many points, and each is a median as well.
ROUNDS_OF_CURVES = 5

Make = Callable[[Function, Any], Program]


class Bench:
    """The measurements of one backend."""

    def __init__(self, backend: str, rounds: int, only: str = ""):
        self.kit: Any = importlib.import_module(f"benchmarks.workloads.{backend}")
        self.rounds = rounds
        self.only = only
        self.lines: list[dict[str, Any]] = []
        self.started = time.perf_counter()
        self.kit.setup()

    def tell(self, what: str) -> None:
        """What is done, on stderr, for those who wait."""
        print(f"{time.perf_counter() - self.started:5.0f} s  {what}", file=sys.stderr, flush=True)

    def wants(self, workload: Workload, title: str) -> bool:
        """Whether a line of figures was asked for."""
        return self.only in f"{workload.title}: {title}"

    def functions(self, workload: Workload) -> dict[str, Function | str]:
        """The contestants of a workload: what is called, or why it is not."""
        return {
            name: each if isinstance(each, str) else workload.around(each, self.kit.tensor)
            for name, each in getattr(self.kit, workload.contestants)().items()
        }

    def arguments(self, workload: Workload) -> Any:
        """Its arguments as tensors."""
        return tasks.mapped(self.kit.tensor, workload.arguments)

    def verdict(self, workload: Workload, program: Program) -> str | None:
        """What is to be said of a contestant whose program, `() -> (outputs, gradients)`, is not right."""
        try:
            outputs, gradients = program()
            right = tasks.is_right(outputs, workload.outputs, self.kit.array)
            right = right and tasks.is_right(gradients, workload.gradients, self.kit.array)
        except Exception as error:
            return in_words(error)
        return None if right else "wrong"

    def checked(self, workload: Workload, make: Make | None = None) -> dict[str, Function | str]:
        """The contestants, those that are wrong replaced by words."""
        arguments, found = self.arguments(workload), self.functions(workload)
        for name, function in found.items():
            if name != ALONE and not isinstance(function, str):
                found[name] = self.verdict(workload, self.whole(function, arguments, make)) or function
        return found

    def whole(self, function: Function, arguments: Any, make: Make | None) -> Program:
        """A program `() -> (outputs, gradients)`; `make` gives the gradients, the kit's `vjp` if there is none."""

        def program() -> Any:
            if make is not None:
                return function(*arguments), make(function, arguments)()
            outputs, backward = self.kit.vjp(function, arguments)()
            return outputs, backward()

        return program

    def line(
        self, workload: Workload, title: str, contestants: dict[str, Any], make: Make, clock: Clock, rounds: int = 0
    ) -> None:
        """Measures the programs that `make` makes of a workload's contestants."""
        arguments = self.arguments(workload)
        programs = {
            name: each if isinstance(each, str) else make(each, arguments) for name, each in contestants.items()
        }
        figures = measure.compare(programs, rounds or self.rounds, clock)
        self.lines.append({"workload": workload.title, "measure": title, **figures})
        self.tell(f"{workload.title}: {title}")

    def vjp(self, function: Function, arguments: Any) -> Program:
        """Forward and backward, with upstream given."""
        start = self.kit.vjp(function, arguments)
        return lambda: self.kit.wait(start()[1]())

    def step(self, function: Function, arguments: Any) -> Program:
        """A gradient, and the arguments a little further down."""
        gradient, weights = self.kit.gradient(function, arguments), tasks.flat(arguments)
        return lambda: self.kit.wait(
            [weight - 0.01 * each for weight, each in zip(weights, tasks.flat(gradient()), strict=True)]
        )

    # --- the measures ------------------------------------------------------------------------------------------------

    def lines_of(
        self, workload: Workload, measures: dict[str, Make], check: Make | None = None, alone: bool = False
    ) -> None:
        """The lines of a workload that are wanted: `measures` by title, `alone` with the function without a decorator.

        A line that was not asked for is neither checked nor compiled.
        """
        wanted = {title: make for title, make in measures.items() if self.wants(workload, title)}
        if wanted:
            found = self.checked(workload, check)
            for title, make in wanted.items():
                self.line(workload, title, found if alone else without(found, ALONE), make, self.kit.CLOCK)

    def eager(self) -> None:
        """Calls and gradients of every workload, nothing compiled."""
        small, (first, call) = tasks.log1pexp(8), next(iter(self.kit.calls.items()))
        for workload in (small, tasks.log1pexp(1_000_000), tasks.pair(), tasks.leaves(1000)):
            self.lines_of(workload, self.kit.calls if workload is small else {first: call}, alone=True)
            if workload.contestants == "log1pexp":
                self.lines_of(workload, {"gradient of the sum": self.kit.gradient})
            self.lines_of(workload, {BOTH_WAYS: self.vjp})
        for workload in tasks.idioms():
            if hasattr(self.kit, workload.contestants):
                self.lines_of(workload, {BOTH_WAYS: self.vjp})
        self.lines_of(tasks.chain(self.kit.CHAIN), {"gradient of the sum": self.kit.gradient})
        for network in (networks.digits_network(), networks.spiking_network(), networks.quantised_network()):
            self.lines_of(network, {TRAINING: self.step}, check=self.kit.gradient)
        self.higher()

    def higher(self) -> None:
        """The second derivative."""
        workload, title = tasks.log1pexp_twice(), "gradient of the gradient"
        if self.wants(workload, title):
            found = without(self.functions(workload), ALONE)
            arguments = self.arguments(workload)
            for name, function in found.items():
                if not isinstance(function, str):
                    found[name] = self.verdict(workload, self.twice(function, arguments)) or function
            self.line(workload, title, found, self.kit.second_order, self.kit.CLOCK)

    def twice(self, function: Function, arguments: Any) -> Program:
        """A program for the first and the second derivative."""
        return lambda: (
            self.kit.gradient(function, arguments)(),
            self.kit.second_order(function, arguments)(),
        )

    def steady(self) -> None:
        """Gradients of compiled programs, once they are compiled."""
        for compiler, compiled in self.kit.compilers.items():
            title = f"{compiler}, forward and backward"
            workloads = [tasks.log1pexp(8), tasks.log1pexp(1_000_000), tasks.pair(), networks.digits_network()]
            # It takes inductor seconds to compile one.
            for workload in workloads[:1] if compiler == "inductor" else workloads:
                if not self.wants(workload, title):
                    continue
                arguments = self.arguments(workload)
                programs: dict[str, Any] = without(self.functions(workload), ALONE)
                for name, function in programs.items():
                    if not isinstance(function, str):
                        programs[name] = self.compiled(workload, function, arguments, compiled)
                self.line(workload, title, programs, lambda program, _: program, time.perf_counter)

    def compiled(self, workload: Workload, function: Function, arguments: Any, compiled: Make) -> Program | str:
        """A compiled program that is right, or words."""
        try:
            program = compiled(function, arguments)
        except Exception as error:
            return in_words(error)
        return self.verdict(workload, program) or program

    def tracing(self) -> None:
        """The time until a program of many calls is traced."""
        title, calls, rounds = self.kit.TRACED
        short, workload = tasks.chain(2), tasks.chain(calls)
        if not rounds or not self.wants(workload, title):
            return
        found = without(self.functions(workload), ALONE)
        for name, function in self.checked(short).items():
            if isinstance(function, str):
                found[name] = function
            elif name in found:
                try:
                    self.kit.trace(function, self.arguments(short))()
                except Exception as error:
                    found[name] = in_words(error)
        self.line(workload, title, found, self.kit.trace, time.thread_time, rounds)

    def skipped(self) -> dict[str, list[float]]:
        """The backward pass of x @ w for x alone, 512 x 512: a rule that asks what is needed, and one that does not."""

        def product(is_asking: bool) -> Function:
            @keras_cg.custom_gradient
            def product(x: Any, w: Any) -> Any:
                def grad(upstream: Any, needs_input_grad: Any) -> Any:
                    of_w = (
                        ops.matmul(ops.matrix_transpose(x), upstream) if needs_input_grad[1] or not is_asking else None
                    )
                    return ops.matmul(upstream, ops.matrix_transpose(w)), of_w

                return ops.matmul(x, w), grad

            return product

        x, w = (self.kit.tensor(numpy.eye(512, dtype=numpy.float32)) for _ in range(2))
        starts = {
            name: self.kit.vjp(functools.partial(_with, product(is_asking), w), (x,))
            for name, is_asking in (("asks", True), ("does not ask", False))
        }
        times: dict[str, list[float]] = {name: [] for name in starts}
        for _ in range(self.rounds + 3):
            for name, start in starts.items():
                backward = start()[1]
                started = self.kit.CLOCK()
                self.kit.wait(backward())
                times[name].append(self.kit.CLOCK() - started)
        # The first rounds compile and fill caches.
        ratios = [one / other for one, other in zip(*times.values(), strict=True)][3:]
        self.tell("gradients that are not needed")
        return {"ratio": measure.quartiles(ratios)}

    def curves(self) -> list[dict[str, Any]]:
        """The time of a gradient against the number of leaves, of calls and of elements."""
        return [
            self.curve("leaves", tasks.leaves, (1, 10, 30, 100, 300, 1000), self.vjp),
            self.curve("calls", tasks.chain, (1, 10, 30, 100, 300, 1000), self.kit.gradient),
            self.curve("elements", tasks.log1pexp, (8, 100_000, 1_000_000, 3_000_000, 10_000_000), self.kit.gradient),
        ]

    def curve(self, of: str, workload: Callable[[int], Workload], sizes: tuple[int, ...], make: Make) -> dict[str, Any]:
        """One of them: the medians of ours and of the hand-written one."""
        medians: dict[str, list[float]] = {OURS: [], BY_HAND: []}
        for size in sizes:
            this = workload(size)
            functions, arguments = self.functions(this), self.arguments(this)
            programs = {name: make(functions[name], arguments) for name in medians}
            figures = measure.compare(programs, ROUNDS_OF_CURVES, self.kit.CLOCK)
            for name, found in medians.items():
                found.append(figures["contestants"][name]["time"][1])
        self.tell(f"curve of {of}")
        return {"of": of, "sizes": sizes, "rounds": ROUNDS_OF_CURVES, "medians": medians}

    def frames(self) -> list[dict[str, Any]]:
        """The frames of Python that we enter, and those of the rule written by hand."""
        small = tasks.log1pexp(8)
        traced, _, rounds = self.kit.TRACED
        wanted = [
            *((small, title, call) for title, call in self.kit.calls.items()),
            (small, "gradient of the sum", self.kit.gradient),
            (small, BOTH_WAYS, self.vjp),
            (tasks.chain(self.kit.CHAIN), "gradient of the sum", self.kit.gradient),
            (tasks.pair(), BOTH_WAYS, self.vjp),
            (tasks.leaves(1000), BOTH_WAYS, self.vjp),
            (tasks.log1pexp_twice(), "gradient of the gradient", self.kit.second_order),
            (networks.digits_network(), TRAINING, self.step),
            *((small, f"{title}, forward and backward", make) for title, make in self.kit.compilers.items()),
            *((tasks.chain(10), title, self.kit.trace) for title in (traced,) if rounds),
        ]
        found = []
        for workload, title, make in wanted:
            functions, arguments = self.functions(workload), self.arguments(workload)
            profiles = {}
            for name in (OURS, BY_HAND):
                profiles[name] = measure.profile(make(functions[name], arguments), seconds=0.3, package="keras_cg")
            found.append({"workload": workload.title, "measure": title, "contestants": profiles})
        self.tell("frames")
        return found


def _with(function: Function, w: Any, x: Any) -> Any:
    return function(x, w)


def without(contestants: dict[str, Any], *names: str) -> dict[str, Any]:
    """The contestants but for some."""
    return {name: each for name, each in contestants.items() if name not in names}


def in_words(error: Exception) -> str:
    """An error in a cell of a table."""
    first = next(iter(str(error).strip().splitlines()), "")
    # A path belongs to one machine.
    return type(error).__name__ if "/" in first or not first else f"{type(error).__name__}: {first[:60]}"


def run(backend: str, rounds: int, only: str = "") -> dict[str, Any]:
    """Every figure of a backend, or the lines of figures that were asked for."""
    with keras_cg.use_backend(backend):
        bench = Bench(backend, rounds, only)
        bench.eager()
        bench.steady()
        bench.tracing()
        found: dict[str, Any] = {"lines": bench.lines, "clock": bench.kit.CLOCK.__name__}
        if not only:
            found |= {"curves": bench.curves(), "frames": bench.frames(), "skipped": bench.skipped()}
        return found | {"seconds": round(time.perf_counter() - bench.started)}


if __name__ == "__main__":
    backend, rounds, file, *only = sys.argv[1:]
    Path(file).write_text(json.dumps(run(backend, int(rounds), *only)), encoding="utf-8")
