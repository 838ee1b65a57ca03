"""Keras's own tests, from the installed package, pass with our decorator in the place of Keras's.

They run in a process of their own, without this project's settings of pytest, with `keras_cg.keras.install()` in force.
What fails there runs again without: what fails then, too, or is skipped, is none of our business.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parent
KERAS = pathlib.Path(importlib.util.find_spec("keras").origin).parent / "src"

# The modules with tests that reach `custom_gradient`: its own, the quantisers, the two layers that use it (dense.py and
# einsum_dense.py; the quantised embeddings do not), and models and rematerialisation around quantised layers.
MODULES = (
    "ops/core_test.py",
    "quantizers/quantizers_test.py",
    "layers/core/dense_test.py",
    "layers/core/einsum_dense_test.py",
    "layers/layer_test.py",
    "models/model_test.py",
)
# The tests that reach it, but for those of saving int4 layers: they take as long again, for forward passes that the
# others have too.
SELECTED = (
    "custom_gradient or fake_quant or float8 or _quantize_config or dense_quantize or quantize_int or dtype_argument"
    " or lora_integration or quantization_block_size or quantized_layer_with_remat"
)
# Where Keras has fake quantisation from the framework, and where its tests differentiate nothing.
UNREACHED = {
    "tensorflow": {"quantizers/quantizers_test.py"},
    "numpy": {"quantizers/quantizers_test.py", "ops/core_test.py"},
}


def outcomes(backend, path, tests, *options):
    """For each test `(outcome, calls of decorated functions, message)`."""
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_CG_BACKEND"}
    environment |= {
        "KERAS_BACKEND": backend,
        # XLA compiles thousands of small programs here, each run once.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))),
    }
    neutral = ("-c", os.devnull, f"--rootdir={KERAS}", "-p", "no:cacheprovider", "--disable-warnings", "-q")
    which = ("-k", SELECTED, *(str(KERAS / test) for test in tests))
    command = [sys.executable, "-m", "pytest", *neutral, "-p", "keras_outcomes", f"--outcomes={path}", *options, *which]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    # 1: some test failed, which is looked at below.
    assert done.returncode in (0, 1) and path.exists(), done.stdout + done.stderr
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.thorough
def test_what_passes_without_passes_with(backend, tmp_path):
    found = outcomes(backend, tmp_path / "with.json", MODULES, "--installed")
    failed = {test: message for test, (outcome, _, message) in found.items() if outcome == "failed"}
    without = outcomes(backend, tmp_path / "without.json", failed) if failed else {}
    lost = [f"{test} passes without and not with:\n{failed[test]}" for test in failed if without[test][0] == "passed"]
    assert not lost, "\n\n".join(lost)
    reached = {test.partition("::")[0] for test, (outcome, calls, _) in found.items() if outcome == "passed" and calls}
    assert reached == set(MODULES) - UNREACHED.get(backend, set())
