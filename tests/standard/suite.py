"""Runs the standard's own test suite on `keras_cg.ops` beside the namespace under it: `python -m standard.suite PATH`.

PATH is a checkout of data-apis/array-api-tests with its submodule. Names of backends after it choose some. Ours may not
fail a test that the framework's namespace passes. TensorFlow's own namespace is so far from the standard that the suite
does not start on it. There, ours may fail only what `tensorflow_failures.txt` lists.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

from keras_cg.namespaces import standard

NATIVE = {"jax": "jax.numpy", "numpy": "numpy", "tensorflow": None, "torch": "array_api_compat.torch"}
KNOWN = pathlib.Path(__file__).with_name("tensorflow_failures.txt")
# Hypothesis draws constants of the modules that are loaded: both runs load the same, and draw the same examples.
PROGRAM = "from keras_cg import namespaces; import {native} as native; ours = namespaces.active; xp = {choice}"
EXAMPLES, MORE = 8, 100
OPTIONS = ("--derandomize", "--disable-deadline", "--tb=line", "-p", "no:cacheprovider")


def failures(suite, backend, choice, tests=("array_api_tests",), examples=EXAMPLES):
    """Returns what one run of the suite failed, as names that pytest takes, and how many tests it passed."""
    program = PROGRAM.format(native=NATIVE[backend] or "math", choice=choice)
    environment = {
        **os.environ,
        "ARRAY_API_TESTS_MODULE": f"exec('{program}')",
        "ARRAY_API_TESTS_VERSION": standard.VERSION,
        "JAX_ENABLE_X64": "1",
        "KERAS_CG_BACKEND": backend,
        "PYTHONHASHSEED": "0",  # Hypothesis draws from sets, too
    }
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", *OPTIONS, f"--max-examples={examples}", f"--junitxml={report}"]
        run = subprocess.run([*command, *tests], cwd=suite, env=environment, capture_output=True, text=True)
        if not report.exists():
            sys.exit(run.stdout + run.stderr)
        cases = {
            f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}": case
            for case in ElementTree.parse(report).iter("testcase")
        }
    failed = {
        name for name, case in cases.items() if case.find("failure") is not None or case.find("error") is not None
    }
    return failed, sum(not len(case) for case in cases.values())


def say(line):
    print(line, flush=True)  # noqa: T201 - a program


def compare(suite, backend):
    """Prints what the suite says of a backend. Returns what ours fails and the namespace under it passes.

    Hypothesis does not draw the same numbers in both runs. What comes out different is tried again with more of them.
    """
    ours, passed = failures(suite, backend, "ours")
    say(f"{backend}: ops passes {passed} and fails {len(ours)}")
    if NATIVE[backend] is None:
        worse = ours - {f"array_api_tests/{line}" for line in KNOWN.read_text("utf-8").splitlines()}
        say("\n".join(f"    ops fails {name}, which is not listed" for name in sorted(worse)))
        return worse
    native, others = failures(suite, backend, "native")
    say(f"    {NATIVE[backend]} passes {others} and fails {len(native)}")
    if again := sorted(ours - native):
        ours = ours - {*again} | failures(suite, backend, "ours", again, MORE)[0]
        native |= failures(suite, backend, "native", again, MORE)[0]
    for name in sorted(ours - native):
        say(f"    ops fails {name}, {NATIVE[backend]} does not")
    return ours - native


if __name__ == "__main__":
    suite, *backends = sys.argv[1:]
    worse = [name for backend in backends or NATIVE for name in compare(pathlib.Path(suite), backend)]
    sys.exit(f"ops fails {len(worse)} tests that the framework's own namespace passes" if worse else None)
