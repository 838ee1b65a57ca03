"""The README: its Python runs on every backend, it is short, and its figures are those of the report on parity."""

import pathlib

import pages
import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = ROOT / "README.md"


@pytest.mark.filterwarnings("ignore:overflow")
def test_readme(backend, tmp_path):
    pages.run(README, tmp_path)


@pytest.mark.only("numpy")
def test_it_is_short(backend):
    assert len(README.read_text().splitlines()) <= 110


@pytest.mark.only("numpy")
def test_the_figures_are_those_of_the_parity_with_keras(backend):
    table = pages.rows((ROOT / "docs" / "reports" / "keras_parity.md").read_text())
    outcomes = next(row[2:] for row in table if row[:2] == ["backend", "decorator"])
    theirs, ours = ([*row[2:]] for row in table if row[0] == "all")
    told = [row for row in pages.rows(README.read_text()) if row[0] in outcomes]
    assert told == [list(row) for row in zip(outcomes, theirs, ours, strict=True)]
    assert f"That makes {sum(map(int, ours))} runs" in README.read_text() and sum(map(int, ours)) == sum(
        map(int, theirs)
    )


@pytest.mark.only("numpy")
def test_the_other_figures_are_those_of_the_pages(backend):
    text = " ".join(README.read_text().split())
    conformance = [
        row for row in pages.rows((ROOT / "docs" / "evidence.md").read_text()) if len(row) == 6 and row[1].isdecimal()
    ][:4]
    transforms, passed, clear, nan, wrong = (sum(int(row[column]) for row in conformance) for column in range(1, 6))
    assert f"under {transforms} transforms. {passed} results agree" in text
    assert f"{clear} are clear errors, {nan} are NaN, and {wrong} are wrong" in text
    ours, theirs, full = next(
        row[1:] for row in pages.rows((ROOT / "docs" / "two-bits.md").read_text()) if row[0] == "NumPy"
    )
    assert f"classifies {ours} of" in text and f"without the rule {theirs}, and without rounding {full}" in text
