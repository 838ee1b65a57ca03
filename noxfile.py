"""The manual of the project: `nox -l` lists what can be done, `nox` does all of it, `nox -s NAME` one thing.

Every session has an environment of its own with the versions of constraints.txt. What follows `--` goes to the tool:
`nox -s "tests(torch)" -- -k conventions`.
"""

from __future__ import annotations

import pathlib

import nox

nox.options.default_venv_backend = "venv"  # pip, not uv: it may be told of local wheels
nox.options.error_on_missing_interpreters = True
nox.options.reuse_existing_virtualenvs = True
nox.options.stop_on_first_error = False

CONSTRAINTS = ("-c", "constraints.txt")
PYPROJECT = nox.project.load_toml("pyproject.toml")
BACKENDS = sorted(path.stem for path in pathlib.Path("keras_cg/backends").glob("[a-z]*.py"))
FRAMEWORKS = [backend for backend in BACKENDS if backend in PYPROJECT["project"]["optional-dependencies"]]
# Quiet about its choice of CPU instructions; TensorFlow logs it at every start.
# One thread for torch: two test processes run side by side, and its own threads would only wait for each other.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "1"}
# The tests of documentation, which have a session of their own.
PAGES = ("test_readme.py", "test_docs.py")
PARALLEL = ("--numprocesses=2", "--dist=loadfile")


def install(session: nox.Session, *extras: str, groups: tuple[str, ...] = ()) -> None:
    """Installs the package with some extras, and dependency groups."""
    package = f".[{','.join(extras)}]" if extras else "."
    # Without bytecode: of the frameworks only a part is imported, and that part is compiled then.
    session.install("--no-compile", *CONSTRAINTS, package, *nox.project.dependency_groups(PYPROJECT, *groups))


@nox.session
def lint(session: nox.Session) -> None:
    """Style, imports and docstrings: ruff."""
    session.install(*CONSTRAINTS, *nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Types: mypy --strict on the package, with every framework installed."""
    install(session, *FRAMEWORKS, "cli", groups=("typecheck",))
    session.run("mypy", *session.posargs)


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def tests(session: nox.Session, backend: str) -> None:
    """The tests of one backend, in an environment with that framework alone."""
    install(session, *([backend] if backend in FRAMEWORKS else []), "cli", "examples", groups=("test",))
    marks = "not keras and not side_by_side" + ("" if backend == "numpy" else " and not once")
    elsewhere = [f"--ignore=tests/{name}" for name in ("conformance", *PAGES)]
    session.run(
        "pytest", *PARALLEL, f"--backends={backend}", "-m", marks, *elsewhere, *session.posargs, env=ENVIRONMENT
    )


@nox.session
def together(session: nox.Session) -> None:
    """All frameworks and Keras in one process, the backend switched at run time; parity with Keras."""
    install(session, *FRAMEWORKS, "keras", "cli", "examples", groups=("test",))
    backends = f"--backends={','.join(BACKENDS)}"
    # What needs one framework alone, and what takes long to compile, runs in the sessions of the backends.
    files = ("test_autodiff.py", "test_examples.py", "test_checker.py", "test_checker_zoo.py", *PAGES)
    alone = [f"--ignore=tests/{name}" for name in ("conformance", *files, *(f"test_{b}.py" for b in BACKENDS))]
    short = ("-m", "not once", "-k", "not inductor and not (test_random_cases and not one_process)")
    session.run("pytest", *PARALLEL, backends, *alone, *short, *session.posargs, env=ENVIRONMENT)


@nox.session
def conformance(session: nox.Session) -> None:
    """Every rule of the zoo under every transform; writes docs/conformance.md, and fails if that changed."""
    install(session, *FRAMEWORKS, groups=("test",))
    reports = []
    for backend in BACKENDS:
        reports.append(f"{session.create_tmp()}/{backend}.json")
        options = [f"--backends={backend}", f"--conformance-report={reports[-1]}"]
        session.run("pytest", "--numprocesses=2", "tests/conformance", *options, *session.posargs, env=ENVIRONMENT)
    if not session.posargs:
        session.run("python", "-m", "conformance.report", *reports, env={"PYTHONPATH": "tests"})


@nox.session(default=False)
def parity(session: nox.Session) -> None:
    """Writes docs/keras_parity.md: what comes of a program with Keras's decorator, and with ours."""
    install(session, *FRAMEWORKS, "keras")
    session.run("python", "-m", "parity.report", env={**ENVIRONMENT, "PYTHONPATH": "tests"})


@nox.session
def readme(session: nox.Session) -> None:
    """The Python of README.md and docs/checking.md runs, on every backend; the commands there print what they say."""
    install(session, *FRAMEWORKS, "cli", groups=("test",))
    pages = [f"tests/{name}" for name in PAGES]
    session.run("pytest", *PARALLEL, f"--backends={','.join(BACKENDS)}", *pages, *session.posargs, env=ENVIRONMENT)


@nox.session
def build(session: nox.Session) -> None:
    """The wheel and the sdist: built, installed in a clean environment, imported from elsewhere."""
    session.install(*CONSTRAINTS, *nox.project.dependency_groups(PYPROJECT, "build"))
    output = pathlib.Path(session.create_tmp()).resolve()
    for old in output.glob("keras_cg-*"):
        old.unlink()
    session.run("python", "-m", "build", "--outdir", str(output), silent=True)
    code = (
        "import importlib.resources, keras_cg; "
        "assert importlib.resources.files('keras_cg').joinpath('py.typed').is_file(); "
        "print(keras_cg.__version__, keras_cg.grad(keras_cg.custom_gradient(lambda x: (x, lambda g: 7 * g)))(1.0))"
    )
    for distribution in sorted(output.glob("keras_cg-*")):
        session.install(*CONSTRAINTS, "--force-reinstall", str(distribution))
        with session.chdir(output):
            session.run("python", "-c", code)


@nox.session
def demo(session: nox.Session) -> None:
    """The main job: quantisation-aware training on handwritten digits, on the default backend."""
    install(session, "examples")
    session.run("python", "examples/digits.py", "--output", f"{session.create_tmp()}/digits.png", *session.posargs)
