"""What versions are tested stands in one place, the private names in one table, and what is untested is told."""

import importlib
import importlib.metadata
import pathlib
import re
import sys
import tomllib

import pages
import private_names
import programs
import pytest

import keras_cg
from keras_cg.command import versions

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The build for the CPU, in every column; other releases are tested by hand.
TORCH = "2.13.0"


def pinned(name):
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    found = {package.lower().replace("_", "-"): version for package, version in (line.split("==") for line in lines)}
    # The tests install the build for the CPU alone.
    return {**found, "tensorflow": found["tensorflow-cpu"]}


FILES = {name: pinned(name) for name in ("constraints-oldest.txt", "constraints.txt", "constraints-newest.txt")}


def bounds():
    """The lower bounds of pyproject.toml."""
    needed = [
        *PROJECT["dependencies"],
        *(each for extra in PROJECT["optional-dependencies"].values() for each in extra),
    ]
    found = dict(each.split(">=") for each in needed)
    assert not any(re.search(r"[<,!~=]", bound) for bound in found.values()), "no upper bounds"
    return found


def version_table():
    """The table of tested versions: the cells of each line, by its first."""
    page = (ROOT / "docs" / "compatibility.md").read_text()
    text = page.partition("<!-- versions -->")[2].partition("<!-- /versions -->")[0]
    return {first: others for first, *others in pages.rows(text)[2:]}


PACKAGES = {
    "JAX": "jax",
    "TensorFlow": "tensorflow-cpu",
    "NumPy": "numpy",
    "autograd": "autograd",
    "Keras": "keras",
    "optree": "optree",
    "SciPy": "scipy",
}


@pytest.mark.only("numpy")
def test_the_oldest_versions_are_the_lower_bounds():
    for name, bound in bounds().items():
        if name != "torch":
            assert FILES["constraints-oldest.txt"][name].startswith(f"{bound}."), name
    assert all(found.get("torch", TORCH) == TORCH for found in FILES.values())
    assert version_table()["torch"][0].endswith(f"{bounds()['torch']}.0")


@pytest.mark.only("numpy")
def test_the_table_of_tested_versions():
    table = version_table()
    for title, name in PACKAGES.items():
        assert table[title] == [found[name] for found in FILES.values()], title
    assert table["array-api-compat"] == [*(found["array-api-compat"] for found in list(FILES.values())[:2]), ""]
    supported = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert ", ".join(table["Python"]) == "3.11, 3.11, 3.12, 3.13" and supported == ["3.11", "3.12", "3.13"]
    assert f">={supported[0]}" == PROJECT["requires-python"]


@pytest.mark.only("numpy")
def test_the_line_in_the_readme():
    """README gives the first and the last column, without the last digit; torch has one version in CI."""
    text = (ROOT / "README.md").read_text()
    for title in ("JAX", "TensorFlow", "Keras"):
        oldest, newest = (".".join(version_table()[title][column].split(".")[:2]) for column in (0, 2))
        assert re.search(rf"\b{title} {re.escape(oldest)} to {re.escape(newest)}\b", " ".join(text.split())), title
    assert f"torch {TORCH.removesuffix('.0')}, " in text and "Python 3.11 to 3.13" in text
    assert f"beta, version {'.'.join(keras_cg.__version__.split('.')[:2])}." in text
    # It installs from the repository.
    (address,) = re.findall(r"@ git\+(\S+?)\"", text)
    assert address == PROJECT["urls"]["Repository"]


@pytest.mark.only("numpy")
def test_the_version_on_the_reports():
    reports = sorted((ROOT / "docs" / "reports").glob("*.md"))
    assert len(reports) == 4
    for path in reports:
        found = re.search(r"keras-cg (\d+\.\d+\.\d+)", path.read_text())[1]
        assert found == keras_cg.__version__, path.name


@pytest.mark.only("numpy")
def test_the_newest_versions_that_the_package_knows_of():
    for name, newest in versions.NEWEST.items():
        found = [file[name] for file in FILES.values() if name in file]
        if name == "torch":  # the newest one is tested by hand
            found = version_table()["torch"][2:]
        highest = max(found, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])
        assert ".".join(re.findall(r"\d+", highest)[:2]) == newest, name
    assert versions.NEWEST.keys() == {name for name in bounds() if name not in ("matplotlib", "rich", "scikit-learn")}


# --- private names -------------------------------------------------------------------------------------------------


@pytest.mark.only("numpy")
def test_the_table_of_private_names_is_what_the_package_uses():
    known = {name for row in private_names.listed() for name in row.names}
    used = private_names.used()
    named = {name for name in used if not name.startswith(".")}
    attributes = {name for name in used if name.startswith(".")}
    assert named - known == set(), "used, and not in docs/architecture.md"
    without = {name for name in attributes if not any(each.endswith(name) for each in known)}
    assert without == set(), "read from an object, and not in docs/architecture.md"
    idle = {name for name in known - named if f".{name.rpartition('.')[2]}" not in attributes}
    idle = {name for name in idle if not any(each.startswith(f"{name}.") for each in named)}
    assert idle == set(), "in docs/architecture.md, and not used"
    assert all(row.why and row.since and row.without for row in private_names.listed())


@pytest.mark.only("numpy")
def test_private_names_are_read_when_the_backend_is_imported():
    used = private_names.used()
    for row in private_names.listed():
        if row.without == "the backend does not start":
            for name in row.names:
                assert used.get(name) or used.get(f".{name.rpartition('.')[2]}"), name


def seen_by(transform):
    """What a function gets inside of a transform of JAX."""
    seen = []
    transform(seen.append)(1.0)
    return seen[0]


MADE = {
    "torch._ops.OpOverload": lambda: sys.modules["torch"].ops.aten.add.Tensor,
    "jax.core.Tracer": lambda: seen_by(sys.modules["jax"].jit),
    "keras.Variable": lambda: sys.modules["keras"].Variable(0.0),
    "tensorflow.Graph": lambda: sys.modules["tensorflow"].function(lambda: 1.0).get_concrete_function().graph,
    "torch.autograd.graph.Node": lambda: (
        sys.modules["torch"].zeros(1, requires_grad=True).view(1).grad_fn.next_functions[0][0]
    ),
}


def test_private_names_are_there(backend):
    framework = {"numpy": "autograd"}.get(backend, backend)
    getattr(keras_cg.ops, "exp")  # noqa: B009 - reading it is what loads the backend
    for row in private_names.listed():
        for name in row.names:
            if name.partition(".")[0] == framework and not row.without.startswith("nothing"):
                owner, _, attribute = name.rpartition(".")
                if owner in MADE:
                    assert hasattr(MADE[owner](), attribute), name
                else:
                    private_names.resolve(name)  # which raises if it is gone; some are None most of the time


def broken(code, framework="torch"):
    """What is said of a framework when something of it is gone."""
    return programs.run(f"""
        import keras_cg
        {code}
        try:
            with keras_cg.use_backend("{framework}"):
                keras_cg.custom_gradient(lambda x: (x, lambda upstream: upstream))(1.0)
        except ImportError as error:
            print(error)
        else:
            raise AssertionError("no error")
    """)


@pytest.mark.only("torch")
def test_a_name_or_a_module_that_is_gone_is_told_with_the_version(torch):
    text = broken("import torch; del torch._C._functorch.get_unwrapped")
    assert f"is installed but does not start with torch {torch.__version__}:\n" in text and "get_unwrapped" in text
    text = broken("import sys, torch; sys.modules['torch._functorch.pyfunctorch'] = None")
    assert "does not start with torch" in text and "torch._functorch.pyfunctorch" in text
    assert "is not installed" not in text


@pytest.mark.only("tensorflow")
@pytest.mark.parametrize(
    "code", ["tf.Operation._id = property(lambda self: 5)", "tf.vectorized_map = lambda f, x: f(x)"]
)
def test_a_graph_that_counts_or_marks_in_another_way_is_told(tf, code):
    text = broken(f"import tensorflow as tf; {code}", "tensorflow")
    assert f"is installed but does not start with tensorflow {tf.__version__}:\n" in text
    assert "counts operations, or marks a vectorized loop, in another way." in text


# --- keras-cg info ---------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch):
    """Sets which versions are installed, and what the package needs."""
    found = {}

    def version(name):
        if name in found:
            return found[name]
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    extras = {"jax": "jax>=0.8", "tensorflow": "tensorflow>=2.19", "tensorflow-cpu": "tensorflow-cpu>=2.19"}
    needed = ["numpy>=2.1", *(f'{bound}; extra == "{name}"' for name, bound in ({**extras, "cli": "rich>=14"}).items())]
    newest = {"numpy": "2.5", "jax": "0.12", "tensorflow": "2.21", "tensorflow-cpu": "2.21"}
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needed)
    monkeypatch.setattr(versions, "NEWEST", newest)
    return found


@pytest.mark.only("numpy")
def test_versions_that_are_not_tested_are_told(installed):
    installed |= {"numpy": "2.5.9", "jax": "0.8.0", "tensorflow": "2.20.0rc1", "rich": "1.0"}
    assert versions.untested() == []
    installed |= {"numpy": "2.10.0", "jax": "0.7.2", "tensorflow": "3.0.dev1"}
    assert versions.untested() == [
        "numpy 2.10.0 is newer than the versions that keras_cg was tested with (2.1 to 2.5): it is untested",
        "jax 0.7.2 is older than the versions that keras_cg was tested with (0.8 to 0.12): upgrade it",
        "tensorflow 3.0.dev1 is newer than the versions that keras_cg was tested with (2.19 to 2.21): it is untested",
    ]


@pytest.mark.only("numpy")
def test_versions_of_a_package_that_is_not_installed(monkeypatch):
    def gone(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", gone)
    assert versions.untested() == []
