"""`keras-cg plot`: the curves of a function and its gradient, and where they part from the derivative."""

import math

import numpy as np
import pytest

from command.command_runs import PNG, TARGETS, ghost, refused, start
from keras_cg.command import curves, messages, plot, targets
from keras_cg.command.curves import Curves


def drawn(name, spec="np.linspace(-3, 3, 61)", expected=None, **given):
    """The curves of a function of plots.py on the active backend."""
    (target,) = targets.find(str(TARGETS / f"plots.py:{name}"), {"x": spec, **given}, expected, 0)
    return curves.curves(target)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_curves_are_the_function_and_its_derivatives(backend, dtype):
    found = drawn("cube", f"np.linspace(-3, 3, 61).astype('{dtype}')", n="3")
    x = np.linspace(-3, 3, 61).astype(dtype).astype(float)
    close = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-8}[dtype]
    np.testing.assert_array_equal(found.x, x)
    np.testing.assert_allclose(found.value, x**3, close, close)
    np.testing.assert_allclose(found.gradient, 3 * x**2, close, close)
    # By differences, in double precision whatever the dtype.
    np.testing.assert_allclose(found.expected, 3 * x**2, 1e-7, 1e-7)
    assert not found.differs.any() and found.label == "x" and found.others == "n = 3"


def test_the_curves_part_where_the_rule_is_wrong(backend):
    found = drawn("half_right")
    np.testing.assert_allclose(found.expected, np.cos(found.x), 1e-6, 1e-6)
    np.testing.assert_allclose(found.gradient, np.where(found.x > 0, 1, 0.5) * np.cos(found.x), 1e-5, 1e-6)
    np.testing.assert_array_equal(found.differs, found.x < 1e-6)


def test_nothing_is_expected_at_a_kink_or_a_jump(backend):
    found = drawn("relu", "np.linspace(-1, 1, 5)")
    np.testing.assert_allclose(found.expected, [0, 0, math.nan, 1, 1], atol=1e-9)
    assert not found.differs.any()
    found = drawn("rounded", "np.linspace(-1, 1, 5)")
    np.testing.assert_allclose(found.expected, [0, math.nan, 0, math.nan, 0], atol=1e-9)
    np.testing.assert_array_equal(found.differs, [True, False, True, False, True])


def test_what_is_expected_may_be_a_function_or_a_rule(backend):
    for expected in ("identity", "passed_on"):
        found = drawn("rounded", expected=expected)
        np.testing.assert_allclose(found.expected, 1, 1e-6)
        assert not found.differs.any()
    # A function of one dtype is drawn in it.
    if backend == "numpy":
        found = drawn("single_only", "np.float32(np.linspace(-3, 3, 61))")
        np.testing.assert_allclose(found.expected, 2 * found.x, 1e-2, 1e-2)
        assert not found.differs.any()


@pytest.mark.only("numpy")
@pytest.mark.parametrize(
    ("name", "spec", "problem"),
    [
        ("softmax", "np.linspace(0, 1, 9)", "softmax is not one: numbers of x change the output at others"),
        ("total", "np.linspace(0, 1, 9)", "total is not one: from the shape (9,) it makes ()"),
        ("several", "np.linspace(0, 1, 9)", "several is not one: its output is a tuple"),
        ("counts", "np.linspace(0, 1, 9)", "counts is not one: its output is of int64"),
        (
            "cube",
            "rng.normal(size=(4, 3))",
            "exactly one argument of cube with increasing numbers (one axis, 3 or more), and none",
        ),
        ("cube", "np.linspace(1, 0, 9)", "pass one as --arg 'x=np.linspace(-5, 5, 400)'"),
    ],
)
def test_a_function_without_a_curve_is_refused(backend, name, spec, problem):
    with pytest.raises(messages.UsageError) as caught:
        drawn(name, spec)
    assert problem in str(caught.value)


def made_up(apart):
    """Curves that part at some of ten points."""
    x = np.arange(10.0)
    return Curves(x, x**2, 2 * x + np.asarray(apart), 2 * x, np.full(10, 0.1))


@pytest.mark.only("numpy")
def test_the_parts_are_named():
    nowhere, left, other = made_up([0] * 10), made_up([1] * 3 + [0] * 7), made_up([0] * 6 + [1] * 4)
    everywhere, pieces = made_up([1] * 10), made_up([1, 0] * 5)
    assert list(plot._parts({"jax": nowhere, "torch": nowhere})) == ["jax, torch: within tolerance everywhere"]
    assert list(plot._parts({"jax": left, "torch": other})) == [
        "jax: outside tolerance for 0 < x < 2.5",
        "torch: outside tolerance for 5.5 < x < 9",
    ]
    assert list(plot._parts({"jax": everywhere})) == ["jax: outside tolerance for every x"]
    assert list(plot._parts({"jax": pieces})) == ["jax: outside tolerance for 50% of the range, in 5 pieces"]


@pytest.mark.side_by_side
def test_plot_writes_an_image_of_several_backends(run, several, tmp_path):
    from matplotlib.image import imread

    words = ("plot", "plots.py:half_right", "--arg", "x=np.linspace(-3, 3, 200)", "--backends", ",".join(several))
    pixels = {}
    for look, called in (("light", start), ("dark", run)):
        path = tmp_path / f"{look}.png"
        done = called(*words, "-o", path, f"--{look}")
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"{', '.join(several)}: outside tolerance for -3 < x < 0", f"plot: {path}"]
        assert path.read_bytes().startswith(PNG)
        pixels[look] = imread(path)
    assert pixels["light"].shape == pixels["dark"].shape == (960, 1200, 4)
    assert pixels["light"][..., :3].mean() > 0.7 and pixels["dark"][..., :3].mean() < 0.3


@pytest.mark.only("numpy")
@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["plots.py:cube", "-o", "cube.xyz"], ["cannot write cube.xyz: unknown image format 'xyz'; use one of", "png"]),
        (["plots.py:cube", "-o", "nowhere/cube.png"], ["cannot write nowhere/cube.png: its folder does not exist"]),
        (["plots.py:cube", "-o", "/proc/cube.png"], ["cannot write /proc/cube.png: "]),
        (["plots.py:", "-o", "cube.png"], ["plots.py: names no function; name one after the colon"]),
        (["plots.py", "-o", "cube.png"], ["plot is for one function: name it, as in plots.py:FUNCTION"]),
        (["plots.py:softmax", "-o", "cube.png"], ["plot draws elementwise functions"]),
        (["plots.py:cube"], ["the following arguments are required: -o/--output"]),
    ],
)
def test_what_cannot_be_drawn_is_told_in_one_line(run, words, parts):
    given = ["--arg", "x=np.linspace(0, 1, 9)"] if ":" in words[0][:-1] else []
    refused(run("plot", *words, *given, "--backends", "numpy"), *parts)


@pytest.mark.side_by_side
def test_plot_draws_what_it_can(run, several, tmp_path):
    others = [name for name in several if name != "numpy"]
    path = tmp_path / "f.png"
    words = ("--arg", "x=np.linspace(0, 1, 9)", "--backends", ",".join(["numpy", *others]), "-o", path)
    done = run("plot", "plots.py:only_numpy", *words)
    assert done.returncode == (1 if others else 0) and path.read_bytes().startswith(PNG)
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == others
    assert all("RuntimeError: not here (plots.py:" in line for line in done.stderr.splitlines())
    ghost(tmp_path)
    done = start("plot", "plots.py:cube", *words[:2], "--backends", "numpy,ghost", "-o", path, folder=tmp_path)
    assert done.returncode == 2 and done.stderr == 'ghost: not installed: pip install "ghost"\n'
