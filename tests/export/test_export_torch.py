"""ONNX and ahead-of-time packages of torch models with decorated functions, compared where they run."""

import io
import json

import numpy as np
import programs
import pytest
from leaving import NO_GRADIENT, X, Z, exp, same

from keras_cg import custom_gradient, ops

pytestmark = [
    pytest.mark.only("torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # torch (2.13) about itself.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]


@custom_gradient
def pair(d, factor=1.0):
    outputs = {"high": ops.where(d["a"] > 0, d["a"] * factor, 0), "sum": (d["a"] + d["b"]).reshape(-1, 3)}
    return outputs, lambda upstream: {"a": 7 * upstream["high"], "b": 5 * upstream["sum"]}


def network(is_frozen):
    """A small model with several functions in it, and with one that reads a weight."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.dense = torch.nn.Linear(3, 3)
            self.w = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))

        def forward(self, x):
            hidden = exp(same(self.dense(x)) / 4)
            outputs = pair({"a": hidden - 2, "b": x}, factor=3.0)
            scaled = custom_gradient(lambda x: (x * self.w, lambda upstream, variables=None: (upstream, [None])))
            return scaled(outputs["high"]) + outputs["sum"]

    module = Network().eval()
    return module.requires_grad_(not is_frozen)


def dynamo(module, file):
    import torch

    batch = {"x": {0: torch.export.Dim("batch", min=2)}}
    torch.onnx.export(
        module, (torch.tensor(X),), file, dynamo=True, dynamic_shapes=batch, input_names=["x"], verbose=False
    )


def torchscript(module, file):
    import torch

    torch.onnx.export(
        module, (torch.tensor(X),), file, dynamo=False, dynamic_axes={"x": {0: "batch"}}, input_names=["x"]
    )


@pytest.mark.parametrize("way", [dynamo, torchscript])
@pytest.mark.parametrize("is_frozen", [False, True], ids=["trainable", "frozen"])
def test_onnx(torch, way, is_frozen):
    """As torch itself gives it, for another batch; and nothing idle in it."""
    import onnx
    import onnxruntime

    module, file = network(is_frozen), io.BytesIO()
    with pytest.warns(UserWarning, match=NO_GRADIENT) as caught:
        way(module, file)
    told = [str(each.message) for each in caught if NO_GRADIENT in str(each.message)]
    # torch.jit.trace has no object for a program, so each function warns by itself.
    assert len(told) == 1 or way is torchscript
    session = onnxruntime.InferenceSession(file.getvalue())
    (output,) = session.run(None, {"x": Z})
    np.testing.assert_allclose(output, module(torch.tensor(Z)).detach(), rtol=1e-5, atol=1e-6)
    operations = {node.op_type for node in onnx.load_from_string(file.getvalue()).graph.node}
    assert {"Exp", "Where"} <= operations
    assert "Identity" not in operations


PACKAGED = """
import sys, torch
output = torch._inductor.aoti_load_package(sys.argv[1])(torch.tensor({x}))
print(output.tolist(), "keras_cg" in sys.modules)
"""


def test_a_package(torch, tmp_path):
    """Compiled ahead of time, and run in a process that knows nothing of this package."""

    class Model(torch.nn.Module):
        def forward(self, x):
            return exp(x)

    with pytest.warns(UserWarning, match=NO_GRADIENT):
        program = torch.export.export(Model(), (torch.tensor(X),))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "model.pt2"))
    printed = programs.run(PACKAGED.format(x=X.tolist()), str(path), PYTHONWARNINGS="ignore")
    values, loaded = printed.rsplit(" ", 1)
    np.testing.assert_allclose(np.array(json.loads(values), np.float32), 2 * np.exp(X), rtol=1e-5)
    assert loaded.strip() == "False"
