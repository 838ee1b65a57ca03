"""The benchmarks measure what they say: turns, ratios, who is wrong, and the page that is made of the figures."""

import importlib.util
import json
import pkgutil
import sys
from pathlib import Path

import pytest

import keras_cg
from keras_cg.engine import contract

ROOT = Path(__file__).parents[2]
# Behind what is installed: `keras_cg` is the one under test.
sys.path.append(str(ROOT))

from benchmarks import measure, networks, reasons, report, tasks, worker  # noqa: E402
from benchmarks.figures import on_few_lines  # noqa: E402
from benchmarks.measure import ALONE, BY_HAND, OURS  # noqa: E402

pytestmark = pytest.mark.side_by_side

NETWORKS = [networks.digits_network(), networks.spiking_network(), networks.quantised_network()]


def test_quartiles_and_ratios_are_of_rounds():
    ours, theirs = [2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 1.0, 2.0, 2.0, 1.0]
    found = measure.summary({OURS: ours, BY_HAND: theirs})
    assert found[OURS] == {"time": [4.0, 6.0, 8.0]}
    # Round by round 2, 4, 3, 4, 10; not the ratio of the medians, which is 6.
    assert found[BY_HAND] == {"time": [1.0, 1.0, 2.0], "ratio": [3.0, 4.0, 4.0], "difference": [3.0, 4.0, 6.0]}


def test_every_reason_is_that_of_a_function():
    for function in reasons.WHY:
        assert callable(pkgutil.resolve_name(function)), f"{function}: it is gone, and so should be its reason"
    assert set(reasons.CONTRACT) == {*contract.REQUIRED, *contract.OPTIONAL}
    assert reasons.why("keras_cg.backends.torch.tensors:is_tensor", "") == (
        "Whether the framework can hold `value` as a tensor"
    )
    assert reasons.why("keras_cg.ops:is_tensor", "") == ""


def test_every_frame_on_the_page_has_its_reason():
    results = json.loads(report.FIGURES.read_text(encoding="utf-8"))
    for found in results["backends"].values():
        for line in found.get("frames", []):
            for frame in line["contestants"][OURS].get("frames", []):
                assert reasons.why(frame["function"], frame["doc"]), f"{frame['function']}: a line in reasons.py"


@pytest.mark.parametrize("network", NETWORKS, ids=lambda each: each.title)
def test_a_wrong_rule_is_noticed_in_every_network(network):
    with keras_cg.use_backend("numpy"):
        bench = numpy_bench()

        def a_seventh(function):
            def wrong(*args):
                # Seven times as much would overflow on the way through 100 time steps.
                output, _ = function(*args)
                return output, lambda upstream: (upstream / 7, *(0 * each for each in args[1:]))

            return keras_cg.custom_gradient(wrong)

        functions = getattr(bench.kit, network.contestants)()[ALONE]
        wrong = tuple(map(a_seventh, functions)) if isinstance(functions, tuple) else a_seventh(functions)
        setattr(bench.kit, network.contestants, lambda: {OURS: wrong})
        assert bench.checked(network, bench.kit.gradient) == {OURS: "wrong"}


@pytest.mark.parametrize(
    "workload",
    [tasks.log1pexp(8), tasks.pair(), tasks.leaves(20), tasks.chain(5), *NETWORKS],
    ids=lambda each: each.title,
)
def test_no_contestant_is_wrong_on_numpy(workload):
    with keras_cg.use_backend("numpy"):
        bench = numpy_bench()
        make = bench.kit.gradient if any(workload is each for each in NETWORKS) else None
        words = {name: each for name, each in bench.checked(workload, make).items() if isinstance(each, str)}
    assert words == {measure.KERAS: "warns that it has no gradient", measure.NATIVE: "autograd has none"}


def numpy_bench():
    """A bench with a kit of its own, that a test may change."""
    bench = worker.Bench("numpy", rounds=3)
    spec = importlib.util.find_spec("benchmarks.workloads.numpy")
    bench.kit = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench.kit)
    return bench


def test_the_page_is_what_the_figures_give():
    results = json.loads(report.FIGURES.read_text(encoding="utf-8"))
    assert report.PAGE.read_text(encoding="utf-8") == report.render(results), "run `nox -s bench -- --report`"
    assert report.PLOT.stat().st_size > 10_000


def test_each_missed_target_has_its_reason_and_no_other_has_one():
    """What is met stays met when the figures are made again, or needs a reason here."""
    missed = [each for each in report.targets(json.loads(report.FIGURES.read_text())) if not each.is_met]
    assert [each.what for each in missed if report.why(each) is None] == []
    used = {report.why(each) for each in missed}
    assert [begin for begin, reason in report.REASONS if reason not in used] == []


def test_the_figures_are_what_the_page_shows():
    frames = {OURS: {"packages": [], "frames": ["one"]}, BY_HAND: {"packages": [], "frames": ["one"]}}
    met, missed = ({"time": [1.0] * 3, "ratio": [ratio] * 3, "difference": [0.0] * 3} for ratio in (1.0, 9.0))
    lines = [
        {
            "workload": workload,
            "measure": "gradient of the sum",
            "contestants": {OURS: {"time": [1.0] * 3}, BY_HAND: each},
        }
        for workload, each in (("log1pexp, 8 numbers", met), ("a chain of 1,000 calls", missed))
    ]
    profiles = [{**line, "contestants": dict(frames)} for line in lines]
    results = {"imports": None, "first": None, "backends": {"numpy": {"lines": lines, "frames": profiles}}}
    shown = report.shown(results)["backends"]["numpy"]
    assert [line["contestants"][BY_HAND].keys() for line in shown["lines"]] == [{"time", "ratio"}] * 2
    bare = {"packages": []}
    assert [line["contestants"] for line in shown["frames"]] == [
        {OURS: bare, BY_HAND: bare},
        {OURS: frames[OURS], BY_HAND: bare},
    ]
    assert json.loads(on_few_lines(results)) == results
    assert (
        on_few_lines({"a": ["b" * 150, {"c": 1}, {}], "d": 2})
        == f'''{{"a": ["{"b" * 150}", {{"c": 1}}, {{}}], "d": 2}}'''
    )
    assert on_few_lines(["b" * 198, {"c": 1}, 2]) == f'''[\n"{"b" * 198}",\n{{"c": 1}}, 2\n]'''
