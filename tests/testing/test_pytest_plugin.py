"""The pytest plugin, by small test files that a pytest of their own runs."""

import textwrap
from importlib.metadata import entry_points

import pytest

from keras_cg import pytest_plugin

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
    """Runs pytest on a test file in a process of its own."""

    def run(code, *options, plugin=PLUGIN):
        pytester.makepyfile(textwrap.dedent(SEVEN) + textwrap.dedent(code))
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


# --- the fixture ---------------------------------------------------------------------------------------------------


@pytest.mark.once
def test_the_backend_is_as_before_after_the_test(inner):
    code = """
        os.environ["KERAS_CG_BACKEND"] = "torch"

        def test_first(cg_backend):
            pass

        def test_second():
            assert keras_cg.backend() == "torch"
    """
    result = inner(code, "--cg-backends=numpy")
    result.assert_outcomes(passed=2)


@pytest.mark.once
def test_by_default_on_all_that_are_installed(inner, all_found):
    result = inner("def test_it(cg_backend): pass", *LIST)
    assert collected(result) == [f"test_it[{name}]" for name in ("jax", "numpy", "tensorflow", "torch")]


@pytest.mark.once
def test_one_found_by_default_that_does_not_start_fails_its_tests_alone(inner, all_found):
    # Without the summary, which says it again where there is room.
    result = inner("def test_it(cg_backend): pass\ndef test_other(): pass", "-rN")
    result.assert_outcomes(passed=2, errors=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "the backend 'jax' (from the fixture cg_backend) is installed but does not start:" in said(result)
    # In the error, and not once more as what happened before.
    assert said(result).count("RuntimeError: jax has no device") == 1
    assert "pytest_plugin.py" not in said(result) and "During handling" not in said(result)


@pytest.mark.once
def test_works_through_other_fixtures_and_usefixtures(inner):
    code = """
        os.environ["KERAS_CG_BACKEND"] = "jax"

        @pytest.fixture
        def model(cg_backend):
            return cg_backend

        def test_fixture(model):
            assert model == keras_cg.backend() == "numpy"

        @pytest.mark.usefixtures("cg_backend")
        @pytest.mark.parametrize("x", [1, 2])
        def test_marked(x):
            assert keras_cg.backend() == "numpy"
    """
    result = inner(code, "--cg-backends=numpy")
    result.assert_outcomes(passed=3)


@pytest.mark.once
@pytest.mark.parametrize(
    "code",
    [
        "def test_it(request): request.getfixturevalue('cg_backend')",
        "import unittest\n@pytest.mark.usefixtures('cg_backend')\nclass TestIt(unittest.TestCase):\n"
        "    def test_it(self): pass",
    ],
)
def test_where_it_cannot_be_parametrised(inner, code):
    result = inner(code, "--cg-backends=numpy")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = said(result)
    assert "test_it: the fixture `cg_backend` was asked for where a test cannot run once on each" in text
    assert "    usual cause: request.getfixturevalue(), or a method of a unittest.TestCase." in text
    assert "    remedy: take `cg_backend` as an argument of a test function or of a fixture that it uses." in text
    assert "pytest_plugin.py" not in text


# --- the option ----------------------------------------------------------------------------------------------------


@pytest.mark.once
def test_the_option_chooses_in_its_order_and_each_once(inner, all_start):
    result = inner("def test_it(cg_backend): pass", "--cg-backends=torch, numpy,jax,numpy", *LIST)
    assert collected(result) == ["test_it[torch]", "test_it[numpy]", "test_it[jax]"]


@pytest.mark.once
def test_an_empty_option_is_none(inner, all_found):
    assert len(collected(inner("def test_it(cg_backend): pass", "--cg-backends=", *LIST))) == 4


@pytest.mark.once
@pytest.mark.parametrize("names", [",", " , "])
def test_an_option_that_names_no_backend_fails_the_run(inner, names):
    result = inner("def test_it(): pass", f"--cg-backends={names}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line]
    assert line == (f"ERROR: --cg-backends={names} names no backend. The backends are: jax, numpy, tensorflow, torch.")


@pytest.mark.once
def test_an_unknown_backend_fails_the_run(inner):
    result = inner("def test_it(): pass", "--cg-backends=numpy,pytorch")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.stderr.lines if line]
    assert line == (
        "ERROR: unknown backend 'pytorch' (from --cg-backends). The backends are: jax, numpy, tensorflow, torch."
        " Did you mean 'torch'?"
    )


@pytest.mark.once
def test_a_backend_that_is_not_installed_fails_the_run(inner, pytester):
    pytester.makeconftest("import sys; sys.modules['jax'] = None")
    result = inner("def test_it(): pass", "--cg-backends=jax")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: the backend 'jax' (from --cg-backends) needs *jax*, which is not installed.",
            '    remedy: pip install "keras-cg[[]jax]"*',
        ]
    )


@pytest.mark.once
def test_a_backend_that_does_not_start_fails_the_run(inner, all_found):
    result = inner("def test_it(): pass", "--cg-backends=jax")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: the backend 'jax' (from --cg-backends) is installed but does not start:",
            "    RuntimeError: jax has no device",
            "    remedy: *",
        ]
    )


# --- the marker ----------------------------------------------------------------------------------------------------


@pytest.mark.once
def test_the_closest_marker_restricts(inner, all_found):
    code = """
        pytestmark = pytest.mark.cg_backends("jax", "torch")

        def test_module(cg_backend): pass

        @pytest.mark.cg_backends("torch", "tensorflow")
        class TestClass:
            def test_class(self, cg_backend): pass

            @pytest.mark.cg_backends("numpy")
            def test_method(self, cg_backend): pass
    """
    result = inner(code, *LIST)
    assert collected(result) == [
        "test_module[jax]",
        "test_module[torch]",
        "TestClass::test_class[tensorflow]",
        "TestClass::test_class[torch]",
        "TestClass::test_method[numpy]",
    ]


@pytest.mark.once
def test_what_is_left_to_no_backend_is_deselected(inner):
    code = """
        @pytest.mark.cg_backends("torch", "jax")
        def test_others(cg_backend): pass

        @pytest.mark.cg_backends("jax", "numpy")
        def test_some(cg_backend): pass
    """
    result = inner(code, "--cg-backends=numpy")
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines("PASSED *::test_some[[]numpy[]]")


@pytest.mark.once
@pytest.mark.parametrize("names", ["'numpy', 'tf'", "['numpy']"])
def test_an_unknown_name_in_a_marker_is_an_error_of_collection(inner, names):
    result = inner(f"@pytest.mark.cg_backends({names})\ndef test_it(cg_backend): pass", "--cg-backends=numpy")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)
    wrong = "'tf'" if "tf" in names else names
    assert f"unknown backend {wrong} (from the marker cg_backends of test_" in said(result)
    assert "::test_it). The backends are: jax, numpy, tensorflow, torch." in said(result)
    assert "pytest_plugin.py" not in said(result)


@pytest.mark.once
@pytest.mark.parametrize("marker", ["cg_backends", "cg_backends()", "cg_backends('numpy', only='jax')"])
def test_a_marker_without_names(inner, marker):
    result = inner(f"@pytest.mark.{marker}\ndef test_it(cg_backend): pass", "--cg-backends=numpy")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    message = (
        "::test_it: the marker cg_backends takes the names of backends, one argument each:"
        ' @pytest.mark.cg_backends("jax", "torch").'
    )
    assert message in said(result)


@pytest.mark.once
@pytest.mark.parametrize(
    "code",
    [
        "@pytest.mark.cg_backends('numpy')\ndef test_it(): pass",
        "pytestmark = pytest.mark.cg_backends('jax')\ndef test_it(tmp_path): pass",
        "import unittest\n@pytest.mark.cg_backends('jax')\nclass TestIt(unittest.TestCase):\n"
        "    def test_it(self): pass",
    ],
)
def test_a_marker_without_the_fixture(inner, code):
    result = inner(code, "--cg-backends=numpy")
    result.assert_outcomes(errors=1)
    assert "::test_it: the marker cg_backends needs the fixture `cg_backend`, which this test does not" in said(result)
    assert "    what would happen: the test would run once, on whichever backend is active." in said(result)
    assert "    remedy: take `cg_backend` as an argument of the test, or mark only the tests that do." in said(result)


@pytest.mark.once
def test_a_marker_on_a_parameter(inner):
    code = """
        @pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.cg_backends("jax"))])
        def test_it(x, cg_backend): pass
    """
    result = inner(code, "--cg-backends=numpy")
    result.assert_outcomes(passed=1, errors=1)
    assert "]: the marker cg_backends does not name the backend that this test runs on." in said(result)
    assert "    usual cause: it stands on one parameter, pytest.param(..., marks=...), or was" in said(result)
    assert "    remedy: put it on a test, a class or a module." in said(result)


# --- the checker ---------------------------------------------------------------------------------------------------


@pytest.mark.once
def test_the_assertion_is_that_of_the_checker(inner):
    code = """
        from keras_cg import testing

        testing.assert_gradients = lambda f: f

        def test_it(assert_gradients):
            assert assert_gradients is testing.assert_gradients
    """
    inner(code, "--cg-backends=numpy").assert_outcomes(passed=1)


@pytest.mark.side_by_side
def test_each_backend_is_active_where_a_right_rule_passes_and_a_wrong_one_is_diagnosed(inner, backends):
    # One run for all of it, as it starts every framework.
    code = """
        import numpy as np

        os.environ["KERAS_CG_BACKEND"] = "nobody"

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


@pytest.mark.once
def test_the_example_of_the_docstring_runs(inner):
    example = textwrap.dedent(pytest_plugin.__doc__.partition("A file of tests:\n")[2])
    inner(example, "--cg-backends=numpy").assert_outcomes(passed=1)


# --- manners -------------------------------------------------------------------------------------------------------


@pytest.mark.once
def test_the_header_names_the_backends_that_were_asked_for(inner):
    inner("", "--cg-backends=numpy").stdout.fnmatch_lines("keras_cg backends: numpy")
    assert "keras_cg backends" not in said(inner(""))


@pytest.mark.once
def test_the_marker_and_the_option_are_listed(inner):
    inner("", "--markers").stdout.fnmatch_lines(
        "@pytest.mark.cg_backends(*names): run the test, which uses cg_backend, on these backends"
    )
    inner("", "--help").stdout.fnmatch_lines("*--cg-backends=NAMES*the backends of the fixture cg_backend*")


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


@pytest.mark.once
def test_a_run_that_does_not_ask_for_it_imports_nothing(bare):
    code = """
        @pytest.mark.parametrize("x", [1])
        def test_it(x, tmp_path):
            assert "_keras_cg" in loaded() and not {"keras_cg", "numpy"} & loaded()
    """
    bare(code).assert_outcomes(passed=1)


@pytest.mark.once
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


@pytest.mark.once
def test_two_processes_collect_the_same(inner, all_start):
    code = """
        @pytest.mark.cg_backends("torch", "numpy", "jax")
        def test_marked(cg_backend):
            pass

        @pytest.mark.parametrize("x", ["b", "a"])
        def test_parametrised(cg_backend, x):
            pass
    """
    # xdist fails where its processes collect different tests, or the same in another order.
    result = inner(code, "-n2", "--cg-backends=torch,jax,tensorflow,numpy")
    result.assert_outcomes(passed=3 + 8)


@pytest.mark.once
def test_the_entry_point_loads_it(inner):
    (point,) = entry_points(group="pytest11", name="keras_cg")
    assert point.value == "_keras_cg.pytest_plugin", "the package must be installed anew"
    result = inner("def test_it(cg_backend): pass", "--cg-backends=numpy", plugin=())
    result.assert_outcomes(passed=1)
