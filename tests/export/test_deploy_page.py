"""docs/deploy.md: its Python runs on the backends that it names, and its tables say what the tests find."""

import pathlib
import re

import pages
import pytest

from export import WARNINGS, test_export_keras

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "deploy.md"
pytestmark = WARNINGS


@pytest.mark.filterwarnings("ignore:the exported program has no gradient through:UserWarning")  # which the page tells
def test_python_blocks(backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages.run(PAGE, tmp_path)


# As the tests of each find it, in this folder.
GRADIENTS = {
    ("jax", "jax.export"): "kept",
    ("jax", "SavedModel"): "kept",
    ("tensorflow", "SavedModel"): "kept",
    ("tensorflow", "LiteRT"): "dropped",
    ("tensorflow", "ONNX"): "dropped",
    ("torch", "torch.export"): "dropped",
    ("torch", "TorchScript"): "dropped",
    ("torch", "ONNX"): "dropped",
    ("numpy", ""): "",
}


def test_the_table(backend):
    table = PAGE.read_text().partition("\n## ")[0]
    assert {
        (on, kind): re.match(r"\w*", gradient)[0] for on, kind, _, gradient, _ in pages.rows(table)[2:]
    } == GRADIENTS


def test_what_keras_cannot(backend):
    table = re.search(r"<!-- not keras -->\n(.*?)<!-- /not keras -->", PAGE.read_text(), re.DOTALL)[1]
    told = {(on, kind): what for on, kind, what in pages.rows(table)[2:]}
    assert {(on, kind) for on, kind, _ in test_export_keras.NOT_KERAS} == set(told)
    for on, kind, name in test_export_keras.NOT_KERAS:
        assert name in told[on, kind]
