"""The manual of the project: `nox -l` lists what can be done.

- `nox` answers in about a quarter of an hour: each backend in its own environment, all frameworks together, Keras on
  each backend, and the code of the README and the pages.
- `nox -t all` does the rest that CI does: slow tests, other versions, reports that must not change, style, builds.
- `nox -s NAME` runs one session. What follows `--` goes to the tool: `nox -s "tests(torch)" -- -k conventions`.

Sessions that need every framework share the environment of the session `frameworks`, which runs before them. Sessions
such as `versions(jax, newest)` have another Python and other versions. Where that Python is missing they are left out,
and the end of the run names them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shutil
import sysconfig

import nox

nox.options.default_venv_backend = "venv"  # pip, not uv: the settings of pip may name local wheels
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True
nox.options.stop_on_first_error = False

# pyenv keeps interpreters where nox does not look.
_PYENV = pathlib.Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/3.*/bin")
os.environ["PATH"] = os.pathsep.join([os.environ["PATH"], *map(str, sorted(_PYENV))])

CONSTRAINTS = ("-c", "constraints.txt")
# The other columns of the table in docs/compatibility.md: with which Python, and with which versions.
COLUMNS = {
    "newest": ("3.13", "constraints-newest.txt"),
    "3.12": ("3.12", "constraints-newest.txt"),
    "oldest": ("3.11", "constraints-oldest.txt"),
}
# The one release of torch of which CI finds a build for the CPU, and that for Python 3.11 alone; every other comes
# with several gigabytes of CUDA, and is tested by `torch_by_hand`.
TORCH = "torch==2.13.0"
PYPROJECT = nox.project.load_toml("pyproject.toml")
BACKENDS = sorted(path.stem for path in pathlib.Path("keras_cg/backends").glob("[a-z]*"))
FRAMEWORKS = [backend for backend in BACKENDS if backend in PYPROJECT["project"]["optional-dependencies"]]
# Quiet about its choice of CPU instructions; TensorFlow logs it at every start.
# One thread for torch: two test processes run side by side, and its own threads would only wait for each other.
# What JAX has compiled stays, for the other process, and for sessions with the same JAX.
ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "OMP_NUM_THREADS": "1",
    "JAX_COMPILATION_CACHE_DIR": str(pathlib.Path(".nox", "jax-programs").resolve()),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
# The tests that have a session of their own.
PAGES = ("tests/docs/test_readme.py", "tests/docs/test_docs.py")
CONFORMANCE = "tests/conformance/test_conformance.py"
ELSEWHERE = [f"--ignore={path}" for path in (CONFORMANCE, *PAGES)]
# Test by test; or group by group (tests/conftest.py has the groups), where some tests share what takes long to make.
PARALLEL = ("--numprocesses=2", "--dist=worksteal")
GROUPED = ("--numprocesses=2", "--dist=loadscope")
# Or file by file, where the tests of one share what JAX has compiled.
BY_FILE = ("--numprocesses=2", "--dist=loadfile")


# The tests that touch a framework: those for every backend, and those for one.
EVERYWHERE = [f"tests/test_{name}.py" for name in ("conventions", "returns", "captured")]
EVERYWHERE += ["tests/orders/test_how_often_it_runs.py", "tests/transforms/test_every_framework.py"]
TOUCHING = {
    backend: sorted(map(str, pathlib.Path("tests/transforms").glob(f"test_{backend}_*.py"))) for backend in BACKENDS
}
for backend in ("tensorflow", "torch"):
    TOUCHING[backend].append(f"tests/test_memory_{backend}.py")
# autograd has gradients of more functions in each release.
TOUCHING["numpy"] += [f"tests/namespaces/test_ops_{name}.py" for name in ("gradients", "table")]
# Columns that have another release of the framework than every other: there the framework's own tests run as well, and
# a dozen rules of the zoo.
OTHERS = {("jax", "newest"), ("jax", "oldest"), ("tensorflow", "oldest")}
# Python 3.12 has the newest versions, too, so one framework there is enough. NumPy's backend is tested beside JAX's, in
# one environment. TensorFlow brings Keras.
CASES = [
    *[(COLUMNS["newest"][0], backend, "newest") for backend in ("jax", "tensorflow")],
    (COLUMNS["3.12"][0], "jax", "3.12"),
    *[(COLUMNS["oldest"][0], backend, "oldest") for backend in ("jax", "tensorflow", "torch")],
]
WITH_KERAS = [f"tests/with_keras/test_keras_{name}.py" for name in ("layers", "variables", "wrappers")]
# A session of `nox -t all`, and one in the environment of `frameworks`.
REST = {"tags": ["all"], "default": False}
SHARED = {"venv_backend": "none", "requires": ["frameworks"]}
# GitHub runs every session at each push, but those of its weekly workflow, and those that need what it does not have:
# a machine for itself, hours, an accelerator, gigabytes of CUDA, a person who commits what they write.
WEEKLY = {"tags": ["weekly"], "default": False}
BY_HAND = {"tags": ["by_hand"], "default": False}
# The tests that need one backend; and without what the README's command leaves to the session `thorough`.
ALONE = ("-m", "not side_by_side")
QUICK = ("-m", "not side_by_side and not thorough")


# What GitHub reads, and the schema that check-jsonschema brings for it.
SCHEMAS = {
    "github-workflows": ".github/workflows/*.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/w*.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "citation-file-format": "CITATION.cff",
}


def small(extra: str) -> str:
    """The extra with TensorFlow's build for the CPU, which is half a gigabyte smaller; every other extra itself."""
    return "tensorflow-cpu" if extra == "tensorflow" else extra


def install(
    session: nox.Session, *extras: str, groups: tuple[str, ...] = (), pins: tuple[str, ...] = CONSTRAINTS
) -> None:
    """Installs the package with some extras, and dependency groups."""
    package = f".[{','.join(map(small, extras))}]" if extras else "."
    # Without bytecode: of the frameworks only a part is imported, and that part is compiled then.
    session.install("--no-compile", *pins, package, *nox.project.dependency_groups(PYPROJECT, *groups))


def framework(backend: str) -> list[str]:
    """The extra with the framework of a backend; NumPy's needs none."""
    return [backend] if backend in FRAMEWORKS else []


def solvers(backend: str) -> list[str]:
    """The dependency group with the libraries that the tests of a backend use."""
    return ["solvers"] if backend == "jax" else []


def run_shared(session: nox.Session, program: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Runs a program of the environment that the session `frameworks` made."""
    environment = session.cache_dir.parent / "frameworks"
    scripts = sysconfig.get_path("scripts", "venv", {"base": str(environment)})
    session.run(str(pathlib.Path(scripts, program)), *arguments, env=env, external=True)


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def tests(session: nox.Session, backend: str) -> None:
    """The tests of one backend, in an environment with that framework alone."""
    install(session, *framework(backend), "cli", "examples", groups=("test", *solvers(backend)))
    options = (f"--backends={backend}", *QUICK, *ELSEWHERE)
    session.run("pytest", *PARALLEL, *options, *session.posargs, env=ENVIRONMENT)


@nox.session
def frameworks(session: nox.Session) -> None:
    """The environment with every framework and Keras, for the sessions that follow."""
    install(session, *FRAMEWORKS, "keras", "cli", "examples", groups=("test", "typecheck", "export", "notebooks"))


@nox.session(**SHARED)
def together(session: nox.Session) -> None:
    """All frameworks in one process, where the backend is switched at run time.

    The session `tests` covers each backend by itself. This one runs tests that need several frameworks (the marker
    `side_by_side`), and tests that other loaded frameworks could disturb (`together`): the choice of the backend, its
    namespace, types that frameworks register, what functions capture.
    """
    # torch.compile takes long; that it traces beside other frameworks is shown by a test of `side_by_side`.
    which = ("-m", "(side_by_side or together) and not thorough", "-k", "not aot_eager")
    options = (f"--backends={','.join(BACKENDS)}", *which, *ELSEWHERE)
    run_shared(session, "pytest", *GROUPED, *options, *session.posargs, env=ENVIRONMENT)


@nox.session(**SHARED)
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def keras(session: nox.Session, backend: str) -> None:
    """Runs the tests with Keras on one backend."""
    environment = {**ENVIRONMENT, "KERAS_BACKEND": backend}
    options = (f"--backends={backend}", *QUICK, "tests/with_keras")
    run_shared(session, "pytest", *BY_FILE, *options, *session.posargs, env=environment)


@nox.session(**SHARED)
def readme(session: nox.Session) -> None:
    """The Python of the README and of pages in docs runs, on every backend; the commands there print what they say."""
    backends = f"--backends={','.join(BACKENDS)}"
    run_shared(session, "pytest", *PARALLEL, backends, *PAGES, *session.posargs, env=ENVIRONMENT)


@nox.session(**REST)
def lint(session: nox.Session) -> None:
    """Style, docstrings, which way imports run, and the files for GitHub. Nothing of the package is imported for it."""
    session.install(*CONSTRAINTS, *nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache", "--no-logo")
    # Without the conftest of the tests, which imports the package.
    session.run("pytest", "--noconftest", "tests/github")
    for schema, pattern in SCHEMAS.items():
        session.run("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, pathlib.Path().glob(pattern)))


@nox.session(**REST, **SHARED)
def typecheck(session: nox.Session) -> None:
    """Types: mypy --strict on the package, with every framework installed."""
    run_shared(session, "mypy", *session.posargs)


@nox.session(**REST, **SHARED)
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def thorough(session: nox.Session, backend: str) -> None:
    """Further cases that take long (the marker `thorough`), and Keras's own tests with our decorator."""
    options = (*GROUPED, f"--backends={backend}", "-m", "thorough and not side_by_side")
    # Keras's tests begin first: they take longest. pytest would leave out a folder that another holds.
    paths = ("--keep-duplicates", "tests/keras_own", "tests")
    run_shared(session, "pytest", *options, *ELSEWHERE, *(session.posargs or paths), env=ENVIRONMENT)


@nox.session(**REST)
@nox.parametrize("python, backend, column", CASES, ids=[f"{backend}, {column}" for _, backend, column in CASES])
def versions(session: nox.Session, backend: str, column: str) -> None:
    """The tests that touch a framework, with the versions of a column of docs/compatibility.md."""
    extras = [*framework(backend), *(["keras"] if backend == "tensorflow" else []), "testing"]
    install(session, *extras, groups=("test",), pins=("-c", COLUMNS[column][1]))
    backends = [backend, "numpy"] if backend == "jax" else [backend]
    touching = [file for each in backends for file in TOUCHING[each]]
    more = [*touching, CONFORMANCE, "--dozen"] if (backend, column) in OTHERS else []
    options = (*(GROUPED if more else PARALLEL), *QUICK, f"--backends={','.join(backends)}")
    session.run("pytest", *options, *EVERYWHERE, *more, *session.posargs, env=ENVIRONMENT)
    if (backend, column) == ("tensorflow", "oldest"):  # the newest Keras is that of constraints.txt
        environment = {**ENVIRONMENT, "KERAS_BACKEND": backend}
        options = (*BY_FILE, *QUICK, f"--backends={backend}")
        session.run("pytest", *options, *WITH_KERAS, *session.posargs, env=environment)


@nox.session(**REST, **SHARED)
def conformance(session: nox.Session) -> None:
    """Every rule of the zoo under every transform; writes docs/reports/conformance.md, and fails if that changed."""
    reports = []
    for backend in BACKENDS:
        reports.append(f"{session.create_tmp()}/{backend}.json")
        options = [f"--backends={backend}", f"--conformance-report={reports[-1]}"]
        command = ("pytest", *GROUPED, CONFORMANCE, *options, *session.posargs)
        run_shared(session, *command, env=ENVIRONMENT)
    if not session.posargs:
        run_shared(session, "python", "-m", "conformance.report", *reports, env={"PYTHONPATH": "tests"})


@nox.session(**SHARED, **BY_HAND)
def parity(session: nox.Session) -> None:
    """Keras's decorator beside ours; writes docs/reports/keras_parity.md, and fails if that changed."""
    run_shared(session, "pytest", "tests/parity", "--write", *session.posargs, env=ENVIRONMENT)


@nox.session(**REST, **SHARED)
def export(session: nox.Session) -> None:
    """Programs that leave Python, loaded where keras_cg is not: Keras's exports, torch's, those of docs/deploy.md."""
    for backend in FRAMEWORKS:
        environment = {**ENVIRONMENT, "KERAS_BACKEND": backend}
        options = (*BY_FILE, f"--backends={backend}", "tests/export")
        run_shared(session, "pytest", *options, *session.posargs, env=environment)


@nox.session(**REST, **SHARED)
def notebooks(session: nox.Session) -> None:
    """Runs the tutorials as notebooks; writes them to docs/notebooks, and fails if one has changed."""
    run_shared(session, "python", "docs/notebooks.py", env=ENVIRONMENT)


@nox.session(**REST)
def docs(session: nox.Session) -> None:
    """The documentation site, in .nox/docs/tmp/site; fails if a link or an anchor leads nowhere."""
    install(session, groups=("docs",))
    # mkdocs-material tells of its successor at each build.
    site, quiet = f"{session.create_tmp()}/site", {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", *(session.posargs or ("build", "--strict", "--site-dir", site)), env=quiet)


@nox.session(**REST)
def mlx(session: nox.Session) -> None:
    """The backend of contrib/keras-cg-mlx: its tests, the conformance suite, `keras-cg check`."""
    folder = "contrib/keras-cg-mlx"
    pins = (*CONSTRAINTS, "-c", f"{folder}/constraints.txt")
    install(session, "cli", groups=("test",), pins=pins)
    session.install("--no-compile", *pins, folder)
    session.run("pytest", f"{folder}/tests", *session.posargs, env=ENVIRONMENT)
    session.run("pytest", *GROUPED, CONFORMANCE, "--backends=mlx", *session.posargs, env=ENVIRONMENT)
    session.run("keras-cg", "check", "examples/log1pexp.py", "--backends", "mlx")


@nox.session(**REST)
def build(session: nox.Session) -> None:
    """The wheel and the sdist: built, checked as an index shows them, installed in a clean environment, imported."""
    session.install(*CONSTRAINTS, *nox.project.dependency_groups(PYPROJECT, "build"))
    output = pathlib.Path(session.create_tmp()).resolve()
    for old in output.glob("keras_cg-*"):
        old.unlink()
    session.run("python", "-m", "build", "--outdir", str(output), silent=True)
    distributions = sorted(map(str, output.glob("keras_cg-*")))
    session.run("twine", "check", "--strict", *distributions)
    # Without the conftest of the tests, which imports the package.
    session.run("pytest", "--noconftest", "tests/package", env={"DISTRIBUTIONS": os.pathsep.join(distributions)})
    code = (
        "import importlib.resources, keras_cg; "
        "assert importlib.resources.files('keras_cg').joinpath('py.typed').is_file(); "
        "print(keras_cg.__version__, keras_cg.grad(keras_cg.custom_gradient(lambda x: (x, lambda g: 7 * g)))(1.0))"
    )
    for distribution in distributions:
        session.install(*CONSTRAINTS, "--force-reinstall", distribution)
        with session.chdir(output):
            session.run("python", "-c", code)


@nox.session(default=False)
def coverage(session: nox.Session) -> None:
    """Which share of the package's lines the tests of the backends run: a number in the log, and no judgement.

    A test that counts frames may fail under the tracer; whether tests pass, the sessions `tests` say.
    """
    install(session, *FRAMEWORKS, "cli", "examples", groups=("test", "coverage", "solvers"))
    environment = {**ENVIRONMENT, "COVERAGE_FILE": f"{session.create_tmp()}/coverage"}
    session.run("coverage", "erase", env=environment)
    for backend in BACKENDS:
        options = ("--cov", "--cov-append", "--cov-report=", f"--backends={backend}", *QUICK)
        command = ("pytest", *PARALLEL, *options, *ELSEWHERE, *session.posargs)
        session.run(*command, env=environment, success_codes=[0, 1])
    session.run("coverage", "report", "--sort=cover", env=environment)


@nox.session(default=False)
def demo(session: nox.Session) -> None:
    """The main job: quantisation-aware training on handwritten digits, on the default backend."""
    install(session, "examples")
    session.run("python", "examples/digits.py", "--output", f"{session.create_tmp()}/digits.png", *session.posargs)


@nox.session(**SHARED, **WEEKLY)
def scale(session: nox.Session) -> None:
    """The examples of several devices, and what a rule does there: eight of JAX, two processes of torch, TensorFlow."""
    # One after the other: each test starts processes of its own.
    for backend in FRAMEWORKS:
        run_shared(session, "pytest", f"--backends={backend}", "tests/scale", *session.posargs, env=ENVIRONMENT)


@nox.session(**BY_HAND, venv_backend="none")
def gpu(session: nox.Session) -> None:
    """The tests that touch an accelerator (CUDA, ROCm, Metal, TPU), with the frameworks where nox is installed.

    Which build sees an accelerator the machine knows, and no pin. `nox -s gpu -- --device=cpu` tries the tests without.
    """
    for backend in FRAMEWORKS:
        if importlib.util.find_spec(backend):
            session.run("python", "-m", "pytest", "-rs", f"--backends={backend}", "tests/gpu", *session.posargs)


MUTANTS = """\
[cosmic-ray]
module-path = {paths}
timeout = 120.0
excluded-modules = []
test-command = "{python} -m pytest -xq -p no:cacheprovider --backends={backend} {tests}"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = [
    "core/(Replace(Binary|Unary)Operator|NumberReplacer|ExceptionReplacer|RemoveDecorator)(?!_Delete_Not).*",
    "core/ReplaceComparisonOperator_(?!Is_IsNot|IsNot_Is|Eq_NotEq|NotEq_Eq).*",
]
"""


@nox.session(**WEEKLY)
def mutants(session: nox.Session) -> None:
    """Changes one condition, loop or constant after the other, and lists what no test finds; takes hours.

    In keras_cg/engine, for the tests on NumPy. `nox -s mutants -- torch backends/torch/attach.py -- tests/orders` names
    a backend, files or folders, and tests.
    """
    paths, _, tests = " ".join(session.posargs).partition("-- ")
    backend, *chosen = paths.split() or ["numpy"]
    install(session, *framework(backend), "cli", "examples", groups=("test", "mutants", *solvers(backend)))
    files = [f"keras_cg/{path}" for path in chosen or ["engine"]]
    found = tests or " ".join(["tests/engine", "tests/orders", *map(str, pathlib.Path("tests").glob("test_*.py"))])
    # Mutants are written into the files, so they are those of a copy.
    folder = pathlib.Path(session.create_tmp()).resolve()
    copy, file, results = folder / "copy", folder / "mutants.toml", folder / "mutants.sqlite"
    for old in (copy, results):
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    shutil.copytree(".", copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    python = pathlib.Path(session.bin, "python")
    file.write_text(MUTANTS.format(paths=json.dumps(files), python=python, backend=backend, tests=found))
    with session.chdir(copy):
        session.run("cosmic-ray", "baseline", str(file), env=ENVIRONMENT)
        session.run("cosmic-ray", "init", str(file), str(results))
        session.run("cr-filter-operators", str(results), str(file))
        session.run("cosmic-ray", "exec", str(file), str(results), env=ENVIRONMENT)
        session.run("cr-report", "--surviving-only", "--show-diff", str(results))


@nox.session(**SHARED, **BY_HAND)
def power(session: nox.Session) -> None:
    """Writes docs/reports/checker.md: which planted faults the checker and other tools find; takes hours for all.

    `--minutes 3` measures a sample, so long for each backend and part; `--work FOLDER` goes on where it was stopped.
    """
    run_shared(session, "python", "-m", "benchmarks.checker.report", *session.posargs, env=ENVIRONMENT)


@nox.session(**SHARED, **BY_HAND)
def bench(session: nox.Session) -> None:
    """Writes docs/reports/performance.md: the cost of the decorator; needs the machine for itself."""
    run_shared(session, "python", "-m", "benchmarks", *session.posargs)


@nox.session(**WEEKLY, python=["3.11", "3.13"])
def canary(session: nox.Session) -> None:
    """The newest of everything that pip finds, without pins but torch's: GitHub runs it each week."""
    backends = [backend for backend in BACKENDS if backend != "torch" or session.python == "3.11"]
    extras = [small(backend) for backend in backends if backend in FRAMEWORKS]
    # torch is the exception that stands with TORCH, and is left out where pip has no build for the CPU.
    torch = [TORCH] if "torch" in backends else []
    package = f".[{','.join([*extras, 'keras', 'cli', 'examples'])}]"
    groups = nox.project.dependency_groups(PYPROJECT, "test", *solvers("jax"))
    session.install("--no-compile", "--upgrade", "--upgrade-strategy=eager", package, *torch, *groups)
    for backend in backends:
        options = (f"--backends={backend}", *ALONE, *ELSEWHERE)
        session.run("pytest", *PARALLEL, *options, *session.posargs, env=ENVIRONMENT)
        session.run("pytest", *GROUPED, CONFORMANCE, f"--backends={backend}", env=ENVIRONMENT)
        environment = {**ENVIRONMENT, "KERAS_BACKEND": backend}
        paths = ("tests/with_keras", "tests/keras_own")
        session.run("pytest", *BY_FILE, f"--backends={backend}", *paths, env=environment)


@nox.session(**BY_HAND)
def torch_by_hand(session: nox.Session) -> None:
    """The tests of torch on a release with CUDA, which takes gigabytes: `nox -s torch_by_hand -- 2.15.0`."""
    version, *options = session.posargs
    groups = nox.project.dependency_groups(PYPROJECT, "test")
    session.install("--no-compile", f"torch=={version}", ".[torch,cli,examples]", *groups)
    session.run("pytest", *PARALLEL, "--backends=torch", *ALONE, *ELSEWHERE, *options, env=ENVIRONMENT)
    session.run("pytest", *GROUPED, "--backends=torch", CONFORMANCE, *options, env=ENVIRONMENT)


@nox.session(**BY_HAND)
@nox.parametrize(
    "python, file",
    [("3.11", "constraints.txt"), *sorted({(python, file) for python, file in COLUMNS.values() if python != "3.12"})],
    ids=["constraints", "oldest", "newest"],
)
def pins(session: nox.Session, file: str) -> None:
    """Writes the constraints files: what pip finds on Python 3.11, on 3.13, and at the bounds of pyproject.toml.

    The one other place that names versions is NEWEST in keras_cg/command/versions.py; a test compares them.
    """
    report = pathlib.Path(session.create_tmp()).resolve() / "report.json"
    options = ("--quiet", "--dry-run", "--ignore-installed", "--report", str(report))
    session.run("python", "-m", "pip", "install", *options, *requirements(file))
    found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    # The CPU's build of torch is called 2.13.0+cpu, which is nowhere but where that build is.
    lines = sorted({f"{each['name']}=={each['version'].partition('+')[0]}" for each in found}, key=str.lower)
    about = {
        "constraints.txt": "The newest versions on Python 3.11, which everything is tested with.",
        "constraints-newest.txt": "The newest versions on Python 3.13, where torch has no build for the CPU.",
        "constraints-oldest.txt": "The oldest versions that pyproject.toml allows, on Python 3.11.",
    }
    header = f"# {about[file]} Made by `nox -s pins`; torch is the CPU build of its version.\n"
    pathlib.Path(file).write_text(header + "".join(f"{line}\n" for line in lines))


def requirements(file: str) -> list[str]:
    """What is to be installed together with the versions of a constraints file."""
    project = PYPROJECT["project"]
    frameworks = [*project["dependencies"]]
    for extra, needed in project["optional-dependencies"].items():
        is_left_out = extra == "tensorflow" or (extra == "torch" and file == "constraints-newest.txt")
        frameworks += [] if is_left_out else needed
    if file == "constraints-oldest.txt":
        frameworks = [re.sub(r">=(.*)", r"==\1.*", each) for each in frameworks if not each.startswith("torch>")]
    groups = ("test",) if file != "constraints.txt" else PYPROJECT["dependency-groups"]
    others = [] if file == "constraints-newest.txt" else [TORCH]
    others += ["hatchling"] if file == "constraints.txt" else []
    return [*frameworks, *others, *nox.project.dependency_groups(PYPROJECT, *groups)]
