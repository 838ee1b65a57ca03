"""What leaves Python, and is loaded elsewhere."""

import pytest

# What Keras, and the libraries that it exports with, say of themselves and of each other.
WARNINGS = pytest.mark.filterwarnings(
    "ignore:In the future `np.object` will be defined:FutureWarning",
    r"ignore:\s*Warning. tf\.lite\.Interpreter is deprecated:UserWarning",
    # torch.jit.TracerWarning, of which pytest would import torch everywhere.
    r"ignore:Converting a tensor to a Python (integer|boolean) might cause:Warning",
    r"ignore:torch\.as_tensor results are registered as constants:Warning",
    "ignore::DeprecationWarning",
)
