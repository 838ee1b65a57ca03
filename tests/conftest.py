"""Which backends the tests run on, and how they reach each framework.

`pytest --backends=jax,torch` runs on those, and one that does not start is a failure; without the option, on every
backend that is installed.
"""

import gc
import importlib
from types import SimpleNamespace

import frameworks
import numpy as np
import pytest

import keras_cg

# Frameworks have a million objects, and what is traced makes more all the time: by its own counting, Python would look
# through them for circles for a third of the tests' time. Tests that ask what is kept collect by themselves, and then
# look at nothing that was there before the first test.
gc.set_threshold(100_000)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addoption("--backends", default="", help="the backends to test, with commas between; default: all installed")
    parser.addoption("--write", action="store_true", help="write docs/reports/keras_parity.md, if that is tested")
    parser.addoption("--every-mode", action="store_true", help="all tests in every mode, whatever files choose")
    parser.addoption("--dozen", action="store_true", help="of the zoo, only a dozen rules that differ in kind")
    parser.addoption("--conformance-report", default="", help="a JSON file for what each rule of the zoo did")


def pytest_configure(config):
    requested = config.getoption("--backends")
    names = tuple(requested.split(",")) if requested else keras_cg.available_backends()
    config.stash[NAMES] = names
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return  # the processes that run the tests find it out, at the same time
    for name in names:
        # A backend that was asked for and does not start must fail the run, not shorten it.
        with keras_cg.use_backend(name):
            getattr(keras_cg.ops, "exp")  # noqa: B009 - reading it is what loads the backend


NAMES = pytest.StashKey()
# Dynamo traces for it as it does for aot_eager; then it takes seconds to generate code.
SLOW = "inductor"
# In a file that has it: the tests that run in every mode; all others of it run eagerly alone.
CHOICE = "IN_EVERY_MODE"
# Files whose tests share what takes long: Keras's quantised models.
SHARED = ("tests/with_keras/test_keras_install.py",)
# Written with `ops`, without a line for one framework: where each operation is compiled, these files take minutes, and
# run in the session `thorough`.
TAKE_LONG = tuple(
    f"tests/{tests}"
    for tests in (
        *(f"testing/test_checker_{part}.py" for part in ("faults", "staircases", "study", "verdicts")),
        *("recipes/test_recipes.py::test_checked", "recipes/test_recipe_edges.py", "recipes/test_solutions.py"),
        "docs/test_examples.py",
    )
)
COMPILING = ("jax", "tensorflow")


class Frame:
    """One framework in one mode: what a test needs to run a function and to differentiate it natively."""

    def __init__(self, name, mode):
        self.name, self.mode = name, mode
        self.native = frameworks.native(name)

    def differentiate(self, f, *arrays):
        """`(output, gradients)` as NumPy arrays, by the framework's own engine."""
        arrays = [np.asarray(array, np.float32) if isinstance(array, (list, float)) else array for array in arrays]
        return self.native.differentiate(f, arrays, self.mode)

    def gradients(self, f, *arrays):
        return self.differentiate(f, *arrays)[1]

    def check(self, f, arrays, gradients, output=None, **tolerances):
        """Asserts what the gradients of `f` are, and its output if that is given."""
        came, found = self.differentiate(f, *arrays)
        if output is not None:
            np.testing.assert_allclose(came, output, **tolerances)
        for each, expected in zip(found, gradients, strict=True):
            np.testing.assert_allclose(each, expected, **tolerances)

    def tensor(self, array):
        return self.native.tensor(np.asarray(array, np.float32) if isinstance(array, (list, float)) else array)

    def array(self, tensor):
        return self.native.array(tensor)


def pytest_generate_tests(metafunc):
    names = metafunc.config.stash[NAMES]
    if "frame" in metafunc.fixturenames:
        frames = [(name, mode) for name in names for mode in frameworks.native(name).MODES]
        # Inductor makes code of what aot_eager makes, so that a test needs one of the two.
        other = "aot_eager" if metafunc.definition.get_closest_marker(SLOW) else SLOW
        frames = [(name, mode) for name, mode in frames if mode != other]
        metafunc.parametrize("frame", frames, ids=[f"{name}-{mode}" for name, mode in frames], indirect=True)
    elif "backend" in metafunc.fixturenames:
        only = metafunc.definition.get_closest_marker("only")
        metafunc.parametrize("backend", only.args if only else names, indirect=True)
    if "custom_vjp" in metafunc.fixturenames:
        ways = importlib.import_module("frameworks.jax").CUSTOM_VJPS if "jax" in names else [""]
        metafunc.parametrize("custom_vjp", ways, indirect=True)


def parameters(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def cases(item):
    """What a file may call a test that has a frame: by its name, or also by its parameters; neither names the frame."""
    name, mode = item.callspec.params["frame"]
    parameters = item.callspec.id.removeprefix(f"{name}-{mode}").removeprefix("-")
    return {item.originalname, f"{item.originalname}[{parameters}]"}


def group(test):
    """The group of tests that a test runs with, in one process; most are alone in theirs."""
    file, _, name = test.partition("::")
    if file == "tests/conformance/test_conformance.py":  # the cells of a transform, which one program may serve
        return name.partition("[")[2].rpartition("-")[0] or test
    return file if file in SHARED else test


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist=loadscope`, processes take group after group, the largest first; few tests are left for the end."""
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group(nodeid)

    # Not --dist=loadgroup: with pytest 9.1, which keeps a test's name elsewhere, it (xdist 3.8) does nothing.
    return ByGroup(config, log)


@pytest.hookimpl(tryfirst=True)  # before -k and -m take some away
def pytest_collection_modifyitems(config, items):
    """Leaves out the tests of a framework that is not under test, and what a file tries eagerly alone."""
    for item in items:
        if parameters(item).get("backend") in COMPILING and item.nodeid.startswith(TAKE_LONG):
            item.add_marker("thorough")
    framed = [item for item in items if "frame" in parameters(item)]
    if not any("::" in arg for arg in config.args):
        for module in {item.module for item in framed if hasattr(item.module, CHOICE)}:
            known = set().union(*(cases(item) for item in framed if item.module is module))
            if unknown := [name for name in getattr(module, CHOICE) if name not in known]:
                raise pytest.UsageError(f"{CHOICE} of {module.__name__} names no test: {unknown}")

    names = set(config.stash[NAMES])

    def is_wanted(item):
        only = item.get_closest_marker("only")
        if only is not None:
            found = parameters(item)
            own = {found.get("backend"), *found.get("frame", ())[:1]} - {None}
            if names.intersection(own or names).isdisjoint(only.args):
                return False
        if item not in compiled or config.getoption("every_mode"):
            return True
        return not hasattr(item.module, CHOICE) or not cases(item).isdisjoint(getattr(item.module, CHOICE))

    compiled = {item for item in framed if item.callspec.params["frame"][1] != "eager"}
    left_out = [item for item in items if not is_wanted(item)]
    items[:] = [item for item in items if is_wanted(item)]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture
def frame(request):
    """A framework in one of its modes, its backend active."""
    with keras_cg.use_backend(request.param[0]):
        yield Frame(*request.param)


@pytest.fixture
def backend(request):
    """The name of a backend, which is active."""
    with keras_cg.use_backend(request.param):
        yield request.param


@pytest.fixture
def eager(backend):
    """The framework of the active backend in its eager mode."""
    return Frame(backend, "eager")


@pytest.fixture
def jax(backend):
    return importlib.import_module("jax")


@pytest.fixture
def torch(backend):
    return importlib.import_module("torch")


@pytest.fixture
def tf(backend):
    return importlib.import_module("tensorflow")


@pytest.fixture
def custom_vjp(request):
    """Each `custom_vjp` that the installed JAX has, in use."""
    with importlib.import_module("frameworks.jax").custom_vjp(request.param):
        yield request.param


@pytest.fixture
def backends(request):
    """Every backend under test."""
    return request.config.stash[NAMES]


@pytest.fixture
def several(backends):
    """Two of the backends, or the one under test: for what a command does with several processes."""
    return backends[:2]


@pytest.fixture
def without_collector():
    """Python frees what nothing refers to, and no circles."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def clean_environment(monkeypatch):
    """No choice of a backend from anywhere."""
    for name in ("KERAS_CG_BACKEND", "KERAS_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(__import__("sys").modules, "keras", raising=False)
    keras_cg.set_backend(None)
    yield SimpleNamespace(set=monkeypatch.setenv, module=monkeypatch.setitem)
    keras_cg.set_backend(None)
