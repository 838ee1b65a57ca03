"""Writes docs/reports/conformance.md from the outcomes of test runs: `python -m conformance.report FILE.json ...`."""

import importlib
import json
import pathlib
import sys
from importlib import metadata

import keras_cg
from conformance.zoo import ZOO

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reports" / "conformance.md"
PACKAGES = {"jax": ["jax"], "torch": ["torch"], "tensorflow": ["tensorflow-cpu"], "numpy": ["numpy", "autograd"]}
OUTCOMES = ("pass", "clear error", "NaN", "limit")

INTRO = """\
# Conformance

<!-- Made by `nox -s conformance`. Do not edit. -->

{rules} rules, each wrong on purpose, under {transforms} transforms of {backends} frameworks. The expected result is a
closed form in float64, differentiated by central differences ([truth](../../tests/conformance/truth.py)). The rules are
in [the zoo](../../tests/conformance/zoo.py), the transforms in
[a file for each framework](../../tests/conformance/transforms), and the combinations that do not pass in
[one table](../../tests/conformance/exceptions.py). Made by `nox -s conformance` with {versions}.
[Evidence](../evidence.md#conformance) has the short form.

- **pass**: the value, derivative, tangent or batch agrees with the closed form.
- **clear error**: the package, or the framework, raises an error that gives the reason.
- **NaN**: the answer cannot be computed, and no error can be raised in time, so the result is NaN.
- **limit**: a wrong number that the package cannot detect; [Silent cases](../silent.md) lists it.
"""


def row(*cells):
    return f"| {' | '.join(map(str, cells))} |"


def totals(outcomes):
    """The table of totals."""
    lines = [row("backend", "transforms", *OUTCOMES), row(*["---"] * (2 + len(OUTCOMES)))]
    for backend in sorted({each[0] for each in outcomes}):
        found = [each for each in outcomes if each[0] == backend]
        counts = [sum(each[3] == outcome for each in found) for outcome in OUTCOMES]
        lines.append(row(f"`{backend}`", len({each[1] for each in found}), *counts))
    return lines


def section(backend, found):
    """The table of one backend: its transforms down, the rules across, by number."""
    transforms = importlib.import_module(f"conformance.transforms.{backend}").TRANSFORMS
    by_pair = {(each[1], each[2]): each for each in found}
    found = [by_pair[transform, rule] for transform in transforms for rule in ZOO]
    reasons = list(dict.fromkeys(each[4] for each in found if each[4]))
    marks = {reason: chr(ord("a") + place) for place, reason in enumerate(reasons)}
    lines = [f"## `{backend}`", "", row("", *range(1, len(ZOO) + 1)), row("---", *[":-:"] * len(ZOO))]
    for transform in transforms:
        cells = [by_pair[transform, rule] for rule in ZOO]
        lines.append(row(transform, *("·" if each[3] == "pass" else marks[each[4]] for each in cells)))
    lines.append("")
    for reason, mark in marks.items():
        outcome = next(each[3] for each in found if each[4] == reason)
        lines.append(f"- {mark}: {outcome}. {reason}.")
    return [*lines, ""]


def render(outcomes):
    backends = sorted({each[0] for each in outcomes})
    versions = ", ".join(
        f"{package} {metadata.version(package).partition('+')[0]}" for name in backends for package in PACKAGES[name]
    )
    versions = f"keras-cg {keras_cg.__version__}, {versions}"
    transforms = len({each[:2] for each in outcomes})
    intro = INTRO.format(rules=len(ZOO), transforms=transforms, backends=len(backends), versions=versions)
    lines = [intro, "## Totals", "", *totals(outcomes), ""]
    lines += ["The rules, by number:", ""]
    lines += [f"{place}. {name}" for place, name in enumerate(ZOO, 1)]
    lines += ["", "A dot is a pass.", ""]
    for backend in backends:
        lines += section(backend, [each for each in outcomes if each[0] == backend])
    return "\n".join(lines).rstrip() + "\n"


def main(paths):
    outcomes = [tuple(each) for path in paths for each in json.loads(pathlib.Path(path).read_text())]
    page = render(outcomes)
    if PAGE.exists() and PAGE.read_text() == page:
        return None
    PAGE.write_text(page)
    return f"{PAGE.name} was out of date and is written again: look at it and commit it."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
