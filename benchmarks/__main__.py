"""Measures every backend and writes docs/reports/performance.json, its page and its plot: `python -m benchmarks`.

What `nox -s bench` runs. With `--backends` or `--only` it measures those, and writes nothing but the tables to the
screen.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import measure, report
from benchmarks.measure import OURS, PLAIN

BACKENDS = sorted(path.stem for path in Path(__file__).parent.joinpath("workloads").glob("[a-z]*.py"))
CONTESTANTS = (measure.OURS, measure.BY_HAND, measure.KERAS, measure.NATIVE, measure.PLAIN)
# One thread, or as near to it as a framework lets us.
THREADS = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
# The allocator of glibc keeps what is freed. Otherwise the order of the contestants decides which of them waits for the
# pages of a large array.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONWARNINGS": "ignore"}
PACKAGES = ("keras-cg", "numpy", "autograd", "jax", "torch", "tensorflow-cpu", "keras")


def environment(backend: str) -> dict[str, str]:
    """What a process of a backend sees; Keras has the same."""
    return os.environ | THREADS | QUIET | {"KERAS_BACKEND": backend, "KERAS_CG_BACKEND": backend}


def measured(backend: str, rounds: int, only: str | None) -> dict[str, Any]:
    """The figures of a backend, from a process of its own; with `only` the lines that have it, and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [sys.executable, "-m", "benchmarks.worker", backend, str(rounds), str(file)]
        command += [only] if only else []
        subprocess.run(command, env=environment(backend) | ALLOCATOR, check=True)
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if not only:
        found["memory"] = {contestant: held(backend, contestant) for contestant in CONTESTANTS}
    return found


def held(backend: str, contestant: str, *chain: int) -> dict[str, Any]:
    """What a contestant holds between forward and backward, in a process of its own; of a chain, its calls and size."""
    command = [sys.executable, "-m", "benchmarks.memory", backend, contestant, *map(str, chain)]
    done = subprocess.run(command, env=environment(backend), check=True, stdout=subprocess.PIPE, text=True)
    line = next(each for each in done.stdout.splitlines() if each.startswith("HELD "))
    return json.loads(line.removeprefix("HELD "))


def output_of(code: str, backend: str) -> list[str]:
    """The words that a new process prints which runs some code."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment(backend), check=True, capture_output=True, text=True).stdout.split()


def imports(rounds: int) -> dict[str, Any]:
    """The seconds that an import takes in a new process, the three taking turns."""
    modules = ("numpy", "keras_cg", "keras")
    times: dict[str, list[float]] = {module: [] for module in modules}
    code = "import time; started = time.perf_counter(); import {}; print(time.perf_counter() - started)"
    for _ in range(rounds + 1):
        for module in modules:
            # On NumPy Keras loads no other framework than those that it always does.
            times[module] += map(float, output_of(code.format(module), "numpy"))
    # The first of each reads from the disk.
    contestants = measure.summary({name: each[1:] for name, each in times.items()})
    return {"rounds": rounds, "contestants": contestants, "packages": packages()}


# What a program has imported before its first gradient, and that gradient of a function `f`.
FIRST = {
    "jax": ("import jax", "jax.grad(lambda x: f(x).sum())(jax.numpy.ones(8))"),
    "numpy": ("import autograd, numpy", "autograd.grad(lambda x: f(x).sum())(numpy.ones(8))"),
    "tensorflow": (
        "import tensorflow as tf; x = tf.ones(8)",
        "with tf.GradientTape() as tape: tape.watch(x); y = f(x)\ntape.gradient(y, x)",
    ),
    "torch": ("import torch", "f(torch.ones(8, requires_grad=True)).sum().backward()"),
}
DECORATED = "f = keras_cg.custom_gradient(lambda x: (x * 2.0, lambda upstream: upstream * 2.0))"
CONTESTANTS_OF_FIRST = {OURS: DECORATED, PLAIN: "f = lambda x: x * 2.0"}


def first_calls(backend: str, rounds: int) -> dict[str, Any]:
    """The seconds of the first gradient in a new process, and how many modules it imports."""
    before, call = FIRST[backend]
    found: dict[str, Any] = {name: ([], []) for name in CONTESTANTS_OF_FIRST}
    for _ in range(rounds):
        for name, function in CONTESTANTS_OF_FIRST.items():
            code = f"import sys, time; {before}; import keras_cg; {function}; known = len(sys.modules)\n"
            code += f"started = time.perf_counter()\n{call}\n"
            code += "print(time.perf_counter() - started, len(sys.modules) - known)"
            for values, value in zip(found[name], output_of(code, backend), strict=True):
                values.append(float(value))
    times = measure.summary({name: seconds for name, (seconds, _) in found.items()})
    return {name: {**times[name], "modules": found[name][1][0]} for name in found}


def packages() -> list[tuple[str, int, float]]:
    """What `import keras_cg` imports: `(package, modules, seconds)`, by the interpreter's own account."""
    rounds = [own_times("import keras_cg") for _ in range(report.FEW)]
    # What the interpreter imports anyway.
    before = own_times("pass")
    found: dict[str, list[float]] = {}
    for module in sorted(rounds[0].keys() - before.keys()):
        package = module.partition(".")[0]
        # `pickle` looks for `org.python`, which Jython has: the attempt is counted, too.
        package = "standard library" if package in (*sys.stdlib_module_names, "org") else package
        found.setdefault(package, []).append(statistics.median(each[module] for each in rounds))
    ordered = sorted(found.items(), key=lambda item: -sum(item[1]))
    return [(package, len(times), sum(times)) for package, times in ordered]


def own_times(code: str) -> dict[str, float]:
    """The seconds that each module takes itself, without those that it imports."""
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, env=environment("numpy"), check=True, capture_output=True, text=True)
    lines = re.findall(r"^import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)$", done.stderr, re.MULTILINE)
    return {module: int(microseconds) * 1e-6 for microseconds, module in lines}


def machine() -> dict[str, Any]:
    """What the figures depend on, without the name of the machine."""
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        names = [line for line in information.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        cpu = names[0].partition(": ")[2] if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def rounded(value: Any) -> Any:
    """With five digits for every number, which is more than the noise leaves."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def version(package: str) -> str:
    """The version of a distribution, without the name of a build."""
    return metadata.version(package).partition("+")[0]


def main() -> int:
    """Measures, shows and writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="how often each contestant takes its turn (default: 30)")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, help="measure these alone, and write no page")
    parser.add_argument(
        "--only",
        metavar="TEXT",
        help="measure the lines alone that have this in `workload: measure`, and write no page",
    )
    parser.add_argument("--report", action="store_true", help="measure nothing: make the page from the JSON again")
    options = parser.parse_args()
    console = Console()
    if options.report:
        report.write(json.loads(report.FIGURES.read_text(encoding="utf-8")))
        return 0
    whole = options.backends is None and not options.only
    started = time.perf_counter()
    results: dict[str, Any] = {
        "machine": machine(),
        "versions": {package: version(package) for package in PACKAGES},
        "date": datetime.date.today().isoformat(),
        "rounds": options.rounds,
        "imports": imports(options.rounds) if whole else None,
        "first": {backend: first_calls(backend, report.FEW) for backend in BACKENDS} if whole else None,
        "backends": {
            backend: measured(backend, options.rounds, options.only) for backend in options.backends or BACKENDS
        },
    }
    if not any(found["lines"] for found in results["backends"].values()):
        parser.error(f"no line of figures has {options.only!r} in its `workload: measure`")
    results["seconds"] = round(time.perf_counter() - started)
    results = rounded(results)
    report.show(results, console)
    if whole:
        report.write(report.shown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
