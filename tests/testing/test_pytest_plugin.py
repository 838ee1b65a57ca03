"""The pytest plugin, by small test files that a pytest of their own runs."""

import textwrap
from importlib.metadata import entry_points

import pytest

from _keras_cg import pytest_plugin

pytestmark = pytest.mark.only("numpy")

pytest_plugins = ["pytester"]

# Under its module's name, whether the entry point has loaded it under that of the package or not: it is there once.
PLUGIN = ("-p", "no:keras_cg", "-p", "_keras_cg.pytest_plugin")

SEVEN = """
    import os
    import keras_cg, pytest

    @keras_cg.custom_gradient
    def seven(x):
        return x * x, lambda upstream: 7 * upstream
"""


@pytest.fixture
def inner(pytester):
    """Runs pytest on a file of tests, or on several, in a process of its own."""

    def run(code, *options, plugin=PLUGIN):
        files = code if isinstance(code, dict) else {"test_inner": code}
        pytester.makepyfile(**{name: textwrap.dedent(SEVEN) + textwrap.dedent(code) for name, code in files.items()})
        return pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider", "--strict-markers", "-rA", *options)

    return run


@pytest.fixture
def all_found(pytester):
    """Every framework can be found, and none starts."""
    for name in ("jax", "tensorflow", "torch"):
        pytester.makepyfile(**{name: f"raise RuntimeError('{name} has no device')"})


@pytest.fixture
def all_start(pytester):
    """Every backend starts, installed or not: NumPy stands in, where pytest is under test and not the frameworks."""
    pytester.makeconftest("""
        from keras_cg import backends

        for name in ("jax", "tensorflow", "torch"):
            backends.loaded[name] = backends.load("numpy", "a test")
    """)


def said(result):
    return result.stdout.str() + result.stderr.str()


def collected(result):
    """The ids of the tests, of `pytest --collect-only -q`."""
    return [line.partition("::")[2] for line in result.stdout.lines if "::" in line]


LIST = ("--collect-only", "-q", "-rN")


RIGHT = {
    "test_the_backend_is_as_before": """
        os.environ["KERAS_CG_BACKEND"] = "torch"

        def test_first(cg_backend):
            assert cg_backend == keras_cg.backend() == "numpy"

        def test_second():
            assert keras_cg.backend() == "torch"
    """,
    "test_through_other_fixtures": """
        @pytest.fixture
        def model(cg_backend):
            return cg_backend

        def test_fixture(model):
            assert model == keras_cg.backend() == "numpy"

        @pytest.mark.usefixtures("cg_backend")
        @pytest.mark.parametrize("x", [1, 2])
        def test_marked(x):
            assert keras_cg.backend() == "numpy"
    """,
    "test_left_to_no_backend": """
        @pytest.mark.cg_backends("torch", "jax")
        def test_others(cg_backend): pass

        @pytest.mark.cg_backends("jax", "numpy")
        def test_some(cg_backend): pass
    """,
    "test_the_checker": """
        from keras_cg import testing

        @pytest.fixture
        def replaced(monkeypatch):
            monkeypatch.setattr(testing, "assert_gradients", len)

        def test_it(replaced, assert_gradients):
            assert assert_gradients is len
    """,
    "test_the_docstring": pytest_plugin.__doc__.partition("A file of tests:\n")[2],
}


def test_the_fixtures(inner):
    """The backend is active in a test and its fixtures alone; what a marker leaves to no backend is deselected."""
    result = inner(RIGHT, "--cg-backends=numpy")
    result.assert_outcomes(passed=8, deselected=2)
    result.stdout.fnmatch_lines("PASSED *::test_some[[]numpy[]]")
    result.stdout.fnmatch_lines("keras_cg backends: numpy")


MARKED = """
    pytestmark = pytest.mark.cg_backends("jax", "torch")

    def test_module(cg_backend): pass

    @pytest.mark.cg_backends("torch", "tensorflow")
    class TestClass:
        def test_class(self, cg_backend): pass

        @pytest.mark.cg_backends("numpy")
        def test_method(self, cg_backend): pass
"""


def test_by_default_on_all_that_are_installed_and_the_closest_marker_restricts(inner, all_found):
    """An empty option is none."""
    result = inner({"test_a": "def test_it(cg_backend): pass", "test_b": MARKED}, "--cg-backends=", *LIST)
    assert collected(result) == [
        *(f"test_it[{name}]" for name in ("jax", "numpy", "tensorflow", "torch")),
        "test_module[jax]",
        "test_module[torch]",
        "TestClass::test_class[tensorflow]",
        "TestClass::test_class[torch]",
        "TestClass::test_method[numpy]",
    ]


def test_one_found_by_default_that_does_not_start_fails_its_tests_alone(inner, all_found):
    # Without the summary, which says it again where there is room.
    result = inner("def test_it(cg_backend): pass\ndef test_other(): pass", "-rN")
    result.assert_outcomes(passed=2, errors=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "the backend 'jax' (from the fixture cg_backend) is installed but does not start:" in said(result)
    # In the error, and not once more as what happened before.
    assert said(result).count("RuntimeError: jax has no device") == 1
    assert "pytest_plugin.py" not in said(result) and "During handling" not in said(result)


# Files of tests, and what is said of each, which begins with the name of the test.
REFUSED = {
    "test_asked_for": (
        "def test_it(request): request.getfixturevalue('cg_backend')",
        "test_it: the fixture `cg_backend` was asked for where a test cannot run once on each",
        "    usual cause: request.getfixturevalue(), or a method of a unittest.TestCase.",
        "    remedy: take `cg_backend` as an argument of a test function or of a fixture that it uses.",
    ),
    "test_unittest": (
        """
        import unittest
        @pytest.mark.usefixtures('cg_backend')
        class TestIt(unittest.TestCase):
            def test_unit(self): pass
        """,
        "test_unit: the fixture `cg_backend` was asked for where a test cannot run once on each",
    ),
    "test_parameter": (
        """
        @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.cg_backends("jax"))])
        def test_parameter(x, cg_backend): pass
        """,
        "]: the marker cg_backends does not name the backend that this test runs on.",
        "    usual cause: it stands on one parameter, pytest.param(..., marks=...), or was",
        "    remedy: put it on a test, a class or a module.",
    ),
}
MARKERS = {
    "'numpy', 'tf'": "unknown backend 'tf' (from the marker cg_backends of",
    "['numpy']": "unknown backend ['numpy'] (from the marker cg_backends of",
    "": "::test_it: the marker cg_backends takes the names of backends, one argument each:"
    ' @pytest.mark.cg_backends("jax", "torch").',
    "'numpy', only='jax'": "::test_it: the marker cg_backends takes the names of backends",
}
WITHOUT = {
    "test_alone": "@pytest.mark.cg_backends('numpy')\ndef test_it(): pass",
    "test_module": "pytestmark = pytest.mark.cg_backends('jax')\ndef test_it(tmp_path): pass",
    "test_case": """
        import unittest
        @pytest.mark.cg_backends('jax')
        class TestIt(unittest.TestCase):
            def test_it(self): pass
    """,
}


def test_what_is_refused(inner):
    """Where a test cannot run once on each, a wrong marker, and a marker without the fixture: one run for all."""
    code = "@pytest.mark.cg_backends({})\ndef test_it(cg_backend): pass"
    files = {f"test_marker_{number}": code.format(names) for number, names in enumerate(MARKERS)}
    files |= {**WITHOUT, **{name: code for name, (code, *_) in REFUSED.items()}}
    result = inner(files, "--cg-backends=numpy", "--continue-on-collection-errors")
    result.assert_outcomes(passed=1, failed=1, errors=len(MARKERS) + len(WITHOUT) + 2)
    text = said(result)
    told = [*MARKERS.values(), *(line for _, *lines in REFUSED.values() for line in lines)]
    assert [line for line in told if line not in text] == []
    assert "::test_it). The backends are: jax, numpy, tensorflow, torch." in text
    for line in (
        "test_it: the marker cg_backends needs the fixture `cg_backend`, which this test does not",
        "    consequence: the test would run once, on whichever backend is active.",
        "    remedy: take `cg_backend` as an argument of the test, or mark only the tests that do.",
    ):
        assert text.count(line) >= len(WITHOUT), line
    assert "pytest_plugin.py" not in text


def test_the_option_chooses_in_its_order_and_each_once(inner, all_start):
    result = inner("def test_it(cg_backend): pass", "--cg-backends=torch, numpy,jax,numpy", *LIST)
    assert collected(result) == ["test_it[torch]", "test_it[numpy]", "test_it[jax]"]


OPTIONS = {
    " , ": ("ERROR: --cg-backends= ,  names no backend. The backends are: jax, numpy, tensorflow, torch.",),
    "numpy,pytorch": (
        "ERROR: unknown backend 'pytorch' (from --cg-backends). The backends are: jax, numpy, tensorflow, torch. Did"
        " you mean 'torch'?",
    ),
    "jax": (
        "ERROR: the backend 'jax' (from --cg-backends) needs *jax*, which is not installed.",
        '    remedy: pip install "keras-cg[[]jax]"*',
    ),
}


@pytest.mark.parametrize("names", OPTIONS)
def test_an_option_that_fails_the_run(inner, all_found, pytester, names):
    pytester.makeconftest("import sys; sys.modules['jax'] = None")
    result = inner("def test_it(): pass", f"--cg-backends={names}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([*OPTIONS[names]])
    assert len([line for line in result.stderr.lines if line]) == len(OPTIONS[names])


@pytest.mark.side_by_side
def test_each_backend_is_active_where_a_right_rule_passes_and_a_wrong_one_is_diagnosed(inner, backends):
    # One run for all of it, as it starts every framework.
    code = """
        import numpy as np

        os.environ["KERAS_CG_BACKEND"] = "unknown"

        def test_gradient(cg_backend):
            assert keras_cg.backend() == cg_backend
            assert float(keras_cg.grad(seven)(3.0)) == 7

        @keras_cg.custom_gradient
        def right(x):
            return x * x, lambda upstream: 2 * x * upstream

        @keras_cg.custom_gradient
        def wrong(x):
            return x * x, lambda upstream: 2 * x

        @pytest.mark.parametrize("f", [right, wrong], ids=["right", "wrong"])
        def test_checked(f, cg_backend, assert_gradients):
            assert_gradients(f, np.array([1.0, -2.0, 3.0]))
    """
    result = inner(code, f"--cg-backends={','.join(backends)}")
    result.assert_outcomes(passed=2 * len(backends), failed=len(backends))
    for name in backends:
        result.stdout.fnmatch_lines(f"PASSED *::test_gradient[[]{name}[]]")
        result.stdout.fnmatch_lines(f"PASSED *::test_checked[[]{name}-right[]]")
        result.stdout.fnmatch_lines([f"E * {name}: failed", "E * diagnosis: *upstream*"])
    # The report, and the line of the test that asked for it; nothing of the checker itself.
    assert "keras_cg/" not in said(result)


RULES = """
    class Layer:
        @keras_cg.custom_gradient
        def call(self, x):
            return x, lambda upstream: upstream

        @keras_cg.custom_gradient
        def forgotten(self, x):
            return x, lambda upstream: upstream

    @keras_cg.custom_gradient
    def right(x):
        return x * x, lambda upstream: 2 * x * upstream
"""
USES = """
    import numpy as np
    import inner_rules, inner_package.rules

    X = np.array([1.0, -2.0, 3.0])

    def test_first(assert_gradients):
        assert assert_gradients.__name__ == "assert_gradients"
        assert_gradients(inner_rules.right, X, fast=True)

    def test_second(assert_gradients):
        assert_gradients(inner_rules.Layer().call, X, fast=True)

    def test_in_a_package():
        assert inner_package.rules
"""


@pytest.mark.only("numpy")
@pytest.mark.parametrize("processes", [(), ("-p", "xdist", "-n2")], ids=["one process", "two processes"])
def test_strict_names_the_functions_that_no_test_checks(inner, pytester, processes):
    pytester.syspathinsert()
    pytester.mkpydir("inner_package").joinpath("rules.py").write_text(textwrap.dedent(SEVEN))
    files = {"inner_rules": RULES, "test_uses": USES}
    result = inner(files, "--cg-strict=inner_rules, inner_package,inner_missing", *processes)
    result.assert_outcomes(passed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = result.stdout.str().partition("no test gave these to assert_gradients (--cg-strict) =")[2]
    assert said.partition("\n====")[0].splitlines()[1:] == [
        "inner_missing: it cannot be imported: No module named 'inner_missing'",
        "inner_package.rules.seven",
        "inner_rules.Layer.forgotten",
        "inner_rules.seven",
    ]


@pytest.mark.only("numpy")
def test_strict_passes_if_each_function_is_checked_and_shows_no_frame_of_its_own(inner, pytester):
    code = """
        def test_it(assert_gradients):
            assert_gradients(seven, 1.0 + numpy.arange(3.0), fast=True{})
    """
    files = {"inner_a": "", "test_b": "import numpy\nfrom inner_a import seven" + textwrap.dedent(code)}
    right = {name: each.format(", expected=lambda x: 7 * x") for name, each in files.items()}
    assert inner(right, "--cg-strict=inner_a").ret == pytest.ExitCode.OK
    result = inner({name: each.format("") for name, each in files.items()}, "--cg-strict=inner_a")
    result.assert_outcomes(failed=1)
    assert "no test gave" not in said(result) and "pytest_plugin.py" not in said(result)


LOADED = """
    import sys

    import pytest

    def loaded():
        return {name.partition(".")[0] for name in sys.modules}
"""


@pytest.fixture
def bare(pytester, monkeypatch):
    """Runs pytest with this plugin alone, on tests that may look at what is `loaded()`."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(code, *options):
        pytester.makepyfile(textwrap.dedent(LOADED) + textwrap.dedent(code))
        return pytester.runpytest_subprocess("-p", "_keras_cg.pytest_plugin", *options)

    return run


def test_a_run_that_does_not_ask_for_it_imports_nothing(bare):
    code = """
        @pytest.mark.parametrize("x", [1])
        def test_it(x, tmp_path):
            assert "_keras_cg" in loaded() and not {"keras_cg", "numpy"} & loaded()
    """
    result = bare(code)
    result.assert_outcomes(passed=1)
    assert "keras_cg backends" not in said(result)  # no header


@pytest.mark.parametrize(
    ("asks", "options"),
    [
        ("def test_it(cg_backend):", ["--cg-backends=numpy"]),
        ("def test_it(assert_gradients):", []),
        ("def test_it():", ["--cg-backends=numpy"]),
    ],
)
def test_a_run_that_asks_imports_no_other_framework(bare, asks, options):
    code = """
            assert {"keras_cg", "numpy"} <= loaded()
            assert not {"jax", "tensorflow", "torch", "keras", "rich", "matplotlib"} & loaded()
    """
    bare(f"{asks}\n{textwrap.indent(textwrap.dedent(code), '    ')}", *options).assert_outcomes(passed=1)


def test_the_entry_point_loads_it(inner):
    (point,) = entry_points(group="pytest11", name="keras_cg")
    assert point.value == "_keras_cg.pytest_plugin", "the package must be installed again"
    result = inner("def test_it(cg_backend): pass", "--cg-backends=numpy", plugin=())
    result.assert_outcomes(passed=1)


FAILING = """
    import keras_cg, pytest
    from keras_cg.frontend import call

    def test_of_the_user():
        @keras_cg.custom_gradient
        def culprit(x):
            raise LookupError("of the user")

        keras_cg.grad(culprit)(1.0)

    def test_message():
        keras_cg.grad(keras_cg.custom_gradient(lambda x: x))(1.0)

    def test_bug(monkeypatch):
        monkeypatch.setattr(call, "_checked_pair", lambda *args: None)
        keras_cg.grad(keras_cg.custom_gradient(lambda x: x))(1.0)
"""


def test_a_failure_shows_no_frame_of_keras_cg(inner):
    result = inner(FAILING, "--tb=short", "--cg-backends=numpy")
    result.assert_outcomes(failed=3, passed=0)
    of_user, message, bug = said(result).partition("short test summary")[0].split("___ test_")[1:]
    for text in (of_user, message):
        assert "keras_cg/" not in text
    assert 'LookupError("of the user")' in of_user and "must return a pair (output, grad)" in message
    # An error that is none of ours is a bug, and shows where it is.
    assert "keras_cg/frontend/call.py" in bug
