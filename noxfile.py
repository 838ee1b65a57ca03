"""The manual of the project: `nox -l` lists what can be done, `nox` does all of it, `nox -s NAME` one thing.

Every session has an environment of its own with the versions of constraints.txt, but for those that need every
framework: they share that of the session `frameworks`, which runs before them. What follows `--` goes to the tool:
`nox -s "tests(torch)" -- -k conventions`.
"""

from __future__ import annotations

import pathlib
import sysconfig

import nox

nox.options.default_venv_backend = "venv"  # pip, not uv: it may be told of local wheels
nox.options.error_on_missing_interpreters = True
nox.options.reuse_existing_virtualenvs = True
nox.options.stop_on_first_error = False

CONSTRAINTS = ("-c", "constraints.txt")
PYPROJECT = nox.project.load_toml("pyproject.toml")
BACKENDS = sorted(path.stem for path in pathlib.Path("keras_cg/backends").glob("[a-z]*"))
FRAMEWORKS = [backend for backend in BACKENDS if backend in PYPROJECT["project"]["optional-dependencies"]]
# Quiet about its choice of CPU instructions; TensorFlow logs it at every start.
# One thread for torch: two test processes run side by side, and its own threads would only wait for each other.
ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "1"}
# The tests of documentation, which have a session of their own, as the conformance suite has.
PAGES = ("tests/test_readme.py", "tests/test_docs.py")
ELSEWHERE = [f"--ignore={path}" for path in ("tests/conformance", *PAGES)]
# Test by test, or file by file where a file keeps what its tests share.
PARALLEL = ("--numprocesses=2", "--dist=worksteal")
BY_FILE = ("--numprocesses=2", "--dist=loadfile")


def install(session: nox.Session, *extras: str, groups: tuple[str, ...] = ()) -> None:
    """Installs the package with some extras, and dependency groups."""
    package = f".[{','.join(extras)}]" if extras else "."
    # Without bytecode: of the frameworks only a part is imported, and that part is compiled then.
    session.install("--no-compile", *CONSTRAINTS, package, *nox.project.dependency_groups(PYPROJECT, *groups))


def framework(backend: str) -> list[str]:
    """The extra with the framework of a backend; NumPy's needs none."""
    return [backend] if backend in FRAMEWORKS else []


def run_shared(session: nox.Session, program: str, *arguments: str, env: dict[str, str] | None = None) -> None:
    """Runs a program of the environment that the session `frameworks` made."""
    environment = session.cache_dir.parent / "frameworks"
    scripts = sysconfig.get_path("scripts", "venv", {"base": str(environment)})
    session.run(str(pathlib.Path(scripts, program)), *arguments, env=env, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, docstrings and which way imports run: ruff, import-linter. Nothing of the package is imported for it."""
    session.install(*CONSTRAINTS, *nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache", "--no-logo")


@nox.session
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def tests(session: nox.Session, backend: str) -> None:
    """The tests of one backend, in an environment with that framework alone."""
    install(session, *framework(backend), "cli", "examples", groups=("test",))
    marks = "not side_by_side" + ("" if backend == "numpy" else " and not once")
    options = (f"--backends={backend}", "-m", marks, *ELSEWHERE)
    session.run("pytest", *PARALLEL, *options, *session.posargs, env=ENVIRONMENT)


@nox.session
def frameworks(session: nox.Session) -> None:
    """The environment with every framework and Keras, for the sessions that follow."""
    install(session, *FRAMEWORKS, "keras", "cli", "examples", groups=("test", "typecheck"))


@nox.session(venv_backend="none", requires=["frameworks"])
@nox.parametrize("backend", BACKENDS, ids=BACKENDS)
def keras(session: nox.Session, backend: str) -> None:
    """The tests with Keras on one backend, and Keras's own with our decorator in its place."""
    environment = {**ENVIRONMENT, "KERAS_BACKEND": backend}
    options = (f"--backends={backend}", "tests/with_keras")
    run_shared(session, "pytest", *BY_FILE, *options, *session.posargs, env=environment)


@nox.session(venv_backend="none", requires=["frameworks"])
def typecheck(session: nox.Session) -> None:
    """Types: mypy --strict on the package, with every framework installed."""
    run_shared(session, "mypy", *session.posargs)


@nox.session(venv_backend="none", requires=["frameworks"])
def together(session: nox.Session) -> None:
    """What there is to being together: all frameworks in one process, the backend switched at run time; parity.

    A backend by itself is the matter of `tests`. Here runs what needs several at once (the marker `side_by_side`), and
    what other loaded frameworks could disturb (`together`): the choice of the backend, its namespace, types that
    frameworks register, what functions capture, the same function on one backend after the other.
    """
    # torch.compile takes long; that it traces beside other frameworks is shown by a test in test_together.py.
    which = ("-m", "(side_by_side or together) and not once", "-k", "not aot_eager")
    options = (f"--backends={','.join(BACKENDS)}", *which, *ELSEWHERE)
    run_shared(session, "pytest", *BY_FILE, *options, *session.posargs, env=ENVIRONMENT)


@nox.session(venv_backend="none", requires=["frameworks"])
def conformance(session: nox.Session) -> None:
    """Every rule of the zoo under every transform; writes docs/conformance.md, and fails if that changed."""
    reports = []
    for backend in BACKENDS:
        reports.append(f"{session.create_tmp()}/{backend}.json")
        options = [f"--backends={backend}", f"--conformance-report={reports[-1]}"]
        command = ("pytest", "--numprocesses=2", "tests/conformance", *options, *session.posargs)
        run_shared(session, *command, env=ENVIRONMENT)
    if not session.posargs:
        run_shared(session, "python", "-m", "conformance.report", *reports, env={"PYTHONPATH": "tests"})


@nox.session(venv_backend="none", requires=["frameworks"], default=False)
def parity(session: nox.Session) -> None:
    """Writes docs/keras_parity.md: what comes of a program with Keras's decorator, and with ours."""
    run_shared(session, "python", "-m", "parity.report", env={**ENVIRONMENT, "PYTHONPATH": "tests"})


@nox.session(venv_backend="none", requires=["frameworks"], default=False)
def bench(session: nox.Session) -> None:
    """Writes docs/performance.md: what the decorator costs beside everything else; takes the machine for itself."""
    run_shared(session, "python", "-m", "benchmarks", *session.posargs)


@nox.session(venv_backend="none", requires=["frameworks"])
def readme(session: nox.Session) -> None:
    """The Python of the README and of pages in docs runs, on every backend; the commands there print what they say."""
    backends = f"--backends={','.join(BACKENDS)}"
    run_shared(session, "pytest", *PARALLEL, backends, *PAGES, *session.posargs, env=ENVIRONMENT)


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
