"""What one contestant of one backend holds: `python -m benchmarks.memory torch keras_cg` prints it as JSON.

With two numbers more, `python -m benchmarks.memory torch keras_cg 100 1000000`, the chain has 100 calls on arrays of a
million numbers; `python -m benchmarks.depth` does so for all, as docs/memory.md shows.

A new process each: an allocator that keeps what was freed, as TensorFlow's does, would hide what comes after.
"""

from __future__ import annotations

import gc
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import keras_cg
from benchmarks import tasks

# Arrays so large that what belongs to objects does not count. In a chain what a call was given is what the one before
# it returned, and has no other reference.
CALLS, SIZE = 3, 10_000_000


def resident(which: str) -> int:
    """`VmRSS`, the memory that the process has now, or `VmHWM`, the most that it had since `forget_peak` (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(rf"^{which}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def forget_peak() -> None:
    """From here on `VmHWM` counts again."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def held(backend: str, contestant: str, calls: int = CALLS, size: int = SIZE) -> dict[str, Any]:
    """What is held between forward and backward and at the peak of both, in arrays of the argument's size."""
    kit: Any = importlib.import_module(f"benchmarks.workloads.{backend}")
    kit.setup()
    function = kit.log1pexp()[contestant]
    if isinstance(function, str):
        return {"says": function}
    workload = tasks.chain(calls, size)
    chain, arguments = workload.around(function, kit.tensor), tasks.mapped(kit.tensor, workload.arguments)
    small = tasks.mapped(kit.tensor, tasks.chain(calls).arguments)
    # What is imported, compiled and cached the first time is not meant.
    kit.wait(kit.vjp(chain, small)()[1]())
    start = kit.vjp(chain, arguments)
    gc.collect()
    forget_peak()
    before = resident("VmRSS")
    outputs, backward = start()
    kit.wait(outputs)
    gc.collect()
    between = resident("VmRSS") - before
    gradients = kit.wait(backward())
    peak = resident("VmHWM") - before
    del outputs, backward, gradients
    nbytes = workload.arguments[0].nbytes
    counted = kit.held(chain, arguments)
    return {
        "held": round(between / nbytes, 3),
        "peak": round(peak / nbytes, 3),
        "counted": None if counted is None else round(counted / nbytes, 3),
    }


if __name__ == "__main__":
    with keras_cg.use_backend(sys.argv[1]):
        print("HELD " + json.dumps(held(*sys.argv[1:3], *map(int, sys.argv[3:]))))
