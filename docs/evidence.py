"""Draws the four figures of docs/evidence.md from the reports: `python docs/evidence.py`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

DOCS = Path(__file__).parent
REPORTS = DOCS / "reports"

# Colours that stay apart for colour-blind readers; the worst outcome has a hatch as well.
COLOURS = {
    "right": "#0072b2",
    "pass": "#0072b2",
    "found": "#0072b2",
    "clear error": "#8cc6ec",
    "error": "#e69f00",
    "silently wrong": "#d55e00",
    "limit": "#d55e00",
    "not found": "#d55e00",
    "NaN": "#e69f00",
    "other behaviour": "#a6a6a6",
    "no gradient": "#d9d9d9",
}
HATCHED = ("silently wrong", "limit", "not found")
BACKENDS = ("jax", "torch", "tensorflow", "numpy")

Bars = dict[str, dict[str, int]]


def rows(report: str) -> Iterable[list[str]]:
    """The cells of each row of each table in a report, without backquotes."""
    for line in (REPORTS / f"{report}.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| "):
            yield [cell.strip(" `") for cell in line.strip("|").split("|")]


def totals(report: str, columns: int) -> Bars:
    """The table of totals of a report: the counts of a row by the title of their column."""
    table = iter(rows(report))
    head = next(row for row in table if row[0] == "backend")[columns:]
    found: Bars = {}
    for row in table:
        if row[0] not in (*BACKENDS, "all", "---"):
            break
        if row[0] != "---":
            labels = row[:1] if columns == 2 and row[1].isdigit() else row[:columns]
            found[", ".join(labels)] = dict(zip(head, map(int, row[columns:]), strict=True))
    return found


def conformance() -> Bars:
    """The outcomes of the conformance suite, by backend."""
    return totals("conformance", 2)


def parity() -> Bars:
    """The outcomes of the programs, by backend and decorator."""
    return {label: counts for label, counts in totals("keras_parity", 2).items() if not label.startswith("all")}


def checker() -> Bars:
    """How many of the planted faults each tool found, and did not find."""
    results = json.loads((REPORTS / "checker.json").read_text(encoding="utf-8"))
    found: Bars = {}
    keys = [key for key in results["beside"] if not key.endswith(", fast")]
    for key in sorted(keys, key=lambda key: (key.split(": ")[0], "check_gradients" not in key)):
        backend, _, tool = key.partition(": ")
        cells = results["beside"][key].values()
        measured, caught = (sum(cell[place] for cell in cells) for place in (0, 1))
        tool = tool.replace("autograd's ", "")
        found[f"{backend}, {tool}"] = {"found": caught, "not found": measured - caught}
    return found


# The lines of the performance report that the figure shows.
LINES = {
    "8 elements, eager": ("log1pexp, 8 numbers", "gradient of the sum"),
    "1,000,000 elements, eager": ("log1pexp, 1,000,000 numbers", "gradient of the sum"),
    "a training step, eager": ("the digits network", "one training step"),
    "8 elements, compiled": ("log1pexp, 8 numbers", ("jax.jit, f", "inductor, f", "tf.function, f")),
    "a network, compiled": ("the digits network", ("jax.jit, f", "aot_eager, f", "tf.function, f")),
}


def performance() -> dict[str, dict[str, list[float]]]:
    """The quartiles of the ratio of our time to a hand-written rule's, by line and backend."""
    results = json.loads((REPORTS / "performance.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, list[float]]] = {}
    for label, (workload, measures) in LINES.items():
        for backend in BACKENDS:
            for line in results["backends"][backend]["lines"]:
                if line["workload"] == workload and line["measure"].startswith(measures):
                    found.setdefault(label, {})[backend] = line["contestants"]["hand-written"]["ratio"]
    return found


def bars(found: Bars, are_shares: bool = False) -> Figure:
    """Horizontal bars of counts, or of shares that have their counts written on them."""
    figure = Figure(figsize=(9, 0.9 + 0.42 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    for place, counts in enumerate(found.values()):
        start, whole = 0.0, sum(counts.values())
        for outcome, count in counts.items():
            length = count / whole if are_shares else count
            hatch = "///" if outcome in HATCHED else None
            axes.barh(place, length, 0.7, start, color=COLOURS[outcome], hatch=hatch, edgecolor="white", linewidth=0.5)
            if length > (0.05 if are_shares else 0.02 * max(sum(each.values()) for each in found.values())):
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1} if hatch else None
                dark = outcome in ("right", "pass", "found")
                axes.text(
                    start + length / 2,
                    place,
                    str(count),
                    ha="center",
                    va="center",
                    fontsize=9,
                    color="white" if dark else "black",
                    bbox=box,
                )
            start += length
    axes.set_yticks(range(len(found)), found)
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
    if are_shares:
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    outcomes = dict.fromkeys(outcome for counts in found.values() for outcome in counts)
    handles: list[Any] = [
        axes.barh(0, 0, color=COLOURS[each], hatch="///" if each in HATCHED else None, edgecolor="white")
        for each in outcomes
    ]
    figure.legend(handles, list(outcomes), loc="outside lower center", ncols=len(outcomes), frameon=False)
    return figure


def ratios(found: dict[str, dict[str, list[float]]]) -> Figure:
    """A point for each backend and line with its quartiles, on a linear scale."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.add_subplot()
    styles = dict(zip(BACKENDS, zip("osD^", ("#0072b2", "#d55e00", "#e69f00", "#666666"), strict=True), strict=True))
    for place, backends in enumerate(found.values()):
        for backend, (low, median, high) in backends.items():
            height = place + 0.15 * (BACKENDS.index(backend) - 1.5)
            marker, colour = styles[backend]
            label = backend if not place else None
            axes.errorbar(median, height, xerr=[[median - low], [high - median]], fmt=marker, color=colour, label=label)
            axes.annotate(f"{median:.2f}", (high, height), (5, 0), textcoords="offset points", va="center", fontsize=8)
    axes.axvline(1, color="0.4", linewidth=1)
    axes.set_yticks(range(len(found)), found)
    axes.invert_yaxis()
    axes.set_xlim(0, None)
    axes.set_xlabel("time of keras_cg / time of a hand-written rule (median and quartiles)")
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
    return figure


def main(folder: Path) -> None:
    """Writes the figures into a folder."""
    figures = {
        "conformance": bars(conformance(), are_shares=True),
        "parity": bars(parity()),
        "checker": bars(checker(), are_shares=True),
        "performance": ratios(performance()),
    }
    for name, figure in figures.items():
        figure.savefig(folder / f"evidence_{name}.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
