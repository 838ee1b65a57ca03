"""`keras-cg plot`: draws a function, its custom gradient and the numerical one over a range."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy

from keras_cg.command import messages, output, processes, targets
from keras_cg.command.curves import Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "run"]


# The curves of a backend, or the reason why there are none: a line about the backend, or a usage error.
_Outcome: TypeAlias = "Curves | str | messages.UsageError"


class _Look(NamedTuple):
    """The colours of a plot."""

    ground: str
    ink: str
    faint: str
    truth: str
    wrong: str
    lines: tuple[str, ...]


# One colour for each backend; colour-blind readers can distinguish them, too (M. Okabe and K. Ito, 2008).
LOOKS = {
    "light": _Look("#ffffff", "#1f2328", "#d8dee4", "#c9d1d9", "#d1242f", ("#0072b2", "#e08b00", "#009e73", "#b5509c")),
    "dark": _Look("#0d1117", "#e6edf3", "#2b3138", "#485260", "#ff6b6b", ("#58a6ff", "#ffb84d", "#3fd0a0", "#e391cf")),
}


def run(options: argparse.Namespace) -> int:
    """Draws the function that the command line names.

    Raises:
        UsageError: The options are invalid, or no backend can draw the function.
    """
    arguments = targets.validate(options.target, options.arg, options.expected)
    if not targets.split(options.target)[1]:
        raise messages.needs_function(options.target, "plot")
    _require_image(options.output)
    names, absent = processes.chosen(options.backends)
    job = {name: getattr(options, name) for name in ("target", "expected", "seed")}
    job |= {"task": "plot", "arguments": arguments, "value": None}
    with tempfile.TemporaryDirectory() as folder:
        outcomes = asyncio.run(
            processes.of_all(names, lambda name: _compute({**job, "backend": name, "folder": folder}, options.timeout))
        )
    found = {name: each for name, each in outcomes.items() if isinstance(each, Curves)}
    refused = {str(each) for each in outcomes.values() if isinstance(each, messages.UsageError)}
    if refused and len(refused) == len(set(map(str, outcomes.values()))):
        raise messages.UsageError("; ".join(sorted(refused)))
    for line in (*_failures(outcomes), *absent):
        output.complain(line)
    if found:
        figure = draw(targets.split(options.target)[1], found, options.look, options.expected)
        _save(figure, options.output)
        for line in (*_parts(found), f"plot: {options.output}"):
            print(line)  # noqa: T201 - a command prints
    return 2 if absent else 0 if len(found) == len(outcomes) else 1


def _failures(outcomes: Mapping[str, _Outcome]) -> Iterator[str]:
    """Yields a line for each backend without curves."""
    for name, outcome in outcomes.items():
        if isinstance(outcome, messages.UsageError):
            yield f"{name}: {outcome}"
        elif isinstance(outcome, str):
            yield outcome


def _require_image(path: str) -> None:
    """Raises before any work if the image cannot be written."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    suffix = Path(path).suffix.removeprefix(".").lower()
    if suffix not in known:
        raise messages.not_a_file_to_write(path, f"unknown image format {suffix!r}; use one of {', '.join(known)}")
    if os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or "."):
        raise messages.not_a_file_to_write(path, "its folder does not exist, or it is a folder itself")


def _save(figure: Figure, path: str) -> None:
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise messages.not_a_file_to_write(path, error.strerror or str(error)) from None


async def _compute(job: dict[str, Any], timeout: float) -> _Outcome:
    name = job["backend"]
    events: dict[str, Any] = {}
    death = await processes.follow(job, timeout, lambda event: events.update({event["event"]: event}))
    if death is not None:
        return processes.obituary(name, death, timeout, "computing")
    if "usage" in events:
        return messages.UsageError(events["usage"]["message"])
    if "problem" in events:
        return str(events["problem"]["message"])
    with numpy.load(Path(job["folder"], f"{name}.npz"), allow_pickle=False) as arrays:
        return Curves(**arrays, label=events["curves"]["label"], others=events["curves"]["others"])


def _parts(found: Mapping[str, Curves]) -> Iterator[str]:
    """Yields a line for each group of backends: where its gradient differs from the expected one."""
    for names, curves in _alike(found):
        unknown = int((~numpy.isfinite(curves.expected)).sum())
        note = f" ({unknown} of {curves.x.size} points undecided: a kink, or no finite number)" if unknown else ""
        where = _where(curves)
        verdict = f"outside tolerance for {where}" if where else "within tolerance everywhere"
        yield f"{', '.join(names)}: {verdict}{note}"


def _alike(found: Mapping[str, Curves]) -> list[tuple[list[str], Curves]]:
    """Groups the backends whose gradients differ from the expected ones at the same points."""
    groups: list[tuple[list[str], Curves]] = []
    for name, curves in found.items():
        for names, other in groups:
            # At the two edges of a region, rounding may decide differently on each backend.
            one, two = curves.differs, other.differs
            if numpy.count_nonzero(one != two) <= 2 and one.any() == two.any():
                names.append(name)
                break
        else:
            groups.append(([name], curves))
    return groups


def _spans(curves: Curves) -> list[tuple[float, float]]:
    """Returns the intervals where the gradient differs, extended by half a step."""
    edges = numpy.flatnonzero(numpy.diff(curves.differs.astype(int), prepend=0, append=0)).reshape(-1, 2)
    x = curves.x
    middles = numpy.concatenate([x[:1], (x[1:] + x[:-1]) / 2, x[-1:]])
    middles[abs(middles) < 1e-9 * (x[-1] - x[0])] = 0.0  # the rounding of numpy.linspace
    return [(float(middles[first]), float(middles[last])) for first, last in edges]


def _where(curves: Curves) -> str:
    """Describes where the gradient differs; "" if it does so nowhere."""
    if not curves.differs.any():
        return ""
    if curves.differs[numpy.isfinite(curves.expected)].all():
        return f"every {curves.label}"
    spans = _spans(curves)
    if len(spans) <= 2:
        return " and ".join(f"{low:.3g} < {curves.label} < {high:.3g}" for low, high in spans)
    return f"{curves.differs.mean():.0%} of the range, in {len(spans)} pieces"


def draw(name: str, found: Mapping[str, Curves], look: str = "light", expected: str | None = None) -> Figure:
    """Draws the plot of a function.

    Args:
        name: The function's name, for the title.
        found: The curves, by backend.
        look: "light" or "dark".
        expected: The name of the reference for the gradient; None for the function's own derivative.

    Returns:
        A figure with two panels. The global state of matplotlib is not changed.
    """
    import matplotlib
    from matplotlib.figure import Figure

    colours = LOOKS[look]
    style: Any = {
        "axes.edgecolor": colours.faint,
        "axes.facecolor": colours.ground,
        "axes.labelcolor": colours.ink,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 10.0,
        "grid.color": colours.faint,
        "grid.linewidth": 0.6,
        "text.color": colours.ink,
        "xtick.color": colours.ink,
        "ytick.color": colours.ink,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(8, 6.4), facecolor=colours.ground, layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
        for panel in (top, bottom):
            panel.grid(True)
            panel.set_axisbelow(True)
            panel.tick_params(length=0)
        _draw_curves(top, found, colours, expected)
        _draw_differences(bottom, found, colours)
        _shade((top, bottom), found, colours)
        _label(figure, top, name, next(iter(found.values())))
    return figure


def _draw_curves(panel: Axes, found: Mapping[str, Curves], colours: _Look, expected: str | None) -> None:
    """Draws the function, the expected gradient as a wide line, and the custom gradients as dashes on top."""
    truth = f"gradient of {expected}" if expected else "numerical derivative"
    first = next(iter(found.values()))
    panel.plot(first.x, first.expected, color=colours.truth, linewidth=7, solid_capstyle="butt", label=truth)
    for number, (backend, curves) in enumerate(found.items()):
        colour = colours.lines[number % len(colours.lines)]
        alike = numpy.allclose(curves.value, first.value, 1e-3, 1e-3, equal_nan=True)
        if number == 0 or not alike:
            label = "function" if number == 0 else f"function on {backend}"
            panel.plot(curves.x, curves.value, color=colours.ink if number == 0 else colour, linewidth=1.4, label=label)
        if number and not numpy.allclose(curves.expected, first.expected, 1e-2, 1e-2, equal_nan=True):
            panel.plot(curves.x, curves.expected, color=colour, linewidth=7, alpha=0.3, label=f"{truth} on {backend}")
        # The dashes of the backends alternate: else the last line would cover equal ones.
        panel.plot(curves.x, curves.gradient, color=colour, linewidth=2.2, linestyle=_dashes(number, len(found)))
        # In the legend the dashes are dense, because the alternating ones are too sparse to recognise.
        panel.plot([], [], color=colour, linewidth=2.2, linestyle=(0, (3, 1)), label=f"custom gradient, {backend}")
    _limit(panel, [each for curves in found.values() for each in (curves.value, curves.gradient, curves.expected)])


def _dashes(number: int, count: int) -> tuple[float, tuple[float, float]]:
    """Returns the dashes of line `number` of `count`, which alternate with the dashes of the others."""
    return -3.0 * number, (3.0, 3.0 * max(1, count - 1))


def _draw_differences(panel: Axes, found: Mapping[str, Curves], colours: _Look) -> None:
    differences = []
    for number, (_backend, curves) in enumerate(found.items()):
        colour = colours.lines[number % len(colours.lines)]
        with numpy.errstate(invalid="ignore"):
            differences.append(curves.gradient - curves.expected)
        panel.plot(curves.x, differences[-1], color=colour, linewidth=1.8, linestyle=_dashes(number, len(found)))
    allowed = numpy.max([curves.tolerance for curves in found.values()], axis=0)
    panel.fill_between(curves.x, -allowed, allowed, color=colours.truth, alpha=0.5, linewidth=0, label="tolerance")
    # The limits include the tolerance, so rounding below it looks small.
    _limit(panel, [*differences, 2 * allowed, -2 * allowed])
    panel.set_ylabel("difference")
    panel.ticklabel_format(axis="y", scilimits=(-3, 4), useMathText=True)
    panel.set_xlabel(curves.label)
    panel.set_xlim(curves.x[0], curves.x[-1])


def _limit(panel: Axes, arrays: list[numpy.ndarray]) -> None:
    """Limits the axis, because a pole would make all other values look flat."""
    numbers = numpy.concatenate(arrays)
    numbers = numbers[numpy.isfinite(numbers)]
    if not numbers.size:
        return
    low, high = numpy.quantile(numbers, (0.02, 0.98))
    room = 4 * (high - low)
    low, high = max(numbers.min(), low - room), min(numbers.max(), high + room)
    margin = 0.06 * (high - low) or 0.5
    panel.set_ylim(low - margin, high + margin)


def _shade(panels: tuple[Axes, Axes], found: Mapping[str, Curves], colours: _Look) -> None:
    for names, curves in _alike(found):
        colour = colours.wrong if len(names) > 1 else colours.lines[list(found).index(names[0]) % len(colours.lines)]
        label: str | None = f"outside tolerance on {', '.join(names)}: {_where(curves)}"
        for low, high in _spans(curves):
            for panel in panels:
                panel.axvspan(low, high, color=colour, alpha=0.13, linewidth=0, label=label, zorder=0.5)
                label = None


def _label(figure: Figure, panel: Axes, name: str, curves: Curves) -> None:
    title = f"{name}({curves.label}{', ' + curves.others if curves.others else ''})"
    panel.set_title(title, loc="left", fontweight="bold", fontsize=13)
    figure.legend(loc="outside lower left", ncols=2, frameon=False, handlelength=3.2)
