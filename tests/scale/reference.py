"""The losses of the networks of examples/distributed on one device, without a custom gradient, in float64."""

import functools
import importlib.util
from pathlib import Path

import numpy as np

import keras_cg
from keras_cg import ops

NETWORKS = Path(__file__).parents[2] / "examples" / "distributed" / "networks.py"


@functools.cache
def losses(name, steps):
    """Rounding is written as x plus a constant, whose plain gradient is that of x; autograd differentiates it."""
    spec = importlib.util.spec_from_file_location("networks_in_float64", NETWORKS)
    networks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(networks)
    networks.rounded = lambda x: x + ops.stop_gradient(ops.floor(x + 0.5) - x)
    network = networks.NETWORKS[name]
    weights = {key: array.astype(np.float64) for key, array in network.weights().items()}
    batches = [tuple(array.astype(np.float64) for array in batch) for batch in network.batches(steps)]
    networks.NETWORKS[name] = network._replace(weights=lambda: weights, batches=lambda steps: batches)
    with keras_cg.use_backend("numpy"):
        return networks.train_alone(name, steps)
