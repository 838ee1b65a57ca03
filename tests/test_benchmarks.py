"""The benchmarks measure what they say: turns, ratios, who is wrong, and the page that is made of the figures."""

import ast
import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_cg

ROOT = Path(__file__).parents[1]
# Behind what is installed: `keras_cg` is the one under test.
sys.path.append(str(ROOT))

from benchmarks import measure, report, tasks, worker  # noqa: E402
from benchmarks.measure import ALONE, BY_HAND, OURS  # noqa: E402

pytestmark = pytest.mark.side_by_side


def test_the_contestants_take_turns():
    log = []
    names = ("a", "b", "c")
    times = measure.interleave(
        {name: lambda name=name: log.append(name) for name in names}, rounds=4, calls={"a": 1, "b": 3, "c": 2}
    )
    assert log == ["a", "b", "b", "b", "c", "c"] * 4
    assert [len(times[name]) for name in names] == [4, 4, 4]


def test_the_time_is_that_of_one_call(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])

    def work():
        clock[0] += 0.25

    assert measure.interleave({"a": work}, rounds=3, calls={"a": 8}) == {"a": [0.25] * 3}


def test_quartiles_and_ratios_are_of_rounds():
    ours, theirs = [2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 1.0, 2.0, 2.0, 1.0]
    found = measure.summary({OURS: ours, BY_HAND: theirs})
    assert found[OURS] == {"time": [4.0, 6.0, 8.0]}
    # Round by round 2, 4, 3, 4, 10; not the ratio of the medians, which is 6.
    assert found[BY_HAND] == {"time": [1.0, 1.0, 2.0], "ratio": [3.0, 4.0, 4.0], "difference": [3.0, 4.0, 6.0]}


def test_rounds_and_calls_suit_the_time(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])

    def work(seconds):
        def run():
            clock[0] += seconds

        return run

    quick = measure.compare({OURS: work(measure.TURN / 10), BY_HAND: work(measure.TURN / 5)}, 30)
    assert (quick["rounds"], quick["calls"]) == (30, {OURS: 10, BY_HAND: 5})
    slow = measure.compare({OURS: work(measure.LONGEST / 20), BY_HAND: work(measure.LONGEST / 20)}, 30)
    assert (slow["rounds"], slow["calls"]) == (10, {OURS: 1, BY_HAND: 1})


def test_a_name_in_a_profile_has_no_path_of_the_machine():
    def work():
        return [np.linspace(0, 1, 10) for _ in range(50)]

    found = measure.profile(work, seconds=0.05, top=50)
    names = [name for name, _ in found["functions"]]
    assert any(name.startswith("numpy/") for name in names)
    assert not any(
        name.startswith("/") or str(ROOT) in name or sys.prefix in name or " at 0x" in name for name in names
    )
    assert math.isclose(sum(share for _, share in found["packages"]), 1, abs_tol=0.01)


@pytest.mark.parametrize(("factor", "word"), [(1, None), (7, "wrong")])
def test_a_wrong_contestant_is_shown_as_wrong(factor, word):
    with keras_cg.use_backend("numpy"):
        bench = numpy_bench()
        ops = keras_cg.ops

        @keras_cg.custom_gradient
        def function(x):
            y = ops.log(1 + ops.exp(x))
            return y, lambda upstream: factor * upstream * (1 - ops.exp(-y))

        bench.kit.log1pexp = lambda: {OURS: function, BY_HAND: function, ALONE: function}
        workload = tasks.log1pexp(8)
        bench.line(workload, "gradient", bench.checked(workload), bench.vjp)
    told = bench.lines[0]["contestants"][OURS]
    assert told.get("says") == word
    assert (report.cell(told) == "wrong") == (word is not None)


def test_a_contestant_that_raises_is_shown_with_its_error():
    with keras_cg.use_backend("numpy"):
        bench = numpy_bench()

        def function(x):
            raise ValueError("not of this kind\nand more")

        bench.kit.log1pexp = lambda: {OURS: function, BY_HAND: function}
        assert bench.checked(tasks.log1pexp(8))[OURS] == "ValueError: not of this kind"


@pytest.mark.parametrize(
    "workload",
    [tasks.log1pexp(8), tasks.pair(), tasks.leaves(20), tasks.chain(5), tasks.network()],
    ids=lambda each: each.title,
)
def test_nobody_is_wrong_on_numpy(workload):
    with keras_cg.use_backend("numpy"):
        bench = numpy_bench()
        make = bench.kit.gradient if workload.contestants == "straight_through" else None
        words = {name: each for name, each in bench.checked(workload, make).items() if isinstance(each, str)}
    assert words == {measure.KERAS: "warns that it has no gradient", measure.NATIVE: "autograd has none"}


def test_a_line_that_was_not_asked_for_is_neither_checked_nor_timed(monkeypatch):
    monkeypatch.setattr(measure, "compare", lambda programs, rounds: {"contestants": list(programs)})
    with keras_cg.use_backend("numpy"):
        bench = numpy_bench()
        bench.only = "in a nest: call"
        bench.kit.log1pexp = lambda: pytest.fail("nobody asked for it")
        for measures in (bench.eager, bench.steady, bench.tracing):
            measures()
    assert [(each["workload"], each["measure"]) for each in bench.lines] == [
        ("two in two out in a nest", "call of plain arrays")
    ]


def numpy_bench():
    """A bench with a kit of its own, that a test may change."""
    bench = worker.Bench("numpy", rounds=3)
    spec = importlib.util.find_spec("benchmarks.workloads.numpy")
    bench.kit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench.kit)
    return bench


def test_a_line_is_straight_and_a_square_is_not():
    sizes = [1, 10, 100, 1000]
    slope, r2, growth = report.straightness(sizes, [3.0 * size for size in sizes])
    assert np.allclose((slope, r2, growth), (3, 1, 1))
    _, r2, growth = report.straightness(sizes, [size**2 for size in sizes])
    assert r2 < 0.999
    assert math.isclose(growth, 10)


def test_every_backend_has_its_workloads_in_the_same_order():
    backends = {path.stem for path in ROOT.glob("keras_cg/backends/[a-z]*")}
    names = {path.stem: public_names(path) for path in ROOT.glob("benchmarks/workloads/[a-z]*.py")}
    assert set(names) == backends
    assert len({tuple(each) for each in names.values()}) == 1, names


def public_names(path):
    found = []
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.ClassDef)):
            found += [each.id if isinstance(each, ast.Name) else each.name for each in targets]
    return [name for name in found if not name.startswith("_")]


def test_the_page_is_what_the_figures_give():
    results = json.loads(report.FIGURES.read_text(encoding="utf-8"))
    assert report.PAGE.read_text(encoding="utf-8") == report.render(results), "run `nox -s bench -- --report`"
    assert report.PLOT.stat().st_size > 10_000


def test_every_target_is_judged():
    results = json.loads(report.FIGURES.read_text(encoding="utf-8"))
    assert set(results["backends"]) == {path.stem for path in ROOT.glob("keras_cg/backends/[a-z]*")}
    judged = " | ".join(f"{target.what} {target.limit}" for target in report.targets(results))
    for part in (
        "jax.jit",
        "aot_eager, forward",
        "inductor",
        "tf.function, forward",
        "jit_compile",
        "call of constants ≤ f alone + 0.5 µs",
        "call in no_grad ≤ 0.7 × keras.ops",
        "call outside any transform ≤ 0.2 × keras.ops",
        "call without a tape ≤ 0.5 × native decorator",
        "call of plain arrays ≤ f alone + 1.0 µs",
        "trace and lower",
        "Dynamo and AOT",
        "a nest of 1,000 leaves",
        "bytes held = hand-written",
        "≤ 0.05 × `import keras`",
        "≤ `import numpy` + 60 ms",
    ):
        assert part in judged


def test_nox_has_the_session():
    sessions = {node.name: node for node in ast.parse((ROOT / "noxfile.py").read_text()).body if hasattr(node, "body")}
    assert 'run_shared(session, "python", "-m", "benchmarks"' in ast.unparse(sessions["bench"]).replace("'", '"')
    # It takes the machine for itself, so nobody gets it unasked.
    assert "default=False" in ast.unparse(sessions["bench"].decorator_list[0])
