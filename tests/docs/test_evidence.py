"""The figures and the tables of docs/evidence.md are those of the reports."""

import json
import pathlib
import re

import pages
import programs
import pytest
from matplotlib.image import imread

ROOT = pathlib.Path(__file__).parents[2]
REPORTS = ROOT / "docs" / "reports"
PAGE = ROOT / "docs" / "evidence.md"

pytestmark = pytest.mark.only("numpy")

evidence = programs.load(ROOT / "docs" / "evidence.py")


def section(title):
    """The text of a section, and the rows of its table without the head."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return text, [[cell.replace("`", "") for cell in row] for row in pages.rows(text)[2:]]


def read(name):
    return (REPORTS / name).read_text(encoding="utf-8")


def test_conformance():
    text, rows = section("Conformance")
    assert {row[0]: [int(cell) for cell in row[2:]] for row in rows} == {
        backend: list(counts.values()) for backend, counts in evidence.conformance().items()
    }
    rules, transforms = re.search(r"(\d+) rules, each wrong on purpose, under (\d+)", read("conformance.md")).groups()
    assert f"{rules} rules, each wrong on purpose, under {transforms} named transforms" in text
    assert sum(int(row[1]) for row in rows) == int(transforms)


def test_parity():
    text, rows = section("Parity with Keras")
    totals = evidence.totals("keras_parity", 2)
    assert {row[0]: [int(cell) for cell in row[1:]] for row in rows} == {
        name: list(totals[f"all, {name}"].values()) for name in ("keras.ops", "keras_cg")
    }
    count = re.search(r"^(\d+) programs", read("keras_parity.md"), re.MULTILINE)[1]
    assert f"We ran {count} programs" in text


def test_checker():
    text, rows = section("The checker")
    found = evidence.checker()
    for tool, backend, measured, caught in rows:
        counts = found[f"{backend}, {tool.replace(' (autograd)', '')}"]
        assert (int(measured), int(caught)) == (sum(counts.values()), counts["found"]), tool
    results = json.loads(read("checker.json"))
    ours = [parts for key, parts in results["right"].items() if key.endswith(": check_gradients")]
    for part, alarms, sentence in (
        ("ordinary", 0, "On {cases} runs of right rules, `check_gradients` raised no false alarm and gave {undecided}"),
        ("rounded", 0, "In {cases} more runs, rounding leaves nothing to compare: none of them was a false alarm"),
    ):
        sums = {name: sum(each[part][name] for each in ours) for name in ("cases", "failed", "undecided")}
        assert sentence.format(**sums) in " ".join(text.split())
        assert sums["failed"] == alarms
    assert f"{len(results['planted'])} kinds of faults in {len(results['rules'])} right rules" in text
    assert f"keras-cg {results['versions']['keras-cg']} on {results['date']}" in text


def test_performance():
    text, rows = section("Performance")
    found = evidence.performance()
    assert [row[0] for row in rows] == list(found)
    for label, *cells in rows:
        ratios = found[label]
        assert cells == [f"{ratios[name][1]:.2f}" if name in ratios else "" for name in evidence.BACKENDS]
    met, targets = re.search(r"^(\d+) of (\d+) are met", read("performance.md"), re.MULTILINE).groups()
    assert f"Of the {targets} targets that we set, {met} are met." in text
    results = json.loads(read("performance.json"))
    assert f"keras-cg {results['versions']['keras-cg']} on {results['date']}" in text


def test_the_figures_are_drawn(tmp_path):
    evidence.main(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in (ROOT / "docs").glob("evidence_*.png"))
    for name in names:  # else draw them again: python docs/evidence.py
        drawn, shown = imread(tmp_path / name), imread(ROOT / "docs" / name)
        assert drawn.shape == shown.shape and (drawn != shown).any(axis=-1).mean() < 1e-3, name
