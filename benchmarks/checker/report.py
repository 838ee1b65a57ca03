"""Writes docs/reports/checker.md, with figures of what the checker finds: `python -m benchmarks.checker.report`.

Each backend runs in processes of its own, two at a time, which write a line for each case; started again with the same
`--work`, they go on where they stopped. `--report` makes the page of the figures that are there.
"""

import argparse
import concurrent.futures
import datetime
import functools
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata

from benchmarks.checker import faults, rules
from benchmarks.checker.measure import FAST, OURS, PARTS, pairs
from benchmarks.figures import on_few_lines, table

ROOT = pathlib.Path(__file__).parents[2]
REPORTS = ROOT / "docs" / "reports"
FIGURES, PAGE, PICTURE = REPORTS / "checker.json", REPORTS / "checker.md", REPORTS / "checker.png"
BACKENDS = ("jax", "numpy", "tensorflow", "torch")
PACKAGES = {"jax": "jax", "numpy": "autograd", "tensorflow": "tensorflow-cpu", "torch": "torch"}

INTRO = """\
# Faults that the checker finds

<!-- Made by `nox -s power` from checker.json; a test compares them. Do not edit. -->

How many planted faults [`check_gradients`](../checking.md) finds, how many right rules it fails, and whether it names
the fault, compared with the frameworks' own tools. Made on {date} by `nox -s power`, {extent}, with Python {python} and
{versions}. [Evidence](../evidence.md#the-checker) has the short form.

## How it is measured

- **Right rules**: {rules} of them, in [benchmarks/checker/rules](../../benchmarks/checker/rules): elementwise
  functions, reductions, linear algebra, several arguments and outputs, pytrees, broadcasting, stable losses, integers
  next to floats, complex numbers, lower precision inside, large and tiny numbers, declared gradients, and arguments
  with one element, none, two rows, many. Each has two independent closed forms in NumPy, for its output and its
  gradient.
- **Faults**: {kinds} kinds in [one file](../../benchmarks/checker/faults.py), each planted in every rule that it fits,
  in the gradient of the last argument unless the kind says otherwise.
- **What counts as a fault** is independent of the checker. A wrong rule is
  [called](../../benchmarks/checker/truth.py) at the point and away from it, for ordinary, huge and tiny upstream
  gradients, and compared with the closed form in double precision. A fault without a difference there, such as
  transposing a scalar, is left out. So is a fault below the precision in which a rule computes (one part in a thousand
  for single precision, in twenty for half). Faults that show in the second order only are compared with finite
  differences of the closed form.
- **Found** means failed. Undecided is counted separately, and is not a pass: the exit status is 1. It is the right
  answer, and counts as found, if the function itself changes from call to call. No faults are planted in rules where
  rounding leaves nothing to compare. There undecided is right, and failed is a false alarm: {rounded}.
- **Named** means that a diagnosis or a reason names the fault, in words that are fixed for each kind.
- **A sample**: the order of the cases depends on their names only, so a run that is stopped has measured a sample of
  all. The tables give the number of measured cases.
- **Options**: the default ones. But the compiler, which takes seconds, runs only for the faults that depend on it, and
  for the first seed of each right rule. Every seed has other arguments, upstream gradients and directions.
- **The other tools** get the same functions, flat and in double precision, with their default options; JAX's and
  autograd's `check_grads` to second order, autograd's in reverse mode. `tf.test.compute_gradient` compares nothing:
  here its result is compared with the tolerances of torch's `gradcheck`. These tools have no declared gradients, so the
  tables that compare them leave those rules out. Any exception counts as found, also one of the decorator itself: a
  gradient of the wrong shape, or a rule that is not linear in forward mode, which JAX's `check_grads` runs.
"""


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(backend, part, work, options):
    """One process."""
    output = str(work / f"{backend}.{part}.jsonl")
    command = [sys.executable, "-m", "benchmarks.checker.measure", backend, part, output, *options]
    subprocess.run(command, check=True, cwd=ROOT)


def read(work):
    """The lines of all cases, by backend; of one that was measured twice, the last."""
    lines = {}
    for backend in BACKENDS:
        for part in PARTS:
            path = work / f"{backend}.{part}.jsonl"
            for text in path.read_text().splitlines() if path.exists() else ():
                line = json.loads(text)
                lines[backend, *line["case"]] = line
    return lines


def planted():
    """How many pairs of rule and kind make a difference, by kind."""
    found = dict.fromkeys(faults.KINDS, 0)
    for _, kind in pairs("jax"):
        found[kind] += 1
    return found


def figures(lines):
    """All that the page needs."""
    every, measured = rules.load(), {backend for backend, *_ in lines}
    result = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "versions": {
            name: metadata.version(name).partition("+")[0]
            for name in ("keras-cg", "numpy", *(PACKAGES[backend] for backend in BACKENDS if backend in measured))
        },
        "rules": {name: each.is_rounded for name, each in every.items()},
        "planted": planted(),
        "right": {},
        "alarms": {},
        "undecided": {},
        "kinds": {},
        "beside": {},
        "missed": [],
        "unnamed": {},
        "seconds": {},
    }
    for (backend, tool, name, kind, seed), line in sorted(lines.items(), key=str):
        key = f"{backend}: {tool}"
        result["seconds"].setdefault(key, []).append(line["seconds"])
        if kind is None:
            part = "rounded" if every[name].is_rounded else "ordinary"
            counted = result["right"].setdefault(key, {}).setdefault(part, {"cases": 0, "failed": 0, "undecided": 0})
            counted["cases"] += 1
            is_failed = line["status"] in ("failed", "raised")
            counted["failed"] += is_failed
            counted["undecided"] += line["status"] == "undecided"
            is_news = line["status"] == "undecided" and part == "ordinary" and name != "empty"
            if tool == OURS and (is_failed or is_news):
                listed = result["alarms" if is_failed else "undecided"]
                listed.setdefault(f"{name} on `{backend}`", [told(line), []])[1].append(seed)
            continue
        is_named = any(faults.is_named(faults.KINDS[kind], text) for text in (*line["said"], *line["checks"]))
        is_found = line["status"] in faults.KINDS[kind].found
        groups = [result["kinds"]]
        if every[name].expected is None:
            groups.append(result["beside"])
        for group in groups:
            counted = group.setdefault(key, {}).setdefault(kind, [0, 0, 0, 0])
            for place, is_so in enumerate((True, is_found, line["status"] == "undecided", is_found and is_named)):
                counted[place] += is_so
        if tool == OURS and not is_found:
            result["missed"].append([backend, kind, name, line["status"]])
        if tool == OURS and is_found and not is_named:
            texts = result["unnamed"].setdefault(kind, {})
            text = "; ".join(line["said"]) or "nothing"
            texts[text] = texts.get(text, 0) + 1
    result["seconds"] = {key: round(statistics.median(each), 3) for key, each in result["seconds"].items()}
    return result


def told(line):
    return "; ".join(line["checks"] or line["said"])[:200]


# --- the page ---------------------------------------------------------------------------------------------------------


# Numbers stand at the right.
numbers = functools.partial(table, rest="---:")


def share(part, whole):
    return f"{part} of {whole}" if whole else "-"


def total(counted):
    return [sum(each[place] for each in counted.values()) for place in range(4)]


def columns(results, tool):
    return {name: results["kinds"][f"{name}: {tool}"] for name in BACKENDS if f"{name}: {tool}" in results["kinds"]}


def render(results):
    """The page."""
    facts = {
        "extent": extent(results),
        "versions": ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        "rules": len(results["rules"]),
        "kinds": len(results["planted"]),
        "rounded": ", ".join(name for name, is_rounded in results["rules"].items() if is_rounded),
    }
    lines = [INTRO.format(date=results["date"], python=results["python"], **facts)]
    lines += ["## Totals", "", *totals(results), f"![Detection by kind of fault]({PICTURE.name})", ""]
    lines += ["## By kind of fault", "", *by_kind(results)]
    lines += ["## Compared with the frameworks' own tools", "", *beside(results)]
    lines += ["## Right rules", "", *right(results), ""]
    lines += ["## Missed faults", "", *slips(results), ""]
    lines += ["## Faults that are found and not named", "", *unnamed(results), ""]
    return "\n".join(lines).rstrip() + "\n"


def extent(results):
    """Whether all of it was measured."""
    measured = sum(total(counted)[0] for tool in (OURS, FAST) for counted in columns(results, tool).values())
    planted = 2 * sum(number for kind, number in results["planted"].items() for name in BACKENDS if is_on(kind, name))
    return "to its end" if measured == planted else "which was stopped early, so this is a sample"


def totals(results):
    rows = []
    for tool in (OURS, FAST):
        for backend, counted in columns(results, tool).items():
            measured, found, undecided, named = total(counted)
            planted = sum(number for kind, number in results["planted"].items() if is_on(kind, backend))
            shares = share(found, measured), share(undecided, measured), share(named, found)
            seconds = results["seconds"][f"{backend}: {tool}"]
            rows.append((f"`{tool}` on `{backend}`", planted, measured, *shares, seconds))
    head = "", "planted", "measured", "found", "undecided", "named, of those found", "seconds of a processor, median"
    return numbers(head, rows)


def is_on(kind, backend):
    """NumPy has no compiler."""
    return backend != "numpy" or faults.KINDS[kind].shows != "compiled"


def by_kind(results):
    found, rows = columns(results, OURS), []
    for kind, planted in results["planted"].items():
        cells = [each.get(kind, [0, 0, 0, 0]) for each in found.values()]
        named, caught = (sum(each[place] for each in cells) for place in (3, 1))
        rows.append((kind, planted, *(share(each[1], each[0]) for each in cells), share(named, caught)))
    return [
        "Found of those measured; the last column has the share of those found that is named, on all backends.",
        "",
        *numbers(("kind", "planted in rules", *[f"`{name}`" for name in found], "named"), rows),
    ]


def others(results):
    """The tools of the frameworks that were measured: backend and name."""
    return [tuple(key.split(": ", 1)) for key in results["beside"] if not key.endswith((f": {OURS}", f": {FAST}"))]


def beside(results):
    rows = []
    for backend, tool in others(results):
        measured, found, _, _ = total(results["beside"][f"{backend}: {tool}"])
        ours = total(results["beside"].get(f"{backend}: {OURS}", {}))
        alarms = results["right"].get(f"{backend}: {tool}", {}).get("ordinary", {"failed": 0, "cases": 0})
        shares = share(found, measured), share(alarms["failed"], alarms["cases"]), share(ours[1], ours[0])
        rows.append((f"`{tool}` on `{backend}`", measured, *shares))
    return numbers(
        ("", "measured", "found", "false alarms on right rules", "`check_gradients`, on all such faults"), rows
    )


def right(results):
    ours, rows = {key: each for key, each in results["right"].items() if key.endswith(f": {OURS}")}, []
    for key, parts in ours.items():
        cells = [parts.get(part, {"cases": 0, "failed": 0, "undecided": 0}) for part in ("ordinary", "rounded")]
        counts = [each[name] for each in cells for name in ("cases", "failed", "undecided")]
        rows.append((f"`{OURS}` on `{key.partition(':')[0]}`", *counts))
    three = "cases", "false alarms", "undecided"
    lines = numbers(("", *three, f"where rounding leaves nothing: {three[0]}", *three[1:]), rows)
    count = sum(each["ordinary"]["cases"] for each in ours.values() if "ordinary" in each)
    lines += [
        f"{count} ordinary cases in all. The rule with an empty argument is among them: undecided is right there,"
        " because nothing is compared.",
    ]
    for what, listed in (("False alarms", results["alarms"]), ("Undecided", results["undecided"])):
        lines += ["", f"{what}:", ""] if listed else []
        for name, (text, every) in listed.items():
            seeds = ", ".join(map(str, every[:6])) + (" …" if len(every) > 6 else "")
            lines.append(f"- {name}, {len(every)} (seeds {seeds}): {' '.join(text.split())}")
    return lines


def slips(results):
    if not results["missed"]:
        return ["None of those measured."]
    groups = {}
    for backend, kind, name, status in results["missed"]:
        groups.setdefault((kind, status), []).append(f"{name} ({backend})")
    return [f"- {kind}, {status}, {len(names)}: {', '.join(names)}" for (kind, status), names in sorted(groups.items())]


def unnamed(results):
    if not results["unnamed"]:
        return ["None of those measured."]
    lines = []
    for kind, texts in results["unnamed"].items():
        told = "; ".join(
            f"{' '.join(text.split())[:120]} ({count})"
            for text, count in sorted(texts.items(), key=lambda pair: -pair[1])[:3]
        )
        lines.append(f"- {kind}, {sum(texts.values())}: {told}")
    return lines


# --- the picture ------------------------------------------------------------------------------------------------------


def draw(results):
    """Kinds of faults down, tools across, and in each field the share that was found."""
    import numpy as np
    from matplotlib.figure import Figure

    kinds = list(results["planted"])
    keys = [key for tool in (OURS, FAST) for key in results["beside"] if key.endswith(f": {tool}")]
    keys += [f"{backend}: {tool}" for backend, tool in others(results)]
    shares = np.full((len(kinds), len(keys)), np.nan)
    texts = []
    for column, key in enumerate(keys):
        for place, kind in enumerate(kinds):
            measured, found, *_ = results["beside"][key].get(kind, [0, 0])
            shares[place, column] = found / measured if measured else np.nan
            if measured:
                texts.append((column, place, f"{found}/{measured}", "white" if found < measured / 2 else "black"))
    figure = Figure(figsize=(4.2 + 0.55 * len(keys), 0.8 + 0.17 * len(kinds)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(keys)), [key.replace(": ", "\n", 1) for key in keys], rotation=90, fontsize=7)
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(kinds)), kinds, fontsize=7)
    axes.set_facecolor("0.9")
    for column, place, text, colour in texts:  # the counts, for readers who do not see the colours
        axes.text(column, place, text, ha="center", va="center", fontsize=5, color=colour)
    figure.colorbar(image, ax=axes, shrink=0.3, label="found; grey: not measured")
    figure.savefig(PICTURE, dpi=110)


def write(results):
    FIGURES.write_text(on_few_lines(results) + "\n", encoding="utf-8")
    PAGE.write_text(render(results), encoding="utf-8")
    draw(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--work", type=pathlib.Path, help="a folder for the lines of cases; default: a new one")
    parser.add_argument("--seeds", default="20", help="for each right rule")
    parser.add_argument("--minutes", help="for each backend and part: faults, right rules, others")
    parser.add_argument("--report", action="store_true", help="only the page, of docs/reports/checker.json")
    parser.add_argument("--collect", action="store_true", help="only the figures and the page, of what --work has")
    given = parser.parse_args()
    if given.report:
        write(json.loads(FIGURES.read_text(encoding="utf-8")))
        return
    work = given.work or pathlib.Path(tempfile.mkdtemp(prefix="checker"))
    work.mkdir(parents=True, exist_ok=True)
    options = ["--seeds", given.seeds, *(["--minutes", given.minutes] if given.minutes else [])]
    jobs = [] if given.collect else [(backend, part) for part in PARTS for backend in given.backends.split(",")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(measure, *job, work, options) for job in jobs]:
            done.result()
    write(figures(read(work)))


if __name__ == "__main__":
    main()
