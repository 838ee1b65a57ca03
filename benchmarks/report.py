"""Tables on the screen, and docs/reports/performance.md with its plot: the same JSON gives the same page."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks import reasons
from benchmarks.figures import on_few_lines, table
from benchmarks.measure import ALONE, BY_HAND, KERAS, NATIVE, OURS, PLAIN

# How many rounds the first gradient has, and the account of what an import takes: each is a new process.
FEW = 5
REPORTS = Path(__file__).parents[1] / "docs" / "reports"
FIGURES = REPORTS / "performance.json"
PAGE = REPORTS / "performance.md"
PLOT = REPORTS / "performance.png"
COLUMNS = (OURS, BY_HAND, KERAS, NATIVE, PLAIN, ALONE)

Results = dict[str, Any]
Line = dict[str, Any]

INTRO = """\
# Performance

<!-- Made by `nox -s bench` from performance.json; a test compares them. Do not edit. -->

The cost of `keras_cg.custom_gradient`, compared with other ways to give a function a gradient. Measured on {date} by
`nox -s bench`, in {minutes} minutes, on {cores} cores of `{cpu}` ({system}), with Python {python} and
{versions}. [Evidence](../evidence.md#performance) has the short form.

## How it was measured

- **Contestants**: `{ours}`; `{keras}`, which is `keras.ops.custom_gradient`; the `{native}`, which is
  `jax.custom_gradient` or `tf.custom_gradient`; `{by_hand}`, the best rule that we could write in the framework's own
  way: `jax.custom_vjp`, a `torch.autograd.Function` that saves what its gradient needs, `tf.custom_gradient` on flat
  tensors, a primitive of autograd; `{plain}`, the same function without a rule; and `{alone}`, the function that
  `{ours}` decorates, called without the decorator.
- **Correctness first**: before the timing, each contestant's value and gradient are compared with a closed form in
  float64. For a network, that is a computation in NumPy with its gradients written out. A wrong contestant is shown as
  wrong and is not timed. A contestant that raises is shown with its error.
- **In turn**: all contestants of a line run in one process, A B C A B C ..., for {rounds} rounds unless the line has
  another number. A turn is as many calls as take about 4 ms. Garbage is collected between turns only.
- **Clock**: {clock}
- **Reported**: the median time of a call. In brackets: the median ratio of our time to that contestant's in the same
  round, with quartiles. Below 1, `{ours}` is faster.
- **One thread**: `OMP_NUM_THREADS=1`, `torch.set_num_threads(1)`, one thread for TensorFlow's operations, and
  `--xla_cpu_multi_thread_eigen=false` for XLA. Each backend has a process of its own, where Keras runs on that backend,
  and where the allocator keeps the memory that is freed.
- **Rules**: where a line says nothing else, log1pexp has a rule in Keras's idiom, `grad(*args, upstream=None)`.
- **Elements**: float32. With 8 of them nearly all time is overhead, with 1,000,000 nearly none.
"""

# Of eager calls on some backends and of tracing, by `time.thread_time`; and of all others.
THREAD = (
    "the processor's time of the thread for tracing and for eager calls on {backends}, where that thread does all the\n"
    "  work, so that other programs do not lengthen it; else, and for all compiled programs, wall time."
)
WALL = "wall time."

TARGETS = """\
A compiled program contains the same operations as the hand-written rule (XLA's HLO, torch's lists for forward and
backward, the nodes of TensorFlow's graph). Tests compare these operations, not times. For each missed target,
[where the time goes](#where-the-time-goes) has the frames.
"""

TRAINING = """\
## A training step

Steps per second of a network in eager mode, the gradient and the weights a little further down; in brackets the ratio
of our time to that contestant's, as above. The digits network is that of `examples/digits.py`, with two bits and 128
images. The spiking network has 64 recurrent leaky integrate-and-fire neurons with surrogate gradients, and 16 images as
spike trains: each of 100 time steps calls the decorated spike function. The network with learned steps (LSQ, Esser et
al., 2020) rounds the weights and the inputs of three layers to three bits: the step is an argument of the decorated
function, and learned.
"""

SKIPPED = """\
## Gradients that are not needed

The backward pass of x @ w, 512 x 512, where w is frozen: a rule that skips the gradient of w by `needs_input_grad`,
over one that computes both. Without any other cost the ratio is 0.5.
"""

MEMORY = """\
## Memory

A chain of 3 calls of log1pexp on 10,000,000 numbers, each contestant in a new process; in arrays of that size, the
argument not counted. Held: what the process has more between forward and backward, the output among it. Peak: the most
that it has more until the gradient is there. Counted: by the framework, which is the tensors that torch saves (an
argument among them counts), JAX's live arrays, or what `tracemalloc` sees of NumPy's. TensorFlow counts nothing, and
its allocator keeps some of what was freed.
"""

IMPORT = """\
## Import

In a new process each, {rounds} rounds in turn; Keras on its NumPy backend.
"""

FIRST = """\
## First gradient

The first gradient of a function in a new process that has imported the framework and `{ours}`, {rounds} rounds in turn,
and how many modules it imports; beside it the same function without a rule.
"""

CURVES = """\
## Cost against numbers

The time of a gradient against the number of leaves in a nest, of calls in a chain and of elements in an array. A
straight line has R² = 1. Growth is the time for each at the largest number, over that at a tenth of it: 1 or less on a
straight line, 10 where the time grows as the square.

![Curves of cost, and of our ratio to the hand-written rule]({plot})
"""

FRAMES = """\
## Where the time goes

On few numbers a call costs what Python costs: the frames that it enters. Here are those of one call, once it is warm,
and the share of the time that passes in frames of `{ours}`, with what they call in C; beside it the frames of the rule
written by hand. cProfile counts them, which makes each frame look dearer than it is.

Tracing happens once for each program; its lines have the frames of the tracer. `jax.jit` traces the function apart, to
find what it closes over. Dynamo enters no frame that it traces, but many of its own for each, and what it compiled
looks at each call whether all is as it was.

The frames themselves, and why they are needed, follow for what misses its target.
"""


# --- small things ----------------------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Three digits, in the unit that suits them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def spread(found: Sequence[float], show: Callable[[float], str] = "{:.2f}".format) -> str:
    """`median (lower quartile to upper quartile)`."""
    low, median, high = map(show, found)
    return f"{median} ({low} to {high})"


def cell(found: dict[str, Any] | None, show: Callable[[float], str] = duration) -> str:
    """A contestant in a line of figures."""
    if found is None:
        return ""
    if "says" in found:
        return str(found["says"]).replace("|", "\\|")
    time = show(found["time"][1])
    return f"{time} ({spread(found['ratio'])})" if "ratio" in found else time


def per_second(seconds: float) -> str:
    """How often a second something is done that takes so long."""
    return f"{1 / seconds:,.0f} /s" if 1 / seconds > 100 else f"{1 / seconds:.3g} /s"


def often(count: float) -> str:
    """How often in a call, on the average."""
    return f"{count:,.1f}".removesuffix(".0")


def percent(share: float) -> str:
    """A share of the time."""
    return f"{share:.0%}" if share > 0.0095 or not share else f"{share:.1%}"


def lines_of(results: Results, backend: str, workload: str = "", measure: str = "") -> list[Line]:
    """The lines of a backend whose workload and measure begin so."""
    return [
        line
        for line in results["backends"].get(backend, {}).get("lines", [])
        if line["workload"].startswith(workload) and line["measure"].startswith(measure)
    ]


# --- the targets -----------------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """One figure that should not be above a limit."""

    what: str
    limit: str
    # Lower quartile, median, upper quartile, or words.
    found: list[float] | str
    is_met: bool
    unit: str = "×"

    def cells(self) -> tuple[str, str, str]:
        """Its row in the table."""
        return self.what, self.limit, self.found if isinstance(self.found, str) else f"{spread(self.found)} {self.unit}"


def _judged(backend: str, line: Line, to: str, most: float, key: str) -> Target:
    what, contestants = f"{backend}, {line['workload']}: {line['measure']}", line["contestants"]
    is_ratio = key == "ratio"
    limit = f"≤ {most} × {to}" if is_ratio else f"≤ {to} + {most} µs"
    # What ours does not do is missed; what cannot be done by them is met.
    for name in (OURS, to):
        if "says" in contestants[name]:
            return Target(what, limit, f"{name}: {contestants[name]['says']}", name != OURS)
    found = [each if is_ratio else 1e6 * each for each in contestants[to][key]]
    return Target(what, limit, found, found[1] <= most, "×" if is_ratio else "µs more")


# For the lines of figures of a backend whose workload and measure begin so: the contestant that we are compared with,
# and how many times as long as it we may take. Without another note, the rule is Keras's `grad(*args, upstream=None)`.
BOTH_WAYS = "forward and backward, upstream given"
EAGER = ("gradient of the sum", BOTH_WAYS)
SMALL = "log1pexp, 8 numbers"
LARGE = "log1pexp, 1,000,000 numbers"
RATIOS = (
    *(("torch", SMALL, measure, BY_HAND, 1.3) for measure in EAGER),
    *(("torch", SMALL, measure, KERAS, 1.25) for measure in EAGER),
    ("torch", "a rule grad(upstream)", BOTH_WAYS, BY_HAND, 1.25),
    ("torch", "a rule with variables", BOTH_WAYS, BY_HAND, 1.3),
    ("torch", "a rule grad(x, y, upstream)", BOTH_WAYS, BY_HAND, 1.3),
    ("torch", "a static argument", BOTH_WAYS, BY_HAND, 1.4),
    ("torch", "two in two out", BOTH_WAYS, BY_HAND, 1.7),
    ("torch", "a dict as argument", BOTH_WAYS, BY_HAND, 1.7),
    ("torch", "a method", BOTH_WAYS, BY_HAND, 1.25),
    ("torch", "a rule under no_grad", BOTH_WAYS, BY_HAND, 1.5),
    ("torch", SMALL, "call of constants", KERAS, 0.9),
    ("torch", SMALL, "call in no_grad", KERAS, 0.7),
    *(("torch", LARGE, measure, BY_HAND, 1.05) for measure in EAGER),
    ("torch", "a chain of 1,000", "gradient of the sum", BY_HAND, 1.4),
    ("torch", "the digits network", "one training step", BY_HAND, 1.1),
    ("torch", "a spiking network", "one training step", BY_HAND, 1.15),
    ("torch", "a network with learned steps", "one training step", BY_HAND, 1.25),
    ("torch", "second order", "", BY_HAND, 1.5),
    ("torch", "", "aot_eager,", BY_HAND, 1.1),
    ("torch", "", "inductor,", BY_HAND, 1.1),
    ("torch", "a chain of 100 ", "Dynamo and AOT", BY_HAND, 1.5),
    *(("jax", SMALL, measure, BY_HAND, 1.1) for measure in EAGER),
    ("jax", "", "trace and lower", BY_HAND, 1.5),
    ("jax", "", "jax.jit,", BY_HAND, 1.03),
    *(("tensorflow", SMALL, measure, KERAS, 1.0) for measure in EAGER),
    *(("tensorflow", LARGE, measure, BY_HAND, 1.05) for measure in EAGER),
    ("tensorflow", "", "tf.function,", BY_HAND, 1.03),
    ("tensorflow", "", "jit_compile,", BY_HAND, 1.03),
    ("tensorflow", SMALL, "call without", NATIVE, 0.5),
    ("tensorflow", "", "trace, tf.function", BY_HAND, 1.1),
    *(("numpy", SMALL, measure, BY_HAND, 1.5) for measure in ("call", *EAGER)),
    ("numpy", "a chain of 1,000", "gradient of the sum", BY_HAND, 2.5),
    ("numpy", "a network with learned steps", "one training step", BY_HAND, 1.25),
    *((backend, "a nest of 1,000", "forward and", BY_HAND, 1.3) for backend in ("jax", "numpy", "tensorflow", "torch")),
)
# How much longer than the function alone a call may take that nothing differentiates, in microseconds.
MORE = (("torch", SMALL, "call in no_grad", ALONE, 1.5), ("jax", SMALL, "call outside", ALONE, 10))


# Why a target is missed, for those that begin so; a test finds a reason for each, and none too many.
_GUARDS = "Compiled code looks at each call whether the function and the rule are as they were."
_SMALL = (
    "Steps of Python around the function and the rule: what was changed in place, what the rule holds, what its"
    " gradients are, which engine of torch is at work. A Function that is written by hand asks none of this."
)
_NESTS = "optree flattens the arguments and the output, and what the rule gets and returns."
_OF_NUMPY = "NumPy takes a microsecond for 8 numbers, and each frame of ours a part of one."
REASONS: tuple[tuple[str, str], ...] = (
    ("torch, log1pexp, 8 numbers: aot_eager", _GUARDS),
    ("torch, log1pexp, 8 numbers: inductor", _GUARDS),
    ("torch, two in two out in a nest: aot_eager", _GUARDS),
    ("torch, two in two out", _NESTS),
    ("torch, a dict", _NESTS),
    ("torch, a rule under no_grad", "The wrapper is looked through to the rule in it, at each call."),
    ("torch, a chain of 100 calls", "Dynamo traces our frames in each call; a program is traced once."),
    ("torch, second order", "The function runs again, and its rule is compared with the first."),
    ("torch, ", _SMALL),
    ("torch: bytes held", "Keras's idiom gets the arguments, and a second derivative needs them."),
    ("jax: bytes held", "Keras's idiom gets the arguments, which are kept for it."),
    ("jax: a gradient", "Eager JAX takes a part of the time for operations that cost nothing elsewhere."),
    ("tensorflow, two in two out in a nest: jit_compile", "The compiled programs are the same; this is noise."),
    ("numpy, ", _OF_NUMPY),
)


def why(target: Target) -> str | None:
    """Returns why a target is missed."""
    return next((reason for begin, reason in REASONS if target.what.startswith(begin)), None)


def targets(results: Results) -> Iterator[Target]:
    """Every target, as far as it was measured."""
    for key, limits in (("ratio", RATIOS), ("difference", MORE)):
        for backend, workload, measure, to, most in limits:
            for line in lines_of(results, backend, workload, measure):
                yield _judged(backend, line, to, most, key)
    for backend, found in results["backends"].items():
        if "skipped" in found:
            ratio = found["skipped"]["ratio"]
            yield Target(f"{backend}: a gradient that is not needed", "≤ 0.6 × both", ratio, ratio[1] <= 0.6)
        if "memory" not in found:
            continue
        ours, by_hand = (found["memory"][name]["held"] for name in (OURS, BY_HAND))
        # Objects, and what an allocator rounds up, are far below a tenth of an array.
        shown = f"{ours:.2f} arrays, hand-written {by_hand:.2f}"
        yield Target(f"{backend}: bytes held", "= hand-written", shown, ours < by_hand + 0.1)
    if results["imports"]:
        found = results["imports"]["contestants"]
        ratio = found["keras"]["ratio"]
        yield Target("`import keras_cg`", "≤ 0.05 × `import keras`", ratio, ratio[1] <= 0.05)
        more = [1e3 * value for value in found["numpy"]["difference"]]
        yield Target("`import keras_cg`", "≤ `import numpy` + 50 ms", more, more[1] <= 50, "ms more")
    if results["first"]:
        first = [1e3 * value for value in results["first"]["torch"][OURS]["time"]]
        yield Target("torch: the first gradient", "≤ 50 ms", first, first[1] <= 50, "ms")


# --- curves ----------------------------------------------------------------------------------------------------------


def straightness(sizes: Sequence[float], times: Sequence[float]) -> tuple[float, float, float]:
    """`(slope, R², growth)` of the straight line through the points, by least squares.

    `growth` is the time for each at the last point, over that for each at the point with about a tenth as many: 1 on a
    straight line through zero, less where the first ones cost more, and 10 where the time grows as the square.
    """
    slope, intercept = statistics.linear_regression(sizes, times)
    mean = statistics.fmean(times)
    residual = sum((time - intercept - slope * size) ** 2 for size, time in zip(sizes, times, strict=True))
    total = sum((time - mean) ** 2 for time in times)
    tenth = min(range(len(sizes)), key=lambda place: abs(sizes[place] - sizes[-1] / 10))
    return slope, 1 - residual / total, times[-1] / sizes[-1] / (times[tenth] / sizes[tenth])


def _curves(results: Results) -> list[str]:
    rows = []
    for backend, found in results["backends"].items():
        for curve in found["curves"]:
            for name, times in curve["medians"].items():
                slope, r2, growth = straightness(curve["sizes"], times)
                each = duration(slope * (1e6 if curve["of"] == "elements" else 1))
                rows.append((backend, curve["of"], name, each, f"{r2:.4f}", f"{growth:.2f}"))
    return table(("backend", "number of", "", "one more (of elements, a million)", "R²", "growth"), rows)


def draw(results: Results) -> None:
    """The curves, and our ratio to the hand-written rule."""
    backends = list(results["backends"])
    figure = Figure(figsize=(13, 9), layout="constrained")
    panels = figure.subplots(2, 3)
    of = ("leaves", "calls", "elements")
    colours = dict(zip(backends, ("tab:blue", "tab:orange", "tab:green", "tab:red"), strict=False))
    for place, what in enumerate(of):
        above, below = panels[0][place], panels[1][place]
        for backend in backends:
            curve = next(each for each in results["backends"][backend]["curves"] if each["of"] == what)
            ours, by_hand = curve["medians"][OURS], curve["medians"][BY_HAND]
            above.plot(curve["sizes"], ours, "o-", color=colours[backend], label=backend)
            above.plot(curve["sizes"], by_hand, "--", color=colours[backend], linewidth=1)
            ratios = [one / other for one, other in zip(ours, by_hand, strict=True)]
            below.plot(curve["sizes"], ratios, "o-", color=colours[backend])
        below.axhline(1, color="0.4", linewidth=1)
        above.set_yscale("log")
        below.set_ylim(0, None)
        for axes in (above, below):
            axes.set_xscale("log")
            axes.set_xlabel(f"number of {what}")
            axes.grid(which="major", color="0.9")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        above.set_title(f"a gradient, by the number of {what}")
    panels[0][0].set_ylabel("seconds (dashed: hand-written)")
    panels[1][0].set_ylabel("keras_cg / hand-written")
    panels[0][0].legend(frameon=False)
    figure.savefig(PLOT, dpi=110, metadata={"Software": None})


# --- the page --------------------------------------------------------------------------------------------------------


def render(results: Results) -> str:
    """The page."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    names = {"ours": OURS, "keras": KERAS, "native": NATIVE, "by_hand": BY_HAND, "plain": PLAIN, "alone": ALONE}
    facts = {**results["machine"], **names, "minutes": round(results["seconds"] / 60), "versions": versions}
    by_thread = [name for name, found in results["backends"].items() if found.get("clock") == "thread_time"]
    facts["clock"] = THREAD.format(backends=", ".join(by_thread)) if by_thread else WALL
    judged = [*targets(results)]
    met = sum(target.is_met for target in judged)
    page = [INTRO.format(**facts, date=results["date"], rounds=results["rounds"])]
    page += [TRAINING, *_training(results)]
    page += ["## Targets", "", f"{met} of {len(judged)} are met. The others, with the reason:", ""]
    rows = [(*target.cells(), why(target) or "") for target in judged if not target.is_met]
    page += table(("what", "target", "median (quartiles)", "reason"), rows)
    page += [TARGETS]
    for backend, found in results["backends"].items():
        page += [f"## `{backend}`", ""]
        page += table(("workload, measure", *COLUMNS), [_cells(line, results["rounds"]) for line in found["lines"]])
    ratios = [(backend, spread(found["skipped"]["ratio"])) for backend, found in results["backends"].items()]
    page += [SKIPPED, *table(("backend", "median (quartiles)"), ratios)]
    page += [MEMORY, *_memory(results)]
    page += [IMPORT.format(rounds=results["imports"]["rounds"]), *_imports(results)]
    page += [FIRST.format(rounds=FEW, ours=OURS, plain=PLAIN), *_first(results)]
    page += [CURVES.format(plot=PLOT.name), *_curves(results)]
    page += [FRAMES.format(ours=OURS), *_frames(results)]
    return "\n".join(page).rstrip() + "\n"


def _cells(line: Line, rounds: int) -> list[str]:
    fewer = "" if line["rounds"] == rounds else f" ({line['rounds']} rounds)"
    return [f"{line['workload']}: {line['measure']}{fewer}", *(cell(line["contestants"].get(name)) for name in COLUMNS)]


def _training(results: Results) -> list[str]:
    rows = []
    for backend in results["backends"]:
        for line in lines_of(results, backend, measure="one training step"):
            told = [cell(line["contestants"].get(name), per_second) for name in COLUMNS[:-1]]
            rows.append((f"{backend}, {line['workload']}", *told))
    return table(("network", *COLUMNS[:-1]), rows)


def _memory(results: Results) -> list[str]:
    rows = []
    for backend, found in results["backends"].items():
        for name, sizes in found["memory"].items():
            if "says" in sizes:
                rows.append((backend, name, sizes["says"], "", ""))
            else:
                counted = "" if sizes["counted"] is None else f"{sizes['counted']:.2f}"
                rows.append((backend, name, f"{sizes['held']:.2f}", f"{sizes['peak']:.2f}", counted))
    return table(("backend", "", "held", "peak", "counted"), rows)


def _imports(results: Results) -> list[str]:
    found = results["imports"]["contestants"]
    rows = [(f"`import {name}`", spread(each["time"], duration)) for name, each in found.items()]
    lines = table(("", "median (quartiles)"), rows)
    lines += [
        "What `import keras_cg` imports, beyond what the interpreter has, and the time of the modules themselves:",
        "",
    ]
    packages = [(f"`{name}`", count, duration(time)) for name, count, time in results["imports"].get("packages", [])]
    return lines + table(("package", "modules", "median"), packages)


def _first(results: Results) -> list[str]:
    rows = [
        (backend, *(f"{spread(each['time'], duration)}, {each['modules']:.0f} modules" for each in found.values()))
        for backend, found in results["first"].items()
    ]
    return table(("backend", OURS, PLAIN), rows)


def _frames(results: Results) -> list[str]:
    profiles = [(backend, each) for backend, found in results["backends"].items() for each in found.get("frames", [])]
    head = ("a call", f"frames of {OURS}", "of the time", f"frames in all, {OURS}", f"frames in all, {BY_HAND}")
    lines = table(head, [_counts(backend, each["contestants"], _what(each)) for backend, each in profiles])
    missed = _missed(results)
    for backend, each in profiles:
        if _of_any_length(f"{backend}, {_what(each)}") in missed:
            lines += [f"### `{backend}`, {_what(each)}", ""]
            head = ("frame", "module", "in a call", "of the time", "why")
            lines += table(head, _dearest(each["contestants"][OURS]))
    return lines


def _missed(results: Results) -> set[str]:
    """The lines of figures that miss their target."""
    return {_of_any_length(target.what) for target in targets(results) if not target.is_met}


def _of_any_length(what: str) -> str:
    """A chain has the same frames in each of its calls, and is profiled with fewer of them."""
    return re.sub(r"a chain of [\d,]+ calls", "a chain of calls", what)


def _what(line: Line) -> str:
    return f"{line['workload']}: {line['measure']}"


def _counts(backend: str, profiles: dict[str, Any], what: str) -> tuple[str, ...]:
    package = {name: (count, share) for name, count, share in profiles[OURS]["packages"]}
    own, share = package.get("keras_cg", (0.0, 0.0))
    all_of = [sum(count for _, count, _ in profiles[name]["packages"]) for name in (OURS, BY_HAND)]
    return f"{backend}, {what}", often(own), percent(share), *map(often, all_of)


def _dearest(profile: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for each frame that costs most, with why it is needed, and one row for what is left of them."""
    rows = []
    for frame in profile["frames"]:
        module, _, function = frame["function"].partition(":")
        why = reasons.why(frame["function"], frame["doc"]).replace("|", "\\|")
        rows.append((f"`{function}`", f"`{module}`", often(frame["count"]), percent(frame["share"]), why))
    functions, count, share = profile["others"]
    if functions:
        rows.append((f"{functions} more", "", often(count), percent(share), ""))
    return rows


def show(results: Results, console: Console) -> None:
    """The tables on the screen."""
    for backend, found in results["backends"].items():
        shown = Table("workload, measure", "contestant", "time", "keras_cg / it (quartiles)", title=backend)
        for line in found["lines"]:
            what = f"{line['workload']}: {line['measure']}"
            for place, (name, each) in enumerate(line["contestants"].items()):
                time = str(each["says"]) if "says" in each else duration(each["time"][1])
                ratio = spread(each["ratio"]) if "ratio" in each else ""
                shown.add_row("" if place else what, name, time, ratio)
            shown.add_section()
        console.print(shown)
    shown = Table("what", "target", "median (quartiles)", "", title="targets")
    for target in targets(results):
        shown.add_row(*target.cells(), "met" if target.is_met else "**missed**")
    console.print(shown)


def shown(results: Results) -> Results:
    """The figures that the page shows: no frames of what meets its target, and no difference that is no target."""
    missed = _missed(results)
    for backend, found in results["backends"].items():
        for line in found["lines"]:
            for name, each in line["contestants"].items():
                if name != ALONE:
                    each.pop("difference", None)
        for line in found.get("frames", []):
            for name, each in line["contestants"].items():
                if name != OURS or _of_any_length(f"{backend}, {_what(line)}") not in missed:
                    line["contestants"][name] = {"packages": each["packages"]}
    return results


def write(results: Results) -> None:
    """The figures, the page and its plot."""
    FIGURES.write_text(on_few_lines(results) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")
    draw(results)
