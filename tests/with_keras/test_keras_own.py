"""Keras's own tests, from the installed package, pass with our decorator in the place of Keras's.

They run in a process of their own, without this project's settings of pytest, once with `keras_cg.keras.install()` in
force and once without. What fails without, or is skipped there, is none of our business.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).parent

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
# Where Keras has fake quantisation from the framework, and where its tests differentiate nothing.
UNREACHED = {
    "tensorflow": {"quantizers/quantizers_test.py"},
    "numpy": {"quantizers/quantizers_test.py", "ops/core_test.py"},
}
# The tests that reach it, found by running everything about quantisation, LoRA and custom gradients and counting the
# calls, but for those of saving int4 layers: they take as long again, for forward passes that the others have too.
SELECTED = (
    "custom_gradient",
    "fake_quant",
    "float8",
    "_quantize_config",
    "dense_quantize",
    "quantize_int",
    "dtype_argument",
    "lora_integration",
    "quantization_block_size",
    "quantized_layer_with_remat",
)


def start(backend, path, *options):
    keras = pathlib.Path(importlib.util.find_spec("keras").origin).parent / "src"
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_CG_BACKEND"}
    environment |= {
        "KERAS_BACKEND": backend,
        # XLA compiles thousands of small programs here, each run once.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))),
    }
    neutral = ("-c", os.devnull, f"--rootdir={keras}", "-p", "no:cacheprovider", "--disable-warnings", "-q")
    plugin = ("-p", "keras_outcomes", f"--outcomes={path}", *options)
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            *neutral,
            *plugin,
            "-k",
            " or ".join(SELECTED),
            *(str(keras / name) for name in MODULES),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcomes(child, path):
    output, _ = child.communicate()
    # 1: some test failed, which is looked at below.
    assert child.returncode in (0, 1) and path.exists(), output
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.thorough
def test_what_passes_without_passes_with(backend, tmp_path):
    paths = tmp_path / "without.json", tmp_path / "with.json"
    children = start(backend, paths[0]), start(backend, paths[1], "--installed")
    without, installed = map(outcomes, children, paths)

    assert set(installed) == set(without)
    passing = [test for test, (outcome, *_) in without.items() if outcome == "passed"]
    lost = [(test, installed[test][2]) for test in passing if installed[test][0] != "passed"]
    assert not lost, "\n\n".join(f"{test} passes without and not with:\n{message}" for test, message in lost)

    assert not any(calls for _, calls, _ in without.values())
    reached = {test.partition("::")[0] for test in passing if installed[test][1]}
    assert reached == set(MODULES) - UNREACHED.get(backend, set())
