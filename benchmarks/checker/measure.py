"""Checks the rules and faults of one backend, and writes a line of JSON for each case: run by `report.py`.

Cases come in an order that hangs on their names alone, so that a run that is stopped has measured a sample of all; one
that is started again goes on where it stopped.
"""

import argparse
import json
import pathlib
import time
import warnings
import zlib
from typing import NamedTuple

import numpy as np

import keras_cg
from benchmarks.checker import faults, native, rules, truth
from keras_cg.testing import check_gradients

OURS, FAST = "check_gradients", "check_gradients, fast"


class Case(NamedTuple):
    """One rule, right or with a fault, checked by one tool."""

    tool: str
    rule: str
    # None for the right rule.
    kind: str | None
    seed: int

    def place(self):
        return zlib.crc32("|".join(map(str, self)).encode())


def pairs(backend):
    """The rules and kinds that make a difference, by their names."""
    for rule in rules.load().values():
        arrays = rule.arrays(0)
        for kind in faults.KINDS.values():
            if (
                not rule.is_rounded
                and not (kind.shows == "compiled" and backend == "numpy")
                and truth.counts(rule, kind, arrays)
            ):
                yield rule.name, kind.name


PARTS = ("faults", "right", "others", "fast")


def cases(backend, part, seeds):
    """All cases of one part of a backend."""
    every = rules.load()
    others = native.TOOLS[backend]
    if part == "right":
        found = [Case(OURS, name, None, seed) for name in every for seed in range(seeds)]
        found += [Case(tool, name, None, 0) for tool in others for name in every if native.is_for_others(every[name])]
    else:
        planted = list(pairs(backend))
        if part == "others":
            planted = [pair for pair in planted if native.is_for_others(every[pair[0]])]
        tools = {"faults": [OURS], "fast": [FAST], "others": others}[part]
        found = [Case(tool, *pair, 0) for tool in tools for pair in planted]
    return sorted(found, key=Case.place)


def check(case):
    """What came of a case: its status, the diagnoses, and the checks that were not passed."""
    rule = rules.RULES[case.rule]
    kind = None if case.kind is None else faults.KINDS[case.kind]
    flat = rule.flat if kind is None else kind.plant(rule.flat)
    arrays = rule.arrays(case.seed)
    if case.tool not in (OURS, FAST):
        tool = native.TOOLS[keras_cg.backend()][case.tool]
        try:
            is_content = tool(flat, arrays)
        except Exception as error:  # whatever it says is that it is not content
            return {"status": "failed", "said": [], "checks": [type(error).__name__]}
        return {"status": "passed" if is_content else "failed", "said": [], "checks": []}
    # A compiler takes seconds: it runs for the first seed of a right rule, and for the faults that hang on it.
    compiled = case.seed == 0 if kind is None else kind.shows == "compiled"
    options = {"seed": case.seed, "compiled": compiled, "expected": rule.expected, "fast": case.tool == FAST}
    report = check_gradients(rule.decorated(flat), *rule.pack(*arrays), **options)
    told = [each for each in report.findings if each.status in ("failed", "undecided")]
    return {
        "status": report.status,
        "said": sorted({each.diagnosis for each in told if each.diagnosis}),
        "checks": sorted(
            {f"{each.check}: {each.status}{', ' if each.reason else ''}{each.reason or ''}" for each in told}
        ),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend")
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after these")
    given = parser.parse_args()
    keras_cg.set_backend(given.backend)
    warnings.simplefilter("ignore")
    kept = [json.loads(line) for line in given.output.read_text().splitlines()] if given.output.exists() else []
    done = {tuple(each["case"]) for each in kept}
    every = cases(given.backend, given.part, given.seeds)
    began = time.monotonic()
    with given.output.open("a") as file, np.errstate(all="ignore"):
        for case in every:
            if time.monotonic() - began > 60 * given.minutes:
                break
            if tuple(case) in done:
                continue
            start = time.process_time()
            try:
                found = check(case)
            except Exception as error:
                found = {"status": "raised", "said": [], "checks": [f"{type(error).__name__}: {error}"[:300]]}
            line = {"case": list(case), **found, "seconds": round(time.process_time() - start, 3)}
            file.write(json.dumps(line) + "\n")
            file.flush()
    print(f"{given.backend} {given.part}: {len(every)} cases")


if __name__ == "__main__":
    main()
