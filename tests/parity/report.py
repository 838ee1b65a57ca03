"""Runs every program with both decorators, and renders the outcomes as a page."""

import collections
import functools
import json
import os
import pathlib
import subprocess
import sys
from importlib import metadata

import keras_cg
from parity import ERROR, KERAS, NO_GRADIENT, OTHERWISE, OURS, REFUSED, RIGHT, WRONG
from parity.cases import CASES
from parity.harness import MARK, show

BACKENDS = ("jax", "torch", "tensorflow", "numpy")
TESTS = pathlib.Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reports" / "keras_parity.md"

INTRO = f"""\
# Parity with Keras

<!-- Made by `nox -s parity`, and compared with a run by tests/parity/test_parity.py. Do not edit. -->

{{count}} programs with a custom gradient, each run on the Keras backends where it makes sense, once with
`keras.ops.custom_gradient` and once with `keras_cg.custom_gradient`. Only the decorator differs. The authors of
`keras_cg` chose the programs: they are examples of custom gradients, of mistakes in them and of transforms, and not a
random sample. Each of [the programs](../../tests/parity/cases.py) has a closed form. Made by `nox -s parity` with
{{versions}}. [Evidence](../evidence.md#parity-with-keras) has the short form.

- **{RIGHT}**: the numbers of the closed form.
- **{REFUSED}**: an error that names the mistake, from this package or from the framework. A mistake should give one;
  for a program that has an answer it is a limit.
- **{ERROR}**: any other error.
- **{WRONG}**: other numbers, or any number where an error is expected.
- **{OTHERWISE}**: the program asks a question about behaviour, such as whether memory is freed, and the answer is not
  the expected one.
- **{NO_GRADIENT}**: on NumPy, Keras's decorator warns that it does not use the rule.

## Totals
"""


@functools.cache
def run(backend):
    """`(outcome, what came)` of every program of a backend by its title, for Keras's decorator and for ours."""
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_CG_BACKEND"}
    environment["KERAS_BACKEND"] = backend
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "parity.harness", backend, decorator],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for decorator in (KERAS, OURS)
    ]
    finished = [(child, *child.communicate()) for child in children]
    return tuple(_read(*each) for each in finished)


def _read(child, output, messages):
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    assert child.returncode == 0 and len(lines) == 1, messages
    return json.loads(lines[0].removeprefix(MARK))


def versions(modules):
    """The versions of the distributions that modules come from, without the name of a build."""
    owners = metadata.packages_distributions()
    return [f"{module} {metadata.version(owners[module][0]).partition('+')[0]}" for module in modules]


def table(*rows):
    head, *body = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *body, ""]


def render(found):
    """The page, of what `run` gave for each backend."""
    found_versions = [f"keras-cg {keras_cg.__version__}", *versions(("keras", *BACKENDS, "autograd"))]
    intro = INTRO.format(count=len(CASES), versions=", ".join(found_versions))
    arrow = "The outcome with Keras's decorator → the outcome with `keras_cg`."
    lines = [intro, *_totals(found), "## Programs", "", arrow, ""]
    for heading in dict.fromkeys(case.section for case in CASES):
        cases = [case for case in CASES if case.section == heading]
        backends = [backend for backend in BACKENDS if any(backend in case.backends for case in cases)]
        lines += [f"### {heading}", ""]
        lines += table(("program", *backends), *((case.title, *_cells(case, backends, found)) for case in cases))
    lines += ["## Silently wrong numbers", ""]
    lines += table(("program", "backend", "decorator", "result", "expected"), *_listed(found, WRONG))
    lines += ["## Other behaviour", "", "A question is answered by 1 for yes and 0 for no.", ""]
    lines += table(("program", "backend", "decorator", "result", "expected"), *_listed(found, OTHERWISE))
    return "\n".join(lines)


def _totals(found):
    outcomes = (RIGHT, REFUSED, ERROR, WRONG, OTHERWISE, NO_GRADIENT)
    rows = []
    for place, name in enumerate((KERAS, OURS)):
        everywhere = collections.Counter()
        for backend in BACKENDS:
            counts = collections.Counter(result for result, _ in found[backend][place].values())
            everywhere += counts
            rows.append((backend, f"`{name}`", *(counts[each] for each in outcomes)))
        rows.append(("all", f"`{name}`", *(everywhere[each] for each in outcomes)))
    rows.sort(key=lambda row: (*BACKENDS, "all").index(row[0]))
    return table(("backend", "decorator", *outcomes), *rows)


def _cells(case, backends, found):
    for backend in backends:
        if backend not in case.backends:
            yield ""
        else:
            theirs, ours = (found[backend][place][case.title][0] for place in (0, 1))
            yield f"{_mark(theirs)} → {_mark(ours)}"


def _mark(outcome):
    return f"**{outcome}**" if outcome == WRONG else outcome


def _listed(found, outcome):
    for case in CASES:
        truth = "an error" if case.truth is None else ", ".join(map(show, case.truth))
        for backend in BACKENDS:
            for place, name in enumerate((KERAS, OURS)):
                result, came = found[backend][place].get(case.title, (None, None))
                if result == outcome:
                    yield case.title, backend, f"`{name}`", came or "nothing", truth
